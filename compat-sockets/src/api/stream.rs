//! [`VmmcStream`].

use super::{check, follow, start};
use crate::entry::{data, lifecycle, options};
use crate::side::{rx, tx};
use crate::{close, fd_table, raw};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::ManuallyDrop;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;
use vmmc::sync::Ordering;

/// A TCP connection whose bytes go through shared memory where the other end takes part.
///
/// The methods do what those of [`std::net::TcpStream`] do. The descriptor ([`AsFd`]) is the kernel's
/// socket: good for options, names and readiness, but not for data; a byte in its queue may be a
/// doorbell. To give the socket to code that reads and writes it, use [`VmmcStream::into_tcp`].
pub struct VmmcStream {
    /// Closed by our `close`, which tells the peer what the kernel cannot know.
    socket: ManuallyDrop<TcpStream>,
}

impl VmmcStream {
    /// Connects, trying each address. Blocks until the connection is there.
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<VmmcStream> {
        start();
        TcpStream::connect(address).map(VmmcStream::from)
    }

    /// Connects, waiting at most `timeout`.
    ///
    /// # Errors
    /// As [`TcpStream::connect_timeout`].
    pub fn connect_timeout(address: &SocketAddr, timeout: Duration) -> io::Result<VmmcStream> {
        start();
        TcpStream::connect_timeout(address, timeout).map(VmmcStream::from)
    }

    pub(super) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Whether both directions go through shared memory now.
    #[must_use]
    pub fn is_upgraded(&self) -> bool {
        let Some(link) = fd_table::sock(self.fd()).and_then(|sock| sock.enter(self.fd())) else {
            return false;
        };
        let sends = link.side.tx_state.load(Ordering::Relaxed) == tx::RING;
        let receives = link.side.rx_state.load(Ordering::Relaxed) == rx::RING;
        link.leave();
        sends && receives
    }

    /// The same connection as an ordinary TCP stream: both directions go back to the kernel, and
    /// what was received and not read yet with them. Blocks for a moment, until the peer has
    /// done its part.
    ///
    /// # Errors
    /// The stream itself, unchanged but for its sending direction, when the peer does not do its
    /// part: it was stopped, or makes no call on its end.
    pub fn into_tcp(self) -> Result<TcpStream, VmmcStream> {
        let fd = self.fd();
        if let Some(sock) = fd_table::sock(fd) {
            let why = crate::counters::Counter::plain_option;
            sock.make_plain(fd, why);
            if !close::demote_both(fd, sock, why) {
                return Err(self);
            }
            crate::epoll::settle_member(sock);
            fd_table::forget(fd);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; `this` is not dropped.
        Ok(unsafe { ManuallyDrop::take(&mut this.socket) })
    }

    /// Another handle of the same connection.
    ///
    /// # Errors
    /// As [`TcpStream::try_clone`].
    pub fn try_clone(&self) -> io::Result<VmmcStream> {
        let copy = self.socket.try_clone()?;
        if !matches!(fd_table::get(copy.as_raw_fd()), fd_table::Known::Sock(_)) {
            lifecycle::duplicated(self.fd(), copy.as_raw_fd());
        }
        Ok(VmmcStream { socket: ManuallyDrop::new(copy) })
    }

    /// Ends reading, writing or both. The peer reads what was sent before, then the end.
    ///
    /// # Errors
    /// As [`TcpStream::shutdown`].
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        // SAFETY: an open descriptor of ours.
        check(unsafe { lifecycle::shutdown(self.fd(), how) } as isize).map(drop)
    }

    /// As `read`, but the bytes stay where they are.
    ///
    /// # Errors
    /// As [`TcpStream::peek`].
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, libc::MSG_PEEK)
    }

    fn receive(&self, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
        let start = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer is borrowed.
        check(unsafe { data::recv(self.fd(), start, buffer.len(), flags) })
    }

    /// Makes calls that would wait fail with [`io::ErrorKind::WouldBlock`] instead.
    ///
    /// # Errors
    /// As [`TcpStream::set_nonblocking`].
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        let mut value = i32::from(nonblocking);
        let value = std::ptr::from_mut(&mut value).expose_provenance();
        // SAFETY: the argument points to an integer on this stack.
        check(unsafe { options::ioctl(self.fd(), libc::FIONBIO as _, value) } as isize).map(drop)
    }

    /// `TCP_NODELAY`, as the program set it. (Bytes in shared memory are never delayed.)
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let value = i32::from(nodelay);
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
        let place = std::ptr::from_ref(&value).cast();
        // SAFETY: the value is on this stack.
        let result = unsafe { options::setsockopt(self.fd(), level, name, place, 4) };
        check(result as isize).map(drop)
    }

    /// What [`VmmcStream::set_nodelay`] set.
    ///
    /// # Errors
    /// As [`TcpStream::nodelay`].
    pub fn nodelay(&self) -> io::Result<bool> {
        let (mut value, mut len) = (0i32, 4);
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
        let place = std::ptr::from_mut(&mut value).cast();
        // SAFETY: value and length are on this stack.
        let result = unsafe { options::getsockopt(self.fd(), level, name, place, &raw mut len) };
        check(result as isize).map(|_| value != 0)
    }
}

/// Methods that are the kernel's alone.
macro_rules! passed_on {
    ($($(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $ret:ty;)*) => {
        impl VmmcStream {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As the method of [`TcpStream`] of this name.
            pub fn $name(&self $(, $arg: $type)*) -> io::Result<$ret> {
                self.socket.$name($($arg),*)
            }
        )*}
    };
}

passed_on! {
    /// Address of the other end.
    fn peer_addr(&self) -> SocketAddr;
    /// Address of this end.
    fn local_addr(&self) -> SocketAddr;
    /// Longest wait of a read; `None`: for ever.
    fn set_read_timeout(&self, timeout: Option<Duration>) -> ();
    /// Longest wait of a write; `None`: for ever.
    fn set_write_timeout(&self, timeout: Option<Duration>) -> ();
    /// What [`VmmcStream::set_read_timeout`] set.
    fn read_timeout(&self) -> Option<Duration>;
    /// What [`VmmcStream::set_write_timeout`] set.
    fn write_timeout(&self) -> Option<Duration>;
    /// Hops that packets may make.
    fn set_ttl(&self, ttl: u32) -> ();
    /// What [`VmmcStream::set_ttl`] set.
    fn ttl(&self) -> u32;
    /// The pending error of the socket, which is cleared.
    fn take_error(&self) -> Option<io::Error>;
}

impl From<TcpStream> for VmmcStream {
    /// Takes over a connected socket. Bytes it has carried before do not matter, but no other handle of
    /// it may be used from now on.
    fn from(socket: TcpStream) -> VmmcStream {
        let fd = socket.as_raw_fd();
        follow(fd, raw::is_nonblocking(fd));
        VmmcStream { socket: ManuallyDrop::new(socket) }
    }
}

impl Drop for VmmcStream {
    fn drop(&mut self) {
        // SAFETY: our own descriptor, not used again. An error cannot be told from here.
        unsafe { lifecycle::close(self.fd()) };
    }
}

impl Read for &VmmcStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, 0)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = buffers.len().min(libc::UIO_MAXIOV as usize) as i32;
        // SAFETY: IoSliceMut has the layout of iovec; the buffers are borrowed.
        check(unsafe { data::readv(self.fd(), buffers.as_mut_ptr().cast(), count) })
    }
}

impl Write for &VmmcStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let start = buffer.as_ptr().cast();
        // SAFETY: the buffer is borrowed.
        check(unsafe { data::send(self.fd(), start, buffer.len(), libc::MSG_NOSIGNAL) })
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: all zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = buffers.as_ptr().cast::<libc::iovec>().cast_mut();
        message.msg_iovlen = buffers.len().min(libc::UIO_MAXIOV as usize) as _;
        // SAFETY: IoSlice has the layout of iovec; the buffers are borrowed and only read.
        check(unsafe { data::sendmsg(self.fd(), &raw const message, libc::MSG_NOSIGNAL) })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for VmmcStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for VmmcStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (&*self).write(buffer)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for VmmcStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for VmmcStream {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}

impl fmt::Debug for VmmcStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmmcStream")
            .field("socket", &*self.socket)
            .field("upgraded", &self.is_upgraded())
            .finish()
    }
}
