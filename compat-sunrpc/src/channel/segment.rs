//! The shared segment of one channel.
//!
//! ```text
//!   0     direction 0: side 0 sends, side 1 receives
//!    +0     tail u64     total bytes written (R5), by the sender
//!    +128   head u64     total bytes taken, by the receiver
//!   256   direction 1: side 1 sends, side 0 receives          (same shape)
//!   512   side 0
//!    +0     attached u32     this side has mapped the segment and arms before it sleeps
//!           armed_data u32   ring me when there is a record; the other side swaps it to 0
//!           armed_space u32  ring me when there is room; the other side swaps it to 0
//!           cpu u32          processor this side last waited on, plus one; 0 unknown
//!   640   side 1                                              (same shape)
//!   4096  ring of direction 0, then ring of direction 1; mapped twice each
//! ```
//!
//! A record travels as fragments, each a 32-bit word (bit 31: last of the record; bit 30: the
//! record is to be forgotten; the rest: length in bytes; this machine's byte order) and then its
//! bytes, padded to four. A fragment is published whole and is not empty, unless it says to forget:
//! then it is. A record that finds room is one fragment, written where the receiver decodes it; a
//! longer one goes in pieces.
//!
//! The daemon makes the segment: zeroed, sealed, of exactly this length. Both processes can write
//! every byte at any time; what a side relies on is in [`super::own`].

use std::ptr::NonNull;
use vmmc::control::message::{CarriedWords, StreamShape};
use vmmc::mem::View;
use vmmc::sys::mirror::MirroredMapping;
use vmmc::word::{MappedU32, MappedU64};
use vmmc_ring::ViewBytes;

/// Version of this layout; both ends must have the same.
pub(crate) const VERSION: u32 = 2;
/// Bytes before the rings.
pub(crate) const CONTROL_LEN: usize = 4096;
const DIRECTION_LEN: usize = 256;
const SIDES_AT: usize = 2 * DIRECTION_LEN;
const SIDE_LEN: usize = 128;
const TAIL: usize = 0;
const HEAD: usize = 128;
const ATTACHED: usize = 0;
const ARMED_DATA: usize = 4;
const ARMED_SPACE: usize = 8;
const CPU: usize = 12;

/// Set in a fragment's word when it is the last of its record.
pub(crate) const LAST: u32 = 1 << 31;
/// The word of the fragment that ends a record whose sender has given it up.
pub(crate) const FORGET: u32 = 1 << 30;

/// What the daemon must know about the layout. The kind is in the upper half of the version, so
/// that an end of another library is never paired with one of ours.
pub(crate) const SHAPE: StreamShape = StreamShape {
    version: (1 << 16) | VERSION,
    control_len: CONTROL_LEN as u32,
    produced_at: [TAIL as u32, (DIRECTION_LEN + TAIL) as u32],
    words: None,
    bells: true,
    carried: Some(CarriedWords {
        consumed_at: [HEAD as u32, (DIRECTION_LEN + HEAD) as u32],
        attached_at: side_words(ATTACHED),
        armed_data_at: side_words(ARMED_DATA),
        armed_space_at: side_words(ARMED_SPACE),
        kernel: None,
    }),
};

/// Where a word of side 0 and of side 1 is.
const fn side_words(at: usize) -> [u32; 2] {
    [(SIDES_AT + at) as u32, (SIDES_AT + SIDE_LEN + at) as u32]
}

/// A mapped segment, seen from one side.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: MirroredMapping,
    side: usize,
}

impl Segment {
    pub(crate) fn new(mapping: MirroredMapping, side: u8) -> Segment {
        debug_assert!(mapping.control_len() == CONTROL_LEN);
        Segment { mapping, side: usize::from(side & 1) }
    }

    fn word32(&self, at: usize) -> MappedU32<'_> {
        // SAFETY: constants of this module: inside the control part, aligned.
        let place = unsafe { self.mapping.control().add(at) };
        // SAFETY: as above; accessed atomically only.
        unsafe { MappedU32::from_raw(place.cast()) }
    }

    fn word64(&self, at: usize) -> MappedU64<'_> {
        // SAFETY: constants of this module: inside the control part, aligned.
        let place = unsafe { self.mapping.control().add(at) };
        // SAFETY: as above; accessed atomically only.
        unsafe { MappedU64::from_raw(place.cast()) }
    }

    /// The two words and the ring of the direction in which we send.
    pub(crate) fn outgoing(&self) -> (MappedU64<'_>, MappedU64<'_>, ViewBytes<'_>) {
        self.direction(self.side)
    }

    /// The two words and the ring of the direction in which we receive.
    pub(crate) fn incoming(&self) -> (MappedU64<'_>, MappedU64<'_>, ViewBytes<'_>) {
        self.direction(1 - self.side)
    }

    fn direction(&self, sender: usize) -> (MappedU64<'_>, MappedU64<'_>, ViewBytes<'_>) {
        let at = sender * DIRECTION_LEN;
        // SAFETY: the ring is mapped as long as `self`; nobody makes references into it.
        let ring = unsafe { View::from_raw(self.mapping.ring(sender), self.mapping.ring_len()) };
        (self.word64(at + TAIL), self.word64(at + HEAD), ViewBytes(ring))
    }

    /// First byte of the ring in which we send; twice its length is accessible.
    pub(crate) fn outgoing_start(&self) -> NonNull<u8> {
        self.mapping.ring(self.side)
    }

    /// First byte of the ring in which we receive; twice its length is accessible.
    pub(crate) fn incoming_start(&self) -> NonNull<u8> {
        self.mapping.ring(1 - self.side)
    }

    /// Length of each ring in bytes.
    pub(crate) fn ring_len(&self) -> usize {
        self.mapping.ring_len()
    }

    fn side_word(&self, side: usize, at: usize) -> MappedU32<'_> {
        self.word32(SIDES_AT + side * SIDE_LEN + at)
    }

    /// Our own quiet words.
    pub(crate) fn own(&self) -> SideWords<'_> {
        SideWords { segment: self, side: self.side }
    }

    /// The other side's.
    pub(crate) fn peer(&self) -> SideWords<'_> {
        SideWords { segment: self, side: 1 - self.side }
    }
}

/// The quiet words of one side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideWords<'s> {
    segment: &'s Segment,
    side: usize,
}

impl<'s> SideWords<'s> {
    pub(crate) fn attached(self) -> MappedU32<'s> {
        self.segment.side_word(self.side, ATTACHED)
    }

    pub(crate) fn armed_data(self) -> MappedU32<'s> {
        self.segment.side_word(self.side, ARMED_DATA)
    }

    pub(crate) fn armed_space(self) -> MappedU32<'s> {
        self.segment.side_word(self.side, ARMED_SPACE)
    }

    pub(crate) fn cpu(self) -> MappedU32<'s> {
        self.segment.side_word(self.side, CPU)
    }
}
