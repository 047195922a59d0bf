//! Virtual memory-mapped communication (VMMC).
//!
//! One process **exports** a buffer of its memory; another **imports** it. From then on the importer
//! writes straight into the exporter's memory, with plain stores and no system call, and the
//! exporter sees it by loading a flag. A daemon, `vmmcd`, is asked for permission once, at the import; the
//! processor's memory management does the rest.
//!
//! ```no_run
//! use vmmc::{Node, Region, Rights, Who};
//!
//! # fn exporter() -> Result<(), Box<dyn std::error::Error>> {
//! // In one process:
//! let node = Node::connect()?; // starts a daemon if there is none
//! let export = node
//!     .export(Region::new(4096)?)
//!     .name("hello")
//!     .grant(Who::SameUser, Rights::WRITE)
//!     .open()?;
//! let len = export.flag32(64)?.wait_until(|len| len > 0, None)?;
//! # Ok(()) }
//! # fn importer() -> Result<(), Box<dyn std::error::Error>> {
//! // In another:
//! let node = vmmc::Node::connect()?;
//! let import = node.import("hello").open()?; // waits until it is exported
//! import.send(0, b"Hello, world!")?;
//! import.flag32(64)?.signal(13)?;
//! # Ok(()) }
//! ```
//!
//! # Two ways to write
//! * **Deliberate update**: [`Import::send`] and its relatives copy from anywhere.
//! * **Automatic update**: [`Import::bind`] maps a range of the buffer, [`Import::bind_at`] puts it over
//!   memory that exists; every store to it is there. To an export of another node
//!   ([`ImportBuilder::node`]) an explicit writer does it, [`Import::auto_update`], or the kernel is asked which
//!   pages were stored to: [`Import::track`].
//!
//! # Two ways to notice
//! * **Flags** ([`Flag`]): the receiver loads a word, or waits for it.
//! * **Notifications** ([`Notification`]): the receiver's handler runs after the data is there.
//!
//! Nothing here manages buffers: rings, slots and credits belong to the libraries above.
//!
//! # What the other side can do to us
//! It may write anything into what it can map, at any time, or die. The worst that follows is an error on that
//! one link. Memory that a peer can write is never a Rust reference: see [`mem`].
//!
//! # Modules
//! Each uses only those before it: [`id`], [`config`], [`sync`], [`sys`], [`layout`], [`mem`], [`word`],
//! [`fabric`], [`counters`], [`wait`], [`control`], [`transport`], and then the objects named above.

#![deny(unsafe_code)]

pub mod config;
pub mod control;
pub mod counters;
#[allow(unsafe_code)]
pub mod fabric;
pub mod id;
#[allow(unsafe_code)]
pub mod layout;
#[allow(unsafe_code)]
pub mod mem;
#[allow(unsafe_code)]
pub mod sync;
#[allow(unsafe_code)]
pub mod sys;
pub mod wait;
#[allow(unsafe_code)]
pub mod word;

mod hub;
#[allow(unsafe_code)] // swaps its own page in place
pub mod library_page;
pub mod notes;

pub mod transport;

mod auto_update;
mod binding;
mod enable;
pub mod error;
mod export;
mod flag;
mod handler;
mod import;
mod landing;
mod local;
mod node;
mod notify;
mod peer;
mod process;
mod roll;
mod send;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod tracked;

pub use auto_update::{AutoUpdate, Combining, Run};
pub use binding::{Binding, Initial};
pub use config::Config;
pub use control::message::CloseReason;
pub use export::{Export, ExportBuilder, ExportSummary, Importer, Withdrawal};
pub use flag::Flag;
pub use id::{Grant, Name, PeerInfo, Rights, Token, Who};
pub use import::{Import, ImportBuilder, ImportSummary, PendingImport};
pub use landing::Landed;
pub use mem::Region;
pub use node::{HandlerThread, Look, Node, NodeBuilder};
pub use notify::{Event, Handler, Notification};
pub use send::Completion;
pub use tracked::{Tracked, Tracking};
pub use transport::Load;
