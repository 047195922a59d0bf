//! Which line a data connection goes over: the TCP connection itself, or a fabric beside it.

use crate::control::network::Meeting;
use crate::error::SystemError;
use crate::fabric::{FabricError, Target};
use crate::sys::Fd;
use crate::sys::mmap::GuardedMapping;
use crate::transport::Load;
use crate::transport::engine::Line;
use crate::transport::net::silence::Owed;
use crate::transport::ofi::Ofi;
use crate::transport::ofi::fifo::{Fifo, JoinError};
use crate::transport::tcp::seal::SealKeys;
use crate::transport::tcp::{End, Keeps, Tcp};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// One end of a line of either kind.
#[derive(Debug)]
pub enum AnyLine {
    /// Over TCP.
    Tcp(Box<Tcp>),
    /// Over libfabric.
    Ofi(Box<Ofi>),
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The fabric.
    #[error(transparent)]
    Fabric(FabricError),
    /// The fabric carries nothing.
    #[error(
        "the fabric carries nothing to its interface ({0}); see `shrimp doctor`, or take [fabric] out of the cluster file"
    )]
    Greeting(Errno),
    /// No descriptor to be had.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl From<JoinError> for LineError {
    fn from(error: JoinError) -> LineError {
        match error {
            JoinError::Unfit(error) => LineError::Fabric(error),
            JoinError::Lost(errno) => LineError::Greeting(errno),
        }
    }
}

impl AnyLine {
    /// The end of a process that imports: the socket of its data connection, and both ends of the fabric if it goes over one, or
    /// the keys with which it is sealed.
    pub(super) fn of_process(
        socket: Fd,
        fabric: Option<(Fifo, Meeting)>,
        (seal, keeps_all): (Option<&SealKeys>, bool),
    ) -> Result<AnyLine, LineError> {
        if let Some((fifo, peer)) = fabric {
            return Ok(AnyLine::Ofi(Box::new(Ofi::meet(socket, fifo, &peer)?)));
        }
        End::Process.prepare(&socket)?;
        Ok(AnyLine::Tcp(Box::new(Tcp::new(
            socket,
            End::Process,
            seal,
            if keeps_all { Keeps::All } else { Keeps::Short },
        ))))
    }

    /// The interface's end, which never waits. The fabric's ends have joined.
    #[must_use]
    pub fn of_interface(socket: Fd, fifo: Option<Fifo>, seal: Option<&SealKeys>) -> AnyLine {
        match fifo {
            Some(fifo) => AnyLine::Ofi(Box::new(Ofi::new(socket, fifo))),
            None => AnyLine::Tcp(Box::new(Tcp::new(socket, End::Interface, seal, Keeps::Answers))),
        }
    }

    /// The one that can go on over another connection.
    #[must_use]
    pub fn tcp(&self) -> Option<&Tcp> {
        match self {
            AnyLine::Tcp(tcp) => Some(tcp),
            AnyLine::Ofi(_) => None,
        }
    }
}

macro_rules! either {
    ($any:expr, $line:ident => $call:expr) => {
        match $any {
            AnyLine::Tcp($line) => $call,
            AnyLine::Ofi($line) => $call,
        }
    };
}

impl Line for AnyLine {
    fn socket(&self) -> BorrowedFd<'_> {
        either!(self, line => line.socket())
    }

    fn is_fabric(&self) -> bool {
        either!(self, line => line.is_fabric())
    }

    fn send(&self, front: &[u8], back: &[u8]) -> Result<usize, Errno> {
        either!(self, line => line.send(front, back))
    }

    fn wait_for_room(&self, timeout: Duration) -> bool {
        either!(self, line => line.wait_for_room(timeout))
    }

    fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        either!(self, line => line.receive(room))
    }

    fn gives_all(&self) -> bool {
        either!(self, line => line.gives_all())
    }

    fn land<R>(&self, most: usize, put: impl FnOnce(Load<'_>) -> (usize, R)) -> Result<R, Errno> {
        either!(self, line => line.land(most, put))
    }

    fn with_wait_fd<R>(&self, use_it: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        either!(self, line => line.with_wait_fd(use_it))
    }

    fn is_vain(&self) -> bool {
        either!(self, line => line.is_vain())
    }

    fn may_sleep(&self) -> bool {
        either!(self, line => line.may_sleep())
    }

    fn tell_from(&self, bytes: u32) -> bool {
        either!(self, line => line.tell_from(bytes))
    }

    fn owed(&self) -> Result<Owed, Errno> {
        either!(self, line => line.owed())
    }

    fn hear(&self) -> Result<(), Errno> {
        either!(self, line => line.hear())
    }

    fn is_broken(&self) -> bool {
        either!(self, line => line.is_broken())
    }

    fn close(&self) {
        either!(self, line => line.close());
    }

    fn register(&self, pages: GuardedMapping, len: usize) -> Result<(usize, Target), FabricError> {
        either!(self, line => line.register(pages, len))
    }

    fn cover(&self, number: usize) -> Result<(), FabricError> {
        either!(self, line => line.cover(number))
    }

    fn shut(&self, number: usize) -> Result<(), FabricError> {
        either!(self, line => line.shut(number))
    }

    fn write_directly(
        &self,
        window: Target,
        at: u64,
        bytes: &[u8],
        begins: bool,
    ) -> Result<usize, Errno> {
        either!(self, line => line.write_directly(window, at, bytes, begins))
    }

    fn wait_for_place(&self, timeout: Duration) -> bool {
        either!(self, line => line.wait_for_place(timeout))
    }

    fn was_refused(&self) -> bool {
        either!(self, line => line.was_refused())
    }
}
