//! Going back from the ring to TCP.
//!
//! The sender decides, at any byte: it lets no further doorbell go, stores where the ring part
//! ends and how many doorbells there were, and sends data by TCP from then on. The receiver
//! reads the ring to that position, throws the remaining doorbells away, and reads TCP.
//!
//! The position is one that the receiver has reached, or nearly: what it has not read is sent
//! again by TCP, so that it can leave for a program without the library later. Bytes that it has
//! read behind the position it throws away like doorbells.
//!
//! A receiver that needs the kernel (descriptor passing, `exec`, stdio) asks by a word that the
//! peer looks at in every call, receiving ones included. It has stopped reading then, and the bytes
//! that are unread go back: the sender ends the ring part at the receiver's position and sends the
//! rest again by TCP. Only the sender's socket can do that, because only its kernel can put bytes
//! into the receiver's queue. For a peer that makes no call the daemon does it
//! ([`vmmc_ring::pump`]); where it cannot (the peer may not be traced, or has shut its sending
//! side), the receiver waits a while for the peer and says so ([`receiver_stops`]).
//!
//! A direction that has ended stays with TCP, but where nothing but a full ring was the reason ([`super::full`]): that *rests*, and
//! begins another ring part later.

use super::source::{Source, source};
use super::{SHUT_WRITE, bells, full, readiness};
use crate::counters::{self, Counter};
use crate::side::{GATE_CLOSED, Side, rx, tx};
use crate::sock::{Link, shadow};
use crate::{carrier, control, raw, upgrade};
use vmmc::sync::{Ordering, spin_hint};
use vmmc::word::Word;
use vmmc_ring::bell;
use vmmc_ring::pump::Claim;
pub(crate) use vmmc_ring::pump::request;
use vmmc_ring::switch::Standing;

/// How long a receiver that has stopped waits for the peer, in milliseconds.
const ASK_MS: u32 = 200;
/// The same, once the daemon has been asked to do it: on a busy machine that takes a while.
const ASK_DAEMON_MS: u32 = 1000;
/// The same, where two daemons carry the connection: they answer however busy their machines are, and the end of either
/// ends the connection.
pub(super) const ASK_CARRIED_MS: u32 = 10_000;
/// How long it waits for the acknowledgement of a doorbell, which a kernel may hold back for 40.
const PROBE_MS: u32 = 100;
/// How long the end of a ring part waits for a doorbell that is being rung, in nanoseconds; then another call ends it.
const RINGING_NS: u64 = 1_000_000;
/// How long it waits before it asks the daemon.
const PUMP_AFTER_MS: u32 = 2;
/// How long it waits until what is sent again is in the kernel's queue.
const COMING_BACK_MS: u32 = 100;

/// Whether our ring part may be ended where we like: the peer has seen that it began. A peer that has not may
/// be reading TCP into the program's buffer, and would take what follows the end for what
/// precedes the ring: it gets all of the part by TCP, or the part goes on.
pub(crate) fn may_end(link: &Link) -> bool {
    if carrier::has(link.side) {
        // PAIRS(seen): with the store in `source::unswitched`.
        return link.peer().seen().load(Ordering::Acquire) != 0;
    }
    link.tx().switch().is_seen()
}

/// Whether the peer asked for it, or we could not end it before.
#[inline]
pub(crate) fn is_wanted(link: &Link) -> bool {
    link.peer().demote().load(Ordering::Relaxed) != 0
        || link.side.tx_frozen.load(Ordering::Relaxed) != 0
}

/// Tells `shrimp stat` why. Other reasons than these are counted where they come up.
pub(super) fn noted(fd: i32, why: Counter) {
    let counted =
        [Counter::plain_peer, Counter::plain_waiter, Counter::plain_full, Counter::plain_stopped];
    if counted.contains(&why) {
        counters::one(why);
    }
    counters::note(fd, why);
}

/// Sends by TCP from now on: at once (true), or as soon as the peer has seen that our ring part
/// began. A direction that has not switched never will.
pub(crate) fn our_way_for(link: &Link, fd: i32, why: Counter) -> bool {
    if link.side.tx_lock.lock().is_err() {
        return false;
    }
    freeze(link, fd, why);
    let done = match state_of_tx(link, fd) {
        // Nothing follows what is in the ring, and TCP could carry nothing: it stays there.
        tx::RING if has_sent_fin(fd) => {
            // Unless the daemon has, in front of the FIN.
            if matches!(link.tx().pump().sender_claims(), Claim::Pumped { .. }) {
                link.side.tx_state.store(tx::ENDED, Ordering::SeqCst);
            }
            true
        }
        tx::RING => end_ring(link, fd, Ending::ForGood) == Ended::Yes,
        tx::TCP => {
            // Left so by somebody who died.
            if !carrier::has(link.side) && link.tx().switch().is_announced() {
                link.tx().switch().thinks_better();
            }
            gives_options_back(link, fd);
            true
        }
        _ => true,
    };
    link.side.tx_lock.unlock();
    if done {
        looks_for_bells(link, fd);
    }
    done
}

/// The kernel has its options again as the program wants them: no doorbell goes that way any more.
fn gives_options_back(link: &Link, fd: i32) {
    let set = link.sock.shadow.load(Ordering::Relaxed);
    for (name, bit) in [(libc::TCP_NODELAY, shadow::NODELAY), (libc::TCP_CORK, shadow::CORK)] {
        let value = i32::from(set & bit != 0);
        let _ = raw::set_socket_option(fd, libc::IPPROTO_TCP, name, &value);
    }
}

/// Sends by TCP for a while, because nobody reads the ring: true when it does so now. A direction that a daemon carries
/// does so for good.
pub(crate) fn rests(link: &Link, fd: i32) -> bool {
    let side = link.side;
    if carrier::has(side) {
        return may_end(link)
            && our_way_for(link, fd, Counter::plain_full)
            // Shut: it stays.
            && side.tx_state.load(Ordering::SeqCst) != tx::RING;
    }
    if side.tx_lock.lock().is_err() {
        return false;
    }
    let taken_over = side.tx_lock.was_taken_over();
    let done = match state_of_tx(link, fd) {
        // Somebody wants it to be for good, or may still be copying there.
        tx::RING if taken_over || is_wanted(link) => {
            let why = if taken_over { Counter::plain_stopped } else { Counter::plain_full };
            freeze(link, fd, why);
            end_ring(link, fd, Ending::ForGood) == Ended::Yes
        }
        tx::RING => end_ring(link, fd, Ending::Rests) == Ended::Yes,
        _ => true,
    };
    side.tx_lock.unlock();
    if done {
        looks_for_bells(link, fd);
    }
    done
}

/// Our direction goes to no ring any more.
pub(super) fn freeze(link: &Link, fd: i32, why: Counter) {
    if link.side.tx_frozen.swap(1, Ordering::SeqCst) == 0 {
        noted(fd, why);
    }
}

/// Whether somebody died as he began a ring part, or ended it: while the tx lock is free the doorbells' gate is open in a ring
/// part. Under the tx lock.
#[inline]
pub(super) fn is_left_half_done(side: &Side) -> bool {
    side.tx_state.load(Ordering::SeqCst) == tx::RING
        && side.bell_gate.load(Ordering::SeqCst) & GATE_CLOSED != 0
}

/// The state of our direction, under the tx lock, held firmly.
#[inline]
pub(crate) fn state_of_tx(link: &Link, fd: i32) -> u32 {
    if is_left_half_done(link.side) {
        inherit(link, fd);
    }
    link.side.tx_state.load(Ordering::SeqCst)
}

/// Goes on where somebody died in `upgrade::try_switch` or in [`end_ring`].
#[cold]
fn inherit(link: &Link, fd: i32) {
    let side = link.side;
    let switch = link.tx().switch();
    match switch.standing() {
        Standing::Tcp if carrier::has(side) => side.tx_state.store(tx::TCP, Ordering::SeqCst),
        Standing::Tcp if switch.is_announced() => {
            switch.thinks_better();
            side.tx_state.store(tx::TCP, Ordering::SeqCst);
        }
        // It has begun. Who has taken the request has the next send end it.
        Standing::Ring { .. } => opens_gate(link, fd),
        // It has ended, of which the peer may know already.
        standing => {
            let tail = side.tail.load(Ordering::Relaxed);
            let sent = upgrade::given_to_tcp(fd).map(|given| switch.sent_since(given));
            if let Some((from, owed)) = sent {
                pay(fd, owed.min(side.bells.load(Ordering::SeqCst)));
                if tail.wrapping_sub(from) <= link.tx().bytes().0.len() as u64 {
                    send_again(link, fd, from, tail);
                }
            }
            side.bells_owed.store(0, Ordering::SeqCst);
            let for_good = matches!(standing, Standing::Ended { .. }) && !switch.is_resting();
            let how = if for_good { Ending::ForGood } else { Ending::Rests };
            has_ended(link, fd, how, switch.end.load(Ordering::Relaxed));
        }
    }
}

/// Closes the doorbells' gate and waits for those that are being rung; false when that takes long: who rings may be stopped,
/// or dead, or interrupted by the caller.
fn closes_gate(side: &Side) -> bool {
    side.bell_gate.fetch_or(GATE_CLOSED, Ordering::SeqCst);
    let until = raw::now_ns() + RINGING_NS;
    while side.bell_gate.load(Ordering::SeqCst) & !GATE_CLOSED != 0 {
        if raw::now_ns() > until {
            return false;
        }
        spin_hint();
    }
    true
}

/// Opens the gate in a ring part that goes on, and rings for who was not rung for meanwhile.
fn opens_gate(link: &Link, fd: i32) {
    link.side.bell_gate.fetch_and(!GATE_CLOSED, Ordering::SeqCst);
    bells::ring_if_armed(link, fd);
}

/// Doorbells of the peer's that nobody will wait for go now: unread, they would turn our
/// process's death into an RST, which a peer without the library cannot tell from a reset.
fn looks_for_bells(link: &Link, fd: i32) {
    if link.side.rx_lock.lock().is_ok() {
        source(link, fd);
        link.side.rx_lock.unlock();
    }
}

/// [`our_way_for`] somebody who waits for room and whom only the kernel can wake.
pub(crate) fn our_way(link: &Link, fd: i32) -> bool {
    our_way_for(link, fd, Counter::plain_waiter)
}

/// Whether our sending side is shut, by us or by the end of the connection.
fn has_sent_fin(fd: i32) -> bool {
    upgrade::given_to_tcp(fd).is_none()
}

/// What became of the wish to end our ring part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It has ended.
    Yes,
    /// The peer has not seen that it began, and all of it does not fit into the kernel's buffers; or our end was sent. It goes
    /// on.
    NotYet,
    /// The daemon is sending for us: nothing may be sent now.
    Busy,
}

/// How a ring part ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// No other follows.
    ForGood,
    /// Another may follow.
    Rests,
}

/// Whether our ring part may be ended: where we like, or all of it fits into the kernel's buffers. What is carried is not
/// taken back.
pub(crate) fn can_end(link: &Link, fd: i32) -> bool {
    may_end(link) || !carrier::has(link.side) && fits_back(link, fd)
}

/// Whether all of a ring part fits into the kernel's buffers.
fn fits_back(link: &Link, fd: i32) -> bool {
    let head = link.tx().head().load(Ordering::Acquire);
    let unread = link.side.tail.load(Ordering::Relaxed).wrapping_sub(head);
    let owed = u64::from(link.side.bells_owed.load(Ordering::SeqCst));
    unread.saturating_add(owed) <= raw::send_room(fd)
}

/// Ends the ring part if that may be done. The caller holds the tx lock and the state is `RING`.
pub(crate) fn end_ring(link: &Link, fd: i32, how: Ending) -> Ended {
    if !can_end(link, fd) || has_sent_fin(fd) {
        return Ended::NotYet;
    }
    let side = link.side;
    if !closes_gate(side) {
        opens_gate(link, fd);
        return Ended::NotYet;
    }
    let words = link.tx().pump();
    // Of what is carried the daemon has the last word.
    let is_carried = carrier::has(link.side);
    let mut claim = if is_carried { words.sender_claims() } else { words.sender_ends() };
    let mut inherited = false;
    if claim == Claim::Busy {
        inherited = control::pumper_is_gone(words.pumper.load(Ordering::Relaxed))
            && words.sender_inherits();
        if !inherited {
            opens_gate(link, fd);
            return Ended::Busy;
        }
        claim = Claim::AtHead;
    }
    if claim == Claim::AtTail && is_carried {
        match carrier::ends_ring(link, &words) {
            Some(theirs) => claim = theirs,
            None => {
                opens_gate(link, fd);
                return Ended::NotYet;
            }
        }
    }
    // A receiver that has stopped reads no other.
    let how = if claim == Claim::AtTail { how } else { Ending::ForGood };
    let tail = side.tail.load(Ordering::Relaxed);
    let within = |position: u64| {
        let unread = tail.wrapping_sub(position);
        unread <= link.tx().bytes().0.len() as u64
    };
    let pumped = if inherited {
        upgrade::given_to_tcp(fd).and_then(|given| words.pumped_by_count(given))
    } else {
        None
    };
    let from = match (claim, pumped) {
        (Claim::Pumped { to }, _) => to,
        (_, Some((sent, owed))) => {
            pay(fd, owed);
            sent
        }
        _ => {
            let head = link.tx().head().load(Ordering::Acquire);
            // A peer that lies about its position spoils its own stream only.
            let unread = if within(head) { tail.wrapping_sub(head) } else { 0 };
            // A peer that has not stopped need not have all: as much as goes without waiting.
            let back = match claim {
                Claim::AtHead => unread,
                _ => unread.min(raw::send_room(fd)),
            };
            let end = ends_at(link, how, head, tail.wrapping_sub(back));
            // What is counted must travel before data does. The peer reads on until it has them.
            pay(fd, side.bells_owed.swap(0, Ordering::SeqCst).into());
            end
        }
    };
    if within(from) {
        send_again(link, fd, from, tail);
    }
    has_ended(link, fd, how, from);
    Ended::Yes
}

/// All that the peer is to have of the ring part, which ends at `end`, is in the ring or in the kernel.
fn has_ended(link: &Link, fd: i32, how: Ending, end: u64) {
    let side = link.side;
    counters::one(Counter::demoted_tx);
    if how == Ending::Rests {
        let [bells, tail] = [&side.bells, &side.tail].map(|word| word.load(Ordering::SeqCst));
        super::send::bump(&side.tx_before, end.wrapping_sub(bells).wrapping_sub(tail));
        full::begins_to_rest(side);
        side.tx_state.store(tx::TCP, Ordering::SeqCst);
        noted(fd, Counter::plain_full);
        return;
    }
    side.tx_state.store(tx::ENDED, Ordering::SeqCst);
    gives_options_back(link, fd);
    if side.shut.load(Ordering::SeqCst) & SHUT_WRITE != 0 {
        // The carrier has not sent it.
        raw::end_sending(fd);
    }
    if side.tx_frozen.load(Ordering::SeqCst) == 0 {
        noted(fd, Counter::plain_peer);
    }
}

/// Tells the peer where the ring part ends: at `end`, or at its `start` where it was not seen; which it is.
fn ends_at(link: &Link, how: Ending, start: u64, end: u64) -> u64 {
    let switch = link.tx().switch();
    let bells = link.side.bells.load(Ordering::SeqCst);
    let for_good = how == Ending::ForGood;
    if !may_end(link) && switch.take_back(start, bells, for_good) {
        return start;
    }
    if for_good {
        switch.to_tcp(end, bells);
    } else {
        switch.rest(end, bells);
    }
    end
}

/// Sends doorbells that are counted and were not sent.
fn pay(fd: i32, mut owed: u64) {
    while owed > 0 {
        match raw::send(fd, &[0], libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
            Ok(_) => owed -= 1,
            Err(libc::EAGAIN | libc::EINTR) => raw::wait_for(fd, libc::POLLOUT, 20),
            Err(_) => return,
        }
    }
}

/// Sends the ring's bytes from position `from` to `to` by TCP.
fn send_again(link: &Link, fd: i32, mut from: u64, to: u64) {
    let bytes = link.tx().bytes().0;
    let capacity = bytes.len() as u64;
    while from != to {
        let at = from % capacity;
        let len = (to.wrapping_sub(from)).min(capacity - at) as usize;
        let start = bytes.as_ptr().as_ptr().wrapping_add(at as usize);
        // SAFETY: inside our own ring, at most to its end.
        match unsafe { raw::send_from(fd, start, len, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) } {
            Ok(sent) => from = from.wrapping_add(sent as u64),
            Err(libc::EAGAIN | libc::EINTR) => raw::wait_for(fd, libc::POLLOUT, 20),
            // The connection is over; every later call will say so.
            Err(_) => return,
        }
    }
}

/// Whether the peer has stopped and waits for us to [`comply`]. Whoever has armed looks at this
/// before it sleeps: the peer stores its request before it looks whether we are armed.
#[inline]
pub(crate) fn is_urgent(link: &Link) -> bool {
    matches!(link.peer().demote().load(Ordering::Relaxed), request::BACK | request::REFUSED)
        && link.side.tx_state.load(Ordering::Relaxed) == tx::RING
        && link.side.shut.load(Ordering::Relaxed) & SHUT_WRITE == 0
        && may_end(link)
}

/// Whether the daemon is sending for us: until it has done, nothing can be sent.
#[inline]
pub(crate) fn is_pumped(link: &Link) -> bool {
    link.peer().demote().load(Ordering::Relaxed) == request::PUMP
}

/// Before our FIN: does what the peer asks for. True while the daemon is still sending for us.
pub(crate) fn precedes_fin(link: &Link, fd: i32) -> bool {
    comply(link, fd);
    is_pumped(link) && link.side.tx_state.load(Ordering::SeqCst) == tx::RING
}

/// Whether the daemon has done with sending for us, or has died at it.
pub(crate) fn end_by_now(link: &Link, fd: i32) -> bool {
    comply(link, fd);
    link.side.tx_state.load(Ordering::SeqCst) != tx::RING
}

/// Does what the peer asks for, if it asks: called wherever a thread of ours looks at the
/// connection.
#[inline]
pub(crate) fn comply(link: &Link, fd: i32) {
    if is_wanted(link) && link.side.tx_state.load(Ordering::Relaxed) == tx::RING {
        our_way_for(link, fd, Counter::plain_peer);
    }
}

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
            request::PUMP => {
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

/// Whether the peer's FIN has come, or an error.
pub(super) fn peer_has_ended(fd: i32) -> bool {
    let ends = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    raw::pending_events(fd, libc::POLLRDHUP) & ends != 0
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
    bells::drain_quietly(link, fd, bells::Which::All);
    // What was published before the end is visible now.
    if link.ring_has_more() || raw::peek_one(fd).is_ok_and(|len| len > 0) {
        return false;
    }
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
    if !carrier::has(link.side) && bells::is_way_open(link) && bell::take(&link.peer().armed_data())
    {
        bells::ring(link, fd);
    }
}
