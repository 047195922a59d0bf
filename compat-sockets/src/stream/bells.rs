//! Doorbells: one byte on the TCP connection, without meaning, that makes kernel readiness true.
//!
//! Every doorbell is counted in the segment *before* it is sent, and in what order it travels
//! relative to data after a demotion is certain ([`super::demote`]). So the receiver may throw
//! away as many bytes as are counted and not yet thrown away, and can never hit data.

use crate::counters::{self, Counter};
use crate::raw;
use crate::side::{GATE_CLOSED, rx, tx};
use crate::sock::Link;
use crate::{carrier, parked, sleeps, upgrade};
use std::cell::Cell;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::bell;
use vmmc_ring::switch::Standing;

/// After bytes were published in our ring: rings if the peer wants to hear of data. After the tx lock was given back,
/// which is an exchange.
#[inline]
pub(super) fn after_data(link: &Link, fd: i32) {
    bell::published_before_exchange();
    // PAIRS(pump): with the fence in `Words::finish`.
    super::demote::comply(link, fd);
    ring_if_armed(link, fd);
}

/// Rings if the peer wants to hear of data.
#[inline]
pub(super) fn ring_if_armed(link: &Link, fd: i32) {
    let peer = link.peer();
    if let Some(sleep) = bell::take_for(&peer.armed_data(), &peer.sleep()) {
        ring_sleeper(link, fd, sleep);
    }
}

/// Rings, unless the sleeper was rung through another connection.
#[inline]
fn ring_sleeper(link: &Link, fd: i32, sleep: u64) {
    let peer = link.sock.peer.load(Ordering::Relaxed);
    if sleeps::is_rung(peer, sleep) {
        counters::one(Counter::doorbells_saved);
    } else {
        match ring(link, fd) {
            Rung::Sent if sleep != 0 => sleeps::rung(peer, sleep),
            Rung::Closed => rings_no_more(link, fd),
            _ => {}
        }
    }
}

/// The ring part has ended since its data were published, and they go by TCP, which wakes the sleeper. But he may sleep again, and
/// rely on the word that was taken, when the next part begins.
#[cold]
fn rings_no_more(link: &Link, fd: i32) {
    let armed = link.peer().armed_data();
    loop {
        // PAIRS(bell): whoever publishes in the next part looks at the word behind its beginning, and we at that behind the word.
        bell::arm(&armed);
        if !is_way_open(link) || !bell::take(&armed) || ring(link, fd) != Rung::Closed {
            return;
        }
    }
}

/// After room was published in the peer's ring: wakes a blocked sender, rings for a polling one. After the rx lock was
/// given back, which is an exchange.
#[inline]
pub(super) fn after_space(link: &Link, fd: i32) {
    bell::published_before_exchange();
    who_waits(link, fd);
}

/// The same after a light barrier only, where half of the ring was free before, by the last tail seen. A sender that polls
/// has made up for the rest ([`Link::arm_space`]). One that is blocked has found all of the ring taken, which happens here
/// too: that tail may be old, and where little is read at a time the ring can be full while half of it seems free. If it looks
/// just while our head, stored since, is on its way to memory, it is missed, and looks again after 20 ms
/// ([`super::wait::for_space`]).
#[inline]
pub(super) fn after_space_for_nobody(link: &Link, fd: i32) {
    who_waits(link, fd);
}

#[inline]
fn who_waits(link: &Link, fd: i32) {
    let wait = link.rx().space_wait();
    if bell::take(&wait) {
        raw::futex_wake(wait.as_ptr().as_ptr());
    }
    if link.peer().armed_space().load(Ordering::Relaxed) != 0 {
        polling_sender(link, fd);
    }
}

#[cold]
fn polling_sender(link: &Link, fd: i32) {
    // Not before a good part is free: a sender woken for a byte at a time makes no progress. But then, or who has read
    // this far and waits for more waits for ever: `Link::looks_writable` draws the same line.
    // Nothing is noted of what is seen here: the lock of the reading end was given back.
    let there = link.arrived().wrapping_sub(link.side.head.load(Ordering::Relaxed));
    let capacity = link.rx().bytes().0.len() as u64;
    if there <= capacity && there > capacity * 2 / 3 {
        return;
    }
    // A byte on our way of the connection is a doorbell only once that way has switched. A carrier hears of room in
    // any case.
    let may_ring = carrier::has(link.side) || is_switched(link, fd);
    if may_ring && bell::take(&link.peer().armed_space()) {
        ring(link, fd);
    }
}

/// Whether our way goes by the ring, if need be from now on.
fn is_switched(link: &Link, fd: i32) -> bool {
    let side = link.side;
    let state = || side.tx_state.load(Ordering::SeqCst);
    if state() == tx::TCP && side.tx_lock.try_lock() {
        if state() == tx::TCP {
            upgrade::try_switch(link, fd);
        }
        side.tx_lock.unlock();
    }
    is_way_open(link)
}

/// Whether a byte on our way of the connection is a doorbell now, and may be sent. That it goes by the ring is announced before
/// it is so.
pub(super) fn is_way_open(link: &Link) -> bool {
    let side = link.side;
    side.tx_state.load(Ordering::SeqCst) == tx::RING
        && matches!(link.tx().switch().standing(), Standing::Ring { .. })
        && side.bell_gate.load(Ordering::SeqCst) & GATE_CLOSED == 0
        && link.tx().pump().may_ring()
}

/// What became of a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// It is in the kernel's queue.
    Sent,
    /// It is another's to send, or is sent later, or the connection has ended.
    Not,
    /// Our way has gone back to TCP.
    Closed,
}

/// Sends one doorbell, unless our way has gone back to TCP. To another node its daemon sends them, who is rung.
pub(super) fn ring(link: &Link, fd: i32) -> Rung {
    let side = link.side;
    if carrier::has(side) {
        carrier::ring(link);
        return Rung::Not;
    }
    let mut rung = Rung::Closed;
    if side.bell_gate.fetch_add(1, Ordering::SeqCst) & GATE_CLOSED == 0 {
        side.bells.fetch_add(1, Ordering::SeqCst);
        link.mine().bells().fetch_add(1, Ordering::SeqCst);
        if !link.tx().pump().may_ring() {
            // Data follows on TCP, which wakes as well.
            link.mine().bells().fetch_add(u64::MAX, Ordering::SeqCst);
            side.bells.fetch_sub(1, Ordering::SeqCst);
            side.bell_gate.fetch_sub(1, Ordering::SeqCst);
            return Rung::Closed;
        }
        rung = Rung::Not;
        counters::one(Counter::doorbells);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // Any failure but these is the connection's end, which every call will see; an RST the kernel tells once.
        match raw::send(fd, &[0], flags) {
            Ok(_) => rung = Rung::Sent,
            Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
                // No room: the peer has unread bytes, so it is readable anyway. The byte is owed,
                // because it is counted.
                side.bells_owed.fetch_add(1, Ordering::SeqCst);
                link.mine().owed().fetch_add(1, Ordering::SeqCst);
                counters::one(Counter::doorbells_owed);
            }
            Err(libc::ECONNRESET) if !link.reset_means_end() => {
                side.keep_error(libc::ECONNRESET);
            }
            Err(_) => {}
        }
    }
    side.bell_gate.fetch_sub(1, Ordering::SeqCst);
    rung
}

/// What draining found in the kernel's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Nothing (more).
    Empty,
    /// The peer's FIN.
    End,
    /// An error, by number. Told once by the kernel.
    Failed(i32),
}

/// Doorbells that may lie unread while there is data. The kernel acknowledges bytes that are not read after 40 ms, and
/// until then their sender sends ten packets: the next doorbell would wait for that.
const UNREAD: u64 = 4;

/// More doorbells than this at once no peer has sent that counts them.
const MOST_BELLS: u64 = u32::MAX as u64;

/// Whether somebody relies on doorbells who may not have looked yet: a sleeper, or a set to which the connection is
/// readable by them.
fn is_relied_on(link: &Link) -> bool {
    link.side.rx_sleepers.load(Ordering::SeqCst) != 0
        || link.side.eager.load(Ordering::SeqCst) != 0
        || link.sock.cold.load(Ordering::SeqCst) != 0
        || link.sock.has_early_waiter()
}

thread_local! {
    /// Whether this thread is asleep for room in some rings.
    static SLEEPS_FOR_ROOM: Cell<bool> = const { Cell::new(false) };
}

/// This thread is about to sleep in a poll or a set until the connection's ring has room, which a doorbell tells. Before it arms for that.
pub(crate) fn sleeps_for_room(link: &Link) {
    link.sock.sleeps_for_room();
    SLEEPS_FOR_ROOM.set(true);
}

/// It has woken.
pub(crate) fn has_slept_for_room(link: &Link) {
    link.sock.has_slept_for_room();
    SLEEPS_FOR_ROOM.set(false);
}

/// Whether a doorbell may have been sent for the room that another thread sleeps for. The kernel looks once more before it wakes that
/// one, who sleeps on if the doorbell has been thrown away meanwhile. It stays for the moment that takes.
fn is_anothers_for_room(link: &Link) -> bool {
    let own = u32::from(SLEEPS_FOR_ROOM.get());
    link.sock.room_sleepers() > own && link.mine().armed_space().load(Ordering::SeqCst) == 0
}

/// Throws doorbells away if there are many, after a sleep in a set: who is told of edges may take its data for ever
/// without finding the ring empty. Not where somebody else relies on them: a sleeper, who may have been woken by them and
/// not have looked yet, or a set to which the connection is readable by them. Who begins to sleep now looks at
/// the ring after it is counted.
pub(crate) fn drain_many(link: &Link, fd: i32) {
    drain_at(link, fd, UNREAD);
}

/// Before a sleep for room alone: throws doorbells away like [`drain_many`], however few. Whether nothing else lies in the
/// kernel's queue, so that the next doorbell is news to who sleeps.
pub(crate) fn leave_silence(link: &Link, fd: i32) -> bool {
    drain_at(link, fd, 1);
    raw::pending_events(fd, libc::POLLIN) & libc::POLLIN == 0
}

/// Throws doorbells away if there are so many, where nobody else relies on them.
fn drain_at(link: &Link, fd: i32, least: u64) {
    let side = link.side;
    let many = || {
        let sent = link.peer().bells().load(Ordering::SeqCst);
        sent.wrapping_sub(side.drained.load(Ordering::Relaxed)) >= least
            && side.rx_state.load(Ordering::Relaxed) == rx::RING
            && side.rx_left.load(Ordering::Relaxed) == 0
            && !is_relied_on(link)
    };
    if !many() || !side.rx_lock.try_lock() {
        return;
    }
    // Who closes the number holds the lock as it does: it may be another connection's by now.
    if many() && parked::is_of(link, fd) {
        drain_quietly(link, fd, Which::Answered);
    }
    side.rx_lock.unlock();
}

/// [`drain`], keeping an error for the program.
pub(crate) fn drain_quietly(link: &Link, fd: i32, which: Which) {
    if let Drained::Failed(errno) = drain(link, fd, which) {
        link.side.keep_error(errno);
    }
}

/// Which doorbells are thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those whose data were taken; where nobody relies on them, all. The caller looks at the ring after this.
    Answered,
    /// All, and none is asked for: whoever reads from the kernel next takes them for data.
    All,
}

/// Throws doorbells away. Under the rx lock, the ring part begun (`rx_left` 0).
pub(crate) fn drain(link: &Link, fd: i32, which: Which) -> Drained {
    let side = link.side;
    loop {
        let sent = link.peer().bells().load(Ordering::SeqCst);
        let there = sent.wrapping_sub(side.drained.load(Ordering::Relaxed));
        if there == 0 || there > MOST_BELLS {
            return Drained::Empty;
        }
        // Who begins to sleep after this look is armed after those were counted.
        if which == Which::Answered && is_anothers_for_room(link) {
            return Drained::Empty;
        }
        if which == Which::Answered && is_relied_on(link) {
            let mine = link.mine();
            let more = || link.ring_has_more();
            if !bell::may_be_thrown_away(&mine.armed_data(), &mine.sleep(), more) {
                return Drained::Empty;
            }
        }
        counters::one(Counter::drains);
        match raw::discard(fd, there as usize) {
            Ok(0) => {
                return match carrier::taken_error(link) {
                    0 => Drained::End,
                    errno => Drained::Failed(errno),
                };
            }
            Ok(len) => _ = side.drained.fetch_add(len as u64, Ordering::Relaxed),
            Err(libc::EAGAIN) => return Drained::Empty,
            Err(libc::EINTR) => {}
            Err(libc::ECONNRESET) if link.reset_means_end() => return Drained::End,
            Err(errno) => return Drained::Failed(errno),
        }
    }
}

/// Whether the kernel's queue has a byte that is neither data nor a counted doorbell: the peer does not keep the protocol.
/// Under the rx lock, the ring part begun, and what was counted thrown away.
pub(super) fn is_uncounted(link: &Link, fd: i32) -> bool {
    let uncounted = || {
        let sent = link.peer().bells().load(Ordering::SeqCst);
        let there = sent.wrapping_sub(link.side.drained.load(Ordering::Relaxed));
        (there == 0 || there > MOST_BELLS)
            && matches!(link.rx().switch().standing(), Standing::Ring { .. })
            && !link.ring_has_more()
    };
    // Counted before it is sent, and data comes after the end of the ring part: looked at behind the byte.
    uncounted() && link.peek_one(fd).is_ok_and(|len| len > 0) && uncounted()
}
