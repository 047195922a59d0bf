//! Other names by which the C library exports the same functions, and some programs call them.

use super::{data, export, lifecycle, readiness};
use libc::{
    c_int, c_uint, c_void, fd_set, mmsghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};

// SAFETY (of every call below): the arguments are the program's own, passed on.
export! {
    /// [`data::read`].
    fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: as above.
        unsafe { data::read(fd, buffer, len) }
    }

    /// [`data::write`].
    fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        // SAFETY: as above.
        unsafe { data::write(fd, buffer, len) }
    }

    /// [`data::recv`].
    fn __recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        unsafe { data::recv(fd, buffer, len, flags) }
    }

    /// [`data::send`].
    fn __send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        unsafe { data::send(fd, buffer, len, flags) }
    }

    /// [`data::sendmmsg`].
    fn __sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { data::sendmmsg(fd, messages, count, flags) }
    }

    /// [`lifecycle::connect`].
    fn __connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: as above.
        unsafe { lifecycle::connect(fd, address, len) }
    }

    /// [`lifecycle::close`].
    fn __close(fd: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { lifecycle::close(fd) }
    }

    /// [`lifecycle::dup2`].
    fn __dup2(old: c_int, new: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { lifecycle::dup2(old, new) }
    }

    /// [`lifecycle::fcntl`].
    fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: as above.
        unsafe { lifecycle::fcntl(fd, command, argument) }
    }

    /// [`lifecycle::fcntl64`].
    fn __libc_fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: as above.
        unsafe { lifecycle::fcntl64(fd, command, argument) }
    }

    /// [`readiness::poll`].
    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { readiness::poll(fds, count, timeout) }
    }

    /// [`readiness::select`].
    fn __select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *mut timeval) -> c_int {
        // SAFETY: as above.
        unsafe { readiness::select(count, read, write, except, time) }
    }
}
