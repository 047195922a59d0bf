//! What an engine is: the contract of a link, whoever carries its bytes.
//!
//! The importer's half of a link is an [`Engine`]. The exporter's half is always [`shm`](super::shm)'s: to the exporting
//! process its node's interface, in `vmmcd`, is an importer like any other. So rights, draining, revoking, notifications and
//! doorbells are written once, and an engine has nothing to do with them but to tell of its own end.
//!
//! | verb | here | `shm` | between nodes |
//! |---|---|---|---|
//! | register | not an engine's: what is exported is a sealed memory file ([`crate::Region`]), which any engine maps | maps it | the interface maps it |
//! | import | [`Engine::import`] | link segment and memory file | a slot of a connection |
//! | write | [`Engine::write`] and its relatives, [`Engine::update`], words | a copy, a store | packets |
//! | write with notification | [`Engine::write_notify`], [`Engine::notify`] | a queue in the link segment | a flag of the packet |
//! | read | [`Engine::read`] | a copy | a question |
//! | fence | [`Engine::fence`], [`Engine::write_fenced`] | nothing to wait for | a question |
//! | wait descriptor | not an engine's: a process sleeps at one place, whatever it waits for ([`crate::Node::as_fd`]); an engine wakes it | | its connection's thread |
//! | close | [`Engine::close`], [`Engine::check_open`] | a word | a word, and a packet |
//!
//! # Contract
//! What follows holds on one machine; [`net`](super::net) says where it is weaker.
//!
//! * **In order** (V13): what one thread writes becomes visible to the exporter in that order, a
//!   notification after all writes before it, and a store by [`crate::Flag`] too.
//! * **The source is free again** when a write returns (V15).
//! * **All or nothing at the door**: an operation that returns an error has written nothing. A peer
//!   that closes meanwhile waits for a write that has begun, or cuts it off where nobody sees it.
//! * **No system call, no lock, no locked instruction** in `write` and `read` (V4). `notify` takes
//!   a lock of this process and may ring the doorbell.
//! * **Trust**: what the other end says is loaded once, checked, and then used. The worst it does is to end the link.
//!
//! Rights, and whether this process is a forked child, are the caller's to check, before each operation.
//!
//! # Another engine
//! It implements [`Engine`], and is an arm of [`Route`](super::route::Route): an enum and not a table of functions, so that a small
//! send costs no more than its stores. Whoever grants the import says which arm (`node/events.rs`, `node/remote.rs`). Nothing
//! above `transport` knows an engine by name but [`crate::Import::land`] and its neighbours, which are a node's interface and
//! always write to their own machine. Then it is a world of `tests/support/engine.rs`, and
//! `tests/engines.rs` says whether it keeps the contract.

use super::net::outbox::Outbox;
use super::{Entry, Granted, TransportError};
use crate::control::message::CloseReason;
use crate::error::{Closed, SystemError};
use crate::id::Rights;
use crate::mem::View;
use crate::process::Meter;
use crate::sync::Ordering;
use crate::sys::Fd;
use crate::word::Word;
use std::io::IoSlice;
use std::time::Duration;

/// The importer's half of a link.
pub(crate) trait Engine: Sized {
    /// What a grant comes with: the way to the exporter's memory.
    type Found;

    /// Makes the link that was granted.
    ///
    /// # Errors
    /// This process has no memory or descriptor left.
    fn import(found: Self::Found, granted: Granted, meter: Meter) -> Result<Self, SystemError>;

    // ---- what it is ----

    /// Length of the buffer in bytes.
    fn len(&self) -> usize;

    /// What the link may be used for.
    fn rights(&self) -> Rights;

    /// The exporter's node, if it is another one.
    fn node(&self) -> Option<&str>;

    /// Whether loads and stores of this process reach the buffer. If so, flags are words of [`Engine::view`], and what is
    /// provided here for words and packets does; otherwise all of it is to be implemented.
    fn is_mapped(&self) -> bool;

    /// The buffer as mapped here; empty when it is not, or only binding was granted.
    fn view(&self) -> View<'_> {
        View::empty()
    }

    /// The memory file, where pages may be bound.
    fn file(&self) -> Option<&Fd> {
        None
    }

    // ---- deliberate update ----

    /// Writes to `offset` from ordinary memory.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`], [`TransportError::Closed`].
    fn write(&self, offset: usize, source: &[u8]) -> Result<(), TransportError>;

    /// Writes several pieces to consecutive places from `offset`; all are checked first.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn write_vectored(&self, offset: usize, sources: &[IoSlice<'_>]) -> Result<(), TransportError>;

    /// Writes to `offset` from memory that others may write meanwhile.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn write_from(&self, offset: usize, source: View<'_>) -> Result<(), TransportError>;

    /// Reads from `offset` into ordinary memory.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), TransportError>;

    /// Writes, and waits until that and all before it is in the exporter's memory.
    ///
    /// # Errors
    /// As [`Engine::write`]; closed between nodes: what of it arrived is not known.
    fn write_fenced(&self, offset: usize, source: &[u8]) -> Result<(), TransportError>;

    /// Waits until everything sent so far is in the exporter's memory.
    ///
    /// # Errors
    /// [`Closed`] when the link ended meanwhile: what of it arrived is not known.
    fn fence(&self) -> Result<(), Closed>;

    // ---- notification ----

    /// Queues a notification behind the writes so far, if the exporter wants any; returns whether
    /// it was queued. The caller then wakes the exporter.
    ///
    /// # Errors
    /// [`TransportError::QueueFull`]; [`TransportError::PeerFault`] when the queue's words are
    /// impossible; [`TransportError::Closed`].
    fn notify(&self, entry: Entry) -> Result<bool, TransportError>;

    /// Whether [`Engine::notify`] would not have to wait for room.
    fn may_notify(&self) -> bool;

    /// Writes the message of an entry; true: a notification went with it. False: the caller queues one.
    ///
    /// # Errors
    /// As [`Engine::write`] and [`Engine::notify`].
    fn write_notify(&self, source: &[u8], entry: Entry) -> Result<bool, TransportError>;

    // ---- words ----

    /// Stores a word of [`Engine::view`] with release.
    ///
    /// # Errors
    /// [`Closed`].
    fn store<W: Word>(&self, word: W, value: W::Value) -> Result<(), Closed>;

    /// Stores an aligned word by its place: a value and its length of 4 or 8 bytes, at once and with release. So are flags of a
    /// buffer that is not mapped. `wake`: and wakes the exporter if it sleeps; of a mapped one the caller does.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn ship(&self, offset: usize, word: (u64, usize), _wake: bool) -> Result<(), TransportError> {
        match word {
            (value, 4) => self.store(self.view().word32(offset)?, value as u32)?,
            (value, _) => self.store(self.view().word64(offset)?, value)?,
        }
        Ok(())
    }

    /// Loads an aligned word of `width` bytes by its place; of a closed link, what was loaded last (or 0).
    fn fetch(&self, offset: usize, width: usize) -> u64 {
        let view = self.view();
        let found = match width {
            4 => view.word32(offset).map(|word| word.load(Ordering::Acquire).into()),
            _ => view.word64(offset).map(|word| word.load(Ordering::Acquire)),
        };
        found.unwrap_or(0)
    }

    /// Sleeps between two looks at such a word.
    fn doze(&self, pause: Duration) {
        std::thread::sleep(pause);
    }

    // ---- automatic update ----

    /// Stores of an automatic update, within a page: seen in ascending order. `notify`: and a notification behind them. True: it
    /// went with them. False: the caller queues it.
    ///
    /// # Errors
    /// As [`Engine::write`] and [`Engine::notify`].
    fn update(&self, offset: usize, source: &[u8], notify: bool) -> Result<bool, TransportError>;

    /// Whether such stores are worth gathering, in an outbox.
    fn gathers(&self) -> bool {
        false
    }

    /// Completes the packet that is open in an outbox, if one is.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn complete(&self, _outbox: &mut Outbox, _notify: bool) -> Result<(), TransportError> {
        Ok(())
    }

    /// Sends the complete packets of an outbox.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn post(&self, _outbox: &Outbox) -> Result<(), TransportError> {
        Ok(())
    }

    // ---- end ----

    /// Whether the link still reaches the exporter.
    ///
    /// # Errors
    /// [`Closed`] with the reason when it does not.
    fn check_open(&self) -> Result<(), Closed>;

    /// Ends the link on this side; the first reason stays.
    fn close(&self, reason: CloseReason);
}
