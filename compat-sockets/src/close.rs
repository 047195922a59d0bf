//! The end of an upgraded connection, told to the kernel so that the peer sees what plain TCP
//! would show it.

use crate::counters::{self, Counter};
use crate::fd_table::{self, Known};
use crate::segment::Closed;
use crate::side::{rx, tx};
use crate::sock::{Link, Sock};
use crate::stream::{SHUT_READ, stopping};
use crate::{carrier, control, epoll, family, parked, raw, stream};
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::bell;

/// Before the program's descriptor `fd` is closed, or comes to mean something else: nothing is known
/// of the number from now on.
pub(crate) fn retire(fd: i32) {
    if let Some(sock) = fd_table::sock(fd)
        && fd_table::is_last(sock)
    {
        leave_sets(fd, sock);
    }
    forget_connection(fd);
}

/// The same for a number that stays open and is about to be connected anew: the kernel's sets keep it. It stays with TCP,
/// because what we know of it in them is over.
pub(crate) fn disconnect(fd: i32) {
    if let Some(sock) = fd_table::sock(fd) {
        let nonblocking = sock.nonblocking.load(Ordering::Relaxed) != 0;
        forget_connection(fd);
        fd_table::track(fd, nonblocking);
        if let Some(sock) = fd_table::sock(fd) {
            sock.make_plain(fd, Counter::plain_option);
        }
    }
}

fn forget_connection(fd: i32) {
    let link = fd_table::sock(fd).and_then(|sock| sock.enter(fd));
    let Some(link) = link else { return fd_table::forget(fd) };
    // Whoever wakes up meanwhile takes one of these before it uses a number.
    let locked = [&link.side.rx_lock, &link.side.tx_lock].map(|lock| (lock, lock.lock().is_ok()));
    let was = fd_table::take(fd);
    let is_last = fd_table::has_no_other(link.sock);
    // PAIRS(parked): with the look at the table in `parked::Parked::new`.
    if is_last && !parked::keep_for_sleepers(&link, fd) {
        if locked.iter().all(|(_, taken)| *taken) {
            finish_locked(&link, fd);
        }
        carrier::is_closed(link.side);
    }
    for (lock, taken) in locked {
        if taken {
            lock.unlock();
        }
    }
    fd_table::release(fd, was);
    link.leave();
}

/// Where other processes have the socket too, it stays a member, as in the kernel.
fn leave_sets(fd: i32, sock: &'static Sock) {
    let offered = sock.cookie.load(Ordering::Relaxed) != 0;
    if !offered || sock.epoll_refs.load(Ordering::Relaxed) == 0 || !family::is_alone(sock) {
        return;
    }
    let shared = sock.enter(fd).is_some_and(|link| {
        let shared = !family::is_last(link.side);
        link.leave();
        shared
    });
    if !shared {
        epoll::before_last_close(fd, sock);
    }
}

/// The last descriptor of this process goes.
fn finish(link: &Link, fd: i32) {
    if link.side.rx_lock.lock().is_ok() {
        finish_locked(link, fd);
        link.side.rx_lock.unlock();
    }
}

/// The descriptor that was kept for sleepers is no longer needed: the socket is closed now.
pub(crate) fn finish_kept(link: &Link, fd: i32) {
    finish(link, fd);
    raw::close(fd);
}

/// Under the rx lock.
fn finish_locked(link: &Link, fd: i32) {
    let side = link.side;
    let last = family::is_last(side);
    if last {
        // No doorbell from now on: an unread one would turn our FIN into an RST.
        bell::disarm(&link.mine().armed_data());
        bell::disarm(&link.mine().armed_space());
    }
    if side.rx_state.load(Ordering::Relaxed) == rx::TCP {
        // The peer may have switched since we last looked.
        match stream::source::source(link, fd) {
            stream::source::Source::Tcp { .. } => {}
            _ => {
                bell::disarm(&link.mine().armed_space());
            }
        }
    }
    if side.rx_state.load(Ordering::Relaxed) == rx::RING
        && side.rx_left.load(Ordering::Relaxed) == 0
    {
        let unread = link.ring_has_more();
        if unread && last && side.shut.load(Ordering::Relaxed) & SHUT_READ == 0 {
            // TCP answers a close with unread data by an RST.
            let now = libc::linger { l_onoff: 1, l_linger: 0 };
            let _ = raw::set_socket_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &now);
        } else if !unread {
            stream::source::leave_nothing(link, fd);
        }
    }
    // A daemon would end it in their place. What is still the ring's is lost to others.
    let goes_on = carrier::has(side)
        && family::is_left_to_others(side)
        && side.rx_state.load(Ordering::Relaxed) != rx::RING
        && side.tx_state.load(Ordering::Relaxed) != tx::RING;
    if last && !goes_on {
        let nothing_unread = match side.rx_state.load(Ordering::Relaxed) {
            rx::RING => side.rx_left.load(Ordering::Relaxed) == 0 && !link.ring_has_more(),
            _ => raw::unread(fd) == Ok(0),
        };
        // An RST takes away what is on its way by TCP, but where a carrier keeps the socket until that has arrived.
        let all_sent = side.tx_state.load(Ordering::Relaxed) == tx::RING
            || carrier::has(side)
            || raw::unacknowledged(fd) == Ok(0);
        let ends = nothing_unread && all_sent && !resets(fd);
        let how = if ends { Closed::Ended } else { Closed::Reset };
        link.mine().closed().store(how as u32, Ordering::SeqCst);
        let wait = link.rx().space_wait();
        bell::published();
        if bell::take(&wait) {
            raw::futex_wake(wait.as_ptr().as_ptr());
        }
    }
}

/// Whether the socket's close is to be an RST (`SO_LINGER` with no time).
fn resets(fd: i32) -> bool {
    let off = libc::linger { l_onoff: 0, l_linger: 0 };
    let linger = raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, off);
    linger.is_ok_and(|linger| linger.l_onoff != 0 && linger.l_linger == 0)
}

/// At the end of the process: doorbells unread now would turn FINs into RSTs.
pub(crate) fn at_exit() {
    for (fd, sock) in fd_table::socks() {
        if let Some(link) = sock.enter(fd) {
            if family::is_last(link.side) {
                finish(&link, fd);
            }
            link.leave();
        }
    }
}

/// Gives both directions back to the kernel, with everything unread. True when nothing is left
/// in the rings; a peer that makes no call for a while can prevent it.
pub(crate) fn demote_both(fd: i32, sock: &'static Sock, why: Counter) -> bool {
    let Some(link) = sock.enter(fd) else { return true };
    let done = stopping::receiver_stops(&link, fd, why);
    link.leave();
    done
}

/// The socket is about to be used where we do not see it: it is, and stays, the kernel's.
pub(crate) fn leave_to_kernel(fd: i32) {
    leave_to_kernel_for(fd, Counter::plain_option);
}

/// [`leave_to_kernel`], for another reason than a call of the program's on the socket.
pub(crate) fn leave_to_kernel_for(fd: i32, why: Counter) {
    let Some(sock) = fd_table::sock(fd) else { return };
    sock.make_plain(fd, why);
    // A child of a server that execs for each connection has nothing to show for a conversation with the daemon.
    if !matches!(why, Counter::plain_stdio | Counter::plain_forked) {
        control::introduce();
    }
    if matches!(why, Counter::plain_forked | Counter::plain_io_uring) {
        leave_to_others(fd, sock, fd, why);
    } else if sock.is_active() && !demote_both(fd, sock, why) {
        counters::one(Counter::exec_unsafe);
    }
}

/// The socket `fd` of the table, which is `number` in this process, goes back to TCP for somebody who uses it beside us and
/// without us.
fn leave_to_others(fd: i32, sock: &'static Sock, number: i32, why: Counter) {
    let Some(link) = sock.enter(fd) else { return };
    family::leaves_to_others(link.side);
    if !stopping::receiver_stops(&link, number, why) {
        counters::one(Counter::exec_unsafe);
    }
    link.leave();
}

/// Before the descriptor is sent to another process: the socket lives on there.
pub(crate) fn before_passing(fd: i32) {
    lives_elsewhere(fd, Counter::plain_forked);
}

/// The socket or set is used, from here on, where we do not see it, also when we close it.
pub(crate) fn lives_elsewhere(fd: i32, why: Counter) {
    let sock = match fd_table::get(fd) {
        Known::Sock(sock) => sock,
        Known::Epoll(_) => return epoll::before_sharing(true),
        Known::Nothing => return,
    };
    sock.make_plain(fd, why);
    sock.not_alone_any_longer();
    if let Some(link) = sock.enter(fd) {
        // Our closing it is not the end.
        family::lives_elsewhere(link.side);
        epoll::settle_member(sock);
        if !stopping::receiver_stops(&link, fd, why) {
            counters::one(Counter::exec_unsafe);
        }
        link.leave();
    }
}

/// Whether an exec leaves the descriptor open.
fn is_inherited(fd: i32) -> bool {
    raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0)
}

fn is_tcp(fd: i32) -> bool {
    raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, 0i32) == Ok(libc::IPPROTO_TCP)
}

/// Before exec: upgraded descriptors that the new program inherits go back to TCP.
pub(crate) fn before_exec() {
    for (fd, sock) in fd_table::socks() {
        sock.make_plain(fd, Counter::plain_forked);
        if !sock.is_active() {
            continue;
        }
        if is_inherited(fd) {
            leave_to_others(fd, sock, fd, Counter::plain_forked);
        } else if let Some(link) = sock.enter(fd) {
            // Closed by exec, which calls no hook.
            if link.side.tx_state.load(Ordering::Relaxed) != tx::ENDED {
                finish_for_exec(&link, fd);
            }
            link.leave();
        }
    }
}

/// Before the C library starts a child: the same for what the child inherits. The rest stays as it
/// is, since this process goes on.
pub(crate) fn before_spawn() {
    for (fd, sock) in fd_table::socks() {
        if sock.may_upgrade() && is_inherited(fd) {
            sock.make_plain(fd, Counter::plain_forked);
            leave_to_others(fd, sock, fd, Counter::plain_forked);
        }
    }
}

/// Before exec in a `vfork` child, whose descriptors are not those of the table: every upgraded
/// socket among them that the new program inherits goes back to TCP.
pub(crate) fn before_vfork_exec() {
    // One that was not offered has told its number to nobody: it may be any that the program is given.
    let given = |number: i32| is_inherited(number) && is_tcp(number);
    let some_given = (0..=9).any(given);
    for (fd, sock) in fd_table::socks() {
        if !sock.may_upgrade() {
            continue;
        }
        let cookie = sock.cookie.load(Ordering::Relaxed);
        if cookie == 0 && (some_given || is_inherited(fd)) {
            sock.make_plain(fd, Counter::plain_forked);
            continue;
        }
        let numbers = std::iter::once(fd).chain(0..=9);
        // The number it has in the parent, or one it was given for the new program.
        let found = numbers.into_iter().find(|&number| {
            is_inherited(number) && cookie != 0 && raw::socket_cookie(number) == Ok(cookie)
        });
        if let Some(number) = found {
            sock.make_plain(number, Counter::plain_forked);
            leave_to_others(fd, sock, number, Counter::plain_forked);
        }
    }
}

/// exec may fail, so this only does what is harmless then: doorbells are drained.
fn finish_for_exec(link: &Link, fd: i32) {
    if link.side.rx_lock.lock().is_err() {
        return;
    }
    if link.side.rx_state.load(Ordering::Relaxed) == rx::RING
        && link.side.rx_left.load(Ordering::Relaxed) == 0
        && !link.ring_has_more()
    {
        stream::source::leave_nothing(link, fd);
    }
    link.side.rx_lock.unlock();
}
