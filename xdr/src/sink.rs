//! Where encoded values go.

use crate::{EncodeError, Order};
use std::marker::PhantomData;

/// Takes the items of an encoding, in order.
///
/// A transport implements it over its own buffer, so that values are encoded straight into it.
/// Numbers come as numbers: their byte order is the sink's.
pub trait Sink {
    /// Appends a 32-bit number.
    ///
    /// # Errors
    /// [`EncodeError::Full`]; what was appended before is then not to be sent.
    fn put_u32(&mut self, value: u32) -> Result<(), EncodeError>;

    /// Appends a 64-bit number.
    ///
    /// # Errors
    /// As [`Sink::put_u32`].
    fn put_u64(&mut self, value: u64) -> Result<(), EncodeError>;

    /// Appends bytes, and zeros up to a multiple of four.
    ///
    /// # Errors
    /// As [`Sink::put_u32`].
    fn put_padded(&mut self, bytes: &[u8]) -> Result<(), EncodeError>;
}

/// Counts bytes and keeps none: how long will the encoding be?
#[derive(Clone, Copy, Debug, Default)]
pub struct Counter {
    len: usize,
}

impl Counter {
    /// Nothing counted yet.
    #[must_use]
    pub const fn new() -> Counter {
        Counter { len: 0 }
    }

    /// Bytes counted.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was counted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Sink for Counter {
    #[inline]
    fn put_u32(&mut self, _: u32) -> Result<(), EncodeError> {
        self.len = self.len.saturating_add(4);
        Ok(())
    }

    #[inline]
    fn put_u64(&mut self, _: u64) -> Result<(), EncodeError> {
        self.len = self.len.saturating_add(8);
        Ok(())
    }

    #[inline]
    fn put_padded(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.len = self.len.saturating_add(bytes.len()).saturating_add(crate::padding(bytes.len()));
        Ok(())
    }
}

/// Encodes into a growing vector, up to a limit.
#[derive(Clone, Debug)]
pub struct Writer<O> {
    bytes: Vec<u8>,
    limit: usize,
    order: PhantomData<O>,
}

impl<O: Order> Writer<O> {
    /// An empty writer without a limit.
    #[must_use]
    pub const fn new() -> Writer<O> {
        Writer::with_limit(usize::MAX)
    }

    /// An empty writer that takes at most `limit` bytes.
    #[must_use]
    pub const fn with_limit(limit: usize) -> Writer<O> {
        Writer { bytes: Vec::new(), limit, order: PhantomData }
    }

    /// What was written.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What was written, owned.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn append(&mut self, bytes: &[u8], padding: usize) -> Result<(), EncodeError> {
        let left = self.limit - self.bytes.len();
        let need = bytes.len().saturating_add(padding);
        if need > left {
            return Err(EncodeError::Full { need, left });
        }
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(&[0; 3][..padding]);
        Ok(())
    }
}

impl<O: Order> Default for Writer<O> {
    fn default() -> Writer<O> {
        Writer::new()
    }
}

impl<O: Order> Sink for Writer<O> {
    fn put_u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.append(&O::from_u32(value), 0)
    }

    fn put_u64(&mut self, value: u64) -> Result<(), EncodeError> {
        self.append(&O::from_u64(value), 0)
    }

    fn put_padded(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.append(bytes, crate::padding(bytes.len()))
    }
}

/// Encodes into a slice.
#[derive(Debug)]
pub struct SliceWriter<'a, O> {
    rest: &'a mut [u8],
    order: PhantomData<O>,
}

impl<'a, O: Order> SliceWriter<'a, O> {
    /// A writer at the start of `target`.
    #[must_use]
    pub const fn new(target: &'a mut [u8]) -> SliceWriter<'a, O> {
        SliceWriter { rest: target, order: PhantomData }
    }

    /// Bytes that are not written yet.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.rest.len()
    }

    fn append(&mut self, bytes: &[u8], padding: usize) -> Result<(), EncodeError> {
        let (need, left) = (bytes.len().saturating_add(padding), self.rest.len());
        let rest = std::mem::take(&mut self.rest);
        let Some((target, rest)) = rest.split_at_mut_checked(need) else {
            return Err(EncodeError::Full { need, left });
        };
        target[..bytes.len()].copy_from_slice(bytes);
        target[bytes.len()..].fill(0);
        self.rest = rest;
        Ok(())
    }
}

impl<O: Order> Sink for SliceWriter<'_, O> {
    fn put_u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.append(&O::from_u32(value), 0)
    }

    fn put_u64(&mut self, value: u64) -> Result<(), EncodeError> {
        self.append(&O::from_u64(value), 0)
    }

    fn put_padded(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.append(bytes, crate::padding(bytes.len()))
    }
}
