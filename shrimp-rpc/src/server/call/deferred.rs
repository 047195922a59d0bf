//! Calls whose reply comes later, from whichever thread.

use super::reply::Writer;
use super::{Context, Core, Desk};
use crate::bulk::Element;
use crate::error::{Fault, ReplyError};
use crate::layout::Status;
use vmmc::mem::View;
use xdr::EncodeError;

/// A call whose reply was put off. Dropped without one, the client gets [`Fault::DROPPED`], or [`Fault::PANICKED`] while a panic unwinds. One that is
/// kept after its client gave up keeps a binding's buffers, which count among its process's bindings: ask
/// [`Context::is_cancelled`] now and then.
#[derive(Debug)]
pub struct DeferredCall {
    pub(super) core: Core<Box<Desk>>,
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

    /// Adds an OUT block of at most `max` elements. Returns what the plain part says about it.
    ///
    /// # Errors
    /// [`ReplyError::Encode`], [`ReplyError::TooLong`].
    pub fn out<T: Element>(&self, data: &[T], max: u32) -> Result<(u32, u32), ReplyError> {
        let len = data.len();
        if len > max as usize {
            return Err(EncodeError::TooLong { len, max }.into());
        }
        self.add(data)
    }

    /// Adds an OUT block of so many elements.
    ///
    /// # Errors
    /// As [`DeferredCall::out`].
    pub fn out_array<T: Element>(
        &self,
        data: &[T],
        expected: u32,
    ) -> Result<(u32, u32), ReplyError> {
        let len = data.len();
        if len != expected as usize {
            return Err(EncodeError::WrongLength { len, expected }.into());
        }
        self.add(data)
    }

    fn add<T: Element>(&self, data: &[T]) -> Result<(u32, u32), ReplyError> {
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

    /// Whether the client was sent something.
    pub(crate) fn is_answered(&self) -> bool {
        self.core.desk().answered.get()
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

    /// Tells the client that there is a reply which cannot be sent, and why: what a blocking handler's client is told. Nothing, where it has
    /// an answer already, or has gone.
    pub fn cannot_reply(&self, error: &ReplyError) {
        self.core.cannot_reply(error);
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
        if !self.core.desk().answered.get() {
            let fault = match std::thread::panicking() {
                true => Fault::new(Fault::PANICKED, "the server panicked"),
                false => Fault::new(Fault::DROPPED, "the server dropped the call"),
            };
            let _ = self.core.fault(Status::Fault, &fault); // the client may have gone
        }
        self.core.slot().end_put_off();
    }
}

/// Takes the plain part of results that come later.
#[derive(Debug)]
pub struct DeferredReply<'c> {
    pub(super) writer: Writer<'c, Box<Desk>>,
}

impl DeferredReply<'_> {
    /// First byte of the plain part, for stubs that write by pointer.
    pub(crate) fn as_ptr(&self) -> std::ptr::NonNull<u8> {
        self.writer.as_ptr()
    }

    /// Stubs that write by pointer have written.
    pub(crate) fn assume_written(&mut self) {
        self.writer.assume_written();
    }

    /// Sends the reply.
    ///
    /// # Errors
    /// [`ReplyError`].
    pub fn send(self) -> Result<(), ReplyError> {
        self.writer.send()
    }
}
