//! A lock of this process alone, for what is kept in a static.
//!
//! A child may be forked while another thread holds a lock. It inherits the lock as held, and what it guards
//! perhaps half changed, and nobody there ever gives it back. So each process has a lock of its own with a
//! fresh value behind it, told apart by its generation (see [`super::fork`]); what a child inherited it
//! leaves where it is, which costs a value per ancestor. Nothing here waits before the lock itself.

use super::fork::ForkGuard;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug)]
pub struct OwnMutex<T>(AtomicPtr<Own<T>>);

#[derive(Debug)]
struct Own<T> {
    generation: u32,
    value: Mutex<T>,
}

impl<T: Default + Send> Default for OwnMutex<T> {
    fn default() -> OwnMutex<T> {
        OwnMutex::new()
    }
}

impl<T: Default + Send> OwnMutex<T> {
    /// A default value in each process.
    #[must_use]
    pub const fn new() -> OwnMutex<T> {
        OwnMutex(AtomicPtr::new(null_mut()))
    }

    /// Waits until no other thread of this process has it.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        let generation = ForkGuard::get().map_or(0, ForkGuard::ensure_generation);
        let mut found = self.0.load(Ordering::Acquire); // pairs with the exchange below
        loop {
            // SAFETY: null, or made by the exchange below, whole before it was published and never freed.
            let own = unsafe { found.as_ref() };
            if let Some(own) = own.filter(|own| own.generation == generation) {
                return own.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
            let fresh = Box::into_raw(Box::new(Own { generation, value: Mutex::default() }));
            match self.0.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => found = fresh,
                Err(other) => {
                    // SAFETY: made above, and published to nobody.
                    drop(unsafe { Box::from_raw(fresh) });
                    found = other;
                }
            }
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::testing::{alone, ends_well_in_a_child};

    #[test]
    fn a_forked_child_has_a_lock_and_a_value_of_its_own() {
        static NUMBER: OwnMutex<u32> = OwnMutex::new();
        if !alone("sys::own::tests::a_forked_child_has_a_lock_and_a_value_of_its_own") {
            return;
        }
        *NUMBER.lock() = 7;
        let held = NUMBER.lock();
        assert!(ends_well_in_a_child(|| {
            *NUMBER.lock() += 1;
            let held = NUMBER.lock();
            *held == 1 && ends_well_in_a_child(|| *NUMBER.lock() == 0)
        }));
        drop(held);
        assert_eq!(*NUMBER.lock(), 7);
    }

    #[test]
    fn threads_that_come_first_at_once_share_one() {
        static COUNT: OwnMutex<u32> = OwnMutex::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| *COUNT.lock() += 1);
            }
        });
        assert_eq!(*COUNT.lock(), 8);
    }
}
