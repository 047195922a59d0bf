//! Waiting for something that another process will do: spin, then sleep.
//!
//! The common case ends in the first few looks, without a clock and without a system call. After
//! those the policy decides: spin on, for ever ([`WaitPolicy::Spin`]) or for a budget
//! ([`WaitPolicy::Hybrid`], the default), or sleep at once. A budget as long as a wake-up takes costs at
//! most twice the best choice (Karlin et al., *Competitive randomized algorithms*, SODA'90; for this system:
//! Damianakis, Chen, Felten, *Reducing Waiting Costs*, IPPS'97). There is no budget while the peer was
//! last seen on our own processor: it cannot run before we stop.

use crate::config::WaitPolicy;
use crate::sync::spin_hint;
use std::time::{Duration, Instant};

/// Looks before the first look at the clock.
const FREE_LOOKS: u32 = 64;
/// Looks between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 64;

/// How a spin ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spun<T> {
    /// With what was waited for.
    Found(T),
    /// The budget is used up: sleep.
    Spent,
    /// The deadline has passed.
    Late,
}

/// The looks that come before the first look at the clock; none under [`WaitPolicy::Block`].
#[inline(always)]
pub fn glance<T>(policy: WaitPolicy, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    if policy == WaitPolicy::Block {
        return None;
    }
    for _ in 0..FREE_LOOKS {
        if let Some(found) = look() {
            return Some(found);
        }
        spin_hint();
    }
    None
}

/// Spins by `policy` until `look` finds something. `shares_cpu` is asked at most once, and only
/// after the free looks.
#[inline]
pub fn spin<T>(
    policy: WaitPolicy,
    deadline: Option<Instant>,
    shares_cpu: impl FnOnce() -> bool,
    mut look: impl FnMut() -> Option<T>,
) -> Spun<T> {
    if let Some(found) = glance(policy, &mut look) {
        return Spun::Found(found);
    }
    spin_on(policy, deadline, shares_cpu, look)
}

/// As [`spin`], for who has had a [`glance`].
#[inline]
pub fn spin_on<T>(
    policy: WaitPolicy,
    deadline: Option<Instant>,
    shares_cpu: impl FnOnce() -> bool,
    mut look: impl FnMut() -> Option<T>,
) -> Spun<T> {
    let budget = match policy {
        WaitPolicy::Block => return look().map_or(Spun::Spent, Spun::Found),
        WaitPolicy::Spin => None,
        WaitPolicy::Hybrid { budget } if budget.is_zero() => return Spun::Spent,
        WaitPolicy::Hybrid { .. } if shares_cpu() => return Spun::Spent,
        WaitPolicy::Hybrid { budget } => Some(budget),
    };
    spin_for(budget, deadline, look)
}

#[cold]
fn spin_for<T>(
    budget: Option<Duration>,
    deadline: Option<Instant>,
    mut look: impl FnMut() -> Option<T>,
) -> Spun<T> {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            if let Some(found) = look() {
                return Spun::Found(found);
            }
            spin_hint();
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Spun::Late;
        }
        if budget.is_some_and(|budget| now.duration_since(start) >= budget) {
            return Spun::Spent;
        }
    }
}

/// Pauses between two looks of a [`Poller`], which may be system calls.
const PAUSES: u32 = 8;
/// Two looks so far apart: somebody else had the processor meanwhile.
const INTERRUPTED: Duration = Duration::from_micros(200);
/// How long a poller leaves the processor alone after that.
const CONTENDED: Duration = Duration::from_millis(50);
/// Most polls left out in a row.
const MAX_SKIPPED: u32 = 63;

/// Between two looks of a poll: lets others have the processor. False when one had it for so long that to poll on would keep
/// others from it, and would be later than a wake-up.
pub fn give_way() -> bool {
    let before = Instant::now();
    std::thread::yield_now();
    before.elapsed() < INTERRUPTED
}

/// How many polls to leave out after so many in vain, `most` at most: 0, 1, 3, 7, ...
#[must_use]
pub fn left_out_after(vain: u32, most: u32) -> u32 {
    1u32.checked_shl(vain).map_or(most, |n| (n - 1).min(most))
}

/// Polls before a sleep, where a look is a system call and nobody knows who will answer, and when.
///
/// A budget as long as a wake-up takes costs at most twice the best choice, and less is better, so a
/// poller also learns. After polls in vain it leaves out 1, 3, 7, ... 63 of those that follow, until one is
/// in time again (half of them after one that a poll might have met); and when another program was given its processor in the middle of a poll, it
/// polls no more for 50 ms, because whoever polls there takes the time of others and is last
/// to get it when there is something to do.
#[derive(Debug, Default)]
pub struct Poller {
    /// Polls in vain since the last one that was in time.
    vain: u32,
    /// Polls to be left out.
    skip: u32,
    contended_until: Option<Instant>,
}

impl Poller {
    /// Looks until `look` finds something, `budget` at most. `None`: sleep.
    pub fn poll<T>(&mut self, budget: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if budget.is_zero() {
            return None;
        }
        let start = Instant::now();
        if !self.pays(start) {
            return None;
        }
        let mut before = start;
        loop {
            if let Some(found) = look() {
                self.met();
                return Some(found);
            }
            for _ in 0..PAUSES {
                spin_hint();
            }
            let now = Instant::now();
            if now.duration_since(before) >= INTERRUPTED {
                self.interrupted();
                return None;
            }
            if now.duration_since(start) >= budget {
                self.missed();
                return None;
            }
            before = now;
        }
    }

    /// Whether the poll that is to begin now is made.
    pub fn pays(&mut self, now: Instant) -> bool {
        if self.contended_until.is_some_and(|until| now < until) {
            return false;
        }
        let skipped = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        !skipped
    }

    /// A poll was in time.
    pub fn met(&mut self) {
        self.vain = 0;
    }

    /// A wait whose poll was left out has ended. After one so short that a poll might have met its end, had nobody had to
    /// wake up, fewer are left out.
    pub fn slept(&mut self, waited: Duration, budget: Duration) {
        if waited < 3 * budget {
            self.skip /= 2;
        }
    }

    /// Somebody else had the processor for long. The poll is over, and for a while there is none.
    pub fn interrupted(&mut self) {
        self.contended_until = Some(Instant::now() + CONTENDED);
    }

    /// A poll was in vain.
    pub fn missed(&mut self) {
        self.skip = left_out_after(self.vain, MAX_SKIPPED);
        self.vain = self.vain.saturating_add(1);
    }
}

/// The instant `timeout` from now; `None` for never, also when that is beyond the clock.
#[must_use]
pub fn deadline_after(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn block_looks_once_and_hybrid_gives_up_after_its_budget_or_at_once_on_a_shared_processor() {
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            None::<()>
        };
        assert_eq!(glance(WaitPolicy::Block, &mut look), None);
        assert_eq!(spin(WaitPolicy::Block, None, || unreachable!(), look), Spun::Spent);
        assert_eq!(looks, 1);
        let hybrid = WaitPolicy::Hybrid { budget: Duration::from_micros(50) };
        assert_eq!(spin(hybrid, None, || false, || None::<()>), Spun::Spent);
        let forever = WaitPolicy::Hybrid { budget: Duration::MAX };
        assert_eq!(spin(forever, None, || true, || None::<()>), Spun::Spent);
    }

    #[test]
    fn a_poller_looks_until_it_finds_and_without_a_budget_never() {
        let look = || -> Option<()> { unreachable!() };
        assert_eq!(Poller::default().poll(Duration::ZERO, look), None);
        assert_eq!(Poller::default().poll(Duration::MAX, || Some(7)), Some(7));
        let mut looked = false;
        let look = || {
            looked = true;
            None::<()>
        };
        assert_eq!(Poller::default().poll(Duration::from_nanos(1), look), None);
        assert!(looked);
    }

    #[test]
    fn polls_in_vain_become_rare_and_one_in_time_brings_them_back() {
        let mut poller = Poller::default();
        let now = Instant::now();
        let mut turn = || {
            let pays = poller.pays(now);
            if pays {
                poller.missed();
            }
            pays
        };
        assert_eq!([(); 6].map(|()| turn()), [true, true, false, true, false, false]);
        let polled = (0..64 * 100).filter(|_| turn()).count();
        assert!((100..110).contains(&polled), "{polled}");
        while poller.poll(Duration::MAX, || Some(())).is_none() {}
        assert!(poller.pays(now));
        poller.missed();
        assert!(poller.pays(now));
    }

    #[test]
    fn a_sleep_that_a_poll_would_have_spared_brings_the_polls_back() {
        let (mut poller, now, budget) =
            (Poller::default(), Instant::now(), Duration::from_micros(24));
        // Waits until the next poll, each of which takes so long.
        let mut until_polled = |waited| {
            (0..8).for_each(|_| poller.missed());
            let mut left_out = 0;
            while !poller.pays(now) {
                poller.slept(waited, budget);
                left_out += 1;
            }
            left_out
        };
        assert_eq!(until_polled(3 * budget), MAX_SKIPPED);
        assert_eq!(until_polled(2 * budget), 6, "31, 15, 7, ...");
    }

    #[test]
    fn a_poller_that_was_interrupted_leaves_the_processor_alone_for_a_while() {
        let mut poller = Poller::default();
        let look = || {
            std::thread::sleep(INTERRUPTED);
            None::<()>
        };
        assert_eq!(poller.poll(Duration::MAX, look), None);
        let until = poller.contended_until.unwrap();
        assert!(!poller.pays(until - Duration::from_nanos(1)));
        assert!(poller.pays(until));
    }

    #[test]
    fn spin_ends_with_the_find_or_at_the_deadline() {
        let mut looks = 0;
        let found = spin(
            WaitPolicy::Spin,
            None,
            || unreachable!(),
            || {
                looks += 1;
                (looks == 1000).then_some(looks)
            },
        );
        assert_eq!(found, Spun::Found(1000));
        let late = Some(Instant::now());
        assert_eq!(spin(WaitPolicy::Spin, late, || unreachable!(), || None::<()>), Spun::Late);
    }
}
