//! The sending methods.
#![allow(unsafe_code)] // raw memory of callers, passed on

use super::ops::{OpId, Owner};
use super::peer::Peer;
use super::state::{Letter, Sent, State};
use super::types::{Dest, Handler, Mid, Select, Source, Target};
use super::{Engine, USER, check_memory, check_type};
use crate::error::NxError;
use crate::unconfirmed::{BROADCAST_REACHES_OWN_NODE, host_number};
use crate::{Info, Outcome};
use vmmc::word::biased::BiasedGuard;

/// Whom a destination means.
enum Route<'e> {
    Own,
    One(&'e Peer),
    AllOthers,
    /// Who was there has left: nothing is received there any more.
    Nobody,
}

const NOWHERE: Target = Target { start: std::ptr::null_mut(), len: 0 };

impl Engine {
    #[inline]
    fn route(&self, to: Dest) -> Result<Route<'_>, NxError> {
        let processes = self.inner.processes() as u32;
        match to.node as u32 {
            number if number < processes => Ok(self.process_on(number, to.ptype)),
            _ if to.node == -1 => Ok(Route::AllOthers),
            number if number == host_number(self.inner.job.size) => {
                Err(NxError::NoHost { node: to.node })
            }
            _ => Err(NxError::BadNode { node: to.node, last: processes - 1 }),
        }
    }

    /// The process of a node that messages for a process type go to: the one that has it, or the
    /// node's first, where they wait until it takes the type.
    #[inline]
    fn process_on(&self, node: u32, ptype: i32) -> Route<'_> {
        let inner = &*self.inner;
        if inner.peers.is_simple() {
            return match inner.peer(node as usize) {
                Some(peer) => Route::One(peer),
                None => Route::Own,
            };
        }
        self.process_of_several(node, ptype)
    }

    /// The same where nodes may have several processes.
    #[cold]
    fn process_of_several(&self, node: u32, ptype: i32) -> Route<'_> {
        let inner = &*self.inner;
        let own = node == inner.own.node;
        if own && ptype == self.ptype() {
            return Route::Own;
        }
        let here = || {
            let lives = |peer: &&Peer| !peer.gone.load(vmmc::sync::Ordering::Relaxed);
            inner.peers().filter(lives).filter(|peer| peer.node == node)
        };
        let of_type = || here().filter(|peer| peer.ptype() == ptype);
        // One that has said bye may be there for a while beside the next of its type.
        let found = of_type().find(|peer| peer.bye().is_none()).or_else(|| of_type().next());
        match (found, here().next()) {
            (Some(peer), _) => Route::One(peer),
            (None, Some(first)) if !own || first.number < inner.own.number => Route::One(first),
            (None, _) if own => Route::Own,
            (None, _) => Route::Nobody,
        }
    }

    #[inline]
    fn check_send(&self, type_: i32, data: Source, to: Dest) -> Result<(), NxError> {
        self.need_ptype()?;
        check_type(type_)?;
        check_memory(data.start.is_null(), data.len)?;
        if to.ptype < 0 { Err(NxError::BadPtype { ptype: to.ptype }) } else { Ok(()) }
    }

    /// Sends; returns when the buffer may be used again.
    ///
    /// # Errors
    /// [`NxError::BadType`], [`NxError::BadNode`], [`NxError::BadPtype`], [`NxError::NoPtype`],
    /// [`NxError::NullBuffer`]; [`NxError::PeerDied`] and its like when the job has ended.
    ///
    /// # Safety
    /// `data` must be readable during the call.
    #[inline(always)]
    pub unsafe fn csend(&self, type_: i32, data: Source, to: Dest) -> Result<(), NxError> {
        self.check_send(type_, data, to)?;
        let letter = Letter { channel: USER, type_, ptype: to.ptype, data };
        match self.route(to)? {
            Route::One(peer) => self.send_blocking(peer, letter),
            route => self.send_otherwise(route, letter),
        }
    }

    /// To none or several.
    #[cold]
    fn send_otherwise(&self, route: Route<'_>, letter: Letter) -> Result<(), NxError> {
        match route {
            Route::One(peer) => self.send_blocking(peer, letter),
            Route::Own => self.send_to_self(letter),
            Route::AllOthers => {
                for peer in self.nodes_but_this(letter.ptype) {
                    self.send_blocking(peer, letter)?;
                }
                if self.waits_here(letter.ptype) { self.send_to_self(letter) } else { Ok(()) }
            }
            Route::Nobody => Ok(()),
        }
    }

    /// A process of each other node, without a host process; of this node, if the process type is not the caller's and another
    /// process has it, or keeps what is for it.
    fn nodes_but_this(&self, ptype: i32) -> impl Iterator<Item = &Peer> {
        let own = self.inner.own.node;
        (0..self.inner.job.size).filter_map(move |node| match self.process_on(node, ptype) {
            Route::One(peer) if node != own => Some(peer),
            Route::One(peer) if BROADCAST_REACHES_OWN_NODE && ptype != self.ptype() => Some(peer),
            _ => None,
        })
    }

    /// Whether what goes to all nodes waits in this process for the process type, which it may take.
    fn waits_here(&self, ptype: i32) -> bool {
        let own = self.inner.own.node;
        BROADCAST_REACHES_OWN_NODE
            && own < self.inner.job.size
            && ptype != self.ptype()
            && matches!(self.process_on(own, ptype), Route::Own)
    }

    fn send_to_self(&self, letter: Letter) -> Result<(), NxError> {
        let mut state = self.inner.state.lock();
        let before = self.inner.changes();
        state.deliver(&self.inner, letter);
        self.inner.wake_others(state, before);
        Ok(())
    }

    /// Sends to one peer and returns when the buffer is free.
    #[inline(always)]
    pub(super) fn send_blocking(&self, peer: &Peer, letter: Letter) -> Result<(), NxError> {
        let inner = &*self.inner;
        let mut state = inner.state.lock();
        if state.send_short(inner, peer, letter) {
            return Ok(());
        }
        self.send_ordinary(state, peer, letter)
    }

    fn send_ordinary(
        &self,
        mut state: BiasedGuard<'_, State>,
        peer: &Peer,
        letter: Letter,
    ) -> Result<(), NxError> {
        let inner = &*self.inner;
        match inner.or_fail(state.send(inner, peer, letter))? {
            Sent::Whole => Ok(()),
            Sent::Scouted(staging) => {
                drop(state);
                inner.or_fail(inner.stage(peer, &staging, letter.data, true))
            }
            Sent::Starved => {
                let op = state.ops.add(Owner::Caller, 1, NOWHERE, None);
                state.queue(inner, peer, op, letter, false);
                drop(state);
                inner.wait_op(op).map(drop)
            }
        }
    }

    /// Starts sending for an operation that may have other parts.
    pub(super) fn start_send(&self, op: OpId, letter: Letter, to: Dest) -> Result<(), NxError> {
        self.start_parts(op, letter, to).inspect_err(|_| {
            // The job has ended. Once this has had the lock nobody is in the middle of the operation's memory.
            self.inner.state.lock().revoke_targets();
        })
    }

    fn start_parts(&self, op: OpId, letter: Letter, to: Dest) -> Result<(), NxError> {
        let inner = &*self.inner;
        let route = self.route(to)?;
        let own = match route {
            Route::Own => true,
            Route::AllOthers => self.waits_here(to.ptype),
            _ => false,
        };
        let targets: Vec<&Peer> = match route {
            Route::One(peer) => vec![peer],
            Route::Own | Route::Nobody => vec![],
            Route::AllOthers => self.nodes_but_this(to.ptype).collect(),
        };
        let mut state = inner.state.lock();
        let before = inner.changes();
        // The part of the operation that stands for "all started".
        state.ops.get_mut(op).left += targets.len() as u32;
        if own {
            state.deliver(inner, letter);
        }
        for peer in targets {
            match inner.or_fail(state.send(inner, peer, letter))? {
                Sent::Whole => state.complete(inner, op, None),
                Sent::Scouted(staging) => {
                    drop(state);
                    inner.or_fail(inner.stage(peer, &staging, letter.data, true))?;
                    state = inner.state.lock();
                    state.complete(inner, op, None);
                }
                Sent::Starved => state.queue(inner, peer, op, letter, true),
            }
        }
        state.complete(inner, op, None);
        inner.wake_others(state, before);
        Ok(())
    }

    /// A new operation that the program will hold an id of.
    fn new_mid(&self, parts: u32, room: Target) -> Result<(OpId, Mid), NxError> {
        let mut state = self.inner.state.lock();
        self.check_mids(&state)?;
        let op = state.ops.add(Owner::Program, parts, room, None);
        Ok((op, state.ops.mid(op)))
    }

    /// Whether there may be one more.
    #[inline]
    pub(super) fn check_mids(&self, state: &State) -> Result<(), NxError> {
        match self.inner.settings.mids {
            limit if state.ops.mids() >= limit || !state.ops.has_place_for_mid() => {
                Err(NxError::NoMid { limit })
            }
            _ => Ok(()),
        }
    }

    /// Starts sending and returns an id at once.
    ///
    /// # Errors
    /// As [`Engine::csend`], and [`NxError::NoMid`].
    ///
    /// # Safety
    /// `data` must stay readable and unchanged until the id is done.
    pub unsafe fn isend(&self, type_: i32, data: Source, to: Dest) -> Result<Mid, NxError> {
        self.check_send(type_, data, to)?;
        let letter = Letter { channel: USER, type_, ptype: to.ptype, data };
        if let Route::One(peer) = self.route(to)? {
            let mut state = self.inner.state.lock();
            self.check_mids(&state)?;
            if state.send_short(&self.inner, peer, letter) {
                let op = state.ops.add(Owner::Program, 0, NOWHERE, None);
                return Ok(state.ops.mid(op));
            }
        }
        let (op, mid) = self.new_mid(1, NOWHERE)?;
        self.start_send(op, letter, to)?;
        Ok(mid)
    }

    /// Starts sending, and runs `handler` when the buffer is free again. It gets an empty info.
    ///
    /// # Errors
    /// As [`Engine::csend`].
    ///
    /// # Safety
    /// `data` must stay readable and unchanged until the handler runs.
    pub unsafe fn hsend(
        &self,
        type_: i32,
        data: Source,
        to: Dest,
        handler: Handler,
    ) -> Result<(), NxError> {
        self.check_send(type_, data, to)?;
        self.route(to)?;
        self.start_handlers()?;
        let sent = Info { type_, count: data.len, node: self.node(), ptype: self.ptype() };
        let handler: Handler = Box::new(move |done| handler(done.map(|_| sent)));
        let op = self.inner.state.lock().ops.add(
            Owner::Handler(Some((handler, None))),
            1,
            NOWHERE,
            None,
        );
        self.start_send(op, Letter { channel: USER, type_, ptype: to.ptype, data }, to)
    }

    /// Sends to a list of nodes, to this process's own type there.
    ///
    /// # Errors
    /// As [`Engine::csend`]; nothing was sent when a node of the list is bad.
    ///
    /// # Safety
    /// `data` must be readable during the call.
    pub unsafe fn gsendx(&self, type_: i32, data: Source, nodes: &[i32]) -> Result<(), NxError> {
        let ptype = self.ptype();
        for &node in nodes {
            let to = Dest { node, ptype };
            self.check_send(type_, data, to)?;
            if node == -1 {
                return Err(NxError::BadNode { node, last: self.inner.processes() as u32 - 1 });
            }
            self.route(to)?;
        }
        for &node in nodes {
            // SAFETY: passed on.
            unsafe { self.csend(type_, data, Dest { node, ptype }) }?;
        }
        Ok(())
    }

    /// Checks both parts of a send with a receive; returns what is to be sent.
    fn check_both(
        &self,
        type_: i32,
        data: Source,
        to: Dest,
        select: Select,
        room: Target,
    ) -> Result<Letter, NxError> {
        self.check_send(type_, data, to)?;
        self.check_receive(select, room)?;
        self.route(to)?;
        Ok(Letter { channel: USER, type_, ptype: to.ptype, data })
    }

    /// Starts both parts of an operation.
    fn start_both(
        &self,
        op: OpId,
        select: Select,
        letter: Letter,
        to: Dest,
    ) -> Result<(), NxError> {
        self.start_receive(op, select)?;
        self.start_send(op, letter, to)
    }

    /// Sends and receives; returns what was received.
    ///
    /// # Errors
    /// As [`Engine::csend`] and [`Engine::crecv`].
    ///
    /// # Safety
    /// As of both; the buffers must not overlap.
    pub unsafe fn csendrecv(
        &self,
        type_: i32,
        data: Source,
        to: Dest,
        select: Select,
        room: Target,
    ) -> Result<Info, NxError> {
        let letter = self.check_both(type_, data, to, select, room)?;
        let op = self.inner.state.lock().ops.add(Owner::Caller, 2, room, None);
        self.start_both(op, select, letter, to)?;
        received(self.inner.wait_op(op)?)
    }

    /// Starts sending and receiving; the id is done when both are.
    ///
    /// # Errors
    /// As [`Engine::isend`] and [`Engine::irecv`].
    ///
    /// # Safety
    /// As of both; the buffers must not overlap.
    pub unsafe fn isendrecv(
        &self,
        type_: i32,
        data: Source,
        to: Dest,
        select: Select,
        room: Target,
    ) -> Result<Mid, NxError> {
        let letter = self.check_both(type_, data, to, select, room)?;
        let (op, mid) = self.new_mid(2, room)?;
        self.start_both(op, select, letter, to)?;
        Ok(mid)
    }

    /// Starts sending and receiving, and runs `handler` with what was received when both are done.
    ///
    /// # Errors
    /// As [`Engine::hsend`] and [`Engine::hrecv`].
    ///
    /// # Safety
    /// As of both; the buffers must not overlap.
    pub unsafe fn hsendrecv(
        &self,
        type_: i32,
        data: Source,
        to: Dest,
        select: Select,
        room: Target,
        handler: Handler,
    ) -> Result<(), NxError> {
        let letter = self.check_both(type_, data, to, select, room)?;
        self.start_handlers()?;
        let op = self.inner.state.lock().ops.add(
            Owner::Handler(Some((handler, Some(select.typesel)))),
            2,
            room,
            None,
        );
        self.start_both(op, select, letter, to)?;
        self.inner.fetch_rest();
        Ok(())
    }
}

/// The info of an operation with a receive part.
pub(super) fn received(outcome: Outcome) -> Result<Info, NxError> {
    match outcome {
        Outcome::Received(info) => Ok(info),
        Outcome::Sent => unreachable!("a receive ends with its message"),
    }
}
