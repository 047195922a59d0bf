//! libfabric: remote writes over InfiniBand, RoCE, EFA, Slingshot or TCP, by whichever of its
//! providers fits.
//!
//! The library is loaded at run time (`libfabric.so.1`), so that nothing needs it to build or to start,
//! and one binary runs with any version since 1.17. It exports a handful of symbols; the rest are
//! tables of functions in structures, which `abi` pins to symbol version FABRIC_1.3.
//!
//! What is here knows nothing of packets: an [`Endpoint`] has one peer, memory that this peer may write,
//! and a queue that tells of every such write with 32 bits (`fi_writedata`, more than 32 bits not
//! all hardware has). No order between two writes is relied upon: EFA has none.
//!
//! Software providers make progress only in [`Endpoint::poll`]; a thread that sleeps watches
//! [`Endpoint::wait_fd`] after [`Endpoint::may_sleep`].

mod abi;
mod domain;
mod endpoint;
mod environment;
mod gate;
mod library;
mod needs;

pub use domain::{Domain, Notice};
pub use endpoint::{Endpoint, Happened, MAX_ADDRESS, PIECE, Target};
pub use library::{FabricError, Provider, providers};
