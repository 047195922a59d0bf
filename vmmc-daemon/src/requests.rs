//! What each request does. Everything a client can get wrong is either a refusal, which tells it
//! what and why, or a [`Fault`], which ends its connection.

use crate::broker::{Broker, Ending, Fault};
use crate::client::{
    Attached, Client, Introduced, MAX_QUEUED_FOR_LINKS, OutFd, Pending, Stage, reopen_doorbell,
};
use crate::counters::Counter;
use crate::descriptors::{self, plenty};
use crate::failpoint::{Failpoint, hit};
use crate::links::Link;
use crate::policy::{Entry, granted};
use crate::receive::{Fds, Suspect};
use crate::registry::{Export, WaitFor};
use crate::resume;
use crate::timers::Timer;
use rustix::fs::{OFlags, SealFlags};
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc::control::message::{
    CloseReason, Event, Hello, MAX_GRANTS, QuotaKind, Refusal, RemoteCaller, Request, Role, Welcome,
};
use vmmc::id::{ClientId, ExportId, Grant, LinkId, Name, RequestId, Rights, Token};
use vmmc::layout;
use vmmc::sys::{Fd, memfd, sched};

/// Longest program name kept, in bytes.
const PROGRAM_MAX: usize = 63;

const NO_SEGMENT: &str = "no descriptor came with the request";

fn bad_segment(why: impl std::fmt::Display) -> Refusal {
    Refusal::BadSegment { why: why.to_string() }
}

/// What an import asks for.
struct ImportRequest {
    process: Option<u32>,
    name: Name,
    rights: Rights,
    token: Option<Token>,
    timeout_ms: u32,
    restore: Option<LinkId>,
    /// Whose rights count, when the network interface asks.
    caller: Option<RemoteCaller>,
}

/// What an export announces.
struct ExportRequest {
    name: Name,
    len: u64,
    grants: Vec<Grant>,
    token: Option<Token>,
    restore: Option<ExportId>,
}

impl Broker {
    /// Handles a request of a client that has introduced itself.
    pub(crate) fn request(
        &mut self,
        id: ClientId,
        request: Request,
        fds: &mut Fds,
    ) -> Result<(), Fault> {
        match request {
            // Handled by the caller, who knows whether it is the first.
            Request::Hello(_) => Err(Fault::new("second hello")),
            Request::Export { request, name, len, grants, token, restore } => {
                self.needs_attachment(id)?;
                let wanted = ExportRequest { name, len, grants, token, restore };
                match self.export(id, wanted, fds.need(NO_SEGMENT)) {
                    Ok(export) => self.exported(id, request, export),
                    Err(refusal) => self.refuse(id, request, refusal),
                }
                Ok(())
            }
            Request::Unexport { request, export } => {
                self.unexport(id, request, export);
                Ok(())
            }
            Request::Revoked { export } => {
                self.revoked(id, export);
                Ok(())
            }
            Request::Import { request, process, name, rights, token, timeout_ms, restore } => {
                self.needs_attachment(id)?;
                let caller = None;
                let wanted =
                    ImportRequest { process, name, rights, token, timeout_ms, restore, caller };
                self.import(id, request, wanted, fds.need(NO_SEGMENT))
            }
            Request::ImportFor { request, caller, process, name, rights, token, timeout_ms } => {
                self.needs_attachment(id)?;
                self.needs_interface(id)?;
                let (restore, caller) = (None, Some(caller));
                let wanted =
                    ImportRequest { process, name, rights, token, timeout_ms, restore, caller };
                self.import(id, request, wanted, fds.need(NO_SEGMENT))
            }
            Request::LostImporter { link } => {
                self.needs_interface(id)?;
                if self.links.get(&link).is_some_and(|known| known.importer == id) {
                    self.close_link(link, Some((true, CloseReason::PeerDied)));
                }
                Ok(())
            }
            Request::Network { request } => {
                self.converse(id, request);
                Ok(())
            }
            Request::CancelImport { request } => {
                if self.take_pending(id, request).is_some() {
                    self.refuse(id, request, Refusal::Cancelled);
                }
                Ok(())
            }
            Request::Introduce { client } => {
                self.introduce_again(id, client);
                Ok(())
            }
            Request::CloseLink { link } => {
                match self.links.get(&link) {
                    // In a link of a process with itself, the importer's word.
                    Some(known) if known.importer == id => {
                        self.close_link(link, Some((true, CloseReason::Unimported)));
                    }
                    Some(known) if known.exporter == id => {
                        self.close_link(link, Some((false, CloseReason::PeerFault)));
                    }
                    // Closed by the other side at the same moment, or not the caller's.
                    _ => {}
                }
                Ok(())
            }
            Request::List { request } => {
                self.list(id, request);
                Ok(())
            }
            Request::Snapshot { request } => {
                self.snapshot(id, request);
                Ok(())
            }
            Request::Page { request, client } => {
                self.page(id, request, client);
                Ok(())
            }
            Request::RegisterSocket { cookie, shape } => {
                self.register_socket(id, cookie, shape, fds)
            }
            Request::ForgetSocket { cookie } => {
                self.forget_socket(id, cookie);
                Ok(())
            }
            Request::AttachSocket { cookie } => {
                self.attach_socket(id, cookie, fds.take());
                Ok(())
            }
            Request::PumpSocket { cookie } => {
                self.pump_socket(id, cookie, fds.take());
                Ok(())
            }
            Request::TakeOver { request } => {
                match self.administrator(id, "take over from the daemon") {
                    Ok(()) => {
                        self.send(id, &Event::HandOver { request }, Vec::new());
                        self.successor = Some(id);
                    }
                    Err(refusal) => self.refuse(id, request, refusal),
                }
                Ok(())
            }
            Request::Shutdown { request } => {
                match self.administrator(id, "end the daemon") {
                    Ok(()) => {
                        self.send(id, &Event::Done { request }, Vec::new());
                        self.ending = Some(Ending::Shutdown);
                    }
                    Err(refusal) => self.refuse(id, request, refusal),
                }
                Ok(())
            }
        }
    }

    fn caller(&self, id: ClientId) -> Option<&Client> {
        self.clients.get(&id)
    }

    fn needs_attachment(&self, id: ClientId) -> Result<(), Fault> {
        match self.caller(id).and_then(Client::attached) {
            Some(_) => Ok(()),
            None => Err(Fault::new("a tool may neither export nor import")),
        }
    }

    /// Whether the client may look at everything, and give orders.
    pub(crate) fn is_administrator(&self, id: ClientId) -> bool {
        self.caller(id).is_some_and(|client| client.peer.uid == 0 || client.peer.uid == self.uid)
    }

    fn administrator(&self, id: ClientId, what: &str) -> Result<(), Refusal> {
        if self.is_administrator(id) {
            return Ok(());
        }
        let uid = self.caller(id).map_or(u32::MAX, |client| client.peer.uid);
        Err(Refusal::NotAdministrator { uid, owner: self.uid, what: what.to_owned() })
    }

    // ---- hello ----

    /// Introduces a client; its number from now on.
    pub(crate) fn hello(&mut self, id: ClientId, hello: Hello, fds: &mut Fds) -> ClientId {
        let welcome = self.try_hello(id, &hello, fds);
        match welcome {
            Ok(welcome) => {
                hit(Failpoint::HelloAccepted);
                let id = welcome.client;
                self.send(id, &Event::Welcome(welcome), Vec::new());
                id
            }
            Err(refusal) => {
                tracing::info!(client = id.0, %refusal, "refused at hello");
                // Surplus descriptors are no fault of their own here.
                fds.discard();
                self.refuse(id, RequestId(0), refusal);
                if let Some(client) = self.clients.get_mut(&id) {
                    client.stage = Stage::Leaving;
                }
                self.flush(id);
                id
            }
        }
    }

    fn try_hello(
        &mut self,
        id: ClientId,
        hello: &Hello,
        fds: &mut Fds,
    ) -> Result<Welcome, Refusal> {
        let gone = || Refusal::Internal { why: "find the client".to_owned() };
        let attached = match hello.role {
            Role::Tool => None,
            Role::Process | Role::Sockets | Role::Rpc => Some(attach(fds)?),
        };
        let peer = self.caller(id).ok_or_else(gone)?.peer;
        let session = Token(random_bytes()?);
        if hello.role != Role::Tool {
            self.quotas.take(peer.uid, QuotaKind::Clients, 1)?;
            self.counters.add(Counter::Clients);
        }
        let mut program = hello.program.clone();
        program.truncate((0..=PROGRAM_MAX).rfind(|&at| program.is_char_boundary(at)).unwrap_or(0));
        let introduced = Introduced { role: hello.role, program, session, attached };
        let client = self.clients.get_mut(&id).ok_or_else(gone)?;
        tracing::debug!(
            client = id.0,
            pid = peer.pid,
            uid = peer.uid,
            role = ?hello.role,
            program = introduced.program,
            "hello"
        );
        client.stage = Stage::Welcome(introduced);
        if let Some(key) = client.nascent_timer.take() {
            self.timers.cancel(key);
        }
        let mut number = id;
        if let Some(resume) = hello.resume
            && self.renumber(id, resume.client)
        {
            self.counters.add(Counter::Resumed);
            number = resume.client;
        }
        Ok(Welcome {
            client: number,
            session,
            incarnation: self.incarnation,
            resumed: false,
            wake_cost_ns: self.options.wake_cost.as_nanos() as u64,
            ring_len: self.options.ring_len,
        })
    }

    // ---- export ----

    fn export(
        &mut self,
        id: ClientId,
        wanted: ExportRequest,
        memory: Result<Suspect, Refusal>,
    ) -> Result<ExportId, Refusal> {
        let gone = || Refusal::Internal { why: "find the client".to_owned() };
        let peer = self.caller(id).ok_or_else(gone)?.peer;
        let ExportRequest { name, len, grants, token, restore } = wanted;
        if !name.is_valid() {
            return Err(Refusal::BadName { name });
        }
        if grants.len() > MAX_GRANTS {
            return Err(Refusal::TooManyGrants { count: grants.len() as u32 });
        }
        let max = self.quotas.limits.max_export_bytes;
        if len == 0 || len > max {
            return Err(Refusal::BadLength { len, max });
        }
        let memory = segment_of(memory, len)?;
        if let Some(other) = self.registry.find(&name, Some(peer.pid)) {
            let owner = self.registry.exports.get(&other).map(|export| export.owner);
            let pid = owner.and_then(|owner| self.caller(owner)).map_or(0, |it| it.peer.pid);
            return Err(Refusal::NameTaken { name, pid });
        }
        self.quotas.take(peer.uid, QuotaKind::Exports, 1)?;
        if let Err(refusal) = self.quotas.take(peer.uid, QuotaKind::Bytes, len) {
            self.quotas.give(peer.uid, QuotaKind::Exports, 1);
            return Err(refusal);
        }
        let old =
            restore.filter(|old| self.is_old_id(old.0) && !self.registry.exports.contains_key(old));
        let number = old.unwrap_or_else(|| ExportId(self.next_id()));
        let export = Export {
            owner: id,
            name,
            len,
            memory: Arc::new(memory),
            entries: grants.into_iter().map(Entry::new).collect(),
            token,
            restored: old.is_some(),
            // Of one of before a crash nobody knows.
            touched: restore.is_some(),
            withdrawn: false,
            links: HashSet::new(),
        };
        tracing::debug!(client = id.0, export = number.0, name = %export.name, len, "exported");
        self.registry.insert(number, peer.pid, export);
        self.counters.add(Counter::Exports);
        if let Some(client) = self.clients.get_mut(&id) {
            client.exports.insert(number);
        }
        hit(Failpoint::ExportRegistered);
        Ok(number)
    }

    /// Answers an export that has just been made, then serves those who waited for it.
    fn exported(&mut self, id: ClientId, request: RequestId, export: ExportId) {
        self.send(id, &Event::Exported { request, export, cpu: sched::current_cpu() }, Vec::new());
        let Some(pid) = self.caller(id).map(|client| client.peer.pid) else { return };
        let waiters = match self.registry.exports.get(&export) {
            Some(known) => self.registry.waiters(&known.name, pid, known.restored),
            None => return,
        };
        for (client, request) in waiters {
            self.try_pending(client, request);
        }
    }

    fn owned_export(&self, id: ClientId, export: ExportId) -> bool {
        self.registry.exports.get(&export).is_some_and(|export| export.owner == id)
    }

    fn unexport(&mut self, id: ClientId, request: RequestId, export: ExportId) {
        if !self.owned_export(id, export) {
            let refusal = Refusal::NotYours { what: "export".to_owned(), number: export.0 };
            return self.refuse(id, request, refusal);
        }
        let Some(peer) = self.caller(id).map(|client| client.peer) else { return };
        let untouched = self.registry.exports.get(&export).is_some_and(|known| !known.touched);
        if untouched {
            self.drop_export(export, peer.pid, peer.uid, CloseReason::Unexported);
        } else {
            self.registry.withdraw(export, peer.pid);
        }
        hit(Failpoint::Unexported);
        let cpu = sched::current_cpu();
        self.send(id, &Event::Unexported { request, untouched, cpu }, Vec::new());
    }

    fn revoked(&mut self, id: ClientId, export: ExportId) {
        if self.owned_export(id, export)
            && let Some(peer) = self.caller(id).map(|client| client.peer)
        {
            hit(Failpoint::Revoked);
            self.drop_export(export, peer.pid, peer.uid, CloseReason::Unexported);
        }
    }

    // ---- import ----

    fn import(
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
        let uid = client.peer.uid;
        let segment = match self.check_import(&wanted, segment) {
            Ok(segment) => segment,
            Err(refusal) => {
                self.refuse(id, request, refusal);
                return Ok(());
            }
        };
        if let Err(refusal) = self.quotas.take(uid, QuotaKind::Imports, 1) {
            self.refuse(id, request, refusal);
            return Ok(());
        }
        let ImportRequest { process, name, rights, token, timeout_ms, restore, caller } = wanted;
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
    fn take_pending(&mut self, id: ClientId, request: RequestId) -> Option<Pending> {
        let client = self.clients.get_mut(&id)?;
        let pending = client.pending.remove(&request)?;
        let uid = client.peer.uid;
        self.registry.stop_waiting(&pending.queue(), pending.place);
        if let Some(key) = pending.timer {
            self.timers.cancel(key);
        }
        self.quotas.give(uid, QuotaKind::Imports, 1);
        Some(pending)
    }

    pub(crate) fn import_timed_out(&mut self, id: ClientId, request: RequestId) {
        if let Some(pending) = self.take_pending(id, request) {
            let waited_ms = pending.since.elapsed().as_millis().min(u128::from(u32::MAX)) as u32;
            self.refuse(id, request, Refusal::NoSuchExport { name: pending.name, waited_ms });
        }
    }

    /// Grants or refuses a waiting import if its export is there. `false` when it still waits.
    fn try_pending(&mut self, id: ClientId, request: RequestId) -> bool {
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
        if exporter.queue.len() >= MAX_QUEUED_FOR_LINKS {
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
        let memory = if pending.rights == Rights::READ {
            memfd::reopen_read_only(known.memory.as_ref())
                .map_err(|errno| Refusal::Internal { why: cannot_reopen("the memory", errno) })?;
            OutFd::ReadOnly(known.memory.clone())
        } else {
            OutFd::Same(known.memory.clone())
        };
        // With its first link to a process a client gets what it takes to wake it.
        let to_importer_new = !importer.acquaintances.knows(known.owner);
        let to_exporter_new = !exporter.acquaintances.knows(id) && known.owner != id;
        let introduce = |client: &Client, new: bool| -> Vec<OutFd> {
            client.attached().filter(|_| new).map_or_else(Vec::new, |attached| {
                vec![OutFd::Same(attached.page.clone()), OutFd::Doorbell(attached.doorbell.clone())]
            })
        };
        let mut to_importer = vec![memory];
        to_importer.extend(introduce(exporter, to_importer_new));
        let mut to_exporter = vec![OutFd::Same(pending.segment.clone())];
        to_exporter.extend(introduce(importer, to_exporter_new));
        let (importer_peer, exporter_peer) = (importer.peer, exporter.peer);
        let len = known.len;
        self.quotas.take(importer_peer.uid, QuotaKind::Imports, 1)?;
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
                exporter: exporter_peer.client,
                rights,
                segment: Some(pending.segment).filter(|segment| plenty(segment)),
            },
        );
        if let Some(export) = self.registry.exports.get_mut(&export) {
            export.links.insert(link);
            export.touched = true;
        }
        self.link_made(id, exporter_peer.client);
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

fn access_mode(fd: impl AsFd) -> OFlags {
    rustix::fs::fcntl_getfl(fd).map_or(OFlags::empty(), |flags| flags & OFlags::RWMODE)
}

/// A sealed, writable memory file of that length.
fn segment_of(passed: Result<Suspect, Refusal>, len: u64) -> Result<Fd, Refusal> {
    let missing = || bad_segment(NO_SEGMENT);
    let passed = passed?;
    let fd = passed.look().ok_or_else(missing)?;
    memfd::verify(fd, len).map_err(bad_segment)?;
    if access_mode(fd) != OFlags::RDWR {
        return Err(bad_segment("the descriptor is not open for reading and writing"));
    }
    let fd = passed.keep().ok_or_else(missing)?;
    descriptors::enough(&fd)?;
    Ok(fd)
}

fn cannot_reopen(what: &str, errno: rustix::io::Errno) -> String {
    let hint = match errno {
        rustix::io::Errno::NOENT => "; is /proc mounted where vmmcd runs?",
        rustix::io::Errno::ACCESS => "; vmmcd must run as the same user or as root",
        _ => "",
    };
    format!("open {what} anew ({errno}{hint})")
}

/// Checks the two descriptors of a hello. The kinds are asked for before anything else: calls like
/// fstat(2) on a descriptor of a file system that a client runs could block.
fn attach(fds: &mut Fds) -> Result<Attached, Refusal> {
    const NO_PAGE: &str = "no process page came with hello";
    let no_page = || bad_segment(NO_PAGE);
    let passed = fds.need(NO_PAGE)?;
    let page = passed.look().ok_or_else(no_page)?;
    memfd::verify(page, layout::page::LEN as u64)
        .map_err(|error| bad_segment(format!("process page: {error}")))?;
    let seals = rustix::fs::fcntl_get_seals(page).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::FUTURE_WRITE) {
        return Err(bad_segment(
            "process page: others could write it (F_SEAL_FUTURE_WRITE missing)",
        ));
    }
    let page = memfd::reopen_read_only(page)
        .map_err(|errno| Refusal::Internal { why: cannot_reopen("the process page", errno) })?;
    let passed = fds.need("no doorbell came with hello")?;
    Ok(Attached { page: Arc::new(page), doorbell: Arc::new(doorbell_of(passed)?) })
}

/// Checks that a descriptor is the write end of a pipe, which peers can be given their own of.
pub(crate) fn doorbell_of(passed: Suspect) -> Result<Fd, Refusal> {
    let nothing = || bad_segment("doorbell: not a descriptor");
    let doorbell = passed.look().ok_or_else(nothing)?;
    if rustix::pipe::fcntl_getpipe_size(doorbell).is_err() {
        return Err(bad_segment("doorbell: not a pipe"));
    }
    if access_mode(doorbell) != OFlags::WRONLY {
        return Err(bad_segment("doorbell: not the write end of a pipe"));
    }
    let doorbell = passed.keep().ok_or_else(nothing)?;
    descriptors::enough(&doorbell)?;
    reopen_doorbell(&doorbell)
        .map_err(|errno| Refusal::Internal { why: cannot_reopen("the doorbell", errno) })?;
    Ok(doorbell)
}

pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0u8; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(len) if len == N => Ok(bytes),
        _ => Err(Refusal::Internal { why: "get random bytes".to_owned() }),
    }
}
