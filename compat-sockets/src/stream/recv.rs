//! Receiving on an upgraded connection.

use super::bells::{self, Drained};
use super::vectors::{Cursor, receive_kernel, total};
use super::wait::{self, Wake};
use super::{Outcome, SHUT_READ, demote};
use crate::counters::{self, Counter};
use crate::fd_table::Link;
use crate::side::rx;
use crate::{parked, upgrade, user_memory};
use libc::iovec;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::Poisoned;
use vmmc_ring::switch::Standing;

/// Bytes taken out before the room is given back.
const PART: usize = 32 * 1024;
/// How long [`leave_nothing`] waits, in milliseconds.
const TWICE_MS: u32 = 200;

/// Where the next byte comes from, found under the rx lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The kernel; the peer has not switched.
    Tcp {
        /// Whether somebody of ours waits for a doorbell, so that one can come at any time.
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
fn available(link: &Link) -> Result<u64, Poisoned> {
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
    // Before the mode is loaded: see `vmmc_ring::switch`. Nobody arms under our lock, and what is
    // armed stays so: whoever waits for a doorbell would miss one that was not sent.
    let is_armed = |word: vmmc::word::MappedU32<'_>| word.load(Ordering::SeqCst) != 0;
    let armed = is_armed(link.mine().armed_data()) || is_armed(link.mine().armed_space());
    match link.rx().switch().standing() {
        Standing::Tcp => return Some(Source::Tcp { armed }),
        Standing::Nonsense => return Some(poisoned(link)),
        Standing::Ring { prefix } | Standing::Ended { prefix, .. } => {
            let left = upgrade::taken_from_tcp(fd).and_then(|taken| prefix.checked_sub(taken));
            let Some(left) = left else { return Some(poisoned(link)) };
            side.rx_left.store(left, Ordering::Relaxed);
        }
    }
    side.rx_state.store(rx::RING, Ordering::SeqCst);
    // PAIRS(seen): from now on every byte of TCP is looked at for what it is.
    link.mine().seen().store(1, Ordering::Release);
    counters::one(Counter::switched_rx);
    None
}

/// Reads from the kernel before the switch, while a doorbell may come at any time: only what was
/// in its queue while the peer had certainly not switched, which no doorbell can be among. (A
/// doorbell follows the store of the mode, and the kernel's lock orders the two for us.)
fn unarmed_part(link: &Link, fd: i32, cursor: &mut Cursor<'_>, flags: i32) -> Step {
    let there = match crate::raw::unread(fd) {
        Ok(0) => match crate::raw::peek_one(fd) {
            // Came just now.
            Ok(len) if len > 0 => return Step::Again,
            Ok(_) => return Step::End,
            Err(libc::EAGAIN) => return Step::Wait,
            Err(libc::EINTR) => return Step::Again,
            // Takes the error, as the read would.
            Err(_) => 1,
        },
        Ok(there) => there,
        Err(errno) => return Step::Failed(errno),
    };
    if link.rx().switch().standing() != Standing::Tcp {
        return Step::Again;
    }
    from_kernel(link, fd, cursor, there as u64, flags)
}

/// The ring is empty: has its part ended?
fn empty(link: &Link, fd: i32) -> Source {
    let side = link.side;
    match link.rx().switch().standing() {
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
                    _ => return Source::Empty,
                }
            }
            side.rx_state.store(rx::ENDED, Ordering::SeqCst);
            counters::one(Counter::demoted_rx);
            Source::Ended
        }
        Standing::Ring { .. } => Source::Empty,
        Standing::Tcp | Standing::Nonsense => poisoned(link),
    }
}

/// Before a close or an exec, under the rx lock, with nothing unread in the ring: throws away what TCP must
/// not find unread, since it would answer with an RST. That is doorbells, and bytes that we read behind
/// the end of the ring part and that come by TCP once more. Those may be on their way still, when the
/// peer is just sending them: waited for, [`TWICE_MS`] at most.
pub(crate) fn leave_nothing(link: &Link, fd: i32) {
    for _ in 0..TWICE_MS {
        let last_look = demote::peer_has_ended(fd);
        let is_empty = source(link, fd) == Source::Empty;
        let ended = matches!(link.rx().switch().standing(), Standing::Ended { .. });
        if !is_empty || !ended || last_look {
            break;
        }
        crate::raw::wait_for(fd, libc::POLLIN, 1);
    }
    if link.side.rx_state.load(Ordering::Relaxed) == rx::RING
        && let Drained::Failed(errno) = bells::drain(link, fd)
    {
        link.side.rx_error.store(errno as u32, Ordering::Relaxed);
    }
}

/// Whether somebody may wait for this descriptor where we cannot see it (io_uring, raw system
/// calls, a nested epoll): then it must never be left unarmed with an empty ring.
#[inline]
pub(super) fn is_eager(link: &Link) -> bool {
    link.side.eager.load(Ordering::Relaxed) != 0
        || (link.sock.watched.load(Ordering::Relaxed) == 0
            && link.sock.nonblocking.load(Ordering::Relaxed) != 0)
}

/// After a short read: arms if that is our duty. True when more has come meanwhile, which must
/// be read too, because no doorbell will tell of it.
#[inline]
fn settle(link: &Link, fd: i32) -> bool {
    if !is_eager(link) || link.side.rx_state.load(Ordering::Relaxed) != rx::RING {
        return false;
    }
    link.arm_data();
    link.looks_readable(fd)
}

/// After a short read: whether it was short because the stream goes on by another way there, from
/// TCP to the ring or back. The program must not see the seam.
#[inline]
fn crosses(link: &Link, in_prefix: bool) -> bool {
    let side = link.side;
    side.rx_state.load(Ordering::Relaxed) == rx::RING
        && side.rx_left.load(Ordering::Relaxed) == 0
        && (in_prefix || matches!(link.rx().switch().standing(), Standing::Ended { .. }))
}

/// What one look under the lock gave.
enum Step {
    Got(usize),
    End,
    Wait,
    Again,
    Kernel,
    Failed(i32),
}

/// Receives into the buffers as recv(2) would.
pub(crate) fn recv(link: &Link, mut fd: i32, vectors: &[iovec], flags: i32) -> Outcome {
    let side = link.side;
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0
        || side.rx_state.load(Ordering::Relaxed) == rx::ENDED
    {
        // No doorbell reaches a thread inside the kernel's own receive: what the peer asks for
        // is done before.
        demote::comply(link, fd);
        return Outcome::Kernel;
    }
    let Some(wanted) = total(vectors) else { return Outcome::Kernel };
    let peek = flags & libc::MSG_PEEK != 0;
    let all = flags & libc::MSG_WAITALL != 0 && !peek;
    let mut cursor = Cursor::new(vectors);
    let mut done = 0;
    let outcome = loop {
        if side.rx_lock.lock().is_err() {
            break Outcome::Failed(libc::EAGAIN);
        }
        let in_prefix = side.rx_left.load(Ordering::Relaxed) != 0;
        let step = locked_step(link, fd, &mut cursor, wanted - done, flags);
        side.rx_lock.unlock();
        match step {
            Step::Got(len) => {
                if !peek {
                    bells::after_space(link, fd);
                }
                done += len;
                let wants_more = done < wanted && !peek;
                if (all && done < wanted)
                    || (wants_more && settle(link, fd))
                    || (wants_more && crosses(link, in_prefix))
                {
                    continue;
                }
                break Outcome::Done(done);
            }
            Step::End => break Outcome::Done(done),
            Step::Again => {}
            Step::Kernel => {
                // As at the top. A receiver that stops asks before it ends its own ring part, so
                // whoever has seen that end sees the request too.
                demote::comply(link, fd);
                if done > 0
                    && let Step::Got(len) = from_kernel(link, fd, &mut cursor, u64::MAX, flags)
                {
                    break Outcome::Done(done + len);
                }
                break Outcome::Kernel;
            }
            Step::Failed(errno) => break Outcome::Failed(errno),
            Step::Wait => {
                if side.shut.load(Ordering::Relaxed) & SHUT_READ != 0 {
                    break Outcome::Done(done);
                }
                if done > 0 && !all {
                    break Outcome::Done(done);
                }
                demote::comply(link, fd);
                let waited = wait::for_data(link, fd, flags);
                // Another thread may have closed the number while we slept.
                fd = parked::number_now(link, fd).unwrap_or(-1);
                match waited {
                    Ok(Wake::Look) => {}
                    Ok(Wake::End) => break Outcome::Done(done),
                    Err(errno) => break Outcome::Failed(errno),
                }
            }
        }
    };
    match outcome {
        Outcome::Failed(_) if done > 0 => Outcome::Done(done),
        // MSG_WAITALL across the end of the ring part: a short count, which it allows on error.
        Outcome::Kernel if done > 0 => Outcome::Done(done),
        other => other,
    }
}

#[inline]
fn locked_step(link: &Link, fd: i32, cursor: &mut Cursor<'_>, wanted: usize, flags: i32) -> Step {
    match source(link, fd) {
        Source::Ring(there) => {
            if wanted == 0 {
                return Step::Got(0);
            }
            // `there` may be from an earlier look. A short count must mean that no more had come:
            // programs with edge-triggered epoll take it for that and wait.
            if there >= wanted as u64 {
                return from_ring(link, cursor, there, flags);
            }
            match available(link) {
                // Less when the peer has ended its part before what we saw: that stays to be
                // read (and thrown away when it comes again), and none of it is not the end.
                Ok(now) => from_ring(link, cursor, now.max(there), flags),
                Err(_) => {
                    link.poison();
                    Step::Failed(libc::ECONNRESET)
                }
            }
        }
        Source::Empty => ring_is_empty(link, fd),
        Source::Tcp { armed } => {
            let step = if armed {
                unarmed_part(link, fd, cursor, flags)
            } else {
                from_kernel(link, fd, cursor, u64::MAX, flags)
            };
            // An end, or an error, that came after the peer switched: the ring goes first.
            match step {
                Step::End | Step::Failed(_) if link.rx().switch().standing() != Standing::Tcp => {
                    if let Step::Failed(errno) = step {
                        link.side.rx_error.store(errno as u32, Ordering::Relaxed);
                    }
                    Step::Again
                }
                step => step,
            }
        }
        Source::Prefix(left) => match from_kernel(link, fd, cursor, left, flags) {
            Step::Got(len) => {
                if flags & libc::MSG_PEEK == 0 {
                    link.side.rx_left.store(left - (len as u64).min(left), Ordering::Relaxed);
                }
                Step::Got(len)
            }
            step => step,
        },
        Source::Ended => Step::Kernel,
        Source::Poisoned => Step::Failed(libc::ECONNRESET),
    }
}

#[inline]
fn from_ring(link: &Link, cursor: &mut Cursor<'_>, there: u64, flags: i32) -> Step {
    let consumer = link.consumer();
    let peek = flags & libc::MSG_PEEK != 0;
    let discard = flags & libc::MSG_TRUNC != 0;
    let mut done = 0usize;
    let mut held = 0;
    let mut error = libc::ECONNRESET;
    while let Some((to, len)) = cursor.part() {
        // Only the part that will be filled is checked: programs read into buffers far larger
        // than what has come.
        let left = usize::try_from(there.saturating_sub(done as u64)).unwrap_or(usize::MAX);
        if left == 0 {
            break;
        }
        let len = len.min(PART).min(left);
        let len = if discard { len } else { user_memory::writable(to, len) };
        if len == 0 {
            error = libc::EFAULT;
            break;
        }
        let skip = if peek { done as u64 } else { 0 };
        let result = if discard {
            let len = (len as u64).min(there.saturating_sub(done as u64)) as usize;
            if !peek {
                consumer.taken(len);
            }
            Ok(len)
        } else if peek {
            // SAFETY: the program's buffer, as it passed it.
            unsafe { consumer.peek(skip, to, len) }
        } else {
            // SAFETY: as above.
            unsafe { consumer.pop(to, len) }
        };
        let Ok(len) = result else {
            link.poison();
            break;
        };
        if len == 0 {
            break;
        }
        cursor.advance(len);
        done += len;
        held += len;
        if !peek && held >= PART {
            consumer.publish();
            held = 0;
        }
    }
    if !peek {
        consumer.publish();
        counters::add(Counter::ring_rx_bytes, done as u64);
        counters::one(Counter::ring_rx_calls);
    }
    if done == 0 { Step::Failed(error) } else { Step::Got(done) }
}

/// Nothing in the ring. Throws doorbells away, so that the kernel's readiness is true again.
fn ring_is_empty(link: &Link, fd: i32) -> Step {
    let side = link.side;
    let error = side.rx_error.swap(0, Ordering::Relaxed);
    if error != 0 {
        return Step::Failed(error as i32);
    }
    let found = bells::drain(link, fd);
    // Whatever the kernel's end means, bytes published before it go first.
    if link.ring_has_more() {
        if let Drained::Failed(errno) = found {
            side.rx_error.store(errno as u32, Ordering::Relaxed);
        }
        return Step::Again;
    }
    match found {
        Drained::Empty => Step::Wait,
        Drained::End => Step::End,
        Drained::Failed(errno) => Step::Failed(errno),
    }
}

fn from_kernel(link: &Link, fd: i32, cursor: &mut Cursor<'_>, most: u64, flags: i32) -> Step {
    let _ = link;
    let keep = libc::MSG_PEEK | libc::MSG_TRUNC;
    match receive_kernel(fd, cursor, most, flags & keep) {
        Ok(0) => Step::End,
        Ok(len) => {
            counters::one(Counter::tcp_calls);
            // Several buffers may have been filled.
            let mut left = len;
            while left > 0
                && let Some((_, part)) = cursor.part()
            {
                cursor.advance(part.min(left));
                left -= part.min(left);
            }
            Step::Got(len)
        }
        Err(libc::EAGAIN) => Step::Wait,
        Err(libc::EINTR) => Step::Again,
        Err(errno) => Step::Failed(errno),
    }
}

/// What a poller should report for `POLLIN`, and whether kernel readability counts: drains
/// doorbells if the ring is empty. Takes the rx lock.
pub(crate) fn readiness(link: &Link, fd: i32) -> Readiness {
    if link.side.rx_lock.lock().is_err() {
        return Readiness::Kernel;
    }
    let was_ring = link.side.rx_state.load(Ordering::Relaxed) == rx::RING;
    let answer = match source(link, fd) {
        // The last doorbells were thrown away just now: the kernel's answer is from before.
        Source::Ended if was_ring && crate::raw::peek_one(fd) == Err(libc::EAGAIN) => {
            Readiness::NotReady
        }
        Source::Tcp { .. } | Source::Prefix(_) | Source::Ended => Readiness::Kernel,
        Source::Ring(_) | Source::Poisoned => Readiness::Ready,
        Source::Empty => {
            if link.side.rx_error.load(Ordering::Relaxed) != 0 {
                Readiness::Ready
            } else {
                match bells::drain(link, fd) {
                    _ if link.ring_has_more() => Readiness::Ready,
                    Drained::Empty => at_end(link, fd),
                    Drained::End => Readiness::Ready,
                    Drained::Failed(errno) => {
                        link.side.rx_error.store(errno as u32, Ordering::Relaxed);
                        Readiness::Ready
                    }
                }
            }
        }
    };
    link.side.rx_lock.unlock();
    answer
}

/// No doorbell is left: did the kernel mean the end?
fn at_end(link: &Link, fd: i32) -> Readiness {
    match crate::raw::peek_one(fd) {
        Ok(0) => Readiness::Ready,
        // A doorbell that came just now: seen at the next look.
        Ok(_) | Err(libc::EAGAIN | libc::EINTR) => Readiness::NotReady,
        Err(libc::ECONNRESET) if link.reset_means_end() => Readiness::Ready,
        Err(errno) => {
            link.side.rx_error.store(errno as u32, Ordering::Relaxed);
            Readiness::Ready
        }
    }
}

/// Answer of [`readiness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// There is something to receive, or an end or error to hear of.
    Ready,
    /// There is nothing, whatever the kernel said before.
    NotReady,
    /// The kernel's own answer is right.
    Kernel,
}

/// Whether all bytes that precede the ring are in the kernel's queue, and no end: whatever arrives there
/// from now on is a doorbell, or the end. For pollers, without the lock.
pub(crate) fn prefix_is_here(link: &Link, fd: i32) -> bool {
    let left = link.side.rx_left.load(Ordering::Relaxed);
    link.side.rx_state.load(Ordering::Relaxed) == rx::RING
        && left > 0
        && crate::raw::unread(fd).is_ok_and(|queued| queued as u64 >= left)
        && crate::raw::pending_events(fd, libc::POLLRDHUP) == 0
}

/// Bytes that can be received now, of prefix and ring (`FIONREAD`). `None`: ask the kernel.
pub(crate) fn unread(link: &Link, fd: i32) -> Option<usize> {
    link.side.rx_lock.lock().ok()?;
    let answer = match source(link, fd) {
        Source::Tcp { .. } | Source::Ended => None,
        Source::Prefix(left) => {
            let queued = crate::raw::unread(fd).unwrap_or(0) as u64;
            let ring = available(link).unwrap_or(0);
            Some(if queued >= left { left + ring + behind_ring(link, fd, left) } else { queued })
        }
        Source::Ring(there) => Some(available(link).unwrap_or(there) + behind_ring(link, fd, 0)),
        Source::Empty | Source::Poisoned => Some(0),
    };
    link.side.rx_lock.unlock();
    answer.map(|count| count as usize)
}

/// Bytes in the kernel's queue that follow a ring part which has ended and is not read to its end,
/// when `left` bytes there precede it.
fn behind_ring(link: &Link, fd: i32, left: u64) -> u64 {
    let Standing::Ended { end, bells, .. } = link.rx().switch().standing() else { return 0 };
    let doorbells = bells.wrapping_sub(link.side.drained.load(Ordering::Relaxed));
    // What we have read behind the end comes by TCP once more, for nobody.
    let past = link.side.head.load(Ordering::Relaxed).wrapping_sub(end);
    let twice = if past > link.rx().bytes().0.len() as u64 { 0 } else { past };
    let queued = crate::raw::unread(fd).unwrap_or(0) as u64;
    queued.saturating_sub(left.saturating_add(doorbells).saturating_add(twice))
}

/// Whether bytes of the ring come before anything in the kernel's queue. If not, doorbells in
/// that queue are thrown away.
pub(crate) fn is_before_kernel(link: &Link, fd: i32) -> bool {
    if link.side.rx_lock.lock().is_err() {
        return false;
    }
    let answer = match source(link, fd) {
        Source::Ring(_) => true,
        Source::Empty => {
            if let Drained::Failed(errno) = bells::drain(link, fd) {
                link.side.rx_error.store(errno as u32, Ordering::Relaxed);
            }
            link.ring_has_more()
        }
        Source::Tcp { .. } | Source::Prefix(_) | Source::Ended | Source::Poisoned => false,
    };
    link.side.rx_lock.unlock();
    answer
}
