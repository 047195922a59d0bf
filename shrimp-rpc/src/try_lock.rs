//! A lock that is taken or not, and whose guard may move to another thread.
//!
//! The standard mutex's guard must stay in its thread, which the future of a call cannot promise.
//!
//! Most are only ever taken by one thread, and a locked instruction at each call is a good part of what a short call
//! costs. So the first thread that takes one is its **favourite**, which takes it by a store and a load, until another
//! thread comes: that one revokes the favour, for good, and all take it by an exchange from then on.
//!
//! ```text
//!   the favourite                          the first other one
//!   (1) by_favourite := true               (1) favourite := REVOKING
//!   (2) light barrier                      (2) heavy barrier
//!   (3) it is still the favourite: taken;  (3) favourite := NONE
//!       else by_favourite := false, and    (4) by_favourite: somebody has it;
//!       as everybody                           else exchange taken
//! ```
//!
//! The barriers make one of the two see the other ([`crate::barrier`]). Who finds `REVOKING` repeats (2) and (3): only
//! after a heavy barrier does `by_favourite` say whether the favourite has it, and from then on it never
//! takes it in this way again. A guard knows which of the two words it clears.
#![allow(unsafe_code)]

use crate::barrier;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use vmmc::sync::{AtomicBool, AtomicUsize, Ordering};

/// Nobody has taken it yet.
const FRESH: usize = 0;
/// The favour is being revoked.
const REVOKING: usize = 1;
/// There is no favourite any more.
const NONE: usize = 2;

/// An address, and so none of the constants above: the first page is nobody's.
#[cfg(not(vmmc_loom))]
use vmmc::sync::thread_token as this_thread;

/// The model checker's threads are one thread of the system.
#[cfg(vmmc_loom)]
fn this_thread() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(NONE + 1);
    loom::thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

#[derive(Debug)]
pub(crate) struct TryLock<T> {
    /// A thread, or one of the constants.
    favourite: AtomicUsize,
    by_favourite: AtomicBool,
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, of which there is one at a time.
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    pub(crate) fn new(value: T) -> TryLock<T> {
        TryLock {
            favourite: AtomicUsize::new(FRESH),
            by_favourite: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, unless somebody has it.
    #[inline(always)] // between two flags
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.try_lock_as(this_thread())
    }

    #[inline(always)]
    fn try_lock_as(&self, me: usize) -> Option<Guard<'_, T>> {
        if self.favourite.load(Ordering::Relaxed) != me {
            return self.try_lock_without_favour(me);
        }
        // PAIRS(try_lock): with the release in Guard::drop.
        if self.by_favourite.load(Ordering::Acquire) {
            return None;
        }
        self.by_favourite.store(true, Ordering::Relaxed);
        // PAIRS(favour): with the heavy barrier in `try_lock_without_favour`.
        barrier::light();
        if self.favourite.load(Ordering::Relaxed) != me {
            return self.favour_is_lost();
        }
        Some(Guard { lock: self, favoured: true })
    }

    #[cold]
    fn favour_is_lost(&self) -> Option<Guard<'_, T>> {
        self.by_favourite.store(false, Ordering::Release);
        self.exchange()
    }

    #[inline(never)]
    fn try_lock_without_favour(&self, me: usize) -> Option<Guard<'_, T>> {
        // PAIRS(favour): with the release below.
        let mut favourite = self.favourite.load(Ordering::Acquire);
        if favourite == NONE {
            return self.exchange();
        }
        if favourite == FRESH {
            // PAIRS(favour): as above, if it is lost already.
            let (done, lost) = (Ordering::Relaxed, Ordering::Acquire);
            match self.favourite.compare_exchange(FRESH, me, done, lost) {
                Ok(_) => return self.try_lock_as_new_favourite(me),
                Err(other) => favourite = other,
            }
        }
        if favourite != NONE {
            self.favourite.swap(REVOKING, Ordering::Relaxed); // after what was found there
            // PAIRS(favour): with the light barrier in `try_lock_as`.
            barrier::heavy();
            // PAIRS(favour): with the acquire above: who sees it comes after the barrier.
            self.favourite.store(NONE, Ordering::Release);
        }
        self.exchange()
    }

    /// Nobody has had it before, but another one may be there already.
    fn try_lock_as_new_favourite(&self, me: usize) -> Option<Guard<'_, T>> {
        self.by_favourite.store(true, Ordering::Relaxed);
        // PAIRS(favour): as in `try_lock_as`.
        barrier::light();
        match self.favourite.load(Ordering::Relaxed) == me {
            true => Some(Guard { lock: self, favoured: true }),
            false => self.favour_is_lost(),
        }
    }

    fn exchange(&self) -> Option<Guard<'_, T>> {
        // PAIRS(try_lock): both with the releases in Guard::drop.
        if self.by_favourite.load(Ordering::Acquire) {
            return None;
        }
        self.taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Guard { lock: self, favoured: false }) // lazily: a guard that is dropped unlocks
    }
}

#[cfg(all(test, vmmc_loom))]
impl<T> TryLock<T> {
    /// Gives back what a forgotten guard took.
    pub(crate) fn unlock_for_test(&self) {
        drop(Guard { lock: self, favoured: self.by_favourite.load(Ordering::Relaxed) });
    }
}

/// The value, until this is dropped.
#[derive(Debug)]
pub(crate) struct Guard<'l, T> {
    lock: &'l TryLock<T>,
    /// By the favourite's way.
    favoured: bool,
}

// SAFETY: a guard is the exclusive right to the value, which may itself move to another thread.
unsafe impl<T: Send> Send for Guard<'_, T> {}
// SAFETY: a shared guard gives shared access to the value.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)] // between two flags
    fn drop(&mut self) {
        // PAIRS(try_lock): with the acquires in TryLock::try_lock_as and TryLock::exchange.
        let word = if self.favoured { &self.lock.by_favourite } else { &self.lock.taken };
        word.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_the_guard_may_change_threads() {
        let lock = TryLock::new(1);
        std::thread::scope(|scope| {
            let mut guard = lock.try_lock().unwrap();
            assert!(lock.try_lock().is_none());
            assert!(lock.try_lock().is_none(), "the failed attempt unlocked it");
            scope.spawn(move || *guard += 1).join().unwrap();
            assert_eq!(*lock.try_lock().unwrap(), 2);
        });
    }

    #[test]
    fn who_comes_first_is_the_favourite_until_another_comes() {
        let lock = TryLock::new(0);
        let favourite = || lock.favourite.load(Ordering::Relaxed);
        let other = |free: bool| {
            let found = || lock.try_lock().is_some();
            assert_eq!(std::thread::scope(|scope| scope.spawn(found).join().unwrap()), free);
        };
        assert_eq!(favourite(), FRESH);
        let guard = lock.try_lock().unwrap();
        assert_eq!(favourite(), this_thread());
        other(false);
        assert_eq!(favourite(), NONE);
        drop(guard);
        other(true);
        let guard = lock.try_lock().unwrap();
        assert!(lock.taken.load(Ordering::Relaxed) && !lock.by_favourite.load(Ordering::Relaxed));
        other(false);
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell as Watched;
    use loom::sync::Arc;
    use loom::thread;

    type Lock = TryLock<Watched<u32>>;
    type Take = for<'l> fn(&'l Lock) -> Option<Guard<'l, Watched<u32>>>;

    /// Threads count in a cell whose unordered use loom reports, as often as they get the lock in so many tries each. The
    /// first of them to come is the favourite. (loom remembers seven stores to a word, so these are few.)
    fn counting(tries: &'static [u32], take: Take, unlock: fn(Guard<'_, Watched<u32>>)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let lock = Arc::new(TryLock::new(Watched::new(0u32)));
            let count = move |lock: &Lock, tries| {
                let mut counted = 0;
                for _ in 0..tries {
                    if let Some(guard) = take(lock) {
                        // SAFETY: the guard is the only one; loom reports it if not.
                        guard.with_mut(|value| unsafe { *value += 1 });
                        unlock(guard);
                        counted += 1;
                    }
                }
                counted
            };
            let [mine, others @ ..] = tries else { unreachable!("somebody tries") };
            let others: Vec<_> = others
                .iter()
                .map(|&tries| {
                    let lock = lock.clone();
                    thread::spawn(move || count(&lock, tries))
                })
                .collect();
            let mut counted = count(&lock, *mine);
            counted += others.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>();
            assert!(!lock.by_favourite.load(Ordering::Acquire), "not given back");
            assert!(!lock.taken.load(Ordering::Acquire), "not given back");
            let guard = Guard { lock: &lock, favoured: false };
            // SAFETY: as above.
            assert_eq!(guard.with(|value| unsafe { *value }), counted);
            assert!(counted > 0, "nobody got it");
        });
    }

    #[test]
    fn loom_one_holder_at_a_time_sees_what_the_last_one_did() {
        counting(&[2, 1], TryLock::try_lock, |guard| drop(guard));
        counting(&[1, 2], TryLock::try_lock, |guard| drop(guard));
    }

    #[test]
    fn loom_of_three_there_is_one_holder_at_a_time() {
        counting(&[1, 1, 1], TryLock::try_lock, |guard| drop(guard));
    }

    #[test]
    #[should_panic]
    fn loom_a_relaxed_unlock_is_caught() {
        counting(&[1, 1], TryLock::try_lock, |guard| {
            let (lock, favoured) = (guard.lock, guard.favoured);
            std::mem::forget(guard);
            let word = if favoured { &lock.by_favourite } else { &lock.taken };
            word.store(false, Ordering::Relaxed);
        });
    }

    /// A favourite that looks first whether it is one, and says afterwards that it has the lock.
    #[test]
    #[should_panic]
    fn loom_a_favourite_that_does_not_look_again_is_caught() {
        let take: Take = |lock| {
            let me = this_thread();
            if lock.favourite.load(Ordering::Relaxed) != me {
                return lock.try_lock_without_favour(me);
            }
            lock.by_favourite.store(true, Ordering::Relaxed);
            barrier::light();
            Some(Guard { lock, favoured: true })
        };
        counting(&[2, 1], take, |guard| drop(guard));
    }

    /// Without the barrier of who revokes, it misses that the favourite has it.
    #[test]
    #[should_panic]
    fn loom_a_favour_revoked_without_a_barrier_is_caught() {
        let take: Take = |lock| {
            let (me, favourite) = (this_thread(), lock.favourite.load(Ordering::Acquire));
            if favourite == FRESH || favourite == me {
                return lock.try_lock();
            }
            lock.favourite.store(NONE, Ordering::Release);
            lock.exchange()
        };
        counting(&[2, 1], take, |guard| drop(guard));
    }
}
