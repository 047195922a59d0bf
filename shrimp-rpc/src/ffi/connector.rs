//! Clients with settings of their own.

use super::client::{CBinding, opened};
use super::{Code, entry, text, token};
use crate::client::{Binding, BindingBuilder};
use std::ffi::{c_char, c_int};
use std::time::Duration;

/// `shrimp_rpc_connector`.
#[derive(Debug)]
pub struct CConnector {
    /// `None` only while a function changes it.
    builder: Option<BindingBuilder>,
}

/// A client in C as it is unless it says otherwise: each of its threads has a binding of its own.
pub(super) fn builder(name: &str, program: u32, version: u32) -> BindingBuilder {
    Binding::builder(name, program, version).lanes(1)
}

/// See the header.
///
/// # Safety
/// `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_connector_new(
    name: *const c_char,
    program: u32,
    version: u32,
) -> *mut CConnector {
    let mut made = std::ptr::null_mut();
    entry(|| {
        // SAFETY: passed on.
        let Some(name) = (unsafe { text(name) }) else { return Code::Invalid };
        let builder = Some(builder(name, program, version));
        made = Box::into_raw(Box::new(CConnector { builder }));
        Code::Ok
    });
    made
}

/// Changes a connector.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_connector_new`.
unsafe fn change(
    this: *mut CConnector,
    change: impl FnOnce(BindingBuilder) -> BindingBuilder,
) -> c_int {
    entry(|| {
        // SAFETY: by the caller's word.
        let Some(this) = (unsafe { this.as_mut() }) else { return Code::Invalid };
        let Some(builder) = this.builder.take() else { return Code::Invalid };
        this.builder = Some(change(builder));
        Code::Ok
    })
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_connector_new`; `secret` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_connector_token(
    this: *mut CConnector,
    secret: *const u8,
) -> c_int {
    // SAFETY: passed on.
    let Some(token) = (unsafe { token(secret) }) else { return Code::Invalid as c_int };
    // SAFETY: passed on.
    unsafe { change(this, |builder| builder.token(token)) }
}

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_connector_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_connector_set(
    this: *mut CConnector,
    option: c_int,
    value: u64,
) -> c_int {
    let bytes = usize::try_from(value).unwrap_or(usize::MAX);
    let time = Duration::from_millis(value);
    let set = |builder: BindingBuilder| match option {
        0 => builder.buffer_len(bytes),
        1 => builder.call_max(bytes),
        2 => builder.connect_timeout(time),
        3 => builder.lanes(bytes),
        _ => builder.timeout((value > 0).then_some(time)),
    };
    if !(0..=4).contains(&option) || option == 3 && bytes > LANES_MAX {
        return Code::Invalid as c_int;
    }
    // SAFETY: passed on.
    unsafe { change(this, set) }
}

/// More lanes than any program has threads. Each takes some hundred bytes before it is bound.
const LANES_MAX: usize = 65_536;

/// See the header.
///
/// # Safety
/// `this` is from `shrimp_rpc_connector_new`, and not used again; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_connector_open(
    this: *mut CConnector,
    out: *mut *mut CBinding,
) -> c_int {
    entry(|| {
        if this.is_null() {
            return Code::Invalid;
        }
        // SAFETY: made by Box::into_raw.
        let this = unsafe { Box::from_raw(this) };
        let Some(builder) = this.builder else { return Code::Invalid };
        // SAFETY: passed on.
        unsafe { opened(builder, out) }
    })
}

/// See the header.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_connector_new`, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_connector_free(this: *mut CConnector) {
    if !this.is_null() {
        // SAFETY: made by Box::into_raw.
        drop(unsafe { Box::from_raw(this) });
    }
}
