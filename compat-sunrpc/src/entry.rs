//! The functions that stand before libtirpc's of the same names.
//!
//! | function | what is different |
//! |---|---|
//! | `clnt_vc_create` | the client may be moved to a channel |
//! | `clnt_dg_create` | the same over UDP, with `VMMC_RPC_UDP` |
//! | `xprt_register` | an accepted connection may get a channel |
//! | `svc_run` | spins over the channels before it sleeps |
//! | `clnt_create` and its like, at the end | nothing: they lead to the first two; `--as-needed` so keeps us |
//! | `vrpc_bytes_in_place` | not libtirpc's: for stubs compiled with `include/vrpc_in_place.h` |

use crate::abi::{Bool, Client, FALSE, Netbuf, Svcxprt, Timeval, Xdr};
use crate::{clnt, handle, real, settings, svc};
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// # Safety
/// As libtirpc's.
#[cfg_attr(all(not(test), feature = "preload"), unsafe(no_mangle))]
unsafe extern "C" fn clnt_vc_create(
    fd: c_int,
    address: *const Netbuf,
    prog: u32,
    vers: u32,
    send_size: c_uint,
    receive_size: c_uint,
) -> *mut Client {
    let Some(create) = real::clnt_vc_create() else { return std::ptr::null_mut() };
    // SAFETY: the caller's own arguments.
    let client = unsafe { create(fd, address, prog, vers, send_size, receive_size) };
    if !client.is_null() {
        // A panic of ours leaves the client as libtirpc made it.
        let _ = catch_unwind(AssertUnwindSafe(|| clnt::upgrade(client, fd, prog, vers)));
    }
    client
}

/// # Safety
/// As libtirpc's.
#[cfg_attr(all(not(test), feature = "preload"), unsafe(no_mangle))]
unsafe extern "C" fn clnt_dg_create(
    fd: c_int,
    address: *const Netbuf,
    prog: u32,
    vers: u32,
    send_size: c_uint,
    receive_size: c_uint,
) -> *mut Client {
    let Some(create) = real::clnt_dg_create() else { return std::ptr::null_mut() };
    // SAFETY: the caller's own arguments.
    let client = unsafe { create(fd, address, prog, vers, send_size, receive_size) };
    if !client.is_null() {
        // SAFETY: as above; libtirpc has just read them too.
        let upgrade = || unsafe { clnt::udp::upgrade(client, address, prog, vers) };
        let _ = catch_unwind(AssertUnwindSafe(upgrade));
    }
    client
}

/// # Safety
/// As libtirpc's.
#[cfg_attr(all(not(test), feature = "preload"), unsafe(no_mangle))]
unsafe extern "C" fn xprt_register(xprt: *mut Svcxprt) {
    if let Some(register) = real::xprt_register() {
        // SAFETY: the caller's own argument.
        unsafe { register(xprt) };
    }
    let _ = catch_unwind(AssertUnwindSafe(|| svc::registered(xprt)));
}

/// # Safety
/// As libtirpc's `xdr_bytes`.
#[cfg_attr(all(not(test), feature = "preload"), unsafe(no_mangle))]
unsafe extern "C" fn vrpc_bytes_in_place(
    xdr: *mut Xdr,
    at: *mut *mut c_char,
    len: *mut c_uint,
    most: c_uint,
) -> Bool {
    // SAFETY: the caller's own arguments.
    let bytes = || unsafe { handle::bytes_in_place(xdr, at, len, most) };
    catch_unwind(AssertUnwindSafe(bytes)).unwrap_or(FALSE)
}

/// # Safety
/// As libtirpc's.
#[cfg_attr(all(not(test), feature = "preload"), unsafe(no_mangle))]
unsafe extern "C" fn svc_run() {
    if settings::is_on() && real::svc_pollfd().is_some() {
        svc::run();
    } else if let Some(run) = real::svc_run() {
        // SAFETY: libtirpc's own.
        unsafe { run() };
    }
}

/// Functions that are passed on.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// As libtirpc's.
        #[cfg_attr(all(not(test), feature = "preload"), unsafe(no_mangle))]
        unsafe extern "C" fn $name($($argument: $type),*) -> *mut Client {
            match real::$name() {
                // SAFETY: the caller's own arguments.
                Some(create) => unsafe { create($($argument),*) },
                None => std::ptr::null_mut(),
            }
        }
    )*};
}

passed_on! {
    clnt_create(host: *const c_char, prog: u32, vers: u32, net: *const c_char);
    clnt_tp_create(host: *const c_char, prog: u32, vers: u32, net: *const c_void);
    clnt_create_timed(
        host: *const c_char, prog: u32, vers: u32, net: *const c_char, time: *const Timeval
    );
    clnt_create_vers(
        host: *const c_char, prog: u32, vers: *mut u32, low: u32, high: u32, net: *const c_char
    );
    clnt_create_vers_timed(
        host: *const c_char, prog: u32, vers: *mut u32, low: u32, high: u32, net: *const c_char,
        time: *const Timeval
    );
    clnt_tp_create_timed(
        host: *const c_char, prog: u32, vers: u32, net: *const c_void, time: *const Timeval
    );
    clnt_tli_create(
        fd: c_int, net: *const c_void, address: *mut Netbuf, prog: u32, vers: u32, send_size: c_uint,
        receive_size: c_uint
    );
    clnttcp_create(
        address: *mut c_void, prog: c_ulong, vers: c_ulong, fd: *mut c_int, send_size: c_uint,
        receive_size: c_uint
    );
    clntudp_create(
        address: *mut c_void, prog: c_ulong, vers: c_ulong, retry: Timeval, fd: *mut c_int
    );
    clntudp_bufcreate(
        address: *mut c_void, prog: c_ulong, vers: c_ulong, retry: Timeval, fd: *mut c_int,
        send_size: c_uint, receive_size: c_uint
    );
}
