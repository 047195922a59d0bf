//! An import as this process keeps it: what was asked for, and its link.

use super::spares::OwnSegment;
use crate::control::message::{CloseReason, NO_CPU, RemoteCaller, Request};
use crate::error::{Closed, NotGranted, SendError};
use crate::handler::Called;
use crate::id::{ExportId, LinkId, Name, PeerInfo, RequestId, Rights, Token};
use crate::local::Local;
use crate::peer::Peer;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::transport::engine::Engine;
use crate::transport::route::Route;
use std::sync::Arc;

/// What was asked for; told to the daemon again after it was restarted.
#[derive(Clone, Debug)]
pub(crate) struct ImportSpec {
    pub(crate) process: Option<u32>,
    pub(crate) name: Name,
    pub(crate) rights: Rights,
    pub(crate) token: Option<Token>,
    /// Deliberate updates are of whole words only.
    pub(crate) strict: bool,
    /// Set by a node's interface: whose rights count.
    pub(crate) caller: Option<RemoteCaller>,
}

impl ImportSpec {
    /// The request with a segment that is fresh, or `known_to` a process, or belongs to the link that is to be
    /// restored.
    pub(crate) fn request(
        &self,
        request: RequestId,
        timeout_ms: u32,
        restore: Option<LinkId>,
        known_to: Option<PeerInfo>,
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
            known_to,
            cpu: NO_CPU,
        }
    }
}

/// Length in bytes of a word of deliberate update in the paper.
const WORD: usize = 4;

/// Whether an update is what the paper's hardware could do (H11).
#[cold]
fn of_whole_words(offset: usize, source: usize, len: usize) -> Result<(), SendError> {
    let parts = [("offset", offset), ("length", len), ("source address", source)];
    match parts.into_iter().find(|(_, value)| !value.is_multiple_of(WORD)) {
        Some((what, value)) => Err(SendError::Misaligned { what, value, align: WORD }),
        None => Ok(()),
    }
}

/// An import that the daemon has not granted.
pub(crate) struct ImportDraft {
    pub(crate) local: Arc<Local>,
    pub(crate) spec: ImportSpec,
    pub(crate) segment: OwnSegment,
    pub(crate) handler: Option<Called>,
}

impl std::fmt::Debug for ImportDraft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportDraft").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// What an import keeps of its draft: process, request, link segment, handler.
type ImportParts = (Arc<Local>, ImportSpec, Option<OwnSegment>, Option<Called>);

/// An import as the tables have it.
pub(crate) struct ImportInner {
    pub(crate) link: Route,
    pub(crate) local: Arc<Local>,
    pub(crate) peer: Arc<Peer>,
    id: AtomicU64,
    pub(crate) export: ExportId,
    pub(crate) spec: ImportSpec,
    /// `None` for an export of another node.
    pub(crate) segment: Option<OwnSegment>,
    /// It was claimed from a daemon that had crashed. The exporter may have given the link up before, and have
    /// said that it is done with the segment.
    pub(crate) claimed: AtomicBool,
    pub(crate) handler: Option<Called>,
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
        let (local, spec, segment, handler) = parts;
        ImportInner {
            link,
            local,
            peer,
            id: AtomicU64::new(id.0),
            export,
            spec,
            segment,
            claimed: AtomicBool::new(false),
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
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), Closed> {
        match self.local.check() {
            Ok(()) => self.link.check_open(),
            Err(_) => Err(self.closed_by_fork()),
        }
    }

    #[cold]
    fn closed_by_fork(&self) -> Closed {
        Closed { peer: self.peer.info, reason: CloseReason::Unimported }
    }

    /// Whether a deliberate update may begin: `len` bytes at `offset`, from an address.
    #[inline]
    pub(crate) fn may_update(
        &self,
        offset: usize,
        source: usize,
        len: usize,
    ) -> Result<(), SendError> {
        self.may_send()?;
        self.check_words(offset, source, len)
    }

    /// Whether one is of what a strict import takes.
    #[inline]
    pub(crate) fn check_words(
        &self,
        offset: usize,
        source: usize,
        len: usize,
    ) -> Result<(), SendError> {
        if self.spec.strict { of_whole_words(offset, source, len) } else { Ok(()) }
    }

    /// Whether a notification alone may be sent: by who may write, or bind.
    pub(crate) fn may_notify(&self) -> Result<(), SendError> {
        self.local.check()?;
        if self.link.rights().contains(Rights::BIND) {
            return Ok(());
        }
        Ok(self.need(Rights::WRITE)?)
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
