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
//! | `attempt` | what the broker and a carrier share of a connection |
//! | `segment` | the words of a segment |
//! | `sent` | what of a segment is new since the last turn, and in what order it is sent |
//! | `said` | the words that two daemons send each other about a connection |
//! | `stream` | what is known of one connection, by its carrier and by the handlers of its links |
//! | `opening` | finds the other end by the names of both segments, agrees with it, tells the broker |
//! | `carrier` | a thread per user and other node, which sends what the processes ring for |
//! | `guard` | ends connections in the place of a daemon that is killed |
//! | `talk` | what the daemons say to each other of connections whose ends speak by the kernel's connection too |
//!
//! **Who may.** Two segments meet by exports whose names hold the connection's two addresses, and which nobody but a
//! daemon may make (the names are the daemons' own). An importer needs a secret that is made of the cluster
//! key and the name. Each daemon has been shown the socket with these addresses by its process, in the daemon's own
//! network namespace and at this node's address, and says whose it is; the policy is asked on both nodes.
//!
//! **Ends.** The carrier keeps a copy of the process's socket, so that the kernel's end of the connection comes
//! after the last byte: when nobody can ring it any more, it sends what is left, waits until that has arrived, and
//! closes the copy. If the other daemon is lost, bytes may be, and the carrier shuts the connection down.

mod attempt;
mod carrier;
pub mod guard;
mod opening;
mod said;
mod segment;
mod sent;
mod stream;
mod talk;

use super::cluster::Cluster;
use super::mailbox::Mailbox;
use super::places::Places;
use super::{interface, lock};
use crate::doorbell::{Button, Shared};
use crate::tcp::{self, Endpoint};
pub(crate) use attempt::Attempt;
use carrier::Carrier;
use guard::Guard;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use stream::Stream;
use vmmc::control::message::{CarriedWords, NotPairedReason, StreamShape};
use vmmc::counters::index::LIBRARY;
use vmmc::sys::Fd;
use vmmc::sys::thread::spawn_quiet;
use vmmc::{HandlerThread, Node};

/// Connections that are being opened at once: each has a thread, which sleeps until the other end comes.
const MAX_OPENING: usize = 4096;
/// Of them those of one user.
const MAX_OPENING_EACH: usize = MAX_OPENING / 4;

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

/// Which side of its segment the end at an endpoint is: both nodes find the same.
pub(crate) fn side_of(endpoint: &Endpoint) -> u8 {
    let Endpoint { local, remote, .. } = endpoint;
    u8::from((local.ip(), local.port()) > (remote.ip(), remote.port()))
}

/// A connection that a process of this node offers, whose other end is another node's.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) cookie: u64,
    /// The broker's number for the attempt.
    pub(crate) number: u64,
    pub(crate) uid: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) shape: StreamShape,
    pub(crate) words: CarriedWords,
    pub(crate) ring_len: u32,
    /// Name of the other node.
    pub(crate) node: String,
    /// Has the process's socket.
    pub(crate) attempt: Arc<Attempt>,
    /// A button of the process's doorbell; `None` where doorbells are bytes of the kernel's connection.
    pub(crate) bell: Option<Button>,
    /// This daemon, to processes ([`vmmc::control::message::StreamWords::pumper`]).
    pub(crate) incarnation: u64,
    /// How long the other end is waited for.
    pub(crate) wait: Duration,
    pub(crate) users: crate::policy::PairUsers,
}

/// What has become of an attempt.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is carried, or is not to be.
    Opened {
        /// The socket.
        cookie: u64,
        /// The attempt.
        number: u64,
        /// What the process must be given.
        carried: Result<Carried, NotPairedReason>,
    },
    /// Nothing of it is left in this daemon.
    Gone {
        /// The attempt.
        number: u64,
    },
}

/// What an attempt costs the daemon. Dropped, the broker is told that nothing is left of it.
#[derive(Debug)]
struct Cost {
    post: Arc<Mailbox<Outcome>>,
    number: u64,
}

impl Drop for Cost {
    fn drop(&mut self) {
        self.post.put(Outcome::Gone { number: self.number });
    }
}

/// An end that is carried: what its process must be given. Lost, and with it the connection, if it is dropped before
/// [`Carried::told`].
#[derive(Debug)]
pub(crate) struct Carried {
    /// The segment.
    pub(crate) memory: Arc<Fd>,
    /// The process's end of its [line](vmmc::sys::bell_line) to the carrier. The process's copies must be the only ones left.
    pub(crate) bell: Arc<Shared>,
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Carry {
    cluster: Arc<Cluster>,
    socket: PathBuf,
    /// To the broker.
    post: Arc<Mailbox<Outcome>>,
    /// This daemon's network namespace: addresses of another one prove nothing here.
    namespace: Option<u64>,
    /// Of connections that are being opened: all, and those of each user.
    opening: (Places<()>, Places<u32>),
    /// Made at the first use, because the broker must run then.
    node: Mutex<Option<(Node, HandlerThread)>>,
    /// Of a user's connections to a node.
    carriers: Mutex<HashMap<(String, u32), Weak<Carrier>>>,
    /// Should this daemon be killed.
    pub(crate) guard: Arc<Guard>,
}

impl Carry {
    pub(super) fn new(cluster: Arc<Cluster>, socket: PathBuf) -> rustix::io::Result<Carry> {
        Ok(Carry {
            cluster,
            socket,
            post: Mailbox::new()?,
            namespace: tcp::own_namespace(),
            opening: (Places::new(MAX_OPENING), Places::new(MAX_OPENING_EACH)),
            node: Mutex::default(),
            carriers: Mutex::default(),
            guard: Arc::default(),
        })
    }

    /// The node at an address, if connections to it are carried.
    pub(crate) fn neighbour(&self, address: IpAddr) -> Option<String> {
        self.cluster.node_at(address)
    }

    /// The node at the other end of a connection that this daemon may carry. Its own end must be where the daemon is:
    /// anybody can make a network namespace in which he has this node's address, and that one's.
    pub(crate) fn node_beyond(&self, endpoint: &Endpoint) -> Option<String> {
        let here = self.cluster.listen.ip();
        let is_here = here.is_unspecified() || endpoint.local.ip() == here.to_canonical();
        if !is_here || self.namespace != Some(endpoint.namespace) {
            return None;
        }
        self.neighbour(endpoint.remote.ip())
    }

    /// Readable when there are outcomes.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.post.as_fd()
    }

    /// What has become known since this was last asked.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        self.post.take()
    }

    /// Begins to open a connection; what becomes of it comes by [`Carry::outcomes`], its end in any case.
    pub(crate) fn open(self: &Arc<Self>, wanted: Wanted) {
        let (cookie, number) = (wanted.cookie, wanted.number);
        let cost = Cost { post: self.post.clone(), number };
        let (all, users) = &self.opening;
        let carry = self.clone();
        let thread = match all.take(&()).zip(users.take(&wanted.uid)) {
            Some(places) => spawn_quiet("net-carry-open", move || {
                let carried = opening::open(&carry, &wanted, cost);
                if carried.is_err() {
                    wanted.attempt.close();
                }
                carry.post.put(Outcome::Opened { cookie, number, carried });
                drop(places);
            })
            .map(drop)
            .map_err(|errno| errno.to_string()),
            None => Err("too many are being opened".to_owned()),
        };
        if let Err(why) = thread {
            tracing::warn!(why, "cannot open a connection to another node");
            let carried = Err(NotPairedReason::Resources);
            self.post.put(Outcome::Opened { cookie, number, carried });
        }
    }

    /// The carriers' own connection to the broker of this process.
    fn node(&self) -> Option<Node> {
        let mut made = lock(&self.node);
        if made.is_none() {
            let node = interface::connect_as(&self.socket, "vmmcd carrier")?;
            node.counters().name_from(LIBRARY, count::NAMES);
            let handlers = node.start_handler_thread();
            let handlers = handlers.inspect_err(|error| tracing::error!(%error, "no carrier"));
            *made = Some((node, handlers.ok()?));
        }
        made.as_ref().map(|(node, _)| node.clone())
    }

    /// Who carries a user's connections to a node.
    fn carrier(&self, node: &str, uid: u32) -> rustix::io::Result<Arc<Carrier>> {
        let mut carriers = lock(&self.carriers);
        let key = (node.to_owned(), uid);
        if let Some(carrier) = carriers.get(&key).and_then(Weak::upgrade) {
            return Ok(carrier);
        }
        let carrier = Carrier::start()?;
        carriers.retain(|_, it| it.strong_count() > 0);
        carriers.insert(key, Arc::downgrade(&carrier));
        Ok(carrier)
    }
}
