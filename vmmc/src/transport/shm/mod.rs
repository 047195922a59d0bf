//! The engine between processes of one machine: the exporter's pages, mapped by the importer.
//!
//! * [`segment`]: the link segment's words.
//! * [`busy`]: transfers in progress against revocation, without a fence per send.
//! * [`bar`]: disabled pages against the interface that puts.
//! * [`queue`]: the notification queue.
//! * [`outgoing`], [`incoming`]: the importer's and the exporter's half.

pub(crate) mod bar;
pub mod busy;
pub mod incoming;
pub mod outgoing;
pub mod queue;
pub mod segment;

pub use incoming::ShmIncoming;
pub use outgoing::ShmOutgoing;
