//! A bounds-checked window onto shared memory.

use super::copy;
use crate::sys::mmap::GuardedMapping;
use crate::word::{MappedU32, MappedU64};
use std::ptr::NonNull;

/// An access that would have left the buffer or was not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not fit a buffer of {size} bytes (alignment {align})")]
pub struct OutOfBounds {
    /// First byte asked for.
    pub offset: usize,
    /// Bytes asked for.
    pub len: usize,
    /// Length of the buffer.
    pub size: usize,
    /// Alignment the access needs, 1 when it needs none.
    pub align: usize,
}

/// A window of `len` bytes of shared memory that stays mapped for `'m`.
///
/// Copying a view copies the pointer, not the bytes. All methods are safe to call whatever the
/// peer does to the bytes meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct View<'m> {
    start: NonNull<u8>,
    len: usize,
    mapping: std::marker::PhantomData<&'m ()>,
}

// SAFETY: a view is a pointer into memory that every thread of the process may access; all
// accesses through it are atomic, volatile or opaque copies of plain bytes.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'m> View<'m> {
    /// All of a mapping. Others in this process, too, access it through views only (V6).
    #[inline]
    #[must_use]
    pub fn of(mapping: &'m GuardedMapping) -> View<'m> {
        // SAFETY: mapped as long as it is borrowed; whoever makes a reference into a shared mapping
        // breaks that reference's own promise, not this one.
        unsafe { View::from_raw(mapping.as_ptr(), mapping.len()) }
    }

    /// A view of mapped memory.
    ///
    /// # Safety
    /// `start` to `start + len` must stay mapped, readable (and writable if [`View::write`] or
    /// stores are used) for `'m`, and no Rust reference into it may exist meanwhile.
    #[inline]
    #[must_use]
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize) -> View<'m> {
        View { start, len, mapping: std::marker::PhantomData }
    }

    /// A view of no bytes.
    #[must_use]
    pub fn empty() -> View<'m> {
        View { start: NonNull::dangling(), len: 0, mapping: std::marker::PhantomData }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the view covers no byte.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// First byte.
    #[inline]
    #[must_use]
    pub fn as_ptr(self) -> NonNull<u8> {
        self.start
    }

    /// The `len` bytes from `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`], also when `offset + len` overflows.
    #[inline]
    pub fn slice(self, offset: usize, len: usize) -> Result<View<'m>, OutOfBounds> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(View {
                // SAFETY: offset <= end <= self.len, inside the mapping.
                start: unsafe { self.start.add(offset) },
                len,
                mapping: self.mapping,
            }),
            _ => Err(OutOfBounds { offset, len, size: self.len, align: 1 }),
        }
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was written then.
    #[inline]
    pub fn write(self, offset: usize, source: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.slice(offset, source.len())?;
        // SAFETY: `target` is as long as `source` and mapped; a Rust slice and a mapping that no
        // reference points into cannot overlap.
        unsafe { copy::bytes(source.as_ptr(), target.start.as_ptr(), source.len()) };
        Ok(())
    }

    /// As [`View::write`], from the first byte to the last, in aligned words that are stored at once: whoever loads one of
    /// them with acquire sees all before it.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was written then.
    pub fn write_ascending(self, offset: usize, source: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.slice(offset, source.len())?;
        // SAFETY: as in `write`.
        unsafe { copy::ascending(source.as_ptr(), target.start.as_ptr(), source.len()) };
        Ok(())
    }

    /// Makes every byte this one.
    #[inline]
    pub fn fill(self, byte: u8) {
        // SAFETY: `len` bytes from `start` are mapped, and no reference points into them.
        unsafe { copy::fill(self.start.as_ptr(), byte, self.len) };
    }

    /// Copies the bytes at `offset` into `target`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; `target` is unchanged then.
    #[inline]
    pub fn read(self, offset: usize, target: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.slice(offset, target.len())?;
        // SAFETY: as in `write`, the other way round.
        unsafe { copy::bytes(source.start.as_ptr(), target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    /// Copies all of `source`, which may be shared memory too, to `offset`. Where the two overlap the
    /// result is as if `source` had been copied away first.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was written then.
    #[inline]
    pub fn write_from(self, offset: usize, source: View<'_>) -> Result<(), OutOfBounds> {
        let target = self.slice(offset, source.len)?;
        let (from, to) = (source.start.as_ptr(), target.start.as_ptr());
        if from.addr().abs_diff(to.addr()) < source.len {
            let mut copy = vec![0; source.len];
            source.read(0, &mut copy)?;
            return target.write(0, &copy);
        }
        // SAFETY: both are mapped, `source.len` bytes long, and do not overlap.
        unsafe { copy::bytes(from, to, source.len) };
        Ok(())
    }

    fn aligned(self, offset: usize, size: usize) -> Result<NonNull<u8>, OutOfBounds> {
        let word = self.slice(offset, size)?;
        if word.start.as_ptr().addr().is_multiple_of(size) {
            Ok(word.start)
        } else {
            Err(OutOfBounds { offset, len: size, size: self.len, align: size })
        }
    }

    /// Has the processor fetch the lines of those bytes while something else is done, as far as they lie within
    /// the view. A hint: nothing changes but the time.
    #[inline(always)]
    pub fn prefetch(self, offset: usize, len: usize) {
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = (offset, len);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            const LINE: usize = 64;
            let end = self.len().min(offset.saturating_add(len));
            let mut at = offset;
            while at < end {
                // SAFETY: `at` is inside the mapping.
                let byte = unsafe { self.start.add(at) };
                // SAFETY: a prefetch changes neither memory nor registers nor flags and never faults.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(byte.as_ptr().cast()) };
                at += LINE - byte.as_ptr() as usize % LINE;
            }
        }
    }

    /// The `N` 64-bit words from `offset`, for atomic access: checked once.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not wholly inside or not aligned to a cache line of 64 bytes.
    #[inline]
    pub fn words<const N: usize>(self, offset: usize) -> Result<[MappedU64<'m>; N], OutOfBounds> {
        const LINE: usize = 64;
        let words = self.slice(offset, 8 * N)?;
        if !words.start.as_ptr().addr().is_multiple_of(LINE) {
            return Err(OutOfBounds { offset, len: 8 * N, size: self.len, align: LINE });
        }
        Ok(std::array::from_fn(|i| {
            // SAFETY: i < N, so the word is inside.
            let word = unsafe { words.start.add(8 * i) };
            // SAFETY: aligned, inside the mapping for 'm, accessed atomically only.
            unsafe { MappedU64::from_raw(word.cast()) }
        }))
    }

    /// The 32-bit word at `offset`, for atomic access.
    ///
    /// # Errors
    /// [`OutOfBounds`] when it is not wholly inside or not 4-byte aligned.
    #[inline]
    pub fn word32(self, offset: usize) -> Result<MappedU32<'m>, OutOfBounds> {
        let start = self.aligned(offset, 4)?;
        // SAFETY: aligned, inside the mapping for 'm, accessed atomically only.
        Ok(unsafe { MappedU32::from_raw(start.cast()) })
    }

    /// The 64-bit word at `offset`, for atomic access.
    ///
    /// # Errors
    /// [`OutOfBounds`] when it is not wholly inside or not 8-byte aligned.
    #[inline]
    pub fn word64(self, offset: usize) -> Result<MappedU64<'m>, OutOfBounds> {
        let start = self.aligned(offset, 8)?;
        // SAFETY: aligned, inside the mapping for 'm, accessed atomically only.
        Ok(unsafe { MappedU64::from_raw(start.cast()) })
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with_view<R>(len: usize, body: impl FnOnce(View<'_>) -> R) -> R {
        let mut memory = vec![0u64; len.div_ceil(8).max(1)];
        let start = NonNull::from(memory.as_mut_slice()).cast();
        // SAFETY: `memory` outlives the call and is not touched otherwise meanwhile.
        body(unsafe { View::from_raw(start, len) })
    }

    proptest! {
        #[test]
        fn an_access_is_refused_exactly_when_it_leaves_the_buffer(
            size in 0usize..200, offset in prop_oneof![0usize..300, Just(usize::MAX), Just(usize::MAX - 7)],
            len in 0usize..300,
        ) {
            let fits = offset.checked_add(len).is_some_and(|end| end <= size);
            with_view(size, |view| {
                prop_assert_eq!(view.write(offset, &vec![1; len]).is_ok(), fits);
                prop_assert_eq!(view.read(offset, &mut vec![0; len]).is_ok(), fits);
                Ok(())
            })?;
        }
    }

    #[test]
    fn fill_changes_every_byte_of_its_view_and_none_beside_it() {
        for len in [0, 1, 7, 64, 100, 5000] {
            with_view(len + 16, |view| {
                view.fill(1);
                view.slice(8, len).unwrap().fill(0xa5);
                let mut bytes = vec![0; len + 16];
                view.read(0, &mut bytes).unwrap();
                let (before, rest) = bytes.split_at(8);
                let (filled, after) = rest.split_at(len);
                assert!(before.iter().chain(after).all(|byte| *byte == 1), "{len}");
                assert!(filled.iter().all(|byte| *byte == 0xa5), "{len}");
            });
        }
    }

    #[test]
    fn a_word_that_is_not_aligned_is_refused_with_its_alignment() {
        with_view(64, |view| {
            assert!(view.word64(8).is_ok());
            assert_eq!(view.word64(12).unwrap_err().align, 8);
            assert!(view.word32(12).is_ok());
            assert_eq!(
                view.word32(62).unwrap_err(),
                OutOfBounds { offset: 62, len: 4, size: 64, align: 1 }
            );
        });
    }
}
