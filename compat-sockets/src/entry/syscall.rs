//! syscall(2): system calls by number, which language runtimes and libuv make on sockets too.
//!
//! The trampoline of [`super::variadic`] asks [`handler`] where to go: to a function here for the
//! numbers that concern descriptors of ours, to the C library's `syscall` for all others, with
//! stack and registers as the caller left them (a raw `clone` returns twice).

use super::{asynchronous, data, lifecycle, options, process, readiness};
use crate::{io_uring, real};
use libc::{c_int, c_long, c_void};

type Handler =
    unsafe extern "C-unwind" fn(c_long, usize, usize, usize, usize, usize, usize) -> isize;

/// The function for a system call number; `None` for those that are not our business.
pub(super) fn handler(number: usize) -> Option<*const c_void> {
    let number = number as c_long;
    let ours = match number {
        libc::SYS_read | libc::SYS_write | libc::SYS_readv | libc::SYS_writev => true,
        libc::SYS_preadv2 | libc::SYS_pwritev2 => true,
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => true,
        libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => true,
        libc::SYS_sendfile | libc::SYS_splice => true,
        libc::SYS_ppoll | libc::SYS_pselect6 => true,
        libc::SYS_epoll_create1 | libc::SYS_epoll_ctl => true,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => true,
        libc::SYS_close | libc::SYS_close_range => true,
        libc::SYS_dup | libc::SYS_dup3 | libc::SYS_fcntl | libc::SYS_ioctl => true,
        libc::SYS_connect | libc::SYS_accept | libc::SYS_accept4 | libc::SYS_shutdown => true,
        libc::SYS_getsockopt | libc::SYS_setsockopt => true,
        libc::SYS_execve | libc::SYS_execveat => true,
        libc::SYS_io_uring_setup | libc::SYS_io_submit => true,
        _ => is_old(number),
    };
    let known: Handler = by_number;
    ours.then_some(known as *const c_void)
}

/// Calls that only older architectures have.
#[cfg(target_arch = "x86_64")]
fn is_old(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_poll
            | libc::SYS_select
            | libc::SYS_epoll_create
            | libc::SYS_epoll_wait
            | libc::SYS_dup2
    )
}

#[cfg(not(target_arch = "x86_64"))]
fn is_old(_: c_long) -> bool {
    false
}

fn pointer<T>(argument: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(argument)
}

/// Does what the number says through the hook of that name. Results and `errno` are as
/// syscall(2) gives them, since every hook answers as its C function does.
///
/// # Safety
/// As the system call.
#[allow(clippy::multiple_unsafe_ops_per_block)] // one for each number
unsafe extern "C-unwind" fn by_number(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let fd = a as c_int;
    // SAFETY: the arguments are the program's own, passed on as the system call has them.
    unsafe {
        match number {
            libc::SYS_read => data::read(fd, pointer(b), c),
            libc::SYS_write => data::write(fd, pointer(b), c),
            libc::SYS_readv => data::readv(fd, pointer(b), c as c_int),
            libc::SYS_writev => data::writev(fd, pointer(b), c as c_int),
            // The kernel takes the offset in two halves; on 64 bits the first has it all.
            libc::SYS_preadv2 => data::preadv2(fd, pointer(b), c as c_int, d as i64, f as c_int),
            libc::SYS_pwritev2 => data::pwritev2(fd, pointer(b), c as c_int, d as i64, f as c_int),
            libc::SYS_recvfrom => {
                data::recvfrom(fd, pointer(b), c, d as c_int, pointer(e), pointer(f))
            }
            libc::SYS_recvmsg => data::recvmsg(fd, pointer(b), c as c_int),
            libc::SYS_recvmmsg => {
                data::recvmmsg(fd, pointer(b), c as u32, d as c_int, pointer(e)) as isize
            }
            libc::SYS_sendto => data::sendto(fd, pointer(b), c, d as c_int, pointer(e), f as u32),
            libc::SYS_sendmsg => data::sendmsg(fd, pointer(b), c as c_int),
            libc::SYS_sendmmsg => data::sendmmsg(fd, pointer(b), c as u32, d as c_int) as isize,
            libc::SYS_sendfile => data::sendfile(fd, b as c_int, pointer(c), d),
            libc::SYS_splice => data::splice(fd, pointer(b), c as c_int, pointer(d), e, f as u32),
            libc::SYS_ppoll => {
                readiness::ppoll(pointer(a), b as u64, pointer(c), pointer(d)) as isize
            }
            libc::SYS_pselect6 => {
                // The sixth argument points to the mask and its length.
                let mask = pointer::<usize>(f);
                let mask = if mask.is_null() { 0 } else { *mask };
                readiness::pselect(
                    fd,
                    pointer(b),
                    pointer(c),
                    pointer(d),
                    pointer(e),
                    pointer(mask),
                ) as isize
            }
            libc::SYS_epoll_create1 => lifecycle::epoll_create1(fd) as isize,
            libc::SYS_epoll_ctl => {
                readiness::epoll_ctl(fd, b as c_int, c as c_int, pointer(d)) as isize
            }
            libc::SYS_epoll_pwait => {
                readiness::epoll_pwait(fd, pointer(b), c as c_int, d as c_int, pointer(e)) as isize
            }
            libc::SYS_epoll_pwait2 => {
                readiness::epoll_pwait2(fd, pointer(b), c as c_int, pointer(d), pointer(e)) as isize
            }
            libc::SYS_close => lifecycle::close(fd) as isize,
            libc::SYS_close_range => {
                lifecycle::close_range(a as u32, b as u32, c as c_int) as isize
            }
            libc::SYS_dup => lifecycle::dup(fd) as isize,
            libc::SYS_dup3 => lifecycle::dup3(fd, b as c_int, c as c_int) as isize,
            libc::SYS_fcntl => lifecycle::fcntl(fd, b as c_int, c) as isize,
            libc::SYS_ioctl => options::ioctl(fd, b as u64, c) as isize,
            libc::SYS_connect => lifecycle::connect(fd, pointer(b), c as u32) as isize,
            libc::SYS_accept => lifecycle::accept(fd, pointer(b), pointer(c)) as isize,
            libc::SYS_accept4 => {
                lifecycle::accept4(fd, pointer(b), pointer(c), d as c_int) as isize
            }
            libc::SYS_shutdown => lifecycle::shutdown(fd, b as c_int) as isize,
            libc::SYS_getsockopt => {
                options::getsockopt(fd, b as c_int, c as c_int, pointer(d), pointer(e)) as isize
            }
            libc::SYS_setsockopt => {
                options::setsockopt(fd, b as c_int, c as c_int, pointer(d), e as u32) as isize
            }
            libc::SYS_execve => process::execve(pointer(a), pointer(b), pointer(c)) as isize,
            // Not by the C library's function, which has it since glibc 2.34.
            libc::SYS_execveat => {
                process::prepare();
                real::syscall(number, a, b, c, d, e, f) as isize
            }
            libc::SYS_io_uring_setup => {
                let mut errno = libc::ENOSYS;
                let result = io_uring::set_up(|| {
                    let result = real::syscall(number, a, b, c, d, e, f);
                    errno = real::errno();
                    result as c_int
                });
                if result < 0 {
                    real::set_errno(errno);
                    return -1;
                }
                result as isize
            }
            libc::SYS_io_submit => {
                asynchronous::before_submit(b as isize, pointer::<*const u8>(c));
                real::syscall(number, a, b, c, d, e, f) as isize
            }
            _ => old(number, [a, b, c, d, e, f]),
        }
    }
}

/// # Safety
/// As the system call.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one for each number
unsafe fn old(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let fd = a as c_int;
    // SAFETY: as in `by_number`.
    unsafe {
        match number {
            libc::SYS_poll => readiness::poll(pointer(a), b as u64, c as c_int) as isize,
            libc::SYS_select => {
                readiness::select(fd, pointer(b), pointer(c), pointer(d), pointer(e)) as isize
            }
            libc::SYS_epoll_create => lifecycle::epoll_create(fd) as isize,
            libc::SYS_epoll_wait => {
                readiness::epoll_wait(fd, pointer(b), c as c_int, d as c_int) as isize
            }
            libc::SYS_dup2 => lifecycle::dup2(fd, b as c_int) as isize,
            _ => real::syscall(number, a, b, c, d, e, f) as isize,
        }
    }
}

/// # Safety
/// As the system call.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn old(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    // SAFETY: as in `by_number`.
    unsafe { real::syscall(number, a, b, c, d, e, f) as isize }
}
