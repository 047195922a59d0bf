//! Polling before a sleep: whether, and for how long.
//!
//! How long to poll adapts per connection or set: it doubles up to the cost of a wake-up when polling
//! paid, and halves when it did not. After several polls in vain, waits sleep at once in between,
//! 1, 3, 7, ... 31 of them, until one is in time again: where more threads have work than there are
//! processors, the answer never comes while its receiver polls, and polling only takes
//! time from who is to give it. Nobody polls on one processor, when the peer last ran on
//! ours, when half of the processors poll already, or for a while after a poll was interrupted by
//! somebody who wanted the processor more.

use crate::counters::{self, Counter};
use crate::{owner, raw, settings};
use vmmc::sync::{AtomicU32, AtomicU64, Ordering, spin_hint};
use vmmc::wait::left_out_after;

/// Shortest spin that is still tried, in nanoseconds, so that a better time is noticed.
const LEAST_NS: u32 = 2_000;
/// Polls in vain before any is left out: so many halvings lead from the longest to the shortest.
const PATIENCE: u32 = 5;
/// Most waits without a poll in a row.
const MAX_SKIPPED: u32 = 31;

/// Threads of this process that poll now, but for the one that is alone with sockets ([`owner`]).
static SPINNERS: AtomicU32 = AtomicU32::new(0);

/// A batch of looks that took this long was interrupted: somebody else had our processor.
const INTERRUPTED_NS: u64 = 300_000;
/// How long nobody of this process polls after that, in nanoseconds.
const CONTENDED_NS: u64 = 50_000_000;
/// No thread of this process polls before this time; 0: nothing of the kind was seen.
static CONTENDED_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Whether more threads want to run than there are processors: then a poll takes the time that the
/// peer needs to answer, and sleeping is how to let it have it.
fn is_contended() -> bool {
    let until = CONTENDED_UNTIL.load(Ordering::Relaxed);
    if until == 0 {
        return false;
    }
    let contended = raw::now_ns() < until;
    if !contended {
        CONTENDED_UNTIL.store(0, Ordering::Relaxed);
    }
    contended
}

/// Polls `ready` for at most `budget` nanoseconds, and says whether it became true. `None`: there was
/// no poll, for the reasons above.
pub(crate) fn spin(budget: u32, mut ready: impl FnMut() -> bool) -> Option<bool> {
    if budget == 0 || is_contended() {
        return None;
    }
    let counted = !owner::is_me();
    if counted && SPINNERS.fetch_add(1, Ordering::Relaxed) >= (settings::processors() / 2).max(1) {
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    let mut started = 0;
    let mut before = 0;
    let hit = 'spinning: loop {
        for _ in 0..32 {
            if ready() {
                break 'spinning true;
            }
            // The answer to what was just sent comes within the first looks: a pause (40 to 140 cycles) would be
            // seen in its time.
            if started != 0 {
                spin_hint();
            }
        }
        let now = raw::now_ns();
        if before != 0 && now.wrapping_sub(before) > INTERRUPTED_NS {
            CONTENDED_UNTIL.store(now.wrapping_add(CONTENDED_NS), Ordering::Relaxed);
            counters::one(Counter::contended);
            break false;
        }
        before = now;
        if started == 0 {
            started = now;
        } else if now.wrapping_sub(started) > u64::from(budget) {
            break false;
        }
    };
    if counted {
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
    }
    counters::one(if hit { Counter::spin_hits } else { Counter::spin_misses });
    Some(hit)
}

/// The part of a budget that is inside a time limit.
pub(crate) fn within(budget: u32, left: Option<u64>) -> u32 {
    left.and_then(|left| u32::try_from(left).ok()).map_or(budget, |left| left.min(budget))
}

/// What the waits of a connection or a set have learned. One word: threads that wait at the same time may
/// forget each other's lesson, and never mix them.
#[derive(Debug)]
pub(crate) struct Lesson(AtomicU32);

/// The word of a [`Lesson`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Learned {
    /// Length of the next spin, in nanoseconds: 20 bits, in units of 100; all set: the longest there is.
    budget: u32,
    /// Spins in vain since one that was not: 7 bits.
    vain: u32,
    /// Waits that sleep at once from here on: 5 bits.
    skip: u32,
}

/// Nanoseconds in a unit of the budget.
const UNIT: u32 = 100;
/// The largest budget in units.
const UNITS: u32 = (1 << 20) - 1;
const MOST_VAIN: u32 = (1 << 7) - 1;

impl Learned {
    /// A full spin comes next.
    const NOTHING: Learned = Learned { budget: u32::MAX, vain: 0, skip: 0 };

    const fn word(self) -> u32 {
        let units = self.budget / UNIT;
        let units = if units > UNITS { UNITS } else { units };
        units << 12 | self.vain << 5 | self.skip
    }

    fn of(word: u32) -> Learned {
        let units = word >> 12;
        let budget = if units == UNITS { u32::MAX } else { units * UNIT };
        Learned { budget, vain: word >> 5 & MOST_VAIN, skip: word & MAX_SKIPPED }
    }

    /// After a spin of this length; `most` is the longest.
    fn spun(self, hit: bool, most: u32) -> Learned {
        let budget = self.budget.min(most);
        if hit {
            let budget = budget.saturating_mul(2).clamp(LEAST_NS, most.max(LEAST_NS));
            return Learned { budget, vain: 0, skip: 0 };
        }
        let vain = (self.vain + 1).min(MOST_VAIN);
        // Whoever is told to poll for ever does.
        let rounds = if most == u32::MAX { 0 } else { vain.saturating_sub(PATIENCE) };
        let skip = left_out_after(rounds, MAX_SKIPPED);
        Learned { budget: (budget / 2).max(LEAST_NS), vain, skip }
    }

    /// After a sleep that a full spin would have met the end of.
    fn slept_briefly(self) -> Learned {
        let skip = self.skip / 2;
        Learned { budget: if skip == 0 { u32::MAX } else { self.budget }, skip, ..self }
    }
}

impl Lesson {
    /// Nothing learned yet: a full spin comes first.
    pub(crate) const fn new() -> Lesson {
        Lesson(AtomicU32::new(Learned::NOTHING.word()))
    }

    /// Begins anew, for another connection or set.
    pub(crate) fn forget(&self) {
        self.store(Learned::NOTHING);
    }

    fn load(&self) -> Learned {
        Learned::of(self.0.load(Ordering::Relaxed))
    }

    fn store(&self, learned: Learned) {
        self.0.store(learned.word(), Ordering::Relaxed);
    }

    /// How long the wait that begins may poll, in nanoseconds; 0: it sleeps at once. To be asked once a
    /// wait.
    pub(crate) fn budget(&self) -> u32 {
        let learned = self.load();
        if learned.skip == 0 {
            return learned.budget.min(settings::spin_ns());
        }
        self.store(Learned { skip: learned.skip - 1, ..learned });
        0
    }

    /// A poll of as long as [`Lesson::budget`] said has ended.
    pub(crate) fn spun(&self, hit: bool) {
        self.store(self.load().spun(hit, settings::spin_ns()));
    }

    /// Polls as long as pays, and at most the nanoseconds `left`, if there is a limit; whether `ready` became true.
    pub(crate) fn spin(&self, left: Option<u64>, ready: impl FnMut() -> bool) -> bool {
        let whole = self.budget();
        let budget = within(whole, left);
        let hit = spin(budget, ready);
        // One that was given less time teaches nothing by having met nobody.
        if let Some(hit) = hit
            && (hit || budget == whole)
        {
            self.spun(hit);
        }
        hit == Some(true)
    }

    /// After a sleep begun at `began`: one that was so short that a full spin would have met its end
    /// makes the next spin a full one, or comes nearer to one. Without this a budget that was
    /// halved below the usual wait would never recover.
    pub(crate) fn slept(&self, began: u64) {
        // The sleeper's own wake-up is in the time, and costs about as much as the longest spin.
        if raw::now_ns().wrapping_sub(began) < 2 * u64::from(settings::spin_ns()) {
            self.store(self.load().slept_briefly());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 50_000;

    /// Whether each of so many waits polls, if nobody ever answers in time.
    fn in_vain(mut learned: Learned, waits: usize, most: u32) -> Vec<bool> {
        let turn = |_| {
            let polls = learned.skip == 0;
            learned = match polls {
                true => learned.spun(false, most),
                false => Learned { skip: learned.skip - 1, ..learned },
            };
            polls
        };
        (0..waits).map(turn).collect()
    }

    #[test]
    fn a_word_holds_what_was_learned() {
        let learned = Learned { budget: 50_000, vain: 99, skip: 31 };
        assert_eq!(Learned::of(learned.word()), learned);
        assert_eq!(Learned::of(Learned::NOTHING.word()), Learned::NOTHING);
    }

    #[test]
    fn spins_halve_and_then_become_rare_unless_polling_was_asked_for() {
        let polls = in_vain(Learned::NOTHING, 12, MOST);
        let expected = [1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 1].map(|it| it == 1);
        assert_eq!(polls, expected);
        let rare =
            in_vain(Learned::NOTHING, 64 * 100, MOST).iter().filter(|polled| **polled).count();
        assert!((200..220).contains(&rare), "{rare}");
        assert!(in_vain(Learned::NOTHING, 1000, u32::MAX).iter().all(|polled| *polled));
        let mut learned = Learned::NOTHING;
        for expected in [25_000, 12_500, 6_200, 3_100, 2_000, 2_000] {
            learned = Learned::of(learned.spun(false, MOST).word());
            assert_eq!(learned.budget, expected);
        }
    }

    #[test]
    fn a_poll_ends_with_the_time_that_is_left() {
        assert_eq!(within(MOST, None), MOST);
        assert_eq!(within(MOST, Some(7)), 7);
        assert_eq!(within(u32::MAX, Some(10_000_000)), 10_000_000);
        assert_eq!(within(MOST, Some(u64::from(MOST) + 1)), MOST);
        assert_eq!(within(MOST, Some(u64::MAX)), MOST);
    }

    #[test]
    fn one_in_time_and_a_few_short_sleeps_bring_full_spins_back() {
        let tired = Learned { budget: LEAST_NS, vain: MOST_VAIN, skip: MAX_SKIPPED };
        assert_eq!(tired.spun(false, MOST), tired);
        let hit = tired.spun(true, MOST);
        assert_eq!(hit, Learned { budget: 2 * LEAST_NS, vain: 0, skip: 0 });
        let mut learned = tired;
        for expected in [15, 7, 3, 1] {
            learned = learned.slept_briefly();
            assert_eq!(learned, Learned { skip: expected, ..tired });
        }
        assert_eq!(learned.slept_briefly(), Learned { skip: 0, budget: u32::MAX, ..tired });
    }
}
