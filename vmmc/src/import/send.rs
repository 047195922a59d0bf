//! Deliberate update: what is sent into an import, and read from it.

use super::Import;
use crate::control::message::CloseReason;
use crate::error::{
    Closed, ReadError, SendError, SendNotifyError, StartSendError, TrySendError, WaitError,
};
use crate::id::{PeerInfo, Rights};
use crate::mem::View;
use crate::send::Completion;
use crate::sync::Ordering;
use crate::transport::engine::Engine;
use crate::transport::{Entry, TransportError};
use std::io::IoSlice;
use std::ptr::NonNull;

pub(crate) fn send_error(error: TransportError, peer: PeerInfo) -> SendError {
    match error {
        TransportError::OutOfBounds(error) => error.into(),
        TransportError::Closed(error) => error.into(),
        // Only notifications can find the queue full, and they look for it themselves.
        TransportError::QueueFull | TransportError::PeerFault(_) => {
            Closed { peer, reason: CloseReason::PeerFault }.into()
        }
    }
}

impl Import {
    /// Deliberate update: copies `source` to `offset` of the exporter's memory (V9). When it
    /// returns, the bytes are there and the source is free again (V15); bytes of later sends,
    /// stores of flags and notifications of this thread come after them (V13). No system call.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was written then.
    #[inline]
    pub fn send(&self, offset: usize, source: &[u8]) -> Result<(), SendError> {
        let inner = self.inner();
        inner.may_update(offset, source.as_ptr().addr(), source.len())?;
        inner.link.write(offset, source).map_err(|error| send_error(error, inner.peer.info))
    }

    /// As [`Import::send`], and returns when these bytes, and what this thread sent before over the same
    /// link, are in the exporter's memory. Between nodes [`Import::send`] has handed them to the network when it
    /// returns; this waits for one answer, and is one packet less than a send and an [`Import::fence`].
    ///
    /// # Errors
    /// See [`SendError`]; [`SendError::Closed`] between nodes: it is not known what arrived.
    pub fn send_fenced(&self, offset: usize, source: &[u8]) -> Result<(), SendError> {
        let inner = self.inner();
        inner.may_update(offset, source.as_ptr().addr(), source.len())?;
        inner.link.write_fenced(offset, source).map_err(|error| send_error(error, inner.peer.info))
    }

    /// As [`Import::send`], from several pieces to consecutive places.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was written then.
    pub fn send_vectored(&self, offset: usize, sources: &[IoSlice<'_>]) -> Result<(), SendError> {
        let inner = self.inner();
        inner.may_send()?;
        for source in sources {
            inner.check_words(offset, source.as_ptr().addr(), source.len())?;
        }
        inner
            .link
            .write_vectored(offset, sources)
            .map_err(|error| send_error(error, inner.peer.info))
    }

    /// As [`Import::send`], from memory that other processes may write: an export of this process,
    /// a binding.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was written then.
    pub fn send_from(&self, offset: usize, source: View<'_>) -> Result<(), SendError> {
        let inner = self.inner();
        inner.may_update(offset, source.as_ptr().addr().get(), source.len())?;
        inner.link.write_from(offset, source).map_err(|error| send_error(error, inner.peer.info))
    }

    /// As [`Import::send`], from any memory.
    ///
    /// # Safety
    /// `source` to `source + len` must be readable during the call.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was written then.
    #[allow(unsafe_code)] // a promise that only the caller can make
    pub unsafe fn send_raw(
        &self,
        offset: usize,
        source: NonNull<u8>,
        len: usize,
    ) -> Result<(), SendError> {
        // SAFETY: readable for the call by the caller's word; a view of it is only read.
        self.send_from(offset, unsafe { View::from_raw(source, len) })
    }

    /// [`Import::send`], then a notification (V19). Ignored by the receiver if it has no handler. Waits
    /// while the receiver's queue is full.
    ///
    /// # Errors
    /// See [`SendNotifyError`]. [`SendError::Closed`] while waiting for room: the data was written, the
    /// notification was not.
    pub fn send_with_notify(&self, offset: usize, source: &[u8]) -> Result<(), SendNotifyError> {
        let entry = Entry::of(offset, source);
        let inner = self.inner();
        inner.may_update(offset, source.as_ptr().addr(), source.len())?;
        let told = inner.link.write_notify(source, entry);
        if told.map_err(|error| send_error(error, inner.peer.info))? {
            return Ok(());
        }
        self.notify_waiting(entry)
    }

    /// As [`Import::send_with_notify`], or [`TrySendError::WouldBlock`] when the receiver's queue is full:
    /// nothing was sent then, unless another thread filled the queue meanwhile.
    ///
    /// # Errors
    /// See [`TrySendError`].
    pub fn try_send_with_notify(&self, offset: usize, source: &[u8]) -> Result<(), TrySendError> {
        let inner = self.inner();
        inner.may_send()?;
        if !inner.link.may_notify() {
            return Err(TrySendError::WouldBlock);
        }
        self.send(offset, source)?;
        self.notify(Entry::of(offset, source))
    }

    /// A notification of its own, for bytes that came another way (automatic update, flags): the
    /// receiver's handler sees `last_word`. Needs [`Rights::WRITE`] or [`Rights::BIND`]. Waits
    /// while the receiver's queue is full.
    ///
    /// # Errors
    /// See [`SendNotifyError`].
    pub fn send_notification(
        &self,
        offset: usize,
        len: usize,
        last_word: u64,
    ) -> Result<(), SendNotifyError> {
        let inner = self.inner();
        inner.may_notify()?;
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let size = self.len();
            let outside = crate::mem::OutOfBounds { offset, len, size, align: 1 };
            return Err(SendError::from(outside).into());
        }
        self.notify_waiting(Entry { offset: offset as u64, len: len as u64, last_word })
    }

    pub(crate) fn notify(&self, entry: Entry) -> Result<(), TrySendError> {
        let inner = self.inner();
        match inner.link.notify(entry) {
            Ok(false) => Ok(()),
            Ok(true) => {
                inner.peer.wake();
                Ok(())
            }
            Err(TransportError::PeerFault(_)) => {
                self.node().drop_faulty_import(inner);
                let closed = Closed { peer: inner.peer.info, reason: CloseReason::PeerFault };
                Err(SendError::from(closed).into())
            }
            Err(TransportError::QueueFull) => Err(TrySendError::WouldBlock),
            Err(error) => Err(send_error(error, inner.peer.info).into()),
        }
    }

    pub(crate) fn notify_waiting(&self, entry: Entry) -> Result<(), SendNotifyError> {
        let inner = self.inner();
        loop {
            match self.notify(entry) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Send(error)) => return Err(error.into()),
                Err(TrySendError::WouldBlock) => {}
            }
            inner.local.meter.add(crate::counters::index::NOTIFY_STALLS, 1);
            inner.peer.wake();
            let shares = |cpu| inner.peer.was_on(cpu);
            let room = |_| inner.link.may_notify().then_some(Ok(()));
            match self.node().wait_until(None, shares, room) {
                Err(WaitError::System(error)) => return Err(error.into()),
                Err(WaitError::Forked(error)) => return Err(SendError::from(error).into()),
                // Room, or an end of the link, which the next attempt tells.
                _ => {}
            }
        }
    }

    /// Non-blocking deliberate update (V14): the copy is made by a helper thread, so this thread can
    /// compute meanwhile. The source is owned by the transfer until [`Completion::wait`] gives it
    /// back, so it cannot be reused too early.
    ///
    /// **Order is weaker**: the bytes may land before, after or between those of any other send,
    /// flag or notification until the completion has been waited for, or [`Import::fence`] has
    /// returned; those made afterwards come after it. Started sends of one import complete in the
    /// order in which they were started.
    ///
    /// # Errors
    /// See [`StartSendError`]: what can be known at once.
    pub fn start_send<B>(&self, offset: usize, source: B) -> Result<Completion<B>, StartSendError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let inner = self.inner();
        let (from, len) = (source.as_ref().as_ptr().addr(), source.as_ref().len());
        inner.may_update(offset, from, len)?;
        inner.link.check_open().map_err(SendError::from)?;
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let size = self.len();
            let outside = crate::mem::OutOfBounds { offset, len, size, align: 1 };
            return Err(SendError::from(outside).into());
        }
        Ok(self.owner.node.copier()?.start(self.owner.clone(), offset, source))
    }

    /// Waits until all sends so far, started ones ([`Import::start_send`]) included, are in the
    /// exporter's memory. On one machine the others are when they return.
    ///
    /// # Errors
    /// [`WaitError::Forked`], [`WaitError::System`]; over a network [`WaitError::Closed`] when the
    /// link ended meanwhile, so that it is not known what arrived.
    pub fn fence(&self) -> Result<(), WaitError> {
        let inner = self.inner();
        let done = |_| (inner.started.load(Ordering::Acquire) == 0).then_some(Ok(()));
        self.node().wait_until(None, |_| false, done)?;
        inner.link.fence().map_err(WaitError::Closed)
    }

    /// Remote read: copies the bytes at `offset` of the exporter's memory into `target`, without
    /// the exporter taking part. Bytes that somebody writes meanwhile may be old or new.
    ///
    /// # Errors
    /// [`ReadError::NotGranted`] without [`Rights::READ`] (V3).
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), ReadError> {
        let inner = self.inner();
        inner.local.check()?;
        inner.need(Rights::READ)?;
        inner.link.read(offset, target).map_err(|error| match error {
            TransportError::OutOfBounds(error) => error.into(),
            TransportError::Closed(error) => error.into(),
            _ => Closed { peer: inner.peer.info, reason: CloseReason::PeerFault }.into(),
        })
    }
}
