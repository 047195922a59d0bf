//! The conversation with the daemon: one connection per process, opened when the first socket
//! is offered, never waited for.
//!
//! No thread listens. While offers are unanswered, calls on their sockets look for mail now and
//! then ([`poll_mail`]); the answers are acted on there. Everything is under one lock that is
//! only ever tried: who does not get it goes on with plain TCP.
//!
//! The descriptor is close-on-exec and has a number over [`FLOOR`], out of the way of `select`
//! and of programs that assume the low numbers. A program that closes it all the same (a daemon
//! closing everything) is caught in `close`, `close_range` and `dup2`: the connection is given
//! up, and a later offer opens a new one.

use crate::counters::{self, Counter};
use crate::fd_table::{self, Sock, state};
use crate::lock::Lock;
use crate::segment::{MAX_RING, SHAPE, Segment};
use crate::{io_uring, raw, settings, side, sleeps, untold, upgrade};
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use vmmc::control::codec;
use vmmc::control::connect::is_trusted;
use vmmc::control::message::{Event, Hello, MAX_PACKET_LEN, NotPairedReason, Request, Role};
use vmmc::id::ClientId;
use vmmc::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use vmmc::sys::{Fd, memfd, mmap, packet};

/// Our descriptors have numbers from here on, where the limit allows it.
const FLOOR: i32 = 512;
/// How long to leave a missing daemon alone, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

static LOCK: Lock = Lock::new();
/// The connection's descriptor, -1 (as `u32::MAX`) for none.
static SOCKET: AtomicU32 = AtomicU32::new(u32::MAX);
/// The doorbell pipe's read end, kept open only because the daemon wants the other end to work.
static PIPE: AtomicU32 = AtomicU32::new(u32::MAX);
/// What the two numbers stood for when we took them ([`identity`]): the program may have closed
/// them where we do not see it, and given the numbers to something of its own.
static SOCKET_IS: AtomicU64 = AtomicU64::new(0);
static PIPE_IS: AtomicU64 = AtomicU64::new(0);
/// Whether the daemon's handshake packet has come.
static SHAKEN: AtomicU32 = AtomicU32::new(0);
/// Which daemon it is, once it has greeted us; 0 before.
static INCARNATION: AtomicU64 = AtomicU64::new(0);
/// No connection is tried before this time.
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);
/// Offers unanswered.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// The encoded greeting, made at load so that offering allocates nothing.
static HELLO: OnceLock<Vec<u8>> = OnceLock::new();

/// Offers that can be unanswered at once; more stay candidates for now.
const OFFERS: usize = 1024;

struct Offer {
    /// Descriptor plus one; 0: free.
    fd: AtomicU32,
    cookie: AtomicU64,
    /// Address of the Sock it was made for.
    sock: AtomicUsize,
}
static TABLE: [Offer; OFFERS] = [const {
    Offer { fd: AtomicU32::new(0), cookie: AtomicU64::new(0), sock: AtomicUsize::new(0) }
}; OFFERS];

/// At load: prepares the greeting.
pub(crate) fn init() {
    let program = std::env::args_os().next().unwrap_or_default();
    let program = std::path::Path::new(&program)
        .file_name()
        .map(|name| name.to_string_lossy().chars().take(15).collect())
        .unwrap_or_default();
    let hello = Request::Hello(Hello { role: Role::Sockets, program, resume: None });
    let mut buffer = [0; MAX_PACKET_LEN];
    if let Ok(packet) = codec::encode(&hello, &mut buffer) {
        let _ = HELLO.set(packet.to_vec());
    }
}

fn borrowed(raw: i32) -> Option<BorrowedFd<'static>> {
    // SAFETY: used for the length of one call; a number that is closed meanwhile answers EBADF.
    (raw >= 0).then(|| unsafe { BorrowedFd::borrow_raw(raw) })
}

/// Whether a descriptor is ours, so that the program's blanket closing can be told.
pub(crate) fn owns(fd: i32) -> bool {
    fd >= 0
        && (fd as u32 == SOCKET.load(Ordering::Relaxed)
            || fd as u32 == PIPE.load(Ordering::Relaxed))
}

/// The program is about to close `fd`, which is one of ours.
pub(crate) fn lost(fd: i32) {
    lost_range(fd as u32, fd as u32);
}

/// The program is about to close all of these descriptors.
pub(crate) fn lost_range(first: u32, last: u32) {
    let mut some = false;
    for slot in [&SOCKET, &PIPE] {
        let fd = slot.load(Ordering::Relaxed);
        if fd != u32::MAX && (first..=last).contains(&fd) {
            some |=
                slot.compare_exchange(fd, u32::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        }
    }
    if some && LOCK.try_lock() {
        hang_up();
        // Not the daemon's doing: the next offer connects anew.
        NOT_BEFORE.store(0, Ordering::Relaxed);
        LOCK.unlock();
    }
}

/// What a number stands for; 0 when nothing.
fn identity(fd: i32) -> u64 {
    let Some(fd) = borrowed(fd) else { return 0 };
    rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ino.rotate_left(20) ^ stat.st_dev)
}

/// The descriptor in a slot, if it still is what we put there.
fn still_ours(slot: &AtomicU32, is: &AtomicU64) -> Option<i32> {
    let fd = slot.load(Ordering::Acquire) as i32;
    (fd >= 0 && identity(fd) == is.load(Ordering::Relaxed)).then_some(fd)
}

/// Closes what is still ours.
fn let_go() {
    INCARNATION.store(0, Ordering::Relaxed);
    for (slot, is) in [(&SOCKET, &SOCKET_IS), (&PIPE, &PIPE_IS)] {
        if let Some(fd) = still_ours(slot, is) {
            raw::close(fd);
        }
        slot.store(u32::MAX, Ordering::Relaxed);
    }
}

/// In a forked child: the connection is the parent's.
pub(crate) fn after_fork() {
    LOCK.reset();
    let_go();
    untold::clear();
    for offer in &TABLE {
        offer.fd.store(0, Ordering::Relaxed);
    }
    SHAKEN.store(0, Ordering::Relaxed);
    WAITING.store(0, Ordering::Relaxed);
    NOT_BEFORE.store(0, Ordering::Relaxed);
}

fn hang_up() {
    let_go();
    untold::clear();
    SHAKEN.store(0, Ordering::Relaxed);
    NOT_BEFORE.store(raw::now_ns() + RETRY_NS, Ordering::Relaxed);
    // Every offer goes unanswered: back to candidates.
    for offer in &TABLE {
        if let Some(sock) = take_offer(offer) {
            upgrade::not_now(sock, Counter::plain_no_daemon);
        }
    }
}

/// Empties a slot and returns its socket, if that still waits for the answer.
fn take_offer(offer: &Offer) -> Option<&'static Sock> {
    let fd = offer.fd.swap(0, Ordering::AcqRel);
    if fd == 0 {
        return None;
    }
    WAITING.fetch_sub(1, Ordering::Relaxed);
    let sock = fd_table::sock(fd as i32 - 1)?;
    let same = std::ptr::from_ref(sock).addr() == offer.sock.load(Ordering::Relaxed)
        && sock.cookie.load(Ordering::Relaxed) == offer.cookie.load(Ordering::Relaxed)
        && sock.state.load(Ordering::SeqCst) == state::PENDING;
    same.then_some(sock)
}

/// Out of the way of the program's numbers, if the limit allows.
fn moved(fd: Fd) -> Fd {
    fd.dup_above(FLOOR).unwrap_or(fd)
}

fn keep(slot: &AtomicU32, is: &AtomicU64, fd: Fd) {
    let raw = fd.as_raw_fd();
    is.store(identity(raw), Ordering::Relaxed);
    std::mem::forget(fd);
    slot.store(raw as u32, Ordering::Release);
}

/// Connects and sends handshake and greeting; waits for nothing.
fn open() -> Option<i32> {
    let now = raw::now_ns();
    if now < NOT_BEFORE.load(Ordering::Relaxed) {
        return None;
    }
    NOT_BEFORE.store(now + RETRY_NS, Ordering::Relaxed);
    let settings = settings::get()?;
    let path = settings.socket.as_ref()?;
    let address = rustix::net::SocketAddrUnix::new(path).ok()?;
    let socket = packet::socket().ok()?;
    raw::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK as usize).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    let us = rustix::process::geteuid().as_raw();
    let owner = rustix::net::sockopt::socket_peercred(&socket).ok()?.uid.as_raw();
    if !is_trusted(owner, us, settings.owner) {
        return None;
    }
    let socket = moved(socket);
    let (read, write) = rustix::pipe::pipe_with(
        rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK,
    )
    .ok()?;
    let (read, write) = (moved(read.into()), Fd::from(write));
    let page = counters::share()?;
    packet::send(&socket, &codec::handshake(), &[], SendFlags::DONTWAIT).ok()?;
    let fds = [page.as_fd(), write.as_fd()];
    packet::send(&socket, HELLO.get()?, &fds, SendFlags::DONTWAIT).ok()?;
    let raw = socket.as_raw_fd();
    SHAKEN.store(0, Ordering::Relaxed);
    keep(&PIPE, &PIPE_IS, read);
    keep(&SOCKET, &SOCKET_IS, socket);
    Some(raw)
}

/// Offers a socket to the daemon.
#[cold]
pub(crate) fn register(sock: &'static Sock, fd: i32) {
    if settings::get().is_none_or(|settings| settings.off) {
        sock.make_plain(Counter::plain_no_daemon);
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
    if sock.state.load(Ordering::SeqCst) != candidate || !upgrade::is_eligible(sock, fd) {
        return;
    }
    if io_uring::in_use() {
        sock.make_plain(Counter::plain_io_uring);
        return;
    }
    let Some(slot) = TABLE.iter().find(|slot| slot.fd.load(Ordering::Relaxed) == 0) else {
        upgrade::not_now(sock, Counter::plain_resources);
        return;
    };
    let Some(socket) = connection() else {
        upgrade::not_now(sock, Counter::plain_no_daemon);
        return;
    };
    untold::tell(|cookie| tell_closed(socket, cookie));
    let Ok(cookie) = raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64) else {
        sock.make_plain(Counter::plain_not_tcp);
        return;
    };
    sock.cookie.store(cookie, Ordering::Relaxed);
    slot.cookie.store(cookie, Ordering::Relaxed);
    slot.sock.store(std::ptr::from_ref(sock).addr(), Ordering::Relaxed);
    let mut buffer = [0; 256];
    let Ok(packet) = codec::encode(&Request::RegisterSocket { cookie, shape: SHAPE }, &mut buffer)
    else {
        return;
    };
    let Some(tcp) = borrowed(fd) else { return };
    // Pending before the offer is sent: the answer may come before this returns, to another thread.
    if sock
        .state
        .compare_exchange(candidate, state::PENDING, Ordering::SeqCst, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    slot.fd.store(fd as u32 + 1, Ordering::Release);
    WAITING.fetch_add(1, Ordering::Relaxed);
    match packet::send(socket, packet, &[tcp], SendFlags::DONTWAIT) {
        Ok(()) => counters::one(Counter::registered),
        Err(rustix::io::Errno::AGAIN) => {
            if let Some(sock) = take_offer(slot) {
                upgrade::not_now(sock, Counter::plain_resources);
            }
        }
        Err(_) => hang_up(),
    }
}

/// This process has closed its last descriptor of an upgraded connection: the daemon need not keep
/// the segment for it. A child that inherited the connection says nothing the daemon listens to:
/// it never registered it. Not waited for; if the daemon's queue is full, it hears of it later
/// ([`untold`]).
pub(crate) fn forget(cookie: u64) {
    let Some(socket) = borrowed(SOCKET.load(Ordering::Relaxed) as i32) else { return };
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
    packet::send(socket, packet, &[], SendFlags::DONTWAIT) != Err(rustix::io::Errno::AGAIN)
}

/// Asks the daemon to send from the peer's socket what is unread in our ring
/// ([`vmmc_ring::pump`]). Its answer is in the segment.
pub(crate) fn ask_pump(fd: i32) {
    if !LOCK.try_lock() {
        return;
    }
    if let Some(socket) = connection()
        && let Ok(cookie) = raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64)
        && let Some(tcp) = borrowed(fd)
    {
        let mut buffer = [0; 32];
        if let Ok(packet) = codec::encode(&Request::PumpSocket { cookie }, &mut buffer) {
            let _ = packet::send(socket, packet, &[tcp], SendFlags::DONTWAIT);
        }
    }
    LOCK.unlock();
}

/// Whether the daemon that pumps (its incarnation) is certainly dead: another one answers, or
/// none listens. A daemon that is dead closes its sockets after its last thread has ended.
pub(crate) fn pumper_is_gone(number: u64) -> bool {
    if !LOCK.try_lock() {
        return false;
    }
    let known = connection().map(|socket| raw::pending_events(socket.as_raw_fd(), libc::POLLIN));
    if known.is_some_and(|events| events & libc::POLLHUP != 0) {
        hang_up();
    } else if known.is_some() && INCARNATION.load(Ordering::Relaxed) == 0 {
        // It has not greeted us yet.
        read_mail();
    }
    let gone = match INCARNATION.load(Ordering::Relaxed) {
        _ if SOCKET.load(Ordering::Relaxed) == u32::MAX => nobody_listens(),
        0 => false,
        other => other != number,
    };
    LOCK.unlock();
    gone
}

fn nobody_listens() -> bool {
    let Some(path) = settings::get().and_then(|settings| settings.socket.as_ref()) else {
        return true;
    };
    let (Ok(address), Ok(socket)) = (rustix::net::SocketAddrUnix::new(path), packet::socket())
    else {
        return false;
    };
    let refused = [rustix::io::Errno::CONNREFUSED, rustix::io::Errno::NOENT];
    rustix::net::connect(&socket, &address).is_err_and(|errno| refused.contains(&errno))
}

/// The connection, opened if there is none. Under the lock.
fn connection() -> Option<BorrowedFd<'static>> {
    if SOCKET.load(Ordering::Relaxed) != u32::MAX && still_ours(&SOCKET, &SOCKET_IS).is_none() {
        // Closed where we did not see it.
        hang_up();
        NOT_BEFORE.store(0, Ordering::Relaxed);
    }
    match SOCKET.load(Ordering::Relaxed) as i32 {
        open if open >= 0 => borrowed(open),
        _ => open().and_then(borrowed),
    }
}

/// Reads whatever the daemon has sent, without waiting.
#[cold]
pub(crate) fn poll_mail() {
    if WAITING.load(Ordering::Relaxed) == 0 || !LOCK.try_lock() {
        return;
    }
    read_mail();
    LOCK.unlock();
}

/// Under the lock.
fn read_mail() {
    while let Some(socket) = still_ours(&SOCKET, &SOCKET_IS).and_then(borrowed) {
        let mut buffer = [0; MAX_PACKET_LEN];
        match packet::receive(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok(Some((len, mut fds))) => {
                let packet = buffer.get(..len).unwrap_or_default();
                if !understood(packet, &mut fds) {
                    hang_up();
                }
            }
            Err(rustix::io::Errno::AGAIN) => break,
            Ok(None) | Err(_) => hang_up(),
        }
    }
}

/// Acts on one packet; false when it makes no sense.
fn understood(packet: &[u8], fds: &mut packet::Fds) -> bool {
    if SHAKEN.load(Ordering::Relaxed) == 0 {
        SHAKEN.store(1, Ordering::Relaxed);
        return codec::check_handshake(packet).is_ok();
    }
    match codec::decode::<Event>(packet) {
        Ok(Event::Welcome(welcome)) => {
            INCARNATION.store(welcome.incarnation, Ordering::Relaxed);
            settings::set_wake_cost(welcome.wake_cost_ns);
        }
        Ok(Event::Paired { cookie, side, ring_len, peer }) => {
            let memory = fds.take();
            if let Some((sock, fd)) = answered(cookie)
                && !memory.is_some_and(|memory| attach(sock, fd, &memory, side, ring_len, peer))
            {
                sock.make_plain(Counter::plain_resources);
            }
        }
        Ok(Event::NotPaired { cookie, reason }) => {
            if let Some((sock, _)) = answered(cookie) {
                match reason {
                    NotPairedReason::NoPartner => upgrade::not_now(sock, Counter::plain_no_partner),
                    _ => sock.make_plain(Counter::plain_refused),
                }
            }
        }
        Ok(Event::Refused { .. }) | Err(_) => return false,
        Ok(_) => {}
    }
    true
}

/// The socket with this cookie, its offer being answered.
fn answered(cookie: u64) -> Option<(&'static Sock, i32)> {
    let slot = TABLE.iter().find(|slot| {
        slot.fd.load(Ordering::Relaxed) != 0 && slot.cookie.load(Ordering::Relaxed) == cookie
    })?;
    let fd = slot.fd.load(Ordering::Relaxed) as i32 - 1;
    take_offer(slot).map(|sock| (sock, fd))
}

/// Maps the segment and makes the socket active.
fn attach(
    sock: &'static Sock,
    fd: i32,
    memory: &Fd,
    side_number: u8,
    ring_len: u32,
    peer: ClientId,
) -> bool {
    if !ring_len.is_power_of_two()
        || !(4096..=MAX_RING).contains(&ring_len)
        || side_number > 1
        || raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64)
            != Ok(sock.cookie.load(Ordering::Relaxed))
    {
        return false;
    }
    let len = Segment::mapping_len(ring_len as usize);
    if memfd::verify(memory, len as u64).is_err() {
        return false;
    }
    let Some(side) = side::allocate() else { return false };
    let Ok(mapping) = mmap::GuardedMapping::new(memory, len, mmap::Access::ReadWrite) else {
        side::release(side);
        return false;
    };
    let start = mapping.as_ptr();
    // Unmapped by `Sock` when the last user has left.
    std::mem::forget(mapping);
    sock.peer.store(sleeps::meet(peer.0, INCARNATION.load(Ordering::Relaxed)), Ordering::Relaxed);
    upgrade::attached(sock, fd, start, ring_len, side_number, side);
    true
}
