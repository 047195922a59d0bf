//! Buffers of clients that have gone, until they are withdrawn.
//!
//! A client that leaves a transfer begun in its link to our buffer delays the withdrawal by `VMMC_DRAIN_MS`; each of its bindings
//! may. So nobody waits for one: whoever is the last to hold a slot, be it the poll, a worker, or a thread that answers late, gives
//! the buffer to the acceptor, which begins the withdrawal, and finishes it when it may, between its other tasks. What is not
//! finished is limited: a process that has as many buffers on their way out as it may have bindings gets no others meanwhile.

use super::accept::Process;
use super::tasks::Tasks;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc::mem::View;
use vmmc::{Export, Withdrawal};

/// How often the acceptor looks whether a withdrawal may be finished that it had to leave.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// As many buffers may always be on their way out: a process of few bindings that closes one and binds again is not refused
/// because the acceptor has not come to it.
pub(super) const FEW: usize = 16;

/// Our buffer of a binding. Dropping it does not wait.
#[derive(Debug)]
pub(super) struct Calls {
    /// `None` only while this is dropped.
    export: Option<Export>,
    process: Process,
    tasks: Arc<Tasks>,
}

impl Calls {
    pub(super) fn new(export: Export, process: Process, tasks: Arc<Tasks>) -> Calls {
        Calls { export: Some(export), process, tasks }
    }

    #[inline(always)] // looked at in every turn
    pub(super) fn view(&self) -> View<'_> {
        match &self.export {
            Some(export) => export.view(),
            None => unreachable!("only the end of this takes it"),
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if let Some(export) = self.export.take() {
            self.tasks.push_gone(self.process.clone(), export);
        }
    }
}

/// What the acceptor has begun to withdraw.
#[derive(Debug)]
pub(super) struct Leaving {
    list: Vec<(Process, Withdrawal)>,
    next_look: Instant,
}

impl Leaving {
    pub(super) fn new() -> Leaving {
        Leaving { list: Vec::new(), next_look: Instant::now() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Withdraws a buffer, or begins to.
    pub(super) fn begin(&mut self, process: Process, export: Export, tasks: &Tasks) {
        let mut withdrawal = export.withdraw();
        match withdrawal.take_if(|withdrawal| !withdrawal.try_finish()) {
            Some(withdrawal) => self.list.push((process, withdrawal)),
            None => tasks.forget_gone(&process),
        }
    }

    /// Finishes what may be finished, now and then.
    pub(super) fn look(&mut self, tasks: &Tasks) {
        if self.list.is_empty() || Instant::now() < self.next_look {
            return;
        }
        for (process, _) in self.list.extract_if(.., |(_, withdrawal)| withdrawal.try_finish()) {
            tasks.forget_gone(&process);
        }
        self.next_look = Instant::now() + LOOK;
    }
}
