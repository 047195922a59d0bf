//! Sun RPC at memory speed, for programs that know nothing of it (the paper's VRPC, seed 003
//! section 4.2).
//!
//! `LD_PRELOAD=libvrpc.so` puts this library before libtirpc. The program, its rpcgen stubs and
//! libtirpc stay as they are; what changes is where a record travels:
//!
//! ```text
//!   stub ─▶ clnt_call ─▶ XDR ══▶ ring in a shared segment ══▶ XDR ─▶ dispatch ─▶ service
//!              │                                                       ▲
//!              └──▶ stock libtirpc over TCP (everybody else) ──────────┘
//! ```
//!
//! # The life of a channel
//! 1. The program makes a client over TCP; libtirpc does so as ever ([`clnt`]).
//! 2. On that connection the client calls procedure 0 with a private auth flavor ([`offer`]). A
//!    server without us rejects the flavor, and the client stays stock.
//! 3. A server with us offers the connection to the daemon and accepts; the client does the same,
//!    and both get a segment with two rings, and each other's doorbell ([`daemon`]).
//! 4. From then on a call is encoded straight into one ring and decoded straight out of it
//!    ([`channel`]); the reply the same way back. The TCP connection stays: its end is the
//!    channel's end.
//! 5. A server that sleeps in `poll` or `select` is woken by one doorbell per process, which
//!    libtirpc watches like any transport ([`svc`]).
//!
//! # From Rust
//! [`Client`] and [`Server`] speak to stock peers over TCP and UDP, and use a ring with those that have
//! this library; [`rpcbind`] finds and registers programs. Values are those of [`xdr`], stubs those of
//! `rpc-idl`.
//!
//! # Rules of this library
//! * No panic reaches a C caller; what goes wrong leaves the program with stock libtirpc.
//! * What the peer can write is never trusted: positions and lengths are loaded once and checked.
//!   A peer that writes nonsense loses its own channel and connection.
//! * System calls go through rustix.

// What only the exported functions reach is not reached where they are not exported.
#![cfg_attr(any(test, not(feature = "preload")), allow(dead_code))]

mod abi;
mod channel;
pub mod client;
mod clnt;
pub mod counters;
mod daemon;
mod entry;
mod handle;
pub mod msg;
mod offer;
mod real;
mod record;
pub mod rpcbind;
pub mod server;
mod settings;
mod svc;

pub use client::Client;
pub use server::Server;
pub use xdr;

/// Runs when the library is loaded.
extern "C" fn load() {
    // Made before any fork: what it tells apart are children of this process.
    let _ = vmmc::sys::fork::ForkGuard::get();
    settings::init();
    counters::PAGE.init();
    daemon::make_room();
}

/// Runs when the process exits in the ordinary way.
extern "C" fn unload() {
    if let Some(path) = settings::get().and_then(|settings| settings.report.as_deref()) {
        counters::PAGE.report(path);
    }
}

#[cfg(all(not(test), feature = "preload"))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

#[cfg(all(not(test), feature = "preload"))]
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
