//! [`AsyncVmmcStream`]: `AsyncRead` and `AsyncWrite` over the same connection.
//!
//! The runtime's own epoll set watches the kernel's socket, and cannot see the rings. So before
//! a task is told to wait it arms the connection, looks at the ring once more, and then waits for
//! the socket to be readable: by data, or by a doorbell. A writer whose ring is full waits for a
//! doorbell as well. It has a descriptor of its own for that, because a descriptor in a runtime has
//! one waiting reader.
//!
//! No doorbell comes from a peer that reads nothing. So a task that waits for room is woken after a while to write again, and that
//! has the stream go on by TCP when nothing was read for long ([`crate::stream::full`]). A runtime need not have timers: a thread of
//! ours sleeps for it, which is there as long as somebody waits for room ([`later`]).

use super::{VmmcListener, VmmcStream};
use crate::fd_table;
use crate::side::tx;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use vmmc::sync::Ordering;

/// Registers a socket with the runtime.
fn watched<T: AsRawFd>(socket: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: our types give the one descriptor they own, and close it when they are dropped, which
    // `AsyncFd` does after it has taken them out of its set.
    unsafe { AsyncFd::register_with_interest(socket, interest) }.map_err(io::Error::from)
}

/// A [`VmmcStream`] for tokio. Made from one by [`AsyncVmmcStream::new`], or by
/// [`AsyncVmmcStream::connect`].
#[derive(Debug)]
pub struct AsyncVmmcStream {
    stream: AsyncFd<VmmcStream>,
    /// The same connection, to wait for room by.
    room: AsyncFd<VmmcStream>,
    writer: Arc<Writer>,
}

/// Who waits for room. A read may throw the doorbell away that was meant for a writer, so each read wakes it.
#[derive(Debug, Default)]
struct Writer {
    waker: Mutex<Option<Waker>>,
    /// Whether there is one.
    waits: AtomicBool,
    /// Whether it will be woken in a while in any case.
    is_remembered: AtomicBool,
}

impl Writer {
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits(&self, cx: &Context<'_>) {
        *self.waker() = Some(cx.waker().clone());
        self.waits.store(true, Ordering::SeqCst);
    }

    fn wake(&self) {
        if self.waits.swap(false, Ordering::SeqCst)
            && let Some(waker) = self.waker().take()
        {
            waker.wake();
        }
    }

    /// Has it woken in a while, unless it is already to be.
    fn wake_later(self: &Arc<Self>) {
        if !self.is_remembered.swap(true, Ordering::SeqCst) {
            later::wake(self.clone());
        }
    }
}

/// Wakes those who wait for room, in a while.
mod later {
    use super::{Arc, Mutex, MutexGuard, Ordering, PoisonError, Writer};
    use crate::stream::full;
    use std::collections::VecDeque;
    use std::time::Instant;

    /// All that are to be woken, the next one first.
    struct Waiting {
        writers: VecDeque<(Instant, Arc<Writer>)>,
        /// Whether there is a thread that does it.
        is_served: bool,
    }

    static WAITING: Mutex<Waiting> =
        Mutex::new(Waiting { writers: VecDeque::new(), is_served: false });

    fn waiting() -> MutexGuard<'static, Waiting> {
        WAITING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(writer: Arc<Writer>) {
        let mut waiting = waiting();
        waiting.writers.push_back((Instant::now() + full::soonest(), writer));
        if !waiting.is_served {
            let thread = std::thread::Builder::new().name("vmmc-room".to_owned()).spawn(serve);
            waiting.is_served = thread.is_ok();
            if thread.is_err()
                && let Some((_, writer)) = waiting.writers.pop_back()
            {
                // The next wait tries again.
                writer.is_remembered.store(false, Ordering::SeqCst);
            }
        }
    }

    fn serve() {
        loop {
            let mut waiting = waiting();
            let Some((at, writer)) = waiting.writers.pop_front() else {
                waiting.is_served = false;
                return;
            };
            drop(waiting);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            // Before it is woken: who waits from now on asks anew.
            writer.is_remembered.store(false, Ordering::SeqCst);
            writer.wake();
        }
    }
}

impl AsyncVmmcStream {
    /// Takes a connected stream into the current runtime.
    ///
    /// # Errors
    /// When the socket cannot be made non-blocking, duplicated, or registered.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled, as all of tokio's own types.
    pub fn new(stream: VmmcStream) -> io::Result<AsyncVmmcStream> {
        stream.set_nonblocking(true)?;
        if let Some(sock) = fd_table::sock(stream.fd()) {
            // We arm by ourselves whenever somebody waits.
            sock.is_to_be_watched();
        }
        let both = Interest::READABLE | Interest::WRITABLE;
        let room = watched(stream.try_clone()?, Interest::READABLE)?;
        let stream = watched(stream, both)?;
        Ok(AsyncVmmcStream { stream, room, writer: Arc::default() })
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`tokio::net::TcpStream::connect`].
    pub async fn connect(address: impl tokio::net::ToSocketAddrs) -> io::Result<AsyncVmmcStream> {
        super::start();
        let stream = tokio::net::TcpStream::connect(address).await?;
        AsyncVmmcStream::new(stream.into_std()?.into())
    }

    /// The stream itself, for its names and options.
    #[must_use]
    pub fn get_ref(&self) -> &VmmcStream {
        self.stream.get_ref()
    }

    /// Whether a read would find something now. Arms first, so that a doorbell comes otherwise.
    fn readable_after_arming(&self) -> bool {
        let fd = self.get_ref().fd();
        let Some(link) = fd_table::sock(fd).and_then(|sock| sock.enter(fd)) else { return false };
        link.arm_data();
        let readable = link.looks_readable(fd);
        link.leave();
        readable
    }

    /// What a write that found no room waits for.
    fn wait_for_room(&self) -> WaitFor {
        let fd = self.get_ref().fd();
        let Some(link) = fd_table::sock(fd).and_then(|sock| sock.enter(fd)) else {
            return WaitFor::Kernel;
        };
        let wait = if link.side.tx_state.load(Ordering::SeqCst) == tx::RING {
            link.arm_space();
            if link.looks_writable() { WaitFor::Nothing } else { WaitFor::Doorbell }
        } else {
            WaitFor::Either
        };
        link.leave();
        wait
    }

    /// Waits for a doorbell. Where the runtime's epoll set is hooked (a program that is preloaded as
    /// well), that is seen as the socket's becoming writable.
    fn poll_doorbell(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut rung = false;
        for ready in [self.room.poll_read_ready(cx), self.stream.poll_write_ready(cx)] {
            if let Poll::Ready(guard) = ready {
                guard?.clear_ready();
                rung = true;
            }
        }
        if rung { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_write_by(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&VmmcStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match write(self.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => return Poll::Ready(result),
            }
            self.writer.waits(cx);
            match self.wait_for_room() {
                WaitFor::Nothing => {}
                WaitFor::Doorbell => {
                    self.writer.wake_later();
                    ready!(self.poll_doorbell(cx))?;
                }
                WaitFor::Kernel => ready!(self.stream.poll_write_ready(cx))?.clear_ready(),
                WaitFor::Either => {
                    self.writer.wake_later();
                    ready!(self.stream.poll_write_ready(cx))?.clear_ready();
                }
            }
        }
    }
}

enum WaitFor {
    Nothing,
    Doorbell,
    /// The kernel's room.
    Kernel,
    /// The same, unless it was the ring that had none, and the direction has left it just now.
    Either,
}

impl AsyncRead for AsyncVmmcStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut stream = self.get_ref();
            let result = stream.read(buffer.initialize_unfilled());
            self.writer.wake();
            match result {
                Ok(len) => {
                    buffer.advance(len);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Poll::Ready(Err(error)),
            }
            if !self.readable_after_arming() {
                ready!(self.stream.poll_read_ready(cx))?.clear_ready();
            }
        }
    }
}

impl AsyncWrite for AsyncVmmcStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_by(cx, |mut stream| stream.write(buffer))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_by(cx, |mut stream| stream.write_vectored(buffers))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_ref().shutdown(Shutdown::Write))
    }
}

impl AsFd for AsyncVmmcStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.get_ref().as_fd()
    }
}

/// A [`VmmcListener`] for tokio.
#[derive(Debug)]
pub struct AsyncVmmcListener {
    listener: AsyncFd<VmmcListener>,
}

impl AsyncVmmcListener {
    /// Takes a listener into the current runtime.
    ///
    /// # Errors
    /// When the socket cannot be made non-blocking or registered.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub fn new(listener: VmmcListener) -> io::Result<AsyncVmmcListener> {
        listener.set_nonblocking(true)?;
        Ok(AsyncVmmcListener { listener: watched(listener, Interest::READABLE)? })
    }

    /// Waits for a connection; returns it and the address of its other end.
    ///
    /// # Errors
    /// As [`tokio::net::TcpListener::accept`].
    pub async fn accept(&self) -> io::Result<(AsyncVmmcStream, SocketAddr)> {
        let accept = |listener: &VmmcListener| listener.accept();
        let (stream, peer) = self.listener.async_io(Interest::READABLE, accept).await?;
        Ok((AsyncVmmcStream::new(stream)?, peer))
    }

    /// The listener itself, for its address and options.
    #[must_use]
    pub fn get_ref(&self) -> &VmmcListener {
        self.listener.get_ref()
    }
}
