//! Imports: other processes' buffers that this one may write into.

mod builder;
mod inner;
mod send;
mod spares;

pub use builder::{ImportBuilder, PendingImport};
pub use inner::ImportSummary;
pub(crate) use inner::{ImportDraft, ImportInner, ImportSpec};
pub(crate) use send::send_error;
pub(crate) use spares::{OwnSegment, Spares};

use crate::binding::{Binding, Initial};
use crate::error::{BindError, Closed, DaemonError, FlagError, ImportError, UnimportError};
use crate::flag::{Flag, Side};
use crate::id::{ExportId, LinkId, PeerInfo, Rights};
use crate::mem::{Lent, View};
use crate::node::NodeInner;
use crate::node::control::{Answer, Failure};
use crate::sync::Ordering;
use crate::transport::engine::Engine;
use crate::word::{MappedU32, MappedU64};
use std::ptr::NonNull;
use std::sync::Arc;

/// Keeps a link; the last holder's drop closes it.
#[derive(Debug)]
pub(crate) struct LinkOwner {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) inner: Arc<ImportInner>,
}

impl Drop for LinkOwner {
    fn drop(&mut self) {
        if self.node.local.check().is_err() {
            return;
        }
        self.node.unimport(&self.inner, |close| self.node.control.tell(close));
    }
}

/// A buffer of another process, to send to. Dropping it ends the link, once its bindings are gone.
#[derive(Debug)]
pub struct Import {
    pub(crate) owner: Arc<LinkOwner>,
}

impl Import {
    fn from_answer(node: &Arc<NodeInner>, answer: Answer) -> Result<Import, ImportError> {
        match answer {
            Answer::Imported(inner) => {
                Ok(Import { owner: Arc::new(LinkOwner { node: node.clone(), inner }) })
            }
            Answer::Refused(refusal) => Err(refusal.into()),
            Answer::Failed(Failure::Daemon(error)) => Err(error.into()),
            Answer::Failed(Failure::System(error)) => Err(error.into()),
            Answer::Failed(Failure::Segment(error)) => Err(error.into()),
            _ => Err(DaemonError::Nonsense { what: "something else to Import" }.into()),
        }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<ImportInner> {
        &self.owner.inner
    }

    pub(crate) fn node(&self) -> &NodeInner {
        &self.owner.node
    }

    /// Length in bytes: that of the export (V3).
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.inner().link.len()
    }

    /// What it may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.inner().link.rights()
    }

    /// The number of the link.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.inner().id()
    }

    /// The number of the export, at its node's daemon.
    #[must_use]
    pub fn export_id(&self) -> ExportId {
        self.inner().export
    }

    /// Who exports it.
    #[must_use]
    pub fn exporter(&self) -> PeerInfo {
        self.inner().peer.info
    }

    /// The exporter's node, if it is another one.
    #[must_use]
    pub fn remote_node(&self) -> Option<&str> {
        self.inner().link.node()
    }

    /// Whether the link still reaches the exporter.
    ///
    /// # Errors
    /// [`Closed`] with the reason when it does not; in a forked child always.
    #[inline]
    pub fn check_open(&self) -> Result<(), Closed> {
        self.inner().check_open()
    }

    /// As [`crate::Binding::peer_was_on`].
    #[must_use]
    pub fn peer_was_on(&self, cpu: u32) -> bool {
        self.inner().local.check().is_ok() && self.inner().peer.was_on(cpu)
    }

    /// Where the buffer is mapped, for programs that store to it by pointer; `None` without
    /// [`Rights::WRITE`] or [`Rights::READ`]. Guard pages lie before and after it. Such stores are not
    /// sends: an unexport does not wait for them. In a forked child nothing is there.
    #[must_use]
    pub fn proxy_ptr(&self) -> Option<NonNull<u8>> {
        let view = self.inner().link.view();
        (!view.is_empty()).then(|| view.as_ptr())
    }

    /// Which flag it is, if the buffer is not mapped here.
    fn remote_flag(&self, offset: usize, width: usize) -> Result<Option<Side<'_>>, FlagError> {
        if self.inner().link.is_mapped() {
            return Ok(None);
        }
        self.flag_view()?; // for the rights
        let size = self.len();
        let inside = offset.checked_add(width).is_some_and(|end| end <= size);
        if inside && offset.is_multiple_of(width) {
            Ok(Some(Side::Elsewhere(self, offset)))
        } else {
            Err(crate::mem::OutOfBounds { offset, len: width, size, align: width }.into())
        }
    }

    fn flag_view(&self) -> Result<View<'_>, FlagError> {
        let inner = self.inner();
        inner.local.check()?;
        if !inner.link.rights().intersects(Rights::WRITE | Rights::READ) {
            inner.need(Rights::WRITE)?;
        }
        Ok(inner.link.view())
    }

    /// The 32-bit flag word at `offset`: to store with [`Rights::WRITE`], to load and wait for with
    /// [`Rights::READ`].
    ///
    /// # Errors
    /// See [`FlagError`]; [`FlagError::OutOfBounds`] also when it is not 4-byte aligned.
    pub fn flag32(&self, offset: usize) -> Result<Flag<'_, MappedU32<'_>>, FlagError> {
        if let Some(side) = self.remote_flag(offset, 4)? {
            return Ok(Flag::new(self.node().remotes.no_word32(), side));
        }
        Ok(Flag::new(self.flag_view()?.word32(offset)?, Side::Import(self)))
    }

    /// The 64-bit flag word at `offset`; see [`Import::flag32`].
    ///
    /// # Errors
    /// See [`FlagError`]; [`FlagError::OutOfBounds`] also when it is not 8-byte aligned.
    pub fn flag64(&self, offset: usize) -> Result<Flag<'_, MappedU64<'_>>, FlagError> {
        if let Some(side) = self.remote_flag(offset, 8)? {
            return Ok(Flag::new(self.node().remotes.no_word64(), side));
        }
        Ok(Flag::new(self.flag_view()?.word64(offset)?, Side::Import(self)))
    }

    /// Automatic update: binds a range of the buffer (V9, V12). On one machine the bound range *is* the
    /// exporter's pages: every store, of whatever kind, is there at once (V11). `range` must
    /// begin at a page.
    ///
    /// # Errors
    /// See [`BindError`]; [`BindError::NotGranted`] without [`Rights::BIND`].
    pub fn bind(&self, range: std::ops::Range<usize>) -> Result<Binding, BindError> {
        Binding::new(&self.owner, range)
    }

    /// As [`Import::bind`], over memory that the program has already: the range's pages take the
    /// place of those at `start`, at the same address, and `initial` says whose bytes they hold
    /// first. From then on every store to that memory is a store to the export, and what the exporter
    /// stores appears there. `range` must be whole pages. When the binding is dropped the memory is
    /// the program's again, private, with the contents of that moment.
    ///
    /// # Safety
    /// `start` to `start + range.len()` must be memory that the caller owns, readable and writable,
    /// and must stay so for the life of the binding and of a region that [`Binding::unbind`] makes of
    /// it. No Rust reference into it may be alive, and no other thread may write to it during the
    /// call. In forked children the memory is not there.
    ///
    /// # Errors
    /// See [`BindError`]; the memory is as it was then.
    #[allow(unsafe_code)] // a promise that only the caller can make
    pub unsafe fn bind_at(
        &self,
        range: std::ops::Range<usize>,
        start: NonNull<u8>,
        initial: Initial,
    ) -> Result<Binding, BindError> {
        // SAFETY: passed on.
        let lent = unsafe { Lent::new(start, range.len()) };
        Binding::at(&self.owner, range, lent, (start.as_ptr().addr(), initial))
    }

    /// Ends the import. Sends have arrived when they returned; started ones are waited for, and
    /// notifications stay with the receiver until it takes them (V8).
    ///
    /// # Errors
    /// [`UnimportError::Bound`] while bindings live; gives the import back.
    pub fn unimport(self) -> Result<(), UnimportError> {
        self.inner().local.check()?;
        let _ = self.fence();
        let count = self.inner().bindings.load(Ordering::Acquire);
        if count > 0 {
            return Err(UnimportError::Bound { count, import: self });
        }
        drop(self);
        Ok(())
    }
}
