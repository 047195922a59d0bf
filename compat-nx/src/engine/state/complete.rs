//! Ends of operations: complete, taken back, or forgotten.

use super::State;
use super::large::Fetching;
use crate::engine::counters as count;
use crate::engine::inner::Inner;
use crate::engine::ops::{OpId, Owner};
use crate::engine::types::{Info, Outcome};
use crate::error::NxError;

impl State {
    /// One part of an operation is complete; `info` if it was a receive.
    #[inline]
    pub(in crate::engine) fn complete(&mut self, e: &Inner, id: OpId, info: Option<Info>) {
        if info.is_some() {
            self.tally(e).add(count::RECEIVED, 1);
        }
        let op = self.ops.get_mut(id);
        if let Some(info) = info {
            if info.count > op.room.len && !e.settings.truncate {
                op.result = Err(NxError::MessageTooLong { info, room: op.room.len });
            } else {
                op.result = Ok(Outcome::Received(info));
            }
            if let Some(target) = op.info {
                // SAFETY: the caller of irecv promised that `write` may be called with `array`
                // until the operation is complete.
                #[allow(unsafe_code)]
                unsafe {
                    (target.write)(target.array, &info);
                }
            }
        }
        op.left -= 1;
        if op.left > 0 {
            return;
        }
        match &mut op.owner {
            Owner::Caller | Owner::Program | Owner::Merged => e.changed(),
            Owner::Nobody => {
                drop(self.ops.remove(id));
                e.changed(); // somebody may wait until it has come
            }
            Owner::Handler(handler) => {
                let handler = handler.take();
                e.count(count::HANDLERS, 1);
                let result = self.ops.remove(id).result.map(|outcome| match outcome {
                    Outcome::Received(info) => info,
                    Outcome::Sent => Info::default(),
                });
                if let Some((handler, typesel)) = handler {
                    e.handlers.queue(handler, typesel, result);
                }
            }
        }
    }

    /// Takes an operation back: afterwards its memory is the program's again (`msgcancel`). False when a
    /// part of it can no longer be taken back and will complete soon.
    pub(in crate::engine) fn cancel(&mut self, e: &Inner, id: OpId) -> bool {
        self.ops.get_mut(id).is_cancelled = true;
        if let Some(index) = self.posted.iter().position(|posted| posted.op == id) {
            self.unpost(index);
            self.ops.get_mut(id).left -= 1;
        }
        for peer in e.peers() {
            let out = &mut self.pair(peer.number as usize).out;
            let before = out.queue.len();
            out.queue.retain(|queued| queued.op != id);
            let dropped = (before - out.queue.len()) as u32;
            let empty = out.queue.is_empty();
            if dropped > 0 {
                if empty {
                    peer.await_credit(None);
                    self.starving -= 1;
                }
                // What was asked for was for a letter that is no more; others may need something else.
                self.ask_anew(e, peer);
            }
            self.ops.get_mut(id).left -= dropped;
        }
        self.ops.get(id).left == 0
    }

    /// Forgets an operation whose caller goes away because the job has ended.
    pub(in crate::engine) fn abandon(&mut self, id: OpId) {
        self.revoke_targets();
        self.posted.retain(|posted| posted.op != id);
        self.fetching.retain(|fetching| fetching.posted.op != id);
        for pair in &mut self.pairs {
            pair.out.queue.retain(|queued| queued.op != id);
        }
        self.ops.remove(id);
    }

    /// Takes back the posted handler receives of a selector (`hrecv` with a null handler). Returns their handlers, which
    /// are dropped without the lock: what they own is the program's, and may call anything.
    #[must_use]
    pub(in crate::engine) fn cancel_handlers(&mut self, typesel: i32) -> Vec<Owner> {
        let mut cancelled = Vec::new();
        let mut i = 0;
        while let Some(posted) = self.posted.get(i) {
            if self.is_for_handler(posted.op) && posted.select.typesel == typesel {
                let posted = self.unpost(i);
                let op = self.ops.get_mut(posted.op);
                op.left -= 1;
                cancelled.push(if op.is_done() {
                    self.ops.remove(posted.op).owner
                } else {
                    // A send with a receive, of which the send is under way.
                    self.ops.disown(posted.op, Owner::Nobody)
                });
            } else {
                i += 1;
            }
        }
        cancelled
    }

    /// Gives up the handler receives of a selector whose messages are on their way into their rooms. Returns them, with their
    /// handlers.
    #[must_use]
    pub(in crate::engine) fn disown_coming(&mut self, typesel: i32) -> Vec<(OpId, Owner)> {
        let is_meant = |it: &&Fetching| {
            it.posted.select.typesel == typesel && self.is_for_handler(it.posted.op)
        };
        let coming: Vec<OpId> =
            self.fetching.iter().filter(is_meant).map(|it| it.posted.op).collect();
        coming.into_iter().map(|op| (op, self.ops.disown(op, Owner::Nobody))).collect()
    }

    /// Whether a message comes into a room that was given up.
    pub(in crate::engine) fn comes_for_nobody(&self, op: OpId) -> bool {
        let is_it = |it: &Fetching| it.posted.op == op;
        self.fetching.iter().any(is_it) && matches!(self.ops.get(op).owner, Owner::Nobody)
    }
}
