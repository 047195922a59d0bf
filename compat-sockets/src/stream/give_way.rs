//! Giving way before a sleep: whoever else wants this processor runs first, and then one more look.
//!
//! Where more threads have work than there are processors, the peers that are to answer often wait for the very
//! processor that the receiver is about to leave. A receiver that sleeps has to be rung, by a system call and a
//! wake-up for each; one that only yields is not asleep, so its peers fill its rings without ringing, and when its
//! turn comes again it finds all of that at once. With haproxy between wrk and nginx on two processors this
//! is the difference between losing to TCP and twice its rate. Who waits for one connection alone in a blocking
//! receive does not yield: there it brought nothing.
//!
//! A yield is a system call, and when a program that computes has the turn it takes a whole slice, where a sleeper
//! that is rung would get the processor back sooner. So waits learn from what came of it: yields that met nobody, or
//! after which there was nothing to receive, become rare, and those that took as long as a slice rarer still.

use crate::counters::{self, Counter};
use crate::{raw, settings};
use vmmc::sync::{AtomicU32, Ordering};
use vmmc::wait::left_out_after;

/// A yield that took less than this, in nanoseconds, met nobody else who wanted the processor.
const ALONE_NS: u64 = 4_000;
/// One that took longer met somebody who does not wait for us.
const SLICE_NS: u64 = 1_000_000;
/// Time limits shorter than this are not put at risk.
const SHORTEST_WAIT_NS: u64 = 5_000_000;
/// Yields that paid before one wait sleeps all the same. Each puts the yielder behind by a slice as the scheduler
/// counts, which a sleep makes up for: without it a program that computes was let run for up to 140 ms.
const RUN: u32 = 4;
/// Yields for nothing before any is left out.
const PATIENCE: u32 = 3;
/// Most waits without a yield after yields for nothing.
const MAX_SKIPPED: u32 = 31;
/// The same after yields that took a slice.
const MAX_SKIPPED_LONG: u32 = 1023;

/// What the waits of a connection or a set have learned about yielding. One word, as in [`super::spin::Lesson`].
#[derive(Debug)]
pub(crate) struct Yields(AtomicU32);

/// The word of [`Yields`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Learned {
    /// Yields in a row that were for nothing, or took long: 5 bits.
    bad: u32,
    /// Yields that paid since a wait that did not yield: 3 bits.
    run: u32,
    /// Waits that do not yield from here on: 10 bits.
    skip: u32,
}

impl Learned {
    const MOST_BAD: u32 = 31;

    const fn word(self) -> u32 {
        self.bad << 13 | self.run << 10 | self.skip
    }

    fn of(word: u32) -> Learned {
        Learned { bad: word >> 13, run: word >> 10 & 7, skip: word & MAX_SKIPPED_LONG }
    }

    /// After a yield that took so many nanoseconds, and whether there was something to receive then.
    fn yielded(self, took: u64, hit: bool) -> Learned {
        let bad = (self.bad + 1).min(Learned::MOST_BAD);
        if took >= SLICE_NS {
            return Learned { bad, run: 0, skip: left_out_after(bad, MAX_SKIPPED_LONG) };
        }
        if hit {
            let run = (self.run + 1) % RUN;
            return Learned { bad: 0, run, skip: u32::from(run == 0) };
        }
        Learned { bad, run: 0, skip: left_out_after(bad.saturating_sub(PATIENCE), MAX_SKIPPED) }
    }
}

/// What came of giving way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gave {
    /// Nothing, or it was not the time for it.
    Nothing,
    /// There is something to receive.
    Ready,
    /// A handler of the program has run: a sleep would have ended with `EINTR`, and so must the wait.
    Interrupted,
    /// Enough of it in a row: this wait is to sleep.
    Sleep,
}

impl Yields {
    /// Nothing learned yet: the first wait yields.
    pub(crate) const fn new() -> Yields {
        Yields(AtomicU32::new(0))
    }

    /// Begins anew, for another connection or set.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether a wait that may last `left` nanoseconds, `None` for ever, would give way.
    pub(crate) fn is_due(&self, left: Option<u64>) -> bool {
        Learned::of(self.0.load(Ordering::Relaxed)).skip == 0
            && settings::may_yield()
            && left.is_none_or(|left| left >= SHORTEST_WAIT_NS)
    }

    /// Lets others run before a wait that may last `left` nanoseconds, `None` for ever, if that has paid lately, and
    /// asks `ready` then. `left` is less afterwards by what it took.
    pub(crate) fn give_way(&self, left: &mut Option<u64>, ready: impl FnOnce() -> bool) -> Gave {
        let learned = Learned::of(self.0.load(Ordering::Relaxed));
        if learned.skip != 0 {
            let rest = Learned { skip: learned.skip - 1, ..learned };
            self.0.store(rest.word(), Ordering::Relaxed);
            return if rest == Learned::default() { Gave::Sleep } else { Gave::Nothing };
        }
        if !self.is_due(*left) {
            return Gave::Nothing;
        }
        let before = raw::now_ns();
        let interrupted = raw::yield_interrupted();
        let took = raw::now_ns().wrapping_sub(before);
        *left = left.map(|left| left.saturating_sub(took));
        if interrupted {
            return Gave::Interrupted;
        }
        let hit = took >= ALONE_NS && ready();
        // Other threads have learned meanwhile.
        let learned = Learned::of(self.0.load(Ordering::Relaxed));
        counters::one(if hit { Counter::yield_hits } else { Counter::yield_misses });
        self.0.store(learned.yielded(took, hit).word(), Ordering::Relaxed);
        if hit { Gave::Ready } else { Gave::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of 10,000 waits yield when every yield ends like this.
    fn yielding(took: u64, hit: bool) -> u32 {
        let mut learned = Learned::default();
        let mut yields = 0;
        for _ in 0..10_000 {
            learned = Learned::of(learned.word());
            if learned.skip > 0 {
                learned.skip -= 1;
            } else {
                yields += 1;
                learned = learned.yielded(took, hit);
            }
        }
        yields
    }

    #[test]
    fn yields_that_pay_go_on_and_others_become_rare() {
        assert_eq!(yielding(100_000, true), 8_000);
        let for_nothing = yielding(100_000, false);
        assert!((300..350).contains(&for_nothing), "{for_nothing}");
        assert_eq!(yielding(300, false), for_nothing);
        let slices = yielding(3_000_000, true);
        assert!((15..25).contains(&slices), "{slices}");
    }

    #[test]
    fn one_that_pays_makes_up_for_all_before() {
        let tired = Learned { bad: Learned::MOST_BAD, run: 0, skip: 0 };
        assert_eq!(tired.yielded(100_000, true), Learned { run: 1, ..Learned::default() });
        assert_eq!(tired.yielded(100_000, false), Learned { skip: MAX_SKIPPED, ..tired });
        assert_eq!(tired.yielded(SLICE_NS, true), Learned { skip: MAX_SKIPPED_LONG, ..tired });
    }
}
