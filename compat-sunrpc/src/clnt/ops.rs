//! The operations of an upgraded client (`struct clnt_ops`).

use super::times::Times;
use super::{State, VrpcClient};
use crate::abi::{
    Auth, AuthOps, Bool, Client, ClntOps, FALSE, OpaqueAuth, RpcErr, RpcMsg, TRUE, Timeval, Xdr,
    XdrProc, control, stat,
};
use crate::channel::{Allowance, Broken, Channel, Deadline, Long, Patience, Source, Writer};
use crate::counters::{self, Counter};
use crate::handle::{self, heads};
use crate::{daemon, real};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

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

    /// One call, until an answer to it or an error. True: call again with refreshed credentials.
    fn attempt(
        &self,
        state: &mut State,
        client: *mut Client,
        call: &Call,
        may_refresh: bool,
        times: &mut Times,
    ) -> Result<bool, Failed> {
        state.xid = super::next_xid(state.xid, self.companion.is_some());
        let State { channel, error, xid, prog, vers, .. } = state;
        let patience = Patience {
            bell: &self.bell,
            socket: self.socket(),
            deadline: Deadline::After(&call.time),
            call: Some(*xid),
        };
        // Calls that nobody waits for any more wait for room still: no further one is added to them.
        channel.flush_all(&patience).map_err(Failed::Sending)?;
        let head = heads::call(*xid, *prog, *vers, call.procedure);
        let encoded = encode(channel, client, head, call.arguments, patience);
        let Some(writer) = encoded.map_err(Failed::Sending)? else {
            error.re_status = stat::CANTENCODEARGS;
            return Ok(false);
        };
        channel.submit(writer);
        channel.flush_all(&patience).map_err(Failed::Sending)?;
        if call.batched {
            return Ok(false);
        }
        if call.no_wait {
            return Err(Failed::Receiving(Broken::TimedOut));
        }
        times.mark();
        let mut record = channel.reply(patience).map_err(Failed::Receiving)?;
        times.mark();
        let again = decode(error, client, call, &mut record, may_refresh);
        times.mark();
        if let Some(broken) = record.broken() {
            return Err(Failed::Receiving(broken));
        }
        drop(record);
        channel.release().map_err(Failed::Receiving)?;
        Ok(again)
    }
}

/// Why a call has no answer, and on which way.
enum Failed {
    Sending(Broken),
    Receiving(Broken),
}

/// Encodes one call; `None` when the program's procedure fails.
fn encode<'c>(
    channel: &'c Channel,
    client: *mut Client,
    head: [u32; 6],
    arguments: (Option<XdrProc>, *mut c_void),
    patience: Patience<'c>,
) -> Result<Option<Writer<'c>>, Broken> {
    // SAFETY: the program's client, alive during its call.
    let auth = unsafe { (*client).cl_auth };
    // SAFETY: credentials belong to the client.
    let flavor = unsafe { (*auth).ah_cred.oa_flavor };
    let plain = PLAIN_FLAVORS.contains(&flavor);
    let mut writer = channel.writer(if plain { Long::Waits(patience) } else { Long::InMemory })?;
    // SAFETY: credentials belong to the client.
    let of_nobody = unsafe { heads::is_nobody(auth) };
    let mut done =
        if of_nobody { writer.begin(heads::call_of_nobody(head)) } else { writer.begin(head) };
    if done && of_nobody {
        let mut xdrs = handle::encoder(&mut writer);
        // SAFETY: the program's procedure and arguments, on a handle that is alive.
        done = unsafe { handle::call(arguments.0, &raw mut xdrs, arguments.1) } != FALSE;
    } else if done {
        let mut xdrs = handle::encoder(&mut writer);
        // SAFETY: tables of credentials are complete.
        let ops = unsafe { operations(auth) };
        // SAFETY: the credentials' own operation, on a handle that is alive.
        done = unsafe { (ops.ah_marshal)(auth, &raw mut xdrs) } != FALSE;
        // SAFETY: as above, with the program's procedure and arguments.
        done = done
            && unsafe { (ops.ah_wrap)(auth, &raw mut xdrs, arguments.0, arguments.1) } != FALSE;
    }
    match writer.broken() {
        Some(broken) => Err(broken),
        None => Ok(done.then_some(writer)),
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
    time: Allowance,
    /// Timeout 0 and no results.
    batched: bool,
    /// Timeout 0 with results.
    no_wait: bool,
}

/// Decodes a reply into the program's results and `error`. True: call again.
fn decode(
    error: &mut RpcErr,
    client: *mut Client,
    call: &Call,
    record: &mut Source<'_>,
    may_refresh: bool,
) -> bool {
    if heads::take_plain_reply(record) {
        error.re_status = stat::SUCCESS;
        let mut xdrs = handle::decoder(record);
        // SAFETY: the program's client, its procedure and results.
        unsafe { take_results(error, client, call, &raw mut xdrs, &mut { OpaqueAuth::NULL }) };
        return false;
    }
    let (Some(replymsg), Some(seterr)) = (real::xdr_replymsg(), real::seterr_reply()) else {
        error.re_status = stat::CANTDECODERES;
        return false;
    };
    let mut xdrs = handle::decoder(record);
    let mut message = RpcMsg::accepted(OpaqueAuth::NULL, Some(handle::void), std::ptr::null_mut());
    // SAFETY: libtirpc's procedure on our handle; the message is initialised.
    if unsafe { replymsg(&raw mut xdrs, &raw mut message) } == FALSE {
        error.re_status = stat::CANTDECODERES;
        return false;
    }
    // SAFETY: a message that was decoded.
    unsafe { seterr(&raw mut message, error) };
    if error.re_status != stat::SUCCESS {
        // SAFETY: the program's client, alive during its call.
        let auth = unsafe { (*client).cl_auth };
        // SAFETY: tables of credentials are complete.
        let ops = unsafe { operations(auth) };
        let message = (&raw mut message).cast::<c_void>();
        // SAFETY: as libtirpc does at any error, not only of authentication.
        return may_refresh && unsafe { (ops.ah_refresh)(auth, message) } != FALSE;
    }
    // SAFETY: an accepted reply, which `seterr` says it is.
    let body = unsafe { message.ru.reply };
    // SAFETY: as above.
    let mut verifier = unsafe { body.ru.accepted }.ar_verf;
    // SAFETY: the program's client, its procedure and results.
    unsafe { take_results(error, client, call, &raw mut xdrs, &mut verifier) };
    if !verifier.oa_base.is_null() {
        // SAFETY: `xdr_replymsg` allocated it with malloc.
        unsafe { libc::free(verifier.oa_base.cast()) };
    }
    false
}

/// Decodes the results of an accepted call, behind the head.
///
/// # Safety
/// The client must be alive; `call` must be what the program gave.
unsafe fn take_results(
    error: &mut RpcErr,
    client: *mut Client,
    call: &Call,
    xdrs: *mut Xdr,
    verifier: &mut OpaqueAuth,
) {
    // SAFETY: the caller's word.
    let auth = unsafe { (*client).cl_auth };
    let (procedure, at) = call.results;
    // SAFETY: credentials belong to the client.
    let decoded = if unsafe { heads::is_nobody(auth) } {
        // SAFETY: the program's procedure and results.
        unsafe { handle::call(procedure, xdrs, at) }
    } else {
        // SAFETY: tables of credentials are complete.
        let ops = unsafe { operations(auth) };
        // SAFETY: the credentials' own operation.
        if unsafe { (ops.ah_validate)(auth, verifier) } == FALSE {
            error.re_status = stat::AUTHERROR;
            error.first = stat::AUTH_INVALIDRESP;
            return;
        }
        // SAFETY: as above, with the program's procedure and results.
        unsafe { (ops.ah_unwrap)(auth, xdrs, procedure, at) }
    };
    if decoded == FALSE && error.re_status == stat::SUCCESS {
        error.re_status = stat::CANTDECODERES;
    }
}

/// A call with this does not wait.
pub(super) const NO_TIME: Timeval = Timeval { tv_sec: 0, tv_usec: 0 };

impl State {
    /// How long a call waits over a connection, as in `clnt_vc_call`: as long as was set; or as its argument says, or, where that is
    /// no time (`time_not_ok`), the last one that was. Whether it waits at all is its argument's to say.
    fn wait(&mut self, argument: Timeval) -> Timeval {
        let is_time = (0..=100_000_000).contains(&argument.tv_sec)
            && (0..=1_000_000).contains(&argument.tv_usec);
        if is_time {
            self.last_timeout = argument;
        }
        self.timeout.unwrap_or(self.last_timeout)
    }
}

/// A timeout; nothing of one that is negative.
fn duration(timeout: Timeval) -> Duration {
    let seconds = u64::try_from(timeout.tv_sec).unwrap_or(0);
    let micros = u64::try_from(timeout.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))
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
    let (timeout, none) = if ours.companion.is_some() {
        let timeout = state.timeout.unwrap_or(timeout);
        (timeout, timeout == NO_TIME)
    } else {
        (state.wait(timeout), timeout == NO_TIME)
    };
    let call = Call {
        procedure,
        arguments: (encode, arguments),
        results: (decode, results),
        time: Allowance::of(duration(if none { BATCH_TIMEOUT } else { timeout })),
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
    state.channel.counts().one(Counter::calls_ring);
    if let Some(errno) = state.broken {
        state.channel.counts().settle();
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
            Err(failed) => {
                state.channel.counts().settle();
                fail(&mut state, &failed);
                if state.broken.is_some() && ours.companion.is_some() {
                    drop(state);
                    return by_datagram();
                }
            }
        }
        state.channel.counts().settle();
        times.finish();
        return state.error.re_status;
    }
}

/// How long a batched call may wait for room, as libtirpc's blocking write would.
const BATCH_TIMEOUT: Timeval = Timeval { tv_sec: 35, tv_usec: 0 };

fn fail(state: &mut State, failed: &Failed) {
    let (cannot, broken) = match *failed {
        Failed::Sending(broken) => (stat::CANTSEND, broken),
        Failed::Receiving(broken) => (stat::CANTRECV, broken),
    };
    let (status, errno) = match broken {
        Broken::TimedOut => {
            counters::one(Counter::timeouts);
            (stat::TIMEDOUT, 0)
        }
        Broken::Gone(errno) => {
            counters::one(Counter::broken);
            (cannot, errno.raw_os_error())
        }
        Broken::Nonsense | Broken::TooLong => {
            counters::one(Counter::poisoned);
            (cannot, libc::EPROTO)
        }
    };
    if broken != Broken::TimedOut {
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
    if request == control::GET_TIMEOUT && ours.companion.is_none() && !info.is_null() {
        // libtirpc's own answer would be that of the offer, which was a call of it.
        // SAFETY: `info` has room for a timeout for this request.
        unsafe { info.cast::<Timeval>().write(state.timeout.unwrap_or(state.last_timeout)) };
        return TRUE;
    }
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
    if [control::SET_VERS, control::SET_PROG].contains(&request) && ours.companion.is_some() {
        // What goes by datagrams again, to a server that was started anew, is of libtirpc's making.
        // SAFETY: libtirpc's own operation on its own private part.
        unsafe { (ours.stock.cl_control)(client, request, info) };
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
