//! Signals as something to read, and whose the terminal is.
#![allow(unsafe_code)] // signal masks and signalfd are the C library's

use rustix::process::{Pid, Signal};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Signals that are passed on to the nodes.
const PASSED: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
];

/// A descriptor that signals come from. They are blocked in this process; programs that it starts
/// have none blocked.
#[derive(Debug)]
pub(super) struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals of the calling thread, and of those it starts from now on.
    pub(super) fn catch() -> std::io::Result<Signals> {
        // SAFETY: an all-zero set is a valid value to fill in.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        for signal in PASSED.into_iter().chain([libc::SIGCHLD, libc::SIGTTOU]) {
            // SAFETY: `set` is ours.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        // SAFETY: as above; the old mask is not wanted.
        let blocked =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if blocked != 0 {
            return Err(std::io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: as above.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        Ok(Signals { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Waits for at least one.
    pub(super) fn wait(&self) -> Vec<Signal> {
        let mut fds = [rustix::event::PollFd::new(&self.fd, rustix::event::PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, None);
        self.take().into_iter().map(|(signal, _)| signal).collect()
    }

    /// Those that have come, and whether a process sent it (and not a key on the terminal).
    pub(super) fn take(&self) -> Vec<(Signal, bool)> {
        let mut all = Vec::new();
        let mut buffer = [0_u8; size_of::<libc::signalfd_siginfo>()];
        while let Ok(len) = rustix::io::read(&self.fd, &mut buffer) {
            if len != buffer.len() {
                break;
            }
            let word = |at: usize| buffer.get(at..at + 4).and_then(|b| b.try_into().ok());
            // signalfd(2): ssi_signo, ssi_errno, ssi_code.
            let number = word(0).map_or(0, u32::from_ne_bytes) as i32;
            let code = word(8).map_or(0, i32::from_ne_bytes);
            all.extend(Signal::from_named_raw(number).map(|signal| (signal, code <= 0)));
        }
        all
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes `group` the foreground of the terminal. SIGTTOU is blocked, or this would stop us.
pub(super) fn take_terminal(group: Pid) {
    let _ = rustix::termios::tcsetpgrp(std::io::stdin(), group);
}
