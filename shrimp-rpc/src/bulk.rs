//! Bulk data, used where it lies.
//!
//! A block is packed elements in little-endian order, in a buffer that the other side can write at any moment
//! (F15). So no method hands out a reference into it: elements are copied out, checked, and then
//! used; two reads of one place may differ.

use crate::error::Fault;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use vmmc::mem::View;
use xdr::{DecodeError, EncodeError};

/// An element of a block: a number, or a structure of fixed size.
pub trait Element: Copy {
    /// Bytes in a block.
    const SIZE: usize;

    /// Writes the element; `to` is `SIZE` long.
    fn store(&self, to: &mut [u8]);

    /// Reads an element; `from` is `SIZE` long.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no value of this type.
    fn load(from: &[u8]) -> Result<Self, DecodeError>;

    /// Copies a whole block out. `from` is `SIZE * to.len()` long.
    ///
    /// # Errors
    /// As [`Element::load`].
    #[doc(hidden)]
    fn load_all(from: View<'_>, to: &mut [Self]) -> Result<(), DecodeError> {
        let mut staging = [0u8; STAGING];
        let per_turn = (STAGING / Self::SIZE.max(1)).max(1);
        if Self::SIZE == 0 || Self::SIZE > STAGING {
            return load_large(from, to);
        }
        for (turn, elements) in to.chunks_mut(per_turn).enumerate() {
            let bytes = &mut staging[..elements.len() * Self::SIZE];
            from.read(turn * per_turn * Self::SIZE, bytes).map_err(|_| short(from.len()))?;
            for (element, bytes) in elements.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
                *element = Self::load(bytes)?;
            }
        }
        Ok(())
    }

    /// Copies a whole block in. `to` is `SIZE * from.len()` long.
    ///
    /// # Errors
    /// [`EncodeError::Full`] when it is not.
    #[doc(hidden)]
    fn store_all(from: &[Self], to: View<'_>) -> Result<(), EncodeError> {
        let mut staging = [0u8; STAGING];
        let per_turn = (STAGING / Self::SIZE.max(1)).max(1);
        if Self::SIZE == 0 || Self::SIZE > STAGING {
            return store_large(from, to);
        }
        for (turn, elements) in from.chunks(per_turn).enumerate() {
            let bytes = &mut staging[..elements.len() * Self::SIZE];
            for (element, bytes) in elements.iter().zip(bytes.chunks_exact_mut(Self::SIZE)) {
                element.store(bytes);
            }
            to.write(turn * per_turn * Self::SIZE, bytes).map_err(|_| full(to.len()))?;
        }
        Ok(())
    }
}

/// Bytes on the stack that structures pass through, many at a time.
const STAGING: usize = 2048;

fn load_large<T: Element>(from: View<'_>, to: &mut [T]) -> Result<(), DecodeError> {
    let mut bytes = vec![0; T::SIZE];
    for (i, element) in to.iter_mut().enumerate() {
        from.read(i * T::SIZE, &mut bytes).map_err(|_| short(from.len()))?;
        *element = T::load(&bytes)?;
    }
    Ok(())
}

fn store_large<T: Element>(from: &[T], to: View<'_>) -> Result<(), EncodeError> {
    let mut bytes = vec![0; T::SIZE];
    for (i, element) in from.iter().enumerate() {
        element.store(&mut bytes);
        to.write(i * T::SIZE, &bytes).map_err(|_| full(to.len()))?;
    }
    Ok(())
}

#[cold]
fn short(left: usize) -> DecodeError {
    DecodeError::Short { need: left.saturating_add(1), left }
}

#[cold]
fn full(left: usize) -> EncodeError {
    EncodeError::Full { need: left.saturating_add(1), left }
}

macro_rules! number {
    ($($type:ty),*) => { $(
        impl Element for $type {
            const SIZE: usize = size_of::<$type>();

            #[inline]
            fn store(&self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn load(from: &[u8]) -> Result<Self, DecodeError> {
                match from.try_into() {
                    Ok(bytes) => Ok(<$type>::from_le_bytes(bytes)),
                    Err(_) => Err(short(from.len())),
                }
            }

            #[cfg(target_endian = "little")]
            #[inline]
            fn load_all(from: View<'_>, to: &mut [Self]) -> Result<(), DecodeError> {
                from.read(0, bytes::of_mut(to)).map_err(|_| short(from.len()))
            }

            #[cfg(target_endian = "little")]
            #[inline]
            fn store_all(from: &[Self], to: View<'_>) -> Result<(), EncodeError> {
                to.write(0, bytes::of(from)).map_err(|_| full(to.len()))
            }
        }
        #[cfg(target_endian = "little")]
        impl bytes::Number for $type {}
    )* };
}
number!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// Numbers as the bytes they are.
#[cfg(target_endian = "little")]
mod bytes {
    #![allow(unsafe_code)]

    /// A type for which every bit pattern is a value and which has no padding.
    pub(super) trait Number: Copy {}

    pub(super) fn of<T: Number>(numbers: &[T]) -> &[u8] {
        // SAFETY: numbers have no padding, and any byte is a valid u8; the lifetime is kept.
        unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
    }

    pub(super) fn of_mut<T: Number>(numbers: &mut [T]) -> &mut [u8] {
        let len = size_of_val(numbers);
        // SAFETY: as above, and any bytes make valid numbers; borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), len) }
    }
}

/// An element outside a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("elements {first} to {first}+{count} of a block of {len}")]
pub struct OutsideBlock {
    /// First element asked for.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// Elements that there are.
    pub len: usize,
}

/// Why elements could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    /// Outside the block.
    #[error(transparent)]
    Outside(#[from] OutsideBlock),
    /// Bytes that are no such element: the client's doing.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl From<BulkError> for crate::Fault {
    fn from(error: BulkError) -> Self {
        crate::Fault::with_text(crate::Fault::BULK, error.to_string())
    }
}

/// IN data: the client may change it meanwhile, we do not.
#[derive(Clone, Copy, Debug)]
pub struct Bulk<'c, T> {
    /// Whole elements.
    view: View<'c>,
    elements: PhantomData<T>,
}

impl<'c, T: Element> Bulk<'c, T> {
    /// A block; `view` is whole elements long.
    pub(crate) fn new(view: View<'c>) -> Bulk<'c, T> {
        debug_assert!(T::SIZE == 0 || view.len().is_multiple_of(T::SIZE));
        Bulk { view, elements: PhantomData }
    }

    /// How many elements.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.view.len().checked_div(T::SIZE).unwrap_or(0)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    fn part(&self, first: usize, count: usize) -> Result<View<'c>, OutsideBlock> {
        let outside = OutsideBlock { first, count, len: self.len() };
        let at = first.checked_mul(T::SIZE).ok_or(outside)?;
        let bytes = count.checked_mul(T::SIZE).ok_or(outside)?;
        self.view.slice(at, bytes).map_err(|_| outside)
    }

    /// One element, as it is now; `None` beyond the end.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Result<T, DecodeError>> {
        let view = self.part(index, 1).ok()?;
        let mut small = [0u8; 64];
        match small.get_mut(..T::SIZE) {
            Some(bytes) => {
                view.read(0, bytes).ok()?;
                Some(T::load(bytes))
            }
            None => {
                let mut bytes = vec![0; T::SIZE];
                view.read(0, &mut bytes).ok()?;
                Some(T::load(&bytes))
            }
        }
    }

    /// Copies elements out, from `first` on.
    ///
    /// # Errors
    /// [`BulkError`].
    pub fn read(&self, first: usize, to: &mut [T]) -> Result<(), BulkError> {
        let view = self.part(first, to.len())?;
        Ok(T::load_all(view, to)?)
    }

    /// A copy of all elements.
    ///
    /// # Errors
    /// [`DecodeError`] of the first element that is none.
    pub fn to_vec(&self) -> Result<Vec<T>, DecodeError> {
        load_vec(self.view, self.len())
    }

    /// The bytes, for whoever copies them elsewhere.
    #[must_use]
    pub fn view(&self) -> View<'c> {
        self.view
    }
}

/// `len` elements from a view of just so many.
pub(crate) fn load_vec<T: Element>(view: View<'_>, len: usize) -> Result<Vec<T>, DecodeError> {
    let mut elements = Vec::new();
    refill(view, len, &mut elements)?;
    Ok(elements)
}

/// Replaces what is in `elements`.
pub(crate) fn refill<T: Element>(
    view: View<'_>,
    len: usize,
    elements: &mut Vec<T>,
) -> Result<(), DecodeError> {
    if len == 0 {
        elements.clear();
        return Ok(());
    }
    if elements.len() != len {
        let mut first = vec![0; T::SIZE];
        view.read(0, &mut first).map_err(|_| short(view.len()))?;
        elements.resize(len, T::load(&first)?);
    }
    T::load_all(view, elements)
}

/// INOUT or OUT data: what is written here reaches the client at once, while the handler goes on.
#[derive(Debug)]
pub struct BulkMut<'c, T> {
    block: Bulk<'c, T>,
    /// Bytes from the reply's flag down to the block; 0 for INOUT.
    distance: u32,
}

impl<'c, T: Element> BulkMut<'c, T> {
    pub(crate) fn new(view: View<'c>, distance: u32) -> BulkMut<'c, T> {
        BulkMut { block: Bulk::new(view), distance }
    }

    /// How many elements.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// One element, as it is now; `None` beyond the end.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Result<T, DecodeError>> {
        self.block.get(index)
    }

    /// Copies elements out, from `first` on.
    ///
    /// # Errors
    /// [`BulkError`].
    pub fn read(&self, first: usize, to: &mut [T]) -> Result<(), BulkError> {
        self.block.read(first, to)
    }

    /// A copy of all elements.
    ///
    /// # Errors
    /// [`DecodeError`] of the first element that is none.
    pub fn to_vec(&self) -> Result<Vec<T>, DecodeError> {
        self.block.to_vec()
    }

    /// Changes one element.
    ///
    /// # Errors
    /// [`OutsideBlock`].
    pub fn set(&mut self, index: usize, element: T) -> Result<(), OutsideBlock> {
        self.write(index, &[element])
    }

    /// Copies elements in, from `first` on.
    ///
    /// # Errors
    /// [`OutsideBlock`]; nothing was written then.
    pub fn write(&mut self, first: usize, from: &[T]) -> Result<(), OutsideBlock> {
        let view = self.block.part(first, from.len())?;
        T::store_all(from, view).map_err(|_| OutsideBlock {
            first,
            count: from.len(),
            len: self.block.len(),
        })
    }

    /// Makes every element this one.
    pub fn fill(&mut self, element: T) {
        let mut bytes = [0; 16];
        if let Some(bytes) = bytes.get_mut(..T::SIZE) {
            element.store(bytes);
            // Zeros and bytes, mostly: the machine has a faster way to do that than to copy them.
            if let [first, rest @ ..] = &*bytes
                && rest.iter().all(|byte| byte == first)
            {
                return self.view().fill(*first);
            }
        }
        let per_turn = (STAGING / T::SIZE.max(1)).clamp(1, STAGING);
        let some = vec![element; per_turn.min(self.len())];
        let mut first = 0;
        while first < self.len() {
            let count = some.len().min(self.len() - first);
            let _ = self.write(first, &some[..count]); // inside
            first += count;
        }
    }

    /// The bytes, for whoever copies to or from elsewhere.
    #[must_use]
    pub fn view(&self) -> View<'c> {
        self.block.view()
    }

    /// Distance and number of elements, for the plain part of a reply.
    #[must_use]
    pub fn descriptor(&self) -> (u32, u32) {
        (self.distance, self.len() as u32) // allotted by a u32
    }
}

/// INOUT data of a `copyin` procedure: a private copy, which the other side cannot change. [`Copied::store`] makes it the result.
#[derive(Debug)]
pub struct Copied<'c, T> {
    block: BulkMut<'c, T>,
    elements: Vec<T>,
}

impl<'c, T: Element> Copied<'c, T> {
    pub(crate) fn new(block: BulkMut<'c, T>) -> Result<Copied<'c, T>, DecodeError> {
        Ok(Copied { elements: block.to_vec()?, block })
    }

    /// Writes the elements to where the client reads them.
    ///
    /// # Errors
    /// None at present: there are as many as there were.
    pub fn store(mut self) -> Result<(), Fault> {
        let stored = self.block.write(0, &self.elements);
        stored.map_err(|error| Fault::with_text(Fault::BULK, error.to_string()))
    }
}

impl<T> Deref for Copied<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.elements
    }
}

impl<T> DerefMut for Copied<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.elements
    }
}
