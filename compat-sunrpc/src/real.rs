//! libtirpc's own functions, found behind ours at their first use. A client linked before there was libtirpc gets
//! glibc's: those have no version by default, and are only found by their version.

use crate::abi::{Auth, Bool, Client, Netbuf, RpcErr, RpcMsg, Svcxprt, Timeval, Xdr};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use vmmc::sync::{AtomicUsize, Ordering};

/// An address looked up once.
struct Symbol {
    name: &'static CStr,
    /// 0: not looked up; 1: not there.
    address: AtomicUsize,
}

impl Symbol {
    const fn new(name: &'static CStr) -> Symbol {
        Symbol { name, address: AtomicUsize::new(0) }
    }

    fn find(&self, from: *mut c_void) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Relaxed);
        let address = if known == 0 {
            // SAFETY: a terminated string; `from` is RTLD_NEXT or RTLD_DEFAULT.
            let found = unsafe { libc::dlsym(from, self.name.as_ptr()) };
            let found = if found.is_null() { 1 } else { found.expose_provenance() };
            self.address.store(found, Ordering::Relaxed);
            found
        } else {
            known
        };
        (address != 1).then(|| std::ptr::with_exposed_provenance_mut(address))
    }

    /// The next one; where there is none, glibc's for old programs.
    fn next_or_old(&self) -> Option<*mut c_void> {
        if let Some(next) = self.find(libc::RTLD_NEXT) {
            return Some(next);
        }
        // SAFETY: terminated strings.
        let old = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), OLD.as_ptr()) };
        (!old.is_null()).then_some(old)
    }

    fn next(&self) -> Option<*mut c_void> {
        self.find(libc::RTLD_NEXT)
    }
}

/// The version of glibc's RPC.
const OLD: &CStr = c"GLIBC_2.2.5";

macro_rules! functions {
    ($find:ident: $($name:ident = $symbol:literal: $type:ty;)*) => {$(
        /// libtirpc's function of this name; `None` when the program has none.
        pub(crate) fn $name() -> Option<$type> {
            static SYMBOL: Symbol = Symbol::new($symbol);
            let address = SYMBOL.$find()?;
            // SAFETY: the symbol has this type in <rpc/rpc.h>, and function pointers are as wide
            // as data pointers here.
            Some(unsafe { std::mem::transmute::<*mut c_void, $type>(address) })
        }
    )*};
}

functions! {
    next:
    clnt_vc_create = c"clnt_vc_create":
        unsafe extern "C" fn(c_int, *const Netbuf, u32, u32, c_uint, c_uint) -> *mut Client;
    clnt_dg_create = c"clnt_dg_create":
        unsafe extern "C" fn(c_int, *const Netbuf, u32, u32, c_uint, c_uint) -> *mut Client;
    svc_vc_create = c"svc_vc_create": unsafe extern "C" fn(c_int, c_uint, c_uint) -> *mut Svcxprt;
    xprt_register = c"xprt_register": unsafe extern "C" fn(*mut Svcxprt);
    xprt_unregister = c"xprt_unregister": unsafe extern "C" fn(*mut Svcxprt);
    svc_getreq_common = c"svc_getreq_common": unsafe extern "C" fn(c_int);
    svc_getreq_poll = c"svc_getreq_poll": unsafe extern "C" fn(*mut libc::pollfd, c_int);
    authnone_create = c"authnone_create": unsafe extern "C" fn() -> *mut Auth;
    xdr_bytes = c"xdr_bytes":
        unsafe extern "C" fn(*mut Xdr, *mut *mut c_char, *mut c_uint, c_uint) -> Bool;
    xdr_callmsg = c"xdr_callmsg": unsafe extern "C" fn(*mut Xdr, *mut RpcMsg) -> Bool;
    xdr_replymsg = c"xdr_replymsg": unsafe extern "C" fn(*mut Xdr, *mut RpcMsg) -> Bool;
    seterr_reply = c"_seterr_reply": unsafe extern "C" fn(*mut RpcMsg, *mut RpcErr);
}

functions! {
    next_or_old:
    clnt_create = c"clnt_create":
        unsafe extern "C" fn(*const c_char, u32, u32, *const c_char) -> *mut Client;
    clnt_tp_create = c"clnt_tp_create":
        unsafe extern "C" fn(*const c_char, u32, u32, *const c_void) -> *mut Client;
    clnt_create_timed = c"clnt_create_timed":
        unsafe extern "C" fn(*const c_char, u32, u32, *const c_char, *const Timeval) -> *mut Client;
    clnt_create_vers = c"clnt_create_vers":
        unsafe extern "C" fn(*const c_char, u32, *mut u32, u32, u32, *const c_char) -> *mut Client;
    clnt_create_vers_timed = c"clnt_create_vers_timed":
        unsafe extern "C" fn(
            *const c_char, u32, *mut u32, u32, u32, *const c_char, *const Timeval
        ) -> *mut Client;
    clnt_tp_create_timed = c"clnt_tp_create_timed":
        unsafe extern "C" fn(*const c_char, u32, u32, *const c_void, *const Timeval) -> *mut Client;
    clnt_tli_create = c"clnt_tli_create":
        unsafe extern "C" fn(c_int, *const c_void, *mut Netbuf, u32, u32, c_uint, c_uint) -> *mut Client;
    clnttcp_create = c"clnttcp_create":
        unsafe extern "C" fn(*mut c_void, c_ulong, c_ulong, *mut c_int, c_uint, c_uint) -> *mut Client;
    clntudp_create = c"clntudp_create":
        unsafe extern "C" fn(*mut c_void, c_ulong, c_ulong, Timeval, *mut c_int) -> *mut Client;
    clntudp_bufcreate = c"clntudp_bufcreate":
        unsafe extern "C" fn(
            *mut c_void, c_ulong, c_ulong, Timeval, *mut c_int, c_uint, c_uint
        ) -> *mut Client;
    svc_run = c"svc_run": unsafe extern "C" fn();
}

macro_rules! data {
    ($($name:ident = $symbol:literal: $type:ty;)*) => {$(
        /// Address of libtirpc's variable, the program's copy where it has one.
        pub(crate) fn $name() -> Option<*mut $type> {
            static SYMBOL: Symbol = Symbol::new($symbol);
            SYMBOL.find(libc::RTLD_DEFAULT).map(|address| address.cast())
        }
    )*};
}

data! {
    svc_pollfd = c"svc_pollfd": *mut libc::pollfd;
    svc_max_pollfd = c"svc_max_pollfd": c_int;
    svc_auth_none = c"svc_auth_none": crate::abi::Svcauth;
}
