//! An export's notifications, fetched by the program or given to its handler.

use super::{Export, IncomingLink, Mode};
use crate::error::{FetchError, WaitDeliveredError, WaitError};
use crate::notify::Notification;
use crate::sync::{Mutex, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

impl Export {
    /// Stops notifications for this buffer: those sent from here on, and those that no handler has
    /// seen, are dropped (V23). Others are not concerned.
    pub fn discard_notifications(&self) {
        if self.node.local.check().is_err() {
            return; // a forked child has none
        }
        self.inner.accepting.store(false, Ordering::Relaxed);
        self.tell_accept();
        self.node.collect();
        self.node.inbox.purge_messages(&self.inner);
    }

    /// Accepts notifications again. What was sent meanwhile is not delivered.
    pub fn accept_notifications(&self) {
        if self.node.local.check().is_err() {
            return; // a forked child has none
        }
        self.node.collect(); // drops what is in the segments
        self.inner.accepting.store(true, Ordering::Relaxed);
        self.tell_accept();
    }

    fn tell_accept(&self) {
        for link in self.inner.links.lock().iter() {
            link.shm.set_accept(self.inner.wants_notifications());
        }
    }

    /// The next notification, if the export was opened with [`crate::ExportBuilder::queue`] and there is one.
    ///
    /// # Errors
    /// [`FetchError::NoQueue`]; [`FetchError::Wait`] in a forked child.
    pub fn try_next_notification(&self) -> Result<Option<Notification>, FetchError> {
        self.node.local.check().map_err(WaitError::from)?;
        let Mode::Queue(queue) = &self.inner.mode else { return Err(FetchError::NoQueue) };
        if let Some(next) = self.pop(queue) {
            return Ok(Some(next));
        }
        self.node.collect();
        Ok(self.pop(queue))
    }

    fn pop(
        &self,
        queue: &Mutex<VecDeque<(Notification, Arc<IncomingLink>)>>,
    ) -> Option<Notification> {
        let (next, link) = queue.lock().pop_front()?;
        link.queued.fetch_sub(1, Ordering::Relaxed);
        self.inner.local.meter.add(crate::counters::index::NOTIFIES_DELIVERED, 1);
        Some(next)
    }

    /// Waits for the next notification of this export, whatever arrives for others (V24).
    ///
    /// # Errors
    /// [`FetchError::NoQueue`] unless opened with [`crate::ExportBuilder::queue`];
    /// [`FetchError::Wait`] for a timeout.
    pub fn next_notification(&self, timeout: Option<Duration>) -> Result<Notification, FetchError> {
        let Mode::Queue(queue) = &self.inner.mode else { return Err(FetchError::NoQueue) };
        let links = || self.inner.links.lock().iter().any(|link| link.shm.has_news());
        Ok(self.node.wait_until(
            timeout,
            |cpu| self.inner.shares_cpu(cpu),
            |_| {
                if let Some(next) = self.pop(queue) {
                    return Some(Ok(next));
                }
                if links() {
                    self.node.collect();
                }
                self.pop(queue).map(Ok)
            },
        )?)
    }

    /// How many times the handler has run. For [`Export::wait_delivered`].
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.inner.delivered.load(Ordering::Acquire)
    }

    /// Waits until the handler of this export has run more than `since` times, and returns how many
    /// (V24). Handlers run meanwhile, in this thread unless there is a handler thread. Nothing is lost
    /// between a call of [`Export::delivered`] and this.
    ///
    /// # Errors
    /// [`WaitDeliveredError::InHandler`]: no handler runs until this one returns.
    pub fn wait_delivered(
        &self,
        since: u64,
        timeout: Option<Duration>,
    ) -> Result<u64, WaitDeliveredError> {
        self.node.local.check().map_err(WaitError::from)?;
        if self.node.inbox.in_handler() {
            return Err(WaitDeliveredError::InHandler);
        }
        Ok(self.node.wait_until(
            timeout,
            |cpu| self.inner.shares_cpu(cpu),
            |_| {
                if self.node.inbox_has_work() {
                    self.node.dispatch();
                }
                let now = self.delivered();
                (now > since).then_some(Ok(now))
            },
        )?)
    }
}
