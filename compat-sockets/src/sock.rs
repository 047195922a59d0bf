//! What we know of one TCP socket.
//!
//! A [`Sock`] stands for one open file description; entries of the table point to it
//! ([`crate::fd_table`]), several after dup. Its memory is never unmapped, only reused, so a stale
//! pointer is harmless: whoever wants to use one counts itself in and then looks again whether the
//! entry still holds it ([`Sock::enter`]). It is given back when no entry points to it and no thread
//! is inside a call.
//!
//! A [`Link`] is an upgraded one in use by one call: the segment stays mapped until that has left.

use crate::counters::{self, Counter};
use crate::fd_table;
use crate::lock::{Held, Interrupted, Lock};
use crate::owner;
use crate::segment::Segment;
use crate::settings;
use crate::side::Side;
use crate::stream::spin::Lesson;
use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;
use vmmc::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use vmmc::sys::membarrier::light;
use vmmc::sys::mmap;
use vmmc::word::owned;

/// Options whose setting the program sees and the kernel does not: bits of `Sock::shadow`.
pub(crate) mod shadow {
    pub(crate) const NODELAY: u32 = 1;
    pub(crate) const CORK: u32 = 2;
    /// `TCP_INQ`: the kernel has it, too, for what it receives; here it is so that not each receive has to ask.
    pub(crate) const INQ: u32 = 4;

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
    /// Ring capacity per direction, a power of two and at least a page, and in the lowest bit which side of the segment is ours.
    shape: AtomicU32,
    /// Calls of the owner's inside, as `users` has the others'. Written by the owner only ([`crate::owner`]).
    owned: AtomicU32,
    /// Threads inside a plain receive of the C library.
    pub(crate) plain_rx: AtomicU32,
    /// Threads inside a plain send of the C library that began before the connection had its segment.
    pub(crate) plain_tx: AtomicU32,
    /// Whether `ready` was published in the segment, or only another process may do it.
    pub(crate) ready: AtomicU32,
    /// `O_NONBLOCK` as last heard; the kernel is asked before it matters.
    pub(crate) nonblocking: AtomicU32,
    /// How its waits spin.
    pub(crate) spins: Lesson,
    /// [`WATCHED`], and so many times [`EARLY`] as threads wait for it in a poll or select of the C library that began before it
    /// had a segment: they rely on doorbells, and nobody else counts them.
    watch: AtomicU32,

    /// Table entries that point here.
    refs: AtomicU32,
    /// Data calls so far.
    pub(crate) calls: AtomicU32,
    /// Data bytes so far, saturating.
    pub(crate) bytes: AtomicU32,
    /// Number of calls at which to try (again) to register; while that is unanswered, to look for the answer.
    pub(crate) try_at: AtomicU32,
    /// How often that was tried.
    pub(crate) tries: AtomicU32,
    /// Registrations in epoll sets that we know of.
    pub(crate) epoll_refs: AtomicU32,
    /// Somebody who waits in an epoll set relies on the doorbell for this one and has not counted himself in as asleep for
    /// it: because it was idle for long, or came to the set or its rings after he had.
    pub(crate) cold: AtomicU32,
    /// The program's `TCP_NODELAY`, `TCP_CORK` and `TCP_INQ`, as bits of [`shadow`]; the kernel's first two are always
    /// on and off, for the doorbells.
    pub(crate) shadow: AtomicU32,
    /// [`ENDED`], and below it threads asleep in a poll or a set until its ring has room ([`crate::stream::bells::sleeps_for_room`]).
    polled: AtomicU32,
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

/// Bit of [`Sock::polled`].
const ENDED: u32 = 1 << 31;

const _: () = assert!(size_of::<Sock>() == 128, "a connection's private part is one pair of lines");

/// An upgraded connection in use by one call; [`Link::leave`] must follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) sock: &'static Sock,
    pub(crate) side: &'static Side,
    pub(crate) segment: Segment,
    pub(crate) me: u8,
    /// Counted in `Sock::owned`, and not in `Sock::users`.
    by_owner: bool,
}

/// Bit of `Sock::shape`.
const SECOND: u32 = 1;

/// Bit of `Sock::watch`: a hooked poll, select or epoll has watched it.
const WATCHED: u32 = 1;
/// One thread, in `Sock::watch`.
const EARLY: u32 = 2;

/// A thread in a poll or select of the C library's for a socket that may get its segment meanwhile. One that is cancelled there
/// unwinds, and waits no longer.
#[derive(Debug)]
pub(crate) struct EarlyWait(&'static Sock);

impl EarlyWait {
    /// Whether it has its segment by now.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_active()
    }
}

impl Drop for EarlyWait {
    fn drop(&mut self) {
        // A child that was forked by a handler of a signal, inside the wait, has counted it out already.
        let less = |watch: u32| (watch >= EARLY).then(|| watch - EARLY);
        let _ = self.0.watch.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if self.0.state.load(Ordering::SeqCst) == state::CLOSING {
            self.0.reclaim_if_idle();
        }
    }
}

impl Sock {
    /// One for a socket that was just connected or accepted, with one entry. The caller gives it its state.
    pub(crate) fn fresh(nonblocking: bool) -> Option<&'static Sock> {
        let sock = allocate()?;
        for word in [
            &sock.plain_rx,
            &sock.plain_tx,
            &sock.ready,
            &sock.watch,
            &sock.calls,
            &sock.bytes,
            &sock.tries,
            &sock.epoll_refs,
            &sock.cold,
            &sock.shadow,
            &sock.polled,
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
        sock.try_at.store(settings::after(), Ordering::Relaxed);
        sock.cookie.store(0, Ordering::Relaxed);
        sock.refs.store(1, Ordering::Relaxed);
        Some(sock)
    }

    /// The connection's segment for the length of one call on `fd`; `None` when it has none, or
    /// `fd` has become something else meanwhile.
    #[inline]
    pub(crate) fn enter(&'static self, fd: i32) -> Option<Link> {
        if self.state.load(Ordering::Acquire) != state::ACTIVE {
            return None;
        }
        if owner::is_me() {
            let outer = self.owned.load(Ordering::Relaxed);
            if owned::take(&self.owned, outer + 1, light, owner::is_me)
                && fd_table::holds(fd, self, Ordering::SeqCst)
                && let Some(link) = self.link()
            {
                return Some(Link { by_owner: true, ..link });
            }
            self.leave_owned();
        }
        self.enter_as_others(fd)
    }

    #[inline]
    fn enter_as_others(&'static self, fd: i32) -> Option<Link> {
        owner::noticed();
        self.users.fetch_add(1, Ordering::SeqCst);
        if fd_table::holds(fd, self, Ordering::SeqCst)
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
        let shape = self.shape.load(Ordering::Relaxed);
        Some(Link {
            sock: self,
            // SAFETY: sides are never unmapped.
            side: unsafe { side.as_ref() },
            // SAFETY: mapped by `activate` until `reclaim_if_idle`, which waits for every user.
            segment: unsafe { Segment::from_raw(start, (shape & !SECOND) as usize) },
            me: (shape & SECOND) as u8,
            by_owner: false,
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

    /// Counts the owner out of [`Sock::enter`].
    #[inline]
    fn leave_owned(&'static self) {
        let outer = self.owned.load(Ordering::Relaxed).wrapping_sub(1);
        owned::give(&self.owned, outer, light, owner::is_me);
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
        self.shape.store(ring_len & !SECOND | u32::from(side_number & 1), Ordering::Relaxed);
        self.side.store(std::ptr::from_ref(side).cast_mut(), Ordering::Relaxed);
        self.segment.store(start.as_ptr(), Ordering::Release);
        // PAIRS(plain): with the counting in `upgrade::counted`: either the plain caller sees
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

    /// Keeps the socket, which `fd` is, plain for good. No effect on an active one. If it is offered, the offer is taken
    /// back: nobody here will use what the daemon answers, nor say so when the socket is closed.
    pub(crate) fn make_plain(&self, fd: i32, reason: Counter) {
        for from in [state::CANDIDATE, state::PENDING] {
            if self
                .state
                .compare_exchange(from, state::PLAIN, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                counters::one(reason);
                counters::note(fd, reason);
                if from == state::PENDING {
                    crate::control::withdraw(self);
                }
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

    /// A hooked poll, select or epoll watches it.
    #[inline]
    pub(crate) fn is_to_be_watched(&self) {
        if !self.is_watched() {
            self.watch.fetch_or(WATCHED, Ordering::Relaxed);
        }
    }

    /// Whether one has watched it.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watch.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Whether a thread waits for it in a poll or select of the C library's, which nobody can end but a doorbell.
    #[inline]
    pub(crate) fn has_early_waiter(&self) -> bool {
        self.watch.load(Ordering::SeqCst) >= EARLY
    }

    /// Counts in a thread that is about to wait so; `None`, and not counted, if it has its segment, or cannot get one.
    pub(crate) fn waits_early(&'static self, fd: i32) -> Option<EarlyWait> {
        if !self.may_get_segment() {
            return None;
        }
        let counted = EarlyWait(self);
        // PAIRS(early): with the store of ACTIVE in `Sock::activate`.
        self.watch.fetch_add(EARLY, Ordering::SeqCst);
        (self.may_get_segment() && self.is_at(fd)).then_some(counted)
    }

    /// Whether it has a segment.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.state.load(Ordering::Relaxed) == state::ACTIVE
    }

    /// Whether it has no segment and may get one.
    #[inline]
    pub(crate) fn may_get_segment(&self) -> bool {
        matches!(self.state.load(Ordering::SeqCst), state::CANDIDATE | state::PENDING)
    }

    /// Whether it has a segment or may get one.
    #[inline]
    pub(crate) fn may_upgrade(&self) -> bool {
        let candidates = [state::CANDIDATE, state::PENDING, state::ACTIVE];
        candidates.contains(&self.state.load(Ordering::Relaxed))
    }

    /// A poll has met an end or an error: the kernel has a say in every poll from now on.
    pub(crate) fn has_ended(&self) {
        self.polled.fetch_or(ENDED, Ordering::Relaxed);
    }

    /// Whether one has.
    pub(crate) fn is_ended(&self) -> bool {
        self.polled.load(Ordering::Relaxed) & ENDED != 0
    }

    /// A thread is about to sleep in a poll or a set until there is room.
    pub(crate) fn sleeps_for_room(&self) {
        self.polled.fetch_add(1, Ordering::SeqCst);
    }

    /// It has woken.
    pub(crate) fn has_slept_for_room(&self) {
        self.polled.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many threads do.
    pub(crate) fn room_sleepers(&self) -> u32 {
        self.polled.load(Ordering::SeqCst) & !ENDED
    }

    /// The table entry of `fd` is this socket.
    pub(crate) fn is_at(&self, fd: i32) -> bool {
        fd_table::holds(fd, self, Ordering::Acquire)
    }

    /// How many table entries point here.
    pub(crate) fn entries(&self) -> u32 {
        self.refs.load(Ordering::Relaxed)
    }

    /// One more table entry is to point here.
    pub(crate) fn add_entry(&self) {
        self.refs.fetch_add(1, Ordering::AcqRel);
    }

    /// One table entry less points here. After the last it is closed, as far as this process goes.
    pub(crate) fn drop_entry(&'static self) {
        // Before anybody is looked for inside.
        owner::noticed();
        if self.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.state.store(state::CLOSING, Ordering::SeqCst);
            self.reclaim_if_idle();
        }
    }

    /// In a forked child: of the threads that were inside calls, none is here.
    pub(crate) fn nobody_inside(&self) {
        let receiving = self.plain_rx.load(Ordering::Relaxed) != 0;
        if receiving && self.is_active() && self.ready.load(Ordering::Relaxed) == 0 {
            // A thread of the parent's is inside a plain receive: the parent says it when that has ended.
            self.ready.store(1, Ordering::Relaxed);
        }
        self.users.store(0, Ordering::Relaxed);
        self.owned.store(0, Ordering::Relaxed);
        self.plain_rx.store(0, Ordering::Relaxed);
        self.plain_tx.store(0, Ordering::Relaxed);
        self.parked.store(0, Ordering::Relaxed);
        self.polled.fetch_and(ENDED, Ordering::Relaxed);
        self.watch.fetch_and(WATCHED, Ordering::Relaxed);
    }

    #[cold]
    fn reclaim_if_idle(&'static self) {
        let busy = [&self.users, &self.owned, &self.plain_rx, &self.plain_tx]
            .iter()
            .any(|count| count.load(Ordering::SeqCst) != 0)
            || self.has_early_waiter();
        if busy
            || self
                .state
                .compare_exchange(state::CLOSING, state::FREE, Ordering::SeqCst, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        crate::family::leave(self);
        let link = self.link();
        // Before its memory is another's.
        let positions = |side: &Side| [&side.tail, &side.head].map(|it| it.load(Ordering::Relaxed));
        let by_ring =
            link.map(|link| positions(link.side)).map(|[sent, got]| sent.saturating_add(got));
        // An offer is paid for too, also one that was not answered in time.
        let by_ring = by_ring.or_else(|| (self.cookie.load(Ordering::Relaxed) != 0).then_some(0));
        let (bytes, calls) = (&self.bytes, &self.calls);
        crate::bulk::ended(bytes.load(Ordering::Relaxed), calls.load(Ordering::Relaxed), by_ring);
        if let Some(link) = link {
            if let Some(kept) = crate::parked::take_kept(self) {
                crate::close::finish_kept(&link, kept);
            }
            unmap(self.segment.swap(std::ptr::null_mut(), Ordering::AcqRel), &link);
            crate::sleeps::part(self.peer.swap(0, Ordering::Relaxed));
            crate::control::forget(self.cookie.load(Ordering::Relaxed));
            self.side.store(std::ptr::null_mut(), Ordering::Relaxed);
            crate::carrier::let_go(link.side);
            crate::family::parts(link.side);
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
    let ring_len = link.tx().bytes().0.len();
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
        if self.by_owner { self.sock.leave_owned() } else { self.sock.leave() }
    }

    /// Takes the lock for sending, as cheaply as the caller may.
    #[inline]
    pub(crate) fn lock_tx(&self) -> Result<Held, Interrupted> {
        self.side.tx_lock.lock_by(self.by_owner, &self.side.births)
    }

    /// Takes the lock for receiving, as cheaply as the caller may.
    #[inline]
    pub(crate) fn lock_rx(&self) -> Result<Held, Interrupted> {
        self.side.rx_lock.lock_by(self.by_owner, &self.side.births)
    }
}

/// A use of the connection around a call that may be cancelled: that unwinds, and the use ends with the value.
#[derive(Debug)]
pub(crate) struct Using(pub(crate) Link);

impl Drop for Using {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Memory for Socks: chunks that are never unmapped, and a list of the free ones.
struct Slab {
    lock: Lock,
    /// Address of the first free Sock; 0: none.
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
    let sock = NonNull::new(std::ptr::with_exposed_provenance_mut::<Sock>(address));
    // SAFETY: in the list are addresses of Socks, which are never unmapped.
    let sock = sock.map(|sock| unsafe { sock.as_ref() });
    if let Some(sock) = sock {
        SLAB.free.store(sock.next_free.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    SLAB.lock.unlock();
    sock
}

/// Under the lock.
fn push_free(sock: &'static Sock) {
    sock.next_free.store(SLAB.free.load(Ordering::Relaxed), Ordering::Relaxed);
    SLAB.free.store(std::ptr::from_ref(sock).expose_provenance(), Ordering::Relaxed);
}

/// In a forked child: whoever held the lock is not here.
pub(crate) fn after_fork() {
    SLAB.lock.reset();
}
