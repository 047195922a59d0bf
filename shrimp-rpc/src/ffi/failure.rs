//! What failed last where there is no binding yet to ask: connecting, and starting a server. Of each thread, as `errno`.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Remembers an error in words.
pub(super) fn remember(error: &dyn std::fmt::Display) {
    let text = CString::new(error.to_string()).unwrap_or_default();
    // Not any more in a thread that ends: then nobody asks.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn shrimp_rpc_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
