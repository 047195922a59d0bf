//! Private memory that is used like a buffer: for calls and replies put together from pieces, and for
//! OUT data that does not fit.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use vmmc::mem::spares::Spares;
use vmmc::mem::{OutOfBounds, View};

/// Memory of this process alone, in whole units. Where it is long it serves again: the system's would be zeroed a page fault at a time,
/// for every call.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Atomics, so that no exclusive reference is needed to write.
    units: Box<[AtomicU64]>,
    /// Length in bytes; at most that of `units`.
    len: usize,
}

/// Shorter memory the C library has at hand.
const LONG: usize = 64 << 10;
/// Bytes of long memory that a process keeps for its next use.
const SPARE: usize = 16 << 20;

/// That memory.
static KEPT: Spares<Box<[AtomicU64]>> = Spares::new(SPARE);

impl Memory {
    /// `len` bytes, zeroed.
    pub(crate) fn new(len: usize) -> Memory {
        let Some(memory) = Memory::again(len) else { return Memory::fresh(len) };
        memory.view().fill(0);
        memory
    }

    /// `len` bytes that are written before anybody reads them; until then they may be those of other calls.
    pub(crate) fn to_be_written(len: usize) -> Memory {
        Memory::again(len).unwrap_or_else(|| Memory::fresh(len))
    }

    /// `len` bytes, zeroed, of the system's: for memory that stays for long.
    pub(crate) fn fresh(len: usize) -> Memory {
        let units = Box::<[AtomicU64]>::new_zeroed_slice(len.div_ceil(8));
        // SAFETY: all bits zero is a valid AtomicU64.
        let units = unsafe { units.assume_init() };
        Memory { units, len }
    }

    #[inline]
    fn again(len: usize) -> Option<Memory> {
        if len < LONG {
            return None;
        }
        let units = KEPT.take(8 * len.div_ceil(8))?;
        Some(Memory { units, len })
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

impl Drop for Memory {
    fn drop(&mut self) {
        if self.len >= LONG {
            KEPT.keep(std::mem::take(&mut self.units));
        }
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

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn long_memory_serves_again_and_is_zeroed() {
        let first = Memory::new(LONG + 100);
        first.view().fill(0xff);
        drop(first);
        let again = Memory::new(LONG + 60);
        let mut bytes = vec![1; LONG + 60];
        again.view().read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert_eq!(again.view().len(), LONG + 60);
    }
}
