//! Unexport, step by step; see the module comment of [`crate::transport::shm::busy`].

use super::{ExportInner, IncomingLink};
use crate::control::message::{CloseReason, NO_CPU, Request};
use crate::error::SystemError;
use crate::layout::link;
use crate::mem::Region;
use crate::node::NodeInner;
use crate::node::control::Answer;
use crate::sync::Ordering;
use crate::sys::membarrier;
use std::sync::Arc;
use std::time::Instant;

/// How often an unexport waits for senders of other nodes of which something lands; a slow network has seconds' worth in it.
const MOST_DRAINS: u32 = 10;

/// What becomes of messages that are on their way from other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    /// They are waited for.
    Drain,
    /// They are lost.
    Cut,
}

impl NodeInner {
    /// Waits until no transfer that began before is in progress, `VMMC_DRAIN_MS` at most.
    pub(crate) fn drain(&self, links: &[Arc<IncomingLink>]) {
        self.wait_for(links, |link| link.shm.is_idle());
    }

    /// Waits for each link, `VMMC_DRAIN_MS` at most, unless it ends.
    pub(crate) fn wait_for(
        &self,
        links: &[Arc<IncomingLink>],
        over: impl Fn(&IncomingLink) -> bool,
    ) {
        let give_up = Instant::now() + self.config.drain;
        for link in links {
            // An importer that has died, or has closed the link, is in no transfer, whatever its
            // slots say: the control thread takes its link out of the table.
            let is_known = || self.tables.lock().incoming.contains_key(&link.id());
            while !over(link) && is_known() && Instant::now() < give_up {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until what processes of other nodes had sent has landed: vmmcd, which was asked to withdraw the export, has their
    /// nodes stop them, and its network interface closes their links then. In turns of `VMMC_DRAIN_MS`, until nothing landed in
    /// one, [`MOST_DRAINS`] at most; then they are cut.
    fn drain_remote(&self, export: &ExportInner) {
        let landed = || {
            let links = export.links.lock();
            let remote = links.iter().filter(|link| link.importer_node().is_some());
            remote.map(|link| link.shm.landed()).reduce(u64::wrapping_add)
        };
        let mut before = None;
        for _ in 0..MOST_DRAINS {
            let now = landed();
            if now.is_none() || now == before {
                return;
            }
            before = now;
            self.rest(Instant::now() + self.config.drain, || landed().is_none());
        }
    }

    /// Sleeps until it is over, or late. No handler runs here: it may want what our caller has locked. Its notifications are
    /// collected, so that their queue does not hold up what is waited for.
    fn rest(&self, deadline: Instant, over: impl Fn() -> bool) {
        loop {
            let ticket = self.local.hub.prepare();
            if over() || Instant::now() >= deadline {
                return;
            }
            if self.collect() {
                drop(ticket);
                self.local.hub.wake_all(); // others run handlers
            } else if ticket.sleep(Some(deadline)).is_err() {
                return;
            }
        }
    }

    /// Ends the links and takes the pages away from whoever still has them.
    pub(super) fn withdraw(
        &self,
        export: &Arc<ExportInner>,
        region: &mut Region,
        remote: Remote,
    ) -> Result<(), SystemError> {
        self.end(export, remote, || region.revoke())
    }

    /// The same for memory that is not the region's any more: whoever still has the old pages has them alone.
    pub(super) fn abandon(&self, export: &Arc<ExportInner>) {
        let _ = self.end(export, Remote::Cut, || Ok(()));
    }

    fn end(
        &self,
        export: &Arc<ExportInner>,
        remote: Remote,
        take_away: impl FnOnce() -> Result<(), SystemError>,
    ) -> Result<(), SystemError> {
        export.withdrawn.store(true, Ordering::Release);
        // After the answer no link of it is opened any more. A daemon that is gone opens none.
        let id = export.id();
        let answer = self.control.call(self, |request| Request::Unexport {
            request,
            export: id,
            cpu: NO_CPU,
        });
        // A restarted daemon is not told of it any more.
        self.tables.lock().exports.remove(&export.id());
        if remote == Remote::Drain && matches!(answer, Answer::Unexported { .. }) {
            self.drain_remote(export);
        }
        self.tables.lock().idling.remove(&export.id());

        let links = export.links.lock().clone();
        if matches!(answer, Answer::Unexported { untouched: true }) && links.is_empty() {
            return Ok(()); // no other process ever had the pages
        }
        for link in &links {
            link.shm.set_state(link::CLOSING);
        }
        if !links.is_empty() {
            membarrier::heavy();
        }
        self.drain(&links);
        let swapped = take_away();
        for link in &links {
            link.shm.set_state(link::REVOKED);
            self.close_incoming(export, link, CloseReason::Unexported);
        }
        self.control.tell(Request::Revoked { export: export.id() });
        self.local.hub.wake_all();
        swapped
    }
}
