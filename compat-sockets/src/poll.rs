//! poll, ppoll, select, pselect over descriptors of which some are upgraded.
//!
//! 1. Look at the rings. If something is there, ask the kernel about the others without waiting.
//! 2. Otherwise poll the rings for a while, then arm every upgraded descriptor, look once more,
//!    and wait in the kernel: doorbells make its answer true.
//! 3. Correct the kernel's answer: a byte that is only a doorbell is not data, and a TCP socket
//!    is writable even when the ring is full. If nothing is left, wait again for the rest of the
//!    time.
//!
//! Calls without an upgraded descriptor go to the C library untouched.

use crate::fd_table::{self, Known};
use crate::few::Few;
use crate::side::tx;
use crate::sock::{EarlyWait, Link, Using};
use crate::stream::give_way::{Gave, Yields};
use crate::stream::readiness::{Readiness, readiness};
use crate::stream::spin::Lesson;
use crate::stream::wait::shares_cpu;
use crate::stream::{bells, demote, full, second_look};
use crate::{raw, real};
use libc::{POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM, pollfd, sigset_t};
use std::cell::Cell;
use vmmc::sync::Ordering;

/// Events that mean "there is something to receive".
const IN: i16 = POLLIN | POLLRDNORM;
/// Events that mean "a send would not wait".
const OUT: i16 = POLLOUT | POLLWRNORM;
/// Events that do not go away again.
const ENDS: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
/// Longest sleep while waiting for room: the doorbell for room may be impossible (the peer's own
/// direction has not switched, or has ended), so look again by ourselves.
const LONGEST_SLICE_NS: u64 = 10_000_000;
/// The first one where it is impossible as things are: an attentive peer empties a ring in less.
const FIRST_SLICE_NS: u64 = 100_000;
/// Descriptors handled without allocating.
const INLINE: usize = 128;
/// Of these, upgraded ones.
const INLINE_LINKS: usize = 16;
/// Upgraded descriptors that are polled before sleeping.
const SPIN_FDS: usize = 16;

/// How long one wait for room sleeps before it looks again.
#[derive(Debug)]
pub(crate) struct RoomSlices(u64);

impl RoomSlices {
    pub(crate) const fn new() -> RoomSlices {
        RoomSlices(FIRST_SLICE_NS)
    }

    /// The next sleep, of a wait that may last `left` nanoseconds, `None` for ever. `rung`: whether all who make room
    /// can ring for it.
    pub(crate) fn next(&mut self, left: Option<u64>, rung: bool) -> u64 {
        let slice = if rung { LONGEST_SLICE_NS } else { self.0 };
        if !rung {
            self.0 = (self.0 * 2).min(LONGEST_SLICE_NS);
        }
        left.unwrap_or(u64::MAX).min(slice)
    }
}

/// How poll and select spin in this process.
static SPINS: Lesson = Lesson::new();
/// How they give way before they sleep.
static YIELDS: Yields = Yields::new();

/// Whether any of the descriptors needs more than the C library's function. `waits`: the call may wait, so that a socket which
/// has no segment may get one meanwhile, by another thread.
pub(crate) fn concerns(fds: impl Iterator<Item = i32>, waits: bool) -> bool {
    let early = waits && !real::has_one_thread();
    let mut is_concerned = false;
    for fd in fds {
        match fd_table::get(fd) {
            Known::Sock(sock) => {
                sock.is_to_be_watched();
                is_concerned |= sock.is_active() || early && sock.may_get_segment();
            }
            // An epoll descriptor that is polled itself: its members must ring.
            Known::Epoll(set) => {
                crate::epoll::nested(set);
                is_concerned |= crate::epoll::has_rings(set);
            }
            Known::Nothing => {}
        }
    }
    is_concerned
}

/// One descriptor of the call. Cancelled, too, the call is over.
struct Item {
    using: Using,
    fd: i32,
    index: usize,
    /// The sleep is for room, too.
    for_room: Cell<bool>,
}

impl Item {
    fn link(&self) -> &Link {
        &self.using.0
    }
}

/// ppoll(2) with a relative timeout in nanoseconds, `None` for ever. Returns the count or -1
/// with `errno` set.
///
/// # Safety
/// `mask` must be null or valid.
pub(crate) unsafe fn poll(fds: &mut [pollfd], timeout: Option<u64>, mask: *const sigset_t) -> i32 {
    if fds.len() > 1 {
        second_look::waits_for_many();
    }
    let mut left = timeout;
    loop {
        let may_change = left != Some(0) && !real::has_one_thread();
        let mut asked: Few<pollfd, INLINE> = Few::new();
        let mut items: Few<Item, INLINE_LINKS> = Few::new();
        let mut early: Few<EarlyWait, INLINE_LINKS> = Few::new();
        for (index, entry) in fds.iter().enumerate() {
            asked.push(*entry);
            let Some(sock) = fd_table::sock(entry.fd) else { continue };
            // Room is the kernel's to tell of until its own ring is full.
            if may_change
                && entry.events & IN != 0
                && let Some(waits) = sock.waits_early(entry.fd)
            {
                early.push(waits);
            } else if let Some(link) = sock.enter(entry.fd) {
                items.push(Item {
                    using: Using(link),
                    fd: entry.fd,
                    index,
                    for_room: Cell::new(false),
                });
            }
        }
        let started = if early.as_slice().is_empty() { 0 } else { raw::now_ns() };
        // SAFETY: passed on.
        let result = unsafe { poll_loop(fds, asked.as_mut_slice(), items.as_slice(), left, mask) };
        // What woke us may be a doorbell, and what is in its ring the kernel does not know.
        if result < 0 || !early.as_slice().iter().any(EarlyWait::is_over) {
            return result;
        }
        left = left.map(|left| left.saturating_sub(raw::now_ns().wrapping_sub(started)));
    }
}

fn entry_at(fds: &[pollfd], item: &Item) -> pollfd {
    fds.get(item.index).copied().unwrap_or(pollfd { fd: -1, events: 0, revents: 0 })
}

fn is_full(item: &Item, events: i16) -> bool {
    events & OUT != 0 && item.link().is_full()
}

/// Whether the kernel may have to tell of an end or an error.
fn may_have_ended(item: &Item) -> bool {
    item.link().sock.is_ended() || item.link().side.shut.load(Ordering::Relaxed) != 0
}

/// Whether the rings alone give an event for the item.
fn ring_ready(item: &Item, events: i16) -> bool {
    (events & IN != 0 && item.link().looks_readable(item.fd))
        || (events & OUT != 0
            && item.link().side.tx_state.load(Ordering::Relaxed) == tx::RING
            && item.link().looks_writable())
}

/// The set, if it is an epoll descriptor whose readability is asked for.
fn watched_set(entry: &pollfd) -> Option<usize> {
    match fd_table::get(entry.fd) {
        Known::Epoll(set) if entry.events & IN != 0 => Some(set),
        _ => None,
    }
}

/// Whether it is an epoll descriptor that is readable by the ring of a member: what came before the members were armed
/// rings no more.
fn set_ready(entry: &pollfd) -> bool {
    watched_set(entry).is_some_and(crate::epoll::has_news)
}

/// # Safety
/// `mask` must be null or valid.
unsafe fn poll_loop(
    fds: &mut [pollfd],
    asked: &mut [pollfd],
    items: &[Item],
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> i32 {
    let started = if timeout == Some(0) { 0 } else { raw::now_ns() };
    let left_of = |timeout: Option<u64>| {
        timeout.map(|timeout| match timeout {
            0 => 0,
            _ => timeout.saturating_sub(raw::now_ns().wrapping_sub(started)),
        })
    };
    // A program that waits for room in one connection and for nothing else gives up after that time.
    let for_room_alone = matches!(fds, [only] if only.events & OUT != 0 && only.events & !OUT == 0);
    let limit = timeout.filter(|&limit| for_room_alone && limit > 0);
    let mut slices = RoomSlices::new();
    loop {
        let mut left = left_of(timeout);
        let mut is_any_full = false;
        let mut rung = true;
        asked.copy_from_slice(fds);
        for item in items {
            if !item.link().sock.is_at(item.fd) {
                continue; // closed by another thread: the number may be another connection's
            }
            demote::comply(item.link(), item.fd);
            // Nobody rings when the daemon has done.
            if item.link().owes_fin() {
                (is_any_full, rung) = (true, false);
            }
            let Some(entry) = asked.get_mut(item.index) else { continue };
            if is_full(item, entry.events) && !full::goes_on_by_tcp(item.link(), item.fd, limit) {
                is_any_full = true;
                entry.events &= !OUT;
                if entry.events & IN != 0 || bells::leave_silence(item.link(), item.fd) {
                    rung &= item.link().is_rung_for_room();
                    // The doorbell for room arrives as something to read.
                    entry.events |= POLLIN;
                } else {
                    rung = false;
                }
            }
        }
        let mut ready = any_ring_ready(fds, items) || fds.iter().any(set_ready);
        if !ready && left != Some(0) {
            // Only where all is in rings: what the kernel has already does not wait for the others' turn.
            let all = !items.is_empty() && items.len() == fds.len();
            let gave = match all {
                true => YIELDS.give_way(&mut left, || any_ring_ready(fds, items)),
                false => Gave::Nothing,
            };
            ready = match gave {
                Gave::Interrupted => {
                    real::set_errno(libc::EINTR);
                    return -1;
                }
                Gave::Ready => true,
                Gave::Sleep => false,
                Gave::Nothing => spin_on(fds, items, left),
            };
            left = left_of(timeout);
        }
        let simple = fds.iter().all(|entry| entry.events & !(IN | OUT) == 0)
            && !items.iter().any(may_have_ended);
        // Whoever asks for something to read and has nothing in the ring may have it in the kernel:
        // the bytes before a switch, or the end; and what is sent by TCP, the kernel knows the room
        // for. Others that are always ready must not hide it.
        let rings_know = items.iter().all(|item| {
            let events = entry_at(fds, item).events;
            (events & IN == 0 || item.link().looks_readable(item.fd))
                && (events & OUT == 0
                    || item.link().side.tx_state.load(Ordering::Relaxed) == tx::RING)
        });
        if ready && simple && rings_know && items.len() == fds.len() {
            // Everything asked for is in the rings; no need for the kernel.
            let count = correct(fds, asked, items, true);
            if count > 0 {
                return count;
            }
        }
        let now = ready || left == Some(0);
        for set in fds.iter().filter_map(watched_set) {
            is_any_full |= crate::epoll::awaits_room(set);
        }
        let asleep = (!now).then(|| Asleep(items));
        let armed = asleep.as_ref().is_some_and(|asleep| asleep.arm(fds));
        let wait = match (now || !armed, left) {
            (true, _) => Some(0),
            (false, left) if is_any_full => Some(slices.next(left, rung)),
            (false, left) => left,
        };
        // SAFETY: the array is ours, the mask as the caller passed it.
        let result = unsafe { real_ppoll(asked, wait, mask) };
        drop(asleep);
        if result < 0 {
            return result;
        }
        let count = correct(fds, asked, items, false);
        if count > 0 || left == Some(0) {
            return count;
        }
    }
}

/// # Safety
/// `mask` must be null or valid.
unsafe fn real_ppoll(fds: &mut [pollfd], wait: Option<u64>, mask: *const sigset_t) -> i32 {
    let time = wait.map(raw::timespec_of);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array is borrowed, the time is on this stack, the mask is the caller's.
    unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, mask) }
}

fn any_ring_ready(fds: &[pollfd], items: &[Item]) -> bool {
    items.iter().any(|item| ring_ready(item, entry_at(fds, item).events))
}

/// Polls the rings of the first few, in the time that is left.
fn spin_on(fds: &[pollfd], items: &[Item], left: Option<u64>) -> bool {
    let some = items.get(..SPIN_FDS).unwrap_or(items);
    if some.is_empty() || some.iter().any(|item| shares_cpu(item.link())) {
        return false;
    }
    SPINS.spin(left, || some.iter().any(|item| ring_ready(item, entry_at(fds, item).events)))
}

/// Asleep for all of them as long as it lives, also when the thread is cancelled; [`Asleep::arm`] comes first.
struct Asleep<'a>(&'a [Item]);

impl Asleep<'_> {
    /// Arms everything; false when something is there after all.
    fn arm(&self, fds: &[pollfd]) -> bool {
        let mut quiet = true;
        for item in self.0 {
            let events = entry_at(fds, item).events;
            item.link().side.rx_sleepers.fetch_add(1, Ordering::SeqCst);
            let for_room = is_full(item, events);
            // Who wants room alone is not woken by data, and looks after the rest by himself.
            if !for_room || events & IN != 0 {
                item.link().arm_data();
            }
            if for_room {
                item.for_room.set(true);
                bells::sleeps_for_room(item.link());
                item.link().arm_space();
            }
            quiet &= !ring_ready(item, events) && !demote::is_urgent(item.link());
        }
        quiet
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        for item in self.0 {
            item.link().wakes(item.fd);
            if item.for_room.take() {
                bells::has_slept_for_room(item.link());
            }
        }
    }
}

/// Fills `revents` of the program's array; returns how many have some.
fn correct(fds: &mut [pollfd], asked: &[pollfd], items: &[Item], rings_only: bool) -> i32 {
    for (entry, answer) in fds.iter_mut().zip(asked) {
        entry.revents = if rings_only { 0 } else { answer.revents };
    }
    for item in items {
        let Some(entry) = fds.get_mut(item.index) else { continue };
        let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        if !item.link().sock.is_at(item.fd) {
            // Closed by another thread while we slept: the number is the kernel's, as it says.
            entry.revents &= entry.events | always;
            continue;
        }
        let mut events = item.link().without_reset(entry.revents as u32) as i16;
        if entry.revents & ENDS != 0 {
            item.link().sock.has_ended();
        }
        if events & IN != 0 && readiness(item.link(), item.fd) == Readiness::NotReady {
            events &= !IN;
        }
        if item.link().looks_readable(item.fd) {
            events |= IN;
        }
        if item.link().side.has_error() {
            // Taken from the kernel, not yet told to the program.
            events |= libc::POLLERR;
        }
        if item.link().side.tx_state.load(Ordering::Relaxed) == tx::RING {
            let writable = item.link().looks_writable();
            events = if writable { events | OUT } else { events & !OUT };
        }
        entry.revents = events & (entry.events | always);
    }
    for entry in fds.iter_mut() {
        let Some(set) = watched_set(entry) else { continue };
        // What the kernel has told of may be a doorbell.
        let told = entry.revents & IN != 0;
        let ready = if told { crate::epoll::is_ready(set) } else { crate::epoll::has_news(set) };
        entry.revents =
            if ready { entry.revents | (IN & entry.events) } else { entry.revents & !IN };
    }
    fds.iter().filter(|entry| entry.revents != 0).count() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_for_room_that_nobody_rings_for_become_rarer() {
        let mut slices = RoomSlices::new();
        let sleeps: Vec<u64> = (0..9).map(|_| slices.next(None, false) / 1000).collect();
        assert_eq!(sleeps, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        let mut slices = RoomSlices::new();
        assert_eq!(slices.next(None, true), LONGEST_SLICE_NS);
        assert_eq!(slices.next(Some(50), false), 50);
    }
}
