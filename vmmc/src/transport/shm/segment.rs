//! Making and opening link segments. The drawing is in [`crate::layout::link`].

use crate::error::{SystemError, system};
use crate::layout::{self, link};
use crate::mem::View;
use crate::process::{fixed32, owned_view};
use crate::sync::Ordering;
use crate::sys::mmap::{Access, GuardedMapping};
use crate::sys::{Fd, memfd};
use crate::word::{MappedU32, MappedU64, Word};

/// One mapped link segment.
#[derive(Debug)]
pub struct LinkSegment {
    view: View<'static>,
    mapping: GuardedMapping,
}

/// Why a descriptor is no link segment of ours.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkSegmentError {
    /// Not sealed, or of another length.
    #[error(transparent)]
    Segment(#[from] memfd::SegmentError),
    /// Mapping it failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Something else.
    #[error("not a link segment (magic {found:#x})")]
    Magic {
        /// What stands in place of the magic number.
        found: u64,
    },
    /// Of another version.
    #[error("link segment of layout version {theirs}, ours is {ours}; restart the older program")]
    Version {
        /// Ours.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
}

impl LinkSegment {
    /// A fresh segment, sealed, and its descriptor for the exporter. Notifications are accepted
    /// until the exporter says otherwise: those sent before it knows of the link are not lost.
    ///
    /// # Errors
    /// Out of memory or descriptors.
    pub fn create() -> Result<(LinkSegment, Fd), SystemError> {
        let file = memfd::create_for_writers("vmmc-link", link::LEN as u64)
            .map_err(system("memory file of a link"))?;
        memfd::seal(&file).map_err(system("sealing a link segment"))?;
        let segment = LinkSegment::map(&file)?;
        segment.begin();
        Ok((segment, file))
    }

    /// Writes into zeros what a link begins with.
    fn begin(&self) {
        self.word(link::ACCEPT).store(1, Ordering::Relaxed);
        self.word(layout::HEAD_VERSION).store(layout::VERSION, Ordering::Relaxed);
        self.word(layout::HEAD_BYTES).store(link::LEN as u32, Ordering::Relaxed);
        self.word64(layout::HEAD_MAGIC).store(link::MAGIC, Ordering::Release);
    }

    /// The exporter's last access. In a forked child, where the pages are not, nothing.
    pub(crate) fn say_done(&self) {
        if self.mapping.is_here() {
            // PAIRS(done): with the acquire in `is_done`: what the exporter has stored before is not found in the next link.
            self.word(link::DONE).store(1, Ordering::Release);
        }
    }

    /// Whether the exporter has said that it touches the segment no more. One that says so and does is hostile, and has
    /// in the next link what it has in this one: the link is its own.
    pub(crate) fn is_done(&self) -> bool {
        // PAIRS(done): with the release in `say_done`.
        self.mapping.is_here() && self.word(link::DONE).load(Ordering::Acquire) != 0
    }

    /// Makes it as it was in the beginning, for another link to the same exporter. Only the importer, when neither has a
    /// use for it any more, says the caller: of the importer's own words it has no other copy, and the exporter
    /// [is done](LinkSegment::is_done).
    pub(crate) fn renew(&mut self) {
        // What a queue entry holds is of no account before it is queued.
        for at in (0..link::QUEUE).chain(link::DISABLED..link::LEN).step_by(8) {
            self.word64(at).store(0, Ordering::Relaxed);
        }
        self.begin();
    }

    /// Opens a segment that the other side made.
    ///
    /// # Errors
    /// Each way in which it is not one.
    pub fn open(file: &Fd) -> Result<LinkSegment, LinkSegmentError> {
        memfd::verify(file, link::LEN as u64)?;
        let segment = LinkSegment::map(file)?;
        let found = segment.word64(layout::HEAD_MAGIC).load(Ordering::Acquire);
        if found != link::MAGIC {
            return Err(LinkSegmentError::Magic { found });
        }
        let theirs = segment.word(layout::HEAD_VERSION).load(Ordering::Relaxed);
        if theirs != layout::VERSION {
            return Err(LinkSegmentError::Version { ours: layout::VERSION, theirs });
        }
        Ok(segment)
    }

    fn map(file: &Fd) -> Result<LinkSegment, SystemError> {
        // Whatever stands in it is checked, and nothing reaches it but by an offset of the layout.
        let mapping = GuardedMapping::bare(file, link::LEN, Access::ReadWrite)
            .map_err(system("mapping a link segment"))?;
        mapping.keep_from_children().map_err(system("madvise of a link segment"))?;
        let view = owned_view(&mapping, link::LEN);
        Ok(LinkSegment { view, mapping })
    }

    /// The word at a constant offset of the layout.
    pub(crate) fn word(&self, offset: usize) -> MappedU32<'static> {
        fixed32(self.view, offset)
    }

    pub(crate) fn word64(&self, offset: usize) -> MappedU64<'static> {
        match self.view.word64(offset) {
            Ok(word) => word,
            Err(error) => unreachable!("layout constant: {error}"),
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_segment_of_another_shape_or_version_is_refused_by_name() {
        let (ours, file) = LinkSegment::create().unwrap();
        assert!(LinkSegment::open(&file).is_ok());
        ours.word(layout::HEAD_VERSION).store(77, Ordering::Relaxed);
        assert!(matches!(
            LinkSegment::open(&file),
            Err(LinkSegmentError::Version { theirs: 77, .. })
        ));
        ours.word64(layout::HEAD_MAGIC).store(5, Ordering::Relaxed);
        assert!(matches!(LinkSegment::open(&file), Err(LinkSegmentError::Magic { found: 5 })));
        let unsealed = memfd::create("x", link::LEN as u64).unwrap();
        assert!(matches!(LinkSegment::open(&unsealed), Err(LinkSegmentError::Segment(_))));
        let short = memfd::create("x", 4096).unwrap();
        memfd::seal(&short).unwrap();
        assert!(matches!(LinkSegment::open(&short), Err(LinkSegmentError::Segment(_))));
    }
}
