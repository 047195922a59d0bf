//! SIGTERM and SIGINT as a readable descriptor.

use super::Fd;
use std::os::fd::{FromRawFd, OwnedFd};

/// Blocks SIGTERM, SIGINT and SIGHUP for this thread and those it will start, and returns a descriptor that is
/// readable once one has arrived. SIGPIPE is ignored by the Rust runtime already.
///
/// # Errors
/// As signalfd(2).
pub fn termination() -> std::io::Result<Fd> {
    // SAFETY: an all-zero sigset_t is valid memory to be initialised by sigemptyset.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a sigset_t of this function's own.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: `set` was initialised above and the signal numbers are valid.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: `set` is initialised; a null old set is allowed.
    let rc =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if rc != 0 {
        return Err(std::io::Error::from_raw_os_error(rc));
    }
    // SAFETY: `set` is initialised; -1 asks for a new descriptor.
    let raw = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) }.into())
}
