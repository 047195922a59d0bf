//! Arrivals: what comes in slots, who it is for, and giving slots and blocks back.

use super::State;
use super::matching::{Found, Want};
use super::unexpected::{Body, Message};
use crate::engine::counters as count;
use crate::engine::inner::Inner;
use crate::engine::layout::{self, CREDIT_BLOCK, DESCRIPTOR, Scout, kind};
use crate::engine::mem;
use crate::engine::ops::{Head, Posted};
use crate::engine::peer::Peer;
use crate::engine::slots::{self, SlotQueue};
use crate::engine::stage::Fetched;
use crate::engine::types::Info;
use crate::error::NxError;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// Our receiving side from one peer.
pub(super) struct Incoming {
    /// The peer's queue of free slots: the first is where its next message will be.
    pub(super) slots: SlotQueue,
    pub(super) sequence: u32,
    /// Credits given so far.
    pub(super) given: u32,
    /// A slot that was read, whose credit is given when there is time: at the next look at this peer.
    pub(super) owed: Option<usize>,
    pub(super) fetched: Fetched,
}

impl Default for Incoming {
    fn default() -> Incoming {
        Incoming {
            slots: SlotQueue::full(),
            sequence: 1,
            given: 0,
            owed: None,
            fetched: Fetched::default(),
        }
    }
}

impl State {
    /// One turn of everything: arrivals, fetches, queued letters.
    pub(in crate::engine) fn progress(&mut self, e: &Inner) -> Result<(), NxError> {
        self.progress_for(e, None)
    }

    /// The same for a blocking receive.
    #[inline]
    pub(in crate::engine) fn progress_for(
        &mut self,
        e: &Inner,
        mut want: Option<&mut Want>,
    ) -> Result<(), NxError> {
        if e.check().is_err() {
            return Ok(()); // the job has ended: memory of operations is the program's again
        }
        for peer in e.peers() {
            self.poll_for(e, peer, want.as_deref_mut())?;
        }
        if !self.fetching.is_empty() {
            self.fetch_all(e)?;
        }
        if self.starving > 0 {
            for peer in e.peers() {
                self.flush(e, peer)?;
            }
        }
        Ok(())
    }

    pub(in crate::engine) fn poll(&mut self, e: &Inner, peer: &Peer) -> Result<(), NxError> {
        self.poll_for(e, peer, None)
    }

    /// Takes what has arrived from one peer.
    fn poll_for(
        &mut self,
        e: &Inner,
        peer: &Peer,
        mut want: Option<&mut Want>,
    ) -> Result<(), NxError> {
        self.credit_owed(e, peer);
        loop {
            let Some(expected) = peer.expected() else {
                // All slots hold messages that nobody asked for: the sender will need some.
                self.move_out(e, peer, false)?;
                if peer.expected().is_none() {
                    return Ok(());
                }
                continue;
            };
            // PAIRS(arrival): with the release in `put`.
            let word = peer.in64(expected.at).load(Ordering::Acquire);
            let Some((kind, len)) = slots::arrived(word, expected.sequence) else {
                return Ok(());
            };
            let inn = &mut self.pair(peer.number as usize).inn;
            let Some(slot) = inn.slots.pop() else { unreachable!("the first one was expected") };
            inn.sequence = inn.sequence.wrapping_add(1);
            self.expect_first(e, peer);
            self.arrived(e, peer, slot, kind, len, want.as_deref_mut())?;
        }
    }

    /// Publishes where the peer's next message is expected.
    #[inline(always)]
    pub(in crate::engine) fn expect_first(&mut self, e: &Inner, peer: &Peer) {
        let inn = &self.pair(peer.number as usize).inn;
        match inn.slots.first() {
            Some(slot) => peer.expect(layout::SLOTS_AT + slot * e.stride, inn.sequence),
            None => peer.expect_nothing(),
        }
    }

    #[inline]
    fn arrived(
        &mut self,
        e: &Inner,
        peer: &Peer,
        slot: usize,
        kind: u8,
        len: usize,
        want: Option<&mut Want>,
    ) -> Result<(), NxError> {
        let want = want.filter(|want| want.found.is_none());
        let fault = |what| NxError::PeerFault { node: peer.node, what };
        let at = layout::SLOTS_AT + slot * e.stride;
        if len > layout::room(e.stride) {
            return Err(fault("a message longer than its slot"));
        }
        let what = peer.in64(at + 8).load(Ordering::Relaxed);
        let ptypes = peer.in64(at + 16).load(Ordering::Relaxed);
        let mut head = Head {
            channel: (what >> 32) as u32,
            info: Info {
                type_: what as u32 as i32,
                count: len,
                node: peer.node as i32,
                ptype: ptypes as u32 as i32,
            },
            ptype: (ptypes >> 32) as u32 as i32,
        };
        let posted = self.match_posted(e, &head);
        let want = want.filter(|want| posted.is_none() && want.takes(&head, e.ptype()));
        match kind {
            kind::DATA => {
                let room = match (posted, &want) {
                    (Some(Posted { op, .. }), _) => self.ops.get(op).room,
                    (None, Some(want)) => want.room,
                    (None, None) => {
                        let from = peer.number as usize;
                        let body = Body::Slot { slot };
                        self.keep(e, Message { head, from, body });
                        return Ok(());
                    }
                };
                let take = len.min(room.len);
                // SAFETY: the operation is under way, and this thread has the lock.
                #[allow(unsafe_code)]
                let target = unsafe { mem::room(room, 0, take) };
                if peer.lane().read(at + DESCRIPTOR, target).is_err() {
                    unreachable!("the length was checked against the slot");
                }
                self.credit_slot(e, peer, slot);
                self.tally(e).add(count::SLOT_COPIES, 1);
                match (posted, want) {
                    (Some(Posted { op, .. }), _) => self.complete(e, op, Some(head.info)),
                    (None, Some(want)) => {
                        self.tally(e).add(count::RECEIVED, 1);
                        want.found = Some(Found::Here(head.info));
                    }
                    (None, None) => {}
                }
            }
            kind::SCOUT => {
                let mut bytes = [0; Scout::LEN];
                if len != Scout::LEN || peer.lane().read(at + DESCRIPTOR, &mut bytes).is_err() {
                    return Err(fault("a scout of the wrong length"));
                }
                let scout =
                    Scout::from_bytes(bytes).ok_or(fault("a scout of an impossible block"))?;
                head.info.count = usize::try_from(scout.len)
                    .ok()
                    .filter(|&len| len <= isize::MAX as usize)
                    .ok_or(fault("a scout of an impossible length"))?;
                self.credit_slot(e, peer, slot);
                match (posted, want) {
                    (Some(posted), _) => self.fetch(e, peer, posted, head, scout)?,
                    (None, Some(want)) => {
                        let posted = self.comes_for(want);
                        self.fetch(e, peer, posted, head, scout)?;
                    }
                    (None, None) => {
                        let from = peer.number as usize;
                        let body = Body::Staged(scout);
                        self.keep(e, Message { head, from, body });
                    }
                }
            }
            _ => return Err(fault("a message of unknown kind")),
        }
        Ok(())
    }

    /// Keeps a message that no receive was posted for; threads in blocking calls may want it.
    pub(super) fn keep(&mut self, e: &Inner, message: Message) {
        self.unexpected.push(message);
        e.changed();
    }

    /// Takes the first posted receive for this message off the list.
    #[inline]
    pub(super) fn match_posted(&mut self, e: &Inner, head: &Head) -> Option<Posted> {
        if self.posted.is_empty() || (head.channel == 0 && head.ptype != e.ptype()) {
            return None;
        }
        let Info { type_, node, ptype, .. } = head.info;
        let found = self.posted.iter().position(|posted| {
            posted.channel == head.channel && posted.select.takes(type_, node, ptype)
        })?;
        Some(self.unpost(found))
    }

    pub(super) fn unpost(&mut self, index: usize) -> Posted {
        let posted = self.posted.remove(index);
        if self.is_for_handler(posted.op) {
            self.handlers -= 1;
        }
        posted
    }

    /// Gives a slot back. Wakes nobody: a sender that sleeps for want of slots has interrupted us, and is
    /// rung by that.
    #[inline(always)]
    pub(super) fn credit_slot(&mut self, e: &Inner, peer: &Peer, slot: usize) {
        let inn = &mut self.pair(peer.number as usize).inn;
        let given = inn.given;
        inn.given = given.wrapping_add(1);
        inn.slots.push(slot);
        peer.out.give(given, slot as u32);
        if peer.expected().is_none() {
            self.expect_first(e, peer);
        }
    }

    /// Gives the credit that is owed, if one is.
    #[inline(always)]
    pub(super) fn credit_owed(&mut self, e: &Inner, peer: &Peer) {
        if let Some(slot) = self.pair(peer.number as usize).inn.owed.take() {
            self.credit_slot(e, peer, slot);
        }
    }

    /// Gives a block back, and tells a sender that waits for one.
    pub(super) fn credit_block(&mut self, e: &Inner, peer: &Peer, block: u32) {
        let inn = &mut self.pair(peer.number as usize).inn;
        let given = inn.given;
        inn.given = given.wrapping_add(1);
        peer.out.say64(layout::GO + layout::GO_LEN * block as usize, 0);
        peer.out.give(given, CREDIT_BLOCK | block);
        // The fence of the ring is between the credit and the look at the starved word.
        peer.out.ring();
        if peer.in32(layout::STARVED).load(Ordering::Relaxed) & layout::STARVED_AWAY != 0 {
            e.interrupt(peer);
        }
    }

    /// Moves this peer's unexpected messages out of its slots, and with `blocks` out of its safe
    /// copies, so that it can send more.
    fn move_out(&mut self, e: &Inner, peer: &Peer, blocks: bool) -> Result<(), NxError> {
        let number = peer.number as usize;
        for arrival in self.unexpected.away(number) {
            let Some(message) = self.unexpected.get(arrival) else { continue };
            let count = message.head.info.count;
            match message.body {
                Body::Slot { slot } => {
                    let mut bytes = vec![0; count].into_boxed_slice();
                    let at = layout::SLOTS_AT + slot * e.stride + DESCRIPTOR;
                    if peer.lane().read(at, &mut bytes).is_err() {
                        unreachable!("the length was checked against the slot");
                    }
                    self.unexpected.bring(arrival, bytes);
                    self.credit_slot(e, peer, slot);
                }
                Body::Staged(scout) if blocks => {
                    let staged = peer.in64(layout::STAGED + 8 * scout.block as usize);
                    if staged.load(Ordering::Acquire) != scout.len {
                        continue; // still being made
                    }
                    // Its length is the peer's word until it is known to be that of memory of the peer's.
                    let read = self.region(e, peer, &scout).and_then(|import| {
                        let mut bytes = vec![0; count].into_boxed_slice();
                        import.read(scout.offset as usize, &mut bytes).map_err(|_| e.lost(peer))?;
                        Ok(bytes)
                    });
                    let bytes = match read {
                        Ok(bytes) => bytes,
                        Err(error) => {
                            self.unexpected.remove(arrival);
                            e.unread(peer, error)?;
                            continue;
                        }
                    };
                    self.unexpected.bring(arrival, bytes);
                    self.credit_block(e, peer, scout.block);
                }
                _ => continue,
            }
            e.count(count::MOVED, 1);
        }
        Ok(())
    }

    /// What an interrupted process does: everything, and whatever its peers ask for.
    pub(in crate::engine) fn interrupted(&mut self, e: &Inner) -> Result<(), NxError> {
        self.progress(e)?;
        if e.check().is_err() {
            return Ok(());
        }
        for peer in e.peers() {
            let starved = peer.in32(layout::STARVED).load(Ordering::Acquire);
            if starved == 0 {
                continue;
            }
            self.move_out(e, peer, starved & layout::STARVED_BLOCKS != 0)?;
            self.poll(e, peer)?;
            peer.out.ring();
            if starved & layout::STARVED_AWAY != 0 {
                e.interrupt(peer);
            }
        }
        Ok(())
    }
}
