//! A process's access to the system: its connection to the daemon, its exports and imports.

mod claim;
pub(crate) mod control;
mod events;
mod list;
mod post;
mod reconnect;
pub(crate) mod remote;
mod resume;
mod threads;

pub use threads::HandlerThread;
pub(crate) use threads::spawn_quiet;

use crate::config::{Config, WaitPolicy};
use crate::control::connect::ConnectError;
use crate::control::message::{Role, Welcome};
use crate::counters::{Counters, index as count};
use crate::error::{Forked, SystemError, UnblockError, WaitError, system};
use crate::export::{ExportBuilder, ExportInner, IncomingLink};
use crate::id::{ClientId, ExportId, LinkId, Name};
use crate::import::{ImportBuilder, ImportInner, Spares};
use crate::local::{Local, SPIN_SLICE};
use crate::mem::Region;
use crate::notify::Inbox;
use crate::peer::Peer;
use crate::send::Copier;
use crate::sync::Mutex;
use crate::sys::membarrier;
use crate::wait::{self, Spun};
use control::Control;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// A connected process. Cheap to clone; the connection ends with the last clone and the last
/// export and import made from it.
///
/// All operations may be called from any thread. In a forked child they answer [`Forked`]; the child may
/// connect anew.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) inner: Arc<NodeInner>,
}

#[derive(Debug)]
pub(crate) struct NodeInner {
    pub(crate) local: Arc<Local>,
    pub(crate) config: Config,
    pub(crate) policy: WaitPolicy,
    pub(crate) control: Control,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) inbox: Inbox,
    pub(crate) copier: OnceLock<Copier>,
    /// Connections to other nodes.
    pub(crate) remotes: remote::Remotes,
    pub(crate) spares: Spares,
    /// After a crash of the daemon: when importers must have claimed their links again.
    claims_end: Mutex<Option<Instant>>,
}

/// An incoming link, and the export that it is to.
type Incoming = (Arc<ExportInner>, Arc<IncomingLink>);

/// What the daemon and we both know. Never locked while user code runs or while waiting.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) exports: HashMap<ExportId, Arc<ExportInner>>,
    pub(crate) imports: HashMap<LinkId, Arc<ImportInner>>,
    pub(crate) incoming: HashMap<LinkId, Incoming>,
    pub(crate) peers: HashMap<ClientId, Known>,
    /// Exports that may still count a process in that has no link to them any more.
    pub(crate) idling: HashSet<ExportId>,
    /// Incoming links of exports that want notifications: what collecting looks at.
    pub(crate) listening: Arc<BTreeMap<LinkId, Incoming>>,
}

impl Tables {
    /// Files an incoming link under another number.
    fn renumber(&mut self, from: LinkId, to: LinkId) {
        let Some((export, link)) = self.incoming.remove(&from) else { return };
        link.set_id(to);
        if self.listening.contains_key(&from) {
            let listening = Arc::make_mut(&mut self.listening);
            listening.remove(&from);
            listening.insert(to, (export.clone(), link.clone()));
        }
        self.incoming.insert(to, (export, link));
    }
}

/// Which look of a wait it is; see [`Node::wait_until`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// One of many while the wait spins.
    Quick,
    /// The last one before the wait sleeps.
    Complete,
}

/// Another process that we have had a link with.
#[derive(Debug)]
pub(crate) enum Known {
    /// The daemon counts on our keeping it until [`Event::PeerGone`].
    ///
    /// [`Event::PeerGone`]: crate::control::message::Event::PeerGone
    Introduced(Arc<Peer>),
    /// By a daemon that crashed: kept by the links alone.
    Before(Weak<Peer>),
}

impl Known {
    fn peer(&self) -> Option<Arc<Peer>> {
        match self {
            Known::Introduced(peer) => Some(peer.clone()),
            Known::Before(peer) => peer.upgrade(),
        }
    }

    /// The daemon that introduced it is no more.
    fn let_go(&mut self) {
        if let Known::Introduced(peer) = self {
            *self = Known::Before(Arc::downgrade(peer));
        }
    }

    /// Whether there is still something to know.
    fn lives(&self) -> bool {
        match self {
            Known::Introduced(_) => true,
            Known::Before(peer) => peer.strong_count() > 0,
        }
    }
}

/// Settings for a [`Node`] that are not the environment's.
#[derive(Debug)]
pub struct NodeBuilder {
    config: Option<Config>,
    program: Option<String>,
}

impl NodeBuilder {
    /// Uses these settings and not the environment.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Name of the program as `shrimp stat` shows it; by default the file name.
    #[must_use]
    pub fn program(mut self, name: impl Into<String>) -> Self {
        self.program = Some(name.into());
        self
    }

    /// Connects; see [`Node::connect`].
    ///
    /// # Errors
    /// As [`Node::connect`].
    pub fn connect(self) -> Result<Node, ConnectError> {
        let config = match self.config {
            Some(config) => config,
            None => Config::from_env()?,
        };
        let os = |error: SystemError| ConnectError::System { call: error.call, errno: error.errno };
        membarrier::register();
        let local = Arc::new(Local::new().map_err(os)?);
        let program = self.program.unwrap_or_else(program_name);
        let (control, welcome) = Control::connect(&config, &local, Role::Process, program)?;
        let policy = config.wait_policy(Duration::from_nanos(welcome.wake_cost_ns));
        let inner = Arc::new(NodeInner {
            local,
            config,
            policy,
            control,
            tables: Mutex::default(),
            inbox: Inbox::default(),
            copier: OnceLock::new(),
            remotes: remote::Remotes::default(),
            spares: Spares::default(),
            claims_end: Mutex::default(),
        });
        threads::start_control(&inner)
            .map_err(|errno| ConnectError::System { call: "control thread", errno })?;
        Ok(Node { inner })
    }
}

fn program_name() -> String {
    let name = std::env::current_exe()
        .ok()
        .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
        .unwrap_or_default();
    name.chars().take(15).collect()
}

impl Node {
    /// Connects to the daemon that the environment names (see [`crate::config::TABLE`]), starting the
    /// user's own if there is none. Blocks for milliseconds; makes a thread that listens to the
    /// daemon.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect() -> Result<Node, ConnectError> {
        Node::builder().connect()
    }

    /// Connects with settings of one's own.
    #[must_use]
    pub fn builder() -> NodeBuilder {
        NodeBuilder { config: None, program: None }
    }

    /// Starts exporting a region: name it, say who may use it, and open it.
    pub fn export(&self, region: Region) -> ExportBuilder {
        ExportBuilder::new(self.inner.clone(), region)
    }

    /// Starts importing what another process exports under `name`.
    pub fn import(&self, name: impl Into<Name>) -> ImportBuilder {
        ImportBuilder::new(self.inner.clone(), name.into())
    }

    /// This process's number at the daemon.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.inner.control.welcome().client
    }

    /// This process's counters; others see them through `shrimp stat`.
    #[inline]
    #[must_use]
    pub fn counters(&self) -> Counters<'_> {
        self.inner.local.meter.0
    }

    /// How this process waits.
    #[inline]
    #[must_use]
    pub fn wait_policy(&self) -> WaitPolicy {
        self.inner.policy
    }

    /// Runs the handlers of the notifications that have arrived, in this thread, without waiting.
    /// Returns how many ran: 0 also while notifications are blocked, or a handler runs elsewhere.
    pub fn dispatch(&self) -> usize {
        if self.inner.local.check().is_err() {
            return 0;
        }
        self.inner.local.hub.disarm_outside();
        self.inner.dispatch()
    }

    /// Waits until `done` says so, running handlers in this thread meanwhile. `done` is asked at
    /// every turn and should only look.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], [`WaitError::Forked`].
    pub fn run_until(
        &self,
        mut done: impl FnMut() -> bool,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        self.inner.wait_until(
            timeout,
            |_| false,
            |_| {
                if self.inner.inbox_has_work() {
                    self.inner.dispatch();
                }
                done().then_some(Ok(()))
            },
        )
    }

    /// Waits until `look` finds something: in a word of any export, import or binding, or of
    /// several, or in values of this process. Spins and then sleeps by this node's policy; does not
    /// spin on when `shares_cpu` says that a processor (ours) is where the awaited peer was last
    /// seen ([`crate::Import::peer_was_on`], [`crate::Binding::peer_was_on`]). `look` is asked often
    /// and must not wait. [`Look::Quick`] may leave some places out; [`Look::Complete`] is the one
    /// after the doorbell was armed: what is overlooked then is not noticed before something rings.
    /// Peers end the sleep by signalling a flag or by [`crate::Binding::ring`], threads of this
    /// process by [`Node::wake_waiters`]. Handlers of notifications may run in this thread before it
    /// sleeps, and not while it spins.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], [`WaitError::System`], [`WaitError::Forked`].
    #[inline]
    pub fn wait_until<T>(
        &self,
        timeout: Option<Duration>,
        shares_cpu: impl Fn(u32) -> bool,
        mut look: impl FnMut(Look) -> Option<T>,
    ) -> Result<T, WaitError> {
        self.inner.wait_until(timeout, shares_cpu, |kind| look(kind).map(Ok))
    }

    /// The first looks of [`Node::wait_until`] and no more: no clock, no system call, no handlers. For
    /// waits that mostly end here, whose callers have what was found at hand at once. `None`: go on
    /// with [`Node::wait_until`]. Under [`WaitPolicy::Block`] it does not look at all.
    #[inline(always)]
    pub fn glance<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        self.inner.glance(look)
    }

    /// Makes every thread of this process that sleeps in a wait look again, after something that it
    /// waits for has changed within the process. A system call when one sleeps.
    pub fn wake_waiters(&self) {
        if self.inner.local.check().is_ok() {
            self.inner.local.hub.wake_all();
        }
    }

    /// A descriptor for an event loop (epoll, poll, an async runtime): readable when there may be
    /// notifications. The protocol is
    ///
    /// ```text
    /// loop {
    ///     node.dispatch();
    ///     if node.arm()? { wait for the descriptor to be readable }
    /// }
    /// ```
    ///
    /// [`Node::arm`] says false when something has arrived meanwhile. Senders ring only while
    /// armed, so an event loop that does not arm is not woken.
    ///
    /// # Errors
    /// [`SystemError`] when there is no descriptor left; made at the first call.
    pub fn as_fd(&self) -> Result<BorrowedFd<'_>, SystemError> {
        self.inner.local.hub.bell().outside_fd()
    }

    /// Whether this is the process that connected, and not one forked from it.
    ///
    /// # Errors
    /// [`Forked`].
    pub fn check(&self) -> Result<(), Forked> {
        self.inner.local.check()
    }

    /// Asks to be woken through [`Node::as_fd`]. True: sleep now. False: call [`Node::dispatch`] first, and take what is in the
    /// queues of exports that have one ([`crate::ExportBuilder::queue`]): once for what has come there since the last call, so one thread arms for
    /// all queues.
    ///
    /// # Errors
    /// [`Forked`].
    pub fn arm(&self) -> Result<bool, Forked> {
        self.inner.local.check()?;
        self.inner.local.hub.arm_outside();
        self.inner.local.page.note_cpu();
        self.inner.collect();
        // What was moved to a queue, by this or by another thread, nobody rings for any more.
        if self.inner.inbox.is_runnable() | self.inner.inbox.has_more_to_fetch() {
            self.inner.local.hub.disarm_outside();
            return Ok(false);
        }
        Ok(true)
    }

    /// Runs handlers in a thread of its own, until the returned value is dropped.
    ///
    /// # Errors
    /// [`SystemError`] when no thread can be made.
    pub fn start_handler_thread(&self) -> Result<HandlerThread, SystemError> {
        HandlerThread::start(&self.inner).map_err(system("handler thread"))
    }

    /// Blocks notifications of all buffers of this process; nests. They are queued meanwhile. A
    /// handler that runs already in another thread goes on.
    pub fn block_notifications(&self) {
        // In a forked child there are none, and the list's lock may be another thread's for good.
        if self.inner.local.check().is_ok() {
            self.inner.inbox.block();
        }
    }

    /// Undoes one [`Node::block_notifications`]. Returns 0 when that only lowered the counter, and
    /// a positive number when notifications are delivered from here on (also when none were
    /// blocked). Handlers of queued ones run where handlers run: in a dispatch, a wait, or the
    /// handler thread.
    ///
    /// # Errors
    /// [`UnblockError::InHandler`]: a handler cannot undo its own automatic block.
    pub fn unblock_notifications(&self) -> Result<u32, UnblockError> {
        self.inner.local.check()?;
        let unblocked = self.inner.inbox.unblock()?;
        if unblocked > 0 {
            self.inner.local.hub.wake_all();
        }
        Ok(unblocked)
    }

    /// Exports of this process: number, name, length, importers. None in a forked child.
    #[must_use]
    pub fn exports(&self) -> Vec<crate::export::ExportSummary> {
        if self.inner.local.check().is_err() {
            return Vec::new();
        }
        let exports: Vec<_> = self.inner.tables.lock().exports.values().cloned().collect();
        exports.iter().map(|export| export.summary()).collect()
    }

    /// The node of the importer at the other end of a link to an export of this process (see
    /// [`crate::Notification::link`]), if it is another node. `None` also when the link is closed.
    #[must_use]
    pub fn importer_node(&self, link: LinkId) -> Option<String> {
        self.inner.local.check().ok()?;
        let tables = self.inner.tables.lock();
        let (_, incoming) = tables.incoming.get(&link)?;
        incoming.importer_node().map(str::to_owned)
    }

    /// Imports of this process: number, exporter, length, rights. None in a forked child.
    #[must_use]
    pub fn imports(&self) -> Vec<crate::import::ImportSummary> {
        if self.inner.local.check().is_err() {
            return Vec::new();
        }
        let imports: Vec<_> = self.inner.tables.lock().imports.values().cloned().collect();
        let mut found: Vec<_> = imports.iter().map(|import| import.summary()).collect();
        found.extend(self.inner.remotes.imports());
        found
    }

    /// Whether the daemon is there now. Existing links work without it.
    #[must_use]
    pub fn daemon_is_connected(&self) -> bool {
        self.inner.control.is_connected()
    }

    /// What the daemon said when we connected last.
    #[must_use]
    pub fn welcome(&self) -> Welcome {
        self.inner.control.welcome()
    }
}

impl NodeInner {
    /// Whether a dispatch could do something: a cheap look for spin loops.
    pub(crate) fn inbox_has_work(&self) -> bool {
        let listening = self.tables.lock().listening.clone();
        listening.values().any(|(_, link)| link.shm.has_news()) || self.inbox.is_runnable()
    }

    /// Moves arrived notifications from the segments to private memory.
    pub(crate) fn collect(&self) -> bool {
        let listening = self.tables.lock().listening.clone();
        let mut any = false;
        for (export, link) in listening.values() {
            match self.inbox.collect(export, link, self.config.notify_backlog) {
                Ok(moved) => any |= moved,
                Err(faulty) => self.drop_faulty(faulty),
            }
        }
        any
    }

    pub(crate) fn dispatch(&self) -> usize {
        if self.inbox.in_handler() {
            return 0; // nothing is delivered before it returns
        }
        let mut delivered = 0;
        loop {
            let collected = self.collect();
            let mut any = false;
            while self.inbox.deliver_one() {
                any = true;
                delivered += 1;
            }
            if any || collected {
                // Somebody may wait for just that, or for the end of the handler.
                self.local.hub.wake_all();
            }
            if !any {
                return delivered;
            }
        }
    }

    /// See [`Node::glance`].
    #[inline(always)]
    pub(crate) fn glance<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        let found = wait::glance(self.policy, look);
        if found.is_some() {
            self.local.meter.add(count::SPIN_HITS, 1);
        }
        found
    }

    /// Waits until `look` finds something; `look` must not wait. Handlers run here before each
    /// sleep. `shares_cpu` says whether a peer was last seen on a processor.
    pub(crate) fn wait_until<T>(
        &self,
        timeout: Option<Duration>,
        shares_cpu: impl Fn(u32) -> bool,
        mut look: impl FnMut(Look) -> Option<Result<T, WaitError>>,
    ) -> Result<T, WaitError> {
        self.local.check()?;
        match self.glance(|| look(Look::Quick)) {
            Some(found) => found,
            None => self.wait_on(timeout, shares_cpu, look),
        }
    }

    /// As [`NodeInner::wait_until`], for who has had a glance, in the process that made the node.
    pub(crate) fn wait_on<T>(
        &self,
        timeout: Option<Duration>,
        shares_cpu: impl Fn(u32) -> bool,
        mut look: impl FnMut(Look) -> Option<Result<T, WaitError>>,
    ) -> Result<T, WaitError> {
        let deadline = wait::deadline_after(timeout);
        let late = || WaitError::TimedOut { after: timeout.unwrap_or_default() };
        loop {
            let (policy, for_ever) = match self.policy {
                WaitPolicy::Spin => (SPIN_SLICE, true),
                policy => (policy, false),
            };
            let shares = || !for_ever && shares_cpu(self.local.page.note_cpu());
            match wait::spin_on(policy, deadline, shares, || look(Look::Quick)) {
                Spun::Found(found) => {
                    self.local.meter.add(count::SPIN_HITS, 1);
                    return found;
                }
                Spun::Late => return look(Look::Complete).unwrap_or_else(|| Err(late())),
                Spun::Spent if for_ever => {
                    self.dispatch();
                    if let Some(found) = look(Look::Complete) {
                        return found;
                    }
                    continue;
                }
                Spun::Spent => {}
            }
            let ticket = self.local.hub.prepare();
            self.local.page.note_cpu();
            let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if let Some(found) = look(Look::Complete) {
                return found;
            }
            let moved = self.collect();
            if moved || (self.inbox.is_runnable() && !self.inbox.in_handler()) {
                drop(ticket);
                if moved {
                    self.local.hub.wake_all(); // it may be for others
                }
                self.dispatch();
                if over {
                    // However much keeps coming. What was waited for may have come with it.
                    return look(Look::Complete).unwrap_or_else(|| Err(late()));
                }
                continue;
            }
            if over {
                return Err(late());
            }
            self.local.meter.add(count::SLEEPS, 1);
            ticket.sleep(deadline).map_err(system("poll of the doorbell"))?;
        }
    }
}

impl Drop for NodeInner {
    fn drop(&mut self) {
        // In a forked child the connection is the parent's, and is not ours to shut.
        if self.local.check().is_ok() {
            self.control.shut();
            self.remotes.close();
            self.local.hub.wake_all();
        }
    }
}
