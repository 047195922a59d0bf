//! From plain TCP to a segment: which way a call takes, when a socket is offered, what happens
//! when the answer comes.
//!
//! ```text
//!   CANDIDATE --32 calls or 1 MiB--> PENDING --Paired--> ACTIVE
//!       ^                              |
//!       +------- not now --------------+--NotPaired--> PLAIN (for good)
//! ```
//!
//! Nobody waits: while the offer is out, data flows by TCP as ever. The two ends attach at
//! different times. An end that has attached says so in the segment (`ready`), but only once no
//! thread of it is inside a plain receive on that socket: such a thread could take a doorbell
//! for data. That is why plain calls on candidate and pending sockets are counted, and why an
//! attached end never blocks in a plain receive again. A direction switches to the ring when its
//! sender finds the other end ready ([`try_switch`]); once more, after its ring has rested ([`crate::stream::full`]), when it
//! finds that the other end has taken all that went by TCP meanwhile.
//!
//! # The byte at which a direction switches
//! comes from the kernel and not from counting calls, so that a byte that went by a path we did
//! not see (`sendfile` from another library, a raw system call) cannot shift it:
//! * given to TCP by the sender: `bytes_sent - bytes_retrans + notsent_bytes` of `TCP_INFO`;
//! * taken out by the receiver: `bytes_received` (less one after a FIN, which the kernel counts)
//!   minus the unread queue, read again until nothing arrived in between.
//!
//! ([`vmmc_ring::tcp_count`], which the daemon's pump uses too.)

use crate::counters::{self, Counter};
use crate::entry::options;
use crate::segment::Segment;
use crate::side::{GATE_CLOSED, Side, tx};
use crate::sock::{Link, Sock, shadow, state};
use crate::stream::full;
use crate::{bulk, carrier, control, epoll, family, fd_table, raw, settings};
use std::ptr::NonNull;
use vmmc::sync::{AtomicU32, Ordering};
use vmmc::sys::namespace;
use vmmc::word::Word;
use vmmc_ring::tcp_count::TcpInfo;

/// Offers at most per connection.
const MOST_TRIES: u32 = 4;
/// Calls to wait before the next offer; four times as many each time.
const RETRY_CALLS: u32 = 1024;

/// Shortest round trip, in microseconds, of a connection whose other end may be on this machine though its address is not
/// of this network namespace. Between two namespaces it is 10 to 50.
const NEAR_US: u32 = 200;

/// Calls at least to wait where there was no room for an offer.
const CROWDED_CALLS: u32 = 8;

/// Which way a data call goes.
#[derive(Debug)]
pub(crate) enum Route {
    /// To the C library; nothing to do before or after.
    Plain,
    /// To the C library; [`Inside::done`] must follow.
    Counted(Inside),
    /// To the rings; [`Link::leave`] must follow.
    Ring(Link),
}

/// A thread inside a plain call. One that is cancelled there unwinds, and is inside no longer.
#[derive(Debug)]
pub(crate) struct Inside {
    sock: &'static Sock,
    way: Way,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.sock.leave_plain(counter(self.sock, self.way));
    }
}

/// Which of the two counts of plain calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Receive,
    Send,
}

#[inline]
fn counter(sock: &'static Sock, way: Way) -> &'static AtomicU32 {
    match way {
        Way::Receive => &sock.plain_rx,
        Way::Send => &sock.plain_tx,
    }
}

/// Decides about a data call on `fd`.
#[inline]
pub(crate) fn route(fd: i32, way: Way) -> Route {
    match fd_table::sock(fd) {
        None => Route::Plain,
        Some(sock) => match sock.state.load(Ordering::Relaxed) {
            state::ACTIVE => match sock.enter(fd) {
                Some(link) => Route::Ring(link),
                None => Route::Plain,
            },
            state::CANDIDATE | state::PENDING => not_yet(sock, fd, way),
            _ => Route::Plain,
        },
    }
}

fn not_yet(sock: &'static Sock, fd: i32, way: Way) -> Route {
    let calls = sock.calls.load(Ordering::Relaxed).wrapping_add(1);
    sock.calls.store(calls, Ordering::Relaxed);
    let try_at = sock.try_at.load(Ordering::Relaxed);
    if sock.state.load(Ordering::Relaxed) == state::CANDIDATE {
        let tries = sock.tries.load(Ordering::Relaxed);
        let first = tries == 0;
        let bytes = sock.bytes.load(Ordering::Relaxed);
        let much = tries <= 1 && bytes >= bulk::offered_at(tries);
        let often = calls >= try_at && !(first && bulk::is_one(bytes, calls));
        if (often || much) && !family::is_alone(sock) {
            // Somebody else has it too: asked again at this call's double.
            sock.try_at.store(calls.wrapping_mul(2).max(settings::after()), Ordering::Relaxed);
            sock.bytes.store(0, Ordering::Relaxed);
            counters::note(fd, Counter::plain_forked);
            control::introduce();
        } else if often || much {
            sock.try_at.store(calls, Ordering::Relaxed);
            control::register(sock, fd);
        }
    } else {
        // The answer is looked for at the next calls, then ever more rarely: one that comes late is found an eighth later
        // at most, and one that never comes (the other end takes no part) costs little.
        if calls >= try_at {
            let since = calls.saturating_sub(settings::after());
            sock.try_at.store(calls.saturating_add((since / 8).max(1)), Ordering::Relaxed);
            control::poll_mail();
        }
    }
    counted(sock, fd, way)
}

/// A plain call on a socket that may be upgraded meanwhile.
pub(crate) fn counted(sock: &'static Sock, fd: i32, way: Way) -> Route {
    let count = counter(sock, way);
    // PAIRS(plain): with the store of ACTIVE in `Sock::activate`.
    count.fetch_add(1, Ordering::SeqCst);
    match sock.state.load(Ordering::SeqCst) {
        state::ACTIVE => {
            sock.leave_plain(count);
            sock.enter(fd).map_or(Route::Plain, Route::Ring)
        }
        state::CANDIDATE | state::PENDING if sock.is_at(fd) => Route::Counted(Inside { sock, way }),
        _ => {
            sock.leave_plain(count);
            Route::Plain
        }
    }
}

impl Inside {
    /// After the call, with its result.
    #[inline]
    pub(crate) fn done(self, fd: i32, result: isize) {
        let (sock, way) = (self.sock, self.way);
        counters::one(Counter::tcp_calls);
        if result > 0 {
            let bytes = sock.bytes.load(Ordering::Relaxed);
            let more = u32::try_from(result).unwrap_or(u32::MAX);
            sock.bytes.store(bytes.saturating_add(more), Ordering::Relaxed);
        } else {
            // Only calls that moved something count: of those the two ends have about as many, so they come to
            // their offers at about the same time, however often one of them looks in vain.
            let calls = sock.calls.load(Ordering::Relaxed);
            sock.calls.store(calls.saturating_sub(1), Ordering::Relaxed);
        }
        drop(self);
        if way == Way::Receive
            && sock.state.load(Ordering::SeqCst) == state::ACTIVE
            && let Some(link) = sock.enter(fd)
        {
            publish_ready(&link);
            link.leave();
        }
    }
}

/// Whether the socket can be upgraded at all: TCP, both ends on this machine, or the other where the daemon may
/// reach it. Under the lock of the conversation.
pub(crate) fn is_eligible(sock: &Sock, fd: i32) -> bool {
    let option = |name| raw::socket_option(fd, libc::SOL_SOCKET, name, 0i32);
    if !raw::is_stream_socket(fd) || option(libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP) {
        sock.make_plain(fd, Counter::plain_not_tcp);
        return false;
    }
    let names =
        (raw::socket_name(fd, libc::SYS_getsockname), raw::socket_name(fd, libc::SYS_getpeername));
    let (Ok(own), Ok(peer)) = names else {
        // Not connected (any more): ask again later.
        not_now(sock, fd, Counter::plain_not_tcp);
        return false;
    };
    // A connection to an address of this machine has the same address at both ends, unless a
    // program has bound it to another.
    if ip(&own) != ip(&peer) && !is_loopback(&peer) && !is_local(&peer) {
        match control::reaches_out(is_near(fd)) {
            // Neither of a transparent proxy's two sockets has an address of its own, and their addresses mirror each
            // other: they are no connection.
            Some(true) if is_local(&own) => {}
            Some(_) => {
                sock.make_plain(fd, Counter::plain_remote);
                return false;
            }
            // The daemon has not said yet.
            None => {
                ask_soon(sock);
                return false;
            }
        }
    }
    let allowed = |settings: &settings::Settings| {
        settings.rules.allow(&settings.asker, address(&own), address(&peer))
    };
    if !settings::get().is_some_and(allowed) {
        sock.make_plain(fd, Counter::plain_rule);
        return false;
    }
    // Last, because it asks the most.
    if options::keeps_in_kernel(fd) {
        sock.make_plain(fd, Counter::plain_option);
        return false;
    }
    true
}

/// Whether packets go there and back as fast as within a machine.
fn is_near(fd: i32) -> bool {
    tcp_info(fd).is_some_and(|info| info.min_rtt <= NEAR_US)
}

/// Address and port.
fn address(address: &libc::sockaddr_in6) -> std::net::SocketAddr {
    // The port is at the same place in both families.
    let port = u16::from_be(address.sin6_port);
    (std::net::Ipv6Addr::from(ip(address)).to_canonical(), port).into()
}

/// The address without the port, IPv4 as itself.
fn ip(address: &libc::sockaddr_in6) -> [u8; 16] {
    if i32::from(address.sin6_family) == libc::AF_INET {
        let mut mapped = [0; 16];
        mapped[10..12].copy_from_slice(&[0xff, 0xff]);
        // sockaddr_in has its address where sockaddr_in6 has flowinfo.
        mapped[12..].copy_from_slice(&address.sin6_flowinfo.to_ne_bytes());
        mapped
    } else {
        address.sin6_addr.s6_addr
    }
}

/// Whether it is an address of this network namespace.
fn is_local(of: &libc::sockaddr_in6) -> bool {
    let mut whole = address(of);
    if let std::net::SocketAddr::V6(version_6) = &mut whole {
        version_6.set_scope_id(of.sin6_scope_id);
    }
    namespace::is_local(whole)
}

fn is_loopback(address: &libc::sockaddr_in6) -> bool {
    let ip = ip(address);
    match ip {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, ..] => true,
        _ => ip == std::net::Ipv6Addr::LOCALHOST.octets(),
    }
}

/// Nobody looked for the daemon this time, because there was none a moment ago. No try: a connection that makes
/// many calls in that moment would have used up all of its own.
pub(crate) fn ask_later(sock: &Sock, fd: i32) {
    let calls = sock.calls.load(Ordering::Relaxed);
    sock.try_at.store(calls.wrapping_add(RETRY_CALLS), Ordering::Relaxed);
    sock.bytes.store(0, Ordering::Relaxed);
    counters::note(fd, Counter::plain_no_daemon);
}

/// The socket is offered by one of its next calls, or, where that was in vain too, by one of the next more.
fn ask_soon(sock: &Sock) {
    let calls = sock.calls.load(Ordering::Relaxed);
    sock.try_at.store(calls.wrapping_add((calls / 4).max(CROWDED_CALLS)), Ordering::Relaxed);
    sock.bytes.store(0, Ordering::Relaxed);
}

/// The socket, which `fd` is, stays plain for now; a later call offers it again, a few times.
pub(crate) fn not_now(sock: &Sock, fd: i32, reason: Counter) {
    let calls = sock.calls.load(Ordering::Relaxed);
    if reason == Counter::plain_resources {
        // Too many offers at once: nothing was learnt of this one, and the other end, whose offer may have had
        // room, waits a second for it. Asked again soon, then less and less often.
        counters::one(reason);
        ask_soon(sock);
    } else {
        let tries = sock.tries.load(Ordering::Relaxed) + 1;
        sock.tries.store(tries, Ordering::Relaxed);
        if tries >= MOST_TRIES {
            sock.make_plain(fd, reason);
            return;
        }
        counters::one(reason);
        sock.try_at.store(calls.wrapping_add(RETRY_CALLS << (2 * tries)), Ordering::Relaxed);
    }
    counters::note(fd, reason);
    sock.not_offered();
}

/// The daemon has paired the socket, which the caller holds, and its segment is mapped. False, and without effect,
/// when the socket was closed meanwhile or is to stay plain.
pub(crate) fn attached(
    sock: &'static Sock,
    fd: i32,
    start: NonNull<u8>,
    ring_len: u32,
    side_number: u8,
    side: &'static Side,
) -> bool {
    // A doorbell must leave at once: with Nagle's algorithm a second one would wait for the
    // acknowledgement of the first, and a cork would hold it back. The program keeps seeing its
    // own settings.
    let mut shadow = 0;
    let options = [(libc::TCP_NODELAY, shadow::NODELAY, 1i32), (libc::TCP_CORK, shadow::CORK, 0)];
    for (name, bit, ours) in options {
        if raw::socket_option(fd, libc::IPPROTO_TCP, name, 0i32).is_ok_and(|value| value != 0) {
            shadow |= bit;
        }
        let _ = raw::set_socket_option(fd, libc::IPPROTO_TCP, name, &ours);
    }
    if options::tells_unread(fd) {
        shadow |= shadow::INQ;
    }
    sock.shadow.store(shadow, Ordering::Relaxed);
    sock.nonblocking.store(raw::is_nonblocking(fd).into(), Ordering::Relaxed);
    sock.spins.forget();
    // Armed from the start: some thread may be asleep in poll or epoll already. Before anybody
    // can use the segment: see `Link::arm_data`.
    // SAFETY: mapped by the caller, of this ring length.
    let segment = unsafe { Segment::from_raw(start, ring_len as usize) };
    vmmc_ring::bell::arm(&segment.side(side_number).armed_data());
    // PAIRS(waiters): before anybody can meet the connection in its rings.
    epoll::ACTIVE.fetch_add(1, Ordering::SeqCst);
    // Before another thread can find a reason to send it back.
    counters::strike(fd);
    if !sock.activate(start, ring_len, side_number, side) {
        epoll::ACTIVE.fetch_sub(1, Ordering::SeqCst);
        // One that stays plain has the program's settings; the number of one that was closed may be another's.
        let theirs = |bit: u32| i32::from(shadow & bit != 0);
        for (name, bit, ours) in options {
            if sock.is_at(fd) && theirs(bit) != ours {
                let _ = raw::set_socket_option(fd, libc::IPPROTO_TCP, name, &theirs(bit));
            }
        }
        return false;
    }
    counters::one(Counter::upgraded);
    epoll::activated(fd, sock);
    if let Some(link) = sock.enter(fd) {
        publish_ready(&link);
        link.leave();
    }
    true
}

/// Tells the peer that this end reads through the library, if no thread is inside a plain
/// receive.
#[inline]
pub(crate) fn publish_ready(link: &Link) {
    if link.sock.ready.load(Ordering::Relaxed) == 0
        // PAIRS(plain): with the counting in `counted`.
        && link.sock.plain_rx.load(Ordering::SeqCst) == 0
    {
        link.sock.ready.store(1, Ordering::Relaxed);
        // PAIRS(ready): with the acquire in `try_switch`.
        link.mine().ready().store(1, Ordering::Release);
        carrier::tell(link);
    }
}

/// Moves our sending direction to the ring if the peer is ready and nobody of us is inside a
/// plain send; once more, if a ring part has come to rest. The caller holds the tx lock.
pub(crate) fn try_switch(link: &Link, fd: i32) -> bool {
    let side = link.side;
    let is_wanted_back = || link.peer().demote().load(Ordering::SeqCst) != 0;
    // PAIRS(ready): acquire with the release in `publish_ready`.
    if link.peer().ready().load(Ordering::Acquire) == 0
        || is_wanted_back()
        || side.tx_frozen.load(Ordering::SeqCst) != 0
        || side.shut.load(Ordering::Relaxed) & crate::stream::SHUT_WRITE != 0
        || !full::is_rested(side)
    {
        return false;
    }
    let switch = link.tx().switch();
    let carried = carrier::has(side);
    // Of what is carried the daemons look before and after.
    if !carried && !switch.announce(|| !is_wanted_back()) {
        return false;
    }
    if link.tx().head().load(Ordering::Acquire) != side.tail.load(Ordering::Relaxed) {
        // The peer says that it has come to an end where none is.
        side.tx_frozen.store(1, Ordering::SeqCst);
        if !carried {
            switch.thinks_better();
        }
        return false;
    }
    // Announced first, so that whoever begins a plain send now sees it and waits for our lock.
    side.tx_state.store(tx::RING, Ordering::SeqCst);
    if link.sock.plain_tx.load(Ordering::SeqCst) == 0
        // PAIRS(plain_tx): with the counting in `send::plainly`, by all processes that have the connection.
        && side.plain_tx.load(Ordering::SeqCst) == 0
        && let Some(prefix) = given_to_tcp(fd)
        && (side.rest.load(Ordering::Relaxed) == 0 || is_taken(link, prefix))
    {
        begin_part(link);
        switch.to_ring(prefix);
        // Not before: a byte of the connection is data until then.
        side.bell_gate.fetch_and(!GATE_CLOSED, Ordering::SeqCst);
        counters::one(Counter::switched_tx);
        if side.rest.load(Ordering::Relaxed) != 0 {
            counters::strike(fd);
        }
        return true;
    }
    side.tx_state.store(tx::TCP, Ordering::SeqCst);
    if !carried {
        switch.thinks_better();
    }
    false
}

/// Whether the peer has taken all `given` bytes of TCP. Behind bytes that lie in its kernel's queue no other ring part begins:
/// it could hand its descriptor on then only with the doorbells among them.
fn is_taken(link: &Link, given: u64) -> bool {
    link.peer().taken().load(Ordering::Acquire) == given
}

/// What counts anew with each ring part. The doorbells' gate is closed.
fn begin_part(link: &Link) {
    let side = link.side;
    side.head_seen.store(side.tail.load(Ordering::Relaxed), Ordering::Relaxed);
    side.bells.store(0, Ordering::SeqCst);
    link.mine().bells().store(0, Ordering::SeqCst);
    link.mine().owed().store(0, Ordering::SeqCst);
}

fn tcp_info(fd: i32) -> Option<TcpInfo> {
    raw::socket_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, TcpInfo::default()).ok()
}

/// Data bytes the program has given to TCP, doorbells included; `None` in a state in which the
/// FIN blurs the count.
pub(crate) fn given_to_tcp(fd: i32) -> Option<u64> {
    tcp_info(fd)?.given()
}

/// Whether the place of urgent data may lie among the unread bytes.
fn may_have_mark(link: &Link, fd: i32) -> bool {
    // In this order: who takes the byte says so first.
    raw::has_urgent(fd) || link.side.took_urgent.load(Ordering::SeqCst) != 0
}

/// Data bytes the program has taken out of TCP. Under the rx lock.
pub(crate) fn taken_from_tcp(link: &Link, fd: i32) -> Option<u64> {
    taken_by(fd, || match may_have_mark(link, fd) {
        true => raw::unread_beyond_mark(fd),
        false => raw::unread(fd),
    })
}

/// The same where no place of urgent data lies among the unread bytes, nor comes to lie there; `None` where it may.
pub(crate) fn taken_without_mark(link: &Link, fd: i32) -> Option<u64> {
    let taken = taken_by(fd, || raw::unread(fd));
    // Afterwards: one that came during the count is found.
    taken.filter(|_| !may_have_mark(link, fd))
}

fn taken_by(fd: i32, unread: impl Fn() -> raw::Result<usize>) -> Option<u64> {
    let mut before = tcp_info(fd)?;
    for _ in 0..1000 {
        let unread = unread().ok()? as u64;
        let after = tcp_info(fd)?;
        if after.bytes_received == before.bytes_received && after.state == before.state {
            return after.taken(unread);
        }
        before = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_does_not_come_is_looked_for_ever_more_rarely() {
        let _alone = crate::ALONE.lock().unwrap();
        let (_ends, fd, sock) = fd_table::tracked_for_test();
        sock.calls.store(settings::after(), Ordering::Relaxed);
        sock.state.store(state::PENDING, Ordering::Relaxed);
        // How many of so many calls with this result look.
        let looks = |calls: u32, result| {
            let mut looks = 0;
            for _ in 0..calls {
                let before = sock.try_at.load(Ordering::Relaxed);
                let Route::Counted(inside) = route(fd, Way::Receive) else { panic!("not counted") };
                inside.done(fd, result);
                looks += u32::from(sock.try_at.load(Ordering::Relaxed) != before);
            }
            looks
        };
        let found = [looks(8, 1), looks(10_000, -1), looks(10_000, 1), looks(10_000, 0)];
        assert!(found[0] == 8 && found[1] <= 1 && found[2] < 80 && found[3] <= 1, "{found:?}");
        fd_table::forget(fd);
    }
}
