//! [`VmmcListener`].

use super::{VmmcStream, start};
use std::io;
use std::iter::FusedIterator;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A listening TCP socket that accepts [`VmmcStream`]s. The methods do what those of
/// [`std::net::TcpListener`] do.
#[derive(Debug)]
pub struct VmmcListener {
    socket: TcpListener,
}

impl VmmcListener {
    /// Listens at the first address that works. Port 0: the kernel's choice.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<VmmcListener> {
        start();
        TcpListener::bind(address).map(VmmcListener::from)
    }

    /// Waits for a connection; returns it and the address of its other end.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub fn accept(&self) -> io::Result<(VmmcStream, SocketAddr)> {
        let (socket, peer) = self.socket.accept()?;
        Ok((VmmcStream::from(socket), peer))
    }

    /// Connections, one after the other, without end.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Address it listens at.
    ///
    /// # Errors
    /// As [`TcpListener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Another handle of the same socket.
    ///
    /// # Errors
    /// As [`TcpListener::try_clone`].
    pub fn try_clone(&self) -> io::Result<VmmcListener> {
        self.socket.try_clone().map(VmmcListener::from)
    }

    /// Makes [`VmmcListener::accept`] fail with [`io::ErrorKind::WouldBlock`] instead of waiting.
    ///
    /// # Errors
    /// As [`TcpListener::set_nonblocking`].
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }

    /// The pending error of the socket, which is cleared.
    ///
    /// # Errors
    /// As [`TcpListener::take_error`].
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    /// Hops that packets of accepted connections may make.
    ///
    /// # Errors
    /// As [`TcpListener::set_ttl`].
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set_ttl(ttl)
    }

    /// What [`VmmcListener::set_ttl`] set.
    ///
    /// # Errors
    /// As [`TcpListener::ttl`].
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }
}

/// What [`VmmcListener::incoming`] returns.
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a VmmcListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<VmmcStream>;

    fn next(&mut self) -> Option<io::Result<VmmcStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for Incoming<'_> {}

impl From<TcpListener> for VmmcListener {
    fn from(socket: TcpListener) -> VmmcListener {
        VmmcListener { socket }
    }
}

impl From<VmmcListener> for OwnedFd {
    fn from(listener: VmmcListener) -> OwnedFd {
        listener.socket.into()
    }
}

impl AsFd for VmmcListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for VmmcListener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
