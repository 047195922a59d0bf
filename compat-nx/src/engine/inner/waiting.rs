//! How threads of an engine wait, and wake each other.

use super::Inner;
use crate::engine::ops::OpId;
use crate::engine::state::{State, Want};
use crate::engine::types::Outcome;
use crate::error::NxError;
use std::time::{Duration, Instant};
use vmmc::config::WaitPolicy;
use vmmc::sync::{Ordering, spin_hint};
use vmmc::wait::{self, Spun};
use vmmc::word::biased::BiasedGuard;

/// How long a thread gives its processor away before it sleeps, when there are more processes than
/// processors.
const YIELDING: Duration = Duration::from_micros(500);
/// Looks of a thread that keeps the lock meanwhile.
pub(in crate::engine) const LOOKS: u32 = 64;

impl Inner {
    fn shares_cpu(&self, cpu: u32) -> bool {
        self.is_crowded() || self.peers().take(4).any(|peer| peer.out.peer_was_on(cpu))
    }

    /// Whether a thread that has the lock may look a few times before it gives it back.
    #[inline]
    pub(in crate::engine) fn may_glance(&self) -> bool {
        !self.is_crowded()
            && !self.state.is_wanted()
            && self.data.wait_policy() != WaitPolicy::Block
    }

    /// Whether another thread waits in a call.
    #[inline]
    pub(in crate::engine) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Whether such a thread should stop, though no message has come: another one wants the lock, or something has ended.
    #[inline]
    pub(in crate::engine) fn has_other_news(&self) -> bool {
        self.state.is_wanted()
            || self.on_end.0.load(Ordering::Relaxed)
            || self.failed.load(Ordering::Relaxed)
    }

    /// Looks a few times, and makes progress, without giving the lock back as long as nobody else wants it: what `done` waits for
    /// is at hand at once when it comes.
    #[inline]
    pub(in crate::engine) fn glance<T>(
        &self,
        state: &mut State,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut found = done(state);
        for _ in 0..LOOKS {
            if found.is_some() || !self.may_glance() || self.has_other_news() {
                break;
            }
            if let Err(error) = state.progress(self) {
                self.fail(error);
                break;
            }
            found = done(state);
            if found.is_none() {
                spin_hint();
            }
        }
        found
    }

    /// Waits until `done` finds something in the state; makes progress meanwhile.
    pub(in crate::engine) fn wait<T>(
        &self,
        mut done: impl FnMut(&mut State) -> Option<Result<T, NxError>>,
    ) -> Result<T, NxError> {
        self.wait_turns(|state| {
            if let Err(error) = state.progress(self) {
                self.fail(error);
            }
            done(state)
        })
    }

    /// The same for a blocking receive: `found` is asked before and after each turn of progress.
    #[inline]
    pub(in crate::engine) fn wait_for<T>(
        &self,
        want: &mut Want,
        mut found: impl FnMut(&mut State, &mut Want) -> Option<Result<T, NxError>>,
    ) -> Result<T, NxError> {
        self.wait_turns(|state| {
            if let Some(result) = found(state, want) {
                return Some(result);
            }
            if let Err(error) = state.progress_for(self, Some(want)) {
                self.fail(error);
            }
            match want.found {
                Some(_) => found(state, want),
                None => None,
            }
        })
    }

    #[inline]
    pub(in crate::engine) fn wait_turns<T>(
        &self,
        mut turn: impl FnMut(&mut State) -> Option<Result<T, NxError>>,
    ) -> Result<T, NxError> {
        let mut state = self.state.lock();
        let mut before = self.changes.load(Ordering::Relaxed);
        let result = loop {
            if let Some(result) = turn(&mut state) {
                break result;
            }
            if let Err(error) = self.check() {
                state.revoke_targets();
                break Err(error);
            }
            let seen = self.changes.load(Ordering::Relaxed);
            let starving = state.starving > 0;
            let waiters = self.waiters.load(Ordering::Relaxed);
            self.waiters.store(waiters + 1, Ordering::Relaxed);
            drop(state);
            if waiters > 0 && seen != before {
                self.data.wake_waiters(); // this thread did something for another, and goes on waiting
            }
            before = seen;
            let waited = self.sleep(seen, starving);
            state = self.state.lock();
            let waiters = self.waiters.load(Ordering::Relaxed);
            self.waiters.store(waiters - 1, Ordering::Relaxed);
            if let Err(error) = waited {
                // The caller has its room again, and nobody may write to it. A forked child has none of the windows.
                if self.data.check().is_ok() {
                    self.fail(error.clone());
                    state.revoke_targets();
                }
                break Err(error);
            }
        };
        self.wake_others(state, before);
        result
    }

    /// What this thread completed for others while it had the lock is told to them.
    #[inline]
    pub(in crate::engine) fn wake_others(&self, state: BiasedGuard<'_, State>, before: u64) {
        let others = self.has_waiters() && self.changes.load(Ordering::Relaxed) != before;
        drop(state);
        if others {
            self.data.wake_waiters();
        }
    }

    /// After a look that was in vain, if it was: programs look again and again. With more processes than processors whoever
    /// they wait for may need this one.
    #[inline]
    pub(in crate::engine) fn found_nothing(&self, in_vain: bool) {
        if in_vain && self.is_crowded() {
            std::thread::yield_now();
        }
    }

    pub(in crate::engine) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits for anything that the state should be looked at for.
    fn sleep(&self, seen: u64, starving: bool) -> Result<(), NxError> {
        let mut look = || {
            (self.has_news()
                || self.changes.load(Ordering::Acquire) != seen
                || self.on_end.0.load(Ordering::Relaxed)
                || self.failed.load(Ordering::Relaxed))
            .then_some(())
        };
        let shares = |cpu| self.shares_cpu(cpu);
        if self.is_crowded() && self.data.wait_policy() != WaitPolicy::Block {
            // Whoever we wait for needs a processor: give it ours, which costs less than a
            // sleep and a wake-up as long as all make progress.
            let end = Instant::now() + YIELDING;
            while Instant::now() < end {
                if look().is_some() {
                    self.look_at_ends();
                    return Ok(());
                }
                std::thread::yield_now();
            }
        }
        if starving {
            // Credits usually come by themselves; before sleeping for them, ask (N18, N19).
            let policy = match self.data.wait_policy() {
                WaitPolicy::Spin => WaitPolicy::Hybrid { budget: Duration::from_micros(50) },
                policy => policy,
            };
            let crowded = || self.is_crowded();
            match wait::spin(policy, None, crowded, &mut look) {
                Spun::Found(()) => {
                    self.look_at_ends();
                    return Ok(());
                }
                _ => self.state.lock().ask_all(self),
            }
        }
        self.data.wait_until(None, shares, |_| look())?;
        self.look_at_ends();
        Ok(())
    }

    /// Waits for an operation of this thread's and forgets it.
    pub(in crate::engine) fn wait_op(&self, op: OpId) -> Result<Outcome, NxError> {
        self.wait(|state| state.ops.get(op).is_done().then(|| state.ops.remove(op).result))
    }
}
