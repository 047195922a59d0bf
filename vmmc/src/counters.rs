//! Counters in the process page: written by one process, read from outside by `shrimp stat`.
//!
//! A thread counts in its own stripe with a plain load and store; only threads beyond the first
//! fifteen share the last stripe and pay a locked addition. Reading sums the stripes: exact once
//! the counting threads are quiet, never torn.

use crate::layout::page;
use crate::mem::View;
use crate::sync::Ordering;
use crate::word::Word;
use std::marker::PhantomData;

/// The counters of `vmmc` itself, by index. A library above that has its own daemon client
/// names its own set with [`Counters::name_all`].
pub mod index {
    macro_rules! counters {
        ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
            counters!(@ 0usize; $($(#[$doc])* $name = $text),*);
            /// Names of the counters above, in order.
            pub const NAMES: &[&str] = &[$($text),*];
        };
        (@ $at:expr; $(#[$doc:meta])* $name:ident = $text:literal $(, $($rest:tt)*)?) => {
            $(#[$doc])*
            pub const $name: usize = $at;
            $(counters!(@ $at + 1usize; $($rest)*);)?
        };
        (@ $at:expr;) => {};
    }
    /// First counter that a library above may name for itself ([`super::Counters::name_from`]).
    pub const LIBRARY: usize = 32;

    counters! {
        /// Deliberate updates sent.
        SENDS = "sends",
        /// Bytes sent by deliberate update.
        SEND_BYTES = "send_bytes",
        /// Remote reads.
        READS = "reads",
        /// Bytes read remotely.
        READ_BYTES = "read_bytes",
        /// Bytes this process copied on the data path (M1).
        COPIED_BYTES = "copied_bytes",
        /// Notifications queued to peers.
        NOTIFIES_SENT = "notifies_sent",
        /// Times a sender waited for room in a notification queue.
        NOTIFY_STALLS = "notify_stalls",
        /// Notifications delivered to a handler or a waiter.
        NOTIFIES_DELIVERED = "notifies_delivered",
        /// Notifications discarded.
        NOTIFIES_DISCARDED = "notifies_discarded",
        /// Doorbells rung: one system call each.
        DOORBELLS = "doorbells",
        /// Times a waiter went to sleep.
        SLEEPS = "sleeps",
        /// Waits that ended while still polling.
        SPIN_HITS = "spin_hits",
        /// Exports made.
        EXPORTS = "exports",
        /// Imports made.
        IMPORTS = "imports",
        /// Links ended by the death of the peer.
        PEER_DEATHS = "peer_deaths",
        /// Links ended because the peer wrote nonsense.
        PEER_FAULTS = "peer_faults",
        /// Reconnections to a restarted daemon.
        RECONNECTS = "reconnects",
        /// Packets sent to other nodes.
        NET_PACKETS = "net_packets",
        /// Bytes of data in them.
        NET_BYTES = "net_bytes",
        /// Of the packets, those that went over a fabric.
        FABRIC_PACKETS = "fabric_packets",
        /// Messages of the daemon that came while a caller polled for its answer.
        ANSWERS_POLLED = "answers_polled",
        /// Times a caller slept for an answer of the daemon.
        ANSWER_SLEEPS = "answer_sleeps",
        /// Times that pages were looked for that plain stores have changed.
        TRACK_SCANS = "track_scans",
        /// Pages found so.
        TRACKED_PAGES = "tracked_pages",
        /// Imports made with the link segment of an earlier one.
        SEGMENTS_REUSED = "segments_reused",
        /// Writes that a fabric made straight into pages of another node.
        DIRECT_WRITES = "direct_writes",
        /// Bytes of them.
        DIRECT_BYTES = "direct_bytes",
        /// Connections lost under such a write: it was refused, or cut off.
        DIRECT_REFUSED = "direct_refused",
        /// Times that a connection to another node that was cut has gone on.
        NET_RESUMED = "net_resumed",
    }
}

pub use crate::sync::{stripe_is_shared, thread_stripe};

const _: () = assert!(index::NAMES.len() <= index::LIBRARY, "counters run into the library's");

/// The counters in a process page.
#[derive(Clone, Copy, Debug)]
pub struct Counters<'m> {
    page: View<'m>,
}

/// What one thread adds to; see [`Counters::tally`]. Not for another thread.
#[derive(Clone, Copy, Debug)]
pub struct Tally<'m> {
    /// `None` only if the page were shorter than it is.
    stripe: Option<View<'m>>,
    is_shared: bool,
    /// Two threads that add to one stripe by load and store would lose counts.
    of_this_thread: PhantomData<*const ()>,
}

impl Tally<'_> {
    /// As [`Counters::add`].
    #[inline]
    pub fn add(self, counter: usize, amount: u64) {
        debug_assert!(counter < page::COUNTERS);
        let Some(Ok(word)) = self.stripe.map(|stripe| stripe.word64(counter * 8)) else { return };
        if self.is_shared {
            word.fetch_add(amount, Ordering::Relaxed);
        } else {
            word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
        }
    }
}

impl<'m> Counters<'m> {
    /// The counters of a page.
    ///
    /// # Panics
    /// When `page` is shorter than [`page::LEN`]: our own fault, lengths are checked at mapping.
    #[inline]
    #[must_use]
    pub fn new(page: View<'m>) -> Counters<'m> {
        assert!(page.len() >= page::LEN, "process page too short");
        Counters { page }
    }

    /// Gives counter `i` the name `names[i]`. Names longer than a field are cut.
    pub fn name_all(self, names: &[&str]) {
        self.name_from(0, names);
    }

    /// Gives counter `first + i` the name `names[i]`; see [`index::LIBRARY`].
    pub fn name_from(self, first: usize, names: &[&str]) {
        for (name, i) in names.iter().zip(first..page::COUNTERS) {
            let mut field = [0u8; page::NAME_LEN];
            for (to, from) in field.iter_mut().zip(name.as_bytes()) {
                *to = *from;
            }
            let _ = self.page.write(page::NAMES + i * page::NAME_LEN, &field);
        }
    }

    /// Adds to a counter. No locked instruction for the first fifteen threads of a process.
    #[inline]
    pub fn add(self, counter: usize, amount: u64) {
        self.tally().add(counter, amount);
    }

    /// This thread's stripe, for several additions in a row: looked up once.
    #[inline]
    #[must_use]
    pub fn tally(self) -> Tally<'m> {
        self.tally_of(thread_stripe())
    }

    /// A stripe that was taken for something that has one writer at a time ([`crate::sync::take_stripe`]), by that
    /// writer only, or the caller's own [`thread_stripe`].
    #[inline(always)]
    #[must_use]
    pub fn tally_of(self, stripe: usize) -> Tally<'m> {
        let at = page::STRIPES_AT + stripe * page::STRIPE_LEN;
        Tally {
            stripe: self.page.slice(at, page::STRIPE_LEN).ok(),
            is_shared: stripe_is_shared(stripe),
            of_this_thread: PhantomData,
        }
    }

    /// The value of a counter: the sum over all threads.
    #[must_use]
    pub fn get(self, counter: usize) -> u64 {
        (0..page::STRIPES)
            .filter_map(|stripe| {
                self.page.word64(page::STRIPES_AT + stripe * page::STRIPE_LEN + counter * 8).ok()
            })
            .fold(0, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)))
    }

    /// The name of a counter, if it has one. The page may be another process's: the name is cut at the first
    /// byte that is not printable ASCII.
    #[must_use]
    pub fn name(self, counter: usize) -> Option<String> {
        if counter >= page::COUNTERS {
            return None;
        }
        let mut field = [0u8; page::NAME_LEN];
        self.page.read(page::NAMES + counter * page::NAME_LEN, &mut field).ok()?;
        let name: String = field
            .iter()
            .take_while(|byte| byte.is_ascii_graphic())
            .map(|&byte| char::from(byte))
            .collect();
        (!name.is_empty()).then_some(name)
    }

    /// All counters that have a name, with their values ([`Counters::name`]).
    #[must_use]
    pub fn snapshot(self) -> Vec<(String, u64)> {
        (0..page::COUNTERS).filter_map(|i| Some((self.name(i)?, self.get(i)))).collect()
    }
}
