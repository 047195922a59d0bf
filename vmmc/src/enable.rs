//! Receive-enable per page (H12, H13): what processes of other nodes may write to now.
//!
//! Between processes of one machine the memory management decides, once, at the import: these bits are for
//! the node's interface, which looks at each packet. A packet for a disabled page is not lost: it is
//! held back, with everything that follows it from that process, the exporter hears of it
//! ([`crate::Event::Frozen`]), and it goes on when the page is enabled. If pages are disabled again before it could, the
//! exporter hears of it again.

use crate::error::AccessError;
use crate::export::{Export, ExportInner, IncomingLink};
use crate::layout::link;
use crate::mem::OutOfBounds;
use crate::sys::membarrier;
use std::ops::Range;
use std::sync::Arc;

impl Export {
    /// The units of pages that a range of bytes touches.
    fn units(&self, range: &Range<usize>) -> Result<Range<usize>, AccessError> {
        self.node.local.check()?;
        let size = self.len();
        if range.start >= range.end || range.end > size {
            let len = range.end.saturating_sub(range.start);
            return Err(OutOfBounds { offset: range.start, len, size, align: 1 }.into());
        }
        let unit = link::unit_pages(size) * link::PAGE;
        Ok(range.start / unit..(range.end - 1) / unit + 1)
    }

    /// Disables the pages of a range for processes of other nodes: when this returns, nothing of theirs
    /// changes a byte of them. What they send is held back until [`Export::enable`]. Importers of
    /// this machine write to the pages themselves and are not concerned. A process whose messages came over a fabric straight
    /// into the pages is told to send packets again, for good: this waits for it, `VMMC_DRAIN_MS` at most, and
    /// one that does not answer in half of that loses its connection if it writes there all the same.
    ///
    /// It asks the daemon which importers there are by now, `VMMC_DRAIN_MS` at most. While pages of any export of this process are
    /// disabled, what comes from one that it has not heard of yet is held back as well, until it has.
    ///
    /// Pages are of 4096 bytes; in an export of more than 96 MiB several go together.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`] for a range that is empty or not inside;
    /// [`AccessError::Forked`].
    pub fn disable(&self, range: Range<usize>) -> Result<(), AccessError> {
        let units = self.units(&range)?;
        self.inner.disable(units);
        // A link that was granted before is known then; one that is granted later finds the guard.
        self.node.control.sync(&self.node, self.node.config.drain);
        let links = self.inner.mark_disabled();
        if !links.is_empty() {
            // As in an unexport: a transfer that did not see the bits is waited for.
            membarrier::heavy_for_sure();
            // A fabric that writes by itself does not know of pages.
            for link in links.iter().filter(|link| !link.shm.is_covered()) {
                link.peer.ring();
            }
            self.node.wait_for(&links, |link| link.shm.is_idle() && link.shm.is_covered());
        }
        Ok(())
    }

    /// Enables the pages of a range again; what was held back for them goes on, in its order.
    ///
    /// # Errors
    /// As [`Export::disable`].
    pub fn enable(&self, range: Range<usize>) -> Result<(), AccessError> {
        let units = self.units(&range)?;
        self.inner.enable(&units);
        self.inner.wake_importers();
        Ok(())
    }
}

impl ExportInner {
    /// Has links that come disable these units for the node interface, and none land anything before it has.
    fn disable(&self, units: Range<usize>) {
        let mut disabled = self.disabled.lock();
        if disabled.is_empty() {
            self.local.page.count_guard(true);
        }
        disabled.push(units);
    }

    /// Disables what is to be disabled in the links there are, which are returned.
    fn mark_disabled(&self) -> Vec<Arc<IncomingLink>> {
        let links = self.links.lock();
        // Not what this call has added: another may have enabled it since.
        let disabled = self.disabled.lock();
        for link in links.iter() {
            link.shm.count_disable();
            for units in disabled.iter() {
                link.shm.set_disabled(units.clone(), true);
            }
            link.shm.recall();
        }
        links.clone()
    }

    fn enable(&self, units: &Range<usize>) {
        let links = self.links.lock();
        let mut disabled = self.disabled.lock();
        let old = std::mem::take(&mut *disabled);
        let guarded = !old.is_empty();
        for other in old {
            let before = other.start..other.end.min(units.start);
            let after = other.start.max(units.end)..other.end;
            disabled.extend([before, after].into_iter().filter(|rest| !rest.is_empty()));
        }
        for link in links.iter() {
            link.shm.set_disabled(units.clone(), false);
        }
        if guarded && disabled.is_empty() {
            self.local.page.count_guard(false);
        }
    }
}

impl Drop for ExportInner {
    fn drop(&mut self) {
        if !self.disabled.lock().is_empty() && self.local.check().is_ok() {
            self.local.page.count_guard(false);
        }
    }
}
