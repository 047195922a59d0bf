//! The broker: the one trusted process of a machine that makes and destroys protected mappings.
//!
//! It knows names, permissions and who is alive. It is never on the data path: once an import is
//! granted, bytes go between the two processes' own mappings, and they keep going while the
//! broker is stopped, restarted or dead.
//!
//! One thread, one epoll loop, no locks. Nothing a client does blocks the loop: sends are
//! non-blocking with a bounded queue per client, work per wake-up is bounded, descriptors whose
//! last close could block are closed by a helper thread. A client that does not follow the protocol is
//! disconnected, with the reason logged and counted; nobody else notices.
//!
//! | module | holds |
//! |---|---|
//! | [`broker`] | the loop, and the table of clients |
//! | [`listener`] | the socket: activation, locking, stale files |
//! | `client` | one connection: identity, queues, what it owns |
//! | `requests` | what each request does |
//! | `receive` | taking packets, and suspicious descriptors |
//! | `sayings` | how much the log is told of clients that do wrong |
//! | `helpers` | threads for what a user can make last |
//! | [`descriptors`] | living within the limit of open files |
//! | `registry` | exports, names, waiting imports |
//! | `links` | granted imports |
//! | [`policy`] | who may do what, and how much of it |
//! | `pairing`, `tcp` | the two ends of one TCP connection |
//! | `carried` | ends whose other end is another node's |
//! | `snapshot` | what tools see |
//! | [`handover`] | hot restart: everything passes to a successor |
//! | [`resume`] | what happens after a crash of the broker |
//! | [`net`] | other nodes: the network service and this node's interface |
//! | [`failpoint`] | named points at which tests kill it |

//!
//! # Embedding
//! The program `vmmcd` adds arguments, detaching and the service manager's protocol; a test or a launcher can
//! run the broker in a thread of its own:
//!
//! ```
//! use vmmc_daemon::{Broker, Ending, Options, listener::{Audience, Listener}};
//!
//! let dir = tempfile::tempdir()?;
//! let listener = Listener::bind(&dir.path().join("vmmcd.sock"), Audience::Owner)?;
//! let (stop, stopper) = rustix::pipe::pipe()?;
//! let broker = Broker::new(listener, Options::default(), Some(stop.into()))?;
//! let thread = std::thread::spawn(move || broker.run());
//! // ... clients connect ...
//! rustix::io::write(&stopper, b"!")?;
//! assert_eq!(thread.join().unwrap()?, Ending::Stopped);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod acquaintances;
pub mod broker;
mod carried;
mod client;
mod counters;
mod crossing;
pub mod descriptors;
mod doorbell;
mod examination;
pub mod failpoint;
pub mod handover;
mod helpers;
mod links;
pub mod listener;
mod listings;
pub mod net;
pub mod notify;
mod pairing;
mod placement;
pub mod policy;
// A view of a mapping it has just made.
#[allow(unsafe_code)]
pub mod pump;
mod receive;
mod registry;
mod requests;
pub mod resume;
mod sayings;
mod snapshot;
mod sock_diag;
mod spare;
mod tcp;
mod timers;
pub mod wakecost;

pub use broker::{Broker, BrokerError, Ending, Options};
