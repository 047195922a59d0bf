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

/// A descriptor that signals come from. They are blocked in this process; in programs that it
/// starts they are blocked too, unless [`Mask::restore`] is called between fork and exec.
#[derive(Debug)]
pub(super) struct Signals {
    fd: OwnedFd,
    before: Mask,
}

/// The signals that were blocked when we were started.
#[derive(Clone, Copy)]
pub(super) struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl Mask {
    /// Blocks these and no others. May be called between fork and exec.
    pub(super) fn restore(&self) {
        // SAFETY: the set is whole; the old mask is not wanted.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
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
        // SAFETY: as above.
        let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: both sets are ours.
        let blocked =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
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
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd, before: Mask(before) })
    }

    /// What programs that we start shall have blocked.
    pub(super) fn before(&self) -> Mask {
        self.before
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
