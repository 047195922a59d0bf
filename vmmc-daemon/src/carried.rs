//! Ends of connections to other nodes, which this daemon stands in for ([`crate::net::carry`]).
//!
//! They are not handed over to another daemon: the links between the nodes end with this one, and the connections
//! with them.

use crate::broker::Broker;
use crate::client::OutFd;
use crate::counters::Counter;
use crate::doorbell::{Button, Doorbell};
use crate::net::Service;
use crate::net::carry::{Attempt, Carried, Carry, Outcome, Wanted, side_of};
use crate::pairing::{Offered, segment_len};
use crate::receive::{self, Suspect};
use crate::tcp::Endpoint;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use vmmc::control::message::{Event, NotPairedReason, QuotaKind, StreamShape};
use vmmc::id::ClientId;
use vmmc::sys::Fd;

/// How long a daemon that ends waits for sockets that somebody holds inside a call.
pub(crate) const LEAVING: Duration = Duration::from_secs(1);

/// One of them.
#[derive(Debug)]
pub(crate) struct CarriedEnd {
    /// The attempt.
    number: u64,
    pub(crate) client: ClientId,
    pub(crate) uid: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) shape: StreamShape,
    /// A button of the process's doorbell; `None` where doorbells are bytes of the kernel's connection.
    bell: Option<Button>,
    /// The segment; `None` while it is opened.
    pub(crate) segment: Option<Arc<Fd>>,
    attempt: Arc<Attempt>,
}

impl CarriedEnd {
    /// Where the segment says how much the process has put into its ring.
    pub(crate) fn sends_at(&self) -> u32 {
        let [first, second] = self.shape.produced_at;
        if side_of(&self.endpoint) == 0 { first } else { second }
    }
}

impl Broker {
    fn carry(&self) -> Option<&Arc<Carry>> {
        self.network.as_ref()?.carry.as_ref()
    }

    /// Whether connections to other nodes are carried at all.
    pub(crate) fn carries(&self) -> bool {
        self.carry().is_some()
    }

    /// Whether a connection is carried though both ends may be on this machine.
    pub(crate) fn carries_own(&self, endpoint: &Endpoint) -> bool {
        self.network.as_ref().is_some_and(Service::carries_own)
            && self.carry().is_some_and(|carry| carry.node_beyond(endpoint).is_some())
    }

    /// Whether an address is that of a node to which connections are carried.
    pub(crate) fn is_neighbour(&self, address: IpAddr) -> bool {
        self.carry().is_some_and(|carry| carry.neighbour(address).is_some())
    }

    /// Offers a connection to another node to be carried. False: it is not one that could be.
    pub(crate) fn offer_to_node(
        &mut self,
        offered: &Offered,
        bell: Option<Doorbell>,
        socket: &mut Option<Suspect>,
    ) -> bool {
        let Offered { client, uid, cookie, endpoint, shape } = *offered;
        let Some(words) = shape.carried else { return false };
        let Some(carry) = self.carry() else { return false };
        let Some(node) = carry.node_beyond(&endpoint) else { return false };
        let carry = carry.clone();
        if !self.pairing.spare.take(segment_len(&shape, self.options.ring_len)) {
            self.quotas.give(uid, QuotaKind::Connections, 1);
            self.not_paired(client, cookie, Some(endpoint), NotPairedReason::Resources);
            return true;
        }
        // For this daemon alone.
        let Ok(bell) = bell.map(|bell| bell.rung_button(bell.owner())).transpose() else {
            return false;
        };
        // A socket, by what was seen of it; its close may block, and is left to `receive::close`.
        let Some(socket) = socket.take().and_then(Suspect::keep) else { return false };
        let number = self.next_id();
        let attempt = Arc::new(Attempt::new(socket, uid));
        let end = CarriedEnd {
            number,
            client,
            uid,
            endpoint,
            shape,
            bell: bell.clone(),
            segment: None,
            attempt: attempt.clone(),
        };
        self.pairing.carried.insert(cookie, end);
        self.pairing.attempts.insert(number, (uid, Arc::downgrade(&attempt)));
        if let Some(client) = self.clients.get_mut(&client) {
            client.sockets.insert(cookie);
        }
        carry.open(Wanted {
            cookie,
            number,
            uid,
            endpoint,
            shape,
            words,
            ring_len: self.options.ring_len,
            node,
            bell,
            incarnation: self.incarnation,
            wait: self.options.pair,
            users: self.options.limits.pair_users,
            attempt,
        });
        true
    }

    /// Connections that were opened, or could not be, and those that are no more.
    pub(crate) fn hear_of_carried(&mut self) {
        let Some(carry) = self.carry() else { return };
        for outcome in carry.outcomes() {
            match outcome {
                Outcome::Opened { cookie, number, carried } => {
                    self.opened(cookie, number, carried);
                }
                Outcome::Gone { number } => {
                    if let Some((uid, _)) = self.pairing.attempts.remove(&number) {
                        self.quotas.give(uid, QuotaKind::Connections, 1);
                    }
                }
            }
        }
    }

    fn opened(&mut self, cookie: u64, number: u64, carried: Result<Carried, NotPairedReason>) {
        // Otherwise the process has closed it, and is gone perhaps: what was opened ends as it is dropped.
        let known = self.pairing.carried.get(&cookie).filter(|end| end.number == number);
        let Some(end) = known else { return };
        let (client, endpoint) = (end.client, end.endpoint);
        match carried {
            Ok(carried) => {
                tracing::debug!(local = %endpoint.local, remote = %endpoint.remote, "carried");
                self.give_carried(cookie, client, carried);
            }
            Err(reason) => self.stays_plain(cookie, client, endpoint, reason),
        }
    }

    /// One that was to be opened is not.
    fn stays_plain(
        &mut self,
        cookie: u64,
        client: ClientId,
        endpoint: Endpoint,
        reason: NotPairedReason,
    ) {
        self.forget_carried(cookie);
        if let Some(client) = self.clients.get_mut(&client) {
            client.sockets.remove(&cookie);
        }
        self.not_paired(client, cookie, Some(endpoint), reason);
    }

    /// Before this daemon ends: nobody would answer those that are still being opened.
    pub(crate) fn leave_opening(&mut self) {
        let opening = self.pairing.carried.iter().filter(|(_, end)| end.segment.is_none());
        let opening = opening.map(|(&cookie, end)| (cookie, end.client, end.endpoint));
        for (cookie, client, endpoint) in opening.collect::<Vec<_>>() {
            self.stays_plain(cookie, client, endpoint, NotPairedReason::Resources);
        }
    }

    /// Gives a process its end.
    fn give_carried(&mut self, cookie: u64, client: ClientId, mut carried: Carried) {
        let (peer, ring_len) = (ClientId(self.next_id()), self.options.ring_len);
        let Some(end) = self.pairing.carried.get_mut(&cookie) else { return };
        end.segment = Some(carried.memory.clone());
        let mut fds = vec![OutFd::Same(carried.memory.clone()), OutFd::Line(carried.bell.clone())];
        // Rung by the far end before it knows of the segment, it hears of it when it does.
        fds.extend(end.bell.clone().map(OutFd::Install));
        let paired = Event::Paired { cookie, side: carried.side, ring_len, peer };
        carried.told();
        // The process's end of the line must be the process's alone.
        drop(carried);
        self.counters.add(Counter::Carried);
        self.send(client, &paired, fds);
    }

    /// Ends all of them, and waits a moment until that is done: who sleeps is told by us, should the other daemon end as
    /// well.
    pub(crate) fn leave_carried(&self) {
        let attempts = self.pairing.attempts.values();
        let left: Vec<_> = attempts.filter_map(|(_, attempt)| attempt.upgrade()).collect();
        if !left.is_empty() {
            tracing::info!(connections = left.len(), "connections to other nodes end");
            left.iter().for_each(|attempt| attempt.leave());
            receive::settle(LEAVING);
        }
        if let Some(carry) = self.carry() {
            carry.guard.dismiss();
        }
    }

    /// Its process has no use of the end any more. Whether it was one of these. It counts as one of its user's as long
    /// as something of it is left here.
    pub(crate) fn forget_carried(&mut self, cookie: u64) -> bool {
        let Some(end) = self.pairing.carried.remove(&cookie) else { return false };
        match &end.segment {
            Some(segment) => {
                self.count_ended(segment, &end.shape);
                end.attempt.forget();
            }
            None => end.attempt.cancel(),
        }
        true
    }
}
