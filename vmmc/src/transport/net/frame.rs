//! Frames of a data connection: the packets of the node interface.
//!
//! ```text
//!     0  kind u8 · flags u8 · offset u16       offset in the destination page
//!     4  slot u32                              which import of this connection
//!     8  page u32                              destination page of the export
//!    12  generation u32                        of the slot, chosen with it
//!    16  len u64                               bytes that follow, or that are meant
//!    24  value u64                             a word, a tag, a last word
//! ```
//!
//! Little-endian, [`HEADER_LEN`] bytes, then `len` bytes for the kinds that carry data. The header is
//! the paper's (H3): destination page and offset, and the sender's interrupt flag
//! ([`Flags::NOTIFY`]). A packet of a deliberate update may run over consecutive pages, one of an automatic
//! update ends with its page (H8).

use crate::control::message::CloseReason;
use crate::control::network::Mask;
use crate::transport::shm::outgoing::{decode, encode};
use bitflags::bitflags;

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 32;
/// Length of a destination page in bytes, on every machine.
pub const PAGE: u64 = 4096;
/// Most bytes of data in one packet.
pub const MAX_DATA: u64 = 256 * 1024;
/// Length of a capability in bytes.
pub const CAPABILITY_LEN: u64 = 16;
/// Length of what opens a window in bytes.
pub const WINDOW_LEN: u64 = 16;

bitflags! {
    /// What a header asks for besides.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// The sender's interrupt flag: a notification follows the data if the receiver wants any.
        /// On [`Kind::Word`]: wake the receiver if it sleeps.
        const NOTIFY = 1;
        /// [`Kind::Data`]: the read failed, and nothing follows.
        const FAILED = 2;
        /// [`Kind::Write`], without [`Flags::NOTIFY`]: a fence as well, under tag `value`.
        const FENCE = 4;
        /// [`Kind::Write`], without [`Flags::FENCE`]: an automatic update. Its bytes are within one page, land together, and are
        /// seen in ascending order.
        const UPDATE = 8;
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Sender: opens `slot` with the capability that follows.
    Attach = 1,
    /// Sender: closes `slot`.
    Detach = 2,
    /// Sender: `len` bytes for the page and offset follow. `value` is of the flag that stands with it.
    Write = 3,
    /// Sender: an aligned word of `len` bytes (4 or 8), `value`, stored at once.
    Word = 4,
    /// Sender: a notification for `len` bytes at the page and offset, last word `value`.
    Notify = 5,
    /// Sender: wants `len` bytes from the page and offset, under tag `value`. Four or eight aligned
    /// bytes are loaded at once.
    Read = 6,
    /// Sender: wants to know when all before has been done, under tag `value`.
    Fence = 7,
    /// Sender: has heard that the link of `slot` has ended, and nothing follows for it.
    Stopped = 8,
    /// Sender: writes no more to the pages of `slot` by itself; all such writes are before this.
    Yielded = 9,
    /// Interface: `slot` is open.
    Attached = 10,
    /// Interface: `slot` is not opened; why follows, a text of `len` bytes.
    Refused = 11,
    /// Interface: the link of `slot` has ended, reason `value`; what comes for it is dropped, but for an unexport: then
    /// the exporter waits for [`Kind::Stopped`], and what comes before it lands.
    Closed = 12,
    /// Interface: answer to a read, tag `value`; the bytes follow.
    Data = 13,
    /// Interface: answer to a fence, tag `value`.
    Done = 14,
    /// Interface: the sender may write to the pages of `slot` by itself, over the fabric. The key follows, hidden by the mask of
    /// the grant, and the address of the first byte.
    Window = 15,
    /// Interface: no more; to be answered by [`Kind::Yielded`].
    Recall = 16,
}

/// The value of a [`Kind::Closed`] frame.
#[must_use]
pub fn reason_code(reason: CloseReason) -> u64 {
    u64::from(encode(reason))
}

/// The reason in a [`Kind::Closed`] frame.
#[must_use]
pub fn reason_of(code: u64) -> Option<CloseReason> {
    u32::try_from(code).ok().and_then(decode)
}

/// The body of a [`Kind::Window`] frame, and the other way round: the key and the first byte.
#[must_use]
pub fn window_body(key: u64, base: u64, Mask(mask): Mask) -> [u8; WINDOW_LEN as usize] {
    let mut body = [0; WINDOW_LEN as usize];
    body[..8].copy_from_slice(&(key ^ mask).to_le_bytes());
    body[8..].copy_from_slice(&base.to_le_bytes());
    body
}

/// Key and first byte in the body of a [`Kind::Window`] frame.
#[must_use]
pub fn window_of(body: &[u8], Mask(mask): Mask) -> Option<(u64, u64)> {
    let (key, base) = body.split_first_chunk()?;
    Some((u64::from_le_bytes(*key) ^ mask, u64::from_le_bytes(base.try_into().ok()?)))
}

/// Longest text of a refusal.
pub const MAX_TEXT: u64 = 1024;

/// A header, validated whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// What else.
    pub flags: Flags,
    /// Which import.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u32,
    /// Destination page.
    pub page: u32,
    /// Offset in the page, less than [`PAGE`].
    pub offset: u16,
    /// Bytes.
    pub len: u64,
    /// See [`Kind`].
    pub value: u64,
}

/// Bytes that are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No kind of frame.
    #[error("no frame is of kind {0}")]
    Kind(u8),
    /// Flags that this kind does not have.
    #[error("flags {0:#x} on a frame that does not have them")]
    Flags(u8),
    /// An offset beyond the page.
    #[error("offset {0} in a page of {PAGE} bytes")]
    Offset(u16),
    /// A length that this kind does not have.
    #[error("a frame of kind {kind:?} with {len} bytes")]
    Len {
        /// The kind.
        kind: Kind,
        /// The length.
        len: u64,
    },
    /// An automatic update that does not end with its page.
    #[error("an automatic update of {len} bytes at {offset} of a page of {PAGE} bytes")]
    Update {
        /// Where in the page.
        offset: u16,
        /// The length.
        len: u64,
    },
}

impl Kind {
    const ALL: [Kind; 16] = [
        Kind::Attach,
        Kind::Detach,
        Kind::Write,
        Kind::Word,
        Kind::Notify,
        Kind::Read,
        Kind::Fence,
        Kind::Stopped,
        Kind::Yielded,
        Kind::Attached,
        Kind::Refused,
        Kind::Closed,
        Kind::Data,
        Kind::Done,
        Kind::Window,
        Kind::Recall,
    ];

    fn of(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether a sender says it, and not an interface.
    #[must_use]
    pub fn is_of_sender(self) -> bool {
        (self as u8) <= Kind::Yielded as u8
    }

    fn flags(self) -> Flags {
        match self {
            Kind::Write => Flags::NOTIFY | Flags::FENCE | Flags::UPDATE,
            Kind::Word => Flags::NOTIFY,
            Kind::Data => Flags::FAILED,
            _ => Flags::empty(),
        }
    }

    fn allows_len(self, len: u64) -> bool {
        match self {
            Kind::Attach => len == CAPABILITY_LEN,
            Kind::Window => len == WINDOW_LEN,
            Kind::Write | Kind::Data | Kind::Read => len <= MAX_DATA,
            Kind::Word => len == 4 || len == 8,
            Kind::Notify => true,
            Kind::Refused => len <= MAX_TEXT,
            Kind::Detach
            | Kind::Fence
            | Kind::Stopped
            | Kind::Yielded
            | Kind::Attached
            | Kind::Closed
            | Kind::Recall
            | Kind::Done => len == 0,
        }
    }
}

impl Header {
    /// A header with nothing but a kind and a slot.
    #[must_use]
    pub fn new(kind: Kind, slot: u32, generation: u32) -> Header {
        let flags = Flags::empty();
        Header { kind, flags, slot, generation, page: 0, offset: 0, len: 0, value: 0 }
    }

    /// With a destination. `None` when the byte is beyond what a page number can say.
    #[must_use]
    pub fn at(mut self, byte: u64, len: u64) -> Option<Header> {
        self.page = u32::try_from(byte / PAGE).ok()?;
        self.offset = (byte % PAGE) as u16;
        self.len = len;
        Some(self)
    }

    /// With a value.
    #[must_use]
    pub fn value(mut self, value: u64) -> Header {
        self.value = value;
        self
    }

    /// With flags.
    #[must_use]
    pub fn flags(mut self, flags: Flags) -> Header {
        self.flags = flags;
        self
    }

    /// First destination byte in the export.
    #[must_use]
    pub fn byte(&self) -> u64 {
        u64::from(self.page) * PAGE + u64::from(self.offset)
    }

    /// Bytes that follow the header.
    #[must_use]
    pub fn body_len(&self) -> u64 {
        match self.kind {
            Kind::Attach | Kind::Write | Kind::Refused | Kind::Window => self.len,
            Kind::Data if !self.flags.contains(Flags::FAILED) => self.len,
            _ => 0,
        }
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags.bits();
        bytes[2..4].copy_from_slice(&self.offset.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.page.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// What no honest peer sends.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, FrameError> {
        let [kind, flags, o0, o1, s0, s1, s2, s3, p0, p1, p2, p3, g0, g1, g2, g3, rest @ ..] =
            *bytes;
        let kind = Kind::of(kind).ok_or(FrameError::Kind(kind))?;
        let flags = Flags::from_bits(flags)
            .filter(|flags| kind.flags().contains(*flags))
            // One value for one of them.
            .filter(|flags| {
                flags.bits().count_ones() <= 1 || *flags == Flags::UPDATE | Flags::NOTIFY
            })
            .ok_or(FrameError::Flags(flags))?;
        let offset = u16::from_le_bytes([o0, o1]);
        if u64::from(offset) >= PAGE {
            return Err(FrameError::Offset(offset));
        }
        let [l0, l1, l2, l3, l4, l5, l6, l7, v0, v1, v2, v3, v4, v5, v6, v7] = rest;
        let len = u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
        if !kind.allows_len(len) {
            return Err(FrameError::Len { kind, len });
        }
        if flags.contains(Flags::UPDATE) && u64::from(offset) + len > PAGE {
            return Err(FrameError::Update { offset, len });
        }
        Ok(Header {
            kind,
            flags,
            slot: u32::from_le_bytes([s0, s1, s2, s3]),
            generation: u32::from_le_bytes([g0, g1, g2, g3]),
            page: u32::from_le_bytes([p0, p1, p2, p3]),
            offset,
            len,
            value: u64::from_le_bytes([v0, v1, v2, v3, v4, v5, v6, v7]),
        })
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_an_error_and_a_header_survives_the_wire(
            bytes in proptest::array::uniform32(any::<u8>()), kind in 0u8..18, small in any::<bool>()
        ) {
            let mut bytes = bytes;
            bytes[0] = kind;
            if small {
                bytes[1] &= 13;
                bytes[3] &= 0x0f;
                bytes[17..24].fill(0);
            }
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
                prop_assert!(u64::from(header.offset) < PAGE);
                prop_assert!(header.body_len() <= MAX_DATA);
            }
        }

        #[test]
        fn a_destination_is_page_and_offset(byte in 0u64..1 << 44, len in 0..MAX_DATA) {
            let header = Header::new(Kind::Write, 3, 4).at(byte, len).unwrap();
            prop_assert_eq!(header.byte(), byte);
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn a_key_goes_hidden() {
        let body = window_body(0x1122, 0x3344, Mask(0xff));
        assert_eq!(window_of(&body, Mask(0xff)), Some((0x1122, 0x3344)));
        assert_ne!(window_of(&body, Mask(0)).unwrap().0, 0x1122);
        assert_eq!(window_of(&body[1..], Mask(0xff)), None);
    }

    #[test]
    fn what_no_honest_peer_sends_is_refused_by_name() {
        let good = Header::new(Kind::Word, 1, 1).at(8, 8).unwrap().encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Header::decode(&bytes)
        };
        assert_eq!(with(0, 0), Err(FrameError::Kind(0)));
        assert_eq!(with(0, 17), Err(FrameError::Kind(17)));
        assert_eq!(with(1, 2), Err(FrameError::Flags(2)));
        assert_eq!(with(1, 4), Err(FrameError::Flags(4)), "of a write only");
        let mut both = Header::new(Kind::Write, 1, 1).encode();
        both[1] = 5;
        assert_eq!(Header::decode(&both), Err(FrameError::Flags(5)), "one value for two");
        both[1] = 12;
        assert_eq!(Header::decode(&both), Err(FrameError::Flags(12)), "no library asks for it");
        for flags in [Flags::UPDATE, Flags::UPDATE | Flags::NOTIFY] {
            let update = |at| Header::new(Kind::Write, 1, 1).flags(flags).at(at, 97).unwrap();
            let decoded = |header: Header| Header::decode(&header.encode());
            assert_eq!(decoded(update(3999)), Ok(update(3999)));
            let crosses = FrameError::Update { offset: 4000, len: 97 };
            assert_eq!(decoded(update(4000)), Err(crosses));
        }
        assert_eq!(with(3, 0x10), Err(FrameError::Offset(0x1008)));
        assert_eq!(with(16, 5), Err(FrameError::Len { kind: Kind::Word, len: 5 }));
    }
}
