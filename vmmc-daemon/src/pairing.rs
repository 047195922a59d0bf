//! Finding the two ends of one TCP connection among the sockets that clients pass.
//!
//! A client passes a descriptor of its socket; the daemon asks the kernel for its addresses, cookie and network
//! namespace ([`crate::examination`]), and closes the copy at once (a copy held keeps the peer from seeing
//! the close). Two sockets of one namespace whose addresses mirror each other are the two ends of one
//! connection: a live pair of addresses is unique there, and only established ones count. Of two namespaces that proves
//! nothing: [`crate::crossing`].
//!
//! The first end to come is side 0 and waits for `VMMC_PAIR_MS`; then it is told to stay with TCP. Both
//! get the same segment, made here. A pair is kept for [`Request::AttachSocket`] and for
//! statistics until both ends are forgotten or their processes gone, and then [`LINGER`] longer, for a
//! program that has just replaced itself (exec). While both ends' sockets are open after that, processes have them that
//! have told nobody, because they were forked by ones that had: it is kept for their [`Request::PumpSocket`].
//!
//! [`Request::AttachSocket`]: vmmc::control::message::Request::AttachSocket
//! [`Request::PumpSocket`]: vmmc::control::message::Request::PumpSocket

use crate::broker::{Broker, Fault};
use crate::carried::CarriedEnd;
use crate::client::{Client, OutFd};
use crate::counters::Counter;
use crate::crossing::OnTrial;
use crate::descriptors;
use crate::doorbell::{Button, Doorbell, Kept};
use crate::examination::Offer;
use crate::failpoint::{Failpoint, hit};
use crate::links::{read_u32, read_u64};
use crate::net::carry::Attempt;
use crate::receive::{Fds, Suspect};
use crate::sayings::of_client;
use crate::sock_diag::SockDiag;
use crate::spare::Spare;
use crate::tcp::{self, Endpoint, Examined};
use crate::timers::{Timer, TimerKey};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use vmmc::control::message::{
    CarriedWords, ConnectionInfo, ConnectionState, Event, KernelWords, NotPairedReason, QuotaKind,
    Refusal, StreamShape,
};
use vmmc::id::ClientId;
use vmmc::sys::{Fd, memfd, namespace};
use vmmc_ring::switch::mode;

/// A timer so late means that the daemon stood still (stopped, no processor): what came meanwhile is unread.
const STOOD_STILL: Duration = Duration::from_millis(100);
/// How long the first end then waits on: rounds of the loop, which give every client a turn, and a look at the second end by a
/// helper, on a machine that has just shown to be busy.
const AFTER_STANDSTILL: Duration = Duration::from_millis(500);
/// How long a pair without processes is kept.
const LINGER: Duration = Duration::from_secs(5);
/// How many connections that stayed plain are remembered, so that people see why.
const PLAIN_KEPT: usize = 256;
/// Longest control block of a segment, in bytes.
const MAX_CONTROL_LEN: u32 = 64 * 1024;

/// An end whose partner has not come.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) client: ClientId,
    pub(crate) uid: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) shape: StreamShape,
    pub(crate) timer: TimerKey,
    /// It is bound to an interface.
    pub(crate) is_bound: bool,
    /// Mirrored addresses were seen in another network namespace.
    pub(crate) elsewhere: bool,
    /// Its time was prolonged because the daemon had stood still.
    pub(crate) prolonged: bool,
    /// Its doorbell, of which the other end gets a button.
    pub(crate) bell: Option<Doorbell>,
    /// It is being found out whether an end in another namespace is its other one.
    pub(crate) on_trial: Option<OnTrial>,
}

/// Whose a socket is or was, for people.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) program: String,
}

/// A connection that stayed plain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plain {
    cookie: u64,
    client: ClientId,
    owner: Owner,
    /// Its addresses, where they are known.
    endpoint: Option<(SocketAddr, SocketAddr)>,
    reason: NotPairedReason,
}

/// One end of a pair.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) cookie: u64,
    pub(crate) endpoint: Endpoint,
    /// Who registered it; its quota is charged.
    pub(crate) uid: u32,
    pub(crate) first: ClientId,
    /// Who that is, for people: the process may be gone.
    pub(crate) owner: Owner,
    /// Processes that have it.
    pub(crate) holders: HashSet<ClientId>,
    /// The button of its doorbell, where that must be kept.
    pub(crate) bell: Option<Kept>,
}

/// An upgraded connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) segment: Arc<Fd>,
    pub(crate) shape: StreamShape,
    pub(crate) ring_len: u32,
    pub(crate) ends: [End; 2],
    pub(crate) linger: Option<TimerKey>,
}

impl Pair {
    /// Whether the ring part of a direction has ended for good, by the word of its sender.
    fn has_left(&self) -> bool {
        let modes = self.shape.words.iter().flatten().map(|words| words.mode);
        modes.map(|at| read_u32(&self.segment, u64::from(at))).any(|mode| mode == mode::ENDED)
    }
}

/// An end that a client has just offered, examined and charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    pub(crate) client: ClientId,
    pub(crate) uid: u32,
    pub(crate) cookie: u64,
    pub(crate) endpoint: Endpoint,
    pub(crate) shape: StreamShape,
}

/// All registered sockets.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    /// By cookie.
    pub(crate) waiting: HashMap<u64, Waiting>,
    /// Cookies of waiting ends by endpoint.
    by_endpoint: HashMap<Endpoint, u64>,
    /// Cookies of waiting ends by addresses alone, of all namespaces.
    by_address: HashMap<(SocketAddr, SocketAddr), HashSet<u64>>,
    pub(crate) pairs: HashMap<u64, Pair>,
    /// Pair and side of each paired cookie.
    pub(crate) paired: HashMap<u64, (u64, usize)>,
    /// Ends whose other end is another node's, by cookie.
    pub(crate) carried: HashMap<u64, CarriedEnd>,
    /// What carriers have, or are about to, and the user who pays for it.
    pub(crate) attempts: HashMap<u64, (u32, Weak<Attempt>)>,
    /// The latest that stayed plain.
    pub(crate) plain: VecDeque<Plain>,
    /// What memory there is for rings.
    pub(crate) spare: Spare,
    /// Who knows this namespace's sockets, if the kernel can be asked.
    diag: Option<SockDiag>,
}

impl Pairing {
    /// None yet.
    pub(crate) fn new() -> Pairing {
        let diag = SockDiag::new().inspect_err(|errno| {
            tracing::warn!(%errno, "no sock_diag: connections between two users stay plain");
        });
        Pairing { diag: diag.ok(), ..Pairing::default() }
    }

    pub(crate) fn insert_waiting(&mut self, cookie: u64, waiting: Waiting) {
        let endpoint = waiting.endpoint;
        self.by_endpoint.insert(endpoint, cookie);
        self.by_address.entry((endpoint.local, endpoint.remote)).or_default().insert(cookie);
        self.waiting.insert(cookie, waiting);
    }

    pub(crate) fn remove_waiting(&mut self, cookie: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&cookie)?;
        let endpoint = waiting.endpoint;
        if self.by_endpoint.get(&endpoint) == Some(&cookie) {
            self.by_endpoint.remove(&endpoint);
        }
        let address = (endpoint.local, endpoint.remote);
        if let Some(cookies) = self.by_address.get_mut(&address) {
            cookies.remove(&cookie);
            if cookies.is_empty() {
                self.by_address.remove(&address);
            }
        }
        Some(waiting)
    }

    pub(crate) fn insert_pair(&mut self, number: u64, pair: Pair) {
        for (side, end) in pair.ends.iter().enumerate() {
            self.paired.insert(end.cookie, (number, side));
        }
        self.pairs.insert(number, pair);
    }

    /// Whether both ends' sockets are open in some process, or one whose close we hear of first. Not where the kernel cannot
    /// be asked.
    fn is_held(&mut self, number: u64) -> bool {
        let (Some(pair), Some(diag)) = (self.pairs.get(&number), self.diag.as_mut()) else {
            return false;
        };
        pair.ends.iter().all(|end| {
            diag.of(&end.endpoint, end.cookie).flatten().is_some_and(|found| found.is_held)
        })
    }

    /// Whether bytes are on their way to or from other nodes, also of programs that have ended.
    pub(crate) fn has_attempts(&self) -> bool {
        self.attempts.values().any(|(_, attempt)| attempt.strong_count() > 0)
    }

    /// Whether a socket is here already, in whatever state.
    fn knows(&self, cookie: u64) -> bool {
        self.waiting.contains_key(&cookie)
            || self.paired.contains_key(&cookie)
            || self.carried.contains_key(&cookie)
    }

    /// What was known of the same connection before is out of date: a library offers one again that stayed plain.
    fn note_plain(&mut self, plain: Plain) {
        self.plain.retain(|earlier| {
            let same_place = earlier.endpoint.is_some() && earlier.endpoint == plain.endpoint;
            earlier.owner.pid != plain.owner.pid || earlier.cookie != plain.cookie && !same_place
        });
        if self.plain.len() >= PLAIN_KEPT {
            self.plain.pop_front();
        }
        self.plain.push_back(plain);
    }
}

/// Whether a segment of this shape can be made.
fn check_shape(shape: &StreamShape) -> Result<(), Fault> {
    let len = shape.control_len;
    if len == 0 || len > MAX_CONTROL_LEN || !len.is_multiple_of(4096) {
        return Err(Fault::new(format!("control_len {len} is not 1 to 16 pages")));
    }
    for at in shape.produced_at {
        if !at.is_multiple_of(8) || at.checked_add(8).is_none_or(|end| end > len) {
            return Err(Fault::new(format!("produced_at {at} is not an aligned word inside")));
        }
    }
    if let Some(words) = &shape.carried {
        let CarriedWords { consumed_at, attached_at, armed_data_at, armed_space_at, kernel } =
            *words;
        let small = [attached_at, armed_data_at, armed_space_at].into_iter().flatten();
        let places = small.map(|at| (at, 4)).chain(consumed_at.map(|at| (at, 8)));
        check_places(places, len)?;
        if let Some(kernel) = kernel {
            let KernelWords { seen_at, closed_at, space_wait_at, leave_at, fin_at, error_at } =
                kernel;
            let small = [seen_at, closed_at, space_wait_at, leave_at, fin_at, error_at];
            let small = small.into_iter().flatten();
            check_places(small.map(|at| (at, 4)), len)?;
        }
        if shape.bells == kernel.is_some() || kernel.is_some() && shape.words.is_none() {
            return Err(Fault::new(
                "a connection that can be carried needs doorbells, or the kernel's connection for them",
            ));
        }
    }
    for words in shape.words.iter().flatten() {
        let small = [words.request, words.mode].map(|at| (at, 4));
        let large = [
            words.prefix,
            words.end,
            words.final_bells,
            words.consumed,
            words.bells,
            words.owed,
            words.pumped,
            words.pumper,
        ];
        check_places(small.into_iter().chain(large.map(|at| (at, 8))), len)?;
    }
    Ok(())
}

/// Whether words of these sizes are at these places of a control part.
fn check_places(places: impl Iterator<Item = (u32, u32)>, len: u32) -> Result<(), Fault> {
    for (at, size) in places {
        if !at.is_multiple_of(size) || at.checked_add(size).is_none_or(|end| end > len) {
            return Err(Fault::new(format!("{at} is not the place of a word inside")));
        }
    }
    Ok(())
}

impl Broker {
    /// Who a client is, for people.
    fn owner(&self, id: ClientId) -> Owner {
        let Some(client) = self.clients.get(&id) else { return Owner::default() };
        let program = client.introduced().map_or_else(String::new, |it| it.program.clone());
        Owner { pid: client.peer.pid, uid: client.peer.uid, program }
    }

    /// Every end, as tools see it, with the user it belongs to. Pairs that no process has are not
    /// shown: they are kept for a program that replaces itself.
    pub(crate) fn connections(&self, shown: impl Fn(u32) -> bool) -> Vec<ConnectionInfo> {
        let mut all = Vec::new();
        let info = |client, owner: Owner, cookie, endpoint: Option<_>, state| {
            let text = |address: SocketAddr| address.to_string();
            let (local, remote) =
                endpoint.map(|(local, remote)| (text(local), text(remote))).unwrap_or_default();
            ConnectionInfo {
                cookie,
                client,
                pid: owner.pid,
                program: owner.program,
                alive: self.clients.contains_key(&client),
                local,
                remote,
                ring_bytes: 0,
                has_left: false,
                state,
            }
        };
        let addresses = |endpoint: &Endpoint| Some((endpoint.local, endpoint.remote));
        for (&cookie, waiting) in self.pairing.waiting.iter().filter(|(_, it)| shown(it.uid)) {
            let owner = self.owner(waiting.client);
            let endpoint = addresses(&waiting.endpoint);
            let info = info(waiting.client, owner, cookie, endpoint, ConnectionState::Waiting);
            all.push(info);
        }
        for pair in self.pairing.pairs.values().filter(|pair| pair.linger.is_none()) {
            let has_left = pair.has_left();
            let ends = pair.ends.iter().zip(pair.shape.produced_at);
            for (end, at) in ends.filter(|(end, _)| shown(end.uid)) {
                let (client, owner) = match end.holders.iter().min() {
                    Some(&holder) => (holder, self.owner(holder)),
                    None => (end.first, end.owner.clone()),
                };
                let endpoint = addresses(&end.endpoint);
                let mut info = info(client, owner, end.cookie, endpoint, ConnectionState::Paired);
                info.ring_bytes = read_u64(&pair.segment, u64::from(at));
                info.has_left = has_left;
                all.push(info);
            }
        }
        for (&cookie, end) in self.pairing.carried.iter().filter(|(_, end)| shown(end.uid)) {
            let state = match end.segment {
                Some(_) => ConnectionState::Carried,
                None => ConnectionState::Waiting,
            };
            let owner = self.owner(end.client);
            let mut info = info(end.client, owner, cookie, addresses(&end.endpoint), state);
            if let Some(segment) = &end.segment {
                info.ring_bytes = read_u64(segment, u64::from(end.sends_at()));
            }
            all.push(info);
        }
        for plain in self.pairing.plain.iter().filter(|plain| shown(plain.owner.uid)) {
            // Offered again, it waits or is upgraded now.
            if self.pairing.knows(plain.cookie) {
                continue;
            }
            let state = ConnectionState::Plain(plain.reason);
            let owner = plain.owner.clone();
            all.push(info(plain.client, owner, plain.cookie, plain.endpoint, state));
        }
        all
    }

    /// The daemon's counters, as tools see them. Bytes of pairs that no process has are counted as those
    /// of ended connections, which they are unless a program has just replaced itself.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let mut counters = self.counters.clone();
        for pair in self.pairing.pairs.values().filter(|pair| pair.linger.is_some()) {
            for at in pair.shape.produced_at {
                let produced = read_u64(&pair.segment, u64::from(at));
                counters.add_claimed(Counter::EndedRingBytes, produced);
            }
        }
        counters.all()
    }

    pub(crate) fn register_socket(
        &mut self,
        id: ClientId,
        said: u64,
        shape: StreamShape,
        fds: &mut Fds,
    ) -> Result<(), Fault> {
        check_shape(&shape)?;
        if fds.cut_short() {
            self.not_paired(id, said, None, NotPairedReason::Resources);
            fds.discard();
            return Ok(());
        }
        let socket =
            fds.take().ok_or_else(|| Fault::new("no socket came with its registration"))?;
        let bell = match shape.bells.then(|| fds.take()) {
            None => None,
            Some(None) => return Err(Fault::new("no doorbell came with a socket's registration")),
            Some(Some(passed)) => match Doorbell::of(passed) {
                Ok(bell) => Some(bell),
                // The daemon's shortage, not the client's fault.
                Err(Refusal::Internal { .. }) => {
                    self.not_paired(id, said, None, NotPairedReason::Resources);
                    return Ok(());
                }
                Err(refusal) => return Err(Fault::new(refusal.to_string())),
            },
        };
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        let uid = client.peer.uid;
        self.examine(Offer { client: id, uid, said, shape, bell }, socket);
        Ok(())
    }

    /// Goes on with an offer of which the socket has been looked at.
    pub(crate) fn examined(
        &mut self,
        offer: Offer,
        examined: Option<Examined>,
        mut socket: Option<Suspect>,
    ) {
        let Offer { client: id, uid, said, shape, bell } = offer;
        // The answer carries the number that the client knows the socket by.
        let Some(examined) = examined.filter(|it| it.cookie == said) else {
            return self.not_paired(id, said, None, NotPairedReason::NotEstablished);
        };
        let (cookie, endpoint) = (examined.cookie, examined.endpoint);
        if self.pairing.knows(cookie) {
            return self.not_paired(id, cookie, Some(endpoint), NotPairedReason::Conflict);
        }
        if self.quotas.take(uid, QuotaKind::Connections, 1).is_err() {
            return self.not_paired(id, cookie, Some(endpoint), NotPairedReason::Quota);
        }
        // The same addresses again: the earlier socket is closed, or it could not be.
        if let Some(&stale) = self.pairing.by_endpoint.get(&endpoint) {
            self.stop_waiting_socket(stale, NotPairedReason::NoPartner);
        }
        let offered = Offered { client: id, uid, cookie, endpoint, shape };
        let partner = self.pairing.by_endpoint.get(&endpoint.mirrored()).copied();
        let partner = partner.filter(|_| shape.carried.is_none() || !self.carries_own(&endpoint));
        if let Some(other) = partner {
            match self.is_one_connection(other, &offered, examined.is_bound) {
                Ok(true) => return self.pair(other, offered, bell),
                // Its connection is over, and these addresses are another's.
                Ok(false) => self.stop_waiting_socket(other, NotPairedReason::NoPartner),
                Err(reason) => {
                    self.quotas.give(uid, QuotaKind::Connections, 1);
                    self.not_paired(id, cookie, Some(endpoint), reason);
                    return self.stop_waiting_socket(other, reason);
                }
            }
        }
        if self.offer_to_node(&offered, bell.clone(), &mut socket) {
            return;
        }
        drop(socket);
        // A library that offers such connections leaves it to the daemon to know the nodes.
        let by_kernel = shape.carried.is_some_and(|words| words.kernel.is_some());
        if by_kernel && !self.may_be_here(&endpoint) {
            self.quotas.give(uid, QuotaKind::Connections, 1);
            return self.not_paired(id, cookie, Some(endpoint), NotPairedReason::Remote);
        }
        let mirrored = (endpoint.remote, endpoint.local);
        let others = self.pairing.by_address.get(&mirrored).cloned().unwrap_or_default();
        let elsewhere = !others.is_empty();
        for other in &others {
            if let Some(other) = self.pairing.waiting.get_mut(other) {
                other.elsewhere = true;
            }
        }
        let timer = self.timers.add(Instant::now() + self.options.pair, Timer::Pairing(cookie));
        let waiting = Waiting {
            client: id,
            uid,
            endpoint,
            shape,
            timer,
            is_bound: examined.is_bound,
            elsewhere,
            prolonged: false,
            bell,
            on_trial: None,
        };
        self.pairing.insert_waiting(cookie, waiting);
        if let Some(client) = self.clients.get_mut(&id) {
            client.sockets.insert(cookie);
        }
        for other in others {
            self.try_crossing(other, cookie);
        }
    }

    /// Whether a waiting end and one that is offered are the ends of one connection still, and not of two that had these addresses one after
    /// the other, or have them both: a socket that is bound to an interface stands beside one that is not. Two ends of
    /// one user are taken for one where the kernel cannot say, of two users they are not.
    fn is_one_connection(
        &mut self,
        other: u64,
        offered: &Offered,
        is_bound: bool,
    ) -> Result<bool, NotPairedReason> {
        let Some(waiting) = self.pairing.waiting.get(&other) else { return Ok(false) };
        let same_user = waiting.uid == offered.uid;
        let can_be_known = !waiting.is_bound && !is_bound;
        let diag = self.pairing.diag.as_mut().filter(|_| can_be_known);
        let live = diag.and_then(|diag| {
            Some(
                diag.lives(&waiting.endpoint, other)?
                    && diag.lives(&offered.endpoint, offered.cookie)?,
            )
        });
        match live {
            Some(live) => Ok(live),
            None if same_user => Ok(true),
            None => Err(NotPairedReason::Policy),
        }
    }

    /// Whether the other end may be on this machine, as far as that can be known without it.
    fn may_be_here(&self, endpoint: &Endpoint) -> bool {
        endpoint.is_within_machine()
            || self.crossings.is_some()
            || tcp::own_namespace() != Some(endpoint.namespace)
            || namespace::is_local(endpoint.remote)
    }

    /// Joins a waiting end with one that has just come.
    pub(crate) fn pair(&mut self, first: u64, second: Offered, bell: Option<Doorbell>) {
        let Offered { client, uid, cookie, endpoint, shape } = second;
        let Some(waiting) = self.pairing.waiting.get(&first) else { return };
        let refused = if !self.options.limits.pair_users.allows(waiting.uid, uid) {
            Some(NotPairedReason::Policy)
        } else if waiting.shape != shape {
            Some(NotPairedReason::OtherVersion)
        } else if shape.bells && waiting.bell.is_none() {
            Some(NotPairedReason::Resources)
        } else {
            None
        };
        let ring_len = self.options.ring_len;
        let made = match refused {
            Some(reason) => Err(reason),
            None if !self.pairing.spare.take(segment_len(&shape, ring_len)) => {
                Err(NotPairedReason::Resources)
            }
            None => make_segment(&shape, ring_len)
                .map_err(|errno| {
                    of_client(|untold| {
                        tracing::warn!(%errno, untold, "cannot make a connection's segment");
                    });
                    NotPairedReason::Resources
                })
                .and_then(|segment| {
                    let button = |bell: &Option<Doorbell>, ringer| {
                        bell.as_ref().map(|bell| bell.rung_button(ringer)).transpose()
                    };
                    let of_first = button(&waiting.bell, uid);
                    of_first
                        .and_then(|first| Ok((segment, first, button(&bell, waiting.uid)?)))
                        .map_err(|_| NotPairedReason::Resources)
                }),
        };
        let (segment, of_first, of_second) = match made {
            Ok((segment, first, second)) => (Arc::new(segment), first, second),
            Err(reason) => {
                self.quotas.give(uid, QuotaKind::Connections, 1);
                self.not_paired(client, cookie, Some(endpoint), reason);
                self.stop_waiting_socket(first, reason);
                return;
            }
        };
        let Some(waiting) = self.pairing.remove_waiting(first) else { return };
        self.timers.cancel(waiting.timer);
        let end = |cookie, endpoint, uid, holder, bell: &Option<Button>| End {
            cookie,
            endpoint,
            uid,
            first: holder,
            owner: self.owner(holder),
            holders: HashSet::from([holder]),
            bell: bell.clone().and_then(Button::kept),
        };
        let ends = [
            end(first, waiting.endpoint, waiting.uid, waiting.client, &of_first),
            end(cookie, endpoint, uid, client, &of_second),
        ];
        let number = self.next_id();
        tracing::debug!(local = %endpoint.local, remote = %endpoint.remote, "paired");
        let pair = Pair { segment: segment.clone(), shape, ring_len, ends, linger: None };
        self.pairing.insert_pair(number, pair);
        if let Some(client) = self.clients.get_mut(&client) {
            client.sockets.insert(cookie);
        }
        self.counters.add(Counter::Pairs);
        hit(Failpoint::PairMade);
        let paired = |cookie, side, peer| Event::Paired { cookie, side, ring_len, peer };
        // The other end may ring an end before that one is told of the pair: it hears of it when it has been told.
        let with = |others: Option<Button>, own: Option<Button>| {
            let mut fds = vec![OutFd::Same(segment.clone())];
            fds.extend(others.map(OutFd::Button));
            fds.extend(own.map(OutFd::Install));
            fds
        };
        let (others, own) = (of_second.clone(), of_first.clone());
        self.send(waiting.client, &paired(first, 0, client), with(others, own));
        hit(Failpoint::PairHalfSent);
        self.send(client, &paired(cookie, 1, waiting.client), with(of_first, of_second));
    }

    /// All buttons that are kept.
    pub(crate) fn kept_buttons(&self) -> impl Iterator<Item = &Kept> {
        let of_pairs = self.pairing.pairs.values().flat_map(|pair| &pair.ends);
        let of_links = self.clients.values().flat_map(|client| client.acquaintances.all());
        of_pairs.filter_map(|end| end.bell.as_ref()).chain(of_links.flat_map(|it| it.2))
    }

    pub(crate) fn not_paired(
        &mut self,
        id: ClientId,
        cookie: u64,
        endpoint: Option<Endpoint>,
        reason: NotPairedReason,
    ) {
        self.counters.not_paired(reason);
        let endpoint = endpoint.map(|it| (it.local, it.remote));
        tracing::debug!(client = id.0, ?endpoint, %reason, "not paired");
        let owner = self.owner(id);
        self.pairing.note_plain(Plain { cookie, client: id, owner, endpoint, reason });
        self.send(id, &Event::NotPaired { cookie, reason }, Vec::new());
    }

    pub(crate) fn stop_waiting_socket(&mut self, cookie: u64, reason: NotPairedReason) {
        let Some(waiting) = self.pairing.remove_waiting(cookie) else { return };
        self.timers.cancel(waiting.timer);
        self.quotas.give(waiting.uid, QuotaKind::Connections, 1);
        if let Some(client) = self.clients.get_mut(&waiting.client) {
            client.sockets.remove(&cookie);
        }
        self.not_paired(waiting.client, cookie, Some(waiting.endpoint), reason);
    }

    /// A waiting end's time is up, and has been for `late`.
    pub(crate) fn pairing_timed_out(&mut self, cookie: u64, late: Duration) {
        if late > STOOD_STILL
            && let Some(waiting) = self.pairing.waiting.get_mut(&cookie)
            && !waiting.prolonged
        {
            // Timers come before sockets: its partner's offer may be unread.
            waiting.prolonged = true;
            let due = Instant::now() + AFTER_STANDSTILL;
            waiting.timer = self.timers.add(due, Timer::Pairing(cookie));
            return;
        }
        if let Some(waiting) = self.pairing.waiting.get_mut(&cookie)
            && waiting.on_trial.is_some()
        {
            // The verdict comes, and ends the wait.
            waiting.timer =
                self.timers.add(Instant::now() + self.options.pair, Timer::Pairing(cookie));
            return;
        }
        let elsewhere = self.pairing.waiting.get(&cookie).is_some_and(|it| it.elsewhere);
        let reason =
            if elsewhere { NotPairedReason::OtherNamespace } else { NotPairedReason::NoPartner };
        self.stop_waiting_socket(cookie, reason);
    }

    /// Possession of the socket is the right to its segment, as it is the right to its bytes.
    pub(crate) fn attach_socket(&mut self, id: ClientId, said: u64, socket: Option<Suspect>) {
        let examined = socket.as_ref().and_then(Suspect::look).and_then(tcp::cookie);
        drop(socket);
        let found = examined
            .filter(|&cookie| cookie == said)
            .and_then(|cookie| self.pairing.paired.get(&cookie).copied());
        let Some((number, side)) = found else {
            return self.not_paired(id, said, None, NotPairedReason::Conflict);
        };
        let Some(uid) = self.clients.get(&id).map(|client| client.peer.uid) else { return };
        let owner = self.owner(id);
        let Some(pair) = self.pairing.pairs.get_mut(&number) else { return };
        let (other, peer) =
            pair.ends.get(1 - side).map_or((u32::MAX, ClientId(0)), |end| (end.uid, end.first));
        if !self.options.limits.pair_users.allows(uid, other) {
            return self.not_paired(id, said, None, NotPairedReason::Policy);
        }
        if let Some(end) = pair.ends.get_mut(side) {
            if end.holders.is_empty() {
                (end.first, end.owner) = (id, owner);
            }
            end.holders.insert(id);
        }
        if let Some(key) = pair.linger.take() {
            self.timers.cancel(key);
        }
        let ring_len = pair.ring_len;
        let paired = Event::Paired { cookie: said, side: side as u8, ring_len, peer };
        let segment = OutFd::Same(pair.segment.clone());
        if let Some(client) = self.clients.get_mut(&id) {
            client.sockets.insert(said);
        }
        self.counters.add(Counter::Attached);
        self.send(id, &paired, vec![segment]);
    }

    /// A client is done with a socket.
    pub(crate) fn forget_socket(&mut self, id: ClientId, cookie: u64) {
        self.examinations.take(id, cookie);
        let known = self.clients.get_mut(&id).is_some_and(|client| client.sockets.remove(&cookie));
        if known {
            self.release_socket(id, cookie, false);
        }
    }

    /// A client is gone, with all its sockets.
    pub(crate) fn forget_sockets(&mut self, id: ClientId, client: &Client) {
        self.examinations.forget_all(id);
        for &cookie in &client.sockets {
            self.release_socket(id, cookie, true);
        }
    }

    fn release_socket(&mut self, id: ClientId, cookie: u64, died: bool) {
        if self.pairing.waiting.get(&cookie).is_some_and(|waiting| waiting.client == id) {
            if let Some(waiting) = self.pairing.remove_waiting(cookie) {
                self.timers.cancel(waiting.timer);
                self.quotas.give(waiting.uid, QuotaKind::Connections, 1);
            }
            return;
        }
        if self.forget_carried(cookie) {
            return;
        }
        let Some(&(number, side)) = self.pairing.paired.get(&cookie) else { return };
        let Some(pair) = self.pairing.pairs.get_mut(&number) else { return };
        if let Some(end) = pair.ends.get_mut(side) {
            end.holders.remove(&id);
        }
        if pair.ends.iter().any(|end| !end.holders.is_empty()) || pair.linger.is_some() {
            return;
        }
        if died || self.pairing.is_held(number) {
            self.keep_pair(number);
        } else {
            self.forget_pair(number);
        }
    }

    fn keep_pair(&mut self, number: u64) {
        let Some(pair) = self.pairing.pairs.get_mut(&number) else { return };
        let due = Instant::now() + LINGER;
        pair.linger = Some(self.timers.add(due, Timer::PairLinger(number)));
    }

    /// A pair that nobody has, of those that told us, was kept for a while.
    pub(crate) fn pair_lingered(&mut self, number: u64) {
        if self.pairing.is_held(number) {
            self.keep_pair(number);
        } else {
            self.forget_pair(number);
        }
    }

    fn forget_pair(&mut self, number: u64) {
        let Some(pair) = self.pairing.pairs.remove(&number) else { return };
        for end in pair.ends {
            self.pairing.paired.remove(&end.cookie);
            self.quotas.give(end.uid, QuotaKind::Connections, 1);
            end.bell.iter().for_each(Kept::take_out);
        }
        self.count_ended(&pair.segment, &pair.shape);
    }

    /// Keeps the bytes of a connection that has ended for `shrimp stat`, which shows live ones one by one.
    pub(crate) fn count_ended(&mut self, segment: &Fd, shape: &StreamShape) {
        for at in shape.produced_at {
            self.counters.add_claimed(Counter::EndedRingBytes, read_u64(segment, u64::from(at)));
        }
    }
}

pub(crate) fn segment_len(shape: &StreamShape, ring_len: u32) -> u64 {
    u64::from(shape.control_len) + 2 * u64::from(ring_len)
}

fn make_segment(shape: &StreamShape, ring_len: u32) -> rustix::io::Result<Fd> {
    let segment = memfd::create("vmmc-stream", segment_len(shape, ring_len))?;
    memfd::seal(&segment)?;
    descriptors::enough(&segment).map_err(|_| rustix::io::Errno::MFILE)?;
    Ok(segment)
}
