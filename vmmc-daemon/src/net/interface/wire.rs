//! What carries the bytes of a data connection, as the interface has it: its socket, sealed or not, or a fabric
//! beside a socket over which only receipts are asked for as long as the sender lives.

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use vmmc::error::SendError;
use vmmc::fabric::Target;
use vmmc::sys::Fd;
use vmmc::transport::net::fifo::Fifo;
use vmmc::transport::net::receipts::{self, Receipts};
use vmmc::transport::net::seal::{Opener, SealKeys, Sealer};
use vmmc::transport::net::silence::{self, Owed};
use vmmc::transport::net::vain;
use vmmc::{Import, Landed, Load};

/// In an epoll token: the socket of that connection, which goes over a fabric.
pub(super) const LIFE: u64 = 1 << 63;

/// See the module.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    fifo: Option<Fifo>,
    seal: Option<(Sealer, Opener)>,
    /// Of the socket beside the fabric.
    receipts: Receipts,
    /// That has ended.
    ended: bool,
    /// The sender's node has vanished.
    lost: bool,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, fifo: Option<Fifo>, seal: Option<&SealKeys>) -> Wire {
        let seal =
            seal.map(|keys| (Sealer::new(&keys.to_process), Opener::new(&keys.to_interface)));
        let receipts = Receipts::default();
        Wire { stream, fifo, seal, receipts, ended: false, lost: false }
    }

    /// Whether the descriptor of its fabric is readable for nothing ([`vain`]).
    pub(super) fn is_vain(&self) -> bool {
        self.fifo.as_ref().is_some_and(Fifo::is_vain)
    }

    /// Whether something may have come that epoll does not tell of: [`Wire::may_sleep`] says.
    pub(super) fn keeps_bytes(&self) -> bool {
        self.fifo.is_some() || self.seal.is_some()
    }

    /// Whether epoll would tell of what comes next.
    pub(super) fn may_sleep(&self) -> bool {
        match (&self.fifo, &self.seal) {
            (Some(fifo), _) => fifo.may_sleep(),
            (None, Some((_, opener))) => opener.is_empty(),
            (None, None) => true,
        }
    }

    /// Lets the sender write to an export's pages by itself: the window's number, and what the sender must name. `None`: it goes not
    /// over a fabric, or the exporter does not want that.
    pub(super) fn open_window(
        &mut self,
        import: &Import,
    ) -> Option<Result<(usize, Target), String>> {
        let fifo = self.fifo.as_mut()?;
        Some(match import.expose()? {
            Ok(pages) => fifo.open_window(pages, import.len()).map_err(|error| error.to_string()),
            Err(errno) => Err(format!("mapping the export again: {errno}")),
        })
    }

    /// What comes for that window from now on reaches no exporter.
    pub(super) fn cover_window(&mut self, number: usize) {
        let covered = self.fifo.as_mut().map_or(Ok(()), |fifo| fifo.cover_window(number));
        if let Err(error) = covered {
            tracing::error!(%error, "covering a window");
        }
    }

    /// Nothing comes for that window any more.
    pub(super) fn shut_window(&mut self, number: usize) {
        let shut = self.fifo.as_mut().map_or(Ok(()), |fifo| fifo.shut_window(number));
        if let Err(error) = shut {
            tracing::error!(%error, "shutting a window");
        }
    }

    /// Whether something was changed on its way.
    pub(super) fn is_broken(&self) -> bool {
        self.seal.as_ref().is_some_and(|(_, opener)| opener.is_broken())
    }

    /// Adds it to epoll, waiting for what comes.
    pub(super) fn watch(&self, epoll: &Fd, id: u64) -> rustix::io::Result<()> {
        let token = EventData::new_u64(id);
        match &self.fifo {
            None => epoll::add(epoll, &self.stream, token, EventFlags::IN),
            Some(fifo) => {
                let life = EventData::new_u64(id | LIFE);
                epoll::add(epoll, &self.stream, life, EventFlags::IN)?;
                epoll::add(epoll, fifo.wait_fd(), token, vain::flags(fifo.is_vain()))
            }
        }
    }

    /// Waits for other things. Room in a fabric is told of like what comes.
    pub(super) fn watch_for(
        &self,
        epoll: &Fd,
        id: u64,
        flags: EventFlags,
    ) -> rustix::io::Result<()> {
        let token = EventData::new_u64(id);
        match &self.fifo {
            None => epoll::modify(epoll, &self.stream, token, flags),
            Some(fifo) => {
                let any = if flags.is_empty() { flags } else { vain::flags(fifo.is_vain()) };
                epoll::modify(epoll, fifo.wait_fd(), token, any)
            }
        }
    }

    /// Takes it out of epoll.
    pub(super) fn unwatch(&self, epoll: &Fd) {
        let _ = epoll::delete(epoll, &self.stream);
        if let Some(fifo) = &self.fifo {
            let _ = epoll::delete(epoll, fifo.wait_fd());
        }
    }

    /// The socket beside a fabric is readable. At its end, or when the fabric has lost something: when all that has come is
    /// taken, the connection is over.
    pub(super) fn hear(&mut self, epoll: &Fd) {
        let Some(fifo) = &mut self.fifo else { return };
        if let Err(errno) = self.receipts.hear(&self.stream, fifo) {
            if errno == Errno::TIMEDOUT {
                tracing::warn!("the fabric has lost what was sent to a process of another node");
            }
            self.ended = true;
            let _ = epoll::delete(epoll, &self.stream); // it would tell for ever
        }
    }

    /// What the sender's node owes: acknowledgements of what it was told, or receipts, which are asked for.
    pub(super) fn owed(&mut self) -> Owed {
        match &mut self.fifo {
            Some(fifo) => receipts::look(&self.stream, fifo).unwrap_or(Owed::Lost),
            None => silence::owed(&self.stream),
        }
    }

    /// The sender's node has vanished: when all that has come is taken, the connection is over, and at once for what is said to it.
    pub(super) fn lose(&mut self) {
        self.lost = true;
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// Receives what is there; 0 at the end.
    pub(super) fn receive(&mut self, room: &mut [u8]) -> Result<usize, Errno> {
        if let Some((_, opener)) = &mut self.seal {
            return opener.receive(room, |room| read(&self.stream, room));
        }
        match &mut self.fifo {
            None => read(&self.stream, room),
            Some(fifo) => match fifo.receive(room) {
                Err(Errno::AGAIN) if self.ended => Ok(0),
                received => received,
            },
        }
    }

    /// Sends what there is room for. After [`Errno::AGAIN`] the same bytes are to be sent next.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.lost {
            return Err(Errno::PIPE);
        }
        if let Some((sealer, _)) = &mut self.seal {
            return sealer.send(bytes, &[], |bytes| write(&self.stream, bytes));
        }
        match &mut self.fifo {
            None => write(&self.stream, bytes),
            Some(fifo) => fifo.send(&[bytes]),
        }
    }

    /// Moves up to `left` bytes straight into exported pages.
    pub(super) fn land(
        &mut self,
        import: &Import,
        offset: usize,
        left: usize,
    ) -> Result<Landed, SendError> {
        if let Some((_, opener)) = &mut self.seal {
            let front = match opener.front(|room| read(&self.stream, room)) {
                Ok(front) if !front.is_empty() => front,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Landed::Nothing),
                _ => return Ok(Landed::End),
            };
            let part = front.get(..front.len().min(left)).unwrap_or_default();
            let landed = import.land(offset, Load::Bytes(part))?;
            if let Landed::Bytes(len) = landed {
                opener.take(len);
            }
            return Ok(landed);
        }
        let Some(fifo) = &mut self.fifo else {
            return import.land(offset, Load::Socket(self.stream.as_fd(), left));
        };
        let front = match fifo.front() {
            Ok(front) => front,
            Err(Errno::AGAIN) if !self.ended => return Ok(Landed::Nothing),
            Err(_) => return Ok(Landed::End),
        };
        let part = front.slice(0, front.len().min(left)).unwrap_or(front);
        let landed = import.land(offset, Load::Memory(part))?;
        if let Landed::Bytes(len) = landed {
            fifo.take(len);
        }
        Ok(landed)
    }
}

fn read(stream: &TcpStream, room: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(stream, room, RecvFlags::DONTWAIT).map(|(len, _)| len)
}

fn write(stream: &TcpStream, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}
