//! Awaiting the end of a caller's patience.
//!
//! Who gives a call up stores its turn in the head of our buffer and rings; a client's end, and the server's own, end the slot and wake
//! the node's waiters. So the reactor's helper sees each of them, and keeps the deadline itself.

use super::super::slot::Slot;
use super::Context;
use crate::layout::Turn;
use crate::reactor::Event;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

/// A future that is ready when nobody waits for the reply any more: [`Context::cancelled`].
#[derive(Debug)]
pub struct Cancelled<'c> {
    context: &'c Context,
    deadline: Option<Instant>,
    /// Once it has waited.
    event: Option<Arc<dyn Event>>,
}

impl<'c> Cancelled<'c> {
    pub(super) fn new(context: &'c Context) -> Cancelled<'c> {
        let deadline = vmmc::wait::deadline_after(context.time_left());
        Cancelled { context, deadline, event: None }
    }

    fn is_over(&self) -> bool {
        self.context.is_over() || self.deadline.is_some_and(|at| Instant::now() >= at)
    }
}

/// The end of one call.
#[derive(Debug)]
struct End {
    slot: Arc<Slot>,
    turn: Turn,
}

impl Event for End {
    fn is_there(&self) -> bool {
        self.slot.is_given_up(self.turn) || !self.slot.is_unanswered(self.turn)
    }
}

impl Future for Cancelled<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.is_over() {
            return Poll::Ready(());
        }
        let Context { slot, turn, .. } = self.context;
        let end = || Arc::new(End { slot: slot.clone(), turn: *turn });
        let event = self.event.get_or_insert_with(|| end()).clone();
        if slot.reactor().watch(slot.node(), &event, cx.waker(), self.deadline).is_err() {
            cx.waker().wake_by_ref(); // there is no thread that would
        }
        if self.is_over() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        if let Some(event) = &self.event {
            self.context.slot.reactor().forget(event);
        }
    }
}
