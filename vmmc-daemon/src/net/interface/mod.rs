//! This node's network interface, emulated: one thread that puts packets of other nodes' processes into
//! exported pages.
//!
//! To the exporters it is an importer: it has their pages mapped, a link segment with each, and
//! rings them when they sleep. So their processes take no part, stopped or not (V18), and an unexport
//! drains and revokes it as it does everybody.
//!
//! Work is done in turns, a bounded one per connection, so that none keeps the others waiting. Packets of one
//! connection are handled in the order in which they came (H17). A connection whose next packet
//! cannot be finished (a full notification queue) is not read until it can be: the kernel's buffers
//! fill, and the sender waits (H16). While there was work lately the thread polls, if that pays ([`polling`]), but
//! not for the bytes of a long message; then it sleeps.

mod connection;
mod cut;
mod debtors;
mod polling;
mod wire;

use super::mailbox::Mailbox;
use super::offers::Offers;
use super::secure;
use connection::{Connection, Links, Turn};
use debtors::Debtors;
use polling::Polling;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};
use vmmc::Node;
use vmmc::config::{Config, DaemonStart};
use vmmc::control::network::{Lasting, Origin, Pass};
use vmmc::counters::index::LIBRARY;
use vmmc::sys::Fd;
use vmmc::transport::net::silence::Owed;
use vmmc::transport::net::vain;
use vmmc::transport::ofi::fifo::Fifo;
use vmmc::transport::tcp::seal::SealKeys;
use wire::{LIFE, Wire};

/// Most data connections: processes of other nodes.
const MAX_CONNECTIONS: usize = 16_384;
/// And of these, of one user of one node.
const MAX_CONNECTIONS_OF_USER: usize = MAX_CONNECTIONS / 8;
/// How often connections that wait for a receiver are looked at while others have work.
const STALL_LOOK: Duration = Duration::from_millis(1);
/// Connections that are polled one by one while there is work; with more, epoll is asked.
const MAX_HOT: usize = 4;

/// Rounds of that before the others are looked at.
const MAX_ROUNDS: u32 = 16;
/// The same while one of the others is in the middle of a long message: every other one.
const ROUNDS_BESIDE_RESTING: u32 = 2;

/// How often offers that nobody took up are looked for while it does not sleep.
const EXPIRY: Duration = Duration::from_secs(1);

/// What the interface counts, in the daemon's own process page.
pub mod count {
    use super::LIBRARY;
    /// Packets received.
    pub const PACKETS: usize = LIBRARY;
    /// Bytes received straight into exported pages.
    pub const DIRECT_BYTES: usize = LIBRARY + 1;
    /// Bytes that came with a header and were copied.
    pub const STAGED_BYTES: usize = LIBRARY + 2;
    /// Notifications queued for receivers.
    pub const INTERRUPTS: usize = LIBRARY + 3;
    /// Times a connection waited for a receiver.
    pub const STALLS: usize = LIBRARY + 4;
    /// Links and connections ended because of what came over them.
    pub const FAULTS: usize = LIBRARY + 5;
    /// Capabilities refused.
    pub const REFUSED: usize = LIBRARY + 6;
    /// Bytes dropped because their link had ended.
    pub const DROPPED_BYTES: usize = LIBRARY + 7;
    /// Packets held back for a disabled page.
    pub const FROZEN: usize = LIBRARY + 8;
    /// Links to whose pages a fabric could write by itself.
    pub const WINDOWS: usize = LIBRARY + 9;
    /// Of them those where that was ended for a disabled page.
    pub const RECALLS: usize = LIBRARY + 10;
    /// Links ended because a packet was held back for too long.
    pub const FROZEN_ENDED: usize = LIBRARY + 11;
    /// Connections that have gone on after a cut.
    pub const RESUMED: usize = LIBRARY + 12;
    /// Names of these.
    pub const NAMES: &[&str] = &[
        "ni_packets",
        "ni_direct_bytes",
        "ni_staged_bytes",
        "ni_interrupts",
        "ni_stalls",
        "ni_faults",
        "ni_refused",
        "ni_dropped_bytes",
        "ni_frozen",
        "ni_windows",
        "ni_recalls",
        "ni_frozen_ended",
        "ni_resumed",
    ];
}

/// What comes in by the door.
#[derive(Debug)]
enum Visitor {
    /// A data connection, who is behind it, and how it goes on after a cut.
    New(Box<Wire>, Origin, Option<Lasting>),
    /// Another one is to be made for that which has this pass, of this origin, and has received so many bytes. It is told how many
    /// came here.
    BreaksOff(Pass, Origin, u64, SyncSender<Result<(u64, u64), String>>),
    /// That one, and which time it was asked for.
    Resumes((Pass, u64), TcpStream, Option<SealKeys>),
}

/// Where connections come in.
#[derive(Clone, Debug)]
pub(super) struct Door(Arc<Mailbox<Visitor>>);

impl Door {
    /// Hands a data connection to the interface.
    pub(super) fn enter(
        &self,
        stream: TcpStream,
        fifo: Option<Fifo>,
        seal: Option<&SealKeys>,
        (origin, lasting): (Origin, Option<Lasting>),
    ) {
        self.0.put(Visitor::New(Box::new(Wire::new(stream, fifo, seal)), origin, lasting));
    }

    /// Takes what has come of a connection that was cut, whose process has received so many bytes; how many came here, and which time
    /// that was asked. Or why it cannot go on. `None`: the interface is busy.
    pub(super) fn break_off(
        &self,
        pass: Pass,
        of: Origin,
        position: u64,
    ) -> Option<Result<(u64, u64), String>> {
        let (answer, answered) = sync_channel(1);
        self.0.put(Visitor::BreaksOff(pass, of, position, answer));
        answered.recv_timeout(secure::PATIENCE).ok()
    }

    /// Has it go on over another one.
    pub(super) fn resume(&self, asked: (Pass, u64), stream: TcpStream, seal: Option<SealKeys>) {
        self.0.put(Visitor::Resumes(asked, stream, seal));
    }

    /// Makes the interface look around.
    pub(super) fn ring(&self) {
        self.0.ring();
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Interface {
    door: Door,
    offers: Arc<Offers>,
    connections: HashMap<u64, Connection>,
    links: Links,
    /// Connections whose last turn ended at its bound.
    unfinished: BTreeSet<u64>,
    /// Connections that wait for a receiver.
    stalled: BTreeSet<u64>,
    /// Connections in the middle of a long message: epoll tells when there is a good deal of it.
    resting: BTreeSet<u64>,
    /// Connections that keep bytes which epoll does not know of: sealed ones, and those over a fabric.
    keepers: BTreeSet<u64>,
    /// Connections whose fabric's descriptor is readable for nothing ([`vain`]).
    vain: BTreeSet<u64>,
    last: u64,
    rules: Rules,
    /// When a window that was recalled is to be shut.
    recall: Option<Instant>,
    /// Senders that may have vanished.
    debtors: Debtors,
    /// Connections that can go on after a cut.
    passes: HashMap<Pass, u64>,
    /// Those that were cut.
    cut: BTreeSet<u64>,
    /// When the first of them may end.
    cut_due: Option<Instant>,
}

/// How the cluster file has it receive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    /// Whether senders may write to pages by themselves where they go over a fabric.
    pub(super) direct: bool,
    /// How long a packet for a disabled page is held back at most.
    pub(super) freeze_limit: Option<Duration>,
}

/// The interface, not running yet, and its door.
pub(super) fn make(offers: Arc<Offers>, rules: Rules) -> rustix::io::Result<(Door, Interface)> {
    let door = Door(Mailbox::new()?);
    let interface = Interface {
        door: door.clone(),
        offers,
        connections: HashMap::new(),
        links: Links::new(),
        unfinished: BTreeSet::new(),
        stalled: BTreeSet::new(),
        resting: BTreeSet::new(),
        keepers: BTreeSet::new(),
        vain: BTreeSet::new(),
        last: FIRST,
        rules,
        recall: None,
        debtors: Debtors::default(),
        passes: HashMap::new(),
        cut: BTreeSet::new(),
        cut_due: None,
    };
    Ok((door, interface))
}

/// The interface's own connection to the broker of this process.
pub(super) fn connect(socket: &Path) -> Option<Node> {
    let node = connect_as(socket, "vmmcd")?;
    node.counters().name_from(LIBRARY, count::NAMES);
    Some(node)
}

/// A connection of this process to its own broker, under a name for people.
pub(super) fn connect_as(socket: &Path, program: &str) -> Option<Node> {
    let mut config = match Config::from_env() {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, program, "cannot connect to the own broker");
            return None;
        }
    };
    config.socket = Some(socket.to_owned());
    config.daemon = DaemonStart::Never;
    let node = Node::builder().config(config).program(program).connect();
    node.inspect_err(|error| tracing::error!(%error, program, "cannot connect to the own broker"))
        .ok()
}

/// What epoll tells of a connection that has ended.
const ENDED: epoll::EventFlags = epoll::EventFlags::ERR.union(epoll::EventFlags::HUP);

/// Epoll tokens: the door, the doorbell, then connections.
const DOOR: u64 = 0;
const BELL: u64 = 1;
const FIRST: u64 = 2;

impl Interface {
    /// Works for ever.
    pub(super) fn run(mut self, node: &Node) {
        if let Err(errno) = self.work(node) {
            tracing::error!(%errno, "the network interface has failed; restart vmmcd");
        }
    }

    fn work(&mut self, node: &Node) -> rustix::io::Result<()> {
        let epoll = Fd::from(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let watch = |token| epoll::EventData::new_u64(token);
        epoll::add(&epoll, &*self.door.0, watch(DOOR), epoll::EventFlags::IN)?;
        let doorbell = node.as_fd().map_err(|error| error.errno)?;
        epoll::add(&epoll, doorbell, watch(BELL), epoll::EventFlags::IN)?;
        let mut polling = Polling::new(node.wait_policy().network_budget());
        let mut events = Vec::with_capacity(64);
        // Connections that had work in the last round.
        let mut hot: Vec<u64> = Vec::new();
        let mut last_expiry = Instant::now();
        let mut last_look = Instant::now();
        let mut last_settled = Instant::now();
        let mut rounds = 0;
        loop {
            // Who polls for the bytes of a long message gets them one by one; who sleeps gets many.
            hot.retain(|id| !self.resting.contains(id));
            let polls = !hot.is_empty() && polling.goes_on();
            let bound = if self.resting.is_empty() { MAX_ROUNDS } else { ROUNDS_BESIDE_RESTING };
            rounds = (rounds + 1) % bound;
            if polls && rounds != 0 && hot.len() <= MAX_HOT {
                let mut any = false;
                for &id in &hot {
                    any |= self.turn(&epoll, node, id);
                }
                if any {
                    polling.worked();
                    continue;
                }
            }
            if polls {
                polling.looked_in_vain();
            }
            let timeout = if polls || !self.unfinished.is_empty() {
                Some(Duration::ZERO)
            } else {
                polling.sleeps(!hot.is_empty());
                hot.clear();
                self.settle(&epoll, node);
                let armed = node.arm().unwrap_or(false);
                self.look_at_keepers();
                if !armed || self.settle_stalled(&epoll, node) || !self.unfinished.is_empty() {
                    Some(Duration::ZERO)
                } else {
                    let next = self.offers.expire().into_iter();
                    let look = (!self.vain.is_empty()).then(|| last_look + vain::LOOK);
                    let next = next.chain(self.recall).chain(self.debtors.next()).chain(look);
                    let next = next.chain(self.cut_due);
                    let held = self.stalled.iter().filter_map(|id| self.connections.get(id));
                    let held = held.filter(|it| !it.is_cut()).filter_map(Connection::held_until);
                    let next = next.chain(held).min();
                    next.map(|at| at.saturating_duration_since(Instant::now()))
                }
            };
            let timeout = timeout.map(|timeout| Timespec {
                tv_sec: timeout.as_secs() as i64,
                tv_nsec: i64::from(timeout.subsec_nanos()),
            });
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            if !polls || !events.is_empty() {
                self.settle(&epoll, node);
            }
            if last_look.elapsed() >= vain::LOOK {
                last_look = Instant::now();
                self.unfinished.extend(&self.vain);
            }
            if last_settled.elapsed() >= STALL_LOOK {
                // Others that always have work must not keep these from theirs.
                last_settled = Instant::now();
                self.settle_stalled(&epoll, node);
            }
            let mut found = Vec::new();
            for id in std::mem::take(&mut self.unfinished) {
                if self.turn(&epoll, node, id) {
                    found.push(id);
                }
            }
            for event in &events {
                let (token, flags) = (event.data.u64(), event.flags);
                let has_ended = flags.intersects(ENDED);
                match token {
                    DOOR => self.admit(&epoll, node),
                    BELL => drop(self.settle_stalled(&epoll, node)),
                    id if id & LIFE != 0 => self.hear(&epoll, node, id & !LIFE),
                    id if has_ended && self.ended_while_stalled(&epoll, id) => {}
                    id if found.contains(&id) => {}
                    id => {
                        // One that is vain has changed: something is on its way.
                        if self.turn(&epoll, node, id) || self.vain.contains(&id) {
                            found.push(id);
                        }
                    }
                }
            }
            if !found.is_empty() {
                polling.worked();
                hot = found;
            }
            // It may not sleep for long.
            if last_expiry.elapsed() >= EXPIRY {
                last_expiry = Instant::now();
                self.offers.expire();
            }
            self.look_at_debtors(&epoll, node);
            self.look_at_cut(&epoll);
        }
    }

    /// Who has come.
    fn admit(&mut self, epoll: &Fd, node: &Node) {
        for visitor in self.door.0.take() {
            match visitor {
                Visitor::New(wire, origin, lasting) => {
                    self.begin(epoll, *wire, origin, lasting);
                }
                Visitor::BreaksOff(pass, origin, position, answer) => {
                    // Who asked may have gone.
                    let _ = answer.send(self.break_off(epoll, node, (pass, &origin), position));
                }
                Visitor::Resumes(asked, stream, seal) => {
                    self.resume(epoll, node, (asked, stream, seal.as_ref()));
                }
            }
        }
    }

    /// A new connection.
    fn begin(&mut self, epoll: &Fd, wire: Wire, origin: Origin, lasting: Option<Lasting>) {
        let Origin { node, pid, uid, .. } = &origin;
        let of_user = |it: &&Connection| it.origin().node == *node && it.origin().uid == *uid;
        if self.connections.values().filter(of_user).count() >= MAX_CONNECTIONS_OF_USER {
            tracing::warn!(node, pid, uid, "too many data connections of one user of one node");
            return;
        }
        if self.connections.len() >= MAX_CONNECTIONS && !self.end_a_cut_one(epoll) {
            tracing::warn!(node, pid, "too many data connections");
            return;
        }
        let id = self.last;
        self.last += 1;
        if wire.watch(epoll, id).is_ok() {
            // Over a fabric something may have come before it was watched.
            if wire.is_vain() {
                self.vain.insert(id);
            }
            if wire.keeps_bytes() {
                self.keepers.insert(id);
                self.unfinished.insert(id);
            }
            self.passes.extend(lasting.map(|it| (it.pass, id)));
            self.connections.insert(id, Connection::new(id, wire, (origin, lasting), self.rules));
        }
    }

    /// A turn of one connection; whether it did anything.
    fn turn(&mut self, epoll: &Fd, node: &Node, id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        if connection.is_cut() {
            return false;
        }
        match connection.turn(node, &self.offers, &mut self.links) {
            Turn::Worked(worked) => {
                let wanted = connection.interest();
                if wanted != connection.watched
                    && connection.wire.watch_for(epoll, id, wanted).is_ok()
                {
                    connection.watched = wanted;
                }
                if connection.has_more {
                    self.unfinished.insert(id);
                } else {
                    self.unfinished.remove(&id);
                }
                if connection.awaits_much {
                    self.resting.insert(id);
                } else {
                    self.resting.remove(&id);
                }
                if connection.is_stalled() {
                    self.stalled.insert(id);
                } else {
                    self.stalled.remove(&id);
                }
                if connection.has_spoken() {
                    self.debtors.add(id);
                }
                if connection.has_become_theirs() {
                    let origin = connection.origin().clone();
                    self.end_those_of(epoll, &origin);
                }
                worked
            }
            Turn::Cut => {
                self.was_cut(epoll, id);
                true
            }
            Turn::Over => {
                self.end(epoll, id);
                true
            }
        }
    }

    /// The kernel tells, and goes on telling, of an end that nobody receives, because a receiver has to do something first.
    fn ended_while_stalled(&mut self, epoll: &Fd, id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        if !connection.is_stalled() || connection.is_cut() {
            return false;
        }
        if connection.was_cut_unseen() {
            self.was_cut(epoll, id);
        } else {
            connection.wire.unwatch(epoll); // the turn after the stall finds it
            connection.has_ended = true;
        }
        true
    }

    /// Ends a connection, with its links.
    fn end(&mut self, epoll: &Fd, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        connection.wire.unwatch(epoll);
        self.unfinished.remove(&id);
        self.stalled.remove(&id);
        self.resting.remove(&id);
        self.keepers.remove(&id);
        self.vain.remove(&id);
        self.cut.remove(&id);
        if let Some(Lasting { pass, .. }) = connection.lasting() {
            self.passes.remove(&pass);
        }
        for token in connection.close() {
            self.links.remove(&token);
        }
    }

    /// Before a sleep: connections of which epoll would not tell what comes next.
    fn look_at_keepers(&mut self) {
        let Interface { keepers, connections, unfinished, .. } = self;
        unfinished.extend(keepers.iter().filter(|id| {
            connections.get(id).is_some_and(|it| it.may_receive() && !it.wire.may_sleep())
        }));
    }

    /// Senders whose nodes owe acknowledgements for too long have vanished.
    fn look_at_debtors(&mut self, epoll: &Fd, node: &Node) {
        for id in self.debtors.due() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.is_cut() {
                continue;
            }
            match connection.wire.owed() {
                Owed::Nothing => {}
                Owed::Something => self.debtors.add(id),
                Owed::Lost => {
                    connection.wire.lose();
                    self.turn(epoll, node, id);
                }
            }
        }
    }

    /// The socket beside a fabric says something, or has ended: what has come is dealt with first.
    fn hear(&mut self, epoll: &Fd, node: &Node, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.wire.hear(epoll);
            self.turn(epoll, node, id);
        }
    }

    /// Links that ended: their senders are told.
    fn settle(&mut self, epoll: &Fd, node: &Node) {
        node.dispatch();
        let mut early = HashSet::new();
        for token in self.offers.ending() {
            let Some(&(id, slot)) = self.links.get(&token) else {
                early.insert(token);
                continue;
            };
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.link_ending(slot);
                self.turn(epoll, node, id);
            }
        }
        if !early.is_empty() {
            self.offers.withdraw(&early);
        }
        for (token, reason) in self.offers.ended() {
            let Some((id, slot)) = self.links.remove(&token) else { continue };
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.link_ended(slot, reason);
                self.turn(epoll, node, id);
            }
        }
        self.recall_windows(epoll, node);
    }

    /// Windows that their exporters want to be shut, who have rung, and those of links that are over.
    fn recall_windows(&mut self, epoll: &Fd, node: &Node) {
        if !self.rules.direct {
            return;
        }
        let with = self.connections.iter_mut().filter(|(_, connection)| connection.has_windows());
        let looked = with.map(|(&id, connection)| (id, connection.recall_windows(node)));
        let looked: Vec<_> = looked.collect();
        self.recall = looked.iter().filter_map(|&(_, next)| next).min();
        for (id, next) in looked {
            if next.is_some() {
                self.turn(epoll, node, id); // which sends what it has to say
            }
        }
    }

    /// Connections that wait for a receiver; whether one could go on.
    fn settle_stalled(&mut self, epoll: &Fd, node: &Node) -> bool {
        let mut any = false;
        for id in self.stalled.clone() {
            any |= self.turn(epoll, node, id);
        }
        any
    }
}
