//! The two buffers of a binding, and the flag word that ends each message.
//!
//! ```text
//!   server's buffer: calls                        client's buffer: replies
//!      0  cancelled u32    turn given up             0  magic u64, version u32 \
//!      4  procedure u32    if it is wide            12  program u32            |  the client's
//!      8  total u64        of a call in pieces      16  version u32            |  request to bind
//!     16  deadline u64     CLOCK_MONOTONIC, ns;     20  buffer length u32      /
//!                          from another node time left
//!                          all by the client        64  answer u32             \  the server's
//!                                                   68  export u32             |  answer to it
//!                                                   72  lowest, highest u32    /    (or a limit)
//!                                                  128  total u64    of a reply in pieces
//!                                                  136  inout at u64, inout length u64
//!    256  ...                                      256  ...
//!         message, right-justified:                     message, right-justified:
//!         plain part, then blocks                       plain part, then OUT blocks
//!  len-8  flag word u64, by the client           len-8  flag word u64, by the server
//! ```
//!
//! Both sides can write all of both buffers; "by" says who does if it keeps to the protocol. The flag
//! lies at the same place for every call of a binding (F3) and directly behind the data, so one
//! transfer carries both (F4). A message is written upwards from its first byte to the flag (F5);
//! its parts are multiples of eight bytes.
//!
//! # The flag word
//! ```text
//!   63      44 43   40 39            24 23             0
//!   | turn    | kind  | code           | length / 8    |
//! ```
//! * `turn`: number of the message, from 1, wrapping past 0. A flag counts only if its turn is the one
//!   that is due, so what an earlier call left in the word is never taken for news (F10).
//! * `kind`: see [`Kind`].
//! * `code`: of a call, the procedure, or [`WIDE`]: then the head has it. Of a reply, the
//!   [`Status`].
//! * `length`: of the message before the flag, in units of eight bytes.
//!
//! # Calls and replies that do not fit
//! They go in pieces, each a message of its own turn: the caller sends [`Kind::First`], then
//! [`Kind::Next`], and is answered [`Kind::More`] until all is there. A long reply comes as
//! [`Kind::First`] and the caller asks for each next piece with [`Kind::More`]. The receiver puts
//! the pieces together in memory of its own; a new call ends an old one that was not finished. INOUT blocks of a call that came in pieces cannot stay
//! where the caller can read them; such a reply is headed by the part of the request that holds
//! them (`inout at`, `inout length` in the head).

use vmmc::id::Rights;

/// "SHRIMRPC" in ASCII: the head of a client's buffer that asks to be bound.
pub const MAGIC: u64 = u64::from_be_bytes(*b"SHRIMRPC");
/// Version of this layout and of the handshake.
pub const VERSION: u32 = 4;

/// Length of the head of either buffer in bytes.
pub const HEAD_LEN: usize = 256;
/// Length of the flag word in bytes.
pub const FLAG_LEN: usize = 8;
/// Parts of a message are multiples of this, in bytes.
pub const UNIT: usize = 8;
/// Shortest buffer in bytes.
pub const BUFFER_MIN: usize = 4096;
/// Who sees a flag has the processor fetch so many bytes of what it will read while it takes the message apart. More
/// would only cost time where a handler leaves them as they are: a copy of many bytes fetches ahead of itself.
pub const NEAR: usize = 512;
/// Longest buffer in bytes, by the width of the flag's length field.
pub const BUFFER_MAX: usize = 64 << 20;

/// In the server's buffer, `u32`: the turn of the call that the client has given up; 0 from its next call on.
pub const CALL_CANCELLED: usize = 0;
/// In the server's buffer, `u32`: the procedure, when the flag says [`WIDE`].
pub const CALL_PROCEDURE: usize = 4;
/// In the server's buffer, `u64`: bytes of a call in pieces.
pub const CALL_TOTAL: usize = 8;
/// In the server's buffer, `u64`: when the client gives up, nanoseconds of the monotonic clock; 0: never.
pub const CALL_DEADLINE: usize = 16;

/// In the client's buffer, `u64`: [`MAGIC`].
pub const BIND_MAGIC: usize = 0;
/// In the client's buffer, `u32`: [`VERSION`].
pub const BIND_VERSION: usize = 8;
/// In the client's buffer, `u32`: number of the program.
pub const BIND_PROGRAM: usize = 12;
/// In the client's buffer, `u32`: version of the program.
pub const BIND_PROGRAM_VERSION: usize = 16;
/// In the client's buffer, `u32`: bytes that the server's buffer shall have.
pub const BIND_LEN: usize = 20;
/// In the client's buffer, `u32`: 0 until the server has answered, then an [`Answer`].
pub const BIND_ANSWER: usize = 64;
/// In the client's buffer, `u32`: number of the server's export in its process.
pub const BIND_EXPORT: usize = 68;
/// In the client's buffer, `u32`: lowest version of the program that the server has; or of the layout.
pub const BIND_LOWEST: usize = 72;
/// In the client's buffer, `u32`: highest version; or how many bindings are allowed.
pub const BIND_HIGHEST: usize = 76;
/// In the client's buffer, `u64`: bytes of a reply in pieces.
pub const REPLY_TOTAL: usize = 128;
/// In the client's buffer, `u64`: where in the request its INOUT blocks began.
pub const REPLY_INOUT_AT: usize = 136;
/// In the client's buffer, `u64`: how many bytes of the request head the reply.
pub const REPLY_INOUT_LEN: usize = 144;

/// In the flag's code field of a call: the procedure is in the head.
pub const WIDE: u16 = u16::MAX;

/// What either side may do with the other's buffer: map it, and a right to write comes with that; from
/// another node write to it, and read its head.
#[must_use]
pub fn rights(elsewhere: bool) -> Rights {
    if elsewhere { Rights::WRITE | Rights::READ } else { Rights::BIND }
}

/// Where the flag lies in a buffer.
#[must_use]
#[inline]
pub fn flag_at(buffer_len: usize) -> usize {
    buffer_len - FLAG_LEN
}

/// Longest message that a buffer holds.
#[must_use]
#[inline]
pub fn room(buffer_len: usize) -> usize {
    buffer_len - FLAG_LEN - HEAD_LEN
}

/// Rounded up to a whole [`UNIT`]; `None` beyond the address space.
#[must_use]
#[inline]
pub fn padded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(UNIT)
}

/// A length that both buffers can have: whole pages within the limits.
#[must_use]
pub fn buffer_len(asked: usize) -> usize {
    asked.clamp(BUFFER_MIN, BUFFER_MAX).next_multiple_of(4096)
}

/// Whether the other side's buffer can have that length: it may be no whole number of pages, but what lies in it is aligned,
/// and the flag can say how long it is.
#[must_use]
pub fn is_buffer_len(len: usize) -> bool {
    (BUFFER_MIN..=BUFFER_MAX).contains(&len) && len.is_multiple_of(UNIT)
}

/// First of the numbers by which a process names the buffers of its bindings.
pub const FIRST_NUMBER: u32 = 0x5250_0000;

/// An enum of numbers that a peer writes, and the way back from a number, which may be any.
macro_rules! numbers {
    (
        $(#[$meta:meta])* $visibility:vis enum $name:ident: $repr:ident;
        $(#[$from_meta:meta])* $from_visibility:vis fn $from:ident;
        $($(#[$doc:meta])* $variant:ident = $number:literal,)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr($repr)]
        $visibility enum $name { $($(#[$doc])* $variant = $number,)* }

        impl $name {
            $(#[$from_meta])*
            #[must_use]
            $from_visibility fn $from(number: $repr) -> Option<$name> {
                match number {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    /// The server's answer to a request to bind.
    pub enum Answer: u32;
    /// The answer of a word.
    pub fn from_word;
    /// Bound: the export's number follows.
    Bound = 1,
    /// No such program here.
    NoProgram = 2,
    /// No such version of the program: lowest and highest follow.
    NoVersion = 3,
    /// Another version of this layout: lowest and highest follow.
    OtherLayout = 4,
    /// As many bindings as the server allows: how many follows.
    TooMany = 5,
    /// The server could not make its half, or has made one for this buffer already.
    Failed = 6,
    /// The server is ending.
    Ending = 7,
    /// As many bindings of the client's process as the server allows: how many follows.
    TooManyOfProcess = 8,
    /// As many of the client's process waited to be bound as the server allows: how many follows.
    TooManyWaiting = 9,
    /// The server has no memory left for the replies of a client on another node.
    NoRoom = 10,
}

numbers! {
    /// How a call went, in the code field of the reply's flag.
    pub enum Status: u16;
    /// The status of a code.
    pub fn from_code;
    /// The results follow.
    Ok = 0,
    /// The program has no such procedure.
    UnknownProcedure = 1,
    /// The arguments do not decode; a text follows.
    BadArguments = 2,
    /// The results do not encode; a text follows.
    BadResults = 3,
    /// The handler has no answer; a number and a text follow.
    Fault = 4,
    /// The call, or its reply, is longer than the server allows; its length and what is allowed
    /// follow.
    TooLong = 5,
    /// The server is ending.
    Ending = 6,
    /// The client broke the protocol; the server drops the binding.
    Protocol = 7,
    /// The server keeps as much of calls and replies in pieces as it allows; a text follows.
    NoRoom = 8,
}

const TURN_BITS: u32 = 20;
const TURN_MASK: u32 = (1 << TURN_BITS) - 1;
const UNITS_MASK: u32 = (1 << 24) - 1;

const _: () = assert!(BUFFER_MAX / UNIT <= UNITS_MASK as usize, "longer than the flag can say");

/// Number of a call on its binding: 1 to 2^20 - 1, then 1 again. Zero is the fresh buffer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(u32);

impl Turn {
    /// Of a buffer in which nothing has happened.
    pub const NONE: Turn = Turn(0);

    /// The turn as a number.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The turn of that number.
    #[must_use]
    #[inline]
    pub const fn from_number(number: u32) -> Turn {
        Turn(number & TURN_MASK)
    }

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

numbers! {
    /// What a message is.
    pub enum Kind: u8;
    /// The kind of four bits.
    fn from_bits;
    /// A whole call, or a whole reply.
    Whole = 0,
    /// A whole call whose results nobody wants; the reply only says that the buffer is free again.
    OneWay = 1,
    /// The first piece of a call or of a reply; the head has the total.
    First = 2,
    /// The first piece of a one-way call.
    FirstOneWay = 3,
    /// A further piece.
    Next = 4,
    /// Asks for the next piece.
    More = 5,
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
    /// Units of eight bytes of the message before the flag.
    pub units: u32,
}

impl FlagWord {
    /// Bytes of the message before the flag.
    #[must_use]
    #[inline]
    pub fn len_bytes(self) -> usize {
        self.units as usize * UNIT
    }

    /// The word.
    #[must_use]
    #[inline]
    pub fn pack(self) -> u64 {
        debug_assert!(self.units <= UNITS_MASK);
        u64::from(self.turn.0) << 44
            | (self.kind as u64) << 40
            | u64::from(self.code) << 24
            | u64::from(self.units)
    }

    /// The turn of a word, which decides whether the rest is worth a look.
    #[must_use]
    #[inline]
    pub fn turn_of(word: u64) -> Turn {
        Turn((word >> 44) as u32)
    }

    /// Bytes of the message of a word, of whatever kind.
    #[must_use]
    #[inline]
    pub fn len_of(word: u64) -> usize {
        (word as u32 & UNITS_MASK) as usize * UNIT
    }

    /// Bytes of the message of a word that is a whole reply, and a good one: what most replies are, by one comparison.
    #[must_use]
    #[inline]
    pub fn len_of_whole_ok(word: u64) -> Option<usize> {
        const REST: u64 = (1 << 44) - (1 << 24);
        const { assert!(Kind::Whole as u8 == 0 && Status::Ok as u16 == 0) };
        (word & REST == 0).then_some(FlagWord::len_of(word))
    }

    /// Takes a word apart. `None`: no honest peer writes such a kind.
    #[must_use]
    #[inline]
    pub fn unpack(word: u64) -> Option<FlagWord> {
        Some(FlagWord {
            turn: FlagWord::turn_of(word),
            kind: Kind::from_bits((word >> 40) as u8 & 0xf)?,
            code: (word >> 24) as u16,
            units: word as u32 & UNITS_MASK,
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
            turn in 0u32..1 << 20, kind in 0u8..6, code: u16, units in 0u32..1 << 24,
        ) {
            let Some(kind) = Kind::from_bits(kind) else { unreachable!() };
            let flag = FlagWord { turn: Turn(turn), kind, code, units };
            prop_assert_eq!(FlagWord::unpack(flag.pack()), Some(flag));
        }

        #[test]
        fn any_word_at_all_is_taken_apart_or_refused(word: u64) {
            let flag = FlagWord::unpack(word);
            if let Some(flag) = flag {
                prop_assert_eq!(flag.pack(), word);
            }
            let good = flag.filter(|it| it.kind == Kind::Whole && it.code == Status::Ok as u16);
            prop_assert_eq!(FlagWord::len_of_whole_ok(word), good.map(FlagWord::len_bytes));
        }
    }

    #[test]
    fn turns_wrap_past_zero_which_is_the_fresh_buffers() {
        assert_eq!(Turn::NONE.next(), Turn(1));
        assert_eq!(Turn(TURN_MASK).next(), Turn(1));
    }
}
