//! The client: calls over a channel, with the semantics of libtirpc's `clnt_vc`.
//!
//! | call | as libtirpc |
//! |---|---|
//! | timeout 0 without results | sent, `RPC_SUCCESS` at once (batching) |
//! | timeout 0 with results | sent, `RPC_TIMEDOUT` |
//! | replies | matched by xid, others dropped |
//! | rejected credentials | refreshed, twice at most |
//! | end of the connection | `RPC_CANTRECV` with errno |

mod ops;

pub(crate) use ops::OPS;

use crate::abi::{Client, ClntOps, RpcErr, Timeval, control, stat};
use crate::channel::Channel;
use crate::counters::{self, Counter};
use crate::daemon::{self, Answer};
use crate::offer::{self, Offer};
use crate::{settings, svc, xdr};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use vmmc::sys::doorbell::Doorbell;

/// How long a server may take to answer the offer; a stock one answers as fast as any null call.
const OFFER_TIMEOUT: Timeval = Timeval { tv_sec: 2, tv_usec: 0 };

/// What hangs at a `CLIENT` whose calls go over a channel: `cl_ops` points at its first field.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct VrpcClient {
    ops: ClntOps,
    /// libtirpc's operations, which still own `cl_private`.
    stock: ClntOps,
    /// Where they are.
    stock_at: *const ClntOps,
    fd: i32,
    cookie: u64,
    bell: Doorbell,
    state: Mutex<State>,
}

/// What a call uses; one call at a time.
#[derive(Debug)]
pub(crate) struct State {
    channel: Box<Channel>,
    /// Of the last call; the next is [`next_xid`].
    xid: u32,
    prog: u32,
    vers: u32,
    /// Set by `CLSET_TIMEOUT`: overrides the timeout of each call.
    timeout: Option<Timeval>,
    error: RpcErr,
    /// The channel cannot be used any more: every call fails with this errno.
    broken: Option<i32>,
}

/// The number of the call after that of number `xid`. libtirpc counts down in the byte order of the
/// wire, so that is what programs see that ask for the number (`CLGET_XID`) or set it.
fn next_xid(xid: u32) -> u32 {
    u32::from_be(xid.to_be().wrapping_sub(1))
}

/// Tries to move a client that libtirpc has just made to a channel. Leaves it as it is when that
/// cannot be.
pub(crate) fn upgrade(client: *mut Client, fd: i32, prog: u32, vers: u32) {
    if !settings::is_on() || prog == offer::RPCBIND {
        return;
    }
    let Some(cookie) = svc::local_connection(fd) else {
        counters::one(Counter::not_local);
        return;
    };
    // SAFETY: libtirpc's new client, known to nobody else yet.
    let handle = unsafe { &mut *client };
    counters::one(Counter::offers);
    if !offered(handle) {
        counters::one(Counter::declined);
        return;
    }
    let Ok(bell) = Doorbell::new() else { return };
    // SAFETY: open as long as the client exists, which outlives this call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    if !daemon::register(socket, cookie, &bell) {
        counters::one(Counter::no_daemon);
        return;
    }
    let Answer::Channel(channel) = daemon::wait_answer(cookie) else {
        counters::one(Counter::no_daemon);
        return;
    };
    counters::one(Counter::channels);
    let mut xid = 0u32;
    let stock_at = handle.cl_ops;
    // SAFETY: libtirpc's table of a live client.
    let stock = unsafe { stock_at.read() };
    // SAFETY: the stock operation, with its own client.
    unsafe { (stock.cl_control)(client, control::GET_XID, (&raw mut xid).cast::<c_void>()) };
    let state =
        State { channel, xid, prog, vers, timeout: None, error: RpcErr::default(), broken: None };
    let upgraded =
        VrpcClient { ops: OPS, stock, stock_at, fd, cookie, bell, state: Mutex::new(state) };
    let upgraded = Box::into_raw(Box::new(upgraded));
    // `cl_ops` is how the operations find what belongs to the client: exposed as a whole.
    handle.cl_ops = upgraded.cast::<ClntOps>();
}

/// Asks the server; true when it accepts.
fn offered(handle: &mut Client) -> bool {
    let mut offer = Offer::new();
    let auth = std::mem::replace(&mut handle.cl_auth, offer.as_auth());
    // SAFETY: libtirpc's table of a live client.
    let call = unsafe { (*handle.cl_ops).cl_call };
    let nothing = std::ptr::null_mut();
    // SAFETY: a null call on libtirpc's own client.
    let status = unsafe {
        call(handle, 0, Some(xdr::void), nothing, Some(xdr::void), nothing, OFFER_TIMEOUT)
    };
    handle.cl_auth = auth;
    status == stat::SUCCESS && offer.is_accepted()
}
