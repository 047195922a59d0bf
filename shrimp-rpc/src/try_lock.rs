//! A lock that is taken or not, and whose guard may move to another thread.
//!
//! One exchange to take it, one store to give it back. The standard mutex's guard must stay in its thread,
//! which the future of a call cannot promise.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use vmmc::sync::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct TryLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, of which there is one at a time.
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    pub(crate) fn new(value: T) -> TryLock<T> {
        TryLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// The value, unless somebody has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // PAIRS(try_lock): with the release in Guard::drop.
        self.taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Guard { lock: self }) // lazily: a guard that is dropped unlocks
    }
}

#[cfg(all(test, vmmc_loom))]
impl<T> TryLock<T> {
    /// Gives back what a forgotten guard took.
    pub(crate) fn unlock_for_test(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// The value, until this is dropped.
#[derive(Debug)]
pub(crate) struct Guard<'l, T> {
    lock: &'l TryLock<T>,
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
    #[inline]
    fn drop(&mut self) {
        // PAIRS(try_lock): with the acquire in TryLock::try_lock.
        self.lock.taken.store(false, Ordering::Release);
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
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell as Watched;
    use loom::sync::Arc;
    use loom::thread;

    /// Two threads count in a cell whose unordered use loom reports.
    fn counting(unlock: fn(Guard<'_, Watched<u32>>)) {
        loom::model(move || {
            let lock = Arc::new(TryLock::new(Watched::new(0u32)));
            let other = lock.clone();
            let count = move |lock: &TryLock<Watched<u32>>| {
                while let None = lock.try_lock().map(|guard| {
                    // SAFETY: the guard is the only one; loom reports it if not.
                    guard.with_mut(|value| unsafe { *value += 1 });
                    unlock(guard);
                }) {
                    thread::yield_now();
                }
            };
            let thread = thread::spawn(move || count(&other));
            count(&lock);
            thread.join().unwrap();
            let guard = lock.try_lock().expect("free at the end");
            // SAFETY: as above.
            assert_eq!(guard.with(|value| unsafe { *value }), 2);
        });
    }

    #[test]
    fn loom_one_holder_at_a_time_sees_what_the_last_one_did() {
        counting(|guard| drop(guard));
    }

    #[test]
    #[should_panic]
    fn loom_a_relaxed_unlock_is_caught() {
        counting(|guard| {
            let lock = guard.lock;
            std::mem::forget(guard);
            lock.taken.store(false, Ordering::Relaxed);
        });
    }
}
