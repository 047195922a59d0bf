//! The other processes of the job: lanes, doors, and what is polled without a lock.
//!
//! Each process has two connections to the daemon. The first one's doorbell wakes threads that
//! wait inside an NX call. The second one's belongs to the progress thread, which sleeps on it
//! always: to ring that one is to *interrupt* a process that computes (section 6 of the paper).
//! A sender interrupts by storing to the word of the other's **door**, a page of its own.

use super::layout::{self, BLOCKS};
use super::out::{self, OutLane, word32, word64};
use super::slots;
use crate::error::{NxError, StartError};
use crate::job::{Job, Late};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc::control::message::Refusal;
use vmmc::error::ExportError;
use vmmc::mem::View;
use vmmc::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vmmc::word::{MappedU32, MappedU64, Word};
use vmmc::{Export, Import, ImportBuilder, Node, PendingImport, Region, Rights, Token, Who};

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
    /// See [`Job::hosts`].
    pub(super) hosts: Arc<[String]>,
}

impl Own {
    /// The node of the cluster that a process is on, if it is not ours.
    pub(super) fn elsewhere(&self, number: u32) -> Option<&str> {
        let host = self.hosts.get(number as usize)?;
        (self.hosts.get(self.number as usize) != Some(host)).then_some(host)
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

/// How a peer left that said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bye {
    Orderly,
    Failed { culprit: u32 },
}

impl Peer {
    /// A word of the lane that the peer writes.
    #[inline]
    pub(super) fn in64(&self, at: usize) -> MappedU64<'_> {
        word64(self.lane.view(), at)
    }

    #[inline]
    pub(super) fn in32(&self, at: usize) -> MappedU32<'_> {
        word32(self.lane.view(), at)
    }

    /// The lane that the peer writes.
    #[inline]
    pub(super) fn lane(&self) -> View<'_> {
        self.lane.view()
    }

    /// Publishes where the next message is expected.
    #[inline]
    pub(super) fn set_expect(&self, at: usize, sequence: u32) {
        self.expect.store((at as u64) << 32 | u64::from(sequence), Ordering::Relaxed);
    }

    pub(super) fn expect_nothing(&self) {
        self.expect.store(0, Ordering::Relaxed);
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
        let expect = self.expect.load(Ordering::Relaxed);
        if expect != 0 {
            let word = self.in64((expect >> 32) as usize).load(Ordering::Acquire);
            if slots::arrived(word, expect as u32).is_some() {
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
        // PAIRS(here): with the acquire in `is_here`.
        self.out.say32(layout::HERE, 1);
        self.out.ring();
    }

    /// Tells the peer our process type; -1: none.
    pub(super) fn say_ptype(&self, ptype: i32) {
        // PAIRS(ptype): with the acquire in `ptype`.
        self.out.say32(layout::PTYPE, (ptype + 1) as u32);
    }

    /// The peer's process type, -1 before it has one.
    pub(super) fn ptype(&self) -> i32 {
        // PAIRS(ptype): with the release in `say_ptype`.
        (self.in32(layout::PTYPE).load(Ordering::Acquire) as i32).wrapping_sub(1)
    }

    /// Tells the peer that there is somebody new to meet.
    pub(super) fn call_to_meet(door: &Import) {
        // A peer that is gone meets nobody.
        if let (Ok(new), Ok(word)) = (door.flag32(DOOR_NEW), door.flag32(0)) {
            let _ = new.signal(1);
            let _ = word.signal(1);
        }
    }

    /// Whether the peer has opened its links with us.
    pub(super) fn is_here(&self) -> bool {
        // PAIRS(here): with the release in `say_here`.
        self.in32(layout::HERE).load(Ordering::Acquire) != 0
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
        // A peer that is gone needs no interrupt.
        if let Ok(word) = self.door.flag32(0) {
            let _ = word.signal(1);
        }
    }

    /// Whether both links are open. Their ends are heard of one after the other, over two connections,
    /// and a process that computes hears of the door's only.
    pub(super) fn is_linked(&self) -> bool {
        self.out.import().check_open().is_ok() && self.door.check_open().is_ok()
    }

    /// How the peer said that it leaves.
    pub(super) fn bye(&self) -> Option<Bye> {
        // PAIRS(bye): with the release in `leave`.
        match self.in32(layout::BYE).load(Ordering::Acquire) {
            0 => None,
            layout::BYE_ORDERLY => Some(Bye::Orderly),
            failed => Some(Bye::Failed { culprit: failed - layout::BYE_FAILED }),
        }
    }
}

/// What a process has before it knows its peers.
pub(super) struct Home {
    pub(super) own: Own,
    pub(super) data: Node,
    pub(super) bell: Node,
    pub(super) door: Export,
}

fn set_up<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> StartError {
    move |error| StartError::SetUp { what, reason: error.to_string() }
}

fn lane_name(own: &Own, writer: u32, owner: u32) -> String {
    format!("nx/{}/{writer}>{owner}", own.id)
}

pub(super) fn door_name(own: &Own, owner: u32) -> String {
    format!("nx/{}/door/{owner}", own.id)
}

/// Offset of the door's word that a process sets which has joined later: there is somebody to meet.
pub(super) const DOOR_NEW: usize = 8;

impl Home {
    /// `limit`: numbers that a process may have.
    pub(super) fn open(job: &Job, limit: usize) -> Result<Home, StartError> {
        let data = Node::connect()?;
        let mut config = vmmc::Config::from_env().map_err(set_up("settings"))?;
        // The progress thread never spins: it would take the processor from the program.
        config.wait = vmmc::config::WaitChoice::Fixed(vmmc::config::WaitPolicy::Block);
        let bell = Node::builder().config(config).program("nx-progress").connect()?;
        let Job { node, token, .. } = *job;
        let hosts = job.hosts.clone();
        let mut own = Own { id: job.id.clone(), token, number: node, node, group: 0, hosts };
        if let Some(Late { from, .. }) = job.late {
            own.number = from;
            own.group = job.ptype.map_or(0, |ptype| ptype as u32 + 1);
        }
        let door = loop {
            let opened = bell
                .export(Region::new(64).map_err(set_up("memory of the door"))?)
                .name(door_name(&own, own.number))
                .grant(Who::SameUser, Rights::WRITE)
                .token(own.token)
                .open();
            match opened {
                Err(ExportError::Refused(Refusal::NameTaken { .. }))
                    if job.late.is_some() && own.number as usize + 1 < limit =>
                {
                    own.number += 1;
                }
                opened => break opened.map_err(set_up("exporting the door"))?,
            }
        };
        Ok(Home { own, data, bell, door })
    }
}

/// Our two connections to the daemon.
#[derive(Clone, Copy)]
pub(super) struct Nodes<'h> {
    pub(super) data: &'h Node,
    pub(super) bell: &'h Node,
}

/// The links to one peer in the making.
pub(super) struct Opening {
    number: u32,
    lane: Export,
    out: PendingImport,
    door: PendingImport,
}

impl Opening {
    /// Exports our lane and starts importing the peer's. `ended` is called when the peer is gone, in
    /// a thread that waits or in the progress thread.
    pub(super) fn start(
        home: Nodes<'_>,
        own: &Own,
        peer: u32,
        stride: usize,
        ended: impl Fn(u32) + Send + Clone + 'static,
    ) -> Result<Opening, StartError> {
        let mut region =
            Region::new(layout::lane_len(stride)).map_err(set_up("memory of a lane"))?;
        let head: [(usize, &[u8]); 5] = [
            (layout::HEAD_MAGIC, &layout::MAGIC.to_ne_bytes()),
            (layout::HEAD_VERSION, &layout::VERSION.to_ne_bytes()),
            (layout::HEAD_STRIDE, &(stride as u32).to_ne_bytes()),
            (layout::HEAD_NODE, &own.node.to_ne_bytes()),
            (layout::HEAD_GROUP, &own.group.to_ne_bytes()),
        ];
        for (at, bytes) in head {
            region.write(at, bytes).map_err(set_up("head of a lane"))?;
        }
        let lane = home
            .data
            .export(region)
            .name(lane_name(own, peer, own.number))
            .grant(Who::SameUser, out::rights(own.elsewhere(peer).is_some()))
            .token(own.token)
            .open()
            .map_err(set_up("exporting a lane"))?;
        let on_end = move |ended: &(dyn Fn(u32) + Send), event| {
            if let vmmc::Event::Closed { .. } = event {
                ended(peer);
            }
        };
        let (one, other) = (ended.clone(), ended);
        let out = own
            .import(home.data, peer, lane_name(own, own.number, peer))
            .rights(out::rights(own.elsewhere(peer).is_some()))
            .handler(move |notification| on_end(&one, notification.event))
            .start()
            .map_err(set_up("importing a lane"))?;
        let door = own
            .import(home.bell, peer, door_name(own, peer))
            .handler(move |notification| on_end(&other, notification.event))
            .start()
            .map_err(set_up("importing a door"))?;
        Ok(Opening { number: peer, lane, out, door })
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Waits a while for the peer; whether it is there.
    pub(super) fn wait(&mut self, time: Duration) -> Result<bool, StartError> {
        Ok(self.out.wait_for(Some(time)).map_err(set_up("importing a lane"))?
            && self.door.wait_for(Some(time)).map_err(set_up("importing a door"))?)
    }

    /// Waits for the peer, at most until `deadline`, and tells it that we can do without it.
    pub(super) fn finish(self, deadline: Instant, seconds: u64) -> Result<Peer, StartError> {
        let peer = self.meet(deadline, seconds)?;
        peer.say_here();
        Ok(peer)
    }

    /// The same without a word.
    pub(super) fn meet(self, deadline: Instant, seconds: u64) -> Result<Peer, StartError> {
        let Opening { number, lane, mut out, mut door } = self;
        let left = || {
            Some(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
        };
        let missing = StartError::Missing { node: number, seconds };
        if !out.wait_for(left()).map_err(set_up("importing a lane"))?
            || !door.wait_for(left()).map_err(set_up("importing a door"))?
        {
            return Err(missing);
        }
        let out_import = out.wait().map_err(set_up("importing a lane"))?;
        let door = door.wait().map_err(set_up("importing a door"))?;
        let (out, head) = OutLane::open(out_import, number)?;
        let out::LaneHead { stride, node, group } = head;
        Ok(Peer {
            number,
            node,
            group,
            out,
            stride,
            lane,
            door,
            expect: AtomicU64::new(0),
            credit: AtomicU64::new(NO_CREDIT),
            watching: AtomicU32::new(0),
            seen: std::array::from_fn(|_| AtomicU64::new(0)),
            round: AtomicU32::new(0),
            gone: AtomicBool::new(false),
        })
    }
}

impl From<vmmc::error::WaitError> for NxError {
    fn from(error: vmmc::error::WaitError) -> NxError {
        NxError::System { what: "waiting", reason: error.to_string() }
    }
}
