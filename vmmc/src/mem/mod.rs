//! Memory that a peer can write: raw views with bounds, never Rust references.
//!
//! The bytes of a mapping lie outside the abstract machine: another process changes them without
//! our compiler's knowledge. So they are only ever touched by atomic access ([`View::word32`]), by
//! volatile access or by a copy through an opaque function ([`copy`]), always by value. What has
//! been read is a private copy; check the copy and use the copy (no second look).

pub mod copy;
mod view;

pub use view::{OutOfBounds, View};
