//! Packets with descriptors over a `SOCK_SEQPACKET` Unix socket.

use super::Fd;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Most descriptors in one packet (the kernel's own limit, `SCM_MAX_FD`).
pub const MAX_FDS: usize = 253;

/// Descriptors one ordinary packet may carry; more are an error of the peer and are closed.
pub const MAX_FDS_PER_MESSAGE: usize = 4;

/// A `SOCK_SEQPACKET` Unix socket, close-on-exec, not connected.
///
/// # Errors
/// As socket(2).
pub fn socket() -> rustix::io::Result<Fd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map(Fd::from)
}

/// A connected pair of such sockets.
///
/// # Errors
/// As socketpair(2).
pub fn pair() -> rustix::io::Result<(Fd, Fd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map(|(a, b)| (a.into(), b.into()))
}

/// Sends one packet with up to [`MAX_FDS_PER_MESSAGE`] descriptors, never raising `SIGPIPE`.
///
/// # Errors
/// As sendmsg(2); `EAGAIN` with `DONTWAIT` when the peer's queue is full, `EPIPE` or
/// `ECONNRESET` when the peer is gone, `EINVAL` for too many descriptors.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<()> {
    if fds.len() > MAX_FDS_PER_MESSAGE {
        return Err(rustix::io::Errno::INVAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS_PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::INVAL);
    }
    loop {
        match rustix::net::sendmsg(
            &socket,
            &[IoSlice::new(bytes)],
            &mut control,
            flags | SendFlags::NOSIGNAL,
        ) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_) => return Err(rustix::io::Errno::MSGSIZE),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Descriptors that came with a packet, in order.
#[derive(Debug, Default)]
pub struct Fds {
    slots: [Option<Fd>; MAX_FDS_PER_MESSAGE],
    len: usize,
    taken: usize,
    cut: bool,
}

impl Fds {
    /// The next descriptor, or `None` when the packet brought no more.
    pub fn take(&mut self) -> Option<Fd> {
        let fd = self.slots.get_mut(self.taken)?.take()?;
        self.taken += 1;
        Some(fd)
    }

    /// How many have not been taken.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.len - self.taken
    }

    /// Whether descriptors were lost because this process may have no more: the packet is whole, and
    /// nothing is wrong with the peer.
    #[must_use]
    pub fn cut_short(&self) -> bool {
        self.cut
    }
}

/// Receives one packet into `buffer`; `None` at end of file. Received descriptors are
/// close-on-exec; those over the limit are closed. A process at its own limit of open files gets the
/// packet with fewer ([`Fds::cut_short`]).
///
/// # Errors
/// As recvmsg(2); `EMSGSIZE` for a packet longer than `buffer` or with more descriptors than an
/// ordinary message may carry: the peer does not follow the protocol.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> rustix::io::Result<Option<(usize, Fds)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS_PER_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        match rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            flags | RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(message) => break message,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    };
    let mut fds = Fds::default();
    let mut too_many = false;
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            for owned in received {
                let fd = Fd::from(owned);
                match fds.slots.get_mut(fds.len) {
                    Some(slot) => {
                        *slot = Some(fd);
                        fds.len += 1;
                    }
                    None => too_many = true,
                }
            }
        }
    }
    let cut = message.flags.contains(ReturnFlags::CTRUNC);
    // With all slots filled the packet had more than there are; with fewer the kernel had no number
    // left to give.
    too_many |= cut && fds.len == MAX_FDS_PER_MESSAGE;
    if too_many || message.flags.contains(ReturnFlags::TRUNC) {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    fds.cut = cut;
    if message.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((message.bytes, fds)))
}

/// The first packet that lies unread in a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It has descriptors.
    Descriptors,
    /// It has none; it may be empty.
    Packet,
    /// There is none, nor comes one.
    Nothing,
}

/// Room for the sender's credentials, which nobody reads (the number of their process may be 0), and for no descriptor.
// SAFETY: a computation.
const ROOM: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;

/// Looks at the first packet, and leaves it. The socket passes credentials (`SO_PASSCRED`), by which an empty packet is told from
/// the end. Does not wait.
///
/// # Errors
/// As recvmsg(2).
pub fn look(socket: impl AsFd) -> rustix::io::Result<Unread> {
    let mut byte = [0u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    let mut control = [0u8; ROOM];
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names memory of this frame, and its lengths.
    let got = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) };
    if got < 0 {
        let error = std::io::Error::last_os_error();
        return Err(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO));
    }
    Ok(match (header.msg_flags & libc::MSG_CTRUNC != 0, header.msg_controllen > 0) {
        (true, _) => Unread::Descriptors,
        (false, true) => Unread::Packet,
        (false, false) => Unread::Nothing,
    })
}
