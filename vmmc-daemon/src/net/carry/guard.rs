//! Ends carried connections in the place of a daemon that is killed.
//!
//! A daemon that dies takes along what it had of its connections, and the other node's daemon tells both ends. Two that are
//! killed at the same moment could tell nobody: the ends' own connection is the kernel's, and stands, so a receiver
//! that sleeps on it would sleep for ever. The library cannot watch the daemon for it: it has no thread of its own,
//! and sleeps in the program's call, where a doorbell of another descriptor does not reach it.
//!
//! So each daemon that carries has a process beside it, which does nothing but hold a copy of the sockets whose bytes go by
//! rings. It is this program again, told by a socket pair what to hold and what to let go of. The pair's end without a
//! farewell is the daemon's death; then it resets what it holds, and ends. Should it die itself, the daemon starts
//! another, which is given everything again. Who kills both together (the whole control group, say) has to tell the
//! programs himself.
//!
//! A packet is a number, whose meaning is the daemon's, the user, and what to do ([`Word`]), with the socket, and the
//! doorbell of a process that has one.

use super::attempt::Attempt;
use crate::doorbell::Button;
use crate::net::lock;
use crate::{receive, tcp};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use vmmc::sys::thread::spawn_quiet;
use vmmc::sys::{Fd, doorbell, packet, signal};

/// The argument by which the program knows that it is to be this.
pub(super) const ARGUMENT: &str = "--guard";
/// One that lived for less is not followed by another before there is something new to hold.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// How long the last connections may take to end: somebody may be inside a call on one.
const ENDING: Duration = Duration::from_secs(10);

/// What the daemon says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// Hold this; should I die, reset it.
    Reset,
    /// The same, but shut it down: its end says by itself what has come.
    Shut,
    /// Let go of it.
    Forget,
    /// I end in order: let go of everything.
    Farewell,
}

const LEN: usize = 13;

fn encode(number: u64, uid: u32, word: Word) -> [u8; LEN] {
    let mut packet = [0; LEN];
    let (start, rest) = packet.split_at_mut(8);
    let (middle, end) = rest.split_at_mut(4);
    start.copy_from_slice(&number.to_ne_bytes());
    middle.copy_from_slice(&uid.to_ne_bytes());
    end.fill(word as u8);
    packet
}

fn decode(packet: &[u8]) -> Option<(u64, u32, Word)> {
    let (number, rest) = packet.split_first_chunk()?;
    let (uid, rest) = rest.split_first_chunk()?;
    let [word] = rest else { return None };
    let words = [Word::Reset, Word::Shut, Word::Forget, Word::Farewell];
    let word = words.into_iter().find(|known| *known as u8 == *word)?;
    Some((u64::from_ne_bytes(*number), u32::from_ne_bytes(*uid), word))
}

// ---- the daemon's side ----

#[derive(Debug, Default)]
struct State {
    /// To the guard; `None` when there is none.
    socket: Option<Fd>,
    held: HashMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    attempt: Weak<Attempt>,
    bell: Option<Button>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    state: Mutex<State>,
}

impl Guard {
    /// Has a process's socket reset, or shut down where it has a doorbell to look after that, should this daemon be killed.
    ///
    /// # Errors
    /// When there can be no guard, or it has no room.
    pub(super) fn hold(
        self: &Arc<Self>,
        number: u64,
        attempt: &Arc<Attempt>,
        bell: Option<&Button>,
    ) -> rustix::io::Result<()> {
        let mut state = lock(&self.state);
        if state.socket.is_none() {
            self.begin(&mut state)?;
        }
        let held = Held { attempt: Arc::downgrade(attempt), bell: bell.cloned() };
        state.send(number, &held)?;
        state.held.insert(number, held);
        drop(state);
        attempt.is_held_by(self.clone(), number);
        Ok(())
    }

    /// Nothing is to happen to it.
    pub(super) fn forget(&self, number: u64) {
        let mut state = lock(&self.state);
        if state.held.remove(&number).is_some()
            && let Some(socket) = &state.socket
        {
            // A guard that is gone holds nothing.
            let _ = packet::send(socket, &encode(number, 0, Word::Forget), &[], SendFlags::empty());
        }
    }

    /// This daemon ends in order.
    pub(crate) fn dismiss(&self) {
        let mut state = lock(&self.state);
        state.held.clear();
        if let Some(socket) = state.socket.take() {
            let _ = packet::send(socket, &encode(0, 0, Word::Farewell), &[], SendFlags::empty());
        }
    }

    fn start(self: &Arc<Self>) -> rustix::io::Result<Fd> {
        let (ours, theirs) = packet::pair()?;
        let errno = |error: std::io::Error| {
            Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EAGAIN))
        };
        let theirs = OwnedFd::from(theirs);
        let mut command = Command::new("/proc/self/exe");
        command.arg(ARGUMENT).stdin(theirs).stdout(Stdio::null()).current_dir("/");
        let guard = command.spawn().map_err(errno)?;
        let (daemon, began) = (Arc::downgrade(self), Instant::now());
        spawn_quiet("net-guard", move || wait(guard, began, &daemon))?;
        Ok(ours)
    }

    /// The guard has died, and this daemon has not ended.
    fn is_gone(self: &Arc<Self>, began: Instant) {
        let mut state = lock(&self.state);
        if state.socket.take().is_none() {
            return; // dismissed
        }
        tracing::warn!(held = state.held.len(), "the guard of carried connections has died");
        if state.held.is_empty() || began.elapsed() < SHORT_LIFE {
            return;
        }
        if let Err(errno) = self.begin(&mut state) {
            tracing::error!(%errno, "cannot start another");
        }
    }

    /// Starts one, which holds what the one before has held.
    fn begin(self: &Arc<Self>, state: &mut State) -> rustix::io::Result<()> {
        state.socket = Some(self.start()?);
        for (&number, held) in &state.held {
            if let Err(errno) = state.send(number, held) {
                tracing::warn!(%errno, "a carried connection has no guard");
            }
        }
        Ok(())
    }
}

impl State {
    fn send(&self, number: u64, held: &Held) -> rustix::io::Result<()> {
        let (Some(guard), Some(attempt)) = (&self.socket, held.attempt.upgrade()) else {
            return Ok(());
        };
        let Some(socket) = attempt.socket() else { return Ok(()) };
        let word = if held.bell.is_some() { Word::Shut } else { Word::Reset };
        let mut fds = vec![socket.as_fd()];
        fds.extend(held.bell.as_ref().map(|bell| bell.as_fd()));
        packet::send(guard, &encode(number, attempt.uid, word), &fds, SendFlags::empty())
    }
}

/// Waits for a guard's end.
fn wait(mut guard: Child, began: Instant, daemon: &Weak<Guard>) {
    let _ = guard.wait();
    if let Some(daemon) = daemon.upgrade() {
        daemon.is_gone(began);
    }
}

// ---- the guard ----

/// What the guard holds.
struct Kept {
    uid: u32,
    word: Word,
    socket: Fd,
    bell: Option<Fd>,
}

impl Kept {
    fn let_go(self) {
        let Kept { uid, socket, bell, .. } = self;
        for fd in std::iter::once(socket).chain(bell) {
            receive::close(uid, fd);
        }
    }

    /// The daemon is dead, and bytes may be lost.
    fn end(self) {
        let Kept { uid, word, socket, bell } = self;
        receive::apart(uid, move || {
            match word {
                Word::Reset => tcp::reset(socket.as_fd(), None),
                _ => drop(rustix::net::shutdown(&socket, Shutdown::Both)),
            }
            bell.iter().for_each(doorbell::ring);
        });
    }
}

/// The guard's whole life, at the other end of the socket pair that is its standard input.
///
/// # Errors
/// Without that.
pub fn run() -> std::io::Result<()> {
    // Whoever interrupts the daemon by its terminal means the daemon.
    let _signals = signal::termination()?;
    let socket = Fd::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut held: HashMap<u64, Kept> = HashMap::new();
    let mut buffer = [0; LEN];
    while let Ok(Some((len, mut fds))) = packet::receive(&socket, &mut buffer, RecvFlags::empty()) {
        let Some((number, uid, word)) = buffer.get(..len).and_then(decode) else { break };
        let before = match (word, fds.take()) {
            (Word::Farewell, _) => {
                held.drain().for_each(|(_, kept)| kept.let_go());
                None
            }
            (Word::Reset | Word::Shut, Some(socket)) => {
                held.insert(number, Kept { uid, word, socket, bell: fds.take() })
            }
            _ => held.remove(&number),
        };
        before.into_iter().for_each(Kept::let_go);
    }
    held.into_values().for_each(Kept::end);
    receive::settle(ENDING);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_daemon_says_is_what_the_guard_hears() {
        for word in [Word::Reset, Word::Shut, Word::Forget, Word::Farewell] {
            assert_eq!(decode(&encode(1 << 40 | 7, 1000, word)), Some((1 << 40 | 7, 1000, word)));
        }
        assert_eq!(decode(&encode(1, 1, Word::Reset)[1..]), None);
        let mut nonsense = encode(1, 1, Word::Reset);
        nonsense[LEN - 1] = 9;
        assert_eq!(decode(&nonsense), None);
    }
}
