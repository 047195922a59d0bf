//! Descriptors coming and going: connect, accept, dup, close.

use super::export;
use crate::counters::Counter;
use crate::fd_table::{self, Known};
use crate::side::tx;
use crate::stream::{FIN_OWED, SHUT_READ, SHUT_WRITE, demote, ending};
use crate::{carrier, close, control, epoll, fork, raw, real, user_memory};
use libc::{SOCK_NONBLOCK, c_int, c_uint, sockaddr, socklen_t};
use vmmc::sync::Ordering;

/// The family of an address; `None` when that cannot be read.
///
/// # Safety
/// `address` must point to `len` bytes, or to what cannot be read.
unsafe fn family(address: *const sockaddr, len: socklen_t) -> Option<c_int> {
    let family = address.cast::<libc::sa_family_t>();
    if (len as usize) < size_of::<libc::sa_family_t>() || !user_memory::can_read(family, 1) {
        return None;
    }
    // SAFETY: at least the family is there, and it comes first.
    Some(unsafe { family.read_unaligned() }.into())
}

fn accepted(fd: c_int, nonblocking: bool) {
    if fd < 0 {
        return;
    }
    fd_table::forget(fd);
    let domain = raw::socket_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, 0i32);
    if matches!(domain, Ok(libc::AF_INET | libc::AF_INET6)) {
        fd_table::track(fd, nonblocking);
    }
}

/// The program is about to close `fd`, by whatever call.
pub(super) fn about_to_close(fd: c_int) {
    let is_ours = control::owns(fd);
    if (is_ours || !matches!(fd_table::get(fd), Known::Nothing)) && !fork::in_vfork_child() {
        close::retire(fd);
        if is_ours {
            control::lost(fd);
        }
    }
}

/// `old` was just duplicated to `new`.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    if new >= 0 && old != new && !fork::in_vfork_child() {
        fd_table::forget(new);
        if !fd_table::duplicate(old, new) {
            close::lives_elsewhere(old, Counter::plain_resources);
        }
    }
}

/// Before a socket becomes standard input, output or error: stdio may use it there without our
/// seeing it.
fn before_standard(old: c_int, new: c_int) {
    if (0..=2).contains(&new) && old != new && !fork::in_vfork_child() {
        close::leave_to_kernel_for(old, Counter::plain_stdio);
    }
}

/// After a socket was duplicated to the lowest number that was free: the same, if that is one of those.
fn after_lowest(new: c_int) {
    if (0..=2).contains(&new) && !fork::in_vfork_child() {
        let errno = real::errno();
        close::leave_to_kernel_for(new, Counter::plain_stdio);
        real::set_errno(errno);
    }
}

/// Before `new` is overwritten by a duplicate: what closing it would do.
fn about_to_replace(old: c_int, new: c_int) {
    if old != new
        && (!matches!(fd_table::get(new), Known::Nothing) || control::owns(new))
        && raw::fcntl(old, libc::F_GETFD, 0).is_ok()
    {
        about_to_close(new);
    }
}

// SAFETY (of every `real::` call below): the arguments are the program's own, passed on as they
// came to the C function of the same name.
export! {
    /// connect(2).
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: as above.
        if unsafe { family(address, len) } == Some(libc::AF_UNSPEC) {
            // Ends the connection, but for the number.
            if !fork::in_vfork_child() {
                close::disconnect(fd);
            }
        }
        // SAFETY: as above.
        let result = unsafe { real::connect(fd, address, len) };
        // SAFETY: as above.
        if (result == 0 || real::errno() == libc::EINPROGRESS) && matches!(unsafe { family(address, len) }, Some(libc::AF_INET | libc::AF_INET6)) {
            let errno = real::errno();
            // connect is also how a program asks how a pending connect went. But what is upgraded is connected,
            // and would say so: it was closed where we did not see it, and this is another socket.
            let is_known = matches!(fd_table::get(fd), Known::Sock(sock) if !sock.is_active());
            if !is_known && !fork::in_vfork_child() {
                fd_table::forget(fd);
                fd_table::track(fd, result != 0);
                if let Some(sock) = fd_table::sock(fd) {
                    epoll::connected(fd, sock);
                }
            }
            real::set_errno(errno);
        }
        result
    }

    /// accept(2).
    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: as above.
        let new = unsafe { real::accept(fd, address, len) };
        accepted(new, false);
        new
    }

    /// accept4(2).
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        // SAFETY: as above.
        let new = unsafe { real::accept4(fd, address, len, flags) };
        accepted(new, flags & SOCK_NONBLOCK != 0);
        new
    }

    /// shutdown(2).
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        let link = fd_table::sock(fd).and_then(|sock| sock.enter(fd));
        let Some(link) = link else {
            // SAFETY: as above.
            return unsafe { real::shutdown(fd, how) };
        };
        // What the peer wants back by TCP must be there before the FIN.
        let ends = matches!(how, libc::SHUT_WR | libc::SHUT_RDWR);
        let pumped = ends && demote::precedes_fin(&link, fd);
        // Bytes put into the ring precede the FIN: no send may be between the two.
        let bits = match how {
            libc::SHUT_RD => SHUT_READ,
            libc::SHUT_WR => SHUT_WRITE,
            _ => SHUT_READ | SHUT_WRITE,
        };
        let locked = link.side.tx_lock.lock().is_ok();
        let state = if locked { ending::state_of_tx(&link, fd) } else { tx::RING };
        // Not where somebody has found meanwhile that the daemon has done.
        let later = pumped && state == tx::RING;
        let carried = ends && carrier::sends_fin(&link);
        let result = match (carried || later, how) {
            (true, libc::SHUT_WR) => 0,
            // SAFETY: as above.
            (true, _) => unsafe { real::shutdown(fd, libc::SHUT_RD) },
            // SAFETY: as above.
            (false, how) => unsafe { real::shutdown(fd, how) },
        };
        if result == 0 {
            let owed = if later { FIN_OWED } else { 0 };
            link.side.shut.fetch_or(bits | owed, Ordering::SeqCst);
            if carried {
                carrier::wants_fin(&link);
            }
        }
        if locked {
            link.side.tx_lock.unlock();
        }
        if later {
            // The daemon may have done meanwhile.
            demote::comply(&link, fd);
        }
        link.leave();
        result
    }

    /// close(2).
    fn close(fd: c_int) -> c_int {
        if carrier::owns(fd) {
            // As of any number that the program has not opened.
            real::set_errno(libc::EBADF);
            return -1;
        }
        about_to_close(fd);
        // SAFETY: as above.
        unsafe { real::close(fd) }
    }

    /// close_range(2).
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        const CLOEXEC: c_int = 4;
        if flags & CLOEXEC == 0 && !fork::in_vfork_child() {
            close_all(first, last);
        }
        around_ours(first, last, |first, last| {
            // SAFETY: as above.
            unsafe { real::close_range(first, last, flags) }
        })
    }

    /// closefrom(3).
    fn closefrom(first: c_int) {
        if !fork::in_vfork_child() {
            close_all(first.max(0) as c_uint, c_uint::MAX);
        }
        around_ours(first.max(0) as c_uint, c_uint::MAX, |first, last| match last {
            c_uint::MAX => {
                // SAFETY: as above.
                unsafe { real::closefrom(first as c_int) };
                0
            }
            // SAFETY: as above.
            last => unsafe { real::close_range(first, last, 0) },
        });
    }

    /// dup(2).
    fn dup(fd: c_int) -> c_int {
        // SAFETY: as above.
        let new = unsafe { real::dup(fd) };
        duplicated(fd, new);
        after_lowest(new);
        new
    }

    /// dup2(2).
    fn dup2(old: c_int, new: c_int) -> c_int {
        before_standard(old, new);
        about_to_replace(old, new);
        // SAFETY: as above.
        let result = unsafe { real::dup2(old, new) };
        duplicated(old, result);
        result
    }

    /// dup3(2).
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        before_standard(old, new);
        about_to_replace(old, new);
        // SAFETY: as above.
        let result = unsafe { real::dup3(old, new, flags) };
        duplicated(old, result);
        result
    }

    /// epoll_create(2).
    fn epoll_create(size: c_int) -> c_int {
        // SAFETY: as above.
        let fd = unsafe { real::epoll_create(size) };
        if fd >= 0 {
            epoll::created(fd);
        }
        fd
    }

    /// epoll_create1(2).
    fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: as above.
        let fd = unsafe { real::epoll_create1(flags) };
        if fd >= 0 {
            epoll::created(fd);
        }
        fd
    }

    /// fcntl(2).
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: as above.
        let result = unsafe { real::fcntl(fd, command, argument) };
        after_fcntl(fd, command, argument, result);
        result
    }

    /// fcntl(2), large files.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: as above.
        let result = unsafe { real::fcntl64(fd, command, argument) };
        after_fcntl(fd, command, argument, result);
        result
    }
}

/// Closes the parts of a range that the program can know of.
fn around_ours(
    first: c_uint,
    last: c_uint,
    mut close: impl FnMut(c_uint, c_uint) -> c_int,
) -> c_int {
    let mut from = first;
    for ours in carrier::owned(first, last) {
        if from < ours && close(from, ours - 1) != 0 {
            return -1;
        }
        from = ours + 1;
    }
    if from <= last || first > last { close(from, last) } else { 0 }
}

fn close_all(first: c_uint, last: c_uint) {
    for fd in fd_table::tracked(first, last) {
        close::retire(fd);
    }
    control::lost_range(first, last);
}

fn after_fcntl(fd: c_int, command: c_int, argument: usize, result: c_int) {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            duplicated(fd, result);
            after_lowest(result);
        }
        libc::F_SETFL if result == 0 => {
            if argument as c_int & libc::O_ASYNC != 0 && !fork::in_vfork_child() {
                // A signal for each arrival, armed for or not.
                close::leave_to_kernel(fd);
            }
            if let Some(sock) = fd_table::sock(fd) {
                let nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
                sock.nonblocking.store(nonblocking.into(), Ordering::Relaxed);
            }
        }
        _ => {}
    }
}
