//! What follows when a packet is whole: an answer, a notification, a word, a new slot.

use super::packet::Packet;
use super::{Connection, End, Links, Slot};
use crate::net::interface::count;
use crate::net::offers::{NoOffer, Offers};
use vmmc::control::message::CloseReason;
use vmmc::control::network::{Capability, Origin};
use vmmc::error::TrySendError;
use vmmc::transport::net::frame::{Flags, Header, Kind};
use vmmc::{Import, Landed, Load, Node};

impl Connection {
    /// The packet is whole: what follows its data. False: it has to wait.
    pub(super) fn finish(
        &mut self,
        packet: &mut Packet,
        node: &Node,
        offers: &Offers,
        links: &mut Links,
    ) -> Result<bool, End> {
        let header = packet.header;
        match header.kind {
            Kind::Attach => {
                self.attach(&header, Capability(packet.capability), node, offers, links)?;
                Ok(true)
            }
            Kind::Detach => {
                self.shut_window(header.slot);
                if let Some(slot) = self.slots.remove(&header.slot) {
                    links.remove(&slot.token);
                }
                Ok(true)
            }
            Kind::Yielded => {
                self.shut_window(header.slot);
                Ok(true)
            }
            Kind::Stopped => {
                self.shut_window(header.slot);
                if let Some(slot) = self.slots.get_mut(&header.slot) {
                    links.remove(&slot.token);
                    drop(slot.import.take()); // which closes the link
                }
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

    /// Opens a slot, if the capability does. One of a successor's needs a connection to that: who loses this one makes it.
    fn attach(
        &mut self,
        header: &Header,
        capability: Capability,
        node: &Node,
        offers: &Offers,
        links: &mut Links,
    ) -> Result<(), End> {
        let why = match offers.take(&capability, &self.origin) {
            Ok(offer) => {
                let (generation, token) = (header.generation, offer.watch.token);
                let ended = match &offer.import {
                    Some(import) => import.check_open().err().map(|closed| closed.reason),
                    None => Some(CloseReason::Unexported),
                };
                let mask = offer.mask;
                let slot =
                    Slot { generation, token, import: offer.import, told: false, window: None };
                if let Some(earlier) = self.slots.insert(header.slot, slot) {
                    links.remove(&earlier.token);
                }
                links.insert(token, (self.id, header.slot));
                self.open_window(header.slot, mask, node);
                self.say(&Header::new(Kind::Attached, header.slot, generation), &[]);
                if let Some(reason) = ended {
                    self.say_closed(header.slot, reason);
                    self.link_ended(header.slot, reason);
                }
                return Ok(());
            }
            Err(NoOffer::Elsewhere) => return Err(End::Closed),
            Err(NoOffer::Unknown) => "the capability was used, or has expired",
            Err(NoOffer::NotYours) => "the capability is another process's",
        };
        node.counters().add(count::REFUSED, 1);
        let Origin { node: name, pid, uid, .. } = &self.origin;
        tracing::warn!(node = name, pid, uid, why, "attachment refused");
        let mut refused = Header::new(Kind::Refused, header.slot, header.generation);
        refused.len = why.len() as u64;
        self.say(&refused, why.as_bytes());
        Ok(())
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
        if let Ok(why @ (Landed::Disabled | Landed::Unheard)) = put {
            return !self.holds(packet, why, node);
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
