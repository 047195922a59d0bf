//! How the peer is told of a write: by 32 bits that come with it (`fi_writedata`), or, where the provider has none, by a message of as
//! many behind it. What puts it behind is the provider's order of messages after writes, or a fence, or that it is sent when
//! all writes have been delivered, whichever of these there is first.

use super::{Endpoint, QUEUE, Target};
use crate::fabric::abi;
use crate::fabric::domain::{NO_ENTRY, Notice};
use crate::fabric::library::{FabricError, InfoList};
use crate::fabric::needs::{DATA_LEN, is_not_there, no_messages};
use crate::mem::View;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Bytes of a message.
const LEN: usize = DATA_LEN;
/// Memory for those that come.
pub(super) const ROOM: usize = 4096;
const _: () = assert!(QUEUE * LEN <= ROOM);

/// What puts a message behind the write that it tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// The provider's order.
    Order,
    /// A fence.
    Fence,
    /// It is sent when what was written has been delivered.
    Delivery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Data,
    Message(Behind),
}

#[derive(Debug)]
pub(super) struct Notices {
    by: By,
    behind: Behind,
    /// Of writes that the peer is to be told of by messages, oldest first.
    untold: VecDeque<u32>,
}

impl Notices {
    pub(super) fn new(info: &InfoList, wanted: Notice) -> Notices {
        let behind = match () {
            () if info.orders_messages() => Behind::Order,
            () if info.fences() => Behind::Fence,
            () => Behind::Delivery,
        };
        let has_data = info.domain_attr().cq_data_size >= DATA_LEN;
        let by = match wanted {
            Notice::Auto if has_data => By::Data,
            _ => By::Message(behind),
        };
        Notices { by, behind, untold: VecDeque::new() }
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    Done,
    Again,
    /// The provider does not have it.
    NotThere,
}

impl Endpoint {
    fn called(&self, call: &'static str, code: isize) -> Result<Called, FabricError> {
        match code {
            0 => Ok(Called::Done),
            code if code == -(libc::EAGAIN as isize) => Ok(Called::Again),
            code if is_not_there(code) => Ok(Called::NotThere),
            code => Err(FabricError::Call { call, why: self.domain.library.words(code as i64) }),
        }
    }

    /// Writes `len` bytes at `at` of [`Endpoint::outgoing`] to the same place of the peer's memory, and
    /// tells it, with 32 bits. The bytes stay as they are until [`Happened::Sent`](super::Happened::Sent). False: not now.
    ///
    /// # Errors
    /// The peer cannot be reached any more.
    pub fn write(&mut self, at: usize, len: usize, data: u32) -> Result<bool, FabricError> {
        if self.notices.by == By::Data {
            match self.write_with_data(at, len, data)? {
                Called::Done => return Ok(true),
                Called::Again => return Ok(false),
                // `cxi` offers them, and then has them not.
                Called::NotThere => self.notices.by = By::Message(self.notices.behind),
            }
        }
        let By::Message(behind) = self.notices.by else { return Ok(false) };
        // Whom nobody has been told of yet are on their way, too.
        if self.on_their_way + self.notices.untold.len() + 2 > QUEUE {
            return Ok(false);
        }
        let delivery = if behind == Behind::Delivery { abi::FI_DELIVERY_COMPLETE } else { 0 };
        match self.write_alone(at, len, abi::FI_COMPLETION | delivery)? {
            Called::Done => {}
            Called::Again => return Ok(false),
            Called::NotThere => return Err(NO_ENTRY),
        }
        self.notices.untold.push_back(data);
        self.tell()?;
        Ok(true)
    }

    fn write_with_data(&mut self, at: usize, len: usize, data: u32) -> Result<Called, FabricError> {
        if self.on_their_way >= QUEUE {
            return Ok(Called::Again);
        }
        let (start, to) = self.place(at, len)?;
        let writedata = self.ep.object().rma.and_then(|rma| rma.writedata);
        let Some(writedata) = writedata else { return Ok(Called::NotThere) };
        let (desc, data, key) = (self.outgoing.desc(), u64::from(data), self.target.key);
        let beside = self.domain.gate.beside_others();
        // SAFETY: an enabled endpoint; the source is registered, and stays until the endpoint is
        // closed.
        let code = unsafe {
            let ep = self.ep.get();
            writedata(ep, start, len, desc, data, self.peer, to, key, null_mut())
        };
        drop(beside);
        self.count(self.called("fi_writedata", code)?)
    }

    /// The same, of which the peer is not told.
    fn write_alone(&mut self, at: usize, len: usize, flags: u64) -> Result<Called, FabricError> {
        let (start, address) = self.place(at, len)?;
        let target = Target { key: self.target.key, base: address };
        let source = (start, len, self.outgoing.desc());
        // SAFETY: registered, and there until the endpoint is closed.
        unsafe { self.write_message(source, target, null_mut(), flags) }
    }

    /// `fi_writemsg` of so many bytes, of memory with this descriptor.
    ///
    /// # Safety
    /// The source must be registered, and stay until its context has come back, or the endpoint is closed.
    pub(super) unsafe fn write_message(
        &mut self,
        (start, len, mut desc): (*const c_void, usize, *mut c_void),
        to: Target,
        context: *mut c_void,
        flags: u64,
    ) -> Result<Called, FabricError> {
        let writemsg = self.ep.object().rma.and_then(|rma| rma.writemsg).ok_or(NO_ENTRY)?;
        let from = libc::iovec { iov_base: start.cast_mut(), iov_len: len };
        let target = abi::RmaTarget { address: to.base, len, key: to.key };
        let message = abi::RmaMsg {
            sources: &raw const from,
            desc: &raw mut desc,
            source_count: 1,
            to: self.peer,
            targets: &raw const target,
            target_count: 1,
            context,
            data: 0,
        };
        let beside = self.domain.gate.beside_others();
        // SAFETY: an enabled endpoint; the message is whole; the source is as the caller says.
        let code = unsafe { writemsg(self.ep.get(), &raw const message, flags) };
        drop(beside);
        self.count(self.called("fi_writemsg", code)?)
    }

    fn count(&mut self, called: Called) -> Result<Called, FabricError> {
        self.on_their_way += usize::from(called == Called::Done);
        Ok(called)
    }

    /// Where bytes of [`Endpoint::outgoing`] are here, and at the peer.
    fn place(&self, at: usize, len: usize) -> Result<(*const c_void, u64), FabricError> {
        let source = self.outgoing().slice(at, len);
        let source =
            source.map_err(|_| FabricError::Nonsense { what: "a write beyond its end" })?;
        let to = self.target.base.wrapping_add(at as u64);
        Ok((source.as_ptr().as_ptr().cast_const().cast(), to))
    }

    /// Sends messages that are to be sent, as far as they go.
    pub(super) fn tell(&mut self) -> Result<(), FabricError> {
        let By::Message(behind) = self.notices.by else { return Ok(()) };
        if behind == Behind::Delivery && self.on_their_way > 0 {
            return Ok(());
        }
        let fence = if behind == Behind::Fence { abi::FI_FENCE } else { 0 };
        let flags = abi::FI_INJECT | abi::FI_COMPLETION | fence;
        while let Some(&number) = self.notices.untold.front() {
            let none = || no_messages(&self.domain.provider, "fi_sendmsg is not there".to_owned());
            let sendmsg = self.ep.object().msg.and_then(|msg| msg.sendmsg).ok_or_else(none)?;
            let bytes = number.to_le_bytes();
            let from = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: LEN };
            let message = abi::Msg {
                sources: &raw const from,
                desc: null_mut(),
                source_count: 1,
                to: self.peer,
                context: null_mut(),
                data: 0,
            };
            let beside = self.domain.gate.beside_others();
            // SAFETY: an enabled endpoint; the message is whole, and its bytes are only read, and only now (FI_INJECT).
            let code = unsafe { sendmsg(self.ep.get(), &raw const message, flags) };
            drop(beside);
            match self.called("fi_sendmsg", code)? {
                Called::Done => self.on_their_way += 1,
                Called::Again => return Ok(()),
                Called::NotThere => {
                    let why = self.domain.library.words(code as i64);
                    return Err(no_messages(&self.domain.provider, format!("fi_sendmsg: {why}")));
                }
            }
            self.notices.untold.pop_front();
        }
        Ok(())
    }

    /// Whether messages are to be sent, and nothing is on its way whose end would be told of.
    pub(super) fn is_to_tell(&self) -> bool {
        self.on_their_way == 0 && !self.notices.untold.is_empty()
    }

    // ---- receiving ----

    /// Where messages come in.
    fn room(&self) -> View<'_> {
        let pages = View::of(&self.outgoing.pages);
        match pages.slice(self.len, ROOM) {
            Ok(room) => room,
            Err(error) => unreachable!("made as long: {error}"),
        }
    }

    /// Takes all that may come at once.
    pub(super) fn post_all(&mut self) -> Result<(), FabricError> {
        (0..QUEUE).try_for_each(|place| self.post(place))
    }

    /// A receive, for a message, or for a provider that takes one per write that it tells of.
    fn post(&mut self, place: usize) -> Result<(), FabricError> {
        let recv = self.ep.object().msg.and_then(|msg| msg.recv).ok_or(NO_ENTRY)?;
        let outside = |_| FabricError::Nonsense { what: "a receive without room" };
        let room = self.room().slice(place * LEN, LEN).map_err(outside)?;
        let (start, desc) = (room.as_ptr().as_ptr(), self.outgoing.desc());
        let context = std::ptr::without_provenance_mut(place + 1);
        let _beside = self.domain.gate.beside_others();
        // SAFETY: an enabled endpoint; memory that is registered, and stays until the endpoint is closed.
        let code = unsafe { recv(self.ep.get(), start.cast(), LEN, desc, u64::MAX, context) };
        self.domain.library.check("fi_recv", i32::try_from(code).unwrap_or(i32::MIN))
    }

    /// A receive of this context is done, by data or a message: what the message says. It is posted again.
    pub(super) fn received(
        &mut self,
        context: *mut c_void,
        len: Option<usize>,
    ) -> Result<u32, FabricError> {
        let nonsense = |what| FabricError::Nonsense { what };
        let place = (context as usize).wrapping_sub(1);
        if place >= QUEUE {
            return Err(nonsense("a receive that was not posted"));
        }
        let mut bytes = [0; LEN];
        match len {
            None => {}
            Some(LEN) => {
                let read = self.room().read(place * LEN, &mut bytes);
                read.map_err(|_| nonsense("a receive without room"))?;
            }
            Some(_) => return Err(nonsense("a message of another length")),
        }
        self.post(place)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// As over a provider that has no completion data, and only this to put a message behind a write.
    #[cfg(test)]
    pub(super) fn tell_by(&mut self, behind: Behind) {
        self.notices.by = By::Message(behind);
    }
}
