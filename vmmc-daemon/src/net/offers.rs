//! Imports that were granted to processes of other nodes and that they have not taken up yet, and
//! news of links that ended.

use super::lock;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use vmmc::control::message::CloseReason;
use vmmc::control::network::{CAPABILITY_LIFE, Capability, Mask, Origin};
use vmmc::{Event, Import, Notification};

/// One of them.
#[derive(Debug)]
pub(crate) struct Offer {
    /// `None`: the exporter has withdrawn meanwhile.
    pub(crate) import: Option<Import>,
    /// For whom.
    pub(crate) origin: Origin,
    /// Hides the key to its pages.
    pub(crate) mask: Mask,
    pub(crate) watch: Watch,
}

/// What becomes of a link, before it is taken up too.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    /// Names the link in [`Offers::ended`] and [`Offers::ending`].
    pub(crate) token: u64,
    /// Its exporter withdraws.
    ending: Arc<AtomicBool>,
}

/// Shared by the threads of the network service.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    waiting: Mutex<HashMap<Capability, (Offer, Instant)>>,
    ended: Mutex<Vec<(u64, CloseReason)>>,
    ending: Mutex<Vec<u64>>,
    tokens: AtomicU64,
    /// A successor grants what is granted now.
    left: AtomicBool,
}

/// Why a capability opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoOffer {
    /// Never given, used already, or too old.
    Unknown,
    /// Given to another process.
    NotYours,
    /// Never given here, and perhaps by the successor.
    Elsewhere,
}

impl Offers {
    /// A successor has everything.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// A name for a link to be.
    pub(crate) fn watch(&self) -> Watch {
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        Watch { token, ending: Arc::default() }
    }

    /// A handler that says when that link ends, and has ended.
    pub(crate) fn on_end(
        self: &Arc<Self>,
        watch: Watch,
    ) -> impl FnMut(Notification) + Send + 'static {
        let offers = self.clone();
        move |notification| match notification.event {
            Event::Closed { reason } => lock(&offers.ended).push((watch.token, reason)),
            Event::Ending => {
                watch.ending.store(true, Ordering::Release);
                lock(&offers.ending).push(watch.token);
            }
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

    /// Ends the imports of these that nobody has taken up yet, because their exporters withdraw.
    pub(crate) fn withdraw(&self, tokens: &HashSet<u64>) {
        let mut waiting = lock(&self.waiting);
        let offers = waiting.values_mut().map(|(offer, _)| offer);
        let theirs = offers.filter(|offer| tokens.contains(&offer.watch.token));
        let imports: Vec<_> = theirs.map(|offer| offer.import.take()).collect();
        drop(waiting);
        drop(imports);
    }

    /// Keeps an import until its capability is shown.
    pub(crate) fn put(&self, capability: Capability, offer: Offer) {
        let end = Instant::now() + CAPABILITY_LIFE;
        self.put_until(end, capability, offer);
    }

    fn put_until(&self, end: Instant, capability: Capability, mut offer: Offer) {
        let mut waiting = lock(&self.waiting);
        // `withdraw` may have looked for it before it was here.
        let late = offer.watch.ending.load(Ordering::Acquire).then(|| offer.import.take());
        waiting.insert(capability, (offer, end));
        drop(waiting);
        drop(late);
    }

    /// What a capability opens. It is of no use afterwards.
    pub(crate) fn take(&self, capability: &Capability, origin: &Origin) -> Result<Offer, NoOffer> {
        let mut waiting = lock(&self.waiting);
        let unknown = || match self.left.load(Ordering::Acquire) {
            true => NoOffer::Elsewhere,
            false => NoOffer::Unknown,
        };
        let (offer, end) = waiting.get(capability).ok_or_else(unknown)?;
        if *end <= Instant::now() {
            return Err(NoOffer::Unknown); // given up soon
        }
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
            if let Some(import) = offer.import {
                import.abandon();
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_whose_time_is_over_opens_nothing() {
        let offers = Offers::default();
        let origin = Origin { node: "b".to_owned(), client: 1, pid: 1, uid: 1, gid: 1 };
        let (mask, watch) = (Mask(0), || offers.watch());
        let offer = || Offer { import: None, origin: origin.clone(), mask, watch: watch() };
        let (late, good) = (Capability([1; 16]), Capability([2; 16]));
        offers.put_until(Instant::now(), late, offer());
        offers.put(good, offer());
        assert_eq!(offers.take(&late, &origin).map(drop), Err(NoOffer::Unknown));
        assert!(offers.take(&good, &origin).is_ok());
        assert_eq!(offers.expire(), None, "nothing is left");
    }
}
