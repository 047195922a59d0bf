//! The operations of an upgraded client (`struct clnt_ops`).

use super::times::Times;
use super::{State, VrpcClient};
use crate::abi::{
    Auth, AuthOps, Bool, Client, ClntOps, FALSE, OpaqueAuth, RpcErr, RpcMsg, TRUE, Timeval,
    XdrProc, control, stat,
};
use crate::channel::{Broken, Incoming, Writer};
use crate::counters::{self, Counter};
use crate::handle::{self, Source};
use crate::{daemon, real};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The table that every upgraded client has a copy of.
pub(crate) const OPS: ClntOps = ClntOps {
    cl_call: call,
    cl_abort: abort,
    cl_geterr: get_error,
    cl_freeres: free_results,
    cl_destroy: destroy,
    cl_control: control,
};

/// Flavors whose wrapping is only encoding: what goes straight into the ring.
const PLAIN_FLAVORS: [i32; 3] = [0, 1, 2];
/// How often rejected credentials are refreshed.
const REFRESHES: u32 = 2;

/// What hangs at a client.
///
/// # Safety
/// `client` must have been upgraded and not destroyed.
unsafe fn ours<'c>(client: *mut Client) -> &'c VrpcClient {
    // SAFETY: the caller's word.
    let ops = unsafe { (*client).cl_ops };
    // SAFETY: `upgrade` made `cl_ops` point at the first field of a `VrpcClient`.
    unsafe { &*ops.cast::<VrpcClient>() }
}

impl VrpcClient {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: the client's connection, open until it is destroyed.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Encodes one call; false when the program's procedure fails.
    fn encode(
        &self,
        state: &mut State,
        client: *mut Client,
        procedure: u32,
        arguments: (Option<XdrProc>, *mut c_void),
    ) -> Result<Option<Writer>, Broken> {
        // SAFETY: the program's client, alive during its call.
        let auth = unsafe { (*client).cl_auth };
        // SAFETY: credentials belong to the client.
        let flavor = unsafe { (*auth).ah_cred.oa_flavor };
        let mut writer = state.channel.writer(!PLAIN_FLAVORS.contains(&flavor))?;
        // RFC 5531 section 9: xid, CALL, RPC version 2, program, version, procedure.
        let head = [state.xid, 0, 2, state.prog, state.vers, procedure];
        let mut done = head.iter().all(|&word| handle::put_word(&mut writer, word));
        if done {
            let mut xdrs = handle::encoder(&mut writer);
            // SAFETY: tables of credentials are complete.
            let ops = unsafe { operations(auth) };
            // SAFETY: the credentials' own operation, on a handle that is alive.
            done = unsafe { (ops.ah_marshal)(auth, &raw mut xdrs) } != FALSE;
            // SAFETY: as above, with the program's procedure and arguments.
            done = done
                && unsafe { (ops.ah_wrap)(auth, &raw mut xdrs, arguments.0, arguments.1) } != FALSE;
        }
        Ok(done.then_some(writer))
    }

    /// One call, until an answer to it or an error. True: call again with refreshed credentials.
    fn attempt(
        &self,
        state: &mut State,
        client: *mut Client,
        call: &Call,
        may_refresh: bool,
        times: &mut Times,
    ) -> Result<bool, Broken> {
        state.xid = super::next_xid(state.xid, self.companion.is_some());
        let Some(writer) = self.encode(state, client, call.procedure, call.arguments)? else {
            state.error.re_status = stat::CANTENCODEARGS;
            return Ok(false);
        };
        state.channel.submit(writer);
        state.channel.flush_all(&self.bell, self.socket(), call.deadline)?;
        if call.batched {
            return Ok(false);
        }
        if call.no_wait {
            return Err(Broken::TimedOut);
        }
        times.mark();
        let record = state.channel.reply(state.xid, &self.bell, self.socket(), call.deadline)?;
        times.mark();
        let again = decode(state, client, call, record, may_refresh);
        times.mark();
        state.channel.release();
        Ok(again)
    }
}

/// The operations of credentials.
///
/// # Safety
/// `auth` must be a client's credentials, alive.
unsafe fn operations(auth: *mut Auth) -> AuthOps {
    // SAFETY: the caller's word.
    let ops = unsafe { (*auth).ah_ops };
    // SAFETY: tables of credentials are complete.
    unsafe { ops.read() }
}

/// What a call asks for.
struct Call {
    procedure: u32,
    arguments: (Option<XdrProc>, *mut c_void),
    results: (Option<XdrProc>, *mut c_void),
    deadline: Option<Instant>,
    /// Timeout 0 and no results.
    batched: bool,
    /// Timeout 0 with results.
    no_wait: bool,
}

/// Decodes a reply into the program's results and `state.error`. True: call again.
fn decode(
    state: &mut State,
    client: *mut Client,
    call: &Call,
    record: Incoming,
    may_refresh: bool,
) -> bool {
    let (Some(replymsg), Some(seterr)) = (real::xdr_replymsg(), real::seterr_reply()) else {
        state.error.re_status = stat::CANTDECODERES;
        return false;
    };
    let mut source = Source::new(record);
    let mut xdrs = handle::decoder(&mut source);
    let mut message = RpcMsg::accepted(OpaqueAuth::NULL, Some(handle::void), std::ptr::null_mut());
    // SAFETY: libtirpc's procedure on our handle; the message is initialised.
    if unsafe { replymsg(&raw mut xdrs, &raw mut message) } == FALSE {
        state.error.re_status = stat::CANTDECODERES;
        return false;
    }
    // SAFETY: a message that was decoded.
    unsafe { seterr(&raw mut message, &raw mut state.error) };
    // SAFETY: the program's client, alive during its call.
    let auth = unsafe { (*client).cl_auth };
    // SAFETY: tables of credentials are complete.
    let ops = unsafe { operations(auth) };
    if state.error.re_status != stat::SUCCESS {
        let message = (&raw mut message).cast::<c_void>();
        // SAFETY: as libtirpc does at any error, not only of authentication.
        return may_refresh && unsafe { (ops.ah_refresh)(auth, message) } != FALSE;
    }
    // SAFETY: an accepted reply, which `seterr` says it is.
    let body = unsafe { message.ru.reply };
    // SAFETY: as above.
    let mut verifier = unsafe { body.ru.accepted }.ar_verf;
    // SAFETY: the credentials' own operation.
    if unsafe { (ops.ah_validate)(auth, &raw mut verifier) } == FALSE {
        state.error.re_status = stat::AUTHERROR;
        state.error.first = stat::AUTH_INVALIDRESP;
    } else {
        let (procedure, at) = call.results;
        // SAFETY: as above, with the program's procedure and results.
        if unsafe { (ops.ah_unwrap)(auth, &raw mut xdrs, procedure, at) } == FALSE
            && state.error.re_status == stat::SUCCESS
        {
            state.error.re_status = stat::CANTDECODERES;
        }
    }
    if !verifier.oa_base.is_null() {
        // SAFETY: `xdr_replymsg` allocated it with malloc.
        unsafe { libc::free(verifier.oa_base.cast()) };
    }
    false
}

/// When a timeout that begins now ends.
fn deadline(timeout: Timeval) -> Option<Instant> {
    let seconds = u64::try_from(timeout.tv_sec).unwrap_or(0);
    let micros = u64::try_from(timeout.tv_usec).unwrap_or(0);
    Instant::now().checked_add(Duration::from_secs(seconds) + Duration::from_micros(micros))
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
    // SAFETY: an operation of our table gets an upgraded client.
    let ours = unsafe { ours(client) };
    let mut times = Times::start();
    let mut state = ours.state();
    let timeout = state.timeout.unwrap_or(timeout);
    let none = timeout == Timeval { tv_sec: 0, tv_usec: 0 };
    let call = Call {
        procedure,
        arguments: (encode, arguments),
        results: (decode, results),
        deadline: deadline(if none { BATCH_TIMEOUT } else { timeout }),
        // Over UDP there is no such thing: `clnt_dg_call`.
        batched: none && decode.is_none() && ours.companion.is_none(),
        no_wait: none,
    };
    let by_datagram = || {
        counters::one(Counter::calls_kernel);
        let stock = ours.stock.cl_call;
        // SAFETY: libtirpc's own operation, with the caller's arguments.
        unsafe { stock(client, procedure, encode, arguments, decode, results, timeout) }
    };
    if state.broken.is_some() && ours.companion.is_some() {
        drop(state);
        return by_datagram();
    }
    counters::one(Counter::calls_ring);
    if let Some(errno) = state.broken {
        state.error = RpcErr { re_status: stat::CANTSEND, first: errno, second: 0 };
        return stat::CANTSEND;
    }
    state.error = RpcErr::default();
    let mut refreshes = REFRESHES;
    loop {
        match ours.attempt(&mut state, client, &call, refreshes > 0, &mut times) {
            Ok(true) => {
                refreshes -= 1;
                continue;
            }
            Ok(false) => {}
            Err(broken) => {
                fail(&mut state, broken);
                if state.broken.is_some() && ours.companion.is_some() {
                    drop(state);
                    return by_datagram();
                }
            }
        }
        times.finish();
        return state.error.re_status;
    }
}

/// How long a batched call may wait for room, as libtirpc's blocking write would.
const BATCH_TIMEOUT: Timeval = Timeval { tv_sec: 35, tv_usec: 0 };

fn fail(state: &mut State, broken: Broken) {
    let (status, errno) = match broken {
        Broken::TimedOut => {
            counters::one(Counter::timeouts);
            (stat::TIMEDOUT, 0)
        }
        Broken::Gone(errno) => {
            counters::one(Counter::broken);
            (stat::CANTRECV, errno.raw_os_error())
        }
        Broken::Nonsense | Broken::TooLong => {
            counters::one(Counter::poisoned);
            (stat::CANTRECV, libc::EPROTO)
        }
    };
    if status == stat::CANTRECV {
        state.broken = Some(errno);
    }
    state.error = RpcErr { re_status: status, first: errno, second: 0 };
}

unsafe extern "C" fn abort(_: *mut Client) {}

unsafe extern "C" fn get_error(client: *mut Client, error: *mut RpcErr) {
    // SAFETY: an operation of our table gets an upgraded client.
    let ours = unsafe { ours(client) };
    let state = ours.state();
    if state.broken.is_some() && ours.companion.is_some() {
        drop(state);
        // SAFETY: libtirpc's own operation: the last call was its.
        unsafe { (ours.stock.cl_geterr)(client, error) };
        return;
    }
    // SAFETY: the caller's own variable.
    unsafe { error.write(state.error) };
}

unsafe extern "C" fn free_results(
    _: *mut Client,
    procedure: Option<XdrProc>,
    results: *mut c_void,
) -> Bool {
    let mut xdrs = handle::freer();
    // SAFETY: the program's procedure and what it decoded.
    unsafe { handle::call(procedure, &raw mut xdrs, results) }
}

unsafe extern "C" fn destroy(client: *mut Client) {
    // SAFETY: the program's client, used no more after this.
    let handle = unsafe { &mut *client };
    // SAFETY: `upgrade` made it with `Box::into_raw`; nobody else has it.
    let ours = unsafe { Box::from_raw(handle.cl_ops.cast_mut().cast::<VrpcClient>()) };
    handle.cl_ops = ours.stock_at;
    let stock = ours.stock;
    daemon::forget(ours.cookie);
    drop(ours);
    // SAFETY: libtirpc's own client as it made it.
    unsafe { (stock.cl_destroy)(client) };
}

unsafe extern "C" fn control(client: *mut Client, request: c_uint, info: *mut c_void) -> Bool {
    // SAFETY: an operation of our table gets an upgraded client.
    let ours = unsafe { ours(client) };
    let mut state = ours.state();
    let State { xid, prog, vers, .. } = &mut *state;
    let (wanted, get) = match request {
        control::GET_XID => (xid, true),
        control::SET_XID => (xid, false),
        control::GET_VERS => (vers, true),
        control::SET_VERS => (vers, false),
        control::GET_PROG => (prog, true),
        control::SET_PROG => (prog, false),
        _ => {
            // SAFETY: libtirpc's own operation on its own private part.
            let done = unsafe { (ours.stock.cl_control)(client, request, info) };
            if done != FALSE && request == control::SET_TIMEOUT && !info.is_null() {
                // SAFETY: `info` is a timeout for this request.
                state.timeout = Some(unsafe { info.cast::<Timeval>().read() });
            }
            return done;
        }
    };
    if info.is_null() {
        return FALSE;
    }
    let info = info.cast::<u32>();
    if get {
        // SAFETY: `info` is a 32-bit number for these requests.
        unsafe { info.write(*wanted) };
    } else {
        // SAFETY: as above.
        *wanted = unsafe { info.read() };
        if request == control::SET_XID {
            // As libtirpc, which so makes this the number of the next call, nearly: see `next_xid`.
            *wanted = match ours.companion {
                Some(_) => wanted.wrapping_sub(1),
                None => wanted.wrapping_add(1),
            };
        }
    }
    TRUE
}
