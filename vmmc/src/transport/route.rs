//! Which engine a link uses: the exporter's own pages on this machine, or packets to another node.
//!
//! An enum and not a table of functions: on one machine a send costs one predictable branch more
//! than its stores.

use super::engine::Engine;
use super::net::NetOutgoing;
use super::net::outbox::Outbox;
use super::shm::ShmOutgoing;
use super::{Entry, Granted, TransportError};
use crate::control::message::CloseReason;
use crate::error::{Closed, SystemError};
use crate::id::Rights;
use crate::mem::View;
use crate::process::Meter;
use crate::sys::Fd;
use crate::word::Word;
use std::io::IoSlice;
use std::time::Duration;

/// One of each engine's: its links, or what they are made of.
#[derive(Debug)]
pub(crate) enum Of<S, N> {
    /// Within the machine.
    Shm(S),
    /// To another node.
    Net(N),
}

/// The importer's half of a link, of whichever engine.
pub(crate) type Route = Of<ShmOutgoing, NetOutgoing>;

macro_rules! either {
    ($route:expr, $link:ident => $call:expr) => {
        match $route {
            Of::Shm($link) => $call,
            Of::Net($link) => $call,
        }
    };
}

impl Route {
    /// The link, if its pages are this machine's: what a node's interface has.
    pub(crate) fn shm(&self) -> Option<&ShmOutgoing> {
        match self {
            Of::Shm(link) => Some(link),
            Of::Net(_) => None,
        }
    }
}

impl Engine for Route {
    type Found = Of<<ShmOutgoing as Engine>::Found, <NetOutgoing as Engine>::Found>;

    fn import(found: Self::Found, granted: Granted, meter: Meter) -> Result<Route, SystemError> {
        Ok(match found {
            Of::Shm(found) => Of::Shm(ShmOutgoing::import(found, granted, meter)?),
            Of::Net(found) => Of::Net(NetOutgoing::import(found, granted, meter)?),
        })
    }

    #[inline]
    fn len(&self) -> usize {
        either!(self, link => link.len())
    }

    #[inline]
    fn rights(&self) -> Rights {
        either!(self, link => link.rights())
    }

    #[inline]
    fn node(&self) -> Option<&str> {
        either!(self, link => link.node())
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        either!(self, link => link.is_mapped())
    }

    #[inline]
    fn view(&self) -> View<'_> {
        either!(self, link => link.view())
    }

    fn file(&self) -> Option<&Fd> {
        either!(self, link => link.file())
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

    fn write_fenced(&self, offset: usize, source: &[u8]) -> Result<(), TransportError> {
        either!(self, link => link.write_fenced(offset, source))
    }

    fn fence(&self) -> Result<(), Closed> {
        either!(self, link => link.fence())
    }

    fn notify(&self, entry: Entry) -> Result<bool, TransportError> {
        either!(self, link => link.notify(entry))
    }

    fn may_notify(&self) -> bool {
        either!(self, link => link.may_notify())
    }

    fn write_notify(&self, source: &[u8], entry: Entry) -> Result<bool, TransportError> {
        either!(self, link => link.write_notify(source, entry))
    }

    #[inline]
    fn store<W: Word>(&self, word: W, value: W::Value) -> Result<(), Closed> {
        either!(self, link => link.store(word, value))
    }

    fn ship(&self, offset: usize, word: (u64, usize), wake: bool) -> Result<(), TransportError> {
        either!(self, link => link.ship(offset, word, wake))
    }

    fn fetch(&self, offset: usize, width: usize) -> u64 {
        either!(self, link => link.fetch(offset, width))
    }

    fn doze(&self, pause: Duration) {
        either!(self, link => link.doze(pause));
    }

    fn update(&self, offset: usize, source: &[u8], notify: bool) -> Result<bool, TransportError> {
        either!(self, link => link.update(offset, source, notify))
    }

    fn gathers(&self) -> bool {
        either!(self, link => link.gathers())
    }

    fn complete(&self, outbox: &mut Outbox, notify: bool) -> Result<(), TransportError> {
        either!(self, link => link.complete(outbox, notify))
    }

    fn post(&self, outbox: &Outbox) -> Result<(), TransportError> {
        either!(self, link => link.post(outbox))
    }

    #[inline]
    fn check_open(&self) -> Result<(), Closed> {
        either!(self, link => link.check_open())
    }

    fn close(&self, reason: CloseReason) {
        either!(self, link => link.close(reason));
    }
}
