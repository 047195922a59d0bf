//! Strings of callers.

use std::ffi::{CStr, c_char, c_long};

/// A string of C.
///
/// # Safety
/// Null or a string.
pub(super) unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: the caller vouches for it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A string of Fortran, without the blanks at its end.
///
/// # Safety
/// Null, or `len` characters.
pub(super) unsafe fn fortran_string(text: *const c_char, len: c_long) -> String {
    let len = usize::try_from(len).unwrap_or(0);
    if text.is_null() || len == 0 {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    String::from_utf8_lossy(bytes).trim_end_matches([' ', '\0']).to_owned()
}
