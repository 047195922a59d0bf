//! Large messages, on the receiver's side: fetching behind the sender's safe copy, or telling it where to
//! put the message directly. See [`crate::engine::direct`].

use super::State;
use crate::engine::counters as count;
use crate::engine::inner::Inner;
use crate::engine::layout::{self, Scout};
use crate::engine::ops::{Head, OpId};
use crate::engine::peer::Peer;
use crate::engine::points::Point;
use crate::engine::{direct, mem};
use crate::error::NxError;
use std::sync::Arc;
use vmmc::Import;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// How much is fetched in one step, so that the lock is not held for long.
const FETCH_STEP: usize = 1 << 20;

/// A large message on its way into its buffer.
pub(super) struct Fetching {
    pub(super) op: OpId,
    pub(super) from: usize,
    pub(super) head: Head,
    pub(super) scout: Scout,
    pub(super) import: Arc<Import>,
    /// Bytes in the buffer.
    pub(super) done: usize,
    /// What the sender was told: it may send these directly.
    pub(super) go: Option<direct::Go>,
    /// More of it is ready than one step fetched.
    pub(super) left: bool,
}

impl State {
    pub(super) fn region(
        &mut self,
        e: &Inner,
        peer: &Peer,
        scout: &Scout,
    ) -> Result<Arc<Import>, NxError> {
        let inn = &mut self.pair(peer.number as usize).inn;
        let lost = || e.lost(peer);
        let fetched = inn.fetched.region(&e.data, &e.own, peer.number, scout.region, lost);
        let (import, made) = fetched?;
        if made {
            e.count(count::DAEMON_TRIPS, 1);
        }
        let end = scout.offset.checked_add(scout.len);
        if end.is_none_or(|end| end > import.len() as u64) {
            return Err(NxError::PeerFault { node: peer.node, what: "a scout beyond its region" });
        }
        Ok(import)
    }

    /// Starts fetching an announced message into a receive's buffer.
    pub(super) fn fetch(
        &mut self,
        e: &Inner,
        peer: &Peer,
        op: OpId,
        head: Head,
        scout: Scout,
    ) -> Result<(), NxError> {
        let import = self.region(e, peer, &scout)?;
        if self.is_for_handler(op) {
            // The program computes: it is interrupted when the message is complete, too.
            self.want(e);
        }
        let go = self.reply(e, peer, op, &head, &scout);
        let from = peer.number as usize;
        let mut fetching = Fetching { op, from, head, scout, import, done: 0, go, left: false };
        let complete = self.fetch_some(e, peer, &mut fetching);
        if !matches!(complete, Ok(true)) {
            self.fetching.push(fetching);
        }
        complete.map(drop)
    }

    /// The job has ended, and memory of its receives is the program's again: nothing may come directly any more.
    pub(in crate::engine) fn revoke_targets(&mut self) {
        for it in &mut self.fetching {
            if let Some(go) = it.go.take() {
                let room = self.ops.get(it.op).room;
                self.windows.revoke(it.from as u32, go.window, room);
            }
        }
    }

    /// Tells the sender of a large message where in user memory it may put it, if it may (N11).
    fn reply(
        &mut self,
        e: &Inner,
        peer: &Peer,
        op: OpId,
        head: &Head,
        scout: &Scout,
    ) -> Option<direct::Go> {
        let len = head.info.count;
        let staged = layout::STAGED + 8 * scout.block as usize;
        // A safe copy that is complete is there already.
        if len < e.settings.direct || peer.in64(staged).load(Ordering::Relaxed) == scout.len {
            return None;
        }
        let room = self.ops.get(op).room;
        let fetching = &self.fetching;
        let is_busy = |window| {
            fetching.iter().any(|it| {
                it.from == peer.number as usize && it.go.is_some_and(|go| go.window == window)
            })
        };
        let maker = direct::Maker {
            node: &e.data,
            own: &e.own,
            sender: peer.number,
            pid: peer.out.import().exporter().pid,
            after: e.settings.direct_after,
            by_pages: e.settings.direct_by_pages,
            is_busy: &is_busy,
        };
        let (go, trips) = self.windows.open_for(&maker, room, len);
        e.count(count::DAEMON_TRIPS, trips);
        if let Some(go) = go {
            go.write(peer, scout.block);
            e.at(Point::ReplyWritten);
            peer.out.ring();
            e.count(count::REPLIES, 1);
        }
        go
    }

    /// The window that a reply names, for the sender.
    pub(in crate::engine) fn target(
        &mut self,
        e: &Inner,
        peer: &Peer,
        go: &direct::Go,
        len: usize,
    ) -> Result<Option<Arc<Import>>, NxError> {
        let out = &mut self.pair(peer.number as usize).out;
        let found = out.targets.window(&e.data, &e.own, peer.number, go, len)?;
        Ok(found.map(|(import, made)| {
            e.count(count::DAEMON_TRIPS, u64::from(made));
            import
        }))
    }

    /// Whether a message is on its way that a handler waits for.
    pub(super) fn fetches_for_handlers(&self) -> bool {
        self.fetching.iter().any(|fetching| self.is_for_handler(fetching.op))
    }

    /// Whether more can be fetched at once.
    pub(in crate::engine) fn can_fetch(&self) -> bool {
        self.fetching.iter().any(|fetching| fetching.left)
    }

    pub(super) fn fetch_all(&mut self, e: &Inner) -> Result<(), NxError> {
        let mut i = 0;
        while let Some(fetching) = self.fetching.get(i) {
            let Some(peer) = e.peer(fetching.from) else { unreachable!("it sent to us") };
            let mut fetching = self.fetching.swap_remove(i);
            let complete = self.fetch_some(e, peer, &mut fetching);
            if !matches!(complete, Ok(true)) {
                self.fetching.push(fetching);
                let last = self.fetching.len() - 1;
                self.fetching.swap(i, last);
                i += 1;
            }
            complete?;
        }
        Ok(())
    }

    /// Fetches what the sender has made ready. True when the message is complete.
    fn fetch_some(&mut self, e: &Inner, peer: &Peer, it: &mut Fetching) -> Result<bool, NxError> {
        let fault = |what| NxError::PeerFault { node: peer.node, what };
        let block = it.scout.block;
        it.left = false;
        let staged = peer.in64(layout::STAGED + 8 * block as usize).load(Ordering::Acquire);
        let ready = staged & layout::STAGED_COUNT;
        if ready > it.scout.len {
            return Err(fault("more bytes staged than announced"));
        }
        let len = it.head.info.count;
        let room = self.ops.get(it.op).room;
        let take = len.min(room.len);
        if staged & layout::STAGED_DIRECT != 0 {
            let Some(go) = it.go else { return Err(fault("sent to where it was not told")) };
            if staged & layout::STAGED_DONE == 0 {
                peer.watch(block, staged);
                return Ok(false);
            }
            // What lies outside whole pages of the buffer came by the safe copy.
            let end = (go.first + go.len) as usize;
            for (from, to) in [(0, go.first as usize), (end, len)] {
                // SAFETY: the operation is under way, and this thread has the lock.
                #[allow(unsafe_code)]
                let target = unsafe { mem::room(room, from, to - from) };
                it.import
                    .read(it.scout.offset as usize + from, target)
                    .map_err(|_| e.lost(peer))?;
            }
            self.fetched(e, peer, it);
            return Ok(true);
        }
        if it.go.is_some() && ready < it.scout.len {
            peer.watch(block, staged); // the sender has not decided yet
            return Ok(false);
        }
        let upto = take.min(ready as usize).min(it.done + FETCH_STEP);
        if it.done < upto {
            // SAFETY: the operation is under way, and this thread has the lock.
            #[allow(unsafe_code)]
            let target = unsafe { mem::room(room, it.done, upto - it.done) };
            it.import.read(it.scout.offset as usize + it.done, target).map_err(|_| e.lost(peer))?;
            e.count(count::FETCHED_BYTES, (upto - it.done) as u64);
            it.done = upto;
            e.at(Point::FetchHalf);
        }
        if ready == it.scout.len && it.done == take {
            self.fetched(e, peer, it);
            return Ok(true);
        }
        // Seen as it was only if nothing of it is left to fetch.
        it.left = it.done < take.min(ready as usize);
        let seen = if it.left { u64::MAX } else { staged };
        peer.watch(block, seen);
        Ok(false)
    }

    fn fetched(&mut self, e: &Inner, peer: &Peer, it: &Fetching) {
        peer.unwatch(it.scout.block);
        e.at(Point::Fetched);
        self.credit_block(e, peer, it.scout.block);
        self.complete(e, it.op, Some(it.head.info));
    }
}
