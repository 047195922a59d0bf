//! `<rpc/svc.h>`, `svc_auth.h`.

use super::{Bool, OpaqueAuth, RpcMsg, Xdr, XdrProc};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct netbuf`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Netbuf {
    pub(crate) maxlen: c_uint,
    pub(crate) len: c_uint,
    pub(crate) buf: *mut c_void,
}

/// `SVCXPRT`: a server's transport.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Svcxprt {
    pub(crate) xp_fd: c_int,
    pub(crate) xp_port: u16,
    pub(crate) xp_ops: *const XpOps,
    pub(crate) xp_addrlen: c_int,
    pub(crate) xp_raddr: [u8; 28],
    pub(crate) xp_ops2: *const XpOps2,
    pub(crate) xp_tp: *mut c_char,
    pub(crate) xp_netid: *mut c_char,
    pub(crate) xp_ltaddr: Netbuf,
    pub(crate) xp_rtaddr: Netbuf,
    pub(crate) xp_verf: OpaqueAuth,
    pub(crate) xp_p1: *mut c_void,
    pub(crate) xp_p2: *mut c_void,
    pub(crate) xp_p3: *mut c_void,
    pub(crate) xp_type: c_int,
}

impl Svcxprt {
    /// All zero and null.
    pub(crate) fn zeroed() -> Svcxprt {
        let netbuf = Netbuf { maxlen: 0, len: 0, buf: std::ptr::null_mut() };
        Svcxprt {
            xp_fd: -1,
            xp_port: 0,
            xp_ops: std::ptr::null(),
            xp_addrlen: 0,
            xp_raddr: [0; 28],
            xp_ops2: std::ptr::null(),
            xp_tp: std::ptr::null_mut(),
            xp_netid: std::ptr::null_mut(),
            xp_ltaddr: netbuf,
            xp_rtaddr: netbuf,
            xp_verf: OpaqueAuth::NULL,
            xp_p1: std::ptr::null_mut(),
            xp_p2: std::ptr::null_mut(),
            xp_p3: std::ptr::null_mut(),
            xp_type: 0,
        }
    }
}

/// `struct xp_ops`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct XpOps {
    pub(crate) xp_recv: unsafe extern "C" fn(*mut Svcxprt, *mut RpcMsg) -> Bool,
    pub(crate) xp_stat: unsafe extern "C" fn(*mut Svcxprt) -> c_int,
    pub(crate) xp_getargs: unsafe extern "C" fn(*mut Svcxprt, Option<XdrProc>, *mut c_void) -> Bool,
    pub(crate) xp_reply: unsafe extern "C" fn(*mut Svcxprt, *mut RpcMsg) -> Bool,
    pub(crate) xp_freeargs:
        unsafe extern "C" fn(*mut Svcxprt, Option<XdrProc>, *mut c_void) -> Bool,
    pub(crate) xp_destroy: unsafe extern "C" fn(*mut Svcxprt),
}

/// `struct xp_ops2`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct XpOps2 {
    pub(crate) xp_control: unsafe extern "C" fn(*mut Svcxprt, c_uint, *mut c_void) -> Bool,
}

/// `SVCXPRT_EXT`, at `xp_p3`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SvcxprtExt {
    pub(crate) flags: c_int,
    pub(crate) xp_auth: Svcauth,
}

/// `SVCAUTH`: how the arguments and results of the current call are wrapped.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Svcauth {
    pub(crate) svc_ah_ops: *const SvcauthOps,
    pub(crate) svc_ah_private: *mut c_void,
}

/// `struct svc_auth_ops`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SvcauthOps {
    pub(crate) svc_ah_wrap:
        unsafe extern "C" fn(*mut Svcauth, *mut Xdr, Option<XdrProc>, *mut c_void) -> Bool,
    pub(crate) svc_ah_unwrap:
        unsafe extern "C" fn(*mut Svcauth, *mut Xdr, Option<XdrProc>, *mut c_void) -> Bool,
    pub(crate) svc_ah_destroy: unsafe extern "C" fn(*mut Svcauth) -> Bool,
}

/// `enum xprt_stat`.
pub(crate) mod xprt {
    pub(crate) const DIED: i32 = 0;
    pub(crate) const MOREREQS: i32 = 1;
    pub(crate) const IDLE: i32 = 2;
}

const _: () = assert!(size_of::<Svcxprt>() == 160);
const _: () = assert!(std::mem::offset_of!(Svcxprt, xp_ops2) == 48);
const _: () = assert!(std::mem::offset_of!(Svcxprt, xp_verf) == 104);
const _: () = assert!(std::mem::offset_of!(Svcxprt, xp_p3) == 144);
const _: () = assert!(size_of::<XpOps>() == 48 && size_of::<SvcxprtExt>() == 24);
