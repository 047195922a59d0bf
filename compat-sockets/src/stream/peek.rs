//! Looking at what is to be received (`MSG_PEEK`), across the seams between TCP and the ring.
//!
//! ```text
//!   the stream        prefix  |  ring  |  behind the ring part, once that has ended
//!   kernel's queue    prefix  |  bytes without meaning  |  behind
//! ```
//!
//! One look at the kernel's queue gives both of its parts: what lies between them goes into a waste
//! buffer, however long it is.

use super::recv::{self, Step};
use super::vectors::{Cursor, MAX_VECTORS, NOWHERE};
use super::wait::Waited;
use super::{readiness, source};
use crate::parked::{self, Parked};
use crate::sock::Link;
use crate::{raw, real};
use libc::iovec;
use vmmc_ring::switch::Standing;

/// Bytes of the waste buffer, which stands for as many bytes as there are.
const WASTE: usize = 4096;

/// How often a look that has waited before in its call, and has a time limit, counts what has come, in nanoseconds.
const LOOK_NS: u64 = 1_000_000;

/// Vectors in one look at the kernel's queue, which takes no more: a program whose parts and the waste need more is
/// told of less.
const MOST: usize = MAX_VECTORS;

/// Vectors for one look at the kernel's queue.
struct Wanted {
    vectors: [iovec; MOST],
    count: usize,
}

impl Wanted {
    fn new() -> Wanted {
        Wanted { vectors: [NOWHERE; MOST], count: 0 }
    }

    /// At most `len` bytes from `cursor` on.
    fn program(&mut self, cursor: &Cursor<'_>, len: u64) {
        let free = self.vectors.get_mut(self.count..).unwrap_or_default();
        self.count += cursor.rest(len, free).0;
    }

    /// `len` bytes to be thrown away; false when that are too many.
    fn nowhere(&mut self, waste: &mut [u8; WASTE], mut len: u64) -> bool {
        while len > 0 {
            let Some(slot) = self.vectors.get_mut(self.count) else { return false };
            let part = len.min(WASTE as u64);
            *slot = iovec { iov_base: waste.as_mut_ptr().cast(), iov_len: part as usize };
            self.count += 1;
            len -= part;
        }
        true
    }

    fn vectors(&self) -> &[iovec] {
        self.vectors.get(..self.count).unwrap_or_default()
    }
}

/// Under the rx lock, with `left` bytes of the prefix unread: what a receive would give.
#[cold]
pub(super) fn look(link: &Link, fd: i32, cursor: &mut Cursor<'_>, left: u64, flags: i32) -> Step {
    let queued = raw::unread(fd).unwrap_or(0) as u64;
    if queued < left {
        return recv::from_kernel(link, fd, cursor, left, flags);
    }
    // Before the tail is: what was published before the end is visible then.
    let ended = matches!(link.rx().switch().standing(), Standing::Ended { .. });
    let Ok(now) = source::available(link) else {
        link.poison();
        return Step::Failed(libc::ECONNRESET);
    };
    // As for a receive: what was seen before the peer ended its part further back counts.
    let in_ring = now.max(link.consumer().available_seen());
    let skip = if ended { source::meaningless(link, in_ring) } else { None };
    let behind = skip.map_or(0, |skip| queued.saturating_sub(left.saturating_add(skip)));
    let mut past = cursor.clone();
    past.advance_over(left.saturating_add(in_ring));
    // As a receive, it does not reach beyond the mark.
    let stops = || in_ring > 0 && skip == Some(0) && raw::is_at_mark(fd);
    let wants_behind = behind > 0 && past.part().is_some() && !stops();
    let mut from_kernel = 0;
    if left > 0 || wants_behind {
        let mut waste = [0; WASTE];
        let mut wanted = Wanted::new();
        wanted.program(cursor, left);
        if wants_behind && wanted.nowhere(&mut waste, skip.unwrap_or(0)) {
            wanted.program(&past, behind);
        }
        let keep = flags & libc::MSG_TRUNC | libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the program's own buffers, as it passed them, and one on this stack.
        match unsafe { raw::recv_vectors(fd, wanted.vectors(), keep) } {
            Ok(len) => from_kernel = len as u64,
            Err(libc::EINTR | libc::EAGAIN) => return Step::Again,
            Err(errno) => return Step::Failed(errno),
        }
    }
    let first = from_kernel.min(left);
    cursor.advance_over(first);
    if first < left || cursor.part().is_none() {
        return Step::Got(first as usize);
    }
    if in_ring == 0 {
        return Step::Got((first + beyond(from_kernel, left, skip)) as usize);
    }
    match recv::from_ring(link, cursor, in_ring, flags) {
        Step::Got(len) if len as u64 == in_ring => {
            Step::Got((first + in_ring + beyond(from_kernel, left, skip)) as usize)
        }
        Step::Got(len) => Step::Got(first as usize + len),
        _ if first > 0 => Step::Got(first as usize),
        other => other,
    }
}

/// Of `from_kernel` bytes, those behind the ring part.
fn beyond(from_kernel: u64, left: u64, skip: Option<u64>) -> u64 {
    skip.map_or(0, |skip| from_kernel.saturating_sub(left.saturating_add(skip)))
}

/// After a look with `MSG_WAITALL` that found `found` bytes and too few: sleeps until there are more.
/// False when that is not to be waited for (any longer): what was found is the answer.
///
/// The thread sleeps in the kernel until its queue has grown, by data or by a doorbell, so a signal,
/// `SO_RCVTIMEO` and the peer's end act as without us.
///
/// A look may see less than is there (it has no more than [`MOST`] vectors). `counted` is what was there when another look
/// was asked for because of that, 0 at first: if no more has come since, another would see no more.
#[cold]
pub(super) fn wait_for_more(
    link: &Link,
    fd: i32,
    flags: i32,
    found: usize,
    counted: &mut usize,
    time: &mut Waited,
) -> bool {
    if flags & libc::MSG_DONTWAIT != 0 || raw::is_nonblocking(fd) {
        return false;
    }
    // No doorbell follows urgent data.
    if found > 0 && raw::is_at_mark(fd) {
        return false;
    }
    let Some(parked) = Parked::new(link, fd) else { return false };
    let asleep = link.asleep(fd);
    link.arm_data();
    let queued = raw::unread(fd).unwrap_or(0);
    let there = readiness::unread_in_all(link, fd);
    let more = if there > found {
        std::mem::replace(counted, there) < there
    } else {
        *counted = 0;
        let left = time.left_to_receive(fd);
        time.during(|| grows(link, fd, queued, left))
    };
    drop(asleep);
    drop(parked);
    more && parked::number_now(link, fd).is_some()
}

/// Sleeps until more than `queued` bytes are in the kernel's queue; false when that ended otherwise, or after what is `left` of
/// the call's time.
fn grows(link: &Link, fd: i32, queued: usize, left: Option<u64>) -> bool {
    let Some(left) = left else {
        let flags = libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_TRUNC;
        // SAFETY: MSG_TRUNC on TCP: nothing is copied, so the null buffer is never touched.
        let got = unsafe { real::recv(fd, std::ptr::null_mut(), queued + 1, flags) };
        return match usize::try_from(got) {
            Ok(got) => got > queued,
            Err(_) => {
                link.keep_news(real::errno());
                false
            }
        };
    };
    // The kernel would begin with the time anew, and no call of its waits for a number of bytes and so long.
    let until = raw::now_ns().saturating_add(left);
    loop {
        if raw::unread(fd).is_ok_and(|there| there > queued) {
            return true;
        }
        let left = until.saturating_sub(raw::now_ns());
        if left == 0 || super::demote::peer_has_ended(fd) {
            return false;
        }
        let time = raw::timespec_of(left.min(LOOK_NS));
        // SAFETY: no descriptors; the time is on this stack.
        if unsafe { real::ppoll(std::ptr::null_mut(), 0, &raw const time, std::ptr::null()) } < 0 {
            return false;
        }
    }
}
