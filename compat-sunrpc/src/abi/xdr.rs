//! `<rpc/xdr.h>`.

use super::Bool;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

/// `xdrproc_t`: encodes, decodes or frees one value. Variadic in the header; every real one takes
/// a handle and a pointer.
pub(crate) type XdrProc = unsafe extern "C" fn(*mut Xdr, *mut c_void) -> Bool;

/// `enum xdr_op`.
pub(crate) mod op {
    pub(crate) const ENCODE: i32 = 0;
    pub(crate) const DECODE: i32 = 1;
    pub(crate) const FREE: i32 = 2;
}

/// `XDR`: a stream of values.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Xdr {
    pub(crate) x_op: c_int,
    pub(crate) x_ops: *const XdrOps,
    pub(crate) x_public: *mut c_char,
    pub(crate) x_private: *mut c_void,
    pub(crate) x_base: *mut c_void,
    pub(crate) x_handy: c_uint,
}

/// `struct xdr_ops`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct XdrOps {
    pub(crate) x_getlong: unsafe extern "C" fn(*mut Xdr, *mut c_long) -> Bool,
    pub(crate) x_putlong: unsafe extern "C" fn(*mut Xdr, *const c_long) -> Bool,
    pub(crate) x_getbytes: unsafe extern "C" fn(*mut Xdr, *mut c_char, c_uint) -> Bool,
    pub(crate) x_putbytes: unsafe extern "C" fn(*mut Xdr, *const c_char, c_uint) -> Bool,
    pub(crate) x_getpostn: unsafe extern "C" fn(*mut Xdr) -> c_uint,
    pub(crate) x_setpostn: unsafe extern "C" fn(*mut Xdr, c_uint) -> Bool,
    pub(crate) x_inline: unsafe extern "C" fn(*mut Xdr, c_uint) -> *mut i32,
    pub(crate) x_destroy: unsafe extern "C" fn(*mut Xdr),
    pub(crate) x_control: unsafe extern "C" fn(*mut Xdr, c_int, *mut c_void) -> Bool,
}

const _: () = assert!(size_of::<Xdr>() == 48 && std::mem::offset_of!(Xdr, x_handy) == 40);
const _: () = assert!(size_of::<XdrOps>() == 72);
