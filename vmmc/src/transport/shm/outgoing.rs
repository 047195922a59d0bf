//! The importer's half: the exporter's pages mapped here, and the link segment it made.

use super::bar::{self, Barred};
use super::busy::{self, Transfer};
use super::queue::Producer;
use super::segment::LinkSegment;
use crate::control::message::CloseReason;
use crate::counters::index as count;
use crate::error::{Closed, SystemError, system};
use crate::id::{PeerInfo, Rights};
use crate::layout::link;
use crate::mem::{OutOfBounds, View};
use crate::process::{Meter, owned_view};
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::sys::mmap::{Access, GuardedMapping};
use crate::sys::{Fd, membarrier};
use crate::transport::engine::Engine;
use crate::transport::{Entry, Granted, Item, TransportError};
use crate::word::{MappedU32, MappedU64, Word};
use std::io::IoSlice;
use std::sync::Arc;

/// A link as its importer has it.
#[derive(Debug)]
pub struct ShmOutgoing {
    /// The exporter's pages; an empty view when only binding was granted.
    proxy: View<'static>,
    /// Length of the buffer in bytes.
    len: usize,
    rights: Rights,
    /// The exporter's state word.
    state: MappedU32<'static>,
    /// What the daemon's statistics show of this link: transfers, and their bytes.
    noted: [MappedU64<'static>; 2],
    /// First of the busy slots.
    slots: [MappedU32<'static>; link::BUSY_SLOTS],
    segment: Arc<LinkSegment>,
    producer: Mutex<Producer>,
    /// [`link::OPEN`], or why this side closed the link: `1 + CloseReason as u32`.
    ended: AtomicU32,
    peer: PeerInfo,
    meter: Meter,
    /// The memory file, kept where bindings may be made of it.
    file: Option<Fd>,
    _mapping: Option<GuardedMapping>,
}

pub(crate) fn encode(reason: CloseReason) -> u32 {
    match reason {
        CloseReason::Unexported => 1,
        CloseReason::Unimported => 2,
        CloseReason::PeerDied => 3,
        CloseReason::PeerFault => 4,
        CloseReason::Unreachable => 5,
        CloseReason::Disabled => 6,
    }
}

pub(crate) fn decode(word: u32) -> Option<CloseReason> {
    match word {
        1 => Some(CloseReason::Unexported),
        2 => Some(CloseReason::Unimported),
        3 => Some(CloseReason::PeerDied),
        4 => Some(CloseReason::PeerFault),
        5 => Some(CloseReason::Unreachable),
        6 => Some(CloseReason::Disabled),
        _ => None,
    }
}

impl ShmOutgoing {
    fn accepts(&self) -> bool {
        self.segment.word(link::ACCEPT).load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn closed(&self, state: u32) -> Closed {
        let reason = match decode(self.ended.load(Ordering::Acquire)) {
            Some(reason) => reason,
            // The exporter's state word, before the daemon has told us.
            None if state == link::CLOSING || state == link::REVOKED => CloseReason::Unexported,
            None => CloseReason::PeerFault,
        };
        Closed { peer: self.peer, reason }
    }

    /// Runs `copy` as a transfer: marked, and only while the link is open.
    #[inline]
    fn transfer<T>(
        &self,
        copy: impl FnOnce() -> Result<T, OutOfBounds>,
    ) -> Result<T, TransportError> {
        let _transfer = self.begin()?;
        Ok(copy()?)
    }

    /// Marks this thread as busy with the link, which a revocation then waits for.
    #[inline]
    fn begin(&self) -> Result<Transfer<&MappedU32<'static>>, Closed> {
        if self.ended.load(Ordering::Relaxed) != 0 {
            return Err(self.closed(link::OPEN));
        }
        let index = busy::my_slot();
        let Some(slot) = self.slots.get(index) else { unreachable!("my_slot is bounded") };
        busy::begin(slot, busy::is_shared(index), self.state, membarrier::light)
            .map_err(|state| self.closed(state))
    }

    /// Lets `fill` put up to `len` bytes at `offset` itself, as a transfer; it says how many it put. `guards`: whether the
    /// exporter has disabled pages of anything. Where the bytes may not be put, nothing is done.
    pub(crate) fn fill<E>(
        &self,
        offset: usize,
        len: usize,
        guards: impl FnOnce() -> bool,
        fill: impl FnOnce(View<'_>) -> Result<usize, E>,
    ) -> Result<Result<Result<usize, E>, Barred>, TransportError> {
        let target = self.proxy.slice(offset, len)?;
        // Looked at within the transfer: who disables a page waits for those that have begun.
        let filled = self.transfer(|| {
            let heard = self.segment.word(link::HEARD);
            let may = bar::look(heard, guards, || self.is_disabled(offset, len));
            Ok(may.map(|()| fill(target)))
        })?;
        if let Ok(Ok(put)) = filled {
            self.count_send(put);
            self.note(put);
        }
        Ok(filled)
    }

    /// Another mapping of the buffer, to be written to by others than this process's threads, from now until
    /// [`ShmOutgoing::cover`]. `None`: the exporter has disabled pages, and looks at every packet. `guards` as in
    /// [`ShmOutgoing::fill`].
    ///
    /// To disable pages is to revoke such a mapping, and the words that the two sides use are those of a transfer and an unexport
    /// ([`busy`]).
    pub(crate) fn expose(
        &self,
        guards: impl FnOnce() -> bool,
    ) -> Option<rustix::io::Result<GuardedMapping>> {
        let mapping = self._mapping.as_ref().filter(|_| self.rights.contains(Rights::WRITE))?;
        let (slot, recall) = (self.segment.word(link::EXPOSED), self.segment.word(link::RECALL));
        let exposure = busy::begin(slot, false, recall, membarrier::light).ok()?;
        if !bar::is_heard(self.segment.word(link::HEARD)) && guards() {
            return None;
        }
        let again = mapping.again();
        if again.is_ok() {
            std::mem::forget(exposure);
        }
        Some(again)
    }

    /// Nobody writes to such a mapping any more, or nobody else sees it.
    pub(crate) fn cover(&self) {
        busy::end(self.segment.word(link::EXPOSED));
    }

    /// Whether the exporter wants that.
    pub(crate) fn is_recalled(&self) -> bool {
        self.segment.word(link::RECALL).load(Ordering::Acquire) != link::OPEN
    }

    /// Whether a page of these bytes is disabled for the node interface.
    pub(crate) fn is_disabled(&self, offset: usize, len: usize) -> bool {
        if len == 0 {
            return false;
        }
        let unit = link::unit_pages(self.len) * link::PAGE;
        let last = offset + len.saturating_sub(1);
        (offset / unit..=last / unit).any(|unit| {
            let word = self.segment.word(link::DISABLED + unit / 32 * 4);
            word.load(Ordering::Acquire) & 1 << (unit % 32) != 0
        })
    }

    /// How often the exporter has disabled pages.
    pub(crate) fn disables(&self) -> u32 {
        self.segment.word(link::DISABLES).load(Ordering::Acquire)
    }

    /// Counts a send in the process page and, for the daemon's statistics, in the link segment.
    #[inline]
    fn count_send(&self, len: usize) {
        let tally = self.meter.0.tally();
        tally.add(count::SENDS, 1);
        tally.add(count::SEND_BYTES, len as u64);
    }

    /// This process's own number of transfers and bytes, for the daemon's statistics.
    #[inline]
    fn note(&self, len: usize) {
        // Threads may lose each other's counts here; the process page has exact ones.
        for (word, amount) in self.noted.iter().zip([1, len as u64]) {
            word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
        }
    }
}

impl Engine for ShmOutgoing {
    /// The link segment, and the memory file, which was verified: sealed, and as long as was granted.
    type Found = (Arc<LinkSegment>, Fd);

    fn import(
        (segment, file): Self::Found,
        granted: Granted,
        meter: Meter,
    ) -> Result<ShmOutgoing, SystemError> {
        let Granted { len, rights, peer } = granted;
        let access = match rights {
            rights if rights.contains(Rights::WRITE) => Some(Access::ReadWrite),
            rights if rights.contains(Rights::READ) => Some(Access::Read),
            _ => None,
        };
        let mapping = match access {
            None => None,
            Some(access) => {
                let mapping =
                    GuardedMapping::new(&file, len, access).map_err(system("mapping an import"))?;
                mapping.keep_from_children().map_err(system("madvise of an import"))?;
                Some(mapping)
            }
        };
        let proxy = match &mapping {
            Some(mapping) => owned_view(mapping, len),
            None => View::empty(),
        };
        Ok(ShmOutgoing {
            proxy,
            len,
            rights,
            state: segment.word(link::STATE),
            noted: [link::SENDS, link::BYTES].map(|offset| segment.word64(offset)),
            slots: std::array::from_fn(|i| segment.word(link::BUSY + 4 * i)),
            segment,
            producer: Mutex::new(Producer::new(link::NOTIFY_SLOTS)),
            ended: AtomicU32::new(0),
            peer,
            meter,
            file: rights.contains(Rights::BIND).then_some(file),
            _mapping: mapping,
        })
    }

    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn rights(&self) -> Rights {
        self.rights
    }

    #[inline]
    fn node(&self) -> Option<&str> {
        None
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        true
    }

    #[inline]
    fn view(&self) -> View<'_> {
        self.proxy
    }

    fn file(&self) -> Option<&Fd> {
        self.file.as_ref()
    }

    #[inline]
    fn write(&self, offset: usize, source: &[u8]) -> Result<(), TransportError> {
        self.transfer(|| self.proxy.write(offset, source))?;
        self.count_send(source.len());
        self.note(source.len());
        Ok(())
    }

    fn write_vectored(&self, offset: usize, sources: &[IoSlice<'_>]) -> Result<(), TransportError> {
        let total = sources
            .iter()
            .try_fold(0usize, |sum, source| sum.checked_add(source.len()))
            .unwrap_or(usize::MAX);
        let target = self.proxy.slice(offset, total)?;
        self.transfer(|| {
            let mut at = 0;
            for source in sources {
                target.write(at, source)?;
                at += source.len();
            }
            Ok(())
        })?;
        self.count_send(total);
        self.note(total);
        Ok(())
    }

    fn write_from(&self, offset: usize, source: View<'_>) -> Result<(), TransportError> {
        let len = source.len();
        let target = self.proxy.slice(offset, len)?;
        self.transfer(|| target.write_from(0, source))?;
        self.count_send(len);
        self.note(len);
        Ok(())
    }

    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), TransportError> {
        self.transfer(|| self.proxy.read(offset, target))?;
        self.meter.add(count::READS, 1);
        self.meter.add(count::READ_BYTES, target.len() as u64);
        Ok(())
    }

    fn write_fenced(&self, offset: usize, source: &[u8]) -> Result<(), TransportError> {
        self.write(offset, source)
    }

    /// What is written is there.
    fn fence(&self) -> Result<(), Closed> {
        Ok(())
    }

    fn notify(&self, entry: Entry) -> Result<bool, TransportError> {
        self.queue(Item::Message(entry))
    }

    /// There is room; or none would be queued; or the link has ended.
    fn may_notify(&self) -> bool {
        let head = self.segment.word(link::HEAD);
        self.producer.lock().in_flight(head).map_or(true, |count| count < link::NOTIFY_SLOTS)
            || self.check_open().is_err()
            || !self.accepts()
    }

    fn write_notify(&self, source: &[u8], entry: Entry) -> Result<bool, TransportError> {
        self.write(entry.offset as usize, source)?;
        Ok(false)
    }

    #[inline]
    fn store<W: Word>(&self, word: W, value: W::Value) -> Result<(), Closed> {
        let stored = self.transfer(|| {
            word.store(value, Ordering::Release);
            Ok(())
        });
        match stored {
            Err(TransportError::Closed(closed)) => Err(closed),
            _ => Ok(()), // a word is inside; nothing else can go wrong
        }
    }

    fn update(&self, offset: usize, source: &[u8], _: bool) -> Result<bool, TransportError> {
        self.transfer(|| self.proxy.write_ascending(offset, source))?;
        self.count_send(source.len());
        self.note(source.len());
        Ok(false)
    }

    #[inline]
    fn check_open(&self) -> Result<(), Closed> {
        let state = self.state.load(Ordering::Acquire);
        if state == link::OPEN && self.ended.load(Ordering::Relaxed) == 0 {
            Ok(())
        } else {
            Err(self.closed(state))
        }
    }

    fn close(&self, reason: CloseReason) {
        let _ = self.ended.compare_exchange(0, encode(reason), Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl ShmOutgoing {
    /// Queues an item for the exporter; see [`Engine::notify`].
    pub(crate) fn queue(&self, item: Item) -> Result<bool, TransportError> {
        let entry = item.entry();
        let kind = match item {
            Item::Message(_) => link::MESSAGE,
            Item::Frozen(_) => link::FROZEN,
        };
        // Busy meanwhile: an entry that is queued is one that the exporter still collects.
        let _transfer = self.begin()?;
        if !self.accepts() {
            return Ok(false);
        }
        let mut producer = self.producer.lock();
        let queued = producer.push(
            self.segment.word(link::HEAD),
            self.segment.word(link::TAIL),
            |slot| {
                let at = link::QUEUE + slot as usize * link::ENTRY_LEN;
                let words = [entry.offset, entry.len, entry.last_word, kind];
                for (i, word) in words.into_iter().enumerate() {
                    self.segment.word64(at + 8 * i).store(word, Ordering::Relaxed);
                }
            },
        )?;
        drop(producer);
        if !queued {
            return Err(TransportError::QueueFull);
        }
        let total = self.segment.word64(link::NOTIFIES);
        total.store(total.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.meter.add(count::NOTIFIES_SENT, 1);
        Ok(true)
    }
}
