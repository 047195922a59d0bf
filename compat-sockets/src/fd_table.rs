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
//! A [`Sock`] stands for one open file description of a TCP socket. Its memory is never
//! unmapped, only reused, so a stale pointer is harmless: whoever wants to use one counts itself
//! in and then looks again whether the entry still holds it.

use crate::counters::{self, Counter};
use crate::lock::Lock;
use crate::raw;
use crate::segment::Segment;
use crate::side::{self, Side};
use crate::stream::spin::Lesson;
use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;
use vmmc::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
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
        crate::sleeps::noticed();
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

/// Options whose setting the program sees and the kernel does not: bits of `Sock::shadow`.
pub(crate) mod shadow {
    pub(crate) const NODELAY: u32 = 1;
    pub(crate) const CORK: u32 = 2;

    /// The bit of a TCP option, if it is one of them.
    pub(crate) fn bit(level: i32, name: i32) -> Option<u32> {
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(NODELAY),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => Some(CORK),
            _ => None,
        }
    }
}

/// States of a [`Sock`].
pub(crate) mod state {
    /// In the free list.
    pub(crate) const FREE: u32 = 0;
    /// Plain TCP; may be offered to the daemon.
    pub(crate) const CANDIDATE: u32 = 1;
    /// Offered; the answer is awaited.
    pub(crate) const PENDING: u32 = 2;
    /// Has a segment.
    pub(crate) const ACTIVE: u32 = 3;
    /// Plain TCP for good.
    pub(crate) const PLAIN: u32 = 4;
    /// Last descriptor closed, some thread still inside a call.
    pub(crate) const CLOSING: u32 = 5;
}

/// One open TCP socket. Private to the process (a forked child has a copy).
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Sock {
    /// One of [`state`].
    pub(crate) state: AtomicU32,
    /// Threads inside a call that uses the segment, or acting on the daemon's answer.
    users: AtomicU32,
    /// First byte of the segment; null unless active.
    segment: AtomicPtr<u8>,
    /// The side's own state; null unless active.
    side: AtomicPtr<Side>,
    /// Ring capacity per direction.
    ring_len: AtomicU32,
    /// Which side of the segment is ours.
    side_number: AtomicU32,
    /// Threads inside a plain receive of the C library.
    pub(crate) plain_rx: AtomicU32,
    /// Threads inside a plain send of the C library that began before the connection had its segment.
    pub(crate) plain_tx: AtomicU32,
    /// Whether `ready` was published in the segment.
    pub(crate) ready: AtomicU32,
    /// `O_NONBLOCK` as last heard; the kernel is asked before it matters.
    pub(crate) nonblocking: AtomicU32,
    /// How its waits spin.
    pub(crate) spins: Lesson,
    /// Whether a hooked poll, select or epoll has watched it.
    pub(crate) watched: AtomicU32,

    /// Table entries that point here.
    refs: AtomicU32,
    /// Data calls so far.
    pub(crate) calls: AtomicU32,
    /// Data bytes so far, saturating.
    pub(crate) bytes: AtomicU32,
    /// Number of calls at which to try (again) to register.
    pub(crate) try_at: AtomicU32,
    /// How often that was tried.
    pub(crate) tries: AtomicU32,
    /// Registrations in epoll sets that we know of.
    pub(crate) epoll_refs: AtomicU32,
    /// Some epoll set relies on the doorbell for this one, because it was idle for long.
    pub(crate) cold: AtomicU32,
    /// The program's `TCP_NODELAY` and `TCP_CORK`, as bits of [`shadow`]; the kernel's are always
    /// on and off, for the doorbells.
    pub(crate) shadow: AtomicU32,
    /// A poll has met an end or an error: the kernel has a say in every poll from now on.
    pub(crate) ended: AtomicU32,
    /// Threads that may be asleep in a call on it.
    pub(crate) parked: AtomicU32,
    /// Number plus one under which it is kept for them after its close ([`crate::parked`]).
    pub(crate) kept: AtomicU32,
    /// The process at the other end ([`crate::sleeps`]); 0: not remembered.
    pub(crate) peer: AtomicU32,
    /// The kernel's number for the socket; 0: it was never offered, or others may have it.
    pub(crate) cookie: AtomicU64,
    /// Address of the next free Sock.
    next_free: AtomicUsize,
    /// Who else has it, if it was forked before the upgrade; null: nobody.
    family: AtomicPtr<Side>,
}

const _: () = assert!(size_of::<Sock>() == 128, "a connection's private part is one pair of lines");

/// An upgraded connection in use by one call; [`Link::leave`] must follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) sock: &'static Sock,
    pub(crate) side: &'static Side,
    pub(crate) segment: Segment,
    pub(crate) me: u8,
}

struct Slab {
    lock: Lock,
    free: AtomicUsize,
}
static SLAB: Slab = Slab { lock: Lock::new(), free: AtomicUsize::new(0) };
const SLAB_CHUNK: usize = 16 * 1024;

fn allocate() -> Option<&'static Sock> {
    SLAB.lock.lock().ok()?;
    if SLAB.free.load(Ordering::Relaxed) == 0
        && let Ok(chunk) = mmap::map_private_anonymous(SLAB_CHUNK)
    {
        for i in 0..SLAB_CHUNK / size_of::<Sock>() {
            // SAFETY: inside the chunk.
            let sock = unsafe { chunk.cast::<Sock>().add(i) };
            // SAFETY: page aligned, zero, which is valid, and never unmapped.
            push_free(unsafe { sock.as_ref() });
        }
    }
    let address = SLAB.free.load(Ordering::Relaxed);
    let sock = match decode(address) {
        Known::Sock(sock) => {
            SLAB.free.store(sock.next_free.load(Ordering::Relaxed), Ordering::Relaxed);
            Some(sock)
        }
        _ => None,
    };
    SLAB.lock.unlock();
    sock
}

fn push_free(sock: &'static Sock) {
    sock.next_free.store(SLAB.free.load(Ordering::Relaxed), Ordering::Relaxed);
    SLAB.free.store(std::ptr::from_ref(sock).expose_provenance(), Ordering::Relaxed);
}

/// Data calls that moved something at which a connection is offered to the daemon for the first time.
///
/// An offer costs both ends what some tens of calls over TCP cost more than over a ring, most where
/// the server forks for each connection. A connection that asks one thing after it has logged in
/// (PostgreSQL: ten calls) ends before.
pub(crate) const FIRST_TRY_CALLS: u32 = 32;

/// Follows a socket that was just connected or accepted.
pub(crate) fn track(fd: i32, nonblocking: bool) {
    let Some(entry) = entry_or_map(fd) else { return };
    // The number may be stale: closed by a way we did not see (raw system call).
    forget(fd);
    let Some(sock) = allocate() else { return };
    for word in [
        &sock.plain_rx,
        &sock.plain_tx,
        &sock.ready,
        &sock.watched,
        &sock.calls,
        &sock.bytes,
        &sock.tries,
        &sock.epoll_refs,
        &sock.cold,
        &sock.shadow,
        &sock.ended,
        &sock.parked,
        &sock.kept,
        &sock.peer,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    sock.segment.store(std::ptr::null_mut(), Ordering::Relaxed);
    sock.side.store(std::ptr::null_mut(), Ordering::Relaxed);
    sock.family.store(std::ptr::null_mut(), Ordering::Relaxed);
    sock.nonblocking.store(nonblocking.into(), Ordering::Relaxed);
    sock.try_at.store(FIRST_TRY_CALLS, Ordering::Relaxed);
    sock.cookie.store(0, Ordering::Relaxed);
    sock.refs.store(1, Ordering::Relaxed);
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

/// `new` is now a duplicate of `old`. What `new` was before must have been forgotten.
pub(crate) fn duplicate(old: i32, new: i32) {
    match get(old) {
        Known::Nothing => {}
        Known::Epoll(set) => {
            if let Some(entry) = entry_or_map(new) {
                crate::epoll::retain(set);
                entry.store(set << 1 | EPOLL_TAG, Ordering::Release);
            }
        }
        Known::Sock(sock) => {
            let Some(entry) = entry_or_map(new) else {
                sock.make_plain(old, Counter::plain_resources);
                return;
            };
            sock.refs.fetch_add(1, Ordering::AcqRel);
            crate::epoll::settle_member(sock);
            entry.store(std::ptr::from_ref(sock).expose_provenance(), Ordering::Release);
        }
    }
}

/// Whether `fd` is the only descriptor of its socket in this process.
pub(crate) fn is_last(sock: &Sock) -> bool {
    sock.refs.load(Ordering::Relaxed) == 1
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
            if sock.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
                sock.state.store(state::CLOSING, Ordering::SeqCst);
                sock.reclaim_if_idle();
            }
        }
    }
}

impl Sock {
    /// The connection's segment for the length of one call on `fd`; `None` when it has none, or
    /// `fd` has become something else meanwhile.
    #[inline]
    pub(crate) fn enter(&'static self, fd: i32) -> Option<Link> {
        if self.state.load(Ordering::Acquire) != state::ACTIVE {
            return None;
        }
        self.users.fetch_add(1, Ordering::SeqCst);
        let still = entry(fd).map(|entry| entry.load(Ordering::SeqCst));
        if still == Some(std::ptr::from_ref(self).addr())
            && let Some(link) = self.link()
        {
            return Some(link);
        }
        self.leave();
        None
    }

    /// The link without counting in: for a caller that knows the socket stays open.
    #[inline]
    fn link(&'static self) -> Option<Link> {
        let start = NonNull::new(self.segment.load(Ordering::Acquire))?;
        let side = NonNull::new(self.side.load(Ordering::Relaxed))?;
        let ring_len = self.ring_len.load(Ordering::Relaxed) as usize;
        Some(Link {
            sock: self,
            // SAFETY: sides are never unmapped.
            side: unsafe { side.as_ref() },
            // SAFETY: mapped by `activate` until `reclaim_if_idle`, which waits for every user.
            segment: unsafe { Segment::from_raw(start, ring_len) },
            me: self.side_number.load(Ordering::Relaxed) as u8,
        })
    }

    /// Counts out of [`Sock::enter`].
    #[inline]
    pub(crate) fn leave(&'static self) {
        self.users.fetch_sub(1, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == state::CLOSING {
            self.reclaim_if_idle();
        }
    }

    /// Counts out of a plain call.
    #[inline]
    pub(crate) fn leave_plain(&'static self, counter: &AtomicU32) {
        counter.fetch_sub(1, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == state::CLOSING {
            self.reclaim_if_idle();
        }
    }

    /// Counts in who acts on the answer to its offer; false when it waits for none (any more). Until
    /// [`Sock::leave`], which must follow, the Sock is not given to another connection. The caller holds the
    /// control lock, without which no socket becomes pending.
    pub(crate) fn hold_pending(&'static self) -> bool {
        self.users.fetch_add(1, Ordering::SeqCst);
        let pending = self.state.load(Ordering::SeqCst) == state::PENDING;
        if !pending {
            self.leave();
        }
        pending
    }

    /// Its offer is taken back.
    pub(crate) fn not_offered(&self) {
        let (pending, candidate) = (state::PENDING, state::CANDIDATE);
        let _ =
            self.state.compare_exchange(pending, candidate, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Gives the socket, which the caller holds ([`Sock::hold_pending`]), its segment. False, and without
    /// effect, when another thread has closed it meanwhile or made it plain.
    pub(crate) fn activate(
        &self,
        start: NonNull<u8>,
        ring_len: u32,
        side_number: u8,
        side: &'static Side,
    ) -> bool {
        self.ring_len.store(ring_len, Ordering::Relaxed);
        self.side_number.store(side_number.into(), Ordering::Relaxed);
        self.side.store(std::ptr::from_ref(side).cast_mut(), Ordering::Relaxed);
        self.segment.store(start.as_ptr(), Ordering::Release);
        // PAIRS(plain): with the counting in `upgrade::route`: either the plain caller sees
        // ACTIVE, or whoever publishes `ready` sees the caller counted.
        let (pending, active) = (state::PENDING, state::ACTIVE);
        let exchanged = self
            .state
            .compare_exchange(pending, active, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        if !exchanged {
            // Nobody has looked: in another state only the last user does, and that is the caller at the earliest.
            self.segment.store(std::ptr::null_mut(), Ordering::Relaxed);
            self.side.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
        exchanged
    }

    /// Keeps the socket, which `fd` is, plain for good. No effect on an active one.
    pub(crate) fn make_plain(&self, fd: i32, reason: Counter) {
        for from in [state::CANDIDATE, state::PENDING] {
            if self
                .state
                .compare_exchange(from, state::PLAIN, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                counters::one(reason);
                counters::note(fd, reason);
            }
        }
    }

    /// Other processes may have it, and it is plain for good: nobody is to think that its close in this one is
    /// its end.
    pub(crate) fn not_alone_any_longer(&self) {
        if self.state.load(Ordering::SeqCst) == state::PLAIN {
            self.cookie.store(0, Ordering::Relaxed);
        }
    }

    /// The processes that have it, if there is a list.
    #[inline]
    pub(crate) fn family(&self) -> Option<crate::family::Family> {
        let family = NonNull::new(self.family.load(Ordering::Acquire))?;
        // SAFETY: sides are never unmapped.
        Some(unsafe { family.as_ref() })
    }

    /// Keeps or drops the list.
    pub(crate) fn set_family(&self, family: Option<crate::family::Family>) {
        let family = family.map_or(std::ptr::null_mut(), |it| std::ptr::from_ref(it).cast_mut());
        self.family.store(family, Ordering::Release);
    }

    /// Whether it has a segment.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.state.load(Ordering::Relaxed) == state::ACTIVE
    }

    /// Whether it has a segment or may get one.
    #[inline]
    pub(crate) fn may_upgrade(&self) -> bool {
        let candidates = [state::CANDIDATE, state::PENDING, state::ACTIVE];
        candidates.contains(&self.state.load(Ordering::Relaxed))
    }

    /// The table entry of `fd` is this socket.
    pub(crate) fn is_at(&self, fd: i32) -> bool {
        entry(fd)
            .is_some_and(|entry| entry.load(Ordering::Acquire) == std::ptr::from_ref(self).addr())
    }

    #[cold]
    fn reclaim_if_idle(&'static self) {
        let busy = [&self.users, &self.plain_rx, &self.plain_tx]
            .iter()
            .any(|count| count.load(Ordering::SeqCst) != 0);
        if busy
            || self
                .state
                .compare_exchange(state::CLOSING, state::FREE, Ordering::SeqCst, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        crate::family::leave(self);
        if let Some(link) = self.link() {
            if let Some(kept) = crate::parked::take_kept(self) {
                crate::close::finish_kept(&link, kept);
            }
            unmap(self.segment.swap(std::ptr::null_mut(), Ordering::AcqRel), &link);
            crate::sleeps::part(self.peer.swap(0, Ordering::Relaxed));
            crate::control::forget(self.cookie.load(Ordering::Relaxed));
            self.side.store(std::ptr::null_mut(), Ordering::Relaxed);
            side::release(link.side);
        } else {
            crate::control::withdraw(self);
        }
        if SLAB.lock.lock().is_ok() {
            push_free(self);
            SLAB.lock.unlock();
        }
    }
}

fn unmap(start: *mut u8, link: &Link) {
    let ring_len = link.sock.ring_len.load(Ordering::Relaxed) as usize;
    let page = mmap::page_size();
    let len = Segment::mapping_len(ring_len) + 2 * page;
    // SAFETY: the mapping was made with one guard page at each end; the address stays in it.
    let reservation = unsafe { start.sub(page) };
    // SAFETY: made for this connection by `control`; nobody uses it any more.
    let _ = unsafe { rustix::mm::munmap(reservation.cast(), len) };
}

impl Link {
    /// Ends the use.
    #[inline]
    pub(crate) fn leave(self) {
        self.sock.leave();
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
        sock.refs.load(Ordering::Relaxed) <= 1 || first().is_none_or(|(first, _)| first == fd)
    })
}

/// In a forked child: only the calling thread exists.
pub(crate) fn after_fork(announced: bool) {
    SLAB.lock.reset();
    for (_, sock) in socks() {
        sock.users.store(0, Ordering::Relaxed);
        sock.plain_rx.store(0, Ordering::Relaxed);
        sock.plain_tx.store(0, Ordering::Relaxed);
        sock.parked.store(0, Ordering::Relaxed);
    }
    for (fd, sock) in socks_once() {
        let candidate = sock.state.load(Ordering::Relaxed) == state::CANDIDATE;
        if !(candidate && sock.is_at(fd) && announced && crate::family::in_child(sock)) {
            sock.make_plain(fd, Counter::plain_forked);
        }
    }
    let _ = raw::getpid();
}
