//! The connection to the daemon: its descriptor, how it is opened, and when it may be tried
//! again.
//!
//! The descriptor is close-on-exec and has a number over [`FLOOR`], out of the way of `select`
//! and of programs that assume the low numbers. A program that closes them all the same (a daemon
//! closing everything) is caught in `close`, `close_range` and `dup2`: the connection is given
//! up, and a later offer opens a new one. One that closes them where we do not see it, and gives
//! the numbers to something of its own, is found out by what the numbers stand for
//! ([`Slot::still_ours`]).

use crate::{counters, raw, settings};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use vmmc::control::codec;
use vmmc::control::connect::is_trusted;
use vmmc::control::message::{Hello, MAX_PACKET_LEN, Request, Role, Welcome};
use vmmc::sync::{AtomicU32, AtomicU64, Ordering};
use vmmc::sys::{Fd, packet};

/// Our descriptors have numbers from here on, where the limit allows it.
pub(crate) const FLOOR: i32 = 512;
/// How long to leave a missing daemon alone, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

/// The connection's descriptor.
pub(super) static SOCKET: Slot = Slot::empty();
/// Whether the daemon's handshake packet has come.
static SHAKEN: AtomicU32 = AtomicU32::new(0);
/// Which daemon it is, once it has greeted us; 0 before.
static INCARNATION: AtomicU64 = AtomicU64::new(0);
/// Beyond which borders connections may be upgraded: bits [`NODES`] and [`NAMESPACES`].
static REACHES: AtomicU32 = AtomicU32::new(0);
/// Connections to other nodes may be upgraded.
pub(super) const NODES: u32 = 1;
/// Connections to other network namespaces may be.
pub(super) const NAMESPACES: u32 = 2;
/// No connection is tried before this time.
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);
/// The encoded greeting, made at load so that offering allocates nothing.
static HELLO: OnceLock<Vec<u8>> = OnceLock::new();

/// Place for one of our descriptors.
#[derive(Debug)]
pub(super) struct Slot {
    /// Its number, -1 (as `u32::MAX`) for none.
    fd: AtomicU32,
    /// What the number stood for when we took it ([`identity`]): the program may have closed it
    /// where we do not see it, and given the number to something of its own.
    is: AtomicU64,
}

impl Slot {
    const fn empty() -> Slot {
        Slot { fd: AtomicU32::new(u32::MAX), is: AtomicU64::new(0) }
    }

    /// Takes the descriptor over, and what its number stands for.
    pub(super) fn keep(&self, fd: Fd) {
        let raw = fd.as_raw_fd();
        self.is.store(raw::identity(fd.as_fd()), Ordering::Relaxed);
        std::mem::forget(fd);
        self.fd.store(raw as u32, Ordering::Release);
    }

    /// The descriptor, though the number may be another's by now.
    pub(super) fn held(&self) -> Option<BorrowedFd<'static>> {
        raw::borrowed(self.fd.load(Ordering::Relaxed) as i32)
    }

    /// The descriptor, if it still is what we put there.
    pub(super) fn still_ours(&self) -> Option<BorrowedFd<'static>> {
        let fd = raw::borrowed(self.fd.load(Ordering::Acquire) as i32)?;
        (raw::identity(fd) == self.is.load(Ordering::Relaxed)).then_some(fd)
    }

    /// Empties the slot, without closing, if its number is one of these; whether it was.
    fn lose(&self, first: u32, last: u32) -> bool {
        let fd = self.fd.load(Ordering::Relaxed);
        fd != u32::MAX
            && (first..=last).contains(&fd)
            && self.fd.compare_exchange(fd, u32::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Closes what is still ours.
    fn let_go(&self) {
        if let Some(fd) = self.still_ours() {
            raw::close(fd.as_raw_fd());
        }
        self.fd.store(u32::MAX, Ordering::Relaxed);
    }
}

/// The same out of the way of the program's numbers, if the limit allows.
pub(crate) fn out_of_the_way(fd: &Fd) -> Option<Fd> {
    fd.dup_above(FLOOR).ok()
}

/// Whether a descriptor is ours, so that the program's blanket closing can be told.
pub(crate) fn owns(fd: i32) -> bool {
    fd >= 0 && SOCKET.fd.load(Ordering::Relaxed) == fd as u32
}

/// The program is about to close these descriptors; whether one of them was ours.
pub(super) fn lose(first: u32, last: u32) -> bool {
    SOCKET.lose(first, last)
}

/// Closes what is still ours, and forgets which daemon it was.
pub(super) fn let_go() {
    INCARNATION.store(0, Ordering::Relaxed);
    SHAKEN.store(0, Ordering::Relaxed);
    SOCKET.let_go();
}

/// At load: prepares the greeting, and the place for our descriptors while the process has one thread: a program that has more at its
/// first connection would wait for it there.
pub(crate) fn init() {
    if settings::get().is_some_and(|settings| !settings.off && settings.socket.is_some()) {
        vmmc::sys::fd::lengthen_table(FLOOR);
    }
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

/// Whether the daemon was looked for in vain so lately that nobody looks again.
pub(super) fn is_too_early(now: u64) -> bool {
    now < NOT_BEFORE.load(Ordering::Relaxed)
}

/// The daemon is left alone for a while.
pub(super) fn try_later(now: u64) {
    NOT_BEFORE.store(now + RETRY_NS, Ordering::Relaxed);
}

/// The next offer connects anew.
pub(super) fn try_at_once() {
    NOT_BEFORE.store(0, Ordering::Relaxed);
}

/// Connects and sends handshake and greeting; waits for nothing.
pub(super) fn open() -> Option<BorrowedFd<'static>> {
    let now = raw::now_ns();
    if is_too_early(now) {
        return None;
    }
    try_later(now);
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
    let socket = out_of_the_way(&socket).unwrap_or(socket);
    let page = counters::share()?;
    packet::send(&socket, &codec::handshake(), &[], SendFlags::DONTWAIT).ok()?;
    packet::send(&socket, HELLO.get()?, &[page.as_fd()], SendFlags::DONTWAIT).ok()?;
    let raw = socket.as_raw_fd();
    SHAKEN.store(0, Ordering::Relaxed);
    SOCKET.keep(socket);
    raw::borrowed(raw)
}

/// Whether no daemon answers where ours would be.
pub(super) fn nobody_listens() -> bool {
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

/// A packet has come; whether it is the connection's first, which is the handshake.
pub(super) fn first_packet() -> bool {
    let first = SHAKEN.load(Ordering::Relaxed) == 0;
    if first {
        SHAKEN.store(1, Ordering::Relaxed);
    }
    first
}

/// The daemon has said which one it is, and how far it reaches.
pub(super) fn greeted(welcome: &Welcome) {
    let nodes = if welcome.carries { NODES } else { 0 };
    let namespaces = if welcome.crosses { NAMESPACES } else { 0 };
    REACHES.store(nodes | namespaces, Ordering::Relaxed);
    INCARNATION.store(welcome.incarnation, Ordering::Relaxed);
}

/// Beyond which borders connections may be upgraded, as bits; `None` before the daemon has greeted us.
pub(super) fn reaches() -> Option<u32> {
    (incarnation() != 0).then(|| REACHES.load(Ordering::Relaxed))
}

/// Which daemon it is, once it has greeted us; 0 before.
pub(super) fn incarnation() -> u64 {
    INCARNATION.load(Ordering::Relaxed)
}
