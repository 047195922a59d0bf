//! An export as this process keeps it: what the daemon was told, and its links.

use crate::control::message::{CloseReason, NO_CPU, RemoteCaller, Request};
use crate::error::Closed;
use crate::handler::Called;
use crate::id::{ClientId, ExportId, Grant, LinkId, Name, PeerInfo, Rights, Token};
use crate::local::Local;
use crate::notify::{Event, Notification};
use crate::peer::Peer;
use crate::roll::Roll;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::sys::Fd;
use crate::transport::shm::ShmIncoming;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// What becomes of notifications for an export.
pub(crate) enum Mode {
    /// Nobody asked for any: senders need not even queue them (V19).
    Ignore,
    /// A function is called with each.
    Handler(Called),
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
    /// It is being unexported.
    pub(crate) withdrawn: AtomicBool,
    /// Handlers run so far.
    pub(crate) delivered: AtomicU64,
    pub(crate) links: Mutex<Vec<Arc<IncomingLink>>>,
    /// What [`crate::Export::disable`] is in force for, in units of pages; locked after `links`.
    pub(crate) disabled: Mutex<Vec<std::ops::Range<usize>>>,
    /// Whom to wake when a word of the buffer changes: the peers of `links`.
    roll: Roll,
    ends: Ends,
}

/// Links that ended by death or fault, in order, from 0. A wait reports an end that no wait had reported when it began.
#[derive(Debug, Default)]
struct Ends {
    count: AtomicU64,
    /// Those before this one have been reported.
    reported: AtomicU64,
    /// The last ones, at most [`MOST_ENDS`].
    last: Mutex<VecDeque<Closed>>,
}

/// Ends that are kept for waits to report; of more, the oldest are not.
const MOST_ENDS: usize = 4096;

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

    /// That something happened over it.
    pub(crate) fn notification(&self, event: Event) -> Notification {
        let from_elsewhere = self.behalf.is_some();
        Notification { from: self.importer(), from_elsewhere, link: self.id(), event }
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
            withdrawn: AtomicBool::new(false),
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
    pub(super) fn wants_notifications(&self) -> bool {
        !matches!(self.mode, Mode::Ignore) && self.accepting.load(Ordering::Relaxed)
    }

    /// Whether messages or ends of links interest anybody here.
    pub(crate) fn listens(&self) -> bool {
        !matches!(self.mode, Mode::Ignore)
    }

    pub(crate) fn add_link(&self, link: &Arc<IncomingLink>) {
        let mut links = self.links.lock();
        // Whoever changes what is wanted tells all links under this lock.
        link.shm.set_accept(self.wants_notifications());
        for units in self.disabled.lock().iter() {
            link.shm.set_disabled(units.clone(), true);
            if link.shm.recall() {
                link.peer.ring();
            }
        }
        link.shm.say_heard();
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
            let mut last = self.ends.last.lock();
            if last.len() == MOST_ENDS {
                last.pop_front();
            }
            last.push_back(Closed { peer: link.importer(), reason });
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

    /// The first one since then, and its number.
    pub(crate) fn end_since(&self, reported: u64) -> Option<(u64, Closed)> {
        let last = self.ends.last.lock();
        let first = self.ends.count.load(Ordering::Relaxed) - last.len() as u64;
        let number = reported.max(first);
        let end = last.get(usize::try_from(number - first).ok()?)?;
        Some((number, *end))
    }

    /// A wait has reported the end of this number.
    pub(crate) fn has_reported(&self, number: u64) {
        self.ends.reported.fetch_max(number + 1, Ordering::Relaxed);
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
            cpu: NO_CPU,
        }
    }
}
