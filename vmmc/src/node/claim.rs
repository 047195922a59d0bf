//! After a crash of the daemon: which incoming link an importer has claimed again.
//!
//! Numbers prove nothing: whoever is faster may be given the number of another's link by a daemon that
//! knows neither. What the two ends of a link have, and nobody else, is its segment. So a claim is
//! good if it comes with the very segment, whatever its number; the link goes on under the
//! number that the daemon knows it by now.

use super::NodeInner;
use super::events::Opened;
use crate::control::message::CloseReason;
use crate::id::LinkId;
use crate::sync::Ordering;
use crate::sys::{Fd, memfd};

/// Where a link waits for its claim whose number was given to another: no daemon counts so far.
fn aside(number: LinkId) -> LinkId {
    LinkId(!number.0)
}

impl NodeInner {
    /// Whether a link that has been opened is one that was there before the crash; it lives on then. Else
    /// its number is free afterwards.
    pub(super) fn claim(&self, opened: &Opened, segment: &Fd) -> bool {
        let mut tables = self.tables.lock();
        // Only after a crash there is anything to be claimed, or a number that is known already.
        if self.claims_end().is_none() && !tables.incoming.contains_key(&opened.link) {
            return false;
        }
        let identity = memfd::identity(segment).ok();
        let is_it = |number: &LinkId| {
            tables.incoming.get(number).is_some_and(|(export, link)| {
                identity.is_some_and(|it| link.shm.identity() == Some(it))
                    && link.peer.info.pid == opened.peer.pid
                    && export.id() == opened.export
            })
        };
        let doubted =
            tables.incoming.iter().filter(|(_, (_, link))| !link.confirmed.load(Ordering::Relaxed));
        let found = Some(opened.link)
            .filter(is_it)
            .or_else(|| doubted.map(|(number, _)| *number).find(is_it));
        if found != Some(opened.link)
            && let Some((export, link)) = tables.incoming.get(&opened.link).cloned()
        {
            if link.confirmed.load(Ordering::Relaxed) {
                // The daemon makes no sense. It is believed, as it would be if it closed the link.
                drop(tables);
                self.close_incoming(&export, &link, CloseReason::PeerDied);
                tables = self.tables.lock();
            } else {
                tables.renumber(opened.link, aside(opened.link));
            }
        }
        let Some(number) = found else { return false };
        tables.renumber(number, opened.link);
        if let Some((_, link)) = tables.incoming.get(&opened.link) {
            link.confirmed.store(true, Ordering::Relaxed);
        }
        true
    }
}
