//! Stream sockets at memory speed, for programs that know nothing of it.
//!
//! `LD_PRELOAD=libvmmc_sockets.so` puts this library under an unmodified program. A TCP
//! connection between two such programs of one machine keeps its kernel socket for everything
//! but the bytes: names, options, errors, FIN and RST, readiness, life and death. The bytes go
//! through two rings in a shared segment.
//!
//! ```text
//!   program ── send ─▶ entry ─▶ fd_table ─▶ ring in the segment ─▶ ... ─▶ recv ── program
//!                                   │             (stream)
//!                                   └────▶ kernel TCP: prefix, doorbells, FIN, RST
//! ```
//!
//! # The life of a connection
//! 1. After `connect` and `accept`, data flows by TCP. Nobody waits, nothing is sent in-band.
//! 2. After 32 data calls or 1 MiB each end offers its socket to the daemon, which reads the
//!    addresses from the kernel itself and pairs the two ends ([`upgrade`]).
//! 3. Each end maps the segment when the answer comes, and says `ready` once no thread of it can
//!    take a doorbell for data ([`segment`]).
//! 4. Each sender moves its direction to the ring by itself: it stores how many bytes it gave to
//!    TCP, and every later byte on TCP is a doorbell ([`vmmc_ring::switch`]).
//! 5. A receiver that is about to sleep arms a word; a sender that finds it armed sends one byte
//!    by TCP, so `poll`, `epoll` and a blocked `recv` wake by the kernel's own means
//!    ([`stream`]).
//! 6. A sender can go back to TCP at any byte ([`stream::demote`]).
//!
//! Whatever is missing or goes wrong on the way, the connection stays plain TCP, with the reason
//! counted ([`counters`]). What each call does is in `SUPPORT.md`.
//!
//! # Rules of this library
//! * System calls of its own go through [`raw`] or rustix, never through libc symbols, which
//!   are hooks here.
//! * No panic, no allocation and no lock across a blocking call on data paths; what is allocated elsewhere is not from
//!   the program's heap (`heap.rs`).
//! * What the peer can write is never trusted ([`segment`], [`side`]).

// What only the exported functions reach is not reached where they are not exported.
#![cfg_attr(any(test, not(feature = "preload")), allow(dead_code))]

mod api;
mod bulk;
mod carrier;
mod close;
mod control;
pub mod counters;
pub mod entry;
mod epoll;
mod family;
mod fd_table;
mod few;
mod file;
mod fork;
mod heap;
mod io_uring;
mod lock;
mod offers;
mod owner;
mod parked;
mod poll;
mod raw;
mod real;
mod segment;
mod select;
mod settings;
mod side;
mod sleeps;
mod sock;
mod stream;
mod untold;
mod upgrade;
mod user_memory;

pub use api::*;

/// Runs when the library is loaded, or first used.
extern "C" fn load() {
    static LOADED: std::sync::Once = std::sync::Once::new();
    LOADED.call_once(init);
}

fn init() {
    real::resolve_all();
    settings::init();
    counters::init();
    fork::init();
    owner::init();
    control::init();
}

/// Runs when the process exits in the ordinary way.
extern "C" fn unload() {
    close::at_exit();
    if let Some(path) = settings::get().and_then(|settings| settings.report.as_deref()) {
        counters::report(path);
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

/// A test that holds it has what the process has once to itself: the conversation with the daemon, the sides, the
/// offers, what is untold.
#[cfg(test)]
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
