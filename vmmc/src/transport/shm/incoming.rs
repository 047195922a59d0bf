//! The exporter's half of a link: taking notifications, draining, refusing.
//!
//! Every word here may hold anything: the importer maps the same segment.

use super::queue::Consumer;
use super::segment::{LinkSegment, LinkSegmentError};
use super::{bar, busy};
use crate::layout::link;
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::sys::{Fd, memfd};
use crate::transport::{Entry, Item};
use crate::word::Word;
use crate::word::credit::BadCredit;

/// A link as its exporter has it.
#[derive(Debug)]
pub struct ShmIncoming {
    segment: LinkSegment,
    consumer: Mutex<Consumer>,
    /// Copy of the consumer's position in private memory, for a look without the lock.
    taken: AtomicU32,
    /// Which file the segment is; the importer shows it again after a crash of the daemon.
    identity: Option<memfd::Identity>,
}

impl Drop for ShmIncoming {
    fn drop(&mut self) {
        self.segment.say_done();
    }
}

/// What an importer wrote that no honest one writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerFault {
    /// Its queue position is impossible.
    #[error(transparent)]
    Position(#[from] BadCredit),
    /// A notification for bytes outside the export.
    #[error("notification for {} bytes at {}, the export has {export_len}", entry.len, entry.offset)]
    Entry {
        /// The notification.
        entry: Entry,
        /// Length of the export in bytes.
        export_len: u64,
    },
}

impl ShmIncoming {
    /// Opens the segment that the importer made. Of one that this process had open before (a link that was
    /// claimed again too late), it goes on where it stopped.
    ///
    /// # Errors
    /// See [`LinkSegmentError`].
    pub fn open(file: &Fd) -> Result<ShmIncoming, LinkSegmentError> {
        let segment = LinkSegment::open(file)?;
        // 0 in a fresh one. Whatever the importer has made of it: its own notifications are at stake.
        let head = segment.word(link::HEAD).load(Ordering::Relaxed);
        let consumer = Mutex::new(Consumer::new(head, link::NOTIFY_SLOTS));
        let identity = memfd::identity(file).ok();
        Ok(ShmIncoming { segment, consumer, taken: AtomicU32::new(head), identity })
    }

    /// Which file the segment is, if the kernel would say.
    #[must_use]
    pub fn identity(&self) -> Option<memfd::Identity> {
        self.identity
    }

    /// Whether notifications are waiting in the segment.
    #[must_use]
    pub fn has_news(&self) -> bool {
        // PAIRS(entry): with the release in Producer::push; `take` loads it again.
        self.segment.word(link::TAIL).load(Ordering::Acquire) != self.taken.load(Ordering::Relaxed)
    }

    /// Takes up to `limit` notifications in order; each is checked against `export_len` and given to
    /// `each`. Returns how many.
    ///
    /// # Errors
    /// [`PeerFault`]: the importer is faulty or hostile. Entries before the bad one were given.
    pub fn take(
        &self,
        limit: u32,
        export_len: u64,
        mut each: impl FnMut(Item),
    ) -> Result<u32, PeerFault> {
        let mut fault = None;
        let mut consumer = self.consumer.lock();
        let count = consumer.take(
            self.segment.word(link::HEAD),
            self.segment.word(link::TAIL),
            limit,
            |slot| {
                let at = link::QUEUE + slot as usize * link::ENTRY_LEN;
                let word = |i: usize| self.segment.word64(at + 8 * i).load(Ordering::Relaxed);
                let entry = Entry { offset: word(0), len: word(1), last_word: word(2) };
                let fits = entry.offset.checked_add(entry.len).is_some_and(|end| end <= export_len);
                match (fits, fault) {
                    (true, None) if word(3) == link::FROZEN => each(Item::Frozen(entry)),
                    (true, None) => each(Item::Message(entry)),
                    (false, None) => fault = Some(PeerFault::Entry { entry, export_len }),
                    _ => {}
                }
            },
        )?;
        self.taken.store(consumer.head(), Ordering::Relaxed);
        match fault {
            Some(fault) => Err(fault),
            None => Ok(count),
        }
    }

    /// Tells the importer whether notifications are wanted.
    pub fn set_accept(&self, accept: bool) {
        self.segment.word(link::ACCEPT).store(u32::from(accept), Ordering::Relaxed);
    }

    /// Tells the importer that this process knows of the link, and that its bits of disabled pages are right.
    pub fn say_heard(&self) {
        bar::say_heard(self.segment.word(link::HEARD));
    }

    /// Disables or enables units of pages for the node interface ([`link::unit_pages`]).
    pub fn set_disabled(&self, units: std::ops::Range<usize>, disabled: bool) {
        for unit in units.start..units.end.min(link::DISABLED_BITS) {
            let word = self.segment.word(link::DISABLED + unit / 32 * 4);
            let bit = 1 << (unit % 32);
            let old = word.load(Ordering::Relaxed);
            // One writer at a time: the export's lock is held.
            word.store(if disabled { old | bit } else { old & !bit }, Ordering::Release);
        }
    }

    /// Says that pages are being disabled, before their bits do: of what is held back for them the exporter wants to hear,
    /// also if it has heard of it before.
    pub fn count_disable(&self) {
        let word = self.segment.word(link::DISABLES);
        // One writer at a time: the export's lock is held. Whoever sees a bit that is set after this sees this.
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Ends direct writes of a fabric to the pages, for good; whether there were any. It is so when they are
    /// [covered](ShmIncoming::is_covered).
    pub fn recall(&self) -> bool {
        self.segment.word(link::RECALL).store(link::CLOSING, Ordering::Release);
        !self.is_covered()
    }

    /// Whether no fabric writes to the pages by itself, by the importer's word.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        busy::is_idle(self.segment.word(link::EXPOSED), false)
    }

    /// Tells the importer how the link stands: [`link::OPEN`], [`link::CLOSING`], [`link::REVOKED`].
    pub fn set_state(&self, state: u32) {
        self.segment.word(link::STATE).store(state, Ordering::Release);
    }

    /// Bytes that the importer has put there, by its own word.
    #[must_use]
    pub fn landed(&self) -> u64 {
        self.segment.word64(link::BYTES).load(Ordering::Relaxed)
    }

    /// Whether no transfer is in progress, by the importer's word.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        (0..link::BUSY_SLOTS)
            .all(|i| busy::is_idle(self.segment.word(link::BUSY + 4 * i), busy::is_shared(i)))
    }
}
