//! What C makes step by step: a server's builder, a client's connector.

use super::{Code, entry};
use std::ffi::c_int;

/// A builder in C's hands.
#[derive(Debug)]
pub struct Making<B> {
    /// `None` only while a function changes it.
    builder: Option<B>,
}

impl<B> Making<B> {
    /// Hands one to C, which gives it back to [`Making::finish`].
    pub(super) fn begin(builder: B) -> *mut Making<B> {
        Box::into_raw(Box::new(Making { builder: Some(builder) }))
    }

    /// Changes it.
    ///
    /// # Safety
    /// `this` is NULL or from [`Making::begin`].
    pub(super) unsafe fn change(this: *mut Making<B>, change: impl FnOnce(B) -> B) -> c_int {
        entry(|| {
            // SAFETY: by the caller's word.
            let Some(this) = (unsafe { this.as_mut() }) else { return Code::Invalid };
            let Some(builder) = this.builder.take() else { return Code::Invalid };
            this.builder = Some(change(builder));
            Code::Ok
        })
    }

    /// Takes it back. `None` of NULL, too.
    ///
    /// # Safety
    /// `this` is NULL or from [`Making::begin`], and not used again.
    pub(super) unsafe fn finish(this: *mut Making<B>) -> Option<B> {
        if this.is_null() {
            return None;
        }
        // SAFETY: made by Box::into_raw.
        unsafe { Box::from_raw(this) }.builder
    }
}
