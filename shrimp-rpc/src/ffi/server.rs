//! Servers, and calls as the dispatch function has them.

use super::{Code, entry, failure, text};
use crate::error::{DispatchError, Fault};
use crate::server::{
    Context, DeferredCall, DeferredReply, Finished, ReplyWriter, Server, ServerCall,
};
use std::cell::OnceCell;
use std::ffi::{CString, c_char, c_int, c_void};
use vmmc::mem::View;

/// `shrimp_rpc_dispatch`.
pub type CDispatch = unsafe extern "C" fn(*mut c_void, u32, *mut CCall) -> c_int;

/// `shrimp_rpc_call`. Lives on the worker's stack while the C function runs; one that was put off, in a box until it
/// is answered.
#[derive(Debug)]
pub struct CCall {
    /// Borrows `call`; dropped before it.
    writer: Option<CWriter>,
    finished: Option<Finished>,
    fault: Option<Fault>,
    /// The caller's node as C has it, once it was asked for.
    node: OnceCell<CString>,
    call: CState,
}

#[derive(Debug)]
enum CState {
    /// The C function runs.
    Now(ServerCall<'static>),
    /// It is put off, and this is what was made of it.
    Later(DeferredCall),
    /// It was put off, and this is what was left of it.
    Gone,
}

#[derive(Debug)]
enum CWriter {
    Now(ReplyWriter<'static>),
    Later(DeferredReply<'static>),
}

impl CState {
    fn context(&self) -> Option<&Context> {
        match self {
            CState::Now(call) => Some(call.context()),
            CState::Later(call) => Some(call.context()),
            CState::Gone => None,
        }
    }

    fn request(&self) -> Option<View<'_>> {
        match self {
            CState::Now(call) => Some(call.request()),
            CState::Later(call) => Some(call.request()),
            CState::Gone => None,
        }
    }

    fn block_at(&self, offset: usize, bytes: usize) -> Option<View<'_>> {
        match self {
            CState::Now(call) => call.block_at(offset, bytes),
            CState::Later(call) => call.block_at(offset, bytes),
            CState::Gone => None,
        }
    }

    fn out_bytes(&self, bytes: usize) -> Option<(View<'_>, u32)> {
        match self {
            CState::Now(call) => call.out_bytes(bytes).ok(),
            CState::Later(call) => call.out_bytes(bytes).ok(),
            CState::Gone => None,
        }
    }
}

impl CCall {
    /// Nothing was done with it yet.
    fn new(call: CState) -> CCall {
        CCall { writer: None, finished: None, fault: None, node: OnceCell::new(), call }
    }

    /// Whether nothing more can be said to the client: it was answered, or is told why not, or has gone.
    fn is_over(&self) -> bool {
        match &self.call {
            CState::Later(call) => call.is_answered() || !call.context().is_client_there(),
            CState::Now(_) | CState::Gone => false,
        }
    }
}

/// `shrimp_rpc_server`.
#[derive(Debug)]
pub struct CServer(pub(super) Server);

/// The C function and its pointer, which the C program allows any thread to use.
pub(super) struct Target {
    pub(super) dispatch: CDispatch,
    pub(super) user: *mut c_void,
}

// SAFETY: the header says that calls come from threads of the library; the program answers for what
// its pointer leads to.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    pub(super) fn serve(
        &self,
        procedure: u32,
        call: ServerCall<'_>,
    ) -> Result<Finished, DispatchError> {
        // SAFETY: only the lifetime changes: the value stays in this function's frame, and C
        // keeps no pointer to it after the function has returned.
        let call = unsafe { std::mem::transmute::<ServerCall<'_>, ServerCall<'static>>(call) };
        let mut call = CCall::new(CState::Now(call));
        // SAFETY: the function and its pointer are the program's; `call` lives meanwhile.
        let code = unsafe { (self.dispatch)(self.user, procedure, &raw mut call) };
        let CCall { writer, finished, fault, call, .. } = call;
        drop(writer);
        let call = match (call, finished) {
            (CState::Now(call), finished) => (call, finished),
            // Put off: it is answered later, whatever the function says now.
            (_, Some(finished)) => return Ok(finished),
            (_, None) => unreachable!("what is put off is finished here"),
        };
        if let Some(fault) = fault {
            return Err(fault.into());
        }
        let (call, finished) = call;
        match (code, finished) {
            (0, Some(finished)) => Ok(finished),
            (0, None) if call.is_one_way() => Ok(call.finish_oneway()),
            (0, None) => Err(Fault::new(Fault::DROPPED, "the server sent no reply").into()),
            (1, _) => Err(DispatchError::UnknownProcedure(procedure)),
            (2, _) => Err(DispatchError::Refused("the arguments do not decode".into())),
            (4, _) => {
                let text = "a value is none of its type, or longer than the interface allows";
                Err(DispatchError::RefusedResults(text.into()))
            }
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
        .map_err(|error| {
            failure::remember(&error);
            Code::of_serve(&error)
        })
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
    let request = call.call.request().unwrap_or(View::empty());
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
        Some((block, below)) => {
            // SAFETY: writable by the caller's word.
            unsafe { distance.write(below) };
            block.as_ptr().as_ptr().cast()
        }
        None => std::ptr::null_mut(),
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
        if call.fault.is_some() {
            return Code::Fault;
        }
        let shared: *const CState = &raw const call.call;
        // SAFETY: the call stays where it is while the dispatch function runs, or until it is answered if it was put off;
        // the writer is dropped before it, and before it is put off.
        let writer = match unsafe { &*shared } {
            CState::Now(call) => call.reply(plain).map(CWriter::Now).ok(),
            CState::Later(call) => call.reply(plain).map(CWriter::Later).ok(),
            CState::Gone => return Code::Invalid,
        };
        let place = match &writer {
            Some(CWriter::Now(writer)) => writer.as_ptr(),
            Some(CWriter::Later(writer)) => writer.as_ptr(),
            None => return Code::TooLong,
        };
        // SAFETY: writable by the caller's word.
        unsafe { at.write(place.as_ptr().cast()) };
        call.writer = writer;
        Code::Ok
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
        let Some(this) = (unsafe { served(call) }) else { return Code::Invalid };
        match this.writer.take() {
            _ if this.fault.is_some() => Code::Fault,
            None => Code::Busy,
            Some(CWriter::Now(mut writer)) => {
                writer.assume_written();
                match writer.send() {
                    Ok(finished) => {
                        this.finished = Some(finished);
                        Code::Ok
                    }
                    Err(_) => Code::SystemErr,
                }
            }
            Some(CWriter::Later(mut writer)) => {
                writer.assume_written();
                if writer.send().is_err() && !this.is_over() {
                    return Code::SystemErr; // it is still the program's
                }
                // SAFETY: one that was put off is in a box, and not used again.
                drop(unsafe { Box::from_raw(call) });
                Code::Ok
            }
        }
    })
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_defer(call: *mut CCall) -> *mut CCall {
    let mut later = std::ptr::null_mut();
    entry(|| {
        // SAFETY: passed on.
        let Some(this) = (unsafe { served(call) }) else { return Code::Invalid };
        // It borrows the call.
        this.writer = None;
        match std::mem::replace(&mut this.call, CState::Gone) {
            // A client may say of any call that it is one-way: the program need not expect that here. The answer
            // tells the client that its buffer is free.
            CState::Now(call) if this.finished.is_none() && this.fault.is_none() => {
                let (call, finished) = call.defer();
                this.finished = Some(finished);
                later = Box::into_raw(Box::new(CCall::new(CState::Later(call))));
                Code::Ok
            }
            other => {
                this.call = other;
                Code::Invalid
            }
        }
    });
    later
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
        let Some(this) = (unsafe { served(call) }) else { return Code::Invalid };
        // SAFETY: passed on.
        let words = unsafe { text(words) }.unwrap_or_default();
        let fault = Fault::with_text(number, words.to_owned());
        match this.call {
            CState::Gone => return Code::Invalid,
            CState::Now(_) if this.finished.is_some() => return Code::Busy,
            CState::Now(_) => {
                this.fault = Some(fault);
                return Code::Ok;
            }
            CState::Later(_) => {}
        }
        // SAFETY: one that was put off is in a box, and not used again.
        let CCall { writer, call, .. } = *unsafe { Box::from_raw(call) };
        drop(writer);
        match call {
            // It is over, whether its client was there or not.
            CState::Later(call) => {
                let _ = call.fault(fault);
                Code::Ok
            }
            CState::Now(_) | CState::Gone => unreachable!("looked at above"),
        }
    })
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_caller_uid(call: *const CCall) -> u32 {
    // SAFETY: by the caller's word.
    unsafe { call.as_ref() }.and_then(|call| call.call.context()).map_or(u32::MAX, Context::uid)
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_caller_pid(call: *const CCall) -> u32 {
    // SAFETY: by the caller's word.
    unsafe { call.as_ref() }.and_then(|call| call.call.context()).map_or(u32::MAX, Context::pid)
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_is_cancelled(call: *const CCall) -> c_int {
    // SAFETY: by the caller's word.
    let context = unsafe { call.as_ref() }.and_then(|call| call.call.context());
    context.map_or(1, |context| c_int::from(context.is_cancelled()))
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_caller_node(call: *const CCall) -> *const c_char {
    // SAFETY: by the caller's word.
    let call = unsafe { call.as_ref() };
    let named = call.and_then(|call| Some((call, call.call.context()?.node()?)));
    named.map_or(std::ptr::null(), |(call, node)| {
        // A name of the cluster file has no NUL.
        call.node.get_or_init(|| CString::new(node).unwrap_or_default()).as_ptr()
    })
}

/// See the header.
///
/// # Safety
/// `call` is what the dispatch function was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_time_left(call: *const CCall) -> u64 {
    // SAFETY: by the caller's word.
    let Some(context) = (unsafe { call.as_ref() }).and_then(|call| call.call.context()) else {
        return 0;
    };
    let left = context.time_left().map(|left| u64::try_from(left.as_nanos()));
    left.map_or(u64::MAX, |left| left.unwrap_or(u64::MAX))
}
