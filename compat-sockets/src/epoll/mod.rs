//! epoll over sets of which some members are upgraded.
//!
//! The kernel's set stays as the program made it: same descriptors, same data, same flags. We
//! keep a record of each registration, and per set a short list of *hot* members: upgraded and
//! active lately.
//!
//! * A wait looks at the rings of the hot members, polls them for a while, arms them, looks once
//!   more, and waits in the kernel.
//! * All other upgraded members are *cold*: armed all the time, so the kernel tells of them; then
//!   they are hot again. So a wait costs what is active and not what is registered.
//! * What the kernel reports is corrected: a byte that is only a doorbell is thrown away and the
//!   event dropped, `EPOLLOUT` is dropped while the ring is full.
//!
//! # Several waiters
//! Who sleeps has armed the members that were in his list. One that joined the set, was armed again or upgraded when he
//! slept already is not among them, and he hears of it by the kernel alone: it stays armed, whoever wakes or reads
//! ([`Sock::cold`]), until a wait lists it that is alone in the set. And of a doorbell the kernel tells one waiter, who may
//! not come back for long: what was told of is armed for the others at once. So where several wait, and only there, each
//! message may ring.
//!
//! # Edge-triggered members
//! are reported once per change: the ring position at the last report is kept, and the same
//! position is not reported again.
//!
//! # `EPOLLOUT` on a full ring
//! The kernel finds a TCP socket always writable. When a wait meets a member that asks for
//! `EPOLLOUT` and whose ring is full, it takes the bit away in the kernel (`EPOLL_CTL_MOD`, with
//! `EPOLLIN` added for the doorbell) and puts it back when there is room, which also makes the
//! edge that an edge-triggered program waits for. A member that cannot be modified
//! (`EPOLLEXCLUSIVE`) goes back to TCP instead.
//!
//! # Registrations we did not see
//! (io_uring, raw system calls, a set inherited through exec) have no record. Events whose data
//! no record or more than one has are passed on as they are, unless a member with that data has just
//! left ([`departed`]).

mod deferred;
mod departed;
mod hot;
mod kernel;
mod members;
mod nested;
mod wait;

pub(crate) use deferred::{before_fork, before_sharing, settle_member};
use members::{Map, Members, Record, uncount};
pub(crate) use nested::{awaits_room, has_news, has_rings, is_ready, nested};
use nested::{forget_inner, has_event, rouse_for_news};
pub(crate) use wait::{ACTIVE, Waiter, wait};

use crate::fd_table::{self, Known};
use crate::lock::Lock;
use crate::sock::Sock;
use crate::stream::give_way::Yields;
use crate::stream::spin::Lesson;
use crate::{raw, real, user_memory};
use libc::epoll_event;
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicPtr;
use vmmc::sync::{AtomicU32, Ordering};

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Events that do not go away again.
const ENDS: u32 = ALWAYS | libc::EPOLLRDHUP as u32;
/// Those of them after which no byte comes. Of an error there may be more than one to hear.
const LAST: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP) as u32;

/// Sets with a record at most; further ones are the kernel's alone.
const SETS: usize = 4096;

struct EpollSet {
    lock: Lock,
    /// Descriptors that refer to it; 0: free.
    refs: AtomicU32,
    /// Waits answered by rings alone since the kernel was asked.
    since_kernel: AtomicU32,
    /// How its waits spin.
    spins: Lesson,
    yields: Yields,
    /// Length of [`Members::full`], to be read without the lock; kept by [`EpollSet::with`].
    full_count: AtomicU32,
    /// Length of [`Members::inner`], likewise.
    inner_count: AtomicU32,
    /// Threads inside a wait.
    waiters: AtomicU32,
    /// Whether some registration was ever for one event (`EPOLLONESHOT`).
    once: AtomicU32,
    /// Changes of registrations that were begun.
    changes: AtomicU32,
    /// Whether [`Members::departed`] has any.
    departures: AtomicU32,
    /// Whether [`Members::deferred`] has any, likewise.
    late: AtomicU32,
    /// Descriptor plus one under which a sleep with a number waits ([`crate::sleeps`]).
    asleep_at: AtomicU32,
    /// Some member is [`Record::roused`].
    roused: AtomicU32,
    /// A descriptor of the set: the one that it was made with, or the only one, for which a change was
    /// deferred since.
    descriptor: AtomicU32,
    members: UnsafeCell<Members>,
}
// SAFETY: `members` is only touched under `lock`; everything else is atomic.
unsafe impl Sync for EpollSet {}

static TABLE: [AtomicPtr<EpollSet>; SETS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SETS];

fn set(number: usize) -> Option<&'static EpollSet> {
    let pointer = TABLE.get(number)?.load(Ordering::Acquire);
    // SAFETY: sets are leaked boxes, reused and never freed.
    (!pointer.is_null()).then(|| unsafe { &*pointer })
}

impl EpollSet {
    /// A descriptor of this set, which has this number.
    fn descriptor_of(&self, number: usize) -> Option<i32> {
        let is_it = |fd: &i32| matches!(fd_table::get(*fd), Known::Epoll(it) if it == number);
        let usual = self.descriptor.load(Ordering::Relaxed) as i32;
        if is_it(&usual) { Some(usual) } else { fd_table::tracked(0, u32::MAX).find(is_it) }
    }

    /// Runs `body` with the members; `None` in a signal handler that interrupted a holder.
    fn with<R>(&self, body: impl FnOnce(&mut Members) -> R) -> Option<R> {
        self.lock.lock().ok()?;
        // SAFETY: under the lock; `body` cannot keep the reference nor re-enter, since the hooks
        // it could call are not among the functions used here.
        let members = unsafe { &mut *self.members.get() };
        let result = body(members);
        self.full_count.store(members.full.len() as u32, Ordering::Relaxed);
        self.inner_count.store(members.inner.len() as u32, Ordering::Relaxed);
        self.late.store(members.has_late().into(), Ordering::Relaxed);
        self.lock.unlock();
        Some(result)
    }
}

/// Every set that there ever was, by number.
fn all_sets() -> impl Iterator<Item = (usize, &'static EpollSet)> {
    (0..SETS).map_while(|number| Some((number, set(number)?)))
}

/// Every set that has a descriptor, by number.
fn sets() -> impl Iterator<Item = (usize, &'static EpollSet)> {
    all_sets().filter(|(_, set)| set.refs.load(Ordering::Relaxed) != 0)
}

/// Follows a fresh epoll descriptor.
pub(crate) fn created(fd: i32) {
    for (number, slot) in TABLE.iter().enumerate() {
        let mut pointer = slot.load(Ordering::Acquire);
        if pointer.is_null() {
            let fresh = Box::into_raw(Box::new(EpollSet {
                lock: Lock::new(),
                refs: AtomicU32::new(0),
                since_kernel: AtomicU32::new(0),
                spins: Lesson::new(),
                yields: Yields::new(),
                full_count: AtomicU32::new(0),
                inner_count: AtomicU32::new(0),
                waiters: AtomicU32::new(0),
                once: AtomicU32::new(0),
                changes: AtomicU32::new(0),
                departures: AtomicU32::new(0),
                late: AtomicU32::new(0),
                asleep_at: AtomicU32::new(0),
                roused: AtomicU32::new(0),
                descriptor: AtomicU32::new(0),
                members: UnsafeCell::default(),
            }));
            let null = std::ptr::null_mut();
            pointer = match slot.compare_exchange(null, fresh, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => fresh,
                Err(other) => {
                    // SAFETY: nobody else has seen the box.
                    drop(unsafe { Box::from_raw(fresh) });
                    other
                }
            };
        }
        // SAFETY: as in `set`.
        let set = unsafe { &*pointer };
        // Somebody may still be inside a wait in the set that had the place before.
        if set.waiters.load(Ordering::SeqCst) == 0
            && set.refs.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            set.with(|members| *members = Members::default());
            set.once.store(0, Ordering::Relaxed);
            set.departures.store(0, Ordering::Relaxed);
            set.asleep_at.store(0, Ordering::Relaxed);
            set.roused.store(0, Ordering::Relaxed);
            set.spins.forget();
            set.yields.forget();
            set.descriptor.store(fd as u32, Ordering::Relaxed);
            fd_table::track_epoll(fd, number);
            return;
        }
    }
}

/// One more descriptor for a set (dup).
pub(crate) fn retain(number: usize) {
    if let Some(set) = set(number) {
        set.refs.fetch_add(1, Ordering::AcqRel);
        set.with(|members| members.settle_all(set));
    }
}

/// One descriptor of a set is closed.
pub(crate) fn release(number: usize) {
    let Some(set) = set(number) else { return };
    if set.refs.load(Ordering::Relaxed) == 1 {
        forget_inner(number);
        set.with(|members| {
            for record in members.records.values() {
                uncount(record);
            }
            *members = Members::default();
        });
    }
    set.refs.fetch_sub(1, Ordering::AcqRel);
}

/// Before the last descriptor of a member is closed, which nobody but us has, and the daemon, for a moment or as long as
/// it carries the connection: it was offered. A member leaves the kernel's sets by itself only once the last copy is
/// closed, and until then the program would be told of a descriptor that it has closed.
pub(crate) fn before_last_close(fd: i32, sock: &Sock) {
    for (number, set) in sets() {
        set.with(|members| {
            let Some(epfd) = set.descriptor_of(number) else { return };
            for member in members.numbers_of(sock) {
                if member == fd {
                    crate::raw::epoll_del(epfd, fd);
                } else {
                    del_by_closed_number(epfd, fd, member);
                }
                members.leaves(set, member);
            }
        });
    }
}

/// Takes a member out that was put in under a number which was closed since: the kernel knows it by that one only. Where
/// the number means something else by now it stays, until the kernel forgets it.
fn del_by_closed_number(epfd: i32, fd: i32, member: i32) {
    let Ok(lowest) = crate::raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, member as usize) else { return };
    if lowest == member {
        crate::raw::epoll_del(epfd, member);
    }
    crate::raw::close(lowest);
}

/// The socket behind `fd` was connected, or is about to be, and is ours from now on. Programs (nginx) register it before, too.
pub(crate) fn connected(fd: i32, sock: &'static Sock) {
    if sets().next().is_none() || !raw::is_stream_socket(fd) {
        return;
    }
    let Ok(cookie) = raw::socket_cookie(fd) else { return };
    for (_, set) in sets() {
        set.with(|members| members.is_connected(fd, sock, cookie));
    }
}

/// The last known descriptor of a member is closed, and the kernel has forgotten it.
pub(crate) fn forget_fd(fd: i32, sock: &Sock) {
    // While a duplicate lives the kernel keeps the registration; so do we.
    if !fd_table::has_no_other(sock) {
        return;
    }
    for (_, set) in sets() {
        set.with(|members| {
            members.leaves(set, fd);
            // It may have been registered under a number that was closed before this one.
            if sock.epoll_refs.load(Ordering::Relaxed) != 0 {
                members.leaves_everywhere(set, sock);
            }
        });
    }
}

/// In a forked child: nobody else holds the locks.
pub(crate) fn after_fork() {
    for (_, set) in all_sets() {
        set.lock.reset();
        let members = set.members.get();
        // SAFETY: no other thread is in this process; the word is whole at any time.
        if unsafe { (*members).changing.load(Ordering::Relaxed) } {
            // SAFETY: as above. What the parent's thread was changing may be half changed, and is left alone.
            unsafe { members.write(Members::default()) };
        }
        // The parent has the same set in the kernel, and may not have seen us fork: what it has deferred is
        // its own to settle.
        set.with(|members| members.deferred.never = true);
        // The sleeper, if there was one, is not in this process.
        set.waiters.store(0, Ordering::Relaxed);
        set.asleep_at.store(0, Ordering::Relaxed);
    }
}

/// Makes those who sleep under a number look at their rings once more.
///
/// There is no way to wake a thread in `epoll_wait` without an event, so each member gets one that is
/// always true, room, until the sleeper has woken and takes it away ([`calm`]).
#[cold]
pub(crate) fn rouse() {
    for (_, set) in all_sets() {
        set.with(|members| {
            let Some(epfd) = set.asleep_at.load(Ordering::SeqCst).checked_sub(1) else { return };
            let Members { records, hot, .. } = members;
            for fd in hot.iter() {
                if let Some(record) = records.get_mut(fd) {
                    record.rouse(set, epfd as i32, *fd);
                }
            }
        });
    }
}

/// A member was added or changed while others wait in the set, or in one around it: they have not armed it, and
/// have not looked at its ring.
#[cold]
fn joined_under_waiters(epfd: i32, set: &EpollSet, fd: i32, sock: &'static Sock) {
    let Some(link) = sock.enter(fd) else { return };
    link.arm_data();
    if link.looks_readable(fd) {
        set.with(|members| {
            if let Some(record) = members.records.get_mut(&fd)
                && !record.spent
            {
                record.rouse(set, epfd, fd);
            }
        });
    }
    link.leave();
}

/// Undoes [`rouse`], in the woken thread; of which members.
#[cold]
fn calm(epfd: i32, set: &EpollSet) -> Vec<i32> {
    let mut calmed = Vec::new();
    set.roused.store(0, Ordering::SeqCst);
    set.with(|members| {
        for (&fd, record) in members.records.iter_mut().filter(|(_, record)| record.roused) {
            record.roused = !record.tell_kernel(epfd, fd, record.wanted(record.masked));
            calmed.push(fd);
        }
    });
    calmed
}

/// The socket behind `fd` was upgraded, or bytes may have come for which nobody was rung: sets that have it look at its
/// ring from now on, and so does who sleeps there, or around.
pub(crate) fn activated(fd: i32, sock: &Sock) {
    each_registration(fd, sock, |number, set, members, member| {
        members.warm(set, member, 0);
        let is_awaited = members.nested || set.waiters.load(Ordering::SeqCst) != 0;
        if is_awaited
            && let Some(record) = members.records.get_mut(&member)
            && has_event(member, record)
            && let Some(epfd) = set.descriptor_of(number)
        {
            record.rouse(set, epfd, member);
        }
    });
}

/// A send on `fd` found no room, which is counted in `Side::tx_refused`, and the program was told so: it waits for an
/// edge. True when only the kernel can make that.
pub(crate) fn refused(fd: i32, sock: &Sock) -> bool {
    let mut by_kernel = false;
    each_registration(fd, sock, |number, set, members, member| {
        // Room is looked for in hot members only.
        members.warm(set, member, 0);
        // PAIRS(waiters): who comes in from now on takes the lock after this, and sees what is counted.
        let is_awaited = members.nested || set.waiters.load(Ordering::SeqCst) != 0;
        let Some(record) = members.records.get_mut(&member).filter(|_| is_awaited) else { return };
        // Who sleeps has found room there, or did not look: the peer was not asked to ring.
        if !record.wants_edge_of_room() || record.is_rung_for_room(member) {
            return;
        }
        if record.events & EXCLUSIVE != 0 {
            by_kernel = true;
        } else if let Some(epfd) = set.descriptor_of(number) {
            record.rouse(set, epfd, member);
        }
    });
    by_kernel
}

/// Does something with each registration of the socket behind `fd`, under the lock of its set: the set's number, the set,
/// its members, and the number under which the socket is one.
fn each_registration(
    fd: i32,
    sock: &Sock,
    mut body: impl FnMut(usize, &'static EpollSet, &mut Members, i32),
) {
    let all = sock.epoll_refs.load(Ordering::Relaxed);
    let mut found = 0;
    for (number, set) in sets() {
        if found >= all {
            return;
        }
        set.with(|members| {
            if members.records.get(&fd).is_some_and(|record| record.is_of(sock)) {
                found += 1;
                body(number, set, members, fd);
            }
        });
    }
    if found >= all {
        return;
    }
    // It is registered under another number than the one in use.
    for (number, set) in sets() {
        set.with(|members| {
            for other in members.numbers_of(sock).into_iter().filter(|&it| it != fd) {
                body(number, set, members, other);
            }
        });
    }
}

/// epoll_ctl(2).
///
/// # Safety
/// As the C function.
pub(crate) unsafe fn ctl(epfd: i32, op: i32, fd: i32, event: *mut epoll_event) -> i32 {
    let number = match fd_table::get(epfd) {
        Known::Epoll(number) => number,
        // A set from out of our sight (inherited by exec): know it from now on.
        Known::Nothing if fd_table::sock(fd).is_some() => {
            created(epfd);
            match fd_table::get(epfd) {
                Known::Epoll(number) => number,
                // SAFETY: passed on.
                _ => return unsafe { real::epoll_ctl(epfd, op, fd, event) },
            }
        }
        // SAFETY: passed on.
        _ => return unsafe { real::epoll_ctl(epfd, op, fd, event) },
    };
    let known = fd_table::get(fd);
    let sock = match known {
        Known::Sock(sock) => Some(sock),
        _ => None,
    };
    let Some(set) = set(number) else { return -1 };
    let mut is_nested = false;
    let result = set.with(|members| {
        is_nested = members.nested;
        // SAFETY: passed on.
        let wish = unsafe { wish_of(op, event) };
        set.changes.fetch_add(1, Ordering::SeqCst);
        if wish.is_some_and(|wish| wish.events & ONCE != 0) {
            set.once.store(1, Ordering::SeqCst);
        }
        if sock.is_some_and(|sock| members.defer(set, (epfd, op, fd), sock, wish)) {
            return 0;
        }
        members.settle_before(set, wish.map(|wish| wish.u64));
        // SAFETY: passed on.
        let result = unsafe { real::epoll_ctl(epfd, op, fd, event) };
        if result == 0 {
            match wish {
                None => members.leaves(set, fd),
                Some(wish) => members.joins(set, fd, known, &wish, op),
            }
        }
        result
    });
    // PAIRS(waiters): either a wait collects the new member, or it is counted here.
    if result == Some(0)
        && op != libc::EPOLL_CTL_DEL
        && (is_nested || set.waiters.load(Ordering::SeqCst) != 0)
        && let Some(sock) = sock
    {
        joined_under_waiters(epfd, set, fd, sock);
    }
    let result = match result {
        Some(result) => result,
        // SAFETY: passed on; a signal handler's registration stays without a record.
        None => unsafe { real::epoll_ctl(epfd, op, fd, event) },
    };
    // Armed after it is there: what came before is looked for.
    if result == 0
        && op != libc::EPOLL_CTL_DEL
        && let Known::Epoll(inner) = known
    {
        nested(inner);
        awaits_room(inner);
        rouse_for_news(inner, fd);
    }
    result
}

/// What epoll_ctl(2) is to register; `None` for nothing, or where that cannot be read.
///
/// # Safety
/// `event` may be anything, but not change meanwhile.
unsafe fn wish_of(op: i32, event: *const epoll_event) -> Option<epoll_event> {
    if op == libc::EPOLL_CTL_DEL || !user_memory::can_read(event, 1) {
        return None;
    }
    // SAFETY: it can be read.
    Some(unsafe { event.read_unaligned() })
}
