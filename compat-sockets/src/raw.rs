//! System calls without libc: no symbol that we interpose, no `errno`, no cancellation point.
//!
//! Used for everything the library does on its own account. What the *program* asked for and may
//! block goes through the real C function instead ([`crate::real`]), so that cancellation and
//! `errno` behave as it expects.

use rustix::fs::{Mode, OFlags};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use vmmc_ring::tcp_count;

/// Result of a call: non-negative, or the error number.
pub(crate) type Result<T> = std::result::Result<T, i32>;

/// Issues a system call with six arguments.
///
/// # Safety
/// As the system call itself: pointers among the arguments must be valid for what it does.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = args;
    // SAFETY: the kernel's calling convention; it clobbers rcx and r11 and nothing else.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Issues a system call with six arguments.
///
/// # Safety
/// As the system call itself: pointers among the arguments must be valid for what it does.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = args;
    // SAFETY: the kernel's calling convention.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

#[inline]
fn check(result: isize) -> Result<usize> {
    if result < 0 { Err(-result as i32) } else { Ok(result as usize) }
}

/// A call whose arguments are all plain numbers, or pointers that the caller vouches for.
macro_rules! call {
    ($number:expr $(, $arg:expr)*) => {{
        let mut args = [0usize; 6];
        #[allow(unused_mut, unused_variables, clippy::allow_attributes)]
        let mut _slot = args.iter_mut();
        $(if let Some(slot) = _slot.next() { *slot = $arg as usize; })*
        // SAFETY: each function below says why its arguments are valid.
        check(unsafe { syscall($number, args) })
    }};
}

/// recv(2) without waiting that throws `len` bytes away; returns how many there were.
pub(crate) fn discard(fd: i32, len: usize) -> Result<usize> {
    // MSG_TRUNC on TCP: nothing is copied, so the null buffer is never touched.
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    call!(libc::SYS_recvfrom, fd, 0, len, flags, 0, 0)
}

/// Looks without waiting whether there is a byte: `Ok(0)` is end of file.
pub(crate) fn peek_one(fd: i32) -> Result<usize> {
    let mut byte = 0u8;
    // The buffer is one byte on this stack.
    call!(libc::SYS_recvfrom, fd, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT, 0, 0)
}

/// Sends bytes on a socket.
pub(crate) fn send(fd: i32, bytes: &[u8], flags: i32) -> Result<usize> {
    // The buffer is a slice.
    call!(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0, 0)
}

/// send(2) of memory that a peer may be writing: an address, never a slice.
///
/// # Safety
/// `start` must be mapped for `len` bytes.
pub(crate) unsafe fn send_from(fd: i32, start: *const u8, len: usize, flags: i32) -> Result<usize> {
    call!(libc::SYS_sendto, fd, start, len, flags, 0, 0)
}

/// recvmsg(2) into the program's buffers.
///
/// # Safety
/// The buffers must be the program's own, valid as recvmsg(2) wants them.
pub(crate) unsafe fn recv_vectors(fd: i32, iov: &[libc::iovec], flags: i32) -> Result<usize> {
    // SAFETY: all zero is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = iov.as_ptr().cast_mut();
    header.msg_iovlen = iov.len() as _;
    call!(libc::SYS_recvmsg, fd, &raw mut header, flags)
}

/// getsockopt(2) of a plain value.
pub(crate) fn socket_option<T: Copy>(fd: i32, level: i32, name: i32, mut value: T) -> Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // Value and length are on this stack.
    call!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len)?;
    Ok(value)
}

/// setsockopt(2) of a plain value.
pub(crate) fn set_socket_option<T: Copy>(fd: i32, level: i32, name: i32, value: &T) -> Result<()> {
    // The value is borrowed.
    call!(libc::SYS_setsockopt, fd, level, name, std::ptr::from_ref(value), size_of::<T>())
        .map(drop)
}

/// A socket's own or its peer's address (`SYS_getsockname`, `SYS_getpeername`).
pub(crate) fn socket_name(fd: i32, number: libc::c_long) -> Result<libc::sockaddr_in6> {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    // Both are on this stack.
    call!(number, fd, &raw mut address, &raw mut len)?;
    Ok(address)
}

/// Unread bytes in a socket's receive queue (`FIONREAD`).
pub(crate) fn unread(fd: i32) -> Result<usize> {
    let mut count: libc::c_int = 0;
    // The result is on this stack.
    call!(libc::SYS_ioctl, fd, libc::FIONREAD, &raw mut count)?;
    Ok(count.max(0) as usize)
}

/// Whether it is a socket of type `SOCK_STREAM`.
pub(crate) fn is_stream_socket(fd: i32) -> bool {
    socket_option(fd, libc::SOL_SOCKET, libc::SO_TYPE, 0i32) == Ok(libc::SOCK_STREAM)
}

/// What tells a socket from all others that there are and have been (`SO_COOKIE`).
pub(crate) fn socket_cookie(fd: i32) -> Result<u64> {
    socket_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64)
}

/// Whether a byte of urgent data is there that nobody has taken.
pub(crate) fn has_urgent(fd: i32) -> bool {
    pending_events(fd, libc::POLLPRI) & libc::POLLPRI != 0
}

/// [`unread`], beyond the place of urgent data too, up to which the kernel counts where that byte is none of the stream.
/// Sets `SO_OOBINLINE` for a moment: under the rx lock, as the program does.
#[cold]
pub(crate) fn unread_beyond_mark(fd: i32) -> Result<usize> {
    let (level, name) = (libc::SOL_SOCKET, libc::SO_OOBINLINE);
    if socket_option(fd, level, name, 0i32)? != 0 {
        return unread(fd);
    }
    set_socket_option(fd, level, name, &1i32)?;
    let count = unread(fd);
    set_socket_option(fd, level, name, &0i32)?;
    count
}

/// ioctl_sockios(2): whether the out-of-band mark is next.
pub(crate) const SIOCATMARK: libc::c_ulong = 0x8905;

/// Whether the mark of urgent data is next: a receive that has something reads no further.
#[cold]
pub(crate) fn is_at_mark(fd: i32) -> bool {
    let mut mark: libc::c_int = 0;
    // The result is on this stack.
    call!(libc::SYS_ioctl, fd, SIOCATMARK, &raw mut mark).is_ok() && mark != 0
}

/// Bytes that a socket surely takes without waiting ([`tcp_count::send_room`]).
pub(crate) fn send_room(fd: i32) -> u64 {
    let size = socket_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 0i32).unwrap_or(0);
    unacknowledged(fd).map_or(0, |queued| tcp_count::send_room(size.max(0) as usize, queued as u64))
}

/// Bytes in a socket's send queue, those that the peer's kernel has not acknowledged (`SIOCOUTQ`).
pub(crate) fn unacknowledged(fd: i32) -> Result<usize> {
    let mut queued: libc::c_int = 0;
    // The result is on this stack.
    call!(libc::SYS_ioctl, fd, libc::TIOCOUTQ, &raw mut queued)?;
    Ok(queued.max(0) as usize)
}

/// fcntl(2) with a plain argument.
pub(crate) fn fcntl(fd: i32, command: i32, argument: usize) -> Result<i32> {
    call!(libc::SYS_fcntl, fd, command, argument).map(|value| value as i32)
}

/// `O_NONBLOCK` of the open file description, now.
pub(crate) fn is_nonblocking(fd: i32) -> bool {
    fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// `O_ASYNC` of the open file description: whether arrivals are told by a signal.
pub(crate) fn is_signalled(fd: i32) -> bool {
    fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_ASYNC != 0)
}

/// Whether it has no position: a pipe, a socket, a terminal.
pub(crate) fn is_stream(fd: i32) -> bool {
    // No memory is passed.
    call!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) == Err(libc::ESPIPE)
}

/// Whether it is a pipe.
pub(crate) fn is_pipe(fd: i32) -> bool {
    fcntl(fd, libc::F_GETPIPE_SZ, 0).is_ok()
}

/// Events pending on one descriptor now, of those asked for; 0 on error.
pub(crate) fn pending_events(fd: i32, events: i16) -> i16 {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Both are on this stack.
    match call!(libc::SYS_ppoll, &raw mut entry, 1, &raw const now, 0, 8) {
        Ok(_) => entry.revents,
        Err(_) => 0,
    }
}

/// A time, as the kernel takes it.
pub(crate) fn timespec_of(nanoseconds: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    }
}

/// Waits for events on one descriptor, at most so many milliseconds.
pub(crate) fn wait_for(fd: i32, events: i16, milliseconds: u64) {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let time = libc::timespec { tv_sec: 0, tv_nsec: milliseconds as i64 * 1_000_000 };
    // Both are on this stack.
    let _ = call!(libc::SYS_ppoll, &raw mut entry, 1, &raw const time, 0, 8);
}

/// Waits for events on one descriptor, until a signal comes (`EINTR`).
pub(crate) fn wait_long_for(fd: i32, events: i16) -> Result<()> {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let no_time = std::ptr::null::<libc::timespec>();
    // It is on this stack.
    call!(libc::SYS_ppoll, &raw mut entry, 1, no_time, 0, 8).map(drop)
}

/// Waits at most `nanoseconds` while the word still has the value. Shared futex.
pub(crate) fn futex_wait(word: *const u32, value: u32, nanoseconds: u64) -> Result<()> {
    let timeout = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    };
    // The kernel checks the word's address itself (EFAULT).
    call!(libc::SYS_futex, word, libc::FUTEX_WAIT, value, &raw const timeout, 0, 0).map(drop)
}

/// Wakes everyone who waits on the word. Shared futex.
pub(crate) fn futex_wake(word: *const u32) {
    // As above.
    let _ = call!(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX, 0, 0, 0);
}

/// What a number stands for; 0 when nothing.
pub(crate) fn identity(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ino.rotate_left(20) ^ stat.st_dev)
}

/// A number that somebody may close meanwhile, for one call.
pub(crate) fn borrowed(raw: i32) -> Option<BorrowedFd<'static>> {
    // SAFETY: used for the length of one call; a number that is closed meanwhile answers EBADF.
    (raw >= 0).then(|| unsafe { BorrowedFd::borrow_raw(raw) })
}

/// Makes a number mean what another does; close-on-exec.
pub(crate) fn replace(by: BorrowedFd<'_>, number: i32) -> Result<()> {
    call!(libc::SYS_dup3, by.as_raw_fd(), number, libc::O_CLOEXEC).map(drop)
}

/// Resets a TCP connection, at once: its peer has an RST, and what is unsent is lost.
pub(crate) fn reset(fd: i32) {
    let nobody =
        libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // An address on this stack.
    if call!(libc::SYS_connect, fd, &raw const nobody, size_of_val(&nobody)).is_err() {
        // Some kernels do not while a thread waits in a call on it: it is one when it is closed, and nothing goes meanwhile.
        let now = libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = set_socket_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &now);
        let _ = call!(libc::SYS_shutdown, fd, libc::SHUT_RD);
    }
}

/// Sends a FIN.
pub(crate) fn end_sending(fd: i32) {
    let _ = call!(libc::SYS_shutdown, fd, libc::SHUT_WR);
}

/// Places in the kernel's table of this process's descriptors: above all numbers that are open. It grows, and what a forked
/// child has may be smaller.
pub(crate) fn descriptor_places() -> Option<usize> {
    let mut text = [0u8; 1024];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let status = rustix::fs::open(c"/proc/self/status", flags, Mode::empty()).ok()?;
    let len = rustix::io::read(&status, &mut text).ok()?;
    // The process's name stands there too, and may be in any encoding.
    let mut lines = text.get(..len)?.split(|&byte| byte == b'\n');
    let size = lines.find_map(|line| line.strip_prefix(b"FDSize:"))?;
    std::str::from_utf8(size).ok()?.trim().parse().ok()
}

/// Closes a descriptor of ours.
pub(crate) fn close(fd: i32) {
    let _ = call!(libc::SYS_close, fd);
}

/// madvise(2) with advice that changes no contents.
pub(crate) fn madvise(start: usize, len: usize, advice: i32) -> Result<()> {
    // The kernel checks the range itself.
    call!(libc::SYS_madvise, start, len, advice).map(drop)
}

/// A pipe: its read end and its write end.
pub(crate) fn pipe() -> Result<[i32; 2]> {
    let mut ends = [-1i32; 2];
    // The result is on this stack.
    call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC)?;
    Ok(ends)
}

/// write(2) from an address that may be bad: the kernel answers `EFAULT`.
pub(crate) fn write_from(fd: i32, address: usize, len: usize) -> Result<usize> {
    call!(libc::SYS_write, fd, address, len)
}

/// read(2) of a byte that [`write_from`] took from the same address, back to its place.
pub(crate) fn read_to(fd: i32, address: usize, len: usize) -> Result<usize> {
    call!(libc::SYS_read, fd, address, len)
}

/// Thread id.
pub(crate) fn gettid() -> u32 {
    call!(libc::SYS_gettid).unwrap_or(0) as u32
}

/// Process id, from the kernel and not from a cache.
pub(crate) fn getpid() -> u32 {
    call!(libc::SYS_getpid).unwrap_or(0) as u32
}

/// A descriptor of a process, close-on-exec.
pub(crate) fn pidfd_open(pid: i32) -> Result<i32> {
    call!(libc::SYS_pidfd_open, pid, 0).map(|fd| fd as i32)
}

/// io_submit(2).
pub(crate) fn io_submit(context: usize, count: isize, list: *const *const u8) -> Result<usize> {
    // The program's own list, which the kernel looks at.
    call!(libc::SYS_io_submit, context, count, list)
}

/// The parent's process id; 0 when it is outside this namespace.
pub(crate) fn getppid() -> u32 {
    call!(libc::SYS_getppid).unwrap_or(0) as u32
}

/// Whether a thread with this id exists somewhere.
pub(crate) fn thread_exists(tid: u32) -> bool {
    call!(libc::SYS_kill, tid as i32, 0) != Err(libc::ESRCH)
}

/// Whether there is such a process, of a thread group or a thread by its number, that has not ended. A child of ours
/// that nobody has waited for has.
pub(crate) fn process_lives(pid: u32) -> bool {
    if !thread_exists(pid) {
        return false;
    }
    let mut ended = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // The result is on this stack.
    let asked = call!(
        libc::SYS_waitid,
        libc::P_PID,
        pid,
        ended.as_mut_ptr(),
        flags,
        std::ptr::null_mut::<u8>()
    );
    // SAFETY: zeroed, which is valid, and perhaps filled in.
    let ended = unsafe { ended.assume_init() };
    // SAFETY: what waitid fills in has this field; it is zero where there was nothing to tell.
    asked.is_err() || unsafe { ended.si_pid() } == 0
}

/// Whether a thread is stopped, or asleep: it runs none of its own instructions now. False where nobody can say.
pub(crate) fn is_standing(tid: u32) -> bool {
    let mut path = [0u8; 32];
    let mut rest = &mut path[..];
    // What is left of the array ends the string.
    if write!(rest, "/proc/{tid}/stat").is_err() {
        return false;
    }
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let Ok(stat) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut text = [0u8; 128];
    let len = rustix::io::read(&stat, &mut text).unwrap_or(0);
    // The state stands behind the name, which is short and may hold anything: `1234 (name) S 1 ...`.
    let text = text.get(..len).unwrap_or_default();
    let end = text.iter().rposition(|&it| it == b')');
    matches!(end.and_then(|end| text.get(end + 2)), Some(b'T' | b't' | b'S'))
}

/// What the kernel keeps of a signal.
#[repr(C)]
struct KernelSigaction {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

/// What a signal does, if it has a handler.
fn handler_of(signal: u32) -> Option<KernelSigaction> {
    let mut old = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    // The result is on this stack, of the kernel's own shape.
    let asked = call!(libc::SYS_rt_sigaction, signal, 0, &raw mut old, 8);
    (asked.is_ok() && old.handler > 1).then_some(old)
}

/// Whether some handler of the program is installed without `SA_RESTART`: then a signal may have
/// been meant to interrupt a blocking call.
pub(crate) fn some_handler_interrupts() -> bool {
    (1..=64).any(|signal| {
        handler_of(signal).is_some_and(|it| it.flags & libc::SA_RESTART as usize == 0)
    })
}

/// Signals that the C library has for itself.
const LIBRARYS_OWN: u64 = 1 << 31 | 1 << 32;

/// Yields the processor with all signals held back, and says whether a handler of the program runs now that they
/// are let in: a call that had slept instead would have been interrupted.
pub(crate) fn yield_interrupted() -> bool {
    let all = u64::MAX;
    let (mut before, mut pending) = (0u64, 0u64);
    // The masks are on this stack, of the kernel's own size.
    let held =
        call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut before, 8);
    rustix::thread::sched_yield();
    if held.is_err() {
        return false;
    }
    let _ = call!(libc::SYS_rt_sigpending, &raw mut pending, 8);
    let come = pending & !before & !LIBRARYS_OWN;
    let interrupted = come != 0
        && (1..=64).any(|signal| come >> (signal - 1) & 1 != 0 && handler_of(signal).is_some());
    let _ = call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, 8);
    interrupted
}

/// pread(2) or read(2) into memory the caller vouches for.
///
/// # Safety
/// `target` must be writable for `len` bytes.
pub(crate) unsafe fn read_at(
    fd: i32,
    target: *mut u8,
    len: usize,
    offset: Option<i64>,
) -> Result<usize> {
    match offset {
        Some(offset) => call!(libc::SYS_pread64, fd, target, len, offset),
        None => call!(libc::SYS_read, fd, target, len),
    }
}

/// read(2) from a pipe that does not wait: `EAGAIN` when it is empty.
///
/// # Safety
/// `target` must be writable for `len` bytes.
pub(crate) unsafe fn read_now(fd: i32, target: *mut u8, len: usize) -> Result<usize> {
    let vector = libc::iovec { iov_base: target.cast(), iov_len: len };
    let (here, one, nowhere) = (&raw const vector, 1, -1i64);
    match call!(libc::SYS_preadv2, fd, here, one, nowhere, nowhere, libc::RWF_NOWAIT) {
        // Pipes can be read so since Linux 6.4. Before that another reader may take away what was there.
        Err(libc::EOPNOTSUPP | libc::ESPIPE | libc::EINVAL) => {
            if pending_events(fd, libc::POLLIN) & (libc::POLLIN | libc::POLLHUP) == 0 {
                return Err(libc::EAGAIN);
            }
            // SAFETY: passed on.
            unsafe { read_at(fd, target, len, None) }
        }
        read => read,
    }
}

/// Monotonic time in nanoseconds.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Tells the kernel to raise SIGPIPE for this thread, as a failed write to a socket does.
pub(crate) fn raise_sigpipe() {
    let _ = call!(libc::SYS_tgkill, getpid(), gettid(), libc::SIGPIPE);
}

/// epoll_ctl(2) `EPOLL_CTL_MOD`; whether it worked.
pub(crate) fn epoll_mod(epfd: i32, fd: i32, event: &mut libc::epoll_event) -> bool {
    // The event is borrowed.
    call!(libc::SYS_epoll_ctl, epfd, libc::EPOLL_CTL_MOD, fd, std::ptr::from_mut(event)).is_ok()
}

/// epoll_ctl(2) `EPOLL_CTL_DEL`.
pub(crate) fn epoll_del(epfd: i32, fd: i32) {
    let _ = call!(libc::SYS_epoll_ctl, epfd, libc::EPOLL_CTL_DEL, fd, 0);
}

/// Events of an epoll set that are there now.
pub(crate) fn epoll_now(epfd: i32, events: &mut [libc::epoll_event]) -> Result<usize> {
    let max = events.len().min(i32::MAX as usize);
    // The array is borrowed.
    call!(libc::SYS_epoll_pwait, epfd, events.as_mut_ptr(), max, 0, 0, 8)
}
