//! Waiting for a reply without a thread: futures, woken by one helper thread per client.
//!
//! The helper sleeps on a condition variable of its own while no future waits, so that it does not keep
//! the process's doorbell armed; otherwise it waits like any thread does, looking at the flags of all
//! calls that futures wait for. A future enters its call in the list *before* it looks at the
//! flag for the last time, and the helper looks at the whole list after it armed the doorbell: either
//! the future sees the reply, or the server sees the doorbell armed.
//!
//! The helper also ends what waits for too long, be it for a reply or for a lane ([`Alarm`]). Under the list's lock
//! it says where it sleeps and until when, so that who enters a deadline knows what wakes it, if anything must.

use super::lane::Watch;
use super::limit::Limit;
use crate::error::{CallError, TransportError};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use vmmc::Node;
use vmmc::sync::{AtomicBool, Ordering};

/// Looks of a future before it asks to be woken: about as long as a short call takes.
const LOOKS: u32 = 100;

/// The helper thread's list.
#[derive(Debug, Default)]
pub(super) struct Reactor {
    list: Mutex<List>,
    more: Condvar,
    started: AtomicBool,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct List {
    entries: Vec<Entry>,
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

/// What a future waits for.
#[derive(Clone, Debug)]
pub(super) enum Awaited {
    Reply(Arc<Watch>),
    /// That the time is over: whatever else it waits for wakes it by other means.
    Time(Arc<()>),
}

impl Awaited {
    fn is(&self, other: &Awaited) -> bool {
        match (self, other) {
            (Awaited::Reply(one), Awaited::Reply(other)) => Arc::ptr_eq(one, other),
            (Awaited::Time(one), Awaited::Time(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    fn is_there(&self) -> bool {
        match self {
            Awaited::Reply(watch) => watch.look().is_some(),
            Awaited::Time(_) => false,
        }
    }
}

#[derive(Debug)]
struct Entry {
    awaited: Awaited,
    waker: Waker,
    deadline: Option<Instant>,
}

impl Reactor {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `waker` woken when the reply is there, the server gone or the deadline past.
    fn watch(
        self: &Arc<Self>,
        node: &Node,
        awaited: &Awaited,
        waker: &Waker,
        deadline: Option<Instant>,
    ) -> Result<(), TransportError> {
        if !self.started.swap(true, Ordering::AcqRel) {
            let (reactor, node) = (self.clone(), node.clone());
            let thread = std::thread::Builder::new().name("rpc-replies".into());
            if let Err(error) = thread.spawn(move || reactor.run(&node)) {
                self.started.store(false, Ordering::Release);
                return Err(TransportError::Thread(error.kind()));
            }
        }
        let mut list = self.list();
        match list.entries.iter_mut().find(|entry| entry.awaited.is(awaited)) {
            Some(entry) => entry.waker.clone_from(waker),
            None => {
                let (awaited, waker) = (awaited.clone(), waker.clone());
                list.entries.push(Entry { awaited, waker, deadline });
            }
        }
        let sleeps_too_long = list.at_bell && list.is_sooner(deadline);
        let on_condition = !list.at_bell;
        drop(list);
        if on_condition {
            self.more.notify_one();
        } else if sleeps_too_long {
            node.wake_waiters();
        }
        Ok(())
    }

    /// Nobody waits for that one any more.
    fn forget(&self, awaited: &Awaited) {
        self.list().entries.retain(|entry| !entry.awaited.is(awaited));
    }

    /// The client is dropped.
    pub(super) fn end(&self, node: &Node) {
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
                        .extract_if(.., |entry| entry.awaited.is_there())
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
                Err(vmmc::error::WaitError::TimedOut { .. }) => {
                    let now = Instant::now();
                    let late = |entry: &mut Entry| entry.deadline.is_some_and(|at| at <= now);
                    self.list().entries.extract_if(.., late).map(|entry| entry.waker).collect()
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
    awaited: Awaited,
    limit: Limit,
    deadline: Option<Instant>,
    polled: bool,
}

impl<'a> Arrival<'a> {
    pub(super) fn new(
        reactor: &'a Arc<Reactor>,
        node: &'a Node,
        watch: Arc<Watch>,
        limit: Limit,
    ) -> Arrival<'a> {
        let deadline = vmmc::wait::deadline_after(limit.left());
        let awaited = Awaited::Reply(watch.clone());
        Arrival { reactor, node, watch, awaited, limit, deadline, polled: false }
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
            return Poll::Ready(Err(self.limit.late()));
        }
        let asked = self.reactor.watch(self.node, &self.awaited, cx.waker(), self.deadline);
        if let Err(error) = asked {
            return Poll::Ready(Err(error.into()));
        }
        match self.watch.look() {
            Some(reply) => found(reply),
            None => Poll::Pending,
        }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.reactor.forget(&self.awaited);
    }
}

/// Wakes a future that waits for something else when its time is over.
#[derive(Debug)]
pub(super) struct Alarm<'a> {
    reactor: &'a Arc<Reactor>,
    node: &'a Node,
    awaited: Awaited,
    deadline: Instant,
}

impl<'a> Alarm<'a> {
    pub(super) fn new(reactor: &'a Arc<Reactor>, node: &'a Node, deadline: Instant) -> Alarm<'a> {
        Alarm { reactor, node, awaited: Awaited::Time(Arc::default()), deadline }
    }

    /// Ready when the time is over; has the future woken then.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<(), TransportError>> {
        if Instant::now() >= self.deadline {
            return Poll::Ready(Ok(()));
        }
        match self.reactor.watch(self.node, &self.awaited, cx.waker(), Some(self.deadline)) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.reactor.forget(&self.awaited);
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
