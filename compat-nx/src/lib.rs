//! The Intel NX message-passing interface (iPSC/2, iPSC/860, Delta, Paragon) on `vmmc`.
//!
//! A *job* is a fixed set of processes, the nodes `0..n`, and perhaps a host process. Each pair of them has
//! a connection in each direction: memory of the receiver that only this sender writes, cut into
//! fixed-size slots that are used in any order. Small messages are written into a slot; large ones
//! are announced in one and go from user memory to user memory, or from a safe copy when the
//! receiver is late (*Early Experience with Message-Passing on the SHRIMP Multicomputer*, ISCA'96,
//! section 4.1).
//!
//! From Rust (`examples/neighbours.rs`; `tests/example.rs` runs it on several nodes, which this text alone, being
//! one process, cannot be):
//!
//! ```no_run
#![doc = include_str!("../examples/neighbours.rs")]
//! ```
//!
//! # Modules
//! * `Nx`: the safe interface.
//! * [`job`]: who we are and who else there is, as the launcher says it in the environment.
//! * [`engine`]: the protocol. One [`Engine`] per process; every NX operation is a method of it.
//! * [`error`]: what can go wrong.
//! * [`unconfirmed`]: what the manuals of then would have to settle.
//! * `ffi` (feature `abi`): the C and Fortran entry points, thin over the engine.

#![deny(unsafe_code)]

mod api;
pub mod engine;
pub mod error;
#[cfg(feature = "abi")]
pub mod ffi;
pub mod job;
pub mod unconfirmed;

pub use api::{JoinError, Nx, Receiving, Sending};
pub use engine::Engine;
pub use engine::types::{Dest, Handler, Info, InfoTarget, Mid, Outcome, Select, Source, Target};
pub use engine::{Element, Reduction};
pub use error::{NxError, StartError};
pub use job::Job;
