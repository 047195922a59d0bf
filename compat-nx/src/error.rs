//! What can go wrong. Each message names the value, the reason and the remedy.

use crate::engine::types::Info;

/// Why an NX operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NxError {
    /// Called before the job was joined, or after it was left.
    #[error(
        "the job has not started here; start the program with `shrimp run`, or call nx_initve first"
    )]
    NotStarted,
    /// A null pointer for a message that is not empty.
    #[error("null buffer for {len} bytes; give a buffer, or the length 0")]
    NullBuffer {
        /// Length given.
        len: usize,
    },
    /// A negative length.
    #[error("length {len}; give 0 or more")]
    BadLength {
        /// Length given.
        len: i64,
    },
    /// No such node.
    #[error("node {node}: there are nodes 0 to {last}, and -1 for all others")]
    BadNode {
        /// Node given.
        node: i32,
        /// Highest node number.
        last: u32,
    },
    /// The host's number, and there is no host process.
    #[error(
        "node {node} is the number of the host, and this application has no host process; a program that calls nx_initve, and nx_nfork or nx_load, is one"
    )]
    NoHost {
        /// Node given.
        node: i32,
    },
    /// No such process type.
    #[error("process type {ptype}; give 0 to 999999999")]
    BadPtype {
        /// Type given.
        ptype: i32,
    },
    /// Another process of the node has the type.
    #[error("process type {ptype} is in use on node {node}; choose another")]
    PtypeInUse {
        /// Which node.
        node: u32,
        /// Type given.
        ptype: i32,
    },
    /// A global operation of processes that joined later, and a node without one.
    #[error("node {node} got no process of type {ptype} within {seconds} s; start one there")]
    NoProcess {
        /// Which node.
        node: u32,
        /// Type asked for.
        ptype: i32,
        /// How long we waited.
        seconds: u64,
    },
    /// The process has no type yet.
    #[error("this process has no process type yet; call setptype first")]
    NoPtype,
    /// A type that users may not use.
    #[error("message type {type_}; use 0 to 999999999, or 1073741824 to 1999999999 to force")]
    BadType {
        /// Type given.
        type_: i32,
    },
    /// No such message id, or its message was waited for already.
    #[error("message id {mid} is not in use; each id can be waited for once")]
    BadMid {
        /// Id given.
        mid: i32,
    },
    /// All message ids are in use.
    #[error(
        "all {limit} message ids are in use; wait for some (msgwait, msgdone) before posting more"
    )]
    NoMid {
        /// How many there are.
        limit: usize,
    },
    /// A null handler.
    #[error("null handler; give a function")]
    BadHandler,
    /// The message is longer than the buffer. The buffer holds its beginning.
    #[error("message of {} bytes, type {}, from node {} for a buffer of {room} bytes; give a longer buffer", info.count, info.type_, info.node)]
    MessageTooLong {
        /// The message, with its full length.
        info: Info,
        /// Length of the buffer.
        room: usize,
    },
    /// A host process called a global operation.
    #[error("global operations are for the nodes; the host process takes no part")]
    HostGlobal,
    /// The nodes call different global operations.
    #[error(
        "node {node} is in another global operation; all nodes must call the same ones in the same order"
    )]
    OtherGlobal {
        /// Which node is.
        node: u32,
    },
    /// A node gives a global operation another length than this one does, or expects.
    #[error(
        "node {node} gave {given} bytes to this global operation, and this node expects {expected}; all nodes must give the same lengths"
    )]
    OtherLength {
        /// Which node.
        node: u32,
        /// What it gave, or the part of it that came.
        given: usize,
        /// What was expected in its place.
        expected: usize,
    },
    /// The buffer is too short for what all nodes give. It holds the beginning.
    #[error(
        "the nodes gave {all} bytes in all, for a buffer of {room} bytes; give a longer buffer"
    )]
    NoRoomForAll {
        /// What they gave.
        all: usize,
        /// Length of the buffer.
        room: usize,
    },
    /// The nodes do not all give a global operation the same lengths.
    #[error(
        "node {node} means other lengths in this global operation; all nodes must give the same"
    )]
    OtherLengths {
        /// Which node does.
        node: u32,
    },
    /// The operation makes no sense for these elements.
    #[error("{op:?} makes no sense for floating-point numbers; use an integer form")]
    BadReduction {
        /// Operation asked for.
        op: crate::engine::Reduction,
    },
    /// A handler of this process panicked: what it was to do is not done.
    #[error("a handler panicked ({what}); the job cannot go on")]
    HandlerPanicked {
        /// What it said.
        what: String,
    },
    /// Another process of the job died.
    #[error("node {node} died; the job cannot go on")]
    PeerDied {
        /// Which.
        node: u32,
    },
    /// Another process of the job cannot be reached any more, and may live on.
    #[error(
        "node {node} is out of reach: the way to its host is lost, or the vmmcd there has ended; the job cannot go on"
    )]
    PeerLost {
        /// Which.
        node: u32,
    },
    /// Another process of the job wrote nonsense into its link.
    #[error("node {node} broke the protocol: {what}; run the same libnx in every process")]
    PeerFault {
        /// Which.
        node: u32,
        /// How.
        what: &'static str,
    },
    /// Memory or the daemon failed us.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        reason: String,
    },
}

/// Why a job could not be joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The daemon could not be reached.
    #[error(transparent)]
    Connect(#[from] vmmc::control::connect::ConnectError),
    /// The launcher's description is nonsense.
    #[error(
        "node {node} of {size}: node numbers are 0 to size - 1; start the program with `shrimp run`"
    )]
    BadJob {
        /// Node given.
        node: u32,
        /// Size given.
        size: u32,
    },
    /// A tunable is nonsense.
    #[error("{name}={value:?} is not understood: expected {expected}; unset it for the default")]
    Setting {
        /// Environment variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Setting up memory or links failed.
    #[error("{what}: {reason}")]
    SetUp {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// All process numbers have been given.
    #[error(
        "an application has at most {limit} processes from its begin to its end, and this one has had them; begin it anew"
    )]
    Full {
        /// How many there may be.
        limit: usize,
    },
    /// Another process of the job died before all had met.
    #[error("node {node} died while the job was starting; the job cannot start")]
    Died {
        /// Which.
        node: u32,
    },
    /// Another process of the job never came.
    #[error("node {node} did not join within {seconds} s; the job cannot start")]
    Missing {
        /// Which.
        node: u32,
        /// How long we waited.
        seconds: u64,
    },
}
