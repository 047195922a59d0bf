//! What came back.

use super::lane::Lane;
use super::limit::Limit;
use super::patience::Patience;
use super::{Mode, Taken, at_once};
use crate::bulk::{self, Bulk, Element};
use crate::error::{CallError, Fault};
use crate::layout::{self, FlagWord, Kind, Status};
use crate::memory::{Memory, copy};
use crate::message::Get;
use vmmc::mem::View;
use xdr::{DecodeError, Limits, Source};

/// A reply that is being read. While it lives, its lane makes no other call.
#[derive(Debug)]
pub struct Reply<'b> {
    taken: Taken<'b>,
    image: Image,
    /// Where the request lies in the server's buffer, if it does.
    request: Option<usize>,
    /// Next byte of the plain part, from the start of the image.
    at: usize,
    spent: usize,
    depth: u32,
}

/// Where the plain part and the OUT blocks are.
#[derive(Debug)]
enum Image {
    /// In our buffer: where it begins.
    Buffer(usize),
    /// Put together from pieces, headed by the part of the request that holds INOUT blocks.
    Memory(Box<Collected>),
}

/// A reply that came in pieces.
#[derive(Debug)]
struct Collected {
    memory: Memory,
    inout_at: usize,
    inout_len: usize,
}

impl<'b> Reply<'b> {
    #[inline(always)]
    pub(super) fn new(
        taken: Taken<'b>,
        (procedure, limit): (u32, Limit),
        word: u64,
        request: Option<usize>,
    ) -> Result<Reply<'b>, CallError> {
        // The common case, without the state of a future.
        let len = FlagWord::len_of_whole_ok(word);
        let start = len.and_then(|len| taken.lane().ends.1.checked_sub(len));
        match start.filter(|it| *it >= layout::HEAD_LEN) {
            Some(start) => {
                expect_read(taken.lane(), start, request);
                let image = Image::Buffer(start);
                Ok(Reply { taken, image, request, at: 0, spent: 0, depth: 0 })
            }
            None => Reply::new_rare(taken, (procedure, limit), word, request),
        }
    }

    #[cold]
    fn new_rare(
        taken: Taken<'b>,
        call: (u32, Limit),
        word: u64,
        request: Option<usize>,
    ) -> Result<Reply<'b>, CallError> {
        at_once(Reply::make(taken, call, word, request, Mode::Block))
    }

    #[inline]
    pub(super) async fn make(
        mut taken: Taken<'b>,
        (procedure, limit): (u32, Limit),
        word: u64,
        request: Option<usize>,
        mode: Mode,
    ) -> Result<Reply<'b>, CallError> {
        let flag = take_flag(&mut taken, word)?;
        if flag.code != Status::Ok as u16 {
            return Err(refusal(&mut taken, flag, procedure));
        }
        let image = match flag.kind {
            Kind::Whole => {
                Image::Buffer(layout::flag_at(taken.lane().replies().len()) - flag.len_bytes())
            }
            Kind::First => collect(&mut taken, flag, limit, mode).await?,
            _ => return Err(protocol(&mut taken, "a reply of an impossible kind")),
        };
        Ok(Reply { taken, image, request, at: 0, spent: 0, depth: 0 })
    }

    /// The reply, from its plain part to the flag.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_> {
        let (view, start) = match &self.image {
            Image::Buffer(start) => (self.taken.lane().replies(), *start),
            Image::Memory(it) => (it.memory.view(), it.inout_len),
        };
        let end = match &self.image {
            Image::Buffer(_) => layout::flag_at(view.len()),
            Image::Memory(_) => view.len(),
        };
        match view.slice(start, end - start) {
            Ok(view) => view,
            Err(error) => unreachable!("checked when the reply came: {error}"),
        }
    }

    #[inline]
    fn with_get<T>(
        &mut self,
        get: impl FnOnce(&mut Get<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let mut cursor = Get::resume(self.view(), self.limits(), self.at);
        let result = get(&mut cursor);
        let at = cursor.at();
        self.at = at;
        result
    }

    fn limits(&self) -> Limits {
        Limits { memory: self.taken.binding().call_max(), ..Limits::DEFAULT }
    }

    /// An INOUT block where it lies: `index` counts all blocks of the request. The server can still write
    /// there, so each access copies.
    ///
    /// # Errors
    /// [`CallError::Decode`] when there is no such block of whole elements.
    pub fn inout_bulk<T: Element>(&self, index: usize) -> Result<Bulk<'_, T>, CallError> {
        let (offset, len) = self.taken.lane().blocks.get(index).copied().unwrap_or((0, 0));
        if T::SIZE == 0 || !len.is_multiple_of(T::SIZE) {
            return Err(DecodeError::Short { need: T::SIZE, left: len }.into());
        }
        Ok(Bulk::new(self.inout_block(offset, len)?))
    }

    /// Copies an INOUT block back: `index` counts all blocks of the request.
    ///
    /// # Errors
    /// [`CallError::Decode`], also when it has not as many elements as `to`.
    #[inline(always)]
    pub fn inout<T: Element>(&mut self, index: usize, to: &mut [T]) -> Result<(), CallError> {
        let (offset, len) = self.taken.lane().blocks.get(index).copied().unwrap_or((0, 0));
        if len != to.len().saturating_mul(T::SIZE) {
            let short = DecodeError::Short { need: to.len().saturating_mul(T::SIZE), left: len };
            return Err(short.into());
        }
        Ok(T::load_all(self.inout_block(offset, len)?, to)?)
    }

    /// Copies INOUT bytes back from where they are in the request.
    pub(crate) fn inout_at(&self, offset: usize, to: &mut [u8]) -> Result<(), CallError> {
        self.inout_block(offset, to.len())?.read(0, to)?;
        Ok(())
    }

    /// INOUT bytes, from where they are in the request.
    #[inline(always)]
    pub(crate) fn inout_block(&self, offset: usize, len: usize) -> Result<View<'_>, CallError> {
        const MISSING: CallError = CallError::Protocol { what: "INOUT data is missing" };
        if len == 0 {
            return Ok(self.view().slice(0, 0)?);
        }
        match (&self.image, self.request) {
            (_, Some(start)) => {
                let calls = self.taken.lane().calls();
                let end = layout::flag_at(calls.len());
                Ok(calls.slice(start, end - start)?.slice(offset, len)?)
            }
            (Image::Memory(it), None) => {
                let at = offset.checked_sub(it.inout_at).ok_or(MISSING)?;
                Ok(it.memory.view().slice(0, it.inout_len)?.slice(at, len).map_err(|_| MISSING)?)
            }
            (Image::Buffer(_), None) => Err(MISSING),
        }
    }

    /// Takes distance and number of an OUT block from the plain part. Returns its bytes.
    fn out_block(&mut self, size: usize, max: u32) -> Result<(View<'_>, usize), CallError> {
        let distance = self.get_u32()? as usize;
        let len = self.get_u32()?;
        if len > max {
            return Err(DecodeError::TooLong { len, max }.into());
        }
        let bytes = (len as usize).saturating_mul(size);
        if bytes == 0 {
            return Ok((self.view().slice(0, 0)?, len as usize));
        }
        let view = self.view();
        let left = view.len().saturating_sub(self.at);
        // Between the plain part and the flag.
        match view.len().checked_sub(distance) {
            Some(start) if start >= self.at && bytes <= distance => {
                Ok((view.slice(start, bytes)?, len as usize))
            }
            _ => Err(DecodeError::Short { need: bytes.max(distance), left }.into()),
        }
    }

    /// Replaces the contents of `to` by an OUT block of at most `max` elements.
    ///
    /// # Errors
    /// [`CallError::Decode`]; `to` may have been changed then.
    pub fn out_vec<T: Element>(&mut self, max: u32, to: &mut Vec<T>) -> Result<(), CallError> {
        let (block, len) = self.out_block(T::SIZE, max)?;
        Ok(bulk::refill(block, len, to)?)
    }

    /// An OUT block of at most `max` elements where it lies. The server can still write there, so each
    /// access copies.
    ///
    /// # Errors
    /// [`CallError::Decode`].
    pub fn out_bulk<T: Element>(&mut self, max: u32) -> Result<Bulk<'_, T>, CallError> {
        let (block, _) = self.out_block(T::SIZE, max)?;
        Ok(Bulk::new(block))
    }

    /// As [`Reply::out_block`], of exactly `len` elements.
    fn exact_out_block(&mut self, size: usize, len: usize) -> Result<View<'_>, CallError> {
        let (block, found) = self.out_block(size, u32::MAX)?;
        if found != len {
            let expected = u32::try_from(len).unwrap_or(u32::MAX);
            return Err(DecodeError::WrongLength { len: found as u32, expected }.into());
        }
        Ok(block)
    }

    /// [`Reply::out_bulk`] of exactly `len` elements.
    ///
    /// # Errors
    /// [`CallError::Decode`].
    pub fn out_bulk_array<T: Element>(&mut self, len: usize) -> Result<Bulk<'_, T>, CallError> {
        Ok(Bulk::new(self.exact_out_block(T::SIZE, len)?))
    }

    /// Copies an OUT block of exactly `to.len()` elements.
    ///
    /// # Errors
    /// [`CallError::Decode`].
    pub fn out_array<T: Element>(&mut self, to: &mut [T]) -> Result<(), CallError> {
        Ok(T::load_all(self.exact_out_block(T::SIZE, to.len())?, to)?)
    }

    /// Everything was read; the lane is free.
    ///
    /// # Errors
    /// None at present.
    #[inline]
    pub fn finish(self) -> Result<(), CallError> {
        Ok(())
    }

    /// What a server answers that refuses a call before it has all of it. `Ok`: it is no refusal.
    pub(super) fn new_refusal(taken: &mut Taken<'_>, word: u64) -> Result<(), CallError> {
        let flag = take_flag(taken, word)?;
        if flag.code == Status::Ok as u16 {
            return Ok(());
        }
        Err(refusal(taken, flag, 0))
    }
}

/// The reply that begins there is read at once, and the INOUT blocks that lie in the request: their lines are fetched
/// beside each other.
#[inline(always)]
fn expect_read(lane: &Lane, reply: usize, request: Option<usize>) {
    let near = |at: usize, end: usize| end.saturating_sub(at).min(layout::NEAR);
    lane.replies().prefetch(reply, near(reply, lane.ends.1));
    if let (Some(request), Some(&(first, _))) = (request, lane.blocks.first()) {
        let at = request + first;
        lane.calls().prefetch(at, near(at, lane.ends.0));
    }
}

/// Checks a flag of the server's: nothing it says leaves our buffer.
#[inline]
fn take_flag(taken: &mut Taken<'_>, word: u64) -> Result<FlagWord, CallError> {
    match FlagWord::unpack(word) {
        Some(flag) if flag.len_bytes() <= layout::room(taken.lane().replies().len()) => Ok(flag),
        _ => Err(protocol(taken, "an impossible flag")),
    }
}

#[cold]
fn protocol(taken: &mut Taken<'_>, what: &'static str) -> CallError {
    let node = taken.binding().node();
    node.counters().add(crate::process::count::FAULTY_PEERS, 1);
    taken.discard();
    CallError::Protocol { what }
}

/// Puts a reply together that comes in pieces.
#[cold]
async fn collect(
    taken: &mut Taken<'_>,
    first: FlagWord,
    limit: Limit,
    mode: Mode,
) -> Result<Image, CallError> {
    let (binding, max) = (taken.binding(), taken.binding().call_max());
    let patience = Patience::new(limit, taken.lane().turn());
    let word = |at| usize::try_from(taken.lane().head64(at)).unwrap_or(usize::MAX);
    let total = word(layout::REPLY_TOTAL);
    let inout_at = word(layout::REPLY_INOUT_AT);
    let inout_len = word(layout::REPLY_INOUT_LEN);
    if total > max {
        taken.discard(); // or the server would keep the rest until this lane's next call
        return Err(CallError::TooLong { what: "the reply", len: total, max });
    }
    if inout_len > total {
        return Err(protocol(taken, "INOUT data longer than the reply"));
    }
    let memory = Memory::to_be_written(total);
    let mut flag = first;
    let mut at = 0;
    loop {
        let buffer = taken.lane().replies();
        let len = flag.len_bytes();
        let piece = buffer.slice(layout::flag_at(buffer.len()) - len, len)?;
        // All but the last one are full: short ones could go on nearly for ever.
        if len == 0 || len != (total - at).min(layout::room(buffer.len())) {
            return Err(protocol(taken, "a piece of another length than the reply's next"));
        }
        copy(piece, memory.view().slice(at, len)?)?;
        at += len;
        if at == total {
            return Ok(Image::Memory(Box::new(Collected { memory, inout_at, inout_len })));
        }
        taken.lane_mut().send(binding, Kind::More, 0, 0)?;
        let word = patience.await_reply(taken, mode).await?;
        flag = take_flag(taken, word)?;
        if flag.kind != Kind::Next || flag.code != Status::Ok as u16 {
            return Err(protocol(taken, "something else than the next piece"));
        }
    }
}

/// The error that a reply says.
#[cold]
fn refusal(taken: &mut Taken<'_>, flag: FlagWord, procedure: u32) -> CallError {
    let buffer = taken.lane().replies();
    let len = flag.len_bytes();
    let Ok(message) = buffer.slice(layout::flag_at(buffer.len()) - len, len) else {
        return protocol(taken, "an impossible length");
    };
    let mut get = Get::new(message, Limits::DEFAULT);
    let mut text = || {
        let text = xdr::get_opaque(&mut get, Fault::TEXT_MAX as u32).unwrap_or_default();
        let number = get.get_u32().unwrap_or(0);
        (String::from_utf8_lossy(&text).into_owned(), number)
    };
    match Status::from_code(flag.code) {
        Some(Status::UnknownProcedure) => CallError::UnknownProcedure { procedure },
        Some(Status::BadArguments) => CallError::BadArguments { text: text().0 },
        Some(Status::BadResults) => CallError::BadResults { text: text().0 },
        Some(Status::Fault) => {
            let (text, number) = text();
            CallError::Fault(Fault::with_text(number, text))
        }
        Some(Status::TooLong) => {
            let what = "a call or its reply, by the server's limit,";
            let mut number = || usize::try_from(get.get_u64().unwrap_or(0)).unwrap_or(usize::MAX);
            CallError::TooLong { what, len: number(), max: number() }
        }
        Some(Status::NoRoom) => CallError::NoRoom { text: text().0 },
        Some(Status::Ending) => CallError::ServerEnding,
        Some(Status::Protocol) => {
            taken.discard();
            CallError::Protocol { what: "it says that we did" }
        }
        Some(Status::Ok) | None => protocol(taken, "an unknown status"),
    }
}

impl Source for Reply<'_> {
    #[inline]
    fn get_u32(&mut self) -> Result<u32, DecodeError> {
        self.with_get(|get| get.get_u32())
    }

    #[inline]
    fn get_u64(&mut self) -> Result<u64, DecodeError> {
        self.with_get(|get| get.get_u64())
    }

    #[inline]
    fn get_padded(&mut self, target: &mut [u8]) -> Result<(), DecodeError> {
        self.with_get(|get| get.get_padded(target))
    }

    #[inline]
    fn remaining(&self) -> usize {
        self.view().len() - self.at
    }

    fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
        let limits = self.limits();
        limits.charge(&mut self.spent, bytes)
    }

    fn enter(&mut self) -> Result<(), DecodeError> {
        let limit = Limits::DEFAULT.depth;
        if self.depth >= limit {
            return Err(DecodeError::TooDeep { limit });
        }
        self.depth += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}
