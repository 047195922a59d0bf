//! Waiting for events: rings first, then the kernel.

use super::departed::waiter_leaves;
use super::hot::{HOT, Hot, HotList};
use super::kernel::{FEW, ask_kernel, mask_full};
use super::nested::{inner_await_room, inner_events};
use super::{EDGE, EpollSet, IN, Members, ONCE, calm, set};
use crate::counters::{self, Counter};
use crate::fd_table::{self, Known};
use crate::few::Few;
use crate::poll::RoomSlices;
use crate::stream::give_way::Gave;
use crate::stream::spin::{spin, within};
use crate::stream::wait::shares_cpu;
use crate::stream::{bells, demote, full, second_look};
use crate::{raw, real, sleeps, user_memory};
use libc::{epoll_event, sigset_t};
use vmmc::sync::{AtomicU32, Ordering};

/// Every how many waits that rings alone answer the kernel is asked too.
const KERNEL_EVERY: u32 = 4;
/// Time of polling rings between two looks at the kernel, in nanoseconds.
const SPIN_PART_NS: u32 = 8_000;

/// Somebody who waits, counted in the set: a change must not be kept from its sleep. Cancelled, too, it waits no longer.
pub(crate) struct Waiter {
    set: &'static EpollSet,
    /// [`EpollSet::changes`] when it came.
    changes: u32,
}

impl Waiter {
    fn comes(set: &'static EpollSet) -> Waiter {
        set.waiters.fetch_add(1, Ordering::SeqCst);
        Waiter { set, changes: set.changes.load(Ordering::SeqCst) }
    }

    /// The C library's wait has given so many events (-1: an error): of those that are told once it is noted, because the
    /// connection may be upgraded before the program asks for the next. Not where the registration was changed meanwhile, which may
    /// have been that: what is told once too often does less harm than what is told never.
    ///
    /// # Safety
    /// `events` must have as many.
    pub(crate) unsafe fn was_told(&self, events: *const epoll_event, count: i32) {
        let set = self.set;
        if count > 0 && set.once.load(Ordering::SeqCst) != 0 {
            // SAFETY: the caller's word.
            let events = unsafe { std::slice::from_raw_parts(events, count as usize) };
            set.with(|members| members.were_told(events, self.changes));
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        waiter_leaves(self.set);
    }
}

/// Asleep for all members that are looked at, as long as it lives, also when the thread is cancelled.
struct Asleep<'a> {
    hot: &'a HotList,
    /// Of the first ones, for which it counts by now: whether it is for room, too.
    for_room: Few<bool, { HOT + 1 }>,
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        for (item, &for_room) in self.hot.iter().zip(self.for_room.as_slice()) {
            item.link.wakes(item.number);
            if for_room {
                bells::has_slept_for_room(&item.link);
            }
            // The others' must be thrown away before they can sleep again.
            if item.events & EDGE != 0 || item.events & IN == 0 {
                bells::drain_many(&item.link, item.number);
            }
        }
    }
}

/// epoll_pwait2(2) with a relative timeout in nanoseconds, `None` for ever. `Err` when the call is not ours
/// to handle; what it holds is dropped when the C library's has returned.
///
/// # Safety
/// `mask` must be null or valid; `events` writable for `max` entries.
pub(crate) unsafe fn wait(
    epfd: i32,
    events: *mut epoll_event,
    max: i32,
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> Result<i32, Option<Waiter>> {
    let Known::Epoll(number) = fd_table::get(epfd) else { return Err(None) };
    let set = set(number).ok_or(None)?;
    if max <= 0 || events.is_null() {
        return Err(None);
    }
    second_look::waits_for_many();
    if ACTIVE.load(Ordering::Relaxed) == 0 {
        // PAIRS(waiters): who defers a change has counted its connection before it looks for waiters.
        let outside = Waiter::comes(set);
        if ACTIVE.load(Ordering::SeqCst) == 0 {
            return Err(Some(outside));
        }
    }
    // A program may say that its array is longer than its memory.
    if !user_memory::can_write(events, FEW.min(max as usize)) {
        real::set_errno(libc::EFAULT);
        return Ok(-1);
    }
    // SAFETY: the program's array.
    let out = unsafe { std::slice::from_raw_parts_mut(events, max as usize) };
    // SAFETY: passed on.
    Ok(unsafe { wait_loop(epfd, set, out, timeout, mask) })
}

/// Connections ever upgraded in this process: before the first one, waits are the C library's.
pub(crate) static ACTIVE: AtomicU32 = AtomicU32::new(0);

/// # Safety
/// `mask` must be null or valid.
unsafe fn wait_loop(
    epfd: i32,
    set: &'static EpollSet,
    out: &mut [epoll_event],
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> i32 {
    let mut started = 0;
    let mut slices = RoomSlices::new();
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
        // PAIRS(waiters): before the members are collected.
        let waiter = Waiter::comes(set);
        // Who was roused before is among them, and who is from now on ends the sleep.
        let calmed = match set.roused.load(Ordering::SeqCst) {
            0 => Vec::new(),
            _ => calm(epfd, set),
        };
        let hot = HotList::collect(set);
        for item in hot.iter() {
            demote::comply(&item.link, item.number);
            if item.is_full() {
                full::goes_on_by_tcp(&item.link, item.number, None);
            }
        }
        let inner = inner_events(set);
        let left = if inner.is_empty() { left } else { Some(0) };
        // The inner sets and the other members have their turn: the last place is for the one or the other.
        let inner_first = set.since_kernel.load(Ordering::Relaxed) % 2 == 1;
        let others = out.len() - usize::from(!inner.is_empty() && inner_first);
        let mut result = None;
        if let Some(out) = out.get_mut(..others).filter(|out| !out.is_empty()) {
            // SAFETY: passed on.
            result = unsafe { one_wait(epfd, set, &hot, out, left, &mut slices, mask) };
        }
        if !inner.is_empty() {
            set.since_kernel.fetch_add(1, Ordering::Relaxed);
            result = with_inner(out, result, &inner);
        }
        drop(hot);
        if (result.is_some() || left == Some(0)) && !calmed.is_empty() {
            pass_on(epfd, set, &calmed);
        }
        drop(waiter);
        match result {
            Some(count) => return count,
            None if left == Some(0) => return 0,
            None => {}
        }
    }
}

/// Members were roused for whoever sleeps, and this thread, which came before he woke, leaves with something else.
#[cold]
fn pass_on(epfd: i32, set: &EpollSet, calmed: &[i32]) {
    if set.waiters.load(Ordering::SeqCst) > 1 {
        set.with(|members| {
            for fd in calmed {
                if let Some(record) = members.records.get_mut(fd).filter(|record| !record.spent) {
                    record.rouse(set, epfd, *fd);
                }
            }
        });
    }
}

/// The events of one round and those of inner sets, as far as there is room.
fn with_inner(out: &mut [epoll_event], told: Option<i32>, inner: &[epoll_event]) -> Option<i32> {
    let Ok(mut count) = usize::try_from(told.unwrap_or(0)) else { return told };
    for event in inner {
        let known = out.iter().take(count).any(|known| known.u64 == event.u64);
        if !known && let Some(slot) = out.get_mut(count) {
            *slot = *event;
            count += 1;
        }
    }
    Some(count as i32)
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
    slices: &mut RoomSlices,
    mask: *const sigset_t,
) -> Option<i32> {
    let full = mask_full(epfd, set, hot) | inner_await_room(set);
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
    // Where there is room for more, one place is kept for what they would keep out.
    let kept = usize::from(kernel_turn && out.len() > 1);
    let found = take_ready(epfd, set, hot, out, kept);
    if found.count > 0 {
        // SAFETY: passed on.
        return Some(unsafe { tell(epfd, set, hot, out, &found, kernel_turn, mask) });
    }
    let may_wait = left != Some(0);
    let mut left = left;
    let mut ready = false;
    let mut spins = may_wait && hot.len() > 0;
    if spins {
        if set.yields.is_due(left) {
            // What the kernel has already does not wait for the others' turn.
            // SAFETY: passed on.
            let count = unsafe { ask_kernel(epfd, set, out, 0, Some(0), mask) };
            if count != 0 {
                return Some(count);
            }
        }
        let gave = set.yields.give_way(&mut left, || hot.iter().any(|item| item.ready() != 0));
        match gave {
            Gave::Interrupted => {
                real::set_errno(libc::EINTR);
                return Some(-1);
            }
            Gave::Ready => ready = true,
            Gave::Nothing | Gave::Sleep => {}
        }
        spins = gave == Gave::Nothing;
    }
    if spins {
        // SAFETY: passed on.
        match unsafe { spin_on(epfd, set, hot, out, left, mask) } {
            Spun::Ring => ready = true,
            Spun::Kernel(count) => return (count != 0).then_some(count),
            Spun::Late => return None,
            Spun::Nothing => {}
        }
    }
    if ready {
        let found = take_ready(epfd, set, hot, out, kept);
        // SAFETY: passed on.
        return (found.count > 0)
            .then(|| unsafe { tell(epfd, set, hot, out, &found, kernel_turn, mask) });
    }
    set.since_kernel.store(0, Ordering::Relaxed);
    if !may_wait {
        // SAFETY: passed on.
        let count = unsafe { ask_kernel(epfd, set, out, 0, Some(0), mask) };
        return (count != 0).then_some(count);
    }
    // Somebody was refused, or asks for something else, since this round began: the event that was to end the sleep may be one
    // of those that the looks before it found to be none.
    let roused = set.roused.load(Ordering::SeqCst) != 0;
    // Who was full may have room since, which an edge would tell the kernel's set only.
    let full = (full || roused) && (mask_full(epfd, set, hot) | inner_await_room(set));
    let (mut quiet, mut rung, mut owes_fin) = (!roused, true, false);
    // With one member there is nothing to save.
    if hot.len() > 1 {
        set.asleep_at.store(epfd as u32 + 1, Ordering::SeqCst);
    }
    let sleep = if hot.len() > 1 { sleeps::begin() } else { 0 };
    let mut asleep = Asleep { hot, for_room: Few::new() };
    for item in hot.iter() {
        let others = item.link.side.rx_sleepers.fetch_add(1, Ordering::SeqCst);
        let for_room = full && item.is_full();
        asleep.for_room.push(for_room);
        // Who wants room alone is not woken by data, and looks after the rest by himself.
        if !for_room || item.events & IN != 0 {
            let alone = others == 0 && item.wakes_this_set_alone();
            item.link.arm_data_for(if alone { sleep } else { 0 });
        }
        if for_room {
            bells::sleeps_for_room(&item.link);
            item.link.arm_space();
            rung &= item.link.is_rung_for_room();
            // Who makes room from now on rings.
            quiet &= item.is_full();
        }
        quiet &= item.ready() == 0 && !demote::is_urgent(&item.link);
        owes_fin |= item.link.owes_fin();
    }
    let most = match left {
        _ if !quiet => Some(0),
        // Nobody rings when a daemon has done that sends in front of our end.
        left if full || owes_fin => Some(slices.next(left, rung && !owes_fin)),
        left => left,
    };
    if quiet {
        counters::one(Counter::sleeps);
    }
    let before = if hot.len() > 0 { raw::now_ns() } else { 0 };
    // SAFETY: passed on.
    let count = unsafe { ask_kernel(epfd, set, out, 0, most, mask) };
    drop(asleep);
    if hot.len() > 0 && quiet {
        set.spins.slept(before);
    }
    // With nothing to report, the clock and the rings are looked at anew: what woke us may have
    // been a doorbell.
    (count != 0).then_some(count)
}

/// What the rings gave; every few waits, and where it may know more of a member, with what the kernel has.
///
/// # Safety
/// `mask` must be null or valid.
unsafe fn tell(
    epfd: i32,
    set: &EpollSet,
    hot: &HotList,
    out: &mut [epoll_event],
    rings: &Taken,
    kernel_turn: bool,
    mask: *const sigset_t,
) -> i32 {
    set.since_kernel.fetch_add(1, Ordering::Relaxed);
    if !kernel_turn && !hot.kernel_knows_more() {
        return rings.count as i32;
    }
    set.since_kernel.store(0, Ordering::Relaxed);
    // SAFETY: passed on.
    unsafe { add_from_kernel(epfd, set, hot, out, rings, mask) }
}

/// Adds what the kernel has to the first events, which the rings gave; returns how many there are.
///
/// # Safety
/// `mask` must be null or valid.
unsafe fn add_from_kernel(
    epfd: i32,
    set: &EpollSet,
    hot: &HotList,
    out: &mut [epoll_event],
    rings: &Taken,
    mask: *const sigset_t,
) -> i32 {
    // SAFETY: passed on.
    let more = unsafe { ask_kernel(epfd, set, out, rings.count, Some(0), mask) };
    let mut count = rings.count + more.max(0) as usize;
    if count < out.len() && rings.next < hot.len() {
        // The place that was kept for the kernel it has not used: what it told of was told already.
        count +=
            take_from(epfd, set, hot, out.get_mut(count..).unwrap_or_default(), rings.next).count;
    }
    if rings.count < out.len() && rings.next == hot.len() {
        return count as i32;
    }
    // There is no room for all that the kernel would tell, but these members' own events must be whole: a program
    // that takes one event at a time would hear of room for ever and never of the end.
    for item in hot.iter() {
        let data = set.with(|members| members.records.get(&item.fd).map(|kept| kept.data));
        let Some(Some(data)) = data else { continue };
        if let Some(event) = out.iter_mut().take(count).find(|event| event.u64 == data) {
            *event = epoll_event { events: event.events | item.kernel_adds(), u64: data };
        }
    }
    count as i32
}

enum Spun {
    Ring,
    Kernel(i32),
    Nothing,
    /// The wait's time is over, or nearly.
    Late,
}

/// Polls the rings in the time that is left, with a look at the kernel now and then.
///
/// # Safety
/// `mask` must be null or valid.
unsafe fn spin_on(
    epfd: i32,
    set: &EpollSet,
    hot: &HotList,
    out: &mut [epoll_event],
    left: Option<u64>,
    mask: *const sigset_t,
) -> Spun {
    // Every link is told where we run, so this looks at all of them.
    let elsewhere = hot.iter().filter(|item| !shares_cpu(&item.link)).count();
    if elsewhere == 0 {
        return Spun::Nothing;
    }
    let whole = set.spins.budget();
    let budget = within(whole, left);
    let mut part = SPIN_PART_NS / 4;
    let mut spent = 0u32;
    while spent < budget {
        let polled = spin(part, || {
            // With many members each look is a look at many lines: prefetching is for one.
            if hot.len() == 1 {
                for item in hot.iter() {
                    item.link.consumer().prefetch();
                }
            }
            hot.iter().any(|item| item.ready() != 0)
        });
        match polled {
            Some(true) => {
                set.spins.spun(true);
                return Spun::Ring;
            }
            Some(false) => {}
            None => return Spun::Nothing, // too many threads poll already
        }
        spent = spent.saturating_add(part);
        part = SPIN_PART_NS;
        // SAFETY: passed on.
        let count = unsafe { ask_kernel(epfd, set, out, 0, Some(0), mask) };
        if count != 0 {
            return Spun::Kernel(count);
        }
    }
    if budget < whole {
        return Spun::Late;
    }
    if spent >= budget && budget > 0 {
        set.spins.spun(false);
    }
    Spun::Nothing
}

/// What the rings gave one wait.
struct Taken {
    /// Events.
    count: usize,
    /// The first member for which there was no room, by its place in the list; the list's length: none.
    next: usize,
}

/// Writes what the rings have into `out` but for its last `kept` places.
fn take_ready(
    epfd: i32,
    set: &EpollSet,
    hot: &HotList,
    out: &mut [epoll_event],
    kept: usize,
) -> Taken {
    if hot.len() == 0 {
        return Taken { count: 0, next: 0 };
    }
    let room = out.len().saturating_sub(kept);
    let taken = take_from(epfd, set, hot, out.get_mut(..room).unwrap_or_default(), 0);
    if taken.count > 0 && hot.len() > 1 {
        set.with(Members::age);
    }
    taken
}

/// Writes what the rings have into `out`, from the member at this place in the list on.
fn take_from(
    epfd: i32,
    set: &EpollSet,
    hot: &HotList,
    out: &mut [epoll_event],
    from: usize,
) -> Taken {
    let mut count = 0;
    let mut next = hot.len();
    for (at, item) in hot.iter().enumerate().skip(from) {
        let ready = item.ready();
        if ready == 0 {
            continue;
        }
        let Some(slot) = out.get_mut(count) else {
            // No room for this one: it is the first next time.
            set.with(|members| members.put_first(item.fd));
            next = at;
            break;
        };
        let told = set.with(|members| members.report(epfd, item, ready)).flatten();
        if let Some(event) = told {
            *slot = event;
            count += 1;
        }
    }
    counters::add(Counter::epoll_ring_events, count as u64);
    Taken { count, next }
}

impl Members {
    /// The event for a member whose ring is ready, if it may be told.
    fn report(&mut self, epfd: i32, item: &Hot, ready: u32) -> Option<epoll_event> {
        // Another thread may have changed the registration, or put another socket in its place.
        let record = self.records.get_mut(&item.fd).filter(|it| it.is_of(item.link.sock))?;
        let ready = ready & record.events;
        if record.spent || ready == 0 {
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
        let mut events = ready;
        if record.events & ONCE != 0 {
            // It is told with this event or not at all.
            events |= item.ends();
            record.spent = true;
            record.tell_kernel(epfd, item.fd, ONCE);
        }
        Some(epoll_event { events, u64: record.data })
    }
}
