//! The shared segment of one upgraded connection.
//!
//! ```text
//!   0      direction 0: side 0 sends, side 1 receives
//!    +0      tail u64 · prefix u64 · end u64 · bells u64 · mode u32       by the sender
//!    +40     pumped u64 · pumper u64                 by the daemon ([`vmmc_ring::pump`])
//!    +128    head u64                                                    by the receiver
//!    +256    space_wait u32   futex of a sender blocked on a full ring: sender sets, receiver
//!                             swaps to 0 and wakes
//!   512    direction 1: side 1 sends, side 0 receives                     (same shape)
//!   1024   side 0
//!    +0      ready u32        this side has attached and reads through the library
//!            closed u32       how this side closed its last descriptor ([`Closed`]); 0: it has not
//!            demote u32       this side asks the other to send by TCP again
//!                             ([`vmmc_ring::pump::request`])
//!            cpu u32          processor this side last ran on, plus one; 0 unknown
//!            armed_data u32   ring me when there is data; the other side swaps it to 0
//!            armed_space u32  ring me when there is room; the other side swaps it to 0
//!            seen u32         to the daemon that carries the connection: this side has seen the other's direction switch
//!                             to the ring
//!            leave u32        to the daemon that carries the connection: this side wants to send by TCP
//!            sleep u64        which sleep `armed_data` is for ([`crate::sleeps`]); 0: ring always
//!            fin u32          to the daemon that carries the connection: this side has shut its sending
//!            error u32        by that daemon: what the kernel told it of this side's socket ([`vmmc_ring::taken`])
//!    +128    bells u64        doorbells this side has sent in this ring part (counted before the send)
//!    +136    owed u64         of these, ones that the kernel had no room for
//!    +144    taken u64        while the other's direction rests: bytes of TCP this side had taken out when it last found none
//!   1536   side 1                                                         (same shape)
//!   4096   ring of direction 0, then ring of direction 1, `ring_len` bytes each
//! ```
//!
//! The daemon makes it: zeroed, sealed, of exactly this length. Words with different writers are
//! 128 bytes apart, except the quiet words of a side, which change when somebody sleeps and not
//! per message: a sender has to look at them at every call and must not pay a line for it.
//!
//! Both processes can write every byte at any time. So nothing in here is trusted: what a side
//! must be able to rely on (its own positions, its locks, what it has consumed) is in
//! [`crate::side`], which the peer cannot reach.

use std::ptr::NonNull;
use vmmc::control::message::{CarriedWords, KernelWords, StreamShape, StreamWords};
use vmmc::mem::View;
use vmmc::word::{MappedU32, MappedU64};
use vmmc_ring::ViewBytes;
use vmmc_ring::pump::Words;
use vmmc_ring::switch::Switch;
use vmmc_ring::taken::Taken;

/// Version of this layout; both ends of a connection must have the same.
pub(crate) const VERSION: u32 = 7;
/// Bytes before the rings.
pub(crate) const CONTROL_LEN: usize = 4096;
const DIRECTION_LEN: usize = 512;
const SIDES_AT: usize = 2 * DIRECTION_LEN;
const SIDE_LEN: usize = 512;

const TAIL: usize = 0;
const PREFIX: usize = 8;
const END: usize = 16;
const BELLS_FINAL: usize = 24;
const MODE: usize = 32;
const PUMPED: usize = 40;
const PUMPER: usize = 48;
const HEAD: usize = 128;
const SPACE_WAIT: usize = 256;

const READY: usize = 0;
const CLOSED: usize = 4;
const DEMOTE: usize = 8;
const CPU: usize = 12;
const ARMED_DATA: usize = 16;
const ARMED_SPACE: usize = 20;
const SEEN: usize = 24;
const LEAVE: usize = 28;
const SLEEP: usize = 32;
const FIN: usize = 40;
const ERROR: usize = 44;
const BELLS: usize = 128;
const OWED: usize = 136;
const TAKEN: usize = 144;

const _: () = assert!(SIDES_AT + 2 * SIDE_LEN <= CONTROL_LEN, "sides run into the rings");
const _: () = assert!(SPACE_WAIT + 128 <= DIRECTION_LEN, "directions share a line");

/// Longest ring accepted from the daemon, bytes.
pub(crate) const MAX_RING: u32 = 64 << 20;

/// What the daemon must know about the layout.
pub(crate) const SHAPE: StreamShape = StreamShape {
    version: VERSION,
    control_len: CONTROL_LEN as u32,
    produced_at: [TAIL as u32, (DIRECTION_LEN + TAIL) as u32],
    words: Some([stream_words(0), stream_words(1)]),
    bells: false,
    carried: Some(CarriedWords {
        consumed_at: [HEAD as u32, (DIRECTION_LEN + HEAD) as u32],
        attached_at: side_words(READY),
        armed_data_at: side_words(ARMED_DATA),
        armed_space_at: side_words(ARMED_SPACE),
        kernel: Some(KernelWords {
            seen_at: side_words(SEEN),
            closed_at: side_words(CLOSED),
            space_wait_at: [SPACE_WAIT as u32, (DIRECTION_LEN + SPACE_WAIT) as u32],
            leave_at: side_words(LEAVE),
            fin_at: side_words(FIN),
            error_at: side_words(ERROR),
        }),
    }),
};

/// Where a quiet word of side 0 is, and of side 1.
const fn side_words(word: usize) -> [u32; 2] {
    [(SIDES_AT + word) as u32, (SIDES_AT + SIDE_LEN + word) as u32]
}

/// Where the words of the direction are in which a side sends.
const fn stream_words(sender: usize) -> StreamWords {
    let direction = (sender * DIRECTION_LEN) as u32;
    let mine = (SIDES_AT + sender * SIDE_LEN) as u32;
    let peer = (SIDES_AT + (1 - sender) * SIDE_LEN) as u32;
    StreamWords {
        request: peer + DEMOTE as u32,
        mode: direction + MODE as u32,
        prefix: direction + PREFIX as u32,
        end: direction + END as u32,
        final_bells: direction + BELLS_FINAL as u32,
        consumed: direction + HEAD as u32,
        bells: mine + BELLS as u32,
        owed: mine + OWED as u32,
        pumped: direction + PUMPED as u32,
        pumper: direction + PUMPER as u32,
    }
}

/// A mapped segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// First byte; page aligned; mapped for `CONTROL_LEN + 2 * ring_len` bytes.
    start: NonNull<u8>,
    /// A power of two, at least a page.
    ring_len: usize,
}

impl Segment {
    /// A segment at an address.
    ///
    /// # Safety
    /// `start` must be page aligned and mapped readable and writable for
    /// `CONTROL_LEN + 2 * ring_len` bytes as long as the value (and what it returns) is used.
    pub(crate) unsafe fn from_raw(start: NonNull<u8>, ring_len: usize) -> Segment {
        Segment { start, ring_len }
    }

    /// Length of the mapping in bytes.
    pub(crate) fn mapping_len(ring_len: usize) -> usize {
        CONTROL_LEN + 2 * ring_len
    }

    #[inline]
    fn word32(self, at: usize) -> MappedU32<'static> {
        debug_assert!(at + 4 <= CONTROL_LEN);
        // SAFETY: constants of this module: inside the control part, aligned.
        let place = unsafe { self.start.add(at) };
        // SAFETY: as above; accessed atomically only.
        unsafe { MappedU32::from_raw(place.cast()) }
    }

    #[inline]
    fn word64(self, at: usize) -> MappedU64<'static> {
        debug_assert!(at + 8 <= CONTROL_LEN);
        // SAFETY: constants of this module: inside the control part, aligned.
        let place = unsafe { self.start.add(at) };
        // SAFETY: as above; accessed atomically only.
        unsafe { MappedU64::from_raw(place.cast()) }
    }

    /// The words of a direction, by the side that sends in it.
    #[inline]
    pub(crate) fn direction(self, sender: u8) -> Direction {
        Direction { segment: self, at: usize::from(sender & 1) * DIRECTION_LEN, sender }
    }

    /// The quiet words of a side.
    #[inline]
    pub(crate) fn side(self, side: u8) -> SideWords {
        SideWords { segment: self, at: SIDES_AT + usize::from(side & 1) * SIDE_LEN }
    }
}

/// The words and bytes of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direction {
    segment: Segment,
    at: usize,
    sender: u8,
}

impl Direction {
    #[inline]
    pub(crate) fn tail(self) -> MappedU64<'static> {
        self.segment.word64(self.at + TAIL)
    }

    #[inline]
    pub(crate) fn head(self) -> MappedU64<'static> {
        self.segment.word64(self.at + HEAD)
    }

    #[inline]
    pub(crate) fn space_wait(self) -> MappedU32<'static> {
        self.segment.word32(self.at + SPACE_WAIT)
    }

    #[inline]
    pub(crate) fn switch(self) -> Switch<MappedU32<'static>, MappedU64<'static>> {
        Switch {
            mode: self.segment.word32(self.at + MODE),
            prefix: self.segment.word64(self.at + PREFIX),
            end: self.segment.word64(self.at + END),
            bells: self.segment.word64(self.at + BELLS_FINAL),
        }
    }

    /// The words by which the direction is given back to TCP.
    pub(crate) fn pump(self) -> Words<MappedU32<'static>, MappedU64<'static>> {
        let sender = self.segment.side(self.sender);
        Words {
            request: self.segment.side(self.sender ^ 1).demote(),
            switch: self.switch(),
            tail: self.tail(),
            head: self.head(),
            bells: sender.bells(),
            owed: sender.owed(),
            pumped: self.segment.word64(self.at + PUMPED),
            pumper: self.segment.word64(self.at + PUMPER),
        }
    }

    #[inline]
    pub(crate) fn bytes(self) -> ViewBytes<'static> {
        let at = CONTROL_LEN + usize::from(self.sender & 1) * self.segment.ring_len;
        // SAFETY: the rings follow the control part inside the mapping.
        let start = unsafe { self.segment.start.add(at) };
        // SAFETY: as above; nobody makes references into it.
        ViewBytes(unsafe { View::from_raw(start, self.segment.ring_len) })
    }
}

/// What `closed` says of a side that has closed its last descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Closed {
    /// With a FIN, everything read and sent: an RST is the answer to what came after.
    Ended = 1,
    /// An RST is to be believed: data were unread, or on their way by TCP, or the program wished it.
    Reset = 2,
}

/// The quiet words of one side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideWords {
    segment: Segment,
    at: usize,
}

impl SideWords {
    #[inline]
    pub(crate) fn ready(self) -> MappedU32<'static> {
        self.segment.word32(self.at + READY)
    }

    #[inline]
    pub(crate) fn closed(self) -> MappedU32<'static> {
        self.segment.word32(self.at + CLOSED)
    }

    #[inline]
    pub(crate) fn demote(self) -> MappedU32<'static> {
        self.segment.word32(self.at + DEMOTE)
    }

    #[inline]
    pub(crate) fn cpu(self) -> MappedU32<'static> {
        self.segment.word32(self.at + CPU)
    }

    #[inline]
    pub(crate) fn armed_data(self) -> MappedU32<'static> {
        self.segment.word32(self.at + ARMED_DATA)
    }

    #[inline]
    pub(crate) fn armed_space(self) -> MappedU32<'static> {
        self.segment.word32(self.at + ARMED_SPACE)
    }

    #[inline]
    pub(crate) fn seen(self) -> MappedU32<'static> {
        self.segment.word32(self.at + SEEN)
    }

    #[inline]
    pub(crate) fn leave(self) -> MappedU32<'static> {
        self.segment.word32(self.at + LEAVE)
    }

    #[inline]
    pub(crate) fn fin(self) -> MappedU32<'static> {
        self.segment.word32(self.at + FIN)
    }

    pub(crate) fn error(self) -> Taken<MappedU32<'static>> {
        Taken(self.segment.word32(self.at + ERROR))
    }

    #[inline]
    pub(crate) fn sleep(self) -> MappedU64<'static> {
        self.segment.word64(self.at + SLEEP)
    }

    #[inline]
    pub(crate) fn bells(self) -> MappedU64<'static> {
        self.segment.word64(self.at + BELLS)
    }

    #[inline]
    pub(crate) fn owed(self) -> MappedU64<'static> {
        self.segment.word64(self.at + OWED)
    }

    #[inline]
    pub(crate) fn taken(self) -> MappedU64<'static> {
        self.segment.word64(self.at + TAKEN)
    }
}
