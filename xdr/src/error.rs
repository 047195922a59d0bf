//! Why a value could not be encoded or decoded.

/// A value that has no encoding, or no room for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// More elements or bytes than the interface file allows.
    #[error("{len} elements where the interface allows {max}; shorten the value")]
    TooLong {
        /// Elements (or bytes) of the value.
        len: usize,
        /// The limit of the interface.
        max: u32,
    },
    /// A fixed-length array, kept in a vector, with another number of elements.
    #[error("{len} elements where the interface says exactly {expected}")]
    WrongLength {
        /// Elements (or bytes) of the value.
        len: usize,
        /// The number in the interface.
        expected: u32,
    },
    /// The sink takes no more.
    #[error("no room for {need} more bytes, {left} are left; raise the limit of the message size")]
    Full {
        /// Bytes that were to be written.
        need: usize,
        /// Bytes that would have fitted.
        left: usize,
    },
    /// The default arm of a union was given a discriminant that has an arm of its own.
    #[error("discriminant {value} of union {union} has an arm of its own; use that variant")]
    NotDefault {
        /// Name of the union in the interface file.
        union: &'static str,
        /// The discriminant.
        value: i64,
    },
}

/// Bytes that are no value of the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input ends within the value.
    #[error("the input ends early: {need} bytes are needed, {left} are left")]
    Short {
        /// Bytes that the value needs at least.
        need: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// A length beyond the limit of the interface file.
    #[error("a length of {len} where the interface allows {max}")]
    TooLong {
        /// The length in the input.
        len: u32,
        /// The limit of the interface.
        max: u32,
    },
    /// A fixed-length array with another number of elements.
    #[error("{len} elements where the interface says exactly {expected}")]
    WrongLength {
        /// The number in the input.
        len: u32,
        /// The number in the interface.
        expected: u32,
    },
    /// A boolean, or the mark of optional data, that is neither 0 nor 1.
    #[error("{0} is no boolean: 0 or 1 is expected")]
    NotBool(u32),
    /// A number that the 8-bit or 16-bit type cannot hold.
    #[error("{value} does not fit type {type_name}")]
    OutOfRange {
        /// The number in the input.
        value: i64,
        /// The type.
        type_name: &'static str,
    },
    /// A number that is no value of the enumeration.
    #[error("{value} is no value of enum {name}")]
    NotInEnum {
        /// Name of the enumeration in the interface file.
        name: &'static str,
        /// The number in the input.
        value: i32,
    },
    /// A discriminant without an arm.
    #[error("union {union} has no arm for discriminant {value}")]
    NoArm {
        /// Name of the union in the interface file.
        union: &'static str,
        /// The discriminant in the input.
        value: i64,
    },
    /// A string that is not UTF-8.
    #[error(
        "a string is not UTF-8 after {valid} bytes; generate with strings as bytes to accept it"
    )]
    NotUtf8 {
        /// Bytes before the first bad one.
        valid: usize,
    },
    /// Values nested deeper than [`crate::Limits::depth`].
    #[error("values are nested deeper than {limit}")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
    /// The decoded value would take more than [`crate::Limits::memory`].
    #[error("the value takes more than {limit} bytes of memory; raise the limit if it is wanted")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// Bytes after the last value.
    #[error("{left} bytes are left after the last value")]
    Trailing {
        /// How many.
        left: usize,
    },
}
