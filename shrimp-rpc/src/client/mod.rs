//! The client's side: bindings and calls.
//!
//! A [`Binding`] is a handle to one program of one service. Behind it is a small set of *lanes*: pairs of
//! buffers, each with one call at a time, made when first needed. The server may die and
//! return: the call that was on its way says so ([`CallError::ServerGone`]), the next one binds anew.

mod lane;
mod reply;
mod request;

pub use reply::Reply;
pub use request::Request;

use crate::config::Settings;
use crate::error::{CallError, ConnectError, TransportError};
use crate::process;
use crate::try_lock::{Guard, TryLock};
use lane::{Lane, Wanted};
use std::sync::atomic::AtomicU64;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use vmmc::sync::{AtomicUsize, Ordering, fence};
use vmmc::{Node, PeerInfo, Token};

/// A client's handle to a program. Shared by threads and tasks; each of their calls takes a lane.
#[derive(Debug)]
pub struct Binding {
    node: Node,
    wanted: Wanted,
    lanes: Vec<TryLock<Option<Lane>>>,
    /// Nanoseconds that a call may take; 0: any time.
    timeout: AtomicU64,
    queue: Queue,
}

/// Those who wait until a lane is free.
#[derive(Debug, Default)]
struct Queue {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    freed: Condvar,
}

/// A lane, taken for one call.
pub(crate) struct Taken<'b> {
    /// `Some` until dropped.
    guard: Option<Guard<'b, Option<Lane>>>,
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
    /// little less go in one piece and are used in place.
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
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Binds; blocks until the service is there and has answered.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(self) -> Result<Binding, ConnectError> {
        let binding = self.connect_later()?;
        let mut lane = Lane::open(&binding.node, &binding.wanted)?;
        if let Some(mut first) = binding.lanes.first().and_then(TryLock::try_lock) {
            debug_assert!(lane.is_settled());
            *first = Some(lane);
        }
        Ok(binding)
    }

    /// As [`BindingBuilder::connect`], but the first call binds.
    ///
    /// # Errors
    /// [`ConnectError::Daemon`].
    pub fn connect_later(self) -> Result<Binding, ConnectError> {
        let node = match self.node {
            Some(node) => node,
            None => process::shared_node()?,
        };
        process::name_counters(&node);
        let lanes = self.wanted.settings.lanes;
        let binding = Binding {
            node,
            wanted: self.wanted,
            lanes: (0..lanes).map(|_| TryLock::new(None)).collect(),
            timeout: AtomicU64::new(0),
            queue: Queue::default(),
        };
        binding.set_timeout(self.timeout);
        Ok(binding)
    }
}

impl Binding {
    /// Binds to a program of a service with the settings of the environment
    /// ([`crate::config::TABLE`]); blocks until the service is there and has answered.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(name: &str, program: u32, version: u32) -> Result<Binding, ConnectError> {
        Binding::builder(name, program, version).connect()
    }

    /// Binds with settings of one's own.
    pub fn builder(name: &str, program: u32, version: u32) -> BindingBuilder {
        let wanted = Wanted {
            service: name.to_owned(),
            program,
            version,
            token: None,
            settings: Settings::from_env(),
        };
        BindingBuilder { node: None, wanted, timeout: None }
    }

    /// How long a call may take from here on, without limit at first. When the time is over, the
    /// server is told, and the buffers are used again only after its late reply.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        let nanoseconds =
            timeout.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.timeout.store(nanoseconds, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        match self.timeout.load(std::sync::atomic::Ordering::Relaxed) {
            0 => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }

    /// The node it works through.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The process that serves, if there is a binding that nobody uses just now.
    #[must_use]
    pub fn server(&self) -> Option<PeerInfo> {
        self.lanes.iter().find_map(|lane| Some(lane.try_lock()?.as_ref()?.server()))
    }

    /// Longest call that is sent in one piece, in bytes.
    #[must_use]
    pub fn in_place_max(&self) -> usize {
        crate::layout::room(self.wanted.settings.buffer_len)
    }

    pub(crate) fn call_max(&self) -> usize {
        self.wanted.settings.call_max
    }

    /// Room for one request, of which `plain` bytes are the plain part and `bulk` the blocks, each
    /// padded to eight. Waits while all lanes are busy; binds anew if the server has gone.
    ///
    /// # Errors
    /// [`CallError::Connect`], [`CallError::TimedOut`], [`CallError::TooLong`].
    #[inline]
    pub fn request(
        &self,
        procedure: u32,
        plain: usize,
        bulk: usize,
    ) -> Result<Request<'_>, CallError> {
        let taken = match self.take_first() {
            Some(taken) => taken,
            None => self.take_any()?,
        };
        Request::new(taken, procedure, plain, bulk)
    }

    /// The first lane, when it is ready: the common case.
    #[inline]
    fn take_first(&self) -> Option<Taken<'_>> {
        let mut guard = self.lanes.first()?.try_lock()?;
        let lane = (*guard).as_mut()?;
        if !lane.is_settled() || lane.check_open().is_err() {
            return None;
        }
        Some(Taken { guard: Some(guard), binding: self })
    }

    #[cold]
    fn take_any(&self) -> Result<Taken<'_>, CallError> {
        let start = Instant::now();
        let patience = self.timeout();
        let left = || patience.map(|it| it.saturating_sub(start.elapsed()));
        let late = || CallError::TimedOut { after: patience.unwrap_or_default() };
        loop {
            if let Some(taken) = self.take_free(&left)? {
                return Ok(taken);
            }
            if left().is_some_and(|left| left.is_zero()) {
                return Err(late());
            }
            self.queue.wait(left(), || self.lanes.iter().any(|lane| lane.try_lock().is_some()));
        }
    }

    /// A lane that nobody uses: one that is ready, or else a new one, or else one that waits for a
    /// late reply. `None`: all are used.
    fn take_free(
        &self,
        left: &dyn Fn() -> Option<Duration>,
    ) -> Result<Option<Taken<'_>>, CallError> {
        let mut vacant = None;
        let mut owing = None;
        for lane in &self.lanes {
            let Some(mut guard) = lane.try_lock() else { continue };
            if guard.as_ref().is_some_and(|open| open.check_open().is_err()) {
                *guard = None;
            }
            match guard.as_mut().map(Lane::is_settled) {
                Some(true) => return Ok(Some(Taken { guard: Some(guard), binding: self })),
                Some(false) => owing = owing.or(Some(guard)),
                None => vacant = vacant.or(Some(guard)),
            }
        }
        if let Some(mut guard) = vacant {
            *guard = Some(Lane::open(&self.node, &self.wanted)?);
            return Ok(Some(Taken { guard: Some(guard), binding: self }));
        }
        let Some(mut guard) = owing else { return Ok(None) };
        if let Some(lane) = &mut *guard {
            match lane.wait(&self.node, left()) {
                Ok(_) => {}
                Err(CallError::ServerGone { .. }) => {
                    *guard = Some(Lane::open(&self.node, &self.wanted)?);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Taken { guard: Some(guard), binding: self }))
    }
}

impl Queue {
    /// Sleeps until a lane is freed. `look` says whether one is free already.
    fn wait(&self, timeout: Option<Duration>, look: impl Fn() -> bool) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // PAIRS(lane): with the fence in Queue::freed: either we see the lane, or it sees us.
        fence(Ordering::SeqCst);
        if !look() {
            match timeout {
                None => drop(self.freed.wait(lock)),
                Some(timeout) => drop(self.freed.wait_timeout(lock, timeout)),
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// A lane was freed.
    #[inline]
    fn freed(&self) {
        // PAIRS(lane): with the fence in Queue::wait.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.freed.notify_one();
    }
}

impl<'b> Taken<'b> {
    #[inline]
    pub(crate) fn lane(&self) -> &Lane {
        match self.guard.as_ref().and_then(|guard| guard.as_ref()) {
            Some(lane) => lane,
            None => unreachable!("a lane that was taken is open until it is dropped"),
        }
    }

    #[inline]
    pub(crate) fn lane_mut(&mut self) -> &mut Lane {
        match self.guard.as_mut().and_then(|guard| guard.as_mut()) {
            Some(lane) => lane,
            None => unreachable!("a lane that was taken is open until it is dropped"),
        }
    }

    #[inline]
    pub(crate) fn binding(&self) -> &'b Binding {
        self.binding
    }

    /// Gives the buffers up: the server did what no server does.
    #[cold]
    pub(crate) fn discard(&mut self) {
        if let Some(guard) = &mut self.guard {
            **guard = None;
        }
    }
}

impl std::fmt::Debug for Taken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taken").finish_non_exhaustive()
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.guard = None;
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
