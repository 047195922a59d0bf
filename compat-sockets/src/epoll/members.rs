//! What we know of each registration in a set.

use super::deferred::Deferred;
use super::departed::Departed;
use super::{EDGE, ENDS, EXCLUSIVE, EpollSet, ONCE, OUT};
use crate::fd_table::{self, Known};
use crate::raw;
use crate::sock::{Link, Sock};
use libc::epoll_event;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use vmmc::sync::{AtomicBool, Ordering, fence};
use vmmc::word::Word;

/// One registration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) sock: Option<&'static Sock>,
    /// The cookie of a socket that is none of ours yet: it may be connected later. 0 for anything else.
    pub(super) early: u64,
    /// Its number, if it is a set. The descriptor may mean something else by now.
    pub(super) inner: Option<usize>,
    pub(super) events: u32,
    pub(super) data: u64,
    /// What the kernel's registration asks for.
    pub(super) kernel: u32,
    /// Listed in [`super::deferred::Deferred`].
    pub(super) late: bool,
    /// Taken out by the program, and still in the kernel's set ([`super::deferred`]).
    pub(super) gone: bool,
    /// Ring position at the last report, for edges.
    pub(super) reported: u64,
    /// All bytes that come by TCP before the ring were there at the last report.
    pub(super) prefix_told: bool,
    /// The kernel's registration lacks `EPOLLOUT` for now.
    pub(super) masked: bool,
    /// [`EpollSet::changes`] at its last one.
    pub(super) change: u32,
    /// `EPOLLONESHOT` has fired.
    pub(super) spent: bool,
    /// The kernel has told of an end or an error: its bits go with every report from now on.
    pub(super) ended: bool,
    /// It has told of one that the program wants to hear of as it is registered now, again and again.
    pub(super) over: bool,
    /// Which of [`super::LAST`] were told since it was registered, with all that can be read before them.
    pub(super) last: u32,
    /// `Side::tx_refused` when an edge of writability was last made.
    pub(super) refused: u32,
    pub(super) hot: bool,
    /// Waits since the last event.
    pub(super) idle: u32,
    /// The kernel's registration has `EPOLLOUT` only to wake the set's sleeper ([`super::rouse`]).
    pub(super) roused: bool,
}

/// Hashing of small integers; the keys are the program's own.
#[derive(Default)]
pub(super) struct Multiply(u64);
impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
    fn write_i32(&mut self, value: i32) {
        self.write_u64(value as u64);
    }
}
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Multiply>>;

#[derive(Default)]
pub(super) struct Members {
    pub(super) records: Map<i32, Record>,
    /// Registered descriptors by data; the count tells whether the data names one alone.
    pub(super) by_data: Map<u64, (u32, i32)>,
    pub(super) hot: Vec<i32>,
    /// Members that are not hot and whose `EPOLLOUT` is taken away in the kernel.
    pub(super) full: Vec<i32>,
    pub(super) departed: Departed,
    pub(super) deferred: Deferred,
    pub(super) nested: bool,
    /// Members that are sets themselves ([`super::nested`]).
    pub(super) inner: Vec<i32>,
    /// A thread is in the middle of a change of the tables: a child forked now has them half changed.
    pub(super) changing: AtomicBool,
}

impl Record {
    /// The connection of the member registered as `fd`, for one use, and a number that means it now: a
    /// duplicate keeps the registration when `fd` is closed.
    #[inline]
    pub(super) fn enter(&self, fd: i32) -> Option<(Link, i32)> {
        let sock = self.sock?;
        sock.enter(fd).map(|link| (link, fd)).or_else(|| enter_by_duplicate(sock))
    }

    /// Whether it is a registration of this socket.
    pub(super) fn is_of(&self, sock: &Sock) -> bool {
        self.sock.is_some_and(|its| std::ptr::eq(its, sock))
    }

    /// What the kernel is asked for: what the program wants, or while the ring is full (`masked`), something to
    /// read in place of room, because the doorbell for room comes so. Who wants nothing but room is told of each that
    /// comes, and not again and again of what lies there unread.
    pub(super) fn wanted(&self, masked: bool) -> u32 {
        if !masked {
            return self.events;
        }
        let room_alone = self.events & !(OUT | ENDS | EDGE | ONCE) == 0;
        let edge = if room_alone && !self.over { EDGE } else { 0 };
        (self.events & !OUT) | libc::EPOLLIN as u32 | edge
    }

    /// Changes the kernel's registration.
    pub(super) fn tell_kernel(&mut self, epfd: i32, fd: i32, events: u32) -> bool {
        let mut event = epoll_event { events, u64: self.data };
        let told = raw::epoll_mod(epfd, fd, &mut event);
        if told {
            self.kernel = events;
        }
        told
    }

    /// Whether a change to room is told, and told once.
    pub(super) fn wants_edge_of_room(&self) -> bool {
        self.events & OUT != 0 && self.events & EDGE != 0 && !self.spent && !self.gone
    }

    /// Whether room makes an event in the kernel's set, where whoever is woken looks for it.
    pub(super) fn is_rung_for_room(&self, fd: i32) -> bool {
        let Some((link, _)) = self.enter(fd) else { return false };
        let rung = self.masked
            && link.mine().armed_space().load(Ordering::SeqCst) != 0
            && link.is_rung_for_room();
        link.leave();
        rung
    }

    /// Wakes who waits in the set, by an event that it will find to be none.
    pub(super) fn rouse(&mut self, set: &EpollSet, epfd: i32, fd: i32) {
        if self.events & EXCLUSIVE == 0 && !self.gone {
            // First: who takes the event without sleeping for it knows then whom it was for.
            set.roused.store(1, Ordering::SeqCst);
            self.roused = self.tell_kernel(epfd, fd, self.events | OUT);
        }
    }
}

#[cold]
fn enter_by_duplicate(sock: &'static Sock) -> Option<(Link, i32)> {
    let number = if sock.is_active() { fd_table::number_of(sock)? } else { return None };
    Some((sock.enter(number)?, number))
}

pub(super) fn uncount(record: &Record) {
    if let Some(sock) = record.sock {
        sock.epoll_refs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Members {
    /// Changes the tables.
    fn change<R>(&mut self, change: impl FnOnce(&mut Members) -> R) -> R {
        self.changing.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = change(self);
        self.changing.store(false, Ordering::Release);
        result
    }

    fn remove(&mut self, fd: i32) -> Option<Record> {
        let record = self.records.remove(&fd)?;
        uncount(&record);
        self.hot.retain(|&hot| hot != fd);
        self.full.retain(|&full| full != fd);
        self.inner.retain(|&inner| inner != fd);
        self.unlist(record.data, fd);
        Some(record)
    }

    /// The kernel's set has lost the member, or is about to.
    pub(super) fn leaves(&mut self, set: &EpollSet, fd: i32) {
        if let Some(record) = self.change(|members| members.remove(fd)) {
            self.departs(set, record.data);
        }
    }

    /// The same for all registrations of a socket.
    pub(super) fn leaves_everywhere(&mut self, set: &EpollSet, sock: &Sock) {
        for fd in self.numbers_of(sock) {
            self.leaves(set, fd);
        }
    }

    /// The numbers under which a socket is a member.
    pub(super) fn numbers_of(&self, sock: &Sock) -> Vec<i32> {
        let of_it = self.records.iter().filter(|(_, record)| record.is_of(sock));
        of_it.map(|(&fd, _)| fd).collect()
    }

    /// The kernel's set has a new member, or another registration of one.
    pub(super) fn joins(
        &mut self,
        set: &EpollSet,
        fd: i32,
        known: Known,
        event: &epoll_event,
        op: i32,
    ) {
        let before = self.records.get(&fd).map(|record| record.data);
        // Connected meanwhile, it is looked for here only or by `is_connected` only.
        let known = if let Known::Nothing = known { fd_table::get(fd) } else { known };
        self.change(|members| members.insert(set, fd, known, event, op));
        // A record that an addition replaces is of a file that is still a member, by a duplicate.
        if let Some(before) = before
            && before != event.u64
            && op == libc::EPOLL_CTL_MOD
        {
            self.departs(set, before);
        }
    }

    fn unlist(&mut self, data: u64, fd: i32) {
        if let Some((count, _)) = self.by_data.get_mut(&data) {
            *count -= 1;
            if *count == 0 {
                self.by_data.remove(&data);
            } else if let Some((&other, _)) =
                self.records.iter().find(|(other, record)| **other != fd && record.data == data)
                && let Some((_, named)) = self.by_data.get_mut(&data)
            {
                *named = other;
            }
        }
    }

    /// A socket that may be a member already is ours from now on.
    pub(super) fn is_connected(&mut self, fd: i32, sock: &'static Sock, cookie: u64) {
        let Some(record) = self.records.get_mut(&fd) else { return };
        if record.early == cookie && record.sock.is_none() {
            record.sock = Some(sock);
            sock.epoll_refs.fetch_add(1, Ordering::Relaxed);
            sock.is_to_be_watched();
        }
    }

    /// The C library has told the program of these, in a wait that began after so many changes.
    pub(super) fn were_told(&mut self, events: &[epoll_event], changes: u32) {
        for event in events {
            let data = event.u64;
            if let Some(&(1, fd)) = self.by_data.get(&data)
                && let Some(record) = self.records.get_mut(&fd)
            {
                let is_older = changes.wrapping_sub(record.change) as i32 >= 0;
                record.spent |= is_older && record.events & ONCE != 0;
            }
        }
    }

    fn insert(&mut self, set: &EpollSet, fd: i32, known: Known, event: &epoll_event, op: i32) {
        let (sock, inner) = match known {
            Known::Sock(sock) => (Some(sock), None),
            Known::Epoll(number) => (None, Some(number)),
            Known::Nothing => (None, None),
        };
        let before = self.remove(fd);
        let ended = before.is_some_and(|record| record.ended);
        let early = match (known, before) {
            (Known::Nothing, Some(before)) if op == libc::EPOLL_CTL_MOD => before.early,
            (Known::Nothing, _) => raw::socket_cookie(fd).unwrap_or(0),
            _ => 0,
        };
        let mut refused = 0;
        if let Some(link) = sock.and_then(|sock| sock.enter(fd)) {
            refused = link.side.tx_refused.load(Ordering::Relaxed);
            link.leave();
        }
        let record = Record {
            sock,
            early,
            inner,
            events: event.events,
            data: event.u64,
            kernel: event.events,
            // Its place in the list is taken until the next look at that.
            late: before.is_some_and(|record| record.late),
            gone: false,
            reported: u64::MAX,
            prefix_told: false,
            masked: false,
            change: set.changes.load(Ordering::Relaxed),
            spent: false,
            ended,
            over: false,
            last: 0,
            refused,
            hot: false,
            idle: 0,
            roused: false,
        };
        if let Some(sock) = sock {
            sock.epoll_refs.fetch_add(1, Ordering::Relaxed);
            sock.is_to_be_watched();
        }
        self.records.insert(fd, record);
        let slot = self.by_data.entry(event.u64).or_insert((0, fd));
        *slot = (slot.0 + 1, fd);
        self.warm(set, fd, 0);
        if inner.is_some() {
            self.inner.push(fd);
        }
    }
}
