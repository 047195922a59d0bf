//! A call, as a handler sees it.

use super::slot::{Message, Ready, Slot};
use crate::bulk::{Bulk, BulkMut, Element};
use crate::error::{DispatchError, Fault, ReplyError};
use crate::layout::{self, Kind, Status, Turn};
use crate::memory::{Memory, Small, copy};
use crate::message::{Get, Put};
use crate::process::count;
use std::cell::{Cell, OnceCell, RefCell};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use vmmc::PeerInfo;
use vmmc::mem::View;
use xdr::{DecodeError, EncodeError, Limits, Sink, Source};

/// Says that a call was replied to, or deferred, or needs no reply. Only this library makes one.
#[derive(Debug)]
#[must_use]
pub struct Finished(());

/// Who calls, and whether it still waits.
#[derive(Debug)]
pub struct Context {
    slot: Arc<Slot>,
    turn: Turn,
    procedure: u32,
}

impl Context {
    /// The client's process and user, as the daemon vouches for them.
    #[must_use]
    pub fn peer(&self) -> PeerInfo {
        self.slot.peer
    }

    /// User id of the client.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.slot.peer.uid
    }

    /// Process id of the client.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.slot.peer.pid
    }

    /// Number of the procedure.
    #[must_use]
    pub fn procedure(&self) -> u32 {
        self.procedure
    }

    /// Whether the client has given the call up, or has gone. A long computation asks now and then.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.slot.head32(layout::CALL_CANCELLED) == self.turn.number() || !self.slot.is_open()
    }

    /// How long the client will still wait, by its own word; `None`: for ever.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        match self.slot.head64(layout::CALL_DEADLINE) {
            0 => None,
            at => Some(Duration::from_nanos(at.saturating_sub(crate::client::clock_ns()))),
        }
    }
}

/// Units of the OUT data that is kept back until the reply, because the client polls that line.
const CLOSE_UNITS: usize = 6;

/// Units of the longest reply that is stored in one go.
const SHORT_UNITS: usize = 15;

/// What a worker keeps from call to call, so that a call moves little.
#[derive(Debug)]
pub(super) struct Desk {
    context: Context,
    /// Blocks taken so far: offset, bytes, and whether the handler may change them.
    blocks: RefCell<Vec<(usize, usize, bool)>>,
    /// The OUT blocks that lie within the flag's own line, right-justified.
    close: Small<CLOSE_UNITS>,
    /// Where a short reply is put together.
    short: Small<SHORT_UNITS>,
}

impl Desk {
    pub(super) fn new(slot: Arc<Slot>) -> Desk {
        Desk {
            context: Context { slot, turn: Turn::NONE, procedure: 0 },
            blocks: RefCell::new(Vec::with_capacity(4)),
            close: Small::new(),
            short: Small::new(),
        }
    }

    #[inline]
    pub(super) fn is_of(&self, slot: &Arc<Slot>) -> bool {
        Arc::ptr_eq(&self.context.slot, slot)
    }

    /// For the next call of the same client.
    #[inline]
    pub(super) fn renew(&mut self, ready: &Ready) {
        self.context.turn = ready.turn;
        self.context.procedure = ready.procedure;
        self.blocks.get_mut().clear();
    }

    #[inline]
    pub(super) fn slot(&self) -> &Slot {
        &self.context.slot
    }

    /// A desk of a call's own, with what is on this one.
    fn take_over(&self) -> Desk {
        let Context { slot, turn, procedure } = &self.context;
        let desk = Desk {
            context: Context { slot: slot.clone(), turn: *turn, procedure: *procedure },
            blocks: RefCell::new(self.blocks.take()),
            close: Small::new(),
            short: Small::new(),
        };
        let _ = copy(self.close.view(), desk.close.view()); // as long
        desk
    }
}

/// The state of one call. Lives as long as somebody may reply.
#[derive(Debug)]
struct Core<D> {
    /// The worker's, or the call's own once it is put off.
    desk: D,
    message: Message,
    one_way: bool,
    answered: Cell<bool>,
    /// Where the next block begins, from the start of the message.
    next_block: Cell<usize>,
    /// Bytes before the flag that OUT blocks take.
    outs: Cell<usize>,
    /// Bytes of them that are kept back.
    close_len: Cell<usize>,
    /// OUT blocks that do not fit the client's buffer.
    spilled: OnceCell<Box<Spill>>,
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

    #[inline]
    fn request(&self) -> View<'_> {
        match &self.message {
            Message::Buffer(start) => {
                let calls = self.slot().calls();
                match calls.slice(*start, layout::flag_at(calls.len()) - start) {
                    Ok(view) => view,
                    Err(error) => unreachable!("checked when the call came: {error}"),
                }
            }
            Message::Memory(memory) => memory.view(),
        }
    }

    fn take_block<T: Element>(&self, len: u32, change: bool) -> Result<View<'_>, DecodeError> {
        let request = self.request();
        let at = self.next_block.get();
        let bytes = (len as usize).saturating_mul(T::SIZE);
        let short = DecodeError::Short { need: bytes, left: request.len().saturating_sub(at) };
        let view = request.slice(at, bytes).map_err(|_| short)?;
        // The last block's padding may be missing in a hostile message; then nothing follows it.
        self.next_block.set(at + bytes.next_multiple_of(layout::UNIT));
        self.desk().blocks.borrow_mut().push((at, bytes, change));
        Ok(view)
    }

    /// Allots an OUT block of `bytes`: in the client's buffer if it fits, below the others.
    fn allot(&self, bytes: usize) -> Result<(View<'_>, u32), ReplyError> {
        let max = self.slot().call_max;
        let too_long = |len| ReplyError::TooLong { len, max };
        let used = bytes
            .checked_next_multiple_of(layout::UNIT)
            .and_then(|padded| padded.checked_add(self.outs.get()))
            .ok_or(too_long(usize::MAX))?;
        let distance = u32::try_from(used).map_err(|_| too_long(used))?;
        if used > max {
            return Err(too_long(used));
        }
        self.outs.set(used);
        if used <= CLOSE_UNITS * layout::UNIT {
            self.close_len.set(used);
            let close = self.desk().close.view();
            return Ok((close.slice(close.len() - used, bytes)?, distance));
        }
        let replies = self.slot().replies();
        if self.spilled.get().is_none() && used <= self.slot().room() {
            let at = layout::flag_at(replies.len()) - used;
            return Ok((replies.slice(at, bytes)?, distance));
        }
        let spill =
            Box::new(Spill { memory: Memory::new(bytes), distance: used, next: OnceCell::new() });
        let mut place = &self.spilled;
        while let Some(other) = place.get() {
            place = &other.next;
        }
        Ok((place.get_or_init(|| spill).memory.view(), distance))
    }

    /// The range of the request that the client must be sent back: INOUT blocks of a call in pieces.
    fn inout_range(&self) -> (usize, usize) {
        if matches!(self.message, Message::Buffer(_)) {
            return (0, 0);
        }
        let blocks = self.desk().blocks.borrow();
        let changed = || blocks.iter().filter(|(_, len, change)| *change && *len > 0);
        let start = changed().map(|(at, ..)| *at).min().unwrap_or(0);
        let end = changed().map(|(at, len, _)| at + len).max().unwrap_or(0);
        (start, (end - start).next_multiple_of(layout::UNIT))
    }

    /// Room for the reply's plain part.
    #[inline]
    fn writer(&self, plain: usize) -> Result<Writer<'_, D>, ReplyError> {
        if self.answered.get() {
            return Err(ReplyError::Answered);
        }
        let slot = self.slot();
        let max = slot.call_max;
        let padded = plain.checked_next_multiple_of(layout::UNIT);
        let total = padded.and_then(|it| it.checked_add(self.outs.get()));
        let Some(total) = total.filter(|total| *total <= max) else {
            return Err(ReplyError::TooLong { len: total.unwrap_or(usize::MAX), max });
        };
        let inout = self.inout_range();
        let fits = self.spilled.get().is_none() && total <= slot.room() && inout.1 == 0;
        let short = SHORT_UNITS * layout::UNIT;
        let (place, start) = if fits && total <= short && self.outs.get() == self.close_len.get() {
            (Place::Short, short - total)
        } else if fits {
            (Place::Buffer, layout::flag_at(slot.replies().len()) - total)
        } else {
            (Place::Memory(Box::new(Memory::new(inout.1 + total)), inout), inout.1)
        };
        Ok(Writer { core: self, place, at: start, plain_end: start + plain, total })
    }

    /// The OUT and INOUT data that a reply in pieces contains, copied to where they belong in it.
    fn gather(&self, memory: &Memory, inout: (usize, usize)) -> Result<(), ReplyError> {
        let whole = memory.view();
        let request = self.request();
        // The padding of the last block may be missing.
        let len = inout.1.min(request.len().saturating_sub(inout.0));
        copy(request.slice(inout.0, len)?, whole.slice(0, len)?)?;
        self.add_close(whole)?;
        let mut in_place = self.outs.get();
        let mut spill = self.spilled.get();
        if let Some(first) = spill {
            in_place = first.distance - first.memory.view().len().next_multiple_of(layout::UNIT);
        }
        while let Some(one) = spill {
            let from = one.memory.view();
            copy(from, whole.slice(whole.len() - one.distance, from.len())?)?;
            spill = one.next.get();
        }
        let replies = self.slot().replies();
        // Those kept back were added already.
        let in_place_len = in_place.saturating_sub(self.close_len.get());
        let from = replies.slice(layout::flag_at(replies.len()) - in_place, in_place_len)?;
        copy(from, whole.slice(whole.len() - in_place, in_place_len)?)?;
        let copied = self.outs.get() + len;
        self.slot().node().counters().add(count::COPIED_BYTES, copied as u64);
        Ok(())
    }

    /// Copies the OUT data that was kept back to the end of a reply.
    #[inline]
    fn add_close(&self, reply: View<'_>) -> Result<(), ReplyError> {
        let len = self.close_len.get();
        if len > 0 {
            let close = self.desk().close.view();
            copy(close.slice(close.len() - len, len)?, reply.slice(reply.len() - len, len)?)?;
        }
        Ok(())
    }

    fn fault(&self, status: Status, fault: &Fault) -> Result<(), ReplyError> {
        if self.answered.replace(true) {
            return Err(ReplyError::Answered);
        }
        send_fault(self.slot(), self.context().turn, status, fault)
    }
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
    slot.send(turn, Kind::Whole, status, len)
}

/// A call to be dispatched: arguments to take, in order, and a reply to give.
#[derive(Debug)]
pub struct ServerCall<'c> {
    core: Core<&'c Desk>,
}

impl<'w> ServerCall<'w> {
    #[inline]
    pub(super) fn new(desk: &'w Desk, ready: Ready) -> ServerCall<'w> {
        let Ready { one_way, message, .. } = ready;
        ServerCall {
            core: Core {
                desk,
                message,
                one_way,
                answered: Cell::new(false),
                next_block: Cell::new(0),
                outs: Cell::new(0),
                close_len: Cell::new(0),
                spilled: OnceCell::new(),
            },
        }
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
        zero(view);
        Ok(BulkMut::new(view, distance))
    }

    /// Room for the reply: `plain` bytes of results, padding not counted.
    ///
    /// # Errors
    /// [`DispatchError::Reply`] when it is longer than allowed, or given already.
    #[inline]
    pub fn reply(&self, plain: usize) -> Result<ReplyWriter<'_>, DispatchError> {
        Ok(ReplyWriter { writer: self.core.writer(plain)? })
    }

    /// The end of a one-way call: the client may use the buffer again.
    pub fn finish_oneway(self) -> Finished {
        if !self.core.answered.replace(true) {
            let context = self.core.context();
            let _ = context.slot.send(context.turn, Kind::Whole, Status::Ok, 0);
        }
        Finished(())
    }

    /// Puts the reply off: the returned value may be kept, sent to other threads, and replied to later.
    /// The client's buffers are its own until then.
    pub fn defer(self) -> (DeferredCall, Finished) {
        let desk = Box::new(self.core.desk().take_over());
        let Core { message, one_way, answered, next_block, outs, close_len, spilled, .. } =
            self.core;
        let core = Core { desk, message, one_way, answered, next_block, outs, close_len, spilled };
        (DeferredCall { core }, Finished(()))
    }

    /// The whole request, for stubs that read by pointer.
    pub(crate) fn request(&self) -> View<'_> {
        self.core.request()
    }

    /// An INOUT block by its place in the request.
    pub(crate) fn block_at(&self, offset: usize, bytes: usize) -> Option<View<'_>> {
        let block = self.core.request().slice(offset, bytes).ok()?;
        self.core.desk().blocks.borrow_mut().push((offset, bytes, true));
        Some(block)
    }

    /// An OUT block in bytes, and its distance.
    pub(crate) fn out_bytes(&self, bytes: usize) -> Result<(View<'_>, u32), ReplyError> {
        self.core.allot(bytes)
    }

    /// Whether the client wants no reply.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.core.one_way
    }
}

fn zero(view: View<'_>) {
    let mut at = 0;
    while at < view.len() {
        let len = (view.len() - at).min(256);
        let _ = view.write(at, &[0; 256][..len]); // inside
        at += len;
    }
}

/// The plain part of a call's arguments.
#[derive(Debug)]
pub struct Args<'c> {
    get: Get<'c>,
    core: &'c Core<&'c Desk>,
}

impl Args<'_> {
    /// The plain part is at its end; blocks follow.
    ///
    /// # Errors
    /// [`DecodeError::Short`] when the padding is missing.
    #[inline]
    pub fn finish(self) -> Result<(), DecodeError> {
        let at = self.get.at().next_multiple_of(layout::UNIT);
        let len = self.core.request().len();
        if at > len {
            return Err(DecodeError::Short { need: at, left: len });
        }
        self.core.next_block.set(at);
        Ok(())
    }
}

macro_rules! source_by_get {
    ($($type:ty),*) => { $(
        impl Source for $type {
            #[inline]
            fn get_u32(&mut self) -> Result<u32, DecodeError> {
                self.get.get_u32()
            }
            #[inline]
            fn get_u64(&mut self) -> Result<u64, DecodeError> {
                self.get.get_u64()
            }
            #[inline]
            fn get_padded(&mut self, target: &mut [u8]) -> Result<(), DecodeError> {
                self.get.get_padded(target)
            }
            #[inline]
            fn remaining(&self) -> usize {
                self.get.remaining()
            }
            #[inline]
            fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
                self.get.charge(bytes)
            }
            fn enter(&mut self) -> Result<(), DecodeError> {
                self.get.enter()
            }
            fn leave(&mut self) {
                self.get.leave();
            }
        }
    )* };
}
source_by_get!(Args<'_>);

/// OUT data of a length that the handler decides.
#[derive(Debug)]
pub struct BulkOut<'c, T> {
    core: &'c Core<&'c Desk>,
    max: u32,
    opened: (u32, u32),
    elements: PhantomData<T>,
}

impl<'c, T: Element> BulkOut<'c, T> {
    /// Most elements that the interface allows.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Makes room for `len` elements. What is written to them reaches the client at once, unless the
    /// reply does not fit its buffer. Their first contents are whatever the buffer held. Opened
    /// again, the last one counts.
    ///
    /// # Errors
    /// [`Fault`] when that is more than the interface or the server allows.
    pub fn open(&mut self, len: usize) -> Result<BulkMut<'c, T>, Fault> {
        let count = u32::try_from(len).ok().filter(|len| *len <= self.max).ok_or_else(|| {
            Fault::with_text(
                Fault::BULK,
                format!("{len} elements, the interface allows {}", self.max),
            )
        })?;
        let (view, distance) = self
            .core
            .allot(len.saturating_mul(T::SIZE))
            .map_err(|error| Fault::with_text(Fault::BULK, error.to_string()))?;
        self.opened = (distance, count);
        Ok(BulkMut::new(view, distance))
    }

    /// Opens it and copies `elements` in.
    ///
    /// # Errors
    /// As [`BulkOut::open`].
    pub fn put(&mut self, elements: &[T]) -> Result<(), Fault> {
        let mut block = self.open(elements.len())?;
        block.write(0, elements).map_err(|error| Fault::with_text(Fault::BULK, error.to_string()))
    }

    /// Distance and number of elements, for the plain part of the reply; zeros if never opened.
    #[must_use]
    pub fn descriptor(&self) -> (u32, u32) {
        self.opened
    }
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
struct Writer<'c, D> {
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
    fn put<T>(
        &mut self,
        put: impl FnOnce(&mut Put<'_>) -> Result<T, EncodeError>,
    ) -> Result<T, EncodeError> {
        let mut cursor = Put::new(self.view(), self.at, self.plain_end);
        let result = put(&mut cursor);
        let at = cursor.at();
        self.at = at;
        result
    }

    #[inline]
    fn send(mut self) -> Result<(), ReplyError> {
        if self.at != self.plain_end {
            return Err(EncodeError::Full { need: self.plain_end, left: self.at }.into());
        }
        // Start and end of the plain part are multiples of eight apart once it is padded.
        let gap = self.plain_end.next_multiple_of(layout::UNIT) - self.plain_end;
        self.plain_end += gap;
        self.put(|put| put.pad_to(put.at() + gap))?;
        if self.core.answered.replace(true) {
            return Err(ReplyError::Answered);
        }
        let context = self.core.context();
        let replies = context.slot.replies();
        let end = layout::flag_at(replies.len());
        match self.place {
            Place::Short => {
                let short = self.core.desk().short.view();
                self.core.add_close(short)?;
                let from = short.slice(short.len() - self.total, self.total)?;
                copy(from, replies.slice(end - self.total, self.total)?)?;
            }
            Place::Buffer => self.core.add_close(replies.slice(0, end)?)?,
            Place::Memory(memory, inout) => {
                self.core.gather(&memory, inout)?;
                return context.slot.send_long(context.turn, *memory, inout);
            }
        }
        context.slot.send(context.turn, Kind::Whole, Status::Ok, self.total)?;
        let in_place = self.core.outs.get() - self.core.close_len.get();
        let stored = self.total - in_place + layout::FLAG_LEN;
        context.slot.node().counters().add(count::PACKET_BYTES, stored as u64);
        Ok(())
    }
}

/// Takes the plain part of the results.
#[derive(Debug)]
pub struct ReplyWriter<'c> {
    writer: Writer<'c, &'c Desk>,
}

impl ReplyWriter<'_> {
    /// First byte of the plain part, for stubs that write by pointer.
    pub(crate) fn as_ptr(&self) -> std::ptr::NonNull<u8> {
        match self.writer.view().slice(self.writer.at, 0) {
            Ok(view) => view.as_ptr(),
            Err(error) => unreachable!("the reply lies within its place: {error}"),
        }
    }

    /// Stubs that write by pointer have written.
    pub(crate) fn assume_written(&mut self) {
        self.writer.at = self.writer.plain_end;
    }

    /// Sends the reply: stores the flag, and wakes the client if it sleeps.
    ///
    /// # Errors
    /// [`DispatchError::Reply`].
    #[inline]
    pub fn send(self) -> Result<Finished, DispatchError> {
        self.writer.send()?;
        Ok(Finished(()))
    }
}

/// A call whose reply was put off. Dropped without one, the client gets [`Fault::DROPPED`].
#[derive(Debug)]
pub struct DeferredCall {
    core: Core<Box<Desk>>,
}

impl DeferredCall {
    /// Who calls.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.core.context()
    }

    /// Replaces INOUT block `index`, counted over all blocks taken, by data of the same length.
    ///
    /// # Errors
    /// [`ReplyError::InoutLength`].
    pub fn inout<T: Element>(&self, index: usize, data: &[T]) -> Result<(), ReplyError> {
        let given = data.len().saturating_mul(T::SIZE);
        let block = self.core.desk().blocks.borrow().get(index).copied().filter(|block| block.2);
        let (at, expected, _) = block.unwrap_or_default();
        if given != expected {
            return Err(ReplyError::InoutLength { index, expected, given });
        }
        Ok(T::store_all(data, self.core.request().slice(at, given)?)?)
    }

    /// Adds an OUT block. Returns what the plain part says about it.
    ///
    /// # Errors
    /// [`ReplyError::TooLong`].
    pub fn out<T: Element>(&self, data: &[T]) -> Result<(u32, u32), ReplyError> {
        let (view, distance) = self.core.allot(data.len().saturating_mul(T::SIZE))?;
        T::store_all(data, view)?;
        Ok((distance, data.len() as u32)) // the distance, which is not less, fits
    }

    /// Room for the reply.
    ///
    /// # Errors
    /// [`ReplyError::TooLong`], [`ReplyError::Answered`].
    pub fn reply(&self, plain: usize) -> Result<DeferredReply<'_>, ReplyError> {
        Ok(DeferredReply { writer: self.core.writer(plain)? })
    }

    /// Answers that there is no answer.
    ///
    /// # Errors
    /// [`ReplyError`].
    pub fn fault(self, fault: Fault) -> Result<(), ReplyError> {
        self.core.fault(Status::Fault, &fault)
    }
}

impl Drop for DeferredCall {
    fn drop(&mut self) {
        if !self.core.answered.get() {
            let fault = Fault::new(Fault::DROPPED, "the server dropped the call");
            let _ = self.core.fault(Status::Fault, &fault); // the client may have gone
        }
    }
}

/// Takes the plain part of results that come later.
#[derive(Debug)]
pub struct DeferredReply<'c> {
    writer: Writer<'c, Box<Desk>>,
}

impl DeferredReply<'_> {
    /// Sends the reply.
    ///
    /// # Errors
    /// [`ReplyError`].
    pub fn send(self) -> Result<(), ReplyError> {
        self.writer.send()
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
