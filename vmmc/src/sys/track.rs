//! Which pages of this process were stored to: `userfaultfd(2)` with asynchronous write protection, and the
//! ioctl `PAGEMAP_SCAN` of `/proc/self/pagemap` (Linux 6.7).
//!
//! The first store to a protected page takes a minor fault, which marks it written and goes on; nobody is
//! woken and no signal is sent. A scan lists the pages that are marked and protects them again in one step,
//! so a store is either before the scan, and in the list, or after it, and in the next one. Stores by the kernel
//! for this process (`read`, `recv`) are seen. Not seen, because the mark is of this process's page table: stores by
//! another process, or through another mapping of the same file; and what the kernel or a device writes to pages
//! that it pinned before the scan (reads with `O_DIRECT` that are under way, Linux AIO, fixed buffers of `io_uring`).

use super::{Fd, memfd, mmap};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use rustix::mm::UserfaultfdFlags;
use rustix::process::Pid;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

/// `UFFD_USER_MODE_ONLY`: all that an unprivileged process gets.
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
/// `UFFD_API`.
const API: u64 = 0xaa;
/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`: memory files; `_WP_UNPOPULATED`; `_WP_ASYNC`.
const FEATURES: u64 = 1 << 12 | 1 << 13 | 1 << 15;
/// `UFFDIO_REGISTER_MODE_WP`.
const REGISTER_WP: u64 = 1 << 1;
/// `UFFDIO_WRITEPROTECT_MODE_WP`.
const PROTECT: u64 = 1;
/// `PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC`.
const PROTECT_AGAIN: u64 = 1 | 1 << 1;
/// `PAGE_IS_WRITTEN`.
const WRITTEN: u64 = 1 << 1;

/// `struct uffdio_api`.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct UffdioRange {
    start: u64,
    len: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct UffdioWriteprotect {
    start: u64,
    len: u64,
    mode: u64,
}

/// `struct page_region`: addresses.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

// As linux/userfaultfd.h and linux/fs.h have them: the sizes are part of the ioctls' numbers.
const _: () = {
    assert!(size_of::<UffdioApi>() == 24 && size_of::<UffdioRegister>() == 32);
    assert!(size_of::<UffdioWriteprotect>() == 24 && size_of::<PageRegion>() == 24);
    assert!(size_of::<PmScanArg>() == 96);
};

const UFFDIO_API: Opcode = opcode::read_write::<UffdioApi>(0xaa, 0x3f);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<UffdioRegister>(0xaa, 0);
const UFFDIO_UNREGISTER: Opcode = opcode::read::<UffdioRange>(0xaa, 1);
const UFFDIO_WRITEPROTECT: Opcode = opcode::read_write::<UffdioWriteprotect>(0xaa, 6);
const PAGEMAP_SCAN: Opcode = opcode::read_write::<PmScanArg>(b'f', 16);

/// An ioctl that changes its argument, and what it returns.
struct Call<'a, T> {
    opcode: Opcode,
    argument: &'a mut T,
}

// SAFETY: the calls of this module give each opcode the structure that it is made from, which the kernel
// may read and write while it is borrowed.
unsafe impl<T> Ioctl for Call<'_, T> {
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.argument).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(output)
    }
}

fn call<T>(fd: &Fd, opcode: Opcode, argument: &mut T) -> rustix::io::Result<i32> {
    // SAFETY: see `Call`. None of them touches memory beyond its argument, but for the list of a scan, which
    // is described in it; a page that is write-protected asynchronously can be stored to as before.
    unsafe { rustix::ioctl::ioctl(fd, Call { opcode, argument }) }
}

/// Pages whose first store since the last scan is noticed.
#[derive(Debug)]
pub struct Tracker {
    /// Never read: with asynchronous protection nothing comes.
    faults: Fd,
    pagemap: Fd,
    start: u64,
    len: u64,
    /// Whose pages they are: the descriptors mean that process in its children too.
    owner: Pid,
}

impl Tracker {
    /// Tracks stores to the whole pages of `len` bytes at `start` from now on. They should be memory of
    /// a file that was made for it, mapped once and writable; when they are unmapped nothing is found any more.
    ///
    /// # Errors
    /// As userfaultfd(2) and its ioctls: `ENOSYS` or `EINVAL` on a kernel without it, `EPERM` where it is
    /// forbidden, `EBUSY` where a range is tracked already.
    pub fn new(start: NonNull<u8>, len: usize) -> rustix::io::Result<Tracker> {
        let (start, len) = (start.as_ptr().addr() as u64, len as u64);
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | USER_MODE_ONLY;
        // SAFETY: nothing is done with the descriptor but the calls of this module.
        let faults = Fd::from(unsafe { rustix::mm::userfaultfd(flags) }?);
        let mut api = UffdioApi { api: API, features: FEATURES, ioctls: 0 };
        call(&faults, UFFDIO_API, &mut api)?;
        let mut register = UffdioRegister { start, len, mode: REGISTER_WP, ioctls: 0 };
        call(&faults, UFFDIO_REGISTER, &mut register)?;
        let mut protect = UffdioWriteprotect { start, len, mode: PROTECT };
        call(&faults, UFFDIO_WRITEPROTECT, &mut protect)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let pagemap = Fd::from(rustix::fs::open("/proc/self/pagemap", flags, Mode::empty())?);
        let owner = rustix::process::getpid();
        let tracker = Tracker { faults, pagemap, start, len, owner };
        tracker.stored(|_| {})?; // a kernel that cannot scan says so now
        Ok(tracker)
    }

    /// Names the pages that were stored to since the last call, as ranges of bytes from the first tracked
    /// one, in ascending order. Stores from now on are for the next call. In memory that was unmapped
    /// nothing is found.
    ///
    /// # Errors
    /// As the ioctl; `EPERM` from where another mapping has taken the memory's place. What was found before that is
    /// named, and is not named again.
    pub fn stored(&self, mut found: impl FnMut(Range<usize>)) -> rustix::io::Result<()> {
        let end = self.start + self.len;
        let mut from = self.start;
        while from < end {
            let mut list = [PageRegion::default(); 128];
            let mut scan = PmScanArg {
                size: size_of::<PmScanArg>() as u64,
                flags: PROTECT_AGAIN,
                start: from,
                end,
                walk_end: 0,
                vec: list.as_mut_ptr().expose_provenance() as u64,
                vec_len: list.len() as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: WRITTEN,
                category_anyof_mask: 0,
                return_mask: WRITTEN,
            };
            let called = call(&self.pagemap, PAGEMAP_SCAN, &mut scan);
            // On an error nobody says how many there are: those before the first that is still empty.
            for region in list.iter().take_while(|region| region.end > 0) {
                let at = |address: u64| address.saturating_sub(self.start).min(self.len) as usize;
                found(at(region.start)..at(region.end));
            }
            called?;
            if scan.walk_end <= from {
                return Err(Errno::IO); // would never end
            }
            from = scan.walk_end;
        }
        Ok(())
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        // Closing does it too, but not while a child has the descriptor.
        if rustix::process::getpid() == self.owner {
            let mut range = UffdioRange { start: self.start, len: self.len };
            let _ = call(&self.faults, UFFDIO_UNREGISTER, &mut range); // they may be gone
        }
    }
}

/// Tries it: whether a store by this process and one by the kernel are found, each on its page, and no other.
///
/// # Errors
/// What is refused; `EIO` when a store is missed.
pub fn probe() -> rustix::io::Result<()> {
    let page = mmap::page_size();
    let file = memfd::create("vmmc-track", 4 * page as u64)?;
    let pages = mmap::GuardedMapping::new(&file, 4 * page, mmap::Access::ReadWrite)?;
    let tracker = Tracker::new(pages.as_ptr(), 4 * page)?;
    // SAFETY: mapped above and known to nobody else; one byte of the second page.
    unsafe { pages.as_ptr().as_ptr().wrapping_add(page).write_volatile(1) };
    let (out, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::write(&into, &[1])?;
    // SAFETY: as above, of the fourth page; the only reference into it, and it ends here.
    let byte = unsafe { &mut *pages.as_ptr().as_ptr().wrapping_add(3 * page).cast::<[u8; 1]>() };
    rustix::io::read(&out, byte)?;
    let mut found = Vec::new();
    tracker.stored(|range| found.push(range))?;
    let all = found == [page..2 * page, 3 * page..4 * page];
    found.clear();
    tracker.stored(|range| found.push(range))?;
    if all && found.is_empty() { Ok(()) } else { Err(Errno::IO) }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Page size, and so many pages, tracked. The tracker goes first.
    fn tracked(pages: usize) -> (usize, mmap::GuardedMapping, Tracker) {
        let page = mmap::page_size();
        let file = memfd::create("track", (pages * page) as u64).unwrap();
        let mapping = mmap::GuardedMapping::new(&file, pages * page, mmap::Access::ReadWrite);
        let mapping = mapping.unwrap();
        let tracker = Tracker::new(mapping.as_ptr(), pages * page).unwrap();
        (page, mapping, tracker)
    }

    /// What one thread stores while another scans is all found: before, or in the last scan.
    #[test]
    fn no_store_is_lost_between_scans() {
        const PAGES: usize = 300;
        let (page, pages, tracker) = tracked(PAGES);
        let word = |number: usize| {
            let place = pages.as_ptr().as_ptr().wrapping_add(number * page);
            // SAFETY: the first word of a page of the mapping, which is accessed atomically only.
            unsafe { AtomicUsize::from_ptr(place.cast()) }
        };
        let words: Vec<&AtomicUsize> = (0..PAGES).map(word).collect();
        let mut image = vec![0; PAGES];
        let scan = |image: &mut [usize]| {
            let mut any = false;
            let copy = |range: Range<usize>| {
                any = true;
                for number in range.start / page..range.end / page {
                    image[number] = words[number].load(Ordering::Relaxed);
                }
            };
            tracker.stored(copy).unwrap();
            any
        };
        for round in 1..=50 {
            // Scans that found something while stores were made.
            let fruitful = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let enough = |i| i >= PAGES && fruitful.load(Ordering::Relaxed) >= 3;
                    for i in (0..).take_while(|&i| !enough(i)) {
                        // Every second page, so that many ranges are found at once; then the others.
                        let number = (i * 2 % PAGES + i * 2 / PAGES) % PAGES;
                        words[number].store(round << 40 | i, Ordering::Relaxed);
                    }
                });
                while !writer.is_finished() {
                    fruitful.fetch_add(usize::from(scan(&mut image)), Ordering::Relaxed);
                }
            });
            scan(&mut image);
            assert!(!scan(&mut image), "found again without a store");
            let now: Vec<_> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            assert!(now.iter().all(|&word| word >> 40 == round), "each page is stored to");
            assert_eq!(image, now, "round {round}");
        }
    }

    #[test]
    fn more_ranges_than_one_call_lists_are_found() {
        const PAGES: usize = 1000;
        let (page, pages, tracker) = tracked(PAGES);
        store(&pages, (0..PAGES).step_by(2));
        let mut found = Vec::new();
        tracker.stored(|range| found.push(range)).unwrap();
        let wanted: Vec<_> = (0..PAGES).step_by(2).map(|i| i * page..(i + 1) * page).collect();
        assert_eq!(found, wanted);
    }

    /// Stores to pages.
    fn store(pages: &mmap::GuardedMapping, numbers: impl Iterator<Item = usize>) {
        for at in numbers.map(|number| number * mmap::page_size()) {
            assert!(at < pages.len());
            // SAFETY: inside the mapping, which only this test has.
            unsafe { pages.as_ptr().as_ptr().wrapping_add(at).write_volatile(1) };
        }
    }

    /// Puts another mapping in the place of one page.
    fn replace(pages: &mmap::GuardedMapping, at: usize) {
        let place = NonNull::new(pages.as_ptr().as_ptr().wrapping_add(at)).unwrap();
        // SAFETY: a page of the mapping, which only this test has.
        unsafe { mmap::replace_with_private(place, mmap::page_size()) }.unwrap();
    }

    #[test]
    fn what_a_scan_finds_before_it_fails_is_named() {
        // Ranges enough that the first call lists some and the second fails.
        const PAGES: usize = 300;
        let (page, pages, tracker) = tracked(PAGES);
        store(&pages, (0..PAGES).step_by(2));
        replace(&pages, 289 * page);
        let mut found = Vec::new();
        assert_eq!(tracker.stored(|range| found.push(range)), Err(Errno::PERM));
        let wanted: Vec<_> = (0..289).step_by(2).map(|i| i * page..(i + 1) * page).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn memory_that_is_not_there_was_not_stored_to() {
        if !crate::testing::alone("sys::track::tests::memory_that_is_not_there_was_not_stored_to") {
            return; // others may map something into the hole
        }
        let (page, pages, tracker) = tracked(3);
        store(&pages, [0, 2].into_iter());
        let second = pages.as_ptr().as_ptr().wrapping_add(page).cast();
        // SAFETY: a page of the mapping, which only this test has; what is unmapped is not accessed any more.
        unsafe { rustix::mm::munmap(second, page) }.unwrap();
        let mut found = Vec::new();
        tracker.stored(|range| found.push(range)).unwrap();
        assert_eq!(found, [0..page, 2 * page..3 * page]);
    }

    #[test]
    fn this_kernel_can_do_it() {
        probe().unwrap();
    }
}
