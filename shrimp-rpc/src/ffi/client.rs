//! Bindings and calls.

use super::{Code, connector, entry, failure, meaning, text, token};
use crate::client::{Binding, Canceller, Reply, Request};
use crate::error::{CallError, ConnectError};
use std::ffi::{CString, c_char, c_int, c_void};
use std::time::Duration;
use vmmc::Token;

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
    /// None, and the next one has a limit of its own.
    Limited(Option<Duration>),
    Writing(Request<'static>),
    Reading(Reply<'static>),
}

impl CBinding {
    /// Hands a binding to C. It cancels its own calls alone, whatever others share its lanes.
    fn made(binding: &Binding) -> *mut CBinding {
        let (call, error) = (CCallState::None, CString::default());
        let binding = Box::new(binding.group());
        Box::into_raw(Box::new(CBinding { call, error, fault: 0, binding }))
    }

    #[inline]
    fn begin(&mut self, procedure: u32, len: usize) -> Result<*mut c_void, Code> {
        let shared: *const Binding = &*self.binding;
        // SAFETY: the box does not move, and the request is dropped before it (field order).
        let shared: &'static Binding = unsafe { &*shared };
        match shared.request(procedure, len, 0) {
            Ok(request) => {
                let start = request.as_ptr();
                // Taken before the move: it points into the lane or the buffer, neither of which moves.
                self.call = CCallState::Writing(request);
                Ok(start.as_ptr().cast())
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// A call begins where none is to begin, or one that has a limit of its own.
    #[cold]
    fn begin_rare(&mut self, procedure: u32, len: usize) -> Result<*mut c_void, Code> {
        let CCallState::Limited(limit) = self.call else { return Err(Code::Busy) };
        self.call = CCallState::None;
        let usual = self.binding.timeout();
        self.binding.set_timeout(limit);
        let begun = self.begin(procedure, len);
        self.binding.set_timeout(usual);
        begun
    }

    fn failed(&mut self, error: &CallError) -> Code {
        if let CallError::Fault(fault) = error {
            self.fault = fault.number();
        }
        self.error = failure::text_of(error);
        Code::of_call(error)
    }
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
    // SAFETY: passed on.
    entry(|| unsafe { connect(name, program, version, None, out) })
}

/// See the header.
///
/// # Safety
/// As `shrimp_rpc_connect`; `secret` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_connect_with_token(
    name: *const c_char,
    program: u32,
    version: u32,
    secret: *const u8,
    out: *mut *mut CBinding,
) -> c_int {
    // SAFETY: passed on.
    entry(|| match unsafe { token(secret) } {
        // SAFETY: passed on.
        Some(token) => unsafe { connect(name, program, version, Some(token), out) },
        None => Code::Invalid,
    })
}

/// # Safety
/// As `shrimp_rpc_connect`.
unsafe fn connect(
    name: *const c_char,
    program: u32,
    version: u32,
    token: Option<Token>,
    out: *mut *mut CBinding,
) -> Code {
    // SAFETY: passed on.
    let (Some(name), false) = (unsafe { text(name) }, out.is_null()) else {
        return Code::Invalid;
    };
    let builder = connector::builder(name, program, version);
    let builder = match token {
        Some(token) => builder.token(token),
        None => builder,
    };
    // SAFETY: passed on.
    unsafe { opened(|| builder.connect(), out) }
}

/// Connects, and hands the binding to C.
///
/// # Safety
/// `out` is NULL or writable.
pub(super) unsafe fn opened(
    connect: impl FnOnce() -> Result<Binding, ConnectError>,
    out: *mut *mut CBinding,
) -> Code {
    if out.is_null() {
        return Code::Invalid;
    }
    match connect() {
        Ok(binding) => {
            // SAFETY: writable by the caller's word.
            unsafe { out.write(CBinding::made(&binding)) };
            Code::Ok
        }
        Err(error) => {
            failure::remember(&error);
            Code::of_connect(&error)
        }
    }
}

/// See the header.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_connect`; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_share(this: *mut CBinding, out: *mut *mut CBinding) -> c_int {
    entry(|| {
        // SAFETY: passed on.
        let (Some(this), false) = (unsafe { binding(this) }, out.is_null()) else {
            return Code::Invalid;
        };
        // SAFETY: writable by the caller's word.
        unsafe { out.write(CBinding::made(&this.binding)) };
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

/// `shrimp_rpc_canceller`.
#[derive(Debug)]
pub struct CCanceller(Canceller);

/// See the header.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_canceller_new(this: *mut CBinding) -> *mut CCanceller {
    // SAFETY: passed on.
    let this = unsafe { binding(this) };
    let canceller = this.map(|this| Box::new(CCanceller(this.binding.canceller())));
    canceller.map_or(std::ptr::null_mut(), Box::into_raw)
}

/// See the header.
///
/// # Safety
/// `canceller` is NULL or from `shrimp_rpc_canceller_new`; other threads may use it, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_cancel(canceller: *const CCanceller) {
    // SAFETY: by the caller's word.
    if let Some(canceller) = unsafe { canceller.as_ref() } {
        entry(|| {
            canceller.0.cancel();
            Code::Ok
        });
    }
}

/// See the header.
///
/// # Safety
/// `canceller` is NULL or from `shrimp_rpc_canceller_new`, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_canceller_free(canceller: *mut CCanceller) {
    if !canceller.is_null() {
        // SAFETY: made by Box::into_raw.
        drop(unsafe { Box::from_raw(canceller) });
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
        this.binding.set_timeout(limit(milliseconds));
    }
}

/// See the header.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_next_timeout(this: *mut CBinding, milliseconds: u64) -> c_int {
    // SAFETY: passed on.
    let Some(this) = (unsafe { binding(this) }) else { return Code::Invalid as c_int };
    if !matches!(this.call, CCallState::None | CCallState::Limited(_)) {
        return Code::Busy as c_int;
    }
    this.call = CCallState::Limited(limit(milliseconds));
    Code::Ok as c_int
}

/// A time limit as C has it.
fn limit(milliseconds: u64) -> Option<Duration> {
    (milliseconds > 0).then(|| Duration::from_millis(milliseconds))
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
pub unsafe extern "C" fn shrimp_rpc_failed(this: *mut CBinding, status: c_int) -> c_int {
    // SAFETY: passed on.
    if let Some(this) = unsafe { binding(this) } {
        meaning(status).clone_into(&mut this.error);
    }
    status
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
        if !len.is_multiple_of(crate::layout::UNIT) {
            return Code::Invalid;
        }
        let begun = match this.call {
            CCallState::None => this.begin(procedure, len),
            _ => this.begin_rare(procedure, len),
        };
        match begun {
            Ok(start) => {
                // SAFETY: writable by the caller's word.
                unsafe { at.write(start) };
                Code::Ok
            }
            Err(code) => code,
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
pub unsafe extern "C" fn shrimp_rpc_inout_at(
    this: *mut CBinding,
    offset: usize,
    bytes: usize,
) -> *const c_void {
    let mut at = std::ptr::null();
    entry(|| {
        // SAFETY: passed on.
        let Some(this) = (unsafe { binding(this) }) else { return Code::Invalid };
        let CCallState::Reading(reply) = &this.call else { return Code::Busy };
        match reply.inout_block(offset, bytes) {
            Ok(block) => {
                // Into memory that the lane or the box of the reply holds.
                at = block.as_ptr().as_ptr().cast_const().cast();
                Code::Ok
            }
            Err(error) => this.failed(&error),
        }
    });
    at
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
            if !matches!(this.call, CCallState::Limited(_)) {
                this.call = CCallState::None;
            }
            Code::Ok
        });
    }
}
