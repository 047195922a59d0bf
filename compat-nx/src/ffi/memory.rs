//! Calls of the C library about pages, as programs and their allocators make them, in the place of its own: what they mean to private
//! memory cannot be done to that of a window, which is a file's (`engine/direct.rs`). So it is the program's own again first.
//!
//! glibc's allocator calls none of these by name, and needs it as little as `munmap` and `mmap` do. jemalloc counts on
//! `madvise` making pages zero.

use crate::engine::noted::{Bytes, give_back};
use libc::{c_int, c_void, size_t};
use std::ops::Range;

fn range(start: *mut c_void, len: size_t) -> Range<usize> {
    start.addr()..start.addr().saturating_add(len)
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
    give_back(&range(old, old_len), Bytes::Kept);
    // SAFETY: passed on.
    let there = unsafe { libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags, new) };
    std::ptr::with_exposed_provenance_mut(there as usize)
}

/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: size_t, advice: c_int) -> c_int {
    match advice {
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
            give_back(&range(start, len), Bytes::Zero);
        }
        libc::MADV_WIPEONFORK => give_back(&range(start, len), Bytes::Kept),
        _ => {}
    }
    // SAFETY: passed on.
    (unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) }) as c_int
}
