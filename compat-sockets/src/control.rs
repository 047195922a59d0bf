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
use crate::lock::Lock;
use crate::offers::{self, Offer};
use crate::segment::{MAX_RING, SHAPE, Segment};
use crate::sock::{Sock, state};
use crate::{io_uring, raw, settings, side, sleeps, untold, upgrade};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use vmmc::control::codec;
use vmmc::control::connect::is_trusted;
use vmmc::control::message::{Event, Hello, MAX_PACKET_LEN, NotPairedReason, Request, Role};
use vmmc::id::ClientId;
use vmmc::sync::{AtomicU32, AtomicU64, Ordering};
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
/// The encoded greeting, made at load so that offering allocates nothing.
static HELLO: OnceLock<Vec<u8>> = OnceLock::new();

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
    offers::clear();
    SHAKEN.store(0, Ordering::Relaxed);
    NOT_BEFORE.store(0, Ordering::Relaxed);
}

fn hang_up() {
    let_go();
    untold::clear();
    SHAKEN.store(0, Ordering::Relaxed);
    NOT_BEFORE.store(raw::now_ns() + RETRY_NS, Ordering::Relaxed);
    // Every offer goes unanswered: back to candidates.
    for offer in offers::all() {
        if let Some((sock, fd)) = offer.take() {
            upgrade::not_now(sock, fd, Counter::plain_no_daemon);
            sock.leave();
        }
    }
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

/// Whether the daemon was looked for in vain so lately that nobody looks again.
fn is_too_early(now: u64) -> bool {
    now < NOT_BEFORE.load(Ordering::Relaxed)
}

/// Connects and sends handshake and greeting; waits for nothing.
fn open() -> Option<i32> {
    let now = raw::now_ns();
    if is_too_early(now) {
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
        let _ = connection();
        return;
    }
    if io_uring::in_use() {
        sock.make_plain(fd, Counter::plain_io_uring);
        let _ = connection();
        return;
    }
    // Answers make room, also those to offers that were taken back.
    read_mail();
    let Some(slot) = offers::free() else {
        upgrade::not_now(sock, fd, Counter::plain_resources);
        return;
    };
    let too_early = is_too_early(raw::now_ns());
    let Some(socket) = connection() else {
        if too_early {
            upgrade::ask_later(sock, fd);
        } else {
            upgrade::not_now(sock, fd, Counter::plain_no_daemon);
        }
        return;
    };
    untold::tell(|cookie| tell_closed(socket, cookie));
    let Ok(cookie) = raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64) else {
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
    let mut buffer = [0; 256];
    let request = Request::RegisterSocket { cookie, shape: SHAPE };
    let packet = codec::encode(&request, &mut buffer).map_err(|_| Errno::INVAL)?;
    packet::send(socket, packet, &[borrowed(fd).ok_or(Errno::BADF)?], SendFlags::DONTWAIT)
}

/// A socket was closed before it was upgraded. If it is offered, the offer is taken back: the daemon may have
/// paired it, and would keep the segment for as long as this process lives.
pub(crate) fn withdraw(sock: &'static Sock) {
    let cookie = sock.cookie.load(Ordering::Relaxed);
    if !offers::any() || cookie == 0 {
        return;
    }
    let Some(slot) = offers::find(cookie) else { return };
    // Else another thread is acting on the answer, and finds the socket no longer pending.
    if slot.claim(cookie) == Some(true) {
        forget(cookie);
    }
    // The answer, if it has come, has a segment with it. One that comes later is read with the next offer.
    if LOCK.try_lock() {
        read_mail();
        LOCK.unlock();
    }
}

/// This process has closed its last descriptor of a connection that the daemon knows: it need not keep
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
    packet::send(socket, packet, &[], SendFlags::DONTWAIT) != Err(Errno::AGAIN)
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
    let refused = [Errno::CONNREFUSED, Errno::NOENT];
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

/// Makes this process known to the daemon, though it offers nothing: `shrimp stat` finds the processes by it, and why
/// their sockets are plain. Once, unless there is no daemon.
#[cold]
pub(crate) fn introduce() {
    let off = settings::get().is_none_or(|settings| settings.off);
    if !off && SOCKET.load(Ordering::Relaxed) == u32::MAX && LOCK.try_lock() {
        let _ = connection();
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
    while let Some(socket) = still_ours(&SOCKET, &SOCKET_IS).and_then(borrowed) {
        let mut buffer = [0; MAX_PACKET_LEN];
        match packet::receive(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok(Some((len, mut fds))) => {
                let packet = buffer.get(..len).unwrap_or_default();
                if !understood(packet, &mut fds) {
                    hang_up();
                }
            }
            Err(Errno::AGAIN) => {
                // It reads: there may be room for what there was none.
                let _ = offers::unsent().all(|slot| send_offer(socket, slot));
                break;
            }
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
            let waiting = offers::find(cookie).and_then(Offer::take);
            match (waiting, memory) {
                (Some((sock, fd)), Some(memory))
                    if attach(sock, fd, &memory, side, ring_len, peer) => {}
                _ => {
                    // Nobody here will use the segment, nor say so when the socket is closed.
                    forget(cookie);
                    if let Some((sock, fd)) = waiting {
                        sock.make_plain(fd, Counter::plain_resources);
                    }
                }
            }
            if let Some((sock, _)) = waiting {
                sock.leave();
            }
        }
        Ok(Event::NotPaired { cookie, reason }) => {
            if let Some((sock, fd)) = offers::find(cookie).and_then(Offer::take) {
                match reason {
                    NotPairedReason::NoPartner => {
                        upgrade::not_now(sock, fd, Counter::plain_no_partner);
                    }
                    _ => sock.make_plain(fd, Counter::plain_refused),
                }
                sock.leave();
            }
        }
        Ok(Event::Refused { .. }) | Err(_) => return false,
        Ok(_) => {}
    }
    true
}

/// Maps the segment and makes the socket, which the caller holds, active.
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
    sock.peer.store(sleeps::meet(peer.0, INCARNATION.load(Ordering::Relaxed)), Ordering::Relaxed);
    let active = upgrade::attached(sock, fd, mapping.as_ptr(), ring_len, side_number, side);
    if active {
        // Unmapped by `Sock` when the last user has left, which is the caller at the earliest.
        std::mem::forget(mapping);
    } else {
        sleeps::part(sock.peer.swap(0, Ordering::Relaxed));
        side::release(side);
    }
    active
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALONE, fd_table};
    use std::net::{TcpListener, TcpStream};

    const RING: u32 = 4096;

    fn segment() -> Fd {
        let memory = memfd::create("segment", Segment::mapping_len(RING as usize) as u64).unwrap();
        memfd::seal(&memory).unwrap();
        memory
    }

    /// A socket whose offer has just been answered, by a thread that acts on the answer.
    fn answered(socket: &TcpStream) -> &'static Sock {
        let fd = socket.as_raw_fd();
        fd_table::track(fd, false);
        let sock = fd_table::sock(fd).unwrap();
        let cookie = raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64).unwrap();
        sock.cookie.store(cookie, Ordering::Relaxed);
        sock.state.store(state::PENDING, Ordering::SeqCst);
        assert!(sock.hold_pending());
        sock
    }

    fn attach_to(sock: &'static Sock, socket: &TcpStream) -> bool {
        attach(sock, socket.as_raw_fd(), &segment(), 0, RING, ClientId(1))
    }

    /// The next packet that the daemon has been sent: of which socket it is the offer.
    fn offer_sent(daemon: &Fd) -> Option<u64> {
        let mut buffer = [0; MAX_PACKET_LEN];
        let (len, _) = packet::receive(daemon, &mut buffer, RecvFlags::DONTWAIT).ok()??;
        match codec::decode(&buffer[..len]) {
            Ok(Request::RegisterSocket { cookie, .. }) => Some(cookie),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_offer_for_which_there_is_no_room_is_sent_when_there_is_unless_its_socket_is_closed() {
        let _alone = ALONE.lock().unwrap();
        settings::init();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets = [(); 4].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let fds = sockets.each_ref().map(AsRawFd::as_raw_fd);
        let cookies = fds.map(|fd| {
            fd_table::track(fd, false);
            raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64).unwrap()
        });
        let (domain, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let (ours, daemon) = rustix::net::socketpair(domain, kind, flags, None).unwrap();
        let (ours, daemon) = (Fd::from(ours), Fd::from(daemon));
        let mut fill = 0;
        while packet::send(&ours, &[0], &[], SendFlags::DONTWAIT).is_ok() {
            fill += 1;
        }
        keep(&SOCKET, &SOCKET_IS, ours);

        assert!(LOCK.try_lock());
        let offered = |at: usize| {
            let sock = fd_table::sock(fds[at]).unwrap();
            offer(sock, fds[at]);
            assert_eq!(sock.state.load(Ordering::SeqCst), state::PENDING);
        };
        offered(0);
        offered(1);
        offered(2);
        read_mail();
        fd_table::forget(fds[1]);
        for _ in 0..fill {
            packet::receive(&daemon, &mut [0; 1], RecvFlags::DONTWAIT).unwrap().unwrap();
        }
        assert_eq!(offer_sent(&daemon), None);
        read_mail();
        read_mail();
        assert_eq!(offer_sent(&daemon), Some(cookies[0]));
        assert_eq!(offer_sent(&daemon), Some(cookies[2]));
        // The daemon never heard of the one that was closed, and is not told of its end.
        offered(3);
        assert_eq!(offer_sent(&daemon), Some(cookies[3]));
        assert_eq!(offer_sent(&daemon), None);

        // Gone: all are back.
        drop(daemon);
        read_mail();
        assert!(!offers::any());
        let sock = fd_table::sock(fds[0]).unwrap();
        assert_eq!(sock.state.load(Ordering::SeqCst), state::CANDIDATE);
        LOCK.unlock();
    }

    /// Nothing is kept of the attempt.
    fn no_segment_is_attached(sock: &'static Sock, socket: &TcpStream) {
        let free = side::allocate().unwrap();
        side::release(free);
        let before = crate::epoll::ACTIVE.load(Ordering::SeqCst);
        assert!(!attach_to(sock, socket));
        assert!(!sock.is_active());
        assert_eq!(sock.peer.load(Ordering::Relaxed), 0);
        assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:segment"));
        assert!(std::ptr::eq(free, side::allocate().unwrap()), "its side was not given back");
        assert_eq!(crate::epoll::ACTIVE.load(Ordering::SeqCst), before);
    }

    #[test]
    fn a_socket_that_is_closed_or_made_plain_while_the_answer_is_acted_on_gets_no_segment() {
        let _alone = ALONE.lock().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();

        // It is given to no other connection before who acts on the answer has left.
        let (closed, other) = (connect(), connect());
        let sock = answered(&closed);
        fd_table::forget(closed.as_raw_fd());
        fd_table::track(other.as_raw_fd(), false);
        assert!(!sock.is_at(other.as_raw_fd()));
        no_segment_is_attached(sock, &closed);
        sock.leave();
        fd_table::track(other.as_raw_fd(), false);
        assert!(!fd_table::sock(other.as_raw_fd()).unwrap().is_active());

        let plain = connect();
        let sock = answered(&plain);
        sock.make_plain(plain.as_raw_fd(), Counter::plain_forked);
        no_segment_is_attached(sock, &plain);
        sock.leave();
        assert!(!plain.nodelay().unwrap(), "the program's option is not restored");

        let open = connect();
        let sock = answered(&open);
        assert!(attach_to(sock, &open));
        sock.leave();
        assert!(sock.is_active());
    }
}
