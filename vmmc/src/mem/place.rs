//! Where a mapping lies: at a place of ours, or over memory that the program had already.
//!
//! Memory of the program is *lent*: a memory file is put behind it at the same address, and when the
//! loan ends private pages with the same bytes take its place in one step. Nothing can be lent twice
//! at a time: an address belongs to one export or one binding (003: receive buffers may not overlap;
//! a local page has one destination).

use super::View;
use crate::sync::Ordering;
use crate::sys::fork::ForkGuard;
use crate::sys::mmap::{self, Access, GuardedMapping};
use crate::sys::own::OwnMutex;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// A mapped range.
#[derive(Debug)]
pub(crate) enum Place {
    /// Mapped by us, between guard pages; unmapped with the value.
    Ours(GuardedMapping),
    /// The program's own; stays mapped, private again.
    Program(Lent),
}

/// Why memory of the program cannot be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceError {
    /// Not whole pages.
    Misaligned,
    /// Some of it is lent already, from this address on.
    InUse { address: usize },
}

/// What is lent now, by this process: first byte and length. What a parent lent is the parent's affair.
static LENT: OwnMutex<Vec<(usize, usize)>> = OwnMutex::new();

fn generation() -> u32 {
    ForkGuard::get().map_or(0, ForkGuard::ensure_generation)
}

/// Memory of the program that is lent to us. Dropping it gives it back: private, with the contents
/// of that moment.
#[derive(Debug)]
pub(crate) struct Lent {
    start: NonNull<u8>,
    len: usize,
    /// Of the process that lent it.
    generation: u32,
    /// As in [`GuardedMapping`]: the generation whose children do not have the pages, or 0.
    kept_by: AtomicU32,
    /// Whether pages were put behind it: until then there is nothing to undo.
    changed: AtomicBool,
}

// SAFETY: the value owns address space, which belongs to the process and not to a thread; what may be
// done with the bytes is decided by the types that use it.
unsafe impl Send for Lent {}
// SAFETY: as above; its interior state is atomic.
unsafe impl Sync for Lent {}

impl Lent {
    /// Borrows `len` bytes at `start`.
    ///
    /// # Safety
    /// They must be readable and writable memory that the caller owns, for longer than the value
    /// lives, with no Rust reference into them.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Result<Lent, PlaceError> {
        let (page, from) = (mmap::page_size(), start.as_ptr().addr());
        if len == 0 || !from.is_multiple_of(page) || !len.is_multiple_of(page) {
            return Err(PlaceError::Misaligned);
        }
        let Some(end) = from.checked_add(len) else { return Err(PlaceError::Misaligned) };
        let generation = generation();
        let mut all = LENT.lock();
        if let Some(&(address, _)) = all.iter().find(|&&(at, len)| at < end && from < at + len) {
            return Err(PlaceError::InUse { address });
        }
        all.push((from, len));
        let (kept_by, changed) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Lent { start, len, generation, kept_by, changed })
    }

    /// Ends the loan of memory that the program has taken back itself: nothing is done at its addresses.
    pub(crate) fn abandon(self) {
        self.changed.store(false, Ordering::Relaxed); // so there is nothing to undo
    }

    fn give_back(&self) -> rustix::io::Result<()> {
        let private = mmap::map_private_anonymous(self.len)?;
        // SAFETY: `len` bytes mapped just now, known to nobody else.
        let copy = unsafe { View::from_raw(private, self.len) };
        // SAFETY: the lent pages, mapped and accessed through views only.
        let there = unsafe { View::from_raw(self.start, self.len) };
        // Both are `len` bytes long.
        let _ = copy.write_from(0, there);
        // SAFETY: the range is ours to replace until it is given back, which this does.
        unsafe { mmap::move_onto(private, self.start, self.len) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let kept_by = self.kept_by.load(Ordering::Relaxed);
        // In a forked child from which the pages were kept there is nothing to give back.
        if self.changed.load(Ordering::Relaxed) && (kept_by == 0 || kept_by == generation()) {
            // If that fails it stays the memory file's, which works.
            let _ = self.give_back();
        }
        if self.generation == generation() {
            let mine = (self.start.as_ptr().addr(), self.len);
            LENT.lock().retain(|it| *it != mine);
        }
    }
}

impl Place {
    /// First byte; page aligned.
    pub(crate) fn start(&self) -> NonNull<u8> {
        match self {
            Place::Ours(mapping) => mapping.as_ptr(),
            Place::Program(lent) => lent.start,
        }
    }

    /// Length in bytes, whole pages.
    pub(crate) fn len(&self) -> usize {
        match self {
            Place::Ours(mapping) => mapping.len(),
            Place::Program(lent) => lent.len,
        }
    }

    /// The first `len` bytes, as memory that others may write: as [`super::owned_view`], for the value
    /// that has the place.
    pub(crate) fn owned_view(&self, len: usize) -> View<'static> {
        debug_assert!(len <= self.len());
        // SAFETY: mapped as long as the value that holds both; callers inside the crate make no
        // slices of it meanwhile, and reborrow it to `&self` at the public interface.
        unsafe { View::from_raw(self.start(), len.min(self.len())) }
    }

    /// Puts the pages of `file` from `offset` behind the place, in one step.
    ///
    /// # Errors
    /// As mmap(2).
    pub(crate) fn put(&self, file: impl AsFd, offset: u64) -> rustix::io::Result<()> {
        let (start, len) = (self.start(), self.len());
        // SAFETY: the place is owned by this value; only views into it exist, which borrow whoever
        // owns the value.
        unsafe { mmap::replace_with_shared(start, len, file, offset, Access::ReadWrite) }?;
        if let Place::Program(lent) = self {
            lent.changed.store(true, Ordering::Relaxed);
            // A new mapping: children inherit it again.
            lent.kept_by.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// As [`GuardedMapping::keep_from_children`].
    pub(crate) fn keep_from_children(&self) -> rustix::io::Result<()> {
        match self {
            Place::Ours(mapping) => mapping.keep_from_children(),
            Place::Program(lent) => {
                mmap::keep_from_children(lent.start, lent.len)?;
                lent.kept_by.store(generation(), Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// As [`GuardedMapping::leave_to_children`].
    pub(crate) fn leave_to_children(&self) -> rustix::io::Result<()> {
        match self {
            Place::Ours(mapping) => mapping.leave_to_children(),
            Place::Program(lent) => {
                mmap::leave_to_children(lent.start, lent.len)?;
                lent.kept_by.store(0, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::testing::{alone, ends_well_in_a_child};

    /// Another thread of the parent may be lending something at the moment of the fork.
    #[test]
    fn a_forked_child_lends_and_gives_back_while_its_parent_lends() {
        let test = "a_forked_child_lends_and_gives_back_while_its_parent_lends";
        if !alone(&format!("mem::place::tests::{test}")) {
            return;
        }
        let page = mmap::page_size();
        let start = mmap::map_private_anonymous(page).unwrap();
        // SAFETY: a page mapped just now, for ever; no references into it.
        let lend = || unsafe { Lent::new(start, page) };
        let mut inherited = Some(lend().unwrap());
        let lending = LENT.lock();
        assert!(ends_well_in_a_child(|| {
            let own = lend().unwrap(); // what its parent lent is the parent's affair
            let in_use = Some(PlaceError::InUse { address: start.as_ptr().addr() });
            drop(inherited.take());
            let again = lend().err();
            drop(own);
            again == in_use && lend().is_ok()
        }));
        drop(lending);
    }
}
