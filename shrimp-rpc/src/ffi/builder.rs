//! Servers of several programs, with rights and secrets.

use super::making::Making;
use super::server::{CDispatch, CServer, Target};
use super::{Code, entry, failure, text, token};
use crate::server::{Server, ServerBuilder};
use std::ffi::{c_char, c_int, c_uint, c_void};
use vmmc::Who;

/// `shrimp_rpc_builder`.
pub type CBuilder = Making<ServerBuilder>;

/// See the header.
///
/// # Safety
/// `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_builder_new(name: *const c_char) -> *mut CBuilder {
    let mut made = std::ptr::null_mut();
    entry(|| {
        // SAFETY: passed on.
        let Some(name) = (unsafe { text(name) }) else { return Code::Invalid };
        made = Making::begin(Server::builder(name));
        Code::Ok
    });
    made
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_builder_new`; `dispatch` may be called with `user` from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_builder_program(
    this: *mut CBuilder,
    program: u32,
    version: u32,
    dispatch: Option<CDispatch>,
    user: *mut c_void,
) -> c_int {
    let Some(dispatch) = dispatch else { return Code::Invalid as c_int };
    let target = Target { dispatch, user };
    let serve = move |procedure, call: crate::ServerCall<'_>| target.serve(procedure, call);
    // SAFETY: passed on.
    unsafe { Making::change(this, |builder| builder.raw_program(program, version, serve)) }
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_builder_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_builder_allow(
    this: *mut CBuilder,
    who: c_int,
    id: u32,
) -> c_int {
    let who = match who {
        0 => Who::Anyone,
        1 => Who::SameUser,
        2 => Who::User(id),
        3 => Who::Group(id),
        4 => Who::Process(id),
        _ => return Code::Invalid as c_int,
    };
    // SAFETY: passed on.
    unsafe { Making::change(this, |builder| builder.allow(who)) }
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_builder_new`; `secret` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_builder_token(this: *mut CBuilder, secret: *const u8) -> c_int {
    // SAFETY: passed on.
    let Some(token) = (unsafe { token(secret) }) else { return Code::Invalid as c_int };
    // SAFETY: passed on.
    unsafe { Making::change(this, |builder| builder.token(token)) }
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_builder_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_builder_workers(this: *mut CBuilder, workers: c_uint) -> c_int {
    // SAFETY: passed on.
    unsafe { Making::change(this, |builder| builder.workers(workers as usize)) }
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_builder_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_builder_limit(
    this: *mut CBuilder,
    which: c_int,
    most: usize,
) -> c_int {
    let limit = match which {
        0 => ServerBuilder::buffer_max,
        1 => ServerBuilder::call_max,
        2 => ServerBuilder::bindings_max,
        3 => ServerBuilder::bindings_each,
        4 => ServerBuilder::pieces_max,
        _ => return Code::Invalid as c_int,
    };
    // SAFETY: passed on.
    unsafe { Making::change(this, |builder| limit(builder, most)) }
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_builder_new`, and not used again; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_builder_start(
    this: *mut CBuilder,
    out: *mut *mut CServer,
) -> c_int {
    entry(|| {
        // SAFETY: by the caller's word.
        let builder = unsafe { Making::finish(this) };
        let (Some(builder), false) = (builder, out.is_null()) else { return Code::Invalid };
        match builder.start() {
            Ok(server) => {
                // SAFETY: writable by the caller's word.
                unsafe { out.write(Box::into_raw(Box::new(CServer(server)))) };
                Code::Ok
            }
            Err(error) => {
                failure::remember(&error);
                Code::of_serve(&error)
            }
        }
    })
}

/// See the header.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_builder_new`, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_builder_free(this: *mut CBuilder) {
    // SAFETY: by the caller's word.
    drop(unsafe { Making::finish(this) });
}
