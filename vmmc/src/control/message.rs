//! The messages. Every request that has a [`RequestId`] is answered exactly once, with the
//! success named at it or with [`Event::Refused`].
//!
//! Descriptors are listed in the order in which they must be attached.

use super::network::FabricAt;
use crate::id::{ClientId, ExportId, Grant, LinkId, Name, PeerInfo, RequestId, Rights, Token};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Version of the messages in this module and of the handshake. Raised at every change; the two
/// sides must agree exactly.
pub const PROTOCOL_VERSION: u32 = 16;

/// Longest packet, in bytes.
pub const MAX_PACKET_LEN: usize = 4096;

/// Most entries in one access list.
pub const MAX_GRANTS: usize = 32;

/// What kind of client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A process that exports and imports.
    Process,
    /// The sockets library inside an unmodified program.
    Sockets,
    /// The Sun RPC library inside an unmodified program.
    Rpc,
    /// A tool that only looks and administers (`shrimp`).
    Tool,
}

/// First packet of a connection after the version handshake.
///
/// Descriptors: process page (read-only use), and of a [`Role::Process`] its [doorbell](crate::sys::doorbell); none for
/// [`Role::Tool`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// What the client is.
    pub role: Role,
    /// Name of the program, for people; at most 63 bytes.
    pub program: String,
    /// Set by a client that lost its daemon and comes back: who it was.
    pub resume: Option<Resume>,
}

/// Who a client was before the daemon crashed. A claim to a number and no proof: a daemon without its
/// predecessor's state cannot check the secret, and grants nothing for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Its old number, kept if still free.
    pub client: ClientId,
    /// The secret it was given with it.
    pub session: Token,
}

/// Answer to [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The client's number.
    pub client: ClientId,
    /// Secret for [`Resume`].
    pub session: Token,
    /// Changes when the daemon starts without its predecessor's state.
    pub incarnation: u64,
    /// Whether the daemon still knew the client (it was handed over): nothing to re-announce.
    pub resumed: bool,
    /// Cost of waking a sleeping process, measured by the daemon at its start, in nanoseconds.
    pub wake_cost_ns: u64,
    /// Ring capacity the daemon gives to upgraded connections, bytes per direction.
    pub ring_len: u32,
    /// Whether connections to other nodes of the cluster may be upgraded ([`Request::Neighbour`] tells which those
    /// are).
    pub carries: bool,
    /// Whether connections to other network namespaces of this machine may be upgraded.
    pub crosses: bool,
}

/// What a library that upgrades connections needs to know of a connection's segment to be laid out; the daemon
/// only allocates it (zeroed, sealed, `control_len` plus two rings long) and reads two counts
/// for its statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamShape {
    /// Version of the library's layout.
    pub version: u32,
    /// Bytes before the two rings, at most 64 KiB.
    pub control_len: u32,
    /// Offsets of the two `u64` words in which side 0 and side 1 count bytes they put into
    /// their rings.
    pub produced_at: [u32; 2],
    /// Words of the directions that side 0 and side 1 send in, for [`Request::PumpSocket`].
    /// `None`: the daemon cannot be asked.
    pub words: Option<[StreamWords; 2]>,
    /// Whether each end brings a [doorbell](crate::sys::doorbell), of which the other gets a button
    /// with the segment.
    pub bells: bool,
    /// Words that the daemon needs where the other end is on another node, and it stands in for that end.
    /// `None`: such connections stay plain. Needs `bells`, or [`CarriedWords::kernel`].
    pub carried: Option<CarriedWords>,
}

/// Offsets of the words by which a daemon plays the far end of a connection ([`StreamShape::carried`]): beside
/// [`StreamShape::produced_at`] all that two ends say to each other. The daemon passes positions on to the other
/// node; who sleeps is known on each node for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedWords {
    /// `u64`: bytes taken out of the rings in which side 0 and side 1 send.
    pub consumed_at: [u32; 2],
    /// `u32`: side 0 and side 1 have mapped the segment; with `kernel`, they read through the library.
    pub attached_at: [u32; 2],
    /// `u32`: side 0 and side 1 sleep until there is data.
    pub armed_data_at: [u32; 2],
    /// `u32`: side 0 and side 1 sleep until there is room.
    pub armed_space_at: [u32; 2],
    /// Where the ends speak by the kernel's connection too. Needs [`StreamShape::words`].
    pub kernel: Option<KernelWords>,
}

/// Offsets of `u32` words of a connection whose directions begin, and may end, on the kernel's connection, and whose doorbells
/// are bytes of it: what its ends say to each other beside [`CarriedWords`] and [`StreamWords`], and
/// what an end asks of the daemon that stands in for the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWords {
    /// Side 0 and side 1 have seen the other's direction switch to its ring.
    pub seen_at: [u32; 2],
    /// Side 0 and side 1 have closed: 1 in order, 2 with a reset.
    pub closed_at: [u32; 2],
    /// Futexes of senders, side 0 and side 1, that sleep until there is room.
    pub space_wait_at: [u32; 2],
    /// Side 0 and side 1 want to send by the kernel again: the daemon ends the ring part of their direction.
    pub leave_at: [u32; 2],
    /// Side 0 and side 1 want a FIN behind what is in their rings.
    pub fin_at: [u32; 2],
    /// To side 0 and side 1: an error of their sockets that the kernel has told to their daemons.
    pub error_at: [u32; 2],
}

/// Offsets of the words by which a direction is given back to the kernel's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamWords {
    /// `u32`: the receiving side's request.
    pub request: u32,
    /// `u32`: how the direction stands.
    pub mode: u32,
    /// `u64`: bytes on the kernel's connection before the ring.
    pub prefix: u32,
    /// `u64`: ring position of the end.
    pub end: u32,
    /// `u64`: doorbells ever sent, known at the end.
    pub final_bells: u32,
    /// `u64`: bytes taken out of the ring.
    pub consumed: u32,
    /// `u64`: doorbells counted so far.
    pub bells: u32,
    /// `u64`: of these, ones for which the kernel had no room.
    pub owed: u32,
    /// `u64`: ring position up to which the daemon has sent.
    pub pumped: u32,
    /// `u64`: [`Welcome::incarnation`] of the daemon that sends.
    pub pumper: u32,
}

/// A process of another node, by the word of that node's daemon, mapped to a user of this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteCaller {
    /// Its node.
    pub node: String,
    /// Its number at its node's daemon.
    pub client: ClientId,
    /// Process id there.
    pub pid: u32,
    /// User id here.
    pub uid: u32,
    /// Group id here.
    pub gid: u32,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// First message. Answer: [`Event::Welcome`].
    Hello(Hello),
    /// Makes a buffer known. Descriptor: its sealed memory file, read-write. Answer:
    /// [`Event::Exported`].
    Export {
        /// Matches the answer.
        request: RequestId,
        /// Name under which others import it.
        name: Name,
        /// Length in bytes; must be that of the file.
        len: u64,
        /// Who may do what.
        grants: Vec<Grant>,
        /// Secret an importer must present.
        token: Option<Token>,
        /// The export's old number, after a restart of the daemon.
        restore: Option<ExportId>,
        /// See [`Request::sent_from`].
        cpu: u32,
    },
    /// Withdraws an export: no import is granted after the answer, [`Event::Unexported`], and
    /// no [`Event::LinkOpened`] for it follows. Existing links stay until [`Request::Revoked`]; the network
    /// interface is told of its own ([`Event::LinkEnding`]). Of an export that was never imported nothing stays.
    Unexport {
        /// Matches the answer.
        request: RequestId,
        /// Which.
        export: ExportId,
        /// See [`Request::sent_from`].
        cpu: u32,
    },
    /// The exporter has drained and swapped the pages: the daemon tells the importers
    /// ([`Event::LinkClosed`]) and forgets the export. No answer.
    Revoked {
        /// Which.
        export: ExportId,
    },
    /// Asks for a mapping. Descriptor: the link segment, made and sealed by the importer. The
    /// answer, [`Event::Imported`], waits until the export exists (V1), for at most
    /// `timeout_ms`.
    Import {
        /// Matches the answer.
        request: RequestId,
        /// Exporting process, needed with a number; `None` for any process.
        process: Option<u32>,
        /// Name of the export.
        name: Name,
        /// Rights wanted; all of them are granted or none.
        rights: Rights,
        /// Secret, where the export asks for one.
        token: Option<Token>,
        /// 0: do not wait. `u32::MAX`: wait for ever.
        timeout_ms: u32,
        /// The link's old number, after a restart of the daemon.
        restore: Option<LinkId>,
        /// The exporter of an earlier link with this segment, which has it mapped perhaps: an export of anybody else
        /// is not granted with it ([`Refusal::SegmentOfAnother`]). `None`: nobody else has it.
        known_to: Option<PeerInfo>,
        /// See [`Request::sent_from`].
        cpu: u32,
    },
    /// [`Request::Import`] by the network interface of this node, for a process of another node: the
    /// rights are those of `caller`. From anybody else it breaks the protocol. Descriptor and
    /// answer as there.
    ImportFor {
        /// Matches the answer.
        request: RequestId,
        /// Whose rights count.
        caller: RemoteCaller,
        /// As in [`Request::Import`].
        process: Option<u32>,
        /// As in [`Request::Import`].
        name: Name,
        /// As in [`Request::Import`].
        rights: Rights,
        /// As in [`Request::Import`].
        token: Option<Token>,
        /// As in [`Request::Import`].
        timeout_ms: u32,
    },
    /// Asks for a conversation with this node's network service ([`super::network`]). Answer:
    /// [`Event::Network`] with one end of a socket pair.
    Network {
        /// Matches the answer.
        request: RequestId,
    },
    /// Asks how this node and the others of its cluster are. Answer: [`Event::Links`] with one end of a socket pair, by which
    /// that is told ([`super::network::Sight`]); [`Refusal::NoCluster`] where there is none.
    Links {
        /// Matches the answer.
        request: RequestId,
    },
    /// The process of another node that the interface imported for is gone: the exporter hears
    /// [`CloseReason::PeerDied`]. As [`Request::CloseLink`] otherwise, and for the interface alone.
    LostImporter {
        /// Which.
        link: LinkId,
    },
    /// Gives up a waiting import. Its answer is [`Refusal::Cancelled`], unless it was granted
    /// already.
    CancelImport {
        /// The import's number.
        request: RequestId,
    },
    /// This client has no use of what introduced another process to it, or has lost it (no memory,
    /// no descriptor): that process is introduced again with the next link. No answer.
    Introduce {
        /// The other process.
        client: ClientId,
    },
    /// The importer has dropped its mapping, or the exporter gives up a link whose peer
    /// misbehaves. The other side hears [`Event::LinkClosed`]. No answer.
    CloseLink {
        /// Which.
        link: LinkId,
    },
    /// Asks whether all has been said: what this client is to be told of links that are granted by now, it is told
    /// before the answer, [`Event::Done`].
    Sync {
        /// Matches the answer.
        request: RequestId,
    },
    /// Asks for the live exports this client may see. Answer: [`Event::Listing`], whose
    /// descriptor holds a `Vec<`[`ExportInfo`]`>`.
    List {
        /// Matches the answer.
        request: RequestId,
    },
    /// Asks for everything the daemon knows (its own user and root only; others see their own
    /// user's part). Answer: [`Event::Listing`], whose descriptor holds a [`Snapshot`].
    Snapshot {
        /// Matches the answer.
        request: RequestId,
    },
    /// Asks for a client's process page (same rule as [`Request::Snapshot`]). Answer:
    /// [`Event::Page`] with the page's descriptor, read-only.
    Page {
        /// Matches the answer.
        request: RequestId,
        /// Whose.
        client: ClientId,
    },
    /// Offers one end of an established TCP connection for pairing.
    /// Descriptors: the TCP socket, which the daemon examines and closes at once; with
    /// [`StreamShape::bells`], a [doorbell](crate::sys::doorbell), which rings once
    /// [`Event::Paired`] can be received: the other end may have rung before. The answer,
    /// [`Event::Paired`] or [`Event::NotPaired`], comes when the other end has registered or
    /// the wait is over.
    RegisterSocket {
        /// The socket's cookie as the client sees it; the daemon reads its own.
        cookie: u64,
        /// What the segment must look like; both ends must say the same.
        shape: StreamShape,
    },
    /// The connection with this cookie is closed or was never used: the daemon forgets it.
    /// No answer.
    ForgetSocket {
        /// The socket's cookie.
        cookie: u64,
    },
    /// Asks for the segment of a connection that was upgraded by another process and reached
    /// this one (exec, descriptor passing). Descriptor: the TCP socket. Answer as
    /// [`Request::RegisterSocket`].
    AttachSocket {
        /// The socket's cookie.
        cookie: u64,
    },
    /// The client has stopped reading the ring of this connection, for good, and says so in the
    /// segment; the other end makes no call. The daemon takes the unread bytes out of the ring
    /// and sends them from the other end's socket. Descriptor: the client's TCP socket. No
    /// answer but in the segment ([`StreamWords`]).
    PumpSocket {
        /// The socket's cookie.
        cookie: u64,
    },
    /// Asks whether connections to an address may be upgraded although it is not of this machine: whether it is
    /// that of a node of the cluster, as the cluster file has it. Answer: [`Event::Neighbour`].
    Neighbour {
        /// The address.
        address: IpAddr,
    },
    /// Orders the daemon to hand over to a successor (its own user or root). Answer:
    /// [`Event::HandOver`]; then the daemon sends its state and exits.
    TakeOver {
        /// Matches the answer.
        request: RequestId,
    },
    /// Orders the daemon to end (its own user or root). Answer: [`Event::Done`].
    Shutdown {
        /// Matches the answer.
        request: RequestId,
    },
}

/// The sender does not say on which processor it runs.
pub const NO_CPU: u32 = u32::MAX;

impl Request {
    /// Why one is refused that does not fit into a packet: what the daemon would say of its longest part.
    pub(crate) fn too_long(&self) -> Refusal {
        match self {
            Request::Export { name, .. }
            | Request::Import { name, .. }
            | Request::ImportFor { name, .. }
                if !name.is_valid() =>
            {
                Refusal::BadName { name: name.clone() }
            }
            Request::Export { grants, .. } if grants.len() > MAX_GRANTS => {
                Refusal::TooManyGrants { count: grants.len() as u32 }
            }
            _ => Refusal::Internal { why: format!("read more than {MAX_PACKET_LEN} bytes") },
        }
    }

    /// Says on which processor the sender runs and, for these requests, waits for the answer: the daemon comes there.
    #[must_use]
    pub fn sent_from(mut self, processor: u32) -> Request {
        if let Request::Export { cpu, .. }
        | Request::Import { cpu, .. }
        | Request::Unexport { cpu, .. } = &mut self
        {
            *cpu = processor;
        }
        self
    }

    /// The processor of a sender that says so and waits.
    #[must_use]
    pub fn waits_on(&self) -> Option<u32> {
        match self {
            Request::Export { cpu, .. }
            | Request::Import { cpu, .. }
            | Request::Unexport { cpu, .. } => Some(*cpu).filter(|cpu| *cpu != NO_CPU),
            _ => None,
        }
    }
}

/// What the daemon says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Answer to [`Request::Hello`].
    Welcome(Welcome),
    /// Answer to [`Request::Export`].
    Exported {
        /// The request.
        request: RequestId,
        /// The export's number.
        export: ExportId,
        /// Processor that the daemon ran on: a caller beside it need not poll for its next answer.
        cpu: u32,
    },
    /// Answer to [`Request::Unexport`].
    Unexported {
        /// The request.
        request: RequestId,
        /// Nobody ever imported it: no other process has its memory, the daemon has forgotten it,
        /// and there is nothing to revoke.
        untouched: bool,
        /// As in [`Event::Exported`].
        cpu: u32,
    },
    /// Answer to [`Request::Import`]. Descriptors: the export's memory (read-only when only
    /// [`Rights::READ`] was asked for), and, when `introduces`, the exporter's process page and
    /// a button of its doorbell.
    Imported {
        /// The request.
        request: RequestId,
        /// The link's number.
        link: LinkId,
        /// The export's number.
        export: ExportId,
        /// Length of the export in bytes.
        len: u64,
        /// Rights granted.
        rights: Rights,
        /// The exporter.
        exporter: PeerInfo,
        /// Whether the exporter's page and button are attached: with the first link between two
        /// processes, in whichever direction, and not again until [`Event::PeerGone`] or
        /// [`Request::Introduce`]. A client that has them already closes these.
        introduces: bool,
        /// As in [`Event::Exported`].
        cpu: u32,
    },
    /// To the exporter: somebody imported. Descriptors: the link segment, and, when
    /// `introduces`, the importer's process page and a button of its doorbell. From here on the exporter rings the
    /// importer; it rings once now, for what it stored before it knew.
    LinkOpened {
        /// The link's number.
        link: LinkId,
        /// The export's number.
        export: ExportId,
        /// Rights granted.
        rights: Rights,
        /// The importer.
        importer: PeerInfo,
        /// For whom it imported, if it is this node's network interface.
        behalf: Option<RemoteCaller>,
        /// Whether the importer's page and button are attached (see [`Event::Imported`]).
        introduces: bool,
    },
    /// The other side of a link is gone.
    LinkClosed {
        /// Which.
        link: LinkId,
        /// Why.
        reason: CloseReason,
    },
    /// To the network interface: the exporter withdraws. What is on its way from the remote process is still to land; when
    /// that has stopped, the interface closes the link ([`Request::CloseLink`]).
    LinkEnding {
        /// Which.
        link: LinkId,
    },
    /// A process that was introduced is dead, or has had no link with this one for a while: its page and
    /// button are needed no more. It is introduced again with the next link.
    PeerGone {
        /// The process.
        client: ClientId,
    },
    /// A request was not granted.
    Refused {
        /// The request.
        request: RequestId,
        /// Why.
        refusal: Refusal,
    },
    /// Answer to [`Request::List`] and [`Request::Snapshot`]. Descriptor: a memory file of `len`
    /// bytes with the encoded value.
    Listing {
        /// The request.
        request: RequestId,
        /// Length in bytes.
        len: u64,
    },
    /// Answer to [`Request::Page`]. Descriptor: the page.
    Page {
        /// The request.
        request: RequestId,
    },
    /// The two ends of a TCP connection are both ours. Descriptor: the connection's segment,
    /// made and sealed by the daemon; with [`StreamShape::bells`], then a button of the other
    /// end's doorbell (none in an answer to [`Request::AttachSocket`]). Where the other end is on another node the segment is
    /// the daemon's, which stands in for it, and what comes then is the process's end of a [line](crate::sys::bell_line).
    Paired {
        /// The socket's cookie.
        cookie: u64,
        /// 0 or 1: which side of the segment is this end's.
        side: u8,
        /// Ring capacity, bytes per direction.
        ring_len: u32,
        /// The client that offered the other end: two connections with the same are to the same
        /// process, or to one that it forked.
        peer: ClientId,
    },
    /// The connection stays plain TCP.
    NotPaired {
        /// The socket's cookie.
        cookie: u64,
        /// Why.
        reason: NotPairedReason,
    },
    /// Answer to [`Request::Neighbour`].
    Neighbour {
        /// The address.
        address: IpAddr,
        /// Whether it is another node's.
        is: bool,
    },
    /// Answer to [`Request::TakeOver`]; [`crate::control`] says nothing more about what
    /// follows on the socket, which is between two daemons.
    HandOver {
        /// The request.
        request: RequestId,
    },
    /// Answer to [`Request::Network`]. Descriptor: a connected `SOCK_SEQPACKET` socket.
    Network {
        /// The request.
        request: RequestId,
        /// The fabric by which this node reaches others, where the cluster file names one.
        fabric: Option<FabricAt>,
    },
    /// Answer to [`Request::Links`]. Descriptor: a connected `SOCK_SEQPACKET` socket.
    Links {
        /// The request.
        request: RequestId,
    },
    /// Answer to [`Request::Shutdown`] and [`Request::Sync`].
    Done {
        /// The request.
        request: RequestId,
    },
}

/// Why a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseReason {
    /// The exporter withdrew the export.
    Unexported,
    /// The importer dropped the import.
    Unimported,
    /// The peer process died.
    PeerDied,
    /// The peer broke the protocol.
    PeerFault,
    /// The connection to the peer's node is lost; whether the peer lives is not known.
    Unreachable,
    /// The exporter kept a page disabled for longer than its node holds packets back.
    Disabled,
}

/// What root may do besides, which another node took for user `uid`.
fn for_root(uid: u32) -> &'static str {
    if rustix::process::geteuid().is_root() && uid != 0 {
        " for that user, whom root of this node counts as there, or the cluster file of its node say `root = true` under [users]"
    } else {
        ""
    }
}

/// Why a request was not granted. Each has its own remedy in its text (G10).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The name is taken.
    #[error(
        "name {name} is already exported by process {pid}; choose another or unexport it first"
    )]
    NameTaken {
        /// The name.
        name: Name,
        /// Who has it.
        pid: u32,
    },
    /// The name is not allowed.
    #[error(
        "name {name} is not allowed: a text has 1 to 255 bytes, no control characters, and does not begin with {:?}, as the daemon's own do",
        crate::id::RESERVED
    )]
    BadName {
        /// The name.
        name: Name,
    },
    /// A number needs a process.
    #[error(
        "import of number {number} needs the exporting process: numbers are unique per process only; name it with `process`"
    )]
    ProcessNeeded {
        /// The number.
        number: u32,
    },
    /// Nothing of that name (within the time given).
    #[error(
        "nothing is exported as {name} (waited {waited_ms} ms); start the exporter, or give a longer timeout"
    )]
    NoSuchExport {
        /// The name.
        name: Name,
        /// How long the request waited, in milliseconds.
        waited_ms: u32,
    },
    /// The access list does not give the rights.
    #[error(
        "{name} grants user {uid} {granted}, asked for {wanted}; the exporter must add a grant{}",
        for_root(*uid)
    )]
    NotPermitted {
        /// The name.
        name: Name,
        /// Who asked.
        uid: u32,
        /// What the list gives.
        granted: Rights,
        /// What was asked.
        wanted: Rights,
    },
    /// The token is missing or wrong.
    #[error(
        "{name} asks for a token, and the one presented is missing or wrong; get it from the exporter"
    )]
    BadToken {
        /// The name.
        name: Name,
    },
    /// No rights were asked for.
    #[error("an import must ask for at least one right; name it with `rights`")]
    NoRights,
    /// A quota of the user is used up.
    #[error(
        "user {uid} has used up its quota of {limit} {quota}; close some or raise vmmcd's --{quota}-per-user"
    )]
    Quota {
        /// Who.
        uid: u32,
        /// Which quota, as in the daemon's options.
        quota: QuotaKind,
        /// Its limit.
        limit: u64,
    },
    /// The length is zero or too large.
    #[error(
        "length {len} is not between 1 and {max} bytes; raise vmmcd's --max-export-bytes for larger ones"
    )]
    BadLength {
        /// The length asked for.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// The descriptor is missing or not a sealed memory file of that length.
    #[error("the segment is not acceptable: {why}; make it with `Region`, or restart the program")]
    BadSegment {
        /// What is wrong with it.
        why: String,
    },
    /// The link segment was another exporter's, who could forge what the importer says in it.
    #[error(
        "the link segment is known to process {known_to}, which does not export {name}; ask again with a fresh one"
    )]
    SegmentOfAnother {
        /// The name.
        name: Name,
        /// Who has had it.
        known_to: u32,
    },
    /// Too many grants.
    #[error("{count} grants in one access list, at most {MAX_GRANTS} are allowed; use groups")]
    TooManyGrants {
        /// How many.
        count: u32,
    },
    /// The number is not one of the caller's.
    #[error("{what} {number} is not this process's; use one of its own")]
    NotYours {
        /// "export" or "link".
        what: String,
        /// The number.
        number: u64,
    },
    /// Only the daemon's own user and root may do that.
    #[error("user {uid} may not {what}: only user {owner} and root may")]
    NotAdministrator {
        /// Who asked.
        uid: u32,
        /// The daemon's user.
        owner: u32,
        /// What.
        what: String,
    },
    /// The daemon has no part in a cluster.
    #[error(
        "this node's vmmcd knows no other nodes; start it with --cluster FILE (see `vmmcd --help`)"
    )]
    NoCluster,
    /// No such node in the cluster file.
    #[error("no node {node:?} in the cluster file of this node's vmmcd; it has {}", known.join(", "))]
    UnknownNode {
        /// The node asked for.
        node: String,
        /// Those in the file.
        known: Vec<String>,
    },
    /// It is the node that asks.
    #[error("node {node:?} is this node itself; leave the node's name out to reach what is here")]
    OwnNode {
        /// The node.
        node: String,
    },
    /// The other node's daemon could not be reached, or would not talk.
    #[error("node {node:?} cannot be reached: {why}")]
    NodeUnreachable {
        /// The node.
        node: String,
        /// What failed, with its remedy.
        why: String,
    },
    /// The importer cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The daemon is out of something.
    #[error("the daemon could not: {why}; look at its log, or `shrimp doctor`")]
    Internal {
        /// What failed.
        why: String,
    },
}

/// What a quota counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaKind {
    /// Connected processes.
    Clients,
    /// Live exports.
    Exports,
    /// Live imports, waiting ones included.
    Imports,
    /// Bytes exported.
    Bytes,
    /// Upgraded and waiting TCP connections.
    Connections,
}

impl std::fmt::Display for QuotaKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            QuotaKind::Clients => "clients",
            QuotaKind::Exports => "exports",
            QuotaKind::Imports => "imports",
            QuotaKind::Bytes => "bytes",
            QuotaKind::Connections => "connections",
        })
    }
}

/// Why a connection stays plain TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotPairedReason {
    /// The other end did not register in time: it takes no part, or is on another machine.
    #[error("the other end takes no part")]
    NoPartner,
    /// Not an established TCP connection over IPv4 or IPv6.
    #[error("not an established TCP connection")]
    NotEstablished,
    /// The ends are in different network namespaces, where equal addresses prove nothing, and nothing else did.
    #[error("the ends are in different network namespaces")]
    OtherNamespace,
    /// The two users may not share memory by the daemon's policy.
    #[error(
        "policy does not allow these two users to share memory (vmmcd --pair-users any allows it)"
    )]
    Policy,
    /// The user's quota of connections is used up.
    #[error("quota of connections used up")]
    Quota,
    /// The connection is upgraded already, or its cookie is unknown (attach).
    #[error("already registered, or unknown")]
    Conflict,
    /// The two ends run different versions of the sockets library.
    #[error("the ends run different versions of the library; restart the older program")]
    OtherVersion,
    /// The daemon is out of memory or descriptors.
    #[error("daemon out of resources")]
    Resources,
    /// The other end is on a machine to which this daemon carries no connections.
    #[error("the other end is on another machine")]
    Remote,
}

/// One live export, as [`Request::List`] shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportInfo {
    /// Its number.
    pub export: ExportId,
    /// Its name.
    pub name: Name,
    /// Length in bytes.
    pub len: u64,
    /// Who exports.
    pub exporter: PeerInfo,
    /// Rights the asking process would be granted (a token aside).
    pub rights: Rights,
    /// Whether a token is needed.
    pub needs_token: bool,
    /// Importers now.
    pub importers: u32,
}

/// One connected process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Who.
    pub peer: PeerInfo,
    /// What kind.
    pub role: Role,
    /// Name of its program, by its own word.
    pub program: String,
    /// Live exports.
    pub exports: u32,
    /// Live imports.
    pub imports: u32,
    /// Registered connections.
    pub connections: u32,
}

/// One link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// Its number.
    pub link: LinkId,
    /// The export.
    pub export: ExportId,
    /// The importer.
    pub importer: ClientId,
    /// Rights granted.
    pub rights: Rights,
    /// Transfers by the importer's count.
    pub sends: u64,
    /// Bytes by the importer's count.
    pub bytes: u64,
}

/// One TCP connection that was registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionInfo {
    /// Socket cookie of the end.
    pub cookie: u64,
    /// Whose: of the processes that have it, or had it last, the one that came first.
    pub client: ClientId,
    /// Process id of that client.
    pub pid: u32,
    /// Program of that client, by its own word.
    pub program: String,
    /// Whether that client is still connected.
    pub alive: bool,
    /// Local address, `ip:port`.
    pub local: String,
    /// Remote address, `ip:port`.
    pub remote: String,
    /// Bytes this end put into its ring, when upgraded.
    pub ring_bytes: u64,
    /// Whether a direction of it, once upgraded, travels by TCP again for good.
    pub has_left: bool,
    /// How it stands.
    pub state: ConnectionState,
}

/// How a registered connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionState {
    /// Waiting for the other end.
    Waiting,
    /// Upgraded.
    Paired,
    /// Upgraded, to a process of another node.
    Carried,
    /// Plain TCP.
    Plain(NotPairedReason),
}

/// Everything the daemon knows, as [`Request::Snapshot`] shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Daemon's process id.
    pub pid: u32,
    /// Daemon's user.
    pub uid: u32,
    /// Daemon's version, as `vmmcd --version` prints it.
    pub version: String,
    /// Seconds since it started (or took over).
    pub uptime_s: u64,
    /// Processes.
    pub clients: Vec<ClientInfo>,
    /// Exports.
    pub exports: Vec<ExportInfo>,
    /// Links.
    pub links: Vec<LinkInfo>,
    /// TCP connections, the latest plain ones included.
    pub connections: Vec<ConnectionInfo>,
    /// The daemon's own counters, by name.
    pub counters: Vec<(String, u64)>,
}
