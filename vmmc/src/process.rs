//! What a process shows to those it is linked with: its page and its doorbell.

use crate::counters::{self, Counters};
use crate::error::{SystemError, system};
use crate::hub::{Bell, Hub};
use crate::layout::{self, page};
use crate::mem::View;
pub(crate) use crate::mem::owned_view;
use crate::sync::Ordering;
use crate::sys::doorbell::Doorbell;
use crate::sys::mmap::{Access, GuardedMapping};
use crate::sys::{Fd, memfd};
use crate::word::{MappedU32, Word};
use rustix::event::{EventfdFlags, epoll};
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A word whose offset is a constant of the layout and so always inside and aligned.
pub(crate) fn fixed32(view: View<'static>, offset: usize) -> MappedU32<'static> {
    match view.word32(offset) {
        Ok(word) => word,
        Err(error) => unreachable!("layout constant: {error}"),
    }
}

/// This process's page.
#[derive(Debug)]
pub(crate) struct ProcessPage {
    file: Fd,
    view: View<'static>,
    cpu: MappedU32<'static>,
    _mapping: GuardedMapping,
}

impl ProcessPage {
    pub(crate) fn new() -> Result<ProcessPage, SystemError> {
        let what = system("memory file of the process page");
        let file = memfd::create("vmmc-process", page::LEN as u64).map_err(&what)?;
        let mapping = GuardedMapping::new(&file, page::LEN, Access::ReadWrite)
            .map_err(system("mapping the process page"))?;
        // Inherited by forked children, unlike all other mappings here: whatever handle they use,
        // counting must not fault. They find out by the generation before they write more.
        // From here on no other process, whatever descriptor it gets, can map it writable.
        memfd::seal_single_writer(&file).map_err(system("sealing the process page"))?;
        let view = owned_view(&mapping, page::LEN);
        let page = ProcessPage { file, view, cpu: fixed32(view, page::CPU), _mapping: mapping };
        page.fill();
        Ok(page)
    }

    fn fill(&self) {
        self.cpu.store(u32::MAX, Ordering::Relaxed);
        fixed32(self.view, page::PID)
            .store(rustix::process::getpid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
        self.counters().name_all(counters::index::NAMES);
        fixed32(self.view, layout::HEAD_VERSION).store(layout::VERSION, Ordering::Relaxed);
        fixed32(self.view, layout::HEAD_BYTES).store(page::LEN as u32, Ordering::Relaxed);
        if let Ok(magic) = self.view.word64(layout::HEAD_MAGIC) {
            magic.store(page::MAGIC, Ordering::Release);
        }
    }

    pub(crate) fn file(&self) -> &Fd {
        &self.file
    }

    pub(crate) fn counters(&self) -> Counters<'static> {
        Counters::new(self.view)
    }

    pub(crate) fn armed(&self) -> MappedU32<'static> {
        fixed32(self.view, page::ARMED)
    }

    /// One export more, or less, has disabled pages.
    pub(crate) fn count_guard(&self, more: bool) {
        let by = if more { 1 } else { u32::MAX };
        fixed32(self.view, page::GUARDS).fetch_add(by, Ordering::AcqRel);
    }

    /// Notes the processor that the calling thread runs on, for peers that wonder whether to spin.
    /// Returns it.
    pub(crate) fn note_cpu(&self) -> u32 {
        let cpu = crate::sys::sched::current_cpu();
        if self.cpu.load(Ordering::Relaxed) != cpu {
            self.cpu.store(cpu, Ordering::Relaxed);
        }
        cpu
    }
}

/// The doorbell of this process, with the descriptor for outside event loops.
#[derive(Debug)]
pub(crate) struct NodeBell {
    doorbell: Doorbell,
    outside: OnceLock<Outside>,
}

/// For sleepers outside: an epoll descriptor that is readable when either of two others is.
#[derive(Debug)]
struct Outside {
    epoll: Fd,
    /// Signalled when a leader empties the doorbell that an outside sleeper also watches.
    event: Fd,
}

impl Outside {
    fn new(doorbell: &Doorbell) -> rustix::io::Result<Outside> {
        let epoll = Fd::from(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let event =
            Fd::from(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        for (fd, tag) in [(doorbell.fd(), 0), (&event, 1)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(tag), epoll::EventFlags::IN)?;
        }
        Ok(Outside { epoll, event })
    }
}

impl NodeBell {
    pub(crate) fn new() -> Result<NodeBell, SystemError> {
        let doorbell = Doorbell::new().map_err(system("making the doorbell"))?;
        Ok(NodeBell { doorbell, outside: OnceLock::new() })
    }

    pub(crate) fn fd(&self) -> &Fd {
        self.doorbell.fd()
    }

    /// The descriptor for outside event loops, made at the first call.
    pub(crate) fn outside_fd(&self) -> Result<BorrowedFd<'_>, SystemError> {
        if self.outside.get().is_none() {
            let made =
                Outside::new(&self.doorbell).map_err(system("descriptor for event loops"))?;
            let _ = self.outside.set(made); // another thread's is as good
        }
        match self.outside.get() {
            Some(outside) => Ok(outside.epoll.as_fd()),
            None => unreachable!("set above"),
        }
    }
}

impl Bell for NodeBell {
    type Error = rustix::io::Errno;

    fn wait(&self, deadline: Option<Instant>) -> rustix::io::Result<bool> {
        self.doorbell.wait(deadline)
    }

    fn drain(&self) {
        self.doorbell.drain();
    }

    fn ring_self(&self) {
        self.doorbell.ring_self();
    }

    fn signal_outside(&self) {
        if let Some(outside) = self.outside.get() {
            let _ = rustix::io::write(&outside.event, &1u64.to_ne_bytes());
        }
    }

    fn clear_outside(&self) {
        if let Some(outside) = self.outside.get() {
            let _ = rustix::io::read(&outside.event, &mut [0; 8]);
        }
    }
}

/// The hub over the process page and the doorbell.
pub(crate) type NodeHub = Hub<MappedU32<'static>, NodeBell>;

/// Counts an event of this process's, in a value that is cheap to keep anywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter(pub(crate) Counters<'static>);

impl Meter {
    #[inline]
    pub(crate) fn add(self, counter: usize, amount: u64) {
        self.0.add(counter, amount);
    }
}

/// A meter that outlives what made it: with what keeps its page.
#[derive(Debug)]
pub(crate) struct KeptMeter {
    meter: Meter,
    /// Never used, but dropped.
    _page: Arc<dyn Any + Send + Sync>,
}

impl KeptMeter {
    pub(crate) fn new(meter: Meter, page: Arc<dyn Any + Send + Sync>) -> KeptMeter {
        KeptMeter { meter, _page: page }
    }

    pub(crate) fn add(&self, counter: usize, amount: u64) {
        self.meter.add(counter, amount);
    }
}
