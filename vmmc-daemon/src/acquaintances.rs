//! Which processes know each other.
//!
//! What it takes to wake another process (its page, a doorbell) is sent with the first link between
//! the two, and not again. A client keeps it until it is told [`Event::PeerGone`]; so *the daemon*
//! decides when it is forgotten, and says so in the same stream of messages in which links are
//! opened. Were it the client's affair, a link that counts on an acquaintance could cross the
//! message that ends it.
//!
//! An acquaintance lasts as long as there are links, and [`LINGER`] longer, because programs that have
//! had a link make another.
//!
//! [`Event::PeerGone`]: vmmc::control::message::Event::PeerGone

use crate::broker::Broker;
use crate::doorbell::Kept;
use crate::timers::Timer;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use vmmc::control::message::Event;
use vmmc::id::ClientId;

/// How long two processes without a link remember each other.
const LINGER: Duration = Duration::from_secs(1);
/// Buttons of an acquaintance that are kept: who asks for more has lost the earlier ones.
const MOST_BUTTONS: usize = 4;

/// What one client knows of another.
#[derive(Debug)]
struct Acquaintance {
    /// Links between the two, in either direction.
    links: u32,
    /// Whether it has what it takes to wake the other.
    introduced: bool,
    /// The buttons that it has of the other's doorbell, where those must be kept: more than one if it said that it had none, which may
    /// have crossed the next.
    buttons: Vec<Kept>,
    /// When the last link ended.
    parted: Instant,
}

/// Whom one client knows. The relation is symmetric.
#[derive(Debug, Default)]
pub(crate) struct Acquaintances {
    known: HashMap<ClientId, Acquaintance>,
}

impl Acquaintances {
    /// Whether it has been introduced.
    pub(crate) fn knows(&self, other: ClientId) -> bool {
        self.known.get(&other).is_some_and(|it| it.introduced)
    }

    /// All of them, whether they have been introduced, and what is kept for that.
    pub(crate) fn all(&self) -> impl Iterator<Item = (ClientId, bool, &[Kept])> + '_ {
        self.known.iter().map(|(&client, it)| (client, it.introduced, &it.buttons[..]))
    }

    fn entry(&mut self, other: ClientId) -> &mut Acquaintance {
        let parted = Instant::now();
        self.known.entry(other).or_insert(Acquaintance {
            links: 0,
            introduced: false,
            buttons: Vec::new(),
            parted,
        })
    }

    /// As the predecessor had it, without a link yet.
    pub(crate) fn inherit(&mut self, other: ClientId, introduced: bool, buttons: Vec<Kept>) {
        let it = self.entry(other);
        (it.introduced, it.buttons) = (introduced, buttons);
    }

    /// There is one more link.
    pub(crate) fn link(&mut self, other: ClientId) {
        self.entry(other).links += 1;
    }

    /// There is one link less. Whether it was the last.
    fn part(&mut self, other: ClientId) -> bool {
        let Some(it) = self.known.get_mut(&other) else { return false };
        it.links = it.links.saturating_sub(1);
        it.parted = Instant::now();
        it.links == 0
    }

    /// Since when there is no link; `None` while there is one.
    fn parted(&self, other: ClientId) -> Option<Instant> {
        self.known.get(&other).filter(|it| it.links == 0).map(|it| it.parted)
    }
}

/// Pairs of clients that may have no link any more, each once, by the time when to look.
#[derive(Debug, Default)]
pub(crate) struct Partings {
    due: VecDeque<(Instant, (ClientId, ClientId))>,
    /// Those in `due`.
    listed: std::collections::HashSet<(ClientId, ClientId)>,
}

impl Partings {
    fn add(&mut self, due: Instant, pair: (ClientId, ClientId)) {
        if self.listed.insert(pair) {
            self.due.push_back((due, pair));
        }
    }

    fn pop(&mut self, now: Instant) -> Option<(ClientId, ClientId)> {
        let (_, pair) = self.due.pop_front_if(|(due, _)| *due <= now)?;
        self.listed.remove(&pair);
        Some(pair)
    }
}

impl Broker {
    /// Two clients have one more link, and have been introduced: each to the other, with what is kept for that if it was just now.
    pub(crate) fn link_made(&mut self, ends: [(ClientId, ClientId, Option<Kept>); 2]) {
        for (who, whom, button) in ends {
            if let Some(client) = self.clients.get_mut(&who) {
                client.acquaintances.link(whom);
                let it = client.acquaintances.entry(whom);
                it.introduced = true;
                it.buttons.extend(button);
                if it.buttons.len() > MOST_BUTTONS {
                    it.buttons.remove(0).take_out();
                }
            }
        }
    }

    /// Two clients have one link less.
    pub(crate) fn link_ended(&mut self, one: ClientId, other: ClientId) {
        let mut last = false;
        for (who, whom) in [(one, other), (other, one)] {
            let client = self.clients.get_mut(&who);
            last |= client.is_some_and(|client| client.acquaintances.part(whom));
        }
        if last {
            self.watch_parting(one, other);
        }
    }

    /// Looks later whether two clients have met again.
    pub(crate) fn watch_parting(&mut self, one: ClientId, other: ClientId) {
        let due = Instant::now() + LINGER;
        if self.partings.due.is_empty() {
            self.timers.add(due, Timer::Partings);
        }
        self.partings.add(due, (one.min(other), one.max(other)));
    }

    /// Ends the acquaintances whose time has come.
    pub(crate) fn end_acquaintances(&mut self) {
        let now = Instant::now();
        while let Some((one, other)) = self.partings.pop(now) {
            let client = self.clients.get(&one);
            match client.and_then(|client| client.acquaintances.parted(other)) {
                Some(parted) if parted + LINGER <= now => {
                    self.tell_gone(one, other);
                    self.tell_gone(other, one);
                }
                Some(parted) => self.partings.add(parted + LINGER, (one, other)),
                // A new link, or one of them is dead.
                None => {}
            }
        }
        if let Some((due, _)) = self.partings.due.front() {
            self.timers.add(*due, Timer::Partings);
        }
    }

    /// One client need not know another any more.
    fn tell_gone(&mut self, id: ClientId, gone: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(it) = client.acquaintances.known.remove(&gone) else { return };
        it.buttons.iter().for_each(Kept::take_out);
        if it.introduced {
            self.send(id, &Event::PeerGone { client: gone }, Vec::new());
        }
    }

    /// A client does not have what it was given.
    pub(crate) fn introduce_again(&mut self, id: ClientId, other: ClientId) {
        if let Some(client) = self.clients.get_mut(&id)
            && let Some(it) = client.acquaintances.known.get_mut(&other)
        {
            it.introduced = false;
        }
    }

    /// A client that is removed is forgotten by all who know it, and rings none of them.
    pub(crate) fn mourn(&mut self, gone: ClientId, acquaintances: &mut Acquaintances) {
        for (other, it) in acquaintances.known.drain() {
            it.buttons.iter().for_each(Kept::take_out);
            self.tell_gone(other, gone);
        }
    }
}
