//! read, write and their kin.

use super::{export, inq};
use crate::side::{rx, tx};
use crate::sock::{Link, Sock, Using, shadow};
use crate::stream::{Outcome, copy_vectors, recv, send};
use crate::upgrade::{Route, Way, route};
use crate::{file, fork, raw, real, user_memory};
use libc::{
    MSG_NOSIGNAL, c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec,
};
use vmmc::sync::Ordering;

/// Runs a data call: by the ring if it is upgraded, else by `call`.
#[inline]
fn dispatch(
    fd: c_int,
    way: Way,
    ring: impl Fn(&Link) -> Outcome,
    call: impl Fn() -> ssize_t,
) -> ssize_t {
    match route(fd, way) {
        Route::Plain => call(),
        Route::Counted(inside) => {
            let result = call();
            inside.done(fd, result);
            result
        }
        Route::Ring(link) => {
            // Whoever is cancelled inside, unwinds through this.
            let using = Using(link);
            match ring(&using.0) {
                Outcome::Done(len) => len as ssize_t,
                Outcome::Failed(errno) => {
                    drop(using);
                    real::set_errno(errno);
                    -1
                }
                Outcome::Kernel => {
                    let result = call();
                    let error = if result == 0 { recv::error_at_end(&using.0) } else { None };
                    drop(using);
                    let Some(error) = error else { return result };
                    real::set_errno(error);
                    -1
                }
                Outcome::Unswitched => send::plainly(&using.0, call).unwrap_or(SWITCHED),
            }
        }
    }
}

/// Marks a send that has to be tried again because the direction switched under it.
const SWITCHED: ssize_t = ssize_t::MIN;

/// [`dispatch`] for sends.
#[inline]
fn dispatch_send(
    fd: c_int,
    ring: impl Fn(&Link) -> Outcome,
    call: impl Fn() -> ssize_t,
) -> ssize_t {
    loop {
        let result = dispatch(fd, Way::Send, &ring, &call);
        if result != SWITCHED {
            return result;
        }
    }
}

fn one(buffer: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: len }]
}

/// SIGPIPE comes with EPIPE unless it was declined; the kernel raises it for real calls itself.
fn with_signal(outcome: Outcome, flags: c_int) -> Outcome {
    if outcome == Outcome::Failed(libc::EPIPE) && flags & MSG_NOSIGNAL == 0 {
        raw::raise_sigpipe();
    }
    outcome
}

fn receive(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    call: impl Fn() -> ssize_t,
) -> ssize_t {
    dispatch(fd, Way::Receive, |link| recv::recv(link, fd, &one(buffer, len), flags), call)
}

fn transmit(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    call: impl Fn() -> ssize_t,
) -> ssize_t {
    before_kernels_own(fd, flags);
    dispatch_send(
        fd,
        |link| with_signal(send::send(link, fd, &one(buffer, len), flags), flags),
        call,
    )
}

/// A call that was not all done has met an error: a later call is told.
#[cold]
fn next_hears(fd: c_int, errno: c_int) {
    if let Some(link) = crate::fd_table::sock(fd).and_then(|sock| sock.enter(fd)) {
        link.side.keep_error(errno);
        link.leave();
    }
}

/// Before a send that only the kernel can make. A socket that has sent urgent data and is not upgraded never is: where the
/// receiver stands at the mark, the kernel does not say how much it has. Nor is one that has the kernel tell when it needs
/// buffers no longer (`MSG_ZEROCOPY`), and an upgraded one goes back, because that makes it look like one with an error.
fn before_kernels_own(fd: c_int, flags: c_int) {
    let may_upgrade = || crate::fd_table::sock(fd).filter(|sock| sock.may_upgrade());
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0
        && !fork::in_vfork_child()
        && let Some(sock) = may_upgrade()
        && (!sock.is_active() || flags & libc::MSG_ZEROCOPY != 0 && !has_gone_back(fd, sock))
    {
        crate::close::leave_to_kernel(fd);
    }
}

/// Whether both directions of an upgraded socket have gone back for good, or were asked to.
fn has_gone_back(fd: c_int, sock: &'static Sock) -> bool {
    let Some(link) = sock.enter(fd) else { return true };
    let side = link.side;
    let of_us = side.tx_state.load(Ordering::Relaxed) == tx::ENDED
        || side.tx_frozen.load(Ordering::Relaxed) != 0;
    let of_the_peer = side.rx_state.load(Ordering::Relaxed) == rx::ENDED
        || side.asked.load(Ordering::Relaxed) != 0;
    link.leave();
    of_us && of_the_peer
}

// SAFETY (of every `real::` call below): the arguments are the program's own, passed on as they
// came to the C function of the same name.
export! {
    /// read(2). Of nothing: never waits, unlike recv(2).
    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: as above.
        let call = || unsafe { real::read(fd, buffer, len) };
        if len == 0 { call() } else { receive(fd, buffer, len, 0, call) }
    }

    /// Fortified read(2).
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if len > room {
            fortify_failed();
        }
        // SAFETY: as above.
        let call = || unsafe { real::read(fd, buffer, len) };
        if len == 0 { call() } else { receive(fd, buffer, len, 0, call) }
    }

    /// recv(2).
    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        receive(fd, buffer, len, flags, || unsafe { real::recv(fd, buffer, len, flags) })
    }

    /// Fortified recv(2).
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        if len > room {
            fortify_failed();
        }
        // SAFETY: as above.
        receive(fd, buffer, len, flags, || unsafe { real::recv(fd, buffer, len, flags) })
    }

    /// recvfrom(2).
    fn recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, alen: *mut socklen_t) -> ssize_t {
        let result = receive(fd, buffer, len, flags, || {
            // SAFETY: as above.
            unsafe { real::recvfrom(fd, buffer, len, flags, address, alen) }
        });
        let wants_address = result >= 0 && !address.is_null();
        if wants_address && matches!(crate::fd_table::sock(fd), Some(sock) if sock.is_active()) {
            if !user_memory::can_write(alen, 1) {
                // What was received is lost, as in the kernel.
                real::set_errno(libc::EFAULT);
                return -1;
            }
            // A connected TCP socket gives no address.
            // SAFETY: the program's own length, which can be written.
            unsafe { *alen = 0 };
        }
        result
    }

    /// Fortified recvfrom(2).
    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr, alen: *mut socklen_t) -> ssize_t {
        if len > room {
            fortify_failed();
        }
        // SAFETY: as above.
        unsafe { recvfrom(fd, buffer, len, flags, address, alen) }
    }

    /// readv(2).
    fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
        dispatch(
            fd,
            Way::Receive,
            // SAFETY: as above.
            |link| match unsafe { copy_vectors(vectors, count.max(0) as usize) } {
                Ok(_) if count < 0 => Outcome::Failed(libc::EINVAL),
                Ok(list) if list.iter().all(|one| one.iov_len == 0) => Outcome::Done(0),
                Ok(list) => recv::recv(link, fd, list, 0),
                Err(errno) => Outcome::Failed(errno),
            },
            // SAFETY: as above.
            || unsafe { real::readv(fd, vectors, count) },
        )
    }

    /// preadv2(2). Without an offset it is readv(2) with flags.
    fn preadv2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        let call = || unsafe { real::preadv2(fd, vectors, count, offset, flags) };
        let Some(how) = message_flags(offset, flags) else { return call() };
        dispatch(
            fd,
            Way::Receive,
            // SAFETY: as above.
            |link| match unsafe { copy_vectors(vectors, count.max(0) as usize) } {
                Ok(_) if count < 0 => Outcome::Failed(libc::EINVAL),
                Ok(list) if list.iter().all(|one| one.iov_len == 0) => Outcome::Done(0),
                Ok(list) => recv::recv(link, fd, list, how),
                Err(errno) => Outcome::Failed(errno),
            },
            call,
        )
    }

    /// preadv2(2), large files.
    fn preadv64v2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        // SAFETY: as above; on 64-bit Linux they are the same.
        unsafe { preadv2(fd, vectors, count, offset, flags) }
    }

    /// recvmsg(2).
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        dispatch(
            fd,
            Way::Receive,
            // SAFETY: as above.
            |link| unsafe { receive_message(link, fd, message, flags) },
            // SAFETY: as above.
            || unsafe { real::recvmsg(fd, message, flags) },
        )
    }

    /// recvmmsg(2): message by message on a socket that is upgraded or may be.
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        // SAFETY: as above.
        let call = || unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
        if count == 0 || messages.is_null() {
            return call();
        }
        match route(fd, Way::Receive) {
            Route::Plain => return call(),
            Route::Counted(inside) => {
                let result = call();
                inside.done(fd, result as isize);
                return result;
            }
            // Message by message.
            Route::Ring(link) => drop(Using(link)),
        }
        const MSG_WAITFORONE: c_int = 0x10000;
        // SAFETY: null or the program's own.
        let limit = match unsafe { super::readiness::nanoseconds(timeout) } {
            Ok(limit) => limit,
            Err(errno) => {
                real::set_errno(errno);
                return -1;
            }
        };
        let started = raw::now_ns();
        let (mut done, mut how) = (0, flags & !MSG_WAITFORONE);
        // As the kernel: the limit is looked at after each message and interrupts no wait.
        let mut left = limit;
        while done < count.min(1024) && (done == 0 || left != Some(0)) {
            // SAFETY: one of the program's `count` messages.
            let message = unsafe { messages.add(done as usize) };
            // SAFETY: as above.
            let header = unsafe { &raw mut (*message).msg_hdr };
            // SAFETY: as above.
            let result = unsafe { recvmsg(fd, header, how) };
            if result < 0 {
                if done == 0 {
                    return -1;
                }
                next_hears(fd, real::errno());
                break;
            }
            // SAFETY: as above; recvmsg has written beside it.
            unsafe { (*message).msg_len = result as c_uint };
            done += 1;
            if flags & MSG_WAITFORONE != 0 {
                how |= libc::MSG_DONTWAIT;
            }
            left = limit.map(|limit| limit.saturating_sub(raw::now_ns().wrapping_sub(started)));
        }
        if let Some(left) = left {
            // SAFETY: the program's own, not null since there is a limit.
            unsafe { timeout.write(crate::raw::timespec_of(left)) };
        }
        done as c_int
    }

    /// write(2).
    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        // SAFETY: as above.
        transmit(fd, buffer, len, 0, || unsafe { real::write(fd, buffer, len) })
    }

    /// send(2).
    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        transmit(fd, buffer, len, flags, || unsafe { real::send(fd, buffer, len, flags) })
    }

    /// sendto(2). The address of a connected socket is ignored, as TCP does.
    fn sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, alen: socklen_t) -> ssize_t {
        transmit(fd, buffer, len, flags, || {
            // SAFETY: as above.
            unsafe { real::sendto(fd, buffer, len, flags, address, alen) }
        })
    }

    /// writev(2).
    fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
        dispatch_send(
            fd,
            // SAFETY: as above.
            |link| match unsafe { copy_vectors(vectors, count.max(0) as usize) } {
                Ok(_) if count < 0 => Outcome::Failed(libc::EINVAL),
                Ok(list) => with_signal(send::send(link, fd, list, 0), 0),
                Err(errno) => Outcome::Failed(errno),
            },
            // SAFETY: as above.
            || unsafe { real::writev(fd, vectors, count) },
        )
    }

    /// pwritev2(2). Without an offset it is writev(2) with flags.
    fn pwritev2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        let call = || unsafe { real::pwritev2(fd, vectors, count, offset, flags) };
        let Some(how) = message_flags(offset, flags) else { return call() };
        dispatch_send(
            fd,
            // SAFETY: as above.
            |link| match unsafe { copy_vectors(vectors, count.max(0) as usize) } {
                Ok(_) if count < 0 => Outcome::Failed(libc::EINVAL),
                Ok(list) => with_signal(send::send(link, fd, list, how), how),
                Err(errno) => Outcome::Failed(errno),
            },
            call,
        )
    }

    /// pwritev2(2), large files.
    fn pwritev64v2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        // SAFETY: as above; on 64-bit Linux they are the same.
        unsafe { pwritev2(fd, vectors, count, offset, flags) }
    }

    /// sendmsg(2).
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        unsafe { before_passing(message) };
        before_kernels_own(fd, flags);
        dispatch_send(
            fd,
            // SAFETY: as above.
            |link| with_signal(unsafe { send_message(link, fd, message, flags) }, flags),
            // SAFETY: as above.
            || unsafe { real::sendmsg(fd, message, flags) },
        )
    }

    /// sendmmsg(2): message by message.
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        let tracked = crate::fd_table::sock(fd).is_some_and(|sock| sock.may_upgrade());
        if !tracked || messages.is_null() {
            for at in 0..count.min(1024) as usize {
                // (The header is the first field.)
                // SAFETY: one of the program's messages, if it is there.
                unsafe { before_passing(messages.wrapping_add(at).cast::<msghdr>()) };
            }
            // SAFETY: as above.
            return unsafe { real::sendmmsg(fd, messages, count, flags) };
        }
        let mut done = 0;
        while done < count.min(1024) {
            // SAFETY: one of the program's `count` messages.
            let message = unsafe { messages.add(done as usize) };
            // SAFETY: as above.
            // (The header is the first field.)
            let result = unsafe { sendmsg(fd, message.cast::<msghdr>(), flags) };
            if result < 0 {
                if done > 0 {
                    next_hears(fd, real::errno());
                    return done as c_int;
                }
                return -1;
            }
            // SAFETY: as above.
            unsafe { (*message).msg_len = result as c_uint };
            done += 1;
        }
        done as c_int
    }

    /// sendfile(2).
    fn sendfile(out: c_int, input: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        dispatch_send(
            out,
            // SAFETY: as above.
            |link| with_signal(unsafe { file::sendfile(link, out, input, offset, count) }, 0),
            // SAFETY: as above.
            || unsafe { real::sendfile(out, input, offset, count) },
        )
    }

    /// sendfile(2), large files.
    fn sendfile64(out: c_int, input: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        // SAFETY: as above; on 64-bit Linux they are the same.
        unsafe { sendfile(out, input, offset, count) }
    }

    /// splice(2): copied on an upgraded socket.
    fn splice(input: c_int, in_offset: *mut off64_t, out: c_int, out_offset: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t {
        // SAFETY: as above.
        let call = || unsafe { real::splice(input, in_offset, out, out_offset, len, flags) };
        let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
        let is_ours = |fd| crate::fd_table::sock(fd).is_some_and(|sock| sock.may_upgrade());
        if is_ours(out) && file::may_splice(input, in_offset, out_offset, flags) {
            return dispatch_send(out, |link| with_signal(file::splice_to(link, out, input, len, nonblocking), 0), call);
        }
        if is_ours(input) && file::may_splice(out, in_offset, out_offset, flags) {
            return dispatch(input, Way::Receive, |link| file::splice_from(link, input, out, len, nonblocking), call);
        }
        // Of ours it moves nothing, and says why.
        call()
    }
}

/// What the flags of preadv2 mean for a stream: flags of a receive or send. `None` where only the
/// kernel can say (an offset, which sockets refuse; flags we do not know).
fn message_flags(offset: off64_t, flags: c_int) -> Option<c_int> {
    // Of no meaning to a socket.
    const IGNORED: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC;
    if offset != -1 || flags & !(IGNORED | libc::RWF_NOWAIT) != 0 {
        return None;
    }
    Some(if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 })
}

fn fortify_failed() -> ! {
    // As the C library does for an overflow found by _FORTIFY_SOURCE.
    std::process::abort()
}

/// Descriptors that a message carries (`SCM_RIGHTS`) go back to TCP before they go.
///
/// # Safety
/// `message` as sendmsg(2) wants it.
unsafe fn before_passing(message: *const msghdr) {
    if !user_memory::can_read(message, 1) {
        return;
    }
    // SAFETY: the program's own header.
    let header = unsafe { message.read() };
    let control = header.msg_control.cast::<u8>();
    let len = header.msg_controllen;
    if len < size_of::<libc::cmsghdr>() || !user_memory::can_read(control, len) {
        return;
    }
    let mut at = 0;
    while at + size_of::<libc::cmsghdr>() <= len {
        let here = control.wrapping_add(at).cast::<libc::cmsghdr>();
        // SAFETY: inside the control data.
        let one = unsafe { here.read_unaligned() };
        let end = at.saturating_add(one.cmsg_len);
        if one.cmsg_len < size_of::<libc::cmsghdr>() || end > len {
            return;
        }
        if one.cmsg_level == libc::SOL_SOCKET && one.cmsg_type == libc::SCM_RIGHTS {
            let mut place = at + size_of::<libc::cmsghdr>();
            while place + size_of::<c_int>() <= end {
                let number = control.wrapping_add(place).cast::<c_int>();
                // SAFETY: inside the control data.
                let fd = unsafe { number.read_unaligned() };
                crate::close::before_passing(fd);
                place += size_of::<c_int>();
            }
        }
        at = end.next_multiple_of(size_of::<usize>());
    }
}

/// The buffers of a message. Too many of them is `EMSGSIZE` here.
///
/// # Safety
/// As [`copy_vectors`].
unsafe fn message_vectors<'a>(header: &msghdr) -> raw::Result<&'a [iovec]> {
    // SAFETY: the caller's word.
    let list = unsafe { copy_vectors(header.msg_iov, header.msg_iovlen) };
    list.map_err(|errno| if errno == libc::EINVAL { libc::EMSGSIZE } else { errno })
}

/// # Safety
/// `message` as recvmsg(2) wants it.
unsafe fn receive_message(link: &Link, fd: c_int, message: *mut msghdr, flags: c_int) -> Outcome {
    if !user_memory::can_write(message, 1) {
        return Outcome::Failed(libc::EFAULT);
    }
    // SAFETY: the program's own header.
    let header = unsafe { message.read() };
    // SAFETY: as above.
    let list = match unsafe { message_vectors(&header) } {
        Ok(list) => list,
        Err(errno) => return Outcome::Failed(errno),
    };
    let outcome = recv::recv(link, fd, list, flags);
    if let Outcome::Done(_) = outcome {
        let mut answer = msghdr { msg_namelen: 0, msg_controllen: 0, msg_flags: 0, ..header };
        if link.sock.shadow.load(Ordering::Relaxed) & shadow::INQ != 0 {
            // SAFETY: room for control data as the program says.
            unsafe { inq::tell(link, fd, header.msg_controllen, &mut answer) };
        }
        // SAFETY: as above.
        unsafe { message.write(answer) };
    }
    outcome
}

/// # Safety
/// `message` as sendmsg(2) wants it.
unsafe fn send_message(link: &Link, fd: c_int, message: *const msghdr, flags: c_int) -> Outcome {
    if !user_memory::can_read(message, 1) {
        return Outcome::Failed(libc::EFAULT);
    }
    // SAFETY: the program's own header.
    let header = unsafe { message.read() };
    // SAFETY: as above.
    let list = match unsafe { message_vectors(&header) } {
        Ok(list) => list,
        Err(errno) => return Outcome::Failed(errno),
    };
    if header.msg_controllen > 0 {
        // Control data on TCP concerns the kernel (timestamps, ...).
        return send::for_kernel(link, fd, flags);
    }
    send::send(link, fd, list, flags)
}
