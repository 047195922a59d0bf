//! After a loss of the daemon: find the next one, and tell it what we have.
//!
//! Links go on working meanwhile. A daemon that was replaced keeps our socket and we notice nothing; one
//! that crashed has forgotten everything, so exports are announced and links claimed again under their old
//! numbers, each side for itself (the protocol is told in `vmmc-daemon/src/resume.rs`). An importer whose
//! exporter does not come back is refused; an exporter ends links that no importer has claimed in time.

use super::control::Draft;
use super::{Known, NodeInner};
use crate::config::{Config, DaemonStart};
use crate::control::message::CloseReason;
use crate::counters::index as count;
use crate::export::ExportInner;
use crate::handler::Reading;
use crate::id::{ExportId, LinkId};
use crate::import::ImportInner;
use crate::sync::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// First and last pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(2));

/// How long a claim waits for its exporter to come back: longer than the longest pause between two of
/// the exporter's attempts, and as long as the death of one that does not come back stays untold.
const CLAIM_WAIT: Duration = Duration::from_secs(4);

/// How long importers may take to claim their links again. Longer than a restored import waits at
/// the daemon: they may find it later than we did.
const CLAIM_TIME: Duration = Duration::from_secs(5);

/// What the daemon of before knew of us.
struct OfBefore {
    exports: Vec<Arc<ExportInner>>,
    imports: Vec<Arc<ImportInner>>,
}

impl NodeInner {
    /// One attempt, and a pause if it failed. Called by the control thread until it succeeds.
    pub(super) fn reconnect(&self) {
        let mut pause = PAUSES.0;
        while !self.control.is_shut() && !self.control.is_connected() {
            // Starting a daemon is for those who need one: idle clients wait for somebody else's.
            let needs_one = self.control.has_pending() || self.has_something_to_keep();
            let config = match needs_one {
                true => self.config.clone(),
                false => Config { daemon: DaemonStart::Never, ..self.config.clone() },
            };
            match self.control.connect_again(&config, &self.local) {
                Ok((post, welcome)) => {
                    self.local.meter.add(count::RECONNECTS, 1);
                    let known = welcome.resumed;
                    // What is forgotten may own what waits for an answer, which only we can have come.
                    let _behind = Reading::begin();
                    // Before anybody hears of links and processes from the new daemon, and makes more.
                    let of_before = (!known).then(|| self.doubt_links());
                    self.control.found(Arc::new(post), welcome);
                    if let Some(of_before) = of_before {
                        self.announce(of_before);
                    }
                    self.local.hub.wake_all();
                }
                Err(_) => {
                    self.control.idle_until(Instant::now() + pause);
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    fn has_something_to_keep(&self) -> bool {
        let tables = self.tables.lock();
        !tables.exports.is_empty() || !tables.imports.is_empty()
    }

    /// Tells a daemon that knows nothing of us. The answers come as events.
    fn announce(&self, OfBefore { exports, imports }: OfBefore) {
        for export in exports {
            let (spec, len, old) = (export.spec.clone(), export.len as u64, export.id());
            self.control.ask_at_once(
                |request| spec.request(request, len, Some(old)),
                vec![export.file.clone()],
                Draft::RestoreExport(export),
            );
        }
        for import in imports {
            import.claimed.store(true, Ordering::Relaxed);
            let (spec, old) = (import.spec.clone(), import.id());
            self.control.ask_at_once(
                |request| spec.request(request, CLAIM_WAIT.as_millis() as u32, Some(old), None),
                import.segment.iter().map(|segment| segment.file.clone()).collect(),
                Draft::RestoreImport(import),
            );
        }
    }

    /// From here on importers must claim their links, and other processes are introduced anew. What there
    /// is now is to be announced; what comes later, the new daemon has made. (An import of its own making,
    /// announced again, would be a second link with the same segment: notifications come twice. So would one
    /// that was announced to the daemon of before, and not answered, if both questions were asked.)
    fn doubt_links(&self) -> OfBefore {
        self.control.forget_announcements();
        // Nobody will tell us of their end.
        self.forget_peer(None);
        let mut tables = self.tables.lock();
        tables.peers.values_mut().for_each(Known::let_go);
        tables.peers.retain(|_, known| known.lives());
        for (_, link) in tables.incoming.values() {
            link.confirmed.store(false, Ordering::Relaxed);
        }
        let until = Instant::now() + CLAIM_TIME;
        *self.claims_end.lock() = (!tables.incoming.is_empty()).then_some(until);
        let exports = tables.exports.values().cloned().collect();
        OfBefore { exports, imports: tables.imports.values().cloned().collect() }
    }

    /// When [`NodeInner::end_unclaimed`] has something to do.
    pub(super) fn claims_end(&self) -> Option<Instant> {
        *self.claims_end.lock()
    }

    /// Ends the links that nobody has claimed by now.
    pub(super) fn end_unclaimed(&self) {
        {
            let mut end = self.claims_end.lock();
            if end.is_none_or(|end| Instant::now() < end) {
                return;
            }
            *end = None;
        }
        let links: Vec<_> = self.tables.lock().incoming.values().cloned().collect();
        for (export, link) in links {
            if !link.confirmed.load(Ordering::Relaxed) {
                self.close_incoming(&export, &link, CloseReason::PeerDied);
            }
        }
        self.local.hub.wake_all();
    }

    /// False when it was withdrawn while it was being announced: the daemon must forget it.
    pub(super) fn export_restored(&self, export: &Arc<ExportInner>, id: ExportId) -> bool {
        let mut tables = self.tables.lock();
        let lives = tables.exports.remove(&export.id()).is_some();
        if lives {
            export.set_id(id);
            tables.exports.insert(id, export.clone());
        }
        lives
    }

    /// False when it was dropped while it was being claimed.
    pub(super) fn import_restored(&self, import: &Arc<ImportInner>, id: LinkId) -> bool {
        let mut tables = self.tables.lock();
        let lives = tables.imports.remove(&import.id()).is_some();
        if lives {
            import.set_id(id);
            tables.imports.insert(id, import.clone());
        }
        lives
    }
}
