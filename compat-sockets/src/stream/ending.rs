//! The sender ends its ring part: closes the doorbells' gate, says where the part ends, sends what is to come back by TCP.
//!
//! Whoever is killed or stopped in it leaves the gate closed, and the next one with the tx lock goes on.

use super::demote::{may_end, noted};
use super::{FIN_OWED, SHUT_WRITE, bells, full};
use crate::counters::{self, Counter};
use crate::side::{GATE_CLOSED, Side, tx};
use crate::sock::{Link, shadow};
use crate::{carrier, control, raw, upgrade};
use vmmc::sync::{Ordering, spin_hint};
use vmmc::word::Word;
use vmmc_ring::pump::Claim;
use vmmc_ring::switch::Standing;

/// How long the end of a ring part waits for a doorbell that is being rung, in nanoseconds; then another call ends it.
const RINGING_NS: u64 = 1_000_000;
/// How long the kernel may take nothing of what goes back to TCP, in nanoseconds: a peer that wants it and reads nothing must not hold
/// up our thread for ever.
const GIVING_BACK_NS: u64 = 5_000_000_000;

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

/// Whether our sending side is shut, by us or by the end of the connection.
pub(super) fn has_sent_fin(fd: i32) -> bool {
    upgrade::given_to_tcp(fd).is_none()
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
    let mut patience = Patience::new();
    let (from, is_paid) = match (claim, pumped) {
        (Claim::Pumped { to }, _) => (to, true),
        (_, Some((sent, owed))) => (sent, pay(link, fd, owed, &mut patience)),
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
            (end, pay(link, fd, side.bells_owed.swap(0, Ordering::SeqCst).into(), &mut patience))
        }
    };
    if is_paid && (!within(from) || send_again(link, fd, from, tail, &mut patience)) {
        has_ended(link, fd, how, from);
    } else {
        cut_off(link, fd);
    }
    Ended::Yes
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
        // Neither the carrier nor `shutdown` has sent it.
        raw::end_sending(fd);
        side.shut.fetch_and(!FIN_OWED, Ordering::SeqCst);
    }
    if side.tx_frozen.load(Ordering::SeqCst) == 0 {
        noted(fd, Counter::plain_peer);
    }
}

/// The kernel has its options again as the program wants them: no doorbell goes that way any more.
pub(super) fn gives_options_back(link: &Link, fd: i32) {
    let set = link.sock.shadow.load(Ordering::Relaxed);
    for (name, bit) in [(libc::TCP_NODELAY, shadow::NODELAY), (libc::TCP_CORK, shadow::CORK)] {
        let value = i32::from(set & bit != 0);
        let _ = raw::set_socket_option(fd, libc::IPPROTO_TCP, name, &value);
    }
}

/// How long the kernel has taken nothing of what goes back ([`GIVING_BACK_NS`]).
struct Patience {
    /// When it is over, once something was refused.
    until: Option<u64>,
}

impl Patience {
    const fn new() -> Patience {
        Patience { until: None }
    }

    /// The kernel has taken something.
    fn begins_anew(&mut self) {
        self.until = None;
    }

    /// Waits until the socket may take more; false when that was tried once more after the time.
    fn waits(&mut self, fd: i32) -> bool {
        let now = raw::now_ns();
        let until = *self.until.get_or_insert(now.saturating_add(GIVING_BACK_NS));
        if now >= until {
            return false;
        }
        raw::wait_for(fd, libc::POLLOUT, 20);
        true
    }
}

/// What goes back to TCP was not read in time: the stream has a gap, so the connection is over, for both ends.
#[cold]
fn cut_off(link: &Link, fd: i32) {
    link.poison();
    link.side.shut.fetch_and(!FIN_OWED, Ordering::SeqCst);
    raw::reset(fd);
}

/// Sends doorbells that are counted and were not sent. False when that takes too long.
fn pay(link: &Link, fd: i32, mut owed: u64, patience: &mut Patience) -> bool {
    while owed > 0 {
        match raw::send(fd, &[0], libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
            Ok(_) => {
                owed -= 1;
                patience.begins_anew();
            }
            Err(libc::EAGAIN | libc::EINTR) if patience.waits(fd) => {}
            Err(libc::EAGAIN | libc::EINTR) => return false,
            // The connection is over.
            Err(errno) => {
                link.keep_news(errno);
                break;
            }
        }
    }
    true
}

/// Sends the ring's bytes from position `from` to `to` by TCP. False when that takes too long.
fn send_again(link: &Link, fd: i32, mut from: u64, to: u64, patience: &mut Patience) -> bool {
    let bytes = link.tx().bytes().0;
    let capacity = bytes.len() as u64;
    while from != to {
        let at = from % capacity;
        let len = (to.wrapping_sub(from)).min(capacity - at) as usize;
        let start = bytes.as_ptr().as_ptr().wrapping_add(at as usize);
        // SAFETY: inside our own ring, at most to its end.
        match unsafe { raw::send_from(fd, start, len, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) } {
            Ok(sent) => {
                from = from.wrapping_add(sent as u64);
                patience.begins_anew();
            }
            Err(libc::EAGAIN | libc::EINTR) if patience.waits(fd) => {}
            Err(libc::EAGAIN | libc::EINTR) => return false,
            // The connection is over.
            Err(errno) => {
                link.keep_news(errno);
                break;
            }
        }
    }
    true
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
                let mut patience = Patience::new();
                let is_within = tail.wrapping_sub(from) <= link.tx().bytes().0.len() as u64;
                if !pay(link, fd, owed.min(side.bells.load(Ordering::SeqCst)), &mut patience)
                    || is_within && !send_again(link, fd, from, tail, &mut patience)
                {
                    return cut_off(link, fd);
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
