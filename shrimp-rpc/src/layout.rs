//! The two buffers of a binding, and the flag word that ends each message.
//!
//! ```text
//!   server's buffer (calls)                       client's buffer (replies)
//!      0  head: 256 bytes                            0  head: 256 bytes
//!         · cancel word, by the client                  · what the client asks for, by the client
//!         · spare                                       · the server's answer, by the server
//!    256  ...                                      256  OUT data, placed by the server, upwards
//!         ...                                           ...
//!         arguments, right-justified: they              results, right-justified
//!         end where the flag begins
//!  len-8  flag word u64, by the client             len-8  flag word u64, by the server
//! ```
//!
//! Both sides can write all of both buffers; "by" says who does if it keeps to the protocol. The flag lies at
//! the same place for every call of a binding (F3) and directly behind the data, so one transfer carries
//! both (F4). A message is written upwards from its first byte to the flag (F5).
//!
//! # The flag word
//! ```text
//!   63      44 43   40 39            24 23             0
//!   | turn    | kind  | procedure      | length         |
//! ```
//! * `turn`: number of the call, from 1, wrapping past 0. A flag counts only if its turn is the one
//!   that is due, so what an earlier call left in the word is never taken for news (F10).
//! * `kind`: see [`Kind`].
//! * `procedure`: number of the procedure; [`WIDE`] when it does not fit, and then the last four
//!   bytes of the data hold it. In replies: status.
//! * `length`: bytes of data before the flag.

/// Length of the head of either buffer in bytes.
pub const HEAD_LEN: usize = 256;

/// Length of the flag word in bytes.
pub const FLAG_LEN: usize = 8;

/// In the flag's procedure field: the number is in the last four bytes of the data.
pub const WIDE: u16 = u16::MAX;

/// Longest data of one message, by the width of the length field.
pub const MESSAGE_MAX: usize = (1 << 24) - 1;

const TURN_BITS: u32 = 20;
const TURN_MASK: u32 = (1 << TURN_BITS) - 1;

/// Number of a call on its binding: 1 to 2^20 - 1, then 1 again. Zero is the fresh buffer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(u32);

impl Turn {
    /// Of a buffer in which nothing has happened.
    pub const NONE: Turn = Turn(0);

    /// The turn after this one.
    #[must_use]
    #[inline]
    pub fn next(self) -> Turn {
        match self.0.wrapping_add(1) & TURN_MASK {
            0 => Turn(1),
            next => Turn(next),
        }
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A call, or its reply: all of it, or the last piece of it.
    Whole = 0,
    /// A piece of a call that does not fit the buffer; answered by [`Kind::More`].
    Piece = 1,
    /// Asks for the next piece.
    More = 2,
    /// A call that is not answered.
    OneWay = 3,
}

impl Kind {
    fn from_bits(bits: u64) -> Option<Kind> {
        match bits {
            0 => Some(Kind::Whole),
            1 => Some(Kind::Piece),
            2 => Some(Kind::More),
            3 => Some(Kind::OneWay),
            _ => None,
        }
    }
}

/// A flag word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagWord {
    /// Number of the call.
    pub turn: Turn,
    /// What the message is.
    pub kind: Kind,
    /// Procedure, or status of a reply.
    pub code: u16,
    /// Bytes of data before the flag; at most [`MESSAGE_MAX`].
    pub len: u32,
}

impl FlagWord {
    /// The word.
    #[must_use]
    #[inline]
    pub fn pack(self) -> u64 {
        debug_assert!(self.len as usize <= MESSAGE_MAX);
        u64::from(self.turn.0) << 44
            | (self.kind as u64) << 40
            | u64::from(self.code) << 24
            | u64::from(self.len)
    }

    /// The turn of a word, which decides whether the rest is worth a look.
    #[must_use]
    #[inline]
    pub fn turn_of(word: u64) -> Turn {
        Turn((word >> 44) as u32)
    }

    /// Takes a word apart. `None`: no honest peer writes such a kind.
    #[must_use]
    #[inline]
    pub fn unpack(word: u64) -> Option<FlagWord> {
        Some(FlagWord {
            turn: FlagWord::turn_of(word),
            kind: Kind::from_bits(word >> 40 & 0xf)?,
            code: (word >> 24) as u16,
            len: word as u32 & MESSAGE_MAX as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_flag_word_comes_apart_as_it_was_put_together(
            turn in 0u32..1 << 20, kind in 0u64..4, code: u16, len in 0u32..1 << 24,
        ) {
            let Some(kind) = Kind::from_bits(kind) else { unreachable!() };
            let flag = FlagWord { turn: Turn(turn), kind, code, len };
            prop_assert_eq!(FlagWord::unpack(flag.pack()), Some(flag));
        }

        #[test]
        fn any_word_at_all_is_taken_apart_or_refused(word: u64) {
            if let Some(flag) = FlagWord::unpack(word) {
                prop_assert_eq!(flag.pack(), word);
            }
        }
    }

    #[test]
    fn turns_wrap_past_zero_which_is_the_fresh_buffers() {
        assert_eq!(Turn::NONE.next(), Turn(1));
        assert_eq!(Turn(TURN_MASK).next(), Turn(1));
    }
}
