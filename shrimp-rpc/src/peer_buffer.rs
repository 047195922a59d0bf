//! The other side's buffer, as this side writes to it.
//!
//! On one machine it is bound: its pages are the other side's. Of another node's buffer this side has an *image*,
//! memory of its own in which messages are put together; a message leaves it by deliberate update, in
//! order, when its flag is sent. Nobody reads the other side's memory there, except that a
//! server reads the head of its client's buffer once, when it binds.

use crate::error::TransportError;
use crate::layout;
use crate::memory::Memory;
use vmmc::error::{BindError, FlagError, SendError};
use vmmc::mem::View;
use vmmc::sync::Ordering;
use vmmc::word::Word as _;
use vmmc::{Binding as Bound, Import};

/// See the module.
#[derive(Debug)]
pub(crate) enum PeerBuffer {
    /// On this machine.
    Here(Bound, Import),
    /// On another node.
    Elsewhere(Box<Elsewhere>),
}

/// Another node's buffer.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    import: Import,
    image: Memory,
}

impl Elsewhere {
    #[cold] // a call over a network is microseconds
    fn signal(&self, len: usize, word: u64) -> Result<(), SendError> {
        let image = self.image.view();
        let at = layout::flag_at(image.len());
        let start = at - len;
        self.import.send_from(start, image.slice(start, len)?)?;
        flag(self.import.flag64(at))?.signal(word)
    }
}

impl PeerBuffer {
    /// Binds to all of an import, or makes an image of it.
    pub(crate) fn new(import: Import) -> Result<PeerBuffer, BindError> {
        if import.remote_node().is_some() {
            let image = Memory::fresh(import.len());
            return Ok(PeerBuffer::Elsewhere(Box::new(Elsewhere { import, image })));
        }
        Ok(PeerBuffer::Here(import.bind(0..import.len())?, import))
    }

    /// Where messages are put together.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        match self {
            PeerBuffer::Here(bound, _) => bound.view(),
            PeerBuffer::Elsewhere(it) => it.image.view(),
        }
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.view().len()
    }

    /// Whether what the other side writes there is not seen here.
    #[inline]
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self, PeerBuffer::Elsewhere(_))
    }

    /// The link to it: knows when its end comes.
    #[inline]
    pub(crate) fn import(&self) -> &Import {
        match self {
            PeerBuffer::Here(_, import) => import,
            PeerBuffer::Elsewhere(it) => &it.import,
        }
    }

    /// Stores the flag behind the message of `len` bytes that lies before it, and wakes the other
    /// side if it sleeps.
    #[inline(always)] // between two flags
    pub(crate) fn signal(&self, len: usize, word: u64) -> Result<(), SendError> {
        match self {
            PeerBuffer::Here(bound, _) => bound.signal64(layout::flag_at(bound.len()), word),
            PeerBuffer::Elsewhere(it) => it.signal(len, word),
        }
    }

    /// Stores a word of the head. The next flag comes after it.
    pub(crate) fn put32(&self, at: usize, value: u32) -> Result<(), SendError> {
        match self {
            PeerBuffer::Here(bound, _) => bound.view().word32(at)?.store(value, Ordering::Relaxed),
            PeerBuffer::Elsewhere(it) => flag(it.import.flag32(at))?.store(value)?,
        }
        Ok(())
    }

    /// As [`PeerBuffer::put32`], eight bytes.
    pub(crate) fn put64(&self, at: usize, value: u64) -> Result<(), SendError> {
        match self {
            PeerBuffer::Here(bound, _) => bound.view().word64(at)?.store(value, Ordering::Relaxed),
            PeerBuffer::Elsewhere(it) => flag(it.import.flag64(at))?.store(value)?,
        }
        Ok(())
    }

    /// Stores a word of the head behind all others, and wakes the other side if it sleeps.
    pub(crate) fn signal32(&self, at: usize, value: u32) -> Result<(), SendError> {
        match self {
            PeerBuffer::Here(bound, _) => flag(bound.flag32(at))?.signal(value),
            PeerBuffer::Elsewhere(it) => flag(it.import.flag32(at))?.signal(value),
        }
    }

    /// The head as it is now, read once.
    pub(crate) fn head(&self) -> Result<[u8; layout::HEAD_LEN], TransportError> {
        let mut head = [0; layout::HEAD_LEN];
        match self {
            PeerBuffer::Here(bound, _) => bound.view().read(0, &mut head)?,
            PeerBuffer::Elsewhere(it) => it.import.read(0, &mut head)?,
        }
        Ok(head)
    }
}

/// A flag whose place was checked when the buffer was opened.
#[inline]
fn flag<F>(found: Result<F, FlagError>) -> Result<F, SendError> {
    match found {
        Ok(flag) => Ok(flag),
        Err(FlagError::Forked(error)) => Err(error.into()),
        Err(FlagError::NotGranted(error)) => Err(error.into()),
        Err(FlagError::OutOfBounds(error)) => Err(error.into()),
        Err(error) => unreachable!("a flag within the buffer: {error}"),
    }
}
