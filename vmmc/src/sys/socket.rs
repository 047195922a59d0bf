//! Socket options that rustix does not know, and how `/proc` names a socket.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The kernel's number of a socket, by which `/proc` names it too; `None` when nothing is open by this number.
#[must_use]
pub fn inode(fd: i32) -> Option<u64> {
    if fd < 0 {
        return None;
    }
    // SAFETY: used for the length of one call; a number that is closed meanwhile answers EBADF.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::fs::fstat(fd).ok().map(|stat| stat.st_ino)
}

pub(super) fn option<const N: usize>(
    socket: impl AsFd,
    level: i32,
    name: i32,
) -> Option<([u8; N], usize)> {
    let mut value = [0u8; N];
    let mut len = N as libc::socklen_t;
    // SAFETY: `value` is `len` bytes that the kernel fills.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (rc == 0).then_some((value, len as usize))
}

/// State of a TCP socket, the first byte of `TCP_INFO`; 1 when established. `None` when it is none.
#[must_use]
pub fn tcp_state(socket: impl AsFd) -> Option<u8> {
    let (value, len) = option::<1>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    (len == 1).then_some(value[0])
}

/// Number of the network namespace that a socket is in (`SO_NETNS_COOKIE`, Linux 5.14).
#[must_use]
pub fn netns_cookie(socket: impl AsFd) -> Option<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let (value, len) = option::<8>(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE)?;
    (len == 8).then(|| u64::from_ne_bytes(value))
}

/// The interface that a socket is bound to (`SO_BINDTOIFINDEX`, Linux 5.0), 0 for none.
#[must_use]
pub fn bound_interface(socket: impl AsFd) -> Option<u32> {
    const SO_BINDTOIFINDEX: i32 = 62;
    let (value, len) = option::<4>(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX)?;
    (len == 4).then(|| u32::from_ne_bytes(value))
}

/// `struct tcp_info` of a TCP socket, as far as its byte counts (linux/tcp.h).
#[must_use]
pub fn tcp_info(socket: impl AsFd) -> Option<[u8; TCP_INFO_LEN]> {
    let (value, len) = option(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    (len == TCP_INFO_LEN).then_some(value)
}

/// Bytes that the other end of a TCP socket has acknowledged so far, also of one that was reset (`tcpi_bytes_acked`).
#[must_use]
pub fn acknowledged(socket: impl AsFd) -> u64 {
    const AT: usize = 120;
    let info = tcp_info(socket);
    let field = info.as_ref().and_then(|info| info[AT..].first_chunk());
    field.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Bytes that a TCP socket has been given, and the other end has not acknowledged.
#[must_use]
pub fn unacknowledged(socket: impl AsFd) -> Option<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call (SIOCOUTQ) stores one int.
    let rc = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (rc == 0).then(|| bytes.unsigned_abs() as usize)
}

/// Ends a TCP connection by an RST, whoever else has the socket; what has come and was not received is gone.
pub fn reset(socket: impl AsFd) {
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of_val(&nobody));
    // SAFETY: an address of so many bytes, which is read. To connect a connected socket to nobody ends its connection so.
    let _ = unsafe { libc::syscall(libc::SYS_connect, fd, &raw const nobody, len) };
}

/// Has nobody told that a socket is readable before so many bytes have come, or its end (`SO_RCVLOWAT`); false if the kernel
/// will not.
pub fn tell_from(socket: impl AsFd, bytes: u32) -> bool {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of_val(&value) as libc::socklen_t);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    // SAFETY: a value of so many bytes, which is read.
    unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) == 0 }
}

/// Length of the part that [`tcp_info`] gives.
pub const TCP_INFO_LEN: usize = 216;
/// Whether a socket has something to say, were it only that it has ended. Does not block.
#[must_use]
pub fn has_spoken(socket: impl AsFd) -> bool {
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    let peeked = rustix::net::recv(socket, &mut [0u8], flags);
    !matches!(peeked, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
}
