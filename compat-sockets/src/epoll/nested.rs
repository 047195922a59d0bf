//! Sets that are watched by another set, by poll or by select: the kernel must tell of their
//! members without our help.

use super::hot::Hot;
use super::{IN, Members, Record, set};
use crate::fd_table::Link;
use crate::stream::recv::readiness;
use vmmc::sync::Ordering;

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

/// Whether the ring of some member has an event that the kernel may not know of: bytes that were
/// there before [`nested`] armed, for which nobody rang.
pub(crate) fn has_news(number: usize) -> bool {
    let has = |fd: i32, record: &Record| {
        if record.spent || record.events & IN == 0 {
            return false;
        }
        let Some((link, number)) = record.enter(fd) else { return false };
        let Record { events, reported, ended, .. } = *record;
        let ready = Hot { fd, number, link, events, reported, ended }.ready() & IN != 0;
        link.leave();
        ready
    };
    let news = |members: &mut Members| members.records.iter().any(|(&fd, record)| has(fd, record));
    set(number).and_then(|set| set.with(news)).unwrap_or(false)
}

pub(super) fn make_eager(link: &Link, number: i32) {
    if link.side.eager.swap(1, Ordering::SeqCst) == 0 {
        link.arm_data();
        // Doorbells of before: nobody filters them for the outer set.
        readiness(link, number);
    }
}
