//! Memory that can be exported: a sealed memory file and its mapping.
//!
//! [`Region::new`] makes both; [`Region::adopt`] puts a memory file behind memory that the
//! program has already, at the same address and with its contents kept (G4). A region that is not
//! exported is private memory of this process and may be used as a slice.
//!
//! **Revoking** ([`Region::revoke`]) is a swap: a new memory file with the same bytes takes the
//! place of the old one, at the same address and in one step. Whoever kept a mapping of the old file writes to
//! pages that nobody else has.

use super::{Lent, Place, PlaceError, View};
use crate::error::{RegionError, SystemError, system};
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
    /// Of `place`, with the length that was asked for.
    view: View<'static>,
    /// Others may have the memory for good.
    shared: bool,
}

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
        Ok(Region::of(file, Place::Ours(mapping), len))
    }

    /// Takes existing memory into use as a region, in place: it keeps its address and contents.
    /// When the region is dropped the memory stays where it is, readable and writable, with the
    /// contents of that moment, private again.
    ///
    /// # Safety
    /// `start` to `start + len` must be whole pages of memory that the caller owns, readable and
    /// writable, and must stay so for the life of the region and of an export made from it, or until
    /// [`crate::Export::abandon`] if nothing is accessed through either meanwhile. No
    /// Rust reference into it may be alive, and no other thread may write to it during the call.
    /// Forked children see the region's bytes as shared memory.
    ///
    /// # Errors
    /// [`RegionError::Misaligned`] when it is not whole pages; [`RegionError::System`].
    pub unsafe fn adopt(start: NonNull<u8>, len: usize) -> Result<Region, RegionError> {
        if len == 0 {
            return Err(RegionError::BadLength { len });
        }
        let address = start.as_ptr().addr();
        // SAFETY: owned by the caller's word, for the life of the region.
        let lent = unsafe { Lent::new(start, len) }.map_err(|error| match error {
            PlaceError::Misaligned => {
                RegionError::Misaligned { address, len, page: mmap::page_size() }
            }
            PlaceError::InUse { address } => RegionError::InUse { address },
        })?;
        Ok(Region::replace_by_copy(Place::Program(lent), len, "mapping adopted memory")?)
    }

    /// Puts a memory file with the same bytes behind a place.
    fn replace_by_copy(
        place: Place,
        len: usize,
        call: &'static str,
    ) -> Result<Region, SystemError> {
        let file = sealed_file(len)?;
        copy_into(&file, place.owned_view(len))?;
        place.put(&file, 0).map_err(system(call))?;
        Ok(Region::of(file, place, len))
    }

    fn of(file: Fd, place: Place, len: usize) -> Region {
        let view = place.owned_view(len);
        Region { file: Arc::new(file), place, view, shared: false }
    }

    /// Wraps pages that a binding leaves behind; see [`crate::Binding::unbind`].
    pub(crate) fn from_binding(place: Place, len: usize) -> Result<Region, SystemError> {
        Region::replace_by_copy(place, len, "mapping unbound memory")
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// First byte; page aligned, the same as long as the region lives.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.view.as_ptr()
    }

    /// The bytes. While the region is not exported nobody else has them.
    ///
    /// # Panics
    /// After [`Region::share`]: others may write to them.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        assert!(!self.shared, "the memory of this region was shared, and has no slices");
        // SAFETY: `len` bytes are mapped as long as `self`; a region that is a value (and not
        // inside an export) and was not shared is mapped by no other process, and writing needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr(), self.len()) }
    }

    /// The bytes, to change.
    ///
    /// # Panics
    /// As [`Region::as_slice`].
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(!self.shared, "the memory of this region was shared, and has no slices");
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len()) }
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
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        self.view
    }

    /// As [`GuardedMapping::keep_from_children`].
    pub(crate) fn keep_from_children(&self) -> rustix::io::Result<()> {
        self.place.keep_from_children()
    }

    /// As [`GuardedMapping::leave_to_children`]. A region that is given back has been left to them:
    /// its slices must be there in them too.
    pub(crate) fn leave_to_children(&self) -> rustix::io::Result<()> {
        self.place.leave_to_children()
    }

    /// A descriptor of the memory file. Whoever is given it has the memory, with no link and no right that could be taken
    /// back, until the region is revoked or dropped and longer: for processes that are to share it for good. From here on the
    /// region has no slices.
    ///
    /// # Errors
    /// As dup(2).
    pub fn share(&mut self) -> rustix::io::Result<Fd> {
        let file = self.file.try_clone()?;
        self.shared = true;
        Ok(file)
    }

    /// The memory file.
    pub(crate) fn file(&self) -> &Arc<Fd> {
        &self.file
    }

    /// As [`crate::Export::abandon`].
    pub(crate) fn abandon(self) {
        if let Place::Program(lent) = self.place {
            lent.abandon();
        }
    }

    /// Swaps fresh pages with the same bytes for the present ones, at the same address. After
    /// this no other process has the region's memory, whatever it kept. Bytes that anyone
    /// stores during the call may or may not be in the copy.
    pub(crate) fn revoke(&mut self) -> Result<(), SystemError> {
        let fresh = sealed_file(self.len())?;
        copy_into(&fresh, self.view())?;
        self.place.put(&fresh, 0).map_err(system("swapping the pages of a region"))?;
        self.file = Arc::new(fresh);
        self.shared = false;
        Ok(())
    }
}

/// Copies what `source` shows into a memory file of the same length.
fn copy_into(file: &Fd, source: View<'_>) -> Result<(), SystemError> {
    let mapping = GuardedMapping::new(file, source.len(), Access::ReadWrite)
        .map_err(system("mapping a copy"))?;
    // Both are `source.len()` bytes long.
    let _ = super::owned_view(&mapping, source.len()).write_from(0, source);
    Ok(())
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "was shared"]
    fn memory_that_was_shared_has_no_slices() {
        let mut region = Region::new(4096).unwrap();
        region.as_mut_slice().fill(1);
        let _file = region.share().unwrap();
        let _ = region.as_slice();
    }

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

    /// The program may have something else there by now.
    #[test]
    fn memory_that_is_abandoned_is_not_touched_and_may_be_lent_again() {
        let page = mmap::page_size();
        let start = mmap::map_private_anonymous(page).unwrap();
        // SAFETY: mapped just now, and stays; no references into it.
        let adopt = || unsafe { Region::adopt(start, page) };
        let mut region = adopt().unwrap();
        region.write(0, b"old").unwrap();
        let other = mmap::map_private_anonymous(page).unwrap();
        // SAFETY: the page of this test, which nobody looks at through the region any more.
        unsafe { mmap::move_onto(other, start, page) }.unwrap();
        // SAFETY: mapped until the end of the test.
        let there = unsafe { View::from_raw(start, page) };
        there.write(0, b"new").unwrap();
        region.abandon();
        let mut found = [0; 3];
        there.read(0, &mut found).unwrap();
        assert_eq!(&found, b"new");
        assert_eq!(&adopt().unwrap().as_slice()[..3], b"new");
    }

    /// V7: receive buffers do not overlap.
    #[test]
    fn memory_is_lent_to_one_region_at_a_time() {
        let page = mmap::page_size();
        let start = mmap::map_private_anonymous(3 * page).unwrap();
        let address = start.as_ptr().addr();
        let adopt = |at: usize, pages: usize| {
            let start = NonNull::new(start.as_ptr().wrapping_add(at * page)).unwrap();
            // SAFETY: inside the three pages mapped just now, which stay; no references into them.
            unsafe { Region::adopt(start, pages * page) }
        };
        let first = adopt(0, 2).unwrap();
        assert_eq!(adopt(1, 2).unwrap_err(), RegionError::InUse { address });
        assert_eq!(adopt(0, 1).unwrap_err(), RegionError::InUse { address });
        let _beside = adopt(2, 1).unwrap();
        drop(first);
        let _again = adopt(1, 1).unwrap();
    }
}
