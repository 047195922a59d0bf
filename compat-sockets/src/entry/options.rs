//! Socket options and ioctls whose answer we know better than the kernel.

use super::export;
use crate::raw::SIOCATMARK;
use crate::side::tx;
use crate::sock::{Link, shadow};
use crate::stream::{readiness, report};
use crate::{carrier, fd_table, fork, raw, real, user_memory};
use libc::{c_int, c_ulong, c_void, socklen_t};
use vmmc::sync::Ordering;

/// Receives what is in the kernel's queue, though it is an option to get.
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// Has each receive told what is left unread, in a control message of this type ([`super::inq`]).
pub(super) const TCP_INQ: c_int = 36;

const SO_PEEK_OFF: c_int = 42;
/// `SO_TIMESTAMP`, `SO_TIMESTAMPNS`, `SO_TIMESTAMPING`, and the same for 64-bit time.
const TIME_STAMPS: [c_int; 6] = [29, 35, 37, 63, 64, 65];

/// Options that give the kernel a say in the bytes: the socket stays, or goes back to, TCP. (`SO_ZEROCOPY` is for sends with
/// `MSG_ZEROCOPY`, which go back by themselves; QEMU sets it and sends none.)
fn needs_kernel(level: c_int, name: c_int, value: Option<c_int>) -> bool {
    const TCP_ULP: c_int = 31;
    const TCP_REPAIR: c_int = 19;
    match level {
        // A doorbell is one byte: it could not wake who waits for more.
        libc::SOL_SOCKET if name == libc::SO_RCVLOWAT => value.is_some_and(|bytes| bytes > 1),
        libc::SOL_SOCKET if TIME_STAMPS.contains(&name) => value.is_some_and(|on| on != 0),
        libc::SOL_SOCKET if name == SO_PEEK_OFF => value.is_some_and(|offset| offset >= 0),
        libc::SOL_SOCKET => matches!(name, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF),
        libc::IPPROTO_TCP => matches!(name, TCP_ULP | TCP_REPAIR),
        _ => false,
    }
}

/// Whether the socket came with such an option: set before it was connected, or inherited from the listener.
pub(crate) fn keeps_in_kernel(fd: c_int) -> bool {
    let option = |name| crate::raw::socket_option(fd, libc::SOL_SOCKET, name, 0i32);
    let value = |name| option(name).unwrap_or(0);
    if option(SO_PEEK_OFF).is_ok_and(|offset| offset >= 0) || raw::is_signalled(fd) {
        return true;
    }
    value(libc::SO_RCVLOWAT) > 1 || TIME_STAMPS.into_iter().any(|name| value(name) != 0)
}

/// Whether each receive is to be told what is left (`TCP_INQ`).
pub(crate) fn tells_unread(fd: c_int) -> bool {
    crate::raw::socket_option(fd, libc::IPPROTO_TCP, TCP_INQ, 0i32).is_ok_and(|on| on != 0)
}

fn entered(fd: c_int) -> Option<Link> {
    fd_table::sock(fd).and_then(|sock| sock.enter(fd))
}

// SAFETY (of every `real::` call below): the arguments are the program's own, passed on as they
// came to the C function of the same name.
export! {
    /// setsockopt(2).
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        if let Some(sock) = fd_table::sock(fd) {
            let is_int = len as usize >= size_of::<c_int>()
                && user_memory::can_read(value.cast::<c_int>(), 1);
            // SAFETY: an int that can be read.
            let wanted = is_int.then(|| unsafe { value.cast::<c_int>().read_unaligned() });
            if needs_kernel(level, name, wanted) {
                crate::close::leave_to_kernel(fd);
            } else if let Some(bit) = shadow::bit(level, name)
                && let Some(wanted) = wanted
                && sock.is_active()
            {
                // The kernel's stay as the doorbells need them; a ring holds nothing back.
                match wanted {
                    0 => sock.shadow.fetch_and(!bit, Ordering::Relaxed),
                    _ => sock.shadow.fetch_or(bit, Ordering::Relaxed),
                };
                if entered(fd).is_none_or(|link| {
                    let ended = match link.side.tx_state.load(Ordering::Relaxed) {
                        tx::ENDED => true,
                        tx::TCP => link.side.tx_frozen.load(Ordering::Relaxed) != 0,
                        _ => false,
                    };
                    link.leave();
                    !ended
                }) {
                    return 0;
                }
            }
        }
        // SAFETY: as above.
        let set = || unsafe { real::setsockopt(fd, level, name, value, len) };
        // Whoever counts unread bytes sets this one for a moment ([`raw::unread_beyond_mark`]).
        let link = if (level, name) == (libc::SOL_SOCKET, libc::SO_OOBINLINE) { entered(fd) } else { None };
        let result = match link {
            Some(link) => {
                let held = link.side.rx_lock.lock();
                let result = set();
                if held.is_ok() {
                    link.side.rx_lock.unlock();
                }
                link.leave();
                result
            }
            None => set(),
        };
        if result == 0 && level == libc::IPPROTO_TCP && name == TCP_INQ
            && let Some(sock) = fd_table::sock(fd)
        {
            match tells_unread(fd) {
                true => sock.shadow.fetch_or(shadow::INQ, Ordering::Relaxed),
                false => sock.shadow.fetch_and(!shadow::INQ, Ordering::Relaxed),
            };
        }
        result
    }

    /// getsockopt(2).
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        if level == libc::IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE {
            crate::close::leave_to_kernel(fd);
        }
        // SAFETY: as above.
        let result = unsafe { real::getsockopt(fd, level, name, value, len) };
        if result == 0 && level == libc::IPPROTO_TCP && name == libc::TCP_INFO {
            if let Some(link) = entered(fd) {
                // SAFETY: the kernel has just written the length.
                let len = unsafe { *len } as usize;
                // SAFETY: and that many bytes.
                unsafe { report::correct_tcp_info(&link, value.cast(), len) };
                link.leave();
            }
            return result;
        }
        if result == 0 && level == libc::SOL_SOCKET && name == libc::SO_ERROR {
            if let Some(link) = entered(fd) {
                // Taken from the kernel by a call of ours, not yet told to the program.
                let error = match link.side.take_error() {
                    // Where the connection is over: whoever asks does not wait.
                    None if raw::pending_events(fd, 0) & libc::POLLHUP != 0 => {
                        carrier::taken_error(&link)
                    }
                    error => error.unwrap_or(0),
                };
                // SAFETY: the kernel has just written an int there, or less.
                if unsafe { *len } as usize >= size_of::<c_int>() {
                    let told = value.cast::<c_int>();
                    // SAFETY: as above.
                    let kernel = unsafe { told.read_unaligned() };
                    let error = match (error, kernel) {
                        // The second is what the kernel makes of an RST behind a FIN.
                        (0, libc::ECONNRESET | libc::EPIPE) if link.reset_means_end() => 0,
                        (0, kernel) => kernel,
                        (error, _) => error,
                    };
                    // SAFETY: as above.
                    unsafe { told.write_unaligned(error) };
                }
                link.leave();
            }
            return result;
        }
        if result == 0
            && let Some(bit) = shadow::bit(level, name)
            && let Some(sock) = fd_table::sock(fd)
            && sock.is_active()
        {
            // SAFETY: the kernel has just written an int there, or less.
            if unsafe { *len } as usize >= size_of::<c_int>() {
                let shadow = (sock.shadow.load(Ordering::Relaxed) & bit != 0).into();
                // SAFETY: as above.
                unsafe { value.cast::<c_int>().write_unaligned(shadow) };
            }
        }
        result
    }

    /// sockatmark(3).
    fn sockatmark(fd: c_int) -> c_int {
        let mut mark: c_int = 0;
        // SAFETY: an int of ours to be written.
        let result = unsafe { ioctl(fd, SIOCATMARK, (&raw mut mark).expose_provenance()) };
        if result < 0 { result } else { mark }
    }

    /// ioctl(2).
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        const SIOCOUTQ: c_ulong = libc::TIOCOUTQ as c_ulong;
        const FIONREAD: c_ulong = libc::FIONREAD as c_ulong;
        const FIONBIO: c_ulong = libc::FIONBIO as c_ulong;
        const FIOASYNC: c_ulong = libc::FIOASYNC as c_ulong;
        // The kernel's queue is all it knows: doorbells in it must go first, and the mark is not
        // reached before the ring is empty.
        let ring_first = request == SIOCATMARK
            && entered(fd).is_some_and(|link| {
                let first = readiness::is_before_kernel(&link, fd);
                link.leave();
                first
            });
        // SAFETY: as above.
        let result = unsafe { real::ioctl(fd, request, argument) };
        if result == 0 && ring_first {
            // SAFETY: the kernel has just written an int there.
            unsafe { std::ptr::with_exposed_provenance_mut::<c_int>(argument).write(0) };
        }
        if result != 0 || !matches!(request, FIONREAD | SIOCOUTQ | FIONBIO | FIOASYNC) {
            return result;
        }
        let Some(sock) = fd_table::sock(fd) else { return result };
        if request == FIOASYNC {
            if raw::is_signalled(fd) && !fork::in_vfork_child() {
                crate::close::leave_to_kernel(fd);
            }
            return result;
        }
        if request == FIONBIO {
            sock.nonblocking.store(raw::is_nonblocking(fd).into(), Ordering::Relaxed);
            return result;
        }
        let Some(link) = entered(fd) else { return result };
        let count = if request == FIONREAD {
            // Doorbells that were in the kernel's queue may have been thrown away just now.
            readiness::unread(&link, fd).or_else(|| raw::unread(fd).ok())
        } else {
            let ring = report::unread_by_peer(&link);
            // SAFETY: the kernel has just written an int there.
            let queued = unsafe { std::ptr::with_exposed_provenance::<c_int>(argument).read() };
            let carries = link.side.tx_state.load(Ordering::Relaxed) == tx::RING;
            // While the ring carries the bytes, the kernel has doorbells.
            let queued = if carries { 0 } else { queued.max(0) as u64 };
            (ring > 0 || carries).then_some((ring + queued) as usize)
        };
        link.leave();
        if let Some(count) = count {
            // SAFETY: the kernel has just written an int there.
            unsafe { std::ptr::with_exposed_provenance_mut::<c_int>(argument).write(count as c_int) };
        }
        result
    }
}
