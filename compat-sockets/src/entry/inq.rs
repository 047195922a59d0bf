//! What a receive is told of the bytes that are left (`TCP_INQ`), beside those it got.

use super::options::TCP_INQ;
use crate::side::rx;
use crate::sock::Link;
use crate::stream::{readiness, recv};
use crate::{parked, raw, user_memory};
use libc::{c_int, cmsghdr, msghdr};
use vmmc::sync::Ordering;

/// Puts the control message into the `room` bytes that the program has for such, as the kernel does for a receive of its own: cut
/// off where it does not fit (`MSG_CTRUNC`).
///
/// # Safety
/// `answer.msg_control` as recvmsg(2) wants it.
#[cold]
pub(super) unsafe fn tell(link: &Link, fd: c_int, room: usize, answer: &mut msghdr) {
    const HEAD: usize = size_of::<cmsghdr>();
    const WHOLE: usize = HEAD + size_of::<c_int>();
    let to = answer.msg_control.cast::<u8>();
    if room < HEAD || to.is_null() {
        answer.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    if room < WHOLE {
        answer.msg_flags |= libc::MSG_CTRUNC;
    }
    let len = room.min(WHOLE);
    if !user_memory::can_write(to, len) {
        return;
    }
    // SAFETY: all zero is a value of it.
    let mut head: cmsghdr = unsafe { std::mem::zeroed() };
    (head.cmsg_len, head.cmsg_level, head.cmsg_type) = (len, libc::IPPROTO_TCP, TCP_INQ);
    let left = left(link, fd).to_ne_bytes();
    // SAFETY: the program's room, found writable just now; in any alignment.
    unsafe { to.cast::<cmsghdr>().write_unaligned(head) };
    let data = to.wrapping_add(HEAD);
    // SAFETY: as above, behind the head.
    unsafe { data.copy_from_nonoverlapping(left.as_ptr(), len - HEAD) };
    answer.msg_controllen = room.min(WHOLE.next_multiple_of(size_of::<usize>()));
}

/// Bytes to be received; 1 where the program is to look once more, as at the end.
fn left(link: &Link, fd: c_int) -> c_int {
    // Another thread may have closed the number meanwhile.
    let Some(fd) = parked::number_now(link, fd) else { return 1 };
    let there = match readiness::unread_in_all(link, fd) {
        // Who hears that nothing is left waits for what comes, as after `EAGAIN`.
        0 if recv::settle(link, fd) => readiness::unread_in_all(link, fd),
        there => there,
    };
    if there > 0 {
        return c_int::try_from(there).unwrap_or(c_int::MAX);
    }
    let more = if link.side.rx_state.load(Ordering::Relaxed) == rx::RING {
        raw::pending_events(fd, libc::POLLRDHUP) != 0
    } else {
        // Also behind the place of urgent data, up to which the kernel counts.
        link.is_poisoned() || link.peek_one(fd).is_ok()
    };
    more.into()
}
