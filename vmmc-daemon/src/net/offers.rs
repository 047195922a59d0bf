//! Imports that were granted to processes of other nodes and that they have not taken up yet, and
//! news of links that ended.

use super::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use vmmc::control::message::CloseReason;
use vmmc::control::network::{CAPABILITY_LIFE_SECS, Capability, Origin};
use vmmc::{Event, Import, Notification};

/// One of them.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) import: Import,
    /// For whom.
    pub(crate) origin: Origin,
    /// Names the link in [`Offers::ended`].
    pub(crate) token: u64,
}

/// Shared by the threads of the network service.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    waiting: Mutex<HashMap<Capability, (Offer, Instant)>>,
    ended: Mutex<Vec<(u64, CloseReason)>>,
    ending: Mutex<Vec<u64>>,
    tokens: std::sync::atomic::AtomicU64,
}

/// Why a capability opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoOffer {
    /// Never given, used already, or too old.
    Unknown,
    /// Given to another process.
    NotYours,
}

impl Offers {
    /// A name for a link to be.
    pub(crate) fn token(&self) -> u64 {
        self.tokens.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    /// A handler that says when the link of that name ends, and has ended.
    pub(crate) fn on_end(
        self: &std::sync::Arc<Self>,
        token: u64,
    ) -> impl FnMut(Notification) + Send + 'static {
        let offers = self.clone();
        move |notification| match notification.event {
            Event::Closed { reason } => lock(&offers.ended).push((token, reason)),
            Event::Ending => lock(&offers.ending).push(token),
            _ => {}
        }
    }

    /// Links that ended since this was last asked.
    pub(crate) fn ended(&self) -> Vec<(u64, CloseReason)> {
        std::mem::take(&mut lock(&self.ended))
    }

    /// Links whose exporters withdraw, since this was last asked.
    pub(crate) fn ending(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.ending))
    }

    /// Gives one up that nobody has taken, because its exporter withdraws.
    pub(crate) fn withdraw(&self, token: u64) {
        let mut waiting = lock(&self.waiting);
        let of = waiting.iter().find(|(_, (offer, _))| offer.token == token).map(|(it, _)| *it);
        let offer = of.and_then(|capability| waiting.remove(&capability));
        drop(waiting);
        drop(offer); // which ends the import
    }

    /// Keeps an import until its capability is shown.
    pub(crate) fn put(&self, capability: Capability, offer: Offer) {
        let end = Instant::now() + Duration::from_secs(CAPABILITY_LIFE_SECS);
        lock(&self.waiting).insert(capability, (offer, end));
    }

    /// What a capability opens. It is of no use afterwards.
    pub(crate) fn take(&self, capability: &Capability, origin: &Origin) -> Result<Offer, NoOffer> {
        let mut waiting = lock(&self.waiting);
        let (offer, _) = waiting.get(capability).ok_or(NoOffer::Unknown)?;
        if (&offer.origin.node, offer.origin.pid, offer.origin.uid)
            != (&origin.node, origin.pid, origin.uid)
        {
            return Err(NoOffer::NotYours);
        }
        waiting.remove(capability).map(|(offer, _)| offer).ok_or(NoOffer::Unknown)
    }

    /// Gives up those that nobody took; when the next one is due.
    pub(crate) fn expire(&self) -> Option<Instant> {
        let now = Instant::now();
        let (mut late, next) = {
            let mut waiting = lock(&self.waiting);
            let due: Vec<Capability> =
                waiting.iter().filter(|(_, (_, end))| *end <= now).map(|(it, _)| *it).collect();
            let late: Vec<Offer> =
                due.iter().filter_map(|it| waiting.remove(it)).map(|(offer, _)| offer).collect();
            (late, waiting.values().map(|(_, end)| *end).min())
        };
        for offer in late.drain(..) {
            tracing::info!(node = offer.origin.node, pid = offer.origin.pid, "import not taken up");
            offer.import.abandon();
        }
        next
    }
}
