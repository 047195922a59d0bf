//! Threads that a library makes inside somebody else's program.

use std::thread::JoinHandle;

/// Starts a thread with every signal blocked, so that it takes none from the program.
///
/// # Errors
/// As pthread_create(3).
pub fn spawn_quiet(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, rustix::io::Errno> {
    // SAFETY: an all-zero signal set is a valid place for sigfillset to write.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(&raw mut all) };
    let mut before = all;
    // SAFETY: both are valid sets. A thread inherits the mask of its maker at that moment.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let result = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    // SAFETY: `before` is the mask that was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result.map_err(|error| {
        rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN)
    })
}
