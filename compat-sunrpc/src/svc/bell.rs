//! The doorbell of a server process, shown to libtirpc as a transport of its own, so that any loop
//! over `svc_fdset` or `svc_pollfd` wakes for it.
//!
//! One per process, made at the first offer. A forked child that goes on serving makes its own: the
//! inherited one would wake whoever reads it first.

use super::{own_pid, ready};
use crate::abi::{
    Bool, FALSE, OpaqueAuth, RpcMsg, Svcauth, Svcxprt, SvcxprtExt, XdrProc, XpOps, XpOps2, xprt,
};
use crate::real;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmmc::sys::doorbell::Doorbell;

/// `MAX_AUTH_BYTES`: room for a verifier.
const VERIFIER_LEN: usize = 400;

/// The doorbell and the process that made it.
#[derive(Debug)]
struct Bell {
    doorbell: &'static Doorbell,
    owner: i32,
}

static BELL: Mutex<Option<Bell>> = Mutex::new(None);

fn bell() -> MutexGuard<'static, Option<Bell>> {
    BELL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `with` with this process's doorbell; `None` when there can be none.
pub(super) fn with<R>(with: impl FnOnce(&Doorbell) -> R) -> Option<R> {
    let mut guard = bell();
    if guard.as_ref().is_none_or(|bell| bell.owner != own_pid()) {
        // The transports of libtirpc are never freed behind its back: neither is this.
        let doorbell: &'static Doorbell = Box::leak(Box::new(Doorbell::new().ok()?));
        register(doorbell)?;
        *guard = Some(Bell { doorbell, owner: own_pid() });
    }
    guard.as_ref().map(|bell| with(bell.doorbell))
}

/// Rings it ourselves, to be called again by whatever loop the program has.
pub(super) fn ring() {
    if let Some(bell) = bell().as_ref() {
        bell.doorbell.ring_self();
    }
}

static OPS: XpOps = XpOps {
    xp_recv: recv,
    xp_stat: stat,
    xp_getargs: no_args,
    xp_reply: no_reply,
    xp_freeargs: no_args,
    xp_destroy: destroy,
};
static OPS2: XpOps2 = XpOps2 { xp_control: no_control };

/// Makes the transport. It has all that libtirpc gives its own: an extension to write through and
/// a place for a verifier.
fn register(doorbell: &'static Doorbell) -> Option<()> {
    let register = real::xprt_register()?;
    let extension = SvcxprtExt {
        flags: 0,
        xp_auth: Svcauth { svc_ah_ops: std::ptr::null(), svc_ah_private: std::ptr::null_mut() },
    };
    let verifier = Box::leak(Box::new([0u8; VERIFIER_LEN]));
    let mut handle = Svcxprt::zeroed();
    handle.xp_fd = doorbell.fd().as_raw_fd();
    handle.xp_ops = &raw const OPS;
    handle.xp_ops2 = &raw const OPS2;
    handle.xp_verf = OpaqueAuth { oa_base: verifier.as_mut_ptr().cast(), ..OpaqueAuth::NULL };
    handle.xp_p3 = std::ptr::from_mut(Box::leak(Box::new(extension))).cast();
    let handle = Box::leak(Box::new(handle));
    // SAFETY: a complete transport that lives for ever.
    unsafe { register(handle) };
    Some(())
}

/// Somebody has rung: every connection with something to read is served as if its socket had
/// become readable.
unsafe extern "C" fn recv(_: *mut Svcxprt, _: *mut RpcMsg) -> Bool {
    if let Some(bell) = bell().as_ref() {
        bell.doorbell.drain();
    }
    serve_ready();
    FALSE
}

/// Serves one connection.
pub(super) fn serve(fd: i32) {
    if let Some(serve) = real::svc_getreq_common() {
        // SAFETY: libtirpc looks the descriptor up.
        unsafe { serve(fd) };
    }
}

/// Serves what is there; true when there was something.
pub(super) fn serve_ready() -> bool {
    let Some(serve) = real::svc_getreq_common() else { return false };
    let ready = ready();
    for &fd in &ready {
        // SAFETY: libtirpc looks the descriptor up; one that was closed meanwhile is ignored.
        unsafe { serve(fd) };
    }
    !ready.is_empty()
}

unsafe extern "C" fn stat(_: *mut Svcxprt) -> c_int {
    xprt::IDLE
}

unsafe extern "C" fn no_args(_: *mut Svcxprt, _: Option<XdrProc>, _: *mut c_void) -> Bool {
    FALSE
}

unsafe extern "C" fn no_reply(_: *mut Svcxprt, _: *mut RpcMsg) -> Bool {
    FALSE
}

unsafe extern "C" fn no_control(_: *mut Svcxprt, _: c_uint, _: *mut c_void) -> Bool {
    FALSE
}

/// A program that destroys all its transports destroys this one too: no more is served by rings
/// then, and clients find their connections closed.
unsafe extern "C" fn destroy(handle: *mut Svcxprt) {
    if let Some(unregister) = real::xprt_unregister() {
        // SAFETY: our own transport, registered once.
        unsafe { unregister(handle) };
    }
}
