//! The broker's tables as they pass to a successor. Descriptors are numbers into the list that passes
//! beside; points in time are what is left until then.

use super::{Inherited, TakeOverError};
use crate::broker::{Broker, BrokerError, Options};
use crate::client::{Attached, Client, Introduced, OutFd, Outgoing, Pending, Stage};
use crate::links::Link;
use crate::listener::{Listener, OwnedName};
use crate::pairing::{End, Owner, Pair, Plain, Waiting};
use crate::policy::Entry;
use crate::registry::{Export, WaitFor};
use crate::tcp::Endpoint;
use crate::timers::{Timer, TimerKey};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc::control::message::{QuotaKind, Role, StreamShape};
use vmmc::id::{ClientId, ExportId, Grant, LinkId, Name, PeerInfo, RequestId, Rights, Token};
use vmmc::sys::Fd;

/// Place in the list of descriptors.
type Slot = u32;

/// Everything. The successor's own options apply; quotas are counted anew.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    incarnation: u64,
    last_id: u64,
    counters: Vec<(String, u64)>,
    pub(super) manager: crate::notify::Manager,
    pub(super) listener: ListenerState,
    clients: Vec<ClientState>,
    exports: Vec<ExportState>,
    links: Vec<LinkState>,
    waiting: Vec<WaitingState>,
    pairs: Vec<PairState>,
    plain: Vec<Plain>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ListenerState {
    socket: Slot,
    /// Path and lock.
    name: Option<(Vec<u8>, Slot)>,
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
struct ClientState {
    peer: PeerInfo,
    groups: Vec<u32>,
    socket: Slot,
    pidfd: Slot,
    stage: StageState,
    pending: Vec<PendingState>,
    /// Whom it knows, and whether they have been introduced to it.
    acquaintances: Vec<(ClientId, bool)>,
    queue: Vec<(Vec<u8>, Vec<OutState>)>,
}

#[derive(Debug, Serialize, Deserialize)]
enum StageState {
    Handshake,
    Hello,
    Welcome {
        role: Role,
        program: String,
        session: Token,
        /// Page and doorbell.
        attached: Option<(Slot, Slot)>,
    },
    Leaving,
}

#[derive(Debug, Serialize, Deserialize)]
enum OutState {
    Same(Slot),
    Owned(Slot),
    ReadOnly(Slot),
    Doorbell(Slot),
    Ring(Slot),
}

#[derive(Debug, Serialize, Deserialize)]
struct PendingState {
    request: RequestId,
    name: Name,
    process: Option<u32>,
    rights: Rights,
    token: Option<Token>,
    restore: Option<LinkId>,
    segment: Slot,
    waited_ms: u64,
    left_ms: Option<u64>,
    place: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct ExportState {
    export: ExportId,
    owner: ClientId,
    name: Name,
    len: u64,
    memory: Slot,
    entries: Vec<(Grant, Option<u64>)>,
    token: Option<Token>,
    restored: bool,
    touched: bool,
    withdrawn: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct LinkState {
    link: LinkId,
    export: ExportId,
    importer: ClientId,
    exporter: ClientId,
    rights: Rights,
    segment: Option<Slot>,
}

#[derive(Debug, Serialize, Deserialize)]
struct EndpointState {
    namespace: u64,
    local: SocketAddr,
    remote: SocketAddr,
}

#[derive(Debug, Serialize, Deserialize)]
struct WaitingState {
    cookie: u64,
    client: ClientId,
    endpoint: EndpointState,
    shape: StreamShape,
    left_ms: u64,
    elsewhere: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct EndState {
    cookie: u64,
    endpoint: EndpointState,
    uid: u32,
    first: ClientId,
    owner: Owner,
    holders: Vec<ClientId>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PairState {
    number: u64,
    segment: Slot,
    shape: StreamShape,
    ring_len: u32,
    ends: [EndState; 2],
    linger_ms: Option<u64>,
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

/// The list of descriptors while it grows; each is in it once.
#[derive(Default)]
struct Slots<'b> {
    fds: Vec<BorrowedFd<'b>>,
    known: HashMap<RawFd, Slot>,
}

impl<'b> Slots<'b> {
    fn put(&mut self, fd: &'b Fd) -> Slot {
        *self.known.entry(fd.as_raw_fd()).or_insert_with(|| {
            self.fds.push(fd.as_fd());
            (self.fds.len() - 1) as Slot
        })
    }

    fn put_out(&mut self, fd: &'b OutFd) -> OutState {
        match fd {
            OutFd::Same(fd) => OutState::Same(self.put(fd)),
            OutFd::Owned(fd) => OutState::Owned(self.put(fd)),
            OutFd::ReadOnly(fd) => OutState::ReadOnly(self.put(fd)),
            OutFd::Doorbell(fd) => OutState::Doorbell(self.put(fd)),
            OutFd::Ring(fd) => OutState::Ring(self.put(fd)),
        }
    }
}

fn left_ms(key: TimerKey) -> u64 {
    key.0.saturating_duration_since(Instant::now()).as_millis() as u64
}

impl Broker {
    /// Everything that a successor needs.
    pub(super) fn state(&self) -> (State, Vec<BorrowedFd<'_>>) {
        let mut slots = Slots::default();
        let listener = ListenerState {
            socket: slots.put(&self.listener.socket),
            name: self
                .listener
                .name
                .as_ref()
                .map(|name| (name.path.as_os_str().as_bytes().to_vec(), slots.put(&name.lock))),
        };
        let clients =
            self.clients.values().map(|client| client_state(client, &mut slots)).collect();
        let exports = self
            .registry
            .exports
            .iter()
            .map(|(&export, known)| ExportState {
                export,
                owner: known.owner,
                name: known.name.clone(),
                len: known.len,
                memory: slots.put(&known.memory),
                entries: known.entries.iter().map(|it| (it.grant, it.started)).collect(),
                token: known.token,
                restored: known.restored,
                touched: known.touched,
                withdrawn: known.withdrawn,
            })
            .collect();
        let links = self
            .links
            .iter()
            .map(|(&link, known)| LinkState {
                link,
                export: known.export,
                importer: known.importer,
                exporter: known.exporter,
                rights: known.rights,
                segment: known.segment.as_ref().map(|segment| slots.put(segment)),
            })
            .collect();
        let waiting = self
            .pairing
            .waiting
            .iter()
            .map(|(&cookie, waiting)| WaitingState {
                cookie,
                client: waiting.client,
                endpoint: waiting.endpoint.into(),
                shape: waiting.shape,
                left_ms: left_ms(waiting.timer),
                elsewhere: waiting.elsewhere,
            })
            .collect();
        let end = |end: &End| EndState {
            cookie: end.cookie,
            endpoint: end.endpoint.into(),
            uid: end.uid,
            first: end.first,
            owner: end.owner.clone(),
            holders: end.holders.iter().copied().collect(),
        };
        let pairs = self
            .pairing
            .pairs
            .iter()
            .map(|(&number, pair)| PairState {
                number,
                segment: slots.put(&pair.segment),
                shape: pair.shape,
                ring_len: pair.ring_len,
                ends: [end(&pair.ends[0]), end(&pair.ends[1])],
                linger_ms: pair.linger.map(left_ms),
            })
            .collect();
        let state = State {
            incarnation: self.incarnation,
            last_id: self.last_id,
            counters: self.counters.all(),
            manager: crate::notify::manager(),
            listener,
            clients,
            exports,
            links,
            waiting,
            pairs,
            plain: self.pairing.plain.iter().cloned().collect(),
        };
        (state, slots.fds)
    }

    /// The broker that goes on where the predecessor stopped, which is told to leave.
    ///
    /// # Errors
    /// When the state does not fit together; the predecessor then goes on.
    pub fn inherit(
        inherited: Inherited,
        options: Options,
        stop: Option<Fd>,
    ) -> Result<Broker, TakeOverError> {
        let (state, fds, taken) = inherited.into_parts();
        let mut fds = Fds(fds);
        let name = match state.listener.name {
            None => None,
            Some((path, lock)) => {
                let path = PathBuf::from(std::ffi::OsString::from_vec(path));
                Some(OwnedName { path, lock: fds.take(lock)? })
            }
        };
        let socket = fds.take(state.listener.socket)?;
        let listener = Listener { socket, name, incarnation: state.incarnation };
        let system = |BrokerError::System { call, errno }| TakeOverError::System { call, errno };
        let mut broker = Broker::new(listener, options, stop).map_err(system)?;
        broker.last_id = state.last_id;
        broker.counters.restore(&state.counters);
        broker.counters.add(crate::counters::Counter::Takeovers);
        let mut pendings = Vec::new();
        for client in state.clients {
            broker.inherit_client(client, &mut fds, &mut pendings)?;
        }
        for export in state.exports {
            broker.inherit_export(export, &mut fds)?;
        }
        for link in state.links {
            broker.inherit_link(&link, &mut fds)?;
        }
        pendings.sort_unstable_by_key(|(_, pending)| pending.place);
        for (client, pending) in pendings {
            broker.inherit_pending(client, pending, &mut fds)?;
        }
        for waiting in state.waiting {
            broker.inherit_waiting(waiting);
        }
        for pair in state.pairs {
            broker.inherit_pair(pair, &mut fds)?;
        }
        broker.pairing.plain = state.plain.into();
        broker.watch_idleness();
        if let Some(taken) = taken {
            taken.confirm()?;
        }
        Ok(broker)
    }

    fn inherit_client(
        &mut self,
        state: ClientState,
        fds: &mut Fds,
        pendings: &mut Vec<(ClientId, PendingState)>,
    ) -> Result<(), TakeOverError> {
        let id = state.peer.client;
        let socket = fds.take(state.socket)?;
        let pidfd = fds.take(state.pidfd)?;
        let mut client = Client::new(socket, pidfd, state.peer, state.groups);
        client.stage = match state.stage {
            StageState::Handshake => Stage::Handshake,
            StageState::Hello => Stage::Hello,
            StageState::Leaving => Stage::Leaving,
            StageState::Welcome { role, program, session, attached } => {
                let attached = match attached {
                    None => None,
                    Some((page, doorbell)) => {
                        Some(Attached { page: fds.get(page)?, doorbell: fds.get(doorbell)? })
                    }
                };
                if role != Role::Tool {
                    self.quotas.take_over(state.peer.uid, QuotaKind::Clients, 1);
                }
                Stage::Welcome(Introduced { role, program, session, attached })
            }
        };
        for (packet, out) in state.queue {
            let out = out
                .into_iter()
                .map(|fd| {
                    Ok(match fd {
                        OutState::Same(slot) => OutFd::Same(fds.get(slot)?),
                        OutState::Owned(slot) => OutFd::Owned(fds.get(slot)?),
                        OutState::ReadOnly(slot) => OutFd::ReadOnly(fds.get(slot)?),
                        OutState::Doorbell(slot) => OutFd::Doorbell(fds.get(slot)?),
                        OutState::Ring(slot) => OutFd::Ring(fds.get(slot)?),
                    })
                })
                .collect::<Result<_, TakeOverError>>()?;
            client.push(packet, out);
        }
        for (other, introduced) in state.acquaintances {
            client.acquaintances.inherit(other, introduced);
            self.watch_parting(id, other);
        }
        pendings.extend(state.pending.into_iter().map(|pending| (id, pending)));
        self.quotas.take_over_socket(state.peer.uid);
        self.watch_client(id, &mut client)
            .map_err(|errno| TakeOverError::System { call: "epoll_ctl", errno })?;
        self.await_hello(id, &mut client);
        self.clients.insert(id, client);
        // Not sent from here: the predecessor may still go on. The loop sees room to send.
        self.watch_output(id);
        Ok(())
    }

    fn inherit_export(&mut self, state: ExportState, fds: &mut Fds) -> Result<(), TakeOverError> {
        let owner = self
            .clients
            .get_mut(&state.owner)
            .ok_or_else(|| TakeOverError::BadState("export without its process".to_owned()))?;
        owner.exports.insert(state.export);
        let PeerInfo { uid, pid, .. } = owner.peer;
        self.quotas.take_over(uid, QuotaKind::Exports, 1);
        self.quotas.take_over(uid, QuotaKind::Bytes, state.len);
        let entries = state.entries.into_iter();
        let export = Export {
            owner: state.owner,
            name: state.name,
            len: state.len,
            memory: fds.get(state.memory)?,
            entries: entries.map(|(grant, started)| Entry { grant, started }).collect(),
            token: state.token,
            restored: state.restored,
            touched: state.touched,
            withdrawn: state.withdrawn,
            links: HashSet::new(),
        };
        self.registry.insert(state.export, pid, export);
        Ok(())
    }

    fn inherit_link(&mut self, state: &LinkState, fds: &mut Fds) -> Result<(), TakeOverError> {
        let lost = |what: &str| TakeOverError::BadState(format!("link without its {what}"));
        let segment = state.segment.map(|slot| fds.get(slot)).transpose()?;
        let export = self.registry.exports.get_mut(&state.export).ok_or_else(|| lost("export"))?;
        let importer = self.clients.get_mut(&state.importer).ok_or_else(|| lost("importer"))?;
        export.links.insert(state.link);
        importer.imports.insert(state.link);
        importer.acquaintances.link(state.exporter);
        let importer_uid = importer.peer.uid;
        self.quotas.take_over(importer_uid, QuotaKind::Imports, 1);
        let exporter = self.clients.get_mut(&state.exporter).ok_or_else(|| lost("exporter"))?;
        exporter.acquaintances.link(state.importer);
        let link = Link {
            export: state.export,
            importer: state.importer,
            importer_uid,
            exporter: state.exporter,
            rights: state.rights,
            segment,
        };
        self.links.insert(state.link, link);
        Ok(())
    }

    fn inherit_pending(
        &mut self,
        id: ClientId,
        state: PendingState,
        fds: &mut Fds,
    ) -> Result<(), TakeOverError> {
        let now = Instant::now();
        let segment = fds.get(state.segment)?;
        let queue = WaitFor {
            name: state.name.clone(),
            process: state.process,
            restore: state.restore.is_some(),
        };
        let place = self.registry.wait(queue, id, state.request);
        let timer = state.left_ms.map(|left| {
            self.timers.add(now + Duration::from_millis(left), Timer::Import(id, state.request))
        });
        let pending = Pending {
            name: state.name,
            process: state.process,
            rights: state.rights,
            token: state.token,
            restore: state.restore,
            segment,
            since: now.checked_sub(Duration::from_millis(state.waited_ms)).unwrap_or(now),
            place,
            timer,
            caller: None,
        };
        if let Some(client) = self.clients.get_mut(&id) {
            self.quotas.take_over(client.peer.uid, QuotaKind::Imports, 1);
            client.pending.insert(state.request, pending);
        }
        Ok(())
    }

    fn inherit_waiting(&mut self, state: WaitingState) {
        let Some(client) = self.clients.get_mut(&state.client) else { return };
        client.sockets.insert(state.cookie);
        let uid = client.peer.uid;
        self.quotas.take_over(uid, QuotaKind::Connections, 1);
        let due = Instant::now() + Duration::from_millis(state.left_ms);
        let waiting = Waiting {
            client: state.client,
            uid,
            endpoint: state.endpoint.into(),
            shape: state.shape,
            timer: self.timers.add(due, Timer::Pairing(state.cookie)),
            elsewhere: state.elsewhere,
            // Doorbells are not handed over: such an end stays with TCP.
            bell: None,
        };
        self.pairing.insert_waiting(state.cookie, waiting);
    }

    fn inherit_pair(&mut self, state: PairState, fds: &mut Fds) -> Result<(), TakeOverError> {
        let segment = fds.get(state.segment)?;
        let ends = state.ends.map(|end| {
            self.quotas.take_over(end.uid, QuotaKind::Connections, 1);
            for holder in &end.holders {
                if let Some(client) = self.clients.get_mut(holder) {
                    client.sockets.insert(end.cookie);
                }
            }
            End {
                cookie: end.cookie,
                endpoint: end.endpoint.into(),
                uid: end.uid,
                first: end.first,
                owner: end.owner,
                holders: end.holders.into_iter().collect(),
            }
        });
        let linger = state.linger_ms.map(|left| {
            let due = Instant::now() + Duration::from_millis(left);
            self.timers.add(due, Timer::PairLinger(state.number))
        });
        let pair = Pair { segment, shape: state.shape, ring_len: state.ring_len, ends, linger };
        self.pairing.insert_pair(state.number, pair);
        Ok(())
    }
}

fn client_state<'b>(client: &'b Client, slots: &mut Slots<'b>) -> ClientState {
    let stage = match &client.stage {
        Stage::Handshake => StageState::Handshake,
        Stage::Hello => StageState::Hello,
        Stage::Leaving => StageState::Leaving,
        Stage::Welcome(Introduced { role, program, session, attached }) => StageState::Welcome {
            role: *role,
            program: program.clone(),
            session: *session,
            attached: attached
                .as_ref()
                .map(|Attached { page, doorbell }| (slots.put(page), slots.put(doorbell))),
        },
    };
    let pending = client
        .pending
        .iter()
        .filter(|(_, pending)| pending.caller.is_none())
        .map(|(&request, pending)| PendingState {
            request,
            name: pending.name.clone(),
            process: pending.process,
            rights: pending.rights,
            token: pending.token,
            restore: pending.restore,
            segment: slots.put(&pending.segment),
            waited_ms: pending.since.elapsed().as_millis() as u64,
            left_ms: pending.timer.map(left_ms),
            place: pending.place,
        })
        .collect();
    let queue = client
        .queue
        .iter()
        .map(|Outgoing { packet, fds }| {
            (packet.clone(), fds.iter().map(|fd| slots.put_out(fd)).collect())
        })
        .collect();
    ClientState {
        peer: client.peer,
        groups: client.groups.clone(),
        socket: slots.put(&client.socket),
        pidfd: slots.put(&client.pidfd),
        stage,
        pending,
        acquaintances: client.acquaintances.all().collect(),
        queue,
    }
}

/// The list of descriptors as it came.
struct Fds(Vec<Option<Arc<Fd>>>);

impl Fds {
    fn get(&self, slot: Slot) -> Result<Arc<Fd>, TakeOverError> {
        self.0
            .get(slot as usize)
            .and_then(Clone::clone)
            .ok_or_else(|| TakeOverError::BadState(format!("descriptor {slot} is missing")))
    }

    /// One that is used once only.
    fn take(&mut self, slot: Slot) -> Result<Fd, TakeOverError> {
        self.0
            .get_mut(slot as usize)
            .and_then(Option::take)
            .and_then(Arc::into_inner)
            .ok_or_else(|| TakeOverError::BadState(format!("descriptor {slot} is missing")))
    }
}
