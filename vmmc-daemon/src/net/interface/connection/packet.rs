//! One step of a connection: bytes come, a header is checked, a body lands.

use super::freeze::Frozen;
use super::{Connection, End, LONG, Links, MAX_SLOTS, STAGING, Slot, Step, WIDE};
use crate::net::interface::count;
use crate::net::offers::Offers;
use rustix::io::Errno;
use vmmc::control::message::CloseReason;
use vmmc::control::network::Origin;
use vmmc::error::SendError;
use vmmc::transport::net::frame::{Flags, HEADER_LEN, Header, Kind};
use vmmc::{Landed, Load, Node, Rights};

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
pub(super) struct Packet {
    pub(super) header: Header,
    /// Bytes of its body that are dealt with.
    pub(super) done: u64,
    /// Of an attachment.
    pub(super) capability: [u8; 16],
    /// Held back for a disabled page.
    pub(super) frozen: Option<Frozen>,
}

impl Connection {
    fn staged(&self) -> usize {
        self.to - self.from
    }

    /// Receives into the staging area.
    fn receive(&mut self) -> Result<Step, End> {
        self.staging.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let end = if self.wide { WIDE } else { STAGING.max(self.to) };
        if self.staging.len() < end {
            self.staging.resize(end, 0);
        }
        let Some(room) = self.staging.get_mut(self.to..end) else { return Ok(Step::Empty) };
        if self.dry {
            return Ok(Step::Empty); // answers go before another system call that finds nothing
        }
        let wanted = room.len();
        match self.wire.receive(room) {
            Ok(0) => Err(End::Closed),
            Ok(len) => {
                self.to += len;
                self.dry = len < wanted && !self.wire.keeps_bytes() && !self.has_ended;
                Ok(Step::Done)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Step::Empty),
            Err(_) => Err(End::Closed),
        }
    }

    pub(super) fn step(
        &mut self,
        node: &Node,
        offers: &Offers,
        links: &mut Links,
    ) -> Result<Step, End> {
        if let Some(mut packet) = self.packet.take() {
            let step = self.go_on(&mut packet, node, offers, links);
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
        if header.kind == Kind::Write {
            self.wide = header.flags.contains(Flags::UPDATE);
        }
        self.packet = Some(Packet { header, done: 0, capability: [0; 16], frozen: None });
        Ok(Step::Done)
    }

    /// Whether a slot's import is for bindings and for no other sending.
    fn may_bind_alone(&self, slot: u32) -> bool {
        let import = self.slots.get(&slot).and_then(|slot| slot.import.as_ref());
        let rights = import.map_or(Rights::empty(), |import| import.rights());
        rights.contains(Rights::BIND) && !rights.contains(Rights::WRITE)
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
            Kind::Detach | Kind::Stopped | Kind::Yielded => Rights::empty(),
            Kind::Write | Kind::Word => Rights::WRITE,
            // Who may bind may notify.
            Kind::Notify if self.may_bind_alone(number) => Rights::BIND,
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
            if let Some(import) = self.let_go(number) {
                import.abandon();
            }
            self.say_closed(number, CloseReason::PeerFault);
        }
        Ok(())
    }

    /// Deals with what is staged of a packet; how far it came then.
    fn go_on(
        &mut self,
        packet: &mut Packet,
        node: &Node,
        offers: &Offers,
        links: &mut Links,
    ) -> Result<Going, End> {
        let left = packet.header.body_len() - packet.done;
        let now = (self.staged() as u64).min(left) as usize;
        let update = packet.header.flags.contains(Flags::UPDATE);
        if update && (now as u64) < left {
            return Ok(Going::NeedsBody); // lands together
        }
        if now > 0 {
            let bytes = self.staging.get(self.from..self.from + now).unwrap_or_default();
            let at = packet.done as usize;
            if packet.header.kind == Kind::Attach {
                if let Some(part) = packet.capability.get_mut(at..at + now) {
                    part.copy_from_slice(bytes);
                }
            } else {
                let offset = (packet.header.byte() + packet.done) as usize;
                let mut put = match self.slots.get(&packet.header.slot) {
                    Some(Slot { import: Some(import), .. }) => {
                        let load = if update { Load::Ascending } else { Load::Bytes };
                        Some(import.land(offset, load(bytes)))
                    }
                    _ => None,
                };
                if let Some(Ok(why @ (Landed::Disabled | Landed::Unheard))) = put {
                    if self.holds(packet, why, node) {
                        return Ok(Going::Waits);
                    }
                    put = None;
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
        let finished = self.finish(packet, node, offers, links)?;
        Ok(if finished { Going::Finished } else { Going::Waits })
    }

    /// Receives more of the packet's body straight into the exported pages.
    fn more_body(&mut self, node: &Node) -> Result<Step, End> {
        let Some(packet) = &mut self.packet else { return Ok(Step::Done) };
        let Header { kind, flags, slot, .. } = packet.header;
        let import = self.slots.get(&slot).and_then(|slot| slot.import.as_ref());
        let (Kind::Write, false, Some(import)) = (kind, flags.contains(Flags::UPDATE), import)
        else {
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
            Ok(Landed::Nothing) => {
                packet.frozen = None; // the page takes it, when it comes
                Ok(Step::Empty)
            }
            Ok(Landed::End | Landed::Failed(_)) => Err(End::Closed),
            Ok(why @ (Landed::Disabled | Landed::Unheard)) => {
                let Some(mut packet) = self.packet.take() else { return Ok(Step::Done) };
                let holds = self.holds(&mut packet, why, node);
                self.packet = Some(packet);
                Ok(if holds { Step::Stalled } else { Step::Done })
            }
            Err(error) => {
                self.note(slot, Some(Err(error)), (count::DIRECT_BYTES, 0), node);
                Ok(Step::Done)
            }
        }
    }

    /// How many bytes are to come before there is something to do. Of what its exporter withdraws every byte is landed at once:
    /// he waits for as long as any come.
    pub(super) fn expected(&self) -> u32 {
        let Some(packet) = &self.packet else { return 1 };
        let is_ending = self.slots.get(&packet.header.slot).is_none_or(|slot| slot.told);
        let left = packet.header.body_len() - packet.done;
        if is_ending || left < LONG { 1 } else { LONG as u32 }
    }

    /// Counts bytes that were put, or ends the link that would not have them.
    pub(super) fn note(
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
}
