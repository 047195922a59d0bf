//! What a node's network interface does with an import: it imports in the name of processes of other
//! nodes, and puts what comes for them where it belongs.

use crate::control::message::{CloseReason, Request};
use crate::error::{Closed, SendError, TrySendError};
use crate::import::{Import, send_error};
use crate::mem::receive_into;
use crate::transport::Entry;
use crate::transport::route::Route;
use std::os::fd::AsFd;

/// What [`Import::receive_into`] found in the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// So many bytes are in the exporter's memory.
    Bytes(usize),
    /// Nothing was there.
    Nothing,
    /// The stream has ended, or failed.
    End,
}

impl Import {
    /// Receives up to `len` bytes straight from a socket into the exporter's memory at `offset`,
    /// without waiting. An unexport waits for it as for any send, and finds it short.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was taken from the socket then.
    pub fn receive_into(
        &self,
        offset: usize,
        len: usize,
        from: impl AsFd,
    ) -> Result<Landed, SendError> {
        let inner = self.inner();
        inner.may_send()?;
        let Route::Shm(link) = &inner.link else {
            let reason = CloseReason::Unreachable;
            return Err(Closed { peer: inner.peer.info, reason }.into());
        };
        let filled = link
            .fill(offset, len, |target| receive_into(from, target))
            .map_err(|error| send_error(error, inner.peer.info))?;
        Ok(match filled {
            Ok(0) => Landed::End,
            Ok(len) => Landed::Bytes(len),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Landed::Nothing,
            Err(_) => Landed::End,
        })
    }

    /// Queues a notification for bytes that are there, without waiting.
    ///
    /// # Errors
    /// [`TrySendError::WouldBlock`] while the exporter's queue is full: it rings this process when
    /// it has taken some.
    pub fn try_notify(&self, offset: u64, len: u64, last_word: u64) -> Result<(), TrySendError> {
        self.inner().may_send()?;
        if offset.checked_add(len).is_none_or(|end| end > self.len() as u64) {
            let outside = crate::mem::OutOfBounds {
                offset: usize::try_from(offset).unwrap_or(usize::MAX),
                len: usize::try_from(len).unwrap_or(usize::MAX),
                size: self.len(),
                align: 1,
            };
            return Err(SendError::from(outside).into());
        }
        self.notify(Entry { offset, len, last_word })
    }

    /// Whether a notification can be queued now, or is not wanted, or fails.
    #[must_use]
    pub fn may_notify(&self) -> bool {
        self.inner().link.may_notify()
    }

    /// Gives the link up because the process it was for is gone: its exporter hears
    /// [`CloseReason::PeerDied`].
    pub fn abandon(self) {
        let node = self.node();
        if node.local.check().is_err() {
            return;
        }
        let id = self.id();
        if node.tables.lock().imports.remove(&id).is_some() {
            node.control.tell(Request::LostImporter { link: id });
        }
        self.inner().link.end(CloseReason::Unimported);
    }
}
