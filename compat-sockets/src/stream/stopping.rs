//! A receiver that needs the kernel stops reading the ring for good, and gets what is unread back by TCP.

use super::demote::{ASK_CARRIED_MS, may_end, our_way_for, peer_has_ended, request};
use super::source::{Source, source};
use super::{SHUT_WRITE, bells, readiness};
use crate::counters::Counter;
use crate::side::rx;
use crate::sock::Link;
use crate::{carrier, control, raw};
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::bell;
use vmmc_ring::switch::Standing;

/// How long a receiver that has stopped waits for the peer, in milliseconds.
const ASK_MS: u32 = 200;
/// The same, once the daemon has been asked to do it: on a busy machine that takes a while, and what it does not send is lost.
const ASK_DAEMON_MS: u32 = 5000;
/// How long it waits for the acknowledgement of a doorbell, which a kernel may hold back for 40.
const PROBE_MS: u32 = 100;
/// How long it waits before it asks the daemon.
const PUMP_AFTER_MS: u32 = 2;
/// How long it waits until what is sent again is in the kernel's queue.
const COMING_BACK_MS: u32 = 100;

/// Stops reading the ring for good and gives both directions back to the kernel, with everything
/// that is unread. True when nothing is left that only this library could read.
pub(crate) fn receiver_stops(link: &Link, fd: i32, why: Counter) -> bool {
    let side = link.side;
    if side.rx_lock.lock().is_err() {
        return false;
    }
    let word = link.mine().demote();
    // A part of the prefix that is unread in the kernel cannot be stepped over.
    let is_in_ring = || {
        side.rx_state.load(Ordering::Relaxed) == rx::RING
            && side.rx_left.load(Ordering::Relaxed) == 0
    };
    // A switch that no call of ours has acted on yet comes to light first: a peer that has
    // complied with `request::TCP` cannot take back what is in the ring any more.
    source(link, fd);
    if peer_has_ended(fd) {
        hide_death(link, fd);
    }
    let unread = readiness::unread_locked(link, fd).unwrap_or(0);
    let patience = if carrier::has(side) { ASK_CARRIED_MS } else { ASK_MS };
    let mut in_ring = is_in_ring();
    their_way(link, fd, if in_ring { request::BACK } else { request::TCP });
    let mut ours = our_way_for(link, fd, why);
    let mut done = false;
    let mut has_asked = false;
    for turn in 0.. {
        // What it has said, it has said before.
        let nobody_carries = carrier::has(side) && carrier::is_gone(side);
        ours = ours || our_way_for(link, fd, why);
        // The tail may go back: forget the one that was seen.
        side.tail_seen.store(side.head.load(Ordering::Relaxed), Ordering::Relaxed);
        // Looked at before the switch: what was announced has become of it what it does.
        let announced = link.rx().switch().is_announced();
        match source(link, fd) {
            Source::Ended => done = ours,
            // The peer never switches now, unless it was about to; one on another node says so.
            Source::Tcp { .. } => {
                let knows = match carrier::has(side) {
                    true => word.load(Ordering::SeqCst) >= request::TAKEN,
                    false => !announced,
                };
                done = ours && knows;
            }
            // Nothing follows a FIN: once the doorbells are gone the kernel alone can go on.
            Source::Empty if peer_has_ended(fd) => done = only_the_end_is_left(link, fd),
            Source::Ring(_) | Source::Empty | Source::Prefix(_) => {}
            Source::Poisoned => break,
        }
        if !done && !in_ring && is_in_ring() {
            // The switch came to light just now.
            in_ring = true;
            their_way(link, fd, request::BACK);
        }
        let state = word.load(Ordering::SeqCst);
        if done {
            break;
        }
        let may_ask = !has_asked && !carrier::has(side);
        if in_ring && state == request::BACK && turn >= PUMP_AFTER_MS && may_ask {
            // Not while another thread is in conversation with the daemon.
            has_asked = control::ask_pump(fd);
        }
        match state {
            // Somebody is at it. Reading on could mean reading twice what he sends.
            request::PUMP if turn < ASK_DAEMON_MS => {
                let pumper = link.rx().pump().pumper.load(Ordering::Relaxed);
                if control::pumper_is_gone(pumper)
                    && !matches!(link.rx().switch().standing(), Standing::Ended { .. })
                {
                    let back = request::BACK;
                    let _ = word.compare_exchange(state, back, Ordering::SeqCst, Ordering::SeqCst);
                    // The next daemon has not been asked.
                    has_asked = false;
                }
            }
            // The daemon that carries has the last word: no peer takes up what it cannot do.
            request::REFUSED if carrier::has(side) => break,
            _ if nobody_carries => break,
            // A daemon that knows the connection answers in the segment, in its own time.
            request::BACK if has_asked && turn < ASK_DAEMON_MS => {}
            request::BACK | request::REFUSED if turn >= patience => {
                let tcp = request::TCP;
                if word.compare_exchange(state, tcp, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    break;
                }
            }
            _ if turn >= 2 * patience => break,
            _ => {}
        }
        raw::wait_for(-1, 0, 1);
    }
    if !done && is_in_ring() {
        // Nobody helped. The new holder reads what is in the kernel's queue, and doorbells are not
        // for it: what has come goes, and nothing is to follow it.
        bell::disarm(&link.mine().armed_data());
        bell::disarm(&link.mine().armed_space());
        bells::drain_quietly(link, fd, bells::Which::All);
    }
    side.tail_seen.store(side.head.load(Ordering::Relaxed), Ordering::Relaxed);
    if done {
        until_queued(fd, unread);
    }
    side.rx_lock.unlock();
    done
}

/// Waits until what was readable before is so for the new holder: what is sent again may be on its way.
fn until_queued(fd: i32, unread: usize) {
    for _ in 0..COMING_BACK_MS {
        if raw::unread(fd).is_ok_and(|queued| queued >= unread) {
            break;
        }
        raw::wait_for(-1, 0, 1);
    }
}

/// The peer's FIN has come. If its process is dead, the RST that stands for that end, or would follow
/// our next doorbell, must not be found by a holder that cannot tell what it means: it is called for now,
/// and the kernel's error goes, while its end stays. A peer that has only shut its sending side
/// acknowledges the doorbell.
fn hide_death(link: &Link, fd: i32) {
    let is_dead = || raw::pending_events(fd, 0) & (libc::POLLHUP | libc::POLLERR) != 0;
    if !is_dead()
        && may_end(link)
        && link.reset_means_end()
        // One that has closed would answer with an RST, and our socket would be the worse for it.
        && link.peer().closed().load(Ordering::Acquire) == 0
        && link.side.shut.load(Ordering::Relaxed) & SHUT_WRITE == 0
        && bells::ring(link, fd) == bells::Rung::Sent
    {
        for _ in 0..PROBE_MS {
            if is_dead() || raw::unacknowledged(fd) == Ok(0) {
                break;
            }
            raw::wait_for(fd, 0, 1);
        }
    }
    if is_dead() && link.reset_means_end() {
        let _ = raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, 0i32);
    }
}

/// After the peer's end, with an empty ring: throws the doorbells away. Under the rx lock.
fn only_the_end_is_left(link: &Link, fd: i32) -> bool {
    // An error that waits there is for the new holder to hear of: no look may take it, nor a doorbell be looked for in vain.
    let errs = || raw::pending_events(fd, 0) & libc::POLLERR != 0;
    let is_empty = || raw::unread(fd) == Ok(0);
    if !errs() || !is_empty() {
        bells::drain_quietly(link, fd, bells::Which::All);
    }
    if errs() && link.reset_is_no_news() {
        let _ = raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, 0i32);
    }
    let has_more = match errs() {
        false => link.peek_one(fd).is_ok_and(|len| len > 0),
        true => !is_empty(),
    };
    // What was published before the end is visible now.
    if link.ring_has_more() || has_more {
        return false;
    }
    link.side.part_over_at.store(raw::now_ns(), Ordering::Relaxed);
    link.side.rx_state.store(rx::ENDED, Ordering::SeqCst);
    true
}

/// Asks the peer to send by TCP ([`request`]). Under the rx lock.
fn their_way(link: &Link, fd: i32, how: u32) {
    link.side.asked.store(1, Ordering::Relaxed);
    let word = link.mine().demote();
    loop {
        let found = word.load(Ordering::SeqCst);
        // A request that somebody is at, or has done, stands.
        if found >= request::TAKEN || found == how {
            break;
        }
        if word.compare_exchange(found, how, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            break;
        }
    }
    carrier::tell(link);
    // Wake a sender that is blocked on a full ring, and a poller.
    let wait = link.rx().space_wait();
    bell::published();
    if bell::take(&wait) {
        raw::futex_wake(wait.as_ptr().as_ptr());
    }
    let peer = link.peer();
    // Who waits for room alone is armed for that only.
    let is_armed = || bell::take(&peer.armed_data()) || bell::take(&peer.armed_space());
    if !carrier::has(link.side) && bells::is_way_open(link) && is_armed() {
        bells::ring(link, fd);
    }
}
