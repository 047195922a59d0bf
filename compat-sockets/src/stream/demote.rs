//! Going back from the ring to TCP.
//!
//! The sender decides, at any byte: it lets no further doorbell go, stores where the ring part
//! ends and how many doorbells there were, and sends data by TCP from then on. The receiver
//! reads the ring to that position, throws the remaining doorbells away, and reads TCP.
//!
//! A receiver that needs the kernel (descriptor passing, `exec`, stdio) asks by a word that the
//! sender looks at in every call.
//!
//! A direction that has ended stays with TCP.

use super::bells;
use crate::counters::{self, Counter};
use crate::fd_table::Link;
use crate::raw;
use crate::side::{GATE_CLOSED, tx};
use vmmc::sync::{Ordering, spin_hint};
use vmmc::word::Word;
use vmmc_ring::bell;

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
    link.tx().switch().to_tcp(side.tail.load(Ordering::Relaxed), bells);
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
    side.tx_state.store(tx::ENDED, Ordering::SeqCst);
    let nodelay = link.sock.nodelay.load(Ordering::Relaxed) as i32;
    let _ = raw::set_socket_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &nodelay);
    counters::one(Counter::demoted_tx);
    true
}

/// Asks the peer to send by TCP.
pub(crate) fn their_way(link: &Link, fd: i32) {
    link.mine().demote().store(1, Ordering::SeqCst);
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
