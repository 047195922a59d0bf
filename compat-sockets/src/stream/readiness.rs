//! What can be received, for who asks without receiving: pollers, `FIONREAD`, `SIOCATMARK`.

use super::bells::{self, Drained, Which};
use super::source::{Source, available, meaningless, source};
use crate::carrier;
use crate::side::rx;
use crate::sock::Link;
use vmmc::sync::Ordering;
use vmmc_ring::switch::Standing;

/// What a poller should report for `POLLIN`, and whether kernel readability counts: drains
/// doorbells if the ring is empty. Takes the rx lock.
pub(crate) fn readiness(link: &Link, fd: i32) -> Readiness {
    if link.side.rx_lock.lock().is_err() {
        return Readiness::Kernel;
    }
    let answer = match source(link, fd) {
        // The last doorbells may have been thrown away since the kernel answered, by us or by another thread or process.
        Source::Ended | Source::Tcp { .. }
            if was_ring(link) && crate::raw::pending_events(fd, libc::POLLIN) == 0 =>
        {
            Readiness::NotReady
        }
        Source::Tcp { .. } | Source::Prefix(_) | Source::Ended => Readiness::Kernel,
        Source::Ring(_) | Source::Poisoned => Readiness::Ready,
        Source::Empty => {
            if link.side.has_error() {
                Readiness::Ready
            } else {
                match bells::drain(link, fd, Which::Answered) {
                    Drained::Failed(errno) => {
                        link.side.keep_error(errno);
                        Readiness::Ready
                    }
                    _ if link.ring_has_more() => Readiness::Ready,
                    Drained::Empty => at_end(link, fd),
                    Drained::End => Readiness::Ready,
                }
            }
        }
    };
    link.side.rx_lock.unlock();
    answer
}

/// How long after the end of a ring part the kernel may have answered before it.
const OLD_ANSWER_NS: u64 = 2_000_000_000;

/// Whether a ring part of the other end's has come to its end a moment ago.
fn was_ring(link: &Link) -> bool {
    match link.side.part_over_at.load(Ordering::Relaxed) {
        0 => false,
        at => crate::raw::now_ns().saturating_sub(at) < OLD_ANSWER_NS,
    }
}

/// No doorbell is left: did the kernel mean the end?
fn at_end(link: &Link, fd: i32) -> Readiness {
    match crate::raw::peek_one(fd) {
        Ok(0) => {
            let errno = carrier::taken_error(link);
            if errno != 0 {
                link.side.keep_error(errno);
            }
            Readiness::Ready
        }
        // Nobody is to wait for it to go away: the kernel would tell of it for ever.
        Ok(_) if bells::is_uncounted(link, fd) => {
            link.poison();
            Readiness::Ready
        }
        // A doorbell that came just now: seen at the next look.
        Ok(_) | Err(libc::EAGAIN | libc::EINTR) => Readiness::NotReady,
        Err(libc::ECONNRESET) if link.reset_means_end() => Readiness::Ready,
        Err(errno) => {
            link.side.keep_error(errno);
            Readiness::Ready
        }
    }
}

/// Answer of [`readiness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// There is something to receive, or an end or error to hear of.
    Ready,
    /// There is nothing, whatever the kernel said before.
    NotReady,
    /// The kernel's own answer is right.
    Kernel,
}

/// Whether all bytes that precede the ring are in the kernel's queue, and no end: whatever arrives there
/// from now on is a doorbell, or the end. For pollers, without the lock.
pub(crate) fn prefix_is_here(link: &Link, fd: i32) -> bool {
    let left = link.side.rx_left.load(Ordering::Relaxed);
    link.side.rx_state.load(Ordering::Relaxed) == rx::RING
        && left > 0
        && crate::raw::unread(fd).is_ok_and(|queued| queued as u64 >= left)
        && crate::raw::pending_events(fd, libc::POLLRDHUP) == 0
}

/// Bytes that can be received now, of prefix and ring (`FIONREAD`). `None`: ask the kernel.
pub(crate) fn unread(link: &Link, fd: i32) -> Option<usize> {
    link.side.rx_lock.lock().ok()?;
    let count = unread_locked(link, fd);
    link.side.rx_lock.unlock();
    count
}

/// The same, by the kernel's word where that is to be asked. 0 where it has none.
pub(crate) fn unread_in_all(link: &Link, fd: i32) -> usize {
    unread(link, fd).or_else(|| crate::raw::unread(fd).ok()).unwrap_or(0)
}

/// [`unread`], under the rx lock.
pub(super) fn unread_locked(link: &Link, fd: i32) -> Option<usize> {
    let queued = || crate::raw::unread(fd).unwrap_or(0) as u64;
    let answer = loop {
        break match source(link, fd) {
            Source::Tcp { .. } => {
                let queued = queued();
                if link.rx().switch().standing() != Standing::Tcp {
                    // Just now: a doorbell may be among them.
                    continue;
                }
                Some(queued)
            }
            Source::Prefix(left) if queued() < left => Some(queued()),
            Source::Prefix(left) => {
                Some(left + available(link).unwrap_or(0) + behind_ring(link, fd, left))
            }
            Source::Ring(there) => {
                Some(available(link).unwrap_or(there) + behind_ring(link, fd, 0))
            }
            Source::Empty | Source::Poisoned => Some(0),
            Source::Ended => None,
        };
    };
    answer.map(|count| count as usize)
}

/// Bytes in the kernel's queue that follow a ring part which has ended and is not read to its end,
/// when `left` bytes there precede it.
fn behind_ring(link: &Link, fd: i32, left: u64) -> u64 {
    let Some(skip) = meaningless(link, 0) else { return 0 };
    let queued = crate::raw::unread(fd).unwrap_or(0) as u64;
    queued.saturating_sub(left.saturating_add(skip))
}

/// Whether bytes of the ring come before anything in the kernel's queue. If not, doorbells in
/// that queue are thrown away.
pub(crate) fn is_before_kernel(link: &Link, fd: i32) -> bool {
    if link.side.rx_lock.lock().is_err() {
        return false;
    }
    let answer = match source(link, fd) {
        Source::Ring(_) => true,
        Source::Empty => {
            bells::drain_quietly(link, fd, Which::Answered);
            link.ring_has_more()
        }
        Source::Tcp { .. } | Source::Prefix(_) | Source::Ended | Source::Poisoned => false,
    };
    link.side.rx_lock.unlock();
    answer
}
