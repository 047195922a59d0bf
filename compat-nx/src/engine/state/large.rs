//! Large messages, on the receiver's side: fetching behind the sender's safe copy, or telling it where to
//! put the message directly, and helping it. See [`crate::engine::direct`] and [`crate::engine::share`].

use super::State;
use crate::engine::counters as count;
use crate::engine::direct::{self, Spot};
use crate::engine::inner::Inner;
use crate::engine::layout::{self, Scout};
use crate::engine::mem;
use crate::engine::ops::{Head, OpId, Posted};
use crate::engine::peer::Peer;
use crate::engine::points::Point;
use crate::engine::share::{self, Shared};
use crate::engine::types::Source;
use crate::error::NxError;
use std::sync::Arc;
use vmmc::Import;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// How much is fetched in one step, so that the lock is not held for long.
const FETCH_STEP: usize = 1 << 20;

/// A large message on its way into its buffer.
pub(super) struct Fetching {
    pub(super) posted: Posted,
    pub(super) from: usize,
    pub(super) head: Head,
    pub(super) scout: Scout,
    pub(super) import: Arc<Import>,
    /// Bytes in the buffer.
    pub(super) done: usize,
    /// What the sender was told: it may send these directly.
    pub(super) go: Option<Spot>,
    /// What both copy.
    pub(super) pull: Option<Pull>,
    /// More of it is ready than one step fetched.
    pub(super) left: bool,
    /// A piece of the sender's memory could not be read any more. Only a safe copy may follow.
    pub(super) is_torn: bool,
}

/// The sender's memory, and which bytes of the message are read there.
pub(super) struct Pull {
    import: Arc<Import>,
    source: Spot,
    shared: Shared,
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
        posted: Posted,
        head: Head,
        scout: Scout,
    ) -> Result<(), NxError> {
        let op = posted.op;
        let import = match self.region(e, peer, &scout) {
            Ok(import) => import,
            Err(error) => return self.lose(e, peer, posted, error),
        };
        if self.is_for_handler(op) {
            // The program computes: it is interrupted when the message is complete, too.
            self.want(e);
        }
        let go = self.reply(e, peer, op, &head, &scout);
        let from = peer.number as usize;
        let (done, left, pull, is_torn) = (0, false, None, false);
        let mut fetching =
            Fetching { posted, from, head, scout, import, done, go, pull, left, is_torn };
        let begun = self.share(e, peer, &mut fetching);
        match begun.and_then(|()| self.fetch_some(e, peer, &mut fetching)) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.fetching.push(fetching);
                Ok(())
            }
            Err(error) => self.lose_some(e, peer, fetching, error),
        }
    }

    /// Finds what both copy.
    fn share(&mut self, e: &Inner, peer: &Peer, it: &mut Fetching) -> Result<(), NxError> {
        let len = it.head.info.count;
        if let (Some(go), Some(source)) = (it.go, it.scout.source)
            && e.settings.share <= len
        {
            let import = self.window(e, peer, &source, len)?;
            let shared = Shared::of(&go, &source);
            it.pull = import.map(|import| Pull { import, source, shared });
        }
        Ok(())
    }

    /// A message that cannot be fetched. If its sender was ended on request, as whoever asked must expect, the receive waits for
    /// another one; otherwise the job ends.
    fn lose(
        &mut self,
        e: &Inner,
        peer: &Peer,
        posted: Posted,
        error: NxError,
    ) -> Result<(), NxError> {
        e.unread(peer, error)?;
        self.post_again(e, posted)
    }

    /// The same for one that was being fetched.
    fn lose_some(
        &mut self,
        e: &Inner,
        peer: &Peer,
        it: Fetching,
        error: NxError,
    ) -> Result<(), NxError> {
        if let Err(error) = e.unread(peer, error) {
            self.fetching.push(it); // its room is given up with the job
            return Err(error);
        }
        self.fetch_another(e, peer, it)
    }

    /// The receive waits for another message than this one.
    fn fetch_another(&mut self, e: &Inner, peer: &Peer, it: Fetching) -> Result<(), NxError> {
        peer.unwatch(it.scout.block);
        self.post_again(e, it.posted)
    }

    /// A peer was ended on request: what it has announced, and nobody has fetched, is nobody's.
    pub(in crate::engine) fn forget_announced(
        &mut self,
        e: &Inner,
        peer: &Peer,
    ) -> Result<(), NxError> {
        let from = peer.number as usize;
        self.unexpected.forget_staged(from);
        let lost: Vec<Fetching> = self.fetching.extract_if(.., |it| it.from == from).collect();
        lost.into_iter().try_for_each(|it| self.fetch_another(e, peer, it))
    }

    /// The job has ended, and memory of its receives is the program's again: nothing may come directly any more.
    pub(in crate::engine) fn revoke_targets(&mut self) {
        for it in &mut self.fetching {
            if let Some(go) = it.go.take() {
                let room = self.ops.get(it.posted.op).room;
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
    ) -> Option<Spot> {
        let len = head.info.count;
        let staged = layout::STAGED + 8 * scout.block as usize;
        let from = if scout.source.is_some() { e.settings.share } else { usize::MAX };
        // A safe copy that is complete is there already.
        if len < e.settings.direct.min(from)
            || peer.in64(staged).load(Ordering::Relaxed) == scout.len
        {
            return None;
        }
        let room = self.ops.get(op).room;
        let go = self.with_windows(e, peer, |windows, maker| windows.open_for(maker, room, len));
        if let Some(go) = go {
            go.write(peer, scout.block);
            e.at(Point::ReplyWritten);
            peer.out.ring();
            e.count(count::REPLIES, 1);
        }
        go
    }

    /// Where the receiver may read a message itself, if [`State::confirm`] says so afterwards.
    pub(super) fn offer(&mut self, e: &Inner, peer: &Peer, data: Source) -> Option<Spot> {
        if data.len < e.settings.share || peer.out.is_elsewhere() {
            return None;
        }
        self.with_windows(e, peer, |windows, maker| windows.offer(maker, data))
    }

    /// Whether what was offered is in its window still.
    pub(in crate::engine) fn confirm(&mut self, peer: &Peer, offer: &Spot) -> bool {
        self.windows.confirm(peer.number, offer)
    }

    /// A message that was offered is sent.
    pub(in crate::engine) fn end_offer(&mut self, peer: &Peer, offer: &Spot) {
        self.windows.end_offer(peer.number, offer);
    }

    /// Does something with the windows for a peer; counts the trips to the daemon that it made.
    fn with_windows(
        &mut self,
        e: &Inner,
        peer: &Peer,
        act: impl FnOnce(&mut direct::Windows, &direct::Maker<'_>) -> (Option<Spot>, u64),
    ) -> Option<Spot> {
        let fetching = &self.fetching;
        let is_busy = |from: u32, window| {
            fetching
                .iter()
                .any(|it| it.from == from as usize && it.go.is_some_and(|go| go.window == window))
        };
        let maker = direct::Maker {
            node: &e.data,
            own: &e.own,
            other: peer.number,
            pid: peer.out.import().exporter().pid,
            after: e.settings.direct_after,
            by_pages: e.settings.direct_by_pages,
            is_busy: &is_busy,
        };
        let (spot, trips) = act(&mut self.windows, &maker);
        e.count(count::DAEMON_TRIPS, trips);
        spot
    }

    /// The window of a peer's that a reply or a scout names.
    pub(in crate::engine) fn window(
        &mut self,
        e: &Inner,
        peer: &Peer,
        spot: &Spot,
        len: usize,
    ) -> Result<Option<Arc<Import>>, NxError> {
        let out = &mut self.pair(peer.number as usize).out;
        let found = out.targets.window(&e.data, &e.own, peer.number, spot, len)?;
        Ok(found.map(|(import, made)| {
            e.count(count::DAEMON_TRIPS, u64::from(made));
            import
        }))
    }

    /// Whether a message is on its way that a handler waits for.
    pub(super) fn fetches_for_handlers(&self) -> bool {
        self.fetching.iter().any(|fetching| self.is_for_handler(fetching.posted.op))
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
            match self.fetch_some(e, peer, &mut fetching) {
                Ok(true) => {}
                Ok(false) => {
                    self.fetching.push(fetching);
                    let last = self.fetching.len() - 1;
                    self.fetching.swap(i, last);
                    i += 1;
                }
                Err(error) => self.lose_some(e, peer, fetching, error)?,
            }
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
        let room = self.ops.get(it.posted.op).room;
        let take = len.min(room.len);
        if staged & layout::STAGED_DIRECT != 0 {
            let Some(go) = it.go else { return Err(fault("sent to where it was not told")) };
            if it.is_torn {
                return Err(e.lost(peer)); // it keeps a window of what it sends directly
            }
            if staged & layout::STAGED_DONE == 0 {
                self.pull(e, peer, it, staged)?;
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
            // The sender has not decided yet. If it does not send directly, what is read here is read anew.
            self.pull(e, peer, it, staged)?;
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

    /// Copies pieces that the sender has not, and watches its staged word.
    fn pull(
        &mut self,
        e: &Inner,
        peer: &Peer,
        it: &mut Fetching,
        staged: u64,
    ) -> Result<(), NxError> {
        let block = it.scout.block;
        let mut seen = staged;
        if let Some(Pull { import, source, shared }) = &it.pull {
            let room = self.ops.get(it.posted.op).room;
            let word = || peer.in64(layout::SHARED + 8 * block as usize);
            let mut bytes = 0;
            while let Some(number) = share::take_back(word(), shared.pieces()) {
                e.at(Point::PieceTaken);
                let piece = shared.piece(number);
                // SAFETY: the operation is under way, and this thread has the lock; the sender does not write to this
                // piece, which is taken.
                #[allow(unsafe_code)]
                let target = unsafe { mem::room(room, piece.start, piece.len()) };
                let at = source.offset as usize + piece.start - source.first as usize;
                let read = import.read(at, target);
                share::copied(word());
                if read.is_err() {
                    // It has made its safe copy, and given the memory back; or it has died, which is heard of otherwise.
                    (it.is_torn, it.left, seen) = (true, true, u64::MAX);
                    break;
                }
                bytes += piece.len();
                if bytes >= FETCH_STEP {
                    (it.left, seen) = (true, u64::MAX); // there may be more
                    break;
                }
            }
            e.count(count::PULLED_BYTES, bytes as u64);
        }
        if it.is_torn {
            it.pull = None;
        }
        peer.watch(block, seen);
        Ok(())
    }

    fn fetched(&mut self, e: &Inner, peer: &Peer, it: &Fetching) {
        peer.unwatch(it.scout.block);
        e.at(Point::Fetched);
        self.credit_block(e, peer, it.scout.block);
        self.complete(e, it.posted.op, Some(it.head.info));
    }
}
