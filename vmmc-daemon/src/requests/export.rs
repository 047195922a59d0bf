//! Exports: announced, withdrawn, revoked.

use super::passed::segment_of;
use crate::broker::Broker;
use crate::counters::Counter;
use crate::failpoint::{Failpoint, hit};
use crate::policy::Entry;
use crate::receive::{self, Suspect};
use crate::registry::Export;
use std::collections::HashSet;
use std::sync::Arc;
use vmmc::control::message::{CloseReason, Event, MAX_GRANTS, QuotaKind, Refusal};
use vmmc::id::{ClientId, ExportId, Grant, LinkId, Name, RequestId, Token};
use vmmc::sys::sched;

/// What an export announces.
pub(super) struct ExportRequest {
    pub(super) name: Name,
    pub(super) len: u64,
    pub(super) grants: Vec<Grant>,
    pub(super) token: Option<Token>,
    pub(super) restore: Option<ExportId>,
}

impl Broker {
    pub(super) fn export(
        &mut self,
        id: ClientId,
        wanted: ExportRequest,
        memory: Result<Suspect, Refusal>,
    ) -> Result<ExportId, Refusal> {
        let gone = || Refusal::Internal { why: "find the client".to_owned() };
        let peer = self.caller(id).ok_or_else(gone)?.peer;
        let ExportRequest { name, len, grants, token, restore } = wanted;
        if !name.is_valid() || (name.is_reserved() && !self.is_own(id)) {
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
            receive::close(peer.uid, memory);
            return Err(Refusal::NameTaken { name, pid });
        }
        if let Err(refusal) = self.take_export(peer.uid, len) {
            receive::close(peer.uid, memory);
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

    /// Takes of the quotas what an export is.
    fn take_export(&mut self, uid: u32, len: u64) -> Result<(), Refusal> {
        self.quotas.take(uid, QuotaKind::Exports, 1)?;
        self.quotas
            .take(uid, QuotaKind::Bytes, len)
            .inspect_err(|_| self.quotas.give(uid, QuotaKind::Exports, 1))
    }

    /// Answers an export that has just been made, then serves those who waited for it.
    pub(super) fn exported(&mut self, id: ClientId, request: RequestId, export: ExportId) {
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

    pub(super) fn unexport(&mut self, id: ClientId, request: RequestId, export: ExportId) {
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
            // The carriers wait for nobody, and have their own words for an end.
            if !self.is_own(id) {
                self.end_remote_links(export);
            }
        }
        hit(Failpoint::Unexported);
        let cpu = sched::current_cpu();
        self.send(id, &Event::Unexported { request, untouched, cpu }, Vec::new());
    }

    /// The network interface is to stop who imports from other nodes, and to close their links.
    fn end_remote_links(&mut self, export: ExportId) {
        let Some(known) = self.registry.exports.get(&export) else { return };
        let importer = |link: &LinkId| self.links.get(link).map(|it| (*link, it.importer));
        let importers: Vec<_> = known.links.iter().filter_map(importer).collect();
        for (link, importer) in importers {
            if self.is_own(importer) {
                self.send_news(importer, &Event::LinkEnding { link }, Vec::new());
            }
        }
    }

    pub(super) fn revoked(&mut self, id: ClientId, export: ExportId) {
        if self.owned_export(id, export)
            && let Some(peer) = self.caller(id).map(|client| client.peer)
        {
            hit(Failpoint::Revoked);
            self.drop_export(export, peer.pid, peer.uid, CloseReason::Unexported);
        }
    }
}
