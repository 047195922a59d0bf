//! Memory that can be exported: a sealed memory file and its mapping.
//!
//! [`Region::new`] makes both; [`Region::adopt`] puts a memory file behind memory that the
//! program has already, at the same address and with its contents kept (G4). A region that is not
//! exported is private memory of this process and may be used as a slice.
//!
//! **Revoking** ([`Region::revoke`]) is a swap: a new memory file with the same bytes takes the
//! place of the old one, at the same address and in one step. Whoever kept a mapping of the old file writes to
//! pages that nobody else has.

use crate::error::{RegionError, SystemError, system};
use crate::mem::View;
use crate::sys::mmap::{self, Access, GuardedMapping};
use crate::sys::{Fd, memfd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Whole or part of this process's memory, ready to be exported.
#[derive(Debug)]
pub struct Region {
    /// Sealed; its length is `len`.
    file: Arc<Fd>,
    place: Place,
    /// Length in bytes as asked for.
    len: usize,
}

#[derive(Debug)]
enum Place {
    /// Mapped by us, between guard pages.
    Ours(GuardedMapping),
    /// The program's own address range; the mapping stays when the region goes.
    Adopted(NonNull<u8>),
}

// SAFETY: the value owns a range of address space; what may be done with the bytes is decided by
// the methods: slices need exclusive or shared access as usual, views are safe from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

fn sealed_file(len: usize) -> Result<Fd, SystemError> {
    let file =
        memfd::create("vmmc-region", len as u64).map_err(system("memory file of a region"))?;
    memfd::seal(&file).map_err(system("sealing a region"))?;
    Ok(file)
}

impl Region {
    /// `len` bytes of zeroed memory, page aligned, between guard pages. All of it is allocated now.
    ///
    /// # Errors
    /// [`RegionError::BadLength`] for 0; [`RegionError::System`] when memory is short.
    pub fn new(len: usize) -> Result<Region, RegionError> {
        if len == 0 || mmap::round_to_pages(len).is_none() {
            return Err(RegionError::BadLength { len });
        }
        let file = sealed_file(len)?;
        let mapping = GuardedMapping::new(&file, len, Access::ReadWrite)
            .map_err(system("mapping a region"))?;
        Ok(Region { file: Arc::new(file), place: Place::Ours(mapping), len })
    }

    /// Takes existing memory into use as a region, in place: it keeps its address and contents.
    /// When the region is dropped the memory stays where it is, readable and writable, with the
    /// contents of that moment, private again.
    ///
    /// # Safety
    /// `start` to `start + len` must be whole pages of memory that the caller owns, readable and
    /// writable, and must stay so for the life of the region and of an export made from it. No
    /// Rust reference into it may be alive, and no other thread may write to it during the call.
    /// Forked children see the region's bytes as shared memory.
    ///
    /// # Errors
    /// [`RegionError::Misaligned`] when it is not whole pages; [`RegionError::System`].
    pub unsafe fn adopt(start: NonNull<u8>, len: usize) -> Result<Region, RegionError> {
        let page = mmap::page_size();
        let address = start.as_ptr().addr();
        if len == 0 {
            return Err(RegionError::BadLength { len });
        }
        if !address.is_multiple_of(page) || !len.is_multiple_of(page) {
            return Err(RegionError::Misaligned { address, len, page });
        }
        let file = sealed_file(len)?;
        // SAFETY: mapped and owned by the caller's word, for longer than this call.
        let old = unsafe { View::from_raw(start, len) };
        copy_into(&file, old)?;
        // SAFETY: the caller owns the range and holds no reference into it.
        unsafe { mmap::replace_with_shared(start, len, &file, 0, Access::ReadWrite) }
            .map_err(system("mapping adopted memory"))?;
        Ok(Region { file: Arc::new(file), place: Place::Adopted(start), len })
    }

    /// Wraps pages that a binding leaves behind; see [`crate::Binding::unbind`].
    pub(crate) fn from_binding(mapping: GuardedMapping, len: usize) -> Result<Region, SystemError> {
        // SAFETY: the mapping covers `len` bytes and lives until the end of this function.
        let bytes = unsafe { View::from_raw(mapping.as_ptr(), len) };
        let file = sealed_file(len)?;
        copy_into(&file, bytes)?;
        // SAFETY: the mapping is owned here; only views (no references) into it existed, and
        // they borrowed the binding that was given up.
        unsafe {
            mmap::replace_with_shared(mapping.as_ptr(), mapping.len(), &file, 0, Access::ReadWrite)
        }
        .map_err(system("mapping unbound memory"))?;
        Ok(Region { file: Arc::new(file), place: Place::Ours(mapping), len })
    }

    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// First byte; page aligned, the same as long as the region lives.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        match &self.place {
            Place::Ours(mapping) => mapping.as_ptr(),
            Place::Adopted(start) => *start,
        }
    }

    /// The bytes. While the region is not exported nobody else has them.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped as long as `self`; a region that is a value (and not
        // inside an export) is mapped by no other process, and writing needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr(), self.len) }
    }

    /// The bytes, to change.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len) }
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// [`crate::mem::OutOfBounds`].
    pub fn write(&mut self, offset: usize, source: &[u8]) -> Result<(), crate::mem::OutOfBounds> {
        self.view().write(offset, source)
    }

    /// The bytes as memory that others may write meanwhile. For the export, which hands it out;
    /// a region on its own has slices.
    pub(crate) fn view(&self) -> View<'_> {
        // SAFETY: `len` bytes are mapped as long as `self` is borrowed; callers inside the crate
        // do not make slices while views are in use.
        unsafe { View::from_raw(self.as_ptr(), self.len) }
    }

    /// The memory file.
    pub(crate) fn file(&self) -> &Arc<Fd> {
        &self.file
    }

    /// Swaps fresh pages with the same bytes for the present ones, at the same address. After
    /// this no other process has the region's memory, whatever it kept. Bytes that anyone
    /// stores during the call may or may not be in the copy.
    pub(crate) fn revoke(&mut self) -> Result<(), SystemError> {
        let fresh = sealed_file(self.len)?;
        copy_into(&fresh, self.view())?;
        // SAFETY: the range is the region's own mapping (whole pages); while exported it is only
        // accessed through views, and slices would borrow `self`.
        unsafe {
            mmap::replace_with_shared(
                self.as_ptr(),
                self.mapped_len(),
                &fresh,
                0,
                Access::ReadWrite,
            )
        }
        .map_err(system("swapping the pages of a region"))?;
        self.file = Arc::new(fresh);
        Ok(())
    }

    fn mapped_len(&self) -> usize {
        match &self.place {
            Place::Ours(mapping) => mapping.len(),
            Place::Adopted(_) => self.len,
        }
    }
}

/// Copies what `source` shows into a memory file of the same length.
fn copy_into(file: &Fd, source: View<'_>) -> Result<(), SystemError> {
    let mapping = GuardedMapping::new(file, source.len(), Access::ReadWrite)
        .map_err(system("mapping a copy"))?;
    // SAFETY: both ranges are mapped for `source.len()` bytes and are different mappings.
    unsafe {
        crate::mem::copy::bytes(source.as_ptr().as_ptr(), mapping.as_ptr().as_ptr(), source.len());
    }
    Ok(())
}

impl Drop for Region {
    fn drop(&mut self) {
        let Place::Adopted(start) = self.place else { return };
        // The program goes on using its memory: make it private again, so that forked children
        // get copies as they would have. If that fails it stays the memory file's, which works.
        let bytes = self.as_slice().to_vec();
        // SAFETY: the range is the program's, handed to us by `adopt`; no references by contract.
        if unsafe { mmap::replace_with_private(start, self.len) }.is_ok() {
            let _ = self.view().write(0, &bytes);
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn adopted_memory_keeps_its_address_and_contents_through_adopt_revoke_and_drop() {
        let page = mmap::page_size();
        let start = mmap::map_private_anonymous(2 * page).unwrap();
        // SAFETY: two pages mapped just now, owned by this test.
        let memory = unsafe { View::from_raw(start, 2 * page) };
        memory.write(page - 3, b"across").unwrap();
        // SAFETY: as above; no references into it.
        let mut region = unsafe { Region::adopt(start, 2 * page) }.unwrap();
        assert_eq!(&region.as_slice()[page - 3..page + 3], b"across");
        region.write(0, b"new").unwrap();
        region.revoke().unwrap();
        assert_eq!(region.as_ptr(), start);
        drop(region);
        let mut found = [0; 6];
        memory.read(page - 3, &mut found).unwrap();
        assert_eq!(&found, b"across");
        memory.read(0, &mut found[..3]).unwrap();
        assert_eq!(&found[..3], b"new");
    }

    #[test]
    fn a_kept_mapping_reaches_nobody_after_a_revoke() {
        let mut region = Region::new(5000).unwrap();
        region.write(4990, b"kept").unwrap();
        let kept = GuardedMapping::new(region.file().as_ref(), 5000, Access::ReadWrite).unwrap();
        region.revoke().unwrap();
        // SAFETY: mapped until the end of the test.
        unsafe { View::from_raw(kept.as_ptr(), 5000) }.write(4990, b"evil").unwrap();
        assert_eq!(&region.as_slice()[4990..4994], b"kept");
        assert_eq!(region.len(), 5000);
    }

    #[test]
    fn a_region_of_nothing_and_memory_off_a_page_are_refused() {
        assert_eq!(Region::new(0).unwrap_err(), RegionError::BadLength { len: 0 });
        let odd = NonNull::new(4097 as *mut u8).unwrap();
        // SAFETY: refused before it is touched.
        let error = unsafe { Region::adopt(odd, 4096) }.unwrap_err();
        assert!(matches!(error, RegionError::Misaligned { address: 4097, .. }));
    }
}
