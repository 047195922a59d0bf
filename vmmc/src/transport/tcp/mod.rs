//! The line between nodes that needs nothing installed: packets over the TCP connection itself, sealed if configured.
//!
//! * [`seal`]: what nobody on the way can read or change.

pub mod seal;

use crate::error::{SystemError, system};
use crate::sync::Mutex;
use crate::sys::Fd;
use crate::transport::Load;
use crate::transport::engine::Line;
use crate::transport::net::silence::{self, Owed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use seal::{Opener, Sealer};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// From here on a send waits for room in the kernel, in bytes. Who is woken there goes on at once, and who polls for room first
/// comes when all that was sent has been taken: bare TCP so took 3.3 GB/s of packets, and 4 to 5 otherwise.
const WAITS: usize = 32 * 1024;
/// How long it waits at a time.
const SLICE: Duration = Duration::from_secs(1);

/// One end of it.
#[derive(Debug)]
pub struct Tcp {
    socket: Fd,
    seal: Option<Seal>,
}

/// Both directions of a sealed connection.
#[derive(Debug)]
struct Seal {
    sealer: Mutex<Sealer>,
    opener: Mutex<Opener>,
}

impl Tcp {
    /// Takes a connected socket, and with what is sealed that is sent and opened that comes.
    #[must_use]
    pub fn new(socket: Fd, seal: Option<(Sealer, Opener)>) -> Tcp {
        let seal = seal.map(|(sealer, opener)| Seal {
            sealer: Mutex::new(sealer),
            opener: Mutex::new(opener),
        });
        Tcp { socket, seal }
    }

    /// The same, of who may wait a moment for room where a long piece is sent.
    ///
    /// # Errors
    /// As the kernel says.
    pub(crate) fn patient(socket: Fd, seal: Option<(Sealer, Opener)>) -> Result<Tcp, SystemError> {
        set_socket_timeout(&socket, Timeout::Send, Some(SLICE)).map_err(system("SO_SNDTIMEO"))?;
        Ok(Tcp::new(socket, seal))
    }

    fn read(&self, room: &mut [u8]) -> Result<usize, Errno> {
        rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT).map(|(len, _)| len)
    }
}

impl Line for Tcp {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn is_fabric(&self) -> bool {
        false
    }

    fn send(&self, front: &[u8], back: &[u8]) -> Result<usize, Errno> {
        const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
        if let Some(Seal { sealer, .. }) = &self.seal {
            let write = |bytes: &[u8]| rustix::net::send(&self.socket, bytes, FLAGS);
            return sealer.lock().send(front, back, write);
        }
        let flags = if back.len() >= WAITS { SendFlags::NOSIGNAL } else { FLAGS };
        let pieces = [IoSlice::new(front), IoSlice::new(back)];
        let mut none = SendAncillaryBuffer::default();
        rustix::net::sendmsg(&self.socket, &pieces, &mut none, flags)
    }

    fn wait_for_room(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        let time =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        !matches!(poll(&mut fds, Some(&time)), Ok(0))
    }

    fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match &self.seal {
            Some(seal) => seal.opener.lock().receive(room, |room| self.read(room)),
            None => self.read(room),
        }
    }

    fn gives_all(&self) -> bool {
        self.seal.is_none()
    }

    /// What is not sealed goes from the socket to where it belongs.
    fn land<R>(&self, most: usize, put: impl FnOnce(Load<'_>) -> (usize, R)) -> Result<R, Errno> {
        let Some(Seal { opener, .. }) = &self.seal else {
            return Ok(put(Load::Socket(self.socket.as_fd(), most)).1);
        };
        let mut opener = opener.lock();
        let front = opener.front(|room| self.read(room))?;
        if front.is_empty() {
            return Err(Errno::CONNRESET);
        }
        let (taken, result) = put(Load::Bytes(front.get(..most).unwrap_or(front)));
        opener.take(taken);
        Ok(result)
    }

    fn with_wait_fd<R>(&self, use_it: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        use_it(self.socket.as_fd())
    }

    fn may_sleep(&self) -> bool {
        self.seal.as_ref().is_none_or(|seal| seal.opener.lock().is_empty())
    }

    fn owed(&self) -> Result<Owed, Errno> {
        Ok(silence::owed(&self.socket))
    }

    fn is_broken(&self) -> bool {
        self.seal.as_ref().is_some_and(|seal| seal.opener.lock().is_broken())
    }

    fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both); // it may have ended
    }
}
