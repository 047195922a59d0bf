//! The client: calls over a channel, with the semantics of libtirpc's `clnt_vc`.
//!
//! | call | as libtirpc |
//! |---|---|
//! | timeout 0 without results | sent, `RPC_SUCCESS` at once (batching) |
//! | timeout 0 with results | sent, `RPC_TIMEDOUT` |
//! | replies | matched by xid, others dropped |
//! | rejected credentials | refreshed, twice at most |
//! | end of the connection | `RPC_CANTRECV` with errno |

mod kernel;
mod ops;
mod times;
pub(crate) mod udp;

pub(crate) use ops::OPS;

use crate::abi::{Client, ClntOps, RpcErr, Timeval, control, stat};
use crate::channel::Channel;
use crate::counters::{self, Counter};
use crate::daemon::{self, Answer};
use crate::offer::{self, Offer};
use crate::{handle, settings, svc};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use vmmc::sys::doorbell::Doorbell;

/// How long a server may take to answer the offer; a stock one answers as fast as any null call. On
/// a machine with too much to do that is seconds, which the first real call would wait as well.
const OFFER_TIMEOUT: Timeval = Timeval { tv_sec: 10, tv_usec: 0 };

/// What hangs at a `CLIENT` whose calls go over a channel: `cl_ops` points at its first field.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct VrpcClient {
    ops: ClntOps,
    /// libtirpc's operations, which still own `cl_private`.
    stock: ClntOps,
    /// Where they are.
    stock_at: *const ClntOps,
    /// The connection that the channel belongs to.
    fd: i32,
    cookie: u64,
    bell: Doorbell,
    /// Of a client made over UDP: the client over TCP that the connection belongs to.
    companion: Option<udp::Companion>,
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
    /// Set by `CLSET_TIMEOUT`: how long each call waits, whatever its argument, if it waits.
    timeout: Option<Timeval>,
    /// The last argument that was a time.
    last_timeout: Timeval,
    error: RpcErr,
    /// The channel cannot be used any more: every call fails with this errno.
    broken: Option<i32>,
}

/// The number of the call after that of number `xid`: programs see it when they ask for the number
/// (`CLGET_XID`) or set it. Over TCP libtirpc counts down, in the byte order of the wire (`clnt_vc`); over
/// UDP up (`clnt_dg`).
fn next_xid(xid: u32, datagrams: bool) -> u32 {
    if datagrams { xid.wrapping_add(1) } else { u32::from_be(xid.to_be().wrapping_sub(1)) }
}

/// What has been agreed on a connection.
#[derive(Debug)]
struct Agreed {
    channel: Box<Channel>,
    cookie: u64,
    bell: Doorbell,
}

/// Tries to move a client that libtirpc has just made to a channel. Leaves it as it is when that
/// cannot be.
pub(crate) fn upgrade(client: *mut Client, fd: i32, prog: u32, vers: u32) {
    if !settings::is_on() || prog == offer::RPCBIND {
        return;
    }
    // SAFETY: libtirpc's new client, known to nobody else yet.
    let Some(agreed) = agree(unsafe { &mut *client }, fd) else {
        kernel::watch(client);
        return;
    };
    install(client, agreed, fd, (prog, vers), None);
}

/// Offers and makes a channel for the connection of a client over TCP.
fn agree(client: &mut Client, fd: i32) -> Option<Agreed> {
    let Some(cookie) = svc::eligible_connection(fd) else {
        counters::stays(fd, Counter::not_local);
        return None;
    };
    counters::one(Counter::offers);
    let Some(offer) = offered(client) else {
        counters::stays(fd, Counter::unanswered);
        return None;
    };
    if !offer.is_accepted() {
        counters::stays(fd, Counter::declined);
        return None;
    }
    let bell = Doorbell::new().ok()?;
    // SAFETY: open as long as the client exists, which outlives this call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    if !daemon::register(socket, cookie, &bell) {
        counters::stays(fd, Counter::no_daemon);
        return None;
    }
    let Answer::Channel(channel) = daemon::wait_answer(cookie) else {
        counters::stays(fd, Counter::no_daemon);
        return None;
    };
    counters::moved(fd);
    Some(Agreed { channel, cookie, bell })
}

/// From now on the client's calls go over the channel.
fn install(
    client: *mut Client,
    agreed: Agreed,
    fd: i32,
    (prog, vers): (u32, u32),
    companion: Option<udp::Companion>,
) {
    let mut xid = 0u32;
    // SAFETY: libtirpc's new client, known to nobody else yet.
    let handle = unsafe { &mut *client };
    let stock_at = handle.cl_ops;
    // SAFETY: libtirpc's table of a live client.
    let stock = unsafe { stock_at.read() };
    // SAFETY: the stock operation, with its own client.
    unsafe { (stock.cl_control)(client, control::GET_XID, (&raw mut xid).cast::<c_void>()) };
    let Agreed { channel, cookie, bell } = agreed;
    let state = State {
        channel,
        xid,
        prog,
        vers,
        timeout: None,
        last_timeout: ops::NO_TIME,
        error: RpcErr::default(),
        broken: None,
    };
    let state = Mutex::new(state);
    let upgraded = VrpcClient { ops: OPS, stock, stock_at, fd, cookie, bell, companion, state };
    let upgraded = Box::into_raw(Box::new(upgraded));
    // `cl_ops` is how the operations find what belongs to the client: exposed as a whole.
    handle.cl_ops = upgraded.cast::<ClntOps>();
}

/// Asks the server; its answer, when it answers at all.
fn offered(handle: &mut Client) -> Option<Offer> {
    let mut offer = Offer::new();
    let auth = std::mem::replace(&mut handle.cl_auth, offer.as_auth());
    // SAFETY: libtirpc's table of a live client.
    let call = unsafe { (*handle.cl_ops).cl_call };
    let nothing = std::ptr::null_mut();
    // SAFETY: a null call on libtirpc's own client.
    let status = unsafe {
        call(handle, 0, Some(handle::void), nothing, Some(handle::void), nothing, OFFER_TIMEOUT)
    };
    handle.cl_auth = auth;
    (status != stat::TIMEDOUT).then_some(offer)
}
