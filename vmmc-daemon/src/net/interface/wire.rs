//! A data connection as the interface has it: its line, and where epoll tells of it.

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use vmmc::error::SendError;
use vmmc::fabric::Target;
use vmmc::sys::Fd;
use vmmc::transport::engine::Line;
use vmmc::transport::net::line::AnyLine;
use vmmc::transport::net::silence::Owed;
use vmmc::transport::net::vain;
use vmmc::transport::ofi::fifo::Fifo;
use vmmc::transport::tcp::Tcp;
use vmmc::transport::tcp::seal::SealKeys;
use vmmc::{Import, Landed};

/// In an epoll token: the socket of that connection, which goes over a fabric.
pub(super) const LIFE: u64 = 1 << 63;

/// See the module.
#[derive(Debug)]
pub(super) struct Wire {
    line: AnyLine,
    /// The sender's node has vanished.
    lost: bool,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, fifo: Option<Fifo>, seal: Option<&SealKeys>) -> Wire {
        let socket = Fd::from(OwnedFd::from(stream));
        Wire { line: AnyLine::of_interface(socket, fifo, seal), lost: false }
    }

    /// Whether its descriptor is readable for nothing ([`vain`]).
    pub(super) fn is_vain(&self) -> bool {
        self.line.is_vain()
    }

    /// Whether something may have come that epoll does not tell of: [`Wire::may_sleep`] says.
    pub(super) fn keeps_bytes(&self) -> bool {
        !self.line.gives_all()
    }

    /// Whether epoll would tell of what comes next.
    pub(super) fn may_sleep(&self) -> bool {
        self.line.may_sleep()
    }

    /// Has epoll tell of it when so many bytes have come, or the end; whether it will.
    pub(super) fn tell_from(&self, bytes: u32) -> bool {
        self.line.tell_from(bytes)
    }

    /// Lets the sender write to an export's pages by itself: the window's number, and what the sender must name. `None`: it goes not
    /// over a fabric, or the exporter does not want that.
    pub(super) fn open_window(&self, import: &Import) -> Option<Result<(usize, Target), String>> {
        if !self.line.is_fabric() {
            return None;
        }
        Some(match import.expose()? {
            Ok(pages) => self.line.register(pages, import.len()).map_err(|error| error.to_string()),
            Err(errno) => Err(format!("mapping the export again: {errno}")),
        })
    }

    /// What comes for that window from now on reaches no exporter.
    pub(super) fn cover_window(&self, number: usize) {
        if let Err(error) = self.line.cover(number) {
            tracing::error!(%error, "covering a window");
        }
    }

    /// Nothing comes for that window any more.
    pub(super) fn shut_window(&self, number: usize) {
        if let Err(error) = self.line.shut(number) {
            tracing::error!(%error, "shutting a window");
        }
    }

    /// Whether something was changed on its way.
    pub(super) fn is_broken(&self) -> bool {
        self.line.is_broken()
    }

    /// Adds it to epoll, waiting for what comes.
    pub(super) fn watch(&self, epoll: &Fd, id: u64) -> rustix::io::Result<()> {
        if self.line.is_fabric() {
            let life = EventData::new_u64(id | LIFE);
            epoll::add(epoll, self.line.socket(), life, EventFlags::IN)?;
        }
        let flags = vain::flags(self.line.is_vain());
        self.line.with_wait_fd(|fd| epoll::add(epoll, fd, EventData::new_u64(id), flags))
    }

    /// Waits for other things. Room in a fabric is told of like what comes.
    pub(super) fn watch_for(
        &self,
        epoll: &Fd,
        id: u64,
        flags: EventFlags,
    ) -> rustix::io::Result<()> {
        let any = vain::flags(self.line.is_vain());
        let flags = if self.line.is_fabric() && !flags.is_empty() { any } else { flags };
        self.line.with_wait_fd(|fd| epoll::modify(epoll, fd, EventData::new_u64(id), flags))
    }

    /// Takes it out of epoll.
    pub(super) fn unwatch(&self, epoll: &Fd) {
        let _ = epoll::delete(epoll, self.line.socket());
        if self.line.is_fabric() {
            let _ = self.line.with_wait_fd(|fd| epoll::delete(epoll, fd));
        }
    }

    /// The socket beside a fabric is readable. At its end, or when the fabric has lost something: when all that has come is
    /// taken, the connection is over.
    pub(super) fn hear(&self, epoll: &Fd) {
        if let Err(errno) = self.line.hear() {
            if errno == Errno::TIMEDOUT {
                tracing::warn!("the fabric has lost what was sent to a process of another node");
            }
            let _ = epoll::delete(epoll, self.line.socket()); // it would tell for ever
        }
    }

    /// What the sender's node owes: acknowledgements of what it was told, or receipts, which are asked for.
    pub(super) fn owed(&self) -> Owed {
        self.line.owed().unwrap_or(Owed::Lost)
    }

    /// What can go on over another connection.
    pub(super) fn tcp(&self) -> Option<&Tcp> {
        self.line.tcp()
    }

    /// Whether it was cut.
    pub(super) fn is_cut(&self) -> bool {
        self.tcp().is_some_and(Tcp::is_cut)
    }

    /// Goes on over another connection, whose other end has received so many bytes. No epoll has this one.
    pub(super) fn resume(
        &mut self,
        by: TcpStream,
        seal: Option<&SealKeys>,
        position: u64,
    ) -> Result<(), Errno> {
        let by = Fd::from(OwnedFd::from(by));
        self.tcp().ok_or(Errno::OPNOTSUPP)?.resume(&by, seal, position)?;
        self.lost = false;
        Ok(())
    }

    /// Sends again what is to be.
    pub(super) fn settle(&self) -> Result<(), Errno> {
        match self.tcp() {
            Some(_) if self.lost => Err(Errno::PIPE),
            Some(tcp) => tcp.settle(),
            None => Ok(()),
        }
    }

    /// Whether [`Wire::settle`] has something to do.
    pub(super) fn repeats(&self) -> bool {
        self.tcp().is_some_and(Tcp::repeats)
    }

    /// The sender's node has vanished: when all that has come is taken, the connection is over, and at once for what is said to it.
    pub(super) fn lose(&mut self) {
        self.lost = true;
        if let Some(tcp) = self.tcp() {
            tcp.failed(Errno::TIMEDOUT);
        }
        let _ = rustix::net::shutdown(self.line.socket(), Shutdown::Read); // it may have ended
    }

    /// Receives what is there; 0 at the end.
    pub(super) fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        self.line.receive(room)
    }

    /// Sends what there is room for. After [`Errno::AGAIN`] the same bytes are to be sent next.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.lost { Err(Errno::PIPE) } else { self.line.send(bytes, &[]) }
    }

    /// Moves up to `left` bytes straight into exported pages.
    pub(super) fn land(
        &self,
        import: &Import,
        offset: usize,
        left: usize,
    ) -> Result<Landed, SendError> {
        let landed = self.line.land(left, |load| {
            let landed = import.land(offset, load);
            (if let Ok(Landed::Bytes(len)) = landed { len } else { 0 }, landed)
        });
        match landed {
            Ok(Ok(Landed::Failed(errno))) => {
                if let Some(tcp) = self.tcp() {
                    tcp.failed(errno);
                }
                Ok(Landed::End)
            }
            Ok(landed) => landed,
            Err(Errno::AGAIN | Errno::INTR) => Ok(Landed::Nothing),
            Err(_) => Ok(Landed::End),
        }
    }
}
