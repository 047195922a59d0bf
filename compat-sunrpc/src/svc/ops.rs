//! The operations of a connection that may have a channel (`struct xp_ops`).

use super::{From, Link, Pointer, Transport, Turn, bell, free, table};
use crate::abi::{
    Bool, FALSE, RpcMsg, Svcauth, SvcauthOps, Svcxprt, SvcxprtExt, TRUE, Xdr, XdrProc, XpOps,
    accept, reply, xprt,
};
use crate::channel::{Broken, Channel, Long, Source};
use crate::counters::{self, Counter};
use crate::handle::{self, heads};
use crate::offer;
use crate::{daemon, real};
use rustix::net::RecvFlags;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

/// Requests that one connection may have served before the others are looked at.
const MOST_IN_A_ROW: u32 = 64;

/// The table that every wrapped connection has a copy of.
pub(super) const OPS: XpOps = XpOps {
    xp_recv: recv,
    xp_stat: stat,
    xp_getargs: get_args,
    xp_reply: send_reply,
    xp_freeargs: free_args,
    xp_destroy: destroy,
};

/// What hangs at a connection.
///
/// # Safety
/// `handle` must have our operations; the result must not be used across anything that may
/// call them again.
unsafe fn ours<'t>(handle: *mut Svcxprt) -> &'t mut Transport {
    // SAFETY: the caller's word.
    let ops = unsafe { (*handle).xp_ops };
    // SAFETY: `registered` made `xp_ops` point at the first field of a `Transport`; libtirpc's
    // server side is used by one thread at a time.
    unsafe { &mut *ops.cast_mut().cast::<Transport>() }
}

/// Whether the socket has something to say: data, its end, or an error.
fn kernel_has_news(fd: i32) -> bool {
    // SAFETY: the connection's own descriptor, for one call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut byte = [0u8; 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(rustix::net::recv(socket, &mut byte, flags), Err(rustix::io::Errno::AGAIN))
}

unsafe extern "C" fn recv(handle: *mut Svcxprt, message: *mut RpcMsg) -> Bool {
    // SAFETY: an operation of our table gets a wrapped connection.
    let ours = unsafe { ours(handle) };
    if ours.turn == Turn::Serving && ours.source.has_lent() {
        // The service that uses it serves others meanwhile; its own client waits.
        ours.turn = Turn::Refused;
        return FALSE;
    }
    ours.turn = Turn::Nowhere;
    ours.done();
    ours.take_answer();
    if let Link::Channel(channel) = &mut ours.link {
        channel.disarm();
        // Released before: a call that a service interrupts to serve others.
        match channel.release().and_then(|()| next_request(channel)) {
            Ok(Some(record)) => {
                // SAFETY: libtirpc's own message to fill.
                return unsafe { ours.received(record, message) };
            }
            Ok(None) => {}
            Err(broken) => ours.give_up(broken),
        }
        if matches!(ours.link, Link::Channel(_)) && !kernel_has_news(ours.fd) {
            ours.from = From::Ring; // nothing: `stat` arms and looks again
            return FALSE;
        }
    }
    if matches!(ours.link, Link::Broken) {
        return FALSE;
    }
    let stock = ours.stock;
    // SAFETY: libtirpc's own operation on its own connection, as after each request.
    let is_idle = || unsafe { (stock.xp_stat)(handle) } == xprt::IDLE;
    if ours.cookie.is_some() && !kernel_has_news(ours.fd) && is_idle() {
        // Told of for nothing, where libtirpc would wait for 35 s and then close it: a program's set may tell of a
        // connection before, of the same number, while the daemon that carried that has a copy of it.
        ours.from = From::Ring;
        return FALSE;
    }
    ours.from = From::Kernel;
    // SAFETY: libtirpc's own operation on its own connection.
    if unsafe { (stock.xp_recv)(handle, message) } == FALSE {
        return FALSE;
    }
    // SAFETY: a call that was decoded.
    let body = unsafe { (*message).ru };
    // SAFETY: a call.
    let call = unsafe { body.call };
    if call.cb_prog != offer::RPCBIND && call.cb_proc == 0 {
        // SAFETY: the credential that libtirpc decoded.
        if unsafe { offer::is_offer(&call.cb_cred) } {
            // SAFETY: as the operation.
            unsafe { answer_offer(handle, message) };
            return FALSE; // answered here: nothing to dispatch
        }
    }
    counters::one(Counter::served_kernel);
    daemon::appear();
    TRUE
}

/// The next request, unless replies wait.
fn next_request(channel: &Channel) -> Result<Option<Source<'static>>, Broken> {
    if channel.flush()? { channel.next_whole() } else { Ok(None) }
}

impl Transport {
    /// Decodes the head of a call.
    ///
    /// # Safety
    /// `message` must be what libtirpc passes to `xp_recv`.
    unsafe fn received(&mut self, record: Source<'static>, message: *mut RpcMsg) -> Bool {
        self.from = From::Ring;
        self.turn = Turn::Serving;
        *self.source = record.lending(self.owner);
        // SAFETY: libtirpc's message, which nobody else uses.
        let of_nobody = heads::take_call_of_nobody(&mut self.source, unsafe { &mut *message });
        let mut xdrs = handle::decoder(&mut self.source);
        if !of_nobody {
            let Some(callmsg) = real::xdr_callmsg() else { return FALSE };
            // SAFETY: libtirpc's procedure on our handle and its own message.
            if unsafe { callmsg(&raw mut xdrs, message) } == FALSE {
                // As libtirpc: a head that makes no sense ends the connection.
                self.give_up(Broken::Nonsense);
                return FALSE;
            }
        }
        // SAFETY: just decoded.
        self.xid = unsafe { (*message).rm_xid };
        self.request = Some(xdrs);
        match &self.link {
            Link::Channel(channel) => {
                channel.counts().one(Counter::served_ring);
                // The service may fork, and both processes go on with what is not added up.
                channel.counts().settle();
            }
            _ => counters::one(Counter::served_ring),
        }
        TRUE
    }
}

/// Accepts a channel or answers as one answers a flavor that one does not know: when there is no
/// daemon, or the offer comes twice.
///
/// # Safety
/// `handle` and `message` must be those of `xp_recv`, the message decoded.
unsafe fn answer_offer(handle: *mut Svcxprt, message: *mut RpcMsg) {
    // SAFETY: a wrapped connection.
    let ours = unsafe { ours(handle) };
    let accepted = match ours.cookie {
        Some(cookie) => ours.accept(cookie).then_some(None),
        None => super::datagram::port().map(Some),
    };
    let stock = ours.stock;
    // SAFETY: a decoded call.
    let xid = unsafe { (*message).rm_xid };
    // No service has run on this connection: libtirpc may not have set how results are wrapped.
    // SAFETY: its own handle.
    unsafe { wrap_plainly(handle) };
    let say = |mut answer: RpcMsg| {
        answer.rm_xid = xid;
        // SAFETY: libtirpc's own operation with a complete message.
        unsafe { (stock.xp_reply)(handle, &raw mut answer) };
    };
    match accepted {
        Some(port) => offer::accepting(port, |verifier| {
            say(RpcMsg::accepted(verifier, Some(handle::void), std::ptr::null_mut()));
        }),
        None => say(RpcMsg::rejected()),
    }
}

impl Transport {
    /// Registers the connection with the daemon, which will answer; false when it cannot be.
    fn accept(&mut self, cookie: u64) -> bool {
        // SAFETY: its own descriptor, open while it exists.
        let socket = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let fresh = matches!(self.link, Link::None);
        let registered =
            fresh && bell::with(|bell| daemon::register(socket, cookie, bell)).unwrap_or(false);
        if registered {
            self.link = Link::Waiting;
        } else {
            counters::one(Counter::no_daemon);
        }
        registered
    }
}

/// Results are encoded as they are, as for `AUTH_NONE`.
///
/// # Safety
/// `handle` must be libtirpc's.
unsafe fn wrap_plainly(handle: *mut Svcxprt) {
    // SAFETY: the caller's word.
    let extension = unsafe { (*handle).xp_p3 }.cast::<SvcxprtExt>();
    let Some(plain) = real::svc_auth_none() else { return };
    // SAFETY: null, or an extension that nobody else uses now.
    let Some(extension) = (unsafe { extension.as_mut() }) else { return };
    // SAFETY: libtirpc's variable.
    extension.xp_auth = unsafe { plain.read() };
}

unsafe extern "C" fn stat(handle: *mut Svcxprt) -> c_int {
    // SAFETY: an operation of our table gets a wrapped connection.
    let ours = unsafe { ours(handle) };
    if ours.turn == Turn::Refused {
        ours.turn = Turn::Serving;
        return xprt::IDLE;
    }
    ours.turn = Turn::Nowhere;
    ours.done();
    if let Link::Channel(channel) = &mut ours.link
        && let Err(broken) = channel.release().and_then(|()| channel.flush())
    {
        ours.give_up(broken);
    }
    match &mut ours.link {
        Link::Broken => return xprt::DIED,
        Link::Channel(channel) => {
            if channel.looks_serviceable() {
                ours.in_a_row += 1;
                if ours.in_a_row < MOST_IN_A_ROW {
                    return xprt::MOREREQS;
                }
                ours.in_a_row = 0;
                super::run::others_first();
                return xprt::IDLE;
            }
            ours.in_a_row = 0;
            if !super::run::is_spinning() {
                channel.arm();
                if channel.looks_serviceable() {
                    channel.disarm();
                    return xprt::MOREREQS;
                }
            }
        }
        Link::None | Link::Waiting => {}
    }
    if ours.from == From::Ring {
        return xprt::IDLE;
    }
    // SAFETY: libtirpc's own operation on its own connection.
    unsafe { (ours.stock.xp_stat)(handle) }
}

/// How the arguments and results of the current call are wrapped.
///
/// # Safety
/// `handle` must be libtirpc's.
unsafe fn wrapping(handle: *mut Svcxprt) -> Option<(*mut Svcauth, SvcauthOps)> {
    // SAFETY: the caller's word.
    let extension = unsafe { (*handle).xp_p3 }.cast::<SvcxprtExt>();
    // SAFETY: null, or an extension.
    let auth = &mut unsafe { extension.as_mut() }?.xp_auth;
    // SAFETY: null, or a complete table of a flavor.
    let ops = unsafe { auth.svc_ah_ops.as_ref() }?;
    Some((auth, *ops))
}

unsafe extern "C" fn get_args(
    handle: *mut Svcxprt,
    procedure: Option<XdrProc>,
    at: *mut c_void,
) -> Bool {
    // SAFETY: an operation of our table gets a wrapped connection.
    let ours = unsafe { ours(handle) };
    if ours.from == From::Kernel {
        // SAFETY: libtirpc's own operation on its own connection.
        return unsafe { (ours.stock.xp_getargs)(handle, procedure, at) };
    }
    let Some(xdrs) = &mut ours.request else { return FALSE };
    let xdrs: *mut Xdr = xdrs;
    // SAFETY: libtirpc's handle.
    match unsafe { wrapping(handle) } {
        // SAFETY: the flavor's own operation, the program's procedure.
        Some((auth, ops)) => unsafe { (ops.svc_ah_unwrap)(auth, xdrs, procedure, at) },
        // SAFETY: the program's procedure and its variable.
        None => unsafe { handle::call(procedure, xdrs, at) },
    }
}

unsafe extern "C" fn free_args(
    handle: *mut Svcxprt,
    procedure: Option<XdrProc>,
    at: *mut c_void,
) -> Bool {
    // SAFETY: an operation of our table gets a wrapped connection.
    let ours = unsafe { ours(handle) };
    if ours.from == From::Kernel {
        // SAFETY: libtirpc's own operation on its own connection.
        return unsafe { (ours.stock.xp_freeargs)(handle, procedure, at) };
    }
    let mut xdrs = handle::freer();
    // SAFETY: the program's procedure and what it decoded.
    let freed = unsafe { handle::call(procedure, &raw mut xdrs, at) };
    if ours.source.has_lent() {
        ours.done();
        if let Link::Channel(channel) = &mut ours.link
            && let Err(broken) = channel.release()
        {
            ours.give_up(broken);
        }
    }
    freed
}

unsafe extern "C" fn send_reply(handle: *mut Svcxprt, message: *mut RpcMsg) -> Bool {
    // SAFETY: an operation of our table gets a wrapped connection.
    let ours = unsafe { ours(handle) };
    if ours.from == From::Kernel {
        // SAFETY: libtirpc's own operation on its own connection.
        return unsafe { (ours.stock.xp_reply)(handle, message) };
    }
    // SAFETY: the transport and libtirpc's message of a finished call.
    unsafe { ours.reply(handle, message) }.unwrap_or(FALSE)
}

/// Takes the results out of a successful reply: they are wrapped by the flavor, the head is not.
fn take_results(message: &mut RpcMsg) -> Option<(Option<XdrProc>, *mut c_void)> {
    // SAFETY: `message` is a reply: both kinds begin with their status.
    let body = unsafe { &mut message.ru.reply };
    if body.rp_stat != reply::ACCEPTED {
        return None;
    }
    // SAFETY: an accepted reply.
    let accepted = unsafe { &mut body.ru.accepted };
    if accepted.ar_stat != accept::SUCCESS {
        return None;
    }
    let results = (accepted.results_proc, accepted.results_where);
    accepted.results_proc = Some(handle::void);
    accepted.results_where = std::ptr::null_mut();
    Some(results)
}

impl Transport {
    /// Encodes a reply into the ring.
    ///
    /// # Safety
    /// As `xp_reply`.
    unsafe fn reply(&mut self, handle: *mut Svcxprt, message: *mut RpcMsg) -> Option<Bool> {
        let Link::Channel(channel) = &mut self.link else { return None };
        // SAFETY: a complete message of libtirpc's.
        let message = unsafe { &mut *message };
        message.rm_xid = self.xid;
        let results = take_results(message);
        // SAFETY: libtirpc's handle.
        let wrapping = unsafe { wrapping(handle) };
        // SAFETY: null, or libtirpc's variable.
        let plain = real::svc_auth_none().map(|plain| unsafe { plain.read() }.svc_ah_ops);
        let plainly = match &wrapping {
            // SAFETY: alive while the call is served.
            Some((auth, _)) => plain == Some(unsafe { (**auth).svc_ah_ops }),
            None => true,
        };
        // Nobody else is served meanwhile: it does not wait for the client.
        let long = if plainly { Long::IsKept } else { Long::InMemory };
        let Ok(mut writer) = channel.writer(long) else {
            self.give_up(Broken::Nonsense); // it waits for nothing
            return None;
        };
        let head = heads::plain_reply(message);
        let begun = head.map(|head| writer.begin(head));
        let mut xdrs = handle::encoder(&mut writer);
        let mut done = match begun {
            Some(begun) => Bool::from(begun),
            // SAFETY: libtirpc's procedure on our handle and its own message.
            None => unsafe { real::xdr_replymsg()?(&raw mut xdrs, message) },
        };
        if done != FALSE
            && let Some((procedure, at)) = results
        {
            done = match wrapping {
                // SAFETY: the flavor's own operation, the program's procedure.
                Some((auth, ops)) => unsafe {
                    (ops.svc_ah_wrap)(auth, &raw mut xdrs, procedure, at)
                },
                // SAFETY: the program's procedure and its results.
                None => unsafe { handle::call(procedure, &raw mut xdrs, at) },
            };
        }
        if done == FALSE {
            return Some(FALSE);
        }
        // The request has been decoded: its room may go back before the reply is seen, unless the service is
        // still using what lies there.
        self.request = None;
        let answered = if self.source.has_lent() {
            channel.submit(writer);
            Ok(())
        } else {
            *self.source = Source::nothing();
            channel.submit_and_release(writer)
        };
        let mut flushed = answered.and_then(|()| channel.flush());
        if flushed == Ok(false) && super::own_pid() != self.owner {
            // SAFETY: its own descriptor, open while it exists.
            let socket = unsafe { BorrowedFd::borrow_raw(self.fd) };
            flushed = channel.flush_as_child(socket).map(|()| true);
        } else if flushed == Ok(false) && !super::run::is_spinning() {
            // Who answers outside of a loop's turn comes back for the rest, too.
            channel.arm();
            if channel.looks_serviceable() {
                bell::ring();
            }
        }
        if let Err(broken) = flushed {
            self.give_up(broken);
            return Some(FALSE);
        }
        Some(TRUE)
    }
}

unsafe extern "C" fn destroy(handle: *mut Svcxprt) {
    // SAFETY: libtirpc's handle, with our operations.
    let pointer = unsafe { (*handle).xp_ops }.cast_mut().cast::<Transport>();
    // SAFETY: made by `registered`, and freed below at the earliest; no reference: another thread may have one.
    let stock = unsafe { (*pointer).stock };
    // SAFETY: as above.
    let stock_at = unsafe { (*pointer).stock_at };
    // SAFETY: as libtirpc made it.
    unsafe { (*handle).xp_ops = stock_at };
    let taken_out = table().take_out(Pointer(pointer));
    match taken_out {
        Some(_) => free(taken_out),
        None => bell::ring(), // who is to free it may sleep
    }
    // SAFETY: libtirpc's own operation on its own connection.
    unsafe { (stock.xp_destroy)(handle) };
}
