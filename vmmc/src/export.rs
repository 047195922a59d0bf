//! Exports: buffers of this process that others may import.

use crate::control::message::{CloseReason, RemoteCaller, Request};
use crate::error::{
    Closed, ExportError, FetchError, FlagError, SystemError, UnexportError, WaitDeliveredError,
    WaitError,
};
use crate::flag::{Flag, Side};
use crate::id::{ClientId, ExportId, Grant, LinkId, Name, PeerInfo, Rights, Token, Who};
use crate::layout::link;
use crate::local::Local;
use crate::mem::Region;
use crate::mem::{OutOfBounds, View};
use crate::node::NodeInner;
use crate::node::control::{Answer, Draft, Failure};
use crate::notify::{Handler, Notification};
use crate::peer::Peer;
use crate::roll::Roll;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::sys::{Fd, membarrier};
use crate::transport::shm::ShmIncoming;
use crate::word::{MappedU32, MappedU64};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What becomes of notifications for an export.
pub(crate) enum Mode {
    /// Nobody asked for any: senders need not even queue them (V19).
    Ignore,
    /// A function is called with each.
    Handler(Mutex<Handler>),
    /// The program fetches them.
    Queue(Mutex<VecDeque<(Notification, Arc<IncomingLink>)>>),
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Ignore => "Ignore",
            Mode::Handler(_) => "Handler",
            Mode::Queue(_) => "Queue",
        })
    }
}

/// Name and access list: what the daemon is told, again after it was restarted.
#[derive(Clone, Debug)]
pub(crate) struct ExportSpec {
    pub(crate) name: Name,
    pub(crate) grants: Vec<Grant>,
    pub(crate) token: Option<Token>,
}

/// An export that the daemon has not confirmed.
#[derive(Debug)]
pub(crate) struct ExportDraft {
    pub(crate) local: Arc<Local>,
    pub(crate) spec: ExportSpec,
    pub(crate) file: Arc<Fd>,
    pub(crate) len: usize,
    pub(crate) mode: Mode,
}

/// An export as the tables have it.
#[derive(Debug)]
pub(crate) struct ExportInner {
    pub(crate) local: Arc<Local>,
    /// Changes only when a restarted daemon gives another.
    id: AtomicU64,
    pub(crate) spec: ExportSpec,
    /// The region's memory file, to announce it again.
    pub(crate) file: Arc<Fd>,
    pub(crate) len: usize,
    pub(crate) mode: Mode,
    /// False while notifications are discarded.
    pub(crate) accepting: AtomicBool,
    /// Handlers run so far.
    pub(crate) delivered: AtomicU64,
    pub(crate) links: Mutex<Vec<Arc<IncomingLink>>>,
    /// What [`Export::disable`] is in force for, in units of pages; locked after `links`.
    pub(crate) disabled: Mutex<Vec<std::ops::Range<usize>>>,
    /// Whom to wake when a word of the buffer changes: the peers of `links`.
    roll: Roll,
    ends: Ends,
}

/// Links that ended by death or fault. A wait reports an end that no wait reported before.
#[derive(Debug, Default)]
struct Ends {
    count: AtomicU64,
    reported: AtomicU64,
    last: Mutex<Option<Closed>>,
}

/// One importer of an export.
#[derive(Debug)]
pub(crate) struct IncomingLink {
    id: AtomicU64,
    pub(crate) shm: ShmIncoming,
    pub(crate) peer: Arc<Peer>,
    /// A process of another node, if `peer` is our node's interface.
    behalf: Option<RemoteCaller>,
    rights: Rights,
    /// Its notifications in the inbox or the export's queue.
    pub(crate) queued: AtomicUsize,
    /// False while a daemon that forgot the link has not heard of it from the importer.
    pub(crate) confirmed: AtomicBool,
}

impl IncomingLink {
    pub(crate) fn new(
        id: LinkId,
        shm: ShmIncoming,
        peer: Arc<Peer>,
        behalf: Option<RemoteCaller>,
        rights: Rights,
    ) -> Self {
        IncomingLink {
            id: AtomicU64::new(id.0),
            shm,
            peer,
            behalf,
            rights,
            queued: AtomicUsize::new(0),
            confirmed: AtomicBool::new(true),
        }
    }

    pub(crate) fn id(&self) -> LinkId {
        LinkId(self.id.load(Ordering::Relaxed))
    }

    pub(crate) fn set_id(&self, id: LinkId) {
        self.id.store(id.0, Ordering::Relaxed);
    }

    /// Who imports: the remote process, if our node's interface does it for one.
    pub(crate) fn importer(&self) -> PeerInfo {
        match &self.behalf {
            None => self.peer.info,
            Some(RemoteCaller { client, pid, uid, gid, .. }) => {
                PeerInfo { client: *client, pid: *pid, uid: *uid, gid: *gid }
            }
        }
    }

    /// The importer's node, if it is another one.
    pub(crate) fn importer_node(&self) -> Option<&str> {
        self.behalf.as_ref().map(|behalf| behalf.node.as_str())
    }

    fn summary(&self) -> Importer {
        let node = self.importer_node().map(str::to_owned);
        Importer { peer: self.importer(), node, link: self.id(), rights: self.rights }
    }
}

impl ExportInner {
    pub(crate) fn new(id: ExportId, draft: ExportDraft) -> ExportInner {
        ExportInner {
            local: draft.local,
            id: AtomicU64::new(id.0),
            spec: draft.spec,
            file: draft.file,
            len: draft.len,
            mode: draft.mode,
            accepting: AtomicBool::new(true),
            delivered: AtomicU64::new(0),
            links: Mutex::default(),
            disabled: Mutex::default(),
            roll: Roll::default(),
            ends: Ends::default(),
        }
    }

    pub(crate) fn id(&self) -> ExportId {
        ExportId(self.id.load(Ordering::Relaxed))
    }

    pub(crate) fn set_id(&self, id: ExportId) {
        self.id.store(id.0, Ordering::Relaxed);
    }

    /// Whether senders should queue notifications.
    fn wants_notifications(&self) -> bool {
        !matches!(self.mode, Mode::Ignore) && self.accepting.load(Ordering::Relaxed)
    }

    /// Whether messages or ends of links interest anybody here.
    pub(crate) fn listens(&self) -> bool {
        !matches!(self.mode, Mode::Ignore)
    }

    pub(crate) fn add_link(&self, link: &Arc<IncomingLink>) {
        link.shm.set_accept(self.wants_notifications());
        let mut links = self.links.lock();
        for units in self.disabled.lock().iter() {
            link.shm.set_disabled(units.clone(), true);
        }
        links.push(link.clone());
        self.roll.enter(&link.peer);
    }

    /// Whether [`ExportInner::forget_peer`] has something to forget from here on.
    pub(crate) fn remove_link(&self, link: &Arc<IncomingLink>, reason: CloseReason) -> bool {
        let mut links = self.links.lock();
        let before = links.len();
        links.retain(|other| !Arc::ptr_eq(other, link));
        let idles = links.len() < before && self.roll.leave(&link.peer, reason);
        drop(links);
        if matches!(reason, CloseReason::PeerDied | CloseReason::PeerFault) {
            *self.ends.last.lock() = Some(Closed { peer: link.importer(), reason });
            self.ends.count.fetch_add(1, Ordering::Release);
        }
        idles
    }

    /// A process that has no link is gone, or all such may be. Whether there is one still.
    pub(crate) fn forget_peer(&self, gone: Option<ClientId>) -> bool {
        self.roll.forget(gone)
    }

    /// Wakes the importers that sleep.
    #[inline]
    pub(crate) fn wake_importers(&self) {
        self.roll.read(|peers| {
            for peer in peers {
                peer.wake();
            }
        });
    }

    /// For waits: ends reported before this one began.
    pub(crate) fn ends_reported(&self) -> u64 {
        self.ends.reported.load(Ordering::Relaxed)
    }

    /// Whether a link ended since then.
    #[inline]
    pub(crate) fn has_end_since(&self, reported: u64) -> bool {
        self.ends.count.load(Ordering::Acquire) != reported
    }

    pub(crate) fn last_end(&self) -> Option<Closed> {
        *self.ends.last.lock()
    }

    /// A wait has reported the ends so far.
    pub(crate) fn report_ends(&self) {
        self.ends.reported.store(self.ends.count.load(Ordering::Acquire), Ordering::Relaxed);
    }

    pub(crate) fn shares_cpu(&self, cpu: u32) -> bool {
        self.roll.read(|peers| peers.iter().take(4).any(|peer| peer.was_on(cpu)))
    }

    pub(crate) fn summary(&self) -> ExportSummary {
        ExportSummary {
            export: self.id(),
            name: self.spec.name.clone(),
            len: self.len,
            importers: self.links.lock().iter().map(|link| link.summary()).collect(),
        }
    }
}

/// One importer of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Importer {
    /// Who. Of a process of another node, number and process id are that node's, the user is whom it
    /// counts as here.
    pub peer: PeerInfo,
    /// Its node, if it is another one.
    pub node: Option<String>,
    /// Its link.
    pub link: LinkId,
    /// What it may do.
    pub rights: Rights,
}

/// One export of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    /// Its number.
    pub export: ExportId,
    /// Its name.
    pub name: Name,
    /// Its length in bytes.
    pub len: usize,
    /// Who imports it now.
    pub importers: Vec<Importer>,
}

/// An export in the making; see [`crate::Node::export`].
#[derive(Debug)]
#[must_use]
pub struct ExportBuilder {
    node: Arc<NodeInner>,
    region: Region,
    name: Option<Name>,
    grants: Vec<Grant>,
    token: Option<Token>,
    mode: Mode,
}

impl ExportBuilder {
    pub(crate) fn new(node: Arc<NodeInner>, region: Region) -> ExportBuilder {
        ExportBuilder {
            node,
            region,
            name: None,
            grants: Vec::new(),
            token: None,
            mode: Mode::Ignore,
        }
    }

    /// The name: a text, unique on the node, or a number, unique in this process (V7).
    pub fn name(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Lets `who` do `rights`. May be repeated; without any, nobody can import.
    pub fn grant(mut self, who: Who, rights: Rights) -> Self {
        self.grants.push(Grant { who, rights });
        self
    }

    /// Asks importers for a secret, on top of a grant.
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Calls `handler` with each notification (V19), and with the end of each link (V26). It runs in the
    /// thread that dispatches (see [`crate::Node::dispatch`]), after the data is in memory, one
    /// handler at a time in the process; it may send and signal, and should be brief.
    pub fn handler(mut self, handler: impl FnMut(Notification) + Send + 'static) -> Self {
        self.mode = Mode::Handler(Mutex::new(Box::new(handler)));
        self
    }

    /// Keeps notifications for [`Export::next_notification`]. They are fetched, not delivered, so
    /// [`crate::Node::block_notifications`] does not concern them.
    pub fn queue(mut self) -> Self {
        self.mode = Mode::Queue(Mutex::default());
        self
    }

    /// Makes the export known. Blocks until the daemon has answered.
    ///
    /// # Errors
    /// See [`ExportError`]; the region is dropped.
    pub fn open(self) -> Result<Export, ExportError> {
        self.node.local.check()?;
        let name = self.name.ok_or(ExportError::NoName)?;
        let spec = ExportSpec { name, grants: self.grants, token: self.token };
        let draft = ExportDraft {
            local: self.node.local.clone(),
            spec: spec.clone(),
            file: self.region.file().clone(),
            len: self.region.len(),
            mode: self.mode,
        };
        let (file, len) = (draft.file.clone(), draft.len as u64);
        let make = |request| spec.request(request, len, None);
        let control = &self.node.control;
        let _quiet = control.quiet();
        let id = control.ask(&self.node, make, vec![file], Draft::Export(Box::new(draft)));
        match control.answer(&self.node, id, None) {
            Some(Answer::Exported(inner)) => {
                Ok(Export { node: self.node, inner, region: Some(self.region) })
            }
            Some(Answer::Refused(refusal)) => Err(refusal.into()),
            Some(Answer::Failed(Failure::Daemon(error))) => Err(error.into()),
            _ => {
                Err(crate::error::DaemonError::Nonsense { what: "something else to Export" }.into())
            }
        }
    }
}

impl ExportSpec {
    pub(crate) fn request(
        &self,
        request: crate::id::RequestId,
        len: u64,
        restore: Option<ExportId>,
    ) -> Request {
        Request::Export {
            request,
            name: self.name.clone(),
            len,
            grants: self.grants.clone(),
            token: self.token,
            restore,
        }
    }
}

/// A buffer of this process that others write into. Dropping it unexports.
#[derive(Debug)]
pub struct Export {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) inner: Arc<ExportInner>,
    /// `None` only after the region was taken out by `unexport`.
    region: Option<Region>,
}

impl Export {
    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Its number at the daemon.
    #[must_use]
    pub fn id(&self) -> ExportId {
        self.inner.id()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.inner.spec.name
    }

    /// The buffer. Importers write to it at any time.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        match &self.region {
            Some(region) => region.view(),
            None => unreachable!("only unexport takes the region, and the export with it"),
        }
    }

    /// Copies the bytes at `offset` into `target`.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), OutOfBounds> {
        self.view().read(offset, target)?;
        if self.node.local.check().is_err() {
            return Ok(()); // a forked child sees the shared bytes; the counters are its parent's
        }
        self.inner.local.meter.add(crate::counters::index::COPIED_BYTES, target.len() as u64);
        Ok(())
    }

    /// Copies `source` to `offset`, where importers with [`Rights::READ`] or bindings see it.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), OutOfBounds> {
        self.view().write(offset, source)
    }

    /// The 32-bit flag word at `offset`.
    ///
    /// # Errors
    /// [`FlagError::OutOfBounds`] also when it is not 4-byte aligned.
    pub fn flag32(&self, offset: usize) -> Result<Flag<'_, MappedU32<'_>>, FlagError> {
        Ok(Flag::new(self.view().word32(offset)?, Side::Export(self)))
    }

    /// The 64-bit flag word at `offset`.
    ///
    /// # Errors
    /// [`FlagError::OutOfBounds`] also when it is not 8-byte aligned.
    pub fn flag64(&self, offset: usize) -> Result<Flag<'_, MappedU64<'_>>, FlagError> {
        Ok(Flag::new(self.view().word64(offset)?, Side::Export(self)))
    }

    /// Wakes the importers that sleep, after stores that did not go through a [`Flag`].
    pub fn ring(&self) {
        if self.node.local.check().is_ok() {
            self.inner.wake_importers();
        }
    }

    /// Who imports it now.
    #[must_use]
    pub fn importers(&self) -> Vec<Importer> {
        self.inner.summary().importers
    }

    /// Waits until at least `count` processes import it.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`].
    pub fn wait_importers(&self, count: usize, timeout: Option<Duration>) -> Result<(), WaitError> {
        self.node.wait_until(
            timeout,
            |_| false,
            |_| (self.inner.links.lock().len() >= count).then_some(Ok(())),
        )
    }

    /// Stops notifications for this buffer: those sent from here on, and those that no handler has
    /// seen, are dropped (V23). Others are not concerned.
    pub fn discard_notifications(&self) {
        if self.node.local.check().is_err() {
            return; // a forked child has none
        }
        self.inner.accepting.store(false, Ordering::Relaxed);
        self.tell_accept();
        self.node.collect();
        self.node.inbox.purge_messages(&self.inner);
    }

    /// Accepts notifications again. What was sent meanwhile is not delivered.
    pub fn accept_notifications(&self) {
        if self.node.local.check().is_err() {
            return; // a forked child has none
        }
        self.node.collect(); // drops what is in the segments
        self.inner.accepting.store(true, Ordering::Relaxed);
        self.tell_accept();
    }

    fn tell_accept(&self) {
        for link in self.inner.links.lock().iter() {
            link.shm.set_accept(self.inner.wants_notifications());
        }
    }

    /// The next notification, if the export was opened with [`ExportBuilder::queue`] and there is one.
    ///
    /// # Errors
    /// [`FetchError::NoQueue`]; [`FetchError::Wait`] in a forked child.
    pub fn try_next_notification(&self) -> Result<Option<Notification>, FetchError> {
        self.node.local.check().map_err(WaitError::from)?;
        let Mode::Queue(queue) = &self.inner.mode else { return Err(FetchError::NoQueue) };
        if let Some(next) = self.pop(queue) {
            return Ok(Some(next));
        }
        self.node.collect();
        Ok(self.pop(queue))
    }

    fn pop(
        &self,
        queue: &Mutex<VecDeque<(Notification, Arc<IncomingLink>)>>,
    ) -> Option<Notification> {
        let (next, link) = queue.lock().pop_front()?;
        link.queued.fetch_sub(1, Ordering::Relaxed);
        self.inner.local.meter.add(crate::counters::index::NOTIFIES_DELIVERED, 1);
        Some(next)
    }

    /// Waits for the next notification of this export, whatever arrives for others (V24).
    ///
    /// # Errors
    /// [`FetchError::NoQueue`] unless opened with [`ExportBuilder::queue`];
    /// [`FetchError::Wait`] for a timeout.
    pub fn next_notification(&self, timeout: Option<Duration>) -> Result<Notification, FetchError> {
        let Mode::Queue(queue) = &self.inner.mode else { return Err(FetchError::NoQueue) };
        let links = || self.inner.links.lock().iter().any(|link| link.shm.has_news());
        Ok(self.node.wait_until(
            timeout,
            |cpu| self.inner.shares_cpu(cpu),
            |_| {
                if let Some(next) = self.pop(queue) {
                    return Some(Ok(next));
                }
                if links() {
                    self.node.collect();
                }
                self.pop(queue).map(Ok)
            },
        )?)
    }

    /// How many times the handler has run. For [`Export::wait_delivered`].
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.inner.delivered.load(Ordering::Acquire)
    }

    /// Waits until the handler of this export has run more than `since` times, and returns how many
    /// (V24). Handlers run meanwhile, in this thread unless there is a handler thread. Nothing is lost
    /// between a call of [`Export::delivered`] and this.
    ///
    /// # Errors
    /// [`WaitDeliveredError::InHandler`]: no handler runs until this one returns.
    pub fn wait_delivered(
        &self,
        since: u64,
        timeout: Option<Duration>,
    ) -> Result<u64, WaitDeliveredError> {
        if self.node.inbox.in_handler() {
            return Err(WaitDeliveredError::InHandler);
        }
        Ok(self.node.wait_until(
            timeout,
            |cpu| self.inner.shares_cpu(cpu),
            |_| {
                if self.node.inbox_has_work() {
                    self.node.dispatch();
                }
                let now = self.delivered();
                (now > since).then_some(Ok(now))
            },
        )?)
    }

    /// Withdraws the export and gives the memory back, private again, with its contents.
    ///
    /// Waits for transfers in progress, `VMMC_DRAIN_MS` at most; pending notifications are moved to this
    /// process and will still be delivered (V8). Then the pages are swapped: an importer that
    /// kept its mapping reaches nobody. This process must not store to the buffer meanwhile.
    ///
    /// # Errors
    /// [`UnexportError::System`] when there is no memory for the new pages;
    /// [`UnexportError::Forked`].
    pub fn unexport(mut self) -> Result<Region, UnexportError> {
        self.node.local.check()?;
        let Some(mut region) = self.region.take() else {
            unreachable!("only unexport takes the region, and the export with it")
        };
        match self.node.withdraw(&self.inner, &mut region) {
            Ok(()) => Ok(region),
            Err(error) => {
                std::mem::forget(region); // see UnexportError::System
                Err(error.into())
            }
        }
    }

    pub(crate) fn node(&self) -> &NodeInner {
        &self.node
    }

    pub(crate) fn inner(&self) -> &Arc<ExportInner> {
        &self.inner
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let Some(mut region) = self.region.take() else { return };
        if self.node.local.check().is_ok() && self.node.withdraw(&self.inner, &mut region).is_err()
        {
            std::mem::forget(region); // as in `unexport`
        }
    }
}

impl NodeInner {
    /// Unexport, step by step; see the module comment of [`crate::transport::shm::busy`].
    /// Waits until no transfer that began before is in progress, `VMMC_DRAIN_MS` at most.
    pub(crate) fn drain(&self, links: &[Arc<IncomingLink>]) {
        let give_up = Instant::now() + self.config.drain;
        for link in links {
            // An importer that has died, or has closed the link, is in no transfer, whatever its
            // slots say: the control thread takes its link out of the table.
            let is_known = || self.tables.lock().incoming.contains_key(&link.id());
            while !link.shm.is_idle() && is_known() && Instant::now() < give_up {
                std::thread::yield_now();
            }
        }
    }

    fn withdraw(&self, export: &Arc<ExportInner>, region: &mut Region) -> Result<(), SystemError> {
        // After the answer no link of it is opened any more. A daemon that is gone opens none.
        let id = export.id();
        let answer = self.control.call(self, |request| Request::Unexport { request, export: id });
        let mut tables = self.tables.lock();
        tables.exports.remove(&export.id());
        tables.idling.remove(&export.id());
        drop(tables);

        let links = export.links.lock().clone();
        if matches!(answer, Answer::Unexported { untouched: true }) && links.is_empty() {
            return Ok(()); // no other process ever had the pages
        }
        for link in &links {
            link.shm.set_state(link::CLOSING);
        }
        if !links.is_empty() {
            membarrier::heavy();
        }
        self.drain(&links);
        let swapped = region.revoke();
        for link in &links {
            link.shm.set_state(link::REVOKED);
            self.close_incoming(export, link, CloseReason::Unexported);
        }
        self.control.tell(Request::Revoked { export: export.id() });
        self.local.hub.wake_all();
        swapped
    }
}
