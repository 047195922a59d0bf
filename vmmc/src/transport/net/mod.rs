//! The engine between nodes: packets over one TCP connection per process and node, which the other
//! node's interface puts straight into the exported pages.
//!
//! * [`frame`]: the packets.
//! * [`connection`]: the connection, shared by all imports of this process from that node.
//! * [`wire`]: what carries their bytes: its socket, or
//! * [`fifo`]: a fabric, where one is configured.
//! * [`silence`]: when a node counts as vanished.
//! * [`receipts`]: when a fabric counts as having lost something.
//! * [`seal`]: what nobody on the way can read or change, where that is configured.
//! * [`outgoing`]: the importer's half of a link.
//! * `outbox`: packets of automatic update that wait to go together.
//!
//! The exporter's half is the same as on one machine: to the exporting process the interface of
//! its node, in `vmmcd`, is an importer like any other.
//!
//! What is weaker than on one machine: a send has been *handed to the network* when it returns
//! (V15: its source is free), and [`crate::Import::fence`] waits until it is in the exporter's
//! memory. When the connection is lost, whatever was not fenced may have arrived or not; a message
//! of which only a part arrived has neither flag nor notification.

pub mod connection;
pub mod fifo;
pub mod frame;
pub(crate) mod outbox;
pub mod outgoing;
pub mod receipts;
pub mod seal;
pub mod silence;
pub mod vain;
pub mod wire;

pub use connection::Connection;
pub use outgoing::NetOutgoing;
