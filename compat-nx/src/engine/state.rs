//! What the engine's lock protects, and the protocol's steps. None of them waits.

use super::counters as count;
use super::inner::Inner;
use super::layout::{self, BLOCKS, CREDIT_BLOCK, DESCRIPTOR, Scout, kind};
use super::ops::{Head, OpId, Ops, Owner, Posted};
use super::peer::Peer;
use super::settings::SendMode;
use super::slots::{self, Credit, SlotQueue};
use super::stage::{Fetched, Place, Stages};
use super::types::{Info, Outcome, Select, Source, Target};
use super::{direct, mem};
use crate::error::NxError;
use std::collections::VecDeque;
use std::sync::Arc;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc::{Export, Import};

/// How much is fetched in one step, so that the lock is not held for long.
const FETCH_STEP: usize = 1 << 20;

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Letter {
    pub(super) channel: u32,
    pub(super) type_: i32,
    /// Process type of the receiver.
    pub(super) ptype: i32,
    pub(super) data: Source,
}

/// A message that waits for a slot or a block.
struct Queued {
    op: OpId,
    letter: Letter,
}

/// A large message whose scout is on its way.
pub(super) struct Staging {
    pub(super) export: Arc<Export>,
    pub(super) offset: usize,
    pub(super) block: u32,
}

/// What became of a letter.
pub(super) enum Sent {
    /// It is in a slot.
    Whole,
    /// Its scout is: the safe copy is to be made.
    Scouted(Staging),
    /// There is no slot, or no block.
    Starved,
}

/// Our sending side towards one peer.
struct Outgoing {
    free: SlotQueue,
    sequence: u32,
    /// Credits taken so far.
    credits: u32,
    /// Free blocks, a bit each, and the places of those in use.
    blocks: u32,
    places: [Option<Place>; BLOCKS],
    stages: Stages,
    targets: direct::Targets,
    queue: VecDeque<Queued>,
    /// What our starved word says.
    starved: u32,
}

/// Our receiving side from one peer.
struct Incoming {
    /// The peer's queue of free slots: the first is where its next message will be.
    slots: SlotQueue,
    sequence: u32,
    /// Credits given so far.
    given: u32,
    fetched: Fetched,
}

struct Pair {
    out: Outgoing,
    inn: Incoming,
}

/// Where an unexpected message is.
enum Body {
    /// Still in its slot.
    Slot { slot: usize },
    /// In the sender's safe copy, now or soon.
    Staged(Scout),
    /// Here.
    Here(Box<[u8]>),
}

/// A message that no receive was posted for.
struct Unexpected {
    head: Head,
    /// The process it came from.
    from: usize,
    body: Body,
}

/// A large message on its way into its buffer.
struct Fetching {
    op: OpId,
    from: usize,
    head: Head,
    scout: Scout,
    import: Arc<Import>,
    /// Bytes in the buffer.
    done: usize,
    /// What the sender was told: it may send these directly.
    go: Option<direct::Go>,
}

/// A blocking receive, while its thread looks what has come: what is in a slot goes from there into
/// its room, and no operation is made.
#[derive(Debug)]
pub(super) struct Want {
    pub(super) channel: u32,
    pub(super) select: Select,
    pub(super) room: Target,
    /// What came.
    pub(super) found: Option<Found>,
}

/// What a blocking receive found.
#[derive(Debug)]
pub(super) enum Found {
    /// The message, in the room.
    Here(Info),
    /// A large message is on its way into the room.
    Coming(OpId),
}

impl Want {
    #[inline]
    fn takes(&self, head: &Head, ptype: i32) -> bool {
        let Info { type_, node, ptype: source, .. } = head.info;
        self.found.is_none()
            && self.channel == head.channel
            && (head.channel != 0 || head.ptype == ptype)
            && self.select.takes(type_, node, source)
    }
}

/// See the module.
pub(super) struct State {
    pub(super) ops: Ops,
    pairs: Vec<Pair>,
    posted: Vec<Posted>,
    unexpected: VecDeque<Unexpected>,
    fetching: Vec<Fetching>,
    pub(super) windows: direct::Windows,
    /// Posted receives of handlers.
    handlers: usize,
    /// What the peers were told: they interrupt us for each message.
    wants: bool,
    /// Peers with queued letters, a count.
    pub(super) starving: usize,
    /// Scratch for sends in one transfer.
    marshal: Vec<u8>,
}

impl State {
    pub(super) fn new(processes: usize) -> State {
        let pair = || Pair {
            out: Outgoing {
                free: SlotQueue::full(),
                sequence: 1,
                credits: 0,
                blocks: u32::MAX,
                places: [None; BLOCKS],
                stages: Stages::default(),
                targets: direct::Targets::default(),
                queue: VecDeque::new(),
                starved: 0,
            },
            inn: Incoming {
                slots: SlotQueue::full(),
                sequence: 1,
                given: 0,
                fetched: Fetched::default(),
            },
        };
        State {
            ops: Ops::default(),
            pairs: (0..processes).map(|_| pair()).collect(),
            posted: Vec::new(),
            unexpected: VecDeque::new(),
            fetching: Vec::new(),
            windows: direct::Windows::default(),
            handlers: 0,
            wants: false,
            starving: 0,
            marshal: Vec::new(),
        }
    }

    fn pair(&mut self, number: usize) -> &mut Pair {
        match self.pairs.get_mut(number) {
            Some(pair) => pair,
            None => unreachable!("process numbers are checked at the interface"),
        }
    }

    // ---------------------------------------------------------------- sending

    /// Takes the credits that the peer has given.
    #[inline]
    fn take_credits(&mut self, peer: &Peer) -> Result<(), NxError> {
        let out = &mut self.pair(peer.number as usize).out;
        while let Some(what) = peer.credit(out.credits) {
            let fault =
                NxError::PeerFault { node: peer.number, what: "a credit for what was not in use" };
            match slots::decode(what) {
                Some(Credit::Slot(slot)) if out.free.len() < layout::SLOTS => out.free.push(slot),
                Some(Credit::Block(block)) => {
                    match out.places.get_mut(block).and_then(Option::take) {
                        Some(place) => {
                            out.stages.give_back(place);
                            out.blocks |= 1 << block;
                        }
                        None => return Err(fault),
                    }
                }
                _ => return Err(fault),
            }
            out.credits = out.credits.wrapping_add(1);
        }
        Ok(())
    }

    /// Sends if there is room, ahead of nothing.
    #[inline]
    pub(super) fn send(&mut self, e: &Inner, peer: &Peer, letter: Letter) -> Result<Sent, NxError> {
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
        e.count(count::SENT_SMALL, 1);
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
        let gone = |_| NxError::PeerDied { node: peer.number };
        match e.settings.send {
            SendMode::Automatic => {
                // The first line last and at one go: the receiver polls it, and would take it
                // back while the others are being written.
                let first = data.len().min(layout::FIRST_LINE);
                let (first, rest) = data.split_at(first);
                let target = peer.out.view();
                if (!rest.is_empty()
                    && target.write(at + DESCRIPTOR + layout::FIRST_LINE, rest).is_err())
                    || target.write(at + DESCRIPTOR, first).is_err()
                {
                    unreachable!("the length was checked against the slot");
                }
                peer.out64(at + 8).store(what, Ordering::Relaxed);
                peer.out64(at + 16).store(ptypes, Ordering::Relaxed);
                // PAIRS(arrival): with the acquire in `poll`.
                peer.out64(at).store(arrival, Ordering::Release);
                peer.out.ring();
            }
            SendMode::Deliberate1 => {
                peer.out_import.send(at + DESCRIPTOR, data).map_err(gone)?;
                let mut head = [0; 16];
                head[..8].copy_from_slice(&what.to_ne_bytes());
                head[8..].copy_from_slice(&ptypes.to_ne_bytes());
                peer.out_import.send(at + 8, &head).map_err(gone)?;
                peer.out_import
                    .flag64(at)
                    .map_err(|_| NxError::PeerDied { node: peer.number })?
                    .signal(arrival)
                    .map_err(gone)?;
            }
            SendMode::Deliberate2 => {
                let mut marshal = std::mem::take(&mut self.marshal);
                marshal.clear();
                marshal.extend_from_slice(&what.to_ne_bytes());
                marshal.extend_from_slice(&ptypes.to_ne_bytes());
                marshal.extend_from_slice(data);
                let sent = peer.out_import.send(at + 8, &marshal);
                self.marshal = marshal;
                sent.map_err(gone)?;
                peer.out_import
                    .flag64(at)
                    .map_err(|_| NxError::PeerDied { node: peer.number })?
                    .signal(arrival)
                    .map_err(gone)?;
            }
        }
        // The fence of the ring is between our arrival word and this; the receiver sets the word,
        // and then looks for arrivals after a fence of its own.
        if peer.in32(layout::WANTS).load(Ordering::Relaxed) != 0 {
            e.interrupt(peer);
        }
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
        let (place, made) = out.stages.take(&e.data, &e.job, peer.number, len)?;
        if made {
            e.count(count::DAEMON_TRIPS, 1);
        }
        let block = out.blocks.trailing_zeros();
        out.blocks &= !(1 << block);
        if let Some(kept) = out.places.get_mut(block as usize) {
            *kept = Some(place);
        }
        let (export, offset) = out.stages.at(place);
        peer.out64(layout::STAGED + 8 * block as usize).store(0, Ordering::Relaxed);
        let scout = Scout { len: len as u64, offset: offset as u64, region: place.region, block };
        self.put(e, peer, slot, kind::SCOUT, letter, &scout.to_bytes())?;
        e.count(count::SENT_LARGE, 1);
        Ok(Sent::Scouted(Staging { export, offset, block }))
    }

    /// Queues a letter that found no room. `away`: its sender does not wait in a call.
    pub(super) fn queue(&mut self, e: &Inner, peer: &Peer, op: OpId, letter: Letter, away: bool) {
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
        peer.out32(layout::STARVED).store(out.starved, Ordering::Release);
        e.interrupt(peer);
    }

    /// Before a thread sleeps: asks every peer that owes us credits and was not asked yet.
    pub(super) fn ask_all(&mut self, e: &Inner) {
        for peer in e.peers() {
            let out = &self.pair(peer.number as usize).out;
            if !out.queue.is_empty() && out.starved == 0 {
                self.ask(e, peer, 0);
            }
        }
    }

    /// Sends what is queued, as far as there is room.
    fn flush(&mut self, e: &Inner, peer: &Peer) -> Result<(), NxError> {
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
                Sent::Scouted(staging) => e.stage(peer, &staging, letter.data, false)?,
            }
            moved = true;
            self.pair(number).out.queue.pop_front();
            self.complete(e, op, None);
        }
        let out = &mut self.pair(number).out;
        let empty = out.queue.is_empty();
        peer.await_credit((!empty).then_some(out.credits));
        let mut away = 0;
        if moved && out.starved != 0 {
            away = out.starved & layout::STARVED_AWAY;
            out.starved = 0;
            peer.out32(layout::STARVED).store(0, Ordering::Release);
        }
        if empty {
            self.starving -= 1;
        } else if away != 0 {
            self.ask(e, peer, away);
        }
        Ok(())
    }

    /// Whether nothing of ours needs this process any more: nothing is queued, no safe copy is
    /// waited for, and nobody is still opening a link with it.
    pub(super) fn is_drained(&mut self, e: &Inner) -> Result<bool, NxError> {
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

    /// Asks receivers to fetch what they have not, so that this process may go.
    pub(super) fn ask_to_fetch(&mut self, e: &Inner) {
        for peer in e.peers().filter(|peer| !peer.gone.load(Ordering::Relaxed)) {
            let out = &mut self.pair(peer.number as usize).out;
            if out.blocks != u32::MAX || !out.queue.is_empty() {
                out.starved |=
                    layout::STARVED_WAITS | layout::STARVED_BLOCKS | layout::STARVED_AWAY;
                peer.out32(layout::STARVED).store(out.starved, Ordering::Release);
                e.interrupt(peer);
            }
        }
    }

    // ---------------------------------------------------------------- arriving

    /// One turn of everything: arrivals, fetches, queued letters.
    pub(super) fn progress(&mut self, e: &Inner) -> Result<(), NxError> {
        self.progress_for(e, None)
    }

    /// The same for a blocking receive.
    #[inline]
    pub(super) fn progress_for(
        &mut self,
        e: &Inner,
        mut want: Option<&mut Want>,
    ) -> Result<(), NxError> {
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

    fn poll(&mut self, e: &Inner, peer: &Peer) -> Result<(), NxError> {
        self.poll_for(e, peer, None)
    }

    /// Takes what has arrived from one peer.
    #[inline]
    fn poll_for(
        &mut self,
        e: &Inner,
        peer: &Peer,
        mut want: Option<&mut Want>,
    ) -> Result<(), NxError> {
        let number = peer.number as usize;
        loop {
            let inn = &mut self.pair(number).inn;
            let Some(slot) = inn.slots.first() else {
                // All slots hold messages that nobody asked for: the sender will need some.
                peer.expect_nothing();
                self.move_out(e, peer, false)?;
                if self.pair(number).inn.slots.first().is_none() {
                    return Ok(());
                }
                continue;
            };
            let at = layout::SLOTS_AT + slot * e.stride;
            // PAIRS(arrival): with the release in `put`.
            let word = peer.in64(at).load(Ordering::Acquire);
            let Some((kind, len)) = slots::arrived(word, inn.sequence) else {
                peer.set_expect(at, inn.sequence);
                return Ok(());
            };
            inn.slots.pop();
            inn.sequence = inn.sequence.wrapping_add(1);
            self.arrived(e, peer, slot, kind, len, want.as_deref_mut())?;
        }
    }

    /// Publishes where the first messages are expected.
    pub(super) fn expect_first(&mut self, e: &Inner) {
        for peer in e.peers() {
            let inn = &self.pair(peer.number as usize).inn;
            if let Some(slot) = inn.slots.first() {
                peer.set_expect(layout::SLOTS_AT + slot * e.stride, inn.sequence);
            }
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
        let fault = |what| NxError::PeerFault { node: peer.number, what };
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
                node: peer.number as i32,
                ptype: ptypes as u32 as i32,
            },
            ptype: (ptypes >> 32) as u32 as i32,
        };
        let op = self.match_posted(e, &head);
        let want = want.filter(|want| op.is_none() && want.takes(&head, e.ptype()));
        match kind {
            kind::DATA => {
                let room = match (op, &want) {
                    (Some(op), _) => self.ops.get(op).room,
                    (None, Some(want)) => want.room,
                    (None, None) => {
                        let from = peer.number as usize;
                        let body = Body::Slot { slot };
                        self.keep(e, Unexpected { head, from, body });
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
                self.credit_slot(peer, slot);
                e.count(count::SLOT_COPIES, 1);
                match (op, want) {
                    (Some(op), _) => self.complete(e, op, Some(head.info)),
                    (None, Some(want)) => want.found = Some(Found::Here(head.info)),
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
                self.credit_slot(peer, slot);
                match (op, want) {
                    (Some(op), _) => self.fetch(e, peer, op, head, scout)?,
                    (None, Some(want)) => {
                        let op = self.ops.add(Owner::Caller, 1, want.room, None);
                        want.found = Some(Found::Coming(op));
                        self.fetch(e, peer, op, head, scout)?;
                    }
                    (None, None) => {
                        let from = peer.number as usize;
                        let body = Body::Staged(scout);
                        self.keep(e, Unexpected { head, from, body });
                    }
                }
            }
            _ => return Err(fault("a message of unknown kind")),
        }
        Ok(())
    }

    /// Keeps a message that no receive was posted for; threads in blocking calls may want it.
    fn keep(&mut self, e: &Inner, message: Unexpected) {
        self.unexpected.push_back(message);
        e.changed();
    }

    /// Takes the first posted receive for this message off the list.
    #[inline]
    fn match_posted(&mut self, e: &Inner, head: &Head) -> Option<OpId> {
        if self.posted.is_empty() || (head.channel == 0 && head.ptype != e.ptype()) {
            return None;
        }
        let Info { type_, node, ptype, .. } = head.info;
        let found = self.posted.iter().position(|posted| {
            posted.channel == head.channel && posted.select.takes(type_, node, ptype)
        })?;
        Some(self.unpost(found).op)
    }

    fn unpost(&mut self, index: usize) -> Posted {
        let posted = self.posted.remove(index);
        if matches!(self.ops.get(posted.op).owner, Owner::Handler(_)) {
            self.handlers -= 1;
        }
        posted
    }

    /// Gives a slot back. Wakes nobody: a sender that sleeps for want of slots has interrupted us, and is
    /// rung by that.
    #[inline]
    fn credit_slot(&mut self, peer: &Peer, slot: usize) {
        let inn = &mut self.pair(peer.number as usize).inn;
        let given = inn.given;
        inn.given = given.wrapping_add(1);
        inn.slots.push(slot);
        slots::give(peer.out32(layout::CREDITS + 4 * slots::index(given)), given, slot as u32);
    }

    /// Gives a block back, and tells a sender that waits for one.
    fn credit_block(&mut self, e: &Inner, peer: &Peer, block: u32) {
        let inn = &mut self.pair(peer.number as usize).inn;
        let given = inn.given;
        inn.given = given.wrapping_add(1);
        peer.out64(layout::GO + layout::GO_LEN * block as usize).store(0, Ordering::Relaxed);
        let entry = peer.out32(layout::CREDITS + 4 * slots::index(given));
        slots::give(entry, given, CREDIT_BLOCK | block);
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
        for i in 0..self.unexpected.len() {
            let Some(message) = self.unexpected.get(i).filter(|it| it.from == number) else {
                continue;
            };
            let count = message.head.info.count;
            match message.body {
                Body::Slot { slot } => {
                    let mut bytes = vec![0; count].into_boxed_slice();
                    let at = layout::SLOTS_AT + slot * e.stride + DESCRIPTOR;
                    if peer.lane().read(at, &mut bytes).is_err() {
                        unreachable!("the length was checked against the slot");
                    }
                    self.replace_body(i, bytes);
                    self.credit_slot(peer, slot);
                }
                Body::Staged(scout) if blocks => {
                    let staged = peer.in64(layout::STAGED + 8 * scout.block as usize);
                    if staged.load(Ordering::Acquire) != scout.len {
                        continue; // still being made
                    }
                    let import = self.region(e, peer, &scout)?;
                    let mut bytes = vec![0; count].into_boxed_slice();
                    import
                        .read(scout.offset as usize, &mut bytes)
                        .map_err(|_| NxError::PeerDied { node: peer.number })?;
                    self.replace_body(i, bytes);
                    self.credit_block(e, peer, scout.block);
                }
                _ => continue,
            }
            e.count(count::MOVED, 1);
        }
        Ok(())
    }

    fn replace_body(&mut self, index: usize, bytes: Box<[u8]>) {
        if let Some(message) = self.unexpected.get_mut(index) {
            message.body = Body::Here(bytes);
        }
    }

    /// What an interrupted process does: everything, and whatever its peers ask for.
    pub(super) fn interrupted(&mut self, e: &Inner) -> Result<(), NxError> {
        self.progress(e)?;
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

    // ---------------------------------------------------------------- large messages

    fn region(&mut self, e: &Inner, peer: &Peer, scout: &Scout) -> Result<Arc<Import>, NxError> {
        let inn = &mut self.pair(peer.number as usize).inn;
        let (import, made) = inn.fetched.region(&e.data, &e.job, peer.number, scout.region)?;
        if made {
            e.count(count::DAEMON_TRIPS, 1);
        }
        let end = scout.offset.checked_add(scout.len);
        if end.is_none_or(|end| end > import.len() as u64) {
            return Err(NxError::PeerFault {
                node: peer.number,
                what: "a scout beyond its region",
            });
        }
        Ok(import)
    }

    /// Starts fetching an announced message into a receive's buffer.
    fn fetch(
        &mut self,
        e: &Inner,
        peer: &Peer,
        op: OpId,
        head: Head,
        scout: Scout,
    ) -> Result<(), NxError> {
        let import = self.region(e, peer, &scout)?;
        let go = self.reply(e, peer, op, &head, &scout);
        let from = peer.number as usize;
        let mut fetching = Fetching { op, from, head, scout, import, done: 0, go };
        if !self.fetch_some(e, peer, &mut fetching)? {
            self.fetching.push(fetching);
        }
        Ok(())
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
        let maker = direct::Maker {
            node: &e.data,
            job: &e.job,
            sender: peer.number,
            pid: peer.out_import.exporter().pid,
            after: e.settings.direct_after,
        };
        let (go, trips) = self.windows.open_for(&maker, room, len);
        e.count(count::DAEMON_TRIPS, trips);
        if let Some(go) = go {
            go.write(peer, scout.block);
            peer.out.ring();
            e.count(count::REPLIES, 1);
        }
        go
    }

    /// The window that a reply names, for the sender.
    pub(super) fn target(
        &mut self,
        e: &Inner,
        peer: &Peer,
        go: &direct::Go,
        len: usize,
    ) -> Result<Option<Arc<Import>>, NxError> {
        let out = &mut self.pair(peer.number as usize).out;
        let found = out.targets.window(&e.data, &e.job, peer.number, go, len)?;
        Ok(found.map(|(import, made)| {
            e.count(count::DAEMON_TRIPS, u64::from(made));
            import
        }))
    }

    fn fetch_all(&mut self, e: &Inner) -> Result<(), NxError> {
        let mut i = 0;
        while let Some(fetching) = self.fetching.get(i) {
            let Some(peer) = e.peer(fetching.from) else { unreachable!("it sent to us") };
            let mut fetching = self.fetching.swap_remove(i);
            if !self.fetch_some(e, peer, &mut fetching)? {
                self.fetching.push(fetching);
                let last = self.fetching.len() - 1;
                self.fetching.swap(i, last);
                i += 1;
            }
        }
        Ok(())
    }

    /// Fetches what the sender has made ready. True when the message is complete.
    fn fetch_some(&mut self, e: &Inner, peer: &Peer, it: &mut Fetching) -> Result<bool, NxError> {
        let fault = |what| NxError::PeerFault { node: peer.number, what };
        let block = it.scout.block;
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
                    .map_err(|_| NxError::PeerDied { node: peer.number })?;
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
            it.import
                .read(it.scout.offset as usize + it.done, target)
                .map_err(|_| NxError::PeerDied { node: peer.number })?;
            e.count(count::FETCHED_BYTES, (upto - it.done) as u64);
            it.done = upto;
        }
        if ready == it.scout.len && it.done == take {
            self.fetched(e, peer, it);
            return Ok(true);
        }
        // Seen as it was only if nothing of it is left to fetch.
        let seen = if it.done == take.min(ready as usize) { staged } else { u64::MAX };
        peer.watch(block, seen);
        Ok(false)
    }

    fn fetched(&mut self, e: &Inner, peer: &Peer, it: &Fetching) {
        peer.unwatch(it.scout.block);
        self.credit_block(e, peer, it.scout.block);
        self.complete(e, it.op, Some(it.head.info));
    }

    // ---------------------------------------------------------------- receiving

    /// Posts a receive, or completes it with a message that is here.
    #[inline]
    pub(super) fn post(
        &mut self,
        e: &Inner,
        op: OpId,
        channel: u32,
        select: Select,
    ) -> Result<(), NxError> {
        if let Some(index) = self.find(e, channel, select) {
            return self.take(e, op, index);
        }
        self.posted.push(Posted { op, channel, select });
        if matches!(self.ops.get(op).owner, Owner::Handler(_)) {
            self.handlers += 1;
            self.want(e);
        }
        Ok(())
    }

    /// The first unexpected message that is selected.
    fn find(&self, e: &Inner, channel: u32, select: Select) -> Option<usize> {
        if self.unexpected.is_empty() {
            return None;
        }
        let ptype = e.ptype();
        self.unexpected.iter().position(|message| {
            let Info { type_, node, ptype: source, .. } = message.head.info;
            message.head.channel == channel
                && (channel != 0 || message.head.ptype == ptype)
                && select.takes(type_, node, source)
        })
    }

    /// Gives a blocking receive an unexpected message, if there is one for it.
    #[inline]
    pub(super) fn take_for(&mut self, e: &Inner, want: &mut Want) -> Result<(), NxError> {
        if let Some(index) = self.find(e, want.channel, want.select) {
            let op = self.ops.add(Owner::Caller, 1, want.room, None);
            want.found = Some(Found::Coming(op));
            self.take(e, op, index)?;
        }
        Ok(())
    }

    pub(super) fn probe(&self, e: &Inner, select: Select) -> Option<Info> {
        self.find(e, 0, select)
            .and_then(|index| self.unexpected.get(index))
            .map(|message| message.head.info)
    }

    /// Gives an unexpected message to a receive.
    fn take(&mut self, e: &Inner, op: OpId, index: usize) -> Result<(), NxError> {
        let Some(message) = self.unexpected.remove(index) else { unreachable!("found just now") };
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
                e.count(count::SLOT_COPIES, 1);
                self.credit_slot(peer, slot);
                // All slots may have been in use: from here on one more is expected.
                self.poll(e, peer)?;
                self.complete(e, op, Some(head.info));
            }
            Body::Staged(scout) => {
                let Some(peer) = e.peer(message.from) else { unreachable!("it sent to us") };
                self.fetch(e, peer, op, head, scout)?;
            }
        }
        Ok(())
    }

    /// A message of this process to itself: buffered, or into a posted receive.
    pub(super) fn deliver(&mut self, e: &Inner, letter: Letter) {
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
            Some(op) => {
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
                let (from, body) = (e.job.node as usize, Body::Here(data.into()));
                self.keep(e, Unexpected { head, from, body });
            }
        }
    }

    /// Throws away what is here and selected (`flushmsg`).
    pub(super) fn throw_away(&mut self, e: &Inner, select: Select) -> Result<(), NxError> {
        while let Some(index) = self.find(e, 0, select) {
            let nothing = Target { start: std::ptr::null_mut(), len: 0 };
            let op = self.ops.add(Owner::Nobody, 1, nothing, None);
            self.take(e, op, index)?;
        }
        Ok(())
    }

    // ---------------------------------------------------------------- completing

    /// One part of an operation is complete; `info` if it was a receive.
    #[inline]
    pub(super) fn complete(&mut self, e: &Inner, id: OpId, info: Option<Info>) {
        let op = self.ops.get_mut(id);
        if let Some(info) = info {
            e.count(count::RECEIVED, 1);
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
            Owner::Nobody => drop(self.ops.remove(id)),
            Owner::Handler(handler) => {
                let handler = handler.take();
                e.count(count::HANDLERS, 1);
                match (handler, self.ops.remove(id).result) {
                    (Some(handler), Ok(Outcome::Received(info))) => e.handlers.queue(handler, info),
                    (Some(handler), Ok(Outcome::Sent)) => {
                        e.handlers.queue(handler, Info::default())
                    }
                    (_, Err(error)) => e.fail(error),
                    (None, _) => {}
                }
            }
        }
    }

    // ---------------------------------------------------------------- taking back

    /// Takes an operation back: afterwards its memory is the program's again (`msgcancel`). False when a
    /// part of it can no longer be taken back and will complete soon.
    pub(super) fn cancel(&mut self, e: &Inner, id: OpId) -> bool {
        if let Some(index) = self.posted.iter().position(|posted| posted.op == id) {
            self.unpost(index);
            self.ops.get_mut(id).left -= 1;
        }
        for peer in e.peers() {
            let out = &mut self.pair(peer.number as usize).out;
            let before = out.queue.len();
            out.queue.retain(|queued| queued.op != id);
            let dropped = (before - out.queue.len()) as u32;
            if dropped > 0 && out.queue.is_empty() {
                peer.await_credit(None);
                self.starving -= 1;
            }
            self.ops.get_mut(id).left -= dropped;
        }
        self.ops.get(id).left == 0
    }

    /// Forgets an operation whose caller goes away because the job has ended.
    pub(super) fn abandon(&mut self, id: OpId) {
        self.posted.retain(|posted| posted.op != id);
        self.fetching.retain(|fetching| fetching.op != id);
        for pair in &mut self.pairs {
            pair.out.queue.retain(|queued| queued.op != id);
        }
        self.ops.remove(id);
    }

    /// Takes back the posted handler receives of a selector (`hrecv` with a null handler).
    pub(super) fn cancel_handlers(&mut self, typesel: i32) -> usize {
        let mut cancelled = 0;
        let mut i = 0;
        while let Some(posted) = self.posted.get(i) {
            let is_handler = matches!(self.ops.get(posted.op).owner, Owner::Handler(_));
            if is_handler && posted.select.typesel == typesel {
                let posted = self.unpost(i);
                self.ops.remove(posted.op);
                cancelled += 1;
            } else {
                i += 1;
            }
        }
        cancelled
    }

    // ---------------------------------------------------------------- handlers

    /// Tells the peers that they must interrupt us for messages.
    fn want(&mut self, e: &Inner) {
        if !self.wants {
            self.wants = true;
            for peer in e.peers() {
                peer.out32(layout::WANTS).store(1, Ordering::Relaxed);
            }
        }
        // Messages that were sent before their senders could see the word are found now.
        vmmc::sync::fence(Ordering::SeqCst);
    }

    /// Called by the progress thread: with no handler posted, interrupts for messages end. A handler
    /// that is about to run will most likely post its receive again.
    pub(super) fn want_no_more(&mut self, e: &Inner) {
        if self.wants && self.handlers == 0 && e.handlers.is_idle() {
            self.wants = false;
            for peer in e.peers() {
                peer.out32(layout::WANTS).store(0, Ordering::Relaxed);
            }
        }
    }
}
