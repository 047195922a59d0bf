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

/// glibc's own note whether there is one thread, from 2.32 on.
static ONE_THREAD: Real = Real::new("__libc_single_threaded\0");

/// Whether this process certainly has no thread but the caller.
#[inline]
pub(crate) fn has_one_thread() -> bool {
    let note = ONE_THREAD.pointer.load(Ordering::Relaxed).cast::<std::ffi::c_char>();
    // SAFETY: a variable of the C library's, which stays; threads come only by a call of this one, if it is the only one.
    !note.is_null() && unsafe { note.read_volatile() } != 0
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
        #[allow(non_snake_case)] // the C names
        struct Table { $($name: Real,)* }
        static TABLE: Table = Table { $($name: Real::new(concat!(stringify!($name), "\0")),)* };

        /// Resolves every function.
        pub(crate) fn resolve_all() {
            $(TABLE.$name.get();)*
            ONE_THREAD.get();
        }

        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the function's manual page says.
            #[inline]
            #[allow(non_snake_case)] // as above
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
    syscall(number: libc::c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> libc::c_long;
    preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    fork() -> libc::pid_t;
    _Fork() -> libc::pid_t;
    system(command: *const libc::c_char) -> c_int;
    posix_spawn(pid: *mut libc::pid_t, path: *const libc::c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut libc::c_char, envp: *const *mut libc::c_char) -> c_int;
    posix_spawnp(pid: *mut libc::pid_t, file: *const libc::c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut libc::c_char, envp: *const *mut libc::c_char) -> c_int;
    pidfd_spawn(pidfd: *mut c_int, path: *const libc::c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut libc::c_char, envp: *const *mut libc::c_char) -> c_int;
    pidfd_spawnp(pidfd: *mut c_int, file: *const libc::c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut libc::c_char, envp: *const *mut libc::c_char) -> c_int;
    wordexp(words: *const libc::c_char, result: *mut c_void, flags: c_int) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, old: c_int, new: c_int) -> c_int;
    aio_read(control: *mut libc::aiocb) -> c_int;
    aio_write(control: *mut libc::aiocb) -> c_int;
    aio_read64(control: *mut libc::aiocb) -> c_int;
    aio_write64(control: *mut libc::aiocb) -> c_int;
    lio_listio(mode: c_int, list: *const *mut libc::aiocb, count: c_int, event: *mut libc::sigevent) -> c_int;
    lio_listio64(mode: c_int, list: *const *mut libc::aiocb, count: c_int, event: *mut libc::sigevent) -> c_int;
    io_uring_queue_init(entries: libc::c_uint, ring: *mut c_void, flags: libc::c_uint) -> c_int;
    io_uring_queue_init_params(entries: libc::c_uint, ring: *mut c_void, params: *mut c_void) -> c_int;
    io_uring_queue_init_mem(entries: libc::c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: size_t) -> c_int;
    io_uring_setup(entries: libc::c_uint, params: *mut c_void) -> c_int;
    close(fd: c_int) -> c_int;
    fclose(stream: *mut libc::FILE) -> c_int;
    close_range(first: libc::c_uint, last: libc::c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    execve(path: *const libc::c_char, argv: *const *const libc::c_char, envp: *const *const libc::c_char) -> c_int;
    execv(path: *const libc::c_char, argv: *const *const libc::c_char) -> c_int;
    execvp(file: *const libc::c_char, argv: *const *const libc::c_char) -> c_int;
    execvpe(file: *const libc::c_char, argv: *const *const libc::c_char, envp: *const *const libc::c_char) -> c_int;
    execveat(dir: c_int, path: *const libc::c_char, argv: *const *const libc::c_char, envp: *const *const libc::c_char, flags: c_int) -> c_int;
    fexecve(fd: c_int, argv: *const *const libc::c_char, envp: *const *const libc::c_char) -> c_int;
}

/// These answer a pointer, so they have their own caller ([`stream`]).
pub(crate) static FDOPEN: Real = Real::new("fdopen\0");
/// As [`FDOPEN`].
pub(crate) static POPEN: Real = Real::new("popen\0");
/// As [`FDOPEN`].
pub(crate) static FREOPEN: Real = Real::new("freopen\0");
/// As [`FDOPEN`].
pub(crate) static FREOPEN64: Real = Real::new("freopen64\0");
/// As [`FDOPEN`].
static CLOSEFROM: Real = Real::new("closefrom\0");

/// A function of the C library that makes a stdio stream.
///
/// # Safety
/// As its manual page says.
pub(crate) unsafe fn stream(
    function: &Real,
    first: usize,
    mode: *const libc::c_char,
) -> *mut c_void {
    let pointer = function.get();
    if pointer.is_null() {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    type Opener = unsafe extern "C-unwind" fn(usize, *const libc::c_char) -> *mut c_void;
    // SAFETY: the function takes a descriptor or a pointer, and the mode; a register each.
    let function = unsafe { std::mem::transmute::<*mut c_void, Opener>(pointer) };
    // SAFETY: passed on.
    unsafe { function(first, mode) }
}

/// One of the C library's functions that give a stdio stream another file.
///
/// # Safety
/// As its manual page says.
pub(crate) unsafe fn reopen(
    function: &Real,
    path: *const libc::c_char,
    mode: *const libc::c_char,
    stream: *mut libc::FILE,
) -> *mut c_void {
    let pointer = function.get();
    if pointer.is_null() {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    type Reopener = unsafe extern "C-unwind" fn(
        *const libc::c_char,
        *const libc::c_char,
        *mut libc::FILE,
    ) -> *mut c_void;
    // SAFETY: libc's functions of these names have this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, Reopener>(pointer) };
    // SAFETY: passed on.
    unsafe { function(path, mode, stream) }
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
