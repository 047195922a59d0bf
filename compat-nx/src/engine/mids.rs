//! Message ids: waiting, asking, merging, giving up.

use super::Engine;
use super::ops::{OpId, Owner};
use super::state::State;
use super::types::{Mid, Outcome, Target};
use crate::error::NxError;

/// Forgets a done operation and what it merges. Of several receives the last one's message is told, and
/// of several failures the first.
fn finish(state: &mut State, op: OpId) -> Result<Outcome, NxError> {
    let op = state.ops.remove(op);
    let mut result = op.result;
    for part in op.merged {
        match (finish(state, part), &result) {
            (_, Err(_)) | (Ok(Outcome::Sent), _) => {}
            (other, Ok(_)) => result = other,
        }
    }
    result
}

impl Engine {
    /// Waits until the operation is complete, and frees the id.
    ///
    /// # Errors
    /// [`NxError::BadMid`]; [`NxError::MessageTooLong`], the id is free then, too;
    /// [`NxError::PeerDied`] and its like when the job has ended.
    pub fn msgwait(&self, mid: Mid) -> Result<Outcome, NxError> {
        let inner = &*self.inner;
        let mut state = inner.state.lock();
        let op = state.ops.find(mid)?;
        if let Some(info) = state.receive_posted(inner, op) {
            return Ok(Outcome::Received(info));
        }
        let before = inner.changes();
        let glanced =
            inner.glance(&mut state, |state| state.ops.is_done(op).then(|| finish(state, op)));
        inner.wake_others(state, before);
        if let Some(result) = glanced {
            return result;
        }
        inner.wait(|state| match state.ops.find(mid) {
            Err(error) => Some(Err(error)), // another thread waited for it, too
            Ok(_) => state.ops.is_done(op).then(|| finish(state, op)),
        })
    }

    /// Whether the operation is complete; if so, frees the id.
    ///
    /// # Errors
    /// As [`Engine::msgwait`].
    pub fn msgdone(&self, mid: Mid) -> Result<Option<Outcome>, NxError> {
        let inner = &*self.inner;
        let mut state = inner.state.lock();
        let before = inner.changes();
        let op = state.ops.find(mid)?;
        if !state.ops.is_done(op)
            && let Err(error) = state.progress(inner)
        {
            inner.fail(error);
        }
        let result = state.ops.is_done(op).then(|| finish(&mut state, op)).transpose();
        // Under the lock: who is told of the end may free the buffer, which nobody is in the middle of.
        let ended = inner.check();
        if ended.is_err() {
            state.revoke_targets();
        }
        inner.wake_others(state, before);
        match result {
            Ok(None) => {
                inner.found_nothing(ended.is_ok());
                ended.map(|()| None)
            }
            result => result,
        }
    }

    /// Whether the operation is complete. Leaves the id as it is. Also true when the job has ended:
    /// there is nothing to wait for.
    #[must_use]
    pub fn is_done(&self, mid: Mid) -> bool {
        let inner = &*self.inner;
        let mut state = inner.state.lock();
        let before = inner.changes();
        if let Err(error) = state.progress(inner) {
            inner.fail(error);
        }
        let done = state.ops.find(mid).is_ok_and(|op| state.ops.is_done(op));
        let ended = inner.check().is_err(); // under the lock, as in `msgdone`
        inner.wake_others(state, before);
        done || ended
    }

    /// The program will not ask again: the id frees itself on completion.
    ///
    /// # Errors
    /// [`NxError::BadMid`].
    pub fn msgignore(&self, mid: Mid) -> Result<(), NxError> {
        fn ignore(state: &mut State, op: OpId) {
            let merged = std::mem::take(&mut state.ops.get_mut(op).merged);
            if state.ops.get(op).is_done() {
                state.ops.remove(op);
            } else {
                let _ = state.ops.disown(op, Owner::Nobody); // it was the program's
            }
            for part in merged {
                ignore(state, part);
            }
        }
        let mut state = self.inner.state.lock();
        let op = state.ops.find(mid)?;
        ignore(&mut state, op);
        Ok(())
    }

    /// Takes the operation back: its memory is the program's again when this returns, and the id is
    /// free. Whether the message was transferred cannot be known.
    ///
    /// # Errors
    /// [`NxError::BadMid`]; [`NxError::PeerDied`] and its like when the job has ended.
    pub fn msgcancel(&self, mid: Mid) -> Result<(), NxError> {
        fn cancel(engine: &Engine, state: &mut State, op: OpId) {
            state.cancel(&engine.inner, op);
            for part in state.ops.get(op).merged.clone() {
                cancel(engine, state, part);
            }
        }
        let op = {
            let mut state = self.inner.state.lock();
            let op = state.ops.find(mid)?;
            cancel(self, &mut state, op);
            op
        };
        // A large message on its way into the buffer is let come.
        self.inner.wait(|state| {
            state.ops.is_done(op).then(|| {
                let _ = finish(state, op);
                Ok(())
            })
        })
    }

    /// One id for two operations: done when both are. `None` stands for -1, no operation.
    ///
    /// # Errors
    /// [`NxError::BadMid`], also for an id merged with itself.
    pub fn msgmerge(&self, one: Option<Mid>, other: Option<Mid>) -> Result<Option<Mid>, NxError> {
        let mut state = self.inner.state.lock();
        let (one, other) = match (one, other) {
            (Some(one), Some(other)) => (one, other),
            (Some(mid), None) | (None, Some(mid)) => {
                state.ops.find(mid)?;
                return Ok(Some(mid));
            }
            (None, None) => return Ok(None),
        };
        let (first, second) = (state.ops.find(one)?, state.ops.find(other)?);
        if first == second {
            return Err(NxError::BadMid { mid: other.0 });
        }
        if !state.ops.has_place_for_mid() {
            return Err(NxError::NoMid { limit: self.inner.settings.mids });
        }
        let nothing = Target { start: std::ptr::null_mut(), len: 0 };
        let merged = state.ops.add(Owner::Program, 0, nothing, None);
        let mut parts = Vec::new();
        for part in [first, second] {
            // A merged id is opened up, so that long chains stay flat.
            let inside = std::mem::take(&mut state.ops.get_mut(part).merged);
            if inside.is_empty() {
                let _ = state.ops.disown(part, Owner::Merged); // it was the program's
                parts.push(part);
            } else {
                state.ops.remove(part);
                if parts.is_empty() { parts = inside } else { parts.extend(inside) }
            }
        }
        state.ops.get_mut(merged).merged = parts;
        Ok(Some(state.ops.mid(merged)))
    }
}
