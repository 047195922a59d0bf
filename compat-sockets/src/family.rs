//! Which processes have a socket that was not yet upgraded when its process forked.
//!
//! While several have it, it stays plain: which process takes which byte from TCP could not be told
//! apart at the switch. But most servers that fork for a connection close it in the parent, and
//! children of other kinds end soon. So the processes are listed in memory that they share, and
//! the last that has the socket may offer it.
//!
//! ```text
//!   before fork    born + 1
//!   child          its pid into a free place, then born - 1
//!   last close     its pid out
//!   asking         I am alone when born is 0 and every other pid in the list is dead
//! ```
//!
//! A process that was killed is dead by its pid; one that ran another program lives on, and may
//! have the socket still. A pid that was reused keeps the socket plain, which is always safe.

use crate::raw;
use crate::side::{self, Side};
use crate::sock::Sock;
use vmmc::sync::Ordering;

/// Before a fork: the child will have the socket too. False when that cannot be written down.
pub(crate) fn before_fork(sock: &Sock) -> bool {
    let family = match sock.family() {
        Some(family) => family,
        None => {
            let Some(family) = side::allocate() else { return false };
            if let Some(first) = family.members.first() {
                first.store(raw::getpid(), Ordering::SeqCst);
            }
            sock.set_family(Some(family));
            family
        }
    };
    // The child's share of the memory, and its place.
    family.sharers.fetch_add(1, Ordering::AcqRel);
    family.born.fetch_add(1, Ordering::SeqCst);
    true
}

/// In the forked child. False when there is no place: the socket must stay plain.
pub(crate) fn in_child(sock: &Sock) -> bool {
    let Some(family) = sock.family() else { return false };
    if raw::getppid() == 0 {
        // A new namespace of pids: the others' numbers mean nothing here.
        return false;
    }
    let pid = raw::getpid();
    let taken = family.members.iter().any(|member| {
        let held = member.load(Ordering::SeqCst);
        (held == 0 || !raw::thread_exists(held))
            && member.compare_exchange(held, pid, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    });
    if taken {
        family.born.fetch_sub(1, Ordering::SeqCst);
    }
    taken
}

/// Whether this process is the only one that has the socket.
pub(crate) fn is_alone(sock: &Sock) -> bool {
    let Some(family) = sock.family() else { return true };
    let me = raw::getpid();
    family.born.load(Ordering::SeqCst) == 0
        && family.members.iter().all(|member| {
            let pid = member.load(Ordering::SeqCst);
            pid == 0 || pid == me || !raw::thread_exists(pid)
        })
}

/// This process has closed the socket.
pub(crate) fn leave(sock: &Sock) {
    let Some(family) = sock.family() else { return };
    sock.set_family(None);
    let me = raw::getpid();
    for member in &family.members {
        let _ = member.compare_exchange(me, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
    side::release(family);
}

/// The part of a [`Side`] that a family uses.
pub(crate) type Family = &'static Side;
