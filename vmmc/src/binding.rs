//! Automatic update: memory of this process that is another's export (V9, V11, V12).
//!
//! The paper's hardware watched the memory bus and sent each store on. On one machine nothing need be
//! sent: the bound range maps the very pages of the export. Stores of any kind and size propagate, at the
//! price of a cache line's move.

use crate::counters::index as count;
use crate::error::{BindError, FlagError, SendError, SystemError, system};
use crate::flag::{Flag, Side};
use crate::id::Rights;
use crate::import::{ImportInner, LinkOwner};
use crate::mem::{OutOfBounds, View};
use crate::node::NodeInner;
use crate::process::owned_view;
use crate::region::Region;
use crate::sync::Ordering;
use crate::sys::mmap::{self, Access, GuardedMapping};
use crate::transport::Outgoing;
use crate::word::{MappedU32, MappedU64};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// A bound range. Dropping it unmaps it; [`Binding::unbind`] keeps the memory, local.
#[derive(Debug)]
pub struct Binding {
    owner: Arc<LinkOwner>,
    range: Range<usize>,
    /// `None` only after `unbind` took it.
    mapping: Option<GuardedMapping>,
}

impl Binding {
    pub(crate) fn new(owner: &Arc<LinkOwner>, range: Range<usize>) -> Result<Binding, BindError> {
        let inner = &owner.inner;
        inner.local.check()?;
        inner.need(Rights::BIND)?;
        inner.link.check_open()?;
        let page = mmap::page_size();
        let size = inner.link.len();
        let (offset, len) = (range.start, range.end.saturating_sub(range.start));
        if len == 0 || range.end > size {
            return Err(OutOfBounds { offset, len, size, align: page }.into());
        }
        if !offset.is_multiple_of(page) {
            return Err(BindError::Misaligned { offset, page });
        }
        let Some(file) = inner.link.file() else { unreachable!("kept when BIND is granted") };
        let mapping = GuardedMapping::at(file, offset as u64, len, Access::ReadWrite)
            .map_err(system("mapping a binding"))?;
        mapping.keep_from_children().map_err(system("madvise of a binding"))?;
        inner.bindings.fetch_add(1, Ordering::AcqRel);
        Ok(Binding { owner: owner.clone(), range, mapping: Some(mapping) })
    }

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
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// The bound memory: the exporter and other importers write to it at any time.
    ///
    /// In a forked child the memory is not there: an access faults.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        match &self.mapping {
            Some(mapping) => owned_view(mapping, self.len()),
            None => unreachable!("only unbind takes the mapping, and the binding with it"),
        }
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
    /// [`SendError::OutOfBounds`], [`SendError::Forked`].
    #[inline]
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), SendError> {
        self.inner().local.check()?;
        self.view().write(offset, source)?;
        // The copy from private memory that automatic update needs and deliberate update does not.
        self.inner().local.meter.add(count::COPIED_BYTES, source.len() as u64);
        Ok(())
    }

    /// Copies the bytes at `offset` into `target`.
    ///
    /// # Errors
    /// [`SendError::OutOfBounds`], [`SendError::Forked`].
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), SendError> {
        self.inner().local.check()?;
        Ok(self.view().read(offset, target)?)
    }

    /// The 32-bit flag word at `offset` of the binding.
    ///
    /// # Errors
    /// See [`FlagError`].
    pub fn flag32(&self, offset: usize) -> Result<Flag<'_, MappedU32<'_>>, FlagError> {
        self.inner().local.check()?;
        Ok(Flag::new(self.view().word32(offset)?, Side::Binding(self)))
    }

    /// The 64-bit flag word at `offset` of the binding.
    ///
    /// # Errors
    /// See [`FlagError`].
    pub fn flag64(&self, offset: usize) -> Result<Flag<'_, MappedU64<'_>>, FlagError> {
        self.inner().local.check()?;
        Ok(Flag::new(self.view().word64(offset)?, Side::Binding(self)))
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
    /// region of this process: what is written to it from here on stays here (V12).
    ///
    /// # Errors
    /// [`SystemError`] when memory is short; the memory is unmapped then.
    pub fn unbind(mut self) -> Result<Region, SystemError> {
        let len = self.len();
        match self.mapping.take() {
            Some(mapping) => Region::from_binding(mapping, len),
            None => unreachable!("only unbind takes the mapping, and the binding with it"),
        }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.inner().bindings.fetch_sub(1, Ordering::AcqRel);
    }
}
