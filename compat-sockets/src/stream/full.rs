//! A ring that stays full.
//!
//! The kernel's buffers take some megabytes of a stream that nobody reads (`tcp_wmem`, `tcp_rmem`); a ring takes what its
//! daemon gives it. Two programs that each send a megabyte before they read go on by TCP, and would wait for each other
//! here for ever. So whoever waits for room, in a send or in a poll, gives a ring up of which nothing was read for a
//! while: what is in it stays there to be read, and the stream goes on by TCP, into the kernel's buffers.
//!
//! Nobody can see whether a receiver that reads nothing waits for something or has something else to do. Where it cannot
//! send to us either, it mostly waits for us, and the while is short.

use super::demote;
use super::source::source;
use crate::counters::Counter;
use crate::raw;
use crate::side::{rx, tx};
use crate::sock::Link;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::switch::Standing;

/// How long a ring is full of which nothing is read before its direction goes on by TCP, in nanoseconds.
const WHILE_NS: u64 = 500_000_000;
/// The same while both rings are full.
pub(crate) const MUTUAL_NS: u64 = 50_000_000;

/// For whoever waits for room in a full ring, `at_most` so many nanoseconds if he then gives up (and does not only look after
/// something else), and looks now and then: whether the direction goes on by TCP now. Takes the locks of both directions. A
/// direction whose beginning the peer has not seen yet stays: it would take what follows for what precedes the ring.
pub(crate) fn goes_on_by_tcp(link: &Link, fd: i32, at_most: Option<u64>) -> bool {
    let side = link.side;
    see_switch(link, fd);
    let head = link.tx().head().load(Ordering::Acquire);
    let now = raw::now_ns();
    // The time is stored first and loaded last: it belongs to that head, or to a later one.
    let is_there_still = side.full_at.load(Ordering::Acquire) == head;
    let since = side.full_since.load(Ordering::Relaxed);
    // Only a receiver makes room: with the head where it was, the ring has been full ever since.
    if since == 0 || !is_there_still {
        side.full_since.store(now, Ordering::Relaxed);
        side.full_at.store(head, Ordering::Release);
        return false;
    }
    let enough = if is_full_for_peer(link) { MUTUAL_NS } else { WHILE_NS };
    // Who has a time limit is to find the kernel's room within it.
    let enough = at_most.map_or(enough, |limit| enough.min((limit / 2).max(MUTUAL_NS)));
    now.saturating_sub(since) >= enough
        && demote::may_end(link)
        && demote::our_way_for(link, fd, Counter::plain_full)
        // Shut, or shared with a daemon that is sending: it stays.
        && side.tx_state.load(Ordering::SeqCst) != tx::RING
}

/// Members of a set that were found full, and are looked at when its lock is not held.
#[derive(Debug, Default)]
pub(crate) struct Found(Vec<(Link, i32)>);

impl Found {
    /// Keeps one, which the caller has entered.
    pub(crate) fn keep(&mut self, link: Link, fd: i32) {
        self.0.push((link, fd));
    }

    /// Looks at all of them ([`goes_on_by_tcp`]).
    pub(crate) fn look(self) {
        for (link, fd) in self.0 {
            goes_on_by_tcp(&link, fd, None);
            link.leave();
        }
    }
}

/// Whether the peer finds no room either, as [`Link::looks_writable`] has it.
fn is_full_for_peer(link: &Link) -> bool {
    let side = link.side;
    let unread = link.arrived().wrapping_sub(side.head.load(Ordering::Relaxed));
    side.rx_state.load(Ordering::Relaxed) == rx::RING
        && unread.min(link.before_end()) > link.rx().bytes().0.len() as u64 * 2 / 3
}

/// Sees that the peer has switched, as a receive would: it cannot end its ring part before.
fn see_switch(link: &Link, fd: i32) {
    let side = link.side;
    if side.rx_state.load(Ordering::Relaxed) == rx::TCP
        && link.rx().switch().standing() != Standing::Tcp
        && side.rx_lock.try_lock()
    {
        source(link, fd);
        side.rx_lock.unlock();
    }
}
