//! Which engine a link uses: the exporter's own pages on this machine, or packets to another node.
//!
//! An enum and not a table of functions: on one machine a send costs one predictable branch more
//! than its stores.

use super::net::NetOutgoing;
use super::shm::ShmOutgoing;
use super::{Entry, Outgoing, TransportError};
use crate::control::message::CloseReason;
use crate::error::Closed;
use crate::id::Rights;
use crate::mem::View;
use crate::sys::Fd;
use std::io::IoSlice;

/// The importer's half of a link, of whichever engine.
#[derive(Debug)]
pub(crate) enum Route {
    /// Within the machine.
    Shm(ShmOutgoing),
    /// To another node.
    Net(NetOutgoing),
}

macro_rules! either {
    ($route:expr, $link:ident => $call:expr) => {
        match $route {
            Route::Shm($link) => $call,
            Route::Net($link) => $call,
        }
    };
}

impl Route {
    /// The buffer as mapped here; empty when it is another node's, or only bound.
    pub(crate) fn view(&self) -> View<'_> {
        match self {
            Route::Shm(link) => link.view(),
            Route::Net(_) => View::empty(),
        }
    }

    /// The memory file, where pages may be bound.
    pub(crate) fn file(&self) -> Option<&Fd> {
        match self {
            Route::Shm(link) => link.file(),
            Route::Net(_) => None,
        }
    }

    pub(crate) fn net(&self) -> Option<&NetOutgoing> {
        match self {
            Route::Shm(_) => None,
            Route::Net(link) => Some(link),
        }
    }

    pub(crate) fn end(&self, reason: CloseReason) {
        either!(self, link => link.end(reason));
    }

    pub(crate) fn may_notify(&self) -> bool {
        either!(self, link => link.may_notify())
    }

    /// Stores of an automatic update, within a page: seen in ascending order. Between nodes `notify` goes with them; on one
    /// machine the caller queues it.
    pub(crate) fn update(
        &self,
        offset: usize,
        source: &[u8],
        notify: bool,
    ) -> Result<(), TransportError> {
        match self {
            Route::Shm(link) => link.update(offset, source),
            Route::Net(link) => link.update(offset, source, notify),
        }
    }

    /// Writes, and queues a notification behind it; see [`Outgoing::notify`].
    pub(crate) fn write_notify(
        &self,
        source: &[u8],
        entry: Entry,
    ) -> Option<Result<(), TransportError>> {
        self.net().map(|link| link.write_notify(source, entry))
    }

    /// Writes, and waits until that is in the exporter's memory. On one machine it is.
    pub(crate) fn write_fenced(&self, offset: usize, source: &[u8]) -> Result<(), TransportError> {
        match self {
            Route::Shm(link) => link.write(offset, source),
            Route::Net(link) => link.write_fenced(offset, source),
        }
    }

    /// Waits until everything sent so far is in the exporter's memory. On one machine it is.
    pub(crate) fn fence(&self) -> Result<(), Closed> {
        match self {
            Route::Shm(_) => Ok(()),
            Route::Net(link) => link.fence(),
        }
    }
}

impl Outgoing for Route {
    #[inline]
    fn len(&self) -> usize {
        either!(self, link => link.len())
    }

    #[inline]
    fn rights(&self) -> Rights {
        either!(self, link => link.rights())
    }

    #[inline]
    fn write(&self, offset: usize, source: &[u8]) -> Result<(), TransportError> {
        either!(self, link => link.write(offset, source))
    }

    fn write_vectored(&self, offset: usize, sources: &[IoSlice<'_>]) -> Result<(), TransportError> {
        either!(self, link => link.write_vectored(offset, sources))
    }

    fn write_from(&self, offset: usize, source: View<'_>) -> Result<(), TransportError> {
        either!(self, link => link.write_from(offset, source))
    }

    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), TransportError> {
        either!(self, link => link.read(offset, target))
    }

    fn notify(&self, entry: Entry) -> Result<bool, TransportError> {
        either!(self, link => link.notify(entry))
    }

    #[inline]
    fn check_open(&self) -> Result<(), Closed> {
        either!(self, link => link.check_open())
    }
}
