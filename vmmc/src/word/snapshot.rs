//! A value that is read without a lock and replaced rarely: read-copy-update for one pointer.
//!
//! ```text
//!   reader                                writer (one at a time)
//!   (1) busy[mine] += 1                   (1) pointer := new
//!   (2) compiler fence                    (2) membarrier
//!   (3) use *pointer                      (3) wait until every busy count has been zero once
//!   (4) busy[mine] -= 1   (release)       (4) free the old value
//! ```
//!
//! The same bargain as in [`crate::transport::shm::busy`], within one process: a reader that the
//! writer does not see busy has not loaded the old pointer before the membarrier, or is through with it.

use crate::sync::{STRIPES, stripe_is_shared, thread_stripe};
use crate::sys::membarrier;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// One count per thread stripe, on a line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Busy(AtomicU32);

/// A replaceable value.
#[derive(Debug)]
pub(crate) struct Snapshot<T> {
    /// From `Box::into_raw`; replaced by [`Snapshot::replace`] only.
    pointer: AtomicPtr<T>,
    busy: [Busy; STRIPES],
    writer: crate::sync::Mutex<()>,
}

impl<T> Snapshot<T> {
    pub(crate) fn new(value: T) -> Snapshot<T> {
        Snapshot {
            pointer: AtomicPtr::new(Box::into_raw(Box::new(value))),
            busy: Default::default(),
            writer: crate::sync::Mutex::new(()),
        }
    }

    /// Gives the present value to `body`, which must be brief and must not replace it. No lock, and
    /// no locked instruction for the first fifteen threads of the process.
    #[inline]
    pub(crate) fn read<R>(&self, body: impl FnOnce(&T) -> R) -> R {
        let stripe = thread_stripe().min(STRIPES - 1);
        let Some(Busy(busy)) = self.busy.get(stripe) else { unreachable!("bounded above") };
        let _reading = Reading::new(busy, stripe_is_shared(stripe));
        membarrier::light();
        let pointer = self.pointer.load(Ordering::Acquire);
        // SAFETY: the pointer is a live box: a writer that has replaced it since waits for our
        // busy count before it frees it.
        body(unsafe { &*pointer })
    }

    /// Replaces the value by what `next` makes of it.
    pub(crate) fn replace(&self, next: impl FnOnce(&T) -> T) {
        let _one = self.writer.lock();
        let old = self.pointer.load(Ordering::Relaxed);
        // SAFETY: only writers free values, and we are the only one.
        let new = next(unsafe { &*old });
        self.pointer.store(Box::into_raw(Box::new(new)), Ordering::Release);
        membarrier::heavy_for_sure();
        for Busy(busy) in &self.busy {
            while busy.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
        }
        // SAFETY: from Box::into_raw; no reader has it any more.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl<T> Drop for Snapshot<T> {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw; readers would borrow `self`.
        drop(unsafe { Box::from_raw(self.pointer.load(Ordering::Relaxed)) });
    }
}

struct Reading<'b> {
    busy: &'b AtomicU32,
    shared: bool,
}

impl Reading<'_> {
    #[inline]
    fn new(busy: &AtomicU32, shared: bool) -> Reading<'_> {
        if shared {
            busy.fetch_add(1, Ordering::Relaxed);
        } else {
            busy.store(busy.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        Reading { busy, shared }
    }
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.shared {
            self.busy.fetch_sub(1, Ordering::Release);
        } else {
            self.busy.store(self.busy.load(Ordering::Relaxed) - 1, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// The value's two halves agree as long as it lives; freed values are poisoned first.
    struct Checked(u64, u64);

    impl Drop for Checked {
        fn drop(&mut self) {
            self.1 = self.0 ^ 1;
        }
    }

    #[test]
    fn readers_never_see_a_value_that_was_freed() {
        let snapshot = Snapshot::new(Checked(0, 0));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        snapshot.read(|value| assert_eq!(value.0, value.1));
                    }
                });
            }
            for i in 1..300 {
                snapshot.replace(|old| {
                    assert_eq!(old.0, i - 1);
                    Checked(i, i)
                });
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
