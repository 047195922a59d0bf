//! The C entry points: check pointers, convert, call the safe interface, convert back.
//!
//! `include/shrimp_rpc.h` says what they do. A panic ends at the entry point, as
//! [`Code::SystemErr`].
#![allow(unsafe_code)]

mod builder;
mod client;
mod connector;
mod failure;
mod making;
mod server;

pub use builder::{
    CBuilder, shrimp_rpc_builder_allow, shrimp_rpc_builder_free, shrimp_rpc_builder_limit,
    shrimp_rpc_builder_new, shrimp_rpc_builder_program, shrimp_rpc_builder_start,
    shrimp_rpc_builder_token, shrimp_rpc_builder_workers,
};
pub use client::{
    CBinding, CCanceller, shrimp_rpc_begin, shrimp_rpc_call_wait, shrimp_rpc_cancel,
    shrimp_rpc_canceller_free, shrimp_rpc_canceller_new, shrimp_rpc_close, shrimp_rpc_connect,
    shrimp_rpc_connect_with_token, shrimp_rpc_end, shrimp_rpc_failed, shrimp_rpc_fault_number,
    shrimp_rpc_inout, shrimp_rpc_inout_at, shrimp_rpc_last_error, shrimp_rpc_next_timeout,
    shrimp_rpc_send, shrimp_rpc_set_timeout, shrimp_rpc_share,
};
pub use connector::{
    CConnector, shrimp_rpc_connector_free, shrimp_rpc_connector_new, shrimp_rpc_connector_open,
    shrimp_rpc_connector_open_later, shrimp_rpc_connector_set, shrimp_rpc_connector_token,
};
pub use failure::shrimp_rpc_error_text;
pub use server::{
    CCall, CDispatch, CServer, shrimp_rpc_args, shrimp_rpc_caller_node, shrimp_rpc_caller_pid,
    shrimp_rpc_caller_uid, shrimp_rpc_defer, shrimp_rpc_inplace, shrimp_rpc_is_cancelled,
    shrimp_rpc_out, shrimp_rpc_reply, shrimp_rpc_reply_fault, shrimp_rpc_reply_send,
    shrimp_rpc_serve, shrimp_rpc_server_start, shrimp_rpc_server_stop, shrimp_rpc_time_left,
};

use crate::error::{CallError, ConnectError, ServeError};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use vmmc::Token;

/// `enum shrimp_rpc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)] // documented in the header, whose names they are
pub enum Code {
    Ok = 0,
    ProcUnavail = 1,
    GarbageArgs = 2,
    SystemErr = 3,
    GarbageResults = 4,
    Fault = 5,
    TimedOut = 6,
    ServerGone = 7,
    NoService = 8,
    ProgUnavail = 9,
    ProgMismatch = 10,
    TooLong = 11,
    Protocol = 12,
    Busy = 13,
    Invalid = 14,
    Ending = 15,
    Cancelled = 16,
    NoRoom = 17,
    Deferred = 18,
    LayoutMismatch = 19,
}

/// What each code means; in the order of the codes.
const TEXTS: &[&CStr] = &[
    c"success",
    c"the program has no such procedure",
    c"the arguments do not decode",
    c"memory, descriptors, threads or the daemon failed",
    c"the results do not encode or decode",
    c"the handler has no answer",
    c"no reply in time",
    c"the server died during the call",
    c"nobody serves that name, or not for us",
    c"the server has no such program",
    c"the server has other versions of the program",
    c"longer than one side allows",
    c"the other side broke the protocol",
    c"a call of this binding is in progress, or none is",
    c"a null pointer, a name that no service or node can have, or a range outside",
    c"the server is ending",
    c"given up by shrimp_rpc_cancel",
    c"the server allows no more bindings, or calls in pieces",
    c"the reply is put off",
    c"the server was built with another version of shrimp-rpc",
];

impl Code {
    /// The code of a failed call.
    #[must_use]
    pub fn of_call(error: &CallError) -> Code {
        match error {
            CallError::ServerGone { .. } => Code::ServerGone,
            CallError::TimedOut { .. } => Code::TimedOut,
            CallError::Cancelled { .. } => Code::Cancelled,
            CallError::Connect(error) => Code::of_connect(error),
            CallError::UnknownProcedure { .. } => Code::ProcUnavail,
            CallError::BadArguments { .. } | CallError::Encode(_) => Code::GarbageArgs,
            CallError::BadResults { .. } | CallError::Decode(_) => Code::GarbageResults,
            CallError::Fault(_) => Code::Fault,
            CallError::TooLong { .. } => Code::TooLong,
            CallError::NoRoom { .. } => Code::NoRoom,
            CallError::ServerEnding => Code::Ending,
            CallError::Protocol { .. } => Code::Protocol,
            CallError::Transport(_) => Code::SystemErr,
        }
    }

    /// The code of a binding that failed.
    #[must_use]
    pub fn of_connect(error: &ConnectError) -> Code {
        match error {
            ConnectError::Name(_) => Code::Invalid,
            ConnectError::Service { .. } => Code::NoService,
            ConnectError::UnknownProgram { .. } => Code::ProgUnavail,
            ConnectError::VersionMismatch { .. } => Code::ProgMismatch,
            ConnectError::LayoutMismatch { .. } => Code::LayoutMismatch,
            ConnectError::TooManyBindings { .. }
            | ConnectError::TooManyOfProcess { .. }
            | ConnectError::TooManyWaiting { .. }
            | ConnectError::NoRoom { .. } => Code::NoRoom,
            ConnectError::Ending { .. } => Code::Ending,
            ConnectError::Cancelled => Code::Cancelled,
            ConnectError::Protocol { .. } => Code::Protocol,
            ConnectError::TimedOut { .. } => Code::TimedOut,
            ConnectError::Failed { .. } | ConnectError::Daemon(_) | ConnectError::Transport(_) => {
                Code::SystemErr
            }
        }
    }

    /// The code of a server that did not start.
    #[must_use]
    pub fn of_serve(error: &ServeError) -> Code {
        match error {
            ServeError::NoProgram | ServeError::Twice { .. } | ServeError::Name(_) => Code::Invalid,
            ServeError::Daemon(_) | ServeError::Door { .. } | ServeError::Transport(_) => {
                Code::SystemErr
            }
        }
    }
}

/// Runs an entry point; a panic ends here.
fn entry(body: impl FnOnce() -> Code) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Code::SystemErr) as c_int
}

/// # Safety
/// `text` is NULL or a string that lives for the call.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: a string, by the caller's word.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// # Safety
/// `secret` is NULL or `SHRIMP_RPC_TOKEN_LEN` readable bytes.
unsafe fn token(secret: *const u8) -> Option<Token> {
    if secret.is_null() {
        return None;
    }
    // SAFETY: readable by the caller's word, and bytes have no alignment.
    Some(Token(unsafe { secret.cast::<[u8; 16]>().read() }))
}

/// `SHRIMP_CODEC_SHORT`; the others follow downwards.
const FIRST_OF_CODEC: c_int = -101;
const CODEC_TEXTS: [&CStr; 6] = [
    c"a message ends early, or has no room for a value",
    c"a value has more elements, or bytes, than the interface allows",
    c"a value is none of its type",
    c"values are nested too deep",
    c"no memory, or more than a message may take",
    c"the results have more elements than there is room for: the length says how many",
];

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn shrimp_rpc_strerror(status: c_int) -> *const c_char {
    meaning(status).as_ptr()
}

/// What a status means, in English.
fn meaning(status: c_int) -> &'static CStr {
    let known = match usize::try_from(status) {
        Ok(at) => TEXTS.get(at),
        // What the codec of generated stubs says: `shrimp_codec.h`.
        Err(_) => FIRST_OF_CODEC
            .checked_sub(status)
            .and_then(|at| CODEC_TEXTS.get(usize::try_from(at).ok()?)),
    };
    known.copied().unwrap_or(c"unknown status")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    #[test]
    fn every_code_has_its_text_and_its_line_in_the_header() {
        let header = include_str!("../../include/shrimp_rpc.h");
        let header = header.split("};").next().unwrap(); // the first enumeration
        for (code, text) in TEXTS.iter().enumerate() {
            let at = c_int::try_from(code).unwrap();
            // SAFETY: a constant string.
            assert_eq!(unsafe { CStr::from_ptr(shrimp_rpc_strerror(at)) }, *text);
            assert_eq!(
                header.matches(&format!(" = {code},")).count()
                    + header.matches(&format!(" = {code} ")).count(),
                1,
                "{code}"
            );
        }
        assert_eq!(TEXTS.len(), Code::LayoutMismatch as usize + 1);
        let codec = include_str!("../../../rpc-idl/include/shrimp_codec.h");
        for (number, text) in (101..).zip(CODEC_TEXTS) {
            // SAFETY: a constant string.
            assert_eq!(unsafe { CStr::from_ptr(shrimp_rpc_strerror(-number)) }, text);
            assert_eq!(codec.matches(&format!(" = -{number}")).count(), 1, "{number}");
        }
        assert_eq!(codec.matches(" = -1").count(), CODEC_TEXTS.len());
        // SAFETY: a constant string.
        assert_eq!(unsafe { CStr::from_ptr(shrimp_rpc_strerror(99)) }, c"unknown status");
    }

    #[test]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one proof for all
    fn null_pointers_are_refused_and_not_followed() {
        let null: *mut c_void = std::ptr::null_mut();
        let invalid = Code::Invalid as c_int;
        let mut at = std::ptr::null_mut();
        // SAFETY: that is what is tried here: every entry point checks.
        unsafe {
            assert_eq!(shrimp_rpc_connect(std::ptr::null(), 1, 1, std::ptr::null_mut()), invalid);
            assert_eq!(shrimp_rpc_begin(null.cast(), 1, 8, &raw mut at), invalid);
            assert_eq!(shrimp_rpc_send(null.cast()), invalid);
            assert_eq!(shrimp_rpc_failed(null.cast(), -101), -101);
            assert_eq!(shrimp_rpc_reply(null.cast(), 1, &raw mut at), invalid);
            shrimp_rpc_close(null.cast());
            shrimp_rpc_end(null.cast());
            shrimp_rpc_server_stop(null.cast());
            assert!(shrimp_rpc_defer(null.cast()).is_null());
            assert!(shrimp_rpc_builder_new(std::ptr::null()).is_null());
            assert_eq!(shrimp_rpc_builder_allow(null.cast(), 1, 0), invalid);
            assert_eq!(shrimp_rpc_builder_limit(null.cast(), 1, 1), invalid);
            assert_eq!(shrimp_rpc_builder_start(null.cast(), std::ptr::null_mut()), invalid);
            shrimp_rpc_builder_free(null.cast());
            assert!(shrimp_rpc_connector_new(std::ptr::null(), 1, 1).is_null());
            assert_eq!(shrimp_rpc_connector_token(null.cast(), [0; 16].as_ptr()), invalid);
            assert_eq!(shrimp_rpc_connector_set(null.cast(), 0, 1), invalid);
            assert_eq!(shrimp_rpc_connector_open(null.cast(), std::ptr::null_mut()), invalid);
            let later = shrimp_rpc_connector_open_later(null.cast(), std::ptr::null_mut());
            assert_eq!(later, invalid);
            shrimp_rpc_connector_free(null.cast());
            assert_eq!(shrimp_rpc_share(null.cast(), std::ptr::null_mut()), invalid);
            assert_eq!(shrimp_rpc_next_timeout(null.cast(), 1), invalid);
            assert!(shrimp_rpc_inplace(null.cast(), 0, 0).is_null());
            assert!(shrimp_rpc_caller_node(null.cast()).is_null());
            assert_eq!(shrimp_rpc_time_left(null.cast()), 0);
            assert!(shrimp_rpc_inout_at(null.cast(), 0, 0).is_null());
        }
    }
}
