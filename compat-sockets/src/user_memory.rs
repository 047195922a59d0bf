//! Whether the program's buffers can be touched, asked before we touch them: where the kernel
//! answers `EFAULT`, a copy of ours must not become SIGSEGV.
//!
//! 1. A page that was found good lately is in a small table of the thread: a few instructions.
//! 2. Otherwise the kernel is asked to make the pages present (`MADV_POPULATE_READ`, `_WRITE`), which
//!    fails where an access would.
//! 3. It also refuses memory of devices, and kernels before 5.14 refuse all: then one byte per page
//!    goes through a pipe, the kernel's own copy being the judge.
//!
//! A program that unmaps memory and passes it to us again within the life of a table entry still
//! gets SIGSEGV.

use crate::raw;
use std::cell::Cell;

/// Pages remembered per thread: a power of two, enough for a few large buffers.
const REMEMBERED: usize = 64;
/// Smallest page of the architectures we run on; larger ones are seen as several.
const PAGE: usize = 4096;

/// What is going to be done to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read = 1,
    /// Includes reading: no processor of ours can write what it cannot read.
    Write = 3,
}

std::thread_local! {
    // Page address with the access in its low bits. `const` and without a destructor: usable
    // anywhere, signal handlers included (an entry is one word).
    static GOOD: [Cell<usize>; REMEMBERED] = const { [const { Cell::new(0) }; REMEMBERED] };
}

/// Length of the part that can be read, from its beginning.
#[inline]
pub(crate) fn readable(start: *const u8, len: usize) -> usize {
    good_part(start.addr(), len, Access::Read)
}

/// Length of the part that can be written, from its beginning.
#[inline]
pub(crate) fn writable(start: *const u8, len: usize) -> usize {
    good_part(start.addr(), len, Access::Write)
}

/// Whether `count` values can be read.
#[inline]
pub(crate) fn can_read<T>(start: *const T, count: usize) -> bool {
    size_of::<T>().checked_mul(count).is_some_and(|len| readable(start.cast(), len) == len)
}

/// Whether `count` values can be read and written.
#[inline]
pub(crate) fn can_write<T>(start: *const T, count: usize) -> bool {
    size_of::<T>().checked_mul(count).is_some_and(|len| writable(start.cast(), len) == len)
}

#[inline]
fn good_part(start: usize, len: usize, access: Access) -> usize {
    if len == 0 {
        return 0;
    }
    let Some(end) = start.checked_add(len) else { return 0 };
    let mut page = start & !(PAGE - 1);
    while page < end {
        if !remembered(page, access) {
            return good_part_slow(start, page, end, access);
        }
        page += PAGE;
    }
    len
}

#[inline]
fn remembered(page: usize, access: Access) -> bool {
    GOOD.with(|good| {
        let found = good.get(page / PAGE % REMEMBERED).map_or(0, Cell::get);
        found & !(PAGE - 1) == page && found & access as usize == access as usize
    })
}

fn remember(page: usize, access: Access) {
    GOOD.with(|good| {
        if let Some(slot) = good.get(page / PAGE % REMEMBERED) {
            slot.set(page | access as usize);
        }
    });
}

/// From the first page that is not remembered on.
#[cold]
fn good_part_slow(start: usize, mut page: usize, end: usize, access: Access) -> usize {
    let whole = (end - page).next_multiple_of(PAGE);
    if populate(page, whole, access) {
        while page < end {
            remember(page, access);
            page += PAGE;
        }
        return end - start;
    }
    while page < end {
        if !remembered(page, access) && !populate(page, PAGE, access) && !probe(page, access) {
            return page.saturating_sub(start);
        }
        remember(page, access);
        page += PAGE;
    }
    end - start
}

fn populate(page: usize, len: usize, access: Access) -> bool {
    const MADV_POPULATE_READ: i32 = 22;
    const MADV_POPULATE_WRITE: i32 = 23;
    let advice = match access {
        Access::Read => MADV_POPULATE_READ,
        Access::Write => MADV_POPULATE_WRITE,
    };
    loop {
        match raw::madvise(page, len, advice) {
            Ok(()) => return true,
            Err(libc::EINTR | libc::EAGAIN) => {}
            Err(_) => return false,
        }
    }
}

/// Sends the page's first byte through a pipe, and for [`Access::Write`] back to its place.
fn probe(page: usize, access: Access) -> bool {
    let Ok([read, write]) = raw::pipe() else { return true };
    let good = raw::write_from(write, page, 1) == Ok(1)
        && (access == Access::Read || raw::read_to(read, page, 1) == Ok(1));
    raw::close(read);
    raw::close(write);
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    fn three_pages(second: MprotectFlags) -> *mut u8 {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no fixed address.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 3 * PAGE, prot, MapFlags::PRIVATE).unwrap()
        };
        // SAFETY: inside the mapping.
        let middle = unsafe { start.byte_add(PAGE) };
        // SAFETY: our own fresh mapping.
        unsafe { mprotect(middle, PAGE, second).unwrap() };
        start.cast()
    }

    #[test]
    fn the_good_part_ends_at_the_first_page_that_cannot_be_touched() {
        let pages = three_pages(MprotectFlags::empty());
        for _ in 0..2 {
            assert_eq!(readable(pages, 100), 100);
            assert_eq!(writable(pages.wrapping_add(10), 3 * PAGE - 10), PAGE - 10);
            assert_eq!(readable(pages.wrapping_add(PAGE + 5), 10), 0);
            assert_eq!(writable(pages.wrapping_add(2 * PAGE), PAGE), PAGE);
        }
    }

    #[test]
    fn memory_that_can_be_read_only_is_told_apart() {
        let pages = three_pages(MprotectFlags::READ);
        assert_eq!(readable(pages, 3 * PAGE), 3 * PAGE);
        assert_eq!(writable(pages, 3 * PAGE), PAGE);
        assert!(can_read(pages.wrapping_add(PAGE).cast::<u64>(), 10));
        assert!(!can_write(pages.wrapping_add(PAGE).cast::<u64>(), 10));
    }

    #[test]
    fn addresses_that_nobody_has_are_refused() {
        assert_eq!(readable(std::ptr::without_provenance(8), 4), 0);
        assert_eq!(writable(std::ptr::without_provenance(usize::MAX - 3), 100), 0);
        assert!(!can_read(std::ptr::without_provenance::<u64>(8), usize::MAX));
    }

    #[test]
    fn the_probe_agrees_with_populate() {
        let pages = three_pages(MprotectFlags::READ);
        let (first, second) = (pages.addr(), pages.addr() + PAGE);
        // SAFETY: our own page.
        unsafe { pages.write(7) };
        assert!(probe(first, Access::Write) && probe(second, Access::Read));
        assert!(!probe(second, Access::Write) && !probe(0, Access::Read));
        // SAFETY: our own page.
        assert_eq!(unsafe { pages.read() }, 7);
    }
}
