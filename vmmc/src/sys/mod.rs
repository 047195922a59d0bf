//! Thin wrappers over system calls: no policy, no protocol.
//!
//! What the data path and the sockets library use goes through rustix's raw backend (or a raw
//! `syscall`), never through a libc symbol that an interposer built on this crate may itself
//! export. ([`process`] uses `getsockopt` of libc: it is for the daemon and for set-up.)

pub mod activation;
pub mod bell_line;
pub mod doorbell;
pub mod fd;
pub mod fork;
pub mod futex;
pub mod membarrier;
pub mod memfd;
pub mod memory;
pub mod mirror;
pub mod mmap;
pub mod namespace;
pub mod own;
pub mod packet;
pub mod process;
pub mod sched;
pub mod signal;
pub mod socket;
pub mod thread;
pub mod track;

pub use fd::Fd;
