//! What each request does. Everything a client can get wrong is either a refusal, which tells it
//! what and why, or a [`Fault`], which ends its connection.

mod export;
mod hello;
mod import;
mod passed;

pub(crate) use hello::random_bytes;

use crate::broker::{Broker, Ending, Fault};
use crate::client::Client;
use crate::listings::What;
use crate::receive::Fds;
use export::ExportRequest;
use import::ImportRequest;
use passed::NO_SEGMENT;
use vmmc::control::message::{CloseReason, Event, Refusal, Request};
use vmmc::id::ClientId;

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
            Request::Export { request, name, len, grants, token, restore, cpu: _ } => {
                self.needs_attachment(id)?;
                let wanted = ExportRequest { name, len, grants, token, restore };
                match self.export(id, wanted, fds.need(NO_SEGMENT)) {
                    Ok(export) => self.exported(id, request, export),
                    Err(refusal) => self.refuse(id, request, refusal),
                }
                Ok(())
            }
            Request::Unexport { request, export, cpu: _ } => {
                self.unexport(id, request, export);
                Ok(())
            }
            Request::Revoked { export } => {
                self.revoked(id, export);
                Ok(())
            }
            Request::Import {
                request,
                process,
                name,
                rights,
                token,
                timeout_ms,
                restore,
                known_to,
                cpu: _,
            } => {
                self.needs_attachment(id)?;
                let plain = ImportRequest::plain(process, name, rights, token, timeout_ms);
                let wanted = ImportRequest { restore, known_to, ..plain };
                self.import(id, request, wanted, fds.need(NO_SEGMENT))
            }
            Request::ImportFor { request, caller, process, name, rights, token, timeout_ms } => {
                self.needs_attachment(id)?;
                self.needs_interface(id)?;
                let plain = ImportRequest::plain(process, name, rights, token, timeout_ms);
                let wanted = ImportRequest { caller: Some(caller), ..plain };
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
            Request::Links { request } => {
                self.survey(id, request);
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
            Request::Sync { request } => {
                self.send(id, &Event::Done { request }, Vec::new());
                Ok(())
            }
            Request::List { request } => {
                self.ask(id, request, What::Exports);
                Ok(())
            }
            Request::Snapshot { request } => {
                self.ask(id, request, What::Snapshot);
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
            Request::Neighbour { address } => {
                let is = self.is_neighbour(address);
                self.send(id, &Event::Neighbour { address, is }, Vec::new());
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
        match self.caller(id).and_then(Client::attached).and_then(|it| it.doorbell.as_ref()) {
            Some(_) => Ok(()),
            None => Err(Fault::new("who has no doorbell may neither export nor import")),
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
}
