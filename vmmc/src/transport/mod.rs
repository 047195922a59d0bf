//! How bytes get from an importer to an exporter: the contract, and the engines behind it.
//!
//! [`shm`] is the engine between processes of one machine, [`net`] the one between nodes. The importer's
//! half of an engine is an [`Outgoing`]; the exporter's half is always [`shm`]'s, because to the
//! exporting process its node's interface is an importer like any other. Engines are chosen by
//! type, not by a table of functions: a small send must cost no more than its stores.
//!
//! # Contract
//! What follows holds on one machine; [`net`] says where it is weaker.
//!
//! * **In order** (V13): what one thread writes becomes visible to the exporter in that order, a
//!   notification after all writes before it, and a store by [`crate::Flag`] too.
//! * **The source is free again** when `write` returns (V15).
//! * **All or nothing at the door**: an operation that returns an error has written nothing. A peer
//!   that closes meanwhile waits for a write that has begun, or cuts it off where nobody sees it.
//! * **No system call, no lock, no locked instruction** in `write` and `read` (V4). `notify` takes
//!   a lock of this process and may ring the doorbell.

pub mod net;
pub(crate) mod route;
pub mod shm;

use crate::error::Closed;
use crate::id::Rights;
use crate::mem::{OutOfBounds, View};
use crate::word::credit::BadCredit;

/// A notification on its way: where the message lies, and the last word of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First byte of the message in the buffer.
    pub offset: u64,
    /// Length of the message in bytes.
    pub len: u64,
    /// Last eight bytes of the message as a native-endian number (a shorter message: extended
    /// with zeros).
    pub last_word: u64,
}

impl Entry {
    /// Of a message at its place.
    pub(crate) fn of(offset: usize, message: &[u8]) -> Entry {
        Entry { offset: offset as u64, len: message.len() as u64, last_word: last_word(message) }
    }
}

/// The last eight bytes of a message, native-endian; of a shorter one, extended with zeros.
fn last_word(message: &[u8]) -> u64 {
    match message.last_chunk::<8>() {
        Some(last) => u64::from_ne_bytes(*last),
        None => {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(message) {
                *to = *from;
            }
            u64::from_le_bytes(word)
        }
    }
}

/// What an entry of the notification queue says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// A message is there.
    Message(Entry),
    /// The node interface holds back a packet for `entry.len` bytes at `entry.offset`, because a
    /// page of them is disabled.
    Frozen(Entry),
}

impl Item {
    /// The bytes that it is about.
    #[must_use]
    pub fn entry(&self) -> Entry {
        match self {
            Item::Message(entry) | Item::Frozen(entry) => *entry,
        }
    }
}

/// Why an engine did not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Does not fit the buffer.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The link is closed.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The peer's notification queue is full.
    #[error("the notification queue is full")]
    QueueFull,
    /// The peer wrote nonsense into the link segment.
    #[error(transparent)]
    PeerFault(#[from] BadCredit),
}

/// The importer's half of a link.
pub trait Outgoing {
    /// Length of the buffer in bytes.
    fn len(&self) -> usize;

    /// Whether the buffer is empty; it never is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the link may be used for. The caller checks it before each operation.
    fn rights(&self) -> Rights;

    /// Writes to `offset` from ordinary memory.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`], [`TransportError::Closed`].
    fn write(&self, offset: usize, source: &[u8]) -> Result<(), TransportError>;

    /// Writes several pieces to consecutive places from `offset`; all are checked first.
    ///
    /// # Errors
    /// As [`Outgoing::write`].
    fn write_vectored(
        &self,
        offset: usize,
        sources: &[std::io::IoSlice<'_>],
    ) -> Result<(), TransportError>;

    /// Writes to `offset` from memory that others may write meanwhile.
    ///
    /// # Errors
    /// As [`Outgoing::write`].
    fn write_from(&self, offset: usize, source: View<'_>) -> Result<(), TransportError>;

    /// Reads from `offset` into ordinary memory.
    ///
    /// # Errors
    /// As [`Outgoing::write`].
    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), TransportError>;

    /// Queues a notification behind the writes so far, if the exporter wants any; returns whether
    /// it was queued. The caller then wakes the exporter.
    ///
    /// # Errors
    /// [`TransportError::QueueFull`]; [`TransportError::PeerFault`] when the queue's words are
    /// impossible; [`TransportError::Closed`].
    fn notify(&self, entry: Entry) -> Result<bool, TransportError>;

    /// Whether the link still reaches the exporter.
    ///
    /// # Errors
    /// [`Closed`] with the reason when it does not.
    fn check_open(&self) -> Result<(), Closed>;
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::last_word;

    #[test]
    fn the_last_word_is_the_last_eight_bytes_or_all_of_a_shorter_message() {
        assert_eq!(last_word(&7u32.to_le_bytes()), 7);
        assert_eq!(last_word(&[]), 0);
        let message = [1u8, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(last_word(&message).to_ne_bytes(), message[1..]);
    }
}
