//! What failed last where there is no binding yet to ask: connecting, and starting a server. Of each thread, as `errno`.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// An error in words. Of bytes that a server chose, some may be 0, which would end a string.
pub(super) fn text_of(error: &dyn std::fmt::Display) -> CString {
    CString::new(error.to_string().replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Remembers an error in words.
pub(super) fn remember(error: &dyn std::fmt::Display) {
    let text = text_of(error);
    // Not any more in a thread that ends: then nobody asks.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn shrimp_rpc_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
