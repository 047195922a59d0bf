//! How processes become the nodes of an application, and how the application ends as one.
//!
//! ```text
//!            shrimp run -n 4 -- prog          prog -sz 4            nx_initve + nx_nfork
//!                  |  exec                       |  fork                  |  fork
//!        environment (Job) + control       the same, inherited      the same, inherited
//!                  v                             v                        v
//!            node 0 .. node 3   --- Abort, Kill, Add, Finished --->  Supervisor (in the parent)
//! ```
//!
//! * A process learns who it is from its [`Job`]: name, capability token, size, node, process
//!   type. It comes through the environment ([`mod@env`]), from an MPI launcher by PMI ([`pmi`]), or
//!   is inherited over `fork`.
//! * A [`control`] channel leads from each process to the [`supervise::Supervisor`] of the
//!   application. One process that dies or gives up ends them all; a supervisor that dies takes
//!   them with it (the channel closes, and the kernel signals the death of the parent).
//! * NX switches (`-sz 4` and the like) are taken out of the arguments by [`switches`].
//!
//! Nothing here moves a message: links between processes are the engine's.

pub mod control;
mod identity;
pub mod pmi;
pub mod supervise;
pub mod switches;

pub use identity::{Job, JobError, Late, MAX_ID, MAX_NODES, env};
