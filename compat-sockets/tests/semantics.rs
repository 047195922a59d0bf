//! The exact behaviour of TCP sockets, asked of the kernel, of the library without a daemon, and of
//! the library with one (specification of the sockets library, 2.3, 2.5, 2.7 and 3.1).
//!
//! Each test compiles one C program of `tests/c` and runs its cases three ways:
//! 1. plainly: the kernel is the oracle, every check must hold there too;
//! 2. with `LD_PRELOAD` and no daemon: the same lines;
//! 3. with `LD_PRELOAD` and a daemon of the test's own: the same lines, and for each connection that a case
//!    has warmed up the daemon confirms from outside that both ends put bytes into their rings,
//!    before the case goes on.
//!
//! What differs, and cannot be helped for now, is in `tests/known_differences.txt`. To run one case:
//! `SEMANTICS_CASE=half_close cargo test -p compat-sockets --test semantics`; a failure prints the
//! command that repeats it by hand (`SEMANTICS_WATCHDOG=0` for a debugger).
#![allow(missing_docs)]

mod common;

macro_rules! programs {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            common::three_ways(stringify!($name));
        }
    )*};
}

programs! {
    /// Every byte once and in order: sizes, directions, threads, a thousand connections.
    bulk,
    /// O_NONBLOCK, EAGAIN, nonblocking connect.
    nonblocking,
    epoll_level,
    epoll_edge,
    /// Loops that change all the time what they want.
    epoll_wishes,
    /// Sets in sets, and looked at by poll.
    epoll_nested,
    poll_select,
    /// Half-close, end of file, resets, broken pipes, dying peers.
    shutdown,
    /// Flags of recv and send, bad addresses, urgent data.
    flags,
    /// One stream that comes by two ways: looks and receives across the change.
    seams,
    /// Calls with many parts, sendfile, splice.
    vectors,
    /// Time limits, EINTR, SA_RESTART, cancellation, threads that meddle.
    signals,
    /// FIONREAD, TCP_INFO, options.
    queries,
    /// Time stamps, sending without a copy, a close under a send.
    options,
    /// dup, close_range, limits, stdio.
    descriptors,
    /// fork, exec, inetd, descriptor passing.
    processes,
    /// syscall(2), other names, children by other means, aio, io_uring.
    hooks,
    /// IPv6, mapped addresses, connected to itself, other kinds of socket.
    addresses,
}
