//! A call, as a handler sees it.

mod args;
mod cancelled;
mod deferred;
mod desk;
mod reply;

pub use args::{Args, BulkOut};
pub use cancelled::Cancelled;
pub use deferred::{DeferredCall, DeferredReply};
pub use desk::Context;
pub(super) use desk::Desk;
pub use reply::ReplyWriter;

use super::budget::Kept;
use super::slot::Slot;
use crate::bulk::{Bulk, BulkMut, Copied, Element};
use crate::error::{DispatchError, Fault, ReplyError};
use crate::layout::{self, Kind, Status, Turn};
use crate::memory::Memory;
use crate::message::{Get, Put};
use desk::CLOSE_UNITS;
use std::cell::OnceCell;
use std::marker::PhantomData;
use std::ops::Deref;
use vmmc::mem::View;
use xdr::{DecodeError, Limits, Sink};

/// Says that a call was replied to, or deferred, or needs no reply. Only this library makes one.
#[derive(Debug)]
#[must_use]
pub struct Finished(());

/// The state of one call. Lives as long as somebody may reply. Two words, so that it reaches handlers in registers.
#[derive(Debug)]
struct Core<D> {
    /// The worker's, or the call's own once it is put off.
    desk: D,
    far: OnceCell<Box<Far>>,
}

/// What of a call lies in neither buffer.
#[derive(Debug, Default)]
pub(super) struct Far {
    /// Arguments that came in pieces.
    message: Option<Kept>,
    /// OUT blocks that do not fit the client's buffer.
    spilled: OnceCell<Box<Spill>>,
}

impl Far {
    /// Of a call whose arguments came in pieces.
    pub(super) fn of(message: Kept) -> Box<Far> {
        Box::new(Far { message: Some(message), spilled: OnceCell::new() })
    }
}

/// An OUT block in our own memory; a list, so that a block stays where it is while others are added.
#[derive(Debug)]
struct Spill {
    memory: Memory,
    distance: usize,
    next: OnceCell<Box<Spill>>,
}

impl<D: Deref<Target = Desk>> Core<D> {
    #[inline]
    fn desk(&self) -> &Desk {
        &self.desk
    }

    #[inline]
    fn context(&self) -> &Context {
        &self.desk().context
    }

    #[inline]
    fn slot(&self) -> &Slot {
        &self.desk().context.slot
    }

    /// The arguments, if they came in pieces.
    #[inline]
    fn message(&self) -> Option<&Kept> {
        self.far.get()?.message.as_ref()
    }

    /// The first OUT block that does not fit.
    #[inline]
    fn spilled(&self) -> Option<&Spill> {
        self.far.get()?.spilled.get().map(|spill| &**spill)
    }

    #[inline]
    fn request(&self) -> View<'_> {
        if let Some(message) = self.message() {
            return message.view();
        }
        let (calls, start) = (self.slot().calls(), self.desk().start);
        match calls.slice(start, layout::flag_at(calls.len()) - start) {
            Ok(view) => view,
            Err(error) => unreachable!("checked when the call came: {error}"),
        }
    }

    #[inline]
    fn take_block<T: Element>(&self, len: u32, change: bool) -> Result<View<'_>, DecodeError> {
        let request = self.request();
        let at = self.desk().next_block.get();
        let bytes = (len as usize).saturating_mul(T::SIZE);
        let short = DecodeError::Short { need: bytes, left: request.len().saturating_sub(at) };
        let view = request.slice(at, bytes).map_err(|_| short)?;
        // The last block's padding may be missing in a hostile message; then nothing follows it.
        self.desk().next_block.set(at + bytes.next_multiple_of(layout::UNIT));
        self.desk().blocks.borrow_mut().push((at, bytes, change));
        Ok(view)
    }

    /// An INOUT block by its place in the request, for stubs that read by pointer.
    fn block_at(&self, offset: usize, bytes: usize) -> Option<View<'_>> {
        let block = self.request().slice(offset, bytes).ok()?;
        self.desk().blocks.borrow_mut().push((offset, bytes, true));
        Some(block)
    }

    /// Allots an OUT block of `bytes`: in the client's buffer if it fits, below the others.
    fn allot(&self, bytes: usize) -> Result<(View<'_>, u32), ReplyError> {
        let max = self.slot().call_max;
        let too_long = |len| ReplyError::TooLong { len, max };
        let used = bytes
            .checked_next_multiple_of(layout::UNIT)
            .and_then(|padded| padded.checked_add(self.desk().outs.get()))
            .ok_or(too_long(usize::MAX))?;
        let distance = u32::try_from(used).map_err(|_| too_long(used))?;
        if used > max {
            return Err(too_long(used));
        }
        self.desk().outs.set(used);
        if used <= CLOSE_UNITS * layout::UNIT {
            self.desk().close_len.set(used);
            let close = self.desk().close.view();
            return Ok((close.slice(close.len() - used, bytes)?, distance));
        }
        let replies = self.slot().replies();
        if self.spilled().is_none() && used <= self.slot().room() {
            let at = layout::flag_at(replies.len()) - used;
            return Ok((replies.slice(at, bytes)?, distance));
        }
        let spill =
            Box::new(Spill { memory: Memory::new(bytes), distance: used, next: OnceCell::new() });
        let mut place = &self.far.get_or_init(Box::default).spilled;
        while let Some(other) = place.get() {
            place = &other.next;
        }
        Ok((place.get_or_init(|| spill).memory.view(), distance))
    }

    /// Says why the reply that there is cannot be sent.
    #[cold]
    fn cannot_reply(&self, error: &ReplyError) {
        // The client may have gone.
        let _ = match error {
            ReplyError::TooLong { len, max } if !self.desk().answered.replace(true) => {
                send_too_long(self.slot(), self.context().turn, *len, *max)
            }
            error => self.fault(Status::BadResults, &Fault::with_text(0, error.to_string())),
        };
    }

    fn fault(&self, status: Status, fault: &Fault) -> Result<(), ReplyError> {
        if self.desk().answered.replace(true) {
            return Err(ReplyError::Answered);
        }
        send_fault(self.slot(), self.context().turn, status, fault)
    }
}

/// Sends the length of a call or reply, and what is allowed.
#[cold]
pub(super) fn send_too_long(
    slot: &Slot,
    turn: Turn,
    len: usize,
    max: usize,
) -> Result<(), ReplyError> {
    const NUMBERS: usize = 2 * layout::UNIT;
    let replies = slot.replies();
    let end = layout::flag_at(replies.len());
    let mut put = Put::new(replies, end - NUMBERS, end);
    put.put_u64(len as u64)?;
    put.put_u64(max as u64)?;
    slot.send(turn, Kind::Whole, Status::TooLong, NUMBERS).map(drop)
}

/// Sends a text and a number for people.
#[cold]
pub(super) fn send_fault(
    slot: &Slot,
    turn: Turn,
    status: Status,
    fault: &Fault,
) -> Result<(), ReplyError> {
    let mut end = fault.text().len().min(Fault::TEXT_MAX);
    while !fault.text().is_char_boundary(end) {
        end -= 1;
    }
    let text = &fault.text().as_bytes()[..end];
    let mut size = xdr::Counter::new();
    xdr::put_opaque(&mut size, text, Fault::TEXT_MAX as u32)?;
    size.put_u32(0)?;
    let len = size.len().next_multiple_of(layout::UNIT);
    let replies = slot.replies();
    let end = layout::flag_at(replies.len());
    let mut put = Put::new(replies, end - len, end);
    xdr::put_opaque(&mut put, text, Fault::TEXT_MAX as u32)?;
    put.put_u32(fault.number())?;
    put.pad_to(end)?;
    slot.send(turn, Kind::Whole, status, len).map(drop)
}

/// A call to be dispatched: arguments to take, in order, and a reply to give.
#[derive(Debug)]
pub struct ServerCall<'c> {
    core: Core<&'c Desk>,
}

impl<'w> ServerCall<'w> {
    /// The call on the desk; `message` is its arguments if they came in pieces.
    #[inline(always)] // between two flags
    pub(super) fn new(desk: &'w Desk, message: Option<Box<Far>>) -> ServerCall<'w> {
        let far = match message {
            Some(far) => OnceCell::from(far),
            None => OnceCell::new(),
        };
        ServerCall { core: Core { desk, far } }
    }

    /// Who calls.
    #[must_use]
    #[inline]
    pub fn context(&self) -> &Context {
        self.core.context()
    }

    /// The plain part of the arguments.
    #[must_use]
    #[inline]
    pub fn args(&self) -> Args<'_> {
        let limits = Limits { memory: self.core.slot().call_max, ..Limits::DEFAULT };
        Args { get: Get::new(self.core.request(), limits), core: &self.core }
    }

    /// The next block, IN, of so many elements. After [`Args::finish`].
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn block<T: Element>(&self, len: u32) -> Result<Bulk<'_, T>, DecodeError> {
        Ok(Bulk::new(self.core.take_block::<T>(len, false)?))
    }

    /// The next block, INOUT, of so many elements. After [`Args::finish`].
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn block_mut<T: Element>(&self, len: u32) -> Result<BulkMut<'_, T>, DecodeError> {
        Ok(BulkMut::new(self.core.take_block::<T>(len, true)?, 0))
    }

    /// The next block, INOUT, of so many elements, as a private copy. After [`Args::finish`].
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn block_copied<T: Element>(&self, len: u32) -> Result<Copied<'_, T>, DecodeError> {
        Copied::new(self.block_mut(len)?)
    }

    /// An OUT block of at most `max` elements, to be opened with the right number.
    #[must_use]
    pub fn out<T: Element>(&self, max: u32) -> BulkOut<'_, T> {
        BulkOut { core: &self.core, max, opened: (0, 0), elements: PhantomData }
    }

    /// An OUT block of a fixed number of elements, all bytes zero.
    ///
    /// # Errors
    /// [`DispatchError::Reply`] when it is longer than allowed.
    pub fn out_array<T: Element>(&self, len: u32) -> Result<BulkMut<'_, T>, DispatchError> {
        let (view, distance) = self.core.allot((len as usize).saturating_mul(T::SIZE))?;
        view.fill(0);
        Ok(BulkMut::new(view, distance))
    }

    /// Room for the reply: `plain` bytes of results, padding not counted.
    ///
    /// # Errors
    /// [`DispatchError::Reply`] when it is longer than allowed, or given already.
    #[inline(always)]
    pub fn reply(&self, plain: usize) -> Result<ReplyWriter<'_>, DispatchError> {
        Ok(ReplyWriter { writer: self.core.writer(plain)? })
    }

    /// The end of a one-way call: the client may use the buffer again.
    pub fn finish_oneway(self) -> Finished {
        if !self.core.desk().answered.replace(true) {
            let context = self.core.context();
            let _ = context.slot.send(context.turn, Kind::Whole, Status::Ok, 0);
        }
        Finished(())
    }

    /// Puts the reply off: the returned value may be kept, sent to other threads, and replied to later.
    /// The client's buffers are its own until then. The value alone answers from here on: that the handler fails
    /// afterwards is no answer, nor that it panics, unless the value is dropped by that ([`DeferredCall`]).
    pub fn defer(self) -> (DeferredCall, Finished) {
        let desk = Box::new(self.core.desk().take_over());
        self.core.desk().put_off.set(true);
        desk.slot().begin_put_off();
        (DeferredCall { core: Core { desk, far: self.core.far } }, Finished(()))
    }

    /// The whole request, for stubs that read by pointer.
    pub(crate) fn request(&self) -> View<'_> {
        self.core.request()
    }

    /// An INOUT block by its place in the request.
    pub(crate) fn block_at(&self, offset: usize, bytes: usize) -> Option<View<'_>> {
        self.core.block_at(offset, bytes)
    }

    /// An OUT block in bytes, and its distance.
    pub(crate) fn out_bytes(&self, bytes: usize) -> Result<(View<'_>, u32), ReplyError> {
        self.core.allot(bytes)
    }

    /// Whether the client wants no reply.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.core.desk().one_way
    }
}
