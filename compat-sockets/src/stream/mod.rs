//! The stream of an upgraded connection: what send and receive do with the rings.

pub(crate) mod bells;
pub(crate) mod demote;
pub(crate) mod ending;
pub(crate) mod full;
pub(crate) mod give_way;
mod peek;
pub(crate) mod readiness;
pub(crate) mod recv;
pub(crate) mod report;
pub(crate) mod second_look;
pub(crate) mod send;
pub(crate) mod source;
pub(crate) mod spin;
pub(crate) mod stopping;
mod vectors;
pub(crate) mod wait;

pub(crate) use vectors::copy_vectors;

use crate::segment::{Closed, Direction, SideWords};
use crate::side::{FORKED, rx, tx};
use crate::sock::Link;
use crate::{carrier, family};
use vmmc::sync::{AtomicU64, Ordering};
use vmmc::sys::membarrier;
use vmmc::word::{MappedU64, Word};
use vmmc_ring::bell;
use vmmc_ring::switch::Standing;
use vmmc_ring::{Consumer, Producer, ViewBytes};

/// Bit of `Side::shut`: no more receiving.
pub(crate) const SHUT_READ: u32 = 1;
/// Bit of `Side::shut`: no more sending.
pub(crate) const SHUT_WRITE: u32 = 2;

/// Bit of `Side::shut`: the kernel knows the connection to be over.
pub(crate) const GONE: u32 = 4;

/// See [`Link::asleep`].
#[derive(Debug)]
pub(crate) struct Asleep(Link, i32);

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.wakes(self.1);
    }
}

/// Bit of `Side::shut`: something was sent after the peer had closed.
const SENT_AFTER: u32 = 8;
/// Bit of `Side::shut`, beside [`SHUT_WRITE`]: our FIN is to follow what a daemon is sending for us.
pub(crate) const FIN_OWED: u32 = 16;

/// Times a connection is left armed for another process before it is asked whether that is there.
const LOOK: u32 = 64;

/// How a data call on an upgraded connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// That many bytes.
    Done(usize),
    /// With this error number.
    Failed(i32),
    /// It is the kernel's to answer: make the real call.
    Kernel,
    /// A send in a direction that has not switched: make the real call, counted, and start again
    /// if the direction switches first.
    Unswitched,
}

type Writer = Producer<MappedU64<'static>, &'static AtomicU64, ViewBytes<'static>>;
type Reader = Consumer<MappedU64<'static>, &'static AtomicU64, ViewBytes<'static>>;

impl Link {
    /// Our sending direction.
    #[inline]
    pub(crate) fn tx(&self) -> Direction {
        self.segment.direction(self.me)
    }

    /// Our receiving direction.
    #[inline]
    pub(crate) fn rx(&self) -> Direction {
        self.segment.direction(self.me ^ 1)
    }

    /// Our quiet words.
    #[inline]
    pub(crate) fn mine(&self) -> SideWords {
        self.segment.side(self.me)
    }

    /// The peer's quiet words.
    #[inline]
    pub(crate) fn peer(&self) -> SideWords {
        self.segment.side(self.me ^ 1)
    }

    /// The sending end of our ring; under the tx lock.
    #[inline]
    pub(crate) fn producer(&self) -> Writer {
        let tx = self.tx();
        Producer {
            tail: tx.tail(),
            head: tx.head(),
            own: &self.side.tail,
            seen: &self.side.head_seen,
            bytes: tx.bytes(),
        }
    }

    /// The receiving end of the peer's ring; under the rx lock, or only to look.
    #[inline]
    pub(crate) fn consumer(&self) -> Reader {
        let rx = self.rx();
        Consumer {
            tail: rx.tail(),
            head: rx.head(),
            own: &self.side.head,
            seen: &self.side.tail_seen,
            bytes: rx.bytes(),
        }
    }

    /// Bytes from our head to the end of the ring part; the largest number while it has not ended.
    #[inline]
    pub(crate) fn before_end(&self) -> u64 {
        match self.rx().switch().standing() {
            Standing::Ended { end, .. } => {
                let left = end.wrapping_sub(self.side.head.load(Ordering::Relaxed));
                // We may have read on before the peer chose the end.
                if left > self.rx().bytes().0.len() as u64 { 0 } else { left }
            }
            _ => u64::MAX,
        }
    }

    /// Whether the ring has bytes that were not read, or the peer claims so. For pollers, without
    /// the lock.
    #[inline]
    pub(crate) fn ring_has_more(&self) -> bool {
        self.consumer().looks_readable() && self.before_end() > 0
    }

    /// How far the peer's bytes in the ring reach now, by its own word: tells an arrival from none.
    #[inline]
    pub(crate) fn arrived(&self) -> u64 {
        self.rx().tail().load(Ordering::Acquire)
    }

    /// Asks the peer to ring for data. The caller looks at the ring again before it sleeps.
    ///
    /// While the peer has not been seen to switch, this excludes a read from the kernel into the
    /// program's buffer, which relies on the words staying taken ([`vmmc_ring::switch`]).
    pub(crate) fn arm_data(&self) {
        self.arm_data_for(0);
    }

    /// As [`Link::arm_data`], for a sleep that has a number ([`crate::sleeps`]).
    pub(crate) fn arm_data_for(&self, sleep: u64) {
        let mine = self.mine();
        self.arm(|| bell::arm_for(&mine.armed_data(), &mine.sleep(), sleep));
    }

    /// As [`Link::arm_data`], for room.
    pub(crate) fn arm_space(&self) {
        self.arm(|| {
            if bell::arm_anew(&self.mine().armed_space()) {
                // PAIRS(space): with the light barrier in `Lock::unlock_lightly`, behind the room that a receiver has
                // made: it sees the word, or we the room. Who has a full ring has time for that.
                membarrier::heavy();
            }
        });
    }

    /// Whether the peer rings for room as things are: its way of the TCP connection carries doorbells.
    pub(crate) fn is_rung_for_room(&self) -> bool {
        matches!(self.rx().switch().standing(), Standing::Ring { .. })
    }

    /// Counts the caller in as asleep for data, until the value is dropped; cancelled, too, it sleeps no longer.
    pub(crate) fn asleep(&self, fd: i32) -> Asleep {
        self.side.rx_sleepers.fetch_add(1, Ordering::SeqCst);
        Asleep(*self, fd)
    }

    /// A thread that counted itself in [`crate::side::Side::rx_sleepers`] has woken: no doorbell is
    /// wanted any more, unless others rely on one.
    pub(crate) fn wakes(&self, fd: i32) {
        let relied_on = || {
            self.sock.cold.load(Ordering::SeqCst) != 0
                || self.sock.has_early_waiter()
                || self.is_waited_for_elsewhere()
        };
        if self.side.rx_sleepers.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        if relied_on() {
            if self.mine().sleep().load(Ordering::Relaxed) == 0 {
                return;
            }
            // Left cold after the wait had listed it: armed for a sleep that is over, and who has rung
            // for that one through another connection would stay silent on this one.
        } else {
            bell::disarm(&self.mine().armed_data());
            if !relied_on() {
                return;
            }
        }
        // What came in between has rung for nobody.
        self.arm_data();
        if self.looks_readable(fd) {
            crate::epoll::activated(fd, self.sock);
        }
    }

    /// Whether somebody may wait for the connection where this process cannot see it: an outer set, or another process.
    /// Whether there is one still is asked now and then.
    #[inline]
    pub(crate) fn is_waited_for_elsewhere(&self) -> bool {
        match self.side.eager.load(Ordering::Relaxed) {
            0 => false,
            FORKED => self.is_shared(),
            _ => true,
        }
    }

    #[cold]
    fn is_shared(&self) -> bool {
        let times = self.side.armed_for_others.fetch_add(1, Ordering::Relaxed);
        times % LOOK != LOOK - 1 || !family::is_last(self.side)
    }

    fn arm(&self, arm: impl FnOnce()) {
        if self.side.rx_state.load(Ordering::SeqCst) != rx::TCP {
            arm();
        } else if self.side.rx_lock.lock().is_ok() {
            arm();
            self.side.rx_lock.unlock();
        }
    }

    /// The peer wrote nonsense: this connection, and only this one, is over.
    #[cold]
    pub(crate) fn poison(&self) {
        crate::counters::one(crate::counters::Counter::poisoned);
        self.side.tx_state.store(tx::POISONED, Ordering::SeqCst);
        self.side.rx_state.store(rx::POISONED, Ordering::SeqCst);
    }

    /// Whether our sending side is shut and the kernel is still to be told, behind what a daemon is sending for us: whoever
    /// looks at the connection does it.
    pub(crate) fn owes_fin(&self) -> bool {
        self.side.shut.load(Ordering::Relaxed) & FIN_OWED != 0
    }

    /// Whether it was found to be over for that.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.side.rx_state.load(Ordering::Relaxed) == rx::POISONED
    }

    /// Whether an RST stands for a FIN: the peer's kernel reset the connection for nothing but doorbells.
    ///
    /// TCP resets when a process ends that has left data unread, or when data come after that, and to it doorbells are
    /// data. A peer that closes says whether it meant one, and takes its doorbells out, but one may come later. One that
    /// has not read all of our ring, or to which we sent more, would have reset without us too. Of a peer on another node
    /// that its daemon has not seen end, bytes may be lost.
    pub(crate) fn reset_means_end(&self) -> bool {
        let tx = self.tx();
        let closed = self.peer().closed().load(Ordering::Acquire);
        closed != Closed::Reset as u32
            && (closed != 0 || !carrier::has(self.side))
            && self.side.shut.load(Ordering::Relaxed) & SENT_AFTER == 0
            && self.side.tx_state.load(Ordering::Relaxed) == tx::RING
            && tx.head().load(Ordering::Acquire) == self.side.tail.load(Ordering::Relaxed)
    }

    /// A look at the kernel's queue ([`raw::peek_one`]) by who has no use for an error: it is kept for the program.
    pub(crate) fn peek_one(&self, fd: i32) -> crate::raw::Result<usize> {
        crate::raw::peek_one(fd).inspect_err(|&errno| self.keep_news(errno))
    }

    /// Whether an RST says no more than an end would: it stands for one, or comes of a peer that was killed, whose kernel sends one
    /// for a doorbell, too, and what we have sent since has nothing to do with it.
    pub(crate) fn reset_is_no_news(&self) -> bool {
        let was_killed =
            || self.peer().closed().load(Ordering::Acquire) == 0 && !carrier::has(self.side);
        was_killed() || self.reset_means_end()
    }

    /// Keeps an error that the kernel has told a call of ours ([`Side::keep_error`]), if it is news.
    pub(crate) fn keep_news(&self, errno: i32) {
        if errno != libc::ECONNRESET || !self.reset_is_no_news() {
            self.side.keep_error(errno);
        }
    }

    /// The kernel's events without those of an RST that stands for a FIN. Poll and epoll give the
    /// same bits the same numbers.
    pub(crate) fn without_reset(&self, events: u32) -> u32 {
        const ERROR: u32 = libc::EPOLLERR as u32;
        const HANG_UP: u32 = libc::EPOLLHUP as u32;
        // With both directions shut EPOLLHUP is right.
        let hung_up = self.side.shut.load(Ordering::Relaxed) & SHUT_WRITE != 0;
        let false_ones = if hung_up { ERROR } else { ERROR | HANG_UP };
        let others = events & !false_ones;
        // Who asked for nothing else is told: the kernel would not let him sleep.
        if others != events && others != 0 && self.reset_means_end() {
            return others;
        }
        events
    }

    /// Whether there may be something to receive that the kernel does not know of: for pollers,
    /// without the lock. A switch that nobody has acted on yet is acted on here.
    #[inline]
    pub(crate) fn looks_readable(&self, fd: i32) -> bool {
        if self.side.rx_state.load(Ordering::Relaxed) == rx::TCP {
            if self.rx().switch().standing() == Standing::Tcp || self.side.rx_lock.lock().is_err() {
                return false;
            }
            source::source(self, fd);
            self.side.rx_lock.unlock();
        }
        match self.side.rx_state.load(Ordering::Relaxed) {
            rx::RING => {
                self.side.rx_left.load(Ordering::Relaxed) == 0
                    && (self.ring_has_more() || self.side.has_error())
            }
            rx::POISONED => true,
            _ => false,
        }
    }

    /// Whether we send by the ring, and it has no room, as [`Link::looks_writable`] has it.
    pub(crate) fn is_full(&self) -> bool {
        self.side.tx_state.load(Ordering::Relaxed) == tx::RING && !self.looks_writable()
    }

    /// Whether a send would not have to wait, as far as the ring is concerned. As TCP: a third is free, so who was told
    /// of room can send that much, and neither `EAGAIN` nor, from a blocking socket, a wait follows.
    #[inline]
    pub(crate) fn looks_writable(&self) -> bool {
        match self.side.tx_state.load(Ordering::Relaxed) {
            tx::RING => {
                if demote::is_pumped(self) {
                    return false;
                }
                let most = (self.tx().bytes().0.len() as u64) * 2 / 3;
                // Heads before the tail, which another thread may be moving: never less than is there.
                let used = |head: u64| self.side.tail.load(Ordering::Relaxed).wrapping_sub(head);
                // What was last seen of the peer's head is behind it at most; its line is fetched only if that does not do.
                used(self.side.head_seen.load(Ordering::Acquire)) <= most
                    || used(self.tx().head().load(Ordering::Acquire)) <= most
                    || self.peer().closed().load(Ordering::Relaxed) != 0
            }
            _ => true,
        }
    }
}
