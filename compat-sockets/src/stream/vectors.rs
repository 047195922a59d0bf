//! Walking over the program's buffers.

use crate::{raw, user_memory};
use libc::iovec;

/// Most vectors in one call (`UIO_MAXIOV`).
pub(crate) const MAX_VECTORS: usize = 1024;

/// Vectors that are handed on without much room on the stack.
const FEW_VECTORS: usize = 16;

pub(super) const NOWHERE: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// A position in a list of buffers.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    vectors: &'a [iovec],
    /// Bytes of the first vector that are done.
    skip: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(vectors: &'a [iovec]) -> Cursor<'a> {
        Cursor { vectors, skip: 0 }
    }

    /// The rest of the current buffer; `None` at the end.
    #[inline]
    pub(crate) fn part(&mut self) -> Option<(*mut u8, usize)> {
        while let Some((first, rest)) = self.vectors.split_first() {
            let left = first.iov_len.saturating_sub(self.skip);
            if left > 0 {
                return Some((first.iov_base.cast::<u8>().wrapping_add(self.skip), left));
            }
            self.vectors = rest;
            self.skip = 0;
        }
        None
    }

    /// Goes on by `len` bytes of the current buffer.
    #[inline]
    pub(crate) fn advance(&mut self, len: usize) {
        self.skip += len;
    }

    /// Goes on by `len` bytes, over several buffers if need be.
    pub(crate) fn advance_over(&mut self, mut len: u64) {
        while len > 0
            && let Some((_, part)) = self.part()
        {
            let step = len.min(part as u64);
            self.advance(step as usize);
            len -= step;
        }
    }

    /// The rest as vectors, at most `most` bytes: their number and total length.
    pub(crate) fn rest(&self, most: u64, into: &mut [iovec]) -> (usize, usize) {
        let mut cursor = self.clone();
        let (mut count, mut total) = (0, 0usize);
        for slot in into {
            let Some((base, len)) = cursor.part() else { break };
            let len = (len as u64).min(most.saturating_sub(total as u64)) as usize;
            if len == 0 {
                break;
            }
            *slot = iovec { iov_base: base.cast(), iov_len: len };
            cursor.advance(len);
            count += 1;
            total += len;
        }
        (count, total)
    }
}

/// Total length of buffers; `None` when the kernel would refuse it (`EINVAL`).
pub(crate) fn total(vectors: &[iovec]) -> Option<usize> {
    vectors.iter().try_fold(0usize, |sum, vector| {
        let sum = sum.checked_add(vector.iov_len)?;
        (sum <= isize::MAX as usize).then_some(sum)
    })
}

/// The program's list of buffers as a slice, or the error number the kernel refuses it with
/// (`EINVAL` for too many).
///
/// # Safety
/// `vectors` must point to `count` vectors, as the program promised the C function.
pub(crate) unsafe fn copy_vectors<'a>(
    vectors: *const iovec,
    count: usize,
) -> raw::Result<&'a [iovec]> {
    if count > MAX_VECTORS {
        return Err(libc::EINVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !user_memory::can_read(vectors, count) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's word.
    Ok(unsafe { std::slice::from_raw_parts(vectors, count) })
}

/// Receives from the kernel into the rest of the buffers, at most `most` bytes, without waiting.
pub(crate) fn receive_kernel(
    fd: i32,
    cursor: &Cursor<'_>,
    most: u64,
    flags: i32,
) -> raw::Result<usize> {
    let mut room = [NOWHERE; FEW_VECTORS];
    let (count, total) = cursor.rest(most, &mut room);
    if count == FEW_VECTORS && (total as u64) < most {
        return receive_many(fd, cursor, most, flags);
    }
    receive_into(fd, room.get(..count).unwrap_or_default(), flags)
}

/// The same with any number of buffers: a short count must mean that no more had come.
#[cold]
#[inline(never)]
fn receive_many(fd: i32, cursor: &Cursor<'_>, most: u64, flags: i32) -> raw::Result<usize> {
    let mut room = [NOWHERE; MAX_VECTORS];
    let (count, _) = cursor.rest(most, &mut room);
    receive_into(fd, room.get(..count).unwrap_or_default(), flags)
}

fn receive_into(fd: i32, vectors: &[iovec], flags: i32) -> raw::Result<usize> {
    // SAFETY: the program's own buffers, as it passed them.
    unsafe { raw::recv_vectors(fd, vectors, flags | libc::MSG_DONTWAIT) }
}
