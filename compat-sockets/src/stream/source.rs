//! Where the next byte of the peer's comes from: the kernel, the ring, and the kernel again.

use super::bells;
use super::demote::{self, request};
use crate::carrier;
use crate::counters::{self, Counter};
use crate::side::{rx, tx};
use crate::sock::Link;
use crate::upgrade;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::switch::Standing;
use vmmc_ring::{Poisoned, bell};

/// How long [`leave_nothing`] waits, in milliseconds; for another node's daemon [`demote::ASK_CARRIED_MS`].
const TWICE_MS: u32 = 200;

/// Where the next byte comes from, found under the rx lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The kernel; the peer has not switched, or its ring part was read and another may come.
    Tcp {
        /// Whether somebody of ours may wait for a doorbell, so that one can come at any time.
        armed: bool,
    },
    /// The kernel, that many bytes before the ring.
    Prefix(u64),
    /// The ring, that many bytes.
    Ring(u64),
    /// The ring, which is empty now.
    Empty,
    /// The kernel, for good: the ring part is over.
    Ended,
    /// Nonsense was found.
    Poisoned,
}

/// Looks where the next byte comes from. Under the rx lock.
#[inline]
pub(crate) fn source(link: &Link, fd: i32) -> Source {
    let side = link.side;
    match side.rx_state.load(Ordering::Relaxed) {
        rx::RING => {}
        rx::TCP => {
            if let Some(source) = unswitched(link, fd) {
                return source;
            }
        }
        rx::POISONED => return Source::Poisoned,
        _ => return Source::Ended,
    }
    let left = side.rx_left.load(Ordering::Relaxed);
    if left > 0 {
        return Source::Prefix(left);
    }
    let seen = link.consumer().available_seen();
    if seen > 0 {
        return Source::Ring(seen);
    }
    match available(link) {
        Err(_) => poisoned(link),
        Ok(0) => empty(link, fd),
        Ok(there) => Source::Ring(there),
    }
}

/// Bytes to read in the ring now. What lies behind the end of the ring part travels by TCP,
/// though the sender's tail still counts it.
#[inline]
pub(super) fn available(link: &Link) -> Result<u64, Poisoned> {
    let there = link.consumer().available()?;
    Ok(if there > 0 { there.min(link.before_end()) } else { 0 })
}

#[cold]
fn poisoned(link: &Link) -> Source {
    link.poison();
    Source::Poisoned
}

/// The peer had not switched when last seen. `None` once it has.
fn unswitched(link: &Link, fd: i32) -> Option<Source> {
    let side = link.side;
    upgrade::publish_ready(link);
    if side.comes_back.load(Ordering::Relaxed) != 0 {
        inherit(link);
    }
    let is_first = side.parts_read.load(Ordering::Relaxed) == 0;
    // Before the mode is loaded: see `vmmc_ring::switch`. Nobody arms under our lock, and what is
    // armed stays so: whoever waits for a doorbell would miss one that was not sent.
    let is_armed = |word: vmmc::word::MappedU32<'_>| word.load(Ordering::SeqCst) != 0;
    // Who arms without our lock may have found the ring part that is over.
    let armed =
        !is_first || is_armed(link.mine().armed_data()) || is_armed(link.mine().armed_space());
    let switch = link.rx().switch();
    loop {
        match switch.standing() {
            Standing::Tcp => return Some(Source::Tcp { armed }),
            Standing::Nonsense => return Some(poisoned(link)),
            // Of what is carried the daemons have the word.
            Standing::Ring { .. } if !carrier::has(side) && !switch.see() => {
                // It has ended just now.
                if matches!(switch.standing(), Standing::Ring { .. }) {
                    return Some(poisoned(link));
                }
            }
            standing @ (Standing::Ring { prefix } | Standing::Ended { prefix, .. }) => {
                let taken = upgrade::taken_from_tcp(link, fd);
                let head = side.head.load(Ordering::Relaxed);
                if let Standing::Ended { bells, .. } = standing
                    && taken.is_some_and(|taken| never_began(standing, taken, head))
                {
                    return Some(over(link, fd, head, bells));
                }
                let left = match is_first {
                    true => taken.and_then(|taken| prefix.checked_sub(taken)),
                    // The peer has begun only when we had taken all; and when it is dead, the count may be one short.
                    false => Some(0),
                };
                let Some(left) = left else { return Some(poisoned(link)) };
                side.rx_left.store(left, Ordering::Relaxed);
                break;
            }
        }
    }
    // From now on every byte of TCP is looked at for what it is.
    side.rx_state.store(rx::RING, Ordering::SeqCst);
    if carrier::has(side) {
        // PAIRS(seen): with the load in `demote::may_end`.
        link.mine().seen().store(1, Ordering::Release);
        carrier::tell(link);
    }
    counters::one(Counter::switched_rx);
    if !is_first && !is_plain(link) {
        counters::strike(fd);
    }
    None
}

/// Whether our own direction goes by TCP, which then is what `shrimp stat` is told of.
fn is_plain(link: &Link) -> bool {
    let side = link.side;
    side.tx_frozen.load(Ordering::Relaxed) != 0 || side.tx_state.load(Ordering::Relaxed) != tx::RING
}

/// Whether we have read on by TCP behind the byte at which the ring began, because it has ended since without our having
/// seen it: its sender has taken it back, or a carrier ends it before the FIN of a sender whose receiver has taken nothing.
/// Then all of it has come by TCP, and no doorbell with it: one would have had us look before we read.
fn never_began(standing: Standing, taken: u64, head: u64) -> bool {
    matches!(standing, Standing::Ended { prefix, end, bells: 0 } if taken > prefix && end == head)
}

/// The ring is empty: has its part ended?
fn empty(link: &Link, fd: i32) -> Source {
    let side = link.side;
    match link.rx().switch().standing() {
        Standing::Ended { .. } if side.comes_back.load(Ordering::Relaxed) != 0 => {
            inherit(link);
            Source::Tcp { armed: true }
        }
        Standing::Ended { end, bells, .. } => {
            // What was published before the end is visible now: look once more.
            match available(link) {
                Err(_) => return poisoned(link),
                Ok(0) => {}
                Ok(there) => return Source::Ring(there),
            }
            // What we read behind the end comes by TCP once more, after the remaining doorbells,
            // which were sent before anything that counts.
            let twice = side.head.load(Ordering::Relaxed).wrapping_sub(end);
            let left = bells.wrapping_add(twice).wrapping_sub(side.drained.load(Ordering::Relaxed));
            if twice > link.rx().bytes().0.len() as u64 || left > u64::from(u32::MAX) {
                return poisoned(link);
            }
            let mut left = left;
            while left > 0 {
                match crate::raw::discard(fd, left as usize) {
                    Ok(len) if len > 0 => {
                        left -= (len as u64).min(left);
                        super::send::bump(&side.drained, len as u64);
                    }
                    Err(libc::EINTR) => {}
                    // Not there yet: the peer is between storing the end and paying what it
                    // owes. Waiting for them is waiting for data.
                    Ok(_) => return Source::Empty,
                    Err(errno) => {
                        link.keep_news(errno);
                        return Source::Empty;
                    }
                }
            }
            over(link, fd, end, bells)
        }
        Standing::Ring { .. } => Source::Empty,
        Standing::Tcp | Standing::Nonsense => poisoned(link),
    }
}

/// A ring part was read to its `end`, and its `bells` were thrown away.
fn over(link: &Link, fd: i32, end: u64, bells: u64) -> Source {
    let side = link.side;
    counters::one(Counter::demoted_rx);
    side.part_over_at.store(crate::raw::now_ns(), Ordering::Relaxed);
    // Where the peer has closed it is on its way out, and no plain connection.
    let goes_on = link.peer().closed().load(Ordering::Relaxed) == 0;
    if goes_on && side.tx_frozen.load(Ordering::Relaxed) == 0 {
        demote::noted(fd, Counter::plain_peer);
    }
    if comes_back(link, end, bells) {
        return Source::Tcp { armed: true };
    }
    side.rx_state.store(rx::ENDED, Ordering::SeqCst);
    Source::Ended
}

/// Whether the peer may begin another ring part, which it does not before this says so: all that the two count anew with each
/// is put right for it.
fn comes_back(link: &Link, end: u64, bells: u64) -> bool {
    let side = link.side;
    let switch = link.rx().switch();
    if !switch.is_resting() || side.asked.load(Ordering::Relaxed) != 0 {
        return false;
    }
    // The peer has taken the word while it ended the part.
    let word = link.mine().demote();
    let _ = word.compare_exchange(request::TAKEN, 0, Ordering::SeqCst, Ordering::SeqCst);
    let tail = link.arrived();
    let skipped = tail.wrapping_sub(side.head.load(Ordering::Relaxed));
    if word.load(Ordering::SeqCst) != 0 || skipped > link.rx().bytes().0.len() as u64 {
        return false;
    }
    super::send::bump(&side.rx_before, end.wrapping_sub(bells).wrapping_sub(tail));
    side.comes_back.store(1, Ordering::SeqCst);
    put_right(link)
}

/// The steps of [`comes_back`], which another process does once more when this one dies at them. False when the peer breaks
/// the protocol.
fn put_right(link: &Link) -> bool {
    let side = link.side;
    // What lies in the ring behind the end has come by TCP.
    let tail = link.arrived();
    side.head.store(tail, Ordering::Relaxed);
    side.tail_seen.store(tail, Ordering::Relaxed);
    link.rx().head().store(tail, Ordering::Release);
    side.drained.store(0, Ordering::Relaxed);
    side.parts_read.fetch_add(1, Ordering::Relaxed);
    side.rx_state.store(rx::TCP, Ordering::SeqCst);
    // As from the start: who waits where we cannot see him arms for no part that is to come.
    bell::arm_for(&link.mine().armed_data(), &link.mine().sleep(), 0);
    let done = link.rx().switch().come_back();
    side.comes_back.store(0, Ordering::SeqCst);
    done
}

/// Does what somebody has died at.
fn inherit(link: &Link) {
    let side = link.side;
    // Else it was done to the end, and another part has come since.
    let is_due = side.rx_state.load(Ordering::Relaxed) == rx::RING
        || side.head.load(Ordering::Relaxed) == link.arrived();
    if is_due && link.rx().switch().is_resting() {
        put_right(link);
    } else {
        link.side.comes_back.store(0, Ordering::SeqCst);
    }
}

/// Bytes without meaning that precede, by TCP, the data behind a ring part that has ended, for who
/// has `seen` bytes more than were taken; `None` while it has not ended.
pub(super) fn meaningless(link: &Link, seen: u64) -> Option<u64> {
    let Standing::Ended { end, bells, .. } = link.rx().switch().standing() else { return None };
    let doorbells = bells.wrapping_sub(link.side.drained.load(Ordering::Relaxed));
    // What we have read behind the end comes by TCP once more, for nobody.
    let past = link.side.head.load(Ordering::Relaxed).wrapping_add(seen).wrapping_sub(end);
    let twice = if past > link.rx().bytes().0.len() as u64 { 0 } else { past };
    Some(doorbells.saturating_add(twice))
}

/// Before a close or an exec, under the rx lock, with nothing unread in the ring: throws away what TCP must
/// not find unread, since it would answer with an RST. That is doorbells, and bytes that we read behind
/// the end of the ring part and that come by TCP once more. Those may be on their way still, when the
/// peer is just sending them: waited for, a bounded time.
pub(crate) fn leave_nothing(link: &Link, fd: i32) {
    let patience = if carrier::has(link.side) { demote::ASK_CARRIED_MS } else { TWICE_MS };
    for _ in 0..patience {
        let nobody_carries = carrier::has(link.side) && carrier::is_gone(link.side);
        let last_look = nobody_carries || demote::peer_has_ended(fd);
        let is_empty = source(link, fd) == Source::Empty;
        let ended = matches!(link.rx().switch().standing(), Standing::Ended { .. });
        if !is_empty || !ended || last_look {
            break;
        }
        crate::raw::wait_for(fd, libc::POLLIN, 1);
    }
    if link.side.rx_state.load(Ordering::Relaxed) == rx::RING {
        bells::drain_quietly(link, fd, bells::Which::Answered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_part_that_ended_unseen_is_no_nonsense_to_who_has_read_on() {
        let ended = |end, bells| Standing::Ended { prefix: 100, end, bells };
        assert!(never_began(ended(0, 0), 101, 0) && never_began(ended(9, 0), 101, 9));
        // Seen in time, and to be gone through as ever.
        assert!(!never_began(ended(0, 0), 100, 0));
        // A doorbell may be among what was read, and bytes of the ring are missing.
        assert!(!never_began(ended(0, 1), 101, 0) && !never_began(ended(7, 0), 101, 0));
        assert!(!never_began(Standing::Ring { prefix: 100 }, 101, 0));
    }
}
