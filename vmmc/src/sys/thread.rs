//! Threads that a library makes inside somebody else's program.

use std::thread::{Builder, JoinHandle};

/// Starts a thread with every signal blocked, so that it takes none from the program.
///
/// # Errors
/// As pthread_create(3).
pub fn spawn_quiet(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, rustix::io::Errno> {
    spawn_quiet_by(Builder::new().name(name.to_owned()), body)
}

/// As [`spawn_quiet`], with a name and a stack as the builder says.
///
/// # Errors
/// As pthread_create(3).
pub fn spawn_quiet_by(
    builder: Builder,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, rustix::io::Errno> {
    // SAFETY: an all-zero signal set is a valid place for sigfillset to write.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(&raw mut all) };
    let mut before = all;
    // SAFETY: both are valid sets. A thread inherits the mask of its maker at that moment.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let result = builder.spawn(body);
    // SAFETY: `before` is the mask that was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result.map_err(|error| {
        rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN)
    })
}

/// Has the calling thread take the signals again that its own instructions cause, and no others: for a quiet thread that runs the
/// program's code.
pub fn take_faults() {
    // SAFETY: a set of signals may hold anything before it is emptied.
    let mut faults: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours.
    unsafe { libc::sigemptyset(&raw mut faults) };
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
        // SAFETY: as above.
        unsafe { libc::sigaddset(&raw mut faults, signal) };
    }
    // SAFETY: of this thread alone; the old set is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const faults, std::ptr::null_mut()) };
}
