//! Futures that wait for what the other side stores: woken by one helper thread for each client, and for each server.
//!
//! The helper sleeps on a condition variable of its own while no future waits, so that it does not keep
//! the process's doorbell armed; otherwise it waits like any thread does, looking at all that futures wait for. A future
//! enters its [`Event`] in the list *before* it looks for the last time, and the helper looks at the whole list after it
//! armed the doorbell: either the future sees what was stored, or the other side sees the doorbell armed.
//!
//! The helper also ends what waits for too long. Under the list's lock it says where it sleeps and until when, so that
//! who enters a deadline knows what wakes it, if anything must.

use crate::error::TransportError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};
use vmmc::Node;
use vmmc::error::WaitError;
use vmmc::sync::{AtomicBool, Ordering};

/// How long a helper that cannot sleep at the doorbell leaves the list alone.
const SLEEPLESS: Duration = Duration::from_millis(1);

/// What a future waits for. Whoever makes it happen wakes the node's waiters.
pub(crate) trait Event: std::fmt::Debug + Send + Sync {
    /// Whether it has happened.
    fn is_there(&self) -> bool;
}

/// Nothing but the deadline: whatever else the future waits for wakes it by other means.
#[derive(Debug)]
pub(crate) struct Never;

impl Event for Never {
    fn is_there(&self) -> bool {
        false
    }
}

/// The helper thread's list.
#[derive(Debug)]
pub(crate) struct Reactor {
    thread: &'static str,
    list: Mutex<List>,
    more: Condvar,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct List {
    entries: Vec<Entry>,
    /// There is a helper.
    runs: bool,
    /// The helper sleeps at the doorbell, or is about to; otherwise on the condition variable.
    at_bell: bool,
    /// Until when it sleeps at the doorbell; `None`: without end.
    until: Option<Instant>,
}

impl List {
    fn soonest(&self) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| entry.deadline).min()
    }

    /// Whether the helper must not sleep for as long as it meant to, for that deadline.
    fn is_sooner(&self, deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|at| self.until.is_none_or(|until| at < until))
    }
}

#[derive(Debug)]
struct Entry {
    event: Arc<dyn Event>,
    waker: Waker,
    deadline: Option<Instant>,
}

impl Entry {
    fn is_of(&self, event: &Arc<dyn Event>) -> bool {
        Arc::ptr_eq(&self.event, event)
    }
}

impl Reactor {
    /// One whose helper, once there is one, is called so.
    pub(crate) fn new(thread: &'static str) -> Reactor {
        Reactor {
            thread,
            list: Mutex::default(),
            more: Condvar::new(),
            stop: AtomicBool::new(false),
        }
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `waker` woken when `event` is there or the deadline past. The caller **must** look at it again after this.
    ///
    /// # Errors
    /// [`TransportError::Thread`] when there is no helper yet, and cannot be.
    pub(crate) fn watch(
        self: &Arc<Self>,
        node: &Node,
        event: &Arc<dyn Event>,
        waker: &Waker,
        deadline: Option<Instant>,
    ) -> Result<(), TransportError> {
        let waker = waker.clone();
        let mut list = self.list();
        if !list.runs {
            let (reactor, node) = (self.clone(), node.clone());
            let thread = std::thread::Builder::new().name(self.thread.into());
            if let Err(error) = thread.spawn(move || reactor.run(&node)) {
                drop(list);
                return Err(TransportError::Thread(error.kind()));
            }
            list.runs = true;
        }
        // Wakers are the executor's code: none is dropped or called while the list is locked.
        let before = match list.entries.iter_mut().find(|entry| entry.is_of(event)) {
            Some(entry) => Some(std::mem::replace(&mut entry.waker, waker)),
            None => {
                list.entries.push(Entry { event: event.clone(), waker, deadline });
                None
            }
        };
        let sleeps_too_long = list.at_bell && list.is_sooner(deadline);
        let on_condition = !list.at_bell;
        drop(list);
        drop(before);
        if on_condition {
            self.more.notify_one();
        } else if sleeps_too_long {
            node.wake_waiters();
        }
        Ok(())
    }

    /// Nobody waits for that one any more.
    pub(crate) fn forget(&self, event: &Arc<dyn Event>) {
        let gone: Vec<Entry> =
            self.list().entries.extract_if(.., |entry| entry.is_of(event)).collect();
        drop(gone);
    }

    /// No future is watched any more; those that wait are woken.
    pub(crate) fn end(&self, node: &Node) {
        self.stop.store(true, Ordering::Release);
        let list = self.list();
        self.more.notify_one();
        drop(list);
        node.wake_waiters();
    }

    fn run(&self, node: &Node) {
        loop {
            let mut list = self.list();
            list.at_bell = false;
            while list.entries.is_empty() && !self.stop.load(Ordering::Acquire) {
                list = self.more.wait(list).unwrap_or_else(PoisonError::into_inner);
            }
            list.at_bell = true;
            list.until = list.soonest();
            let until = list.until;
            drop(list);
            if self.stop.load(Ordering::Acquire) {
                let last = std::mem::take(&mut self.list().entries);
                last.into_iter().for_each(|entry| wake(entry.waker));
                return;
            }
            let left = until.map(|at| at.saturating_duration_since(Instant::now()));
            let woken = node.wait_until(
                left,
                |_| false,
                |_| {
                    let mut list = self.list();
                    let ready: Vec<Waker> = list
                        .entries
                        .extract_if(.., |entry| entry.event.is_there())
                        .map(|entry| entry.waker)
                        .collect();
                    let done = !ready.is_empty()
                        || list.entries.is_empty()
                        || list.is_sooner(list.soonest())
                        || self.stop.load(Ordering::Acquire);
                    done.then_some(ready)
                },
            );
            let ready = match woken {
                Ok(ready) => ready,
                Err(WaitError::Forked(_)) => return,
                Err(error) => {
                    if !matches!(error, WaitError::TimedOut { .. }) {
                        std::thread::sleep(SLEEPLESS);
                    }
                    let now = Instant::now();
                    let late = |entry: &mut Entry| entry.deadline.is_some_and(|at| at <= now);
                    self.list().entries.extract_if(.., late).map(|entry| entry.waker).collect()
                }
            };
            ready.into_iter().for_each(wake);
        }
    }
}

/// Wakes a future. An executor that panics in that has told so by then; the others are woken all the same.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}
