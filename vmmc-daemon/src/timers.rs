//! What is due when. A map ordered by time, from which an entry can be taken back: a client that
//! starts and cancels long waits in a loop must not make it grow.

use std::collections::BTreeMap;
use std::time::Instant;
use vmmc::id::{ClientId, RequestId};

/// What to do when the time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A connection that has not said hello.
    Nascent(ClientId),
    /// A waiting import.
    Import(ClientId, RequestId),
    /// A registered socket whose other end has not come.
    Pairing(u64),
    /// A pair with no process left.
    PairLinger(u64),
    /// Sending stopped for want of descriptors.
    Flush(ClientId),
    /// Reading stopped because the user's descriptors come faster than they can be closed.
    Read(ClientId),
    /// Accepting stopped for want of descriptors.
    Accept,
    /// Two clients have had no link for a while.
    Partings,
    /// Nobody has been connected for a while.
    Idle,
    /// The service manager expects a sign of life.
    Watchdog,
}

/// Names one entry.
pub(crate) type TimerKey = (Instant, u64);

#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeMap<TimerKey, Timer>,
    next: u64,
}

impl Timers {
    pub(crate) fn add(&mut self, at: Instant, timer: Timer) -> TimerKey {
        self.next += 1;
        let key = (at, self.next);
        self.due.insert(key, timer);
        key
    }

    pub(crate) fn cancel(&mut self, key: TimerKey) {
        self.due.remove(&key);
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first_key_value().map(|(key, _)| key.0)
    }

    /// Takes the first entry that is due at `now`, with the time at which it was.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Instant, Timer)> {
        let entry = self.due.first_entry()?;
        let due = entry.key().0;
        (due <= now).then(|| (due, entry.remove()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn entries_come_due_in_order_and_cancelled_ones_never() {
        let mut timers = Timers::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        timers.add(later, Timer::Accept);
        let gone = timers.add(now, Timer::Idle);
        timers.add(now, Timer::Pairing(1));
        timers.add(now, Timer::Pairing(2));
        timers.cancel(gone);
        assert_eq!(timers.pop(now), Some((now, Timer::Pairing(1))));
        assert_eq!(timers.pop(now), Some((now, Timer::Pairing(2))));
        assert_eq!(timers.pop(now), None);
        assert_eq!(timers.next_due(), Some(later));
        assert_eq!(timers.pop(later + Duration::from_secs(1)), Some((later, Timer::Accept)));
        assert!(timers.due.is_empty());
    }
}
