//! A mapping in which each ring is there twice, one copy behind the other: a message that runs
//! over the end of the ring is contiguous all the same, so that XDR's `x_inline` never fails at a
//! wrap and a copy is one piece.
//!
//! ```text
//!   guard | control | ring 0 | ring 0 again | ring 1 | ring 1 again | guard
//! ```

use super::mmap::{Access, page_size, replace_with_shared};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::AsFd;
use std::ptr::NonNull;

/// A shared mapping of a control block and two mirrored rings. Never kept from forked children.
/// Unmapped when dropped.
#[derive(Debug)]
pub struct MirroredMapping {
    /// First byte of the guard page in front.
    reservation: NonNull<u8>,
    /// First byte behind it.
    control: NonNull<u8>,
    control_len: usize,
    ring_len: usize,
}

// SAFETY: the value owns address space, which belongs to the process and not to a thread; what
// may be done with the bytes is decided by the types that use it.
unsafe impl Send for MirroredMapping {}
// SAFETY: as above; it has no interior state.
unsafe impl Sync for MirroredMapping {}

impl MirroredMapping {
    /// Maps `fd`, which holds `control_len` bytes and then two rings of `ring_len` bytes, both
    /// whole pages.
    ///
    /// # Errors
    /// `EINVAL` for lengths that are not whole pages or are zero; else as mmap(2).
    pub fn new(
        fd: impl AsFd,
        control_len: usize,
        ring_len: usize,
    ) -> rustix::io::Result<MirroredMapping> {
        let page = page_size();
        let whole = |len: usize| len > 0 && len.is_multiple_of(page);
        if !whole(control_len) || !whole(ring_len) {
            return Err(Errno::INVAL);
        }
        let total = ring_len
            .checked_mul(4)
            .and_then(|rings| rings.checked_add(control_len))
            .and_then(|data| data.checked_add(2 * page))
            .ok_or(Errno::NOMEM)?;
        // SAFETY: a null hint without MAP_FIXED never replaces an existing mapping.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                total,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let reservation = NonNull::new(address.cast()).ok_or(Errno::NOMEM)?;
        // SAFETY: the reservation is longer than one page.
        let control = unsafe { reservation.add(page) };
        let mapping = MirroredMapping { reservation, control, control_len, ring_len };
        let fd = fd.as_fd();
        let place = |at: usize, len: usize, offset: usize| {
            // SAFETY: `at` is inside the reservation, as all callers below compute it.
            let address = unsafe { mapping.control().add(at) };
            // SAFETY: the range lies inside the reservation made above, which nobody else knows of.
            unsafe { replace_with_shared(address, len, fd, offset as u64, Access::ReadWrite) }
        };
        place(0, control_len, 0)?;
        for ring in 0..2 {
            let offset = control_len + ring * ring_len;
            for copy in 0..2 {
                place(control_len + (2 * ring + copy) * ring_len, ring_len, offset)?;
            }
        }
        Ok(mapping)
    }

    /// First byte of the control block; page aligned.
    #[inline]
    #[must_use]
    pub fn control(&self) -> NonNull<u8> {
        self.control
    }

    /// First byte of ring 0 or 1; twice [`MirroredMapping::ring_len`] bytes are accessible from it.
    #[inline]
    #[must_use]
    pub fn ring(&self, which: usize) -> NonNull<u8> {
        let at = self.control_len + 2 * (which & 1) * self.ring_len;
        // SAFETY: inside the reservation for both values of `which & 1`.
        unsafe { self.control().add(at) }
    }

    /// Length of the control block in bytes.
    #[inline]
    #[must_use]
    pub fn control_len(&self) -> usize {
        self.control_len
    }

    /// Length of one ring in bytes.
    #[inline]
    #[must_use]
    pub fn ring_len(&self) -> usize {
        self.ring_len
    }
}

impl Drop for MirroredMapping {
    fn drop(&mut self) {
        let total = self.control_len + 4 * self.ring_len + 2 * page_size();
        // SAFETY: the range was reserved by `new` and belongs to this value alone.
        let _ = unsafe { rustix::mm::munmap(self.reservation.as_ptr().cast(), total) };
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::mem::View;

    #[test]
    fn what_is_written_over_the_end_of_a_ring_is_at_its_start() {
        let page = page_size();
        let fd = super::super::memfd::create("mirror", 5 * page as u64).unwrap();
        let mapping = MirroredMapping::new(&fd, page, 2 * page).unwrap();
        for which in 0..2 {
            // SAFETY: a mirrored ring is accessible for twice its length.
            let ring = unsafe { View::from_raw(mapping.ring(which), 4 * page) };
            let text = [b'0' + which as u8; 10];
            ring.write(2 * page - 5, &text).unwrap();
            let mut start = [0; 5];
            ring.read(0, &mut start).unwrap();
            assert_eq!(start, text[5..]);
            let mut again = [0; 10];
            ring.read(4 * page - 5, &mut again[..5]).unwrap();
            assert_eq!(again[..5], text[..5]);
        }
    }

    #[test]
    fn lengths_that_are_not_whole_pages_are_refused() {
        let fd = super::super::memfd::create("mirror", 1 << 16).unwrap();
        for (control, ring) in [(0, 4096), (4096, 0), (100, 4096), (4096, 100)] {
            assert_eq!(MirroredMapping::new(&fd, control, ring).unwrap_err(), Errno::INVAL);
        }
    }
}
