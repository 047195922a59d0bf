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
//! no record or more than one has are passed on as they are.

use crate::counters::{self, Counter};
use crate::fd_table::{self, Known, Link, Sock, state};
use crate::lock::Lock;
use crate::side::tx;
use crate::stream::demote;
use crate::stream::recv::{Readiness, readiness};
use crate::stream::wait::{adapted, shares_cpu, slept, spin};
use crate::{poll, raw, real, settings};
use libc::{epoll_event, sigset_t};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
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

/// Hot members of a set, unless more have something to tell at the same time.
const HOT: usize = 64;
/// Waits without an event after which a member is cold.
const IDLE_WAITS: u32 = 4096;
/// Every how many waits that rings alone answer the kernel is asked too.
const KERNEL_EVERY: u32 = 4;
/// Time of polling rings between two looks at the kernel, in nanoseconds.
const SPIN_PART_NS: u32 = 8_000;
/// Sets with a record at most; further ones are the kernel's alone.
const SETS: usize = 4096;

/// One registration.
#[derive(Clone, Copy, Debug)]
struct Record {
    sock: Option<&'static Sock>,
    events: u32,
    data: u64,
    /// Ring position at the last report, for edges.
    reported: u64,
    /// The kernel's registration lacks `EPOLLOUT` for now.
    masked: bool,
    /// `EPOLLONESHOT` has fired.
    spent: bool,
    /// The kernel has told of an end or an error: its bits go with every report from now on.
    ended: bool,
    /// `Side::tx_refused` when an edge of writability was last made.
    refused: u32,
    hot: bool,
    /// Waits since the last event.
    idle: u32,
}

/// Hashing of small integers; the keys are the program's own.
#[derive(Default)]
struct Multiply(u64);
impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
    fn write_i32(&mut self, value: i32) {
        self.write_u64(value as u64);
    }
}
type Map<K, V> = HashMap<K, V, BuildHasherDefault<Multiply>>;

#[derive(Default)]
struct Members {
    records: Map<i32, Record>,
    /// Registered descriptors by data; the count tells whether the data names one alone.
    by_data: Map<u64, (u32, i32)>,
    hot: Vec<i32>,
    nested: bool,
}

struct EpollSet {
    lock: Lock,
    /// Descriptors that refer to it; 0: free.
    refs: AtomicU32,
    /// Waits answered by rings alone since the kernel was asked.
    since_kernel: AtomicU32,
    /// Spin budget in nanoseconds.
    spin_ns: AtomicU32,
    /// Number of hot members, to be read without the lock.
    hot_count: AtomicU32,
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
    /// Runs `body` with the members; `None` in a signal handler that interrupted a holder.
    fn with<R>(&self, body: impl FnOnce(&mut Members) -> R) -> Option<R> {
        self.lock.lock().ok()?;
        // SAFETY: under the lock; `body` cannot keep the reference nor re-enter, since the hooks
        // it could call are not among the functions used here.
        let result = body(unsafe { &mut *self.members.get() });
        self.lock.unlock();
        Some(result)
    }
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
                spin_ns: AtomicU32::new(0),
                hot_count: AtomicU32::new(0),
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
        if set.refs.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            set.with(|members| *members = Members::default());
            set.hot_count.store(0, Ordering::Relaxed);
            set.spin_ns.store(u32::MAX, Ordering::Relaxed);
            fd_table::track_epoll(fd, number);
            return;
        }
    }
}

/// One more descriptor for a set (dup).
pub(crate) fn retain(number: usize) {
    if let Some(set) = set(number) {
        set.refs.fetch_add(1, Ordering::AcqRel);
    }
}

/// One descriptor of a set is closed.
pub(crate) fn release(number: usize) {
    let Some(set) = set(number) else { return };
    if set.refs.load(Ordering::Relaxed) == 1 {
        set.with(|members| {
            for record in members.records.values() {
                uncount(record);
            }
            *members = Members::default();
        });
        set.hot_count.store(0, Ordering::Relaxed);
    }
    set.refs.fetch_sub(1, Ordering::AcqRel);
}

/// The last known descriptor of a member is closed, and the kernel has forgotten it.
pub(crate) fn forget_fd(fd: i32, sock: &Sock) {
    // While a duplicate lives the kernel keeps the registration; so do we.
    if !fd_table::is_last(sock) {
        return;
    }
    for number in 0..SETS {
        let Some(set) = set(number) else { break };
        if set.refs.load(Ordering::Relaxed) != 0 {
            set.with(|members| members.remove(fd));
            sync_hot(set);
        }
    }
}

/// The set is watched by another epoll, poll or select: its members must ring on their own.
pub(crate) fn nested(number: usize) {
    let Some(set) = set(number) else { return };
    set.with(|members| {
        if !members.nested {
            members.nested = true;
        }
        for (&fd, record) in &members.records {
            make_eager(fd, record.sock);
        }
    });
}

/// Whether the ring of some member has an event that the kernel may not know of: bytes that were
/// there before [`nested`] armed, for which nobody rang.
pub(crate) fn has_news(number: usize) -> bool {
    let has = |fd: i32, record: &Record| {
        if record.spent || record.events & IN == 0 {
            return false;
        }
        let Some(link) = record.sock.and_then(|sock| sock.enter(fd)) else { return false };
        let Record { events, reported, ended, .. } = *record;
        let ready = Hot { fd, link, events, reported, ended }.ready() & IN != 0;
        link.leave();
        ready
    };
    let news = |members: &mut Members| members.records.iter().any(|(&fd, record)| has(fd, record));
    set(number).and_then(|set| set.with(news)).unwrap_or(false)
}

fn make_eager(fd: i32, sock: Option<&'static Sock>) {
    if let Some(link) = sock.and_then(|sock| sock.enter(fd)) {
        if link.side.eager.swap(1, Ordering::SeqCst) == 0 {
            link.arm_data();
            // Doorbells of before: nobody filters them for the outer set.
            readiness(&link, fd);
        }
        link.leave();
    }
}

/// In a forked child: nobody else holds the locks.
pub(crate) fn after_fork() {
    for number in 0..SETS {
        let Some(set) = set(number) else { break };
        set.lock.reset();
    }
}

fn sync_hot(set: &EpollSet) {
    if let Some(count) = set.with(|members| members.hot.len()) {
        set.hot_count.store(count as u32, Ordering::Relaxed);
    }
}

fn uncount(record: &Record) {
    if let Some(sock) = record.sock {
        sock.epoll_refs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Members {
    fn remove(&mut self, fd: i32) {
        let Some(record) = self.records.remove(&fd) else { return };
        uncount(&record);
        self.hot.retain(|&hot| hot != fd);
        self.unlist(record.data, fd);
    }

    fn unlist(&mut self, data: u64, fd: i32) {
        if let Some((count, _)) = self.by_data.get_mut(&data) {
            *count -= 1;
            if *count == 0 {
                self.by_data.remove(&data);
            } else if let Some((&other, _)) =
                self.records.iter().find(|(other, record)| **other != fd && record.data == data)
                && let Some((_, named)) = self.by_data.get_mut(&data)
            {
                *named = other;
            }
        }
    }

    fn insert(&mut self, fd: i32, sock: Option<&'static Sock>, event: &epoll_event) {
        let ended = self.records.get(&fd).is_some_and(|record| record.ended);
        self.remove(fd);
        let mut refused = 0;
        if let Some(link) = sock.and_then(|sock| sock.enter(fd)) {
            refused = link.side.tx_refused.load(Ordering::Relaxed);
            link.leave();
        }
        let record = Record {
            sock,
            events: event.events,
            data: event.u64,
            reported: u64::MAX,
            masked: false,
            spent: false,
            ended,
            refused,
            hot: false,
            idle: 0,
        };
        if let Some(sock) = sock {
            sock.epoll_refs.fetch_add(1, Ordering::Relaxed);
            sock.watched.store(1, Ordering::Relaxed);
        }
        self.records.insert(fd, record);
        let slot = self.by_data.entry(event.u64).or_insert((0, fd));
        *slot = (slot.0 + 1, fd);
        self.warm(fd);
    }

    /// Puts an upgraded member on the hot list.
    fn warm(&mut self, fd: i32) {
        let nested = self.nested;
        let Some(record) = self.records.get_mut(&fd) else { return };
        record.idle = 0;
        let Some(sock) = record.sock else { return };
        if record.hot || sock.state.load(Ordering::Relaxed) != state::ACTIVE {
            return;
        }
        record.hot = true;
        self.hot.push(fd);
        sock.cold.store(0, Ordering::SeqCst);
        if nested {
            make_eager(fd, Some(sock));
        }
        if self.hot.len() > HOT {
            self.cool_one();
        }
    }

    /// Makes the member that was idle longest cold.
    fn cool_one(&mut self) {
        let records = &self.records;
        let idle = |fd: &i32| records.get(fd).map_or(u32::MAX, |record| record.idle);
        if let Some(at) = (0..self.hot.len()).max_by_key(|&i| self.hot.get(i).map_or(0, idle)) {
            let fd = self.hot.swap_remove(at);
            self.cool(fd);
        }
    }

    fn cool(&mut self, fd: i32) {
        let Some(record) = self.records.get_mut(&fd) else { return };
        record.hot = false;
        let Some(link) = record.sock.and_then(|sock| sock.enter(fd)) else { return };
        link.sock.cold.store(1, Ordering::SeqCst);
        link.arm_data();
        // What is there already nobody rings for, and for room only waits of ours arm.
        let news = link.looks_readable(fd) || record.masked || !link.looks_writable();
        if news {
            link.sock.cold.store(0, Ordering::SeqCst);
            record.hot = true;
            record.idle = 0;
            self.hot.push(fd);
        }
        link.leave();
    }
}

/// The socket behind `fd` was upgraded: sets that have it look at its ring from now on.
pub(crate) fn activated(fd: i32, sock: &Sock) {
    if sock.epoll_refs.load(Ordering::Relaxed) == 0 {
        return;
    }
    for number in 0..SETS {
        let Some(set) = set(number) else { break };
        if set.refs.load(Ordering::Relaxed) != 0 {
            set.with(|members| members.warm(fd));
            sync_hot(set);
        }
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
    if let Known::Epoll(inner) = known {
        nested(inner);
    }
    let sock = match known {
        Known::Sock(sock) => Some(sock),
        _ => None,
    };
    let Some(set) = set(number) else { return -1 };
    let result = set.with(|members| {
        // SAFETY: passed on.
        let result = unsafe { real::epoll_ctl(epfd, op, fd, event) };
        if result == 0 {
            match op {
                libc::EPOLL_CTL_DEL => members.remove(fd),
                // SAFETY: the kernel has just read it from there.
                _ => members.insert(fd, sock, &unsafe { event.read_unaligned() }),
            }
        }
        result
    });
    sync_hot(set);
    match result {
        Some(result) => result,
        // SAFETY: passed on; a signal handler's registration stays without a record.
        None => unsafe { real::epoll_ctl(epfd, op, fd, event) },
    }
}

/// A hot member for the length of one wait.
#[derive(Clone, Copy)]
struct Hot {
    fd: i32,
    link: Link,
    events: u32,
    reported: u64,
    ended: bool,
}

/// Hot members for the length of one wait: on the stack, or where there are more than usual, because
/// many have bytes at once, the rest of them in `more`.
struct HotList {
    items: [Option<Hot>; HOT + 1],
    len: usize,
    more: Vec<Hot>,
}

impl HotList {
    fn collect(set: &EpollSet) -> HotList {
        let mut list = HotList { items: [None; HOT + 1], len: 0, more: Vec::new() };
        set.with(|members| {
            let Members { records, hot, .. } = members;
            for &fd in hot.iter() {
                let Some(record) = records.get(&fd) else { continue };
                if record.spent {
                    continue;
                }
                if let Some(link) = record.sock.and_then(|sock| sock.enter(fd)) {
                    let Record { events, reported, ended, .. } = *record;
                    let item = Hot { fd, link, events, reported, ended };
                    match list.items.get_mut(list.len) {
                        Some(slot) => *slot = Some(item),
                        None => list.more.push(item),
                    }
                    list.len += 1;
                }
            }
        });
        list
    }

    fn iter(&self) -> impl Iterator<Item = &Hot> {
        self.items.iter().take(self.len).flatten().chain(&self.more)
    }

    /// Whether the kernel has more to say of a member than its ring has: an end, an error.
    fn some_ended(&self) -> bool {
        self.iter().any(|hot| hot.ended || hot.link.side.shut.load(Ordering::Relaxed) != 0)
    }

    fn leave(&self) {
        for hot in self.iter() {
            hot.link.leave();
        }
    }
}

impl Hot {
    /// Events that the rings alone give.
    #[inline]
    fn ready(&self) -> u32 {
        let mut ready = 0;
        if self.events & IN != 0 && self.link.looks_readable(self.fd) {
            let edge = self.events & EDGE != 0;
            if !edge || self.position() != self.reported {
                ready |= self.events & IN;
            }
        }
        // An edge of writability is the kernel's to make.
        if self.events & OUT != 0
            && self.events & EDGE == 0
            && self.link.side.tx_state.load(Ordering::Relaxed) == tx::RING
            && self.link.looks_writable()
        {
            ready |= self.events & OUT;
        }
        ready
    }

    fn position(&self) -> u64 {
        use vmmc::word::Word;
        self.link.rx().tail().load(Ordering::Acquire)
    }

    fn is_full(&self) -> bool {
        self.events & OUT != 0
            && self.link.side.tx_state.load(Ordering::Relaxed) == tx::RING
            && !self.link.looks_writable()
    }
}

/// epoll_pwait2(2) with a relative timeout in nanoseconds, `None` for ever. `None` when the call
/// is not ours to handle.
///
/// # Safety
/// `mask` must be null or valid; `events` writable for `max` entries.
pub(crate) unsafe fn wait(
    epfd: i32,
    events: *mut epoll_event,
    max: i32,
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> Option<i32> {
    let Known::Epoll(number) = fd_table::get(epfd) else { return None };
    let set = set(number)?;
    if max <= 0 || events.is_null() || ACTIVE.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // SAFETY: the program's array.
    let out = unsafe { std::slice::from_raw_parts_mut(events, max as usize) };
    // SAFETY: passed on.
    Some(unsafe { wait_loop(epfd, set, out, timeout, mask) })
}

/// Connections ever upgraded in this process: before the first one, waits are the C library's.
pub(crate) static ACTIVE: AtomicU32 = AtomicU32::new(0);

/// # Safety
/// `mask` must be null or valid.
unsafe fn wait_loop(
    epfd: i32,
    set: &EpollSet,
    out: &mut [epoll_event],
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> i32 {
    let mut started = 0;
    loop {
        let left = match timeout {
            None => None,
            Some(0) => Some(0),
            Some(timeout) => {
                let now = raw::now_ns();
                if started == 0 {
                    started = now;
                }
                Some(timeout.saturating_sub(now.wrapping_sub(started)))
            }
        };
        let hot = HotList::collect(set);
        for item in hot.iter() {
            demote::comply(&item.link, item.fd);
        }
        // SAFETY: passed on.
        let result = unsafe { one_wait(epfd, set, &hot, out, left, mask) };
        hot.leave();
        match result {
            Some(count) => return count,
            None if left == Some(0) => return 0,
            None => {}
        }
    }
}

/// One round; `None` when nothing was left to report.
///
/// # Safety
/// `mask` must be null or valid.
unsafe fn one_wait(
    epfd: i32,
    set: &EpollSet,
    hot: &HotList,
    out: &mut [epoll_event],
    left: Option<u64>,
    mask: *const sigset_t,
) -> Option<i32> {
    let full = mask_full(epfd, set, hot);
    let kernel_turn = set.since_kernel.load(Ordering::Relaxed) >= KERNEL_EVERY;
    if kernel_turn && out.len() == 1 {
        // Room for one: rings that are always ready must not keep the others out.
        set.since_kernel.store(0, Ordering::Relaxed);
        // SAFETY: passed on.
        let count = unsafe { ask_kernel(epfd, set, out, 0, Some(0), std::ptr::null()) };
        if count != 0 {
            return Some(count);
        }
    }
    let found = take_ready(epfd, set, hot, out);
    if found > 0 {
        counters::add(Counter::epoll_ring_events, found as u64);
        set.since_kernel.fetch_add(1, Ordering::Relaxed);
        if kernel_turn || hot.some_ended() {
            set.since_kernel.store(0, Ordering::Relaxed);
            // SAFETY: passed on.
            let more = unsafe { ask_kernel(epfd, set, out, found, Some(0), mask) };
            return Some((found as i32 + more.max(0)).max(found as i32));
        }
        return Some(found as i32);
    }
    set.since_kernel.store(0, Ordering::Relaxed);
    let may_wait = left != Some(0);
    let mut ready = false;
    if may_wait && hot.len > 0 {
        // SAFETY: passed on.
        match unsafe { spin_on(epfd, set, hot, out, mask) } {
            Spun::Ring => ready = true,
            Spun::Kernel(count) => return (count != 0).then_some(count),
            Spun::Nothing => {}
        }
    }
    if ready {
        let found = take_ready(epfd, set, hot, out);
        counters::add(Counter::epoll_ring_events, found as u64);
        if found > 0 && hot.some_ended() {
            // SAFETY: passed on.
            let more = unsafe { ask_kernel(epfd, set, out, found, Some(0), mask) };
            return Some(found as i32 + more.max(0));
        }
        return (found > 0).then_some(found as i32);
    }
    if !may_wait {
        // SAFETY: passed on.
        let count = unsafe { ask_kernel(epfd, set, out, 0, Some(0), mask) };
        return (count != 0).then_some(count);
    }
    let mut quiet = true;
    for item in hot.iter() {
        item.link.side.rx_sleepers.fetch_add(1, Ordering::SeqCst);
        item.link.arm_data();
        if full && item.is_full() {
            item.link.arm_space();
        }
        quiet &= item.ready() == 0 && !demote::is_urgent(&item.link);
    }
    let sleep = match left {
        _ if !quiet => Some(0),
        left if full => Some(left.unwrap_or(u64::MAX).min(poll::ROOM_SLICE_NS)),
        left => left,
    };
    if quiet {
        counters::one(Counter::sleeps);
    }
    let before = if hot.len > 0 { raw::now_ns() } else { 0 };
    // SAFETY: passed on.
    let count = unsafe { ask_kernel(epfd, set, out, 0, sleep, mask) };
    for item in hot.iter() {
        item.link.wakes(item.fd);
    }
    if hot.len > 0 && quiet {
        slept(&set.spin_ns, before);
    }
    // With nothing to report, the clock and the rings are looked at anew: what woke us may have
    // been a doorbell.
    (count != 0).then_some(count)
}

enum Spun {
    Ring,
    Kernel(i32),
    Nothing,
}

/// Polls the rings, with a look at the kernel now and then.
///
/// # Safety
/// `mask` must be null or valid.
unsafe fn spin_on(
    epfd: i32,
    set: &EpollSet,
    hot: &HotList,
    out: &mut [epoll_event],
    mask: *const sigset_t,
) -> Spun {
    let budget = set.spin_ns.load(Ordering::Relaxed).min(settings::spin_ns());
    // Every link is told where we run, so this looks at all of them.
    let elsewhere = hot.iter().filter(|item| !shares_cpu(&item.link)).count();
    let alone = elsewhere == 0;
    let mut part = SPIN_PART_NS / 4;
    let mut spent = 0;
    while spent < budget && !alone {
        let mut turn = 0u32;
        if spin(part, || {
            // With many members each look is a look at many lines: prefetching is for one.
            if hot.len == 1 {
                for item in hot.iter() {
                    item.link.consumer().prefetch();
                }
            }
            turn += 1;
            hot.iter().any(|item| item.ready() != 0)
        }) {
            set.spin_ns.store(adapted(budget, true), Ordering::Relaxed);
            return Spun::Ring;
        }
        if turn == 0 {
            // Too many threads poll already.
            break;
        }
        spent += part;
        part = SPIN_PART_NS;
        // SAFETY: passed on.
        let count = unsafe { ask_kernel(epfd, set, out, 0, Some(0), mask) };
        if count != 0 {
            return Spun::Kernel(count);
        }
    }
    if spent >= budget && budget > 0 {
        set.spin_ns.store(adapted(budget, false), Ordering::Relaxed);
    }
    Spun::Nothing
}

/// Writes what the rings have into `out`; returns how many.
fn take_ready(epfd: i32, set: &EpollSet, hot: &HotList, out: &mut [epoll_event]) -> usize {
    if hot.len == 0 {
        return 0;
    }
    let mut found = 0;
    for item in hot.iter() {
        let ready = item.ready();
        if ready == 0 {
            continue;
        }
        let Some(slot) = out.get_mut(found) else {
            // No room for this one: it is the first next time.
            set.with(|members| members.put_first(item.fd));
            break;
        };
        let told = set.with(|members| members.report(epfd, item, ready)).flatten();
        if let Some(event) = told {
            *slot = event;
            found += 1;
        }
    }
    set.with(|members| {
        if found > 0 && hot.len > 1 {
            members.age();
        }
    });
    found
}

impl Members {
    /// The event for a member whose ring is ready, if it may be told.
    fn report(&mut self, epfd: i32, item: &Hot, ready: u32) -> Option<epoll_event> {
        let record = self.records.get_mut(&item.fd)?;
        if record.spent {
            return None;
        }
        record.idle = 0;
        if record.events & EDGE != 0 {
            let position = item.position();
            if position == record.reported {
                return None;
            }
            record.reported = position;
        }
        if record.events & ONCE != 0 {
            record.spent = true;
            kernel_mod(epfd, item.fd, ONCE, record.data);
        }
        Some(epoll_event { events: ready, u64: record.data })
    }

    /// The next wait begins with this member.
    fn put_first(&mut self, fd: i32) {
        if let Some(at) = self.hot.iter().position(|&hot| hot == fd) {
            self.hot.rotate_left(at);
        }
    }

    /// One more wait has passed; members idle for long are left to the kernel.
    fn age(&mut self) {
        let mut oldest = None;
        for &fd in &self.hot {
            if let Some(record) = self.records.get_mut(&fd) {
                record.idle = record.idle.saturating_add(1);
                if record.idle > IDLE_WAITS {
                    oldest = Some(fd);
                }
            }
        }
        if let Some(fd) = oldest {
            self.hot.retain(|&hot| hot != fd);
            self.cool(fd);
        }
    }
}

fn kernel_mod(epfd: i32, fd: i32, events: u32, data: u64) -> bool {
    let mut event = epoll_event { events, u64: data };
    raw::epoll_mod(epfd, fd, &mut event)
}

/// Takes `EPOLLOUT` away in the kernel from members whose ring is full, and gives it back to
/// those that have room. True when some member waits for room.
fn mask_full(epfd: i32, set: &EpollSet, hot: &HotList) -> bool {
    let mut waiting = false;
    for item in hot.iter() {
        if item.events & OUT == 0 {
            continue;
        }
        let full = item.is_full();
        waiting |= full;
        set.with(|members| {
            let Some(record) = members.records.get_mut(&item.fd) else { return };
            let refused = item.link.side.tx_refused.load(Ordering::Relaxed);
            // A send was refused and room came before we looked: an edge that waits for it.
            let missed = !full && record.events & EDGE != 0 && record.refused != refused;
            if record.spent || (full == record.masked && !missed) {
                return;
            }
            if !full {
                record.refused = refused;
            }
            if full && record.events & EXCLUSIVE != 0 {
                demote::our_way(&item.link, item.fd);
                return;
            }
            let events =
                if full { (record.events & !OUT) | libc::EPOLLIN as u32 } else { record.events };
            if kernel_mod(epfd, item.fd, events, record.data) {
                record.masked = full;
            }
        });
    }
    waiting
}

/// The kernel's events from `from` on, corrected; returns their number or -1.
///
/// # Safety
/// `mask` must be null or valid.
unsafe fn ask_kernel(
    epfd: i32,
    set: &EpollSet,
    out: &mut [epoll_event],
    from: usize,
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> i32 {
    let (told, rest) = out.split_at_mut(from.min(out.len()));
    // SAFETY: the array is borrowed; the mask is the caller's.
    let count = unsafe { kernel_wait(epfd, rest, timeout, mask) };
    let Ok(count) = usize::try_from(count) else { return -1 };
    let mut kept = 0;
    let mut warmed = false;
    for at in 0..count.min(rest.len()) {
        let Some(&event) = rest.get(at) else { break };
        let corrected = correct(epfd, set, event, &mut warmed);
        if corrected == 0 {
            counters::one(Counter::epoll_filtered);
            continue;
        }
        // Told already by its ring in the same call?
        if let Some(earlier) = told.iter_mut().find(|told| told.u64 == event.u64) {
            let merged = earlier.events | corrected;
            *earlier = epoll_event { events: merged, u64: event.u64 };
            continue;
        }
        if let Some(slot) = rest.get_mut(kept) {
            *slot = epoll_event { events: corrected, u64: event.u64 };
            kept += 1;
        }
    }
    if warmed {
        sync_hot(set);
    }
    kept as i32
}

/// # Safety
/// `mask` must be null or valid.
unsafe fn kernel_wait(
    epfd: i32,
    out: &mut [epoll_event],
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> i32 {
    let max = i32::try_from(out.len()).unwrap_or(i32::MAX);
    if max == 0 {
        return 0;
    }
    if timeout == Some(0) && mask.is_null() {
        return raw::epoll_now(epfd, out).map_or_else(
            |errno| {
                real::set_errno(errno);
                -1
            },
            |count| count as i32,
        );
    }
    let milliseconds = match timeout {
        None => -1,
        Some(ns) if ns.is_multiple_of(1_000_000) => {
            i32::try_from(ns / 1_000_000).unwrap_or(i32::MAX)
        }
        Some(ns) => {
            let time = poll::timespec_of(ns);
            // SAFETY: the array is borrowed, the time on this stack, the mask the caller's.
            let count =
                unsafe { real::epoll_pwait2(epfd, out.as_mut_ptr(), max, &raw const time, mask) };
            if count >= 0 || real::errno() != libc::ENOSYS {
                return count;
            }
            i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX)
        }
    };
    // SAFETY: the array is borrowed, the mask the caller's.
    unsafe { real::epoll_pwait(epfd, out.as_mut_ptr(), max, milliseconds, mask) }
}

/// What is true of one event that the kernel reported; 0: nothing.
fn correct(epfd: i32, set: &EpollSet, event: epoll_event, warmed: &mut bool) -> u32 {
    let data = event.u64;
    let found = set.with(|members| {
        let (count, fd) = *members.by_data.get(&data)?;
        let record = members.records.get(&fd)?;
        (count == 1).then_some((fd, *record))
    });
    let Some(Some((fd, record))) = found else { return event.events };
    let Some(link) = record.sock.and_then(|sock| sock.enter(fd)) else { return event.events };
    demote::comply(&link, fd);
    let mut events = link.without_reset(event.events);
    let position = {
        use vmmc::word::Word;
        link.rx().tail().load(Ordering::Acquire)
    };
    let mut in_ring = false;
    if events & IN != 0 {
        match readiness(&link, fd) {
            Readiness::NotReady => events &= !IN,
            Readiness::Ready => in_ring = link.looks_readable(fd),
            Readiness::Kernel => {}
        }
        events &= record.events | !IN;
    }
    if link.side.rx_error.load(Ordering::Relaxed) != 0 {
        // Taken from the kernel, not yet told to the program.
        events |= libc::EPOLLERR as u32;
    }
    let ringing = link.side.tx_state.load(Ordering::Relaxed) == tx::RING;
    if events & OUT != 0 && ringing && !link.looks_writable() {
        events &= !OUT;
    }
    if in_ring && record.events & EDGE != 0 && position == record.reported && events & !IN == 0 {
        // The doorbell of a change that was told already.
        events = 0;
    }
    set.with(|members| {
        members.warm(fd);
        let Some(kept) = members.records.get_mut(&fd) else { return };
        kept.ended |= events & ENDS != 0;
        if events & IN != 0 && in_ring {
            kept.reported = position;
        }
        if kept.events & ONCE != 0 {
            if kept.spent {
                events = 0;
            } else if events == 0 {
                // The kernel has disarmed it for something that is not an event.
                kernel_mod(epfd, fd, kept.events & !if ringing { OUT } else { 0 }, kept.data);
            } else {
                kept.spent = true;
            }
        }
    });
    *warmed = true;
    link.leave();
    events & (record.events | ALWAYS)
}
