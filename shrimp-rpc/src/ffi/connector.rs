//! Clients with settings of their own.

use super::client::{CBinding, opened};
use super::making::Making;
use super::{Code, entry, text, token};
use crate::client::{Binding, BindingBuilder};
use crate::config::Settings;
use crate::error::ConnectError;
use std::ffi::{c_char, c_int};
use std::time::Duration;

/// `shrimp_rpc_connector`.
pub type CConnector = Making<BindingBuilder>;

/// A client in C as it is unless it, or the environment, says otherwise: each of its threads has a binding of its own.
pub(super) fn builder(name: &str, program: u32, version: u32) -> BindingBuilder {
    let lanes = Settings::lanes_from_env().unwrap_or(1);
    Binding::builder(name, program, version).lanes(lanes.min(LANES_MAX))
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
        made = Making::begin(builder(name, program, version));
        Code::Ok
    });
    made
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
    unsafe { Making::change(this, |builder| builder.token(token)) }
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
    unsafe { Making::change(this, set) }
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
    // SAFETY: passed on.
    unsafe { open(this, BindingBuilder::connect, out) }
}

/// See the header.
///
/// # Safety
/// As `shrimp_rpc_connector_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_connector_open_later(
    this: *mut CConnector,
    out: *mut *mut CBinding,
) -> c_int {
    // SAFETY: passed on.
    unsafe { open(this, BindingBuilder::connect_later, out) }
}

/// # Safety
/// As `shrimp_rpc_connector_open`.
unsafe fn open(
    this: *mut CConnector,
    connect: fn(BindingBuilder) -> Result<Binding, ConnectError>,
    out: *mut *mut CBinding,
) -> c_int {
    entry(|| {
        // SAFETY: by the caller's word.
        let Some(builder) = (unsafe { Making::finish(this) }) else { return Code::Invalid };
        // SAFETY: passed on.
        unsafe { opened(|| connect(builder), out) }
    })
}

/// See the header.
///
/// # Safety
/// `this` is NULL or from `shrimp_rpc_connector_new`, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shrimp_rpc_connector_free(this: *mut CConnector) {
    // SAFETY: by the caller's word.
    drop(unsafe { Making::finish(this) });
}
