//! The protocol: one [`Engine`] per process, every NX operation a method of it.
//!
//! All methods may be called from any thread, handlers included. Methods that take raw memory
//! ([`types::Source`], [`types::Target`]) are `unsafe`; [`crate::Nx`] is the safe interface over them.
//!
//! | file | what |
//! |---|---|
//! | `layout`, `slots` | the memory that one process writes for another; who may use which slot |
//! | `out`, `peer`, `peers`, `numbers` | the lane of another process; links to it; all of them; which number each has |
//! | `door`, `given` | the words by which others wake this process; which numbers have been given |
//! | `opening`, `joining` | how links are made at the start; with those that join later |
//! | `stage`, `direct`, `mappings` | memory for safe copies; user memory of the receiver; what is mapped where |
//! | `ops`, `state` | operations, posted and unexpected queues: what the lock protects |
//! | `inner`, `progress`, `handlers`, `watch` | waiting, and the threads that help |
//! | `points` | where tests kill a process |
//! | `handshake`, `exchange` | how processes meet and part; rounds of global operations |
//! | `send`, `receive`, `mids`, `global` | the methods |

pub mod counters;
mod direct;
mod door;
mod exchange;
mod fork;
mod given;
mod global;
mod handlers;
mod handshake;
mod inner;
mod joining;
mod layout;
pub(crate) mod mappings;
mod mem;
mod mids;
pub(crate) mod noted;
mod numbers;
mod opening;
mod ops;
mod out;
mod peer;
mod peers;
pub mod points;
mod progress;
mod receive;
mod send;
pub mod settings;
mod share;
mod slots;
mod stacks;
mod stage;
mod state;
pub mod types;
mod watch;

pub use global::{Element, Reduction};

use crate::error::{NxError, StartError};
use crate::job::Job;
use crate::unconfirmed::host_number;
use door::Door;
use given::Given;
use inner::{Inner, OnEnd, OnRequest, Parts};
use numbers::Numbers;
use peers::Peers;
use points::Point;
use settings::Settings;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::{FORCE_LAST, FORCE_TYPE, NORMAL_LAST};
use vmmc::sync::{Mutex, Ordering};
use vmmc::sys::thread::spawn_quiet;

/// Channel of user messages.
const USER: u32 = 0;

/// This process's part of a job.
#[derive(Debug)]
pub struct Engine {
    inner: Arc<Inner>,
    progress: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Joins the job: connects to the daemon and to every other process. Blocks until all are
    /// there.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left behind.
    pub fn start(job: &Job) -> Result<Engine, StartError> {
        Engine::start_with(job, Settings::from_env()?)
    }

    /// The same, with settings that are not the environment's.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with(job: &Job, settings: Settings) -> Result<Engine, StartError> {
        Engine::start_full(job, settings, None)
    }

    /// As [`Engine::start`]. `asks` is asked, with its node and process id, about a process that ended
    /// without a word: true if somebody wanted that, and the others go on.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_asking(
        job: &Job,
        asks: impl Fn(u32, u32) -> bool + Send + Sync + 'static,
    ) -> Result<Engine, StartError> {
        Engine::start_full(job, Settings::from_env()?, Some(OnRequest(Box::new(asks))))
    }

    fn start_full(
        job: &Job,
        settings: Settings,
        on_request: Option<OnRequest>,
    ) -> Result<Engine, StartError> {
        fork::watch();
        let processes = job.size + u32::from(job.host);
        if job.node >= processes || job.size == 0 {
            return Err(StartError::BadJob { node: job.node, size: job.size });
        }
        let numbers = Numbers::new(processes, &job.hosts);
        let mut home = opening::Home::open(job, numbers.clone())?;
        let at = |point| settings.at(point, job.node);
        let on_end = OnEnd::default();
        let stride = settings.stride(processes as usize);
        let seconds = settings.start_s;
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let peers;
        if let Some(late) = job.late {
            let patience = joining::Patience { deadline, seconds };
            let (door, found) = joining::take_number(&mut home, late, patience)?;
            at(Point::DoorOpen);
            peers = Peers::new(numbers, door, found.given());
            joining::meet_all(&home, &peers, found, &on_end, &settings, patience)?;
            at(Point::Joined);
        } else {
            let door = Door::open(&home.bell, &home.own)?;
            at(Point::DoorOpen);
            peers = Peers::new(numbers.clone(), door, &Given::none(numbers.limit()));
            let nodes = opening::Nodes { data: &home.data, bell: &home.bell };
            let openings: Result<_, _> = (0..processes)
                .filter(|&number| number != home.own.number)
                .map(|number| {
                    let opening =
                        opening::Opening::start(nodes, &home.own, number, stride, on_end.handler());
                    at(Point::LanesHalf);
                    opening
                })
                .collect();
            let met = |_: &peer::Peer| at(Point::HereHalf);
            let excused = |peer: &peer::Peer| inner::is_wanted(on_request.as_ref(), peer);
            let ptype = job.ptype.unwrap_or(types::INVALID_PTYPE);
            let (who, time) = ((home.own.node, processes, ptype), (deadline, seconds));
            for peer in opening::meet_all(openings?, who, time, excused, met)? {
                peers.add(peer);
            }
        }
        let parts = Parts { job: job.clone(), settings, home, peers, on_end, on_request };
        let inner = Arc::new(Inner::new(parts));
        if job.late.is_some() {
            // Whoever hears this knows that all others can reach us.
            for peer in inner.peers() {
                peer.say_joined();
            }
        }
        let helper = inner.clone();
        let progress =
            spawn_quiet("nx-progress", move || progress::run(&helper)).map_err(|errno| {
                StartError::SetUp { what: "progress thread", reason: errno.to_string() }
            })?;
        inner.at(Point::Started);
        Ok(Engine { inner, progress: Mutex::new(Some(progress)) })
    }

    /// Leaves in order: waits until what was sent no longer needs this process; the others go on.
    /// Calls that come later fail with [`NxError::NotStarted`]. Also done when the engine is dropped.
    pub fn leave(&self) {
        let inner = &*self.inner;
        inner.handlers.stop();
        if inner.check().is_ok() && !inner.left.load(Ordering::Acquire) {
            // The program's own function: what it sends is waited for, too.
            inner.handlers.see_off();
        }
        if inner.left.swap(true, Ordering::AcqRel) {
            return;
        }
        let drained = inner.wait(|state| match state.is_drained(inner) {
            Ok(true) => Some(Ok(())),
            Ok(false) => {
                state.ask_to_fetch(inner);
                None
            }
            Err(error) => Some(Err(error)),
        });
        inner.state.lock().windows.close_all();
        // The others must not take the end of a job that failed here for an orderly one, nor its
        // messenger for the culprit.
        let bye = match inner.check().and(drained) {
            Ok(()) => layout::BYE_ORDERLY,
            Err(
                NxError::PeerDied { node }
                | NxError::PeerLost { node }
                | NxError::PeerFault { node, .. },
            ) => layout::BYE_FAILED.saturating_add(node),
            Err(_) => 0,
        };
        for peer in inner.peers() {
            peer.out.say32(layout::BYE, bye);
            inner.at(Point::ByeHalf);
        }
        for peer in inner.peers() {
            // Another node hears of our links' end by other ways, which must not be shorter.
            peer.out.settle();
        }
        inner.fail(NxError::NotStarted);
        inner.stop.store(true, Ordering::Release);
        inner.bell.wake_waiters();
        inner.data.wake_waiters();
        inner.watch.wake();
        if let Some(progress) = self.progress.lock().take() {
            let _ = progress.join();
        }
    }

    /// This process's node number.
    #[must_use]
    pub fn node(&self) -> i32 {
        self.inner.job.node as i32
    }

    /// This process's number: of the first process of a node the node's, of others one that nobody else has.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.own.number
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> i32 {
        self.inner.job.size as i32
    }

    /// Whether all nodes are on one machine, as far as who started them says.
    #[must_use]
    pub fn is_on_one_machine(&self) -> bool {
        let mut hosts = self.inner.job.hosts.iter().take(self.inner.job.size as usize);
        let first = hosts.next();
        hosts.all(|host| Some(host) == first)
    }

    /// The host process's node number, if there is one.
    #[must_use]
    pub fn host(&self) -> Option<i32> {
        self.inner.job.host.then_some(host_number(self.inner.job.size) as i32)
    }

    /// Process type, [`types::INVALID_PTYPE`] before it is set.
    #[must_use]
    #[inline]
    pub fn ptype(&self) -> i32 {
        self.inner.ptype()
    }

    /// Sets the process type. Messages for the new type that have come already are taken from here on.
    ///
    /// # Errors
    /// [`NxError::BadPtype`]; [`NxError::PtypeInUse`]: another process of this node has it.
    pub fn set_ptype(&self, ptype: i32) -> Result<(), NxError> {
        if !(0..=NORMAL_LAST).contains(&ptype) {
            return Err(NxError::BadPtype { ptype });
        }
        if ptype != self.ptype() && self.has_process(self.inner.own.node, ptype) {
            return Err(NxError::PtypeInUse { node: self.inner.own.node, ptype });
        }
        self.inner.set_ptype(ptype);
        Ok(())
    }

    /// Whether a process of this type is on that node.
    #[must_use]
    pub fn has_process(&self, node: u32, ptype: i32) -> bool {
        let inner = &*self.inner;
        (inner.own.node == node && inner.ptype() == ptype)
            || inner.peers().any(|peer| {
                // One that has said bye is as good as gone, whenever this process hears of its end.
                let lives = !peer.gone.load(Ordering::Relaxed) && peer.is_linked();
                peer.node == node && peer.ptype() == ptype && lives && peer.bye().is_none()
            })
    }

    /// Whether a process of this type (-1: any) is on that node (-1: on one of the nodes, the host is none; its number: the host).
    #[must_use]
    pub fn has_any(&self, node: i32, ptype: i32) -> bool {
        let inner = &*self.inner;
        let is_one = |number: u32, its: i32| {
            (if node == -1 { number < inner.job.size } else { number as i32 == node })
                && (ptype == -1 || its == ptype)
        };
        let lives = |peer: &&peer::Peer| !peer.gone.load(Ordering::Relaxed) && peer.is_linked();
        is_one(inner.own.node, inner.ptype())
            || inner.peers().filter(lives).any(|peer| is_one(peer.node, peer.ptype()))
    }

    /// How many processes may still join on the host of a node, also of those that have ended: each has a number of its own.
    #[must_use]
    pub fn places_left(&self, node: u32) -> usize {
        self.inner.peers.places_left(node)
    }

    /// Waits until every process that the job began with has opened its links with this one, or has gone: what type it began
    /// with is known then.
    ///
    /// # Errors
    /// What ended the job.
    pub fn wait_for_all(&self) -> Result<(), NxError> {
        joining::wait_for_all(&self.inner)
    }

    /// Waits until a process that was started to join this job has links with all others.
    ///
    /// # Errors
    /// [`StartError::Missing`] when it does not come, or is not `alive` any more.
    pub fn wait_for_process(
        &self,
        pid: u32,
        node: u32,
        alive: impl Fn() -> bool,
    ) -> Result<(), StartError> {
        joining::wait_for_process(&self.inner, pid, node, alive)
    }

    /// Masks (true) or allows (false) handlers; returns the previous state. Masking waits for a
    /// handler that runs now. Inside a handler it only keeps the value.
    pub fn masktrap(&self, mask: bool) -> bool {
        self.inner.handlers.mask(mask)
    }

    /// A turn of the protocol, and the processor to others (`flick`).
    pub fn flick(&self) {
        let mut state = self.inner.state.lock();
        let before = self.inner.changes();
        if let Err(error) = state.progress(&self.inner) {
            self.inner.fail(error);
        }
        self.inner.wake_others(state, before);
        std::thread::yield_now();
    }

    /// Value of a counter of [`counters`] or of `vmmc`.
    #[must_use]
    pub fn counter(&self, counter: usize) -> u64 {
        self.inner.data.counters().get(counter)
    }

    /// What ended the job, once something did.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), NxError> {
        self.inner.check()
    }

    /// Calls `tell` in the progress thread once the job has ended otherwise than by [`Engine::leave`]: for
    /// programs that compute and call nothing that would answer the error. The first caller's
    /// function stays.
    pub fn on_failure(&self, tell: impl Fn(&NxError) + Send + Sync + 'static) {
        let _ = self.inner.on_failure.set(inner::OnFailure(Box::new(tell)));
        self.inner.bell.wake_waiters();
    }

    /// A process may not communicate before it has a type.
    #[inline]
    fn need_ptype(&self) -> Result<(), NxError> {
        self.inner.check()?;
        if self.ptype() == types::INVALID_PTYPE { Err(NxError::NoPtype) } else { Ok(()) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.leave();
    }
}

#[inline]
fn check_type(type_: i32) -> Result<(), NxError> {
    match type_ {
        0..=NORMAL_LAST | FORCE_TYPE..=FORCE_LAST => Ok(()),
        _ => Err(NxError::BadType { type_ }),
    }
}

/// One type is one that can be sent; all others are masks.
#[inline]
pub(crate) fn check_typesel(typesel: i32) -> Result<(), NxError> {
    if typesel > NORMAL_LAST { check_type(typesel) } else { Ok(()) }
}

#[inline]
fn check_memory(is_null: bool, len: usize) -> Result<(), NxError> {
    match len {
        0 => Ok(()),
        len if len > isize::MAX as usize => Err(NxError::BadLength { len: len as i64 }),
        len if is_null => Err(NxError::NullBuffer { len }),
        stacks::LEAST.. => {
            stacks::note();
            Ok(())
        }
        _ => Ok(()),
    }
}
