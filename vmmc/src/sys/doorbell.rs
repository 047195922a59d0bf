//! A doorbell: a pipe whose bytes mean nothing but "look again".
//!
//! The owner keeps both ends: it polls the read end, and rings itself through the write end when
//! one of its threads has news for another. Peers get write ends of their own from the daemon
//! (see DESIGN.md for why it is a pipe).

use super::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::pipe::PipeFlags;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The owner's side.
#[derive(Debug)]
pub struct Doorbell {
    /// Non-blocking, polled by at most one sleeper at a time.
    read: Fd,
    /// Non-blocking; a copy goes to the daemon.
    write: Fd,
}

impl Doorbell {
    /// A doorbell nobody has rung.
    ///
    /// # Errors
    /// As pipe2(2).
    pub fn new() -> rustix::io::Result<Doorbell> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Doorbell { read: read.into(), write: write.into() })
    }

    /// The end to give to the daemon.
    #[must_use]
    pub fn write_end(&self) -> &Fd {
        &self.write
    }

    /// The end that becomes readable when somebody rings.
    #[must_use]
    pub fn read_end(&self) -> &Fd {
        &self.read
    }

    /// Sleeps until somebody has rung; false when `deadline` came first, or a signal.
    ///
    /// # Errors
    /// As poll(2), without `EINTR`.
    pub fn wait(&self, deadline: Option<Instant>) -> rustix::io::Result<bool> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match poll(&mut [PollFd::new(&self.read, PollFlags::IN)], timeout.as_ref()) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Takes the rings out. Bounded work: a peer that keeps ringing is read again later.
    pub fn drain(&self) {
        let mut bytes = [0u8; 4096];
        for _ in 0..16 {
            match rustix::io::read(&self.read, &mut bytes) {
                Ok(len) if len == bytes.len() => {}
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }

    /// Rings oneself.
    pub fn ring_self(&self) {
        ring(&self.write);
    }
}

/// Rings a doorbell. Nothing is lost when its pipe is full: it is readable then. Nothing happens
/// when its owner is gone: no error, and no `SIGPIPE` either.
/// One system call where the kernel can write without `SIGPIPE` (Linux 6.18), four elsewhere.
pub fn ring(write_end: impl AsFd) {
    if !ring_quietly(&write_end) {
        ring_masked(&write_end);
    }
}

/// For kernels that cannot write without the signal.
fn ring_masked(write_end: impl AsFd) {
    let _quiet = NoSigpipe::new();
    while rustix::io::write(&write_end, &[1]) == Err(Errno::INTR) {}
}

/// pwritev2(2)'s `RWF_NOSIGNAL`.
const RWF_NOSIGNAL: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x100);
/// Whether the kernel may know it: until it has said that it does not.
static QUIET_WRITES: AtomicBool = AtomicBool::new(true);

/// False: nothing was written, for the kernel knows no such write.
fn ring_quietly(write_end: impl AsFd) -> bool {
    while QUIET_WRITES.load(Ordering::Relaxed) {
        // At the present position (-1): a pipe has no other.
        match rustix::io::pwritev2(&write_end, &[IoSlice::new(&[1])], u64::MAX, RWF_NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
                QUIET_WRITES.store(false, Ordering::Relaxed);
            }
            _ => return true,
        }
    }
    false
}

/// Keeps a `SIGPIPE` raised by this thread meanwhile from being delivered.
struct NoSigpipe {
    /// The thread's signal mask before, as the kernel keeps it.
    before: u64,
}

const SIGPIPE_BIT: u64 = 1 << (libc::SIGPIPE - 1);

fn sigmask(how: libc::c_int, set: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both pointers are to eight-byte masks, the size named in the last argument. The raw
    // call, because an interposer above may export the C symbol.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const set, &raw mut before, 8usize)
    };
    before
}

impl NoSigpipe {
    fn new() -> NoSigpipe {
        NoSigpipe { before: sigmask(libc::SIG_BLOCK, SIGPIPE_BIT) }
    }
}

impl Drop for NoSigpipe {
    fn drop(&mut self) {
        if self.before & SIGPIPE_BIT != 0 {
            return; // it was blocked already: not ours to take
        }
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let set = SIGPIPE_BIT;
        // SAFETY: an eight-byte mask, no siginfo wanted, a valid timeout.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigtimedwait,
                &raw const set,
                std::ptr::null_mut::<libc::siginfo_t>(),
                &raw const at_once,
                8usize,
            )
        };
        sigmask(libc::SIG_SETMASK, self.before);
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rings_are_heard_once_and_drained_together() {
        let bell = Doorbell::new().unwrap();
        let soon = || Some(Instant::now() + Duration::from_millis(1));
        assert!(!bell.wait(soon()).unwrap());
        ring(bell.write_end());
        bell.ring_self();
        assert!(bell.wait(soon()).unwrap());
        bell.drain();
        assert!(!bell.wait(soon()).unwrap());
        ring_masked(bell.write_end());
        assert!(bell.wait(soon()).unwrap());
    }

    #[test]
    fn a_full_doorbell_and_one_without_owner_are_rung_without_harm() {
        let test = "a_full_doorbell_and_one_without_owner_are_rung_without_harm";
        if !crate::testing::alone(&format!("sys::doorbell::tests::{test}")) {
            return;
        }
        let bell = Doorbell::new().unwrap();
        for _ in 0..70_000 {
            bell.ring_self();
        }
        assert!(bell.wait(Some(Instant::now())).unwrap());
        let orphan = bell.write_end().try_clone().unwrap();
        drop(bell);
        // SAFETY: sets the disposition of one signal, in a process that has no other test.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        ring(&orphan); // would end this process
        ring_masked(&orphan); // as on an older kernel
    }
}
