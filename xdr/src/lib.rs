//! External Data Representation: the codec below Sun RPC and SHRIMP RPC.
//!
//! RFC 4506 lays every value out in units of four bytes. This crate knows the units, and neither
//! transports nor programs: [`Sink`] takes them, [`Source`] gives them, [`Encode`] and [`Decode`]
//! are implemented by the types that `shrimpc` generates. The byte order belongs to the sink and
//! the source: [`Network`] is RFC 4506, [`Little`] is what two processes of one machine use.
//!
//! # Trust
//! Whatever a [`Source`] gives may be hostile. Decoding allocates nothing that the remaining input
//! could not fill, and no more than [`Limits::memory`] in all; it nests no deeper than
//! [`Limits::depth`]; every length is compared with its limit first. It never panics.
//!
//! ```
//! use xdr::{Decode, Encode, Network, Reader, Writer};
//!
//! let mut writer = Writer::<Network>::new();
//! 7u32.encode(&mut writer)?;
//! xdr::put_string(&mut writer, "héllo", 10)?;
//! assert_eq!(writer.bytes(), b"\0\0\0\x07\0\0\0\x06h\xc3\xa9llo\0\0");
//!
//! let mut reader = Reader::<Network>::new(writer.bytes());
//! assert_eq!(u32::decode(&mut reader)?, 7);
//! assert_eq!(xdr::get_string(&mut reader, 10)?, "héllo");
//! reader.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod codec;
mod error;
mod items;
mod nesting;
mod order;
pub mod rpc;
mod sink;
mod source;

pub use codec::{Decode, Encode, Quad};
pub use error::{DecodeError, EncodeError};
pub use items::{
    get_array, get_count, get_exact_count, get_list, get_long_array, get_long_opaque_array,
    get_opaque, get_opaque_array, get_optional, get_string, get_vec, put_array, put_count,
    put_exact_count, put_list, put_long_array, put_long_opaque_array, put_opaque, put_opaque_array,
    put_optional, put_string, put_vec,
};
pub use nesting::{enter, leave};
pub use order::{Little, Network, Order};
pub use sink::{Counter, Sink, SliceWriter, Writer};
pub use source::{Budget, Limits, Reader, Source};

/// Bytes that follow `len` bytes to make a multiple of four.
#[must_use]
#[inline]
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// `len` rounded up to a multiple of eight: the size of a bulk block in a SHRIMP RPC message.
/// Saturates, so that an absurd length stays absurd.
#[must_use]
#[inline]
pub const fn padded8(len: usize) -> usize {
    match len.checked_add(7) {
        Some(sum) => sum & !7,
        None => usize::MAX & !7,
    }
}
