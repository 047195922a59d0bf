//! Packets: a fixed handshake, then messages in postcard.
//!
//! The handshake's shape never changes, so that two versions can tell each other apart:
//!
//! ```text
//! 0 magic "VMMC"  4 protocol version u32 LE  8 reserved 8 bytes, zero
//! ```
//!
//! Each side sends it first; the one that finds another version says both numbers and hangs up.

use super::message::{MAX_PACKET_LEN, PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};

/// Length of the handshake packet in bytes.
pub const HANDSHAKE_LEN: usize = 16;
const MAGIC: [u8; 4] = *b"VMMC";

/// A packet that does not follow the protocol.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodecError {
    /// Not our protocol at all.
    #[error("the other side does not speak the VMMC control protocol; is VMMC_SOCKET right?")]
    NotOurs,
    /// Another version of it.
    #[error("protocol version {theirs}, this side speaks {ours}; restart the older one")]
    Version {
        /// Ours.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// Not a message.
    #[error("malformed message of {len} bytes")]
    Malformed {
        /// Its length.
        len: usize,
    },
    /// A message too long to send.
    #[error("message longer than {MAX_PACKET_LEN} bytes")]
    TooLong,
}

/// The handshake packet of this side.
#[must_use]
pub fn handshake() -> [u8; HANDSHAKE_LEN] {
    let mut packet = [0; HANDSHAKE_LEN];
    packet[..4].copy_from_slice(&MAGIC);
    packet[4..8].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    packet
}

/// Checks the other side's handshake packet.
///
/// # Errors
/// [`CodecError::NotOurs`] or [`CodecError::Version`].
pub fn check_handshake(packet: &[u8]) -> Result<(), CodecError> {
    let Some((magic, rest)) = packet.split_first_chunk::<4>() else {
        return Err(CodecError::NotOurs);
    };
    let Some((version, _)) = rest.split_first_chunk::<4>() else {
        return Err(CodecError::NotOurs);
    };
    if *magic != MAGIC || packet.len() != HANDSHAKE_LEN {
        return Err(CodecError::NotOurs);
    }
    match u32::from_le_bytes(*version) {
        PROTOCOL_VERSION => Ok(()),
        theirs => Err(CodecError::Version { ours: PROTOCOL_VERSION, theirs }),
    }
}

/// Writes a message into `buffer` and returns the packet.
///
/// # Errors
/// [`CodecError::TooLong`] when it does not fit.
pub fn encode<'b, M: Serialize>(message: &M, buffer: &'b mut [u8]) -> Result<&'b [u8], CodecError> {
    match postcard::to_slice(message, buffer) {
        Ok(packet) if packet.len() <= MAX_PACKET_LEN => Ok(packet),
        _ => Err(CodecError::TooLong),
    }
}

/// Whether a message fits into a packet.
pub(crate) fn fits<M: Serialize>(message: &M) -> bool {
    encode(message, &mut [0; MAX_PACKET_LEN]).is_ok()
}

/// Reads the one message that a packet holds, whole.
///
/// # Errors
/// [`CodecError::Malformed`] for anything else, trailing bytes included.
pub fn decode<'b, M: Deserialize<'b>>(packet: &'b [u8]) -> Result<M, CodecError> {
    match postcard::take_from_bytes(packet) {
        Ok((message, [])) => Ok(message),
        _ => Err(CodecError::Malformed { len: packet.len() }),
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::super::message::{Event, Request};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn another_version_is_told_apart_from_another_protocol() {
        assert_eq!(check_handshake(&handshake()), Ok(()));
        let mut other = handshake();
        other[4] = 99;
        assert_eq!(
            check_handshake(&other),
            Err(CodecError::Version { ours: PROTOCOL_VERSION, theirs: 99 })
        );
        assert_eq!(check_handshake(b"GET / HTTP/1.1\r\n"), Err(CodecError::NotOurs));
        assert_eq!(check_handshake(b"VMMC"), Err(CodecError::NotOurs));
        assert_eq!(check_handshake(b""), Err(CodecError::NotOurs));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_decode_to_a_message_or_an_error_and_nothing_else(
            bytes in proptest::collection::vec(any::<u8>(), 0..MAX_PACKET_LEN)
        ) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Event>(&bytes);
        }

        #[test]
        fn what_decodes_encodes_to_a_packet_that_decodes_to_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..64)
        ) {
            if let Ok(message) = decode::<Request>(&bytes) {
                let mut buffer = [0; MAX_PACKET_LEN];
                let packet = encode(&message, &mut buffer).unwrap();
                prop_assert_eq!(decode::<Request>(packet).unwrap(), message);
            }
        }
    }
}
