//! Receive-enable per page (H12, H13): what processes of other nodes may write to now.
//!
//! Between processes of one machine the memory management decides, once, at the import: these bits are for
//! the node's interface, which looks at each packet. A packet for a disabled page is not lost: it is
//! held back, with everything that follows it from that process, the exporter hears of it
//! ([`crate::Event::Frozen`]), and it goes on when the page is enabled.

use crate::error::AccessError;
use crate::export::Export;
use crate::layout::link;
use crate::mem::OutOfBounds;
use crate::sys::membarrier;
use std::ops::Range;

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
    /// The bits are in the links that this process knows of ([`Export::importers`]). Of a new one the daemon tells it at the moment
    /// in which it tells the importer: what that one sends before this process has heard is not held back.
    ///
    /// Pages are of 4096 bytes; in an export of more than 96 MiB several go together.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`] for a range that is empty or not inside;
    /// [`AccessError::Forked`].
    pub fn disable(&self, range: Range<usize>) -> Result<(), AccessError> {
        let units = self.units(&range)?;
        let links = {
            let links = self.inner.links.lock();
            let mut disabled = self.inner.disabled.lock();
            for link in links.iter() {
                link.shm.set_disabled(units.clone(), true);
                link.shm.recall();
            }
            disabled.push(units);
            links.clone()
        };
        if !links.is_empty() {
            // As in an unexport: a transfer that did not see the bits is waited for.
            membarrier::heavy();
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
        {
            let links = self.inner.links.lock();
            let mut disabled = self.inner.disabled.lock();
            let old = std::mem::take(&mut *disabled);
            for other in old {
                let before = other.start..other.end.min(units.start);
                let after = other.start.max(units.end)..other.end;
                disabled.extend([before, after].into_iter().filter(|rest| !rest.is_empty()));
            }
            for link in links.iter() {
                link.shm.set_disabled(units.clone(), false);
            }
        }
        self.inner.wake_importers();
        Ok(())
    }
}
