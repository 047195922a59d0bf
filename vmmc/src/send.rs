//! Non-blocking deliberate update: a helper thread that copies (V14).

use crate::error::{SendError, SystemError, system};
use crate::import::{LinkOwner, send_error};
use crate::node::{NodeInner, spawn_quiet};
use crate::sync::{Condvar, Mutex, Ordering};
use crate::transport::engine::Engine as _;
use std::any::Any;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

/// The helper thread of a process, made at the first non-blocking send.
#[derive(Debug)]
pub(crate) struct Copier {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stop: bool,
}

/// A source of bytes whose type was forgotten; given back through `Any`.
trait Source: Send {
    fn bytes(&self) -> &[u8];
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

impl<B: AsRef<[u8]> + Send + 'static> Source for B {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

struct Job {
    owner: Arc<LinkOwner>,
    offset: usize,
    source: Box<dyn Source>,
    ticket: Arc<Ticket>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// The result of a transfer, and its source.
type Finished = (Result<(), SendError>, Box<dyn Any + Send>);

/// Where a finished transfer leaves its result and its source.
#[derive(Default)]
struct Ticket {
    done: Mutex<Option<Finished>>,
    finished: Condvar,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// A started send; see [`crate::Import::start_send`]. Dropping it does not stop the send.
#[derive(Debug)]
#[must_use]
pub struct Completion<B> {
    ticket: Arc<Ticket>,
    source: PhantomData<B>,
}

impl<B: 'static> Completion<B> {
    /// Whether the transfer is over; [`Completion::wait`] does not block then.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ticket.done.lock().is_some()
    }

    /// Waits until the bytes are in the exporter's memory, and gives the source back. What this thread
    /// sends after it comes after them. In a forked child a send that was not over at the fork is never over.
    ///
    /// # Errors
    /// See [`SendError`], with the source.
    pub fn wait(self) -> Result<B, (SendError, B)> {
        let mut done = self.ticket.done.lock();
        let (result, source) = loop {
            match done.take() {
                Some(found) => break found,
                None => done = self.ticket.finished.wait(done, None),
            }
        };
        let source = match source.downcast::<B>() {
            Ok(source) => *source,
            Err(_) => unreachable!("the copier gives back what it was given"),
        };
        match result {
            Ok(()) => Ok(source),
            Err(error) => Err((error, source)),
        }
    }
}

impl Copier {
    fn new() -> Result<Copier, SystemError> {
        let shared = Arc::new(Shared::default());
        let worker = shared.clone();
        spawn_quiet("vmmc-copier", move || work(&worker)).map_err(system("copier thread"))?;
        Ok(Copier { shared })
    }

    pub(crate) fn start<B: AsRef<[u8]> + Send + 'static>(
        &self,
        owner: Arc<LinkOwner>,
        offset: usize,
        source: B,
    ) -> Completion<B> {
        let ticket = Arc::new(Ticket::default());
        owner.inner.started.fetch_add(1, Ordering::AcqRel);
        let job = Job { owner, offset, source: Box::new(source), ticket: ticket.clone() };
        self.shared.queue.lock().jobs.push_back(job);
        self.shared.arrived.notify_all();
        Completion { ticket, source: PhantomData }
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.arrived.notify_all();
    }
}

fn work(shared: &Shared) {
    loop {
        let job = {
            let mut queue = shared.queue.lock();
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.stop {
                    return;
                }
                queue = shared.arrived.wait(queue, None);
            }
        };
        let Job { owner, offset, source, ticket } = job;
        let written = owner.inner.link.write(offset, source.bytes());
        let result = written.map_err(|error| send_error(error, owner.inner.peer.info));
        *ticket.done.lock() = Some((result, source.into_any()));
        ticket.finished.notify_all();
        // The link is let go before the send counts as complete, so that an unimport that waited
        // for it is the one that closes the link.
        let inner = owner.inner.clone();
        drop(owner);
        inner.started.fetch_sub(1, Ordering::AcqRel);
        inner.local.hub.wake_all();
    }
}

impl NodeInner {
    /// The copier, started at the first call.
    pub(crate) fn copier(&self) -> Result<&Copier, SystemError> {
        if self.copier.get().is_none() {
            let _ = self.copier.set(Copier::new()?); // another thread's is as good
        }
        match self.copier.get() {
            Some(copier) => Ok(copier),
            None => unreachable!("set above"),
        }
    }
}
