//! A channel: two rings that carry records, and how their ends wait for each other.

mod codec;
mod own;
mod reader;
pub(crate) mod segment;
mod writer;

pub(crate) use codec::RecordSource;
pub(crate) use reader::Incoming;
pub(crate) use writer::Writer;

use crate::counters::{self, Counter};
use crate::settings;
use own::Own;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use segment::Segment;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use vmmc::sync::Ordering;
use vmmc::sys::Fd;
use vmmc::sys::doorbell::{self, Doorbell};
use vmmc::sys::mirror::MirroredMapping;
use vmmc::wait::{self, Spun};
use vmmc::word::{MappedU64, Word};
use vmmc_ring::{Consumer, Poisoned, Producer, ViewBytes, bell};

/// Longest record taken in pieces, in bytes: memory grows with what has really come, up to here.
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
    /// The record is longer than [`MAX_RECORD`].
    TooLong,
    /// The time is over.
    TimedOut,
}

impl From<Poisoned> for Broken {
    fn from(_: Poisoned) -> Broken {
        Broken::Nonsense
    }
}

/// One end of a channel.
#[derive(Debug)]
pub(crate) struct Channel {
    segment: Segment,
    own: Own,
    /// Rings the other side.
    peer_bell: Fd,
    /// Bytes of a record of which not all pieces have come.
    assembly: Vec<u8>,
    /// The record that [`Channel::next_record`] returned and that is not yet released: where it
    /// begins in the ring and the bytes it takes up there, 0 when it is in `assembly`.
    handed_out: Option<(u64, usize)>,
    /// Records, or their rests, that found no room ([`Channel::flush`]); none is empty.
    backlog: VecDeque<Vec<u8>>,
    /// Bytes of the first of them that are in the ring already.
    backlog_at: usize,
    /// Memory for the next record that is not encoded into the ring.
    spare: Vec<u8>,
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
            peer_bell,
            assembly: Vec::new(),
            handed_out: None,
            backlog: VecDeque::new(),
            backlog_at: 0,
            spare: Vec::new(),
        };
        // Armed first: a peer that sees us attached rings only if we are.
        bell::arm(&channel.segment.own().armed_data());
        channel.segment.own().attached().store(1, Ordering::Release);
        Ok(channel)
    }

    fn tx(&self) -> Tx<'_> {
        let (tail, head, bytes) = self.segment.outgoing();
        Producer { tail, head, own: self.own.tail(), seen: self.own.head_seen(), bytes }
    }

    fn rx(&self) -> Rx<'_> {
        let (tail, head, bytes) = self.segment.incoming();
        Consumer { tail, head, own: self.own.head(), seen: self.own.tail_seen(), bytes }
    }

    /// Rings the other side if it sleeps for data.
    fn wake_for_data(&self) {
        bell::published();
        let peer = self.segment.peer();
        if peer.attached().load(Ordering::Acquire) == 0 || bell::take(&peer.armed_data()) {
            self.ring();
        }
    }

    /// Rings the other side if it sleeps for room.
    fn wake_for_space(&self) {
        bell::published();
        if bell::take(&self.segment.peer().armed_space()) {
            self.ring();
        }
    }

    fn ring(&self) {
        counters::one(Counter::doorbells);
        doorbell::ring(&self.peer_bell);
    }

    /// Whether a record (or a piece of one) seems to be there; for spinning.
    pub(crate) fn looks_readable(&self) -> bool {
        self.rx().looks_readable()
    }

    /// For a server: whether there is something to do, which is a request, or room for the replies
    /// that wait. While replies wait no request is taken: a client that does not fetch its
    /// replies costs a bounded amount of memory, as it does over TCP.
    pub(crate) fn looks_serviceable(&self) -> bool {
        if self.is_behind() {
            self.tx().room().map_or(true, |room| room >= writer::LEAST_ROOM)
        } else {
            self.looks_readable()
        }
    }

    /// For a server: the next record, unless replies wait.
    pub(crate) fn next_request(&mut self) -> Result<Option<Incoming>, Broken> {
        if self.flush()? { self.next_record() } else { Ok(None) }
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

    /// Waits for something to read until `deadline`. `bell` is ours, `socket` the TCP connection.
    pub(crate) fn wait_readable(
        &self,
        bell: &Doorbell,
        socket: BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Broken> {
        self.wait(bell, socket, deadline, Waiting::Data, || self.looks_readable())
    }

    /// For a client: waits for the reply to call `xid`. It stays until [`Channel::release`].
    pub(crate) fn reply(
        &mut self,
        xid: u32,
        bell: &Doorbell,
        socket: BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> Result<Incoming, Broken> {
        loop {
            if let Some(record) = self.next_record()? {
                let mut word = [0; 4];
                if record.len >= word.len() {
                    // SAFETY: four bytes of the record, copied once.
                    unsafe {
                        vmmc::mem::copy::bytes(record.start.as_ptr(), word.as_mut_ptr(), 4);
                    }
                    if u32::from_be_bytes(word) == xid {
                        return Ok(record);
                    }
                }
                // Of an earlier call that was not waited for.
                self.release();
                continue;
            }
            self.wait_readable(bell, socket, deadline)?;
        }
    }

    /// For the child of a server that has forked to answer: puts all of the backlog into the ring. The
    /// doorbell that the peer would ring is its parent's, so it looks every now and then.
    pub(crate) fn flush_as_child(&mut self, socket: BorrowedFd<'_>) -> Result<(), Broken> {
        let deadline = Instant::now() + CHILD_TIMEOUT;
        let again = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        while !self.flush()? {
            let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
            match poll(&mut fds, Some(&again)) {
                Ok(1..) => return Err(Broken::Gone(Errno::CONNRESET)),
                _ if Instant::now() >= deadline => return Err(Broken::TimedOut),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits for room in the ring in which we send.
    pub(crate) fn wait_room(
        &self,
        bell: &Doorbell,
        socket: BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Broken> {
        let tx = self.tx();
        self.wait(bell, socket, deadline, Waiting::Space, || {
            tx.room().map_or(true, |room| room >= writer::LEAST_ROOM)
        })
    }

    fn wait(
        &self,
        bell: &Doorbell,
        socket: BorrowedFd<'_>,
        deadline: Option<Instant>,
        what: Waiting,
        look: impl Fn() -> bool,
    ) -> Result<(), Broken> {
        let own = self.segment.own();
        let shares = || {
            let cpu = self.note_cpu();
            self.segment.peer().cpu().load(Ordering::Relaxed) == cpu
        };
        let armed = match what {
            Waiting::Data => own.armed_data(),
            Waiting::Space => own.armed_space(),
        };
        // Who only ever spins would not see the connection end.
        let mut looks = 0u32;
        let spun = wait::spin(settings::wait_policy(), deadline, shares, || {
            looks = looks.wrapping_add(1);
            if look() {
                return Some(Ok(()));
            }
            (looks.is_multiple_of(LOOKS_PER_POLL) && has_ended(socket))
                .then_some(Err(Broken::Gone(Errno::CONNRESET)))
        });
        match spun {
            Spun::Found(found) => {
                counters::one(Counter::spin_hits);
                return found;
            }
            Spun::Late => return Err(Broken::TimedOut),
            Spun::Spent => {}
        }
        loop {
            bell::arm(&armed);
            if look() {
                bell::disarm(&armed);
                return Ok(());
            }
            counters::one(Counter::sleeps);
            let ended = sleep(bell, socket, deadline);
            bell::disarm(&armed);
            bell.drain();
            if look() {
                return Ok(());
            }
            ended?;
        }
    }
}

/// How long a client may leave a child's answer in the ring: what libtirpc's write would wait.
const CHILD_TIMEOUT: Duration = Duration::from_secs(35);
/// Looks at the rings between two looks at the connection.
const LOOKS_PER_POLL: u32 = 1 << 16;

/// Whether the connection is over.
fn has_ended(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(1..))
}

/// What a wait is for.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    Data,
    Space,
}

/// Sleeps until rung, or until the connection has ended.
fn sleep(bell: &Doorbell, socket: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<(), Broken> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return Err(Broken::TimedOut);
    }
    let timeout = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    let mut fds = [
        PollFd::new(bell.read_end(), PollFlags::IN),
        PollFd::from_borrowed_fd(socket, PollFlags::RDHUP),
    ];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(()),
        Err(errno) => return Err(Broken::Gone(errno)),
    }
    let over = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    if fds[1].revents().intersects(over) {
        return Err(Broken::Gone(Errno::CONNRESET));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
