//! `svc_run`: libtirpc's loop, that spins over the channels for a while before it sleeps.

use super::{Link, bell, ready, table};
use crate::{real, settings};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use vmmc::config::WaitPolicy;
use vmmc::sync::spin_hint;

/// Looks at the sockets once every so many looks at the rings.
const LOOKS_PER_POLL: u32 = 1024;
/// Looks at the rings between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 64;

static SPINNING: AtomicBool = AtomicBool::new(false);

/// Whether a thread in [`run`] polls the rings by itself, so that nobody need be rung for.
pub(super) fn is_spinning() -> bool {
    SPINNING.load(Ordering::Relaxed)
}

/// Whether some channel has something to read; false at once when there is none.
fn some_ready() -> (bool, bool) {
    let table = table();
    let mut channels = false;
    for pointer in &table.transports {
        // SAFETY: pointers in the table are alive.
        let transport = unsafe { &*pointer.0 };
        if transport.looks_ready() {
            return (true, true);
        }
        channels |= matches!(transport.link, Link::Channel(_));
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
    loop {
        let (found, channels) = some_ready();
        if found {
            return Spun::Ring;
        }
        if !channels || policy == WaitPolicy::Block {
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

/// Serves until `svc_exit`, as libtirpc's own.
pub(crate) fn run() {
    let Some(serve) = real::svc_getreq_poll() else { return };
    while let Some(mut fds) = poll_set() {
        SPINNING.store(true, Ordering::Relaxed);
        let sockets = loop {
            match spin(&mut fds) {
                Spun::Ring => bell::serve_ready(),
                Spun::Sockets(count) => break Some(count),
                Spun::Spent => break None,
            };
        };
        if let Some(count) = sockets {
            // Still awake: nobody need ring for what comes meanwhile.
            // SAFETY: libtirpc's own function, entries as it made them.
            unsafe { serve(fds.as_mut_ptr(), count) };
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
