//! Mappings: shared with guard pages around them, swapped in place, private.

use super::fork::ForkGuard;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The system's page size in bytes.
#[must_use]
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// `len` rounded up to whole pages, or `None` when that overflows.
#[must_use]
pub fn round_to_pages(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(page_size())
}

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; the descriptor may be read-only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

impl Access {
    fn prot(self) -> ProtFlags {
        match self {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

fn non_null(address: *mut std::ffi::c_void) -> rustix::io::Result<NonNull<u8>> {
    NonNull::new(address.cast()).ok_or(rustix::io::Errno::NOMEM)
}

/// Private anonymous pages, zero, readable and writable. The caller unmaps them, or never does.
///
/// # Errors
/// As mmap(2).
pub fn map_private_anonymous(len: usize) -> rustix::io::Result<NonNull<u8>> {
    // SAFETY: a null hint without MAP_FIXED never replaces an existing mapping.
    let address = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    non_null(address)
}

/// Replaces the pages at `address` by fresh private zero pages, in one step.
///
/// # Safety
/// `address` and `len` (whole pages) must lie in a mapping that the caller owns, and nobody may
/// hold a Rust reference into it.
///
/// # Errors
/// As mmap(2); the old mapping may be gone then.
pub unsafe fn replace_with_private(address: NonNull<u8>, len: usize) -> rustix::io::Result<()> {
    // SAFETY: the caller owns the range, so MAP_FIXED replaces only what is its own.
    unsafe {
        rustix::mm::mmap_anonymous(
            address.as_ptr().cast(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::FIXED,
        )
    }
    .map(drop)
}

/// Replaces the pages at `address` by a shared mapping of `fd` from `offset`, in one step.
///
/// # Safety
/// As [`replace_with_private`].
///
/// # Errors
/// As mmap(2); the old mapping may be gone then.
pub unsafe fn replace_with_shared(
    address: NonNull<u8>,
    len: usize,
    fd: impl AsFd,
    offset: u64,
    access: Access,
) -> rustix::io::Result<()> {
    // SAFETY: the caller owns the range, so MAP_FIXED replaces only what is its own.
    unsafe {
        rustix::mm::mmap(
            address.as_ptr().cast(),
            len,
            access.prot(),
            MapFlags::SHARED | MapFlags::FIXED,
            fd,
            offset,
        )
    }
    .map(drop)
}

/// Moves the pages at `from` onto `to`, whose own are dropped, in one step.
///
/// # Safety
/// Both ranges of `len` bytes (whole pages) must be mappings that the caller owns, different ones,
/// with no Rust reference into either; `from` is unmapped afterwards.
///
/// # Errors
/// As mremap(2).
pub unsafe fn move_onto(from: NonNull<u8>, to: NonNull<u8>, len: usize) -> rustix::io::Result<()> {
    // SAFETY: the caller owns both ranges.
    unsafe {
        rustix::mm::mremap_fixed(
            from.as_ptr().cast(),
            len,
            len,
            rustix::mm::MremapFlags::MAYMOVE,
            to.as_ptr().cast(),
        )
    }
    .map(drop)
}

/// Keeps the pages at `address` out of forked children.
///
/// # Errors
/// As madvise(2) `MADV_DONTFORK`.
pub fn keep_from_children(address: NonNull<u8>, len: usize) -> rustix::io::Result<()> {
    // SAFETY: this process sees no change, and in its children nothing is there to be accessed.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), len, rustix::mm::Advice::LinuxDontFork) }
}

/// Undoes [`keep_from_children`], for children that are forked from now on.
///
/// # Errors
/// As madvise(2) `MADV_DOFORK`.
pub fn leave_to_children(address: NonNull<u8>, len: usize) -> rustix::io::Result<()> {
    // SAFETY: this process sees no change, and its children inherit a mapping as if nothing had been advised.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), len, rustix::mm::Advice::LinuxDoFork) }
}

/// A shared mapping of a whole segment, between two guard pages unless made by [`GuardedMapping::bare`] (V6): a
/// store that runs over either end faults instead of reaching another buffer. Unmapped when dropped.
#[derive(Debug)]
pub struct GuardedMapping {
    /// First byte of the guard in front.
    reservation: NonNull<u8>,
    /// Bytes of guard in front, and as many behind.
    guard: usize,
    /// Length of the data, whole pages.
    len: usize,
    /// Set by [`GuardedMapping::keep_from_children`]: the process generation that has the pages.
    kept_by: AtomicU32,
}

// SAFETY: the value owns address space, which belongs to the process and not to a thread; what
// may be done with the bytes is decided by the types that use it.
unsafe impl Send for GuardedMapping {}
// SAFETY: as above; it has no interior state.
unsafe impl Sync for GuardedMapping {}

impl GuardedMapping {
    /// Maps the first `len` bytes (rounded up to whole pages) of `fd`.
    ///
    /// # Errors
    /// As mmap(2): `ENOMEM` at the address-space or mapping-count limit (`vm.max_map_count`),
    /// `EACCES` when the descriptor does not allow `access`, `EINVAL` for a length of zero.
    pub fn new(fd: impl AsFd, len: usize, access: Access) -> rustix::io::Result<GuardedMapping> {
        GuardedMapping::at(fd, 0, len, access)
    }

    /// Maps `len` bytes (rounded up to whole pages) of `fd` from `offset`, a multiple of the
    /// page size.
    ///
    /// # Errors
    /// As [`GuardedMapping::new`].
    pub fn at(
        fd: impl AsFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> rustix::io::Result<GuardedMapping> {
        let page = page_size();
        let len = round_to_pages(len).filter(|&len| len > 0).ok_or(rustix::io::Errno::INVAL)?;
        let total = len.checked_add(2 * page).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: a null hint without MAP_FIXED never replaces an existing mapping.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                total,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let mapping = GuardedMapping {
            reservation: non_null(address)?,
            guard: page,
            len,
            kept_by: AtomicU32::new(0),
        };
        // SAFETY: the range lies inside the reservation made above, which nobody else knows of.
        unsafe { replace_with_shared(mapping.as_ptr(), len, fd, offset, access) }?;
        Ok(mapping)
    }

    /// Maps the first `len` bytes (rounded up to whole pages) of `fd` without guard pages, which are half of
    /// the work: for memory where any byte may be anything at any time as it is.
    ///
    /// # Errors
    /// As [`GuardedMapping::new`].
    pub fn bare(fd: impl AsFd, len: usize, access: Access) -> rustix::io::Result<GuardedMapping> {
        let len = round_to_pages(len).filter(|&len| len > 0).ok_or(rustix::io::Errno::INVAL)?;
        // SAFETY: a null hint without MAP_FIXED never replaces an existing mapping.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, access.prot(), MapFlags::SHARED, fd, 0)
        }?;
        let reservation = non_null(address)?;
        Ok(GuardedMapping { reservation, guard: 0, len, kept_by: AtomicU32::new(0) })
    }

    /// Another mapping of the same pages, without guard pages, which takes no descriptor.
    ///
    /// # Errors
    /// As mremap(2).
    pub fn again(&self) -> rustix::io::Result<GuardedMapping> {
        // SAFETY: a length of zero leaves the old mapping of shared pages as it is, and makes another one of them.
        let address = unsafe {
            let flags = rustix::mm::MremapFlags::MAYMOVE;
            rustix::mm::mremap(self.as_ptr().as_ptr().cast(), 0, self.len, flags)
        }?;
        let reservation = non_null(address)?;
        let again =
            GuardedMapping { reservation, guard: 0, len: self.len, kept_by: AtomicU32::new(0) };
        again.keep_from_children()?;
        Ok(again)
    }

    /// Puts private pages in the place of these, in one step: what is written here from now on nobody else sees. They take
    /// no memory until then.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn forsake(&self) -> rustix::io::Result<()> {
        if !self.is_here() {
            return Ok(());
        }
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is this value's, so MAP_FIXED replaces only what is its own, and who has its address finds
        // memory there as before.
        unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(self.as_ptr().as_ptr().cast(), self.len, prot, flags)
        }?;
        keep_from_children(self.as_ptr(), self.len)
    }

    /// First byte of the data; page aligned.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: the reservation begins with the guard, and is longer.
        unsafe { self.reservation.add(self.guard) }
    }

    /// Length of the data in bytes, whole pages.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// Keeps the pages out of forked children (they would otherwise inherit the mapping).
    ///
    /// # Errors
    /// As madvise(2) `MADV_DONTFORK`.
    pub fn keep_from_children(&self) -> rustix::io::Result<()> {
        keep_from_children(self.as_ptr(), self.len)?;
        let generation = ForkGuard::get().map_or(0, ForkGuard::ensure_generation);
        self.kept_by.store(generation, Ordering::Relaxed);
        Ok(())
    }

    /// Undoes [`GuardedMapping::keep_from_children`], for children that are forked from now on. Not for a
    /// child that the pages were kept from.
    ///
    /// # Errors
    /// As madvise(2) `MADV_DOFORK`.
    pub fn leave_to_children(&self) -> rustix::io::Result<()> {
        leave_to_children(self.as_ptr(), self.len)?;
        // A child that is forked between the two has the pages and leaves them mapped: no harm.
        self.kept_by.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// False in a forked child that the pages were kept from.
    #[must_use]
    pub fn is_here(&self) -> bool {
        let kept_by = self.kept_by.load(Ordering::Relaxed);
        kept_by == 0 || ForkGuard::get().is_some_and(|guard| guard.generation() == kept_by)
    }
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        if !self.is_here() {
            // A forked child: the pages were kept from it, and their place may since have been
            // given to another mapping, which is not ours to unmap.
            return;
        }
        let total = self.len + 2 * self.guard;
        // SAFETY: the range was reserved by `at` or `bare` and belongs to this value alone; it is whole,
        // because this is not a child that the pages were kept from.
        let _ = unsafe { rustix::mm::munmap(self.reservation.as_ptr().cast(), total) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_of_nothing_is_refused() {
        let fd = super::super::memfd::create("empty", 0).unwrap();
        assert_eq!(
            GuardedMapping::new(&fd, 0, Access::Read).unwrap_err(),
            rustix::io::Errno::INVAL
        );
    }

    #[test]
    fn a_bare_mapping_is_its_pages_and_goes_with_them() {
        let page = page_size();
        let fd = super::super::memfd::create("bare-mapping", 2 * page as u64).unwrap();
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let line = maps.lines().find(|line| line.contains("bare-mapping"));
            line.map(|line| line.split_once(' ').unwrap().0.to_owned())
        };
        let mapping = GuardedMapping::bare(&fd, page + 1, Access::ReadWrite).unwrap();
        let start = mapping.as_ptr().as_ptr().addr();
        assert_eq!(mapped(), Some(format!("{start:x}-{:x}", start + 2 * page)));
        drop(mapping);
        assert_eq!(mapped(), None);
    }

    #[test]
    fn a_mapping_made_again_shows_the_same_bytes_until_it_is_forsaken() {
        let page = page_size();
        let fd = super::super::memfd::create("again", 2 * page as u64).unwrap();
        let first = GuardedMapping::new(&fd, 2 * page, Access::ReadWrite).unwrap();
        let again = first.again().unwrap();
        // SAFETY: mapped, and this test's alone.
        let byte = |mapping: &GuardedMapping| unsafe { mapping.as_ptr().add(page).as_ptr() };
        assert_ne!(byte(&first), byte(&again));
        // SAFETY: as above.
        unsafe { byte(&again).write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { byte(&first).read_volatile() }, 7);
        again.forsake().unwrap();
        // SAFETY: as above.
        unsafe { byte(&again).write_volatile(8) };
        // SAFETY: as above.
        assert_eq!(unsafe { byte(&first).read_volatile() }, 7);
        drop(again);
        // SAFETY: as above.
        assert_eq!(unsafe { byte(&first).read_volatile() }, 7);
    }

    #[test]
    fn the_pages_around_a_mapping_are_not_accessible() {
        let page = page_size();
        let fd = super::super::memfd::create("guarded", page as u64).unwrap();
        let mapping = GuardedMapping::new(&fd, page, Access::ReadWrite).unwrap();
        let start = mapping.as_ptr().as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let covering = |address: usize| {
            maps.lines()
                .find(|line| {
                    let (range, _) = line.split_once(' ').unwrap();
                    let (from, to) = range.split_once('-').unwrap();
                    let parse = |text| usize::from_str_radix(text, 16).unwrap();
                    (parse(from)..parse(to)).contains(&address)
                })
                .map(|line| line.split_whitespace().nth(1).unwrap().to_owned())
        };
        assert_eq!(covering(start).as_deref(), Some("rw-s"));
        assert_eq!(covering(start - 1).as_deref(), Some("---p"));
        assert_eq!(covering(start + page).as_deref(), Some("---p"));
    }
}
