//! Where the bytes of a ring live.

use vmmc::mem::{View, copy};

/// A buffer of fixed length that two sides read and write through copies, never by reference.
pub trait Bytes {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `len` bytes from `source` to offset `at`.
    ///
    /// # Safety
    /// `source` must be readable for `len` bytes and not overlap the buffer, and
    /// `at + len <= self.len()`.
    unsafe fn copy_in(&self, at: usize, source: *const u8, len: usize);

    /// Copies the `len` bytes at offset `at` to `target`.
    ///
    /// # Safety
    /// `target` must be writable for `len` bytes and not overlap the buffer, and
    /// `at + len <= self.len()`.
    unsafe fn copy_out(&self, at: usize, target: *mut u8, len: usize);

    /// Tells the processor that the bytes at `at` will be read soon.
    fn prefetch(&self, _at: usize) {}
}

/// Bytes in a mapping.
#[derive(Clone, Copy, Debug)]
pub struct ViewBytes<'m>(pub View<'m>);

impl Bytes for ViewBytes<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    unsafe fn copy_in(&self, at: usize, source: *const u8, len: usize) {
        debug_assert!(at + len <= self.0.len());
        // SAFETY: inside the mapping by the caller's word.
        let target = unsafe { self.0.as_ptr().add(at) };
        // SAFETY: both sides are valid and apart by the caller's word.
        unsafe { copy::bytes(source, target.as_ptr(), len) }
    }

    #[inline]
    unsafe fn copy_out(&self, at: usize, target: *mut u8, len: usize) {
        debug_assert!(at + len <= self.0.len());
        // SAFETY: inside the mapping by the caller's word.
        let source = unsafe { self.0.as_ptr().add(at) };
        // SAFETY: both sides are valid and apart by the caller's word.
        unsafe { copy::bytes(source.as_ptr(), target, len) }
    }

    #[inline]
    fn prefetch(&self, at: usize) {
        self.0.prefetch(at, 1);
    }
}
