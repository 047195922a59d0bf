//! `svc_run`: libtirpc's loop, that spins over the channels for a while before it sleeps.

use super::{Link, bell, ready, table};
use crate::{real, settings};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use vmmc::config::WaitPolicy;
use vmmc::sync::spin_hint;

/// Looks at the sockets once every so many looks at the rings.
const LOOKS_PER_POLL: u32 = 1024;
/// Rounds over rings that are never empty between two looks at the sockets.
const ROUNDS_PER_POLL: u32 = 64;
/// Looks at the rings between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 64;

static SPINNING: AtomicBool = AtomicBool::new(false);
/// A connection has had as many requests served in a row as it may.
static OTHERS_FIRST: AtomicBool = AtomicBool::new(false);

/// Whether a thread in [`run`] polls the rings by itself, so that nobody need be rung for.
pub(super) fn is_spinning() -> bool {
    SPINNING.load(Ordering::Relaxed)
}

/// A connection with more to serve leaves the others their turn: the loop comes back to it by itself.
pub(super) fn others_first() {
    if is_spinning() {
        OTHERS_FIRST.store(true, Ordering::Relaxed);
    } else {
        bell::ring();
    }
}

/// Whether some channel has something to read, and how many were looked at. `alone`: there was only one when that
/// was last asked; what comes first in its ring is fetched together with the ring's tail.
fn some_ready(alone: bool) -> (bool, usize) {
    let table = table();
    let mut channels = 0;
    for pointer in &table.transports {
        // SAFETY: pointers in the table are alive.
        let transport = unsafe { &*pointer.0 };
        if let Link::Channel(channel) = &transport.link {
            channels += 1;
            if alone {
                channel.prefetch();
            }
        }
        if transport.looks_ready() {
            return (true, channels);
        }
    }
    (false, channels)
}

/// How spinning ended.
enum Spun {
    /// Some ring has something to read.
    Ring,
    /// So have so many sockets.
    Sockets(i32),
    /// It is time to sleep.
    Spent,
}

/// Spins over the rings by the policy. Serves nothing.
fn spin(fds: &mut [libc::pollfd]) -> Spun {
    let start = Instant::now();
    let policy = settings::wait_policy();
    let mut looks = 0u32;
    let mut channels = 0;
    loop {
        let found;
        (found, channels) = some_ready(channels == 1);
        if found {
            return Spun::Ring;
        }
        if channels == 0 || policy == WaitPolicy::Block {
            return Spun::Spent;
        }
        looks = looks.wrapping_add(1);
        spin_hint();
        if looks.is_multiple_of(LOOKS_PER_CLOCK) {
            match policy {
                WaitPolicy::Hybrid { budget } if start.elapsed() >= budget => return Spun::Spent,
                _ => {}
            }
        }
        if looks.is_multiple_of(LOOKS_PER_POLL) {
            match poll(fds, 0) {
                0 => {}
                ready @ 1.. => return Spun::Sockets(ready),
                _ => return Spun::Spent, // an error to be seen
            }
        }
    }
}

fn poll(fds: &mut [libc::pollfd], timeout: i32) -> i32 {
    // SAFETY: a slice of pollfds and its length.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) }
}

/// The program's poll set; `None` when it has been told to leave (`svc_exit`).
fn poll_set() -> Option<Vec<libc::pollfd>> {
    let (set, count) = (real::svc_pollfd()?, real::svc_max_pollfd()?);
    // SAFETY: libtirpc's variable, used by this thread.
    let set = unsafe { set.read() };
    // SAFETY: as above.
    let count = unsafe { count.read() };
    if set.is_null() {
        return None;
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: `svc_max_pollfd` entries at `svc_pollfd`.
    let entries = unsafe { std::slice::from_raw_parts(set, count) };
    Some(entries.iter().map(|entry| libc::pollfd { revents: 0, ..*entry }).collect())
}

/// Whether the program has been told to leave.
fn has_left() -> bool {
    // SAFETY: libtirpc's variable, used by this thread.
    real::svc_pollfd().is_none_or(|set| unsafe { set.read() }.is_null())
}

/// Serves rings until it is time to sleep (`None`) or to look at the program's poll set again, of which so
/// many sockets are ready. Rings that are never empty keep nobody from the sockets, nor the program from
/// leaving.
fn serve_rings(fds: &mut [libc::pollfd]) -> Option<i32> {
    for _ in 0..ROUNDS_PER_POLL {
        match spin(fds) {
            Spun::Ring => bell::serve_ready(),
            Spun::Sockets(count) => return Some(count),
            Spun::Spent => return None,
        };
        if has_left() {
            return Some(0);
        }
        if OTHERS_FIRST.swap(false, Ordering::Relaxed) {
            break;
        }
    }
    // What has left the set meanwhile is ignored by who serves, and an error is seen before sleeping.
    Some(poll(fds, 0).max(0))
}

/// Serves until `svc_exit`, as libtirpc's own.
pub(crate) fn run() {
    let Some(serve) = real::svc_getreq_poll() else { return };
    while let Some(mut fds) = poll_set() {
        SPINNING.store(true, Ordering::Relaxed);
        if let Some(count) = serve_rings(&mut fds) {
            // Still awake: nobody need ring for what comes meanwhile.
            if count > 0 {
                // SAFETY: libtirpc's own function, entries as it made them.
                unsafe { serve(fds.as_mut_ptr(), count) };
            }
            SPINNING.store(false, Ordering::Relaxed);
            continue;
        }
        SPINNING.store(false, Ordering::Relaxed);
        if arm_all() {
            bell::serve_ready();
            continue;
        }
        // The set may have changed while requests were served.
        let Some(mut fds) = poll_set() else { break };
        let count = poll(&mut fds, -1);
        if count < 0 {
            if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
                continue;
            }
            break;
        }
        if count > 0 {
            // SAFETY: libtirpc's own function, entries as it made them.
            unsafe { serve(fds.as_mut_ptr(), count) };
        }
    }
}

/// Asks to be rung for every channel; true when something has come meanwhile.
fn arm_all() -> bool {
    for pointer in &table().transports {
        // SAFETY: pointers in the table are alive.
        if let Link::Channel(channel) = unsafe { &(*pointer.0).link } {
            channel.note_cpu();
            channel.arm();
        }
    }
    !ready().is_empty()
}
