//! What the log is told of clients, and other nodes, that do wrong or are refused: anybody can make any number of such lines, so of
//! many some are told one by one, and the others counted.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Lines in a [`TIME`].
const MOST: u32 = 20;
const TIME: Duration = Duration::from_secs(20);

/// See the module.
#[derive(Debug)]
pub(crate) struct Sayings(Mutex<Said>);

#[derive(Debug)]
struct Said {
    since: Instant,
    lines: u32,
    /// Not told since the last that was.
    untold: u64,
}

impl Sayings {
    pub(crate) fn new() -> Sayings {
        Sayings(Mutex::new(Said { since: Instant::now(), lines: 0, untold: 0 }))
    }

    /// One more line, which `tell` writes if it is told, with how many were not before, if any.
    pub(crate) fn say(&self, tell: impl FnOnce(Option<u64>)) {
        let untold = self.0.lock().unwrap_or_else(PoisonError::into_inner).one_more(Instant::now());
        if let Some(untold) = untold {
            tell((untold > 0).then_some(untold));
        }
    }
}

/// One more line that a client of this machine causes.
pub(crate) fn of_client(tell: impl FnOnce(Option<u64>)) {
    static ALL: OnceLock<Sayings> = OnceLock::new();
    ALL.get_or_init(Sayings::new).say(tell);
}

impl Said {
    /// Whether one more is told, and how many were not before.
    fn one_more(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= TIME {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines >= MOST {
            self.untold += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_some_are_told_and_the_others_counted() {
        let now = Instant::now();
        let mut said = Said { since: now, lines: 0, untold: 0 };
        for _ in 0..MOST {
            assert_eq!(said.one_more(now), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(said.one_more(now), None);
        }
        assert_eq!(said.one_more(now + TIME), Some(3));
        assert_eq!(said.one_more(now + TIME), Some(0));
    }
}
