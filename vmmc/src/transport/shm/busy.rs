//! Transfers in progress against revocation, without a fence per send.
//!
//! ```text
//!   sender                                exporter that revokes
//!   (1) slot := odd     (plain store)     (1) state := CLOSING
//!   (2) compiler fence                    (2) membarrier: a full fence on every processor
//!   (3) load state; CLOSING: back out         that runs a registered process
//!   (4) copy                              (3) wait until no slot is odd
//!   (5) slot := even    (release)         (4) swap the pages
//! ```
//!
//! Store-then-load on both sides: with fences at both (2) at least one sees the other. The
//! membarrier is the sender's fence, paid by the exporter. A slot belongs to one thread of the
//! importer ([`crate::counters::thread_stripe`]); the last one is shared by all further threads and
//! counts them, with locked additions.
//!
//! The exporter does not trust the slots: a hostile importer that leaves one odd delays it for
//! `VMMC_DRAIN_MS` and is then revoked all the same.

use crate::counters::{stripe_is_shared, thread_stripe};
use crate::layout::link;
use crate::sync::Ordering;
use crate::word::Word;

/// One transfer; the slot is released when it is dropped. Transfers of one thread end in the reverse order of
/// their beginning: a signal handler's before the one that it interrupted. (A handler that leaves the
/// interrupted one by `longjmp` leaves its mark; unexports then wait `VMMC_DRAIN_MS` for it.)
#[derive(Debug)]
pub struct Transfer<W: Word<Value = u32>> {
    slot: W,
    shared: bool,
    /// What the slot is to hold afterwards, if it is not shared.
    after: u32,
}

/// Number of this thread's slot.
#[inline]
#[must_use]
pub fn my_slot() -> usize {
    thread_stripe().min(link::BUSY_SLOTS - 1)
}

/// Steps 1 to 3: marks the slot, then asks `state` for the link's state. `Err` with the state when it
/// is not open; the mark is taken back then.
///
/// # Errors
/// The state found.
#[inline]
pub fn begin<W: Word<Value = u32>, S: Word<Value = u32>>(
    slot: W,
    shared: bool,
    state: S,
    light_fence: impl FnOnce(),
) -> Result<Transfer<W>, u32> {
    let after = if shared {
        slot.fetch_add(1, Ordering::Relaxed);
        0
    } else {
        let before = slot.load(Ordering::Relaxed);
        slot.store(before | 1, Ordering::Relaxed);
        // Odd already: a signal handler within a transfer of its thread, whose mark stays.
        if before & 1 == 0 { before.wrapping_add(2) } else { before }
    };
    let transfer = Transfer { slot, shared, after };
    light_fence();
    match state.load(Ordering::Acquire) {
        link::OPEN => Ok(transfer),
        other => Err(other),
    }
}

impl<W: Word<Value = u32>> Drop for Transfer<W> {
    #[inline]
    fn drop(&mut self) {
        // PAIRS(busy): with the acquire in `is_idle`: the copy is before the mark's end.
        if self.shared {
            self.slot.fetch_add(u32::MAX, Ordering::Release);
        } else {
            self.slot.store(self.after, Ordering::Release);
        }
    }
}

/// Whether a slot marks no transfer. `shared`: it is the one that counts.
#[must_use]
pub fn is_idle<W: Word<Value = u32>>(slot: W, shared: bool) -> bool {
    // PAIRS(busy): with the release in Transfer::drop.
    let value = slot.load(Ordering::Acquire);
    if shared { value == 0 } else { value & 1 == 0 }
}

/// Ends a transfer that was begun and forgotten, whose slot is this one's alone.
pub fn end<W: Word<Value = u32>>(slot: W) {
    let value = slot.load(Ordering::Relaxed);
    if value & 1 != 0 {
        // PAIRS(busy): as in Transfer::drop.
        slot.store(value.wrapping_add(1), Ordering::Release);
    }
}

/// Whether slot `index` is the shared one.
#[inline]
#[must_use]
pub fn is_shared(index: usize) -> bool {
    stripe_is_shared(index) || index == link::BUSY_SLOTS - 1
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::sync::AtomicU32;

    #[test]
    fn a_transfer_marks_its_slot_until_it_ends() {
        let state = AtomicU32::new(link::OPEN);
        for shared in [false, true] {
            let slot = AtomicU32::new(0);
            let transfer = begin(&slot, shared, &state, || {}).unwrap();
            assert!(!is_idle(&slot, shared));
            drop(transfer);
            assert!(is_idle(&slot, shared));
        }
    }

    #[test]
    fn a_transfer_within_a_transfer_leaves_its_mark() {
        let state = AtomicU32::new(link::OPEN);
        let slot = AtomicU32::new(0);
        let outer = begin(&slot, false, &state, || {}).unwrap();
        drop(begin(&slot, false, &state, || {}).unwrap());
        assert!(!is_idle(&slot, false), "the mark of the transfer that goes on");
        drop(outer);
        assert!(is_idle(&slot, false));
    }

    #[test]
    fn a_forgotten_transfer_lasts_until_it_is_ended() {
        let (state, slot) = (AtomicU32::new(link::OPEN), AtomicU32::new(0));
        std::mem::forget(begin(&slot, false, &state, || {}).unwrap());
        assert!(!is_idle(&slot, false));
        for _ in 0..2 {
            end(&slot);
            assert!(is_idle(&slot, false));
        }
    }

    #[test]
    fn a_closing_link_refuses_a_transfer() {
        let state = AtomicU32::new(link::CLOSING);
        let slot = AtomicU32::new(0);
        assert_eq!(begin(&slot, true, &state, || {}).map(drop), Err(link::CLOSING));
        assert!(is_idle(&slot, true));
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::fence;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    /// The membarrier is modelled by sequentially consistent fences on both sides. `page` is what
    /// the exporter reads after it has swapped: no byte of a transfer may land after that.
    fn no_write_after_the_swap(light: fn(), heavy: fn()) {
        loom::model(move || {
            let slot = Arc::new(AtomicU32::new(0));
            let state = Arc::new(AtomicU32::new(link::OPEN));
            // 0: old pages. 1: the copy has begun. 2: swapped.
            let page = Arc::new(AtomicU32::new(0));
            let sender = {
                let (slot, state, page) = (slot.clone(), state.clone(), page.clone());
                thread::spawn(move || {
                    if let Ok(_transfer) = begin(&*slot, false, &*state, light) {
                        let found = page.fetch_add(1, Ordering::Relaxed);
                        assert_ne!(found, 2, "wrote after the swap");
                    }
                })
            };
            state.store(link::CLOSING, Ordering::Relaxed);
            heavy();
            if is_idle(&*slot, false) {
                page.store(2, Ordering::Relaxed);
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn loom_no_write_lands_after_the_swap() {
        no_write_after_the_swap(|| fence(Ordering::SeqCst), || fence(Ordering::SeqCst));
    }

    #[test]
    #[should_panic(expected = "wrote after the swap")]
    fn loom_without_the_barrier_a_write_lands_after_the_swap() {
        no_write_after_the_swap(|| {}, || {});
    }
}
