//! A doorbell: a descriptor that becomes readable when somebody rings, and counts nothing.
//!
//! It is an epoll descriptor that its owner polls, and in it an eventfd for each who may ring: a *button*. The daemon makes
//! the buttons of others and puts them in; the owner never has them, nor one ringer another's. So nothing that any of them
//! does with a descriptor of its own keeps a ringer from ringing, or makes it wait (see DESIGN.md for what was rejected).
//!
//! ```text
//!   ringer ── write ──▶ button (eventfd) ──┐ edge-triggered
//!   ringer ── write ──▶ button (eventfd) ──┴▶ doorbell (epoll) ──▶ owner polls
//! ```
//!
//! A button is never read: each write is an edge, and taking the edges out of the doorbell silences it.

use super::Fd;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Instant;

/// The owner's side.
#[derive(Debug)]
pub struct Doorbell {
    /// Polled by at most one sleeper at a time; a copy goes to the daemon.
    set: Fd,
    /// The owner's own button.
    own: Fd,
}

impl Doorbell {
    /// A doorbell nobody has rung.
    ///
    /// # Errors
    /// As epoll_create1(2), epoll_ctl(2) and eventfd(2).
    pub fn new() -> rustix::io::Result<Doorbell> {
        let set = Fd::from(epoll::create(CreateFlags::CLOEXEC)?);
        let own = button(0)?;
        install(&set, &own)?;
        Ok(Doorbell { set, own })
    }

    /// What becomes readable when somebody rings, and what the daemon puts buttons in.
    #[must_use]
    pub fn fd(&self) -> &Fd {
        &self.set
    }

    /// A further button.
    ///
    /// # Errors
    /// As epoll_ctl(2) and eventfd(2).
    pub fn button(&self) -> rustix::io::Result<Fd> {
        let button = button(0)?;
        install(&self.set, &button)?;
        Ok(button)
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
        match poll(&mut [PollFd::new(&self.set, PollFlags::IN)], timeout.as_ref()) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Takes the rings out. Bounded work: a peer that keeps ringing is heard again later.
    pub fn drain(&self) {
        const AT_ONCE: usize = 64;
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); AT_ONCE];
        for _ in 0..16 {
            match epoll::wait(&self.set, &mut space[..], Some(&NOW)) {
                Ok((taken, _)) if taken.len() == AT_ONCE => {}
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }

    /// Rings oneself.
    pub fn ring_self(&self) {
        ring(&self.own);
    }
}

/// A new button, which belongs to no doorbell yet. With `rung` other than 0 it rings as it is put in.
///
/// # Errors
/// As eventfd(2).
pub fn button(rung: u32) -> rustix::io::Result<Fd> {
    eventfd(rung, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Fd::from)
}

/// Puts a button into a doorbell. What was rung before is heard now.
///
/// May wait as long as the doorbell's owner likes: the kernel holds the descriptor's lock while it tells the owner of edges, and the memory
/// it writes that to may be somebody's who never gives it.
///
/// # Errors
/// As epoll_ctl(2): `EINVAL` for what is no doorbell.
pub fn install(doorbell: impl AsFd, button: impl AsFd) -> rustix::io::Result<()> {
    epoll::add(doorbell, button, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)
}

/// Takes a button out of a doorbell; may wait as [`install`].
///
/// # Errors
/// As epoll_ctl(2).
pub fn remove(doorbell: impl AsFd, button: impl AsFd) -> rustix::io::Result<()> {
    epoll::delete(doorbell, button)
}

/// Presses a button. Waits for nobody, and does no harm where the doorbell is gone. One system call.
pub fn ring(button: impl AsFd) {
    while rustix::io::write(&button, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(1))
    }

    #[test]
    fn rings_are_heard_once_and_drained_together() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.wait(soon()).unwrap());
        let button = bell.button().unwrap();
        for _ in 0..3 {
            ring(&button);
            bell.ring_self();
            assert!(bell.wait(soon()).unwrap());
            assert!(bell.wait(soon()).unwrap(), "heard until it is drained");
            bell.drain();
            assert!(!bell.wait(soon()).unwrap());
        }
    }

    #[test]
    fn many_buttons_are_drained_together() {
        let bell = Doorbell::new().unwrap();
        let buttons: Vec<Fd> = (0..200).map(|_| bell.button().unwrap()).collect();
        buttons.iter().for_each(ring);
        bell.drain();
        assert!(!bell.wait(soon()).unwrap());
        buttons.iter().for_each(ring);
        assert!(bell.wait(soon()).unwrap());
    }

    #[test]
    fn what_was_rung_before_is_heard_as_the_button_is_put_in() {
        let bell = Doorbell::new().unwrap();
        for (at_first, rings, heard) in [(0, 0, false), (0, 1, true), (1, 0, true)] {
            let button = button(at_first).unwrap();
            (0..rings).for_each(|_| ring(&button));
            install(bell.fd(), &button).unwrap();
            assert_eq!(bell.wait(soon()).unwrap(), heard);
            bell.drain();
            remove(bell.fd(), &button).unwrap();
            ring(&button);
            assert!(!bell.wait(soon()).unwrap());
        }
        assert_eq!(install(button(0).unwrap(), bell.fd()), Err(Errno::INVAL), "no doorbell");
    }

    #[test]
    fn one_without_owner_is_rung_without_harm() {
        let bell = Doorbell::new().unwrap();
        let orphan = bell.button().unwrap();
        drop(bell);
        ring(&orphan);
    }
}
