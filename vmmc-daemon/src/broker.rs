//! The loop: what is ready, whose it is, how much of it is done now.
//!
//! Each wake-up handles at most `EVENTS` sources and at most `PACKETS` packets of one client;
//! the rest is still ready next time (level-triggered), after everybody else had a turn.
//!
//! A client is never removed in the middle of something: it is *doomed*, and removed at the end of the round.
//! Removing one tells its peers, which may doom others; the round ends when nobody is left to
//! remove.

use crate::acquaintances::Partings;
use crate::client::{Client, Flushed, MAX_QUEUED, OutFd, Stage};
use crate::counters::{Counter, Counters};
use crate::failpoint::{Failpoint, hit};
use crate::links::Links;
use crate::listener::Listener;
use crate::pairing::Pairing;
use crate::placement::{self, Placement};
use crate::policy::{Limits, Quotas};
use crate::receive::{self, Fds, Received, receive};
use crate::registry::Registry;
use crate::timers::{Timer, Timers};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use vmmc::control::codec;
use vmmc::control::message::{CloseReason, Event, MAX_PACKET_LEN, QuotaKind, Request, Role};
use vmmc::id::{ClientId, ExportId, LinkId, PeerInfo, RequestId};
use vmmc::layout;
use vmmc::sys::{Fd, process, sched};

/// Ready sources handled per wake-up.
const EVENTS: usize = 64;
/// Packets of one client handled per turn.
const PACKETS: usize = 16;
/// Packets of a client that has died that are still handled: its last words.
const LAST_PACKETS: usize = 1024;
/// How long a connection may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// When to try again after running out of descriptors.
const SHORTAGE_RETRY: Duration = Duration::from_millis(20);

/// How a broker behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Quotas and policy.
    pub limits: Limits,
    /// Ring capacity of upgraded connections, bytes per direction; a power of two.
    pub ring_len: u32,
    /// End when nobody has been connected for so long.
    pub idle_exit: Option<Duration>,
    /// Cost of a wake-up, told to every client.
    pub wake_cost: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            limits: Limits::default(),
            ring_len: 512 * 1024,
            idle_exit: None,
            wake_cost: Duration::from_micros(30),
        }
    }
}

/// Why [`Broker::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Told to by its stop descriptor (a signal).
    Stopped,
    /// Told to by an administrator's request.
    Shutdown,
    /// Nobody was connected for the time given.
    Idle,
    /// As [`Ending::Stopped`]; the service manager keeps everything for the next one.
    Stored,
    /// A successor has everything.
    HandedOver {
        /// Its process id.
        successor: u32,
    },
}

/// Why a broker cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// A system call failed that never should.
    #[error("{call}: {errno}")]
    System {
        /// Which.
        call: &'static str,
        /// How.
        errno: Errno,
    },
}

fn system(call: &'static str) -> impl Fn(Errno) -> BrokerError {
    move |errno| BrokerError::System { call, errno }
}

/// Something a client did that the protocol does not allow.
#[derive(Debug)]
pub(crate) struct Fault(pub(crate) String);

impl Fault {
    pub(crate) fn new(what: impl Into<String>) -> Fault {
        Fault(what.into())
    }
}

/// Why a client is removed.
#[derive(Debug)]
pub(crate) enum Doom {
    /// It closed its socket, or died.
    Gone,
    /// It broke the protocol.
    Fault(Fault),
    /// It does not read.
    NotReading,
    /// It could not be sent to.
    Unsendable(Errno),
    /// It was refused and told so.
    Refused,
}

/// What an epoll event is about: a client's socket or process, or one of the fixed sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Socket(ClientId),
    Process(ClientId),
    Listener,
    Stop,
}

impl Source {
    fn token(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Source::Socket(id) => id.0 << 2,
            Source::Process(id) => id.0 << 2 | 1,
            Source::Listener => 2,
            Source::Stop => 3,
        })
    }

    fn of(token: u64) -> Source {
        match (token & 3, token >> 2) {
            (0, id) => Source::Socket(ClientId(id)),
            (1, id) => Source::Process(ClientId(id)),
            (2, _) => Source::Listener,
            _ => Source::Stop,
        }
    }
}

/// The broker.
#[derive(Debug)]
pub struct Broker {
    epoll: Fd,
    pub(crate) listener: Listener,
    /// Readable when it is time to end. Only epoll looks at it.
    _stop: Option<Fd>,
    pub(crate) options: Options,
    /// Set when the node is part of a cluster.
    pub(crate) network: Option<crate::net::Service>,
    pub(crate) clients: HashMap<ClientId, Client>,
    pub(crate) registry: Registry,
    pub(crate) links: Links,
    pub(crate) pairing: Pairing,
    pub(crate) quotas: Quotas,
    pub(crate) timers: Timers,
    pub(crate) partings: Partings,
    pub(crate) counters: Counters,
    pub(crate) incarnation: u64,
    pub(crate) last_id: u64,
    pub(crate) started: Instant,
    /// Effective user of this process.
    pub(crate) uid: u32,
    doomed: Vec<(ClientId, Doom)>,
    /// A client that has asked to take over.
    pub(crate) successor: Option<ClientId>,
    /// Set by a request that ends the loop.
    pub(crate) ending: Option<Ending>,
    accepting: bool,
    idle_timer: Option<crate::timers::TimerKey>,
    placement: Placement,
    /// Whether the client that is being served sleeps, or waits for, this processor.
    beside_caller: bool,
    /// Clients that have news waiting, and until when at most.
    deferred: Vec<ClientId>,
    deferred_until: Option<Instant>,
}

impl Broker {
    /// A broker that serves `listener`, and ends when `stop`, if given, is readable.
    ///
    /// # Errors
    /// When there is no epoll instance to be had.
    pub fn new(
        listener: Listener,
        options: Options,
        stop: Option<Fd>,
    ) -> Result<Broker, BrokerError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        let epoll = Fd::from(epoll);
        listener.adopt().map_err(system("listen"))?;
        epoll::add(&epoll, &listener.socket, Source::Listener.token(), epoll::EventFlags::IN)
            .map_err(system("epoll_ctl"))?;
        if let Some(stop) = &stop {
            epoll::add(&epoll, stop, Source::Stop.token(), epoll::EventFlags::IN)
                .map_err(system("epoll_ctl"))?;
        }
        let incarnation = listener.incarnation;
        let mut broker = Broker {
            epoll,
            listener,
            _stop: stop,
            quotas: Quotas::new(options.limits.clone()),
            options,
            network: None,
            clients: HashMap::new(),
            registry: Registry::default(),
            links: Links::new(),
            pairing: Pairing::default(),
            timers: Timers::default(),
            partings: Partings::default(),
            counters: Counters::default(),
            incarnation,
            // Numbers of different incarnations are apart, so that what is restored after a crash
            // can keep its own.
            last_id: (incarnation - 1) << 32,
            started: Instant::now(),
            uid: rustix::process::geteuid().as_raw(),
            doomed: Vec::new(),
            successor: None,
            ending: None,
            accepting: true,
            idle_timer: None,
            placement: Placement::fixed(),
            beside_caller: false,
            deferred: Vec::new(),
            deferred_until: None,
        };
        broker.watch_idleness();
        Ok(broker)
    }

    /// Makes this process the one that clients see as the socket's owner; after a fork.
    ///
    /// # Errors
    /// As listen(2).
    pub fn adopt(&self) -> Result<(), BrokerError> {
        self.listener.adopt().map_err(system("listen"))
    }

    /// Where clients find the socket, if it has a name of ours.
    #[must_use]
    pub fn path(&self) -> Option<&std::path::Path> {
        self.listener.path()
    }

    /// Makes the node part of a cluster.
    pub fn set_network(&mut self, network: crate::net::Service) {
        self.network = Some(network);
    }

    /// What is told to clients as the cost of a wake-up.
    pub fn set_wake_cost(&mut self, wake_cost: Duration) {
        self.options.wake_cost = wake_cost;
    }

    /// A number never given before.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Whether a number of before a crash can be kept: it is of an earlier incarnation.
    pub(crate) fn is_old_id(&self, id: u64) -> bool {
        id != 0 && id <= (self.incarnation - 1) << 32
    }

    /// Serves until something ends it.
    ///
    /// # Errors
    /// When epoll itself fails.
    pub fn run(mut self) -> Result<Ending, BrokerError> {
        let mut events = Vec::with_capacity(EVENTS);
        self.placement = Placement::following();
        self.feed_watchdog();
        loop {
            self.handle_timers();
            self.bury();
            if let Some(id) = self.successor.take()
                && let Some(successor) = self.clients.get(&id).map(|client| client.peer.pid)
                && self.hand_over(id)
            {
                tracing::info!(successor, "handed over");
                return Ok(Ending::HandedOver { successor });
            }
            if let Some(ending) = self.ending {
                if ending != Ending::Idle || self.hide_if_still_idle() {
                    return Ok(self.end(ending));
                }
                self.ending = None;
            }
            events.clear();
            let due = [self.timers.next_due(), self.placement.due(), self.deferred_until];
            let due = due.into_iter().flatten().min();
            let timeout = due.map(|due| {
                let left = due.saturating_duration_since(Instant::now());
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
            });
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(system("epoll_wait")(errno)),
            }
            self.send_deferred(events.is_empty());
            for event in &events {
                let flags = event.flags;
                match Source::of(event.data.u64()) {
                    Source::Stop => self.ending = Some(Ending::Stopped),
                    Source::Listener => self.accept_some(),
                    Source::Process(id) => {
                        self.read_some(id, LAST_PACKETS);
                        self.doom(id, Doom::Gone);
                    }
                    Source::Socket(id) => {
                        if flags.contains(epoll::EventFlags::OUT) {
                            self.flush(id);
                        }
                        let read =
                            epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                        if flags.intersects(read) {
                            let cpu = self.cpu_of(id);
                            self.beside_caller = cpu == Some(sched::current_cpu());
                            self.read_some(id, PACKETS);
                            self.beside_caller = false;
                            // Not before it has its answer: it polls for that on its processor.
                            if let Some(cpu) = cpu {
                                self.placement.request_from(cpu);
                            }
                        }
                    }
                }
            }
        }
    }

    fn end(mut self, ending: Ending) -> Ending {
        tracing::info!(?ending, clients = self.clients.len(), "ending");
        if ending == Ending::Stopped && !self.clients.is_empty() && self.store() {
            return Ending::Stored;
        }
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.flush(id);
        }
        self.listener.remove();
        ending
    }

    // ---- connections coming ----

    fn accept_some(&mut self) {
        for _ in 0..EVENTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listener.socket, flags) {
                Ok(socket) => {
                    if let Err(errno) = self.welcome_connection(socket.into()) {
                        tracing::debug!(%errno, "a connection was gone before it was accepted");
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    // Level-triggered: without a pause the loop would spin.
                    tracing::warn!(%errno, "cannot accept; trying again soon");
                    self.counters.add(Counter::DescriptorShortages);
                    self.set_accepting(false);
                    self.timers.add(Instant::now() + SHORTAGE_RETRY, Timer::Accept);
                    return;
                }
            }
        }
    }

    fn set_accepting(&mut self, accepting: bool) {
        if self.accepting != accepting {
            let flags = if accepting { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            let token = Source::Listener.token();
            if let Err(errno) = epoll::modify(&self.epoll, &self.listener.socket, token, flags) {
                tracing::error!(%errno, "cannot watch the listener");
            }
            self.accepting = accepting;
        }
    }

    fn welcome_connection(&mut self, socket: Fd) -> rustix::io::Result<()> {
        let credentials = process::peer_credentials(&socket)?;
        let groups = process::peer_groups(&socket)?;
        let pidfd = process::peer_pidfd(&socket, credentials.pid)?;
        let id = ClientId(self.next_id());
        let peer = PeerInfo {
            client: id,
            pid: credentials.pid,
            uid: credentials.uid,
            gid: credentials.gid,
        };
        if !self.quotas.take_socket(peer.uid) {
            tracing::warn!(pid = peer.pid, uid = peer.uid, "too many connections of one user");
            return Ok(());
        }
        let mut client = Client::new(socket, pidfd, peer, groups);
        self.await_hello(id, &mut client);
        self.watch_client(id, &mut client)?;
        self.clients.insert(id, client);
        self.watch_idleness();
        self.send_packet(id, codec::handshake().to_vec());
        Ok(())
    }

    /// Starts the clock for a hello that has not come.
    pub(crate) fn await_hello(&mut self, id: ClientId, client: &mut Client) {
        if client.introduced().is_none() {
            let due = Instant::now() + HELLO_TIMEOUT;
            client.nascent_timer = Some(self.timers.add(due, Timer::Nascent(id)));
        }
    }

    pub(crate) fn watch_client(
        &mut self,
        id: ClientId,
        client: &mut Client,
    ) -> rustix::io::Result<()> {
        let read = epoll::EventFlags::IN;
        epoll::add(&self.epoll, &client.socket, Source::Socket(id).token(), read)?;
        epoll::add(&self.epoll, &client.pidfd, Source::Process(id).token(), read)?;
        client.watched = (true, false);
        Ok(())
    }

    /// Gives a client that has just connected the number it had before a crash.
    pub(crate) fn renumber(&mut self, from: ClientId, to: ClientId) -> bool {
        if !self.is_old_id(to.0) || self.clients.contains_key(&to) {
            return false;
        }
        let Some(mut client) = self.clients.remove(&from) else { return false };
        client.peer.client = to;
        let read = epoll::EventFlags::IN;
        let _ = epoll::modify(&self.epoll, &client.socket, Source::Socket(to).token(), read);
        let _ = epoll::modify(&self.epoll, &client.pidfd, Source::Process(to).token(), read);
        client.watched = (true, false);
        self.clients.insert(to, client);
        self.watch_output(to);
        true
    }

    // ---- packets coming ----

    fn read_some(&mut self, id: ClientId, most: usize) {
        let mut buffer = [0u8; MAX_PACKET_LEN];
        let mut id = id;
        for _ in 0..most {
            let Some(client) = self.clients.get(&id) else { return };
            if client.doomed || !client.wants_reading() {
                return;
            }
            let Received { len, mut fds } = match receive(&client.socket, &mut buffer) {
                Ok(Some(received)) => received,
                Ok(None) | Err(Errno::CONNRESET | Errno::PIPE) => {
                    return self.doom(id, Doom::Gone);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MSGSIZE) => {
                    let fault = Fault::new("packet too long, or too many descriptors");
                    return self.doom(id, Doom::Fault(fault));
                }
                Err(errno) => return self.doom(id, Doom::Unsendable(errno)),
            };
            if fds.cut_short() {
                self.counters.add(Counter::DescriptorShortages);
                tracing::warn!("out of descriptors; raise LimitNOFILE (ulimit -n) of vmmcd");
            }
            let packet = buffer.get(..len).unwrap_or_default();
            match self.handle_packet(id, packet, &mut fds) {
                Ok(now) => id = now,
                Err(fault) => return self.doom(id, Doom::Fault(fault)),
            }
            if fds.remaining() > 0 {
                let fault = Fault::new("descriptors that the message does not call for");
                return self.doom(id, Doom::Fault(fault));
            }
        }
    }

    /// Handles one packet; the client's number afterwards (hello may change it).
    fn handle_packet(
        &mut self,
        id: ClientId,
        packet: &[u8],
        fds: &mut Fds,
    ) -> Result<ClientId, Fault> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(id) };
        match client.stage {
            Stage::Handshake => {
                if let Err(error) = codec::check_handshake(packet) {
                    if matches!(error, codec::CodecError::Version { .. }) {
                        self.counters.add(Counter::OtherVersion);
                    }
                    return Err(Fault::new(error.to_string()));
                }
                client.stage = Stage::Hello;
                Ok(id)
            }
            Stage::Leaving => Ok(id),
            Stage::Hello | Stage::Welcome(_) => {
                let introduced = client.introduced().is_some();
                let request: Request =
                    codec::decode(packet).map_err(|error| Fault::new(error.to_string()))?;
                tracing::trace!(client = id.0, ?request, "request");
                match request {
                    Request::Hello(hello) if !introduced => Ok(self.hello(id, hello, fds)),
                    Request::Hello(_) => Err(Fault::new("second hello")),
                    _ if !introduced => Err(Fault::new("request before hello")),
                    request => self.request(id, request, fds).map(|()| id),
                }
            }
        }
    }

    /// The processor that a client runs on, by its own word.
    fn cpu_of(&self, id: ClientId) -> Option<u32> {
        let attached = self.clients.get(&id)?.attached()?;
        let mut cpu = [0u8; 4];
        let read = rustix::io::pread(&attached.page, &mut cpu, layout::page::CPU as u64);
        (read == Ok(cpu.len())).then(|| u32::from_ne_bytes(cpu))
    }

    // ---- messages going ----

    /// Sends a message, now if the client has room, else as soon as it has.
    pub(crate) fn send(&mut self, id: ClientId, event: &Event, fds: Vec<OutFd>) {
        let Some(client) = self.clients.get_mut(&id).filter(|client| !client.doomed) else {
            return;
        };
        let blocked = client.is_blocked();
        // How links end is not in the receiver's hand, and there are no more such messages than
        // it has links: nobody is cut off for them.
        let counts = !matches!(event, Event::LinkClosed { .. } | Event::PeerGone { .. });
        if !client.push_event(event, fds) && counts {
            self.doom(id, Doom::NotReading);
        } else if !blocked {
            self.flush(id);
        }
    }

    /// Sends news to another client than the one that is being served. They go after the answer: if
    /// the caller shares our processor, when it has had its turn (see [`crate::placement`]).
    /// Whether they have been sent.
    pub(crate) fn send_news(&mut self, id: ClientId, event: &Event, fds: Vec<OutFd>) -> bool {
        let client = self.clients.get_mut(&id).filter(|client| !client.doomed);
        match client.filter(|client| self.beside_caller && client.queue.len() < MAX_QUEUED) {
            None => self.send(id, event, fds),
            Some(client) => {
                client.push_event(event, fds);
                self.deferred.push(id);
                self.deferred_until.get_or_insert_with(|| Instant::now() + placement::DEFER);
                return false;
            }
        }
        true
    }

    /// Sends what has waited long enough, or all if there is nothing else to do.
    fn send_deferred(&mut self, idle: bool) {
        if self.deferred_until.is_some_and(|until| idle || until <= Instant::now()) {
            self.deferred_until = None;
            for id in std::mem::take(&mut self.deferred) {
                self.flush(id);
                hit(Failpoint::LinkOpenedSent);
            }
        }
    }

    fn send_packet(&mut self, id: ClientId, packet: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.push(packet, Vec::new());
            self.flush(id);
        }
    }

    pub(crate) fn flush(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id).filter(|client| !client.doomed) else {
            return;
        };
        match client.flush() {
            Ok(Flushed::Shortage) => {
                self.counters.add(Counter::DescriptorShortages);
                if !std::mem::replace(&mut client.retry_due, true) {
                    self.timers.add(Instant::now() + SHORTAGE_RETRY, Timer::Flush(id));
                }
            }
            Ok(Flushed::All) if matches!(client.stage, Stage::Leaving) => {
                self.doom(id, Doom::Refused);
            }
            Ok(_) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => self.doom(id, Doom::Gone),
            Err(errno) => self.doom(id, Doom::Unsendable(errno)),
        }
        self.watch_output(id);
    }

    /// Lets epoll watch for what the client is waited for: room to send, requests to read.
    pub(crate) fn watch_output(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let wanted = (client.wants_reading(), !client.queue.is_empty() && !client.retry_due);
        if wanted == client.watched {
            return;
        }
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, wanted.0);
        flags.set(epoll::EventFlags::OUT, wanted.1);
        let token = Source::Socket(id).token();
        match epoll::modify(&self.epoll, &client.socket, token, flags) {
            Ok(()) => client.watched = wanted,
            Err(errno) => self.doom(id, Doom::Unsendable(errno)),
        }
    }

    // ---- clients going ----

    /// Marks a client for removal at the end of the round.
    pub(crate) fn doom(&mut self, id: ClientId, why: Doom) {
        if let Some(client) = self.clients.get_mut(&id)
            && !std::mem::replace(&mut client.doomed, true)
        {
            self.doomed.push((id, why));
        }
    }

    /// Removes the doomed.
    pub(crate) fn bury(&mut self) {
        while let Some((id, why)) = self.doomed.pop() {
            self.remove_client(id, &why);
        }
    }

    fn remove_client(&mut self, id: ClientId, why: &Doom) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        let PeerInfo { pid, uid, .. } = client.peer;
        let program = client.introduced().map_or("", |it| it.program.as_str()).to_owned();
        match why {
            Doom::Gone => tracing::debug!(client = id.0, pid, uid, program, "gone"),
            Doom::Refused => tracing::info!(client = id.0, pid, uid, "refused"),
            Doom::Fault(Fault(what)) => {
                self.counters.add(Counter::Malformed);
                tracing::warn!(client = id.0, pid, uid, program, what, "protocol broken; cut off");
            }
            Doom::NotReading => {
                self.counters.add(Counter::NotReading);
                tracing::warn!(client = id.0, pid, uid, program, "does not read; cut off");
            }
            Doom::Unsendable(errno) => {
                tracing::warn!(client = id.0, pid, uid, program, %errno, "cannot be served; cut off");
            }
        }
        // Closing the descriptors would do, unless somebody else holds a copy.
        let _ = epoll::delete(&self.epoll, &client.socket);
        let _ = epoll::delete(&self.epoll, &client.pidfd);
        if let Some(key) = client.nascent_timer.take() {
            self.timers.cancel(key);
        }
        if client.introduced().is_some_and(|it| it.role != Role::Tool) {
            self.counters.add(Counter::Deaths);
            self.quotas.give(uid, QuotaKind::Clients, 1);
        }
        for (_, pending) in client.pending.drain() {
            self.registry.stop_waiting(&pending.queue(), pending.place);
            if let Some(key) = pending.timer {
                self.timers.cancel(key);
            }
            self.quotas.give(uid, QuotaKind::Imports, 1);
        }
        for link in client.imports.drain() {
            self.close_link(link, Some((true, CloseReason::PeerDied)));
        }
        for export in client.exports.drain() {
            self.drop_export(export, pid, uid, CloseReason::PeerDied);
        }
        self.mourn(id, &client.acquaintances);
        self.forget_sockets(id, &client);
        self.quotas.give_socket(uid);
        self.watch_idleness();
        receive::close(client.socket);
    }

    /// Ends an export: its name, and its links, whose importers are told why.
    pub(crate) fn drop_export(&mut self, id: ExportId, pid: u32, uid: u32, reason: CloseReason) {
        self.registry.withdraw(id, pid);
        let Some(export) = self.registry.exports.remove(&id) else { return };
        for link in export.links {
            self.close_link(link, Some((false, reason)));
        }
        if let Some(owner) = self.clients.get_mut(&export.owner) {
            owner.exports.remove(&id);
        }
        self.quotas.give(uid, QuotaKind::Exports, 1);
        self.quotas.give(uid, QuotaKind::Bytes, export.len);
    }

    /// Ends a link, and tells the exporter (`true`) or the importer (`false`).
    pub(crate) fn close_link(&mut self, id: LinkId, tell: Option<(bool, CloseReason)>) {
        let Some(link) = self.links.remove(&id) else { return };
        if let Some(export) = self.registry.exports.get_mut(&link.export) {
            export.links.remove(&id);
        }
        if let Some(importer) = self.clients.get_mut(&link.importer) {
            importer.imports.remove(&id);
        }
        self.quotas.give(link.importer_uid, QuotaKind::Imports, 1);
        if let Some((to_exporter, reason)) = tell {
            let to = if to_exporter { link.exporter } else { link.importer };
            self.send_news(to, &Event::LinkClosed { link: id, reason }, Vec::new());
        }
        self.link_ended(link.importer, link.exporter);
    }

    // ---- time passing ----

    fn handle_timers(&mut self) {
        let now = Instant::now();
        self.placement.leave_if_due(now);
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Nascent(id) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.nascent_timer = None;
                        self.doom(id, Doom::Fault(Fault::new("no hello in time")));
                    }
                }
                Timer::Import(id, request) => self.import_timed_out(id, request),
                Timer::Pairing(cookie) => self.pairing_timed_out(cookie),
                Timer::PairLinger(pair) => self.pair_lingered(pair),
                Timer::Flush(id) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.retry_due = false;
                        self.flush(id);
                    }
                }
                Timer::Accept => self.set_accepting(true),
                Timer::Partings => self.end_acquaintances(),
                Timer::Watchdog => self.feed_watchdog(),
                Timer::Idle => {
                    self.idle_timer = None;
                    if self.clients.is_empty() {
                        self.ending = Some(Ending::Idle);
                    }
                }
            }
        }
    }

    /// Tells the service manager that the loop goes round, and when it will again.
    fn feed_watchdog(&mut self) {
        if let Some(interval) = crate::notify::watchdog_interval() {
            crate::notify::feed_watchdog();
            self.timers.add(Instant::now() + interval, Timer::Watchdog);
        }
    }

    /// Starts or stops the clock of idleness.
    pub(crate) fn watch_idleness(&mut self) {
        let Some(after) = self.options.idle_exit else { return };
        match (self.clients.is_empty(), self.idle_timer) {
            (true, None) => {
                self.idle_timer = Some(self.timers.add(Instant::now() + after, Timer::Idle));
            }
            (false, Some(key)) => {
                self.timers.cancel(key);
                self.idle_timer = None;
            }
            _ => {}
        }
    }

    /// Takes the socket's name away, and puts it back if a client had connected just before: such
    /// a client would be hung up on.
    fn hide_if_still_idle(&mut self) -> bool {
        let hidden = self.listener.hide();
        self.accept_some();
        let idle = self.clients.is_empty();
        if !idle && hidden {
            self.listener.show();
        }
        if idle && !hidden && self.listener.name.is_some() {
            tracing::warn!("the socket's name was gone already");
        }
        self.watch_idleness();
        idle
    }

    /// Refuses a request.
    pub(crate) fn refuse(
        &mut self,
        id: ClientId,
        request: RequestId,
        refusal: vmmc::control::message::Refusal,
    ) {
        self.counters.refused(&refusal);
        tracing::debug!(client = id.0, request = request.0, %refusal, "refused");
        self.send(id, &Event::Refused { request, refusal }, Vec::new());
    }
}
