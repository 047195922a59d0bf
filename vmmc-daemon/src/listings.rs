//! Whose turn it is to be told what there is.
//!
//! A listing takes time that grows with what all have: one of each user is made in a round of the loop, so that a user who asks and
//! asks takes turns with everybody else's requests. The requests behind one that waits for its turn wait as well.

use crate::broker::Broker;
use std::collections::{HashSet, VecDeque};
use vmmc::id::{ClientId, RequestId};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Exports,
    Snapshot,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// In order; of each client one at most.
    waiting: VecDeque<(ClientId, RequestId, What)>,
    /// Users who have had theirs in this round.
    served: HashSet<u32>,
}

impl Listings {
    /// Whether somebody waits.
    pub(crate) fn is_due(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Broker {
    /// A client asks.
    pub(crate) fn ask(&mut self, id: ClientId, request: RequestId, what: What) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if self.listings.served.insert(client.peer.uid) {
            return self.tell(id, request, what);
        }
        client.is_asking = true;
        self.listings.waiting.push_back((id, request, what));
        self.watch_output(id);
    }

    /// A round begins.
    pub(crate) fn tell_waiting(&mut self) {
        self.listings.served.clear();
        for (id, request, what) in std::mem::take(&mut self.listings.waiting) {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            if self.listings.served.insert(client.peer.uid) {
                client.is_asking = false;
                self.tell(id, request, what);
                self.watch_output(id);
            } else {
                self.listings.waiting.push_back((id, request, what));
            }
        }
    }

    /// All of them, before somebody else goes on.
    pub(crate) fn tell_all_waiting(&mut self) {
        while self.listings.is_due() {
            self.tell_waiting();
        }
    }

    fn tell(&mut self, id: ClientId, request: RequestId, what: What) {
        match what {
            What::Exports => self.list(id, request),
            What::Snapshot => self.snapshot(id, request),
        }
    }
}
