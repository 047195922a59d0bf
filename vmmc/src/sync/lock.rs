//! A mutex and a condition variable that do not know poisoning, over std or loom.
//!
//! Nothing in this crate runs user code under a lock (but between the stores of a [`crate::Run`], each of which is whole or
//! not begun), so a panic under one is our own bug and leaves no half-done state that a second panic would help with.

#[cfg(vmmc_loom)]
use loom::sync as inner;
#[cfg(not(vmmc_loom))]
use std::sync as inner;

pub use inner::MutexGuard;
use std::sync::PoisonError;
use std::time::Instant;

/// Mutual exclusion. Not for the data path.
#[derive(Debug, Default)]
pub struct Mutex<T>(inner::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(inner::Mutex::new(value))
    }

    /// Waits until the mutex is free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mutex if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

/// Sleep until another thread of the process says something changed.
#[derive(Debug, Default)]
pub struct Condvar(inner::Condvar);

impl Condvar {
    /// A condition variable nobody waits on.
    #[must_use]
    pub fn new() -> Condvar {
        Condvar(inner::Condvar::new())
    }

    /// Releases the mutex, sleeps until notified or `deadline`, takes the mutex again. May wake
    /// for no reason.
    pub fn wait<'g, T>(
        &self,
        guard: MutexGuard<'g, T>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'g, T> {
        match deadline {
            None => self.0.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.0.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Wakes one sleeper.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes every sleeper.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
