//! What a process and its node's network service say to each other, and what the daemons of two
//! nodes do.
//!
//! A process asks its broker for a conversation ([`super::message::Request::Network`]); one import is asked
//! for in it, and it ends. The service carries the question to the other node's daemon, over a
//! connection on which both have proved that they know the cluster key, and brings back a
//! **capability**: a random number, good once, for the data connection of this process to that
//! node. The data connection itself is made by the daemon too, proved in the same way, and handed
//! to the process as a descriptor. From then on the process talks to the other node's interface
//! alone ([`crate::transport::net`]).
//!
//! Where the cluster file names a fabric, process and interface tell each other their endpoints in the
//! same messages ([`Meeting`]), so that the keys to their memory never go unsealed. Frames then go over the
//! fabric, and the data connection stays, to show that the other end lives.
//!
//! A tool that wants to know how the other nodes are ([`super::message::Request::Links`]) asks nothing in its conversation:
//! the service looks at each ([`Purpose::Look`]) and tells what it found, node by node ([`Sight`]).

use super::message::Refusal;
use crate::fabric::Notice;
use crate::id::{ExportId, Name, PeerInfo, Rights, Token};
use crate::transport::tcp::seal::SealKeys;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;

/// Version of what daemons say to each other, and of the frames of data connections. Raised at
/// every change; two nodes must agree exactly.
pub const WIRE_VERSION: u16 = 9;

/// Longest name of a node, in bytes.
pub const NODE_NAME_MAX: usize = 64;

/// Whether a text may name a node: 1 to [`NODE_NAME_MAX`] bytes, no control characters or blanks, none of the signs that stand
/// around names (`@`, `,`), and none that a program takes for an option.
#[must_use]
pub fn is_node_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= NODE_NAME_MAX
        && !text.starts_with('-')
        && !text.chars().any(|c| c.is_control() || c.is_whitespace() || matches!(c, '@' | ','))
}

/// The fabric that a node uses to reach others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricAt {
    /// Provider of libfabric.
    pub provider: String,
    /// Address of this node.
    pub local: IpAddr,
    /// How the other end is told of what is written to it.
    pub notice: Notice,
}

/// What one end of a connection over a fabric must know of the other
/// ([`crate::transport::ofi::fifo`]). Goes sealed: whoever knows the key can write.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting {
    /// The provider; both ends must use the same.
    pub provider: String,
    /// The endpoint's address, in the provider's own form.
    pub address: Vec<u8>,
    /// Opens its memory.
    pub key: u64,
    /// First byte of it, where the provider counts from there.
    pub base: u64,
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meeting").field("provider", &self.provider).finish_non_exhaustive()
    }
}

/// What is imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Exporting process on its node, needed with a number.
    pub process: Option<u32>,
    /// Name of the export.
    pub name: Name,
    /// Rights; all are granted or none.
    pub rights: Rights,
    /// Secret, where the export asks for one.
    pub token: Option<Token>,
    /// 0: do not wait. `u32::MAX`: wait for ever.
    pub timeout_ms: u32,
}

/// From a process to its network service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// One import. Answer: [`Answered`].
    Import(Ask),
    /// Its data connection to a node was cut: another one, to go on. Answer: [`Resumed`].
    Resume {
        /// The node.
        node: String,
        /// Of the connection.
        pass: Pass,
        /// Bytes that the process has received over it.
        position: u64,
    },
}

/// One import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The exporter's node.
    pub node: String,
    /// What.
    pub wanted: Wanted,
    /// Whether the process needs a data connection to that node: it has none.
    pub connect: bool,
    /// The process's end of a fabric, if it goes over one.
    pub meeting: Option<Meeting>,
}

/// A number that opens one slot of one data connection, once. Never logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capability(pub [u8; 16]);

impl std::fmt::Debug for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Capability(..)")
    }
}

/// A number that shows whose a data connection is that was cut. Never logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pass(pub [u8; 16]);

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pass(..)")
    }
}

/// How a data connection goes on after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lasting {
    /// Shows whose it is.
    pub pass: Pass,
    /// How long there may be no way to the node, in seconds.
    pub patience_s: u32,
    /// Whether what is on its way is kept however long it is, and so sent again.
    pub keeps_all: bool,
}

/// Random bits, used once. Never logged.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mask(pub u64);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask(..)")
    }
}

/// What was granted by the exporter's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteGrant {
    /// To be shown on the data connection, within [`CAPABILITY_LIFE`].
    pub capability: Capability,
    /// Hides the key to the pages themselves, where a fabric may write to them: it goes over the fabric, which is not sealed.
    pub mask: Mask,
    /// Number of the export on its node.
    pub export: ExportId,
    /// Length of the export in bytes.
    pub len: u64,
    /// Rights granted.
    pub rights: Rights,
    /// The exporter, as its node knows it.
    pub exporter: PeerInfo,
}

/// How long a capability that nobody shows is kept.
pub const CAPABILITY_LIFE: Duration = Duration::from_secs(30);

/// What became of an import. In an [`Answered`] to the process, with a descriptor: the data connection, when one
/// was asked for and the import was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// Granted.
    Granted(RemoteGrant),
    /// Not granted, by either node.
    Refused(Refusal),
}

/// From the network service to the process: what was told, and by which end of a fabric the new
/// connection goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// About the import.
    pub told: Told,
    /// The interface's end, where the process had named its own and is connected now.
    pub meeting: Option<Meeting>,
    /// With what the new connection is sealed, if it is.
    pub seal: Option<SealKeys>,
    /// How it goes on after a cut, if it can.
    pub lasting: Option<Lasting>,
}

/// What became of a connection that was cut. With a descriptor if there is a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resumed {
    /// It goes on.
    Back {
        /// Bytes that the interface has received.
        position: u64,
        /// With what the new one is sealed.
        seal: Option<SealKeys>,
    },
    /// There is no way to the node now.
    NotNow,
    /// It cannot go on.
    Never,
}

/// What a process says that has taken the descriptor of [`Resumed::Back`].
pub const TAKEN: u8 = 1;
/// The same of one that had no room for it, and asks again.
pub const NO_ROOM: u8 = 0;

/// Who is behind a connection between daemons, by the word of the daemon that made it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Its node.
    pub node: String,
    /// Its number and process there.
    pub client: u64,
    /// Its process id there.
    pub pid: u32,
    /// Its user there.
    pub uid: u32,
    /// Its group there.
    pub gid: u32,
}

/// First message on a connection between daemons, encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// The node that is meant, so that an address that has moved is noticed.
    pub to: String,
    /// For whom.
    pub origin: Origin,
    /// What for.
    pub purpose: Purpose,
}

/// What a connection between daemons is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// One import. Answer: [`Told`].
    Import(Wanted),
    /// A data connection. Answer: [`Accepted`]; frames follow, over the fabric if one was named.
    Data {
        /// The process's end of a fabric, if it goes over one.
        meeting: Option<Meeting>,
        /// With what frames are sealed, if they are. Both nodes' cluster files must say the same.
        seal: Option<SealKeys>,
        /// How it goes on after a cut, if it can.
        lasting: Option<Lasting>,
    },
    /// A data connection on which another one goes on that was cut. Answer: [`Accepted`]; the bytes follow from where each
    /// end has come to.
    Resume {
        /// Of the one that was cut.
        pass: Pass,
        /// Bytes that the process has received.
        position: u64,
        /// With what this one is sealed.
        seal: Option<SealKeys>,
    },
    /// How the node is. Answer: [`Seen`].
    Look {
        /// Whether it shall try its fabric, which takes a while.
        tries: bool,
    },
}

/// Answer to [`Purpose::Data`] and [`Purpose::Resume`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The node that answers.
    pub node: String,
    /// Why not, if not.
    pub refused: Option<String>,
    /// The interface's end of the fabric, if one was named.
    pub meeting: Option<Meeting>,
    /// Bytes that the interface has received, of one that goes on.
    pub position: u64,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Its name.
    pub node: String,
    /// Version of its daemon, as `vmmcd --version` has it.
    pub version: String,
    /// Whether what processes send to other nodes is encrypted, by its cluster file.
    pub seals: bool,
    /// The provider of libfabric by which it reaches others. `None`: TCP.
    pub fabric: Option<String>,
    /// Whether long messages over that are written straight into its exported pages.
    pub direct: bool,
    /// Why that provider cannot be used there, with the remedy; if that was tried.
    pub trouble: Option<String>,
    /// Data connections that its processes have to the node that asks, one per process at most.
    pub connections: u32,
}

/// Answer to [`Purpose::Look`]: how the node is, or why it does not say, with the remedy.
pub type Seen = Result<Presence, String>;

/// One packet of what a tool is told. The first is [`Sight::Own`], then each other node is told of once, in any
/// order; the end of the conversation is the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sight {
    /// This node.
    Own {
        /// How it is; without connections.
        presence: Presence,
        /// Where it listens to others, `ADDRESS:PORT`.
        listen: String,
        /// Whether the nodes prove a key to each other. Without it all are of one machine.
        has_key: bool,
        /// [`WIRE_VERSION`] of its daemon.
        wire: u16,
        /// How many other nodes its cluster file names.
        others: u32,
    },
    /// Another node.
    Other {
        /// Its name in this node's cluster file.
        node: String,
        /// Where it is by that file, `HOST:PORT`.
        address: String,
        /// Data connections that processes of this node have to it.
        connections: u32,
        /// How it is and how long a question to it and its answer take over a connection that stands, at best, in nanoseconds.
        /// Or why it does not answer, with the remedy.
        seen: Result<(Presence, u64), String>,
    },
}
