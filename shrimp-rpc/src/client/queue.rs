//! Those who wait until a lane is free, or their call is given up.
//!
//! ```text
//!   who waits                              who frees a lane
//!   (1) waiting := waiting + 1             (1) give the lane back
//!   (2) heavy barrier                      (2) light barrier
//!   (3) look at the lanes again;           (3) waiting > 0: take the lock and
//!       none is free: sleep                    give it back, wake one
//! ```
//!
//! The barriers make one of the two see the other; the lock, which is held from (1) until the sleep,
//! keeps the wake-up from falling between (3) and the sleep. Who frees, which everybody does after each
//! call, pays a load.

use crate::barrier;
use std::task::Waker;
use std::time::{Duration, Instant};
use vmmc::sync::{AtomicUsize, Condvar, Mutex, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Threads that wait, and wakers.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    freed: Condvar,
    wakers: Mutex<Vec<Waker>>,
}

impl Queue {
    /// Sleeps until a lane is freed, or all are stirred, or for no reason. `look` says whether there is reason to go on already.
    pub(super) fn wait(&self, timeout: Option<Duration>, look: impl Fn() -> bool) {
        let deadline = timeout.and_then(|it| Instant::now().checked_add(it));
        let lock = self.lock.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // PAIRS(lane): with the light barrier in `freed`.
        barrier::heavy();
        if !look() {
            drop(self.freed.wait(lock, deadline));
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Has `waker` woken when a lane is freed. The caller **must** look at the lanes again after this.
    pub(super) fn enrol(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        drop(wakers);
        // PAIRS(lane): as in `wait`.
        barrier::heavy();
    }

    /// A lane was freed.
    #[inline]
    pub(super) fn freed(&self) {
        // PAIRS(lane): with the heavy barriers in `wait` and `enrol`.
        barrier::light();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    /// Those who wait are to look around, all of them: not for a lane alone.
    pub(super) fn stir(&self) {
        // PAIRS(lane): as in `freed`; what they are to see was stored before.
        barrier::light();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            drop(self.lock.lock());
            self.freed.notify_all();
        }
    }

    #[cold]
    fn wake(&self) {
        drop(self.lock.lock());
        self.freed.notify_one();
        // All of them: one that is not polled any more must not keep the others asleep.
        let wakers = std::mem::take(&mut *self.wakers.lock());
        self.waiting.fetch_sub(wakers.len(), Ordering::Relaxed);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use crate::try_lock::TryLock;
    use loom::sync::Arc;
    use loom::thread;

    /// One lane, taken; one thread waits for it while another frees it by `free`.
    fn a_lane_is_freed(free: fn(&Queue)) {
        loom::model(move || {
            let shared = Arc::new((Queue::default(), TryLock::new(())));
            let taken = shared.1.try_lock().map(std::mem::forget);
            assert!(taken.is_some());
            let other = shared.clone();
            let caller = thread::spawn(move || {
                other.1.unlock_for_test();
                free(&other.0);
            });
            let (queue, lane) = &*shared;
            loop {
                if let Some(guard) = lane.try_lock() {
                    drop(guard);
                    break;
                }
                queue.wait(None, || lane.try_lock().is_some());
            }
            caller.join().unwrap();
        });
    }

    #[test]
    fn loom_who_waits_for_a_lane_gets_it() {
        a_lane_is_freed(Queue::freed);
    }

    /// One lane, free; one thread wants it while another has it for a moment, to look at it, and says so by `free`.
    fn a_lane_is_looked_at(free: fn(&Queue)) {
        loom::model(move || {
            let shared = Arc::new((Queue::default(), TryLock::new(())));
            let other = shared.clone();
            let onlooker = thread::spawn(move || {
                if let Some(guard) = other.1.try_lock() {
                    drop(guard);
                    free(&other.0);
                }
            });
            let (queue, lane) = &*shared;
            while lane.try_lock().is_none() {
                queue.wait(None, || lane.try_lock().is_some());
            }
            onlooker.join().unwrap();
        });
    }

    #[test]
    fn loom_who_looks_at_a_lane_keeps_nobody_asleep() {
        a_lane_is_looked_at(Queue::freed);
    }

    /// It took a lane for a moment and told nobody: who came just then slept for ever.
    #[test]
    #[should_panic]
    fn loom_who_looks_at_a_lane_and_tells_nobody_is_caught() {
        a_lane_is_looked_at(|_| {});
    }

    /// One lane, which stays taken; one thread waits for it until another one gives its call up, and says so by `stir`.
    fn a_call_is_given_up(stir: fn(&Queue)) {
        loom::model(move || {
            let shared = Arc::new((Queue::default(), vmmc::sync::AtomicBool::new(false)));
            let other = shared.clone();
            let canceller = thread::spawn(move || {
                other.1.store(true, Ordering::Release);
                stir(&other.0);
            });
            let (queue, given_up) = &*shared;
            while !given_up.load(Ordering::Acquire) {
                queue.wait(None, || given_up.load(Ordering::Acquire));
            }
            canceller.join().unwrap();
        });
    }

    #[test]
    fn loom_who_waits_for_a_lane_hears_that_its_call_is_given_up() {
        a_call_is_given_up(Queue::stir);
    }

    /// Without the barrier between giving up and looking, loom finds the sleep without an end.
    #[test]
    #[should_panic]
    fn loom_without_the_barrier_of_who_gives_up_a_waiter_sleeps_for_ever() {
        a_call_is_given_up(|queue| {
            if queue.waiting.load(Ordering::Relaxed) > 0 {
                drop(queue.lock.lock());
                queue.freed.notify_all();
            }
        });
    }

    /// Without the barrier between giving back and looking, loom finds the sleep without an end.
    #[test]
    #[should_panic]
    fn loom_without_the_barrier_of_who_frees_a_waiter_sleeps_for_ever() {
        a_lane_is_freed(|queue| {
            if queue.waiting.load(Ordering::Relaxed) > 0 {
                queue.wake();
            }
        });
    }
}
