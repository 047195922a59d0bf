//! Imports: asked for, waited for, granted.

use super::passed::{cannot_reopen, segment_of};
use crate::broker::{Broker, Fault};
use crate::client::{Client, OutFd, Pending};
use crate::counters::Counter;
use crate::descriptors::plenty;
use crate::doorbell::Button;
use crate::failpoint::{Failpoint, hit};
use crate::links::Link;
use crate::policy::granted;
use crate::receive::Suspect;
use crate::registry::WaitFor;
use crate::resume;
use crate::timers::Timer;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc::control::message::{Event, QuotaKind, Refusal, RemoteCaller};
use vmmc::id::{ClientId, ExportId, LinkId, Name, PeerInfo, RequestId, Rights, Token};
use vmmc::layout;
use vmmc::sys::{Fd, memfd, sched};

/// What an import asks for.
pub(super) struct ImportRequest {
    pub(super) process: Option<u32>,
    pub(super) name: Name,
    pub(super) rights: Rights,
    pub(super) token: Option<Token>,
    pub(super) timeout_ms: u32,
    /// The link that had the segment, after a restart of the daemon.
    pub(super) restore: Option<LinkId>,
    /// The exporter of an earlier link with the segment.
    pub(super) known_to: Option<PeerInfo>,
    /// Whose rights count, when the network interface asks.
    pub(super) caller: Option<RemoteCaller>,
}

impl ImportRequest {
    /// For the asking process itself, with a segment that nobody else has had.
    pub(super) fn plain(
        process: Option<u32>,
        name: Name,
        rights: Rights,
        token: Option<Token>,
        timeout_ms: u32,
    ) -> ImportRequest {
        let (restore, known_to, caller) = (None, None, None);
        ImportRequest { process, name, rights, token, timeout_ms, restore, known_to, caller }
    }
}

impl Broker {
    pub(super) fn import(
        &mut self,
        id: ClientId,
        request: RequestId,
        wanted: ImportRequest,
        segment: Result<Suspect, Refusal>,
    ) -> Result<(), Fault> {
        let Some(client) = self.caller(id) else { return Ok(()) };
        if client.pending.contains_key(&request) {
            return Err(Fault::new("request number in use by a waiting import"));
        }
        let payer = client.payer(wanted.caller.as_ref());
        let segment = match self.check_import(&wanted, segment) {
            Ok(segment) => segment,
            Err(refusal) => {
                self.refuse(id, request, refusal);
                return Ok(());
            }
        };
        if let Err(refusal) = self.quotas.take(payer, QuotaKind::Imports, 1) {
            self.refuse(id, request, refusal);
            return Ok(());
        }
        let ImportRequest { process, name, rights, token, timeout_ms, restore, known_to, caller } =
            wanted;
        let now = Instant::now();
        // After a crash the exporter may come back a moment later than the importer.
        let timeout_ms = match restore {
            Some(_) => timeout_ms.max(resume::GRACE.as_millis() as u32),
            None => timeout_ms,
        };
        let queue = WaitFor { name: name.clone(), process, restore: restore.is_some() };
        let place = self.registry.wait(queue, id, request);
        let timer = (timeout_ms != u32::MAX && timeout_ms != 0).then(|| {
            let due = now + Duration::from_millis(u64::from(timeout_ms));
            self.timers.add(due, Timer::Import(id, request))
        });
        let pending = Pending {
            name,
            process,
            rights,
            token,
            restore,
            known_to,
            segment: Arc::new(segment),
            since: now,
            place,
            timer,
            caller,
        };
        if let Some(client) = self.clients.get_mut(&id) {
            client.pending.insert(request, pending);
        }
        if !self.try_pending(id, request) && timeout_ms == 0 {
            self.import_timed_out(id, request);
        }
        Ok(())
    }

    fn check_import(
        &self,
        wanted: &ImportRequest,
        segment: Result<Suspect, Refusal>,
    ) -> Result<Fd, Refusal> {
        if !wanted.name.is_valid() {
            return Err(Refusal::BadName { name: wanted.name.clone() });
        }
        if let (Name::Number(number), None) = (&wanted.name, wanted.process) {
            return Err(Refusal::ProcessNeeded { number: *number });
        }
        if (wanted.rights & Rights::all()).is_empty()
            || wanted.rights != wanted.rights & Rights::all()
        {
            return Err(Refusal::NoRights);
        }
        segment_of(segment, layout::link::LEN as u64)
    }

    /// Takes a waiting import out of all tables but the quota.
    pub(super) fn take_pending(&mut self, id: ClientId, request: RequestId) -> Option<Pending> {
        let client = self.clients.get_mut(&id)?;
        let pending = client.pending.remove(&request)?;
        let payer = client.payer(pending.caller.as_ref());
        self.registry.stop_waiting(&pending.queue(), pending.place);
        if let Some(key) = pending.timer {
            self.timers.cancel(key);
        }
        self.quotas.give(payer, QuotaKind::Imports, 1);
        Some(pending)
    }

    pub(crate) fn import_timed_out(&mut self, id: ClientId, request: RequestId) {
        if let Some(pending) = self.take_pending(id, request) {
            let waited_ms = pending.since.elapsed().as_millis().min(u128::from(u32::MAX)) as u32;
            self.refuse(id, request, Refusal::NoSuchExport { name: pending.name, waited_ms });
        }
    }

    /// Grants or refuses a waiting import if its export is there. `false` when it still waits.
    pub(super) fn try_pending(&mut self, id: ClientId, request: RequestId) -> bool {
        let Some(pending) = self.caller(id).and_then(|client| client.pending.get(&request)) else {
            return true;
        };
        let Some(export) = self.registry.find(&pending.name, pending.process) else {
            return false;
        };
        let Some(known) = self.registry.exports.get(&export) else { return false };
        let owner = known.owner;
        let restored = known.restored;
        let owner_pid = self.caller(owner).map_or(0, |owner| owner.peer.pid);
        if pending.process.is_some_and(|pid| pid != owner_pid) {
            return false; // that process has not exported it
        }
        if pending.restore.is_some() && !restored {
            return false; // same name, but not the memory the importer has mapped
        }
        let Some(pending) = self.take_pending(id, request) else { return true };
        if let Err(refusal) = self.grant(id, request, pending, export) {
            self.refuse(id, request, refusal);
        }
        true
    }

    /// Checks the rights and makes the link.
    fn grant(
        &mut self,
        id: ClientId,
        request: RequestId,
        pending: Pending,
        export: ExportId,
    ) -> Result<(), Refusal> {
        let gone = || Refusal::Internal { why: "find the export".to_owned() };
        let known = self.registry.exports.get(&export).ok_or_else(gone)?;
        let importer = self.caller(id).ok_or_else(gone)?;
        let exporter = self.caller(known.owner).ok_or_else(gone)?;
        let remote = pending.caller.as_ref().map(|remote| importer.caller_for(remote));
        let caller = remote.unwrap_or_else(|| importer.caller());
        let uid = caller.peer.uid;
        if exporter.is_deaf() {
            let why = format!("tell the exporter: process {} does not listen", exporter.peer.pid);
            return Err(Refusal::Internal { why });
        }
        let rights = granted(&known.entries, exporter.peer.uid, caller);
        if !rights.contains(pending.rights) {
            return Err(Refusal::NotPermitted {
                name: known.name.clone(),
                uid,
                granted: rights,
                wanted: pending.rights,
            });
        }
        if let Some(secret) = &known.token
            && !pending.token.is_some_and(|presented| presented.matches(secret))
        {
            return Err(Refusal::BadToken { name: known.name.clone() });
        }
        // An exporter keeps what it has mapped: through another's link it could say what the importer has not said.
        if let Some(known_to) = pending.known_to
            && known_to != exporter.peer
        {
            let name = known.name.clone();
            return Err(Refusal::SegmentOfAnother { name, known_to: known_to.pid });
        }
        let memory = if pending.rights == Rights::READ {
            let opened = memfd::reopen_read_only(known.memory.as_ref())
                .map_err(|errno| Refusal::Internal { why: cannot_reopen("the memory", errno) })?;
            // What is sent at once is this one: a second open might fail, should the exporter take a lease meanwhile.
            match importer.queue.is_empty() {
                true => OutFd::Same(Arc::new(opened)),
                false => OutFd::ReadOnly(known.memory.clone()),
            }
        } else {
            OutFd::Same(known.memory.clone())
        };
        // With its first link to a process a client gets what it takes to wake it.
        let to_importer_new = !importer.acquaintances.knows(known.owner);
        let to_exporter_new = !exporter.acquaintances.knows(id) && known.owner != id;
        let introduce = |client: &Client, ringer: u32, new: bool| {
            let attached = client.attached().filter(|_| new);
            let doorbell = attached.and_then(|it| Some((it.page.clone(), it.doorbell.as_ref()?)));
            doorbell.map(|(page, doorbell)| Ok((page, doorbell.button(ringer)?))).transpose()
        };
        let (exporter_new, importer_new) = (
            introduce(exporter, importer.peer.uid, to_importer_new)?,
            introduce(importer, exporter.peer.uid, to_exporter_new)?,
        );
        let mut to_importer = vec![memory];
        let mut to_exporter = vec![OutFd::Same(pending.segment.clone())];
        for (fds, introduced) in
            [(&mut to_importer, &exporter_new), (&mut to_exporter, &importer_new)]
        {
            if let Some((page, button)) = introduced {
                fds.extend([OutFd::Same(page.clone()), OutFd::Button(button.clone())]);
            }
        }
        let (importer_peer, exporter_peer) = (importer.peer, exporter.peer);
        let kept = |introduced: Option<(Arc<Fd>, Button)>| introduced.and_then(|it| it.1.kept());
        let importer_has = (id, exporter_peer.client, kept(exporter_new));
        let exporter_has = (exporter_peer.client, id, kept(importer_new));
        let len = known.len;
        let payer = uid; // the caller's
        self.quotas.take(payer, QuotaKind::Imports, 1)?;
        let old =
            pending.restore.filter(|old| self.is_old_id(old.0) && !self.links.contains_key(old));
        if old.is_some() {
            self.counters.add(Counter::Restored);
        }
        let link = old.unwrap_or_else(|| LinkId(self.next_id()));
        let rights = pending.rights;
        tracing::debug!(
            link = link.0,
            export = export.0,
            importer = importer_peer.pid,
            exporter = exporter_peer.pid,
            ?rights,
            "imported"
        );
        self.links.insert(
            link,
            Link {
                export,
                importer: id,
                importer_uid: importer_peer.uid,
                payer,
                exporter: exporter_peer.client,
                rights,
                segment: Some(pending.segment).filter(|segment| plenty(segment)),
            },
        );
        if let Some(export) = self.registry.exports.get_mut(&export) {
            export.links.insert(link);
            export.touched = true;
        }
        self.link_made([importer_has, exporter_has]);
        if let Some(importer) = self.clients.get_mut(&id) {
            importer.imports.insert(link);
        }
        self.counters.add(Counter::Imports);
        hit(Failpoint::ImportGranted);
        let imported = Event::Imported {
            request,
            link,
            export,
            len,
            rights,
            exporter: exporter_peer,
            introduces: to_importer_new,
            cpu: sched::current_cpu(),
        };
        self.send(id, &imported, to_importer);
        hit(Failpoint::ImportedSent);
        let opened = Event::LinkOpened {
            link,
            export,
            rights,
            importer: importer_peer,
            behalf: pending.caller,
            introduces: to_exporter_new,
        };
        if self.send_news(exporter_peer.client, &opened, to_exporter) {
            hit(Failpoint::LinkOpenedSent);
        }
        Ok(())
    }
}
