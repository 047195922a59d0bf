//! What belongs to this process rather than to one export or import: its page, its sleepers, its
//! policy. Held by everything that has a view into the page.

use crate::config::WaitPolicy;
use crate::error::{Forked, SystemError, system};
use crate::hub::Hub;
use crate::process::{Meter, NodeBell, NodeHub, ProcessPage};
use crate::sys::fork::ForkGuard;

/// See the module.
#[derive(Debug)]
pub(crate) struct Local {
    /// Dropped before the page that its word lies in.
    pub(crate) hub: NodeHub,
    pub(crate) page: ProcessPage,
    pub(crate) meter: Meter,
    guard: ForkGuard,
    generation: u32,
}

impl Local {
    pub(crate) fn new() -> Result<Local, SystemError> {
        let guard = ForkGuard::get()
            .ok_or(rustix::io::Errno::NOSYS)
            .map_err(system("madvise MADV_WIPEONFORK (Linux 4.14)"))?;
        let generation = guard.ensure_generation();
        let page = ProcessPage::new()?;
        page.note_cpu();
        Ok(Local {
            hub: Hub::new(page.armed(), NodeBell::new()?),
            meter: Meter(page.counters()),
            page,
            guard,
            generation,
        })
    }

    /// Whether this is the process that made it. One load.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        if self.guard.generation() == self.generation { Ok(()) } else { Err(Forked) }
    }
}

/// The policy for one wait: spinning for ever is done in slices, so that handlers get their turn.
pub(crate) const SPIN_SLICE: WaitPolicy =
    WaitPolicy::Hybrid { budget: std::time::Duration::from_micros(200) };
