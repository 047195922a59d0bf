//! Sets that are watched by another set, by poll or by select: the kernel must tell of their
//! members without our help.
//!
//! So members of such a set are armed all the time, and what comes rings. What was there before they were
//! armed has not rung, and never will:
//! * whoever sleeps meanwhile is woken by an event of room, as by [`super::rouse`] ([`rouse_for_news`]);
//! * poll, select, and waits in the outer set look at the rings of the inner set's members themselves
//!   ([`has_news`], [`inner_events`]), each time, because what is level-triggered is told as long as it is there.
//!
//! Whether a ring is full the kernel cannot know. A wait in the set itself takes the kernel's bit of writability away, and
//! gives it back ([`super::kernel::mask_full`]); whoever waits around the set does the same ([`awaits_room`]).
//!
//! A doorbell that is still in the kernel's queue when its bytes have been read is no event: when the kernel tells of
//! an inner set, it is asked again without doorbells ([`is_ready`]).

use super::hot::Hot;
use super::{EDGE, EXCLUSIVE, EpollSet, IN, Members, ONCE, OUT, Record, calm, set, sets};
use crate::raw;
use crate::side::NESTED;
use crate::sock::{Link, Sock};
use crate::stream::full;
use crate::stream::recv::readiness;
use libc::epoll_event;
use vmmc::sync::Ordering;

/// Members of an inner set up to which each is looked at when the kernel tells of the set. A larger one may be told of
/// for a doorbell alone.
const LOOKED_AT: usize = 64;

/// The set is watched by another epoll, poll or select: its members must ring on their own.
pub(crate) fn nested(number: usize) {
    let Some(set) = set(number) else { return };
    set.with(|members| {
        if !members.nested {
            members.nested = true;
            members.settle_all(set);
        }
        for (&fd, record) in &members.records {
            if let Some((link, number)) = record.enter(fd) {
                make_eager(&link, number);
                link.leave();
            }
        }
    });
}

/// Whether the ring of a member has an event that the kernel may not know of: bytes that were there before
/// [`nested`] armed, for which nobody rang.
pub(super) fn has_event(fd: i32, record: &Record) -> bool {
    if record.spent || record.gone || record.events & IN == 0 {
        return false;
    }
    let Some((link, number)) = record.enter(fd) else { return false };
    let Record { events, reported, ended, .. } = *record;
    let ready = Hot { fd, number, link, events, reported, ended }.ready() & IN != 0;
    link.leave();
    ready
}

/// Whether some member has rings, or a member of a set that is a member.
pub(crate) fn has_rings(number: usize) -> bool {
    let Some(set) = set(number) else { return false };
    let own = |members: &mut Members| {
        members.records.values().any(|record| record.sock.is_some_and(Sock::is_active))
    };
    set.with(own).unwrap_or(true) || inner_sets(set).into_iter().any(has_rings)
}

/// Whether some member has such an event, or a member of a set that is a member.
pub(crate) fn has_news(number: usize) -> bool {
    let Some(set) = set(number) else { return false };
    let own =
        |members: &mut Members| members.records.iter().any(|(&fd, record)| has_event(fd, record));
    set.with(own).unwrap_or(false) || !inner_events(set).is_empty()
}

/// Wakes whoever sleeps for the set, which has this descriptor, if some member has such an event.
pub(super) fn rouse_for_news(number: usize, epfd: i32) {
    let Some(set) = set(number) else { return };
    set.with(|members| {
        for (&fd, record) in members.records.iter_mut() {
            if has_event(fd, record) {
                record.rouse(set, epfd, fd);
            }
        }
    });
}

/// The sets that are members.
fn inner_sets(set: &EpollSet) -> Vec<usize> {
    if set.inner_count.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    set.with(|Members { inner, records, .. }| {
        inner.iter().filter_map(|fd| records.get(fd)?.inner).collect()
    })
    .unwrap_or_default()
}

/// Somebody looks at the set from outside, or is about to sleep there: makes the kernel's bit of writability true for its
/// members and those of sets in it, and arms the full ones. True when some wait for room: the doorbell for it may be
/// impossible, as for every other sleep.
pub(crate) fn awaits_room(number: usize) -> bool {
    let Some(set) = set(number) else { return false };
    let Some(epfd) = set.descriptor_of(number) else { return false };
    let mut found = full::Found::default();
    let waiting = set.with(|members| {
        let Members { records, full: listed, .. } = members;
        let mut waiting = false;
        for (&fd, record) in records.iter_mut() {
            let asks = record.events & OUT != 0 && record.events & EXCLUSIVE == 0;
            if !asks || record.spent || record.gone {
                continue;
            }
            let Some((link, number)) = record.enter(fd) else { continue };
            let mut full = link.is_full();
            if full {
                link.arm_space();
                // Who makes room from now on rings.
                full = link.is_full();
            }
            let refused = link.side.tx_refused.load(Ordering::Relaxed);
            if full {
                found.keep(link, number);
            } else {
                link.leave();
            }
            waiting |= full;
            if full != record.masked && record.tell_kernel(epfd, fd, record.wanted(full)) {
                record.masked = full;
                if !full {
                    record.refused = refused;
                } else if !record.hot && !listed.contains(&fd) {
                    listed.push(fd);
                }
            }
        }
        waiting
    });
    found.look();
    inner_await_room(set) | (waiting == Some(true))
}

/// The same of the sets that are members.
pub(super) fn inner_await_room(set: &EpollSet) -> bool {
    inner_sets(set).into_iter().fold(false, |waiting, inner| waiting | awaits_room(inner))
}

/// Events of the members that are sets and have news. An edge is the kernel's to make, and so is what is told once.
pub(super) fn inner_events(set: &EpollSet) -> Vec<epoll_event> {
    if set.inner_count.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    let level = |record: &&Record| record.events & IN != 0 && record.events & (EDGE | ONCE) == 0;
    // Looked at without the lock: one set's at a time.
    let inner: Vec<Record> = set
        .with(|members| {
            let Members { inner, records, .. } = members;
            // Where there is room for one, each has its turn.
            if inner.len() > 1 {
                inner.rotate_left(1);
            }
            inner.iter().filter_map(|fd| records.get(fd).filter(level)).copied().collect()
        })
        .unwrap_or_default();
    inner
        .into_iter()
        .filter(|record| record.inner.is_some_and(has_news))
        .map(|record| epoll_event { events: record.events & IN, u64: record.data })
        .collect()
}

/// The last descriptor of a set is closed: sets that have it lose it.
pub(super) fn forget_inner(number: usize) {
    for (_, outer) in sets().filter(|(_, set)| set.inner_count.load(Ordering::Relaxed) != 0) {
        outer.with(|members| {
            let Members { inner, records, .. } = members;
            let is_it = |fd: &i32| records.get(fd).is_some_and(|it| it.inner == Some(number));
            for fd in inner.iter().copied().filter(is_it).collect::<Vec<_>>() {
                members.leaves(outer, fd);
            }
        });
    }
}

/// Whether an inner set of which the kernel has told is ready indeed. Throws doorbells away that are all there is.
pub(crate) fn is_ready(number: usize) -> bool {
    let Some(set) = set(number) else { return true };
    if set.with(|members| members.records.len() > LOOKED_AT).unwrap_or(true) {
        return true;
    }
    let links: Vec<(Link, i32)> = set
        .with(|members| members.records.iter().filter_map(|(&fd, it)| it.enter(fd)).collect())
        .unwrap_or_default();
    for (link, number) in links {
        readiness(&link, number);
        link.leave();
    }
    if has_news(number) {
        return true;
    }
    awaits_room(number);
    let Some(epfd) = set.descriptor_of(number) else { return true };
    // Who was to be woken by it is awake; what it was for has been read.
    if set.roused.load(Ordering::SeqCst) != 0 && set.waiters.load(Ordering::SeqCst) == 0 {
        calm(epfd, set);
    }
    raw::pending_events(epfd, libc::POLLIN) != 0
}

pub(super) fn make_eager(link: &Link, number: i32) {
    if link.side.eager.fetch_or(NESTED, Ordering::SeqCst) & NESTED == 0 {
        link.arm_data();
        // Doorbells of before: nobody filters them for the outer set.
        readiness(link, number);
    }
}
