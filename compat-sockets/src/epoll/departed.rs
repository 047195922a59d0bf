//! Members that left a set while somebody was inside a wait.
//!
//! ```text
//!   waiter                                    another thread
//!   (1) counts itself in
//!   (2) the kernel hands it an event
//!                                             (3) takes the member out, in the kernel and here
//!   (4) finds no record of the event's data
//! ```
//! An event without a record is passed on as it is, because it may be of a registration made out of
//! our sight. This one may be of a doorbell, and the program would find nothing to read. So the
//! data of members that leave is kept as long as somebody is inside who may have such an event in
//! hand, and the event is dropped: to the program the member had left before the wait looked. A
//! member that is put in again, or whose data was changed, is reported anew by the kernel.
//!
//! Where somebody is inside all the time, the last [`MOST`] to twice as many are kept. An older one is
//! of a member that left that many departures ago, each a system call or two.

use super::{EpollSet, Map, Members};
use vmmc::sync::Ordering;

/// Departures after which the ones before are forgotten.
const MOST: usize = 4096;

/// Data of members that left: the latest, and those before.
#[derive(Default)]
pub(super) struct Departed {
    young: Map<u64, ()>,
    old: Map<u64, ()>,
}

impl Departed {
    fn note(&mut self, data: u64) {
        if self.young.len() >= MOST {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(data, ());
    }

    pub(super) fn knows(&self, data: u64) -> bool {
        self.young.contains_key(&data) || self.old.contains_key(&data)
    }
}

impl Members {
    /// A member with this data has left the kernel's set, or has other data there from now on.
    pub(super) fn departs(&mut self, set: &EpollSet, data: u64) {
        // Whoever comes in from now on gets no event of it. PAIRS(waiters): the member left before.
        if set.waiters.load(Ordering::SeqCst) != 0 {
            self.departed.note(data);
            set.departures.store(1, Ordering::Relaxed);
        }
    }
}

/// A waiter leaves.
#[inline]
pub(super) fn waiter_leaves(set: &EpollSet) {
    if set.waiters.fetch_sub(1, Ordering::SeqCst) == 1
        && set.departures.load(Ordering::Relaxed) != 0
    {
        forget(set);
    }
}

#[cold]
fn forget(set: &EpollSet) {
    set.with(|members| {
        // Somebody may have come in, and a member left, since.
        if set.waiters.load(Ordering::SeqCst) == 0 {
            members.departed = Departed::default();
            set.departures.store(0, Ordering::Relaxed);
        }
    });
}
