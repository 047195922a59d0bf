//! Other nodes: the network service, and this node's network interface.
//!
//! Threads of their own beside the broker's loop, which none of them can delay:
//!
//! | module | does |
//! |---|---|
//! | [`address`] | where a node is, by address or host name |
//! | [`cluster`] | reads the cluster file and the key |
//! | [`secure`] | a connection between two daemons on which both have proved that they know the key |
//! | [`entrance`] | where other nodes come in, and how a successor gets it |
//! | `owner` | without a key: whose the other end of a connection is |
//! | `conversation` | outward: carries a process's question to another node, brings back the answer |
//! | `idle` | proved connections, kept for the next question |
//! | `lifelines` | ends the data connections of a process that has died |
//! | `survey` | looks at all other nodes, for a tool |
//! | `serve` | inward: answers other nodes' questions, takes data connections |
//! | `offers` | what was granted and not yet taken up |
//! | `carry` | connections of programs that know one machine only, to other nodes |
//! | [`interface`] | the interface: packets of other nodes' processes into exported pages |
//!
//! To its own broker the interface is a client like any other, with two rights more: it may import in the
//! name of a remote user, and say that a remote process is gone. The broker knows it by the process
//! id that the kernel gives.

pub mod address;
pub mod carry;
pub mod cluster;
mod conversation;
pub mod entrance;
mod follow;
mod idle;
pub mod interface;
mod lifelines;
pub(crate) mod mailbox;
mod offers;
mod owner;
pub(crate) mod places;
pub mod secure;
mod serve;
mod strangers;
mod survey;

use crate::broker::{Broker, Fault};
use crate::client::OutFd;
use crate::doorbell::Shared;
use carry::Carry;
use cluster::Cluster;
use conversation::Turns;
use entrance::Entrance;
use idle::Idle;
use lifelines::Lifelines;
use offers::Offers;
use places::Places;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vmmc::control::message::{Event, Refusal};
use vmmc::id::{ClientId, PeerInfo, RequestId};
use vmmc::sys::thread::spawn_quiet;
use vmmc::sys::{Fd, packet};

/// What a thread that panicked left is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The network service, as the broker has it.
#[derive(Clone, Debug)]
pub struct Service {
    cluster: Arc<Cluster>,
    entrance: Arc<Entrance>,
    offers: Arc<Offers>,
    idle: Arc<Idle>,
    lifelines: Arc<Lifelines>,
    /// Of the processes' questions.
    turns: Arc<Turns>,
    /// Of tools' looks at all nodes, by user.
    surveys: Places<u32>,
    /// Set where connections to other nodes are carried.
    pub(crate) carry: Option<Arc<Carry>>,
}

impl Service {
    /// Whether connections within this machine are carried too.
    pub(crate) fn carries_own(&self) -> bool {
        self.cluster.carries_own()
    }

    /// A successor has everything: other nodes' questions are answered there. Data connections go on for as long as this
    /// process does.
    pub(crate) fn leave(&self) {
        self.entrance.leave();
        self.offers.leave();
    }

    /// A client is no more; whether its process has died, or has given its node up.
    pub(crate) fn client_gone(&self, id: ClientId, died: bool) {
        self.lifelines.forget(id, died);
    }
}

/// Why a node has no part in its cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address.
    #[error(
        "cannot listen for other nodes on {address}: {error}; is `listen` an address of this machine, and free?"
    )]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// How it failed.
        error: std::io::Error,
    },
    /// A thread, a descriptor.
    #[error("{what} of the network service: {errno}")]
    System {
        /// What was to be made.
        what: &'static str,
        /// How it failed.
        errno: rustix::io::Errno,
    },
}

/// Starts the network service of a node: makes its threads. `entrance` is where other nodes come in, `socket` where
/// the broker will be found.
///
/// # Errors
/// [`StartError::System`].
pub fn start(cluster: Cluster, entrance: Entrance, socket: PathBuf) -> Result<Service, StartError> {
    let cluster = Arc::new(cluster);
    let entrance = Arc::new(entrance);
    let offers = Arc::new(Offers::default());
    let system = |what| move |errno| StartError::System { what, errno };
    let rules =
        interface::Rules { direct: cluster.writes_directly(), freeze_limit: cluster.freeze_limit };
    let (door, interface) = interface::make(offers.clone(), rules).map_err(system("eventfd"))?;
    let us = cluster.clone();
    address::follow_names(us.clone()).map_err(system("thread"))?;
    if let Err(errno) = follow::follow(us.clone()) {
        tracing::warn!(%errno, "a change of the cluster file counts from the next start on");
    }
    let carry = match cluster.carries() {
        true => {
            Some(Arc::new(Carry::new(cluster.clone(), socket.clone()).map_err(system("eventfd"))?))
        }
        false => None,
    };
    tracing::info!(
        node = us.node,
        address = %us.listen,
        nodes = us.nodes().len(),
        key = us.key.is_some(),
        carries = carry.is_some(),
        "part of a cluster"
    );
    let lifelines: Arc<Lifelines> = Arc::default();
    let (way_in, granted) = (entrance.clone(), (offers.clone(), lifelines.clone()));
    spawn_quiet("net-interface", move || {
        let Some(node) = interface::connect(&socket) else { return };
        let server = serve::Server::new(us, way_in, granted, door, node.clone());
        match spawn_quiet("net-accept", move || server.run()) {
            Ok(_) => interface.run(&node),
            Err(errno) => tracing::error!(%errno, "no thread to listen to other nodes"),
        }
    })
    .map_err(system("thread"))?;
    Ok(Service {
        cluster,
        entrance,
        offers,
        idle: Arc::default(),
        lifelines,
        surveys: survey::places(),
        turns: Arc::default(),
        carry,
    })
}

/// Serves a process on one end of a socket pair, by threads of its own.
type Start = fn(Service, PeerInfo, Fd) -> Result<(), Refusal>;

impl Broker {
    /// Whether a client is this process: the network interface, or the carriers.
    pub(crate) fn is_own(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|client| client.peer.pid == std::process::id())
    }

    /// Whether a client is the network interface.
    pub(crate) fn needs_interface(&self, id: ClientId) -> Result<(), Fault> {
        if self.is_own(id) {
            Ok(())
        } else {
            Err(Fault::new("a request that only the network interface may make"))
        }
    }

    /// Gives a client a conversation with the network service.
    pub(crate) fn converse(&mut self, id: ClientId, request: RequestId) {
        let fabric = self.network.as_ref().and_then(|network| network.cluster.fabric());
        self.begin(id, request, conversation::start, &Event::Network { request, fabric });
    }

    /// Tells a client how the nodes of the cluster are.
    pub(crate) fn survey(&mut self, id: ClientId, request: RequestId) {
        self.begin(id, request, survey::start, &Event::Links { request });
    }

    /// Gives a client the other end of what is started for it, with this answer.
    fn begin(&mut self, id: ClientId, request: RequestId, start: Start, answer: &Event) {
        match self.open_conversation(id, start) {
            Ok(end) => self.send(id, answer, vec![end]),
            Err(refusal) => self.refuse(id, request, refusal),
        }
    }

    fn open_conversation(&self, id: ClientId, start: Start) -> Result<OutFd, Refusal> {
        let network = self.network.as_ref().ok_or(Refusal::NoCluster)?;
        let gone = || Refusal::Internal { why: "find the client".to_owned() };
        let caller: PeerInfo = self.clients.get(&id).ok_or_else(gone)?.peer;
        let failed = |errno| Refusal::Internal { why: format!("open a conversation ({errno})") };
        let (ours, theirs) = packet::pair().map_err(failed)?;
        start(network.clone(), caller, ours)?;
        Ok(OutFd::Owned(Arc::new(Shared::new(theirs, (caller.uid, caller.uid)))))
    }
}
