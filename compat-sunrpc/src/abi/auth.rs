//! `<rpc/auth.h>`.

use super::{Bool, Xdr, XdrProc};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct opaque_auth`: flavor and up to 400 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct OpaqueAuth {
    pub(crate) oa_flavor: c_int,
    pub(crate) oa_base: *mut c_char,
    pub(crate) oa_length: c_uint,
}

impl OpaqueAuth {
    /// `_null_auth`.
    pub(crate) const NULL: OpaqueAuth =
        OpaqueAuth { oa_flavor: 0, oa_base: std::ptr::null_mut(), oa_length: 0 };
}

/// `AUTH`: a client's credentials.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Auth {
    pub(crate) ah_cred: OpaqueAuth,
    pub(crate) ah_verf: OpaqueAuth,
    pub(crate) ah_key: [u32; 2],
    pub(crate) ah_ops: *const AuthOps,
    pub(crate) ah_private: *mut c_void,
}

/// `struct auth_ops`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct AuthOps {
    pub(crate) ah_nextverf: unsafe extern "C" fn(*mut Auth),
    pub(crate) ah_marshal: unsafe extern "C" fn(*mut Auth, *mut Xdr) -> Bool,
    pub(crate) ah_validate: unsafe extern "C" fn(*mut Auth, *mut OpaqueAuth) -> Bool,
    pub(crate) ah_refresh: unsafe extern "C" fn(*mut Auth, *mut c_void) -> Bool,
    pub(crate) ah_destroy: unsafe extern "C" fn(*mut Auth),
    pub(crate) ah_wrap:
        unsafe extern "C" fn(*mut Auth, *mut Xdr, Option<XdrProc>, *mut c_void) -> Bool,
    pub(crate) ah_unwrap:
        unsafe extern "C" fn(*mut Auth, *mut Xdr, Option<XdrProc>, *mut c_void) -> Bool,
}

const _: () = assert!(size_of::<OpaqueAuth>() == 24);
const _: () = assert!(size_of::<Auth>() == 72 && std::mem::offset_of!(Auth, ah_ops) == 56);
const _: () = assert!(size_of::<AuthOps>() == 56);
