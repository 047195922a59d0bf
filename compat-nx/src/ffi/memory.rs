//! Calls of the C library about pages, as programs and their allocators make them, in the place of its own: what they mean to private
//! memory cannot be done to that of a window, which is a file's (`engine/direct.rs`). So it is the program's own again first.
//!
//! glibc's allocator calls none of these by name, and needs it as little as `munmap` and `mmap` do. jemalloc counts on
//! `madvise` making pages zero.

use super::errno;
use crate::engine::mappings::is_private_memory;
use crate::engine::noted::{Bytes, give_back};
use libc::{c_int, c_void, size_t};
use std::ops::Range;

/// `MADV_GUARD_INSTALL` of Linux 6.13: what is behind it is lost to private memory.
const GUARD_INSTALL: c_int = 102;

/// `None`: the kernel refuses it.
fn range(start: *mut c_void, len: size_t) -> Option<Range<usize>> {
    Some(start.addr()..start.addr().checked_add(len)?)
}

fn own_again(range: Option<&Range<usize>>, bytes: Bytes) -> bool {
    range.is_some_and(|range| give_back(range, bytes))
}

/// As mremap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // In C it is there only if a flag says so.
    let has_new = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let new = if has_new { new } else { std::ptr::null_mut() };
    // Of length 0 it would map a file's pages twice, and refuses private ones.
    let range = range(old, old_len.max(1));
    let was_shared = own_again(range.as_ref(), Bytes::Kept);
    // SAFETY: passed on.
    let there = unsafe { libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags, new) };
    let there = std::ptr::with_exposed_provenance_mut(there as usize);
    if there == libc::MAP_FAILED
        && was_shared
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
    {
        // SAFETY: passed on.
        return unsafe { in_pieces((old, old_len), new_len, flags, new) };
    }
    there
}

/// Private memory that is several mappings, as what was given back is beside what was moved before, or is of a parent: the kernel moves one at a
/// time. `MAP_FAILED` with its errno where it cannot be.
///
/// # Safety
/// As mremap(2) of these, which has answered `EFAULT`.
unsafe fn in_pieces(
    (old, old_len): (*mut c_void, size_t),
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let fails = |number| {
        errno::set(number);
        libc::MAP_FAILED
    };
    let moves = flags & libc::MREMAP_MAYMOVE != 0 && flags & libc::MREMAP_DONTUNMAP == 0;
    if old_len == 0 || new_len == 0 || !is_private_memory(old.addr(), old_len, &[]) {
        return fails(libc::EFAULT);
    }
    if !moves {
        return fails(libc::ENOMEM); // there is no room behind it
    }
    let fixed = if flags & libc::MREMAP_FIXED != 0 { libc::MAP_FIXED } else { 0 };
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: new memory; where the caller says, who owns what is there.
    let there = unsafe { libc::mmap(new, new_len, rights, kind, -1, 0) };
    if there != libc::MAP_FAILED {
        // SAFETY: both are mapped so long, may be read and written, and do not overlap: the kernel refuses `FIXED` ones that do by `EINVAL`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                old.cast_const().cast::<u8>(),
                there.cast(),
                old_len.min(new_len),
            );
        }
        // SAFETY: the caller gives it up.
        unsafe { libc::munmap(old, old_len) };
    }
    there
}

/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let range = range(start, len);
    match advice {
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
            own_again(range.as_ref(), Bytes::Zero);
        }
        libc::MADV_WIPEONFORK | GUARD_INSTALL => {
            own_again(range.as_ref(), Bytes::Kept);
        }
        _ => {}
    }
    // SAFETY: passed on.
    (unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) }) as c_int
}
