//! Connections between nodes whose ends are programs that know one machine only: the daemons carry them.
//!
//! ```text
//!   node a                                               node b
//!   process <-- rings --> segment <== deliberate update == carrier <-- doorbell -- process
//!   process -- doorbell --> carrier == deliberate update ==> segment <-- rings --> process
//! ```
//!
//! Each end has a segment on its own node, in the layout of its library, and meets in it what it would meet on one
//! machine: rings, positions, words that say who sleeps. The far end is played by this node's daemon. What
//! the process puts into its ring its daemon's *carrier* sends to the same place of the other node's segment, then the
//! position, then a notification; the other daemon wakes its process if that sleeps. Room that the process gives
//! back goes the same way. So flow control is from end to end, and no carrier keeps a byte.
//!
//! | module | does |
//! |---|---|
//! | `segment` | the words of a segment, and what of it is new since the last turn |
//! | `stream` | what is known of one connection, by its carrier and by the handlers of its links |
//! | `opening` | finds the other end by the names of both segments, agrees with it, tells the broker |
//! | `carrier` | a thread per other node, which sends what its connections' processes ring for |
//!
//! **Who may.** Two segments meet by exports whose names hold the connection's two addresses, and which nobody but a
//! daemon may make (the names are the daemons' own). An importer needs a secret that is made of the cluster
//! key and the name. Each daemon has been shown the socket with these addresses by its process, and
//! says whose it is; the policy is asked on both nodes.
//!
//! **Ends.** The carrier keeps a copy of the process's socket, so that the kernel's end of the connection comes
//! after the last byte: when nobody can ring it any more, it sends what is left, waits until that has arrived, and
//! closes the copy. If the other daemon is lost, bytes may be, and the carrier shuts the connection down.

mod carrier;
mod opening;
mod segment;
mod stream;

use super::cluster::Cluster;
use super::interface;
use crate::receive;
use crate::tcp::Endpoint;
use carrier::Carrier;
use rustix::event::EventfdFlags;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use stream::Stream;
use vmmc::control::message::{CarriedWords, NotPairedReason, StreamShape};
use vmmc::counters::index::LIBRARY;
use vmmc::id::ClientId;
use vmmc::sys::Fd;
use vmmc::sys::thread::spawn_quiet;
use vmmc::{HandlerThread, Node};

/// Connections that are being opened at once.
const MAX_OPENING: usize = 256;

/// What carriers count, in a page of their own.
mod count {
    use super::LIBRARY;
    /// Connections carried.
    pub(super) const CONNECTIONS: usize = LIBRARY;
    /// Turns in which something was sent.
    pub(super) const TURNS: usize = LIBRARY + 1;
    /// Bytes of rings that were sent.
    pub(super) const BYTES: usize = LIBRARY + 2;
    /// Processes of this node woken.
    pub(super) const WAKES: usize = LIBRARY + 3;
    /// Connections that ended because the other node was lost, or because an end lied.
    pub(super) const LOST: usize = LIBRARY + 4;
    /// Names of these.
    pub(super) const NAMES: &[&str] =
        &["carried_connections", "carried_turns", "carried_bytes", "carried_wakes", "carried_lost"];
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which side of its segment the end at an endpoint is: both nodes find the same.
pub(crate) fn side_of(endpoint: &Endpoint) -> u8 {
    let Endpoint { local, remote, .. } = endpoint;
    u8::from((local.ip(), local.port()) > (remote.ip(), remote.port()))
}

/// A connection that a process of this node offers, whose other end is another node's.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) cookie: u64,
    pub(crate) client: ClientId,
    pub(crate) uid: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) shape: StreamShape,
    pub(crate) words: CarriedWords,
    pub(crate) ring_len: u32,
    /// Name of the other node.
    pub(crate) node: String,
    /// The process's socket. Its close may block.
    pub(crate) socket: Option<Fd>,
    /// The process's doorbell.
    pub(crate) bell: Arc<Fd>,
    /// How long the other end is waited for.
    pub(crate) wait: Duration,
    pub(crate) users: crate::policy::PairUsers,
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.socket.take().into_iter().for_each(receive::close);
    }
}

/// What became of a [`Wanted`].
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) cookie: u64,
    pub(crate) client: ClientId,
    pub(crate) carried: Result<Carried, NotPairedReason>,
}

/// An end that is carried: what its process must be given. Lost, and with it the connection, if it is dropped before
/// [`Carried::told`].
#[derive(Debug)]
pub(crate) struct Carried {
    /// The segment.
    pub(crate) memory: Arc<Fd>,
    /// Write end of the carrier's doorbell. The process's must be the only ones left.
    pub(crate) bell: Arc<Fd>,
    /// The process's side of the segment.
    pub(crate) side: u8,
    stream: Arc<Stream>,
    told: bool,
}

impl Carried {
    /// The process has been told, and relies on it from now on.
    pub(crate) fn told(&mut self) {
        self.told = true;
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if !self.told {
            // The other end may be told already, and use a ring that nobody reads.
            self.stream.lose("its process was gone before it was told");
        }
    }
}

/// The broker's letter box: outcomes, and a descriptor that says that there are some.
#[derive(Debug)]
struct Post {
    outcomes: Mutex<Vec<Outcome>>,
    bell: Fd,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Carry {
    cluster: Arc<Cluster>,
    socket: PathBuf,
    post: Post,
    opening: AtomicUsize,
    /// Made at the first use, because the broker must run then.
    node: OnceLock<Option<(Node, HandlerThread)>>,
    carriers: Mutex<HashMap<String, Arc<Carrier>>>,
}

impl Carry {
    pub(super) fn new(cluster: Arc<Cluster>, socket: PathBuf) -> rustix::io::Result<Carry> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Fd::from(rustix::event::eventfd(0, flags)?);
        Ok(Carry {
            cluster,
            socket,
            post: Post { outcomes: Mutex::default(), bell },
            opening: AtomicUsize::new(0),
            node: OnceLock::new(),
            carriers: Mutex::default(),
        })
    }

    /// The node at an address, if connections to it are carried.
    pub(crate) fn neighbour(&self, address: IpAddr) -> Option<&str> {
        self.cluster.node_at(address)
    }

    /// Readable when there are outcomes.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.post.bell.as_fd()
    }

    /// What has become known since this was last asked.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let _ = rustix::io::read(&self.post.bell, &mut [0u8; 8]);
        std::mem::take(&mut *lock(&self.post.outcomes))
    }

    /// Begins to open a connection; its outcome comes by [`Carry::outcomes`].
    ///
    /// # Errors
    /// When there is no thread for it.
    pub(crate) fn open(self: &Arc<Self>, wanted: Wanted) -> Result<(), NotPairedReason> {
        if self.opening.fetch_add(1, Ordering::AcqRel) >= MAX_OPENING {
            self.opening.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(
                node = wanted.node,
                "{MAX_OPENING} connections are being opened already"
            );
            return Err(NotPairedReason::Resources);
        }
        let carry = self.clone();
        let thread = spawn_quiet("net-carry-open", move || {
            let (cookie, client) = (wanted.cookie, wanted.client);
            let carried = opening::open(&carry, wanted);
            carry.opening.fetch_sub(1, Ordering::AcqRel);
            lock(&carry.post.outcomes).push(Outcome { cookie, client, carried });
            let _ = rustix::io::write(&carry.post.bell, &1u64.to_ne_bytes());
        });
        thread.map(drop).map_err(|errno| {
            self.opening.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%errno, "no thread to open a connection to another node");
            NotPairedReason::Resources
        })
    }

    /// The carriers' own connection to the broker of this process.
    fn node(&self) -> Option<&Node> {
        let made = self.node.get_or_init(|| {
            let node = interface::connect_as(&self.socket, "vmmcd carrier")?;
            node.counters().name_from(LIBRARY, count::NAMES);
            let handlers = node.start_handler_thread();
            let handlers = handlers.inspect_err(|error| tracing::error!(%error, "no carrier"));
            Some((node, handlers.ok()?))
        });
        made.as_ref().map(|(node, _)| node)
    }

    /// Who carries to a node.
    fn carrier(&self, node: &str) -> rustix::io::Result<Arc<Carrier>> {
        let mut carriers = lock(&self.carriers);
        if let Some(carrier) = carriers.get(node) {
            return Ok(carrier.clone());
        }
        let carrier = Carrier::start()?;
        carriers.insert(node.to_owned(), carrier.clone());
        Ok(carrier)
    }
}
