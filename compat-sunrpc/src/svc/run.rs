//! `svc_run`: libtirpc's loop, that spins over the channels for a while before it sleeps.

use super::{CHANGES, Link, Transport, bell, free, ready, table};
use crate::{real, settings};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmmc::config::WaitPolicy;
use vmmc::sync::spin_hint;

/// Looks at the sockets once every so many looks at the rings.
const LOOKS_PER_POLL: u32 = 1024;
/// Rounds over rings that are never empty between two looks at the clock; at the first of them that comes after
/// [`SOCKETS_WAIT`] the sockets are looked at.
const ROUNDS_PER_CLOCK: u32 = 64;
/// How long the sockets may wait for rings that are never empty.
const SOCKETS_WAIT: Duration = Duration::from_micros(50);
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

/// What the looks of a spin know of the table.
struct Looks {
    /// The only connection with a channel, if there is but one.
    alone: Option<*const Transport>,
    /// [`CHANGES`] when that was found out.
    changes: u32,
    /// Where in the table the next look begins: behind what was served last.
    next: usize,
}

/// What a look has found.
enum Found {
    Nothing,
    /// No channel to look at.
    NoChannel,
    /// A request on this connection.
    Request(i32),
    /// Something else: replies that wait have room, or a connection is to be closed.
    More,
}

impl Looks {
    fn new() -> Looks {
        Looks { alone: None, changes: CHANGES.load(Ordering::Relaxed).wrapping_sub(1), next: 0 }
    }

    /// Looks whether some channel has something to read. What comes first in the ring of one that is alone is
    /// fetched together with the ring's tail.
    #[inline]
    fn look(&mut self) -> Found {
        // Only serving, and what this thread does else, changes the table's channels.
        if let Some(alone) = self.alone
            && self.changes == CHANGES.load(Ordering::Relaxed)
        {
            // SAFETY: alive: this thread, the runner, has not freed it, as `changes` would tell; what other
            // threads take out is left to it, until `look_at_all`.
            let transport = unsafe { &*alone };
            if let Link::Channel(channel) = &transport.link {
                channel.prefetch();
                return found(transport);
            }
        }
        self.look_at_all()
    }

    #[cold]
    fn look_at_all(&mut self) -> Found {
        let mut table = table();
        while !table.left.is_empty() {
            let left = table.take_left();
            drop(table);
            free(left);
            table = super::table();
        }
        self.changes = CHANGES.load(Ordering::Relaxed);
        let (mut channels, mut first) = (0, None);
        let all = table.transports.len();
        for i in 0..all {
            let at = (self.next + i) % all;
            let Some(pointer) = table.transports.get(at) else { continue };
            // SAFETY: pointers in the table are alive.
            let transport = unsafe { &*pointer.0 };
            if matches!(transport.link, Link::Channel(_)) {
                channels += 1;
                first.get_or_insert(pointer.0.cast_const());
            }
            match found(transport) {
                Found::Nothing => {}
                found => {
                    self.alone = None;
                    self.next = at + 1;
                    return found;
                }
            }
        }
        self.alone = first.filter(|_| channels == 1);
        if channels == 0 { Found::NoChannel } else { Found::Nothing }
    }
}

#[inline]
fn found(transport: &Transport) -> Found {
    match &transport.link {
        _ if !transport.looks_ready() => Found::Nothing,
        Link::Channel(channel) if !channel.is_behind() => Found::Request(transport.fd),
        _ => Found::More,
    }
}

/// How spinning ended.
enum Spun {
    /// A ring has a request, of this connection.
    Request(i32),
    /// There is something else to do for some connection.
    More,
    /// So many sockets have something to read.
    Sockets(i32),
    /// It is time to sleep.
    Spent,
}

/// Spins over the rings by the policy. Serves nothing.
fn spin(looks_at: &mut Looks, fds: &mut [libc::pollfd]) -> Spun {
    let policy = settings::wait_policy();
    let mut start = None;
    let mut looks = 0u32;
    loop {
        match looks_at.look() {
            Found::Request(fd) => return Spun::Request(fd),
            Found::More => return Spun::More,
            Found::NoChannel => return Spun::Spent,
            Found::Nothing if policy == WaitPolicy::Block => return Spun::Spent,
            Found::Nothing => {}
        }
        looks = looks.wrapping_add(1);
        spin_hint();
        if looks.is_multiple_of(LOOKS_PER_CLOCK)
            && let WaitPolicy::Hybrid { budget } = policy
        {
            // The first looks cost no clock.
            let now = Instant::now();
            if now.duration_since(*start.get_or_insert(now)) >= budget {
                return Spun::Spent;
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
fn serve_rings(looks: &mut Looks, fds: &mut [libc::pollfd]) -> Option<i32> {
    let begin = Instant::now();
    for round in 1u32.. {
        match spin(looks, fds) {
            Spun::Request(fd) => bell::serve(fd),
            Spun::More => _ = bell::serve_ready(),
            Spun::Sockets(count) => return Some(count),
            Spun::Spent => return None,
        }
        if has_left() {
            return Some(0);
        }
        if OTHERS_FIRST.load(Ordering::Relaxed) {
            OTHERS_FIRST.store(false, Ordering::Relaxed);
            break;
        }
        if round.is_multiple_of(ROUNDS_PER_CLOCK) && begin.elapsed() >= SOCKETS_WAIT {
            break;
        }
    }
    // What has left the set meanwhile is ignored by who serves, and an error is seen before sleeping.
    Some(poll(fds, 0).max(0))
}

/// Serves until `svc_exit`, as libtirpc's own.
pub(crate) fn run() {
    let around = table().runner.replace(std::thread::current().id());
    serve_until_told();
    let mut table = table();
    table.runner = around; // a service may call `svc_run`
    let left = table.take_left();
    drop(table);
    free(left);
}

fn serve_until_told() {
    let Some(serve) = real::svc_getreq_poll() else { return };
    // Kept, so that who comes behind one that is never empty has its turn.
    let mut looks = Looks::new();
    while let Some(mut fds) = poll_set() {
        SPINNING.store(true, Ordering::Relaxed);
        if let Some(count) = serve_rings(&mut looks, &mut fds) {
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
