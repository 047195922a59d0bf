//! The line between nodes that needs nothing installed: packets over the TCP connection itself, sealed if configured.
//!
//! * [`seal`]: what nobody on the way can read or change.
//!
//! A connection that is *cut*, by a reset or by silence, can go on over another one ([`Tcp::resume`]): both ends count what they
//! have taken, and send again what the other has not ([`Kept`]). An end that was sent is none.

pub mod seal;

use crate::error::{SystemError, system};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::sys::{Fd, socket};
use crate::transport::Load;
use crate::transport::engine::Line;
use crate::transport::net::frame::HEADER_LEN;
use crate::transport::net::kept::Kept;
use crate::transport::net::silence::{self, Owed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use seal::{Opener, SealKeys, Sealer};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// From here on a send waits for room in the kernel, in bytes. Who is woken there goes on at once, and who polls for room first
/// comes when all that was sent has been taken: bare TCP so took 3.3 GB/s of packets, and 4 to 5 otherwise.
const WAITS: usize = 32 * 1024;
/// How long it waits at a time.
const SLICE: Duration = Duration::from_secs(1);

/// Whether a failure may be somebody's on the way.
pub(crate) fn is_cut(errno: Errno) -> bool {
    const CUTS: [Errno; 9] = [
        Errno::CONNRESET,
        Errno::CONNABORTED,
        Errno::TIMEDOUT,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::NETDOWN,
        Errno::NETRESET,
        // Of a connection that was made, these too come from the way: a firewall that refuses says so.
        Errno::CONNREFUSED,
        Errno::HOSTDOWN,
    ];
    CUTS.contains(&errno)
}

/// What an end keeps of what it has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Short pieces: long ones are a process's data, and to copy them costs a good part of what it costs to send them.
    Short,
    /// All that may be on its way.
    All,
    /// An interface's answers, also long ones, and those that have waited together.
    Answers,
}

impl Keeps {
    /// Most bytes, and longest piece.
    fn limits(self) -> (usize, usize) {
        match self {
            Keeps::Short => (256 << 10, HEADER_LEN + (8 << 10)),
            // More than the kernels of both ends keep unless they are told to.
            Keeps::All => (16 << 20, 16 << 20),
            // So do kernels, for a slow way; what they have had acknowledged goes before.
            Keeps::Answers => (8 << 20, 1 << 20),
        }
    }
}

/// With so many bytes kept an interface, which has thousands of connections, looks what has been acknowledged: that the other
/// end takes before it says how far it has come.
const LOOKS: usize = 32 * 1024;
/// But for the last record, which it cannot open when it has a part of it.
const RECORD: usize = 18 * 1024;

/// One end of it.
#[derive(Debug)]
pub struct Tcp {
    socket: Fd,
    seal: Option<Seal>,
    end: End,
    sending: Mutex<Sending>,
    /// Bytes taken so far, without their seals.
    taken: AtomicU64,
    /// See [`Line::tell_from`].
    told_from: AtomicU32,
    is_cut: AtomicBool,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It may wait a moment for room where a long piece is sent.
    Process,
    /// It never waits.
    Interface,
}

#[derive(Debug)]
struct Sending {
    kept: Kept,
    /// From where on to send again what is kept, before anything else.
    again: Option<u64>,
}

/// Both directions of a sealed connection.
#[derive(Debug)]
struct Seal {
    sealer: Mutex<Sealer>,
    opener: Mutex<Opener>,
}

impl End {
    /// With what it seals, and opens.
    fn sealers(self, keys: &SealKeys) -> (Sealer, Opener) {
        match self {
            End::Process => (Sealer::new(&keys.to_interface), Opener::new(&keys.to_process)),
            End::Interface => (Sealer::new(&keys.to_process), Opener::new(&keys.to_interface)),
        }
    }

    /// Makes the kernel wait as it shall.
    pub(crate) fn prepare(self, socket: &Fd) -> Result<(), SystemError> {
        match self {
            End::Process => set_socket_timeout(socket, Timeout::Send, Some(SLICE))
                .map_err(system("SO_SNDTIMEO of a data connection")),
            End::Interface => Ok(()),
        }
    }
}

impl Tcp {
    /// Takes a connected socket, which is prepared, and the keys with which it is sealed.
    pub(crate) fn new(socket: Fd, end: End, seal: Option<&SealKeys>, keeps: Keeps) -> Tcp {
        let seal = seal.map(|keys| {
            let (sealer, opener) = end.sealers(keys);
            Seal { sealer: Mutex::new(sealer), opener: Mutex::new(opener) }
        });
        let (most, longest) = keeps.limits();
        let kept = Kept::new(most, longest);
        let sending = Mutex::new(Sending { kept, again: None });
        let (taken, told_from, is_cut) =
            (AtomicU64::new(0), AtomicU32::new(1), AtomicBool::new(false));
        Tcp { socket, seal, end, sending, taken, told_from, is_cut }
    }

    fn read(&self, room: &mut [u8]) -> Result<usize, Errno> {
        let read = rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT).map(|(len, _)| len);
        read.inspect_err(|&errno| self.failed(errno))
    }

    /// Sends what there is room for of two pieces, sealed or not.
    fn write(&self, front: &[u8], back: &[u8]) -> Result<usize, Errno> {
        const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
        let written = if let Some(Seal { sealer, .. }) = &self.seal {
            let write = |bytes: &[u8]| rustix::net::send(&self.socket, bytes, FLAGS);
            sealer.lock().send(front, back, write)
        } else {
            let waits = self.end == End::Process && back.len() >= WAITS;
            let flags = if waits { SendFlags::NOSIGNAL } else { FLAGS };
            let pieces = [IoSlice::new(front), IoSlice::new(back)];
            let mut none = SendAncillaryBuffer::default();
            rustix::net::sendmsg(&self.socket, &pieces, &mut none, flags)
        };
        written.inspect_err(|&errno| self.failed(errno))
    }

    /// Sends again what is to be sent again; with [`Errno::AGAIN`] not all of it yet.
    fn repeat(&self, sending: &mut Sending) -> Result<(), Errno> {
        while let Some(at) = sending.again {
            let bytes = sending.kept.from(at);
            if bytes.is_empty() {
                sending.again = None;
                break;
            }
            let sent = self.write(bytes, &[])?;
            sending.again = Some(at + sent as u64);
        }
        Ok(())
    }

    fn took(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    // ---- cuts ----

    /// Notes a failure that somebody on the way may be the cause of. (What comes behind an end that was sent is `EPIPE`.)
    pub fn failed(&self, errno: Errno) {
        if is_cut(errno) {
            self.is_cut.store(true, Ordering::Release);
        }
    }

    /// Whether it is of no use, and no end was sent.
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// The other node is silent: what has come can be taken, and nothing is sent any more. By who receives.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read); // it may have ended
    }

    /// When all that has come is taken: tells the other end, if there is still a way.
    pub fn part(&self) {
        socket::reset(&self.socket);
    }

    /// Whether it is cut, also where a sender is just about to say so.
    pub fn was_cut(&self) -> bool {
        // Who sends notes a failure before the lock is free again.
        drop(self.sending.lock());
        self.is_cut()
    }

    /// Bytes taken so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.sending.lock().kept.end()
    }

    /// Bytes that the other end's kernel has acknowledged, of this socket's.
    pub fn acknowledged(&self) -> u64 {
        socket::acknowledged(&self.socket)
    }

    /// Bytes that have come and are not taken, as far as the kernel has them.
    pub fn waiting(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.socket).unwrap_or(0)
    }

    /// Notes what the kernel has found, of a connection that is not received from for now.
    pub fn find_failure(&self) {
        if let Ok(Err(errno)) = rustix::net::sockopt::socket_error(&self.socket) {
            self.failed(errno);
        }
    }

    /// Whether all that was sent from this position on is kept.
    pub fn reaches(&self, position: u64) -> bool {
        self.sending.lock().kept.reaches(position)
    }

    /// Goes on over another connection, whose other end has taken all before a position. Nobody receives meanwhile, and no
    /// epoll has the socket.
    ///
    /// # Errors
    /// It cannot: what was sent from there on is not kept, or as the kernel says.
    pub fn resume(&self, by: &Fd, seal: Option<&SealKeys>, position: u64) -> Result<(), Errno> {
        let mut sending = self.sending.lock();
        if !sending.kept.reaches(position) || seal.is_some() != self.seal.is_some() {
            return Err(Errno::INVAL);
        }
        self.end.prepare(by).map_err(|error| error.errno)?;
        self.socket.replace(by)?;
        self.told_from.store(1, Ordering::Release);
        if let (Some(seal), Some(keys)) = (&self.seal, seal) {
            let (sealer, opener) = self.end.sealers(keys);
            (*seal.sealer.lock(), *seal.opener.lock()) = (sealer, opener);
        }
        sending.again = Some(position);
        self.is_cut.store(false, Ordering::Release);
        Ok(())
    }

    /// Sends again what is to be, though nothing else is sent.
    ///
    /// # Errors
    /// `AGAIN`: no room. Others: the line has ended.
    pub fn settle(&self) -> Result<(), Errno> {
        self.repeat(&mut self.sending.lock())
    }

    /// Whether [`Tcp::settle`] has something to do.
    pub fn repeats(&self) -> bool {
        self.sending.lock().again.is_some()
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
        let mut sending = self.sending.lock();
        if self.is_cut() {
            return Err(Errno::PIPE);
        }
        self.repeat(&mut sending)?;
        let sent = self.write(front, back)?;
        sending.kept.note(front, back, sent);
        if self.end == End::Interface && sending.kept.len() >= LOOKS {
            let on_its_way = socket::unacknowledged(&self.socket);
            sending.kept.shorten(on_its_way.unwrap_or(usize::MAX).saturating_add(RECORD));
        }
        Ok(sent)
    }

    fn wait_for_room(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        let time =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        !matches!(poll(&mut fds, Some(&time)), Ok(0))
    }

    fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        let received = match &self.seal {
            Some(seal) => seal.opener.lock().receive(room, |room| self.read(room)),
            None => self.read(room),
        };
        received.inspect(|&len| self.took(len))
    }

    fn gives_all(&self) -> bool {
        self.seal.is_none()
    }

    /// What is not sealed goes from the socket to where it belongs.
    fn land<R>(&self, most: usize, put: impl FnOnce(Load<'_>) -> (usize, R)) -> Result<R, Errno> {
        let Some(Seal { opener, .. }) = &self.seal else {
            let (taken, result) = put(Load::Socket(self.socket.as_fd(), most));
            self.took(taken);
            return Ok(result);
        };
        let mut opener = opener.lock();
        let front = opener.front(|room| self.read(room))?;
        if front.is_empty() {
            return Err(Errno::CONNRESET);
        }
        let (taken, result) = put(Load::Bytes(front.get(..most).unwrap_or(front)));
        opener.take(taken);
        self.took(taken);
        Ok(result)
    }

    fn with_wait_fd<R>(&self, use_it: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        use_it(self.socket.as_fd())
    }

    fn may_sleep(&self) -> bool {
        self.seal.as_ref().is_none_or(|seal| seal.opener.lock().is_empty())
    }

    /// What is sealed has another length than its bytes.
    fn tell_from(&self, bytes: u32) -> bool {
        if self.seal.is_some() {
            return false;
        }
        if self.told_from.load(Ordering::Acquire) == bytes {
            return true;
        }
        let is_so = socket::tell_from(&self.socket, bytes);
        if is_so {
            self.told_from.store(bytes, Ordering::Release);
        }
        is_so
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

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    fn pair() -> (TcpStream, Fd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (sender, Fd::from(OwnedFd::from(listener.accept().unwrap().0)))
    }

    /// Whether the descriptor becomes readable; false after so many milliseconds.
    fn is_told(tcp: &Tcp, ms: u64) -> bool {
        let time = Timespec { tv_sec: ms as i64 / 1000, tv_nsec: ms as i64 % 1000 * 1_000_000 };
        poll(&mut [PollFd::new(&tcp.socket, PollFlags::IN)], Some(&time)).unwrap() > 0
    }

    /// What was received may have come in parts.
    fn drain(tcp: &Tcp, mut left: usize) {
        while left > 0 {
            match tcp.receive(&mut [0; 4096]) {
                Ok(len) => left -= len,
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
        }
    }

    #[test]
    fn it_tells_from_so_many_bytes_on_and_of_its_end_and_anew_after_a_cut() {
        const MANY: u32 = 8 * 1024;
        let (mut sender, socket) = pair();
        let tcp = Tcp::new(socket, End::Interface, None, Keeps::Answers);
        assert!(tcp.tell_from(MANY) && tcp.tell_from(MANY));
        sender.write_all(&[1; 100]).unwrap();
        assert!(!is_told(&tcp, 50), "these few are waited behind");
        sender.write_all(&[1; MANY as usize - 100]).unwrap();
        assert!(is_told(&tcp, 5_000));
        drain(&tcp, MANY as usize);
        sender.write_all(&[1]).unwrap();
        assert!(!is_told(&tcp, 50));
        assert!(tcp.tell_from(1) && is_told(&tcp, 5_000), "what is there already, too");
        drain(&tcp, 1);
        // The next socket knows nothing of what the first was told.
        assert!(tcp.tell_from(MANY));
        let (mut other, socket) = pair();
        tcp.resume(&socket, None, 0).unwrap();
        assert!(tcp.tell_from(MANY));
        other.write_all(&[1]).unwrap();
        assert!(!is_told(&tcp, 50));
        drop(other);
        assert!(is_told(&tcp, 5_000), "its end");
    }

    #[test]
    fn what_is_sealed_tells_of_every_byte() {
        let keys = SealKeys { to_interface: [1; 32], to_process: [2; 32] };
        let (_sender, socket) = pair();
        assert!(!Tcp::new(socket, End::Interface, Some(&keys), Keeps::Answers).tell_from(2));
    }
}
