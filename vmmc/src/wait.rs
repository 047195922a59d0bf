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
