//! What the daemon says, acted upon. Runs in whichever thread holds the reader lock, in order.

use super::control::{Answer, Call, Draft, Failure};
use super::post::Post;
use super::{Known, NodeInner};
use crate::control::connect::Incoming;
use crate::control::message::{CloseReason, Event, Refusal, RemoteCaller, Request};
use crate::counters::index as count;
use crate::error::{DaemonError, system};
use crate::export::{ExportInner, IncomingLink};
use crate::id::{ClientId, ExportId, LinkId, PeerInfo, RequestId, Rights};
use crate::import::{ImportDraft, ImportInner};
use crate::notify::{Event as News, Faulty};
use crate::peer::Peer;
use crate::sync::Ordering;
use crate::sys::memfd;
use crate::sys::packet::Fds;
use crate::transport::Granted;
use crate::transport::engine::Engine;
use crate::transport::route::{Of, Route};
use crate::transport::shm::ShmIncoming;
use std::sync::Arc;

/// The fields of [`Event::Imported`] and [`Event::LinkOpened`] that both have.
pub(super) struct Opened {
    pub(super) link: LinkId,
    pub(super) export: ExportId,
    rights: Rights,
    pub(super) peer: PeerInfo,
    behalf: Option<RemoteCaller>,
    introduces: bool,
}

fn nonsense(what: &'static str) -> Answer {
    Answer::Failed(DaemonError::Nonsense { what }.into())
}

impl NodeInner {
    pub(super) fn handle(&self, post: &Post, incoming: Incoming) {
        let Incoming { event, mut fds } = incoming;
        match event {
            Event::Exported { request, export, cpu } => {
                self.control.daemon_was_on(cpu);
                self.exported(post, request, export);
            }
            Event::Imported { request, link, export, len, rights, exporter, introduces, cpu } => {
                self.control.daemon_was_on(cpu);
                let behalf = None;
                let opened = Opened { link, export, rights, peer: exporter, behalf, introduces };
                self.imported(post, request, &opened, len, fds);
            }
            Event::LinkOpened { link, export, rights, importer, behalf, introduces } => {
                let opened = Opened { link, export, rights, peer: importer, behalf, introduces };
                match self.link_opened(post, &opened, fds) {
                    // If it sleeps it must look once more: we may have stored before we knew it.
                    Some(importer) => drop(importer.wake()),
                    None => post.send(Request::CloseLink { link }, Vec::new()),
                }
            }
            Event::PeerGone { client } => {
                drop(self.tables.lock().peers.remove(&client));
                self.forget_peer(Some(client));
            }
            Event::LinkClosed { link, reason } => self.link_closed(link, reason),
            Event::LinkEnding { link } => {
                let import = self.tables.lock().imports.get(&link).cloned();
                if let Some(import) = import {
                    self.inbox.tell_import(&import, News::Ending);
                    self.local.hub.wake_all();
                }
            }
            Event::Unexported { request, untouched, cpu } => {
                self.control.daemon_was_on(cpu);
                if self.control.take_call(request).is_some() {
                    self.control.complete(request, Answer::Unexported { untouched });
                }
            }
            Event::Done { request } => {
                if self.control.take_call(request).is_some() {
                    self.control.complete(request, Answer::Done);
                }
            }
            Event::Refused { request, refusal } => self.refused(request, refusal),
            Event::Listing { request, len } => {
                if self.control.take_call(request).is_some() {
                    let answer = match fds.take() {
                        Some(file) => Answer::Listing { file, len },
                        None if fds.cut_short() => {
                            let lost = system("receiving a listing's descriptor");
                            Answer::Failed(lost(rustix::io::Errno::MFILE).into())
                        }
                        None => nonsense("a listing without its file"),
                    };
                    self.control.complete(request, answer);
                }
            }
            Event::Network { request, fabric } => {
                if self.control.take_call(request).is_some() {
                    let answer = match fds.take() {
                        Some(socket) => Answer::Network(socket, fabric),
                        None if fds.cut_short() => {
                            let lost = system("receiving a conversation's descriptor");
                            Answer::Failed(lost(rustix::io::Errno::MFILE).into())
                        }
                        None => nonsense("a conversation without its socket"),
                    };
                    self.control.complete(request, answer);
                }
            }
            // Not for this kind of client.
            Event::Welcome(_)
            | Event::Page { .. }
            | Event::Paired { .. }
            | Event::NotPaired { .. }
            | Event::Neighbour { .. }
            | Event::Links { .. }
            | Event::HandOver { .. } => {}
        }
    }

    fn exported(&self, post: &Post, request: RequestId, export: ExportId) {
        match self.control.take_call(request).map(|call| call.draft) {
            Some(Draft::Export(draft)) => {
                let inner = Arc::new(ExportInner::new(export, *draft));
                self.tables.lock().exports.insert(export, inner.clone());
                self.local.meter.add(count::EXPORTS, 1);
                self.control.complete(request, Answer::Exported(inner));
            }
            Some(Draft::RestoreExport(inner)) => {
                let lives = self.export_restored(&inner, export);
                if !lives {
                    post.send(Request::Revoked { export }, Vec::new());
                }
            }
            Some(_) => {
                self.control.complete(request, nonsense("Exported to another request"));
            }
            None => {}
        }
    }

    fn refused(&self, request: RequestId, refusal: Refusal) {
        let Some(mut call) = self.control.take_call(request) else { return };
        match &call.draft {
            Draft::RestoreExport(_) => {} // its links go on; its name belongs to another now
            Draft::RestoreImport(import) => self.end_import(import, CloseReason::PeerDied),
            // The name belongs to another than last time.
            Draft::Import(_)
                if call.has_known_segment()
                    && matches!(refusal, Refusal::SegmentOfAnother { .. }) =>
            {
                match call.take_fresh_segment() {
                    Ok(()) => self.control.ask_again(request, call),
                    Err(error) => {
                        self.control.complete(request, Answer::Failed(error.into()));
                    }
                }
            }
            _ => {
                self.control.complete(request, Answer::Refused(refusal));
            }
        }
    }

    fn imported(&self, post: &Post, request: RequestId, opened: &Opened, len: u64, mut fds: Fds) {
        let close = Request::CloseLink { link: opened.link };
        let call = self.control.take_call(request);
        let reused = call.as_ref().is_some_and(Call::has_known_segment);
        match call {
            Some(Call { draft: Draft::Import(draft), .. }) => {
                match self.make_import(post, *draft, opened, len, &mut fds) {
                    Ok(inner) => {
                        self.local.meter.add(count::SEGMENTS_REUSED, u64::from(reused));
                        if !self.control.complete(request, Answer::Imported(inner.clone())) {
                            // Cancelled while it was made.
                            self.unimport(&inner, |close| post.send(close, Vec::new()));
                        }
                    }
                    Err(failure) => {
                        post.send(close, Vec::new());
                        self.control.complete(request, Answer::Failed(failure));
                    }
                }
            }
            Some(Call { draft: Draft::RestoreImport(import), .. }) => {
                // The memory is mapped already; the exporter may be introduced by this alone.
                drop(fds.take());
                let _ = self.peer(post, opened, &mut fds);
                // Another exporter's memory of the same name is not the memory mapped here.
                if opened.export == import.export && opened.peer.pid == import.peer.info.pid {
                    if !self.import_restored(&import, opened.link) {
                        post.send(close, Vec::new());
                    }
                } else {
                    post.send(close, Vec::new());
                    self.end_import(&import, CloseReason::PeerDied);
                }
            }
            Some(_) => {
                self.control.complete(request, nonsense("Imported to another request"));
            }
            // Cancelled while it was granted.
            None => {
                post.send(close, Vec::new());
            }
        }
    }

    fn make_import(
        &self,
        post: &Post,
        draft: ImportDraft,
        opened: &Opened,
        len: u64,
        fds: &mut Fds,
    ) -> Result<Arc<ImportInner>, Failure> {
        let missing = |what| Failure::Daemon(DaemonError::Nonsense { what });
        let absent = |what, fds: &Fds| match fds.cut_short() {
            // Ours: the daemon has sent them.
            true => system("receiving an import's descriptors")(rustix::io::Errno::MFILE).into(),
            false => missing(what),
        };
        let (file, peer) = (fds.take(), self.peer(post, opened, fds));
        let file = file.ok_or_else(|| absent("an import without its memory", fds))?;
        let peer = peer.ok_or_else(|| absent("an import without its exporter", fds))?;
        // The exporter made the file: its seals and length are checked here again.
        memfd::verify(&file, len)?;
        let len = usize::try_from(len).map_err(|_| missing("an import of impossible length"))?;
        let granted = Granted { len, rights: opened.rights, peer: opened.peer };
        let mapped = draft.segment.mapped.clone();
        let link = Route::import(Of::Shm((mapped, file)), granted, self.local.meter)?;
        let parts = (draft.local, draft.spec, Some(draft.segment), draft.handler);
        let inner = Arc::new(ImportInner::new(opened.link, opened.export, link, peer, parts));
        self.tables.lock().imports.insert(opened.link, inner.clone());
        self.local.meter.add(count::IMPORTS, 1);
        Ok(inner)
    }

    /// The other process of a link, introduced with it or before. `None`: it is not to be had, and the
    /// daemon was told so.
    fn peer(&self, post: &Post, opened: &Opened, fds: &mut Fds) -> Option<Arc<Peer>> {
        let client = opened.peer.client;
        let introduced = if opened.introduces { fds.take().zip(fds.take()) } else { None };
        let known = self.tables.lock().peers.get(&client).and_then(Known::peer);
        // After a crash of the daemon the number may have gone to another process.
        let known = known.filter(|peer| peer.info == opened.peer);
        let peer = known.or_else(|| {
            let (page, bell) = introduced?;
            Peer::new(opened.peer, &page, bell, self.local.clone()).ok().map(Arc::new)
        });
        match &peer {
            Some(peer) => {
                self.tables.lock().peers.insert(client, Known::Introduced(peer.clone()));
            }
            None => post.send(Request::Introduce { client }, Vec::new()),
        }
        peer
    }

    /// `None`: the link is not acceptable, or its export is gone.
    fn link_opened(&self, post: &Post, opened: &Opened, mut fds: Fds) -> Option<Arc<Peer>> {
        let (segment, peer) = (fds.take(), self.peer(post, opened, &mut fds));
        let (segment, peer) = (segment?, peer?);
        if self.claim(opened, &segment) {
            return Some(peer);
        }
        let export = self.tables.lock().exports.get(&opened.export).cloned()?;
        let Ok(shm) = ShmIncoming::open(&segment) else {
            self.local.meter.add(count::PEER_FAULTS, 1);
            return None;
        };
        let link = Arc::new(IncomingLink::new(
            opened.link,
            shm,
            peer.clone(),
            opened.behalf.clone(),
            opened.rights,
        ));
        export.add_link(&link);
        let mut tables = self.tables.lock();
        tables.incoming.insert(opened.link, (export.clone(), link.clone()));
        if export.listens() {
            // Copied only while somebody goes through it.
            Arc::make_mut(&mut tables.listening).insert(opened.link, (export, link));
        }
        drop(tables);
        // Notifications may have been queued before we knew the link; waiters may count links.
        self.local.hub.wake_all();
        Some(peer)
    }

    fn link_closed(&self, link: LinkId, reason: CloseReason) {
        // A process may import its own export: then both sides of a link are here, and the reason
        // says which of them is addressed.
        if reason != CloseReason::Unimported {
            let import = self.tables.lock().imports.get(&link).cloned();
            if let Some(import) = import {
                self.end_import(&import, reason);
            }
        }
        if reason != CloseReason::Unexported {
            let incoming = self.tables.lock().incoming.get(&link).cloned();
            if let Some((export, incoming)) = incoming {
                self.close_incoming(&export, &incoming, reason);
            }
        }
        self.local.hub.wake_all();
    }

    /// This process ends its import; the daemon is to be told, unless the link has ended already.
    pub(crate) fn unimport(&self, import: &ImportInner, tell: impl FnOnce(Request)) {
        let link = import.id();
        let was_open = {
            let mut tables = self.tables.lock();
            let was_open = tables.imports.remove(&link).is_some();
            // Under this lock: an exporter that goes leaves this table first, and its spares are dropped then.
            if was_open && tables.peers.contains_key(&import.peer.info.client) {
                self.spares.keep(import);
            }
            was_open
        };
        if was_open {
            tell(Request::CloseLink { link });
        }
        import.link.close(CloseReason::Unimported);
    }

    pub(super) fn end_import(&self, import: &Arc<ImportInner>, reason: CloseReason) {
        if reason == CloseReason::PeerDied {
            self.local.meter.add(count::PEER_DEATHS, 1);
        }
        import.link.close(reason);
        self.tables.lock().imports.remove(&import.id());
        self.inbox.import_closed(import, reason);
        self.local.hub.wake_all();
    }

    /// Takes the last notifications of a link, queues its end, forgets it.
    pub(crate) fn close_incoming(
        &self,
        export: &Arc<ExportInner>,
        link: &Arc<IncomingLink>,
        reason: CloseReason,
    ) {
        {
            let mut tables = self.tables.lock();
            if tables.incoming.remove(&link.id()).is_none() {
                return; // done already
            }
            if export.listens() {
                Arc::make_mut(&mut tables.listening).remove(&link.id());
            }
        }
        // What was sent before the end is delivered before it (V8). A full segment is all there
        // can be, so the backlog may be passed by that much.
        let mut reason = reason;
        // The network interface ends its import when all has landed: because we have withdrawn.
        if reason == CloseReason::Unimported && export.withdrawn.load(Ordering::Acquire) {
            reason = CloseReason::Unexported;
        }
        if export.listens() && self.inbox.collect(export, link, usize::MAX).is_err() {
            self.local.meter.add(count::PEER_FAULTS, 1);
            reason = CloseReason::PeerFault;
        }
        if reason == CloseReason::PeerDied {
            self.local.meter.add(count::PEER_DEATHS, 1);
        }
        if export.remove_link(link, reason) {
            self.tables.lock().idling.insert(export.id());
        }
        self.inbox.incoming_closed(export, link, reason);
    }

    /// Exports let go of a process that has no link to them, or of all such.
    pub(super) fn forget_peer(&self, gone: Option<ClientId>) {
        self.spares.forget(gone);
        let idling: Vec<_> = {
            let tables = self.tables.lock();
            let exports = tables.idling.iter().map(|id| (*id, tables.exports.get(id).cloned()));
            exports.collect()
        };
        // Not under the lock: it waits for senders in the middle of a flag.
        for (id, export) in idling {
            if !export.is_some_and(|export| export.forget_peer(gone)) {
                self.tables.lock().idling.remove(&id);
            }
        }
    }

    /// An importer wrote nonsense: its link ends, nobody else notices.
    pub(crate) fn drop_faulty(&self, faulty: Faulty) {
        let Faulty(export, link) = faulty;
        self.local.meter.add(count::PEER_FAULTS, 1);
        link.shm.set_state(crate::layout::link::REVOKED);
        self.control.tell(Request::CloseLink { link: link.id() });
        self.close_incoming(&export, &link, CloseReason::PeerFault);
        self.local.hub.wake_all();
    }

    /// The exporter wrote nonsense into our link segment.
    pub(crate) fn drop_faulty_import(&self, import: &Arc<ImportInner>) {
        self.local.meter.add(count::PEER_FAULTS, 1);
        self.control.tell(Request::CloseLink { link: import.id() });
        self.end_import(import, CloseReason::PeerFault);
    }
}
