//! The importer's half of a link to another node's export.

use super::connection::{Connection, Lost, Slot, Unsent};
use super::frame::{Flags, HEADER_LEN, Header, Kind, MAX_DATA, PAGE};
use super::outbox::Outbox;
use crate::control::message::CloseReason;
use crate::counters::index as count;
use crate::error::{Closed, SystemError};
use crate::id::{PeerInfo, Rights};
use crate::mem::{OutOfBounds, View};
use crate::process::Meter;
use crate::sync::Mutex;
use crate::transport::engine::Engine;
use crate::transport::{Entry, Granted, TransportError};
use crate::word::Word;
use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

/// Shortest message that a fabric writes by itself. Shorter ones take a packet, which the interface copies as fast.
const DIRECT: usize = 16 * 1024;

/// A link as its importer has it.
#[derive(Debug)]
pub struct NetOutgoing {
    connection: Arc<Connection>,
    slot: Arc<Slot>,
    len: usize,
    rights: Rights,
    peer: PeerInfo,
    meter: Meter,
    /// Words as last loaded, by offset: what a closed link still shows.
    seen: Mutex<HashMap<usize, u64>>,
}

/// Why nothing is known to be there.
enum Unfenced {
    Send(TransportError),
    Lost(Lost),
}

impl From<Lost> for Unfenced {
    fn from(lost: Lost) -> Unfenced {
        Unfenced::Lost(lost)
    }
}

impl NetOutgoing {
    fn closed(&self, reason: CloseReason) -> Closed {
        Closed { peer: self.peer, reason }
    }

    /// What a lost connection means for this link: an earlier end stays the reason.
    #[cold]
    fn lost(&self, _: Lost) -> Closed {
        self.slot.end(CloseReason::Unreachable);
        self.closed(self.slot.ended().unwrap_or(CloseReason::Unreachable))
    }

    /// What was not sent means for the caller.
    #[cold]
    fn unsent(&self, unsent: Unsent) -> Closed {
        match unsent {
            Unsent::Lost => self.lost(Lost),
            Unsent::Ended(reason) => self.closed(reason),
        }
    }

    fn check(&self, offset: usize, len: usize, align: usize) -> Result<(), OutOfBounds> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if inside && offset.is_multiple_of(align) {
            Ok(())
        } else {
            Err(OutOfBounds { offset, len, size: self.len, align })
        }
    }

    /// A header for bytes of the buffer.
    fn header(&self, kind: Kind, offset: usize, len: usize) -> Result<Header, OutOfBounds> {
        let beyond = OutOfBounds { offset, len, size: self.len, align: 1 };
        Header::new(kind, self.slot.number, self.slot.generation)
            .at(offset as u64, len as u64)
            .ok_or(beyond)
    }

    fn count(&self, packets: u64, bytes: usize) {
        self.meter.add(count::NET_PACKETS, packets);
        if self.connection.is_over_fabric() {
            self.meter.add(count::FABRIC_PACKETS, packets);
        }
        self.meter.add(count::NET_BYTES, bytes as u64);
    }

    /// Sends `source` to `offset` in packets; the last carries `last`, and `value` with it.
    fn packets(
        &self,
        offset: usize,
        source: &[u8],
        last: Flags,
        value: u64,
    ) -> Result<(), TransportError> {
        self.check(offset, source.len(), 1)?;
        self.check_open()?;
        self.header(Kind::Write, offset.saturating_add(source.len()), 0)?;
        let done = if source.len() >= DIRECT { self.directly(offset, source)? } else { 0 };
        if done == 0 {
            return self.in_packets(offset, source, last, value);
        }
        if let Some(rest) = source.get(done..).filter(|rest| !rest.is_empty()) {
            // What follows it is of the whole message, and has a packet of its own.
            self.in_packets(offset + done, rest, Flags::empty(), 0)?;
        }
        let header = match last {
            Flags::NOTIFY => self.header(Kind::Notify, offset, source.len())?,
            Flags::FENCE => Header::new(Kind::Fence, 0, 0),
            _ => return Ok(()),
        };
        let sent = self.connection.send_for(&self.slot, &header.value(value), &[]);
        sent.map_err(|unsent| self.unsent(unsent))?;
        self.count(1, 0);
        Ok(())
    }

    /// The same, whatever its length, without the fabric's own writes.
    fn in_packets(
        &self,
        offset: usize,
        source: &[u8],
        last: Flags,
        value: u64,
    ) -> Result<(), TransportError> {
        let parts = source.len().div_ceil(MAX_DATA as usize).max(1);
        let frames = (0..parts).filter_map(|i| {
            let at = i * MAX_DATA as usize;
            let body = source.get(at..source.len().min(at + MAX_DATA as usize))?;
            let header = self.header(Kind::Write, offset + at, body.len()).ok()?;
            let end = i + 1 == parts;
            Some((if end { header.flags(last).value(value) } else { header }, body))
        });
        self.connection.send_all(&self.slot, frames).map_err(|unsent| self.unsent(unsent))?;
        self.count(parts as u64, source.len());
        Ok(())
    }

    /// How many of these bytes the fabric itself has been given to write, straight into the exporter's pages: from the first on.
    fn directly(&self, offset: usize, source: &[u8]) -> Result<usize, TransportError> {
        let written = self.connection.write_directly(&self.slot, offset as u64, source);
        let written = written.map_err(|unsent| self.unsent(unsent))?;
        if written > 0 {
            self.meter.add(count::DIRECT_WRITES, 1);
            self.meter.add(count::DIRECT_BYTES, written as u64);
            self.meter.add(count::NET_BYTES, written as u64);
        }
        Ok(written)
    }

    /// The header of a packet of automatic update.
    fn update_header(
        &self,
        offset: usize,
        bytes: &[u8],
        notify: bool,
    ) -> Result<Header, TransportError> {
        let header = self.header(Kind::Write, offset, bytes.len())?;
        Ok(match notify {
            true => header
                .flags(Flags::UPDATE | Flags::NOTIFY)
                .value(Entry::of(offset, bytes).last_word),
            false => header.flags(Flags::UPDATE),
        })
    }

    fn count_updates(&self, headers: &[Header], bytes: usize) {
        self.count(headers.len() as u64, bytes);
        let notifying = headers.iter().filter(|header| header.flags.contains(Flags::NOTIFY));
        self.meter.add(count::NOTIFIES_SENT, notifying.count() as u64);
    }

    fn count_send(&self, len: usize) {
        self.meter.add(count::SENDS, 1);
        self.meter.add(count::SEND_BYTES, len as u64);
    }
}

impl Engine for NetOutgoing {
    type Found = (Arc<Connection>, Arc<Slot>);

    fn import(
        (connection, slot): Self::Found,
        granted: Granted,
        meter: Meter,
    ) -> Result<NetOutgoing, SystemError> {
        let Granted { len, rights, peer } = granted;
        Ok(NetOutgoing { connection, slot, len, rights, peer, meter, seen: Mutex::default() })
    }

    fn len(&self) -> usize {
        self.len
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn node(&self) -> Option<&str> {
        Some(self.connection.node())
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn write(&self, offset: usize, source: &[u8]) -> Result<(), TransportError> {
        self.packets(offset, source, Flags::empty(), 0)?;
        self.count_send(source.len());
        Ok(())
    }

    fn write_vectored(&self, offset: usize, sources: &[IoSlice<'_>]) -> Result<(), TransportError> {
        let total = sources.iter().try_fold(0usize, |sum, source| sum.checked_add(source.len()));
        self.check(offset, total.unwrap_or(usize::MAX), 1)?;
        // One copy, so that pieces however small make full packets.
        let whole: Vec<u8> = sources.iter().flat_map(|source| source.iter().copied()).collect();
        self.meter.add(count::COPIED_BYTES, whole.len() as u64);
        self.write(offset, &whole)
    }

    fn write_from(&self, offset: usize, source: View<'_>) -> Result<(), TransportError> {
        self.check(offset, source.len(), 1)?;
        self.check_open()?;
        // What others may write meanwhile is copied before the kernel sees it.
        let mut part = vec![0; source.len().min(MAX_DATA as usize)];
        let mut at = 0;
        while at < source.len() {
            let len = part.len().min(source.len() - at);
            let Some(bytes) = part.get_mut(..len) else { break };
            source.read(at, bytes)?;
            self.packets(offset + at, bytes, Flags::empty(), 0)?;
            at += len;
        }
        self.meter.add(count::COPIED_BYTES, source.len() as u64);
        self.count_send(source.len());
        Ok(())
    }

    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), TransportError> {
        self.check(offset, target.len(), 1)?;
        self.check_open()?;
        let mut at = offset;
        for part in target.chunks_mut(MAX_DATA as usize) {
            let header = self.header(Kind::Read, at, part.len())?;
            match self.connection.read(&self.slot, header) {
                Ok(Some(bytes)) => part.copy_from_slice(&bytes),
                Ok(None) => {
                    let reason = self.slot.ended().unwrap_or(CloseReason::Unreachable);
                    return Err(self.closed(reason).into());
                }
                Err(lost) => return Err(self.lost(lost).into()),
            }
            at += part.len();
        }
        self.meter.add(count::READS, 1);
        self.meter.add(count::READ_BYTES, target.len() as u64);
        Ok(())
    }

    fn notify(&self, entry: Entry) -> Result<bool, TransportError> {
        self.check_open()?;
        let header = Header::new(Kind::Notify, self.slot.number, self.slot.generation)
            .at(entry.offset, entry.len)
            .map(|header| header.value(entry.last_word));
        let Some(header) = header else { return Ok(false) };
        self.connection.send_for(&self.slot, &header, &[]).map_err(|unsent| self.unsent(unsent))?;
        self.count(1, 0);
        self.meter.add(count::NOTIFIES_SENT, 1);
        Ok(true)
    }

    /// Data and notification in one packet, where the message fits one (H14).
    fn write_notify(&self, source: &[u8], entry: Entry) -> Result<bool, TransportError> {
        let offset = entry.offset as usize;
        if source.len() as u64 <= MAX_DATA {
            self.packets(offset, source, Flags::NOTIFY, entry.last_word)?;
            self.count_send(source.len());
            self.meter.add(count::NOTIFIES_SENT, 1);
            return Ok(true);
        }
        self.write(offset, source)?;
        self.notify(entry).map(|_| true)
    }

    fn store<W: Word>(&self, _: W, _: W::Value) -> Result<(), Closed> {
        unreachable!("no word of another node's memory is mapped")
    }

    fn ship(
        &self,
        offset: usize,
        (value, width): (u64, usize),
        wake: bool,
    ) -> Result<(), TransportError> {
        self.check(offset, width, width)?;
        self.check_open()?;
        let flags = if wake { Flags::NOTIFY } else { Flags::empty() };
        let header = self.header(Kind::Word, offset, width)?.value(value).flags(flags);
        self.connection.send_for(&self.slot, &header, &[]).map_err(|unsent| self.unsent(unsent))?;
        self.count(1, width);
        Ok(())
    }

    fn fetch(&self, offset: usize, width: usize) -> u64 {
        let mut word = [0; 8];
        let found = word.get_mut(..width).map(|word| self.read(offset, word));
        let mut seen = self.seen.lock();
        if matches!(found, Some(Ok(()))) {
            let value = if width == 4 {
                let [a, b, c, d, ..] = word;
                u64::from(u32::from_ne_bytes([a, b, c, d]))
            } else {
                u64::from_ne_bytes(word)
            };
            seen.insert(offset, value);
        }
        seen.get(&offset).copied().unwrap_or(0)
    }

    fn doze(&self, pause: Duration) {
        self.connection.doze(pause);
    }

    fn fence(&self) -> Result<(), Closed> {
        self.check_open()?;
        self.connection.fence(&self.slot).map_err(|lost| self.lost(lost))?;
        self.check_open()
    }

    /// Write and fence in one packet, or with the last (one way and back).
    fn write_fenced(&self, offset: usize, source: &[u8]) -> Result<(), TransportError> {
        self.connection
            .fence_with(&self.slot, |tag| {
                self.packets(offset, source, Flags::FENCE, tag).map_err(Unfenced::Send)
            })
            .map_err(|unsent| match unsent {
                Unfenced::Send(error) => error,
                Unfenced::Lost(lost) => self.lost(lost).into(),
            })?;
        self.count_send(source.len());
        Ok(self.check_open()?)
    }

    fn may_notify(&self) -> bool {
        self.connection.has_room() || self.check_open().is_err()
    }

    /// One packet of an automatic update: it does not cross a page (H8). With `notify` it interrupts (H14).
    fn update(&self, offset: usize, bytes: &[u8], notify: bool) -> Result<bool, TransportError> {
        debug_assert!(offset as u64 % PAGE + bytes.len() as u64 <= PAGE, "crosses a page");
        self.check(offset, bytes.len(), 1)?;
        self.check_open()?;
        let header = self.update_header(offset, bytes, notify)?;
        let sent = self.connection.send_for(&self.slot, &header, bytes);
        sent.map_err(|unsent| self.unsent(unsent))?;
        self.count_updates(&[header], bytes.len());
        Ok(notify)
    }

    fn gathers(&self) -> bool {
        true
    }

    fn complete(&self, outbox: &mut Outbox, notify: bool) -> Result<(), TransportError> {
        outbox.complete(|at, bytes| self.update_header(at, bytes, notify))
    }

    fn post(&self, outbox: &Outbox) -> Result<(), TransportError> {
        let (headers, bytes) = outbox.packets();
        self.check_open()?;
        let sent = self.connection.send_packed(&self.slot, headers, bytes);
        sent.map_err(|unsent| self.unsent(unsent))?;
        self.count_updates(headers, bytes.len() - headers.len() * HEADER_LEN);
        Ok(())
    }

    fn check_open(&self) -> Result<(), Closed> {
        match self.slot.ended() {
            None => Ok(()),
            Some(reason) => Err(self.closed(reason)),
        }
    }

    fn close(&self, reason: CloseReason) {
        self.slot.end(reason);
        self.connection.detach(&self.slot);
    }
}
