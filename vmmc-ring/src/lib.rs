//! What the stream-like libraries share: a byte ring between two processes, the words by which
//! one side sleeps without losing a wake-up, and the words by which a stream moves from a kernel
//! connection to the ring and back at an exact byte.
//!
//! ```text
//!   ring    Producer ---- bytes, tail ---->  Consumer          one writer, one reader per ring
//!                    <--- head -----------
//!   bell    a word that one side arms before it sleeps and the other takes (swap) to ring once
//!   switch  TCP -> ring at byte `prefix`, ring -> TCP at byte `end`, per direction
//!   pump    ring -> TCP on behalf of a sender that makes no call
//! ```
//!
//! Everything is generic over where its words and bytes live ([`vmmc::word::Word`], [`Bytes`]),
//! so that mappings, the heap, Miri and the loom model checker run the same code.
//!
//! # Trust
//! The other side can write every byte of the shared segment at any time. Each side therefore
//! keeps its *own* position in memory the peer cannot write and only publishes it; the peer's
//! position is loaded once, checked against what is possible, and then the copy is used. A value
//! that cannot be true is [`Poisoned`]: an error of this one stream, never a panic, a loop or an
//! access out of bounds. Bytes that a misbehaving peer scribbles over arrive scribbled.

#![deny(unsafe_code)]

pub mod bell;
// Copies between a ring and memory that only the caller knows.
#[allow(unsafe_code)]
mod bytes;
pub mod pump;
#[allow(unsafe_code)]
mod ring;
pub mod switch;
pub mod taken;
pub mod tcp_count;

pub use bytes::{Bytes, ViewBytes};
pub use ring::{Consumer, Poisoned, Producer};

#[cfg(all(test, vmmc_loom))]
#[allow(unsafe_code)]
mod loom_tests;
