//! What an engine is: the contracts, whoever carries the bytes.
//!
//! There are two, because TCP and libfabric are the same engine but for how they move packets:
//!
//! ```text
//!   Import, Flag, AutoUpdate              a process that exports
//!     | Engine                               ^
//!     +-- shm: its pages mapped here --------+
//!     +-- net: packets ---> vmmcd ---- shm --+
//!           | Line            | Line
//!           +---- tcp --------+
//!           +---- ofi --------+
//! ```
//!
//! * An [`Engine`] is the importer's half of a link. The exporter's half is always [`shm`](super::shm)'s: to the exporting
//!   process its node's interface, in `vmmcd`, is an importer like any other. So rights, draining, revoking, notifications and
//!   doorbells are written once, and an engine has nothing to do with them but to tell of its own end.
//! * A [`Line`] is one end of what carries the packets of [`net`](super::net) between a process and an interface: a stream of bytes
//!   each way. Both ends are the same implementation. [`tcp`](super::tcp) and [`ofi`](super::ofi) are lines; frames, order, answers, page tables
//!   and capabilities are above, and written once.
//!
//! | verb | `shm` | `tcp` | `ofi` |
//! |---|---|---|---|
//! | register | the sealed memory file of a [`crate::Region`], which whoever is granted it maps; no engine's affair | the same, by the interface | the same; and [`Line::register`], for writes past the interface |
//! | import | [`Engine::import`]: link segment and memory file | [`Engine::import`]: a slot of the connection | as `tcp` |
//! | write | [`Engine::write`] and its relatives, [`Engine::update`], words: copies and stores | packets: [`Line::send`], [`Line::land`] | as `tcp`; long ones [`Line::write_directly`] |
//! | write with notification | [`Engine::write_notify`], [`Engine::notify`]: a queue in the link segment | a flag of the packet, a packet | as `tcp` |
//! | read | [`Engine::read`]: a copy | a question, and [`Line::receive`] | as `tcp` |
//! | fence | [`Engine::fence`], [`Engine::write_fenced`]: nothing to wait for | a question | as `tcp` |
//! | wait descriptor | none of its own: a process sleeps at one place, whatever it waits for ([`crate::Node::as_fd`]), and its bell is rung | [`Line::with_wait_fd`], for the connection's thread, which wakes the process | as `tcp` |
//! | close | [`Engine::close`], [`Engine::check_open`]: a word | a word, a packet; [`Line::close`] for all links of the connection | as `tcp` |
//!
//! So two verbs are not in [`Engine`]. *Register*: what is exported must be what every importer maps, over whatever engine, and is
//! made before anybody imports. *Wait descriptor*: one for each link would be a descriptor for each import, where one connection
//! carries thousands without any, and who waits for flags of several would poll them all.
//!
//! # Contract
//! What follows holds of an [`Engine`] on one machine; [`net`](super::net) says where it is weaker.
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
//! One that reaches another node by bytes in order is a [`Line`], and an arm of [`AnyLine`](super::net::line::AnyLine); the set-up
//! (`vmmc-daemon/src/net`) and the cluster file say when it is used. Any other is an [`Engine`], and an arm of
//! [`Route`](super::route::Route); whoever grants the import says when (`node/events.rs`, `node/remote.rs`). Both are enums and
//! not tables of functions, so that a small send costs no more than its stores. Nothing
//! above `transport` knows an engine by name but [`crate::Import::land`] and its neighbours, which are a node's interface and
//! always write to their own machine. Then it is a world of `tests/support/engine.rs`, and
//! `tests/engines.rs` says whether it keeps the contract.

use super::net::outbox::Outbox;
use super::net::silence::Owed;
use super::{Entry, Granted, Load, TransportError};
use crate::control::message::CloseReason;
use crate::error::{Closed, SystemError};
use crate::fabric::{FabricError, Target};
use crate::id::Rights;
use crate::mem::View;
use crate::process::Meter;
use crate::sync::Ordering;
use crate::sys::Fd;
use crate::sys::mmap::GuardedMapping;
use crate::word::Word;
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
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

/// One end of what carries packets between a process and the interface of another node: a stream of bytes each way. Nothing here
/// waits but what says so.
///
/// Any thread may send, one at a time; any may receive, one at a time, also while another sends. Bytes come in order, each once, or
/// the line ends. That the other end takes nothing more is told as [`Errno::AGAIN`], and bytes wait there without bound of time.
pub trait Line {
    /// The TCP connection that the two daemons made. Its end is the end of the line, whoever carries the bytes.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Whether the bytes go beside that, over what can also write to registered memory.
    fn is_fabric(&self) -> bool;

    // ---- bytes ----

    /// Sends what there is room for of two pieces, and says how much it was; the process's end may wait a moment where the second is
    /// long. After [`Errno::AGAIN`] the same are to be sent next.
    ///
    /// # Errors
    /// `AGAIN`: no room. Others: the line has ended.
    fn send(&self, front: &[u8], back: &[u8]) -> Result<usize, Errno>;

    /// Waits until something can be sent, or the line has ended; false if there is no room by then.
    fn wait_for_room(&self, timeout: Duration) -> bool;

    /// Receives what is there; 0 at the end.
    ///
    /// # Errors
    /// `AGAIN`, `INTR`: nothing now. Others: the line has ended.
    fn receive(&self, room: &mut [u8]) -> Result<usize, Errno>;

    /// Whether [`Line::receive`] gives all that is there, if it has room.
    fn gives_all(&self) -> bool;

    /// Gives up to `most` bytes that have come, as they lie, to be put where they belong without another copy. `put` says how many of
    /// them are done with (of a socket they are gone in any case), and its result is passed on.
    ///
    /// # Errors
    /// `AGAIN`, `INTR`: nothing now. Others: the line has ended.
    fn land<R>(&self, most: usize, put: impl FnOnce(Load<'_>) -> (usize, R)) -> Result<R, Errno>;

    // ---- waiting ----

    /// The descriptor that is readable when something has come. Before sleeping on it: [`Line::may_sleep`].
    fn with_wait_fd<R>(&self, use_it: impl FnOnce(BorrowedFd<'_>) -> R) -> R;

    /// Whether that is readable for nothing ([`vain`](super::net::vain)).
    fn is_vain(&self) -> bool {
        false
    }

    /// Whether it would tell of what comes next. False: receive first.
    fn may_sleep(&self) -> bool;

    /// So many bytes will come, and who waits has no use for a few of them: the descriptor need not be readable before they have
    /// come, or the end. 1 takes that back. Whether it is so.
    fn tell_from(&self, _bytes: u32) -> bool {
        false
    }

    // ---- end ----

    /// What the other node owes to what was sent a while ago ([`silence`](super::net::silence)).
    ///
    /// # Errors
    /// The line has ended.
    fn owed(&self) -> Result<Owed, Errno>;

    /// Hears what is said over the socket if the bytes go beside it.
    ///
    /// # Errors
    /// Why the line is over when all that has come is taken; `TIMEDOUT`: something was lost.
    fn hear(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether something was changed on its way.
    fn is_broken(&self) -> bool {
        false
    }

    /// Ends it, for both ends.
    fn close(&self);

    // ---- registered memory, of a fabric ----

    /// Lets the other end write to a mapping by itself, up to `len`: its number here, and what the other end must name.
    ///
    /// # Errors
    /// As the fabric says. Then packets go there, as before.
    fn register(
        &self,
        _pages: GuardedMapping,
        _len: usize,
    ) -> Result<(usize, Target), FabricError> {
        Err(FabricError::Nonsense { what: "memory registered with what is no fabric" })
    }

    /// What comes for that memory from now on reaches nobody.
    ///
    /// # Errors
    /// As the fabric says.
    fn cover(&self, _number: usize) -> Result<(), FabricError> {
        Ok(())
    }

    /// Nothing comes for that memory any more.
    ///
    /// # Errors
    /// As the fabric says.
    fn shut(&self, _number: usize) -> Result<(), FabricError> {
        Ok(())
    }

    /// Writes what there is room for of the bytes to memory that the other end has registered. What is sent later comes after it.
    /// `begins`: it may lie over what was written so before.
    ///
    /// # Errors
    /// `AGAIN`: no room. `ACCESS`: an earlier one was refused. Others: the line has ended.
    fn write_directly(
        &self,
        _window: Target,
        _at: u64,
        _bytes: &[u8],
        _begins: bool,
    ) -> Result<usize, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Waits until something can be written so, or the line has ended; false if it cannot by then.
    fn wait_for_place(&self, _timeout: Duration) -> bool {
        true
    }

    /// Whether the line ended because such a write was refused.
    fn was_refused(&self) -> bool {
        false
    }
}
