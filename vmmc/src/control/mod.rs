//! Control messages between a process and the daemon. The data path is not here.
//!
//! [`message`] defines them, once, for both sides; [`codec`] turns them into packets and back and
//! is the only code that parses bytes of the other side; [`connect`] finds the daemon, starts
//! one if there is none, and shakes hands.
//!
//! One packet of a `SOCK_SEQPACKET` Unix socket is one message; descriptors ride along
//! (`SCM_RIGHTS`). Identity is the kernel's word (`SO_PEERCRED`), never the message's.

pub mod codec;
pub mod connect;
pub mod message;
pub mod network;

pub use connect::{ConnectError, Connection};
