//! Messages that fit a slot, between processes that wait for each other.
//!
//! What lies between one message seen and the next one stored is the latency that the library adds to that of a cache line.
//! So such messages have a way of their own through it, which does what the ordinary
//! one would do, and only that: while nothing is queued, posted or kept that could come first. Everything
//! else it leaves as it is to the ordinary way.

use super::State;
use crate::engine::counters as count;
use crate::engine::inner::{Inner, LOOKS};
use crate::engine::layout::{self, DESCRIPTOR, FIRST_LINE, SLOTS, kind};
use crate::engine::mem;
use crate::engine::ops::OpId;
use crate::engine::peer::Peer;
use crate::engine::state::Letter;
use crate::engine::types::{Info, Select, Target};
use crate::engine::{USER, slots};
use vmmc::mem::View;
use vmmc::sync::{Ordering, spin_hint};
use vmmc::word::{MappedU64, Word};

/// Where there are several peers, one receive of so many goes the ordinary way, which looks at all: whoever sends to a process that
/// only ever finds others' messages is heard now and then.
const HASTY: u32 = 16;
/// Words of a line.
const WORDS: usize = 8;
/// Those of the descriptor.
const HEAD: usize = DESCRIPTOR / 8;
const _: () =
    assert!(DESCRIPTOR == 8 * HEAD && FIRST_LINE == 8 * (WORDS - HEAD), "a line is eight words");

/// Where what does not fit the descriptor's line begins in a slot.
const SECOND_LINE: usize = 8 * WORDS;

/// What there is of a peer.
enum Seen {
    Nothing,
    Taken(Info),
    /// Something for the ordinary way.
    Other,
}

/// The first line of a slot. Slots lie inside lanes.
#[inline(always)]
fn line(lane: View<'_>, at: usize) -> [MappedU64<'_>; WORDS] {
    match lane.words(at) {
        Ok(words) => words,
        Err(error) => unreachable!("layout: {error}"),
    }
}

impl State {
    /// Sends a message that fits a slot. False: nothing was done, the message is for the ordinary way.
    ///
    /// Credits are looked for when half of the slots are in use, after the message: who waits for its answer has the time, and
    /// their line is fetched once for all of them.
    #[inline(always)]
    pub(in crate::engine) fn send_short(&mut self, e: &Inner, peer: &Peer, letter: Letter) -> bool {
        let Some(lane) = peer.out.view() else { return false };
        let len = letter.data.len;
        if len >= e.too_long || len > layout::room(peer.stride) || peer.gone.load(Ordering::Relaxed)
        {
            return false;
        }
        let Some(pair) = self.pairs.get_mut(peer.number as usize) else { return false };
        if !pair.out.queue.is_empty() {
            return false;
        }
        let Some(slot) = pair.out.free.pop() else { return false };
        let free = pair.out.free.len();
        let sequence = pair.out.sequence;
        pair.out.sequence = sequence.wrapping_add(1);
        let at = layout::SLOTS_AT + slot * peer.stride;
        let [arrival, what, ptypes, data @ ..] = line(lane, at);
        // SAFETY: the operation is not complete before this returns.
        #[allow(unsafe_code)]
        let bytes = unsafe { mem::source(letter.data) };
        // The first line last and at one go: the receiver polls it, and would take it back while the others are being written.
        let (bytes, rest) = bytes.split_at(len.min(FIRST_LINE));
        if !rest.is_empty() && lane.write(at + SECOND_LINE, rest).is_err() {
            unreachable!("the length was checked against the slot");
        }
        // The bytes behind the last one are the slot's, too.
        let mut places = data.iter();
        let (whole, rest) = bytes.as_chunks();
        for (word, place) in whole.iter().zip(&mut places) {
            place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        if let (false, Some(place)) = (rest.is_empty(), places.next()) {
            place.store(partial(rest), Ordering::Relaxed);
        }
        let kind = slots::arrival(sequence, kind::DATA, len);
        what.store(
            u64::from(letter.channel) << 32 | u64::from(letter.type_ as u32),
            Ordering::Relaxed,
        );
        let own = u64::from(e.ptype() as u32);
        ptypes.store(u64::from(letter.ptype as u32) << 32 | own, Ordering::Relaxed);
        // PAIRS(arrival): with the acquire in `look`.
        arrival.store(kind, Ordering::Release);
        peer.out.ring();
        e.interrupt_who_wants(peer);
        self.tally(e).add(count::SENT_SMALL, 1);
        if free == SLOTS / 2
            && let Err(error) = self.take_credits(peer)
        {
            e.fail(error);
        }
        true
    }

    /// The first looks of a blocking receive of a user's message: takes the one that comes next, if it is in a slot and
    /// wanted. As long as nobody else wants the lock it is kept meanwhile: what was seen is at hand at once.
    #[inline(always)]
    pub(in crate::engine) fn receive_short(
        &mut self,
        e: &Inner,
        select: Select,
        room: Target,
    ) -> Option<Info> {
        let nothing_first = self.posted.is_empty()
            && self.unexpected.is_empty()
            && self.fetching.is_empty()
            && self.starving == 0;
        if !nothing_first || !e.may_glance() {
            return None;
        }
        self.hasty = (self.hasty + 1) % HASTY;
        if self.hasty == 0 && self.pairs.len() > 2 {
            return None;
        }
        for _ in 0..LOOKS {
            for peer in e.peers() {
                match self.look(e, peer, select, room) {
                    Seen::Nothing => {}
                    Seen::Taken(info) => return Some(info),
                    Seen::Other => return None,
                }
            }
            if e.has_other_news() {
                return None;
            }
            spin_hint();
        }
        None
    }

    /// The same for a receive that the program has an id of, if no other one is posted. When it has its message nothing is left of it.
    #[inline]
    pub(in crate::engine) fn receive_posted(&mut self, e: &Inner, id: OpId) -> Option<Info> {
        let &[posted] = &*self.posted else { return None };
        let op = self.ops.get(id);
        if e.has_waiters() || e.has_other_news() {
            return None; // another thread may wait for this one; or the room is the program's again
        }
        let alone = posted.op == id && posted.channel == USER && op.left == 1 && op.info.is_none();
        if !alone {
            return None;
        }
        let room = op.room;
        self.posted.clear();
        let found = self.receive_short(e, posted.select, room);
        match found {
            Some(_) => drop(self.ops.remove(id)),
            None => self.posted.push(posted),
        }
        found
    }

    /// Looks at one peer.
    #[inline(always)]
    fn look(&mut self, e: &Inner, peer: &Peer, select: Select, room: Target) -> Seen {
        self.credit_owed(e, peer);
        let Some(expected) = peer.expected() else { return Seen::Other };
        let [arrival, what, ptypes, data @ ..] = line(peer.lane(), expected.at);
        // PAIRS(arrival): with the release in `put` and in `send_short`.
        let word = arrival.load(Ordering::Acquire);
        let Some((kind, len)) = slots::arrived(word, expected.sequence) else {
            return Seen::Nothing;
        };
        let (what, ptypes) = (what.load(Ordering::Relaxed), ptypes.load(Ordering::Relaxed));
        let info = Info {
            type_: what as u32 as i32,
            count: len,
            node: peer.node as i32,
            ptype: ptypes as u32 as i32,
        };
        if kind != kind::DATA
            || len > layout::room(e.stride).min(room.len)
            || (what >> 32) as u32 != USER
            || (ptypes >> 32) as u32 as i32 != e.ptype()
            || !select.takes(info.type_, info.node, info.ptype)
        {
            return Seen::Other;
        }
        let Some(pair) = self.pairs.get_mut(peer.number as usize) else { return Seen::Other };
        let inn = &mut pair.inn;
        let Some(slot) = inn.slots.pop() else { return Seen::Other };
        inn.sequence = inn.sequence.wrapping_add(1);
        // SAFETY: the caller of the receive lends the room for the call.
        #[allow(unsafe_code)]
        let target = unsafe { mem::room(room, 0, len) };
        let (target, beyond) = target.split_at_mut(len.min(FIRST_LINE));
        if !beyond.is_empty() && peer.lane().read(expected.at + SECOND_LINE, beyond).is_err() {
            unreachable!("the length was checked against the slot");
        }
        let mut places = data.iter();
        let (whole, rest) = target.as_chunks_mut();
        for (word, place) in whole.iter_mut().zip(&mut places) {
            *word = place.load(Ordering::Relaxed).to_ne_bytes();
        }
        if let (false, Some(place)) = (rest.is_empty(), places.next()) {
            rest.copy_from_slice(&place.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
        }
        inn.owed = Some(slot);
        self.expect_first(e, peer);
        let tally = self.tally(e);
        tally.add(count::SLOT_COPIES, 1);
        tally.add(count::RECEIVED, 1);
        Seen::Taken(info)
    }
}

/// Fewer bytes than a word holds, in the order of memory.
#[inline]
fn partial(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_ne_bytes(word)
}
