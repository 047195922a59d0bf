//! R in turns: the bare cache line, played between the very two processes that play something else.
//!
//! Where a hypervisor puts two processors now on one core and now on two, R changes by a factor of four within
//! a second, so what is to be a multiple of R is measured in turns of milliseconds with it. The
//! two words are in a file that both processes map; how the second one learns that it is to
//! answer is their own affair.

use super::peer::{PAGE, PING, PONG, poll_change, word};
use crate::exit::{Context, Io};
use crate::shm::Shared;
use crate::stats::{self, Plan, Rounds};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};
use vmmc::sync::Ordering;
use vmmc::word::{MappedU32, Word as _};

/// Ends a turn.
const STOP: u32 = u32::MAX;
/// How long a turn may take at most: the other side may have ended.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one turn takes.
pub(crate) const TURN: Duration = Duration::from_millis(2);

/// How many are played in a round.
pub(crate) fn turns_in(round: Duration) -> u128 {
    (round.as_micros() / TURN.as_micros()).max(1)
}

/// Makes the file.
pub(crate) fn create(path: &Path) -> Result<(), Io> {
    let made = File::create(path).and_then(|file| file.set_len(PAGE as u64));
    made.context(|| format!("making {path:?}"))
}

/// One end.
#[derive(Debug)]
pub(crate) struct Line {
    page: Shared,
}

impl Line {
    /// Maps a file that was made by [`create`].
    pub(crate) fn open(path: &Path) -> Result<Line, Io> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.context(|| format!("opening {path:?}"))?;
        Ok(Line { page: Shared::map(&file, PAGE)? })
    }

    fn words(&self) -> Result<(MappedU32<'_>, MappedU32<'_>), Io> {
        let view = self.page.view();
        Ok((word(view, PING)?, word(view, PONG)?))
    }

    /// Asks for one turn: the median time one way, in nanoseconds. The other side answers meanwhile.
    pub(crate) fn ask(&self, plan: &Plan) -> Result<f64, Io> {
        let (ping, pong) = self.words()?;
        let begin = Instant::now();
        let mut answered = pong.load(Ordering::Acquire);
        let mut ask = |number| {
            ping.store(number, Ordering::Release);
            answered = poll_change(&pong, answered, &mut || begin.elapsed() > PATIENCE)?;
            Ok(())
        };
        let mut number = 0;
        let (samples, _) = plan.round(|| {
            number += 1;
            ask(number)
        })?;
        ask(STOP)?;
        Ok(stats::median(samples) / 2.0)
    }

    /// Answers until the other side has had its turn.
    pub(crate) fn answer(&self) -> Result<(), Io> {
        let (ping, pong) = self.words()?;
        let begin = Instant::now();
        let mut last = ping.load(Ordering::Acquire);
        if last != STOP {
            pong.store(last, Ordering::Release); // it has begun already
        }
        loop {
            last = poll_change(&ping, last, &mut || begin.elapsed() > PATIENCE)?;
            pong.store(last, Ordering::Release);
            if last == STOP {
                return Ok(());
            }
        }
    }
}

/// Turns as they were played: R, and beside it what is compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    r: Rounds,
    beside: Rounds,
}

impl Turns {
    /// Adds what one turn of each took, in nanoseconds.
    pub(crate) fn add(&mut self, r: f64, beside: f64) {
        self.r.add(vec![r], 1);
        self.beside.add(vec![beside], 1);
    }

    /// Takes a line of a program that says `turns`, and then R and the other of each; false for other lines.
    pub(crate) fn parse(&mut self, line: &str) -> bool {
        let Some(numbers) = line.strip_prefix("turns ") else { return false };
        let numbers: Vec<f64> = numbers.split(' ').filter_map(|word| word.parse().ok()).collect();
        for turn in numbers.chunks_exact(2) {
            if let [r, beside] = *turn {
                self.add(r, beside);
            }
        }
        true
    }

    /// The median of R over the turns, and of the ratios; `None` when none was played.
    pub(crate) fn ratio(&self) -> Option<(f64, f64)> {
        let r = self.r.latency();
        (r.rounds > 0).then(|| (r.median_ns, stats::ratio(&self.beside, &self.r)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_turns_are_asked_and_answered_over_one_file() {
        let scratch = crate::children::Scratch::new().unwrap();
        let path = scratch.path().join("line");
        create(&path).unwrap();
        let plan = Plan { round: TURN, sample: Duration::from_micros(3), max_samples: 100 };
        std::thread::scope(|scope| {
            let answers = scope.spawn(|| {
                let line = Line::open(&path).unwrap();
                for _ in 0..3 {
                    line.answer().unwrap();
                }
            });
            let line = Line::open(&path).unwrap();
            for _ in 0..3 {
                assert!(line.ask(&plan).unwrap() > 0.0);
            }
            answers.join().unwrap();
        });
    }

    #[test]
    fn ratios_are_of_neighbours() {
        let mut turns = Turns::default();
        assert_eq!(turns.ratio(), None);
        for r in [50.0, 50.0, 170.0, 170.0, 170.0] {
            turns.add(r, 2.0 * r);
        }
        assert_eq!(turns.ratio(), Some((170.0, 2.0)));
        assert!(!turns.parse("8 4 100.0"));
        assert!(turns.parse("turns 10.0 30.0 10.0 30.0 20.0 60.0 30.0 90.0 20.0 60.0 20.0 60.0"));
        assert_eq!(turns.ratio(), Some((30.0, 3.0)));
    }
}
