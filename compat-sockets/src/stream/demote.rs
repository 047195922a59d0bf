//! Going back from the ring to TCP.
//!
//! The sender decides, at any byte: it lets no further doorbell go, stores where the ring part
//! ends and how many doorbells there were, and sends data by TCP from then on. The receiver
//! reads the ring to that position, throws the remaining doorbells away, and reads TCP.
//!
//! A receiver that needs the kernel (descriptor passing, `exec`, stdio) asks by a word that the
//! peer looks at in every call, receiving ones included. It has stopped reading then, and the bytes
//! that are unread go back: the sender ends the ring part at the receiver's position and sends the
//! rest again by TCP. Only the sender can do that, because only its kernel can put bytes into the
//! receiver's queue. A peer that makes no call cannot comply; the receiver waits a while and says
//! so ([`receiver_stops`]).
//!
//! A direction that has ended stays with TCP.

use super::bells;
use super::recv::{Source, source};
use crate::counters::{self, Counter};
use crate::fd_table::{Link, shadow};
use crate::raw;
use crate::side::{GATE_CLOSED, rx, tx};
use vmmc::sync::{Ordering, spin_hint};
use vmmc::word::Word;
use vmmc_ring::bell;

/// Values of a side's `demote` word. Written by the side, except for [`ask::TAKEN`].
pub(crate) mod ask {
    /// Send by TCP from now on.
    pub(crate) const TCP: u32 = 1;
    /// The same, and take back what is unread: the receiver has stopped.
    pub(crate) const BACK: u32 = 2;
    /// The peer is doing that.
    pub(crate) const TAKEN: u32 = 3;
}

/// How long a receiver that has stopped waits for the peer, in milliseconds.
const ASK_MS: u32 = 200;

/// Whether our ring part may be ended: the peer has seen that it began. A peer that has not may
/// be reading TCP into the program's buffer, and would take what follows the end for what
/// precedes the ring.
pub(crate) fn may_end(link: &Link) -> bool {
    // PAIRS(seen): with the store in `recv::unswitched`.
    link.peer().seen().load(Ordering::Acquire) != 0
}

/// Whether the peer asked for it, or we could not end it before.
#[inline]
pub(crate) fn is_wanted(link: &Link) -> bool {
    link.peer().demote().load(Ordering::Relaxed) != 0
        || link.side.tx_frozen.load(Ordering::Relaxed) != 0
}

/// Sends by TCP from now on: at once (true), or as soon as the peer has seen that our ring part
/// began. A direction that has not switched never will.
pub(crate) fn our_way(link: &Link, fd: i32) -> bool {
    if link.side.tx_lock.lock().is_err() {
        return false;
    }
    link.side.tx_frozen.store(1, Ordering::SeqCst);
    let done = match link.side.tx_state.load(Ordering::SeqCst) {
        tx::RING => end_ring(link, fd),
        _ => true,
    };
    link.side.tx_lock.unlock();
    done
}

/// Ends the ring part if that may be done. The caller holds the tx lock and the state is `RING`.
pub(crate) fn end_ring(link: &Link, fd: i32) -> bool {
    if !may_end(link) {
        return false;
    }
    let side = link.side;
    side.bell_gate.fetch_or(GATE_CLOSED, Ordering::SeqCst);
    while side.bell_gate.load(Ordering::SeqCst) & !GATE_CLOSED != 0 {
        spin_hint();
    }
    let bells = side.bells.load(Ordering::SeqCst);
    let tail = side.tail.load(Ordering::Relaxed);
    let end = taken_back(link, tail);
    if end != tail {
        side.tail.store(end, Ordering::Relaxed);
        link.tx().tail().store(end, Ordering::Release);
    }
    link.tx().switch().to_tcp(end, bells);
    // What is counted must travel before data does. The peer reads on until it has them.
    while side.bells_owed.load(Ordering::SeqCst) > 0 {
        match raw::send(fd, &[0], libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
            Ok(_) => {
                side.bells_owed.fetch_sub(1, Ordering::SeqCst);
            }
            Err(libc::EAGAIN | libc::EINTR) => {
                raw::wait_for(fd, libc::POLLOUT, 20);
            }
            Err(_) => break,
        }
    }
    send_again(link, fd, end, tail);
    side.tx_state.store(tx::ENDED, Ordering::SeqCst);
    let set = link.sock.shadow.load(Ordering::Relaxed);
    for (name, bit) in [(libc::TCP_NODELAY, shadow::NODELAY), (libc::TCP_CORK, shadow::CORK)] {
        let value = i32::from(set & bit != 0);
        let _ = raw::set_socket_option(fd, libc::IPPROTO_TCP, name, &value);
    }
    counters::one(Counter::demoted_tx);
    true
}

/// Where our ring part ends: at the tail, or at the position where the peer has stopped.
fn taken_back(link: &Link, tail: u64) -> u64 {
    let word = link.peer().demote();
    if word.compare_exchange(ask::BACK, ask::TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return tail;
    }
    let head = link.tx().head().load(Ordering::Acquire);
    let unread = tail.wrapping_sub(head);
    // A peer that lies about its position spoils its own stream only.
    if unread <= link.tx().bytes().0.len() as u64 { head } else { tail }
}

/// Sends the ring's bytes from position `from` to `to` by TCP.
fn send_again(link: &Link, fd: i32, mut from: u64, to: u64) {
    let bytes = link.tx().bytes().0;
    let capacity = bytes.len() as u64;
    while from != to {
        let at = from % capacity;
        let len = (to.wrapping_sub(from)).min(capacity - at) as usize;
        let start = bytes.as_ptr().as_ptr().wrapping_add(at as usize);
        // SAFETY: inside our own ring, at most to its end.
        match unsafe { raw::send_from(fd, start, len, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) } {
            Ok(sent) => from = from.wrapping_add(sent as u64),
            Err(libc::EAGAIN | libc::EINTR) => raw::wait_for(fd, libc::POLLOUT, 20),
            // The connection is over; every later call will say so.
            Err(_) => return,
        }
    }
}

/// Whether the peer has stopped and waits for us to [`comply`]. Whoever has armed looks at this
/// before it sleeps: the peer stores its request before it looks whether we are armed.
#[inline]
pub(crate) fn is_urgent(link: &Link) -> bool {
    link.peer().demote().load(Ordering::Relaxed) == ask::BACK
        && link.side.tx_state.load(Ordering::Relaxed) == tx::RING
        && may_end(link)
}

/// Does what the peer asks for, if it asks: called wherever a thread of ours looks at the
/// connection.
#[inline]
pub(crate) fn comply(link: &Link, fd: i32) {
    if is_wanted(link) && link.side.tx_state.load(Ordering::Relaxed) == tx::RING {
        our_way(link, fd);
    }
}

/// Stops reading the ring for good and gives both directions back to the kernel, with everything
/// that is unread. True when nothing is left that only this library could read.
pub(crate) fn receiver_stops(link: &Link, fd: i32) -> bool {
    let side = link.side;
    if side.rx_lock.lock().is_err() {
        return false;
    }
    // A part of the prefix that is unread in the kernel cannot be stepped over.
    let is_in_ring = || {
        side.rx_state.load(Ordering::Relaxed) == rx::RING
            && side.rx_left.load(Ordering::Relaxed) == 0
    };
    // A switch that no call of ours has acted on yet comes to light first: a peer that has
    // complied with `ask::TCP` cannot take back what is in the ring any more.
    source(link, fd);
    let mut in_ring = is_in_ring();
    their_way(link, fd, if in_ring { ask::BACK } else { ask::TCP });
    let mut ours = our_way(link, fd);
    let mut done = false;
    for turn in 0..2 * ASK_MS {
        ours = ours || our_way(link, fd);
        // The tail may go back: forget the one that was seen.
        side.tail_seen.store(side.head.load(Ordering::Relaxed), Ordering::Relaxed);
        match source(link, fd) {
            Source::Ended => done = ours,
            // The peer never switches now.
            Source::Tcp { .. } => done = ours,
            Source::Ring(_) | Source::Empty | Source::Prefix(_) => {}
            Source::Poisoned => break,
        }
        if !done && !in_ring && is_in_ring() {
            // The switch came to light just now.
            in_ring = true;
            their_way(link, fd, ask::BACK);
        }
        let late = turn == ASK_MS && in_ring;
        if done
            || (late
                && link
                    .mine()
                    .demote()
                    .compare_exchange(ask::BACK, ask::TCP, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok())
        {
            break;
        }
        raw::wait_for(-1, 0, 1);
    }
    side.tail_seen.store(side.head.load(Ordering::Relaxed), Ordering::Relaxed);
    side.rx_lock.unlock();
    done
}

/// Asks the peer to send by TCP ([`ask`]).
pub(crate) fn their_way(link: &Link, fd: i32, how: u32) {
    link.mine().demote().store(how, Ordering::SeqCst);
    // Wake a sender that is blocked on a full ring, and a poller.
    let wait = link.rx().space_wait();
    bell::published();
    if bell::take(&wait) {
        raw::futex_wake(wait.as_ptr().as_ptr());
    }
    if link.side.tx_state.load(Ordering::SeqCst) == tx::RING
        && bell::take(&link.peer().armed_data())
    {
        bells::ring(link, fd);
    }
}
