//! Waiting for events: rings first, then the kernel.

use super::departed::waiter_leaves;
use super::hot::{Hot, HotList};
use super::kernel::{ask_kernel, mask_full};
use super::{EDGE, EpollSet, Members, ONCE, calm, set};
use crate::counters::{self, Counter};
use crate::fd_table::{self, Known};
use crate::stream::demote;
use crate::stream::wait::{adapted, shares_cpu, slept, spin};
use crate::{poll, raw, settings, sleeps};
use libc::{epoll_event, sigset_t};
use vmmc::sync::{AtomicU32, Ordering};

/// Every how many waits that rings alone answer the kernel is asked too.
const KERNEL_EVERY: u32 = 4;
/// Time of polling rings between two looks at the kernel, in nanoseconds.
const SPIN_PART_NS: u32 = 8_000;

/// Somebody who waits in the C library, counted in the set: a change must not be kept from its sleep.
pub(crate) struct Outside(&'static EpollSet);

impl Drop for Outside {
    fn drop(&mut self) {
        waiter_leaves(self.0);
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
) -> Result<i32, Option<Outside>> {
    let Known::Epoll(number) = fd_table::get(epfd) else { return Err(None) };
    let set = set(number).ok_or(None)?;
    if max <= 0 || events.is_null() {
        return Err(None);
    }
    if ACTIVE.load(Ordering::Relaxed) == 0 {
        // PAIRS(waiters): who defers a change has counted its connection before it looks for waiters.
        set.waiters.fetch_add(1, Ordering::SeqCst);
        let outside = Outside(set);
        if ACTIVE.load(Ordering::SeqCst) == 0 {
            return Err(Some(outside));
        }
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
        // PAIRS(waiters): before the members are collected.
        set.waiters.fetch_add(1, Ordering::SeqCst);
        let hot = HotList::collect(set);
        for item in hot.iter() {
            demote::comply(&item.link, item.number);
        }
        // SAFETY: passed on.
        let result = unsafe { one_wait(epfd, set, &hot, out, left, mask) };
        hot.leave();
        waiter_leaves(set);
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
    if set.roused.load(Ordering::Relaxed) != 0 {
        calm(epfd, set);
    }
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
        if kernel_turn || hot.kernel_knows_more() {
            set.since_kernel.store(0, Ordering::Relaxed);
            // SAFETY: passed on.
            return Some(unsafe { add_from_kernel(epfd, set, hot, out, found, mask) });
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
        if found > 0 && hot.kernel_knows_more() {
            // SAFETY: passed on.
            return Some(unsafe { add_from_kernel(epfd, set, hot, out, found, mask) });
        }
        return (found > 0).then_some(found as i32);
    }
    if !may_wait {
        // SAFETY: passed on.
        let count = unsafe { ask_kernel(epfd, set, out, 0, Some(0), mask) };
        return (count != 0).then_some(count);
    }
    let mut quiet = true;
    // With one member there is nothing to save.
    if hot.len > 1 {
        set.asleep_at.store(epfd as u32 + 1, Ordering::SeqCst);
    }
    let sleep = if hot.len > 1 { sleeps::begin() } else { 0 };
    for item in hot.iter() {
        let others = item.link.side.rx_sleepers.fetch_add(1, Ordering::SeqCst);
        let alone = others == 0 && item.wakes_this_set_alone();
        item.link.arm_data_for(if alone { sleep } else { 0 });
        if full && item.is_full() {
            item.link.arm_space();
        }
        quiet &= item.ready() == 0 && !demote::is_urgent(&item.link);
    }
    let most = match left {
        _ if !quiet => Some(0),
        left if full => Some(left.unwrap_or(u64::MAX).min(poll::ROOM_SLICE_NS)),
        left => left,
    };
    if quiet {
        counters::one(Counter::sleeps);
    }
    let before = if hot.len > 0 { raw::now_ns() } else { 0 };
    // SAFETY: passed on.
    let count = unsafe { ask_kernel(epfd, set, out, 0, most, mask) };
    for item in hot.iter() {
        item.link.wakes(item.number);
    }
    if hot.len > 0 && quiet {
        slept(&set.spin_ns, before);
    }
    // With nothing to report, the clock and the rings are looked at anew: what woke us may have
    // been a doorbell.
    (count != 0).then_some(count)
}

/// Adds what the kernel has to the first `found` events, which the rings gave; returns how many
/// there are.
///
/// # Safety
/// `mask` must be null or valid.
unsafe fn add_from_kernel(
    epfd: i32,
    set: &EpollSet,
    hot: &HotList,
    out: &mut [epoll_event],
    found: usize,
    mask: *const sigset_t,
) -> i32 {
    if found == out.len() {
        // The set can tell nothing more, but these members' own events must be whole: a program
        // that takes one event at a time would hear of room for ever and never of the end.
        for item in hot.iter() {
            let data = set.with(|members| members.records.get(&item.fd).map(|kept| kept.data));
            let Some(Some(data)) = data else { continue };
            if let Some(event) = out.iter_mut().find(|event| event.u64 == data) {
                *event = epoll_event { events: event.events | item.kernel_adds(), u64: data };
            }
        }
        return found as i32;
    }
    // SAFETY: passed on.
    let more = unsafe { ask_kernel(epfd, set, out, found, Some(0), mask) };
    found as i32 + more.max(0)
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
            record.tell_kernel(epfd, item.fd, ONCE);
        }
        Some(epoll_event { events: ready, u64: record.data })
    }
}
