//! Connections to another node, whose far end this node's daemon stands in for: it *carries* them.
//!
//! In the segment the far end looks as it would on this machine. What is different is how it hears of things: the daemon
//! sleeps at one end of a line ([`vmmc::sys::bell_line`]), of which each process that has the connection has the other. It is rung where a peer on this
//! machine would be by a byte of the TCP connection, and for the words that such a peer would look at by itself. When
//! nobody has that end any more the daemon knows that the connection is closed; so it is kept as long as
//! the segment, is close-on-exec, and comes to children by fork as the socket does.
//!
//! Two things the daemon does for this side, because only it knows what has arrived: it sends our FIN
//! ([`wants_fin`]), and ends the ring part of our direction ([`ends_ring`]).

use crate::counters::{self, Counter};
use crate::fd_table::Known;
use crate::side::{Side, tx};
use crate::sock::Link;
use crate::stream::SHUT_WRITE;
use crate::{control, family, fd_table, fork, raw};
use rustix::event::EventfdFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use vmmc::sync::{AtomicU32, Ordering};
use vmmc::sys::{Fd, bell_line};
use vmmc::word::{MappedU32, MappedU64, Word};
use vmmc_ring::pump::{Claim, Words};
use vmmc_ring::taken::Found;

/// Whether a connection of this process was ever carried.
static SOME: AtomicU32 = AtomicU32::new(0);

/// How long who finds an end waits for what the daemon was told, in milliseconds: its call waits for nobody, unless somebody
/// is inside another on the same socket.
const TAKEN_MS: u32 = 1000;
/// How long a sender waits for the end of its ring part, in milliseconds.
const END_MS: u32 = 200;

/// Keeps the doorbell of a connection's carrier. False where only numbers that the program counts on are left: one for each
/// connection would be too much.
pub(crate) fn keep(side: &Side, bell: &Fd) -> bool {
    let Some(bell) = control::out_of_the_way(bell) else { return false };
    side.carrier_is.store(raw::identity(bell.as_fd()), Ordering::Relaxed);
    side.carrier.store(bell.as_raw_fd() as u32 + 1, Ordering::Release);
    std::mem::forget(bell);
    SOME.store(1, Ordering::Relaxed);
    true
}

/// This process has closed the socket. Some thread may be about to ring: the number stays taken, for something that
/// takes no rings, until nobody is inside a call ([`let_go`]).
pub(crate) fn is_closed(side: &Side) {
    let Some(bell) = bell(side) else { return };
    if let Ok(silent) = rustix::event::eventfd(0, EventfdFlags::CLOEXEC) {
        let _ = raw::replace(silent.as_fd(), bell.as_raw_fd());
    }
}

/// Gives up this process's end of it.
pub(crate) fn let_go(side: &Side) {
    let Some(bell) = number(side).and_then(raw::borrowed) else { return };
    if raw::identity(bell) == side.carrier_is.load(Ordering::Relaxed) || is_silent(bell) {
        raw::close(bell.as_raw_fd());
    }
}

/// Whether a number is taken, and silent ([`is_closed`]).
fn is_silent(fd: BorrowedFd<'_>) -> bool {
    let other = rustix::event::eventfd(0, EventfdFlags::CLOEXEC);
    other.is_ok_and(|other| raw::identity(other.as_fd()) == raw::identity(fd))
}

fn number(side: &Side) -> Option<i32> {
    (side.carrier.load(Ordering::Acquire) as i32).checked_sub(1)
}

/// Whether the other end is another node's.
#[inline]
pub(crate) fn has(side: &Side) -> bool {
    side.carrier.load(Ordering::Relaxed) != 0
}

/// The doorbell, if the program has not closed it where we do not see it.
fn bell(side: &Side) -> Option<BorrowedFd<'static>> {
    let bell = raw::borrowed(number(side)?)?;
    (raw::identity(bell) == side.carrier_is.load(Ordering::Relaxed)).then_some(bell)
}

/// Rings the carrier. Where its number was closed by an instruction of the program's own, the connection is over: what we
/// say reaches nobody.
#[cold]
pub(crate) fn ring(link: &Link) {
    counters::one(Counter::carrier_rings);
    let side = link.side;
    if let Some(bell) = bell(side) {
        return bell_line::ring(bell);
    }
    // Closed just now by another thread, or in a child that has descriptors of its own: the others go on.
    let is_silent = number(side).and_then(raw::borrowed).is_some_and(is_silent);
    if !is_silent && !fork::in_vfork_child() && family::is_last(side) {
        link.poison();
    }
}

/// Whether the daemon that carries the connection is no more.
pub(crate) fn is_gone(side: &Side) -> bool {
    bell(side).is_some_and(|bell| raw::pending_events(bell.as_raw_fd(), 0) & libc::POLLHUP != 0)
}

/// The kernel has said that the stream has ended: an error in place of the end, which it told the daemon that sends
/// our doorbells; 0: none. Told once.
#[cold]
pub(crate) fn taken_error(link: &Link) -> i32 {
    if !has(link.side) {
        return 0;
    }
    for _ in 0..TAKEN_MS {
        match link.mine().error().take() {
            Found::Nothing => return 0,
            Found::Error(libc::ECONNRESET) if link.reset_means_end() => return 0,
            Found::Error(errno) => return errno,
            Found::NotYet if is_gone(link.side) => return 0,
            Found::NotYet => raw::wait_for(-1, 0, 1),
        }
    }
    0
}

/// Whether a number is one of ours: the program does not know it, and closes it with others that it does not know.
pub(crate) fn owns(fd: i32) -> bool {
    fd >= control::FLOOR
        && SOME.load(Ordering::Relaxed) != 0
        && matches!(fd_table::get(fd), Known::Nothing)
        && all().any(|ours| ours == fd)
}

/// Our numbers from `first` to `last`, in order.
pub(crate) fn owned(first: u32, last: u32) -> Vec<u32> {
    if SOME.load(Ordering::Relaxed) == 0 || last < control::FLOOR as u32 {
        return Vec::new();
    }
    let mut ours: Vec<u32> =
        all().map(|fd| fd as u32).filter(|fd| (first..=last).contains(fd)).collect();
    ours.sort_unstable();
    ours.dedup();
    ours
}

fn all() -> impl Iterator<Item = i32> {
    fd_table::socks().filter_map(|(fd, sock)| {
        let link = sock.enter(fd)?;
        let ours = bell(link.side).map(|bell| bell.as_raw_fd());
        link.leave();
        ours
    })
}

/// Something in the segment is new that a peer on this machine would see for itself.
#[inline]
pub(crate) fn tell(link: &Link) {
    if has(link.side) {
        ring(link);
    }
}

/// Whether our FIN is the carrier's to send.
pub(crate) fn sends_fin(link: &Link) -> bool {
    has(link.side) && link.side.tx_state.load(Ordering::SeqCst) == tx::RING
}

/// Our FIN is to follow what is in the ring.
pub(crate) fn wants_fin(link: &Link) {
    link.mine().fin().store(1, Ordering::SeqCst);
    ring(link);
}

/// Has the ring part of our direction ended; who goes on then, and where. `None`: not yet. Under the tx lock.
pub(crate) fn ends_ring(
    link: &Link,
    words: &Words<MappedU32<'static>, MappedU64<'static>>,
) -> Option<Claim> {
    if link.side.shut.load(Ordering::SeqCst) & SHUT_WRITE != 0 {
        // Nothing follows the FIN that is on its way.
        return None;
    }
    link.mine().leave().store(1, Ordering::SeqCst);
    ring(link);
    for _ in 0..END_MS {
        match words.sender_claims() {
            Claim::AtTail | Claim::Busy => {}
            claim => return Some(claim),
        }
        if link.peer().closed().load(Ordering::Relaxed) != 0 {
            // Nobody takes anything out of the ring, nor answers: the kernel does, with a reset.
            return Some(Claim::AtTail);
        }
        raw::wait_for(-1, 0, 1);
    }
    None
}
