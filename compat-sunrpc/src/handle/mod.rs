//! XDR handles over channels: libtirpc's and rpcgen's procedures encode into a [`Writer`] and
//! decode from a record, without an intermediate buffer (R3).
//!
//! [`Writer`]: crate::channel::Writer

mod decode;
mod encode;

pub(crate) use decode::{Source, decoder};
pub(crate) use encode::{encoder, put_word};

use crate::abi::{Bool, FALSE, TRUE, Xdr, XdrProc};
use std::ffi::{c_int, c_void};

/// `xdr_void`.
pub(crate) unsafe extern "C" fn void(_: *mut Xdr, _: *mut c_void) -> Bool {
    TRUE
}

/// Calls a procedure of the program's; a null one fails.
///
/// # Safety
/// `at` must be what `procedure` expects.
pub(crate) unsafe fn call(procedure: Option<XdrProc>, xdr: *mut Xdr, at: *mut c_void) -> Bool {
    match procedure {
        // SAFETY: passed on.
        Some(procedure) => unsafe { procedure(xdr, at) },
        None => FALSE,
    }
}

/// A handle in the state in which procedures free what they allocated.
pub(crate) fn freer() -> Xdr {
    let mut xdr = decode::empty();
    xdr.x_op = crate::abi::op::FREE;
    xdr
}

unsafe extern "C" fn nothing_to_destroy(_: *mut Xdr) {}

unsafe extern "C" fn no_control(_: *mut Xdr, _: c_int, _: *mut c_void) -> Bool {
    FALSE
}
