//! Automatic update: memory of this process that is another's export (V9, V11, V12).
//!
//! The paper's hardware watched the memory bus and sent each store on. On one machine nothing need be
//! sent: the bound range maps the very pages of the export. Stores of any kind and size propagate, at the
//! price of a cache line's move.
//!
//! The pages are put either at a place that we find ([`Import::bind`]) or over memory that the program
//! has already ([`Import::bind_at`]), so that data structures that exist propagate where they
//! are. The hardware kept two copies, which could differ until they were stored to; here there is one
//! set of pages from the bind on, and the caller says whose bytes it holds first ([`Initial`]).
//!
//! [`Import::bind`]: crate::Import::bind
//! [`Import::bind_at`]: crate::Import::bind_at

use crate::counters::index as count;
use crate::error::{AccessError, BindError, FlagError, SendError, UnbindError, system};
use crate::flag::{Flag, Side};
use crate::id::Rights;
use crate::import::{ImportInner, LinkOwner};
use crate::mem::{Lent, OutOfBounds, Place, PlaceError, Region, View, owned_view};
use crate::node::NodeInner;
use crate::sync::Ordering;
use crate::sys::Fd;
use crate::sys::mmap::{self, Access, GuardedMapping};
use crate::transport::engine::Engine;
use crate::word::{MappedU32, MappedU64, Word as _};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// A bound range. Dropping it unmaps it, or, if the memory was the program's before, makes that private
/// again with its present contents; [`Binding::unbind`] keeps the memory, local, in either case.
#[derive(Debug)]
pub struct Binding {
    owner: Arc<LinkOwner>,
    range: Range<usize>,
    /// Of `place`, made once: every store needs it.
    view: View<'static>,
    /// `None` only after `unbind` took it.
    place: Option<Place>,
}

/// Whose bytes the pages hold when memory that exists is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// The program's: they are written to the export, as if stored just after the bind.
    Local,
    /// The export's: they appear in the program's memory, whose own are lost.
    Remote,
}

impl Binding {
    pub(crate) fn new(owner: &Arc<LinkOwner>, range: Range<usize>) -> Result<Binding, BindError> {
        let (offset, len) = check(owner, &range)?;
        let mapping = GuardedMapping::at(file(owner), offset, len, Access::ReadWrite)
            .map_err(system("mapping a binding"))?;
        Binding::over(owner, range, Place::Ours(mapping))
    }

    /// As [`Binding::new`], over memory of the program.
    pub(crate) fn at(
        owner: &Arc<LinkOwner>,
        range: Range<usize>,
        lent: Result<Lent, PlaceError>,
        (address, initial): (usize, Initial),
    ) -> Result<Binding, BindError> {
        let (offset, len) = check(owner, &range)?;
        let place = Place::Program(lent.map_err(|error| match error {
            PlaceError::Misaligned => {
                BindError::MisalignedMemory { address, len, page: mmap::page_size() }
            }
            PlaceError::InUse { address } => BindError::InUse { address },
        })?);
        if initial == Initial::Local {
            let export = GuardedMapping::at(file(owner), offset, len, Access::ReadWrite)
                .map_err(system("mapping a binding"))?;
            owned_view(&export, len).write_from(0, place.owned_view(len))?;
        }
        place.put(file(owner), offset).map_err(system("binding existing memory"))?;
        Binding::over(owner, range, place)
    }

    fn over(
        owner: &Arc<LinkOwner>,
        range: Range<usize>,
        place: Place,
    ) -> Result<Binding, BindError> {
        place.keep_from_children().map_err(system("madvise of a binding"))?;
        owner.inner.bindings.fetch_add(1, Ordering::AcqRel);
        let view = place.owned_view(range.len());
        Ok(Binding { owner: owner.clone(), range, view, place: Some(place) })
    }

    #[inline]
    pub(crate) fn inner(&self) -> &ImportInner {
        &self.owner.inner
    }

    pub(crate) fn node(&self) -> &NodeInner {
        &self.owner.node
    }

    /// The bound part of the buffer.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// The bound memory: the exporter and other importers write to it at any time.
    ///
    /// In a forked child the memory is not there: an access faults.
    #[inline]
    #[must_use]
    pub fn view(&self) -> View<'_> {
        self.view
    }

    /// First byte, for plain stores by pointer. Page aligned.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.view().as_ptr()
    }

    /// Copies `source` to `offset` of the binding, and so of the export. After an unexport it still
    /// succeeds but reaches nobody; a [`Flag`] says so.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`], [`AccessError::Forked`].
    #[inline]
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), AccessError> {
        self.inner().local.check()?;
        self.view().write(offset, source)?;
        // The copy from private memory that automatic update needs and deliberate update does not.
        self.inner().local.meter.add(count::COPIED_BYTES, source.len() as u64);
        Ok(())
    }

    /// Copies the bytes at `offset` into `target`.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`], [`AccessError::Forked`].
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), AccessError> {
        self.inner().local.check()?;
        Ok(self.view().read(offset, target)?)
    }

    /// The 32-bit flag word at `offset` of the binding.
    ///
    /// # Errors
    /// See [`FlagError`].
    #[inline]
    pub fn flag32(&self, offset: usize) -> Result<Flag<'_, MappedU32<'_>>, FlagError> {
        self.inner().local.check()?;
        Ok(Flag::new(self.view().word32(offset)?, Side::Binding(self)))
    }

    /// The 64-bit flag word at `offset` of the binding.
    ///
    /// # Errors
    /// See [`FlagError`].
    #[inline]
    pub fn flag64(&self, offset: usize) -> Result<Flag<'_, MappedU64<'_>>, FlagError> {
        self.inner().local.check()?;
        Ok(Flag::new(self.view().word64(offset)?, Side::Binding(self)))
    }

    /// [`Binding::flag64`] and [`Flag::signal`] in one, with each check made once: for callers whose messages
    /// are so short that the checks count.
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline(always)] // between two flags
    pub fn signal64(&self, offset: usize, value: u64) -> Result<(), SendError> {
        let inner = self.inner();
        inner.local.check()?;
        inner.link.check_open()?;
        self.view.word64(offset)?.store(value, Ordering::Release);
        inner.peer.wake();
        Ok(())
    }

    /// Wakes the exporter if it sleeps, after stores that did not go through a [`Flag`].
    pub fn ring(&self) {
        if self.inner().local.check().is_ok() {
            self.inner().peer.wake();
        }
    }

    /// Whether the exporter last went to sleep on this processor, so that spinning for it there would
    /// only keep it from running.
    #[must_use]
    pub fn peer_was_on(&self, cpu: u32) -> bool {
        self.inner().local.check().is_ok() && self.inner().peer.was_on(cpu)
    }

    /// Ends the binding and keeps the memory, at the same address and with its contents, as a
    /// region of this process: what is written to it from here on stays here (V12). Memory that was the
    /// program's before the bind is so again when the region is dropped.
    ///
    /// # Errors
    /// See [`UnbindError`].
    pub fn unbind(mut self) -> Result<Region, UnbindError> {
        self.inner().local.check()?;
        let len = self.len();
        match self.place.take() {
            Some(place) => Ok(Region::from_binding(place, len)?),
            None => unreachable!("only unbind takes the place, and the binding with it"),
        }
    }
}

/// What must be so before anything is mapped; the range as offset and length.
fn check(owner: &LinkOwner, range: &Range<usize>) -> Result<(u64, usize), BindError> {
    let inner = &owner.inner;
    inner.local.check()?;
    inner.need(Rights::BIND)?;
    inner.link.check_open()?;
    if !inner.link.is_mapped() {
        return Err(BindError::OtherNode);
    }
    let page = mmap::page_size();
    let size = inner.link.len();
    let (offset, len) = (range.start, range.end.saturating_sub(range.start));
    if len == 0 || range.end > size {
        return Err(OutOfBounds { offset, len, size, align: page }.into());
    }
    if !offset.is_multiple_of(page) {
        return Err(BindError::Misaligned { offset, page });
    }
    Ok((offset as u64, len))
}

fn file(owner: &LinkOwner) -> &Fd {
    match owner.inner.link.file() {
        Some(file) => file,
        None => unreachable!("kept when BIND is granted"),
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.inner().bindings.fetch_sub(1, Ordering::AcqRel);
    }
}
