//! The receiving and probing methods.
#![allow(unsafe_code)] // raw memory of callers, passed on

use super::ops::{OpId, Owner};
use super::send::received;
use super::state::{Found, State, Want};
use super::types::{Handler, Info, InfoTarget, Mid, Select, Target};
use super::{Engine, USER, check_memory, check_typesel};
use crate::error::NxError;
use vmmc::word::biased::BiasedGuard;

impl Engine {
    #[inline]
    pub(super) fn check_receive(&self, select: Select, room: Target) -> Result<(), NxError> {
        self.need_ptype()?;
        check_typesel(select.typesel)?;
        check_memory(room.start.is_null(), room.len)?;
        let last = self.inner.processes() as u32 - 1;
        if select.node < -1 || select.node > last as i32 {
            return Err(NxError::BadNode { node: select.node, last });
        }
        if select.ptype < -1 {
            return Err(NxError::BadPtype { ptype: select.ptype });
        }
        Ok(())
    }

    /// Posts a receive for an operation, and looks what has come.
    pub(super) fn start_receive(&self, op: OpId, select: Select) -> Result<(), NxError> {
        self.start_receive_on(op, USER, select)
    }

    pub(super) fn start_receive_on(
        &self,
        op: OpId,
        channel: u32,
        select: Select,
    ) -> Result<(), NxError> {
        self.post(self.inner.state.lock(), op, channel, select)
    }

    fn post(
        &self,
        mut state: BiasedGuard<'_, State>,
        op: OpId,
        channel: u32,
        select: Select,
    ) -> Result<(), NxError> {
        let inner = &*self.inner;
        let before = inner.changes();
        let result = state
            .progress(inner)
            .and_then(|()| state.post(inner, op, channel, select))
            // Handlers: what was sent before the senders knew that they must interrupt us.
            .and_then(|()| if state.has_handlers() { state.progress(inner) } else { Ok(()) });
        // Under the lock: nobody is in the middle of the room when the caller hears of it.
        if let Err(error) = &result {
            inner.fail(error.clone());
            state.revoke_targets();
        }
        inner.wake_others(state, before);
        result
    }

    /// Receives (`crecv`, `crecvx`).
    ///
    /// # Errors
    /// [`NxError::MessageTooLong`]: the message is taken, the room holds its beginning.
    /// [`NxError::BadNode`], [`NxError::BadPtype`], [`NxError::NullBuffer`], [`NxError::NoPtype`];
    /// [`NxError::PeerDied`] and its like when the job has ended.
    ///
    /// # Safety
    /// `room` must be writable during the call, and nobody else may use it.
    #[inline(always)]
    pub unsafe fn crecv(&self, select: Select, room: Target) -> Result<Info, NxError> {
        self.check_receive(select, room)?;
        let found = self.inner.state.lock().receive_short(&self.inner, select, room);
        match found {
            Some(info) => Ok(info),
            None => self.receive_on(USER, select, room, || None),
        }
    }

    /// `stop` is asked before a thread waits, and ends that with an error, unless a message is on its way into the room.
    pub(super) fn receive_on(
        &self,
        channel: u32,
        select: Select,
        room: Target,
        mut stop: impl FnMut() -> Option<NxError>,
    ) -> Result<Info, NxError> {
        let inner = &*self.inner;
        let mut want = Want { channel, select, room, found: None };
        let found = inner.wait_for(&mut want, |state, want| {
            if want.found.is_none()
                && let Err(error) = state.take_for(inner, want)
            {
                inner.fail(error);
            }
            want.found.take().map(Ok).or_else(|| stop().map(Err))
        })?;
        let op = match found {
            Found::Here(info) if info.count > room.len && !inner.settings.truncate => {
                return Err(NxError::MessageTooLong { info, room: room.len });
            }
            Found::Here(info) => return Ok(info),
            Found::Coming(op) => op,
        };
        let outcome = inner.wait(|state| {
            let _ = stop(); // who has come is awaited no more
            state.ops.is_done(op).then(|| {
                let result = state.ops.remove(op).result;
                Ok(result)
            })
        });
        match outcome {
            Ok(result) => received(result?),
            Err(error) => {
                // The job has ended; the room is the caller's again.
                inner.state.lock().abandon(op);
                Err(error)
            }
        }
    }

    /// Starts receiving and returns an id at once (`irecv`, `irecvx`); `info` is written at
    /// completion.
    ///
    /// # Errors
    /// As [`Engine::crecv`], and [`NxError::NoMid`]. A message too long is an error of
    /// [`Engine::msgwait`] or [`Engine::msgdone`].
    ///
    /// # Safety
    /// `room` must stay writable, and nobody else may use it, until the id is done or cancelled;
    /// `info` must be callable until then.
    pub unsafe fn irecv(
        &self,
        select: Select,
        room: Target,
        info: Option<InfoTarget>,
    ) -> Result<Mid, NxError> {
        self.check_receive(select, room)?;
        let mut state = self.inner.state.lock();
        self.check_mids(&state)?;
        let op = state.ops.add(Owner::Program, 1, room, info);
        let mid = state.ops.mid(op);
        self.post(state, op, USER, select)?;
        Ok(mid)
    }

    /// Runs `handler` when a message has come into `room` (`hrecv`, `hrecvx`), also while the program
    /// computes. Once: a handler posts the next receive.
    ///
    /// # Errors
    /// As [`Engine::crecv`]; of a message that is too long the handler is told.
    ///
    /// # Safety
    /// `room` must stay writable, and nobody else may use it, until the handler runs or the receive is
    /// cancelled.
    pub unsafe fn hrecv(
        &self,
        select: Select,
        room: Target,
        handler: Handler,
    ) -> Result<(), NxError> {
        self.check_receive(select, room)?;
        self.start_handlers()?;
        let op = self.inner.state.lock().ops.add(
            Owner::Handler(Some((handler, Some(select.typesel)))),
            1,
            room,
            None,
        );
        self.start_receive(op, select)?;
        self.inner.fetch_rest();
        Ok(())
    }

    pub(super) fn start_handlers(&self) -> Result<(), NxError> {
        let started = super::watch::Watch::start(&self.inner);
        let inner = std::sync::Arc::downgrade(&self.inner);
        let panicked = move |what| {
            if let Some(inner) = inner.upgrade() {
                inner.fail(NxError::HandlerPanicked { what });
            }
        };
        started
            .and_then(|()| super::handlers::Handlers::start(&self.inner.handlers, panicked))
            .map_err(|error| NxError::System { what: "handler thread", reason: error.to_string() })
    }

    /// Takes back the handler receives of a selector (`hrecv` with a null handler): those posted, also by a handler that runs,
    /// which is waited for; those whose handler has not begun; and those whose message is on its way into the room, which is
    /// let come. Their rooms are the program's again. Returns how many there were.
    ///
    /// # Errors
    /// When the job has ended.
    pub fn cancel_hrecv(&self, typesel: i32) -> Result<usize, NxError> {
        let inner = &*self.inner;
        inner.check()?;
        let held = inner.handlers.hold();
        let (posted, coming) = {
            let mut state = inner.state.lock();
            (state.cancel_handlers(typesel), state.disown_coming(typesel))
        };
        // What was complete before that is queued.
        let queued = inner.handlers.take_queued(typesel);
        inner.wait(|state| {
            let comes = |(op, _): &(_, _)| state.comes_for_nobody(*op);
            (!coming.iter().any(comes)).then_some(Ok(()))
        })?;
        drop(held);
        Ok(posted.len() + coming.len() + queued.len())
    }

    /// Waits for a message that a receive with this selector would take, and leaves it where it is.
    ///
    /// # Errors
    /// As [`Engine::crecv`].
    pub fn cprobe(&self, select: Select) -> Result<Info, NxError> {
        self.check_receive(select, Target { start: std::ptr::null_mut(), len: 0 })?;
        let inner = &*self.inner;
        // Arrivals do not complete anything here, so they are found by the look of `wait` itself.
        inner.wait(|state| state.probe(inner, select).map(Ok))
    }

    /// Whether there is such a message now.
    ///
    /// # Errors
    /// As [`Engine::crecv`].
    pub fn iprobe(&self, select: Select) -> Result<Option<Info>, NxError> {
        self.check_receive(select, Target { start: std::ptr::null_mut(), len: 0 })?;
        let inner = &*self.inner;
        let mut state = inner.state.lock();
        let before = inner.changes();
        if let Err(error) = state.progress(inner) {
            inner.fail(error);
        }
        let found = state.probe(inner, select);
        inner.wake_others(state, before);
        inner.check()?;
        inner.found_nothing(found.is_none());
        Ok(found)
    }

    /// Throws away the messages that are here and selected (`flushmsg`).
    ///
    /// # Errors
    /// When the job has ended.
    pub fn flushmsg(&self, select: Select) -> Result<(), NxError> {
        self.need_ptype()?;
        let inner = &*self.inner;
        let mut state = inner.state.lock();
        let before = inner.changes();
        let result = state.progress(inner).and_then(|()| state.throw_away(inner, USER, select));
        inner.wake_others(state, before);
        result.inspect_err(|error| inner.fail(error.clone()))
    }
}
