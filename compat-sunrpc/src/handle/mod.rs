//! XDR handles over channels: libtirpc's and rpcgen's procedures encode into a [`Writer`] and
//! decode from a [`Source`], without an intermediate buffer (R3).
//!
//! [`Writer`]: crate::channel::Writer
//! [`Source`]: crate::channel::Source

mod decode;
mod encode;
pub(crate) mod heads;
mod in_place;

pub(crate) use decode::decoder;
pub(crate) use encode::encoder;
pub(crate) use in_place::bytes as bytes_in_place;

use crate::abi::{Bool, FALSE, TRUE, Xdr, XdrOps, XdrProc};
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

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

/// The operations of a handle that has nothing to read and takes nothing.
const NOTHING: XdrOps = XdrOps {
    x_getlong: get_no_long,
    x_putlong: put_no_long,
    x_getbytes: get_no_bytes,
    x_putbytes: put_no_bytes,
    x_getpostn: no_position,
    x_setpostn: set_no_position,
    x_inline: nothing_inline,
    x_destroy: nothing_to_destroy,
    x_control: no_control,
};

unsafe extern "C" fn get_no_long(_: *mut Xdr, _: *mut c_long) -> Bool {
    FALSE
}

unsafe extern "C" fn put_no_long(_: *mut Xdr, _: *const c_long) -> Bool {
    FALSE
}

unsafe extern "C" fn get_no_bytes(_: *mut Xdr, _: *mut c_char, _: c_uint) -> Bool {
    FALSE
}

unsafe extern "C" fn put_no_bytes(_: *mut Xdr, _: *const c_char, _: c_uint) -> Bool {
    FALSE
}

unsafe extern "C" fn no_position(_: *mut Xdr) -> c_uint {
    0
}

unsafe extern "C" fn set_no_position(_: *mut Xdr, _: c_uint) -> Bool {
    FALSE
}

unsafe extern "C" fn nothing_inline(_: *mut Xdr, _: c_uint) -> *mut i32 {
    std::ptr::null_mut()
}

unsafe extern "C" fn nothing_to_destroy(_: *mut Xdr) {}

unsafe extern "C" fn no_control(_: *mut Xdr, _: c_int, _: *mut c_void) -> Bool {
    FALSE
}
