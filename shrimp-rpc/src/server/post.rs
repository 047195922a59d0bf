//! The poll, and whether whoever has it is away in a handler.
//!
//! One thread at a time has the poll. It leaves it while it runs a handler and takes it again after that,
//! unless somebody else has taken it meanwhile. Each taking and each leaving is a *step*, so the
//! number of steps is odd exactly while nobody has the poll: whoever finds one and the same odd number
//! twice knows that the poll was left all the time between, and may take it.

use vmmc::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// See the module.
#[derive(Debug)]
pub(super) struct Post<T> {
    /// Written by whoever has the poll.
    steps: AtomicU64,
    poll: Mutex<T>,
}

impl<T> Post<T> {
    /// Nobody has it.
    pub(super) fn new(poll: T) -> Post<T> {
        Post { steps: AtomicU64::new(1), poll: Mutex::new(poll) }
    }

    /// The poll, unless somebody has it.
    #[inline]
    pub(super) fn try_take(&self) -> Option<MutexGuard<'_, T>> {
        let taken = self.poll.try_lock()?;
        self.step();
        Some(taken)
    }

    /// Leaves it for a handler.
    #[inline]
    pub(super) fn leave(&self, taken: MutexGuard<'_, T>) {
        self.step();
        drop(taken);
    }

    #[inline]
    fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Steps so far; compared by whoever might take over.
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Whether the poll was left, and nothing was done with it between two looks.
    pub(super) fn is_deserted(before: u64, now: u64) -> bool {
        before == now && now % 2 == 1
    }

    /// Once all threads have ended.
    pub(super) fn close(&self, last: T) {
        *self.poll.lock() = last;
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two threads take the poll by `take` when they can, leave it for a handler, and come back.
    fn two_workers(take: for<'p> fn(&'p Post<u32>) -> Option<MutexGuard<'p, u32>>) {
        loom::model(move || {
            let post = Arc::new(Post::new(0u32));
            // Whether it never looked deserted while it was had.
            let work = move |post: &Post<u32>| {
                let mut good = true;
                for _ in 0..2 {
                    if let Some(mut poll) = take(post) {
                        good &= post.steps() % 2 == 0;
                        *poll += 1;
                        post.leave(poll);
                    }
                }
                good
            };
            let other = post.clone();
            let thread = thread::spawn(move || work(&other));
            let mut good = work(&post);
            good &= thread.join().unwrap();
            let (steps, taken) = (post.steps(), u64::from(*post.poll.lock()));
            // At the end: what loom gave us cannot be dropped by a panic.
            drop(post);
            assert!(good, "it is had, and looks deserted");
            assert!(Post::<u32>::is_deserted(steps, steps), "it is left, and looks had");
            assert_eq!(taken, steps / 2, "each taking was a step");
        });
    }

    #[test]
    fn loom_the_poll_looks_deserted_exactly_while_nobody_has_it() {
        two_workers(Post::try_take);
    }

    /// A thread that took the poll uncounted turned the sense of the number round for good: nobody relieved
    /// a worker stuck in its handler any more.
    #[test]
    #[should_panic]
    fn loom_taking_it_without_a_step_is_caught() {
        two_workers(|post| post.poll.try_lock());
    }
}
