//! Clients whose calls go the way libtirpc takes them: counted, so that `shrimp stat` can tell how many do,
//! and otherwise left alone.

use crate::abi::{Client, ClntOps, Timeval, XdrProc};
use crate::counters::{self, Counter};
use std::ffi::{c_int, c_void};

/// What hangs at such a client: `cl_ops` points at its first field.
#[derive(Debug)]
#[repr(C)]
struct Counting {
    ops: ClntOps,
    /// libtirpc's.
    stock: ClntOps,
    stock_at: *const ClntOps,
}

/// From now on the calls of a client are counted.
pub(super) fn watch(client: *mut Client) {
    // SAFETY: libtirpc's new client, known to nobody else yet.
    let handle = unsafe { &mut *client };
    let stock_at = handle.cl_ops;
    // SAFETY: libtirpc's table of a live client.
    let stock = unsafe { stock_at.read() };
    let ops = ClntOps { cl_call: call, cl_destroy: destroy, ..stock };
    handle.cl_ops = Box::into_raw(Box::new(Counting { ops, stock, stock_at })).cast::<ClntOps>();
}

/// What hangs at a client.
///
/// # Safety
/// `client` must have been given to [`watch`] and not destroyed.
unsafe fn ours(client: *mut Client) -> *mut Counting {
    // SAFETY: the caller's word.
    unsafe { (*client).cl_ops.cast_mut().cast() }
}

unsafe extern "C" fn call(
    client: *mut Client,
    procedure: u32,
    encode: Option<XdrProc>,
    arguments: *mut c_void,
    decode: Option<XdrProc>,
    results: *mut c_void,
    timeout: Timeval,
) -> c_int {
    counters::one(Counter::calls_kernel);
    crate::daemon::appear();
    // SAFETY: an operation of our table gets a client of ours.
    let ours = unsafe { ours(client) };
    // SAFETY: as above; it lives as long as the client.
    let stock = unsafe { (*ours).stock.cl_call };
    // SAFETY: libtirpc's own operation, with the caller's arguments.
    unsafe { stock(client, procedure, encode, arguments, decode, results, timeout) }
}

unsafe extern "C" fn destroy(client: *mut Client) {
    // SAFETY: an operation of our table gets a client of ours.
    let pointer = unsafe { ours(client) };
    // SAFETY: made by `watch` with `Box::into_raw`; the client is used no more after this.
    let ours = unsafe { Box::from_raw(pointer) };
    // SAFETY: as libtirpc made it.
    unsafe { (*client).cl_ops = ours.stock_at };
    // SAFETY: libtirpc's own operation on its own client.
    unsafe { (ours.stock.cl_destroy)(client) };
}
