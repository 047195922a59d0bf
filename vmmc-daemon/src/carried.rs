//! Ends of connections to other nodes, which this daemon stands in for ([`crate::net::carry`]).
//!
//! They are not handed over to another daemon: the links between the nodes end with this one, and the connections
//! with them.

use crate::broker::Broker;
use crate::client::OutFd;
use crate::counters::Counter;
use crate::net::carry::{Carried, Carry, Outcome, Wanted, side_of};
use crate::pairing::Offered;
use crate::receive::Suspect;
use crate::tcp::Endpoint;
use std::net::IpAddr;
use std::sync::Arc;
use vmmc::control::message::{Event, QuotaKind, StreamShape};
use vmmc::id::ClientId;
use vmmc::sys::Fd;

/// One of them.
#[derive(Debug)]
pub(crate) struct CarriedEnd {
    pub(crate) client: ClientId,
    pub(crate) uid: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) shape: StreamShape,
    /// The process's doorbell.
    bell: Arc<Fd>,
    /// The segment; `None` while it is opened.
    pub(crate) segment: Option<Arc<Fd>>,
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

    /// Whether an address is that of a node to which connections are carried.
    pub(crate) fn is_neighbour(&self, address: IpAddr) -> bool {
        self.carry().is_some_and(|carry| carry.neighbour(address).is_some())
    }

    /// Offers a connection to another node to be carried. False: it is not one that could be.
    pub(crate) fn offer_to_node(
        &mut self,
        offered: &Offered,
        bell: Option<&Arc<Fd>>,
        socket: &mut Option<Suspect>,
    ) -> bool {
        let Offered { client, uid, cookie, endpoint, shape } = *offered;
        let (Some(words), Some(bell)) = (shape.carried, bell) else { return false };
        let Some(carry) = self.carry() else { return false };
        let Some(node) = carry.neighbour(endpoint.remote.ip()) else { return false };
        let (carry, node) = (carry.clone(), node.to_owned());
        // A socket, by what was seen of it; its close may block, and is left to `receive::close`.
        let Some(socket) = socket.take().and_then(Suspect::keep) else { return false };
        let wanted = Wanted {
            cookie,
            client,
            uid,
            endpoint,
            shape,
            words,
            ring_len: self.options.ring_len,
            node,
            socket: Some(socket),
            bell: bell.clone(),
            wait: self.options.pair,
            users: self.options.limits.pair_users,
        };
        if let Err(reason) = carry.open(wanted) {
            self.quotas.give(uid, QuotaKind::Connections, 1);
            self.not_paired(client, cookie, Some(endpoint), reason);
            return true;
        }
        let end = CarriedEnd { client, uid, endpoint, shape, bell: bell.clone(), segment: None };
        self.pairing.carried.insert(cookie, end);
        if let Some(client) = self.clients.get_mut(&client) {
            client.sockets.insert(cookie);
        }
        true
    }

    /// Connections that were opened, or could not be.
    pub(crate) fn hear_of_carried(&mut self) {
        let Some(carry) = self.carry() else { return };
        for Outcome { cookie, client, carried } in carry.outcomes() {
            let known = self.pairing.carried.get(&cookie).filter(|end| end.client == client);
            // Otherwise the process has closed it, and is gone perhaps: what was opened ends as it is dropped.
            let Some(endpoint) = known.map(|end| end.endpoint) else { continue };
            match carried {
                Ok(carried) => {
                    tracing::debug!(local = %endpoint.local, remote = %endpoint.remote, "carried");
                    self.give_carried(cookie, client, carried);
                }
                Err(reason) => {
                    self.forget_carried(cookie);
                    if let Some(client) = self.clients.get_mut(&client) {
                        client.sockets.remove(&cookie);
                    }
                    self.not_paired(client, cookie, Some(endpoint), reason);
                }
            }
        }
    }

    /// Gives a process its end.
    fn give_carried(&mut self, cookie: u64, client: ClientId, mut carried: Carried) {
        let (peer, ring_len) = (ClientId(self.next_id()), self.options.ring_len);
        let Some(end) = self.pairing.carried.get_mut(&cookie) else { return };
        end.segment = Some(carried.memory.clone());
        let fds = vec![
            OutFd::Same(carried.memory.clone()),
            OutFd::Doorbell(carried.bell.clone()),
            // Rung by the far end before it knows of the segment it finds nothing, and sleeps again.
            OutFd::Ring(end.bell.clone()),
        ];
        let paired = Event::Paired { cookie, side: carried.side, ring_len, peer };
        carried.told();
        // The doorbell's write ends must be the process's alone.
        drop(carried);
        self.counters.add(Counter::Carried);
        self.send(client, &paired, fds);
    }

    /// Nobody has the end any more, as far as the broker knows. Whether it was one of these.
    pub(crate) fn forget_carried(&mut self, cookie: u64) -> bool {
        let Some(end) = self.pairing.carried.remove(&cookie) else { return false };
        self.quotas.give(end.uid, QuotaKind::Connections, 1);
        if let Some(segment) = &end.segment {
            self.count_ended(segment, &end.shape);
        }
        true
    }
}
