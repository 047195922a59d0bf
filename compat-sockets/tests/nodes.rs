//! The programs of `semantics.rs` where each connection is carried between two ends of a daemon, as between two nodes:
//! they do as over the kernel's TCP. The daemon carries to itself, so that the same programs, most of which are both
//! ends, can be asked. Between two network namespaces with a daemon each: `ci/net`.
#![allow(missing_docs)]

mod common;

macro_rules! programs {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            common::carried(stringify!($name));
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
