//! What a handler takes from its call: the plain part of the arguments, and room for OUT data.

use super::{Core, Desk};
use crate::bulk::{BulkMut, Element};
use crate::error::Fault;
use crate::layout;
use crate::message::Get;
use std::marker::PhantomData;
use xdr::{DecodeError, Source};

/// The plain part of a call's arguments.
#[derive(Debug)]
pub struct Args<'c> {
    pub(super) get: Get<'c>,
    pub(super) core: &'c Core<&'c Desk>,
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
        self.core.desk().next_block.set(at);
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
    pub(super) core: &'c Core<&'c Desk>,
    pub(super) max: u32,
    pub(super) opened: (u32, u32),
    pub(super) elements: PhantomData<T>,
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
