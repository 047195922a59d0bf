//! The conversation with the daemon: one connection per process ([`connection`]), opened when the
//! first socket is offered, never waited for.
//!
//! No thread listens. While offers are unanswered, calls on their sockets look for mail now and
//! then ([`poll_mail`]); the answers are acted on there ([`answers`]). Everything is under one lock
//! that is only ever tried: who does not get it goes on with plain TCP.

mod answers;
mod connection;
#[cfg(test)]
mod tests;

pub(crate) use connection::{FLOOR, init, out_of_the_way, owns};
use connection::{NAMESPACES, NODES, SOCKET};

use crate::counters::{self, Counter};
use crate::lock::Lock;
use crate::offers::{self, Offer};
use crate::segment::SHAPE;
use crate::sock::{Sock, state};
use crate::{fork, io_uring, raw, settings, untold, upgrade};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsRawFd, BorrowedFd};
use vmmc::control::codec;
use vmmc::control::message::{MAX_PACKET_LEN, Request};
use vmmc::sync::Ordering;
use vmmc::sys::packet;

static LOCK: Lock = Lock::new();

/// The program is about to close `fd`, which is one of ours.
pub(crate) fn lost(fd: i32) {
    lost_range(fd as u32, fd as u32);
}

/// The program is about to close all of these descriptors.
pub(crate) fn lost_range(first: u32, last: u32) {
    if connection::lose(first, last) && LOCK.try_lock() {
        hang_up();
        // Not the daemon's doing: the next offer connects anew.
        connection::try_at_once();
        LOCK.unlock();
    }
}

/// In a forked child: the connection is the parent's.
pub(crate) fn after_fork() {
    LOCK.reset();
    connection::let_go();
    untold::clear();
    offers::clear();
    connection::try_at_once();
}

fn hang_up() {
    connection::let_go();
    untold::clear();
    connection::try_later(raw::now_ns());
    // Every offer goes unanswered: back to candidates.
    for offer in offers::all() {
        if let Some((sock, fd)) = offer.take() {
            upgrade::not_now(sock, fd, Counter::plain_no_daemon);
            sock.leave();
        }
    }
}

/// Whether the daemon may upgrade a connection to an address that is not of this network namespace: to another node, or,
/// if the other end is `near`, to another namespace. `None` while it has not said. Under the lock.
pub(crate) fn reaches_out(near: bool) -> Option<bool> {
    if connected().is_none() {
        return Some(false);
    }
    read_mail();
    let wanted = if near { NODES | NAMESPACES } else { NODES };
    connection::reaches().map(|reaches| reaches & wanted != 0)
}

/// Offers a socket to the daemon.
#[cold]
pub(crate) fn register(sock: &'static Sock, fd: i32) {
    if settings::get().is_none_or(|settings| settings.off) {
        sock.make_plain(fd, Counter::plain_no_daemon);
        return;
    }
    if !LOCK.try_lock() {
        return;
    }
    offer(sock, fd);
    LOCK.unlock();
}

fn offer(sock: &'static Sock, fd: i32) {
    let candidate = state::CANDIDATE;
    if sock.state.load(Ordering::SeqCst) != candidate {
        return;
    }
    if !upgrade::is_eligible(sock, fd) {
        // `shrimp stat` finds the processes, and why their sockets are plain, by the daemon.
        let _ = connected();
        return;
    }
    if io_uring::in_use() {
        sock.make_plain(fd, Counter::plain_io_uring);
        let _ = connected();
        return;
    }
    // Answers make room, also those to offers that were taken back.
    read_mail();
    let Some(slot) = offers::free() else {
        upgrade::not_now(sock, fd, Counter::plain_resources);
        return;
    };
    let too_early = connection::is_too_early(raw::now_ns());
    let Some(socket) = connected() else {
        if too_early {
            upgrade::ask_later(sock, fd);
        } else {
            upgrade::not_now(sock, fd, Counter::plain_no_daemon);
        }
        return;
    };
    untold::tell(|cookie| tell_closed(socket, cookie));
    let Ok(cookie) = raw::socket_cookie(fd) else {
        sock.make_plain(fd, Counter::plain_not_tcp);
        return;
    };
    sock.cookie.store(cookie, Ordering::Relaxed);
    // Pending before the offer is sent: the answer may come before this returns, to another thread.
    if sock
        .state
        .compare_exchange(candidate, state::PENDING, Ordering::SeqCst, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    slot.fill(sock, fd, cookie);
    send_offer(socket, slot);
}

/// Sends the offer in a slot, if it still holds. False when the daemon's queue is full: it stays out, and is sent when
/// there is room. To offer again at a later call would be too late for the other end, if its offer had room. Under
/// the lock.
fn send_offer(socket: BorrowedFd<'_>, slot: &Offer) -> bool {
    let Some((sock, fd)) = slot.standing() else {
        slot.take();
        return true;
    };
    let result = send_socket(socket, fd, sock.cookie.load(Ordering::Relaxed));
    match result {
        Ok(()) => {
            slot.sent();
            counters::one(Counter::registered);
        }
        Err(Errno::AGAIN) => {}
        Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => hang_up(),
        Err(errno) => {
            if let Some((sock, fd)) = slot.take() {
                if errno == Errno::BADF {
                    // It or the conversation was closed where we do not see it; the next call finds out.
                    sock.not_offered();
                } else {
                    // Too many descriptors under way, or no memory.
                    upgrade::not_now(sock, fd, Counter::plain_resources);
                }
                sock.leave();
            }
        }
    }
    sock.leave();
    result != Err(Errno::AGAIN)
}

fn send_socket(socket: BorrowedFd<'_>, fd: i32, cookie: u64) -> rustix::io::Result<()> {
    let mut buffer = [0; 512];
    let request = Request::RegisterSocket { cookie, shape: SHAPE };
    let packet = codec::encode(&request, &mut buffer).map_err(|_| Errno::INVAL)?;
    packet::send(socket, packet, &[raw::borrowed(fd).ok_or(Errno::BADF)?], SendFlags::DONTWAIT)
}

/// A socket was closed before it was upgraded, or is to stay plain. If it is offered, the offer is taken back: the daemon
/// may have paired it, and would keep the segment for as long as this process lives, and, of a connection to another
/// node, a copy of the socket, without whose close the other end does not hear of ours.
pub(crate) fn withdraw(sock: &Sock) {
    let cookie = sock.cookie.load(Ordering::Relaxed);
    if !offers::any() || cookie == 0 {
        return;
    }
    let Some(slot) = offers::find(cookie) else { return };
    // Else another thread is acting on the answer, and finds the socket no longer pending.
    if slot.claim(cookie) == Some(true) {
        forget(cookie);
    }
    // The answer, if it has come, has a segment with it. One that comes later is read with the next offer. A vfork child
    // has descriptors of its own, and would take what is its parent's.
    if !fork::in_vfork_child() && LOCK.try_lock() {
        read_mail();
        LOCK.unlock();
    }
}

/// This process has closed its last descriptor of a connection that the daemon knows: it need not keep
/// the segment for it. A child that inherited the connection says nothing the daemon listens to:
/// it never registered it. Not waited for; if the daemon's queue is full, it hears of it later
/// ([`untold`]).
pub(crate) fn forget(cookie: u64) {
    let Some(socket) = SOCKET.held() else { return };
    if !tell_closed(socket, cookie) {
        untold::keep(cookie);
    }
}

/// False when the daemon's queue is full.
fn tell_closed(socket: BorrowedFd<'_>, cookie: u64) -> bool {
    let mut buffer = [0; 32];
    let Ok(packet) = codec::encode(&Request::ForgetSocket { cookie }, &mut buffer) else {
        return true;
    };
    packet::send(socket, packet, &[], SendFlags::DONTWAIT) != Err(Errno::AGAIN)
}

/// Asks the daemon to send from the peer's socket what is unread in our ring
/// ([`vmmc_ring::pump`]). Its answer is in the segment. False: it could not be asked just now.
pub(crate) fn ask_pump(fd: i32) -> bool {
    if !LOCK.try_lock() {
        return false;
    }
    let mut is_asked = false;
    if let Some(socket) = connected()
        && let Ok(cookie) = raw::socket_cookie(fd)
        && let Some(tcp) = raw::borrowed(fd)
    {
        let mut buffer = [0; 32];
        if let Ok(packet) = codec::encode(&Request::PumpSocket { cookie }, &mut buffer) {
            is_asked = packet::send(socket, packet, &[tcp], SendFlags::DONTWAIT).is_ok();
        }
    }
    LOCK.unlock();
    is_asked
}

/// Whether the daemon that pumps (its incarnation) is certainly dead: another one answers, or
/// none listens. A daemon that is dead closes its sockets after its last thread has ended.
pub(crate) fn pumper_is_gone(number: u64) -> bool {
    if !LOCK.try_lock() {
        return false;
    }
    let known = connected().map(|socket| raw::pending_events(socket.as_raw_fd(), libc::POLLIN));
    if known.is_some_and(|events| events & libc::POLLHUP != 0) {
        hang_up();
    } else if known.is_some() && connection::incarnation() == 0 {
        // It has not greeted us yet.
        read_mail();
    }
    let gone = match connection::incarnation() {
        _ if SOCKET.held().is_none() => connection::nobody_listens(),
        0 => false,
        other => other != number,
    };
    LOCK.unlock();
    gone
}

/// The connection, opened if there is none. Under the lock.
fn connected() -> Option<BorrowedFd<'static>> {
    find_out_loss();
    SOCKET.held().or_else(connection::open)
}

/// Gives the conversation up if the program has closed its descriptor: where we did not see it, or while another
/// thread had the lock. Under the lock.
fn find_out_loss() {
    let lost = match SOCKET.held() {
        Some(_) => SOCKET.still_ours().is_none(),
        None => offers::any(),
    };
    if lost {
        hang_up();
        connection::try_at_once();
    }
}

/// Makes this process known to the daemon, though it offers nothing: `shrimp stat` finds the processes by it, and why
/// their sockets are plain. Once, unless there is no daemon.
#[cold]
pub(crate) fn introduce() {
    let off = settings::get().is_none_or(|settings| settings.off);
    if !off && SOCKET.held().is_none() && LOCK.try_lock() {
        let _ = connected();
        LOCK.unlock();
    }
}

/// Reads whatever the daemon has sent, without waiting.
#[cold]
pub(crate) fn poll_mail() {
    if !offers::any() || !LOCK.try_lock() {
        return;
    }
    read_mail();
    LOCK.unlock();
}

/// Under the lock.
fn read_mail() {
    while let Some(socket) = SOCKET.still_ours() {
        let mut buffer = [0; MAX_PACKET_LEN];
        match packet::receive(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok(Some((len, mut fds))) => {
                let packet = buffer.get(..len).unwrap_or_default();
                if !answers::understood(packet, &mut fds) {
                    hang_up();
                }
            }
            Err(Errno::AGAIN) => {
                // It reads: there may be room for what there was none.
                let _ = offers::unsent().all(|slot| send_offer(socket, slot));
                return;
            }
            Ok(None) | Err(_) => hang_up(),
        }
    }
    find_out_loss();
}
