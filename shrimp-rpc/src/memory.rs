//! Private memory that is used like a buffer: for calls and replies put together from pieces, and for
//! OUT data that does not fit.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use vmmc::mem::{OutOfBounds, View};

/// Zeroed memory of this process alone, in whole units.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Atomics, so that no exclusive reference is needed to write.
    units: Box<[AtomicU64]>,
    /// Length in bytes; at most that of `units`.
    len: usize,
}

impl Memory {
    /// `len` bytes.
    pub(crate) fn new(len: usize) -> Memory {
        let units = Box::<[AtomicU64]>::new_zeroed_slice(len.div_ceil(8));
        // SAFETY: all bits zero is a valid AtomicU64.
        let units = unsafe { units.assume_init() };
        Memory { units, len }
    }

    /// The bytes, to read and write from wherever.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        let start = NonNull::from(&*self.units).cast();
        // SAFETY: `len` bytes that live as long as `self` is borrowed; they are atomics, so the
        // shared references to them that exist allow changes.
        unsafe { View::from_raw(start, self.len) }
    }
}

/// Copies bytes from one place to another that is as long and does not overlap it.
#[inline(always)]
pub(crate) fn copy(from: View<'_>, to: View<'_>) -> Result<(), OutOfBounds> {
    let to = to.slice(0, from.len())?;
    // SAFETY: both are mapped for `from.len()` bytes; views that are copied between are of different
    // mappings or allocations.
    unsafe { vmmc::mem::copy::bytes(from.as_ptr().as_ptr(), to.as_ptr().as_ptr(), from.len()) };
    Ok(())
}

/// A few units on the stack, in which a short message is put together. The receiver polls the line that
/// holds the flag and the end of the message: stores that dribble into it one by one would each
/// have to win it back, so short messages are stored in one go, just before the flag.
#[derive(Debug)]
pub(crate) struct Small<const UNITS: usize>([AtomicU64; UNITS]);

impl<const UNITS: usize> Small<UNITS> {
    /// All zeros.
    #[inline]
    pub(crate) fn new() -> Self {
        Small([const { AtomicU64::new(0) }; UNITS])
    }

    /// The bytes.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        let start = NonNull::from(&self.0).cast();
        // SAFETY: as in `Memory::view`.
        unsafe { View::from_raw(start, UNITS * 8) }
    }
}
