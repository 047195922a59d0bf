//! Receiving on an upgraded connection.

use super::bells::{self, Drained, Which};
pub(crate) use super::readiness::{Readiness, prefix_is_here, readiness};
use super::source::{Source, available, source};
use super::vectors::{Cursor, receive_kernel, total};
use super::wait::{self, Waited, Wake};
use super::{Outcome, SHUT_READ, demote, peek, second_look};
use crate::counters::{self, Counter};
use crate::lock::Held;
use crate::side::rx;
use crate::sock::Link;
use crate::{carrier, parked, upgrade, user_memory};
use libc::iovec;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::switch::Standing;

/// Bytes taken out before the room is given back.
const PART: usize = 32 * 1024;

/// Whether somebody may wait for this descriptor where we cannot see it (io_uring, raw system
/// calls, a nested epoll): then it must never be left unarmed with an empty ring.
#[inline]
pub(super) fn is_eager(link: &Link) -> bool {
    link.is_waited_for_elsewhere()
        || link.sock.has_early_waiter()
        || (!link.sock.is_watched() && link.sock.nonblocking.load(Ordering::Relaxed) != 0)
}

/// After a short read: arms if that is our duty. True when more has come meanwhile, which must
/// be read too, because no doorbell will tell of it.
#[inline]
pub(crate) fn settle(link: &Link, fd: i32) -> bool {
    if !is_eager(link) || link.side.rx_state.load(Ordering::Relaxed) != rx::RING {
        return false;
    }
    link.arm_data();
    link.looks_readable(fd)
}

/// Whether half of the ring was free before these bytes were taken, by the last tail seen, under the rx lock: then who may
/// wait for room is not worth a fence ([`bells::after_space_for_nobody`]).
#[inline]
fn peer_had_room(link: &Link, taken: usize) -> bool {
    let side = link.side;
    let left =
        side.tail_seen.load(Ordering::Relaxed).wrapping_sub(side.head.load(Ordering::Relaxed));
    left.saturating_add(taken as u64) <= link.rx().bytes().0.len() as u64 / 2 && !carrier::has(side)
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
pub(super) enum Step {
    Got(usize),
    /// Another process has taken the lock over, after so many bytes: there may be more.
    Lost(usize),
    End,
    Wait,
    Again,
    Kernel,
    Failed(i32),
}

/// Receives into the buffers as recv(2) would.
pub(crate) fn recv(link: &Link, mut fd: i32, vectors: &[iovec], flags: i32) -> Outcome {
    let side = link.side;
    if flags & libc::MSG_OOB != 0 {
        side.took_urgent.store(1, Ordering::SeqCst);
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0
        || side.rx_state.load(Ordering::Relaxed) == rx::ENDED
    {
        return by_kernel(link, fd, flags);
    }
    let Some(wanted) = total(vectors) else { return Outcome::Kernel };
    let is_peek = flags & libc::MSG_PEEK != 0;
    let all = flags & libc::MSG_WAITALL != 0;
    let mut cursor = Cursor::new(vectors);
    let mut done = 0;
    let mut counted = 0;
    let mut time = Waited::default();
    let outcome = loop {
        let Ok(mut held) = link.lock_rx() else { break Outcome::Failed(libc::EAGAIN) };
        let in_prefix = side.rx_left.load(Ordering::Relaxed) != 0;
        let is_shared = held == Held::Loose;
        let step = if is_shared {
            shared_step(link, fd, &mut cursor, (done, wanted), flags, &mut held)
        } else {
            locked_step(link, fd, &mut cursor, (done, wanted), flags)
        };
        let had_room = match step {
            Step::Got(_) | Step::Lost(_) if is_shared => false,
            Step::Got(len) => peer_had_room(link, len),
            _ => true,
        };
        if had_room {
            side.rx_lock.unlock_lightly(held);
        } else {
            side.rx_lock.unlock_by(held);
        }
        match step {
            Step::Got(len) if is_peek => {
                demote::comply(link, fd);
                if all
                    && len < wanted
                    && peek::wait_for_more(link, fd, flags, len, &mut counted, &mut time)
                {
                    // From the beginning.
                    cursor = Cursor::new(vectors);
                    fd = parked::number_now(link, fd).unwrap_or(-1);
                    continue;
                }
                break Outcome::Done(len);
            }
            Step::Got(len) => {
                second_look::found(link);
                if had_room {
                    bells::after_space_for_nobody(link, fd);
                } else {
                    bells::after_space(link, fd);
                }
                done += len;
                if done < wanted && (all || settle(link, fd) || crosses(link, in_prefix)) {
                    continue;
                }
                break Outcome::Done(done);
            }
            Step::Lost(len) => {
                if len > 0 {
                    bells::after_space(link, fd);
                    done += len;
                }
            }
            Step::End => break Outcome::Done(done),
            Step::Again => {}
            Step::Kernel => {
                demote::comply(link, fd);
                if done > 0 && crate::raw::is_at_mark(fd) {
                    break Outcome::Done(done);
                }
                if done > 0 {
                    match from_kernel(link, fd, &mut cursor, u64::MAX, flags) {
                        Step::Got(len) => break Outcome::Done(done + len),
                        Step::Failed(libc::ECONNRESET) if link.reset_means_end() => {
                            break Outcome::Done(done);
                        }
                        Step::Failed(errno) => break Outcome::Failed(errno),
                        _ => {}
                    }
                }
                break by_kernel(link, fd, flags);
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
                let waited = wait::for_data(link, fd, flags, &mut time);
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
        Outcome::Failed(errno) if done > 0 => {
            side.keep_error(errno);
            Outcome::Done(done)
        }
        // MSG_WAITALL across the end of the ring part: a short count, which it allows on error.
        Outcome::Kernel if done > 0 => Outcome::Done(done),
        other => other,
    }
}

/// A receive is the kernel's, in which no doorbell reaches its thread: what the peer asks for is done before. A receiver that
/// stops asks before it ends its own ring part, so whoever has seen that end sees the request too.
fn by_kernel(link: &Link, fd: i32, flags: i32) -> Outcome {
    demote::comply(link, fd);
    let is_kept = link.side.has_error();
    let is_of_stream = flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0;
    if is_kept
        && is_of_stream
        && crate::raw::unread(fd) == Ok(0)
        && let Some(errno) = link.side.take_error()
    {
        return Outcome::Failed(errno);
    }
    if link.owes_fin()
        && let Err(errno) = wait::while_fin_is_owed(link, fd, flags)
    {
        return Outcome::Failed(errno);
    }
    Outcome::Kernel
}

/// Reads from the kernel before a switch, while a doorbell may come at any time: only what was
/// in its queue while the peer had certainly not switched, which no doorbell can be among. (A
/// doorbell follows the store of the mode, and the kernel's lock orders the two for us.)
fn unarmed_part(link: &Link, fd: i32, cursor: &mut Cursor<'_>, flags: i32) -> Step {
    let there = match crate::raw::unread(fd) {
        Ok(0) => match crate::raw::peek_one(fd) {
            // Came just now, or lies behind the place of urgent data, up to which the kernel counts.
            Ok(len) if len > 0 => 1,
            Ok(_) => return ended(link),
            Err(libc::EAGAIN) => {
                all_taken(link, fd);
                return Step::Wait;
            }
            Err(libc::EINTR) => return Step::Again,
            // The look has taken the error: a read would find the end.
            Err(errno) => return Step::Failed(errno),
        },
        Ok(there) => there,
        Err(errno) => return Step::Failed(errno),
    };
    if link.rx().switch().standing() != Standing::Tcp {
        return Step::Again;
    }
    let step = from_kernel(link, fd, cursor, there as u64, flags);
    if let Step::Got(len) = step
        && len == there
        && flags & libc::MSG_PEEK == 0
    {
        all_taken(link, fd);
    }
    step
}

/// The kernel's queue was found empty. Where the peer's ring rests, it is told up to where its bytes were taken: it begins the
/// next ring part only behind bytes that were.
fn all_taken(link: &Link, fd: i32) {
    if link.side.parts_read.load(Ordering::Relaxed) != 0
        // Who has sent urgent data begins no ring part any more.
        && let Some(taken) = upgrade::taken_without_mark(link, fd)
    {
        link.mine().taken().store(taken, Ordering::Release);
    }
}

/// [`locked_step`] where several processes have the connection: as long as bytes are copied out of the ring, another may take the
/// lock over.
fn shared_step(
    link: &Link,
    fd: i32,
    cursor: &mut Cursor<'_>,
    (before, wanted): (usize, usize),
    flags: i32,
    held: &mut Held,
) -> Step {
    let lock = &link.side.rx_lock;
    let plainly = flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0 && before < wanted;
    let mut done = 0;
    while plainly && let Some((there, tail)) = in_ring(link) {
        let start = cursor.clone();
        let len = copy_part(link, cursor, there);
        if !lock.firm(held) {
            *cursor = start;
            return Step::Lost(done);
        }
        if len == 0 {
            break;
        }
        let consumer = link.consumer();
        link.side.tail_seen.store(tail, Ordering::Relaxed);
        consumer.taken(len);
        consumer.publish();
        done += len;
        if before + done == wanted {
            // At once: as long as it is firm, who is stopped holds up others.
            lock.unlock_by(*held);
            *held = Held::Not;
            break;
        }
        lock.loosen(held);
    }
    if done > 0 {
        counters::add(Counter::ring_rx_bytes, done as u64);
        counters::one(Counter::ring_rx_calls);
        return Step::Got(done);
    }
    if !lock.firm(held) {
        return Step::Lost(0);
    }
    locked_step(link, fd, cursor, (before, wanted), flags)
}

/// Bytes to read in the ring, and the peer's word that says so, if that makes sense and all before them was read. Changes nothing.
fn in_ring(link: &Link) -> Option<(u64, u64)> {
    let side = link.side;
    let is_there = side.rx_state.load(Ordering::Relaxed) == rx::RING
        && side.rx_left.load(Ordering::Relaxed) == 0;
    let tail = link.arrived();
    let there = tail.wrapping_sub(side.head.load(Ordering::Relaxed));
    let makes_sense = is_there && there <= link.rx().bytes().0.len() as u64;
    let there = if makes_sense && there > 0 { there.min(link.before_end()) } else { 0 };
    (there > 0).then_some((there, tail))
}

/// Copies at most one part of `there` bytes out of the ring; how much. Changes nothing but the cursor.
fn copy_part(link: &Link, cursor: &mut Cursor<'_>, there: u64) -> usize {
    let consumer = link.consumer();
    let head = link.side.head.load(Ordering::Relaxed);
    let most = usize::try_from(there).unwrap_or(usize::MAX).min(PART);
    let mut done = 0;
    while done < most
        && let Some((to, len)) = cursor.part()
    {
        let len = user_memory::writable(to, len.min(most - done));
        if len == 0 {
            break;
        }
        // SAFETY: the program's buffer, as it passed it, found writable just now.
        unsafe { consumer.copy_from(head.wrapping_add(done as u64), to, len) };
        cursor.advance(len);
        done += len;
    }
    done
}

/// What one look gives of `wanted` bytes in all, of which so many were received `before` in the same call.
#[inline]
fn locked_step(
    link: &Link,
    fd: i32,
    cursor: &mut Cursor<'_>,
    (before, wanted): (usize, usize),
    flags: i32,
) -> Step {
    let wanted = wanted - before;
    match source(link, fd) {
        Source::Ring(_) if wanted == 0 => Step::Got(0),
        Source::Ring(_) if flags & libc::MSG_PEEK != 0 => peek::look(link, fd, cursor, 0, flags),
        Source::Prefix(left) if flags & libc::MSG_PEEK != 0 => {
            peek::look(link, fd, cursor, left, flags)
        }
        Source::Ring(there) => {
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
        Source::Tcp { .. } if before > 0 && crate::raw::is_at_mark(fd) => Step::End,
        Source::Tcp { armed } => {
            let step = if armed {
                unarmed_part(link, fd, cursor, flags)
            } else {
                from_kernel(link, fd, cursor, u64::MAX, flags)
            };
            let step = match step {
                Step::Failed(libc::ECONNRESET) if link.reset_means_end() => Step::End,
                step => step,
            };
            // An end, or an error, that came after the peer switched: the ring goes first.
            match step {
                Step::End | Step::Failed(_) if link.rx().switch().standing() != Standing::Tcp => {
                    if let Step::Failed(errno) = step {
                        link.side.keep_error(errno);
                    }
                    Step::Again
                }
                step => step,
            }
        }
        Source::Prefix(left) => match from_kernel(link, fd, cursor, left, flags) {
            Step::Got(len) => {
                link.side.rx_left.store(left - (len as u64).min(left), Ordering::Relaxed);
                Step::Got(len)
            }
            step => step,
        },
        Source::Ended => Step::Kernel,
        Source::Poisoned => Step::Failed(libc::ECONNRESET),
    }
}

#[inline]
pub(super) fn from_ring(link: &Link, cursor: &mut Cursor<'_>, there: u64, flags: i32) -> Step {
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
    if side.has_error() {
        // Bytes published before it go first.
        if link.ring_has_more() {
            return Step::Again;
        }
        if let Some(errno) = side.take_error() {
            return Step::Failed(errno);
        }
    }
    let found = bells::drain(link, fd, Which::Answered);
    // Whatever the kernel's end means, bytes published before it go first.
    if link.ring_has_more() {
        if let Drained::Failed(errno) = found {
            side.keep_error(errno);
        }
        return Step::Again;
    }
    match found {
        Drained::Empty => Step::Wait,
        Drained::End => side.take_error().map_or(Step::End, Step::Failed),
        Drained::Failed(errno) => Step::Failed(errno),
    }
}

/// The kernel says that the stream has ended.
fn ended(link: &Link) -> Step {
    error_at_end(link).map_or(Step::End, Step::Failed)
}

/// The error that goes with an end: one that was told to us already, or that of who carries the connection.
pub(crate) fn error_at_end(link: &Link) -> Option<i32> {
    link.side.take_error().or_else(|| match carrier::taken_error(link) {
        0 => None,
        errno => Some(errno),
    })
}

pub(super) fn from_kernel(
    link: &Link,
    fd: i32,
    cursor: &mut Cursor<'_>,
    most: u64,
    flags: i32,
) -> Step {
    let keep = libc::MSG_PEEK | libc::MSG_TRUNC;
    match receive_kernel(fd, cursor, most, flags & keep) {
        Ok(0) => ended(link),
        Ok(len) => {
            counters::one(Counter::tcp_calls);
            cursor.advance_over(len as u64);
            Step::Got(len)
        }
        Err(libc::EAGAIN) => Step::Wait,
        Err(libc::EINTR) => Step::Again,
        Err(errno) => Step::Failed(errno),
    }
}
