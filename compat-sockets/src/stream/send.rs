//! Sending on an upgraded connection.

use super::ending::{Ended, Ending};
use super::vectors::{Cursor, total};
use super::wait::{self, Room, Waited};
use super::{Outcome, SHUT_WRITE, bells, demote, ending, full, recv};
use crate::counters::{self, Counter};
use crate::lock::Held;
use crate::side::tx;
use crate::sock::Link;
use crate::{carrier, epoll, parked, raw, real, settings, upgrade, user_memory};
use libc::iovec;
use vmmc::config::StreamProtocol;
use vmmc::sync::{AtomicU32, AtomicU64, Ordering};
use vmmc::word::Word;
use vmmc_ring::Poisoned;

/// Bytes copied before they are published: the receiver copies one part while we copy the next.
const PART: usize = 32 * 1024;
/// Sends into a ring that nobody empties, before the kernel is asked whether anybody is there.
const STUCK: u32 = 16;
/// Flags that need the kernel.
const KERNEL_FLAGS: i32 = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// Sends the buffers as send(2) would.
pub(crate) fn send(link: &Link, mut fd: i32, vectors: &[iovec], flags: i32) -> Outcome {
    let Some(wanted) = total(vectors) else { return Outcome::Kernel };
    let side = link.side;
    if let Some(errno) = side.take_error() {
        return Outcome::Failed(errno);
    }
    if side.shut.load(Ordering::Relaxed) & SHUT_WRITE != 0 && fin_comes_later(link) {
        // What the kernel says once it has sent our FIN, which may be on its way to it.
        return Outcome::Failed(libc::EPIPE);
    }
    if wanted == 0 || side.shut.load(Ordering::Relaxed) & (SHUT_WRITE | super::GONE) != 0 {
        return Outcome::Kernel;
    }
    if flags & KERNEL_FLAGS != 0 {
        return for_kernel(link, fd, flags);
    }
    let mut cursor = Cursor::new(vectors);
    let mut done = 0;
    let mut time = Waited::default();
    let outcome = loop {
        let Ok(mut held) = link.lock_tx() else { break Outcome::Failed(libc::EAGAIN) };
        let step = locked_step(link, fd, &mut cursor, &mut held);
        side.tx_lock.unlock_by(held);
        match step {
            Step::Lost => {}
            Step::Sent(len) => {
                bells::after_data(link, fd);
                done += len;
                if done >= wanted {
                    break Outcome::Done(done);
                }
            }
            Step::Full => {
                counters::one(Counter::ring_full);
                if flags & libc::MSG_DONTWAIT != 0 || raw::is_nonblocking(fd) {
                    match refused(link, fd) {
                        Refused::Yes => break Outcome::Failed(libc::EAGAIN),
                        Refused::ByTcp => continue,
                        Refused::Ended => break Outcome::Kernel,
                        // A short count leaves the error to the next call, as in the kernel.
                        Refused::Gone if done > 0 => break Outcome::Done(done),
                        Refused::Gone => break to_nobody(link),
                    }
                }
                let waited = wait::for_space(link, fd, &mut time);
                fd = parked::number_now(link, fd).unwrap_or(-1);
                match waited {
                    Ok(Room::Look) => {}
                    Ok(Room::Gone) if done > 0 => break Outcome::Done(done),
                    Ok(Room::Gone) => break to_nobody(link),
                    Err(errno) => break Outcome::Failed(errno),
                }
            }
            Step::Kernel => break Outcome::Kernel,
            Step::Unswitched if done == 0 => break Outcome::Unswitched,
            // The rest of a call that began in the ring, which rests.
            Step::Unswitched => {
                if let Some(more) = plainly(link, || finish(link, fd, &mut cursor, flags)) {
                    break Outcome::Done(done + more);
                }
            }
            Step::Failed(errno) => break Outcome::Failed(errno),
        }
    };
    if done > 0 {
        counters::add(Counter::ring_tx_bytes, done as u64);
        counters::one(Counter::ring_tx_calls);
    }
    match outcome {
        Outcome::Done(_) => outcome,
        // What a doorbell of this call was told the kernel does not tell again.
        Outcome::Kernel | Outcome::Unswitched if done == 0 => {
            side.take_error().map_or(outcome, Outcome::Failed)
        }
        _ if done == 0 => outcome,
        Outcome::Failed(errno) => {
            side.keep_error(errno);
            Outcome::Done(done)
        }
        // The rest of a call that began in the ring.
        _ => Outcome::Done(done + finish(link, fd, &mut cursor, flags)),
    }
}

/// Whether the kernel is still to be told of our end.
fn fin_comes_later(link: &Link) -> bool {
    carrier::sends_fin(link) || link.owes_fin()
}

/// How long a blocking send that needs the kernel waits for a peer that has not looked since our ring began, in milliseconds.
const UNSEEN_MS: u32 = 5000;
/// And from then on, while what it reads still has to find room. (Who interrupted a send of its own thread tries in vain.)
const SEEN_MS: u32 = 200;

/// For a send that needs the kernel: our direction goes by TCP from now on. Where the peer has not looked since our ring began, and
/// more lies there than TCP takes, it cannot yet: a blocking send waits for that look, a bounded time.
#[cold]
pub(crate) fn for_kernel(link: &Link, fd: i32, flags: i32) -> Outcome {
    let may_wait = flags & libc::MSG_DONTWAIT == 0 && !raw::is_nonblocking(fd);
    let (mut waited, mut seen) = (0, 0);
    loop {
        let is_done = demote::our_way_for(link, fd, Counter::plain_option);
        if let Some(errno) = link.side.take_error() {
            return Outcome::Failed(errno);
        }
        if is_done {
            return Outcome::Kernel;
        }
        if !may_wait || waited == UNSEEN_MS || seen == SEEN_MS {
            return Outcome::Failed(libc::EAGAIN);
        }
        raw::wait_for(-1, 0, 1);
        waited += 1;
        seen += u32::from(demote::may_end(link));
    }
}

/// Makes a real send on a socket whose direction has not switched. It is counted, so that the switch waits for it; if the
/// switch came first, `None`: the ring must have the bytes.
#[cold]
pub(crate) fn plainly<T>(link: &Link, call: impl FnOnce() -> T) -> Option<T> {
    /// Cancelled, too, it is inside no longer.
    struct Inside(&'static AtomicU32);
    impl Drop for Inside {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let count = &link.side.plain_tx;
    // PAIRS(plain_tx): with the store of RING in `upgrade::try_switch`.
    count.fetch_add(1, Ordering::SeqCst);
    let _inside = Inside(count);
    match link.side.tx_state.load(Ordering::SeqCst) {
        tx::RING => None,
        _ => Some(call()),
    }
}

/// What becomes of a send that finds no room and does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is told so.
    Yes,
    /// It begins anew: our direction is the kernel's, for good or for now.
    ByTcp,
    /// The kernel says: our end was sent, and what is in the ring stays there.
    Ended,
    /// The connection is over: [`to_nobody`].
    Gone,
}

/// What a send comes to when the connection is found to be over.
pub(crate) fn to_nobody(link: &Link) -> Outcome {
    if link.side.shut.load(Ordering::Relaxed) & SHUT_WRITE != 0 {
        // The FIN may be on its way to the kernel.
        return Outcome::Failed(libc::EPIPE);
    }
    recv::error_at_end(link).map_or(Outcome::Kernel, Outcome::Failed)
}

/// A send finds no room and does not wait: whoever waits for room is to hear of it, if anybody does and not only tries again.
/// Where nobody but the kernel can tell him, or nothing was read for long, our direction goes by TCP.
#[cold]
pub(crate) fn refused(link: &Link, fd: i32) -> Refused {
    link.side.tx_refused.fetch_add(1, Ordering::SeqCst);
    // Whoever watches a descriptor that nobody was seen to watch does it where we cannot see it.
    let by_kernel = epoll::refused(fd, link.sock) || !link.sock.is_watched();
    // What a daemon carries ends its ring in its own time; members of sets are looked at by who waits there.
    let alone = !carrier::has(link.side) || link.sock.epoll_refs.load(Ordering::Relaxed) == 0;
    let leaves =
        by_kernel && demote::our_way(link, fd) || alone && full::goes_on_by_tcp(link, fd, None);
    match leaves {
        false if is_over(link, fd) => Refused::Gone,
        false => Refused::Yes,
        true if link.side.tx_state.load(Ordering::SeqCst) == tx::RING => Refused::Ended,
        true => Refused::ByTcp,
    }
}

enum Step {
    Sent(usize),
    /// Another process has taken the lock over: begin anew.
    Lost,
    Full,
    Kernel,
    Unswitched,
    Failed(i32),
}

/// One part, under the tx lock, which may be held loosely.
#[inline]
fn locked_step(link: &Link, fd: i32, cursor: &mut Cursor<'_>, held: &mut Held) -> Step {
    let side = link.side;
    if ending::is_left_half_done(side) {
        if !side.tx_lock.firm(held) {
            return Step::Lost;
        }
        // Looked at once more: who has taken the lock over may have been at it.
        ending::state_of_tx(link, fd);
    }
    match side.tx_state.load(Ordering::SeqCst) {
        tx::RING => {}
        tx::TCP => {
            if !side.tx_lock.firm(held) {
                return Step::Lost;
            }
            if !upgrade::try_switch(link, fd) {
                return Step::Unswitched;
            }
        }
        tx::POISONED => return Step::Failed(libc::ECONNRESET),
        _ => return Step::Kernel,
    }
    let is_shared = *held == Held::Loose;
    let is_spoiled = side.tx_lock.was_taken_over();
    if demote::is_wanted(link) || is_spoiled {
        if !side.tx_lock.firm(held) {
            return Step::Lost;
        }
        // Somebody who lost the lock while he was stopped may still be copying there.
        if is_spoiled {
            demote::freeze(link, fd, Counter::plain_stopped);
        }
        match ending::end_ring(link, fd, Ending::ForGood) {
            Ended::Yes => return Step::Kernel,
            Ended::Busy => return Step::Full,
            // Somebody may still be copying there.
            Ended::NotYet if is_spoiled => return Step::Full,
            // Reset by a program without us, which says nothing in the segment. (A carrier does.)
            Ended::NotYet
                if !carrier::has(side) && raw::pending_events(fd, 0) & libc::POLLHUP != 0 =>
            {
                return Step::Kernel;
            }
            Ended::NotYet => {}
        }
    }
    if is_after_close(link) {
        return Step::Kernel;
    }
    match fill(link, cursor, held) {
        Ok(0) => Step::Full,
        Ok(len) => {
            if is_shared {
                // At once: as long as it is firm, who is stopped holds up others. What follows only looks.
                side.tx_lock.unlock_by(*held);
                *held = Held::Not;
            }
            // Seen by the next call, which finds the connection gone or the ring ended.
            if is_stuck(link) && peer_is_gone_now(link, fd) {
                side.shut.fetch_or(super::GONE, Ordering::SeqCst);
            }
            Step::Sent(len)
        }
        Err(NotFilled::Lost) => Step::Lost,
        Err(NotFilled::Fault) => Step::Failed(libc::EFAULT),
        Err(NotFilled::Poisoned) => {
            link.poison();
            Step::Failed(libc::ECONNRESET)
        }
    }
}

/// Whether what is to be sent comes after the peer's close, which is noted. To a closed socket the kernel knows best what
/// to say: an RST comes back, then EPIPE.
fn is_after_close(link: &Link) -> bool {
    let closed = link.peer().closed().load(Ordering::Relaxed) != 0;
    if closed {
        link.side.shut.fetch_or(super::SENT_AFTER, Ordering::Relaxed);
    }
    closed
}

/// Why [`fill`] took nothing, other than for want of room.
enum NotFilled {
    Poisoned,
    /// The lock was taken over.
    Lost,
    /// The program's buffer cannot be read.
    Fault,
}

impl From<Poisoned> for NotFilled {
    fn from(_: Poisoned) -> Self {
        NotFilled::Poisoned
    }
}

/// Puts one part into the ring. Until it is counted as put there, and published, another may take the lock over.
#[inline]
fn fill(link: &Link, cursor: &mut Cursor<'_>, held: &mut Held) -> Result<usize, NotFilled> {
    let producer = link.producer();
    let before = (*held == Held::Loose).then(|| cursor.clone());
    let mut done = 0;
    while done < PART
        && let Some((from, len)) = cursor.part()
    {
        let len = len.min(PART - done);
        // Of a part that cannot be read whole nothing goes, as the kernel has it.
        if user_memory::readable(from, len) < len {
            return Err(NotFilled::Fault);
        }
        // SAFETY: the program's buffer, as it passed it, found readable just now.
        let put = unsafe { put(&producer, done as u64, from, len) }?;
        if put == 0 {
            break;
        }
        cursor.advance(put);
        done += put;
    }
    if !link.side.tx_lock.firm(held) {
        if let Some(before) = before {
            *cursor = before;
        }
        return Err(NotFilled::Lost);
    }
    if done > 0 {
        producer.filled(done);
        producer.publish();
    }
    Ok(done)
}

/// Puts bytes into the ring by the protocol in force, `skip` behind the tail and not counted yet; returns how many.
///
/// # Safety
/// `from` must be readable for `len` bytes.
#[inline]
unsafe fn put(
    producer: &super::Writer,
    skip: u64,
    from: *const u8,
    len: usize,
) -> Result<usize, Poisoned> {
    match settings::protocol() {
        // SAFETY: passed on.
        StreamProtocol::Au2Copy => unsafe { producer.put(skip, from, len) },
        protocol => {
            let put = if protocol == StreamProtocol::Du2Copy {
                // SAFETY: passed on.
                unsafe { put_staged(producer, skip, from, len) }
            } else {
                // SAFETY: passed on.
                unsafe { producer.put(skip, from, len) }
            }?;
            counters::add(Counter::deliberate_bytes, put as u64);
            Ok(put)
        }
    }
}

/// As [`put`], from a copy.
///
/// # Safety
/// As [`put`].
#[cold]
unsafe fn put_staged(
    producer: &super::Writer,
    skip: u64,
    from: *const u8,
    len: usize,
) -> Result<usize, Poisoned> {
    const STAGE: usize = 4096;
    let mut stage = [0u8; STAGE];
    let mut done = 0;
    while done < len {
        let part = STAGE.min(len - done);
        // SAFETY: done < len.
        let source = unsafe { from.add(done) };
        // SAFETY: `part` bytes are readable there, and the stage has room for them.
        unsafe { std::ptr::copy_nonoverlapping(source, stage.as_mut_ptr(), part) };
        // SAFETY: the stage holds `part` bytes.
        let put = unsafe { producer.put(skip + done as u64, stage.as_ptr(), part) }?;
        counters::add(Counter::staged_bytes, part as u64);
        done += put;
        if put < part {
            break;
        }
    }
    Ok(done)
}

/// Whether many sends in a row found the peer's head where it was.
#[inline]
fn is_stuck(link: &Link) -> bool {
    let count = link.side.tx_stuck.load(Ordering::Relaxed) + 1;
    link.side.tx_stuck.store(count, Ordering::Relaxed);
    if count < STUCK {
        return false;
    }
    link.side.tx_stuck.store(0, Ordering::Relaxed);
    let before = link.side.head_seen.load(Ordering::Relaxed);
    link.producer().room().is_ok() && link.side.head_seen.load(Ordering::Relaxed) == before
}

/// Whether the kernel should answer from now on, because the peer may be gone. Takes the tx lock.
pub(super) fn peer_is_gone(link: &Link, fd: i32) -> bool {
    if link.side.tx_lock.lock().is_err() {
        return false;
    }
    let gone = peer_is_gone_now(link, fd);
    link.side.tx_lock.unlock();
    gone
}

/// [`peer_is_gone`] under the tx lock, or after it. After a FIN a byte on TCP tells a half-closed peer from a
/// dead one: the dead one's kernel answers with an RST.
///
/// A doorbell that nobody armed for is allowed only towards a receiver that has seen the switch:
/// one that still reads TCP into the program's buffer would take it for data. Until then only
/// the kernel's keep-alive can ask, which tells a dead peer after a minute.
fn peer_is_gone_now(link: &Link, fd: i32) -> bool {
    if is_over(link, fd) {
        return true;
    }
    if raw::pending_events(fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0
        && link.side.tx_state.load(Ordering::SeqCst) == tx::RING
    {
        if demote::may_end(link) {
            bells::ring(link, fd);
        } else {
            let _ = raw::set_socket_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &1i32);
            let _ = raw::set_socket_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &1i32);
            let _ = raw::set_socket_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32);
        }
    }
    false
}

/// Whether nothing that is sent arrives any more, by the kernel's word, or the carrier's.
fn is_over(link: &Link, fd: i32) -> bool {
    if carrier::has(link.side) && carrier::is_gone(link.side) {
        link.poison();
        return true;
    }
    raw::pending_events(fd, 0) & libc::POLLHUP != 0
}

/// Sends the rest of a call by the kernel; returns how much went. The call has sent something, so that an error is the next
/// call's, and nobody is signalled.
fn finish(link: &Link, fd: i32, cursor: &mut Cursor<'_>, flags: i32) -> usize {
    let mut done = 0;
    while let Some((from, len)) = cursor.part() {
        // SAFETY: the program's buffer, as it passed it.
        let sent = unsafe { real::send(fd, from.cast(), len, flags | libc::MSG_NOSIGNAL) };
        let Ok(sent) = usize::try_from(sent) else {
            link.keep_news(real::errno());
            break;
        };
        if sent == 0 {
            break;
        }
        cursor.advance(sent);
        done += sent;
    }
    done
}

/// Offers room in the ring to `fill`, which reads a file straight into it (sendfile). One span,
/// published and rung for. `None` when the ring cannot be used now.
pub(crate) fn send_in_place(
    link: &Link,
    fd: i32,
    most: usize,
    read: &mut dyn FnMut(*mut u8, usize) -> raw::Result<usize>,
) -> InPlace {
    let side = link.side;
    if let Some(errno) = side.take_error() {
        return InPlace::Over(errno);
    }
    if side.shut.load(Ordering::Relaxed) & SHUT_WRITE != 0 {
        if fin_comes_later(link) {
            return InPlace::Read(Err(libc::EPIPE));
        }
        return InPlace::Kernel;
    }
    if side.tx_lock.lock().is_err() {
        return InPlace::Read(Err(libc::EAGAIN));
    }
    let result = in_place_locked(link, fd, most, read);
    side.tx_lock.unlock();
    if let InPlace::Read(Ok(len)) = result
        && len > 0
    {
        counters::add(Counter::ring_tx_bytes, len as u64);
        counters::one(Counter::ring_tx_calls);
        bells::after_data(link, fd);
    }
    result
}

/// Result of [`send_in_place`].
#[derive(Debug)]
pub(crate) enum InPlace {
    /// What the reader answered; 0: end of file.
    Read(raw::Result<usize>),
    /// The ring is full.
    Full,
    /// This direction is the kernel's.
    Kernel,
    /// It has not switched yet.
    Unswitched,
    /// The peer wrote nonsense.
    Poisoned,
    /// The connection is over, by this error.
    Over(i32),
}

fn in_place_locked(
    link: &Link,
    fd: i32,
    most: usize,
    read: &mut dyn FnMut(*mut u8, usize) -> raw::Result<usize>,
) -> InPlace {
    match ending::state_of_tx(link, fd) {
        tx::RING => {}
        tx::TCP if upgrade::try_switch(link, fd) => {}
        tx::TCP => return InPlace::Unswitched,
        tx::POISONED => return InPlace::Poisoned,
        _ => return InPlace::Kernel,
    }
    if demote::is_wanted(link) {
        match ending::end_ring(link, fd, Ending::ForGood) {
            Ended::Yes => return InPlace::Kernel,
            Ended::Busy => return InPlace::Full,
            Ended::NotYet => {}
        }
    }
    if is_after_close(link) {
        return InPlace::Kernel;
    }
    // The next call ends the ring part.
    if link.side.tx_lock.was_taken_over() {
        demote::freeze(link, fd, Counter::plain_stopped);
        return InPlace::Full;
    }
    let producer = link.producer();
    let Ok(span) = producer.next_span(most.min(4 * PART)) else {
        link.poison();
        return InPlace::Poisoned;
    };
    if span.len == 0 {
        return InPlace::Full;
    }
    let base = link.tx().bytes().0.as_ptr().as_ptr();
    let result = read(base.wrapping_add(span.at), span.len);
    if let Ok(len) = result {
        producer.filled(len.min(span.len));
        producer.publish();
    }
    InPlace::Read(result)
}

/// Adds to a word nobody else writes now.
pub(super) fn bump(word: &AtomicU64, by: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}
