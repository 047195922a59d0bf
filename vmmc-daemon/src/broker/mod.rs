//! The loop: what is ready, whose it is, how much of it is done now.
//!
//! Each wake-up handles at most `EVENTS` sources and at most `PACKETS` packets of one client;
//! the rest is still ready next time (level-triggered), after everybody else had a turn.
//!
//! A client is never removed in the middle of something: it is *doomed*, and removed at the end of the round.
//! Removing one tells its peers, which may doom others; the round ends when nobody is left to
//! remove.

mod departure;
mod incoming;
mod outgoing;
mod time;

use crate::acquaintances::Partings;
use crate::carried::LEAVING;
use crate::client::Client;
use crate::counters::Counters;
use crate::doorbell::Kept;
use crate::examination::Examinations;
use crate::links::Links;
use crate::listener::Listener;
use crate::listings::Listings;
use crate::pairing::Pairing;
use crate::placement::Placement;
use crate::policy::{Limits, Quotas};
use crate::receive;
use crate::registry::Registry;
use crate::timers::Timers;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use vmmc::id::ClientId;
use vmmc::sys::Fd;

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
    /// How long one end of a connection waits for the other.
    pub pair: Duration,
    /// Cost of a wake-up, told to every client.
    pub wake_cost: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            limits: Limits::default(),
            ring_len: 512 * 1024,
            idle_exit: None,
            pair: Duration::from_secs(1),
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

pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> BrokerError {
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
    /// It takes over, by a copy of the socket.
    Successor,
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
    /// Outcomes of connections to other nodes.
    Carry,
    /// Verdicts on connections between namespaces.
    Crossings,
    /// Offered sockets that have been looked at.
    Examinations,
}

impl Source {
    fn token(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Source::Socket(id) => id.0 << 2,
            Source::Process(id) => id.0 << 2 | 1,
            Source::Listener => 2,
            Source::Stop => 3,
            Source::Carry => 1 << 2 | 3,
            Source::Crossings => 2 << 2 | 3,
            Source::Examinations => 3 << 2 | 3,
        })
    }

    fn of(token: u64) -> Source {
        match (token & 3, token >> 2) {
            (0, id) => Source::Socket(ClientId(id)),
            (1, id) => Source::Process(ClientId(id)),
            (2, _) => Source::Listener,
            (3, 1) => Source::Carry,
            (3, 2) => Source::Crossings,
            (3, 3) => Source::Examinations,
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
    /// Set where connections between network namespaces are paired.
    pub(crate) crossings: Option<crate::crossing::Crossings>,
    pub(crate) examinations: Examinations,
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
    pub(crate) listings: Listings,
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
        let examinations = Examinations::new().map_err(system("eventfd"))?;
        let token = Source::Examinations.token();
        epoll::add(&epoll, examinations.bell(), token, epoll::EventFlags::IN)
            .map_err(system("epoll_ctl"))?;
        let incarnation = listener.incarnation;
        let mut broker = Broker {
            epoll,
            listener,
            _stop: stop,
            quotas: Quotas::new(options.limits.clone()),
            options,
            network: None,
            crossings: None,
            examinations,
            clients: HashMap::new(),
            registry: Registry::default(),
            links: Links::new(),
            pairing: Pairing::new(),
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
            listings: Listings::default(),
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
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn set_network(&mut self, network: crate::net::Service) -> Result<(), BrokerError> {
        if let Some(carry) = &network.carry {
            let token = Source::Carry.token();
            epoll::add(&self.epoll, carry.bell(), token, epoll::EventFlags::IN)
                .map_err(system("epoll_ctl"))?;
        }
        self.network = Some(network);
        Ok(())
    }

    /// Hears when there are verdicts.
    pub(crate) fn watch_crossings(&self, bell: BorrowedFd<'_>) -> Result<(), BrokerError> {
        epoll::add(&self.epoll, bell, Source::Crossings.token(), epoll::EventFlags::IN)
            .map_err(system("epoll_ctl"))
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
            self.tell_waiting();
            if self.successor.is_some() || self.ending.is_some() {
                self.tell_all_waiting();
            }
            if let Some(id) = self.successor.take()
                && let Some(successor) = self.clients.get(&id).map(|client| client.peer.pid)
                && self.hand_over(id)
            {
                tracing::info!(successor, "handed over");
                self.kept_buttons().for_each(Kept::take_out);
                receive::settle(LEAVING);
                self.leave_carried();
                self.leave_crossings();
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
            let now = self.listings.is_due().then(Instant::now);
            let due = due.into_iter().chain([now]).flatten().min();
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
                    Source::Carry => self.hear_of_carried(),
                    Source::Crossings => self.hear_of_crossings(),
                    Source::Examinations => self.hear_of_examinations(),
                    Source::Process(id) => {
                        self.read_some(id, LAST_PACKETS);
                        self.doom(id, Doom::Gone);
                    }
                    Source::Socket(id) => {
                        if flags.contains(epoll::EventFlags::OUT) {
                            self.flush(id);
                        }
                        // What it has said is not waited for any more: that may take for ever.
                        if flags.contains(epoll::EventFlags::HUP)
                            && self
                                .clients
                                .get(&id)
                                .is_some_and(|client| client.is_held || client.is_asking)
                        {
                            self.doom(id, Doom::Gone);
                            continue;
                        }
                        let read =
                            epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                        if flags.intersects(read) {
                            self.read_some(id, PACKETS);
                            // Not before it has its answer: it polls for that on its processor.
                            if let Some(cpu) = self.cpu_of(id) {
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
        self.leave_opening();
        self.leave_carried();
        self.leave_crossings();
        self.leave_examinations();
        if ending == Ending::Stopped && !self.clients.is_empty() && self.store() {
            return Ending::Stored;
        }
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.flush(id);
        }
        self.listener.remove();
        // Should a close wait, of this or of what is unread, they hear all the same.
        for client in self.clients.values() {
            let _ = rustix::net::shutdown(&client.socket, rustix::net::Shutdown::Both);
        }
        ending
    }
}
