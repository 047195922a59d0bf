//! sendfile and splice on upgraded sockets: copies, straight into or out of the ring where that
//! is possible.

use crate::sock::Link;
use crate::stream::send::{InPlace, Refused, refused, send_in_place, to_nobody};
use crate::stream::{Outcome, recv, wait};
use crate::{raw, real, user_memory};
use libc::{iovec, off64_t};

/// Bytes moved per step through a buffer on the stack.
const STEP: usize = 16 * 1024;

/// sendfile(2): the file is read into the ring's own memory.
///
/// # Safety
/// `offset` must be null, or the program's own; it may be a bad address.
pub(crate) unsafe fn sendfile(
    link: &Link,
    fd: i32,
    input: i32,
    offset: *mut off64_t,
    count: usize,
) -> Outcome {
    if !offset.is_null() && !user_memory::can_write(offset, 1) {
        return Outcome::Failed(libc::EFAULT);
    }
    // What cannot be sought is spliced, and might be waited for, with the lock of the connection.
    if raw::is_stream(input) {
        return Outcome::Failed(if offset.is_null() { libc::EINVAL } else { libc::ESPIPE });
    }
    // SAFETY: the caller's word.
    let start = (!offset.is_null()).then(|| unsafe { *offset });
    let mut done = 0;
    let outcome = fill_ring(link, fd, count, &mut done, &mut |target, len, done| {
        let at = start.map(|start| start + done as i64);
        // SAFETY: a span of our own ring.
        unsafe { raw::read_at(input, target, len, at) }
    });
    if let Some(start) = start {
        // SAFETY: the caller's word.
        unsafe { *offset = start + done as i64 };
    }
    outcome
}

/// Whether the kernel would splice between a socket and this `other` end: a pipe, and neither has a position.
pub(crate) fn may_splice(
    other: i32,
    in_offset: *const off64_t,
    out_offset: *const off64_t,
    flags: libc::c_uint,
) -> bool {
    const KNOWN: libc::c_uint =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    in_offset.is_null() && out_offset.is_null() && flags & !KNOWN == 0 && raw::is_pipe(other)
}

/// splice(2) from a pipe to the socket. Nobody who sends waits for the pipe: that is read as far as it goes under the
/// connection's lock, and waited for outside.
pub(crate) fn splice_to(
    link: &Link,
    fd: i32,
    input: i32,
    count: usize,
    nonblocking: bool,
) -> Outcome {
    loop {
        let (mut done, mut is_empty) = (0, false);
        let outcome = fill_ring(link, fd, count, &mut done, &mut |target, len, _| {
            // SAFETY: a span of our own ring.
            let read = unsafe { raw::read_now(input, target, len) };
            is_empty = read == Err(libc::EAGAIN);
            // What has been moved is enough: more is not waited for.
            if is_empty { Ok(0) } else { read }
        });
        if !is_empty || done > 0 {
            return outcome;
        }
        if nonblocking || raw::is_nonblocking(input) {
            return Outcome::Failed(libc::EAGAIN);
        }
        let waited = raw::wait_long_for(input, libc::POLLIN);
        // A splice that waits for its pipe is restarted if the handler says so; a poll is not.
        if waited == Err(libc::EINTR) && raw::some_handler_interrupts() {
            return Outcome::Failed(libc::EINTR);
        }
    }
}

/// Reads into the ring until `count`, end of file or an error.
fn fill_ring(
    link: &Link,
    fd: i32,
    count: usize,
    done: &mut usize,
    read: &mut dyn FnMut(*mut u8, usize, usize) -> raw::Result<usize>,
) -> Outcome {
    let outcome = loop {
        if *done >= count {
            break Outcome::Done(*done);
        }
        if *done > 0 && link.side.has_error() {
            break Outcome::Done(*done); // the next call's
        }
        let so_far = *done;
        match send_in_place(link, fd, count - so_far, &mut |to, len| read(to, len, so_far)) {
            InPlace::Read(Ok(0)) => break Outcome::Done(*done),
            InPlace::Read(Ok(len)) => *done += len,
            InPlace::Read(Err(errno)) => break Outcome::Failed(errno),
            InPlace::Over(errno) => {
                if *done > 0 {
                    link.side.keep_error(errno);
                }
                break Outcome::Failed(errno);
            }
            InPlace::Poisoned => break Outcome::Failed(libc::ECONNRESET),
            InPlace::Kernel => break Outcome::Kernel,
            InPlace::Unswitched => break Outcome::Unswitched,
            InPlace::Full => {
                if raw::is_nonblocking(fd) {
                    match refused(link, fd) {
                        Refused::Yes => break Outcome::Failed(libc::EAGAIN),
                        Refused::ByTcp => continue,
                        Refused::Ended => break Outcome::Kernel,
                        Refused::Gone if *done > 0 => break Outcome::Done(*done),
                        Refused::Gone => break to_nobody(link),
                    }
                }
                // The kernel sends files piece by piece: the time begins anew with each.
                match wait::for_space(link, fd, &mut wait::Waited::default()) {
                    Ok(wait::Room::Look) => {}
                    Ok(wait::Room::Gone) if *done > 0 => break Outcome::Done(*done),
                    Ok(wait::Room::Gone) => break to_nobody(link),
                    Err(errno) => break Outcome::Failed(errno),
                }
            }
        }
    };
    match outcome {
        Outcome::Done(_) => outcome,
        // What was told while bytes went back the kernel does not tell again.
        Outcome::Kernel if *done == 0 => link.side.take_error().map_or(outcome, Outcome::Failed),
        // A short count; the next call finds out why.
        _ if *done > 0 => Outcome::Done(*done),
        other => other,
    }
}

/// splice(2) from the socket to a pipe.
pub(crate) fn splice_from(
    link: &Link,
    fd: i32,
    output: i32,
    count: usize,
    nonblocking: bool,
) -> Outcome {
    let mut buffer = [0u8; STEP];
    let mut want = count.min(STEP);
    if nonblocking {
        // A pipe that is writable takes this much without waiting.
        if raw::pending_events(output, libc::POLLOUT) & libc::POLLOUT == 0 {
            return Outcome::Failed(libc::EAGAIN);
        }
        want = want.min(libc::PIPE_BUF);
    }
    let vector = [iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: want }];
    let flags = if nonblocking { libc::MSG_DONTWAIT } else { 0 };
    // Looked at first and taken once written, so that nothing is lost if the pipe is full.
    let there = match recv::recv(link, fd, &vector, flags | libc::MSG_PEEK) {
        Outcome::Done(there) => there,
        other => return other,
    };
    if there == 0 {
        return Outcome::Done(0);
    }
    // SAFETY: the buffer has at least `there` bytes.
    let written = unsafe { real::write(output, buffer.as_ptr().cast(), there) };
    let Ok(written) = usize::try_from(written) else { return Outcome::Failed(real::errno()) };
    let vector = [iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: written }];
    recv::recv(link, fd, &vector, libc::MSG_DONTWAIT)
}
