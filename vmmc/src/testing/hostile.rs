//! A peer that writes nonsense into a link segment.

use super::Pair;
use crate::error::{SystemError, system};
use crate::layout::link;
use crate::process::{fixed32, owned_view};
use crate::sync::Ordering;
use crate::sys::mmap::{Access, GuardedMapping};
use crate::word::Word;

/// What it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Nonsense {
    /// More notifications than the queue holds.
    Tail,
    /// A notification for bytes outside the export.
    EntryOutside,
    /// More notifications taken than were ever queued.
    Head,
    /// A state that is none.
    State,
    /// A transfer that never ends.
    Busy,
}

impl Nonsense {
    /// All kinds.
    pub const ALL: [Nonsense; 5] =
        [Nonsense::Tail, Nonsense::EntryOutside, Nonsense::Head, Nonsense::State, Nonsense::Busy];
}

/// A third mapping of a pair's link segment.
#[derive(Debug)]
pub struct Hostile {
    mapping: GuardedMapping,
}

impl Hostile {
    /// Maps the segment of a pair.
    ///
    /// # Errors
    /// [`SystemError`] when there is no address space.
    pub fn new(pair: &Pair) -> Result<Hostile, SystemError> {
        let mapping = GuardedMapping::new(pair.segment(), link::LEN, Access::ReadWrite)
            .map_err(system("mapping a link segment"))?;
        Ok(Hostile { mapping })
    }

    /// Writes it.
    pub fn write(&self, nonsense: Nonsense) {
        let view = owned_view(&self.mapping, link::LEN);
        let put = |offset, value| fixed32(view, offset).store(value, Ordering::Relaxed);
        match nonsense {
            Nonsense::Tail => put(link::TAIL, link::NOTIFY_SLOTS + 1),
            Nonsense::EntryOutside => {
                for half in 0..4 {
                    put(link::QUEUE + 4 * half, u32::MAX);
                }
                put(link::TAIL, 1);
            }
            Nonsense::Head => put(link::HEAD, u32::MAX / 2),
            Nonsense::State => put(link::STATE, 99),
            Nonsense::Busy => put(link::BUSY, 1),
        }
    }
}
