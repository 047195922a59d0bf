//! Waiting for data and for room: poll for a while, then sleep in the kernel.
//!
//! A receiver sleeps in `recv(MSG_PEEK)` on the TCP socket itself, so `SO_RCVTIMEO`, signals,
//! `SA_RESTART`, cancellation and the peer's death act exactly as without us; the doorbell is
//! the byte it wakes for. A sender sleeps on a futex in the segment, in slices: a peer that died
//! wakes nobody, so after each slice the kernel is asked about it, and one that reads nothing has the
//! stream go on by TCP ([`full`]).

use super::send::peer_is_gone;
use super::{SHUT_WRITE, bells, demote, ending, full, recv, second_look};
use crate::counters::{self, Counter};
use crate::parked::{self, Parked};
use crate::side::{rx, tx};
use crate::sock::Link;
use crate::{raw, real};
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::bell;
use vmmc_ring::switch::Standing;

/// Longest sleep of a sender before it asks whether the peer still lives, in nanoseconds.
const SLICE_NS: u64 = 20_000_000;
/// The same while the daemon sends for us.
const PUMP_SLICE_NS: u64 = 1_000_000;

/// Why a wait for data ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// Look again.
    Look,
    /// The stream has ended.
    End,
}

/// Why a wait for room ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Look again.
    Look,
    /// The peer is gone: let the kernel say how.
    Gone,
}

/// How long a call has waited so far, in nanoseconds. `SO_SNDTIMEO` and `SO_RCVTIMEO` are for a call, and begin not anew with
/// each progress that it makes.
#[derive(Debug, Default)]
pub(crate) struct Waited(u64);

impl Waited {
    /// What is left of the time for receiving, once some of it has passed; `None`: all of it, if there is a limit.
    pub(super) fn left_to_receive(&self, fd: i32) -> Option<u64> {
        let limit = if self.0 == 0 { None } else { time_limit(fd, libc::SO_RCVTIMEO) };
        limit.map(|limit| self.left_of(limit))
    }

    /// What is left of a time.
    fn left_of(&self, time: u64) -> u64 {
        time.saturating_sub(self.0)
    }

    /// Counts what passes while `wait` does.
    pub(super) fn during<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let began = raw::now_ns();
        let result = wait();
        self.0 = self.0.saturating_add(raw::now_ns().saturating_sub(began));
        result
    }
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// This processor's number plus one.
fn this_cpu() -> u32 {
    // SAFETY: no arguments; answers from memory the kernel keeps for the thread.
    (unsafe { libc::sched_getcpu() } + 1).max(0) as u32
}

/// Says where we run; true when the peer last ran there too.
pub(crate) fn shares_cpu(link: &Link) -> bool {
    let cpu = this_cpu();
    let mine = link.mine().cpu();
    if mine.load(Ordering::Relaxed) != cpu {
        mine.store(cpu, Ordering::Relaxed);
    }
    link.peer().cpu().load(Ordering::Relaxed) == cpu
}

fn spin_for(link: &Link, ready: impl FnMut() -> bool) -> bool {
    if shares_cpu(link) {
        return false;
    }
    link.sock.spins.spin(None, ready)
}

/// Whether a receive may find something now that it did not find before: the ring, or a switch.
fn something_new(link: &Link) -> bool {
    if demote::is_urgent(link) {
        return true;
    }
    match link.side.rx_state.load(Ordering::Relaxed) {
        rx::TCP => link.rx().switch().standing() != Standing::Tcp,
        rx::RING => {
            link.side.rx_left.load(Ordering::Relaxed) == 0
                && (link.ring_has_more()
                    || matches!(link.rx().switch().standing(), Standing::Nonsense))
        }
        _ => true,
    }
}

/// Waits until there is something to receive, as the descriptor and `flags` allow.
pub(super) fn for_data(link: &Link, fd: i32, flags: i32, waited: &mut Waited) -> Result<Wake, i32> {
    let sock = link.sock;
    if flags & libc::MSG_DONTWAIT != 0 || sock.nonblocking.load(Ordering::Relaxed) != 0 {
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || raw::is_nonblocking(fd);
        if nonblocking {
            return look_once(link, fd);
        }
        sock.nonblocking.store(0, Ordering::Relaxed);
    }
    let consumer = link.consumer();
    let in_ring = link.side.rx_state.load(Ordering::Relaxed) == rx::RING
        && link.side.rx_left.load(Ordering::Relaxed) == 0;
    if !in_ring {
        return sleep(link, fd, waited);
    }
    let polled = spin_for(link, || {
        consumer.prefetch();
        consumer.looks_readable()
    });
    // Not what lies behind the end of a ring part whose sender has died, or still owes doorbells.
    if polled && something_new(link) {
        return Ok(Wake::Look);
    }
    let began = raw::now_ns();
    let woken = sleep(link, fd, waited);
    sock.spins.slept(began);
    woken
}

/// Non-blocking: nothing was found in the ring, what does the kernel say?
fn look_once(link: &Link, fd: i32) -> Result<Wake, i32> {
    if second_look::finds_more(link) {
        return Ok(Wake::Look);
    }
    if recv::is_eager(link) {
        link.arm_data();
        if something_new(link) {
            return Ok(Wake::Look);
        }
    }
    answer(link, fd, raw::peek_one(fd))
}

fn sleep(link: &Link, fd: i32, waited: &mut Waited) -> Result<Wake, i32> {
    let Some(parked) = Parked::new(link, fd) else { return Err(libc::EBADF) };
    let asleep = link.asleep(fd);
    link.arm_data();
    // Nobody rings when a daemon has done that sends in front of our end.
    let slice = link.owes_fin().then_some(SLICE_NS);
    let result = if something_new(link) {
        Ok(1)
    } else {
        counters::one(Counter::sleeps);
        let left = waited.left_to_receive(fd);
        let at_most = slice.map_or(left, |slice| Some(left.map_or(slice, |left| left.min(slice))));
        waited.during(|| peek(link, fd, at_most))
    };
    drop(asleep);
    let Some(fd) = parked::number_now(link, fd) else { return Err(libc::EBADF) };
    drop(parked);
    if slice.is_some() && goes_on(fd, result, waited) {
        demote::comply(link, fd);
        return Ok(Wake::Look);
    }
    if result == Err(libc::EAGAIN) && raw::is_nonblocking(fd) {
        link.sock.nonblocking.store(1, Ordering::Relaxed);
    }
    answer(link, fd, result)
}

/// Before a receive that is the kernel's, while our end is owed ([`Link::owes_fin`]): nobody rings when it may be sent. Waits as
/// long as the receive would. The number that means the socket then.
#[cold]
pub(super) fn while_fin_is_owed(link: &Link, mut fd: i32, flags: i32) -> Result<i32, i32> {
    let waits_not = libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_ERRQUEUE;
    let mut waited = Waited::default();
    let Some(_parked) = Parked::new(link, fd) else { return Err(libc::EBADF) };
    while link.owes_fin() && flags & waits_not == 0 && !raw::is_nonblocking(fd) {
        let left = waited.left_to_receive(fd).map_or(SLICE_NS, |left| left.min(SLICE_NS));
        let result = waited.during(|| peek(link, fd, Some(left)));
        fd = parked::number_now(link, fd).ok_or(libc::EBADF)?;
        match result {
            Err(_) if goes_on(fd, result, &waited) => demote::comply(link, fd),
            Err(errno @ (libc::EAGAIN | libc::EINTR)) => return Err(errno),
            Err(errno) => {
                link.keep_news(errno);
                break;
            }
            Ok(_) => break,
        }
    }
    Ok(fd)
}

/// Whether a sleep in slices, which ended so, is to go on.
fn goes_on(fd: i32, result: raw::Result<usize>, waited: &Waited) -> bool {
    let has_time = || {
        let limit = time_limit(fd, libc::SO_RCVTIMEO);
        !raw::is_nonblocking(fd) && limit.is_none_or(|limit| waited.left_of(limit) > 0)
    };
    match result {
        Err(libc::EAGAIN) => has_time(),
        // The kernel would restart the receive.
        Err(libc::EINTR) => {
            time_limit(fd, libc::SO_RCVTIMEO).is_none() && !raw::some_handler_interrupts()
        }
        _ => false,
    }
}

/// Sleeps until there is a byte, an end or an error in the kernel's queue, and no longer than what is `left`, if that is less than what
/// the kernel would wait by itself.
fn peek(link: &Link, fd: i32, left: Option<u64>) -> raw::Result<usize> {
    let Some(left) = left else {
        let mut byte = 0u8;
        // SAFETY: one byte on this stack.
        let got = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
        return usize::try_from(got).map_err(|_| real::errno());
    };
    let until = raw::now_ns().saturating_add(left);
    loop {
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let time = raw::timespec_of(until.saturating_sub(raw::now_ns()));
        // A receive with a time limit is never restarted after a signal, and nor is this.
        // SAFETY: both are on this stack.
        match unsafe { real::ppoll(&raw mut entry, 1, &raw const time, std::ptr::null()) } {
            0 => return Err(libc::EAGAIN),
            ready if ready < 0 => return Err(real::errno()),
            _ => {}
        }
        // Another thread may have closed the number meanwhile, or taken the byte.
        let fd = parked::number_now(link, fd).ok_or(libc::EBADF)?;
        match raw::peek_one(fd) {
            Err(libc::EAGAIN) => {}
            answer => return answer,
        }
    }
}

/// What the kernel's answer to a peek means.
fn answer(link: &Link, fd: i32, result: raw::Result<usize>) -> Result<Wake, i32> {
    // What was published before the kernel's news goes first.
    let first = something_new(link);
    match result {
        Err(libc::ECONNRESET) if link.reset_means_end() => {
            Ok(if first { Wake::Look } else { Wake::End })
        }
        Ok(0) if first => Ok(Wake::Look),
        Ok(0) => match recv::error_at_end(link) {
            None => Ok(Wake::End),
            Some(errno) => Err(errno),
        },
        Ok(_) => {
            if !first {
                refuse_uncounted(link, fd);
            }
            Ok(Wake::Look)
        }
        Err(errno) if first => {
            link.side.keep_error(errno);
            Ok(Wake::Look)
        }
        Err(errno) => Err(errno),
    }
}

/// A byte in the kernel's queue that is neither data nor a counted doorbell: the peer does not
/// keep the protocol, and waiting for it to go away would be waiting at full speed for ever.
fn refuse_uncounted(link: &Link, fd: i32) {
    let side = link.side;
    if side.rx_state.load(Ordering::Relaxed) != rx::RING
        || side.rx_left.load(Ordering::Relaxed) != 0
        || side.rx_lock.lock().is_err()
    {
        return;
    }
    if bells::is_uncounted(link, fd) {
        link.poison();
    }
    side.rx_lock.unlock();
}

/// Waits until a full ring has room.
pub(crate) fn for_space(link: &Link, fd: i32, waited: &mut Waited) -> Result<Room, i32> {
    let seen = link.side.head_seen.load(Ordering::Relaxed);
    let head = link.tx().head();
    let moved = || head.load(Ordering::Acquire) != seen;
    if spin_for(link, moved) {
        return Ok(Room::Look);
    }
    let left = time_limit(fd, libc::SO_SNDTIMEO).map(|limit| waited.left_of(limit));
    waited.during(|| sleep_for_space(link, fd, left, moved))
}

/// Sleeps until a full ring has room, no longer than what is `left`.
fn sleep_for_space(
    link: &Link,
    fd: i32,
    left: Option<u64>,
    moved: impl Fn() -> bool,
) -> Result<Room, i32> {
    let side = link.side;
    let Some(_parked) = Parked::new(link, fd) else { return Err(libc::EBADF) };
    let at_most = left;
    let deadline = left.map(|left| raw::now_ns().saturating_add(left));
    counters::one(Counter::space_sleeps);
    loop {
        let word = link.tx().space_wait();
        bell::arm(&word);
        if side.shut.load(Ordering::Relaxed) & SHUT_WRITE != 0 {
            return Ok(Room::Gone);
        }
        if moved()
            || link.peer().closed().load(Ordering::Relaxed) != 0
            // Where it cannot end yet, there is nothing to look at.
            || (demote::is_wanted(link) && ending::can_end(link, fd) && !demote::is_pumped(link))
            || side.tx_state.load(Ordering::SeqCst) != tx::RING
        {
            return Ok(Room::Look);
        }
        // The futex is no cancellation point, but send(2) is. No lock is held here.
        // SAFETY: no arguments; unwinds like any cancelled call of the C library.
        unsafe { pthread_testcancel() };
        let left = deadline.map_or(SLICE_NS, |at| at.saturating_sub(raw::now_ns()));
        if left == 0 {
            return Err(libc::EAGAIN);
        }
        // While the daemon sends for us nobody rings when it has done.
        let Some(fd) = parked::number_now(link, fd) else { return Err(libc::EBADF) };
        let pumped = demote::is_pumped(link);
        if pumped && demote::end_by_now(link, fd) {
            return Ok(Room::Look);
        }
        let slice = if pumped { PUMP_SLICE_NS } else { SLICE_NS };
        let waited = raw::futex_wait(word.as_ptr().as_ptr(), 1, left.min(slice));
        let Some(fd) = parked::number_now(link, fd) else { return Err(libc::EBADF) };
        match waited {
            Err(libc::ETIMEDOUT) if peer_is_gone(link, fd) => return Ok(Room::Gone),
            Err(libc::ETIMEDOUT) if full::goes_on_by_tcp(link, fd, at_most) => {
                return Ok(Room::Look);
            }
            Err(libc::ETIMEDOUT) => {}
            // With a timeout set the kernel never restarts a send; without, as the handler says.
            Err(libc::EINTR) if deadline.is_some() || raw::some_handler_interrupts() => {
                return Err(libc::EINTR);
            }
            _ => {}
        }
    }
}

/// `SO_SNDTIMEO` or `SO_RCVTIMEO` in nanoseconds, `None` for no limit.
fn time_limit(fd: i32, option: i32) -> Option<u64> {
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let value = raw::socket_option(fd, libc::SOL_SOCKET, option, none).ok()?;
    let nanoseconds =
        (value.tv_sec as u64).saturating_mul(1_000_000_000) + value.tv_usec as u64 * 1000;
    (nanoseconds > 0).then_some(nanoseconds)
}
