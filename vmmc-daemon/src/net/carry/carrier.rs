//! A thread that carries what processes of one user on this node say to those of one other node.
//!
//! It sleeps until a process rings, sends what is new in that one's segment, and looks once more after it has
//! asked to be rung again. A send may wait for the network; that keeps the connections to this other node waiting,
//! and no others. What it asks the kernel of a process's socket waits for whoever is inside a call on that, for as long as
//! he likes: that keeps the connections of his user waiting, and no others. It never waits for the other node's carrier: what comes from there is handled by the handlers of
//! its links, which wait for nobody, so that two carriers with full queues cannot hold each other up.

use super::sent::{Failed, Far, Sent};
use super::stream::{Standing, Stream};
use super::talk::Talk;
use super::{Cost, count};
use crate::doorbell::Shared;
use crate::net::mailbox::Mailbox;
use crate::receive;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc::control::message::CloseReason;
use vmmc::error::{FlagError, SendError, SendNotifyError, WaitError};
use vmmc::mem::View;
use vmmc::sys::Fd;
use vmmc::sys::thread::spawn_quiet;
use vmmc::{Export, Import, Node};

/// Rounds of one connection in a turn: a process that never stops is left for others.
const ROUNDS: u32 = 8;
/// Sources of events looked at per wake-up.
const EVENTS: usize = 64;
/// The door's token; connections have their numbers, from 1 on.
const DOOR: u64 = 0;

/// A connection, as its carrier has it.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) stream: Arc<Stream>,
    /// The other node's segment. Goes first: its end is what tells the other daemon.
    pub(super) import: Import,
    /// This node's, which the other daemon writes as long as this is kept.
    pub(super) _export: Export,
    /// This daemon's end of the [line](vmmc::sys::bell_line) by which the process rings. Hung up, nobody has the connection any more.
    pub(super) bell: Shared,
    pub(super) node: Node,
    /// This daemon, to processes.
    pub(super) incarnation: u64,
    /// Who carries it. The last one's end is the carrier's.
    pub(super) carrier: Arc<Carrier>,
    /// Last: with it the broker hears that nothing is left.
    pub(super) _cost: Cost,
}

/// What a carrier is told.
#[derive(Debug)]
pub(super) enum News {
    /// It has one connection more, with this number.
    New(u64, Box<Load>),
    /// The far end of a connection stands otherwise.
    Changed(u64),
    /// Its process has never used a connection, and never will.
    Gone(u64),
    /// It has no connection any more, and gets none.
    Over,
}

/// See the module. The thread ends when nobody has it any more.
#[derive(Debug)]
pub(super) struct Carrier {
    door: Arc<Mailbox<News>>,
    last: AtomicU64,
}

impl Carrier {
    pub(super) fn start() -> rustix::io::Result<Arc<Carrier>> {
        let door = Mailbox::new()?;
        let epoll = Fd::from(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let at_door = epoll::EventData::new_u64(DOOR);
        epoll::add(&epoll, &*door, at_door, epoll::EventFlags::IN)?;
        let work =
            Work { epoll, door: door.clone(), loads: HashMap::new(), unfinished: BTreeSet::new() };
        spawn_quiet("net-carry", move || work.run())?;
        Ok(Arc::new(Carrier { door, last: AtomicU64::new(DOOR) }))
    }

    /// Carries a connection from now on.
    pub(super) fn add(load: Load) {
        let Carrier { door, last } = &*load.carrier;
        let (door, number) = (door.clone(), last.fetch_add(1, Ordering::Relaxed) + 1);
        let stream = load.stream.clone();
        stream.set_carrier(door.clone(), number);
        if !door.put(News::New(number, Box::new(load))) {
            stream.lose(FAILED);
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.door.put(News::Over);
    }
}

/// Why connections end that a carrier had.
const FAILED: &str = "its carrier has failed";

/// How far a connection has come.
#[derive(Debug, Default)]
struct Progress {
    sent: Sent,
    talk: Talk,
}

/// The thread's own.
#[derive(Debug)]
struct Work {
    epoll: Fd,
    door: Arc<Mailbox<News>>,
    loads: HashMap<u64, (Load, Progress)>,
    /// Connections whose last turn ended at its bound.
    unfinished: BTreeSet<u64>,
}

impl Work {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let timeout = if self.unfinished.is_empty() { None } else { Some(&now) };
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "connections to another node are carried no more");
                    let late = self.door.close().into_iter().filter_map(|news| match news {
                        News::New(_, load) => Some(load.stream),
                        News::Changed(_) | News::Gone(_) | News::Over => None,
                    });
                    for stream in self.loads.into_values().map(|(load, _)| load.stream).chain(late)
                    {
                        stream.lose(FAILED);
                    }
                    return;
                }
            }
            for number in std::mem::take(&mut self.unfinished) {
                self.turn(number, false);
            }
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    DOOR if self.hear().is_break() => {
                        // Streams that live on have no more to tell.
                        self.door.close();
                        return;
                    }
                    DOOR => {}
                    number => self.turn(number, flags.contains(epoll::EventFlags::HUP)),
                }
            }
        }
    }

    /// New connections, and changes; or the end.
    fn hear(&mut self) -> ControlFlow<()> {
        for news in self.door.take() {
            let number = match news {
                News::New(number, load) => {
                    self.begin(number, *load);
                    // It may have changed before there was somebody to tell.
                    number
                }
                News::Changed(number) => number,
                News::Gone(number) => {
                    self.turn(number, true);
                    continue;
                }
                News::Over => return ControlFlow::Break(()),
            };
            self.turn(number, false);
        }
        ControlFlow::Continue(())
    }

    fn begin(&mut self, number: u64, load: Load) {
        let data = epoll::EventData::new_u64(number);
        // By edges: the process can make its end readable for good.
        let rings = epoll::EventFlags::IN | epoll::EventFlags::ET;
        if let Err(errno) = epoll::add(&self.epoll, load.bell.fd(), data, rings) {
            return load.stream.lose(&format!("its doorbell cannot be watched ({errno})"));
        }
        load.node.counters().add(count::CONNECTIONS, 1);
        self.loads.insert(number, (load, Progress::default()));
    }

    /// A turn of one connection; the last one, but for what is under way, when nobody has its process's end any more.
    fn turn(&mut self, number: u64, hung_up: bool) {
        let Some((load, progress)) = self.loads.get_mut(&number) else { return };
        if hung_up && !progress.talk.is_last {
            progress.talk.is_last = true;
            let _ = epoll::delete(&self.epoll, load.bell.fd());
            if load.stream.segment.close_for_process() {
                load.stream.reset_at_close();
            }
        }
        let standing = load.stream.standing();
        let more = match standing {
            Standing::Open => load.turn(progress),
            Standing::Ended if load.stream.segment.kernel().is_some() => load.last_turn(progress),
            // What the process says now reaches nobody. The other daemon has sent all before, and closed its copy of
            // the socket; should its process still have the connection, it is not to wait for ours.
            Standing::Ended => {
                load.drain();
                load.stream.shut();
                Ok(false)
            }
            Standing::Lost => Err(Failed::Far(FarError::Lost)),
        };
        match more {
            // The other daemon has ended its links in order. What it said last is on its way by the other one.
            _ if load.is_withdrawn() && load.stream.standing() == Standing::Open => {}
            Ok(true) => {
                self.unfinished.insert(number);
            }
            Ok(false) if !progress.talk.is_last || !load.is_settled(&progress.talk) => {}
            Ok(false) => {
                if load.stream.standing() == Standing::Open && load.import.fence().is_err() {
                    if load.is_withdrawn() {
                        return;
                    }
                    load.stream.lose("what its process said last may not have arrived");
                }
                if load.stream.segment.kernel().is_some() && load.stream.has_heard() {
                    // Meanwhile, and it may want something of us.
                    self.unfinished.insert(number);
                    return;
                }
                let changes = epoll::EventFlags::OUT | epoll::EventFlags::ET;
                let data = epoll::EventData::new_u64(number);
                let watch =
                    |socket: BorrowedFd<'_>| epoll::add(&self.epoll, socket, data, changes).is_ok();
                if load.has_arrived(&mut progress.talk, watch) {
                    self.remove(number);
                }
            }
            Err(why) => {
                load.stream.lose(&why.to_string());
                load.node.counters().add(count::LOST, 1);
                self.remove(number);
            }
        }
    }

    fn remove(&mut self, number: u64) {
        let Some((load, progress)) = self.loads.remove(&number) else { return };
        if !progress.talk.is_last {
            let _ = epoll::delete(&self.epoll, load.bell.fd());
        }
        if progress.talk.lingers
            && let Some(socket) = load.stream.socket()
        {
            let _ = epoll::delete(&self.epoll, &*socket);
        }
        // The kernel's end of the connection comes before that of the links, which the other daemon takes for
        // the far end's: it has been sent all.
        load.stream.close();
        drop(load);
    }
}

impl Load {
    /// Takes the rings out. What is left at the bound has been heard with the rest; only a process that rings for nothing has so many.
    fn drain(&self) {
        let uid = self.bell.users().0;
        for _ in 0..16 {
            match receive::receive(self.bell.fd(), uid, &mut [0u8; 4096]) {
                Ok(Some(it)) if it.fds.remaining() == 0 => {}
                Ok(None) | Err(Errno::AGAIN | Errno::CONNRESET) => return,
                // A ring is a byte; descriptors would be work for us without end.
                Ok(Some(_)) | Err(_) => {
                    return self.stream.lose("its process sends what is no ring");
                }
            }
        }
    }

    /// Whether the other daemon has withdrawn its segment.
    fn is_withdrawn(&self) -> bool {
        let open = self.import.check_open();
        open.is_err_and(|closed| closed.reason == CloseReason::Unexported)
    }

    /// Sends what is new. True when there may be more.
    fn turn(&self, progress: &mut Progress) -> Result<bool, Failed<FarError>> {
        self.drain();
        self.stream.segment.arm();
        let Progress { sent, talk, .. } = progress;
        self.hear(talk, sent)?;
        let far = Other(&self.import);
        let mut any = false;
        for _ in 0..ROUNDS {
            match sent.forward(&self.stream.segment, &far)? {
                ControlFlow::Continue(bytes) => {
                    any = true;
                    self.node.counters().add(count::BYTES, bytes);
                }
                ControlFlow::Break(()) => {
                    if self.comply(talk, sent)? {
                        continue;
                    }
                    self.node.counters().add(count::TURNS, any.into());
                    return Ok(false);
                }
            }
        }
        self.node.counters().add(count::TURNS, 1);
        Ok(true)
    }

    /// The other daemon has said its last.
    fn last_turn(&self, progress: &mut Progress) -> Result<bool, Failed<FarError>> {
        self.drain();
        self.stream.segment.arm();
        let Progress { sent, talk, .. } = progress;
        // Nobody hears an answer.
        let _ = self.hear(talk, sent);
        self.part(talk, sent)
    }
}

/// The segment of the other node.
pub(super) struct Other<'i>(pub(super) &'i Import);

/// A send failed: the link, or the connection between the nodes, has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum FarError {
    #[error("its other end is lost")]
    Lost,
    #[error(transparent)]
    Fence(WaitError),
    #[error(transparent)]
    Bytes(#[from] SendError),
    #[error(transparent)]
    Word(#[from] FlagError),
    #[error(transparent)]
    Notification(#[from] SendNotifyError),
}

impl Far for Other<'_> {
    type Error = FarError;

    fn bytes(&self, at: usize, bytes: View<'_>) -> Result<(), FarError> {
        Ok(self.0.send_from(at, bytes)?)
    }

    // As a word: bytes could come in two parts, and the process would see half a position.
    fn word(&self, at: usize, value: u64) -> Result<(), FarError> {
        Ok(self.0.flag64(at)?.store(value)?)
    }

    fn word32(&self, at: usize, value: u32) -> Result<(), FarError> {
        Ok(self.0.flag32(at)?.store(value)?)
    }

    fn tell(&self) -> Result<(), FarError> {
        // Bytes in a message tell it from what the daemons say to each other.
        Ok(self.0.send_notification(0, 1, 0)?)
    }
}
