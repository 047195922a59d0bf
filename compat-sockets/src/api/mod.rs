//! The same sockets for Rust programs, without preloading anything.
//!
//! [`VmmcStream`] and [`VmmcListener`] are used as `std::net::TcpStream` and `TcpListener` are. A
//! connection whose both ends take part (another `VmmcStream`, or any program under
//! `shrimp exec --sockets`) moves to shared memory by itself; every other one is plain TCP.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use vmmc_sockets::{VmmcListener, VmmcStream};
//!
//! let listener = VmmcListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let server = std::thread::spawn(move || {
//!     let (mut stream, _) = listener.accept()?;
//!     let mut question = [0; 5];
//!     stream.read_exact(&mut question)?;
//!     stream.write_all(&question)
//! });
//! let mut stream = VmmcStream::connect(address)?;
//! stream.write_all(b"hello")?;
//! let mut answer = [0; 5];
//! stream.read_exact(&mut answer)?;
//! assert_eq!(&answer, b"hello");
//! server.join().expect("no panic")?;
//! # std::io::Result::Ok(())
//! ```
//!
//! Depend on this crate with `default-features = false`: the feature `preload` makes the C
//! functions of the preload library part of your program. The feature `tokio` adds
//! `AsyncVmmcStream` and `AsyncVmmcListener`.
//!
//! The settings are those of the preload library (`VMMC_SOCKET`, `VMMC_SOCKETS=off`,
//! `VMMC_SPIN_US` ...). Unlike it, a program that uses these types starts the user's daemon if none
//! runs, unless `VMMC_DAEMON=none`.

mod listener;
mod stream;
#[cfg(feature = "tokio")]
mod tokio;

pub use listener::{Incoming, VmmcListener};
pub use stream::VmmcStream;
#[cfg(feature = "tokio")]
pub use tokio::{AsyncVmmcListener, AsyncVmmcStream};

use crate::{fd_table, real};
use std::io;
use std::sync::Once;

/// Makes the library ready in this process, once.
fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        crate::load();
        #[cfg(any(test, not(feature = "preload")))]
        {
            extern "C" fn at_exit() {
                crate::unload();
            }
            // SAFETY: the function lives as long as the program.
            unsafe { libc::atexit(at_exit) };
        }
        start_daemon();
    });
}

/// Starts the user's daemon if none runs. Without one, connections are plain TCP.
fn start_daemon() {
    if let Ok(config) = vmmc::config::Config::from_env()
        && config.sockets
    {
        drop(vmmc::control::Connection::open(&config));
    }
}

/// The result of one of our C functions.
fn check(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(real::errno()))
}

/// Follows a socket from now on.
fn follow(fd: i32, nonblocking: bool) {
    start();
    if !matches!(fd_table::get(fd), fd_table::Known::Sock(_)) {
        fd_table::track(fd, nonblocking);
    }
}
