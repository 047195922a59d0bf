//! Replies: where they are put together, and how they are sent.

use super::desk::SHORT_UNITS;
use super::{Context, Core, DeferredReply, Desk, Finished, send_fault};
use crate::error::{DispatchError, Fault, ReplyError};
use crate::layout::{self, Kind, Status};
use crate::memory::{Memory, copy};
use crate::message::{Put, append};
use crate::process::count;
use std::ops::Deref;
use vmmc::mem::View;
use xdr::{EncodeError, Sink};

impl<D: Deref<Target = Desk>> Core<D> {
    /// The range of the request that the client must be sent back: INOUT blocks of a call in pieces, or
    /// from another node.
    #[inline(always)]
    fn inout_range(&self) -> (usize, usize) {
        if self.message().is_none() && !self.slot().returns_inout() {
            return (0, 0);
        }
        self.changed_range()
    }

    #[cold]
    fn changed_range(&self) -> (usize, usize) {
        let blocks = self.desk().blocks.borrow();
        let changed = || blocks.iter().filter(|(_, len, change)| *change && *len > 0);
        let start = changed().map(|(at, ..)| *at).min().unwrap_or(0);
        let end = changed().map(|(at, len, _)| at + len).max().unwrap_or(0);
        (start, (end - start).next_multiple_of(layout::UNIT))
    }

    /// Room for the reply's plain part.
    #[inline(always)]
    pub(super) fn writer(&self, plain: usize) -> Result<Writer<'_, D>, ReplyError> {
        let desk = self.desk();
        if desk.answered.get() {
            return Err(ReplyError::Answered);
        }
        let slot = self.slot();
        let max = slot.call_max;
        let padded = plain.checked_next_multiple_of(layout::UNIT);
        let total = padded.and_then(|it| it.checked_add(desk.outs.get()));
        let Some(total) = total.filter(|total| *total <= max) else {
            return Err(too_long(total, max));
        };
        let inout = self.inout_range();
        let fits = self.spilled().is_none() && total <= slot.room() && inout.1 == 0;
        let short = SHORT_UNITS * layout::UNIT;
        let (place, start) = if fits && total <= short && desk.outs.get() == desk.close_len.get() {
            (Place::Short, short - total)
        } else if fits {
            (Place::Buffer, layout::flag_at(slot.replies().len()) - total)
        } else {
            (place_for(inout, total), inout.1)
        };
        Ok(Writer { core: self, place, at: start, plain_end: start + plain, total })
    }

    /// A reply that failed before anything was sent is none: the client can still be told.
    #[cold]
    fn note_failure(&self) {
        let Context { slot, turn, .. } = self.context();
        self.desk().answered.set(!slot.is_unanswered(*turn));
    }

    #[cold]
    fn send_long(&self, memory: Box<Memory>, inout: (usize, usize)) -> Result<(), ReplyError> {
        self.gather(&memory, inout)?;
        let Context { slot, turn, .. } = self.context();
        let sent = slot.send_long(*turn, *memory, inout);
        if let Err(ReplyError::NoRoom(full)) = &sent {
            send_fault(slot, *turn, Status::NoRoom, &Fault::with_text(0, full.to_string()))?;
        }
        sent
    }

    /// The OUT and INOUT data that a reply in pieces contains, copied to where they belong in it.
    fn gather(&self, memory: &Memory, inout: (usize, usize)) -> Result<(), ReplyError> {
        let whole = memory.view();
        let request = self.request();
        // The padding of the last block may be missing.
        let len = inout.1.min(request.len().saturating_sub(inout.0));
        copy(request.slice(inout.0, len)?, whole.slice(0, len)?)?;
        self.add_close(whole)?;
        let mut in_place = self.desk().outs.get();
        let mut spill = self.spilled();
        if let Some(first) = spill {
            in_place = first.distance - first.memory.view().len().next_multiple_of(layout::UNIT);
        }
        while let Some(one) = spill {
            let from = one.memory.view();
            copy(from, whole.slice(whole.len() - one.distance, from.len())?)?;
            spill = one.next.get().map(|next| &**next);
        }
        let replies = self.slot().replies();
        // Those kept back were added already.
        let in_place_len = in_place.saturating_sub(self.desk().close_len.get());
        let from = replies.slice(layout::flag_at(replies.len()) - in_place, in_place_len)?;
        copy(from, whole.slice(whole.len() - in_place, in_place_len)?)?;
        let copied = self.desk().outs.get() + len;
        self.slot().node().counters().add(count::COPIED_BYTES, copied as u64);
        Ok(())
    }

    /// Copies the OUT data that was kept back to the end of a reply.
    #[inline]
    fn add_close(&self, reply: View<'_>) -> Result<(), ReplyError> {
        let len = self.desk().close_len.get();
        if len > 0 {
            let close = self.desk().close.view();
            copy(close.slice(close.len() - len, len)?, reply.slice(reply.len() - len, len)?)?;
        }
        Ok(())
    }
}

#[cold]
fn incomplete(need: usize, left: usize) -> ReplyError {
    EncodeError::Full { need, left }.into()
}

#[cold]
fn too_long(len: Option<usize>, max: usize) -> ReplyError {
    ReplyError::TooLong { len: len.unwrap_or(usize::MAX), max }
}

/// For a reply that does not fit, or that INOUT data must head.
#[cold]
fn place_for(inout: (usize, usize), total: usize) -> Place {
    Place::Memory(Box::new(Memory::new(inout.1 + total)), inout)
}

/// Where a reply is put together.
#[derive(Debug)]
enum Place {
    /// On the desk, right-justified: it is short.
    Short,
    /// In the client's buffer.
    Buffer,
    /// Here: it does not fit, or INOUT data must go back with it.
    Memory(Box<Memory>, (usize, usize)),
}

#[derive(Debug)]
pub(super) struct Writer<'c, D> {
    core: &'c Core<D>,
    place: Place,
    at: usize,
    plain_end: usize,
    /// Bytes from the plain part to the flag.
    total: usize,
}

impl<D: Deref<Target = Desk>> Writer<'_, D> {
    #[inline]
    fn view(&self) -> View<'_> {
        match &self.place {
            Place::Short => self.core.desk().short.view(),
            Place::Buffer => self.core.slot().replies(),
            Place::Memory(memory, _) => memory.view(),
        }
    }

    #[inline]
    pub(super) fn put<T>(
        &mut self,
        put: impl FnOnce(&mut Put<'_>) -> Result<T, EncodeError>,
    ) -> Result<T, EncodeError> {
        let (at, result) = append((self.view(), self.at, self.plain_end), put);
        self.at = at;
        result
    }

    pub(super) fn as_ptr(&self) -> std::ptr::NonNull<u8> {
        match self.view().slice(self.at, 0) {
            Ok(view) => view.as_ptr(),
            Err(error) => unreachable!("the reply lies within its place: {error}"),
        }
    }

    pub(super) fn assume_written(&mut self) {
        self.at = self.plain_end;
    }

    #[inline(always)]
    pub(super) fn send(mut self) -> Result<(), ReplyError> {
        if self.at != self.plain_end {
            return Err(incomplete(self.plain_end, self.at));
        }
        // Start and end of the plain part are multiples of eight apart once it is padded.
        let gap = self.plain_end.next_multiple_of(layout::UNIT) - self.plain_end;
        if gap > 0 {
            self.plain_end += gap;
            self.put(|put| put.pad_to(put.at() + gap))?;
        }
        let core = self.core;
        if core.desk().answered.replace(true) {
            return Err(ReplyError::Answered);
        }
        let sent = self.transmit();
        if sent.is_err() {
            core.note_failure();
        }
        sent
    }

    #[inline(always)]
    fn transmit(self) -> Result<(), ReplyError> {
        let (desk, context) = (self.core.desk(), self.core.context());
        let replies = context.slot.replies();
        let end = layout::flag_at(replies.len());
        match self.place {
            Place::Short if self.total == 0 => {}
            Place::Short => {
                let short = self.core.desk().short.view();
                self.core.add_close(short)?;
                let from = short.slice(short.len() - self.total, self.total)?;
                copy(from, replies.slice(end - self.total, self.total)?)?;
            }
            Place::Buffer => self.core.add_close(replies.slice(0, end)?)?,
            Place::Memory(memory, inout) => return self.core.send_long(memory, inout),
        }
        let tally = context.slot.send(context.turn, Kind::Whole, Status::Ok, self.total)?;
        let in_place = desk.outs.get() - desk.close_len.get();
        let stored = self.total - in_place + layout::FLAG_LEN;
        tally.add(count::PACKET_BYTES, stored as u64);
        Ok(())
    }
}

/// Takes the plain part of the results.
#[derive(Debug)]
pub struct ReplyWriter<'c> {
    pub(super) writer: Writer<'c, &'c Desk>,
}

impl ReplyWriter<'_> {
    /// First byte of the plain part, for stubs that write by pointer.
    pub(crate) fn as_ptr(&self) -> std::ptr::NonNull<u8> {
        self.writer.as_ptr()
    }

    /// Stubs that write by pointer have written.
    pub(crate) fn assume_written(&mut self) {
        self.writer.assume_written();
    }

    /// Sends the reply: stores the flag, and wakes the client if it sleeps.
    ///
    /// # Errors
    /// [`DispatchError::Reply`].
    #[inline(always)]
    pub fn send(self) -> Result<Finished, DispatchError> {
        self.writer.send()?;
        Ok(Finished(()))
    }
}

macro_rules! sink_by_writer {
    ($($type:ty),*) => { $(
        impl Sink for $type {
            #[inline]
            fn put_u32(&mut self, value: u32) -> Result<(), EncodeError> {
                self.writer.put(|put| put.put_u32(value))
            }
            #[inline]
            fn put_u64(&mut self, value: u64) -> Result<(), EncodeError> {
                self.writer.put(|put| put.put_u64(value))
            }
            #[inline]
            fn put_padded(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
                self.writer.put(|put| put.put_padded(bytes))
            }
        }
    )* };
}
sink_by_writer!(ReplyWriter<'_>, DeferredReply<'_>);
