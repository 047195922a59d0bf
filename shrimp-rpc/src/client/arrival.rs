//! Waiting without a thread: for a reply, and for the time to be over ([`Alarm`]) while one waits for a lane.

use super::lane::Watch;
use super::limit::Limit;
use crate::error::{CallError, TransportError};
use crate::reactor::{Event, Never, Reactor};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use vmmc::Node;

/// Looks of a future before it asks to be woken: about as long as a short call takes.
const LOOKS: u32 = 100;

impl Event for Watch {
    fn is_there(&self) -> bool {
        self.look().is_some()
    }
}

/// Ready when the reply is there, the server gone, or the time over.
#[derive(Debug)]
pub(super) struct Arrival<'a> {
    reactor: &'a Arc<Reactor>,
    node: &'a Node,
    watch: Arc<Watch>,
    event: Arc<dyn Event>,
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
        let event: Arc<dyn Event> = watch.clone();
        Arrival { reactor, node, watch, event, limit, deadline, polled: false }
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
        let asked = self.reactor.watch(self.node, &self.event, cx.waker(), self.deadline);
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
        self.reactor.forget(&self.event);
    }
}

/// Wakes a future that waits for something else when its time is over.
#[derive(Debug)]
pub(super) struct Alarm<'a> {
    reactor: &'a Arc<Reactor>,
    node: &'a Node,
    event: Arc<dyn Event>,
    deadline: Instant,
}

impl<'a> Alarm<'a> {
    pub(super) fn new(reactor: &'a Arc<Reactor>, node: &'a Node, deadline: Instant) -> Alarm<'a> {
        Alarm { reactor, node, event: Arc::new(Never), deadline }
    }

    /// Ready when the time is over; has the future woken then.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<(), TransportError>> {
        if Instant::now() >= self.deadline {
            return Poll::Ready(Ok(()));
        }
        match self.reactor.watch(self.node, &self.event, cx.waker(), Some(self.deadline)) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.reactor.forget(&self.event);
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
