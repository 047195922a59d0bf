//! One data connection, as the interface has it: the incoming page tables of one remote process, and
//! the packet that is being received.
//!
//! Every header is checked before anything is done: slot and generation, range, rights. A header
//! that no library sends ends the connection; a packet that its slot does not allow ends that link,
//! and the other links of the process go on.

use super::count;
use super::wire::Wire;
use crate::net::offers::{NoOffer, Offers};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use vmmc::control::message::CloseReason;
use vmmc::control::network::{Capability, Origin};
use vmmc::error::{SendError, TrySendError};
use vmmc::transport::net::frame::{Flags, HEADER_LEN, Header, Kind, MAX_DATA, reason_code};
use vmmc::{Import, Landed, Load, Node, Rights};

/// Bytes received at a time when it is not known what they are.
const STAGING: usize = 4096;
/// Steps of one turn.
const STEPS: usize = 64;
/// With this much to say that the sender does not read, nothing more is read from it.
const MAX_OUT: usize = 2 * MAX_DATA as usize;
/// Most slots of one connection.
const MAX_SLOTS: usize = 65_536;

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Whether anything was done.
    Worked(bool),
    /// The connection has ended.
    Over,
}

/// One import of the remote process.
#[derive(Debug)]
struct Slot {
    generation: u32,
    /// Names the link to [`Offers`].
    token: u64,
    /// `None` once the link has ended: what comes for it is dropped until the sender knows.
    import: Option<Import>,
}

/// Why the connection ends.
#[derive(Debug)]
enum End {
    /// The sender closed it, or died.
    Closed,
    /// It sent what no library of ours sends.
    Fault(String),
}

/// How far a step came.
enum Step {
    Done,
    /// Nothing is there.
    Empty,
    /// The receiver must do something first.
    Stalled,
}

/// How far a packet came.
enum Going {
    Finished,
    /// More of its body is needed.
    NeedsBody,
    /// The receiver must enable a page, or take notifications.
    Waits,
}

/// A packet whose header is here.
#[derive(Debug)]
struct Packet {
    header: Header,
    /// Bytes of its body that are dealt with.
    done: u64,
    /// Of an attachment.
    capability: [u8; 16],
    /// Held back for a disabled page (H13), and whether the exporter has been told.
    frozen: Option<bool>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) wire: Wire,
    origin: Origin,
    slots: HashMap<u32, Slot>,
    staging: Box<[u8; STAGING]>,
    from: usize,
    to: usize,
    packet: Option<Packet>,
    /// Answers, not sent yet from `sent` on.
    out: Vec<u8>,
    sent: usize,
    stalled: bool,
    /// Whether the last turn ended at its bound: what is staged, epoll does not know of.
    pub(super) has_more: bool,
    /// What epoll watches.
    pub(super) watched: EventFlags,
}

impl Connection {
    pub(super) fn new(wire: Wire, origin: Origin) -> Connection {
        Connection {
            wire,
            origin,
            slots: HashMap::new(),
            staging: Box::new([0; STAGING]),
            from: 0,
            to: 0,
            packet: None,
            out: Vec::new(),
            sent: 0,
            stalled: false,
            has_more: false,
            watched: EventFlags::IN,
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled
    }

    fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// What epoll should watch.
    pub(super) fn interest(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !self.stalled && self.unsent() < MAX_OUT);
        flags.set(EventFlags::OUT, self.unsent() > 0);
        flags
    }

    /// Ends all links; their names.
    pub(super) fn close(self) -> Vec<u64> {
        let mut tokens = Vec::with_capacity(self.slots.len());
        for slot in self.slots.into_values() {
            tokens.push(slot.token);
            if let Some(import) = slot.import {
                import.abandon();
            }
        }
        tokens
    }

    /// The exporter has ended a link.
    pub(super) fn link_ended(&mut self, number: u32, reason: CloseReason) {
        if let Some(slot) = self.slots.get_mut(&number)
            && slot.import.take().is_some()
        {
            let closed = Header::new(Kind::Closed, number, slot.generation);
            self.say(&closed.value(reason_code(reason)), &[]);
        }
    }

    fn say(&mut self, header: &Header, body: &[u8]) {
        self.out.extend_from_slice(&header.encode());
        self.out.extend_from_slice(body);
    }

    /// Receives and handles what is there, up to a bound.
    pub(super) fn turn(
        &mut self,
        node: &Node,
        offers: &Offers,
        mut attached: impl FnMut(u64, u32),
    ) -> Turn {
        match self.steps(node, offers, &mut attached) {
            Ok(worked) => Turn::Worked(worked),
            Err(end) => {
                let Origin { node: name, pid, uid, .. } = &self.origin;
                match end {
                    End::Closed => tracing::debug!(node = name, pid, uid, "data connection over"),
                    End::Fault(what) => {
                        node.counters().add(count::FAULTS, 1);
                        tracing::warn!(node = name, pid, uid, what, "data connection cut off");
                    }
                }
                Turn::Over
            }
        }
    }

    fn steps(
        &mut self,
        node: &Node,
        offers: &Offers,
        attached: &mut impl FnMut(u64, u32),
    ) -> Result<bool, End> {
        let mut worked = false;
        let was_stalled = std::mem::take(&mut self.stalled);
        // Incoming goes before outgoing (H15): answers are sent when nothing more can be received.
        self.has_more = true;
        for _ in 0..STEPS {
            if self.unsent() >= MAX_OUT {
                self.has_more = false; // epoll tells when there is room
                break;
            }
            match self.step(node, offers, attached)? {
                Step::Done => worked = true,
                Step::Empty => {
                    self.has_more = false;
                    break;
                }
                Step::Stalled => {
                    self.has_more = false;
                    if !was_stalled || worked {
                        node.counters().add(count::STALLS, 1);
                    }
                    self.stalled = true;
                    break;
                }
            }
        }
        Ok(self.flush()? || worked)
    }

    /// Sends answers; whether any went.
    fn flush(&mut self) -> Result<bool, End> {
        let mut any = false;
        while self.unsent() > 0 {
            let rest = self.out.get(self.sent..).unwrap_or_default();
            match self.wire.send(rest) {
                Ok(len) => {
                    self.sent += len;
                    any = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return Err(End::Closed),
            }
        }
        if self.unsent() == 0 {
            self.out.clear();
            self.sent = 0;
        }
        Ok(any)
    }

    fn staged(&self) -> usize {
        self.to - self.from
    }

    /// Receives into the staging area.
    fn receive(&mut self) -> Result<Step, End> {
        self.staging.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let Some(room) = self.staging.get_mut(self.to..) else { return Ok(Step::Empty) };
        match self.wire.receive(room) {
            Ok(0) => Err(End::Closed),
            Ok(len) => {
                self.to += len;
                Ok(Step::Done)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Step::Empty),
            Err(_) => Err(End::Closed),
        }
    }

    fn step(
        &mut self,
        node: &Node,
        offers: &Offers,
        attached: &mut impl FnMut(u64, u32),
    ) -> Result<Step, End> {
        if let Some(mut packet) = self.packet.take() {
            let step = self.go_on(&mut packet, node, offers, attached);
            match step {
                Ok(Going::Finished) => return Ok(Step::Done),
                Ok(Going::NeedsBody) => {
                    self.packet = Some(packet);
                    return self.more_body(node);
                }
                Ok(Going::Waits) => {
                    self.packet = Some(packet);
                    return Ok(Step::Stalled);
                }
                Err(end) => return Err(end),
            }
        }
        if self.staged() < HEADER_LEN {
            return self.receive();
        }
        let staged = self.staging.get(self.from..self.to).unwrap_or_default();
        let Some(head) = staged.first_chunk::<HEADER_LEN>() else { return Ok(Step::Empty) };
        let header = Header::decode(head).map_err(|error| End::Fault(error.to_string()))?;
        self.from += HEADER_LEN;
        node.counters().add(count::PACKETS, 1);
        self.check(&header, node)?;
        self.packet = Some(Packet { header, done: 0, capability: [0; 16], frozen: None });
        Ok(Step::Done)
    }

    /// Whether the slot may have this packet. One that it may not have ends its link.
    fn check(&mut self, header: &Header, node: &Node) -> Result<(), End> {
        let number = header.slot;
        let needed = match header.kind {
            Kind::Fence => return Ok(()),
            Kind::Attach => {
                if self.slots.contains_key(&number) || self.slots.len() >= MAX_SLOTS {
                    return Err(End::Fault(format!("slot {number} opened twice, or too many")));
                }
                return Ok(());
            }
            Kind::Detach => Rights::empty(),
            Kind::Write | Kind::Word => Rights::WRITE,
            Kind::Notify => Rights::WRITE,
            Kind::Read => Rights::READ,
            kind => return Err(End::Fault(format!("{kind:?} is for an interface to say"))),
        };
        let slot = self.slots.get(&number);
        let slot = slot.ok_or_else(|| End::Fault(format!("slot {number} was never opened")))?;
        if slot.generation != header.generation {
            let generation = header.generation;
            return Err(End::Fault(format!("slot {number} has no generation {generation}")));
        }
        let Some(import) = &slot.import else { return Ok(()) };
        let len = import.len() as u64;
        let inside = header.byte().checked_add(header.len).is_some_and(|end| end <= len);
        let aligned = header.kind != Kind::Word || header.byte().is_multiple_of(header.len);
        if !inside || !aligned || !import.rights().contains(needed) {
            let Origin { node: name, pid, uid, .. } = &self.origin;
            node.counters().add(count::FAULTS, 1);
            tracing::warn!(
                node = name,
                pid,
                uid,
                kind = ?header.kind,
                page = header.page,
                offset = header.offset,
                bytes = header.len,
                export_len = len,
                rights = ?import.rights(),
                "packet beyond its import; link cut off"
            );
            let import = self.slots.get_mut(&number).and_then(|slot| slot.import.take());
            if let Some(import) = import {
                import.abandon();
            }
            let closed = Header::new(Kind::Closed, number, header.generation);
            self.say(&closed.value(reason_code(CloseReason::PeerFault)), &[]);
        }
        Ok(())
    }

    /// Deals with what is staged of a packet; how far it came then.
    fn go_on(
        &mut self,
        packet: &mut Packet,
        node: &Node,
        offers: &Offers,
        attached: &mut impl FnMut(u64, u32),
    ) -> Result<Going, End> {
        let left = packet.header.body_len() - packet.done;
        let now = (self.staged() as u64).min(left) as usize;
        if now > 0 {
            let bytes = self.staging.get(self.from..self.from + now).unwrap_or_default();
            let at = packet.done as usize;
            if packet.header.kind == Kind::Attach {
                if let Some(part) = packet.capability.get_mut(at..at + now) {
                    part.copy_from_slice(bytes);
                }
            } else {
                let offset = (packet.header.byte() + packet.done) as usize;
                let put = match self.slots.get(&packet.header.slot) {
                    Some(Slot { import: Some(import), .. }) => {
                        Some(import.land(offset, Load::Bytes(bytes)))
                    }
                    _ => None,
                };
                if let Some(Ok(Landed::Disabled)) = put {
                    self.freeze(packet, node);
                    return Ok(Going::Waits);
                }
                let put = put.map(|put| put.map(drop));
                self.note(packet.header.slot, put, (count::STAGED_BYTES, now), node);
            }
            packet.frozen = None;
            self.from += now;
            packet.done += now as u64;
        }
        if packet.done < packet.header.body_len() {
            return Ok(Going::NeedsBody);
        }
        let finished = self.finish(packet, node, offers, attached)?;
        Ok(if finished { Going::Finished } else { Going::Waits })
    }

    /// Receives more of the packet's body straight into the exported pages.
    fn more_body(&mut self, node: &Node) -> Result<Step, End> {
        let Some(packet) = &mut self.packet else { return Ok(Step::Done) };
        let slot = packet.header.slot;
        let import = self.slots.get(&slot).and_then(|slot| slot.import.as_ref());
        let (Kind::Write, Some(import)) = (packet.header.kind, import) else {
            return self.receive();
        };
        let left = (packet.header.body_len() - packet.done) as usize;
        let offset = (packet.header.byte() + packet.done) as usize;
        match self.wire.land(import, offset, left) {
            Ok(Landed::Bytes(len)) => {
                packet.done += len as u64;
                packet.frozen = None;
                node.counters().add(count::DIRECT_BYTES, len as u64);
                Ok(Step::Done)
            }
            Ok(Landed::Nothing) => Ok(Step::Empty),
            Ok(Landed::End) => Err(End::Closed),
            Ok(Landed::Disabled) => {
                if let Some(mut packet) = self.packet.take() {
                    self.freeze(&mut packet, node);
                    self.packet = Some(packet);
                }
                Ok(Step::Stalled)
            }
            Err(error) => {
                self.note(slot, Some(Err(error)), (count::DIRECT_BYTES, 0), node);
                Ok(Step::Done)
            }
        }
    }

    /// A page is disabled: the packet waits, and the exporter is told once.
    fn freeze(&self, packet: &mut Packet, node: &Node) {
        let header = packet.header;
        if packet.frozen.is_none() {
            node.counters().add(count::FROZEN, 1);
            tracing::debug!(
                node = self.origin.node,
                pid = self.origin.pid,
                page = header.page,
                "packet for a disabled page; held back"
            );
        }
        if packet.frozen != Some(true)
            && let Some(Slot { import: Some(import), .. }) = self.slots.get(&header.slot)
        {
            packet.frozen = Some(import.tell_frozen(header.byte(), header.len));
        }
    }

    /// Counts bytes that were put, or ends the link that would not have them.
    fn note(
        &mut self,
        slot: u32,
        put: Option<Result<(), SendError>>,
        (counter, len): (usize, usize),
        node: &Node,
    ) {
        match put {
            Some(Ok(())) => node.counters().add(counter, len as u64),
            None => node.counters().add(count::DROPPED_BYTES, len as u64),
            Some(Err(error)) => {
                node.counters().add(count::DROPPED_BYTES, len as u64);
                let reason = match error {
                    SendError::Closed(closed) => closed.reason,
                    _ => CloseReason::PeerFault,
                };
                self.link_ended(slot, reason);
            }
        }
    }

    /// The packet is whole: what follows its data. False: it has to wait.
    fn finish(
        &mut self,
        packet: &mut Packet,
        node: &Node,
        offers: &Offers,
        attached: &mut impl FnMut(u64, u32),
    ) -> Result<bool, End> {
        let header = packet.header;
        match header.kind {
            Kind::Attach => {
                self.attach(&header, Capability(packet.capability), node, offers, attached);
                Ok(true)
            }
            Kind::Detach => {
                self.slots.remove(&header.slot);
                Ok(true)
            }
            Kind::Fence => {
                self.say(&Header::new(Kind::Done, 0, 0).value(header.value), &[]);
                Ok(true)
            }
            Kind::Write if header.flags.contains(Flags::NOTIFY) => self.interrupt(&header, node),
            Kind::Write if header.flags.contains(Flags::FENCE) => {
                self.say(&Header::new(Kind::Done, 0, 0).value(header.value), &[]);
                Ok(true)
            }
            Kind::Notify => self.interrupt(&header, node),
            Kind::Word => Ok(self.word(packet, node)),
            Kind::Read => {
                self.read(&header);
                Ok(true)
            }
            _ => Ok(true),
        }
    }

    /// Opens a slot, if the capability does.
    fn attach(
        &mut self,
        header: &Header,
        capability: Capability,
        node: &Node,
        offers: &Offers,
        attached: &mut impl FnMut(u64, u32),
    ) {
        let why = match offers.take(&capability, &self.origin) {
            Ok(offer) => {
                let (generation, token) = (header.generation, offer.token);
                let ended = offer.import.check_open().err();
                self.slots
                    .insert(header.slot, Slot { generation, token, import: Some(offer.import) });
                attached(token, header.slot);
                self.say(&Header::new(Kind::Attached, header.slot, generation), &[]);
                if let Some(closed) = ended {
                    self.link_ended(header.slot, closed.reason);
                }
                return;
            }
            Err(NoOffer::Unknown) => "the capability was used, or has expired",
            Err(NoOffer::NotYours) => "the capability is another process's",
        };
        node.counters().add(count::REFUSED, 1);
        let Origin { node: name, pid, uid, .. } = &self.origin;
        tracing::warn!(node = name, pid, uid, why, "attachment refused");
        let mut refused = Header::new(Kind::Refused, header.slot, header.generation);
        refused.len = why.len() as u64;
        self.say(&refused, why.as_bytes());
    }

    /// A notification behind the data (H14); false while the receiver's queue is full.
    fn interrupt(&mut self, header: &Header, node: &Node) -> Result<bool, End> {
        let Some(Slot { import: Some(import), .. }) = self.slots.get(&header.slot) else {
            return Ok(true);
        };
        match import.try_notify(header.byte(), header.len, header.value) {
            Ok(()) => node.counters().add(count::INTERRUPTS, 1),
            Err(TrySendError::WouldBlock) => return Ok(false),
            Err(TrySendError::Send(error)) => {
                self.note(header.slot, Some(Err(error)), (count::DROPPED_BYTES, 0), node);
            }
            Err(_) => self.link_ended(header.slot, CloseReason::PeerFault),
        }
        Ok(true)
    }

    /// Stores a word at once, so that whoever sees it sees all of it; false while it is held back.
    fn word(&mut self, packet: &mut Packet, node: &Node) -> bool {
        let header = packet.header;
        let Some(Slot { import: Some(import), .. }) = self.slots.get(&header.slot) else {
            return true;
        };
        let load = match header.len {
            4 => Load::Word32(header.value as u32), // four bytes were meant
            _ => Load::Word64(header.value),
        };
        let put = import.land(header.byte() as usize, load);
        if put == Ok(Landed::Disabled) {
            self.freeze(packet, node);
            return false;
        }
        if header.flags.contains(Flags::NOTIFY) {
            import.ring();
        }
        let len = header.len as usize;
        self.note(header.slot, Some(put.map(drop)), (count::STAGED_BYTES, len), node);
        true
    }

    fn read(&mut self, header: &Header) {
        let mut answer = Header::new(Kind::Data, header.slot, header.generation);
        answer.value = header.value;
        let at = header.byte() as usize;
        let mut bytes = vec![0; header.len as usize];
        let read = match self.slots.get(&header.slot) {
            Some(Slot { import: Some(import), .. }) => read(import, at, &mut bytes),
            _ => None,
        };
        match read {
            Some(()) => {
                answer.len = header.len;
                self.say(&answer, &bytes);
            }
            None => {
                let ended = self.slots.get(&header.slot).and_then(|slot| slot.import.as_ref());
                if let Some(closed) = ended.and_then(|import| import.check_open().err()) {
                    self.link_ended(header.slot, closed.reason);
                }
                self.say(&answer.flags(Flags::FAILED), &[]);
            }
        }
    }
}

/// Reads; an aligned word at once.
fn read(import: &Import, at: usize, bytes: &mut [u8]) -> Option<()> {
    import.check_open().ok()?;
    match bytes.len() {
        4 if at.is_multiple_of(4) => {
            bytes.copy_from_slice(&import.flag32(at).ok()?.load().ok()?.to_ne_bytes());
        }
        8 if at.is_multiple_of(8) => {
            bytes.copy_from_slice(&import.flag64(at).ok()?.load().ok()?.to_ne_bytes());
        }
        _ => import.read(at, bytes).ok()?,
    }
    Some(())
}
