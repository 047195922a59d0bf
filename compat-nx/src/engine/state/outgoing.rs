//! Sending: slots, scouts, and letters that wait for room.

use super::State;
use crate::engine::counters as count;
use crate::engine::inner::Inner;
use crate::engine::layout::{self, BLOCKS, DESCRIPTOR, Scout, kind};
use crate::engine::ops::OpId;
use crate::engine::out::word64;
use crate::engine::peer::Peer;
use crate::engine::settings::SendMode;
use crate::engine::slots::{self, Credit, SlotQueue};
use crate::engine::stage::{Place, Stages};
use crate::engine::types::Source;
use crate::engine::{direct, mem, share};
use crate::error::NxError;
use std::collections::VecDeque;
use std::sync::Arc;
use vmmc::Export;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Letter {
    pub(in crate::engine) channel: u32,
    pub(in crate::engine) type_: i32,
    /// Process type of the receiver.
    pub(in crate::engine) ptype: i32,
    pub(in crate::engine) data: Source,
}

/// A message that waits for a slot or a block.
pub(super) struct Queued {
    pub(super) op: OpId,
    pub(super) letter: Letter,
}

/// A large message whose scout is on its way.
pub(in crate::engine) struct Staging {
    pub(in crate::engine) export: Arc<Export>,
    pub(in crate::engine) offset: usize,
    pub(in crate::engine) block: u32,
    /// Where the receiver may read it itself, once that is confirmed.
    pub(in crate::engine) offer: Option<direct::Spot>,
}

/// What became of a letter.
pub(in crate::engine) enum Sent {
    /// It is in a slot.
    Whole,
    /// Its scout is: the safe copy is to be made.
    Scouted(Staging),
    /// There is no slot, or no block.
    Starved,
}

/// Our sending side towards one peer.
pub(super) struct Outgoing {
    pub(super) free: SlotQueue,
    pub(super) sequence: u32,
    /// Credits taken so far.
    pub(super) credits: u32,
    /// Free blocks, a bit each, and the places of those in use.
    pub(super) blocks: u32,
    pub(super) places: [Option<Place>; BLOCKS],
    pub(super) stages: Stages,
    pub(super) targets: direct::Targets,
    pub(super) queue: VecDeque<Queued>,
    /// What our starved word says.
    pub(super) starved: u32,
}

impl Default for Outgoing {
    fn default() -> Outgoing {
        Outgoing {
            free: SlotQueue::full(),
            sequence: 1,
            credits: 0,
            blocks: u32::MAX,
            places: [None; BLOCKS],
            stages: Stages::default(),
            targets: direct::Targets::default(),
            queue: VecDeque::new(),
            starved: 0,
        }
    }
}

impl State {
    /// Takes the credits that the peer has given.
    pub(super) fn take_credits(&mut self, peer: &Peer) -> Result<(), NxError> {
        let out = &mut self.pair(peer.number as usize).out;
        while let Some(what) = peer.credit(out.credits) {
            let fault =
                || NxError::PeerFault { node: peer.node, what: "a credit for what was not in use" };
            match slots::decode(what) {
                Some(Credit::Slot(slot)) if out.free.len() < layout::SLOTS => out.free.push(slot),
                Some(Credit::Block(block)) => {
                    match out.places.get_mut(block).and_then(Option::take) {
                        Some(place) => {
                            out.stages.give_back(place, !peer.out.is_elsewhere());
                            out.blocks |= 1 << block;
                        }
                        None => return Err(fault()),
                    }
                }
                _ => return Err(fault()),
            }
            out.credits = out.credits.wrapping_add(1);
        }
        Ok(())
    }

    /// Sends if there is room, ahead of nothing.
    #[inline]
    pub(in crate::engine) fn send(
        &mut self,
        e: &Inner,
        peer: &Peer,
        letter: Letter,
    ) -> Result<Sent, NxError> {
        let out = &mut self.pair(peer.number as usize).out;
        if !out.queue.is_empty() {
            return Ok(Sent::Starved);
        }
        self.send_now(e, peer, letter)
    }

    fn send_now(&mut self, e: &Inner, peer: &Peer, letter: Letter) -> Result<Sent, NxError> {
        if peer.gone.load(Ordering::Relaxed) {
            return Ok(Sent::Whole); // it left in order, and will receive nothing any more
        }
        if letter.data.len > layout::room(peer.stride).min(e.settings.large) {
            return self.scout(e, peer, letter);
        }
        let Some(slot) = self.slot(peer)? else { return Ok(Sent::Starved) };
        // SAFETY: the operation is not complete before this returns.
        #[allow(unsafe_code)]
        let data = unsafe { mem::source(letter.data) };
        self.put(e, peer, slot, kind::DATA, letter, data)?;
        self.tally(e).add(count::SENT_SMALL, 1);
        Ok(Sent::Whole)
    }

    /// A slot to write, if there is one.
    #[inline]
    fn slot(&mut self, peer: &Peer) -> Result<Option<usize>, NxError> {
        if let Some(slot) = self.pair(peer.number as usize).out.free.pop() {
            return Ok(Some(slot));
        }
        self.take_credits(peer)?;
        Ok(self.pair(peer.number as usize).out.free.pop())
    }

    /// Writes a slot, and wakes or interrupts the receiver if it must be.
    #[inline]
    fn put(
        &mut self,
        e: &Inner,
        peer: &Peer,
        slot: usize,
        kind: u8,
        letter: Letter,
        data: &[u8],
    ) -> Result<(), NxError> {
        let out = &mut self.pair(peer.number as usize).out;
        let sequence = out.sequence;
        out.sequence = sequence.wrapping_add(1);
        let at = layout::SLOTS_AT + slot * peer.stride;
        let what = u64::from(letter.channel) << 32 | u64::from(letter.type_ as u32);
        let ptypes = u64::from(letter.ptype as u32) << 32 | u64::from(e.ptype() as u32);
        let arrival = slots::arrival(sequence, kind, data.len());
        let import = peer.out.import();
        match (e.settings.send, peer.out.view()) {
            (SendMode::Automatic, Some(target)) => {
                // The first line last and at one go: the receiver polls it, and would take it
                // back while the others are being written.
                let first = data.len().min(layout::FIRST_LINE);
                let (first, rest) = data.split_at(first);
                if (!rest.is_empty()
                    && target.write(at + DESCRIPTOR + layout::FIRST_LINE, rest).is_err())
                    || target.write(at + DESCRIPTOR, first).is_err()
                {
                    unreachable!("the length was checked against the slot");
                }
                word64(target, at + 8).store(what, Ordering::Relaxed);
                word64(target, at + 16).store(ptypes, Ordering::Relaxed);
                // PAIRS(arrival): with the acquire in `poll`.
                word64(target, at).store(arrival, Ordering::Release);
                peer.out.ring();
            }
            (SendMode::Deliberate1, _) => {
                let mut head = [0; 16];
                head[..8].copy_from_slice(&what.to_ne_bytes());
                head[8..].copy_from_slice(&ptypes.to_ne_bytes());
                let sent = import.send(at + DESCRIPTOR, data).is_ok()
                    && import.send(at + 8, &head).is_ok()
                    && import.flag64(at).is_ok_and(|word| word.signal(arrival).is_ok());
                if !sent {
                    return e.unsent(peer);
                }
            }
            // To another node there is no other way than by deliberate update.
            (SendMode::Deliberate2 | SendMode::Automatic, _) => {
                let mut marshal = std::mem::take(&mut self.marshal);
                marshal.clear();
                marshal.extend_from_slice(&what.to_ne_bytes());
                marshal.extend_from_slice(&ptypes.to_ne_bytes());
                marshal.extend_from_slice(data);
                let sent = import.send(at + 8, &marshal);
                self.marshal = marshal;
                if sent.is_err()
                    || !import.flag64(at).is_ok_and(|word| word.signal(arrival).is_ok())
                {
                    return e.unsent(peer);
                }
            }
        }
        e.interrupt_who_wants(peer);
        Ok(())
    }

    /// Announces a large message.
    fn scout(&mut self, e: &Inner, peer: &Peer, letter: Letter) -> Result<Sent, NxError> {
        let number = peer.number as usize;
        self.take_credits(peer)?; // blocks and places that are free again
        let out = &mut self.pair(number).out;
        if out.blocks == 0 {
            return Ok(Sent::Starved);
        }
        let Some(slot) = self.slot(peer)? else { return Ok(Sent::Starved) };
        let len = letter.data.len;
        let out = &mut self.pair(number).out;
        // The slot goes back to the front of nothing if this fails: the job ends then.
        let (place, made) =
            out.stages.take(&e.data, &e.own, peer.number, !peer.out.is_elsewhere(), len)?;
        if made {
            e.count(count::DAEMON_TRIPS, 1);
        }
        let block = out.blocks.trailing_zeros();
        out.blocks &= !(1 << block);
        if let Some(kept) = out.places.get_mut(block as usize) {
            *kept = Some(place);
        }
        let (export, offset) = out.stages.at(place);
        let offer = self.offer(e, peer, letter.data);
        peer.out.say64(layout::STAGED + 8 * block as usize, 0);
        if offer.is_some() {
            peer.out.say64(layout::SHARED + 8 * block as usize, share::CLOSED);
        }
        let (len, region) = (len as u64, place.region);
        let scout = Scout { len, offset: offset as u64, region, block, source: offer };
        self.put(e, peer, slot, kind::SCOUT, letter, &scout.to_bytes())?;
        e.count(count::SENT_LARGE, 1);
        Ok(Sent::Scouted(Staging { export, offset, block, offer }))
    }

    /// Queues a letter that found no room. `away`: its sender does not wait in a call.
    pub(in crate::engine) fn queue(
        &mut self,
        e: &Inner,
        peer: &Peer,
        op: OpId,
        letter: Letter,
        away: bool,
    ) {
        let out = &mut self.pair(peer.number as usize).out;
        let first = out.queue.is_empty();
        if first {
            peer.await_credit(Some(out.credits));
            e.count(count::STARVED, 1);
        }
        out.queue.push_back(Queued { op, letter });
        let ask = away && out.starved & layout::STARVED_AWAY == 0;
        self.starving += usize::from(first);
        if ask {
            self.ask(e, peer, layout::STARVED_AWAY);
        }
    }

    /// Interrupts the peer to ask for more buffers (N18).
    fn ask(&mut self, e: &Inner, peer: &Peer, how: u32) {
        let out = &mut self.pair(peer.number as usize).out;
        let blocks = if out.blocks == 0 { layout::STARVED_BLOCKS } else { 0 };
        out.starved |= layout::STARVED_WAITS | how | blocks;
        peer.out.say32(layout::STARVED, out.starved);
        e.interrupt(peer);
    }

    /// Before a thread sleeps: asks every peer that owes us credits and was not asked yet.
    pub(in crate::engine) fn ask_all(&mut self, e: &Inner) {
        for peer in e.peers() {
            let out = &self.pair(peer.number as usize).out;
            if !out.queue.is_empty() && out.starved == 0 {
                self.ask(e, peer, 0);
            }
        }
    }

    /// Sends what is queued, as far as there is room.
    pub(super) fn flush(&mut self, e: &Inner, peer: &Peer) -> Result<(), NxError> {
        let number = peer.number as usize;
        if self.pair(number).out.queue.is_empty() {
            return Ok(());
        }
        self.take_credits(peer)?;
        let mut moved = false;
        while let Some(next) = self.pair(number).out.queue.front() {
            let (op, letter) = (next.op, next.letter);
            match self.send_now(e, peer, letter)? {
                Sent::Starved => break,
                Sent::Whole => {}
                Sent::Scouted(staging) => {
                    e.stage(peer, &staging, letter.data, false)?;
                    if let Some(offer) = staging.offer {
                        self.end_offer(peer, &offer);
                    }
                }
            }
            moved = true;
            self.pair(number).out.queue.pop_front();
            self.complete(e, op, None);
        }
        let out = &mut self.pair(number).out;
        let empty = out.queue.is_empty();
        peer.await_credit((!empty).then_some(out.credits));
        if empty {
            self.starving -= 1;
            e.changed(); // who leaves waits for that, too
        }
        if moved {
            self.ask_anew(e, peer);
        }
        Ok(())
    }

    /// The queue is another than when the peer was asked, if it was: forgets that, so that it can be asked again, and
    /// asks for what is queued still if nobody waits for it in a call.
    pub(super) fn ask_anew(&mut self, e: &Inner, peer: &Peer) {
        let out = &mut self.pair(peer.number as usize).out;
        if out.starved == 0 {
            return;
        }
        let away = out.starved & layout::STARVED_AWAY;
        out.starved = 0;
        peer.out.say32(layout::STARVED, 0);
        if away != 0 && !out.queue.is_empty() {
            self.ask(e, peer, away);
        }
    }

    /// Whether nothing of ours needs this process any more: nothing is queued, no safe copy is
    /// waited for, and nobody is still opening a link with it.
    pub(in crate::engine) fn is_drained(&mut self, e: &Inner) -> Result<bool, NxError> {
        for peer in e.peers().filter(|peer| !peer.gone.load(Ordering::Relaxed)) {
            self.take_credits(peer)?;
            let out = &self.pair(peer.number as usize).out;
            if !out.queue.is_empty() || out.blocks != u32::MAX {
                peer.await_credit(Some(out.credits));
                return Ok(false);
            }
            if !peer.is_here() {
                peer.await_here();
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asks receivers to fetch what they have not, so that this process may go; again when it was forgotten ([`State::ask_anew`]).
    pub(in crate::engine) fn ask_to_fetch(&mut self, e: &Inner) {
        const ALL: u32 = layout::STARVED_WAITS | layout::STARVED_BLOCKS | layout::STARVED_AWAY;
        for peer in e.peers().filter(|peer| !peer.gone.load(Ordering::Relaxed)) {
            let out = &mut self.pair(peer.number as usize).out;
            let holds = out.blocks != u32::MAX || !out.queue.is_empty();
            if holds && out.starved & ALL != ALL {
                out.starved |= ALL;
                peer.out.say32(layout::STARVED, out.starved);
                e.interrupt(peer);
            }
        }
    }
}
