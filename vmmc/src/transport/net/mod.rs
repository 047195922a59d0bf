//! The engine between nodes: packets over one connection per process and node, which the other
//! node's interface puts straight into the exported pages. What carries them is a [`Line`](super::engine::Line): [`super::tcp`] or
//! [`super::ofi`]; what is here is the same over both.
//!
//! * [`frame`]: the packets.
//! * [`connection`]: the connection, shared by all imports of this process from that node.
//! * [`wire`]: its line, and what its thread sleeps on.
//! * [`mod@line`]: which line that is.
//! * `kept`: the last bytes that were sent, from which a connection that was cut goes on over another.
//! * [`silence`]: when a node counts as vanished.
//! * [`vain`]: descriptors that are readable for nothing.
//! * [`outgoing`]: the importer's half of a link.
//! * `outbox`: packets of automatic update that wait to go together.
//!
//! The exporter's half is the same as on one machine: to the exporting process the interface of
//! its node, in `vmmcd`, is an importer like any other.
//!
//! What is weaker than on one machine: a send has been *handed to the network* when it returns
//! (V15: its source is free), and [`crate::Import::fence`] waits until it is in the exporter's
//! memory. When the connection is lost (one over TCP that is cut on the way goes on over another, if there is one soon), whatever was not fenced may have arrived or not; a message
//! of which only a part arrived has neither flag nor notification.

pub mod connection;
pub mod frame;
pub(crate) mod kept;
pub mod line;
pub(crate) mod outbox;
pub mod outgoing;
pub mod silence;
pub mod vain;
pub mod wire;

pub use connection::Connection;
pub use outgoing::NetOutgoing;
