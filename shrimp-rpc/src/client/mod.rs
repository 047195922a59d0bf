//! The client's side: bindings and calls.
//!
//! A [`Binding`] is a handle to one program of one service. Behind it, and its clones, is a small set of *lanes*: pairs of
//! buffers, each with one call at a time, made when first needed. A handle's time limit is its own. The server may die and
//! return: the call that was on its way says so ([`CallError::ServerGone`]), the next one binds anew.

mod arrival;
mod cancel;
mod in_a_thread;
mod lane;
mod limit;
mod patience;
mod places;
mod queue;
mod reply;
mod request;

pub use cancel::Canceller;
pub use reply::Reply;
pub use request::Request;

use crate::config::Settings;
use crate::error::{CallError, ConnectError, TransportError};
use crate::name;
use crate::process;
use crate::reactor::Reactor;
use crate::try_lock::{Guard, TryLock};
use arrival::{Alarm, Arrival, at_once};
use cancel::{Cancels, Group, Mark};
use in_a_thread::in_a_thread;
use lane::{Lane, Wanted};
use limit::Limit;
use places::Places;
use queue::Queue;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use vmmc::{Node, PeerInfo, Token};

/// How long who waits for a late reply leaves the other lanes alone: when they come free nobody tells it.
const OTHERS: Duration = Duration::from_millis(5);

/// A client's handle to a program. Shared by threads and tasks; each of their calls takes a lane.
///
/// A clone is another handle to the same lanes, with a time limit of its own that is at first that of the original:
/// [`Binding::with_timeout`] makes one for some calls, and [`Binding::group`] one whose calls can be given up alone. A clone costs some
/// reference counts, no system call and no memory of the server's; the lanes end with the last handle.
///
/// ```no_run
/// # use shrimp_rpc::{Binding, CallError};
/// # use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let binding = Binding::connect("add", 0x2000_0001, 1)?;
/// let hurried = binding.with_timeout(Duration::from_millis(5)); // concerns no call of `binding`
/// match hurried.request(0, 0, 0)?.call() {
///     Err(CallError::TimedOut { after, .. }) => println!("nothing within {after:?}"),
///     reply => reply?.finish()?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Binding {
    // What is between two flags lies here, the rest behind `shared`.
    lanes: Arc<[TryLock<Option<Lane>>]>,
    /// Nanoseconds that a call of this handle may take; 0: any time.
    timeout: AtomicU64,
    node: Node,
    queue: Arc<Queue>,
    /// Longest call, in bytes.
    call_max: usize,
    group: Group,
    shared: Arc<Shared>,
}

/// What all handles of a binding share, beside the lanes.
#[derive(Debug)]
struct Shared {
    reactor: Arc<Reactor>,
    node: Node,
    wanted: Wanted,
    cancels: Arc<Cancels>,
    places: Places,
    /// Longest call in one piece, in bytes, of the lane that was bound last; 0: none was.
    room: AtomicUsize,
}

impl Shared {
    /// A lane was bound.
    fn note(&self, lane: &Lane) {
        self.room.store(lane.room(), std::sync::atomic::Ordering::Relaxed);
        self.cancels.heed(lane.watch());
    }
}

/// How a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In the calling thread.
    Block,
    /// As a future does.
    Async,
}

/// A lane, taken for one call, or to be bound for it. Whoever takes one gives it back by dropping this, which
/// wakes those who wait for one.
pub(crate) struct Taken<'b> {
    /// Dropped first.
    guard: Guard<'b, Option<Lane>>,
    after: Afterwards<'b>,
}

/// Wakes those who wait for a lane, when it is dropped.
struct Afterwards<'b> {
    binding: &'b Binding,
}

/// A [`Binding`] in the making.
#[derive(Clone, Debug)]
#[must_use]
pub struct BindingBuilder {
    node: Option<Node>,
    wanted: Wanted,
    timeout: Option<Duration>,
}

impl BindingBuilder {
    /// Uses this node; otherwise one that all of this process shares.
    pub fn node(mut self, node: &Node) -> Self {
        self.node = Some(node.clone());
        self
    }

    /// The secret that the service asks for.
    pub fn token(mut self, token: Token) -> Self {
        self.wanted.token = Some(token);
        self
    }

    /// Length of each buffer, in bytes; rounded to pages, 4 KiB to 64 MiB. Calls and replies up to a
    /// little less go in one piece and are used in place. The buffer for calls is the server's, and no longer than its
    /// `ServerBuilder::buffer_max`, 64 KiB otherwise: both sides are to say so.
    ///
    /// ```no_run
    /// # use shrimp_rpc::{Binding, Server};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = Server::builder("video").buffer_max(4 << 20); // in the server
    /// let binding = Binding::builder("video", 0x2000_0001, 1).buffer_len(4 << 20).connect()?; // in the client
    /// assert!(binding.in_place_max() > 4_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn buffer_len(mut self, bytes: usize) -> Self {
        self.wanted.settings.buffer_len = crate::layout::buffer_len(bytes);
        self
    }

    /// Calls at a time; further ones wait.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.wanted.settings.lanes = lanes.max(1);
        self
    }

    /// Longest call and longest reply, in bytes.
    pub fn call_max(mut self, bytes: usize) -> Self {
        self.wanted.settings.call_max = bytes;
        self
    }

    /// How long to wait for the service to appear and to answer.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.wanted.settings.connect_timeout = timeout;
        self
    }

    /// How long a call may take; see [`Binding::set_timeout`].
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Binds; blocks until the service is there and has answered.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(self) -> Result<Binding, ConnectError> {
        let mut binding = self.connect_later()?;
        let lane = Lane::open(&binding.node, &binding.shared.wanted, None, &|| false)?;
        binding.shared.note(&lane);
        // Not taken for that: who calls first is to be the lock's favourite.
        if let Some(first) = Arc::get_mut(&mut binding.lanes).and_then(<[_]>::first_mut) {
            *first = TryLock::new(Some(lane));
            binding.shared.places.taken();
        }
        Ok(binding)
    }

    /// [`BindingBuilder::connect`] for futures of any executor: a thread that is made for it waits. Dropping the future leaves that thread
    /// to bind in vain; it ends when the service has answered, or the time to connect is over.
    ///
    /// # Errors
    /// See [`ConnectError`]; [`TransportError::Thread`] when there is no thread, [`TransportError::Panicked`] when it panicked.
    pub async fn connect_async(self) -> Result<Binding, ConnectError> {
        in_a_thread(move || self.connect()).await?
    }

    /// As [`BindingBuilder::connect`], but the first call binds.
    ///
    /// # Errors
    /// [`ConnectError::Daemon`], [`ConnectError::Name`].
    pub fn connect_later(self) -> Result<Binding, ConnectError> {
        name::check(&self.wanted.service)?;
        self.wanted.elsewhere.as_deref().map_or(Ok(()), name::check_node)?;
        let node = match self.node {
            Some(node) => node,
            None => process::shared_node()?,
        };
        process::name_counters(&node);
        let settings = &self.wanted.settings;
        Ok(Binding {
            lanes: (0..settings.lanes).map(|_| TryLock::new(None)).collect(),
            timeout: AtomicU64::new(limit::nanoseconds(self.timeout)),
            node: node.clone(),
            queue: Arc::default(),
            call_max: settings.call_max,
            group: Group::default(),
            shared: Arc::new(Shared {
                places: Places::default(),
                room: AtomicUsize::new(0),
                reactor: Arc::new(Reactor::new("rpc-replies")),
                node,
                wanted: self.wanted,
                cancels: Arc::default(),
            }),
        })
    }
}

impl Binding {
    /// Binds to a program of a service with the settings of the environment
    /// ([`crate::config::TABLE`]); blocks until the service is there and has answered. A service of
    /// another node is `name@node`, with the node's name in the cluster file of this node's daemon.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(name: &str, program: u32, version: u32) -> Result<Binding, ConnectError> {
        Binding::builder(name, program, version).connect()
    }

    /// [`Binding::connect`] for futures: see [`BindingBuilder::connect_async`].
    ///
    /// # Errors
    /// As there.
    pub async fn connect_async(
        name: &str,
        program: u32,
        version: u32,
    ) -> Result<Binding, ConnectError> {
        Binding::builder(name, program, version).connect_async().await
    }

    /// Binds with settings of one's own; `name` as in [`Binding::connect`].
    pub fn builder(name: &str, program: u32, version: u32) -> BindingBuilder {
        let (service, elsewhere) = name::split(name);
        let wanted = Wanted {
            service: service.to_owned(),
            elsewhere: elsewhere.map(str::to_owned),
            program,
            version,
            token: None,
            settings: Settings::from_env(),
        };
        BindingBuilder { node: None, wanted, timeout: None }
    }

    /// How long each call of this handle may take that begins from here on; `None`: any time, as at first. Calls of its clones are not
    /// concerned. One limit for all of a call: it begins with
    /// [`Binding::request`], and the wait for a lane, which may have to be bound anew, the writing of the arguments, the call and all pieces of
    /// it and of its reply share it. When it is over, the call fails by [`CallError::TimedOut`]; if it was sent, the server is told, and the
    /// buffers are used again only after its late reply; where that has not come within a second, calls for which there is no other lane have one bound in its stead. To the nanosecond, 584 years at most; a limit of zero is one of a nanosecond.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.timeout.store(limit::nanoseconds(timeout), std::sync::atomic::Ordering::Relaxed);
    }

    /// How long each call of this handle may take; `None`: any time.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        match self.timeout.load(std::sync::atomic::Ordering::Relaxed) {
            0 => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }

    /// Another handle to the same lanes, whose calls may take so long each ([`Binding::set_timeout`]); those of this one are not concerned.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Binding {
        let binding = self.clone();
        binding.set_timeout(Some(timeout));
        binding
    }

    /// Another handle to the same lanes, whose blocking calls, with those of its clones, are a group: its [`Binding::canceller`] gives up these
    /// alone.
    #[must_use]
    pub fn group(&self) -> Binding {
        Binding { group: Group::another(&self.shared.cancels), ..self.clone() }
    }

    /// Whose the calls of this handle are.
    #[inline(always)] // between two flags
    fn mark(&self) -> Mark {
        self.group.mark()
    }

    /// A call begins.
    #[inline(always)] // between two flags
    fn limit(&self) -> Limit {
        Limit::begin(self.timeout.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// What another thread can cancel blocking calls by: those of this handle's [`Binding::group`]; if it is of none, all of the binding.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller::new(&self.shared.cancels, &self.group, &self.queue, &self.node)
    }

    /// The node it works through.
    #[inline]
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The process that serves, if there is a binding that nobody uses just now.
    #[must_use]
    pub fn server(&self) -> Option<PeerInfo> {
        // Taken as for a call: who finds the lane taken meanwhile is told when it is given back.
        self.lanes.iter().find_map(|lane| Some(self.take(lane)?.open_lane()?.server()))
    }

    /// Longest call that is sent in one piece, in bytes: in the buffer that the server made for the lane that was bound last, which
    /// may be shorter than [`BindingBuilder::buffer_len`] says. As that says while none was bound. Replies have a buffer of that
    /// length in any case.
    #[must_use]
    pub fn in_place_max(&self) -> usize {
        match self.shared.room.load(std::sync::atomic::Ordering::Relaxed) {
            0 => crate::layout::room(self.shared.wanted.settings.buffer_len),
            room => room,
        }
    }

    #[inline]
    pub(crate) fn call_max(&self) -> usize {
        self.call_max
    }

    /// Room for one request, of which `plain` bytes are the plain part and `bulk` the blocks, each
    /// padded to eight. Waits while all lanes are busy; binds anew if the server has gone.
    ///
    /// # Errors
    /// [`CallError::Connect`], [`CallError::TimedOut`], [`CallError::TooLong`].
    #[inline(always)]
    pub fn request(
        &self,
        procedure: u32,
        plain: usize,
        bulk: usize,
    ) -> Result<Request<'_>, CallError> {
        let limit = self.limit();
        let taken = match self.take_first() {
            Some(taken) => taken,
            None => self.take_any(limit)?,
        };
        Request::new(taken, limit, procedure, plain, bulk)
    }

    /// [`Binding::request`] for futures: waits for a lane without keeping the thread. A lane that has to be
    /// bound first is bound by a thread of its own.
    ///
    /// # Errors
    /// As [`Binding::request`].
    pub async fn request_async(
        &self,
        procedure: u32,
        plain: usize,
        bulk: usize,
    ) -> Result<Request<'_>, CallError> {
        let limit = self.limit();
        let deadline = vmmc::wait::deadline_after(limit.left());
        let mut began = None;
        let taken = loop {
            if let Some(taken) = self.take_first() {
                break taken;
            }
            let last = self.is_last(*began.get_or_insert_with(Instant::now));
            match self.take_ready(last) {
                Choice::Ready(taken) => break taken,
                Choice::Vacant(taken) => {
                    if let Some(taken) = self.bind_async(taken, limit, last).await? {
                        break taken;
                    }
                }
                Choice::Owing(mut taken) => match taken.await_late(limit).await {
                    Ok(true) => break taken,
                    Ok(false) => {}
                    Err(CallError::ServerGone { .. }) => taken.discard(),
                    Err(error) => return Err(error.before_it_was_sent()),
                },
                Choice::Busy if limit.is_over() => return Err(limit.late().before_it_was_sent()),
                Choice::Busy => {
                    self.check_process()?;
                    Freed::new(self, deadline).await?;
                }
            }
        };
        Request::new(taken, limit, procedure, plain, bulk)
    }

    async fn bind_async<'b>(
        &'b self,
        mut taken: Taken<'b>,
        limit: Limit,
        last: bool,
    ) -> Result<Option<Taken<'b>>, CallError> {
        let left = limit.left();
        let (node, wanted) = (self.node.clone(), self.shared.wanted.clone());
        let bound = in_a_thread(move || Lane::open(&node, &wanted, left, &|| false)).await?;
        if bound.is_ok()
            && let Some(overdue) = taken.take_out()
        {
            // The daemon is asked, and an executor's thread does not wait for it.
            let _ = in_a_thread(move || drop(overdue)).await; // without a thread it was dropped here
        }
        self.bound(taken, (limit, left, last), bound)
    }

    /// Whether a call that has waited since then waits no more for lanes that are bound when the server binds no other.
    fn is_last(&self, began: Instant) -> bool {
        began.elapsed() >= self.shared.wanted.settings.connect_timeout
    }

    /// What binding a lane came to, for a call that had so much time left for it, and waits for no other if it is the `last` time.
    /// `None`: the server has no place for it, and the call waits for another lane.
    fn bound<'b>(
        &'b self,
        mut taken: Taken<'b>,
        (limit, left, last): (Limit, Option<Duration>, bool),
        bound: Result<Lane, ConnectError>,
    ) -> Result<Option<Taken<'b>>, CallError> {
        match bound {
            Ok(lane) => {
                taken.fill(lane);
                Ok(Some(taken))
            }
            Err(error) if self.shared.places.refused(&error) && !last => Ok(None),
            // One is overdue, and the server perhaps stands still: it may yet answer.
            Err(error)
                if taken.open_lane().is_some() && error.is_for_time() && !limit.is_over() =>
            {
                Ok(None)
            }
            Err(error) => Err(match left {
                Some(left)
                    if left < self.shared.wanted.settings.connect_timeout
                        && error.is_for_time() =>
                {
                    limit.late_unbound(error)
                }
                _ => error.into(),
            }),
        }
    }

    /// A forked child has its parent's lanes, and none of the threads that would give one back.
    fn check_process(&self) -> Result<(), CallError> {
        self.node.check().map_err(|forked| {
            let service = self.shared.wanted.named();
            CallError::from(ConnectError::Service { service, source: forked.into() })
        })
    }

    /// Whether a call may have a lane.
    fn has_free(&self) -> bool {
        let full = self.shared.places.are_full();
        let is_free = |lane: &TryLock<Option<Lane>>| {
            lane.try_lock().is_some_and(|lane| !full || lane.is_some())
        };
        self.lanes.iter().any(is_free)
    }

    /// That lane, unless it is used.
    #[inline(always)]
    fn take<'b>(&'b self, lane: &'b TryLock<Option<Lane>>) -> Option<Taken<'b>> {
        Some(Taken { guard: lane.try_lock()?, after: Afterwards { binding: self } })
    }

    /// The first lane, when it is ready: the common case.
    #[inline(always)]
    fn take_first(&self) -> Option<Taken<'_>> {
        let mut taken = self.take(self.lanes.first()?)?;
        let lane = taken.open_lane()?;
        if !lane.is_settled() || lane.check_open().is_err() {
            return None;
        }
        Some(taken)
    }

    #[cold]
    fn take_any(&self, limit: Limit) -> Result<Taken<'_>, CallError> {
        let given_up = || self.group.times(&self.shared.cancels);
        let times = given_up();
        let is_cancelled = || given_up() != times;
        let began = Instant::now();
        loop {
            let free = self.take_free(limit, self.is_last(began), &is_cancelled);
            if let Some(taken) = free.map_err(CallError::before_it_was_sent)? {
                return Ok(taken);
            }
            if is_cancelled() {
                self.queue.freed(); // it may be awake in another's place
                return Err(CallError::Cancelled { sent: false });
            }
            if limit.is_over() {
                return Err(limit.late().before_it_was_sent());
            }
            self.check_process()?;
            let is_told = self.shared.places.all_bound(self.lanes.len());
            let part = if is_told { limit } else { limit.within(places::FULL) };
            self.queue.wait(part.left(), || self.has_free() || is_cancelled());
        }
    }

    /// The best lane that nobody uses.
    fn take_ready(&self, last: bool) -> Choice<'_> {
        let mut vacant = None;
        let mut overdue = None;
        let mut owing = None;
        let full = !last && self.shared.places.are_full();
        for lane in &*self.lanes {
            // One that will not be bound is not taken: to give it back would wake others for nothing.
            if full && lane.try_lock().is_some_and(|lane| lane.is_none()) {
                continue;
            }
            let Some(mut taken) = self.take(lane) else { continue };
            if taken.open_lane().is_some_and(|open| open.check_open().is_err()) {
                taken.discard();
            }
            match taken.open_lane().map(|open| (open.is_settled(), open.overdue_in())) {
                Some((true, _)) => return Choice::Ready(taken),
                Some((false, Some(Duration::ZERO))) if !full => overdue = overdue.or(Some(taken)),
                Some((false, _)) => owing = owing.or(Some(taken)),
                None => vacant = vacant.or(Some(taken)),
            }
        }
        match (vacant.or(overdue), owing) {
            (Some(vacant), _) => Choice::Vacant(vacant),
            (None, Some(owing)) => Choice::Owing(owing),
            (None, None) => Choice::Busy,
        }
    }

    /// How long one waits for a lane's late reply before looking at all lanes again.
    fn part_for_late(&self, lane: &Lane, limit: Limit) -> Limit {
        let others = (self.lanes.len() > 1).then_some(OTHERS);
        // One that is overdue is waited for while the server binds no other.
        let late = lane.overdue_in().map(|left| if left.is_zero() { places::FULL } else { left });
        let part = others.into_iter().chain(late).min();
        part.map_or(limit, |part| limit.within(part))
    }

    /// A lane, unless all are used.
    fn take_free(
        &self,
        limit: Limit,
        last: bool,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Taken<'_>>, CallError> {
        let taken = match self.take_ready(last) {
            Choice::Ready(taken) => return Ok(Some(taken)),
            Choice::Busy => return Ok(None),
            Choice::Owing(mut taken) => {
                let limits = (limit, self.part_for_late(taken.lane(), limit));
                match taken.lane_mut().wait_for_late(&self.node, limits, is_cancelled) {
                    Err(CallError::ServerGone { .. }) => taken,
                    Err(error) => return Err(error),
                    Ok(has_come) => return Ok(has_come.then_some(taken)),
                }
            }
            Choice::Vacant(taken) => taken,
        };
        let left = limit.left();
        let bound = Lane::open(&self.node, &self.shared.wanted, left, is_cancelled);
        self.bound(taken, (limit, left, last), bound)
    }
}

/// What lanes there are.
enum Choice<'b> {
    /// One that is ready.
    Ready(Taken<'b>),
    /// One that must be bound; what is overdue stays there until that is done.
    Vacant(Taken<'b>),
    /// One that waits for a late reply.
    Owing(Taken<'b>),
    /// All are used.
    Busy,
}

impl Clone for Binding {
    fn clone(&self) -> Binding {
        let timeout = self.timeout.load(std::sync::atomic::Ordering::Relaxed);
        Binding {
            lanes: self.lanes.clone(),
            timeout: AtomicU64::new(timeout),
            node: self.node.clone(),
            queue: self.queue.clone(),
            call_max: self.call_max,
            group: self.group.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // In a forked child its lock may be a thread's of the parent.
        if self.node.check().is_ok() {
            self.reactor.end(&self.node);
        }
    }
}

/// Ready when a lane may have become free, or the time is over.
struct Freed<'b> {
    binding: &'b Binding,
    alarm: Option<Alarm<'b>>,
}

impl<'b> Freed<'b> {
    fn new(binding: &'b Binding, deadline: Option<Instant>) -> Freed<'b> {
        let again = || Instant::now() + places::FULL;
        let again = (!binding.shared.places.all_bound(binding.lanes.len())).then(again);
        let deadline = deadline.into_iter().chain(again).min();
        let alarm = deadline.map(|at| Alarm::new(&binding.shared.reactor, &binding.node, at));
        Freed { binding, alarm }
    }
}

impl Future for Freed<'_> {
    type Output = Result<(), TransportError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.binding.has_free() {
            return Poll::Ready(Ok(()));
        }
        self.binding.queue.enrol(cx.waker());
        if self.binding.has_free() {
            return Poll::Ready(Ok(()));
        }
        self.alarm.as_ref().map_or(Poll::Pending, |alarm| alarm.poll(cx))
    }
}

impl<'b> Taken<'b> {
    #[inline(always)]
    pub(crate) fn lane(&self) -> &Lane {
        match &*self.guard {
            Some(lane) => lane,
            None => unreachable!("a lane that was taken is open until it is dropped"),
        }
    }

    #[inline(always)]
    pub(crate) fn lane_mut(&mut self) -> &mut Lane {
        match self.open_lane() {
            Some(lane) => lane,
            None => unreachable!("a lane that was taken is open until it is dropped"),
        }
    }

    /// The lane, if it is bound.
    #[inline(always)]
    fn open_lane(&mut self) -> Option<&mut Lane> {
        self.guard.as_mut()
    }

    /// It was bound.
    fn fill(&mut self, lane: Lane) {
        self.binding().shared.note(&lane);
        if self.guard.replace(lane).is_none() {
            self.binding().shared.places.taken();
        }
    }

    /// Waits for the reply to the last message.
    pub(crate) async fn await_reply(&mut self, limit: Limit, mode: Mode) -> Result<u64, CallError> {
        let binding = self.binding();
        if mode == Mode::Block {
            return self.lane_mut().wait(&binding.node, limit);
        }
        let watch = self.lane().watch().clone();
        let mut dropped = Dropped { taken: self, armed: true };
        let reply = Arrival::new(&binding.shared.reactor, &binding.node, watch, limit).await;
        dropped.armed = false;
        drop(dropped);
        match &reply {
            Ok(_) => self.lane_mut().settle(),
            Err(CallError::TimedOut { .. }) => self.lane_mut().give_up(&binding.node),
            Err(_) => {}
        }
        reply
    }

    /// Waits for the late reply to a call that was given up; false if it has not come after a while, and another lane may have come
    /// free.
    async fn await_late(&mut self, limit: Limit) -> Result<bool, CallError> {
        let binding = self.binding();
        let lane = self.lane();
        let (watch, part) = (lane.watch().clone(), binding.part_for_late(lane, limit));
        match Arrival::new(&binding.shared.reactor, &binding.node, watch, part).await {
            Ok(_) => {
                self.lane_mut().settle();
                Ok(true)
            }
            Err(CallError::TimedOut { .. }) if !limit.is_over() => Ok(false),
            Err(error) => Err(error),
        }
    }

    #[inline(always)]
    pub(crate) fn binding(&self) -> &'b Binding {
        self.after.binding
    }

    /// Gives the buffers up: the server has gone, or did what no server does.
    #[cold]
    pub(crate) fn discard(&mut self) {
        drop(self.take_out());
    }

    /// The lane, which is bound here no more.
    fn take_out(&mut self) -> Option<Lane> {
        let lane = self.guard.take()?;
        self.binding().shared.places.given_up();
        Some(lane)
    }
}

/// Tells the server when a future is dropped that waits for it.
struct Dropped<'t, 'b> {
    taken: &'t mut Taken<'b>,
    armed: bool,
}

impl Drop for Dropped<'_, '_> {
    fn drop(&mut self) {
        if self.armed {
            let binding = self.taken.binding();
            self.taken.lane_mut().give_up(&binding.node);
        }
    }
}

impl std::fmt::Debug for Taken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taken").finish_non_exhaustive()
    }
}

impl Drop for Afterwards<'_> {
    #[inline(always)] // between two flags
    fn drop(&mut self) {
        self.binding.queue.freed();
    }
}

/// The monotonic clock, as the head of a buffer has it.
pub(crate) fn clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

impl From<vmmc::error::SendError> for CallError {
    fn from(error: vmmc::error::SendError) -> Self {
        CallError::from_send(error)
    }
}

const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Binding>();
    fn moves<T: Send>() {}
    moves::<Request<'_>>();
    moves::<Reply<'_>>();
    let _ = TransportError::Thread;
};
