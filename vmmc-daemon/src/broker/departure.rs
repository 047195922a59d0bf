//! Clients that go, and what goes with them.

use super::{Broker, Doom, Fault};
use crate::counters::Counter;
use crate::receive;
use crate::sayings::of_client;
use rustix::event::epoll;
use rustix::io::Errno;
use vmmc::control::message::{CloseReason, Event, QuotaKind, Role};
use vmmc::id::{ClientId, ExportId, LinkId, PeerInfo};

impl Broker {
    /// Marks a client for removal at the end of the round.
    pub(crate) fn doom(&mut self, id: ClientId, why: Doom) {
        if let Some(client) = self.clients.get_mut(&id)
            && !std::mem::replace(&mut client.doomed, true)
        {
            self.doomed.push((id, why));
        }
    }

    /// Removes the doomed.
    pub(crate) fn bury(&mut self) {
        while let Some((id, why)) = self.doomed.pop() {
            self.remove_client(id, &why);
        }
    }

    fn remove_client(&mut self, id: ClientId, why: &Doom) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        let PeerInfo { pid, uid, .. } = client.peer;
        let program = client.introduced().map_or("", |it| it.program.as_str()).to_owned();
        let cut_off = |how: &str, what: Option<&str>, errno: Option<Errno>| {
            let errno = errno.map(tracing::field::display);
            of_client(|untold| {
                tracing::warn!(
                    client = id.0,
                    pid,
                    uid,
                    program,
                    what,
                    errno,
                    untold,
                    "{how}; cut off"
                );
            });
        };
        match *why {
            Doom::Gone | Doom::Successor => {
                tracing::debug!(client = id.0, pid, uid, program, "gone");
            }
            Doom::Refused => of_client(|untold| {
                tracing::info!(client = id.0, pid, uid, untold, "refused");
            }),
            Doom::Fault(Fault(ref what)) => {
                self.counters.add(Counter::Malformed);
                cut_off("protocol broken", Some(what), None);
            }
            Doom::NotReading => {
                self.counters.add(Counter::NotReading);
                cut_off("does not read", None, None);
            }
            Doom::Unsendable(errno) => cut_off("cannot be served", None, Some(errno)),
        }
        // Closing the descriptors would do, unless somebody else holds a copy.
        let _ = epoll::delete(&self.epoll, &client.socket);
        let _ = epoll::delete(&self.epoll, &client.pidfd);
        if let Some(key) = client.nascent_timer.take() {
            self.timers.cancel(key);
        }
        if client.introduced().is_some_and(|it| it.role != Role::Tool) {
            self.counters.add(Counter::Deaths);
            self.quotas.give(uid, QuotaKind::Clients, 1);
        }
        let waiting: Vec<_> = client.pending.drain().map(|(_, pending)| pending).collect();
        for pending in waiting {
            let payer = client.payer(pending.caller.as_ref());
            self.registry.stop_waiting(&pending.queue(), pending.place);
            if let Some(key) = pending.timer {
                self.timers.cancel(key);
            }
            self.quotas.give(payer, QuotaKind::Imports, 1);
        }
        for link in client.imports.drain() {
            self.close_link(link, Some((true, CloseReason::PeerDied)));
        }
        for export in client.exports.drain() {
            self.drop_export(export, pid, uid, CloseReason::PeerDied);
        }
        self.mourn(id, &mut client.acquaintances);
        if let Some(network) = &self.network {
            network.client_gone(id, matches!(why, Doom::Gone));
        }
        self.forget_sockets(id, &client);
        self.watch_idleness();
        let closed = self.quotas.socket_closed(uid);
        match why {
            // It is needed still.
            Doom::Successor => {
                drop(client.socket);
                closed();
            }
            _ => receive::close_connection(uid, client.socket, closed),
        }
    }

    /// Ends an export: its name, and its links, whose importers are told why.
    pub(crate) fn drop_export(&mut self, id: ExportId, pid: u32, uid: u32, reason: CloseReason) {
        self.registry.withdraw(id, pid);
        let Some(export) = self.registry.exports.remove(&id) else { return };
        for link in export.links {
            self.close_link(link, Some((false, reason)));
        }
        if let Some(owner) = self.clients.get_mut(&export.owner) {
            owner.exports.remove(&id);
        }
        self.quotas.give(uid, QuotaKind::Exports, 1);
        self.quotas.give(uid, QuotaKind::Bytes, export.len);
        receive::close_last(uid, export.memory);
    }

    /// Ends a link, and tells the exporter (`true`) or the importer (`false`).
    pub(crate) fn close_link(&mut self, id: LinkId, tell: Option<(bool, CloseReason)>) {
        let Some(link) = self.links.remove(&id) else { return };
        if let Some(export) = self.registry.exports.get_mut(&link.export) {
            export.links.remove(&id);
        }
        if let Some(importer) = self.clients.get_mut(&link.importer) {
            importer.imports.remove(&id);
        }
        if let Some(exporter) = self.clients.get_mut(&link.exporter) {
            exporter.link_ended(id);
        }
        self.quotas.give(link.payer, QuotaKind::Imports, 1);
        if let Some((to_exporter, reason)) = tell {
            let to = if to_exporter { link.exporter } else { link.importer };
            self.send_news(to, &Event::LinkClosed { link: id, reason }, Vec::new());
        }
        self.link_ended(link.importer, link.exporter);
    }
}
