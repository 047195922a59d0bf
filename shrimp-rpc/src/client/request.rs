//! One call, from its first argument to its reply.

use super::{Reply, Taken, clock_ns};
use crate::bulk::Element;
use crate::error::CallError;
use crate::layout::{self, FlagWord, Kind};
use crate::memory::{Memory, copy};
use crate::message::Put;
use crate::process::count;
use std::time::Duration;
use vmmc::mem::View;
use xdr::{EncodeError, Sink};

/// A request that is being written. Dropping it gives the call up; nothing was sent then.
#[derive(Debug)]
pub struct Request<'b> {
    taken: Taken<'b>,
    procedure: u32,
    place: Place,
    /// First byte of the message in its place.
    start: usize,
    /// Next byte to write.
    at: usize,
    /// Where the plain part ends, padding not counted.
    plain_end: usize,
    end: usize,
    blocks: Blocks,
}

/// Where a message is put together.
#[derive(Debug)]
enum Place {
    /// In the server's buffer.
    Buffer,
    /// Here: it does not fit.
    Memory(Memory),
}

/// Offset from the message's start and bytes of each block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    count: usize,
    first: [(usize, usize); 4],
    others: Vec<(usize, usize)>,
}

impl Blocks {
    #[inline]
    pub(crate) fn push(&mut self, offset: usize, len: usize) {
        match self.first.get_mut(self.count) {
            Some(block) => *block = (offset, len),
            None => self.others.push((offset, len)),
        }
        self.count += 1;
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<(usize, usize)> {
        if index >= self.count {
            return None;
        }
        self.first.get(index).or_else(|| self.others.get(index - self.first.len())).copied()
    }
}

impl<'b> Request<'b> {
    #[inline]
    pub(super) fn new(
        taken: Taken<'b>,
        procedure: u32,
        plain: usize,
        bulk: usize,
    ) -> Result<Request<'b>, CallError> {
        let max = taken.binding().call_max();
        let padded = layout::padded(plain).and_then(|it| it.checked_add(layout::padded(bulk)?));
        let len = match padded {
            Some(len) if len <= max => len,
            _ => {
                let len = padded.unwrap_or(usize::MAX);
                return Err(CallError::TooLong { what: "a call", len, max });
            }
        };
        let room = taken.lane().room();
        let (place, end) = if len <= room {
            (Place::Buffer, layout::flag_at(taken.lane().calls().len()))
        } else {
            (Place::Memory(Memory::new(len)), len)
        };
        let start = end - len;
        Ok(Request {
            taken,
            procedure,
            place,
            start,
            at: start,
            plain_end: start + plain,
            end,
            blocks: Blocks::default(),
        })
    }

    #[inline]
    fn view(&self) -> View<'_> {
        match &self.place {
            Place::Buffer => self.taken.lane().calls(),
            Place::Memory(memory) => memory.view(),
        }
    }

    /// Appends within the plain part.
    #[inline]
    fn with_put<T>(
        &mut self,
        put: impl FnOnce(&mut Put<'_>) -> Result<T, EncodeError>,
    ) -> Result<T, EncodeError> {
        let mut cursor = Put::new(self.view(), self.at, self.plain_end);
        let result = put(&mut cursor);
        let at = cursor.at();
        self.at = at;
        result
    }

    /// Pads the plain part, all of which must have been written.
    #[inline]
    fn end_plain(&mut self) -> Result<(), CallError> {
        if self.at == self.plain_end && self.blocks.count == 0 {
            let padded = self.start + (self.plain_end - self.start).next_multiple_of(layout::UNIT);
            Put::new(self.view(), self.at, self.end).pad_to(padded)?;
            self.at = padded;
        }
        Ok(())
    }

    /// Appends a block: bulk data of an IN or INOUT parameter, after the plain part, in order.
    ///
    /// # Errors
    /// [`CallError::Encode`] when it was not announced.
    #[inline]
    pub fn block<T: Element>(&mut self, elements: &[T]) -> Result<(), CallError> {
        self.end_plain()?;
        let bytes = elements.len().saturating_mul(T::SIZE);
        let mut cursor = Put::new(self.view(), self.at, self.end);
        let block = cursor.block(bytes)?;
        T::store_all(elements, block)?;
        let end = cursor.at();
        cursor.pad_to(end.next_multiple_of(layout::UNIT))?;
        let at = cursor.at();
        self.blocks.push(self.at - self.start, bytes);
        self.at = at;
        Ok(())
    }

    /// Sends it and waits for the reply.
    ///
    /// # Errors
    /// See [`CallError`].
    #[inline]
    pub fn call(mut self) -> Result<Reply<'b>, CallError> {
        let timeout = self.transmit(false)?;
        let binding = self.taken.binding();
        let word = self.taken.lane_mut().wait(binding.node(), timeout)?;
        self.into_reply(word)
    }

    /// Sends it and goes on: nothing comes back. The next call waits until the server is done
    /// with it, or takes another lane.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn send(mut self) -> Result<(), CallError> {
        self.transmit(true).map(drop)
    }

    pub(super) fn into_reply(self, word: u64) -> Result<Reply<'b>, CallError> {
        let Request { taken, procedure, place, start, blocks, .. } = self;
        // What was sent in pieces is not in the server's buffer any more.
        let in_place = matches!(place, Place::Buffer).then_some(start);
        Reply::new(taken, procedure, word, in_place, blocks)
    }

    /// All but the wait for the reply. Returns the time that is left for that.
    #[inline]
    fn transmit(&mut self, one_way: bool) -> Result<Option<Duration>, CallError> {
        self.end_plain()?;
        if self.at != self.end {
            let (need, left) = (self.end - self.start, self.at - self.start);
            return Err(EncodeError::Full { need, left }.into());
        }
        let binding = self.taken.binding();
        let node = binding.node();
        let timeout = binding.timeout();
        if let Some(timeout) = timeout {
            let at = clock_ns().saturating_add(timeout.as_nanos() as u64);
            self.taken.lane_mut().set_deadline(at);
        } else {
            self.taken.lane_mut().set_deadline(0);
        }
        let lane = self.taken.lane_mut();
        let code = match u16::try_from(self.procedure) {
            Ok(code) if code != layout::WIDE => code,
            _ => {
                lane.put32(layout::CALL_PROCEDURE, self.procedure);
                layout::WIDE
            }
        };
        let counters = node.counters();
        counters.add(count::CALLS, 1);
        let len = self.end - self.start;
        counters.add(count::PACKET_BYTES, (len + layout::FLAG_LEN) as u64);
        match &self.place {
            Place::Buffer => {
                let kind = if one_way { Kind::OneWay } else { Kind::Whole };
                lane.send(node, kind, code, len)?;
            }
            Place::Memory(memory) => {
                lane.put64(layout::CALL_TOTAL, len as u64);
                let kind = if one_way { Kind::FirstOneWay } else { Kind::First };
                send_pieces(&mut self.taken, memory.view(), kind, code, timeout)?;
            }
        }
        Ok(timeout)
    }
}

/// Sends a call in pieces; the reply to the last one is the call's.
#[cold]
fn send_pieces(
    taken: &mut Taken<'_>,
    message: View<'_>,
    first: Kind,
    code: u16,
    timeout: Option<Duration>,
) -> Result<(), CallError> {
    let node = taken.binding().node();
    let mut sent = 0;
    let mut kind = first;
    loop {
        let lane = taken.lane_mut();
        let len = (message.len() - sent).min(lane.room());
        let at = layout::flag_at(lane.calls().len()) - len;
        let piece = message.slice(sent, len)?;
        copy(piece, lane.calls().slice(at, len)?)?;
        lane.send(node, kind, code, len)?;
        kind = Kind::Next;
        sent += len;
        if sent == message.len() {
            return Ok(());
        }
        let word = lane.wait(node, timeout)?;
        match FlagWord::unpack(word) {
            Some(FlagWord { kind: Kind::More, units: 0, .. }) => {}
            // Refused before all of it was sent.
            Some(FlagWord { kind: Kind::Whole, .. }) => {
                let reply = Reply::new_refusal(taken, word).map_or_else(
                    |error| error,
                    |()| CallError::Protocol { what: "a reply before the call was complete" },
                );
                return Err(reply);
            }
            _ => {
                taken.discard();
                return Err(CallError::Protocol { what: "no request for the next piece" });
            }
        }
    }
}

impl Sink for Request<'_> {
    #[inline]
    fn put_u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.with_put(|put| put.put_u32(value))
    }

    #[inline]
    fn put_u64(&mut self, value: u64) -> Result<(), EncodeError> {
        self.with_put(|put| put.put_u64(value))
    }

    #[inline]
    fn put_padded(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.with_put(|put| put.put_padded(bytes))
    }
}
