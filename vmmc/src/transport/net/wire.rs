//! What carries the bytes of a data connection, as the importer has it: its socket, sealed or not, or a fabric.
//!
//! Over a fabric the socket stays: its end is the end of the connection, and otherwise only [`receipts`] are asked for there. One thread sleeps on an
//! epoll descriptor in front of all; another that spins may switch it off for what it reads itself.
//!
//! A node that vanishes without a word is found by its [`silence`]: the first send after a while sets a timer, at which the
//! thread looks whether the other node owes something.

use super::fifo::{Fifo, JoinError};
use super::receipts::{self, Receipts};
use super::seal::{Opener, SealKeys, Sealer};
use super::silence::{self, Owed};
use super::vain;
use crate::control::network::Meeting;
use crate::error::{SystemError, system};
use crate::fabric::{FabricError, Target};
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};
use crate::sys::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io::IoSlice;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub struct Wire {
    socket: Fd,
    /// What the connection's thread sleeps on.
    epoll: Fd,
    /// Among what it sleeps on: for a look whether the other node is still there.
    timer: Fd,
    /// The timer is set.
    is_watched: AtomicBool,
    fabric: Option<Fabric>,
    seal: Option<Seal>,
}

/// Token of the timer.
const TIMER: u64 = 1;

/// From here on a send waits for room in the kernel, in bytes. Who is woken there goes on at once, and who polls for room first
/// comes when all that was sent has been taken: bare TCP so took 3.3 GB/s of packets, and 4 to 5 otherwise.
const WAITS: usize = 32 * 1024;
/// How long it waits at a time.
const SLICE: Duration = Duration::from_secs(1);

/// Both directions of a sealed connection.
#[derive(Debug)]
struct Seal {
    sealer: Mutex<Sealer>,
    opener: Mutex<Opener>,
}

#[derive(Debug)]
struct Fabric {
    fifo: Mutex<Fifo>,
    /// Told when there is room again.
    room: Condvar,
    /// Of the socket. Locked before `fifo`.
    receipts: Mutex<Receipts>,
    /// A write to a window was refused, or cut off.
    refused: AtomicBool,
    /// Its descriptor is readable for nothing ([`vain`]).
    is_vain: bool,
    /// Then: until when its last change has it polled.
    polled: Mutex<Option<Instant>>,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The fabric carries nothing.
    #[error(
        "the fabric carries nothing to its interface ({0}); see `shrimp doctor`, or take [fabric] out of the cluster file"
    )]
    Greeting(Errno),
    /// No descriptor to be had.
    #[error(transparent)]
    System(#[from] SystemError),
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

impl Wire {
    /// Takes the socket of a data connection, and both ends of the fabric if it goes over one, or the keys with which
    /// it is sealed.
    ///
    /// # Errors
    /// The fabric does not reach the other end; no descriptors.
    pub fn new(
        socket: Fd,
        fabric: Option<(Fifo, Meeting)>,
        seal: Option<&SealKeys>,
    ) -> Result<Wire, WireError> {
        set_socket_timeout(&socket, Timeout::Send, Some(SLICE)).map_err(system("SO_SNDTIMEO"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        let epoll = Fd::from(epoll);
        let failed = system("epoll_ctl of a data connection");
        let token = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &socket, token, epoll::EventFlags::IN).map_err(failed)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, flags).map_err(system("timerfd_create"))?;
        let timer = Fd::from(timer);
        let at_timer = epoll::EventData::new_u64(TIMER);
        epoll::add(&epoll, &timer, at_timer, epoll::EventFlags::IN)
            .map_err(system("epoll_ctl of a data connection"))?;
        let fabric = match fabric {
            None => None,
            Some((mut fifo, peer)) => {
                fifo.meet(&peer)?;
                fifo.join(&socket, true).map_err(|error| match error {
                    JoinError::Unfit(error) => WireError::Fabric(error),
                    JoinError::Lost(errno) => WireError::Greeting(errno),
                })?;
                let is_vain = fifo.is_vain();
                epoll::add(&epoll, fifo.wait_fd(), token, vain::flags(is_vain))
                    .map_err(system("epoll_ctl of a fabric"))?;
                let (room, refused) = (Condvar::new(), AtomicBool::new(false));
                let (fifo, polled) = (Mutex::new(fifo), Mutex::new(None));
                Some(Fabric { fifo, room, receipts: Mutex::default(), refused, is_vain, polled })
            }
        };
        let seal = seal.map(|keys| Seal {
            sealer: Mutex::new(Sealer::new(&keys.to_interface)),
            opener: Mutex::new(Opener::new(&keys.to_process)),
        });
        let is_watched = AtomicBool::new(false);
        Ok(Wire { socket, epoll, timer, is_watched, fabric, seal })
    }

    pub(super) fn is_fabric(&self) -> bool {
        self.fabric.is_some()
    }

    /// Sends what there is room for of two pieces; a long one may wait for room. After [`Errno::AGAIN`] the same are to be sent next.
    pub(super) fn send(&self, front: &[u8], back: &[u8]) -> Result<usize, Errno> {
        let sent = self.send_some(front, back);
        if sent.is_ok() {
            self.watch_over();
        }
        sent
    }

    /// Something was sent: the other node is looked after later.
    fn watch_over(&self) {
        if !self.is_watched.load(Ordering::SeqCst) {
            self.look_later();
        }
    }

    #[cold]
    fn look_later(&self) {
        if !self.is_watched.swap(true, Ordering::SeqCst) {
            let [it_value, it_interval] = [silence::LOOK, Duration::ZERO].map(timespec);
            let once = Itimerspec { it_interval, it_value };
            // Cannot fail: the timer is one, and the time makes sense.
            let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        }
    }

    /// The timer has run out: ends the connection if the other node has owed an acknowledgement for so long, and looks again
    /// while it owes one.
    fn look(&self) {
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        // Before the look: what is sent from now on is looked after anew.
        self.is_watched.store(false, Ordering::SeqCst);
        match self.owed() {
            Ok(Owed::Nothing) => {}
            Ok(Owed::Something) => self.look_later(),
            Ok(Owed::Lost) | Err(_) => self.close(),
        }
    }

    fn owed(&self) -> Result<Owed, Errno> {
        match &self.fabric {
            Some(fabric) => self.note(receipts::look(&self.socket, &mut *fabric.fifo.lock())),
            None => Ok(silence::owed(&self.socket)),
        }
    }

    /// What is said over the socket beside a fabric; false at the end.
    fn hear(&self, fabric: &Fabric) -> bool {
        let (mut receipts, mut fifo) = (fabric.receipts.lock(), fabric.fifo.lock());
        let room = fifo.room();
        let heard = receipts.hear(&self.socket, &mut *fifo);
        if fifo.room() > room {
            fabric.room.notify_all();
        }
        self.note(heard).is_ok()
    }

    fn send_some(&self, front: &[u8], back: &[u8]) -> Result<usize, Errno> {
        const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
        let flags = if back.len() >= WAITS { SendFlags::NOSIGNAL } else { FLAGS };
        if let Some(Seal { sealer, .. }) = &self.seal {
            let write = |bytes: &[u8]| rustix::net::send(&self.socket, bytes, FLAGS);
            return sealer.lock().send(front, back, write);
        }
        match &self.fabric {
            None => {
                let pieces = [IoSlice::new(front), IoSlice::new(back)];
                let mut none = SendAncillaryBuffer::default();
                rustix::net::sendmsg(&self.socket, &pieces, &mut none, flags)
            }
            Some(fabric) => self.note(fabric.fifo.lock().send(&[front, back])),
        }
    }

    /// Writes what there is room for of bytes to a window of the interface's, over a fabric.
    pub(super) fn write_window(
        &self,
        window: Target,
        at: u64,
        bytes: &[u8],
        begins: bool,
    ) -> Result<usize, Errno> {
        let Some(Fabric { fifo, .. }) = &self.fabric else { return Err(Errno::OPNOTSUPP) };
        let written = self.note(fifo.lock().write_window(window, at, bytes, begins));
        if written.is_ok() {
            self.watch_over();
        }
        written
    }

    /// Whether the connection was lost under a write to a window.
    pub(super) fn was_refused(&self) -> bool {
        self.fabric.as_ref().is_some_and(|fabric| fabric.refused.load(Ordering::Relaxed))
    }

    /// Remembers a refusal, which is told once, to whoever looks first.
    fn note<T>(&self, result: Result<T, Errno>) -> Result<T, Errno> {
        if let (Err(Errno::ACCESS), Some(fabric)) = (&result, &self.fabric) {
            fabric.refused.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Receives what is there; 0 at the end.
    pub(super) fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        let read = |room: &mut [u8]| {
            rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT).map(|(len, _)| len)
        };
        if let Some(Seal { opener, .. }) = &self.seal {
            return opener.lock().receive(room, read);
        }
        match &self.fabric {
            None => read(room),
            Some(fabric) => {
                let mut fifo = fabric.fifo.lock();
                let before = (fifo.room(), fifo.places());
                let received = self.note(fifo.receive(room));
                if fifo.room() > before.0 || fifo.places() > before.1 {
                    fabric.room.notify_all();
                }
                received
            }
        }
    }

    /// Whether [`Wire::receive`] gives all that is there, if it has room.
    pub(super) fn gives_all(&self) -> bool {
        self.fabric.is_none() && self.seal.is_none()
    }

    /// Waits until something can be sent.
    pub(super) fn wait_for_room(&self, timeout: Duration) -> bool {
        match &self.fabric {
            None => {
                let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
                !matches!(poll(&mut fds, Some(&timespec(timeout))), Ok(0))
            }
            Some(fabric) => self.wait_in(fabric, timeout, Fifo::has_room),
        }
    }

    /// Waits until something can be written to a window.
    pub(super) fn wait_for_place(&self, timeout: Duration) -> bool {
        let fabric = self.fabric.as_ref();
        fabric.is_none_or(|fabric| self.wait_in(fabric, timeout, Fifo::has_place))
    }

    fn wait_in(
        &self,
        fabric: &Fabric,
        timeout: Duration,
        has: impl Fn(&mut Fifo) -> Result<bool, Errno>,
    ) -> bool {
        // The connection's thread makes progress, or whoever spins.
        let end = Instant::now() + timeout;
        let mut fifo = fabric.fifo.lock();
        loop {
            if self.note(has(&mut fifo)) != Ok(false) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            fifo = fabric.room.wait(fifo, Some(end));
        }
    }

    /// How long the other node has owed an acknowledgement.
    pub(super) fn silence(&self) -> Duration {
        silence::of(&self.socket)
    }

    /// Ends it, for both sides.
    pub(super) fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        if let Some(fabric) = &self.fabric {
            fabric.room.notify_all();
        }
    }

    /// Whether [`Wire::sleep`] is woken by what carries the frames.
    pub(super) fn watch(&self, whether: bool) -> Result<(), Errno> {
        let all = vain::flags(self.fabric.as_ref().is_some_and(|fabric| fabric.is_vain));
        let flags = if whether { all } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(0);
        match &self.fabric {
            None => epoll::modify(&self.epoll, &self.socket, data, flags),
            Some(fabric) => epoll::modify(&self.epoll, fabric.fifo.lock().wait_fd(), data, flags),
        }
    }

    /// Whether [`Wire::sleep`] would be woken by what comes next. False: receive first.
    pub(super) fn may_sleep(&self) -> bool {
        match (&self.fabric, &self.seal) {
            (Some(fabric), _) => fabric.fifo.lock().may_sleep(),
            (None, Some(seal)) => seal.opener.lock().is_empty(),
            (None, None) => true,
        }
    }

    /// Sleeps until there may be something to receive; false at the end of the connection. Ends it if the other node owes an
    /// acknowledgement for longer than [`silence::LIMIT`].
    pub(super) fn sleep(&self) -> bool {
        if !self.may_sleep() {
            return true;
        }
        let vain = self.fabric.as_ref().filter(|fabric| fabric.is_vain);
        if let Some(fabric) = vain
            && fabric.polled.lock().is_some_and(|until| Instant::now() < until)
        {
            return self.hear(fabric);
        }
        let time = vain.map(|_| timespec(vain::LOOK));
        let mut events = Vec::with_capacity(3);
        let room = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, room, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        if let Some(fabric) = vain {
            *fabric.polled.lock() = (!events.is_empty()).then(|| Instant::now() + vain::POLL);
        }
        if events.iter().any(|event: &epoll::Event| event.data.u64() == TIMER) {
            self.look();
        }
        self.fabric.as_ref().is_none_or(|fabric| self.hear(fabric))
    }
}
