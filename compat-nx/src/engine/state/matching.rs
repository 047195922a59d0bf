//! Receiving: posting, and taking what is here already.

use super::State;
use super::outgoing::Letter;
use super::unexpected::{Arrival, Body, Message};
use crate::engine::counters as count;
use crate::engine::inner::Inner;
use crate::engine::layout::{self, DESCRIPTOR};
use crate::engine::mem;
use crate::engine::ops::{Head, OpId, Owner, Posted};
use crate::engine::types::{Info, Select, Target};
use crate::error::NxError;

/// A blocking receive, while its thread looks what has come: what is in a slot goes from there into
/// its room, and no operation is made.
#[derive(Debug)]
pub(in crate::engine) struct Want {
    pub(in crate::engine) channel: u32,
    pub(in crate::engine) select: Select,
    pub(in crate::engine) room: Target,
    /// What came.
    pub(in crate::engine) found: Option<Found>,
}

/// What a blocking receive found.
#[derive(Debug)]
pub(in crate::engine) enum Found {
    /// The message, in the room.
    Here(Info),
    /// A large message is on its way into the room.
    Coming(OpId),
}

impl Want {
    #[inline]
    pub(super) fn takes(&self, head: &Head, ptype: i32) -> bool {
        let Info { type_, node, ptype: source, .. } = head.info;
        self.found.is_none()
            && self.channel == head.channel
            && (head.channel != 0 || head.ptype == ptype)
            && self.select.takes(type_, node, source)
    }
}

impl State {
    /// Posts a receive, or completes it with a message that is here.
    #[inline]
    pub(in crate::engine) fn post(
        &mut self,
        e: &Inner,
        op: OpId,
        channel: u32,
        select: Select,
    ) -> Result<(), NxError> {
        self.post_at(e, self.posted.len(), Posted { op, channel, select })
    }

    /// Posts a receive anew whose message cannot be fetched any more, since its sender was ended on request: ahead of others.
    pub(super) fn post_again(&mut self, e: &Inner, posted: Posted) -> Result<(), NxError> {
        let op = self.ops.get(posted.op);
        if op.is_cancelled || matches!(op.owner, Owner::Nobody) {
            self.complete(e, posted.op, None); // nobody wants another message
            return Ok(());
        }
        self.post_at(e, 0, posted)
    }

    fn post_at(&mut self, e: &Inner, index: usize, posted: Posted) -> Result<(), NxError> {
        if let Some(arrival) = self.find(e, posted.channel, posted.select) {
            return self.take(e, posted, arrival);
        }
        let op = posted.op;
        self.posted.insert(index, posted);
        if self.is_for_handler(op) {
            self.handlers += 1;
            self.want(e);
        }
        Ok(())
    }

    /// The process has another type: messages that have come for that one may fit receives that are posted.
    pub(in crate::engine) fn match_anew(&mut self, e: &Inner) -> Result<(), NxError> {
        self.handlers = 0;
        // All of them are posted again, in order: what comes meanwhile is kept behind what was there.
        let posted = std::mem::take(&mut self.posted);
        posted.into_iter().try_for_each(|it| self.post_at(e, self.posted.len(), it))
    }

    /// A large message is on its way for a blocking receive.
    pub(super) fn comes_for(&mut self, want: &mut Want) -> Posted {
        let op = self.ops.add(Owner::Caller, 1, want.room, None);
        want.found = Some(Found::Coming(op));
        Posted { op, channel: want.channel, select: want.select }
    }

    pub(super) fn is_for_handler(&self, op: OpId) -> bool {
        matches!(self.ops.get(op).owner, Owner::Handler(_))
    }

    /// Whether receives of handlers are posted.
    pub(in crate::engine) fn has_handlers(&self) -> bool {
        self.handlers > 0
    }

    /// The first unexpected message that is selected.
    fn find(&self, e: &Inner, channel: u32, select: Select) -> Option<Arrival> {
        if self.unexpected.is_empty() {
            return None;
        }
        // Global operations have no process types.
        self.unexpected.first(channel, select, (channel == 0).then(|| e.ptype()))
    }

    /// Gives a blocking receive an unexpected message, if there is one for it.
    #[inline]
    pub(in crate::engine) fn take_for(
        &mut self,
        e: &Inner,
        want: &mut Want,
    ) -> Result<(), NxError> {
        if let Some(arrival) = self.find(e, want.channel, want.select) {
            let posted = self.comes_for(want);
            self.take(e, posted, arrival)?;
        }
        Ok(())
    }

    pub(in crate::engine) fn probe(&self, e: &Inner, select: Select) -> Option<Info> {
        self.find(e, 0, select)
            .and_then(|arrival| self.unexpected.get(arrival))
            .map(|message| message.head.info)
    }

    /// Gives an unexpected message to a receive.
    fn take(&mut self, e: &Inner, posted: Posted, arrival: Arrival) -> Result<(), NxError> {
        let op = posted.op;
        let Some(message) = self.unexpected.remove(arrival) else { unreachable!("found just now") };
        let room = self.ops.get(op).room;
        let head = message.head;
        let take = head.info.count.min(room.len);
        // SAFETY: the operation is under way, and this thread has the lock.
        #[allow(unsafe_code)]
        let target = unsafe { mem::room(room, 0, take) };
        match message.body {
            Body::Here(bytes) => {
                if let Some(bytes) = bytes.get(..take) {
                    target.copy_from_slice(bytes);
                }
                self.complete(e, op, Some(head.info));
            }
            Body::Slot { slot } => {
                let Some(peer) = e.peer(message.from) else { unreachable!("it sent to us") };
                let at = layout::SLOTS_AT + slot * e.stride + DESCRIPTOR;
                if peer.lane().read(at, target).is_err() {
                    unreachable!("the length was checked against the slot");
                }
                self.tally(e).add(count::SLOT_COPIES, 1);
                self.credit_slot(e, peer, slot);
                // All slots may have been in use: from here on one more is expected.
                self.poll(e, peer)?;
                self.complete(e, op, Some(head.info));
            }
            Body::Staged(scout) => {
                let Some(peer) = e.peer(message.from) else { unreachable!("it sent to us") };
                self.fetch(e, peer, posted, head, scout)?;
            }
        }
        Ok(())
    }

    /// A message of this process to itself: buffered, or into a posted receive.
    pub(in crate::engine) fn deliver(&mut self, e: &Inner, letter: Letter) {
        // SAFETY: the operation is not complete before this returns.
        #[allow(unsafe_code)]
        let data = unsafe { mem::source(letter.data) };
        let head = Head {
            channel: letter.channel,
            info: Info {
                type_: letter.type_,
                count: data.len(),
                node: e.job.node as i32,
                ptype: e.ptype(),
            },
            ptype: letter.ptype,
        };
        e.count(count::SENT_SELF, 1);
        match self.match_posted(e, &head) {
            Some(Posted { op, .. }) => {
                let room = self.ops.get(op).room;
                let take = data.len().min(room.len);
                // SAFETY: the operation is under way, and this thread has the lock.
                #[allow(unsafe_code)]
                let target = unsafe { mem::room(room, 0, take) };
                if let Some(data) = data.get(..take) {
                    // SAFETY: both are `take` bytes. A program may send a buffer into itself, so
                    // they may overlap: `copy` allows that.
                    #[allow(unsafe_code)]
                    unsafe {
                        std::ptr::copy(data.as_ptr(), target.as_mut_ptr(), take);
                    }
                }
                self.complete(e, op, Some(head.info));
            }
            None => {
                let (from, body) = (e.own.number as usize, Body::Here(data.into()));
                self.keep(e, Message { head, from, body });
            }
        }
    }

    /// Throws away what is here and selected (`flushmsg`).
    pub(in crate::engine) fn throw_away(
        &mut self,
        e: &Inner,
        channel: u32,
        select: Select,
    ) -> Result<(), NxError> {
        while let Some(arrival) = self.find(e, channel, select) {
            let nothing = Target { start: std::ptr::null_mut(), len: 0 };
            let op = self.ops.add(Owner::Nobody, 1, nothing, None);
            self.take(e, Posted { op, channel, select }, arrival)?;
        }
        Ok(())
    }
}
