//! The broker's tables as they pass to a successor. Descriptors are numbers into the list that passes
//! beside; points in time are what is left until then.

use crate::pairing::{Owner, Plain};
use crate::tcp::Endpoint;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use vmmc::control::message::{Role, StreamShape};
use vmmc::id::{ClientId, ExportId, Grant, LinkId, Name, PeerInfo, RequestId, Rights, Token};

/// Place in the list of descriptors.
pub(super) type Slot = u32;

/// Everything. The successor's own options apply; quotas are counted anew.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(super) incarnation: u64,
    pub(super) last_id: u64,
    pub(super) counters: Vec<(String, u64)>,
    pub(super) manager: crate::notify::Manager,
    pub(super) listener: ListenerState,
    pub(super) clients: Vec<ClientState>,
    pub(super) exports: Vec<ExportState>,
    pub(super) links: Vec<LinkState>,
    pub(super) waiting: Vec<WaitingState>,
    pub(super) pairs: Vec<PairState>,
    pub(super) plain: Vec<Plain>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ListenerState {
    pub(super) socket: Slot,
    /// Path and lock.
    pub(super) name: Option<(Vec<u8>, Slot)>,
}

impl ListenerState {
    /// Place of the socket.
    pub(super) fn slot(&self) -> usize {
        self.socket as usize
    }

    pub(super) fn path(&self) -> Option<PathBuf> {
        let (path, _) = self.name.as_ref()?;
        Some(std::ffi::OsString::from_vec(path.clone()).into())
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ClientState {
    pub(super) peer: PeerInfo,
    pub(super) groups: Vec<u32>,
    pub(super) socket: Slot,
    pub(super) pidfd: Slot,
    pub(super) stage: StageState,
    pub(super) pending: Vec<PendingState>,
    /// Whom it knows, whether they have been introduced to it, and the buttons that are kept for that.
    pub(super) acquaintances: Vec<(ClientId, bool, Vec<ButtonState>)>,
    pub(super) queue: Vec<(Vec<u8>, Vec<OutState>)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StageState {
    Handshake,
    Hello,
    Welcome {
        role: Role,
        program: String,
        session: Token,
        /// Page and doorbell.
        attached: Option<(Slot, Option<Slot>)>,
    },
    Leaving,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum OutState {
    Same(Slot),
    /// The user's who has it, or the other end.
    Owned(Slot, u32),
    ReadOnly(Slot),
    /// As above.
    Line(Slot, u32),
    Button(ButtonState),
    Install(ButtonState),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ButtonState {
    pub(super) button: Slot,
    pub(super) doorbell: Slot,
    /// The doorbell's.
    pub(super) owner: u32,
    pub(super) ringer: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PendingState {
    pub(super) request: RequestId,
    pub(super) name: Name,
    pub(super) process: Option<u32>,
    pub(super) rights: Rights,
    pub(super) token: Option<Token>,
    pub(super) restore: Option<LinkId>,
    pub(super) known_to: Option<PeerInfo>,
    pub(super) segment: Slot,
    pub(super) waited_ms: u64,
    pub(super) left_ms: Option<u64>,
    pub(super) place: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ExportState {
    pub(super) export: ExportId,
    pub(super) owner: ClientId,
    pub(super) name: Name,
    pub(super) len: u64,
    pub(super) memory: Slot,
    pub(super) entries: Vec<(Grant, Option<u64>)>,
    pub(super) token: Option<Token>,
    pub(super) restored: bool,
    pub(super) touched: bool,
    pub(super) withdrawn: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkState {
    pub(super) link: LinkId,
    pub(super) export: ExportId,
    pub(super) importer: ClientId,
    pub(super) exporter: ClientId,
    pub(super) rights: Rights,
    pub(super) segment: Option<Slot>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EndpointState {
    pub(super) namespace: u64,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WaitingState {
    pub(super) cookie: u64,
    pub(super) client: ClientId,
    pub(super) endpoint: EndpointState,
    pub(super) shape: StreamShape,
    pub(super) left_ms: u64,
    pub(super) elsewhere: bool,
    pub(super) bell: Option<Slot>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EndState {
    pub(super) cookie: u64,
    pub(super) endpoint: EndpointState,
    pub(super) uid: u32,
    pub(super) first: ClientId,
    pub(super) owner: Owner,
    pub(super) holders: Vec<ClientId>,
    pub(super) bell: Option<ButtonState>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PairState {
    pub(super) number: u64,
    pub(super) segment: Slot,
    pub(super) shape: StreamShape,
    pub(super) ring_len: u32,
    pub(super) ends: [EndState; 2],
    pub(super) linger_ms: Option<u64>,
}

impl From<Endpoint> for EndpointState {
    fn from(it: Endpoint) -> Self {
        EndpointState { namespace: it.namespace, local: it.local, remote: it.remote }
    }
}

impl From<EndpointState> for Endpoint {
    fn from(it: EndpointState) -> Self {
        Endpoint { namespace: it.namespace, local: it.local, remote: it.remote }
    }
}
