//! What the broker and a carrier share of one offered connection: the copy of the process's socket, and whether the process
//! still wants to be carried.

use super::guard::Guard;
use super::stream::{Standing, Stream};
use crate::net::lock;
use crate::receive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use vmmc::sys::Fd;

/// A process's socket. Its close may block, and waits elsewhere.
#[derive(Debug)]
pub(super) struct Socket {
    fd: Option<Fd>,
    /// Whose it is.
    uid: u32,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("taken by the drop alone"),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.fd.take().into_iter().for_each(|fd| receive::close(self.uid, fd));
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Attempt {
    socket: Mutex<Option<Arc<Socket>>>,
    /// Its user.
    pub(super) uid: u32,
    is_cancelled: AtomicBool,
    /// Who waits for the other end, or carries it.
    stream: OnceLock<Weak<Stream>>,
    /// Who ends it should this daemon be killed, and the number it has there.
    guard: Mutex<Option<(Arc<Guard>, u64)>>,
}

impl Attempt {
    pub(crate) fn new(socket: Fd, uid: u32) -> Attempt {
        Attempt {
            socket: Mutex::new(Some(Arc::new(Socket { fd: Some(socket), uid }))),
            uid,
            is_cancelled: AtomicBool::new(false),
            stream: OnceLock::new(),
            guard: Mutex::default(),
        }
    }

    /// The process has no use of it any more, and has not been told that it is carried. Its socket's end is not to wait
    /// for us.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.close();
        if let Some(stream) = self.stream() {
            stream.look_again();
        }
    }

    /// The process has no use of it any more, though it was told, or is about to be.
    pub(crate) fn forget(&self) {
        if let Some(stream) = self.stream() {
            stream.is_forgotten();
        }
    }

    /// This daemon leaves, and with it what it carries: a copy of the socket that just closed would end the connection in
    /// order, whatever has not arrived.
    pub(crate) fn leave(&self) {
        if let Some(stream) = self.stream()
            && stream.standing() == Standing::Open
        {
            stream.lose("this daemon ends");
        }
    }

    /// Who waits for its other end, or carries it.
    pub(super) fn stream(&self) -> Option<Arc<Stream>> {
        self.stream.get().and_then(Weak::upgrade)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// Who is to hear of a [`Attempt::cancel`].
    pub(super) fn is_for(&self, stream: Weak<Stream>) {
        let _ = self.stream.set(stream);
    }

    pub(super) fn is_held_by(&self, guard: Arc<Guard>, number: u64) {
        *lock(&self.guard) = Some((guard, number));
    }

    /// The death of this daemon is of no consequence to it any more.
    pub(super) fn needs_no_guard(&self) {
        let guard = lock(&self.guard).take();
        if let Some((guard, number)) = guard {
            guard.forget(number);
        }
    }

    /// The process's socket.
    pub(super) fn socket(&self) -> Option<Arc<Socket>> {
        lock(&self.socket).clone()
    }

    /// Gives the process's socket up.
    pub(super) fn close(&self) {
        let socket = lock(&self.socket).take();
        self.needs_no_guard();
        drop(socket);
    }
}
