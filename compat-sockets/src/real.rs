//! The real C functions behind the ones we export.
//!
//! Resolved with `dlsym(RTLD_NEXT)`, all at once when the library is loaded; a hook that runs
//! earlier (from another library's constructor) resolves its own then. A function that this
//! libc does not have is answered with `ENOSYS`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One real function.
pub(crate) struct Real {
    /// With a final NUL.
    name: &'static str,
    /// Null until resolved.
    pointer: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static str) -> Real {
        Real { name, pointer: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The function's address, null when libc has none of that name.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let pointer = self.pointer.load(Ordering::Relaxed);
        if pointer.is_null() { self.resolve() } else { pointer }
    }

    /// The address to jump to: a function that answers `ENOSYS` where libc has none.
    pub(crate) fn address(&self) -> *const c_void {
        extern "C" fn absent() -> c_int {
            set_errno(libc::ENOSYS);
            -1
        }
        let pointer = self.get();
        if pointer.is_null() {
            absent as extern "C" fn() -> c_int as *const c_void
        } else {
            pointer
        }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        // SAFETY: the name ends with NUL; RTLD_NEXT is meant for this.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        self.pointer.store(found, Ordering::Relaxed);
        found
    }
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = errno }
}

/// Reads `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place }
}

macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {
        struct Table { $($name: Real,)* }
        static TABLE: Table = Table { $($name: Real::new(concat!(stringify!($name), "\0")),)* };

        /// Resolves every function.
        pub(crate) fn resolve_all() {
            $(TABLE.$name.get();)*
        }

        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the function's manual page says.
            #[inline]
            pub(crate) unsafe fn $name($($arg: $type),*) -> $ret {
                let pointer = TABLE.$name.get();
                if pointer.is_null() {
                    set_errno(libc::ENOSYS);
                    return -1;
                }
                // SAFETY: libc's function of this name has this type.
                let function = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $ret>(pointer)
                };
                // SAFETY: passed on.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

use libc::{epoll_event, fd_set, iovec, mmsghdr, msghdr, pollfd, sigset_t, size_t, sockaddr};
use libc::{off64_t, socklen_t, ssize_t, timespec, timeval};

real! {
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, alen: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: libc::c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, alen: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: libc::c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, input: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
    splice(input: c_int, in_offset: *mut off64_t, out: c_int, out_offset: *mut off64_t, len: size_t, flags: libc::c_uint) -> ssize_t;
    poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: libc::c_uint, last: libc::c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    execve(path: *const libc::c_char, argv: *const *const libc::c_char, envp: *const *const libc::c_char) -> c_int;
    execv(path: *const libc::c_char, argv: *const *const libc::c_char) -> c_int;
    execvp(file: *const libc::c_char, argv: *const *const libc::c_char) -> c_int;
    execvpe(file: *const libc::c_char, argv: *const *const libc::c_char, envp: *const *const libc::c_char) -> c_int;
    fexecve(fd: c_int, argv: *const *const libc::c_char, envp: *const *const libc::c_char) -> c_int;
}

/// `fdopen` answers a pointer, so it has its own caller.
static FDOPEN: Real = Real::new("fdopen\0");
/// As [`FDOPEN`].
static CLOSEFROM: Real = Real::new("closefrom\0");

/// The C library's fdopen.
///
/// # Safety
/// As its manual page says.
pub(crate) unsafe fn fdopen(fd: c_int, mode: *const libc::c_char) -> *mut c_void {
    let pointer = FDOPEN.get();
    if pointer.is_null() {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    type Fdopen = unsafe extern "C-unwind" fn(c_int, *const libc::c_char) -> *mut c_void;
    // SAFETY: libc's function of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, Fdopen>(pointer) };
    // SAFETY: passed on.
    unsafe { function(fd, mode) }
}

/// The C library's closefrom.
///
/// # Safety
/// As its manual page says.
pub(crate) unsafe fn closefrom(first: c_int) {
    let pointer = CLOSEFROM.get();
    if pointer.is_null() {
        return;
    }
    // SAFETY: libc's function of this name has this type.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_int)>(pointer) };
    // SAFETY: passed on.
    unsafe { function(first) }
}
