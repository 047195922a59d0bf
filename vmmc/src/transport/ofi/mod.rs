//! The line over libfabric: packets by remote writes ([`crate::fabric`]), beside the TCP connection that made it.
//!
//! The connection stays: its end is the end of the line, and otherwise only receipts are asked for there.
//!
//! * [`fifo`]: a byte stream each way, of remote writes; and past it, writes to memory that the other end has registered.
//! * [`receipts`]: when a fabric counts as having lost something.

pub mod fifo;
pub mod receipts;

use crate::control::network::Meeting;
use crate::fabric::{FabricError, Target};
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};
use crate::sys::Fd;
use crate::sys::mmap::GuardedMapping;
use crate::transport::Load;
use crate::transport::engine::Line;
use crate::transport::net::silence::Owed;
use fifo::{Fifo, JoinError};
use receipts::Receipts;
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// One end of it.
#[derive(Debug)]
pub struct Ofi {
    socket: Fd,
    fifo: Mutex<Fifo>,
    /// Told when there is room again.
    room: Condvar,
    /// Of the socket. Locked before `fifo`.
    receipts: Mutex<Receipts>,
    /// The socket has ended, or the fabric has lost something: what has come is the last.
    has_ended: AtomicBool,
    /// A write to registered memory was refused, or cut off.
    refused: AtomicBool,
    /// See [`Line::is_vain`].
    is_vain: bool,
}

impl Ofi {
    /// Takes an end that has met the other and [joined](Fifo::join) it.
    #[must_use]
    pub fn new(socket: Fd, fifo: Fifo) -> Ofi {
        let is_vain = fifo.is_vain();
        Ofi {
            socket,
            fifo: Mutex::new(fifo),
            room: Condvar::new(),
            receipts: Mutex::default(),
            has_ended: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            is_vain,
        }
    }

    /// Meets the other end, and speaks first.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub(crate) fn meet(socket: Fd, mut fifo: Fifo, peer: &Meeting) -> Result<Ofi, JoinError> {
        fifo.meet(peer).map_err(JoinError::Unfit)?;
        fifo.join(&socket, true)?;
        Ok(Ofi::new(socket, fifo))
    }

    /// Remembers a refusal, which is told once, to whoever looks first.
    fn note<T>(&self, result: Result<T, Errno>) -> Result<T, Errno> {
        if let Err(Errno::ACCESS) = &result {
            self.refused.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Waits until there is something. The connection's thread makes progress, or whoever spins.
    fn wait_until(
        &self,
        timeout: Duration,
        has: impl Fn(&mut Fifo) -> Result<bool, Errno>,
    ) -> bool {
        let end = Instant::now() + timeout;
        let mut fifo = self.fifo.lock();
        loop {
            if self.note(has(&mut fifo)) != Ok(false) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            fifo = self.room.wait(fifo, Some(end));
        }
    }
}

impl Line for Ofi {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn is_fabric(&self) -> bool {
        true
    }

    fn send(&self, front: &[u8], back: &[u8]) -> Result<usize, Errno> {
        self.note(self.fifo.lock().send(&[front, back]))
    }

    fn wait_for_room(&self, timeout: Duration) -> bool {
        self.wait_until(timeout, Fifo::has_room)
    }

    fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        let mut fifo = self.fifo.lock();
        let before = (fifo.room(), fifo.places());
        let received = self.note(fifo.receive(room));
        if fifo.room() > before.0 || fifo.places() > before.1 {
            self.room.notify_all();
        }
        match received {
            Err(Errno::AGAIN) if self.has_ended.load(Ordering::Relaxed) => Ok(0),
            received => received,
        }
    }

    fn gives_all(&self) -> bool {
        false
    }

    fn land<R>(&self, most: usize, put: impl FnOnce(Load<'_>) -> (usize, R)) -> Result<R, Errno> {
        let mut fifo = self.fifo.lock();
        let front = fifo.front().map_err(|errno| match errno {
            Errno::AGAIN if self.has_ended.load(Ordering::Relaxed) => Errno::CONNRESET,
            errno => errno,
        })?;
        let part = front.slice(0, front.len().min(most)).unwrap_or(front);
        let (taken, result) = put(Load::Memory(part));
        fifo.take(taken);
        Ok(result)
    }

    fn with_wait_fd<R>(&self, use_it: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        use_it(self.fifo.lock().wait_fd())
    }

    fn is_vain(&self) -> bool {
        self.is_vain
    }

    fn may_sleep(&self) -> bool {
        self.fifo.lock().may_sleep()
    }

    fn owed(&self) -> Result<Owed, Errno> {
        self.note(receipts::look(&self.socket, &mut *self.fifo.lock()))
    }

    fn hear(&self) -> Result<(), Errno> {
        let (mut receipts, mut fifo) = (self.receipts.lock(), self.fifo.lock());
        let room = fifo.room();
        let heard = receipts.hear(&self.socket, &mut *fifo);
        if fifo.room() > room {
            self.room.notify_all();
        }
        if heard.is_err() {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        self.note(heard)
    }

    fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both); // it may have ended
        self.room.notify_all();
    }

    fn register(&self, pages: GuardedMapping, len: usize) -> Result<(usize, Target), FabricError> {
        self.fifo.lock().open_window(pages, len)
    }

    fn cover(&self, number: usize) -> Result<(), FabricError> {
        self.fifo.lock().cover_window(number)
    }

    fn shut(&self, number: usize) -> Result<(), FabricError> {
        self.fifo.lock().shut_window(number)
    }

    fn write_directly(
        &self,
        window: Target,
        at: u64,
        bytes: &[u8],
        begins: bool,
    ) -> Result<usize, Errno> {
        self.note(self.fifo.lock().write_window(window, at, bytes, begins))
    }

    fn wait_for_place(&self, timeout: Duration) -> bool {
        self.wait_until(timeout, Fifo::has_place)
    }

    fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}
