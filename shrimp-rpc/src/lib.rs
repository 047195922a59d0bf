//! SHRIMP RPC: remote procedure call at the speed of a cache line (003, section 5).
//!
//! A *binding* joins one client to one server: each exports one buffer, and each binds the other's. A call
//! is one ascending run of stores into the server's buffer that ends with a flag word, always at
//! the same place; a reply is the same in the client's buffer. The server works on the arguments where
//! they lie, and OUT and INOUT data reach the client while the server still computes.
//!
//! # Modules
//! Each uses only those before it:
//!
//! * `layout`: both buffers, drawn; the flag word.
//! * `error`: what can go wrong, typed end to end.
//! * `config`: every tunable.
//! * `message`: cursors that write and read arguments: ascending, checked, copied once.
//! * `bulk`: arguments used in place: IN, OUT and INOUT data that the peer can write meanwhile.
//! * `reactor`: the helper thread that wakes futures of either side.
//! * `client`: binding, blocking calls, pieces, timeouts and cancellation, async calls.
//! * `server`: service door, acceptor, polling of hot and cold bindings, workers, deferred replies.

#![deny(unsafe_code)]

mod barrier;
pub mod bulk;
pub mod client;
pub mod config;
pub mod error;
pub mod ffi;
pub mod layout;
mod memory;
mod message;
pub mod name;
mod pace;
mod peer_buffer;
pub mod process;
mod reactor;
pub mod server;
mod try_lock;

pub use bulk::{Bulk, BulkMut, Copied, Element};
pub use client::{Binding, BindingBuilder, Canceller, Reply, Request};
pub use error::{
    CallError, ConnectError, DispatchError, Fault, ReplyError, ServeError, TransportError,
};
pub use server::{
    Args, BulkOut, Cancelled, Context, DeferredCall, DeferredReply, Finished, ReplyWriter, Server,
    ServerBuilder, ServerCall, Service,
};
pub use xdr;
