//! What happened, counted: in the process page, where `shrimp stat` reads it, and once more at
//! the end of the process into the file that `VMMC_RPC_REPORT` names.

use std::cell::Cell;
use vmmc::control::message::Role;
use vmmc::library_page::LibraryPage;
use vmmc::sys::socket;

vmmc::library_counters! {
    channels: "Connections that got a channel.",
    offers: "Connections that a client offered to its server.",
    declined: "Offers that the server declined or did not understand.",
    unanswered: "Offers that the server did not answer in time.",
    not_local: "Connections not offered: the other end is on another machine, or no TCP.",
    no_daemon: "Channels not made: no daemon, or it refused.",
    calls_ring: "Calls made over rings.",
    calls_kernel: "Calls made the way libtirpc takes them.",
    served_ring: "Calls served over rings.",
    served_kernel: "Calls served the way libtirpc takes them.",
    sent_records: "Records put into rings.",
    sent_bytes: "Bytes put into rings.",
    pieces: "Pieces of records longer than the room in the ring, but each one's last.",
    spilled_bytes: "Bytes sent that were encoded in memory first: copied once more.",
    received_records: "Records taken out of rings.",
    received_bytes: "Bytes taken out of rings.",
    lent_bytes: "Of these: used by services where they lay, and not copied (vrpc_in_place.h).",
    assembled_bytes: "Bytes of pieces received that were put together in memory first: copied once more.",
    doorbells: "Doorbells rung: one system call each.",
    sleeps: "Times a waiter went to sleep.",
    spin_hits: "Waits that ended while still polling.",
    timeouts: "Calls that timed out.",
    broken: "Channels ended by the death of the other side.",
    poisoned: "Channels ended because the other side wrote nonsense.",
    timed_calls: "Calls of which the parts were timed (VMMC_RPC_TIMES).",
    prepare_ns: "Of these: encoding head and arguments and showing them to the server.",
    transfer_ns: "Of these: until the reply is there.",
    header_ns: "Of these: decoding the reply's head and results.",
    return_ns: "Of these: giving the room back and returning.",
}

/// This process's page.
pub static PAGE: LibraryPage = LibraryPage::new(Role::Rpc, NAMES);

/// Counts.
#[inline]
pub(crate) fn add(counter: Counter, amount: u64) {
    PAGE.add(counter as usize, amount);
}

/// Counts one.
#[inline]
pub(crate) fn one(counter: Counter) {
    add(counter, 1);
}

/// A client's connection stays with the kernel: counted, and noted for `shrimp stat` ([`vmmc::notes`]).
#[cold]
pub(crate) fn stays(fd: i32, why: Counter) {
    one(why);
    PAGE.note(|| socket::inode(fd), why as usize);
}

/// A client's connection has got a channel.
pub(crate) fn moved(fd: i32) {
    one(Counter::channels);
    PAGE.strike(|| socket::inode(fd));
}

/// What each call counts.
const OFTEN: [Counter; 7] = [
    Counter::calls_ring,
    Counter::served_ring,
    Counter::sent_records,
    Counter::sent_bytes,
    Counter::received_records,
    Counter::received_bytes,
    Counter::spin_hits,
];

/// Counts of one channel that are added up at the end of a call, or when the peer has been shown what it waits
/// for: in a shared library each look for where a thread counts is a call.
#[derive(Debug, Default)]
pub(crate) struct Later {
    counts: [Cell<u64>; OFTEN.len()],
    some: Cell<bool>,
}

impl Later {
    /// Counts one of [`OFTEN`], at the next [`Later::settle`]; anything else at once.
    #[inline(always)]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        let place = OFTEN.iter().position(|it| *it as usize == counter as usize);
        match place.and_then(|place| self.counts.get(place)) {
            Some(count) => {
                count.set(count.get() + amount);
                self.some.set(true);
            }
            None => add(counter, amount),
        }
    }

    /// Counts one.
    #[inline(always)]
    pub(crate) fn one(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds up.
    #[inline]
    pub(crate) fn settle(&self) {
        if self.some.replace(false)
            && let Some(tally) = PAGE.tally()
        {
            for (counter, count) in OFTEN.into_iter().zip(&self.counts) {
                let amount = count.take();
                if amount != 0 {
                    tally.add(counter as usize, amount);
                }
            }
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.settle();
    }
}
