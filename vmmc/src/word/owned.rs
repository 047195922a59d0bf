//! Marks that one thread of a process sets without a locked instruction or a fence, while it is alone with what they
//! guard: the *owner*. Whoever comes later pays, once.
//!
//! ```text
//!   owner                                          another thread, at its first use
//!   (1) mark := value, a plain store               (1) owner word := somebody else
//!   (2) compiler fence                             (2) membarrier: a full fence on every processor
//!   (3) is the owner word mine still?              (3) from here on as all others: a lock, and then
//!       if not: mark := what it was, and as all         wait while the mark is set
//!       others do
//!   ... what the mark guards ...
//!   (4) mark := what it was, release
//!   (5) is the owner word mine still?
//!       if not: full fence, wake whoever waits
//! ```
//!
//! The membarrier falls somewhere into the owner's code. If before (3), the owner sees there that it is none any more, and
//! backs out. If after (3), its mark is seen by the other thread. In the same way (5): either the mark's end is seen by
//! whoever looks after the membarrier, or the owner knows that others are there, and fences as they do.
//!
//! A signal handler of the owner's runs in between whole; what it sets it has set back when it ends.
//! Only the owner ever writes a mark, so after it has lost the word a mark stays as it left it: not set.

use super::Word;
use crate::sync::{Ordering, fence};

/// Steps 1 to 3: true when `mark` holds `value` and the caller is the owner still. If not, the mark is `before` again, and
/// was `value` for a moment: [`give`] says what that may need.
#[inline]
pub fn take<M: Word>(
    mark: &M,
    value: M::Value,
    light: impl Fn(),
    is_mine: impl Fn() -> bool,
) -> bool {
    mark.store(value, Ordering::Relaxed);
    light();
    is_mine()
}

/// Steps 4 and 5: true when others may wait for the mark's end.
#[inline]
pub fn give<M: Word>(
    mark: &M,
    before: M::Value,
    light: impl Fn(),
    is_mine: impl Fn() -> bool,
) -> bool {
    // PAIRS(mark): with the acquire of who waits for it.
    mark.store(before, Ordering::Release);
    light();
    if is_mine() {
        return false;
    }
    fence(Ordering::SeqCst);
    true
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU32;
    use crate::sys::membarrier::Barrier;
    use loom::sync::Arc;
    use loom::thread;

    const OWNER: u32 = 1;
    const OTHERS: u32 = 2;

    struct Shared {
        owner: AtomicU32,
        mark: AtomicU32,
        /// Who is inside what the mark guards.
        inside: AtomicU32,
        closing: AtomicU32,
        reclaimed: AtomicU32,
        barrier: Barrier,
    }

    impl Shared {
        fn new(at: u32, mark: u32) -> Arc<Shared> {
            let word = AtomicU32::new;
            Arc::new(Shared {
                owner: word(OWNER),
                mark: word(mark),
                inside: word(0),
                closing: word(0),
                reclaimed: word(0),
                barrier: Barrier::new(at),
            })
        }

        fn is_mine(&self) -> bool {
            self.owner.load(Ordering::Relaxed) == OWNER
        }

        fn works(&self) {
            assert_eq!(self.inside.fetch_add(1, Ordering::Relaxed), 0, "two inside");
            self.inside.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The owner works under the mark, while another thread takes the ownership away and works where it finds no mark.
    fn one_at_a_time(looks: fn(&Shared) -> bool) {
        for at in 0..5 {
            loom::model(move || {
                let shared = Shared::new(at, 0);
                let other = shared.clone();
                let owner = thread::spawn(move || {
                    let barrier = &other.barrier;
                    barrier.passes(0);
                    let taken = take(&other.mark, 1, || barrier.passes(1), || looks(&other));
                    barrier.passes(2);
                    if taken {
                        other.works();
                    }
                    give(&other.mark, 0, || barrier.passes(3), || other.is_mine());
                    barrier.passes(4);
                });
                shared.owner.store(OTHERS, Ordering::SeqCst);
                if shared.barrier.heavy() && shared.mark.load(Ordering::Acquire) == 0 {
                    shared.works();
                }
                owner.join().unwrap();
            });
        }
    }

    #[test]
    fn loom_owner_and_others_are_never_inside_together() {
        one_at_a_time(Shared::is_mine);
    }

    #[test]
    #[should_panic(expected = "two inside")]
    fn loom_an_owner_that_does_not_look_again_meets_another() {
        one_at_a_time(|_| true);
    }

    /// The owner, inside, leaves, while another thread closes: one of them finds that nobody is inside any more.
    fn somebody_reclaims(leaves: fn(&Shared) -> bool) {
        for at in 0..4 {
            loom::model(move || {
                let shared = Shared::new(at, 1);
                let other = shared.clone();
                let owner = thread::spawn(move || {
                    other.barrier.passes(0);
                    leaves(&other);
                    other.barrier.passes(2);
                    if other.closing.load(Ordering::SeqCst) != 0 {
                        other.reclaimed.fetch_add(1, Ordering::Relaxed);
                    }
                    other.barrier.passes(3);
                });
                shared.owner.store(OTHERS, Ordering::SeqCst);
                if shared.barrier.heavy() {
                    shared.closing.store(1, Ordering::SeqCst);
                    fence(Ordering::SeqCst);
                    if shared.mark.load(Ordering::SeqCst) == 0 {
                        shared.reclaimed.fetch_add(1, Ordering::Relaxed);
                    }
                    owner.join().unwrap();
                    assert_ne!(shared.reclaimed.load(Ordering::Relaxed), 0, "left behind");
                } else {
                    owner.join().unwrap();
                }
            });
        }
    }

    #[test]
    fn loom_who_leaves_or_who_closes_reclaims() {
        somebody_reclaims(|it| give(&it.mark, 0, || it.barrier.passes(1), || it.is_mine()));
    }

    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_without_the_late_fence_nobody_reclaims() {
        somebody_reclaims(|it| {
            it.mark.store(0, Ordering::Release);
            it.barrier.passes(1);
            it.is_mine()
        });
    }
}
