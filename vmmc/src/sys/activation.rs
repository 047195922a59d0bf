//! Descriptors that a service manager passes to a program that it starts (sd_listen_fds(3)).

use super::Fd;
use rustix::io::{Errno, FdFlags};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

const LISTEN_FDS_START: i32 = 3;

/// One descriptor with the name that the service manager gave or keeps it under.
#[derive(Debug)]
pub struct Passed {
    /// From `LISTEN_FDNAMES`; "unknown" without one.
    pub name: String,
    /// Close-on-exec by now.
    pub fd: Fd,
}

/// Takes the descriptors that were passed to this process, in order; none when nothing was passed, to
/// another process, or at a second call. To be called before the program opens anything: by
/// the protocol the numbers from 3 on are then those that were passed.
///
/// # Errors
/// The number of a descriptor that should have been passed and is not open.
pub fn take_passed() -> Result<Vec<Passed>, (i32, Errno)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<i32>().ok());
    let us = rustix::process::getpid().as_raw_nonzero().get();
    if number("LISTEN_PID") != Some(us) || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut all = Vec::new();
    let end = LISTEN_FDS_START.saturating_add(number("LISTEN_FDS").unwrap_or(0).max(0));
    for raw in LISTEN_FDS_START..end {
        // SAFETY: only looked at, and only here; an error when it is not open.
        let there = unsafe { BorrowedFd::borrow_raw(raw) };
        rustix::io::fcntl_setfd(there, FdFlags::CLOEXEC).map_err(|errno| (raw, errno))?;
        // SAFETY: open, this process's own by the protocol, and taken once.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) }.into();
        let name = names.next().filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned();
        all.push(Passed { name, fd });
    }
    Ok(all)
}
