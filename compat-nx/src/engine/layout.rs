//! The memory that one process of a pair writes for the other: a *lane*.
//!
//! A lane lies in the memory of its **owner**, who exports it; its **writer** is one other process. Two lanes
//! make a pair. All of a lane is written by the writer, but for the head and the shared words.
//!
//! ```text
//!     0  head            magic u64 · version u32 · stride u32 · node u32 · group u32   by the owner
//!   128  control         starved u32 · wants u32 · bye u32 · here u32 · ptype u32 · rung u32   see the constants
//!   256  credits         64 x u32: slots and blocks of the other lane that are free again
//!   512  staged          32 x u64: how much of block b's message is there
//!   768  go              32 x 32 bytes: where block b's message may be put directly
//!  1792  shared          32 x u64: who copies which pieces of block b's message; by both ([`super::share`])
//!  2048  cells           2 x 1152 bytes: a round of a global operation each ([`super::exchange`])
//!  4352  slots           32 x stride bytes: a message each
//! ```
//!
//! A slot is a descriptor of three words and up to `stride - 64 - 24` bytes of data behind it, so that
//! the descriptor and 40 bytes share a line:
//!
//! ```text
//!     0  arrival u64     sequence number u32 (high) · kind u8 · length u24 of the data: written last
//!     8  what u64        message type u32 · channel u32
//!    16  ptypes u64      of the sender u32 · of the receiver u32
//!    24  data
//! ```
//!
//! The arrival word is the *size* field of the paper. The paper's receiver resets it to a special
//! value; here it carries the number of the message, which the receiver knows in advance (see
//! [`super::slots`]), so nothing need be reset and an empty message is not an empty slot.

use super::direct::Spot;

/// "NX LANE" in ASCII.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"NX LANE\0");
/// Version of this layout and of the protocol spoken in it.
pub(super) const VERSION: u32 = 8;
/// Offsets of the head.
pub(super) const HEAD_MAGIC: usize = 0;
pub(super) const HEAD_VERSION: usize = 8;
pub(super) const HEAD_STRIDE: usize = 12;
/// Node number of the owner.
pub(super) const HEAD_NODE: usize = 16;
/// Whom the owner does global operations with: see `Own::group` in [`super::peer`].
pub(super) const HEAD_GROUP: usize = 20;
/// Length of the head.
pub(super) const HEAD_LEN: usize = 24;

/// Offset of the starved word: a set of `STARVED_*`. The writer waits for credits.
pub(super) const STARVED: usize = 128;
/// Some operation of the writer waits for a slot or a block.
pub(super) const STARVED_WAITS: u32 = 1;
/// Nobody waits for it inside a call: interrupt when there are credits.
pub(super) const STARVED_AWAY: u32 = 2;
/// Blocks are wanted, too: staged messages should be fetched.
pub(super) const STARVED_BLOCKS: u32 = 4;
/// Offset of the wants word: 1 when the writer has handlers posted and wants to be interrupted
/// for each message.
pub(super) const WANTS: usize = 132;
/// Offset of the bye word: 0, or how the writer left.
pub(super) const BYE: usize = 136;
/// In order: the others go on.
pub(super) const BYE_ORDERLY: u32 = 1;
/// Because the job has failed; plus the number of the node whose fault that was.
pub(super) const BYE_FAILED: u32 = 2;
/// Offset of the here word: [`HERE_OPEN`], and of who joined later then [`HERE_JOINED`].
pub(super) const HERE: usize = 140;
/// The writer has opened its links with the owner, and so can do without it.
pub(super) const HERE_OPEN: u32 = 1;
/// And all others have opened theirs with the writer.
pub(super) const HERE_JOINED: u32 = 2;
/// Offset of the process type of the writer, plus 1; 0: it has none.
pub(super) const PTYPE: usize = 144;
/// Offset of a word that a writer on another node stores only to wake the owner.
pub(super) const RUNG: usize = 148;

/// Offset of the credits.
pub(super) const CREDITS: usize = 256;
/// Entries of the credit ring. More than can be under way: each names a slot or block in use.
pub(super) const CREDIT_ENTRIES: u32 = 64;
/// Set in the low byte of a credit that names a block.
pub(super) const CREDIT_BLOCK: u32 = 0x80;

/// Offset of the staged words.
pub(super) const STAGED: usize = 512;
/// In a staged word: the writer sends from user memory instead ([`super::direct`]).
pub(super) const STAGED_DIRECT: u64 = 1 << 63;
/// With it: all bytes are there.
pub(super) const STAGED_DONE: u64 = 1 << 62;
/// The bytes staged so far.
pub(super) const STAGED_COUNT: u64 = (1 << 48) - 1;

/// Offset of the go records.
pub(super) const GO: usize = 768;
/// Length of a go record: window number + 1 (written last) · offset in it · first byte of the message
/// that goes there · how many; `u64` each.
pub(super) const GO_LEN: usize = 32;

/// Offset of the shared words.
pub(super) const SHARED: usize = 1792;

/// Offset of the cells.
pub(super) const CELLS_AT: usize = 2048;
/// Cells: see [`super::exchange`].
pub(super) const CELLS: usize = 2;
/// Bytes of data in a cell: behind its head, u64, with which the first 56 share a line.
pub(super) const CELL_ROOM: usize = 1024 - 8;
/// Offset in a cell of what must be the same in all of a round, u64, where the head does not say all that the nodes must agree on.
pub(super) const CELL_MEANS: usize = 8 + CELL_ROOM;
/// Length of a cell: an even number of lines, since neighbours are fetched in pairs.
pub(super) const CELL_LEN: usize = 1152;

/// Blocks per lane: large messages under way.
pub(super) const BLOCKS: usize = 32;
/// Offset of the slots.
pub(super) const SLOTS_AT: usize = 4352;
/// Slots per lane.
pub(super) const SLOTS: usize = 32;
/// Length of a slot's descriptor.
pub(super) const DESCRIPTOR: usize = 24;
/// Data bytes that share the descriptor's line.
pub(super) const FIRST_LINE: usize = 64 - DESCRIPTOR;
/// Smallest and largest stride.
pub(super) const STRIDES: std::ops::RangeInclusive<usize> = 192..=(1 << 20);

/// Kinds of message in a slot.
pub(super) mod kind {
    /// The data follows.
    pub(in super::super) const DATA: u8 = 1;
    /// A large message is announced: a [`super::Scout`] follows.
    pub(in super::super) const SCOUT: u8 = 2;
}

const _: () = assert!(CREDITS + CREDIT_ENTRIES as usize * 4 <= STAGED, "credits run over");
const _: () = assert!(STAGED + BLOCKS * 8 <= GO, "staged words run over");
const _: () = assert!(GO + BLOCKS * GO_LEN <= SHARED, "go records run over");
const _: () = assert!(SHARED + BLOCKS * 8 <= CELLS_AT, "shared words run over");
const _: () = assert!(CELL_MEANS + 8 <= CELL_LEN && CELL_LEN.is_multiple_of(128));
const _: () = assert!(CELLS_AT + CELLS * CELL_LEN <= SLOTS_AT, "cells run over");
const _: () = assert!(SLOTS + BLOCKS <= CREDIT_ENTRIES as usize, "a credit could be overwritten");

/// Length of a lane in bytes.
pub(super) fn lane_len(stride: usize) -> usize {
    SLOTS_AT + SLOTS * stride
}

/// Data bytes that fit a slot. The last line of the stride stays free, so that two slots never share
/// one and slots do not all begin at the same place of a page.
pub(super) fn room(stride: usize) -> usize {
    stride - 64 - DESCRIPTOR
}

/// What a scout says: where the safe copy of a large message is being made, and where its bytes can be read themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scout {
    /// Length of the message in bytes.
    pub(super) len: u64,
    /// Offset of the safe copy in its region.
    pub(super) offset: u64,
    /// Number of the region, counted by the sender per receiver.
    pub(super) region: u32,
    /// Block number: index of the staged word and the go record.
    pub(super) block: u32,
    /// Where in the sender's windows the whole pages of the message are, unless they are in none. Whether they may be read the
    /// shared word says.
    pub(super) source: Option<Spot>,
}

impl Scout {
    /// As long as what shares a line with the descriptor.
    pub(super) const LEN: usize = 40;

    pub(super) fn to_bytes(self) -> [u8; Scout::LEN] {
        let mut bytes = [0; Scout::LEN];
        let both = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        // Window number + 1; how much of the message is whole pages follows from where they begin.
        let (window, at) = match self.source {
            Some(Spot { window, first, offset, .. }) => (both(window + 1, first as u32), offset),
            None => (0, 0),
        };
        let words = [self.len, self.offset, both(self.region, self.block), window, at];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// `None` when the block number is impossible.
    pub(super) fn from_bytes(bytes: [u8; Scout::LEN]) -> Option<Scout> {
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes.get(8 * i..8 * i + 8)?);
            Some(u64::from_ne_bytes(word))
        };
        let (len, offset) = (word(0)?, word(1)?);
        let half = |i| word(i).map(|both| ((both >> 32) as u32, both as u32));
        let ((region, block), (window, first)) = (half(2)?, half(3)?);
        let at = word(4)?;
        let source = window.checked_sub(1).map(|window| Spot::of(window, at, first.into(), len));
        ((block as usize) < BLOCKS).then_some(Scout { len, offset, region, block, source })
    }
}
