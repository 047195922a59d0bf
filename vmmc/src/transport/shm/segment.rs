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
    _mapping: GuardedMapping,
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
        segment.word(link::ACCEPT).store(1, Ordering::Relaxed);
        segment.word(layout::HEAD_VERSION).store(layout::VERSION, Ordering::Relaxed);
        segment.word(layout::HEAD_BYTES).store(link::LEN as u32, Ordering::Relaxed);
        segment.word64(layout::HEAD_MAGIC).store(link::MAGIC, Ordering::Release);
        Ok((segment, file))
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
        Ok(LinkSegment { view, _mapping: mapping })
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
