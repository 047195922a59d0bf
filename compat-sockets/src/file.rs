//! sendfile and splice on upgraded sockets: copies, straight into or out of the ring where that
//! is possible.

use crate::sock::Link;
use crate::stream::send::{InPlace, send_in_place};
use crate::stream::{Outcome, recv, wait};
use crate::{raw, real};
use libc::{iovec, off64_t};

/// Bytes moved per step through a buffer on the stack.
const STEP: usize = 16 * 1024;

/// sendfile(2): the file is read into the ring's own memory.
///
/// # Safety
/// `offset` must be null or valid.
pub(crate) unsafe fn sendfile(
    link: &Link,
    fd: i32,
    input: i32,
    offset: *mut off64_t,
    count: usize,
) -> Outcome {
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

/// splice(2) from a pipe to the socket.
pub(crate) fn splice_to(link: &Link, fd: i32, input: i32, count: usize) -> Outcome {
    let mut done = 0;
    fill_ring(link, fd, count, &mut done, &mut |target, len, done| {
        // Something was moved: do not wait for more to come.
        if done > 0 && raw::pending_events(input, libc::POLLIN) & libc::POLLIN == 0 {
            return Ok(0);
        }
        // SAFETY: a span of our own ring.
        unsafe { raw::read_at(input, target, len, None) }
    })
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
        let so_far = *done;
        match send_in_place(link, fd, count - so_far, &mut |to, len| read(to, len, so_far)) {
            InPlace::Read(Ok(0)) => break Outcome::Done(*done),
            InPlace::Read(Ok(len)) => *done += len,
            InPlace::Read(Err(errno)) => break Outcome::Failed(errno),
            InPlace::Poisoned => break Outcome::Failed(libc::ECONNRESET),
            InPlace::Kernel => break Outcome::Kernel,
            InPlace::Unswitched => break Outcome::Unswitched,
            InPlace::Full => {
                if raw::is_nonblocking(fd) {
                    link.side.tx_refused.fetch_add(1, vmmc::sync::Ordering::Relaxed);
                    link.side.tx_full.store(1, vmmc::sync::Ordering::SeqCst);
                    break Outcome::Failed(libc::EAGAIN);
                }
                match wait::for_space(link, fd) {
                    Ok(wait::Room::Look) => {}
                    Ok(wait::Room::Gone) => break Outcome::Kernel,
                    Err(errno) => break Outcome::Failed(errno),
                }
            }
        }
    };
    match outcome {
        Outcome::Done(_) => outcome,
        // A short count; the next call finds out why.
        _ if *done > 0 => Outcome::Done(*done),
        other => other,
    }
}

/// splice(2) from the socket to a pipe (or file).
pub(crate) fn splice_from(
    link: &Link,
    fd: i32,
    output: i32,
    count: usize,
    nonblocking: bool,
) -> Outcome {
    let mut buffer = [0u8; STEP];
    let want = count.min(STEP);
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
