//! A ring that stays full.
//!
//! The kernel's buffers take some megabytes of a stream that nobody reads (`tcp_wmem`, `tcp_rmem`); a ring takes what its
//! daemon gives it. Two programs that each send a megabyte before they read go on by TCP, and would wait for each other
//! here for ever. So whoever waits for room, in a send or in a poll, leaves a ring of which nothing was read for a
//! while: what is in it stays there to be read, and the stream goes on by TCP, into the kernel's buffers.
//!
//! Nobody can see whether a receiver that reads nothing waits for something or has something else to do. Where it cannot
//! send to us either, it mostly waits for us, and the while is short.
//!
//! The ring rests then, and the stream comes back to it ([`is_rested`]): many a receiver was only busy. How long it rests goes by
//! how long it was waited for, and by what became of it before, so that programs which fill their rings again and again lose
//! little by it.

use super::demote;
use super::source::source;
use crate::side::{Side, rx};
use crate::sock::Link;
use crate::{raw, settings};
use std::time::Duration;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::switch::Standing;

/// While both rings are full, the while is so many times shorter.
const MUTUAL: u32 = 10;

/// A ring rests twice as long as its full state was waited out, and twice as long again each time that it is full soon after;
/// no longer than this, in nanoseconds.
const LONGEST_REST_NS: u64 = 60_000_000_000;
/// So many times its rest a ring has to do its work, and the next rest is the shortest again.
const WORKED: u64 = 16;

/// For whoever waits for room in a full ring, `at_most` so many nanoseconds if he then gives up (and does not only look after
/// something else), and looks now and then: whether the direction goes on by TCP now. Takes the locks of both directions.
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
    let [short, long] = whiles();
    let enough = if is_full_for_peer(link) { short } else { long };
    // Who has a time limit is to find the kernel's room within it.
    let enough = at_most.map_or(enough, |limit| enough.min((limit / 2).max(short)));
    let goes = now.saturating_sub(since) >= enough && demote::rests(link, fd);
    if goes {
        side.full_since.store(0, Ordering::Relaxed);
    }
    goes
}

/// How long a ring is full of which nothing is read before its direction goes on by TCP, in nanoseconds: where both are, and
/// where one is.
fn whiles() -> [u64; 2] {
    [soonest(), settings::full()].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// After how long at the soonest [`goes_on_by_tcp`] may say so.
pub(crate) fn soonest() -> Duration {
    settings::full() / MUTUAL
}

/// The ring rests from now on. Under the tx lock.
pub(super) fn begins_to_rest(side: &Side) {
    let now = raw::now_ns();
    let since = side.full_since.load(Ordering::Relaxed);
    let [short, long] = whiles();
    let waited = now.saturating_sub(since).clamp(short, long);
    let last = side.rest.load(Ordering::Relaxed);
    let worked = now.saturating_sub(side.rested_at.load(Ordering::Relaxed));
    side.rest.store(next_rest(waited, last, worked), Ordering::Relaxed);
    side.rested_at.store(now, Ordering::Relaxed);
}

/// How long a ring rests that was full for so long, `last` and `since` being the rest before it, if there was one, and when that began.
fn next_rest(waited: u64, last: u64, since: u64) -> u64 {
    let has_worked = last == 0 || since > last.saturating_mul(WORKED);
    let longer = if has_worked { waited } else { last.max(waited) };
    longer.saturating_mul(2).clamp(1, LONGEST_REST_NS)
}

/// Whether a direction may begin a ring part, as far as rests are concerned. Under the tx lock.
pub(crate) fn is_rested(side: &Side) -> bool {
    let rest = side.rest.load(Ordering::Relaxed);
    rest == 0 || raw::now_ns().saturating_sub(side.rested_at.load(Ordering::Relaxed)) >= rest
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

#[cfg(test)]
mod tests {
    use super::*;

    const WHILE_NS: u64 = 500_000_000;
    const MUTUAL_NS: u64 = 50_000_000;

    #[test]
    fn a_ring_that_is_full_again_soon_rests_longer() {
        // Busy for once.
        assert_eq!(next_rest(WHILE_NS, 0, u64::MAX), 2 * WHILE_NS);
        // Again and again, at once after each rest.
        let mut rest = next_rest(MUTUAL_NS, 0, 0);
        let mut lost = 0;
        let mut time = 0;
        for _ in 0..100 {
            lost += MUTUAL_NS;
            time += rest + MUTUAL_NS;
            rest = next_rest(MUTUAL_NS, rest, rest + MUTUAL_NS);
        }
        assert_eq!(rest, LONGEST_REST_NS);
        assert!(lost * 100 < time, "{lost} of {time} ns waited");
        // It has worked for long since.
        assert_eq!(next_rest(WHILE_NS, rest, rest * WORKED + 1), 2 * WHILE_NS);
    }
}
