//! `<rpc/clnt.h>`, `clnt_stat.h`.

use super::{Auth, Bool, XdrProc};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct timeval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Timeval {
    pub(crate) tv_sec: i64,
    pub(crate) tv_usec: i64,
}

/// `struct rpc_err`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RpcErr {
    /// One of [`stat`].
    pub(crate) re_status: c_int,
    /// The union: errno, `auth_stat`, or the lowest version.
    pub(crate) first: c_int,
    /// The highest version.
    pub(crate) second: c_int,
}

/// `CLIENT`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Client {
    pub(crate) cl_auth: *mut Auth,
    pub(crate) cl_ops: *const ClntOps,
    pub(crate) cl_private: *mut c_void,
    pub(crate) cl_netid: *mut c_char,
    pub(crate) cl_tp: *mut c_char,
}

/// `CLNT_CALL`.
pub(crate) type CallFn = unsafe extern "C" fn(
    *mut Client,
    u32,
    Option<XdrProc>,
    *mut c_void,
    Option<XdrProc>,
    *mut c_void,
    Timeval,
) -> c_int;

/// `struct clnt_ops`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ClntOps {
    pub(crate) cl_call: CallFn,
    pub(crate) cl_abort: unsafe extern "C" fn(*mut Client),
    pub(crate) cl_geterr: unsafe extern "C" fn(*mut Client, *mut RpcErr),
    pub(crate) cl_freeres: unsafe extern "C" fn(*mut Client, Option<XdrProc>, *mut c_void) -> Bool,
    pub(crate) cl_destroy: unsafe extern "C" fn(*mut Client),
    pub(crate) cl_control: unsafe extern "C" fn(*mut Client, c_uint, *mut c_void) -> Bool,
}

/// `enum clnt_stat`, as far as we give it ourselves.
pub(crate) mod stat {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const CANTENCODEARGS: i32 = 1;
    pub(crate) const CANTDECODERES: i32 = 2;
    pub(crate) const CANTSEND: i32 = 3;
    pub(crate) const CANTRECV: i32 = 4;
    pub(crate) const TIMEDOUT: i32 = 5;
    pub(crate) const AUTHERROR: i32 = 7;
    /// `AUTH_INVALIDRESP` of `enum auth_stat`.
    pub(crate) const AUTH_INVALIDRESP: i32 = 6;
}

/// Requests of `clnt_control`.
pub(crate) mod control {
    pub(crate) const SET_TIMEOUT: u32 = 1;
    pub(crate) const GET_TIMEOUT: u32 = 2;
    pub(crate) const GET_XID: u32 = 10;
    pub(crate) const SET_XID: u32 = 11;
    pub(crate) const GET_VERS: u32 = 12;
    pub(crate) const SET_VERS: u32 = 13;
    pub(crate) const GET_PROG: u32 = 14;
    pub(crate) const SET_PROG: u32 = 15;
}

const _: () = assert!(size_of::<Client>() == 40 && size_of::<ClntOps>() == 48);
const _: () = assert!(size_of::<RpcErr>() == 12);
