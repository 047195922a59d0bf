//! One call, from its first argument to its reply.

use super::lane::{CLOSE_UNITS, Lane, SHORT_UNITS};
use super::limit::Limit;
use super::patience::Patience;
use super::{Mode, Reply, Taken, at_once};
use crate::bulk::{BulkMut, Element};
use crate::error::CallError;
use crate::layout::{self, FlagWord, Kind};
use crate::memory::{Memory, copy};
use crate::message::{Put, append};
use crate::process::count;
use vmmc::counters::Tally;
use vmmc::mem::View;
use xdr::{EncodeError, Sink};

/// A request that is being written. Dropping it gives the call up; nothing was sent then.
#[derive(Debug)]
pub struct Request<'b> {
    taken: Taken<'b>,
    /// Of the whole call: it runs already.
    limit: Limit,
    procedure: u32,
    place: Place,
    /// First byte of the message in its place.
    start: usize,
    /// Next byte to write.
    at: usize,
    /// Where the plain part ends, padding not counted.
    plain_end: usize,
    end: usize,
}

/// Where a message is put together.
#[derive(Debug)]
enum Place {
    /// In the lane's own memory, right-justified: it is short.
    Short,
    /// In the server's buffer.
    Buffer,
    /// Here: it does not fit.
    Memory(Box<Memory>),
}

impl<'b> Request<'b> {
    #[inline(always)] // as all that is between two flags: see the design's path budgets
    pub(super) fn new(
        mut taken: Taken<'b>,
        limit: Limit,
        procedure: u32,
        plain: usize,
        bulk: usize,
    ) -> Result<Request<'b>, CallError> {
        let max = taken.binding().call_max();
        let padded = layout::padded(plain).and_then(|it| it.checked_add(layout::padded(bulk)?));
        let len = match padded {
            Some(len) if len <= max => len,
            _ => return Err(too_long(padded, max)),
        };
        let (place, end) = if len <= SHORT_UNITS * layout::UNIT {
            (Place::Short, SHORT_UNITS * layout::UNIT)
        } else if len <= taken.lane().room() {
            (Place::Buffer, taken.lane().ends.0)
        } else {
            (place_for(len), len)
        };
        let start = end - len;
        if len <= CLOSE_UNITS * layout::UNIT {
            taken.lane().expect_send();
        }
        taken.lane_mut().blocks.clear();
        let plain_end = start + plain;
        Ok(Request { taken, limit, procedure, place, start, at: start, plain_end, end })
    }

    #[inline(always)]
    fn view(&self) -> View<'_> {
        match &self.place {
            Place::Short => self.taken.lane().short.view(),
            Place::Buffer => self.taken.lane().calls(),
            Place::Memory(memory) => memory.view(),
        }
    }

    /// First byte, for stubs that write by pointer.
    pub(crate) fn as_ptr(&self) -> std::ptr::NonNull<u8> {
        match self.view().slice(self.start, self.end - self.start) {
            Ok(view) => view.as_ptr(),
            Err(error) => unreachable!("the message lies within its place: {error}"),
        }
    }

    /// Stubs that write by pointer have written.
    pub(crate) fn assume_written(&mut self) {
        self.at = self.end;
    }

    /// Appends within the plain part.
    #[inline(always)]
    fn with_put<T>(
        &mut self,
        put: impl FnOnce(&mut Put<'_>) -> Result<T, EncodeError>,
    ) -> Result<T, EncodeError> {
        let (at, result) = append((self.view(), self.at, self.plain_end), put);
        self.at = at;
        result
    }

    /// Pads the plain part, all of which must have been written.
    #[inline(always)]
    fn end_plain(&mut self) -> Result<(), CallError> {
        let padded = self.start + (self.plain_end - self.start).next_multiple_of(layout::UNIT);
        if self.at == self.plain_end && self.at != padded && self.taken.lane().blocks.is_empty() {
            Put::new(self.view(), self.at, self.end).pad_to(padded)?;
            self.at = padded;
        }
        Ok(())
    }

    /// Where the next block of so many bytes begins, after the plain part.
    #[inline(always)]
    fn begin_block(&mut self, bytes: usize) -> Result<View<'_>, CallError> {
        self.end_plain()?;
        let (at, left) = (self.at, self.end - self.at);
        if bytes > left {
            return Err(EncodeError::Full { need: bytes, left }.into());
        }
        let offset = at - self.start;
        self.taken.lane_mut().blocks.push((offset, bytes));
        self.at += bytes;
        Ok(self.view().slice(at, bytes)?)
    }

    /// Pads what [`Request::begin_block`] began.
    #[inline(always)]
    fn end_block(&mut self) -> Result<(), CallError> {
        let mut cursor = Put::new(self.view(), self.at, self.end);
        cursor.pad_to(self.at.next_multiple_of(layout::UNIT))?;
        self.at = cursor.at();
        Ok(())
    }

    /// Appends a block: bulk data of an IN or INOUT parameter, after the plain part, in order.
    ///
    /// # Errors
    /// [`CallError::Encode`] when it was not announced.
    #[inline(always)]
    pub fn block<T: Element>(&mut self, elements: &[T]) -> Result<(), CallError> {
        T::store_all(elements, self.begin_block(elements.len().saturating_mul(T::SIZE))?)?;
        self.end_block()
    }

    /// Appends a block of `len` elements to be written where it lies, in the buffer that the server reads:
    /// what [`Request::block`] copies is made there in the first place. Its first contents are
    /// whatever the buffer held. Stores reach the server's memory at once, and its handler after the call.
    ///
    /// # Errors
    /// As [`Request::block`].
    pub fn loan<T: Element>(&mut self, len: usize) -> Result<BulkMut<'_, T>, CallError> {
        let bytes = len.saturating_mul(T::SIZE);
        let at = self.begin_block(bytes).map(drop).map(|()| self.at - bytes)?;
        self.end_block()?;
        Ok(BulkMut::new(self.view().slice(at, bytes)?, 0))
    }

    /// Sends it and waits for the reply.
    ///
    /// # Errors
    /// See [`CallError`].
    #[inline(always)]
    pub fn call(mut self) -> Result<Reply<'b>, CallError> {
        self.transmit(false)?;
        // Taken apart, so that what is common stays in registers: what is rare wants all of it in memory.
        let Request { mut taken, limit, procedure, place, start, at, plain_end, end } = self;
        if let Place::Memory(_) = place {
            let whole = Request { taken, limit, procedure, place, start, at, plain_end, end };
            return whole.call_in_pieces();
        }
        let node = taken.binding().node();
        let word = taken.lane_mut().wait(node, limit)?;
        let in_place = in_place(taken.lane(), &place, start);
        Reply::new(taken, (procedure, limit), word, in_place)
    }

    #[cold]
    fn call_in_pieces(mut self) -> Result<Reply<'b>, CallError> {
        let patience = Patience::new(self.limit, self.taken.lane().turn().next());
        at_once(self.send_pieces(false, patience, Mode::Block))?;
        let word = at_once(patience.await_reply(&mut self.taken, Mode::Block))?;
        let (taken, call, in_place) = self.into_parts();
        Reply::new(taken, call, word, in_place)
    }

    /// [`Request::call`] for futures: any executor's. Dropped before it is ready, the server is told, and
    /// the lane is used again after the late reply, or another is bound in its stead ([`Binding::set_timeout`](super::Binding::set_timeout)).
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_async(mut self) -> Result<Reply<'b>, CallError> {
        self.transmit(false)?;
        let word = if self.is_in_pieces() {
            let patience = Patience::new(self.limit, self.taken.lane().turn().next());
            self.send_pieces(false, patience, Mode::Async).await?;
            patience.await_reply(&mut self.taken, Mode::Async).await?
        } else {
            self.taken.await_reply(self.limit, Mode::Async).await?
        };
        let (taken, call, in_place) = self.into_parts();
        Reply::make(taken, call, word, in_place, Mode::Async).await
    }

    /// Sends it and goes on: nothing comes back. The next call waits until the server is done
    /// with it, or takes another lane: only calls of a binding with one lane come in order.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn send(mut self) -> Result<(), CallError> {
        self.transmit(true)?;
        if self.is_in_pieces() {
            at_once(self.send_one_way(Mode::Block))?;
        }
        Ok(())
    }

    /// [`Request::send`] for futures: what is sent in pieces waits for the server between two of them.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn send_async(mut self) -> Result<(), CallError> {
        self.transmit(true)?;
        if self.is_in_pieces() {
            self.send_one_way(Mode::Async).await?;
        }
        Ok(())
    }

    #[inline]
    fn is_in_pieces(&self) -> bool {
        matches!(self.place, Place::Memory(_))
    }

    #[cold]
    async fn send_one_way(&mut self, mode: Mode) -> Result<(), CallError> {
        let patience = Patience::new(self.limit, self.taken.lane().turn().next());
        self.send_pieces(true, patience, mode).await
    }

    #[inline(always)]
    fn into_parts(self) -> (Taken<'b>, (u32, Limit), Option<usize>) {
        let Request { taken, limit, procedure, place, start, .. } = self;
        let in_place = in_place(taken.lane(), &place, start);
        (taken, (procedure, limit), in_place)
    }

    /// All but the pieces and the wait for the reply.
    #[inline(always)]
    fn transmit(&mut self, one_way: bool) -> Result<(), CallError> {
        self.end_plain()?;
        if self.at != self.end {
            return Err(incomplete(self.end - self.start, self.at - self.start));
        }
        let binding = self.taken.binding();
        let lane = self.taken.lane_mut();
        lane.set_limit(self.limit)?;
        let code = code(lane, self.procedure)?;
        let len = self.end - self.start;
        let whole = if one_way { Kind::OneWay } else { Kind::Whole };
        match &self.place {
            Place::Short => {
                if len > 0 {
                    let at = lane.ends.0 - len;
                    copy(lane.short.view().slice(self.start, len)?, lane.calls().slice(at, len)?)?;
                }
            }
            Place::Buffer => {}
            Place::Memory(_) => {
                lane.put64(layout::CALL_TOTAL, len as u64)?;
                count_call(binding.node().counters().tally(), len);
                return Ok(());
            }
        }
        count_call(lane.send(binding, whole, code, len)?, len);
        Ok(())
    }
}

/// Where the request lies in the server's buffer, for INOUT data to be read there. What was sent in pieces is not there any
/// more, and what another node's server changed is not in our image of it.
#[inline(always)]
fn in_place(lane: &Lane, place: &Place, start: usize) -> Option<usize> {
    match place {
        _ if !lane.sees_inout() => None,
        Place::Short => Some(lane.ends.0 - (SHORT_UNITS * layout::UNIT - start)),
        Place::Buffer => Some(start),
        Place::Memory(_) => None,
    }
}

#[inline(always)]
fn count_call(tally: Tally<'_>, len: usize) {
    tally.add(count::CALLS, 1);
    tally.add(count::PACKET_BYTES, (len + layout::FLAG_LEN) as u64);
}

#[cold]
fn too_long(len: Option<usize>, max: usize) -> CallError {
    CallError::TooLong { what: "a call", len: len.unwrap_or(usize::MAX), max }
}

#[cold]
fn incomplete(need: usize, left: usize) -> CallError {
    EncodeError::Full { need, left }.into()
}

/// For a message that does not fit the buffer.
#[cold]
fn place_for(len: usize) -> Place {
    Place::Memory(Box::new(Memory::new(len)))
}

/// The code field of a call's flag.
#[inline(always)]
fn code(lane: &Lane, procedure: u32) -> Result<u16, CallError> {
    match u16::try_from(procedure) {
        Ok(code) if code != layout::WIDE => Ok(code),
        _ => wide_code(lane, procedure),
    }
}

#[cold]
fn wide_code(lane: &Lane, procedure: u32) -> Result<u16, CallError> {
    lane.put32(layout::CALL_PROCEDURE, procedure)?;
    Ok(layout::WIDE)
}

impl Request<'_> {
    /// Sends a call in pieces; the reply to the last one is the call's.
    #[cold]
    async fn send_pieces(
        &mut self,
        one_way: bool,
        patience: Patience,
        mode: Mode,
    ) -> Result<(), CallError> {
        let Place::Memory(memory) = &self.place else { return Ok(()) };
        let (taken, message) = (&mut self.taken, memory.view());
        let binding = taken.binding();
        let code = code(taken.lane(), self.procedure)?;
        let mut sent = 0;
        let mut kind = if one_way { Kind::FirstOneWay } else { Kind::First };
        loop {
            let lane = taken.lane_mut();
            let len = (message.len() - sent).min(lane.room());
            let at = layout::flag_at(lane.calls().len()) - len;
            copy(message.slice(sent, len)?, lane.calls().slice(at, len)?)?;
            lane.send(binding, kind, code, len)?;
            kind = Kind::Next;
            sent += len;
            if sent == message.len() {
                return Ok(());
            }
            let word = patience.await_reply(taken, mode).await?;
            match FlagWord::unpack(word) {
                Some(FlagWord { kind: Kind::More, units: 0, .. }) => {}
                // Refused before all of it was sent.
                Some(FlagWord { kind: Kind::Whole, .. }) => {
                    Reply::new_refusal(taken, word)?;
                    return Err(CallError::Protocol {
                        what: "a reply before the call was complete",
                    });
                }
                _ => {
                    taken.discard();
                    return Err(CallError::Protocol { what: "no request for the next piece" });
                }
            }
        }
    }
}

impl Sink for Request<'_> {
    #[inline(always)]
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
