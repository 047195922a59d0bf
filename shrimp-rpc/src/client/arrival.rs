//! Waiting for a reply without a thread: futures, woken by one helper thread per client.
//!
//! The helper sleeps on a condition variable of its own while no future waits, so that it does not keep
//! the process's doorbell armed; otherwise it waits like any thread does, looking at the flags of all
//! calls that futures wait for. A future enters its call in the list *before* it looks at the
//! flag for the last time, and the helper looks at the whole list after it armed the doorbell: either
//! the future sees the reply, or the server sees the doorbell armed.

use super::lane::Watch;
use crate::error::CallError;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use vmmc::Node;
use vmmc::sync::{AtomicBool, Ordering};

/// Looks of a future before it asks to be woken: about as long as a short call takes.
const LOOKS: u32 = 100;

/// The helper thread's list.
#[derive(Debug, Default)]
pub(super) struct Reactor {
    entries: Mutex<Vec<Entry>>,
    more: Condvar,
    started: AtomicBool,
    stop: AtomicBool,
}

#[derive(Debug)]
struct Entry {
    watch: Arc<Watch>,
    waker: Waker,
    deadline: Option<Instant>,
}

impl Reactor {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `waker` woken when the reply is there, the server gone or the deadline past.
    pub(super) fn watch(
        self: &Arc<Self>,
        node: &Node,
        watch: &Arc<Watch>,
        waker: &Waker,
        deadline: Option<Instant>,
    ) -> Result<(), std::io::Error> {
        if !self.started.swap(true, Ordering::AcqRel) {
            let (reactor, node) = (self.clone(), node.clone());
            let thread = std::thread::Builder::new().name("rpc-replies".into());
            if let Err(error) = thread.spawn(move || reactor.run(&node)) {
                self.started.store(false, Ordering::Release);
                return Err(error);
            }
        }
        let mut entries = self.entries();
        let was_empty = entries.is_empty();
        let sooner = deadline.is_some();
        match entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.watch, watch)) {
            Some(entry) => entry.waker.clone_from(waker),
            None => entries.push(Entry { watch: watch.clone(), waker: waker.clone(), deadline }),
        }
        drop(entries);
        if was_empty {
            self.more.notify_one();
        } else if sooner {
            node.wake_waiters(); // it may have to wait less long than it does
        }
        Ok(())
    }

    /// Nobody waits for that one any more.
    pub(super) fn forget(&self, watch: &Arc<Watch>) {
        self.entries().retain(|entry| !Arc::ptr_eq(&entry.watch, watch));
    }

    /// The client is dropped.
    pub(super) fn end(&self, node: &Node) {
        self.stop.store(true, Ordering::Release);
        let entries = self.entries();
        self.more.notify_one();
        drop(entries);
        node.wake_waiters();
    }

    fn run(&self, node: &Node) {
        loop {
            let mut entries = self.entries();
            while entries.is_empty() && !self.stop.load(Ordering::Acquire) {
                entries = self.more.wait(entries).unwrap_or_else(PoisonError::into_inner);
            }
            let next = entries.iter().filter_map(|entry| entry.deadline).min();
            drop(entries);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let left = next.map(|at| at.saturating_duration_since(Instant::now()));
            let woken = node.wait_until(
                left,
                |_| false,
                |_| {
                    let mut entries = self.entries();
                    let ready: Vec<Waker> = entries
                        .extract_if(.., |entry| entry.watch.look().is_some())
                        .map(|entry| entry.waker)
                        .collect();
                    let done = !ready.is_empty()
                        || entries.is_empty()
                        || entries.iter().filter_map(|entry| entry.deadline).min() < next
                        || self.stop.load(Ordering::Acquire);
                    done.then_some(ready)
                },
            );
            let ready = match woken {
                Ok(ready) => ready,
                Err(vmmc::error::WaitError::TimedOut { .. }) => {
                    let now = Instant::now();
                    let late = |entry: &mut Entry| entry.deadline.is_some_and(|at| at <= now);
                    self.entries().extract_if(.., late).map(|entry| entry.waker).collect()
                }
                Err(_) => return, // a forked child
            };
            ready.into_iter().for_each(Waker::wake);
        }
    }
}

/// Ready when the reply is there, the server gone, or the time over.
#[derive(Debug)]
pub(super) struct Arrival<'a> {
    reactor: &'a Arc<Reactor>,
    node: &'a Node,
    watch: Arc<Watch>,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    polled: bool,
}

impl<'a> Arrival<'a> {
    pub(super) fn new(
        reactor: &'a Arc<Reactor>,
        node: &'a Node,
        watch: Arc<Watch>,
        timeout: Option<Duration>,
    ) -> Arrival<'a> {
        let deadline = vmmc::wait::deadline_after(timeout);
        Arrival { reactor, node, watch, timeout, deadline, polled: false }
    }
}

impl Future for Arrival<'_> {
    type Output = Result<u64, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let looks = if std::mem::replace(&mut self.polled, true) { 1 } else { LOOKS };
        let found = |found: Result<u64, vmmc::error::Closed>| {
            Poll::Ready(found.map_err(|closed| CallError::ServerGone { closed }))
        };
        for _ in 0..looks {
            if let Some(reply) = self.watch.look() {
                return found(reply);
            }
            vmmc::sync::spin_hint();
        }
        if self.deadline.is_some_and(|at| Instant::now() >= at) {
            return Poll::Ready(Err(CallError::TimedOut {
                after: self.timeout.unwrap_or_default(),
            }));
        }
        let asked = self.reactor.watch(self.node, &self.watch, cx.waker(), self.deadline);
        if let Err(error) = asked {
            return Poll::Ready(Err(crate::TransportError::Thread(error.kind()).into()));
        }
        match self.watch.look() {
            Some(reply) => found(reply),
            None => Poll::Pending,
        }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.reactor.forget(&self.watch);
    }
}

/// The result of a future that never waits.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a blocking call waits inside"),
    }
}
