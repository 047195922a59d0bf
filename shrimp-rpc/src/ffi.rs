//! The C entry points: check pointers, convert, call the safe interface, convert back.
//!
//! `include/shrimp_rpc.h` says what they do. A panic ends at the entry point, as
//! [`Code::SystemErr`].
#![allow(unsafe_code)]

use crate::client::{Binding, Reply, Request};
use crate::error::{CallError, ConnectError, DispatchError, Fault};
use crate::server::{Finished, ReplyWriter, Server, ServerCall};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

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
    c"a null pointer, a name that is not UTF-8, or a range outside",
    c"the server is ending",
    c"given up before it was sent",
];

impl Code {
    /// The code of a failed call.
    #[must_use]
    pub fn of_call(error: &CallError) -> Code {
        match error {
            CallError::ServerGone { .. } => Code::ServerGone,
            CallError::TimedOut { .. } => Code::TimedOut,
            CallError::Cancelled => Code::Cancelled,
            CallError::Connect(error) => Code::of_connect(error),
            CallError::UnknownProcedure { .. } => Code::ProcUnavail,
            CallError::BadArguments { .. } | CallError::Encode(_) => Code::GarbageArgs,
            CallError::BadResults { .. } | CallError::Decode(_) => Code::GarbageResults,
            CallError::Fault(_) => Code::Fault,
            CallError::TooLong { .. } => Code::TooLong,
            CallError::ServerEnding => Code::Ending,
            CallError::Protocol { .. } => Code::Protocol,
            CallError::Transport(_) => Code::SystemErr,
        }
    }

    /// The code of a binding that failed.
    #[must_use]
    pub fn of_connect(error: &ConnectError) -> Code {
        match error {
            ConnectError::Service { .. } => Code::NoService,
            ConnectError::UnknownProgram { .. } => Code::ProgUnavail,
            ConnectError::VersionMismatch { .. } | ConnectError::LayoutMismatch { .. } => {
                Code::ProgMismatch
            }
            ConnectError::TooManyBindings { .. } | ConnectError::Refused { .. } => Code::Ending,
            ConnectError::TimedOut { .. } => Code::TimedOut,
            ConnectError::Daemon(_) | ConnectError::Transport(_) => Code::SystemErr,
        }
    }
}

/// Runs an entry point; a panic ends here.
fn entry(body: impl FnOnce() -> Code) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Code::SystemErr) as c_int
}

/// `shrimp_rpc_binding`.
#[derive(Debug)]
pub struct CBinding {
    /// Dropped before the binding that it borrows.
    call: CCallState,
    error: CString,
    fault: u32,
    binding: Box<Binding>,
}

/// The call in progress. The lifetime is a fiction: it ends with the box that holds the binding.
#[derive(Debug)]
enum CCallState {
    None,
    Writing(Request<'static>),
    Reading(Reply<'static>),
}

impl CBinding {
    fn failed(&mut self, error: &CallError) -> Code {
        if let CallError::Fault(fault) = error {
            self.fault = fault.number();
        }
        self.error = CString::new(error.to_string()).unwrap_or_default();
        Code::of_call(error)
    }
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

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn shrimp_rpc_strerror(status: c_int) -> *const c_char {
    let known = usize::try_from(status).ok().and_then(|at| TEXTS.get(at));
    known.copied().unwrap_or(c"unknown status").as_ptr()
}

/// See the header.
///
/// # Safety
/// `name` is a string, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_connect(
    name: *const c_char,
    program: u32,
    version: u32,
    out: *mut *mut CBinding,
) -> c_int {
    entry(|| {
        // SAFETY: passed on.
        let (Some(name), false) = (unsafe { text(name) }, out.is_null()) else {
            return Code::Invalid;
        };
        let binding = match Binding::builder(name, program, version).lanes(1).connect() {
            Ok(binding) => Box::new(binding),
            Err(error) => return Code::of_connect(&error),
        };
        let (call, error) = (CCallState::None, CString::default());
        let made = Box::new(CBinding { call, error, fault: 0, binding });
        // SAFETY: writable by the caller's word.
        unsafe { out.write(Box::into_raw(made)) };
        Code::Ok
    })
}

/// See the header.
///
/// # Safety
/// `binding` is NULL or from `shrimp_rpc_connect`, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_close(binding: *mut CBinding) {
    if !binding.is_null() {
        // SAFETY: made by Box::into_raw.
        let binding = unsafe { Box::from_raw(binding) };
        entry(|| {
            drop(binding);
            Code::Ok
        });
    }
}

/// # Safety
/// `binding` is NULL or from `shrimp_rpc_connect`, and used by this thread alone.
unsafe fn binding<'a>(binding: *mut CBinding) -> Option<&'a mut CBinding> {
    // SAFETY: by the caller's word.
    unsafe { binding.as_mut() }
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_set_timeout(this: *mut CBinding, milliseconds: u64) {
    // SAFETY: passed on.
    if let Some(this) = unsafe { binding(this) } {
        let timeout = (milliseconds > 0).then(|| Duration::from_millis(milliseconds));
        this.binding.set_timeout(timeout);
    }
}

/// See the header.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_last_error(this: *const CBinding) -> *const c_char {
    // SAFETY: by the caller's word.
    unsafe { this.as_ref() }.map_or(c"no binding".as_ptr(), |this| this.error.as_ptr())
}

/// See the header.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_fault_number(this: *const CBinding) -> u32 {
    // SAFETY: by the caller's word.
    unsafe { this.as_ref() }.map_or(0, |this| this.fault)
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_connect`, `at` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_begin(
    this: *mut CBinding,
    procedure: u32,
    len: usize,
    at: *mut *mut c_void,
) -> c_int {
    entry(|| {
        // SAFETY: passed on.
        let (Some(this), false) = (unsafe { binding(this) }, at.is_null()) else {
            return Code::Invalid;
        };
        if !matches!(this.call, CCallState::None) {
            return Code::Busy;
        }
        if !len.is_multiple_of(crate::layout::UNIT) {
            return Code::Invalid;
        }
        let shared: *const Binding = &*this.binding;
        // SAFETY: the box does not move, and the request is dropped before it (field order).
        let shared: &'static Binding = unsafe { &*shared };
        match shared.request(procedure, len, 0) {
            Ok(request) => {
                let start = request.as_ptr();
                this.call = CCallState::Writing(request);
                // SAFETY: writable by the caller's word. Taken after the move: it points into
                // the lane or the buffer, neither of which moved.
                unsafe { at.write(start.as_ptr().cast()) };
                Code::Ok
            }
            Err(error) => this.failed(&error),
        }
    })
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_connect`, `reply` and `len` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_call_wait(
    this: *mut CBinding,
    reply: *mut *const c_void,
    len: *mut usize,
) -> c_int {
    entry(|| {
        // SAFETY: passed on.
        let this = unsafe { binding(this) };
        let (Some(this), false) = (this, reply.is_null() || len.is_null()) else {
            return Code::Invalid;
        };
        let CCallState::Writing(mut request) = std::mem::replace(&mut this.call, CCallState::None)
        else {
            return Code::Busy;
        };
        request.assume_written();
        match request.call() {
            Ok(answer) => {
                let view = answer.view();
                let (start, size) = (view.as_ptr(), view.len());
                this.call = CCallState::Reading(answer);
                // SAFETY: writable by the caller's word; the pointer is into memory that the lane
                // or the box of the reply holds.
                unsafe { reply.write(start.as_ptr().cast()) };
                // SAFETY: as above.
                unsafe { len.write(size) };
                Code::Ok
            }
            Err(error) => this.failed(&error),
        }
    })
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_send(this: *mut CBinding) -> c_int {
    entry(|| {
        // SAFETY: passed on.
        let Some(this) = (unsafe { binding(this) }) else { return Code::Invalid };
        let CCallState::Writing(mut request) = std::mem::replace(&mut this.call, CCallState::None)
        else {
            return Code::Busy;
        };
        request.assume_written();
        match request.send() {
            Ok(()) => Code::Ok,
            Err(error) => this.failed(&error),
        }
    })
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_connect`, `to` is writable for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_inout(
    this: *mut CBinding,
    offset: usize,
    to: *mut c_void,
    bytes: usize,
) -> c_int {
    entry(|| {
        // SAFETY: passed on.
        let (Some(this), false) = (unsafe { binding(this) }, to.is_null() && bytes > 0) else {
            return Code::Invalid;
        };
        let CCallState::Reading(reply) = &this.call else { return Code::Busy };
        if bytes == 0 {
            return Code::Ok;
        }
        // SAFETY: writable for `bytes`, by the caller's word.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes) };
        match reply.inout_at(offset, to) {
            Ok(()) => Code::Ok,
            Err(error) => this.failed(&error),
        }
    })
}

/// See the header.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_end(this: *mut CBinding) {
    // SAFETY: passed on.
    if let Some(this) = unsafe { binding(this) } {
        entry(|| {
            this.call = CCallState::None;
            Code::Ok
        });
    }
}

// ---- server ----

/// `shrimp_rpc_dispatch`.
pub type CDispatch = unsafe extern "C" fn(*mut c_void, u32, *mut CCall) -> c_int;

/// `shrimp_rpc_call`. Lives on the worker's stack while the C function runs.
#[derive(Debug)]
pub struct CCall {
    /// Borrows `call`; dropped before it.
    writer: Option<ReplyWriter<'static>>,
    finished: Option<Finished>,
    fault: Option<Fault>,
    call: ServerCall<'static>,
}

/// `shrimp_rpc_server`.
#[derive(Debug)]
pub struct CServer(Server);

/// The C function and its pointer, which the C program allows any thread to use.
struct Target {
    dispatch: CDispatch,
    user: *mut c_void,
}

// SAFETY: the header says that calls come from threads of the library; the program answers for what
// its pointer leads to.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    fn serve(&self, procedure: u32, call: ServerCall<'_>) -> Result<Finished, DispatchError> {
        // SAFETY: only the lifetime changes: the value stays in this function's frame, and C
        // keeps no pointer to it after the function has returned.
        let call = unsafe { std::mem::transmute::<ServerCall<'_>, ServerCall<'static>>(call) };
        let mut call = CCall { writer: None, finished: None, fault: None, call };
        // SAFETY: the function and its pointer are the program's; `call` lives meanwhile.
        let code = unsafe { (self.dispatch)(self.user, procedure, &raw mut call) };
        let CCall { writer, finished, fault, call } = call;
        drop(writer);
        if let Some(fault) = fault {
            return Err(fault.into());
        }
        match (code, finished) {
            (0, Some(finished)) => Ok(finished),
            (0, None) if call.is_one_way() => Ok(call.finish_oneway()),
            (0, None) => Err(Fault::new(Fault::DROPPED, "the server sent no reply").into()),
            (1, _) => Err(DispatchError::UnknownProcedure(procedure)),
            (2, _) => Err(DispatchError::Refused("the arguments do not decode".into())),
            (code, _) => {
                let text = format!("the handler returned {code}");
                Err(Fault::with_text(Fault::FAILED, text).into())
            }
        }
    }
}

/// # Safety
/// As `shrimp_rpc_serve`.
unsafe fn start(
    name: *const c_char,
    program: u32,
    version: u32,
    dispatch: Option<CDispatch>,
    user: *mut c_void,
) -> Result<Server, Code> {
    // SAFETY: passed on.
    let (Some(name), Some(dispatch)) = (unsafe { text(name) }, dispatch) else {
        return Err(Code::Invalid);
    };
    let target = Target { dispatch, user };
    Server::builder(name)
        .raw_program(program, version, move |procedure, call| target.serve(procedure, call))
        .start()
        .map_err(|_| Code::SystemErr)
}

/// See the header.
///
/// # Safety
/// `name` is a string; `dispatch` may be called with `user` from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_serve(
    name: *const c_char,
    program: u32,
    version: u32,
    dispatch: Option<CDispatch>,
    user: *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    entry(|| match unsafe { start(name, program, version, dispatch, user) } {
        Ok(server) => {
            server.run();
            Code::Ok
        }
        Err(code) => code,
    })
}

/// See the header.
///
/// # Safety
/// As `shrimp_rpc_serve`; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_server_start(
    name: *const c_char,
    program: u32,
    version: u32,
    dispatch: Option<CDispatch>,
    user: *mut c_void,
    out: *mut *mut CServer,
) -> c_int {
    entry(|| {
        if out.is_null() {
            return Code::Invalid;
        }
        // SAFETY: passed on.
        match unsafe { start(name, program, version, dispatch, user) } {
            Ok(server) => {
                // SAFETY: writable by the caller's word.
                unsafe { out.write(Box::into_raw(Box::new(CServer(server)))) };
                Code::Ok
            }
            Err(code) => code,
        }
    })
}

/// See the header.
///
/// # Safety
/// `server` is NULL or from `shrimp_rpc_server_start`, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_server_stop(server: *mut CServer) {
    if !server.is_null() {
        // SAFETY: made by Box::into_raw.
        let server = unsafe { Box::from_raw(server) };
        entry(|| {
            server.0.stop();
            Code::Ok
        });
    }
}

/// # Safety
/// `call` is NULL or what the dispatch function was given.
unsafe fn served<'a>(call: *mut CCall) -> Option<&'a mut CCall> {
    // SAFETY: by the caller's word.
    unsafe { call.as_mut() }
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given; `at` and `len` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_args(
    call: *mut CCall,
    at: *mut *const c_void,
    len: *mut usize,
) {
    // SAFETY: passed on.
    let (Some(call), false) = (unsafe { served(call) }, at.is_null() || len.is_null()) else {
        return;
    };
    let request = call.call.request();
    // SAFETY: writable by the caller's word.
    unsafe { at.write(request.as_ptr().as_ptr().cast()) };
    // SAFETY: as above.
    unsafe { len.write(request.len()) };
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_inplace(
    call: *mut CCall,
    offset: usize,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: passed on.
    let block = unsafe { served(call) }.and_then(|call| call.call.block_at(offset, bytes));
    block.map_or(std::ptr::null_mut(), |block| block.as_ptr().as_ptr().cast())
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given; `distance` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_out(
    call: *mut CCall,
    bytes: usize,
    distance: *mut u32,
) -> *mut c_void {
    // SAFETY: passed on.
    let (Some(call), false) = (unsafe { served(call) }, distance.is_null()) else {
        return std::ptr::null_mut();
    };
    match call.call.out_bytes(bytes) {
        Ok((block, below)) => {
            // SAFETY: writable by the caller's word.
            unsafe { distance.write(below) };
            block.as_ptr().as_ptr().cast()
        }
        Err(_) => std::ptr::null_mut(),
    }
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given; `at` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_reply(
    call: *mut CCall,
    plain: usize,
    at: *mut *mut c_void,
) -> c_int {
    entry(|| {
        // SAFETY: passed on.
        let (Some(call), false) = (unsafe { served(call) }, at.is_null()) else {
            return Code::Invalid;
        };
        call.writer = None;
        let shared: *const ServerCall<'static> = &raw const call.call;
        // SAFETY: the call stays where it is while the dispatch function runs, and the writer
        // is dropped before it.
        match unsafe { &*shared }.reply(plain) {
            Ok(writer) => {
                // SAFETY: writable by the caller's word.
                unsafe { at.write(writer.as_ptr().as_ptr().cast()) };
                call.writer = Some(writer);
                Code::Ok
            }
            Err(_) => Code::TooLong,
        }
    })
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_reply_send(call: *mut CCall) -> c_int {
    entry(|| {
        // SAFETY: passed on.
        let Some(call) = (unsafe { served(call) }) else { return Code::Invalid };
        let Some(mut writer) = call.writer.take() else { return Code::Busy };
        writer.assume_written();
        match writer.send() {
            Ok(finished) => {
                call.finished = Some(finished);
                Code::Ok
            }
            Err(_) => Code::SystemErr,
        }
    })
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given; `words` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_reply_fault(
    call: *mut CCall,
    number: u32,
    words: *const c_char,
) -> c_int {
    entry(|| {
        // SAFETY: passed on.
        let Some(call) = (unsafe { served(call) }) else { return Code::Invalid };
        // SAFETY: passed on.
        let words = unsafe { text(words) }.unwrap_or_default();
        call.fault = Some(Fault::with_text(number, words.to_owned()));
        Code::Ok
    })
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_caller_uid(call: *const CCall) -> u32 {
    // SAFETY: by the caller's word.
    unsafe { call.as_ref() }.map_or(u32::MAX, |call| call.call.context().uid())
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_caller_pid(call: *const CCall) -> u32 {
    // SAFETY: by the caller's word.
    unsafe { call.as_ref() }.map_or(u32::MAX, |call| call.call.context().pid())
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_is_cancelled(call: *const CCall) -> c_int {
    // SAFETY: by the caller's word.
    unsafe { call.as_ref() }.map_or(1, |call| c_int::from(call.call.context().is_cancelled()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_text_and_its_line_in_the_header() {
        let header = include_str!("../include/shrimp_rpc.h");
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
        assert_eq!(TEXTS.len(), Code::Cancelled as usize + 1);
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
            assert_eq!(shrimp_rpc_reply(null.cast(), 1, &raw mut at), invalid);
            shrimp_rpc_close(null.cast());
            shrimp_rpc_end(null.cast());
            shrimp_rpc_server_stop(null.cast());
            assert!(shrimp_rpc_inplace(null.cast(), 0, 0).is_null());
        }
    }
}
