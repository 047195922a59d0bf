//! What we know of another process: its page and our own button of its doorbell.

use crate::counters::index as count;
use crate::error::{SystemError, system};
use crate::id::PeerInfo;
use crate::layout::{self, page};
use crate::local::Local;
use crate::process::{ProcessPage, fixed32, owned_view};
use crate::sync::Ordering;
use crate::sys::mmap::{Access, GuardedMapping};
use crate::sys::{Fd, doorbell, memfd};
use crate::word::arm::Ringer;
use crate::word::{MappedU32, Word};
use std::sync::Arc;

/// Another process: its page, read-only, and our own button of its doorbell.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) info: PeerInfo,
    ringer: Ringer<MappedU32<'static>>,
    cpu: MappedU32<'static>,
    guards: MappedU32<'static>,
    bell: Fd,
    local: Arc<Local>,
    _mapping: GuardedMapping,
}

/// Why what the daemon introduced is no peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    #[error(transparent)]
    Segment(#[from] memfd::SegmentError),
    #[error("process page of layout version {theirs}, ours is {ours}")]
    Version { ours: u32, theirs: u32 },
    #[error("not a process page")]
    Magic,
    #[error(transparent)]
    System(#[from] SystemError),
}

impl Peer {
    pub(crate) fn new(
        info: PeerInfo,
        page_file: &Fd,
        bell: Fd,
        local: Arc<Local>,
    ) -> Result<Peer, PeerError> {
        memfd::verify(page_file, page::LEN as u64)?;
        let mapping = GuardedMapping::new(page_file, page::LEN, Access::Read)
            .map_err(system("mapping a peer's page"))?;
        mapping.keep_from_children().map_err(system("madvise of a peer's page"))?;
        let view = owned_view(&mapping, page::LEN);
        let magic = view.word64(layout::HEAD_MAGIC).map(|word| word.load(Ordering::Acquire));
        if magic != Ok(page::MAGIC) {
            return Err(PeerError::Magic);
        }
        let theirs = fixed32(view, layout::HEAD_VERSION).load(Ordering::Relaxed);
        if theirs != layout::VERSION {
            return Err(PeerError::Version { ours: layout::VERSION, theirs });
        }
        Ok(Peer {
            info,
            ringer: Ringer::new(fixed32(view, page::ARMED)),
            cpu: fixed32(view, page::CPU),
            guards: fixed32(view, page::GUARDS),
            bell,
            local,
            _mapping: mapping,
        })
    }

    /// A process of another node: never rung from here, and on no processor of ours.
    pub(crate) fn elsewhere(info: PeerInfo, local: Arc<Local>) -> Result<Peer, SystemError> {
        let page = ProcessPage::new()?;
        let bell = doorbell::button(0).map_err(system("eventfd"))?;
        match Peer::new(info, page.file(), bell, local) {
            Ok(peer) => Ok(peer),
            Err(PeerError::System(error)) => Err(error),
            Err(error) => unreachable!("a page of our own: {error}"),
        }
    }

    /// Rings the peer if it sleeps. To be called after the news was published. One fence when it
    /// is awake; a system call when it sleeps and was not rung yet. Returns whether it rang.
    #[inline]
    pub(crate) fn wake(&self) -> bool {
        let must = self.ringer.must_ring();
        if must {
            self.ring();
        }
        must
    }

    /// Rings it whether it sleeps or not.
    #[cold]
    pub(crate) fn ring(&self) {
        doorbell::ring(&self.bell);
        self.local.meter.add(count::DOORBELLS, 1);
    }

    /// Whether the peer was last seen on this processor, so that spinning would only keep it off.
    pub(crate) fn was_on(&self, cpu: u32) -> bool {
        self.cpu.load(Ordering::Relaxed) == cpu
    }

    /// Whether it has disabled pages of an export, by its own word.
    pub(crate) fn guards(&self) -> bool {
        self.guards.load(Ordering::Acquire) != 0
    }
}
