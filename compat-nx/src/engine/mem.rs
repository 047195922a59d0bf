//! Memory of callers. What they promise is stated at [`super::types::Source`] and
//! [`super::types::Target`]; here it is made into slices, for the length of one copy. And shared memory that is given back for
//! a while.
#![allow(unsafe_code)]

use super::types::{Source, Target};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use vmmc::mem::View;

/// The bytes to send.
///
/// # Safety
/// The caller of the operation keeps them valid and unchanged until it is complete; it must not be
/// complete before the slice's last use.
#[inline]
pub(super) unsafe fn source<'a>(data: Source) -> &'a [u8] {
    if data.len == 0 {
        return &[];
    }
    // SAFETY: not null (checked at the interface), valid by the contract.
    unsafe { std::slice::from_raw_parts(data.start, data.len) }
}

/// `len` bytes of the room from `at`; cut to the room.
///
/// # Safety
/// As for [`source`], and nobody else touches them meanwhile.
#[inline]
pub(super) unsafe fn room<'a>(room: Target, at: usize, len: usize) -> &'a mut [u8] {
    let at = at.min(room.len);
    let len = len.min(room.len - at);
    if len == 0 {
        return &mut [];
    }
    // SAFETY: at + len <= room.len.
    let start = unsafe { room.start.add(at) };
    // SAFETY: not null (checked at the interface), valid and ours by the contract.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// A part of the bytes to send; cut to them.
pub(super) fn part(data: Source, at: usize, len: usize) -> Source {
    let at = at.min(data.len);
    Source { start: data.start.wrapping_add(at), len: len.min(data.len - at) }
}

/// Gives the memory behind an export back to the system, that of all who have mapped it. Its bytes are zero when they are
/// needed next. Where the system cannot, the memory stays.
pub(super) fn release(view: View<'_>) {
    // SAFETY: mapped as long as the view lives; to whoever has it mapped this is a store of zeros, which views allow at any time.
    let _ = unsafe { madvise(view.as_ptr().as_ptr().cast(), view.len(), Advice::LinuxRemove) };
}

/// Gets it again, so that what is short is told here and not by a signal at a store. (Before Linux 5.14 it comes with the
/// stores.)
pub(super) fn allocate(view: View<'_>) -> Result<(), Errno> {
    let populate = || {
        // SAFETY: mapped as long as the view lives; no byte changes.
        unsafe { madvise(view.as_ptr().as_ptr().cast(), view.len(), Advice::LinuxPopulateWrite) }
    };
    match rustix::io::retry_on_intr(populate) {
        Err(Errno::INVAL) => Ok(()),
        done => done,
    }
}
