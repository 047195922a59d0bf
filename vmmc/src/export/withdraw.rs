//! Unexport, step by step; see the module comment of [`crate::transport::shm::busy`].

use super::{Export, ExportInner, IncomingLink};
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
            while !over(link) && self.knows(link) && Instant::now() < give_up {
                std::thread::yield_now();
            }
        }
    }

    /// An importer that has died, or has closed the link, is in no transfer, whatever its slots say: the control thread
    /// takes its link out of the table.
    fn knows(&self, link: &IncomingLink) -> bool {
        self.tables.lock().incoming.contains_key(&link.id())
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
        let Some(links) = self.begin_end(export, remote) else { return Ok(()) };
        self.drain(&links);
        self.finish_end(export, &links, take_away)
    }

    /// No transfer begins after this. Returns the links that may be in one; `None`: no other process ever had the pages.
    fn begin_end(&self, export: &ExportInner, remote: Remote) -> Option<Vec<Arc<IncomingLink>>> {
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
            return None;
        }
        for link in &links {
            link.shm.set_state(link::CLOSING);
        }
        if !links.is_empty() {
            membarrier::heavy();
        }
        Some(links)
    }

    fn finish_end(
        &self,
        export: &Arc<ExportInner>,
        links: &[Arc<IncomingLink>],
        take_away: impl FnOnce() -> Result<(), SystemError>,
    ) -> Result<(), SystemError> {
        let swapped = take_away();
        for link in links {
            link.shm.set_state(link::REVOKED);
            self.close_incoming(export, link, CloseReason::Unexported);
        }
        self.control.tell(Request::Revoked { export: export.id() });
        self.local.hub.wake_all();
        swapped
    }
}

/// An export that is being withdrawn, by who does other things meanwhile. Dropping it waits, `VMMC_DRAIN_MS` from its beginning at
/// most.
#[derive(Debug)]
pub struct Withdrawal {
    node: Arc<NodeInner>,
    inner: Arc<ExportInner>,
    /// `None` when it is finished.
    region: Option<Region>,
    links: Vec<Arc<IncomingLink>>,
    give_up: Instant,
}

impl Withdrawal {
    /// Asks the daemon; `None`: nothing is to be waited for.
    pub(super) fn begin(mut export: Export) -> Option<Withdrawal> {
        let (node, inner) = (export.node.clone(), export.inner.clone());
        let region = export.region.take()?;
        if node.local.check().is_err() {
            return None;
        }
        let links = node.begin_end(&inner, Remote::Cut)?;
        let give_up = Instant::now() + node.config.drain;
        Some(Withdrawal { node, inner, region: Some(region), links, give_up })
    }

    /// Takes the pages away from whoever still has them, unless a transfer is in progress and has time left: then it returns
    /// false, at once.
    pub fn try_finish(&mut self) -> bool {
        let Some(mut region) = self.region.take() else { return true };
        if self.node.local.check().is_err() {
            return true;
        }
        let is_over = |link: &Arc<IncomingLink>| link.shm.is_idle() || !self.node.knows(link);
        if !self.links.iter().all(is_over) && Instant::now() < self.give_up {
            self.region = Some(region);
            return false;
        }
        if self.node.finish_end(&self.inner, &self.links, || region.revoke()).is_err() {
            std::mem::forget(region); // as in `Export::unexport`
        }
        true
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        while !self.try_finish() {
            std::thread::yield_now();
        }
    }
}
