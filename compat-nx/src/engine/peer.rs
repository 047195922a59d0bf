//! The other processes of the job: lanes, doors, and what is polled without a lock.
//!
//! Each process has two connections to the daemon. The first one's doorbell wakes threads that
//! wait inside an NX call. The second one's belongs to the progress thread, which sleeps on it
//! always: to ring that one is to *interrupt* a process that computes (section 6 of the paper).
//! A sender interrupts by storing to the word of the other's **door**, a page of its own.

use super::layout::{self, BLOCKS};
use super::numbers::Numbers;
use super::out::{LaneHead, OutLane, word32, word64};
use super::{door, handshake, slots};
use crate::error::NxError;
use vmmc::mem::View;
use vmmc::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vmmc::word::{MappedU32, MappedU64, Word};
use vmmc::{Export, Import, ImportBuilder, Node, Token};

/// No credit is waited for.
const NO_CREDIT: u64 = u64::MAX;
/// Not a credit, but the peer's here word is waited for.
const HERE: u64 = u64::MAX - 1;

/// What links are named by, and this process's place among them.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) id: String,
    pub(super) token: Token,
    /// This process's number: see [`super::peers`].
    pub(super) number: u32,
    pub(super) node: u32,
    /// 0: one of those that the job began with. Others: the process type that it began with, plus 1.
    /// Processes of one group do global operations together.
    pub(super) group: u32,
    /// Of all processes.
    pub(super) numbers: Numbers,
}

impl Own {
    /// The node of the cluster that a process is on, if it is not ours.
    pub(super) fn elsewhere(&self, number: u32) -> Option<&str> {
        let host = self.numbers.host(number)?;
        (self.numbers.host(self.number) != Some(host)).then_some(host)
    }

    /// An import from process `number`.
    pub(super) fn import(&self, node: &Node, number: u32, name: String) -> ImportBuilder {
        let import = node.import(name).token(self.token);
        match self.elsewhere(number) {
            Some(host) => import.node(host),
            None => import,
        }
    }
}

/// Another process of the job.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) number: u32,
    pub(super) node: u32,
    pub(super) group: u32,
    /// The lane that we write, in its memory.
    pub(super) out: OutLane,
    /// Stride of the slots of that lane.
    pub(super) stride: usize,
    /// The lane that it writes, in our memory.
    lane: Export,
    door: Import,
    /// Where the next arrival word will be (high half) and its sequence number; 0: nowhere, all
    /// slots are in use.
    expect: AtomicU64,
    /// The credit that a queued send waits for, `NO_CREDIT` or `HERE`.
    credit: AtomicU64,
    /// Blocks whose messages are being fetched, a bit each, and their staged words when last seen.
    watching: AtomicU32,
    seen: [AtomicU64; BLOCKS],
    /// The round of an exchange that is awaited of this peer; 0: none.
    round: AtomicU32,
    /// It has left in order.
    pub(super) gone: AtomicBool,
}

/// Where a message will be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Offset of its arrival word.
    pub(super) at: usize,
    pub(super) sequence: u32,
}

/// How a peer left that said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bye {
    Orderly,
    Failed { culprit: u32 },
}

impl Peer {
    /// The peer whose links these are.
    pub(super) fn new(
        number: u32,
        lane: Export,
        out: OutLane,
        head: &LaneHead,
        door: Import,
    ) -> Peer {
        Peer {
            number,
            node: head.node,
            group: head.group,
            out,
            stride: head.stride,
            lane,
            door,
            expect: AtomicU64::new(0),
            credit: AtomicU64::new(NO_CREDIT),
            watching: AtomicU32::new(0),
            seen: std::array::from_fn(|_| AtomicU64::new(0)),
            round: AtomicU32::new(0),
            gone: AtomicBool::new(false),
        }
    }

    /// A word of the lane that the peer writes.
    #[inline]
    pub(super) fn in64(&self, at: usize) -> MappedU64<'_> {
        word64(self.lane.view(), at)
    }

    #[inline]
    pub(super) fn in32(&self, at: usize) -> MappedU32<'_> {
        word32(self.lane.view(), at)
    }

    /// A word that the peer says.
    fn heard(&self, at: usize) -> u32 {
        handshake::heard(self.in32(at))
    }

    /// The lane that the peer writes.
    #[inline]
    pub(super) fn lane(&self) -> View<'_> {
        self.lane.view()
    }

    /// Publishes where the next message is expected.
    #[inline]
    pub(super) fn expect(&self, at: usize, sequence: u32) {
        self.expect.store((at as u64) << 32 | u64::from(sequence), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn expect_nothing(&self) {
        self.expect.store(0, Ordering::Relaxed);
    }

    /// Where the next message is expected, if anywhere.
    #[inline]
    pub(super) fn expected(&self) -> Option<Expected> {
        let expect = self.expect.load(Ordering::Relaxed);
        (expect != 0).then_some(Expected { at: (expect >> 32) as usize, sequence: expect as u32 })
    }

    pub(super) fn await_credit(&self, taken: Option<u32>) {
        self.credit.store(taken.map_or(NO_CREDIT, u64::from), Ordering::Relaxed);
    }

    /// 0: none.
    #[inline]
    pub(super) fn await_round(&self, round: u32) {
        self.round.store(round, Ordering::Relaxed);
    }

    pub(super) fn watch(&self, block: u32, seen: u64) {
        if let Some(place) = self.seen.get(block as usize) {
            place.store(seen, Ordering::Relaxed);
        }
        self.watching.fetch_or(1 << block, Ordering::Relaxed);
    }

    pub(super) fn unwatch(&self, block: u32) {
        self.watching.fetch_and(!(1 << block), Ordering::Relaxed);
    }

    /// Whether there is something to do for this peer. Without the lock: may be wrong in either
    /// direction for a moment, while another thread is doing it.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        if let Some(expected) = self.expected() {
            let word = self.in64(expected.at).load(Ordering::Acquire);
            if slots::arrived(word, expected.sequence).is_some() {
                return true;
            }
        }
        let credit = self.credit.load(Ordering::Relaxed);
        if credit != NO_CREDIT && self.has_awaited(credit) {
            return true;
        }
        let round = self.round.load(Ordering::Relaxed);
        if round != 0 && self.given_round(round).is_some() {
            return true;
        }
        let mut watching = self.watching.load(Ordering::Relaxed);
        while watching != 0 {
            let block = watching.trailing_zeros() as usize;
            watching &= watching - 1;
            let seen = self.seen.get(block).map_or(0, |seen| seen.load(Ordering::Relaxed));
            if self.in64(layout::STAGED + 8 * block).load(Ordering::Acquire) != seen {
                return true;
            }
        }
        false
    }

    #[cold]
    fn has_awaited(&self, credit: u64) -> bool {
        match credit {
            HERE => self.is_here(),
            taken => self.credit(taken as u32).is_some(),
        }
    }

    /// Tells the peer that we have opened our links with it.
    pub(super) fn say_here(&self) {
        self.out.say32(layout::HERE, layout::HERE_OPEN);
        self.out.ring();
    }

    /// Tells the peer that this process has joined: all others have opened their links with it.
    pub(super) fn say_joined(&self) {
        self.out.say32(layout::HERE, layout::HERE_JOINED);
        self.out.ring();
    }

    /// Tells the peer our process type; -1: none.
    pub(super) fn say_ptype(&self, ptype: i32) {
        self.out.say32(layout::PTYPE, (ptype + 1) as u32);
    }

    /// The peer's process type, -1 before it has one.
    pub(super) fn ptype(&self) -> i32 {
        (self.heard(layout::PTYPE) as i32).wrapping_sub(1)
    }

    /// Whether the peer has opened its links with us.
    pub(super) fn is_here(&self) -> bool {
        self.heard(layout::HERE) != 0
    }

    /// Whether the peer, which joins later, can be reached by all others.
    pub(super) fn has_joined(&self) -> bool {
        self.heard(layout::HERE) >= layout::HERE_JOINED
    }

    pub(super) fn await_here(&self) {
        self.credit.store(HERE, Ordering::Relaxed);
    }

    /// Credit number `taken`, if it was given.
    #[inline]
    pub(super) fn credit(&self, taken: u32) -> Option<u32> {
        slots::take(self.in32(layout::CREDITS + 4 * slots::index(taken)), taken)
    }

    /// Interrupts the process: its progress thread looks at everything.
    pub(super) fn interrupt(&self) {
        self.out.settle();
        door::wake(&self.door);
    }

    /// Which numbers it knows to have been given.
    pub(super) fn given(&self, limit: usize) -> impl Iterator<Item = u32> {
        door::given(&self.door, limit)
    }

    /// Whether both links are open. Their ends are heard of one after the other, over two connections,
    /// and a process that computes hears of the door's only.
    pub(super) fn is_linked(&self) -> bool {
        self.out.import().check_open().is_ok() && self.door.check_open().is_ok()
    }

    /// How the peer said that it leaves.
    pub(super) fn bye(&self) -> Option<Bye> {
        bye(&self.lane)
    }
}

/// How the writer of a lane of ours said that it leaves.
pub(super) fn bye(lane: &Export) -> Option<Bye> {
    match handshake::heard(word32(lane.view(), layout::BYE)) {
        0 => None,
        layout::BYE_ORDERLY => Some(Bye::Orderly),
        failed => Some(Bye::Failed { culprit: failed - layout::BYE_FAILED }),
    }
}

impl From<vmmc::error::WaitError> for NxError {
    fn from(error: vmmc::error::WaitError) -> NxError {
        NxError::System { what: "waiting", reason: error.to_string() }
    }
}
