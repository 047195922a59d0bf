//! Exports: buffers of this process that others may import.

mod builder;
mod inner;
mod notifications;
mod withdraw;

pub use builder::ExportBuilder;
pub(crate) use inner::{ExportDraft, ExportInner, ExportSpec, IncomingLink, Mode};
pub use inner::{ExportSummary, Importer};

use crate::error::{FlagError, UnexportError, WaitError};
use crate::flag::{Flag, Side};
use crate::id::{ExportId, Name};
use crate::mem::Region;
use crate::mem::{OutOfBounds, View};
use crate::node::NodeInner;
use crate::word::{MappedU32, MappedU64};
use std::sync::Arc;
use std::time::Duration;
use withdraw::Remote;
pub use withdraw::Withdrawal;

/// A buffer of this process that others write into. Dropping it unexports.
#[derive(Debug)]
pub struct Export {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) inner: Arc<ExportInner>,
    /// `None` only after the region was taken out by `unexport`.
    region: Option<Region>,
}

impl Export {
    /// Length in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Its number at the daemon.
    #[must_use]
    pub fn id(&self) -> ExportId {
        self.inner.id()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.inner.spec.name
    }

    /// The buffer. Importers write to it at any time.
    #[inline]
    #[must_use]
    pub fn view(&self) -> View<'_> {
        match &self.region {
            Some(region) => region.view(),
            None => unreachable!("only unexport takes the region, and the export with it"),
        }
    }

    /// Copies the bytes at `offset` into `target`.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), OutOfBounds> {
        self.view().read(offset, target)?;
        if self.node.local.check().is_err() {
            return Ok(()); // a forked child sees the shared bytes; the counters are its parent's
        }
        self.inner.local.meter.add(crate::counters::index::COPIED_BYTES, target.len() as u64);
        Ok(())
    }

    /// Copies `source` to `offset`, where importers with [`crate::Rights::READ`] or bindings see it.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), OutOfBounds> {
        self.view().write(offset, source)
    }

    /// The 32-bit flag word at `offset`.
    ///
    /// # Errors
    /// [`FlagError::OutOfBounds`] also when it is not 4-byte aligned.
    pub fn flag32(&self, offset: usize) -> Result<Flag<'_, MappedU32<'_>>, FlagError> {
        Ok(Flag::new(self.view().word32(offset)?, Side::Export(self)))
    }

    /// The 64-bit flag word at `offset`.
    ///
    /// # Errors
    /// [`FlagError::OutOfBounds`] also when it is not 8-byte aligned.
    pub fn flag64(&self, offset: usize) -> Result<Flag<'_, MappedU64<'_>>, FlagError> {
        Ok(Flag::new(self.view().word64(offset)?, Side::Export(self)))
    }

    /// Wakes the importers that sleep, after stores that did not go through a [`Flag`].
    pub fn ring(&self) {
        if self.node.local.check().is_ok() {
            self.inner.wake_importers();
        }
    }

    /// Who imports it now.
    #[must_use]
    pub fn importers(&self) -> Vec<Importer> {
        self.inner.summary().importers
    }

    /// Waits until at least `count` processes import it.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`].
    pub fn wait_importers(&self, count: usize, timeout: Option<Duration>) -> Result<(), WaitError> {
        self.node.wait_until(
            timeout,
            |_| false,
            |_| (self.inner.links.lock().len() >= count).then_some(Ok(())),
        )
    }

    /// Withdraws the export and gives the memory back, private again, with its contents.
    ///
    /// Waits for transfers in progress, `VMMC_DRAIN_MS` at most, and for messages that are on their way from other nodes, until
    /// none comes for so long (a page of this export, or of another that the sender imports, is disabled; the sender is stopped)
    /// and ten times that at most; pending notifications are moved to this process and will still be delivered (V8). (Dropping the export does not
    /// wait for other nodes: what is on its way is lost then.) Then the pages are swapped: an importer that
    /// kept its mapping reaches nobody. This process must not store to the buffer meanwhile.
    ///
    /// # Errors
    /// [`UnexportError::System`] when there is no memory for the new pages;
    /// [`UnexportError::Forked`].
    pub fn unexport(mut self) -> Result<Region, UnexportError> {
        self.node.local.check()?;
        let Some(mut region) = self.region.take() else {
            unreachable!("only unexport takes the region, and the export with it")
        };
        match self.node.withdraw(&self.inner, &mut region, Remote::Drain) {
            Ok(()) => Ok(region),
            Err(error) => {
                std::mem::forget(region); // see UnexportError::System
                Err(error.into())
            }
        }
    }

    /// Withdraws an export of memory ([`Region::adopt`]) that the program has taken back meanwhile: it has unmapped
    /// it, or put other memory in its place. Pages of it that are still there stay what they are, shared with whoever
    /// has them: importers that keep a mapping in spite of all, and forked children. Importers find their links closed as after
    /// [`Export::unexport`]; nothing at the addresses is touched, and they may be adopted again.
    pub fn abandon(mut self) {
        let Some(region) = self.region.take() else { return };
        if self.node.local.check().is_ok() {
            self.node.abandon(&self.inner);
        }
        region.abandon();
    }

    /// Withdraws the export as dropping it does, and leaves the wait for transfers in progress to the caller: an importer that
    /// never ends one keeps nobody waiting who has other things to do. `None`: there was nothing to wait for.
    #[must_use]
    pub fn withdraw(self) -> Option<Withdrawal> {
        Withdrawal::begin(self)
    }

    pub(crate) fn node(&self) -> &NodeInner {
        &self.node
    }

    pub(crate) fn inner(&self) -> &Arc<ExportInner> {
        &self.inner
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let Some(mut region) = self.region.take() else { return };
        if self.node.local.check().is_ok()
            && self.node.withdraw(&self.inner, &mut region, Remote::Cut).is_err()
        {
            std::mem::forget(region); // as in `unexport`
        }
    }
}
