//! A channel: two rings that carry records, and how their ends wait for each other.
//!
//! | record | at the sender | at the receiver |
//! |---|---|---|
//! | fits into the ring | encoded there, shown whole | decoded there |
//! | longer, to who can wait: clients, servers in Rust | encoded there; a piece is shown when it is full | decoded out of each piece as it comes |
//! | longer, at a server with libtirpc's loop | the same while the client keeps up; what then finds no room is kept in memory | put together in memory, so that a client that stalls holds up nobody; given back as it is decoded |
//!
//! The last row's server has one thread for all: once it has begun to decode, or to encode what belongs to the
//! service, it cannot turn to another client.

mod codec;
mod held;
mod lent;
mod own;
mod patience;
mod pieces;
mod reader;
pub(crate) mod segment;
mod sending;
mod source;
mod writer;

pub(crate) use codec::RecordSource;
pub(crate) use lent::is_lent;
pub(crate) use patience::{Allowance, Deadline, Patience};
pub(crate) use source::Source;
pub(crate) use writer::{Long, Writer};

use crate::counters::{self, Counter, Later};
use held::{Kept, POOL, Pool};
use own::Own;
use pieces::Pieces;
use rustix::io::Errno;
use segment::Segment;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use vmmc::sync::Ordering;
use vmmc::sys::mirror::MirroredMapping;
use vmmc::sys::{Fd, bell_line, doorbell};
use vmmc::word::{MappedU64, Word};
use vmmc_ring::{Consumer, Poisoned, Producer, ViewBytes, bell};

/// Longest record, in bytes.
pub(crate) const MAX_RECORD: usize = 1 << 30;

/// The producer of our direction.
type Tx<'c> = Producer<MappedU64<'c>, MappedU64<'c>, ViewBytes<'c>>;
/// The consumer of the peer's direction.
type Rx<'c> = Consumer<MappedU64<'c>, MappedU64<'c>, ViewBytes<'c>>;

/// Why a channel can no longer be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The peer wrote what cannot be true.
    Nonsense,
    /// The TCP connection ended, and with it the channel.
    Gone(Errno),
    /// There is no memory for what must be kept: of one record at most [`MAX_RECORD`].
    TooLong,
    /// The time is over.
    TimedOut,
}

impl From<Poisoned> for Broken {
    fn from(_: Poisoned) -> Broken {
        Broken::Nonsense
    }
}

/// What rings the other side.
#[derive(Debug)]
enum PeerBell {
    /// A process of this machine.
    Button(Fd),
    /// This node's daemon, which carries the connection to another node.
    Line(Fd),
}

impl PeerBell {
    fn new(fd: Fd) -> PeerBell {
        match bell_line::is_line(&fd) {
            true => PeerBell::Line(fd),
            false => PeerBell::Button(fd),
        }
    }

    fn ring(&self) {
        match self {
            PeerBell::Button(button) => doorbell::ring(button),
            PeerBell::Line(line) => bell_line::ring(line),
        }
    }
}

/// One end of a channel. Used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Channel {
    segment: Segment,
    own: Own,
    peer_bell: PeerBell,
    /// Of a record of which not all pieces have come.
    assembly: RefCell<Pieces>,
    /// What that, and what waits to be sent, is taken from.
    pool: &'static Pool,
    /// The record that lies in the ring whole and is not yet released: where it begins and the bytes
    /// it takes up there.
    handed_out: Cell<Option<(u64, usize)>>,
    /// Records, or their rests, that found no room ([`Channel::flush`]); none is empty.
    backlog: RefCell<VecDeque<Kept>>,
    /// Bytes of the first of them that are in the ring already.
    backlog_at: Cell<usize>,
    /// Memory for the next record that is not encoded into the ring.
    spare: RefCell<Option<Kept>>,
    /// Longest record taken, in bytes.
    max_record: Cell<usize>,
    /// Why nothing is sent any more: found inside a record, which its encoder cannot say.
    broken: Cell<Option<Broken>>,
    /// What calls over it count.
    counts: Later,
}

impl Channel {
    /// Attaches to a segment whose length has been verified.
    pub(crate) fn attach(
        memory: &Fd,
        ring_len: u32,
        side: u8,
        peer_bell: Fd,
    ) -> rustix::io::Result<Channel> {
        let mapping = MirroredMapping::new(memory, segment::CONTROL_LEN, ring_len as usize)?;
        let channel = Channel {
            segment: Segment::new(mapping, side),
            own: Own::new()?,
            peer_bell: PeerBell::new(peer_bell),
            assembly: RefCell::new(Pieces::of(&POOL)),
            pool: &POOL,
            handed_out: Cell::new(None),
            backlog: RefCell::default(),
            backlog_at: Cell::new(0),
            spare: RefCell::default(),
            max_record: Cell::new(MAX_RECORD),
            broken: Cell::new(None),
            counts: Later::default(),
        };
        // Armed first: a peer that sees us attached rings only if we are.
        bell::arm(&channel.segment.own().armed_data());
        channel.segment.own().attached().store(1, Ordering::Release);
        Ok(channel)
    }

    /// Takes records up to so many bytes; [`MAX_RECORD`] at most, which is what it takes before.
    pub(crate) fn limit(&self, max_record: usize) {
        self.max_record.set(max_record.min(MAX_RECORD));
    }

    fn tx(&self) -> Tx<'_> {
        let (tail, head, bytes) = self.segment.outgoing();
        Producer { tail, head, own: self.own.tail(), seen: self.own.head_seen(), bytes }
    }

    fn rx(&self) -> Rx<'_> {
        let (tail, head, bytes) = self.segment.incoming();
        Consumer { tail, head, own: self.own.head(), seen: self.own.tail_seen(), bytes }
    }

    /// Most bytes of a piece of a record that does not fit: the other side takes one while we fill
    /// the next.
    fn piece_len(&self) -> usize {
        self.segment.ring_len() / 4
    }

    /// What calls over it count.
    #[inline]
    pub(crate) fn counts(&self) -> &Later {
        &self.counts
    }

    /// Rings the other side if it sleeps for data.
    fn wake_for_data(&self) {
        bell::published();
        self.wake_if_armed_for_data();
    }

    /// The same behind [`bell::published`].
    fn wake_if_armed_for_data(&self) {
        let peer = self.segment.peer();
        if peer.attached().load(Ordering::Acquire) == 0 || bell::take(&peer.armed_data()) {
            self.ring();
        }
    }

    /// Rings the other side if it sleeps for room.
    fn wake_for_space(&self) {
        bell::published();
        self.wake_if_armed_for_space();
    }

    /// The same behind [`bell::published`].
    fn wake_if_armed_for_space(&self) {
        if bell::take(&self.segment.peer().armed_space()) {
            self.ring();
        }
    }

    fn ring(&self) {
        counters::one(Counter::doorbells);
        self.peer_bell.ring();
    }

    /// Whether a record (or a piece of one) seems to be there; for spinning.
    #[inline]
    pub(crate) fn looks_readable(&self) -> bool {
        self.rx().looks_readable()
    }

    /// Brings the line of the next record's beginning near, for who polls this channel alone.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.rx().prefetch();
    }

    /// For a server: whether there is something to do, which is a request, or room for the replies
    /// that wait. While replies wait no request is taken: a client that does not fetch its
    /// replies costs a bounded amount of memory, as it does over TCP.
    pub(crate) fn looks_serviceable(&self) -> bool {
        if self.is_behind() {
            let has_room = self.tx().room().map_or(true, |room| room >= writer::LEAST_ROOM);
            has_room && !self.waits_for_another()
        } else {
            self.looks_readable()
        }
    }

    /// Says that we are about to sleep outside; the caller looks once more after this.
    pub(crate) fn arm(&self) {
        bell::arm(&self.segment.own().armed_data());
        if self.is_behind() {
            bell::arm(&self.segment.own().armed_space());
        }
    }

    /// Says that we are awake and look by ourselves.
    pub(crate) fn disarm(&self) {
        bell::disarm(&self.segment.own().armed_data());
    }

    /// Tells the other side where we wait: who shares a processor with us does not spin.
    pub(crate) fn note_cpu(&self) -> u32 {
        let cpu = u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(0) + 1;
        self.segment.own().cpu().store(cpu, Ordering::Relaxed);
        cpu
    }
}

#[cfg(test)]
mod tests;
