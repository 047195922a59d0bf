//! How bytes get from an importer to an exporter: the contract, and the engines behind it.
//!
//! * [`engine`]: what an engine is, and what it promises. Who adds one starts there.
//! * [`shm`]: between processes of one machine.
//! * [`tcp`], [`ofi`]: between nodes, over TCP and over libfabric.
//! * [`net`]: what these two have in common.
//! * `route`: which engine a link uses.

pub mod engine;
pub mod net;
pub mod ofi;
pub(crate) mod route;
pub mod shm;
pub mod tcp;

use crate::error::Closed;
use crate::id::{PeerInfo, Rights};
use crate::mem::{OutOfBounds, View};
use crate::word::credit::BadCredit;
use std::os::fd::BorrowedFd;

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

/// What is to be put into the exporter's memory; see [`crate::Import::land`].
#[derive(Clone, Copy, Debug)]
pub enum Load<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// Bytes, seen in ascending order; an aligned word of them at once.
    Ascending(&'a [u8]),
    /// A word, aligned, stored at once and with release.
    Word32(u32),
    /// A word, aligned, stored at once and with release.
    Word64(u64),
    /// Up to so many bytes, straight from a socket, without waiting.
    Socket(BorrowedFd<'a>, usize),
    /// Bytes that their sender may write meanwhile.
    Memory(View<'a>),
}

/// What an import was granted.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// Length of the buffer in bytes.
    pub len: usize,
    /// Rights.
    pub rights: Rights,
    /// The exporter.
    pub peer: PeerInfo,
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
