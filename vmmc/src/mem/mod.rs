//! Memory that a peer can write: raw views with bounds, never Rust references.
//!
//! The bytes of a mapping lie outside the abstract machine: another process changes them without
//! our compiler's knowledge. So they are only ever touched by atomic access ([`View::word32`]), by
//! volatile access or by a copy through an opaque function ([`copy`]), always by value. What has
//! been read is a private copy; check the copy and use the copy (no second look).

pub mod copy;
mod place;
mod receive;
mod region;
pub mod spares;
mod vectors;
mod view;

pub(crate) use place::{Lent, Place, PlaceError};
pub use receive::receive_into;
pub use region::Region;
pub use view::{OutOfBounds, View};

use crate::sys::mmap::GuardedMapping;

/// A view of a mapping that the same value owns. The lifetime is a fiction of this crate: such
/// views stay private to the values that hold the mapping.
pub(crate) fn owned_view(mapping: &GuardedMapping, len: usize) -> View<'static> {
    debug_assert!(len <= mapping.len());
    // SAFETY: mapped as long as the value that holds both; the views are never handed out with
    // this lifetime (crate-private, reborrowed to `&self` at the public interface).
    unsafe { View::from_raw(mapping.as_ptr(), len) }
}

/// A view of a word of this process.
pub(crate) fn view_of_word(word: &std::sync::atomic::AtomicU64) -> View<'_> {
    // SAFETY: borrowed as long as the view lives; a word is an interior-mutable cell, which this
    // crate accesses atomically only.
    unsafe { View::from_raw(std::ptr::NonNull::from(word).cast(), size_of::<u64>()) }
}
