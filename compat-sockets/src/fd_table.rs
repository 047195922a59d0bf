//! From descriptor numbers to what we know about them.
//!
//! ```text
//!   fd ─▶ chunk[fd / 256] ─▶ entry[fd % 256] ─▶ Sock   (several entries after dup)
//!                                            └▶ EpollSet number, tagged
//! ```
//!
//! A chunk is mapped when the first descriptor in it is tracked, so the table's size follows
//! the program's use and not its limit. Looking up is two loads and no lock.
//!
//! What was found may be closed, and the number be another's, before it is used: see [`Sock`].

use crate::counters::{self, Counter};
use crate::sock::{Sock, state};
use std::sync::atomic::AtomicPtr;
use vmmc::sync::{AtomicUsize, Ordering};
use vmmc::sys::mmap;

const PER_CHUNK: usize = 256;
const CHUNKS: usize = 4096;

type Chunk = [AtomicUsize; PER_CHUNK];
static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS];

/// Tag of an entry that names an epoll set.
const EPOLL_TAG: usize = 1;

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known {
    /// Nothing: not ours.
    Nothing,
    /// A TCP socket.
    Sock(&'static Sock),
    /// An epoll descriptor, by number of its set.
    Epoll(usize),
}

#[inline]
fn entry(fd: i32) -> Option<&'static AtomicUsize> {
    let fd = fd as usize;
    let chunk = TABLE.get(fd / PER_CHUNK)?.load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: chunks are mapped whole, zero, and never unmapped.
    let chunk = unsafe { &*chunk };
    chunk.get(fd % PER_CHUNK)
}

fn entry_or_map(fd: i32) -> Option<&'static AtomicUsize> {
    if let Some(entry) = entry(fd) {
        return Some(entry);
    }
    let slot = TABLE.get(usize::try_from(fd).ok()? / PER_CHUNK)?;
    let fresh = mmap::map_private_anonymous(size_of::<Chunk>()).ok()?;
    let null = std::ptr::null_mut();
    // Lost to another thread: its chunk is used, ours is leaked (once per chunk at most).
    let _ = slot.compare_exchange(null, fresh.as_ptr().cast(), Ordering::AcqRel, Ordering::Acquire);
    entry(fd)
}

fn decode(value: usize) -> Known {
    if value == 0 {
        Known::Nothing
    } else if value & EPOLL_TAG != 0 {
        Known::Epoll(value >> 1)
    } else {
        // SAFETY: untagged entries are addresses of Socks, which are never unmapped.
        Known::Sock(unsafe { &*std::ptr::with_exposed_provenance::<Sock>(value) })
    }
}

/// What `fd` is.
#[inline]
pub(crate) fn get(fd: i32) -> Known {
    let known = entry(fd).map_or(Known::Nothing, |entry| decode(entry.load(Ordering::Acquire)));
    if !matches!(known, Known::Nothing) {
        crate::owner::noticed();
    }
    known
}

/// The TCP socket behind `fd`, if it is one we follow.
#[inline]
pub(crate) fn sock(fd: i32) -> Option<&'static Sock> {
    match get(fd) {
        Known::Sock(sock) => Some(sock),
        _ => None,
    }
}

/// Whether the entry of `fd` is this socket.
#[inline]
pub(crate) fn holds(fd: i32, sock: &Sock, order: Ordering) -> bool {
    entry(fd).is_some_and(|entry| entry.load(order) == std::ptr::from_ref(sock).addr())
}

/// Descriptors from `first` to `last` that have an entry.
pub(crate) fn tracked(first: u32, last: u32) -> impl Iterator<Item = i32> {
    let chunks =
        TABLE.iter().enumerate().filter(|(_, chunk)| !chunk.load(Ordering::Relaxed).is_null());
    chunks
        .flat_map(|(i, _)| i * PER_CHUNK..(i + 1) * PER_CHUNK)
        .filter(move |&fd| fd as u64 >= u64::from(first) && fd as u64 <= u64::from(last))
        .filter_map(|fd| i32::try_from(fd).ok())
        .filter(|&fd| entry(fd).is_some_and(|entry| entry.load(Ordering::Relaxed) != 0))
}

/// Follows a socket that was just connected or accepted.
pub(crate) fn track(fd: i32, nonblocking: bool) {
    let Some(entry) = entry_or_map(fd) else { return };
    // The number may be stale: closed by a way we did not see (raw system call).
    forget(fd);
    let Some(sock) = Sock::fresh(nonblocking) else { return };
    // Standard input, output and error may be used by stdio, which we do not see.
    let first = if fd <= 2 { state::PLAIN } else { state::CANDIDATE };
    if first == state::PLAIN {
        counters::one(Counter::plain_stdio);
        counters::note(fd, Counter::plain_stdio);
    }
    sock.state.store(first, Ordering::Release);
    entry.store(std::ptr::from_ref(sock).expose_provenance(), Ordering::Release);
}

/// Follows an epoll descriptor.
pub(crate) fn track_epoll(fd: i32, set: usize) {
    forget(fd);
    if let Some(entry) = entry_or_map(fd) {
        entry.store(set << 1 | EPOLL_TAG, Ordering::Release);
    }
}

/// `new` is now a duplicate of `old`. What `new` was before must have been forgotten. False: there is no room for
/// an entry, and what the program does by that number goes to the kernel.
#[must_use]
pub(crate) fn duplicate(old: i32, new: i32) -> bool {
    match get(old) {
        Known::Nothing => {}
        Known::Epoll(set) => {
            let Some(entry) = entry_or_map(new) else { return false };
            crate::epoll::retain(set);
            entry.store(set << 1 | EPOLL_TAG, Ordering::Release);
        }
        Known::Sock(sock) => {
            let Some(entry) = entry_or_map(new) else { return false };
            sock.add_entry();
            crate::epoll::settle_member(sock);
            entry.store(std::ptr::from_ref(sock).expose_provenance(), Ordering::Release);
        }
    }
    true
}

/// Whether the socket has only one descriptor in this process.
pub(crate) fn is_last(sock: &Sock) -> bool {
    sock.entries() == 1
}

/// Of a socket whose number was taken out of the table just now: whether no other is left. Of two duplicates that go at once, each
/// counted still, the second finds no other in the table.
pub(crate) fn has_no_other(sock: &Sock) -> bool {
    is_last(sock) || number_of(sock).is_none()
}

/// The descriptor is closed (or about to be): nothing is known of the number any more.
pub(crate) fn forget(fd: i32) {
    let was = take(fd);
    release(fd, was);
}

/// The first half of [`forget`]: nobody finds the number any more. What it was is to be released.
pub(crate) fn take(fd: i32) -> Known {
    entry(fd).map_or(Known::Nothing, |entry| decode(entry.swap(0, Ordering::AcqRel)))
}

/// The second half: what is known of what the number was. Takes the locks of sets, so the caller has no lock of
/// a connection ([`crate::lock`]).
pub(crate) fn release(fd: i32, was: Known) {
    match was {
        Known::Nothing => {}
        Known::Epoll(set) => crate::epoll::release(set),
        Known::Sock(sock) => {
            if sock.epoll_refs.load(Ordering::Relaxed) != 0 {
                crate::epoll::forget_fd(fd, sock);
            }
            sock.drop_entry();
        }
    }
}

/// Every socket in the table, once per descriptor.
pub(crate) fn socks() -> impl Iterator<Item = (i32, &'static Sock)> {
    tracked(0, u32::MAX).filter_map(|fd| Some((fd, sock(fd)?)))
}

/// Some descriptor of the socket.
pub(crate) fn number_of(sock: &Sock) -> Option<i32> {
    socks().find(|(_, other)| std::ptr::eq(*other, sock)).map(|(fd, _)| fd)
}

/// As [`socks`], each socket once, with one of its descriptors.
pub(crate) fn socks_once() -> impl Iterator<Item = (i32, &'static Sock)> {
    socks().filter(|&(fd, sock)| {
        let first = || socks().find(|(_, other)| std::ptr::eq(*other, sock));
        sock.entries() <= 1 || first().is_none_or(|(first, _)| first == fd)
    })
}

/// In a forked child: only the calling thread exists.
pub(crate) fn after_fork(announced: bool) {
    for (_, sock) in socks() {
        sock.nobody_inside();
    }
    for (fd, sock) in socks_once() {
        let candidate = sock.state.load(Ordering::Relaxed) == state::CANDIDATE;
        if !(candidate && sock.is_at(fd) && announced && crate::family::in_child(sock)) {
            sock.make_plain(fd, Counter::plain_forked);
        }
        if !announced {
            sock.not_alone_any_longer();
        }
    }
}

/// A connection of this process's own, whose first end is followed: both, that one's number, and what is known of it.
#[cfg(test)]
pub(crate) fn tracked_for_test() -> ([std::net::TcpStream; 2], i32, &'static Sock) {
    use std::os::fd::AsRawFd;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let first = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let second = listener.accept().unwrap().0;
    let fd = first.as_raw_fd();
    track(fd, false);
    ([first, second], fd, sock(fd).unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_beyond_the_table_is_said_to_be_unseen() {
        // Numbers that no test has open.
        let (socket, within, beyond) =
            (700_000, 700_001, i32::try_from(PER_CHUNK * TABLE.len()).unwrap());
        track(socket, false);
        assert!(duplicate(socket, within));
        assert!(matches!(get(within), Known::Sock(_)));
        assert!(!duplicate(socket, beyond));
        assert!(matches!(get(beyond), Known::Nothing));
        forget(within);
        forget(socket);
        assert!(duplicate(socket, beyond), "nothing is followed");
    }
}
