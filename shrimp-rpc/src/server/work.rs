//! The threads that serve.

use super::call::{self, Desk, ServerCall};
use super::poll::Poll;
use super::slot::{Ready, Slot, Step};
use super::{Shared, Task};
use crate::error::{DispatchError, Fault, ReplyError};
use crate::layout::{Status, Turn};
use crate::process::count;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use vmmc::sync::Ordering;

/// Calls between two looks at the door while the server never sleeps.
const CALLS_PER_DISPATCH: u32 = 64;

/// Who polls, and who could.
#[derive(Debug)]
pub(super) struct Staff {}

impl Staff {
    pub(super) fn new() -> Staff {
        Staff {}
    }

    pub(super) fn wake_all(&self) {}
}

/// What a wait found.
enum Found {
    /// Number of the hot slot, and its flag.
    Message(usize, u64),
    /// Slots came or went, or the server ends.
    Change,
}

pub(super) fn worker(shared: &Arc<Shared>) {
    let mut calls = 0u32;
    // Of the client served last; often it is the next one too.
    let mut desk = None;
    let mut poll = shared.poll.lock().unwrap_or_else(PoisonError::into_inner);
    while !shared.is_stopping() {
        match next(shared, &mut poll) {
            Some(Found::Message(hot, word)) => {
                if let Some(slot) = poll.slot(hot) {
                    serve(shared, &mut desk, slot, word);
                }
                calls = calls.wrapping_add(1);
                if calls.is_multiple_of(CALLS_PER_DISPATCH) {
                    shared.node.dispatch();
                }
            }
            Some(Found::Change) => change(shared, &mut poll),
            None => return,
        }
    }
}

fn next(shared: &Shared, poll: &mut MutexGuard<'_, Poll>) -> Option<Found> {
    let found = shared.node.wait_until(None, None, |look| {
        if let Some((hot, word)) = poll.look(look, &shared.node) {
            return Some(Found::Message(hot, word));
        }
        let changed = shared.changed.load(Ordering::Relaxed) || shared.stop.load(Ordering::Relaxed);
        changed.then_some(Found::Change)
    });
    found.ok() // in a forked child there is nothing to serve
}

#[cold]
fn change(shared: &Shared, poll: &mut MutexGuard<'_, Poll>) {
    shared.changed.store(false, Ordering::Relaxed);
    vmmc::sync::fence(Ordering::SeqCst);
    let fresh = std::mem::take(&mut *shared.fresh.lock().unwrap_or_else(PoisonError::into_inner));
    for slot in fresh {
        poll.add(slot);
    }
    for slot in poll.take_ended() {
        shared.tasks.push(Task::Drop(slot));
    }
}

#[inline]
fn serve(shared: &Shared, last: &mut Option<Desk>, slot: &Arc<Slot>, word: u64) {
    match slot.accept(word) {
        Step::Call(ready) => {
            let desk = match last {
                Some(desk) if desk.is_of(slot) => desk,
                last => last.insert(Desk::new(slot.clone())),
            };
            desk.renew(&ready);
            run(desk, ready);
        }
        Step::Done => {}
        Step::Faulty => faulty(shared, slot),
    }
}

/// The client wrote what no client writes: it is not listened to any more.
#[cold]
fn faulty(shared: &Shared, slot: &Arc<Slot>) {
    slot.node().counters().add(count::FAULTY_PEERS, 1);
    slot.end();
    let key = shared.slots().iter().find(|(_, one)| Arc::ptr_eq(one, slot)).map(|(key, _)| *key);
    if let Some(key) = key {
        shared.tasks.push_end(key);
    }
}

/// Runs the handler of a call.
#[inline]
fn run(desk: &Desk, ready: Ready) {
    let (turn, procedure) = (ready.turn, ready.procedure);
    let slot = desk.slot();
    let call = ServerCall::new(desk, ready);
    let dispatch = AssertUnwindSafe(|| (slot.program.dispatch)(procedure, call));
    match catch_unwind(dispatch) {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => refuse(slot, turn, &error),
        Err(_) => {
            let fault = Fault::new(Fault::PANICKED, "the handler panicked");
            refuse(slot, turn, &DispatchError::Fault(fault));
        }
    }
    slot.node().counters().add(count::SERVED, 1);
}

/// Tells the client why there is no reply, unless there was one.
#[cold]
fn refuse(slot: &Slot, turn: Turn, error: &DispatchError) {
    if !slot.is_unanswered(turn) {
        return;
    }
    let (status, fault) = match error {
        DispatchError::UnknownProcedure(_) => {
            (Status::UnknownProcedure, Fault::new(0, "no such procedure"))
        }
        DispatchError::BadArguments(error) => {
            (Status::BadArguments, Fault::with_text(0, error.to_string()))
        }
        DispatchError::BadResults(error) => {
            (Status::BadResults, Fault::with_text(0, error.to_string()))
        }
        DispatchError::Fault(fault) => (Status::Fault, fault.clone()),
        DispatchError::Reply(ReplyError::TooLong { .. }) => {
            (Status::TooLong, Fault::new(0, "the reply is too long"))
        }
        DispatchError::Reply(error) => (Status::BadResults, Fault::with_text(0, error.to_string())),
    };
    let _ = call::send_fault(slot, turn, status, &fault); // the client may have gone
}
