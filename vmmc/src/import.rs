//! Imports: other processes' buffers that this one may write into.

use crate::binding::{Binding, Initial};
use crate::control::message::{CloseReason, RemoteCaller, Request};
use crate::error::{
    BindError, Closed, DaemonError, FlagError, ImportError, NotGranted, ReadError, SendError,
    SendNotifyError, StartSendError, TrySendError, UnimportError, WaitError,
};
use crate::flag::{Flag, Side};
use crate::id::{ExportId, LinkId, Name, PeerInfo, RequestId, Rights, Token};
use crate::local::Local;
use crate::mem::{Lent, View};
use crate::node::NodeInner;
use crate::node::control::{Answer, Draft, Failure};
use crate::node::remote::Asked;
use crate::notify::{Handler, Notification};
use crate::peer::Peer;
use crate::send::Completion;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::sys::Fd;
use crate::transport::net::NetOutgoing;
use crate::transport::route::Route;
use crate::transport::shm::segment::LinkSegment;
use crate::transport::{Entry, Outgoing, TransportError};
use crate::wait::deadline_after;
use crate::word::{MappedU32, MappedU64};
use std::io::IoSlice;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was asked for; told to the daemon again after it was restarted.
#[derive(Clone, Debug)]
pub(crate) struct ImportSpec {
    pub(crate) process: Option<u32>,
    pub(crate) name: Name,
    pub(crate) rights: Rights,
    pub(crate) token: Option<Token>,
    /// Set by a node's interface: whose rights count.
    pub(crate) caller: Option<RemoteCaller>,
}

impl ImportSpec {
    pub(crate) fn request(
        &self,
        request: RequestId,
        timeout_ms: u32,
        restore: Option<LinkId>,
    ) -> Request {
        if let Some(caller) = self.caller.clone() {
            return Request::ImportFor {
                request,
                caller,
                process: self.process,
                name: self.name.clone(),
                rights: self.rights,
                token: self.token,
                timeout_ms,
            };
        }
        Request::Import {
            request,
            process: self.process,
            name: self.name.clone(),
            rights: self.rights,
            token: self.token,
            timeout_ms,
            restore,
        }
    }
}

/// An import that the daemon has not granted.
pub(crate) struct ImportDraft {
    pub(crate) local: Arc<Local>,
    pub(crate) spec: ImportSpec,
    pub(crate) segment: LinkSegment,
    pub(crate) segment_file: Arc<Fd>,
    pub(crate) handler: Option<Mutex<Handler>>,
}

impl std::fmt::Debug for ImportDraft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportDraft").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// What an import keeps of its draft: process, request, link segment, handler.
type ImportParts = (Arc<Local>, ImportSpec, Option<Arc<Fd>>, Option<Mutex<Handler>>);

/// An import as the tables have it.
pub(crate) struct ImportInner {
    pub(crate) link: Route,
    pub(crate) local: Arc<Local>,
    pub(crate) peer: Arc<Peer>,
    id: AtomicU64,
    pub(crate) export: ExportId,
    pub(crate) spec: ImportSpec,
    /// `None` for an export of another node.
    pub(crate) segment_file: Option<Arc<Fd>>,
    pub(crate) handler: Option<Mutex<Handler>>,
    pub(crate) bindings: AtomicUsize,
    /// Non-blocking sends not completed yet.
    pub(crate) started: AtomicUsize,
}

impl std::fmt::Debug for ImportInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportInner").field("id", &self.id()).field("link", &self.link).finish()
    }
}

impl ImportInner {
    pub(crate) fn new(
        id: LinkId,
        export: ExportId,
        link: Route,
        peer: Arc<Peer>,
        parts: ImportParts,
    ) -> ImportInner {
        let (local, spec, segment_file, handler) = parts;
        ImportInner {
            link,
            local,
            peer,
            id: AtomicU64::new(id.0),
            export,
            spec,
            segment_file,
            handler,
            bindings: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
        }
    }

    pub(crate) fn id(&self) -> LinkId {
        LinkId(self.id.load(Ordering::Relaxed))
    }

    pub(crate) fn set_id(&self, id: LinkId) {
        self.id.store(id.0, Ordering::Relaxed);
    }

    pub(crate) fn summary(&self) -> ImportSummary {
        ImportSummary {
            link: self.id(),
            export: self.export,
            name: self.spec.name.clone(),
            len: self.link.len(),
            rights: self.link.rights(),
            exporter: self.peer.info,
            closed: self.check_open().err(),
        }
    }

    #[inline]
    pub(crate) fn need(&self, needed: Rights) -> Result<(), NotGranted> {
        let granted = self.link.rights();
        if granted.contains(needed) { Ok(()) } else { Err(NotGranted { needed, granted }) }
    }

    /// As the transport says; in a forked child, where the link's words are not mapped, the import
    /// is gone.
    pub(crate) fn check_open(&self) -> Result<(), Closed> {
        match self.local.check() {
            Ok(()) => self.link.check_open(),
            Err(_) => Err(Closed { peer: self.peer.info, reason: CloseReason::Unimported }),
        }
    }

    #[inline]
    pub(crate) fn may_send(&self) -> Result<(), SendError> {
        self.local.check()?;
        Ok(self.need(Rights::WRITE)?)
    }
}

/// One import of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportSummary {
    /// Its number.
    pub link: LinkId,
    /// Number of the export.
    pub export: ExportId,
    /// The name it was imported by.
    pub name: Name,
    /// Its length in bytes.
    pub len: usize,
    /// What it may do.
    pub rights: Rights,
    /// Who exports.
    pub exporter: PeerInfo,
    /// Why it is closed, if it is.
    pub closed: Option<Closed>,
}

/// An import in the making; see [`crate::Node::import`].
#[must_use]
pub struct ImportBuilder {
    node: Arc<NodeInner>,
    spec: ImportSpec,
    /// The exporter's node, when it is another one.
    remote: Option<String>,
    timeout: Option<Duration>,
    handler: Option<Handler>,
}

impl std::fmt::Debug for ImportBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportBuilder").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl ImportBuilder {
    pub(crate) fn new(node: Arc<NodeInner>, name: Name) -> ImportBuilder {
        let spec =
            ImportSpec { process: None, name, rights: Rights::WRITE, token: None, caller: None };
        ImportBuilder { node, spec, remote: None, timeout: None, handler: None }
    }

    /// The exporting process; needed with a number, which is unique per process only.
    pub fn process(mut self, pid: u32) -> Self {
        self.spec.process = Some(pid);
        self
    }

    /// The exporter's node, by its name in the cluster file of this node's daemon; this node unless said
    /// otherwise. What is the same and what is not over the network: [`crate::transport::net`].
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.remote = Some(name.into());
        self
    }

    /// Imports in the name of a process of another node: the rights are those of `caller`. For a
    /// node's network interface, which the daemon knows; anybody else is cut off.
    pub fn on_behalf_of(mut self, caller: RemoteCaller) -> Self {
        self.spec.caller = Some(caller);
        self
    }

    /// What the import is for; [`Rights::WRITE`] unless said otherwise. All are granted or none.
    pub fn rights(mut self, rights: Rights) -> Self {
        self.spec.rights = rights;
        self
    }

    /// The secret that the exporter asks for.
    pub fn token(mut self, token: Token) -> Self {
        self.spec.token = Some(token);
        self
    }

    /// How long to wait for the export to appear (V1); without this, for ever. Zero: do not wait.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Calls `handler` when the link closes: the exporter unexported or died (V26).
    pub fn handler(mut self, handler: impl FnMut(Notification) + Send + 'static) -> Self {
        self.handler = Some(Box::new(handler));
        self
    }

    /// Imports; blocks until the name is exported or the timeout is over.
    ///
    /// # Errors
    /// See [`ImportError`]. Nothing is mapped then.
    pub fn open(self) -> Result<Import, ImportError> {
        self.node.local.check()?;
        let _quiet = self.node.control.quiet();
        self.start()?.wait()
    }

    /// Starts importing and returns at once.
    ///
    /// # Errors
    /// [`ImportError::System`], [`ImportError::Forked`]; all else comes later.
    pub fn start(self) -> Result<PendingImport, ImportError> {
        self.node.local.check()?;
        let timeout_ms = match self.timeout {
            None => u32::MAX,
            Some(timeout) => u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
        };
        if let Some(remote) = self.remote {
            let asked = Asked::ask(&self.node, remote, self.spec, timeout_ms, self.handler)?;
            let wanted = Some(Wanted::Elsewhere(Box::new(asked)));
            return Ok(PendingImport { node: self.node, wanted, done: None, failed: None });
        }
        let (segment, file) = LinkSegment::create()?;
        let segment_file = Arc::new(file);
        let draft = ImportDraft {
            local: self.node.local.clone(),
            spec: self.spec.clone(),
            segment,
            segment_file: segment_file.clone(),
            handler: self.handler.map(Mutex::new),
        };
        let spec = self.spec;
        let request = self.node.control.ask(
            &self.node,
            |request| spec.request(request, timeout_ms, None),
            vec![segment_file],
            Draft::Import(Box::new(draft)),
        );
        let wanted = Some(Wanted::Here(request));
        Ok(PendingImport { node: self.node, wanted, done: None, failed: None })
    }
}

/// An import that may not be granted yet. Dropping it cancels.
#[derive(Debug)]
#[must_use]
pub struct PendingImport {
    node: Arc<NodeInner>,
    /// `None` once it was answered.
    wanted: Option<Wanted>,
    done: Option<Import>,
    /// Told again to whoever asks again.
    failed: Option<ImportError>,
}

/// Who is to answer.
#[derive(Debug)]
enum Wanted {
    /// This node's daemon.
    Here(RequestId),
    /// Another node's.
    Elsewhere(Box<Asked>),
}

impl PendingImport {
    /// Length of the buffer in bytes; 0 until the import is granted.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // 0 says "not yet", not "empty"
    pub fn len(&self) -> usize {
        self.done.as_ref().map_or(0, Import::len)
    }

    /// Whether it is granted by now; does not wait.
    ///
    /// # Errors
    /// See [`ImportError`]; the import has failed then, and every later call says so.
    pub fn poll(&mut self) -> Result<bool, ImportError> {
        self.wait_for(Some(Duration::ZERO))
    }

    /// Waits until it is granted, or `timeout` is over: then false, and the import goes on.
    ///
    /// # Errors
    /// See [`ImportError`]; the import has failed then, and every later call says so.
    pub fn wait_for(&mut self, timeout: Option<Duration>) -> Result<bool, ImportError> {
        let Some(wanted) = self.wanted.take() else {
            return self.failed.clone().map_or(Ok(self.done.is_some()), Err);
        };
        let outcome = self.hear(wanted, deadline_after(timeout));
        self.failed = outcome.as_ref().err().cloned();
        outcome
    }

    fn hear(&mut self, wanted: Wanted, deadline: Option<Instant>) -> Result<bool, ImportError> {
        self.node.local.check()?;
        match wanted {
            Wanted::Here(request) => {
                let Some(answer) = self.node.control.answer(&self.node, request, deadline) else {
                    self.wanted = Some(Wanted::Here(request));
                    return Ok(false);
                };
                self.done = Some(Import::from_answer(&self.node, answer)?);
            }
            Wanted::Elsewhere(asked) => {
                if !asked.is_answered(deadline)? {
                    self.wanted = Some(Wanted::Elsewhere(asked));
                    return Ok(false);
                }
                let inner = asked.finish(&self.node)?;
                let owner = Arc::new(LinkOwner { node: self.node.clone(), inner });
                self.done = Some(Import { owner });
            }
        }
        Ok(true)
    }

    /// Waits until it is granted or refused.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn wait(mut self) -> Result<Import, ImportError> {
        self.wait_for(None)?;
        self.done.take().ok_or(ImportError::Cancelled)
    }

    /// Gives it up. Nothing stays behind, also if it was granted meanwhile.
    pub fn cancel(self) {
        drop(self);
    }
}

impl Drop for PendingImport {
    fn drop(&mut self) {
        // Another node's daemon is told by the end of the conversation.
        let Some(Wanted::Here(request)) = self.wanted else { return };
        if self.node.local.check().is_err() {
            return;
        }
        self.node.control.tell(Request::CancelImport { request });
        // Granted already: taking it closes it. Granted later: the answer finds nobody, and closes it.
        if let Some(answer) = self.node.control.abandon(request) {
            drop(Import::from_answer(&self.node, answer));
        }
    }
}

/// Keeps a link; the last holder's drop closes it.
#[derive(Debug)]
pub(crate) struct LinkOwner {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) inner: Arc<ImportInner>,
}

impl Drop for LinkOwner {
    fn drop(&mut self) {
        if self.node.local.check().is_err() {
            return;
        }
        let id = self.inner.id();
        if self.node.tables.lock().imports.remove(&id).is_some() {
            self.node.control.tell(Request::CloseLink { link: id });
        }
        self.inner.link.end(CloseReason::Unimported);
    }
}

/// A buffer of another process, to send to. Dropping it ends the link, once its bindings are gone.
#[derive(Debug)]
pub struct Import {
    pub(crate) owner: Arc<LinkOwner>,
}

pub(crate) fn send_error(error: TransportError, peer: PeerInfo) -> SendError {
    match error {
        TransportError::OutOfBounds(error) => error.into(),
        TransportError::Closed(error) => error.into(),
        // Only notifications can find the queue full, and they look for it themselves.
        TransportError::QueueFull | TransportError::PeerFault(_) => {
            Closed { peer, reason: CloseReason::PeerFault }.into()
        }
    }
}

/// The last eight bytes of a message, native-endian; of a shorter one, extended with zeros.
fn last_word(message: &[u8]) -> u64 {
    match message.last_chunk::<8>() {
        Some(last) => u64::from_ne_bytes(*last),
        None => {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(message) {
                *to = *from;
            }
            u64::from_le_bytes(word)
        }
    }
}

impl Import {
    fn from_answer(node: &Arc<NodeInner>, answer: Answer) -> Result<Import, ImportError> {
        match answer {
            Answer::Imported(inner) => {
                Ok(Import { owner: Arc::new(LinkOwner { node: node.clone(), inner }) })
            }
            Answer::Refused(refusal) => Err(refusal.into()),
            Answer::Failed(Failure::Daemon(error)) => Err(error.into()),
            Answer::Failed(Failure::System(error)) => Err(error.into()),
            Answer::Failed(Failure::Segment(error)) => Err(error.into()),
            _ => Err(DaemonError::Nonsense { what: "something else to Import" }.into()),
        }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<ImportInner> {
        &self.owner.inner
    }

    pub(crate) fn node(&self) -> &NodeInner {
        &self.owner.node
    }

    /// Length in bytes: that of the export (V3).
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.inner().link.len()
    }

    /// What it may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.inner().link.rights()
    }

    /// The number of the link.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.inner().id()
    }

    /// The number of the export, at its node's daemon.
    #[must_use]
    pub fn export_id(&self) -> ExportId {
        self.inner().export
    }

    /// Who exports it.
    #[must_use]
    pub fn exporter(&self) -> PeerInfo {
        self.inner().peer.info
    }

    /// The exporter's node, if it is another one.
    #[must_use]
    pub fn remote_node(&self) -> Option<&str> {
        self.inner().link.net().map(NetOutgoing::node)
    }

    /// Whether the link still reaches the exporter.
    ///
    /// # Errors
    /// [`Closed`] with the reason when it does not; in a forked child always.
    pub fn check_open(&self) -> Result<(), Closed> {
        self.inner().check_open()
    }

    /// As [`crate::Binding::peer_was_on`].
    #[must_use]
    pub fn peer_was_on(&self, cpu: u32) -> bool {
        self.inner().local.check().is_ok() && self.inner().peer.was_on(cpu)
    }

    /// Where the buffer is mapped, for programs that store to it by pointer; `None` without
    /// [`Rights::WRITE`] or [`Rights::READ`]. Guard pages lie before and after it. Such stores are not
    /// sends: an unexport does not wait for them. In a forked child nothing is there.
    #[must_use]
    pub fn proxy_ptr(&self) -> Option<NonNull<u8>> {
        let view = self.inner().link.view();
        (!view.is_empty()).then(|| view.as_ptr())
    }

    /// Deliberate update: copies `source` to `offset` of the exporter's memory (V9). When it
    /// returns, the bytes are there and the source is free again (V15); bytes of later sends,
    /// stores of flags and notifications of this thread come after them (V13). No system call.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was written then.
    #[inline]
    pub fn send(&self, offset: usize, source: &[u8]) -> Result<(), SendError> {
        let inner = self.inner();
        inner.may_send()?;
        inner.link.write(offset, source).map_err(|error| send_error(error, inner.peer.info))
    }

    /// As [`Import::send`], and returns when these bytes, and what this thread sent before over the same
    /// link, are in the exporter's memory. Between nodes [`Import::send`] has handed them to the network when it
    /// returns; this waits for one answer, and is one packet less than a send and an [`Import::fence`].
    ///
    /// # Errors
    /// See [`SendError`]; [`SendError::Closed`] between nodes: it is not known what arrived.
    pub fn send_fenced(&self, offset: usize, source: &[u8]) -> Result<(), SendError> {
        let inner = self.inner();
        inner.may_send()?;
        inner.link.write_fenced(offset, source).map_err(|error| send_error(error, inner.peer.info))
    }

    /// As [`Import::send`], from several pieces to consecutive places.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was written then.
    pub fn send_vectored(&self, offset: usize, sources: &[IoSlice<'_>]) -> Result<(), SendError> {
        let inner = self.inner();
        inner.may_send()?;
        inner
            .link
            .write_vectored(offset, sources)
            .map_err(|error| send_error(error, inner.peer.info))
    }

    /// As [`Import::send`], from memory that other processes may write: an export of this process,
    /// a binding.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was written then.
    pub fn send_from(&self, offset: usize, source: View<'_>) -> Result<(), SendError> {
        let inner = self.inner();
        inner.may_send()?;
        inner.link.write_from(offset, source).map_err(|error| send_error(error, inner.peer.info))
    }

    /// As [`Import::send`], from any memory.
    ///
    /// # Safety
    /// `source` to `source + len` must be readable during the call.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was written then.
    #[allow(unsafe_code)] // a promise that only the caller can make
    pub unsafe fn send_raw(
        &self,
        offset: usize,
        source: NonNull<u8>,
        len: usize,
    ) -> Result<(), SendError> {
        // SAFETY: readable for the call by the caller's word; a view of it is only read.
        self.send_from(offset, unsafe { View::from_raw(source, len) })
    }

    /// [`Import::send`], then a notification (V19). Ignored by the receiver if it has no handler. Waits
    /// while the receiver's queue is full.
    ///
    /// # Errors
    /// See [`SendNotifyError`]. [`SendError::Closed`] while waiting for room: the data was written, the
    /// notification was not.
    pub fn send_with_notify(&self, offset: usize, source: &[u8]) -> Result<(), SendNotifyError> {
        let entry =
            Entry { offset: offset as u64, len: source.len() as u64, last_word: last_word(source) };
        let inner = self.inner();
        inner.may_send()?;
        if let Some(sent) = inner.link.write_notify(source, entry) {
            return Ok(sent.map_err(|error| send_error(error, inner.peer.info))?);
        }
        self.send(offset, source)?;
        self.notify_waiting(entry)
    }

    /// As [`Import::send_with_notify`], or [`TrySendError::WouldBlock`] when the receiver's queue is full:
    /// nothing was sent then, unless another thread filled the queue meanwhile.
    ///
    /// # Errors
    /// See [`TrySendError`].
    pub fn try_send_with_notify(&self, offset: usize, source: &[u8]) -> Result<(), TrySendError> {
        let inner = self.inner();
        inner.may_send()?;
        if !inner.link.may_notify() {
            return Err(TrySendError::WouldBlock);
        }
        self.send(offset, source)?;
        self.notify(Entry {
            offset: offset as u64,
            len: source.len() as u64,
            last_word: last_word(source),
        })
    }

    /// A notification of its own, for bytes that came another way (automatic update, flags): the
    /// receiver's handler sees `last_word`. Needs [`Rights::WRITE`] or [`Rights::BIND`]. Waits
    /// while the receiver's queue is full.
    ///
    /// # Errors
    /// See [`SendNotifyError`].
    pub fn send_notification(
        &self,
        offset: usize,
        len: usize,
        last_word: u64,
    ) -> Result<(), SendNotifyError> {
        let inner = self.inner();
        inner.local.check().map_err(SendError::from)?;
        if !inner.link.rights().intersects(Rights::WRITE | Rights::BIND) {
            inner.need(Rights::WRITE).map_err(SendError::from)?;
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let size = self.len();
            let outside = crate::mem::OutOfBounds { offset, len, size, align: 1 };
            return Err(SendError::from(outside).into());
        }
        self.notify_waiting(Entry { offset: offset as u64, len: len as u64, last_word })
    }

    pub(crate) fn notify(&self, entry: Entry) -> Result<(), TrySendError> {
        let inner = self.inner();
        match inner.link.notify(entry) {
            Ok(false) => Ok(()),
            Ok(true) => {
                inner.peer.wake();
                Ok(())
            }
            Err(TransportError::PeerFault(_)) => {
                self.node().drop_faulty_import(inner);
                let closed = Closed { peer: inner.peer.info, reason: CloseReason::PeerFault };
                Err(SendError::from(closed).into())
            }
            Err(TransportError::QueueFull) => Err(TrySendError::WouldBlock),
            Err(error) => Err(send_error(error, inner.peer.info).into()),
        }
    }

    fn notify_waiting(&self, entry: Entry) -> Result<(), SendNotifyError> {
        let inner = self.inner();
        loop {
            match self.notify(entry) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Send(error)) => return Err(error.into()),
                Err(TrySendError::WouldBlock) => {}
            }
            inner.local.meter.add(crate::counters::index::NOTIFY_STALLS, 1);
            inner.peer.wake();
            let shares = |cpu| inner.peer.was_on(cpu);
            let room = |_| inner.link.may_notify().then_some(Ok(()));
            match self.node().wait_until(None, shares, room) {
                Err(WaitError::System(error)) => return Err(error.into()),
                Err(WaitError::Forked(error)) => return Err(SendError::from(error).into()),
                // Room, or an end of the link, which the next attempt tells.
                _ => {}
            }
        }
    }

    /// Non-blocking deliberate update (V14): the copy is made by a helper thread, so this thread can
    /// compute meanwhile. The source is owned by the transfer until [`Completion::wait`] gives it
    /// back, so it cannot be reused too early.
    ///
    /// **Order is weaker**: the bytes may land before, after or between those of any other send,
    /// flag or notification until the completion has been waited for, or [`Import::fence`] has
    /// returned; those made afterwards come after it. Started sends of one import complete in the
    /// order in which they were started.
    ///
    /// # Errors
    /// See [`StartSendError`]: what can be known at once.
    pub fn start_send<B>(&self, offset: usize, source: B) -> Result<Completion<B>, StartSendError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let inner = self.inner();
        inner.may_send()?;
        inner.link.check_open().map_err(SendError::from)?;
        let len = source.as_ref().len();
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let size = self.len();
            let outside = crate::mem::OutOfBounds { offset, len, size, align: 1 };
            return Err(SendError::from(outside).into());
        }
        Ok(self.owner.node.engine()?.start(self.owner.clone(), offset, source))
    }

    /// Waits until all sends so far, started ones ([`Import::start_send`]) included, are in the
    /// exporter's memory. On one machine the others are when they return.
    ///
    /// # Errors
    /// [`WaitError::Forked`], [`WaitError::System`]; over a network [`WaitError::Closed`] when the
    /// link ended meanwhile, so that it is not known what arrived.
    pub fn fence(&self) -> Result<(), WaitError> {
        let inner = self.inner();
        let done = |_| (inner.started.load(Ordering::Acquire) == 0).then_some(Ok(()));
        self.node().wait_until(None, |_| false, done)?;
        inner.link.fence().map_err(WaitError::Closed)
    }

    /// Remote read: copies the bytes at `offset` of the exporter's memory into `target`, without
    /// the exporter taking part. Bytes that somebody writes meanwhile may be old or new.
    ///
    /// # Errors
    /// [`ReadError::NotGranted`] without [`Rights::READ`] (V3).
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), ReadError> {
        let inner = self.inner();
        inner.local.check()?;
        inner.need(Rights::READ)?;
        inner.link.read(offset, target).map_err(|error| match error {
            TransportError::OutOfBounds(error) => error.into(),
            TransportError::Closed(error) => error.into(),
            _ => Closed { peer: inner.peer.info, reason: CloseReason::PeerFault }.into(),
        })
    }

    /// Which flag it is, if the buffer is another node's.
    fn remote_flag(&self, offset: usize, width: usize) -> Result<Option<Side<'_>>, FlagError> {
        if self.inner().link.net().is_none() {
            return Ok(None);
        }
        self.flag_view()?; // for the rights
        let size = self.len();
        let inside = offset.checked_add(width).is_some_and(|end| end <= size);
        if inside && offset.is_multiple_of(width) {
            Ok(Some(Side::Elsewhere(self, offset)))
        } else {
            Err(crate::mem::OutOfBounds { offset, len: width, size, align: width }.into())
        }
    }

    fn flag_view(&self) -> Result<View<'_>, FlagError> {
        let inner = self.inner();
        inner.local.check()?;
        if !inner.link.rights().intersects(Rights::WRITE | Rights::READ) {
            inner.need(Rights::WRITE)?;
        }
        Ok(inner.link.view())
    }

    /// The 32-bit flag word at `offset`: to store with [`Rights::WRITE`], to load and wait for with
    /// [`Rights::READ`].
    ///
    /// # Errors
    /// See [`FlagError`]; [`FlagError::OutOfBounds`] also when it is not 4-byte aligned.
    pub fn flag32(&self, offset: usize) -> Result<Flag<'_, MappedU32<'_>>, FlagError> {
        if let Some(side) = self.remote_flag(offset, 4)? {
            return Ok(Flag::new(self.node().remotes.no_word32(), side));
        }
        Ok(Flag::new(self.flag_view()?.word32(offset)?, Side::Import(self)))
    }

    /// The 64-bit flag word at `offset`; see [`Import::flag32`].
    ///
    /// # Errors
    /// See [`FlagError`]; [`FlagError::OutOfBounds`] also when it is not 8-byte aligned.
    pub fn flag64(&self, offset: usize) -> Result<Flag<'_, MappedU64<'_>>, FlagError> {
        if let Some(side) = self.remote_flag(offset, 8)? {
            return Ok(Flag::new(self.node().remotes.no_word64(), side));
        }
        Ok(Flag::new(self.flag_view()?.word64(offset)?, Side::Import(self)))
    }

    /// Automatic update: binds a range of the buffer (V9, V12). On one machine the bound range *is* the
    /// exporter's pages: every store, of whatever kind, is there at once (V11). `range` must
    /// begin at a page.
    ///
    /// # Errors
    /// See [`BindError`]; [`BindError::NotGranted`] without [`Rights::BIND`].
    pub fn bind(&self, range: std::ops::Range<usize>) -> Result<Binding, BindError> {
        Binding::new(&self.owner, range)
    }

    /// As [`Import::bind`], over memory that the program has already: the range's pages take the
    /// place of those at `start`, at the same address, and `initial` says whose bytes they hold
    /// first. From then on every store to that memory is a store to the export, and what the exporter
    /// stores appears there. `range` must be whole pages. When the binding is dropped the memory is
    /// the program's again, private, with the contents of that moment.
    ///
    /// # Safety
    /// `start` to `start + range.len()` must be memory that the caller owns, readable and writable,
    /// and must stay so for the life of the binding and of a region that [`Binding::unbind`] makes of
    /// it. No Rust reference into it may be alive, and no other thread may write to it during the
    /// call. In forked children the memory is not there.
    ///
    /// # Errors
    /// See [`BindError`]; the memory is as it was then.
    #[allow(unsafe_code)] // a promise that only the caller can make
    pub unsafe fn bind_at(
        &self,
        range: std::ops::Range<usize>,
        start: NonNull<u8>,
        initial: Initial,
    ) -> Result<Binding, BindError> {
        // SAFETY: passed on.
        let lent = unsafe { Lent::new(start, range.len()) };
        Binding::at(&self.owner, range, lent, (start.as_ptr().addr(), initial))
    }

    /// Ends the import. Sends have arrived when they returned; started ones are waited for, and
    /// notifications stay with the receiver until it takes them (V8).
    ///
    /// # Errors
    /// [`UnimportError::Bound`] while bindings live; gives the import back.
    pub fn unimport(self) -> Result<(), UnimportError> {
        self.inner().local.check()?;
        let _ = self.fence();
        let count = self.inner().bindings.load(Ordering::Acquire);
        if count > 0 {
            return Err(UnimportError::Bound { count, import: self });
        }
        drop(self);
        Ok(())
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::last_word;

    #[test]
    fn the_last_word_is_the_last_eight_bytes_or_all_of_a_shorter_message() {
        assert_eq!(last_word(&7u32.to_le_bytes()), 7);
        assert_eq!(last_word(&[]), 0);
        let message = [1u8, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(last_word(&message).to_ne_bytes(), message[1..]);
    }
}
