//! Going back from the ring to TCP.
//!
//! The sender decides, at any byte: it lets no further doorbell go, stores where the ring part
//! ends and how many doorbells there were, and sends data by TCP from then on. The receiver
//! reads the ring to that position, throws the remaining doorbells away, and reads TCP.
//!
//! The position is one that the receiver has reached, or nearly: what it has not read is sent
//! again by TCP, so that it can leave for a program without the library later. Bytes that it has
//! read behind the position it throws away like doorbells.
//!
//! A receiver that needs the kernel (descriptor passing, `exec`, stdio) asks by a word that the
//! peer looks at in every call, receiving ones included. It has stopped reading then, and the bytes
//! that are unread go back: the sender ends the ring part at the receiver's position and sends the
//! rest again by TCP. Only the sender's socket can do that, because only its kernel can put bytes
//! into the receiver's queue. For a peer that makes no call the daemon does it
//! ([`vmmc_ring::pump`]); where it cannot (the peer may not be traced, or has shut its sending
//! side), the receiver waits a while for the peer and says so ([`super::stopping`]).
//!
//! A direction that has ended stays with TCP, but where nothing but a full ring was the reason ([`super::full`]): that *rests*, and
//! begins another ring part later.

use super::ending::{Ended, Ending, end_ring, gives_options_back, has_sent_fin, state_of_tx};
use super::source::source;
use super::{FIN_OWED, SHUT_WRITE};
use crate::counters::{self, Counter};
use crate::side::tx;
use crate::sock::Link;
use crate::{carrier, parked, raw};
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::pump::Claim;
pub(crate) use vmmc_ring::pump::request;

/// How long a receiver that has stopped waits for the peer, in milliseconds, where two daemons carry the connection: they answer
/// however busy their machines are, and the end of either ends the connection.
pub(super) const ASK_CARRIED_MS: u32 = 10_000;

/// How long `shutdown` waits for a daemon that sends for us, in milliseconds. It goes no faster than the new holder reads.
const BEFORE_FIN_MS: u32 = 5000;

/// Whether our ring part may be ended where we like: the peer has seen that it began. A peer that has not may
/// be reading TCP into the program's buffer, and would take what follows the end for what
/// precedes the ring: it gets all of the part by TCP, or the part goes on.
pub(crate) fn may_end(link: &Link) -> bool {
    if carrier::has(link.side) {
        // PAIRS(seen): with the store in `source::unswitched`.
        return link.peer().seen().load(Ordering::Acquire) != 0;
    }
    link.tx().switch().is_seen()
}

/// Whether the peer asked for it, or we could not end it before.
#[inline]
pub(crate) fn is_wanted(link: &Link) -> bool {
    link.peer().demote().load(Ordering::Relaxed) != 0
        || link.side.tx_frozen.load(Ordering::Relaxed) != 0
}

/// Tells `shrimp stat` why. Other reasons than these are counted where they come up.
pub(super) fn noted(fd: i32, why: Counter) {
    let counted =
        [Counter::plain_peer, Counter::plain_waiter, Counter::plain_full, Counter::plain_stopped];
    if counted.contains(&why) {
        counters::one(why);
    }
    counters::note(fd, why);
}

/// Sends by TCP from now on: at once (true), or as soon as the peer has seen that our ring part
/// began. A direction that has not switched never will.
pub(crate) fn our_way_for(link: &Link, fd: i32, why: Counter) -> bool {
    if link.side.tx_lock.lock().is_err() {
        return false;
    }
    freeze(link, fd, why);
    let done = match state_of_tx(link, fd) {
        // Nothing follows what is in the ring, and TCP could carry nothing: it stays there.
        tx::RING if has_sent_fin(fd) => {
            link.side.shut.fetch_and(!FIN_OWED, Ordering::SeqCst);
            // Unless the daemon has, in front of the FIN.
            if matches!(link.tx().pump().sender_claims(), Claim::Pumped { .. }) {
                link.side.tx_state.store(tx::ENDED, Ordering::SeqCst);
            }
            true
        }
        tx::RING => end_ring(link, fd, Ending::ForGood) == Ended::Yes,
        tx::TCP => {
            // Left so by somebody who died.
            if !carrier::has(link.side) && link.tx().switch().is_announced() {
                link.tx().switch().thinks_better();
            }
            gives_options_back(link, fd);
            true
        }
        _ => true,
    };
    link.side.tx_lock.unlock();
    if done {
        looks_for_bells(link, fd);
    }
    done
}

/// Sends by TCP for a while, because nobody reads the ring: true when it does so now. A direction that a daemon carries
/// does so for good.
pub(crate) fn rests(link: &Link, fd: i32) -> bool {
    let side = link.side;
    if carrier::has(side) {
        return may_end(link)
            && our_way_for(link, fd, Counter::plain_full)
            // Shut: it stays.
            && side.tx_state.load(Ordering::SeqCst) != tx::RING;
    }
    if side.tx_lock.lock().is_err() {
        return false;
    }
    if !parked::is_of(link, fd) {
        // Closed by another thread: the number may be another connection's.
        side.tx_lock.unlock();
        return false;
    }
    let taken_over = side.tx_lock.was_taken_over();
    let done = match state_of_tx(link, fd) {
        // Somebody wants it to be for good, or may still be copying there.
        tx::RING if taken_over || is_wanted(link) => {
            let why = if taken_over { Counter::plain_stopped } else { Counter::plain_full };
            freeze(link, fd, why);
            end_ring(link, fd, Ending::ForGood) == Ended::Yes
        }
        tx::RING => end_ring(link, fd, Ending::Rests) == Ended::Yes,
        _ => true,
    };
    side.tx_lock.unlock();
    if done {
        looks_for_bells(link, fd);
    }
    done
}

/// Our direction goes to no ring any more.
pub(super) fn freeze(link: &Link, fd: i32, why: Counter) {
    if link.side.tx_frozen.swap(1, Ordering::SeqCst) == 0 {
        noted(fd, why);
    }
}

/// Doorbells of the peer's that nobody will wait for go now: unread, they would turn our
/// process's death into an RST, which a peer without the library cannot tell from a reset.
fn looks_for_bells(link: &Link, fd: i32) {
    if link.side.rx_lock.lock().is_ok() {
        source(link, fd);
        link.side.rx_lock.unlock();
    }
}

/// [`our_way_for`] somebody who waits for room and whom only the kernel can wake.
pub(crate) fn our_way(link: &Link, fd: i32) -> bool {
    our_way_for(link, fd, Counter::plain_waiter)
}

/// Whether the peer has stopped and waits for us to [`comply`]. Whoever has armed looks at this
/// before it sleeps: the peer stores its request before it looks whether we are armed.
#[inline]
pub(crate) fn is_urgent(link: &Link) -> bool {
    matches!(link.peer().demote().load(Ordering::Relaxed), request::BACK | request::REFUSED)
        && link.side.tx_state.load(Ordering::Relaxed) == tx::RING
        && link.side.shut.load(Ordering::Relaxed) & (SHUT_WRITE | FIN_OWED) != SHUT_WRITE
        && may_end(link)
}

/// Whether the daemon is sending for us: until it has done, nothing can be sent.
#[inline]
pub(crate) fn is_pumped(link: &Link) -> bool {
    link.peer().demote().load(Ordering::Relaxed) == request::PUMP
}

/// Before our FIN: does what the peer asks for, and waits for a daemon that is sending for us. True when our FIN is to follow that later.
pub(crate) fn precedes_fin(link: &Link, fd: i32) -> bool {
    for _ in 0..BEFORE_FIN_MS {
        comply(link, fd);
        if !is_pumped(link) || link.side.tx_state.load(Ordering::SeqCst) != tx::RING {
            return false;
        }
        raw::wait_for(-1, 0, 1);
    }
    true
}

/// Whether the daemon has done with sending for us, or has died at it.
pub(crate) fn end_by_now(link: &Link, fd: i32) -> bool {
    comply(link, fd);
    link.side.tx_state.load(Ordering::SeqCst) != tx::RING
}

/// Does what the peer asks for, if it asks: called wherever a thread of ours looks at the
/// connection.
#[inline]
pub(crate) fn comply(link: &Link, fd: i32) {
    if is_wanted(link) && link.side.tx_state.load(Ordering::Relaxed) == tx::RING {
        our_way_for(link, fd, Counter::plain_peer);
    }
}

/// Whether the peer's FIN has come, or an error.
pub(super) fn peer_has_ended(fd: i32) -> bool {
    let ends = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    raw::pending_events(fd, libc::POLLRDHUP) & ends != 0
}
