//! Imports from other nodes: asking for them, and the connections they share.
//!
//! 1. A conversation with this node's network service, by way of the broker, which thereby says
//!    who we are.
//! 2. In it, one question; the answer is a capability, and a data connection if we had none.
//! 3. The capability opens a slot of the connection: that is the link.

use super::control::{Answer, Draft, Failure};
use super::{NodeInner, resume};
use crate::control::codec;
use crate::control::connect::SETUP_TIMEOUT;
use crate::control::message::{CloseReason, MAX_PACKET_LEN, Refusal, Request};
use crate::control::network::{
    Answered, Ask, CAPABILITY_LIFE, FabricAt, Lasting, Question, RemoteGrant, Told, Wanted,
};
use crate::counters::index as count;
use crate::error::{DaemonError, ImportError, SystemError, system};
use crate::fabric::FabricError;
use crate::handler::Called;
use crate::id::{ClientId, LinkId, PeerInfo};
use crate::import::{ImportInner, ImportSpec, ImportSummary};
use crate::local::Local;
use crate::mem::View;
use crate::notify::Handler;
use crate::peer::Peer;
use crate::process::KeptMeter;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::sys::{Fd, packet};
use crate::transport::Granted;
use crate::transport::engine::Engine;
use crate::transport::net::Connection;
use crate::transport::net::connection::{OnClosed, Slot, Unattached};
use crate::transport::net::wire::Wire;
use crate::transport::ofi::fifo::Fifo;
use crate::transport::route::{Of, Route};
use crate::word::{MappedU32, MappedU64};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Link numbers of imports from other nodes do not meet those of the daemon.
const ELSEWHERE: u64 = 1 << 63;

/// What a process has of other nodes.
#[derive(Debug, Default)]
pub(crate) struct Remotes {
    connections: Mutex<HashMap<String, Arc<Connection>>>,
    /// By link number.
    imports: Mutex<HashMap<LinkId, Weak<ImportInner>>>,
    /// Exporters, by node and number.
    peers: Mutex<HashMap<(String, ClientId), Weak<Peer>>>,
    /// Stands where a flag of another node needs some word.
    word: std::sync::atomic::AtomicU64,
    /// Counts connections, so that links of a lost one are told from those of the next.
    made: AtomicU64,
}

impl Remotes {
    /// Ends all connections.
    pub(super) fn close(&self) {
        for (_, connection) in self.connections.lock().drain() {
            connection.close();
        }
    }

    fn connection(&self, node: &str) -> Option<Arc<Connection>> {
        self.connections.lock().get(node).filter(|found| !found.is_lost()).cloned()
    }

    pub(super) fn imports(&self) -> Vec<ImportSummary> {
        let imports: Vec<_> = self.imports.lock().values().filter_map(Weak::upgrade).collect();
        imports.iter().map(|import| import.summary()).collect()
    }

    fn word(&self) -> View<'_> {
        crate::mem::view_of_word(&self.word)
    }

    pub(crate) fn no_word32(&self) -> MappedU32<'_> {
        match self.word().word32(0) {
            Ok(word) => word,
            Err(error) => unreachable!("eight aligned bytes: {error}"),
        }
    }

    pub(crate) fn no_word64(&self) -> MappedU64<'_> {
        match self.word().word64(0) {
            Ok(word) => word,
            Err(error) => unreachable!("eight aligned bytes: {error}"),
        }
    }

    /// The exporter, as far as a process elsewhere can be one: it is rung by its own node.
    fn peer(
        &self,
        node: &str,
        info: PeerInfo,
        local: &Arc<Local>,
    ) -> Result<Arc<Peer>, SystemError> {
        let key = (node.to_owned(), info.client);
        let mut peers = self.peers.lock();
        if let Some(known) = peers.get(&key).and_then(Weak::upgrade)
            && known.info == info
        {
            return Ok(known);
        }
        peers.retain(|_, peer| peer.strong_count() > 0);
        let peer = Arc::new(Peer::elsewhere(info, local.clone())?);
        peers.insert(key, Arc::downgrade(&peer));
        Ok(peer)
    }
}

/// An import that another node was asked for. Dropping it gives it up.
pub(crate) struct Asked {
    node: String,
    spec: ImportSpec,
    timeout_ms: u32,
    since: Instant,
    handler: Option<Handler>,
    /// How often the connection was lost between the question and the answer.
    lost: u32,
    conversation: Fd,
    /// When this node's daemon was found to have ended.
    orphan_since: Option<Instant>,
    /// Our end of the fabric by which the connection will go, if it is a new one over a fabric.
    fifo: Option<Fifo>,
}

/// What became of a question.
pub(crate) enum Finished {
    /// A link.
    Link(Arc<ImportInner>),
    /// It was asked again: the connection that was to be used has been lost meanwhile.
    Again(Box<Asked>),
    /// This node's daemon has ended before it has answered.
    Orphan(Box<Asked>),
}

/// What became of a question whose daemon has ended.
pub(crate) enum Adopted {
    /// The next one has it.
    Asked(Box<Asked>),
    /// There is none yet.
    NotYet(Box<Asked>),
}

/// Between two looks whether this node's next daemon is there.
const LOOKING: Duration = Duration::from_millis(10);

/// How much longer than an import may take another node's word may: to be reached, and to say so.
const ANSWERING: Duration = Duration::from_secs(5);

/// How long the interface has to open a link that was granted, however short the program's patience is.
const OPENING: Duration = Duration::from_secs(5);

/// Connections lost under one question until it is an error.
const MOST_LOST: u32 = 8;

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Asked {
    /// Asks, and does not wait for the answer.
    pub(crate) fn ask(
        process: &NodeInner,
        node: String,
        spec: ImportSpec,
        timeout_ms: u32,
        handler: Option<Handler>,
    ) -> Result<Asked, ImportError> {
        let (conversation, fabric) = converse(process, None, timeout_ms)?;
        let wanted = Wanted {
            process: spec.process,
            name: spec.name.clone(),
            rights: spec.rights,
            token: spec.token,
            timeout_ms,
        };
        let connect = process.remotes.connection(&node).is_none();
        let fabric = fabric.filter(|_| connect);
        let fifo = fabric.map(|at| Fifo::open(&at));
        let no_fabric = |error: FabricError| unreachable_node(&node, &error.to_string());
        let fifo = fifo.transpose().map_err(no_fabric)?;
        let meeting = fifo.as_ref().map(Fifo::meeting).transpose().map_err(no_fabric)?;
        let ask = Question::Import(Ask { node: node.clone(), wanted, connect, meeting });
        let mut buffer = [0; MAX_PACKET_LEN];
        let packet = codec::encode(&ask, &mut buffer)
            .map_err(|_| ImportError::Refused(Refusal::BadName { name: spec.name.clone() }))?;
        packet::send(&conversation, packet, &[], SendFlags::empty()).map_err(gone)?;
        let since = Instant::now();
        let orphan_since = None;
        Ok(Asked {
            node,
            spec,
            timeout_ms,
            since,
            handler,
            lost: 0,
            conversation,
            orphan_since,
            fifo,
        })
    }

    /// This node's daemon has ended: asks the next one, for which it waits until the deadline, or its time is over.
    pub(crate) fn adopt(
        mut self: Box<Self>,
        process: &NodeInner,
        deadline: Option<Instant>,
    ) -> Result<Adopted, ImportError> {
        let since = *self.orphan_since.get_or_insert_with(Instant::now);
        while !process.control.is_connected() {
            if since.elapsed() >= SETUP_TIMEOUT {
                return Err(DaemonError::Gone { waited: SETUP_TIMEOUT }.into());
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                return Ok(Adopted::NotYet(self));
            }
            std::thread::sleep(LOOKING);
        }
        let why = "this node's vmmcd ends before it has answered";
        self.asked_again(process, why).map(Adopted::Asked)
    }

    /// The connection that was there has been lost, or this node's daemon: asks again, in the time that is left.
    fn again(self, process: &NodeInner, why: &str) -> Result<Finished, ImportError> {
        self.asked_again(process, why).map(Finished::Again)
    }

    fn asked_again(self, process: &NodeInner, why: &str) -> Result<Box<Asked>, ImportError> {
        if self.lost == MOST_LOST {
            return Err(self.unreachable(why));
        }
        let lost = self.lost + 1;
        let left = self.wanted_by().map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.map_or(u32::MAX, |left| left.as_millis() as u32);
        let again = Asked::ask(process, self.node, self.spec, left, self.handler)?;
        Ok(Box::new(Asked { lost, ..again }))
    }

    /// Waits for the answer; false when there is none by the deadline. That the time given for the import is over the other node
    /// says: it may stand still, or be out of reach.
    pub(crate) fn is_answered(&self, deadline: Option<Instant>) -> Result<bool, ImportError> {
        let last = self.wanted_by().map(|at| at + ANSWERING);
        let first = deadline.into_iter().chain(last).min();
        if is_answered(&self.conversation, first)? {
            return Ok(true);
        }
        match last {
            Some(last) if Instant::now() >= last => Err(self.unreachable(
                "it did not answer in the time given: its vmmcd stands still, or there is no way to it just now",
            )),
            _ => Ok(false),
        }
    }

    /// Until when the program waits for the import.
    fn wanted_by(&self) -> Option<Instant> {
        let patience = Duration::from_millis(self.timeout_ms.into());
        (self.timeout_ms < u32::MAX).then(|| self.since + patience)
    }

    /// Takes the answer and opens the link, or asks again.
    pub(crate) fn finish(mut self, process: &Arc<NodeInner>) -> Result<Finished, ImportError> {
        let mut buffer = [0; MAX_PACKET_LEN];
        let received = packet::receive(&self.conversation, &mut buffer, RecvFlags::empty());
        let (len, mut fds) = match received {
            Ok(Some(received)) => received,
            Ok(None) | Err(Errno::CONNRESET | Errno::PIPE) => {
                return Ok(Finished::Orphan(Box::new(self)));
            }
            Err(errno) => return Err(gone(errno)),
        };
        let Answered { told, meeting, seal, lasting } =
            codec::decode(buffer.get(..len).unwrap_or_default())
                .map_err(|_| DaemonError::Nonsense { what: "something else to an import" })?;
        let grant = match told {
            Told::Granted(grant) => grant,
            Told::Refused(refusal) => return Err(refusal.into()),
        };
        let connection = match (process.remotes.connection(&self.node), fds.take()) {
            (Some(connection), unused) => {
                // Another thread's was first. The daemon has a copy of it.
                unused.iter().for_each(end);
                connection
            }
            (None, Some(socket)) => {
                let copy = socket.try_clone();
                let keeps_all = lasting.is_some_and(|it| it.keeps_all);
                let fabric = self.fifo.take().zip(meeting);
                let wire = Wire::new(socket, fabric, seal.as_ref(), keeps_all);
                let wire = wire.map_err(|error| {
                    copy.iter().for_each(end);
                    unreachable_node(&self.node, &error.to_string())
                })?;
                self.connect(process, wire, lasting)?
            }
            (None, None) => return self.again(process, "the connection was lost meanwhile"),
        };
        match connection.attach(grant.capability, grant.mask, self.deadline()) {
            Ok(slot) => self.link(process, &connection, slot, &grant).map(Finished::Link),
            // On a busy machine a fabric's connection may take longer to make than a capability lives.
            Err(Unattached::Refused(why)) if self.since.elapsed() >= CAPABILITY_LIFE => {
                self.again(process, &why)
            }
            Err(Unattached::Refused(why)) => Err(self.unreachable(&why)),
            Err(Unattached::Lost) => self.again(process, "the connection was lost"),
            Err(Unattached::Late) => Err(self.unreachable(
                "it granted the import and does not open the link: a page that an exporter there has disabled holds up what this process sends, or its vmmcd stands still",
            )),
        }
    }

    /// Until when the interface may open the link that was granted: as long as the program waits, and for a round trip in any
    /// case.
    fn deadline(&self) -> Option<Instant> {
        self.wanted_by().map(|at| at.max(Instant::now() + OPENING))
    }

    fn unreachable(&self, why: &str) -> ImportError {
        unreachable_node(&self.node, &format!("{why}; import again"))
    }

    fn connect(
        &self,
        process: &Arc<NodeInner>,
        wire: Wire,
        lasting: Option<Lasting>,
    ) -> Result<Arc<Connection>, ImportError> {
        let number = process.remotes.made.fetch_add(1, Ordering::Relaxed);
        let budget = process.policy.network_budget();
        let on_closed = on_closed(Arc::downgrade(process), number);
        let on_cut =
            lasting.map(|it| resume::on_cut(Arc::downgrade(process), self.node.clone(), it));
        let connection =
            (on_closed, on_cut, Some(KeptMeter::new(process.local.meter, process.local.clone())));
        let connection = Connection::counted(self.node.clone(), wire, number, budget, connection)?;
        let mut connections = process.remotes.connections.lock();
        if let Some(first) = connections.get(&self.node).filter(|first| !first.is_lost()).cloned() {
            drop(connections);
            connection.close();
            return Ok(first); // another thread's; a process has one
        }
        let lost = connections.insert(self.node.clone(), connection.clone());
        drop(connections);
        drop(lost);
        Ok(connection)
    }

    fn link(
        self,
        process: &Arc<NodeInner>,
        connection: &Arc<Connection>,
        slot: Arc<Slot>,
        grant: &RemoteGrant,
    ) -> Result<Arc<ImportInner>, ImportError> {
        let len = usize::try_from(grant.len)
            .map_err(|_| DaemonError::Nonsense { what: "an import of impossible length" })?;
        let peer = process.remotes.peer(&self.node, grant.exporter, &process.local)?;
        let granted = Granted { len, rights: grant.rights, peer: grant.exporter };
        let link = link_id(connection.number(), slot.number());
        let found = Of::Net((connection.clone(), slot));
        let route = Route::import(found, granted, process.local.meter)?;
        let parts = (process.local.clone(), self.spec, None, self.handler.map(Called::new));
        let inner = Arc::new(ImportInner::new(link, grant.export, route, peer, parts));
        let mut imports = process.remotes.imports.lock();
        imports.retain(|_, import| import.strong_count() > 0);
        imports.insert(link, Arc::downgrade(&inner));
        drop(imports);
        process.local.meter.add(count::IMPORTS, 1);
        // It may have ended before it was in the table, where its end would have been told.
        if let Err(closed) = inner.link.check_open() {
            process.remote_closed(link, closed.reason);
        }
        Ok(inner)
    }
}

fn unreachable_node(node: &str, why: &str) -> ImportError {
    ImportError::Refused(Refusal::NodeUnreachable { node: node.to_owned(), why: why.to_owned() })
}

fn gone(errno: Errno) -> ImportError {
    system("conversation with vmmcd about another node")(errno).into()
}

fn link_id(connection: u64, slot: u32) -> LinkId {
    LinkId(ELSEWHERE | (connection << 32 & !ELSEWHERE) | u64::from(slot))
}

fn on_closed(process: Weak<NodeInner>, connection: u64) -> OnClosed {
    Box::new(move |slot, reason| {
        if let Some(process) = process.upgrade() {
            process.remote_closed(link_id(connection, slot), reason);
        }
    })
}

/// Ends a data connection that is not used.
fn end(socket: &Fd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Both); // it may have ended
}

/// Waits until something comes in a conversation; false when nothing has by the deadline.
pub(super) fn is_answered(
    conversation: &Fd,
    deadline: Option<Instant>,
) -> Result<bool, SystemError> {
    loop {
        let left = deadline.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let mut fds = [PollFd::new(conversation, PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("poll of a conversation")(errno)),
        }
    }
}

/// A conversation with the network service, and the fabric to use. `timeout_ms`: how long a daemon that is not there is waited for.
pub(super) fn converse(
    process: &NodeInner,
    deadline: Option<Instant>,
    timeout_ms: u32,
) -> Result<(Fd, Option<FabricAt>), ImportError> {
    let control = &process.control;
    let quiet = control.quiet();
    let ask = |request| Request::Network { request };
    let request = control.ask(process, ask, Vec::new(), Draft::Plain);
    let patience = Duration::from_millis(u64::from(timeout_ms));
    let answer = control.answer_within(process, request, deadline, (Instant::now(), patience));
    drop(quiet);
    let answer = answer.or_else(|| control.abandon(request));
    match answer {
        Some(Answer::Network(socket, fabric)) => Ok((socket, fabric)),
        Some(Answer::Refused(refusal)) => Err(refusal.into()),
        Some(Answer::Failed(Failure::Daemon(error))) => Err(error.into()),
        Some(Answer::Failed(Failure::System(error))) => Err(error.into()),
        _ => Err(DaemonError::Nonsense { what: "something else to Network" }.into()),
    }
}

impl NodeInner {
    /// The link of an import from another node has ended. Told once: a handler's entry in the table goes
    /// with it.
    fn remote_closed(&self, link: LinkId, reason: CloseReason) {
        let import = self.remotes.imports.lock().remove(&link).and_then(|it| it.upgrade());
        // Who drops an import while its exporter withdraws has ended it, and is told nothing.
        if let Some(import) = import
            && reason != CloseReason::Unimported
        {
            if matches!(reason, CloseReason::PeerDied | CloseReason::Unreachable) {
                self.local.meter.add(count::PEER_DEATHS, 1);
            }
            self.inbox.import_closed(&import, reason);
        }
        self.local.hub.wake_all();
    }
}
