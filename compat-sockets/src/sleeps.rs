//! One doorbell per sleep: a thread that waits for many connections in one `epoll_wait` is rung once,
//! and not once per connection.
//!
//! A process with one thread that uses sockets gives each of its sleeps a number and stores it in
//! every connection that it arms for that sleep ([`begin`]). A sender that has rung for a number
//! ([`rung`]) does not ring for it again through another connection to the same process
//! ([`is_rung`]): the sleeper is awake, or will be, and looks at all its rings before it sleeps
//! again, under a new number.
//!
//! # Why nobody sleeps for ever
//! A sender stays silent only after it has put a doorbell for this very sleep into the kernel's
//! queue of a member of the sleeper's set. The sleeper wakes by it, unless somebody of its own
//! process takes the byte out, or the member out of the set, before the kernel has told the
//! sleeper. So numbers are used only while a single thread of the process has to do with
//! sockets; the first call of another thread ([`owner::noticed`]), or of a signal handler during a sleep,
//! ends that for good and makes the sleeper look at its rings once more
//! ([`crate::epoll::rouse`]). Connections that something else may wait for (another process, set or
//! thread) are armed with number 0, for which every sender rings.
//!
//! The number is stored before `armed_data`, and a sender loads it after it has taken `armed_data`.
//! So a sender that took the word of this sleep has this sleep's number, or a later one; and one
//! that took the word of an earlier sleep has published before the sleeper looked again.
//!
//! A connection that stays armed after the sleep, because its set has become cold for it meanwhile, is
//! armed anew with number 0 and looked at ([`crate::sock::Link::wakes`]): nobody looks at it again
//! without a doorbell, and two that stayed armed under one number would get one between them.
//!
//! # Trust
//! What a sender remembers is kept by the process at the other end, as the daemon names it
//! ([`Peer`]). A peer that stores numbers as it likes keeps only itself from being woken.

use crate::owner;
use vmmc::sync::{AtomicU32, AtomicU64, Ordering};

/// A sleep under a number is on.
static ASLEEP: AtomicU32 = AtomicU32::new(0);
/// The number of the last sleep.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Whether a sleep under a number is on.
#[inline]
pub(crate) fn is_asleep() -> bool {
    ASLEEP.load(Ordering::Relaxed) != 0
}

/// A sleep begins: its number; 0 when senders must ring for every connection.
pub(crate) fn begin() -> u64 {
    if !owner::is_alone() {
        return 0;
    }
    ASLEEP.store(1, Ordering::SeqCst);
    // PAIRS(owner): with the store in `owner::other_thread`.
    if !owner::is_alone() || !owner::is_me() {
        end();
        return 0;
    }
    loop {
        if LAST.load(Ordering::Relaxed) == 0 {
            // Where a child begins must not be where its parent goes on.
            let mut bytes = [0; 8];
            if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) != Ok(8)
            {
                end();
                return 0;
            }
            LAST.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        let number = LAST.load(Ordering::Relaxed).wrapping_add(1);
        LAST.store(number, Ordering::Relaxed);
        if number != 0 {
            return number;
        }
    }
}

/// The sleep is over.
pub(crate) fn end() {
    ASLEEP.store(0, Ordering::SeqCst);
}

/// In a forked child, whose only thread is the caller.
pub(crate) fn after_fork() {
    ASLEEP.store(0, Ordering::Relaxed);
    LAST.store(0, Ordering::Relaxed);
}

/// A process at the other end of connections of ours.
#[derive(Debug)]
struct Peer {
    /// Its number, and the daemon's that gave it.
    client: AtomicU64,
    daemon: AtomicU64,
    /// Connections to it.
    users: AtomicU32,
    /// The sleep it was last rung for.
    rung: AtomicU64,
}

/// Processes remembered at the same time; for further ones every doorbell is rung.
const PEERS: usize = 64;
static TABLE: [Peer; PEERS] = [const {
    Peer {
        client: AtomicU64::new(0),
        daemon: AtomicU64::new(0),
        users: AtomicU32::new(0),
        rung: AtomicU64::new(0),
    }
}; PEERS];

/// One more connection to a process: the number of its entry plus one, 0 for none. Under the
/// control lock.
pub(crate) fn meet(client: u64, daemon: u64) -> u32 {
    let is_it = |peer: &Peer| {
        peer.users.load(Ordering::Acquire) != 0
            && peer.client.load(Ordering::Relaxed) == client
            && peer.daemon.load(Ordering::Relaxed) == daemon
    };
    let is_free = |peer: &Peer| peer.users.load(Ordering::Acquire) == 0;
    let known = TABLE.iter().position(is_it);
    let Some(at) = known.or_else(|| TABLE.iter().position(is_free)) else { return 0 };
    let Some(peer) = TABLE.get(at) else { return 0 };
    if peer.users.fetch_add(1, Ordering::AcqRel) == 0 {
        // Its last connection may have gone since it was looked at.
        peer.client.store(client, Ordering::Relaxed);
        peer.daemon.store(daemon, Ordering::Relaxed);
        peer.rung.store(0, Ordering::Relaxed);
    }
    at as u32 + 1
}

fn peer(number: u32) -> Option<&'static Peer> {
    TABLE.get((number as usize).checked_sub(1)?)
}

/// One connection less.
pub(crate) fn part(number: u32) {
    if let Some(peer) = peer(number) {
        peer.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether the process was rung for this sleep already.
#[inline]
pub(crate) fn is_rung(number: u32, sleep: u64) -> bool {
    sleep != 0 && peer(number).is_some_and(|peer| peer.rung.load(Ordering::Acquire) == sleep)
}

/// A doorbell for this sleep is in the kernel's queue.
#[inline]
pub(crate) fn rung(number: u32, sleep: u64) {
    if let Some(peer) = peer(number) {
        peer.rung.store(sleep, Ordering::Release);
    }
}
