//! Looking at the sockets of other users' clients, in threads apart.
//!
//! The kernel takes a socket's lock to tell its state and addresses. A process that is inside a call on the socket has the lock for as
//! long as it likes: its send may stand in a page fault that a file system of its own does not answer. So the loop does not look
//! at what another user's client offers; a helper does, which waits at that user's expense only ([`crate::helpers`]). Root and the daemon's
//! own user could stop the daemon anyway: what they offer is looked at on the spot.
//!
//! Until a socket has been looked at its offer is kept here. It ends without an answer when the client forgets the socket or is
//! gone, and with one when the daemon ends first.

use crate::broker::Broker;
use crate::doorbell::Doorbell;
use crate::net::mailbox::Mailbox;
use crate::receive::{self, Suspect};
use crate::tcp::{self, Examined};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use vmmc::control::message::{NotPairedReason, QuotaKind, StreamShape};
use vmmc::id::ClientId;

/// What comes with a socket that is offered.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) client: ClientId,
    pub(crate) uid: u32,
    /// The cookie, as the client says.
    pub(crate) said: u64,
    pub(crate) shape: StreamShape,
    pub(crate) bell: Option<Doorbell>,
}

/// What a helper saw.
#[derive(Debug)]
struct Seen {
    client: ClientId,
    uid: u32,
    said: u64,
    /// Of this offer and no earlier one.
    number: u64,
    examined: Option<Examined>,
    /// Kept for a connection that may be carried.
    socket: Option<Suspect>,
}

/// The offers of which the sockets are being looked at.
#[derive(Debug)]
pub(crate) struct Examinations {
    post: Arc<Mailbox<Seen>>,
    /// By client, and the cookie that it says; each with its number. Its user has a connection more until the helper is done.
    under_way: HashMap<ClientId, HashMap<u64, (u64, Offer)>>,
}

impl Examinations {
    /// None yet.
    ///
    /// # Errors
    /// As eventfd(2).
    pub(crate) fn new() -> rustix::io::Result<Examinations> {
        Ok(Examinations { post: Mailbox::new()?, under_way: HashMap::new() })
    }

    /// Readable when something has been seen.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.post.as_fd()
    }

    fn number(&self, client: ClientId, said: u64) -> Option<u64> {
        Some(self.under_way.get(&client)?.get(&said)?.0)
    }

    /// The offer of which the socket has been looked at, or that the client takes back.
    pub(crate) fn take(&mut self, client: ClientId, said: u64) -> Option<Offer> {
        let offers = self.under_way.get_mut(&client)?;
        let (_, offer) = offers.remove(&said)?;
        if offers.is_empty() {
            self.under_way.remove(&client);
        }
        Some(offer)
    }

    /// The client is gone.
    pub(crate) fn forget_all(&mut self, client: ClientId) {
        self.under_way.remove(&client);
    }
}

impl Broker {
    /// Has an offered socket looked at; [`Broker::examined`] goes on with it.
    pub(crate) fn examine(&mut self, offer: Offer, socket: Suspect) {
        let keeps = offer.shape.carried.is_some() && self.carries();
        let Offer { client, uid, said, .. } = offer;
        if receive::is_trusted(uid) {
            let examined = socket.look().and_then(tcp::examine);
            return self.examined(offer, examined, Some(socket).filter(|_| keeps));
        }
        let refused = if self.examinations.number(client, said).is_some() {
            Some(NotPairedReason::Conflict)
        } else if !socket.is_of_enough() {
            Some(NotPairedReason::Resources)
        } else if self.quotas.take(uid, QuotaKind::Connections, 1).is_err() {
            Some(NotPairedReason::Quota)
        } else {
            None
        };
        if let Some(reason) = refused {
            return self.not_paired(client, said, None, reason);
        }
        let (number, post) = (self.next_id(), self.examinations.post.clone());
        self.examinations.under_way.entry(client).or_default().insert(said, (number, offer));
        receive::apart(uid, move || {
            let examined = socket.look().and_then(tcp::examine);
            // A copy kept longer would keep the peer from seeing the close.
            let socket = match keeps {
                true => Some(socket),
                false => {
                    drop(socket.keep());
                    None
                }
            };
            post.put(Seen { client, uid, said, number, examined, socket });
        });
    }

    /// Sockets that have been looked at.
    pub(crate) fn hear_of_examinations(&mut self) {
        for Seen { client, uid, said, number, examined, socket } in self.examinations.post.take() {
            // Also of what nobody waits for any more: it had its descriptors until now.
            self.quotas.give(uid, QuotaKind::Connections, 1);
            if self.examinations.number(client, said) == Some(number)
                && let Some(offer) = self.examinations.take(client, said)
            {
                self.examined(offer, examined, socket);
            }
        }
    }

    /// Before this process ends: nobody comes for what is seen later.
    pub(crate) fn leave_examinations(&mut self) {
        self.hear_of_examinations();
        for (client, offers) in std::mem::take(&mut self.examinations.under_way) {
            for said in offers.into_keys() {
                self.not_paired(client, said, None, NotPairedReason::Resources);
            }
        }
    }
}
