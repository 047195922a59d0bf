//! What a node's network interface does with an import: it imports in the name of processes of other
//! nodes, and puts what comes for them where it belongs.

use crate::control::message::{CloseReason, Request};
use crate::error::{Closed, SendError, TrySendError};
use crate::import::{Import, send_error};
use crate::mem::{View, receive_into};
use crate::sync::Ordering;
use crate::sys::mmap::GuardedMapping;
use crate::transport::engine::Engine;
use crate::transport::shm::ShmOutgoing;
use crate::transport::shm::bar::Barred;
use crate::transport::{Entry, Item, Load, TransportError};
use crate::word::Word;

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// So many bytes are in the exporter's memory.
    Bytes(usize),
    /// Nothing was in the socket.
    Nothing,
    /// The socket's stream has ended.
    End,
    /// It has failed.
    Failed(rustix::io::Errno),
    /// A page is disabled ([`crate::Export::disable`]); nothing was put.
    Disabled,
    /// The exporter has disabled pages, of this export or another, and has not heard of this import yet; nothing was put. It rings
    /// when it has.
    Unheard,
}

impl Import {
    /// Puts something into the exporter's memory at `offset`, if its pages are enabled. An unexport
    /// waits for it as for any send.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was put then, or taken from the socket.
    pub fn land(&self, offset: usize, load: Load<'_>) -> Result<Landed, SendError> {
        let inner = self.inner();
        inner.may_send()?;
        let Some(link) = inner.link.shm() else {
            let reason = CloseReason::Unreachable;
            return Err(Closed { peer: inner.peer.info, reason }.into());
        };
        let len = match load {
            Load::Bytes(bytes) | Load::Ascending(bytes) => bytes.len(),
            Load::Word32(_) => 4,
            Load::Word64(_) => 8,
            Load::Socket(_, len) => len,
            Load::Memory(bytes) => bytes.len(),
        };
        let put = |target: View<'_>| {
            let outside = |_| rustix::io::Errno::INVAL;
            match load {
                Load::Bytes(bytes) => target.write(0, bytes).map_err(outside)?,
                Load::Ascending(bytes) => target.write_ascending(0, bytes).map_err(outside)?,
                Load::Word32(word) => {
                    target.word32(0).map_err(outside)?.store(word, Ordering::Release);
                }
                Load::Word64(word) => {
                    target.word64(0).map_err(outside)?.store(word, Ordering::Release);
                }
                Load::Socket(socket, _) => return receive_into(socket, target),
                Load::Memory(bytes) => target.write_from(0, bytes).map_err(outside)?,
            }
            Ok(len)
        };
        let filled = link
            .fill(offset, len, || inner.peer.guards(), put)
            .map_err(|error| send_error(error, inner.peer.info))?;
        Ok(match (filled, load) {
            (Err(Barred::Disabled), _) => Landed::Disabled,
            (Err(Barred::Unheard), _) => Landed::Unheard,
            (Ok(Ok(0)), Load::Socket(..)) => Landed::End,
            (Ok(Ok(len)), _) => Landed::Bytes(len),
            (Ok(Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)), _) => Landed::Nothing,
            (Ok(Err(errno)), _) => Landed::Failed(errno),
        })
    }

    /// Another mapping of the exporter's memory, for a fabric that writes to it by itself: until [`Import::cover`] the exporter
    /// that disables a page waits. `None`: it has disabled some before, or may not be written to.
    #[must_use]
    pub fn expose(&self) -> Option<rustix::io::Result<GuardedMapping>> {
        let inner = self.inner();
        let link = inner.link.shm().filter(|_| inner.may_send().is_ok());
        link.and_then(|link| link.expose(|| inner.peer.guards()))
    }

    /// Says that nobody writes by way of such a mapping any more.
    pub fn cover(&self) {
        if let Some(link) = self.inner().link.shm() {
            link.cover();
        }
    }

    /// Whether the exporter waits for that.
    #[must_use]
    pub fn is_recalled(&self) -> bool {
        self.inner().link.shm().is_some_and(ShmOutgoing::is_recalled)
    }

    /// Wakes the exporter if it sleeps.
    pub fn ring(&self) {
        self.inner().peer.wake();
    }

    /// How often the exporter has disabled pages of this export, wrapping. Read after [`Landed::Disabled`] it counts the disabling
    /// that was found.
    #[must_use]
    pub fn disables(&self) -> u32 {
        self.inner().link.shm().map_or(0, ShmOutgoing::disables)
    }

    /// Tells the exporter that a packet for these bytes is held back; false while its queue is full.
    #[must_use]
    pub fn tell_frozen(&self, offset: u64, len: u64) -> bool {
        let inner = self.inner();
        let Some(link) = inner.link.shm() else { return true };
        match link.queue(Item::Frozen(Entry { offset, len, last_word: 0 })) {
            Ok(queued) => {
                if queued {
                    inner.peer.wake();
                }
                true
            }
            Err(TransportError::QueueFull) => false,
            Err(_) => true, // the end of the link will be told
        }
    }

    /// Queues a notification for bytes that are there, without waiting.
    ///
    /// # Errors
    /// [`TrySendError::WouldBlock`] while the exporter's queue is full: it rings this process when
    /// it has taken some.
    pub fn try_notify(&self, offset: u64, len: u64, last_word: u64) -> Result<(), TrySendError> {
        self.inner().may_notify()?;
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
        self.inner().link.close(CloseReason::Unimported);
    }
}
