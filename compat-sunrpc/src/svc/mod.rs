//! The server: connections that libtirpc accepted get operations that serve a channel beside the
//! socket; one doorbell of the process wakes whatever loop the program has.
//!
//! ```text
//!   client rings ─▶ doorbell (a transport to libtirpc) ─▶ svc_getreq_common(connection)
//!                                                            ─▶ our xp_recv ─▶ dispatch
//! ```

mod bell;
mod datagram;
mod ops;
mod run;

pub(crate) use run::run;

use crate::abi::{Svcxprt, Xdr, XpOps};
use crate::channel::{Broken, Channel, Source};
use crate::counters::{self, Counter};
use crate::{daemon, settings};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use vmmc::sync::{AtomicU32, Ordering};

/// What hangs at an accepted connection: `xp_ops` points at its first field.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Transport {
    ops: XpOps,
    /// libtirpc's operations, which still own `xp_p1`.
    stock: XpOps,
    /// Where they are.
    stock_at: *const XpOps,
    xprt: *mut Svcxprt,
    fd: i32,
    /// The process that accepted the connection; another one is its child.
    owner: i32,
    /// Of the connection; `None` for datagrams.
    cookie: Option<u64>,
    link: Link,
    /// The channel that has ended while a service uses what lies in it.
    lender: Option<Box<Channel>>,
    turn: Turn,
    /// Where the request that is being served came from.
    from: From,
    /// The request while it is served: decodes from `source`.
    request: Option<Xdr>,
    /// Where `request` points; allocated once.
    source: Box<Source<'static>>,
    /// Requests served one after the other without looking at anybody else.
    in_a_row: u32,
    xid: u32,
}

/// How far the channel is.
#[derive(Debug)]
pub(crate) enum Link {
    /// No offer has come.
    None,
    /// Accepted; the daemon has not answered.
    Waiting,
    /// In use.
    Channel(Box<Channel>),
    /// The peer wrote nonsense: the connection is to be closed.
    Broken,
}

/// Where libtirpc is with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Elsewhere.
    Nowhere,
    /// In the program's dispatcher, with a request of it.
    Serving,
    /// There, and has asked for the next request, which has to wait: a service serves others meanwhile.
    Refused,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Kernel,
    Ring,
}

/// Pointers to every [`Transport`]. They are put in and taken out under this lock, and otherwise used by the one
/// thread that runs libtirpc's server loop. In `svc_run` that thread remembers some without the lock: what another
/// thread destroys meanwhile is left to it to free.
#[derive(Debug)]
struct Table {
    transports: Vec<Pointer>,
    /// The thread that is in [`run`].
    runner: Option<ThreadId>,
    /// Taken out by other threads, for the runner to free.
    left: Vec<Pointer>,
}

impl Table {
    const fn new() -> Table {
        Table { transports: Vec::new(), runner: None, left: Vec::new() }
    }

    /// Takes one out, to be freed by the caller if it is given back, and by the runner otherwise.
    fn take_out(&mut self, pointer: Pointer) -> Option<Pointer> {
        self.transports.retain(|it| *it != pointer);
        changes();
        if self.runner.is_none_or(|runner| runner == std::thread::current().id()) {
            return Some(pointer);
        }
        self.left.push(pointer);
        None
    }

    /// What was left to the runner, for it to free when it uses none of it.
    fn take_left(&mut self) -> Vec<Pointer> {
        std::mem::take(&mut self.left)
    }
}

/// Frees what was taken out.
fn free(taken_out: impl IntoIterator<Item = Pointer>) {
    for pointer in taken_out {
        // SAFETY: made by `registered` with `Box::into_raw`; out of the table, and given once to who frees it.
        let transport = unsafe { Box::from_raw(pointer.0) };
        if let (Some(cookie), false) = (transport.cookie, matches!(transport.link, Link::None)) {
            daemon::forget(cookie);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pointer(*mut Transport);
// SAFETY: libtirpc's server side is used by one thread at a time (as its own globals demand), but that another may
// destroy a connection that is not being served; [`Table::take_out`] sees to that.
unsafe impl Send for Pointer {}

static TABLE: Mutex<Table> = Mutex::new(Table::new());

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often [`TABLE`] has changed, or a link in it.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// [`TABLE`] has changed (under its lock), or a link in it changes: what was remembered of them is looked up anew.
fn changes() {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// The socket's cookie, if it is a TCP connection with both ends on this machine, or with the other one on a node to
/// which the daemon carries connections.
pub(crate) fn eligible_connection(fd: i32) -> Option<u64> {
    if fd < 0 {
        return None;
    }
    // SAFETY: used for these calls only; a number that is closed meanwhile answers EBADF.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let domain = sockopt::socket_domain(socket).ok()?;
    if sockopt::socket_type(socket).ok()? != SocketType::STREAM
        || !matches!(domain, AddressFamily::INET | AddressFamily::INET6)
    {
        return None;
    }
    let address = |any: rustix::net::SocketAddrAny| std::net::SocketAddr::try_from(any).ok();
    let own = address(rustix::net::getsockname(socket).ok()?)?.ip().to_canonical();
    let peer = address(rustix::net::getpeername(socket).ok()??)?.ip().to_canonical();
    if own != peer && !peer.is_loopback() && !daemon::is_neighbour(peer) {
        return None;
    }
    sockopt::socket_cookie(socket).ok()
}

/// libtirpc has registered a transport: connections of this machine get our operations, and so do
/// datagram transports if they are to take part.
pub(crate) fn registered(xprt: *mut Svcxprt) {
    if !settings::is_on() || xprt.is_null() {
        return;
    }
    // SAFETY: libtirpc's transport, just registered.
    let handle = unsafe { &mut *xprt };
    // Listeners and datagram transports have no peer; our own doorbell is no socket.
    let cookie = eligible_connection(handle.xp_fd);
    if cookie.is_none() && !datagram::takes_part(handle.xp_fd) {
        return;
    }
    if table().transports.iter().any(|it| is_at(*it, xprt)) {
        return; // registered again
    }
    if cookie.is_some() {
        datagram::name_network(handle);
    }
    let transport = Transport {
        ops: ops::OPS,
        // SAFETY: transports of libtirpc's have complete tables.
        stock: unsafe { handle.xp_ops.read() },
        stock_at: handle.xp_ops,
        xprt,
        fd: handle.xp_fd,
        owner: own_pid(),
        cookie,
        link: Link::None,
        lender: None,
        turn: Turn::Nowhere,
        from: From::Kernel,
        request: None,
        source: Box::new(Source::nothing()),
        in_a_row: 0,
        xid: 0,
    };
    let transport = Box::into_raw(Box::new(transport));
    {
        let mut table = table();
        table.transports.push(Pointer(transport));
        changes();
    }
    handle.xp_ops = transport.cast::<XpOps>();
}

/// This process.
fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn is_at(pointer: Pointer, xprt: *mut Svcxprt) -> bool {
    // SAFETY: pointers in the table are alive.
    unsafe { (*pointer.0).xprt == xprt }
}

/// Descriptors of the connections whose channel has something to read; takes the daemon's
/// answers first.
fn ready() -> Vec<i32> {
    let mut ready = Vec::new();
    // Locked for each anew: what is done here may take long.
    for i in 0.. {
        let Some(pointer) = table().transports.get(i).copied() else { break };
        // SAFETY: alive: nothing is served within this loop, and only serving frees transports, or the runner.
        let transport = unsafe { &mut *pointer.0 };
        transport.take_answer();
        if let Link::Channel(channel) = &mut transport.link {
            // Room may have come for what waits to be sent. What still waits asks to be rung for more:
            // its connection is not served now, which would do so; unless there is room again already.
            match channel.flush() {
                Ok(true) => {}
                Ok(false) => channel.arm(),
                Err(broken) => transport.give_up(broken),
            }
        }
        if transport.looks_ready() || transport.arms_again() {
            ready.push(transport.fd);
        }
    }
    ready
}

impl Transport {
    /// The request is not used any more, nor what of it was lent.
    fn done(&mut self) {
        self.request = None;
        *self.source = Source::nothing();
        self.lender = None;
    }

    /// The channel ends, and what was to be decoded out of it; the connection is to be closed.
    fn give_up(&mut self, why: Broken) {
        counters::one(match why {
            Broken::Nonsense | Broken::TooLong => Counter::poisoned,
            Broken::Gone(_) => Counter::broken,
            Broken::TimedOut => Counter::timeouts,
        });
        changes();
        let ended = std::mem::replace(&mut self.link, Link::Broken);
        match ended {
            Link::Channel(channel) if self.source.has_lent() => self.lender = Some(channel),
            _ => self.done(),
        }
    }

    fn looks_ready(&self) -> bool {
        match &self.link {
            // What is lent lies at the ring's head: nothing behind it is looked at.
            Link::Channel(channel) => !self.source.has_lent() && channel.looks_serviceable(),
            Link::Broken => true,
            Link::None | Link::Waiting => false,
        }
    }

    /// Nothing has come: asks to be rung, for who rang may have taken what was asked later than for
    /// what it rang: it looked at the word, was held up, and took it when we had served its call and
    /// asked anew. Whether something has come meanwhile.
    fn arms_again(&self) -> bool {
        let Link::Channel(channel) = &self.link else { return false };
        if run::is_spinning() || self.source.has_lent() {
            return false; // it looks by itself; it looks when its service is done
        }
        channel.arm();
        channel.looks_serviceable()
    }

    /// Attaches when the daemon has answered.
    fn take_answer(&mut self) {
        use crate::daemon::{Answer, answer};
        if matches!(self.link, Link::Waiting)
            && let Some(cookie) = self.cookie
        {
            self.link = match answer(cookie) {
                None => return,
                Some(Answer::Channel(channel)) => {
                    counters::one(Counter::channels);
                    changes();
                    Link::Channel(channel)
                }
                Some(Answer::Plain) => Link::None,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_thread_destroys_is_left_to_the_thread_in_svc_run() {
        let mut table = Table::new();
        let [first, second] = [8, 16].map(|at| Pointer(std::ptr::without_provenance_mut(at)));
        table.transports = vec![first, second];
        assert_eq!(table.take_out(first), Some(first), "nobody is in svc_run");
        let other = std::thread::spawn(|| ()).thread().id();
        table.runner = Some(other);
        assert_eq!(table.take_out(second), None, "another is");
        assert_eq!((table.transports.len(), table.take_left()), (0, vec![second]));
        table.runner = Some(std::thread::current().id());
        table.transports = vec![first];
        assert_eq!((table.take_out(first), table.take_left()), (Some(first), vec![]), "we are");
    }
}
