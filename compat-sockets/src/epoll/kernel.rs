//! The kernel's side of a set: its events, corrected, and the bit of writability that it cannot know.

use super::deferred::settle_before_asking;
use super::hot::HotList;
use super::nested::{has_news, is_ready};
use super::{ALWAYS, EDGE, ENDS, EXCLUSIVE, EpollSet, IN, LAST, Members, ONCE, OUT, Record};
use crate::counters::{self, Counter};
use crate::side::tx;
use crate::sock::Sock;
use crate::stream::recv::{self, Readiness, readiness};
use crate::stream::{demote, full};
use crate::{raw, real, sleeps};
use libc::{epoll_event, sigset_t};
use vmmc::sync::Ordering;

/// Takes `EPOLLOUT` away in the kernel from members whose ring is full, and gives it back to
/// those that have room. True when some member waits for room.
pub(super) fn mask_full(epfd: i32, set: &EpollSet, hot: &HotList) -> bool {
    let mut waiting = false;
    for item in hot.iter() {
        if item.events & OUT == 0 {
            continue;
        }
        let mut full = item.is_full();
        if full && set.waiters.load(Ordering::SeqCst) > 1 {
            // The others may be asleep, and what follows takes their event away; who makes room from now on rings.
            item.link.arm_space();
            full = item.is_full();
        }
        waiting |= full;
        let told = set.with(|members| {
            let Some(record) = members.records.get_mut(&item.fd) else { return true };
            let refused = item.link.side.tx_refused.load(Ordering::Relaxed);
            // A send was refused and room came before we looked: an edge that waits for it.
            let missed = !full && record.events & EDGE != 0 && record.refused != refused;
            if record.spent || (full == record.masked && !missed) {
                return true;
            }
            if !full {
                record.refused = refused;
            }
            if full && record.events & EXCLUSIVE != 0 {
                return false;
            }
            if record.tell_kernel(epfd, item.fd, record.wanted(full)) {
                record.masked = full;
            }
            true
        });
        if told == Some(false) {
            // Can take a while: not under the set's lock.
            demote::our_way(&item.link, item.number);
        }
    }
    if set.full_count.load(Ordering::Relaxed) != 0 {
        waiting |= unmask_cold(epfd, set);
    }
    waiting
}

/// The same for members that wait for room and are not hot: there can be more of them than hot ones.
fn unmask_cold(epfd: i32, set: &EpollSet) -> bool {
    let mut found = full::Found::default();
    let waiting = set.with(|members| {
        let list = std::mem::take(&mut members.full);
        for fd in list {
            let Some(record) = members.records.get_mut(&fd) else { continue };
            if record.hot || record.spent {
                continue;
            }
            let Some((link, number)) = record.enter(fd) else { continue };
            link.arm_space();
            let full = link.is_full();
            let refused = link.side.tx_refused.load(Ordering::Relaxed);
            if full {
                found.keep(link, number);
                record.masked = record.masked || record.tell_kernel(epfd, fd, record.wanted(true));
                members.full.push(fd);
                continue;
            }
            link.leave();
            if record.masked || record.refused != refused {
                record.masked = !record.tell_kernel(epfd, fd, record.wanted(false));
                record.refused = refused;
            }
        }
        !members.full.is_empty()
    });
    found.look();
    waiting.unwrap_or(false)
}

/// An array of so many at most stays as it was where nothing is told. Some look into an array of one before they look at how many
/// were told, or not at that.
pub(super) const FEW: usize = 8;

/// The kernel's events from `from` on, corrected; returns their number or -1.
///
/// # Safety
/// `mask` must be null or valid.
pub(super) unsafe fn ask_kernel(
    epfd: i32,
    set: &EpollSet,
    out: &mut [epoll_event],
    from: usize,
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> i32 {
    settle_before_asking(set, timeout != Some(0));
    let (told, rest) = out.split_at_mut(from.min(out.len()));
    let mut apart = [epoll_event { events: 0, u64: 0 }; FEW];
    let is_apart = rest.len() <= FEW;
    let all = if is_apart { apart.get_mut(..rest.len()).unwrap_or_default() } else { &mut *rest };
    // SAFETY: the array is borrowed; the mask is the caller's.
    let count = unsafe { kernel_wait(epfd, all, timeout, mask) };
    if set.asleep_at.load(Ordering::Relaxed) != 0 {
        sleeps::end();
        set.asleep_at.store(0, Ordering::SeqCst);
    }
    let Ok(count) = usize::try_from(count) else { return -1 };
    let mut kept = 0;
    for at in 0..count.min(rest.len()) {
        let Some(&event) = (if is_apart { apart.get(at) } else { rest.get(at) }) else { break };
        let corrected = correct(epfd, set, event);
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
            let time = raw::timespec_of(ns);
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
fn correct(epfd: i32, set: &EpollSet, event: epoll_event) -> u32 {
    let data = event.u64;
    let found = set.with(|members| match members.by_data.get(&data) {
        None if members.departed.knows(data) => Registrant::Departed,
        Some(&(1, fd)) => {
            members.records.get(&fd).map_or(Registrant::Unknown, |it| Registrant::Member(fd, *it))
        }
        _ => Registrant::Unknown,
    });
    let (fd, record) = match found {
        // To the program it has left before this wait looked.
        Some(Registrant::Member(fd, record)) if record.gone => {
            set.with(|members| members.settle_one(set, fd));
            return 0;
        }
        Some(Registrant::Member(fd, Record { inner: Some(inner), .. })) => {
            return correct_inner(epfd, set, fd, inner, event.events);
        }
        Some(Registrant::Member(fd, record)) => (fd, record),
        Some(Registrant::Departed) => return 0,
        Some(Registrant::Unknown) | None => return event.events,
    };
    let Some((link, number)) = record.enter(fd) else {
        // A socket with rings that has no number any more is being closed by another thread.
        let closing = record.sock.is_some_and(Sock::is_active);
        if let Some(sock) = record.sock
            && !closing
            && record.events & ONCE != 0
        {
            // It may be upgraded before the program asks for it again.
            set.with(|members| {
                let kept = members.records.get_mut(&fd).filter(|kept| kept.is_of(sock));
                kept.into_iter().for_each(|kept| kept.spent = true);
            });
        }
        return if closing { 0 } else { event.events };
    };
    demote::comply(&link, number);
    if event.events & IN != 0 && record.events & ONCE == 0 && set.waiters.load(Ordering::SeqCst) > 1
    {
        // The others sleep on: what comes after this look is for one of them.
        link.arm_data();
    }
    let mut events = link.without_reset(event.events);
    let edge = record.events & EDGE != 0;
    let (mut in_ring, mut at_end) = (false, false);
    let mut prefix_told = false;
    if events & IN != 0 {
        match readiness(&link, number) {
            Readiness::NotReady => events &= !IN,
            // That the connection is over was not told with any position.
            Readiness::Ready => {
                let more = link.looks_readable(number);
                in_ring = more && !link.is_poisoned();
                at_end = !more;
            }
            Readiness::Kernel => prefix_told = edge && recv::prefix_is_here(&link, number),
        }
        events &= record.events | !IN;
    }
    // After the look at readiness: whatever it saw is told by this event.
    let position = link.arrived();
    if link.side.has_error() {
        // Taken from the kernel, not yet told to the program.
        events |= libc::EPOLLERR as u32;
    }
    let ringing = link.side.tx_state.load(Ordering::Relaxed) == tx::RING;
    let is_full = || ringing && !link.looks_writable();
    // Before the look at room: a refusal that comes later waits for an edge of its own.
    let refused = link.side.tx_refused.load(Ordering::SeqCst);
    // An edge of room that is none is used up: the ring has to make the next one.
    let mut used_up = false;
    if events & OUT != 0 && is_full() {
        // What woke us may have been for others too, and we may leave with other events.
        if record.events & (EDGE | ONCE) != 0 && set.waiters.load(Ordering::SeqCst) > 1 {
            link.arm_space();
        }
        if is_full() {
            events &= !OUT;
            used_up = record.events & (EDGE | ONCE) != 0 && record.events & EXCLUSIVE == 0;
        }
    }
    let told = in_ring || (prefix_told && record.prefix_told) || (at_end && record.last != 0);
    let mut ends = false;
    // Of one FIN the kernel makes two edges: that no more comes, and that there is something to read.
    if edge && told && position == record.reported && events & !IN & !record.last == 0 {
        // The doorbell of a change that was told already; unless it is the end, for who asked for no bit of its own. That
        // may have come after the doorbell, and makes an edge once more.
        ends = in_ring
            && record.events & libc::EPOLLRDHUP as u32 == 0
            && !record.ended
            && raw::pending_events(number, libc::POLLRDHUP) != 0;
        if !ends {
            events = 0;
        }
    }
    // What the program does not want is no event, and uses up nothing.
    events &= record.events | ALWAYS;
    set.with(|members| {
        members.warm(set, fd, 1);
        let Some(kept) = members.records.get_mut(&fd) else { return };
        kept.ended |= ends || events & ENDS != 0;
        kept.over |= events & (kept.events | ALWAYS) & ENDS != 0;
        if used_up && !kept.masked && !kept.spent {
            kept.masked = kept.tell_kernel(epfd, fd, kept.wanted(true));
            // Whoever is about to sleep has looked at room before.
            set.roused.store(1, Ordering::SeqCst);
        }
        let again = kept.masked && kept.events & ONCE == 0;
        if again && kept.kernel != kept.wanted(true) {
            // An end is told again and again.
            kept.tell_kernel(epfd, fd, kept.wanted(true));
        }
        if events & IN == kept.events & IN {
            kept.last |= events & LAST;
        }
        if events & OUT != 0 {
            kept.refused = refused;
        }
        if events & IN != 0 {
            kept.reported = position;
            kept.prefix_told = prefix_told;
        }
        if kept.events & ONCE != 0 {
            if kept.spent {
                events = 0;
            } else if events == 0 {
                // The kernel has disarmed it for something that is not an event.
                kept.tell_kernel(epfd, fd, kept.wanted(kept.masked));
            } else {
                kept.spent = true;
            }
        }
        if events == 0 {
            members.settle_one(set, fd);
        }
    });
    link.leave();
    events
}

/// The same for a member that is a set. What the kernel tells for a doorbell is no event, and uses up nothing.
fn correct_inner(epfd: i32, set: &EpollSet, fd: i32, inner: usize, events: u32) -> u32 {
    let with_record = |body: &dyn Fn(&mut Record) -> bool| {
        let of_this = |members: &mut Members| {
            members.records.get_mut(&fd).filter(|it| it.inner == Some(inner)).is_some_and(body)
        };
        set.with(of_this) == Some(true)
    };
    if events & IN == 0 || is_ready(inner) {
        let ours =
            with_record(&|it| it.events & ONCE == 0 || !std::mem::replace(&mut it.spent, true));
        return if ours { events } else { 0 };
    }
    let armed = with_record(&|it| {
        it.events & ONCE != 0 && !it.spent && it.tell_kernel(epfd, fd, it.events)
    });
    // What came before that has told of nothing.
    let claim =
        |it: &mut Record| !std::mem::replace(&mut it.spent, true) && it.tell_kernel(epfd, fd, ONCE);
    if armed && has_news(inner) && with_record(&claim) { events } else { 0 }
}

/// Whose event the kernel has reported.
enum Registrant {
    /// A member, by its descriptor.
    Member(i32, Record),
    /// One that has left the set meanwhile.
    Departed,
    /// One that we have no record of.
    Unknown,
}
