//! A data connection as the importer has it: what carries its bytes, and what its thread sleeps on.
//!
//! One thread sleeps on an epoll descriptor in front of all; another that spins may switch it off for what it reads itself.
//!
//! A node that vanishes without a word is found by its [`silence`]: the first send after a while sets a timer, at which the
//! thread looks whether the other node owes something.

use super::line::{AnyLine, LineError};
use super::silence::{self, Owed};
use super::vain;
use crate::control::network::Meeting;
use crate::error::system;
use crate::fabric::Target;
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::sys::Fd;
use crate::transport::engine::Line;
use crate::transport::ofi::fifo::Fifo;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::seal::SealKeys;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub struct Wire {
    line: AnyLine,
    /// What the connection's thread sleeps on.
    epoll: Fd,
    /// Among what it sleeps on: for a look whether the other node is still there.
    timer: Fd,
    /// The timer is set.
    is_watched: AtomicBool,
    /// Of a descriptor that is readable for nothing ([`vain`]): until when its last change has it polled.
    polled: Mutex<Option<Instant>>,
}

/// Token of the timer.
const TIMER: u64 = 1;

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

impl Wire {
    /// Takes the socket of a data connection, and both ends of the fabric if it goes over one, or the keys with which
    /// it is sealed. `keeps_all`: long pieces are kept, too, for a cut.
    ///
    /// # Errors
    /// The fabric does not reach the other end; no descriptors.
    pub fn new(
        socket: Fd,
        fabric: Option<(Fifo, Meeting)>,
        seal: Option<&SealKeys>,
        keeps_all: bool,
    ) -> Result<Wire, LineError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        let epoll = Fd::from(epoll);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, flags).map_err(system("timerfd_create"))?;
        let timer = Fd::from(timer);
        let at_timer = epoll::EventData::new_u64(TIMER);
        epoll::add(&epoll, &timer, at_timer, epoll::EventFlags::IN)
            .map_err(system("epoll_ctl of a data connection"))?;
        let line = AnyLine::of_process(socket, fabric, (seal, keeps_all))?;
        let token = epoll::EventData::new_u64(0);
        epoll::add(&epoll, line.socket(), token, epoll::EventFlags::IN)
            .map_err(system("epoll_ctl of a data connection"))?;
        if line.is_fabric() {
            let flags = vain::flags(line.is_vain());
            line.with_wait_fd(|fd| epoll::add(&epoll, fd, token, flags))
                .map_err(system("epoll_ctl of a fabric"))?;
        }
        let (is_watched, polled) = (AtomicBool::new(false), Mutex::default());
        Ok(Wire { line, epoll, timer, is_watched, polled })
    }

    pub(super) fn is_fabric(&self) -> bool {
        self.line.is_fabric()
    }

    /// Sends what there is room for of two pieces; a long one may wait for room. After [`Errno::AGAIN`] the same are to be sent next.
    pub(super) fn send(&self, front: &[u8], back: &[u8]) -> Result<usize, Errno> {
        let sent = self.line.send(front, back);
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
            self.set_timer(silence::LOOK);
        }
    }

    fn set_timer(&self, time: Duration) {
        let [it_value, it_interval] = [time, Duration::ZERO].map(timespec);
        let once = Itimerspec { it_interval, it_value };
        // Cannot fail: the timer is one, and the time makes sense.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// The timer has run out: ends the connection if the other node has owed an acknowledgement for so long, and looks again
    /// while it owes one.
    pub(super) fn look(&self) {
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        // Before the look: what is sent from now on is looked after anew.
        self.is_watched.store(false, Ordering::SeqCst);
        match self.line.owed() {
            Ok(Owed::Nothing) => {}
            Ok(Owed::Something) => self.look_later(),
            Ok(Owed::Lost) | Err(_) => self.cut(),
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
        let written = self.line.write_directly(window, at, bytes, begins);
        if written.is_ok() {
            self.watch_over();
        }
        written
    }

    /// Whether the connection was lost under a write to a window.
    pub(super) fn was_refused(&self) -> bool {
        self.line.was_refused()
    }

    /// Receives what is there; 0 at the end.
    pub(super) fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        self.line.receive(room)
    }

    /// Whether [`Wire::receive`] gives all that is there, if it has room.
    pub(super) fn gives_all(&self) -> bool {
        self.line.gives_all()
    }

    /// Waits until something can be sent.
    pub(super) fn wait_for_room(&self, timeout: Duration) -> bool {
        self.line.wait_for_room(timeout)
    }

    /// Waits until something can be written to a window.
    pub(super) fn wait_for_place(&self, timeout: Duration) -> bool {
        self.line.wait_for_place(timeout)
    }

    /// How long the other node has owed an acknowledgement.
    pub(super) fn silence(&self) -> Duration {
        silence::of(self.line.socket())
    }

    /// The other node is silent: over TCP another connection may go on. By the connection's thread.
    fn cut(&self) {
        match self.line.tcp() {
            Some(tcp) => tcp.cut(),
            None => self.line.close(),
        }
    }

    /// Has the connection's thread look now whether the other node is silent.
    pub(super) fn look_now(&self) {
        if self.is_fabric() {
            self.close(); // what is silent there is the socket beside it
        } else {
            self.is_watched.store(true, Ordering::SeqCst);
            self.set_timer(Duration::from_nanos(1));
        }
    }

    /// Whether it was cut.
    pub(super) fn is_cut(&self) -> bool {
        self.line.tcp().is_some_and(Tcp::is_cut)
    }

    /// The same at its end, where a sender may be just about to say so.
    pub(super) fn was_cut(&self) -> bool {
        self.line.tcp().is_some_and(Tcp::was_cut)
    }

    /// All that had come before a cut is taken.
    pub(super) fn part(&self) {
        if let Some(tcp) = self.line.tcp() {
            tcp.part();
        }
    }

    /// Bytes that the other node's kernel has acknowledged, of this socket's.
    pub(super) fn acknowledged(&self) -> u64 {
        self.line.tcp().map_or(0, Tcp::acknowledged)
    }

    /// Bytes sent so far, over TCP.
    pub(super) fn sent(&self) -> u64 {
        self.line.tcp().map_or(0, Tcp::sent)
    }

    /// Bytes received so far, over TCP.
    pub(super) fn taken(&self) -> u64 {
        self.line.tcp().map_or(0, Tcp::taken)
    }

    /// Goes on over another connection. Nobody receives or watches meanwhile. `watched`: whether [`Wire::sleep`] is woken by what
    /// comes.
    pub(super) fn resume(
        &self,
        (by, seal, position): (&Fd, Option<&SealKeys>, u64),
        watched: bool,
    ) -> Result<(), Errno> {
        let Some(tcp) = self.line.tcp() else { return Err(Errno::OPNOTSUPP) };
        let _ = epoll::delete(&self.epoll, self.line.socket()); // it is there
        tcp.resume(by, seal, position)?;
        let flags = if watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::add(&self.epoll, self.line.socket(), epoll::EventData::new_u64(0), flags)?;
        self.watch_over();
        Ok(())
    }

    /// Sends again what the other end has not taken of the connection before.
    pub(super) fn settle(&self) -> Result<(), Errno> {
        self.line.tcp().map_or(Ok(()), Tcp::settle)
    }

    /// Ends it, for both sides.
    pub(super) fn close(&self) {
        self.line.close();
    }

    /// Whether [`Wire::sleep`] is woken by what carries the frames.
    pub(super) fn watch(&self, whether: bool) -> Result<(), Errno> {
        let all = vain::flags(self.line.is_vain());
        let flags = if whether { all } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(0);
        self.line.with_wait_fd(|fd| epoll::modify(&self.epoll, fd, data, flags))
    }

    /// Whether [`Wire::sleep`] would be woken by what comes next. False: receive first.
    pub(super) fn may_sleep(&self) -> bool {
        self.line.may_sleep()
    }

    /// Sleeps until there may be something to receive; false at the end of the connection. Ends it if the other node owes an
    /// acknowledgement for longer than [`silence::LIMIT`].
    pub(super) fn sleep(&self) -> bool {
        if !self.may_sleep() {
            return true;
        }
        let vain = self.line.is_vain();
        if vain && self.polled.lock().is_some_and(|until| Instant::now() < until) {
            return self.line.hear().is_ok();
        }
        let time = vain.then(|| timespec(vain::LOOK));
        let mut events = Vec::with_capacity(3);
        let room = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, room, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        if vain {
            *self.polled.lock() = (!events.is_empty()).then(|| Instant::now() + vain::POLL);
        }
        if events.iter().any(|event: &epoll::Event| event.data.u64() == TIMER) {
            self.look();
        }
        self.line.hear().is_ok()
    }
}
