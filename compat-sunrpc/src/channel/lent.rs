//! Bytes of a request that a service uses where they lie in the ring (R11, `include/vrpc_in_place.h`).
//!
//! Arguments are freed by address alone: `xdr_free` makes a handle that says nothing but that it frees. So
//! the records of which something is lent are listed, for the whole process. One thread serves, and what it
//! lends for one call comes back before the next, so there are as many as services that are inside each other;
//! another thread may ask at any time, and a child may be forked. Hence a few slots and no lock.

use rustix::process::getpid;
use std::ptr::NonNull;
use vmmc::sync::{AtomicUsize, Ordering};
use vmmc::sys::fork::ForkGuard;

/// A record of which something is lent. A torn look, at the start of one and the length of another, does no harm:
/// what follows a record for the length of any other is mapped with its ring, and no memory of `malloc`'s.
struct Slot {
    /// Address of the first byte; 0: free.
    start: AtomicUsize,
    /// Bytes. Written by who has taken the slot, before it is seen to be taken again.
    len: AtomicUsize,
}

/// Services inside each other, more than any program has.
static SLOTS: [Slot; 16] =
    [const { Slot { start: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; 16];

/// One listed record; dropped when nothing of it is used any more.
#[derive(Debug)]
pub(super) struct Loan {
    slot: usize,
}

impl Loan {
    /// Lists a record of a connection that process `owner` serves. `None` in a child of that, and when there is no
    /// slot: it is to be copied then.
    pub(super) fn of(start: NonNull<u8>, len: usize, owner: i32) -> Option<Loan> {
        // In children the kernel is asked: a worker that was forked owns what it accepts.
        let is_first = ForkGuard::get().is_some_and(ForkGuard::is_original_process);
        if !is_first && getpid().as_raw_nonzero().get() != owner {
            return None;
        }
        let start = start.as_ptr().expose_provenance();
        for (slot, it) in SLOTS.iter().enumerate() {
            // Relaxed: who asks about an address was given it after this, by this thread or through
            // the program's own synchronisation.
            if it.start.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                it.len.store(len, Ordering::Relaxed);
                return Some(Loan { slot });
            }
        }
        None
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(it) = SLOTS.get(self.slot) {
            it.len.store(0, Ordering::Relaxed);
            it.start.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether something lies in a record of which something is lent: it is not to be freed.
pub(crate) fn is_lent(at: *const u8) -> bool {
    let at = at.addr();
    SLOTS.iter().any(|it| {
        let start = it.start.load(Ordering::Relaxed);
        start != 0 && at.wrapping_sub(start) < it.len.load(Ordering::Relaxed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_listed_record_is_lent_until_that_is_dropped() {
        let record = [0u8; 64];
        let start = NonNull::from(&record).cast::<u8>();
        let within = start.as_ptr().wrapping_add(63);
        assert!(!is_lent(within));
        let owner = getpid().as_raw_nonzero().get();
        let loan = Loan::of(start, record.len(), owner).expect("a slot");
        assert!(is_lent(start.as_ptr()) && is_lent(within));
        assert!(!is_lent(start.as_ptr().wrapping_sub(1)) && !is_lent(within.wrapping_add(1)));
        drop(loan);
        assert!(!is_lent(start.as_ptr()) && !is_lent(within));
    }
}
