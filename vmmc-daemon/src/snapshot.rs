//! What tools see. Answers may be long, so they travel in a memory file.

use crate::broker::Broker;
use crate::client::{Client, OutFd};
use crate::doorbell::Shared;
use crate::policy::granted;
use crate::registry::Export;
use std::sync::Arc;
use vmmc::control::message::{ClientInfo, Event, ExportInfo, LinkInfo, Refusal, Snapshot};
use vmmc::id::{ClientId, ExportId, PeerInfo, RequestId, Rights};
use vmmc::sys::{Fd, memfd};

/// `vmmcd --version`.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Puts bytes into a memory file that cannot change any more.
pub(crate) fn memory_file(name: &str, bytes: &[u8]) -> rustix::io::Result<Fd> {
    let fd = memfd::create(name, bytes.len() as u64)?;
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        at += rustix::io::pwrite(&fd, rest, at as u64)?;
    }
    let seals = memfd::REQUIRED_SEALS | rustix::fs::SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

impl Broker {
    fn answer_listing(&mut self, id: ClientId, request: RequestId, value: &impl serde::Serialize) {
        let made =
            postcard::to_stdvec(value).map_err(|error| error.to_string()).and_then(|bytes| {
                let file =
                    memory_file("vmmc-listing", &bytes).map_err(|errno| errno.to_string())?;
                Ok((bytes.len() as u64, file))
            });
        match made {
            Ok((len, file)) => {
                let event = Event::Listing { request, len };
                let uid = self.peer(id).uid;
                let file = Arc::new(Shared::new(file, (uid, uid)));
                self.send(id, &event, vec![OutFd::Owned(file)]);
            }
            Err(why) => {
                let why = format!("make the list ({why})");
                self.refuse(id, request, Refusal::Internal { why });
            }
        }
    }

    fn peer(&self, id: ClientId) -> PeerInfo {
        self.clients
            .get(&id)
            .map_or(PeerInfo { client: id, pid: 0, uid: u32::MAX, gid: u32::MAX }, |client| {
                client.peer
            })
    }

    fn rights(&self, asking: &Client, known: &Export) -> Rights {
        granted(&known.entries, self.peer(known.owner).uid, asking.caller())
    }

    fn export_info(&self, asking: &Client, export: ExportId, known: &Export) -> ExportInfo {
        ExportInfo {
            export,
            name: known.name.clone(),
            len: known.len,
            exporter: self.peer(known.owner),
            rights: self.rights(asking, known),
            needs_token: known.token.is_some(),
            importers: known.links.len() as u32,
        }
    }

    /// The exports that the client may import, and those of its own user.
    pub(crate) fn list(&mut self, id: ClientId, request: RequestId) {
        let Some(asking) = self.clients.get(&id) else { return };
        let mut exports: Vec<ExportInfo> = self
            .registry
            .exports
            .iter()
            .filter(|(_, known)| !known.withdrawn)
            .filter(|(_, known)| {
                self.peer(known.owner).uid == asking.peer.uid
                    || self.rights(asking, known) != Rights::empty()
            })
            .map(|(&export, known)| self.export_info(asking, export, known))
            .collect();
        exports.sort_unstable_by_key(|info| info.export);
        self.answer_listing(id, request, &exports);
    }

    /// Everything, or the caller's user's part of it.
    pub(crate) fn snapshot(&mut self, id: ClientId, request: RequestId) {
        let Some(asking) = self.clients.get(&id) else { return };
        let all = self.is_administrator(id);
        let uid = asking.peer.uid;
        let shown = |of: u32| all || of == uid;
        let mut clients: Vec<ClientInfo> = self
            .clients
            .values()
            .filter(|client| shown(client.peer.uid))
            .filter_map(|client| {
                let introduced = client.introduced()?;
                Some(ClientInfo {
                    peer: client.peer,
                    role: introduced.role,
                    program: introduced.program.clone(),
                    exports: client.exports.len() as u32,
                    imports: client.imports.len() as u32,
                    connections: client.sockets.len() as u32,
                })
            })
            .collect();
        clients.sort_unstable_by_key(|client| client.peer.client);
        let mut exports: Vec<ExportInfo> = self
            .registry
            .exports
            .iter()
            .filter(|(_, export)| shown(self.peer(export.owner).uid))
            .map(|(&export, known)| self.export_info(asking, export, known))
            .collect();
        exports.sort_unstable_by_key(|info| info.export);
        let mut links: Vec<LinkInfo> = self
            .links
            .iter()
            .filter(|(_, link)| shown(link.importer_uid) || shown(self.peer(link.exporter).uid))
            .map(|(&number, link)| {
                let (sends, bytes) = link.counts();
                LinkInfo {
                    link: number,
                    export: link.export,
                    importer: link.importer,
                    rights: link.rights,
                    sends,
                    bytes,
                }
            })
            .collect();
        links.sort_unstable_by_key(|link| link.link);
        let connections = self.connections(shown);
        let snapshot = Snapshot {
            pid: std::process::id(),
            uid: self.uid,
            version: VERSION.to_owned(),
            uptime_s: self.started.elapsed().as_secs(),
            clients,
            exports,
            links,
            connections,
            counters: self.counters(),
        };
        self.answer_listing(id, request, &snapshot);
    }

    /// The process page of a client of the caller's own user, or of anybody's for an administrator.
    pub(crate) fn page(&mut self, id: ClientId, request: RequestId, of: ClientId) {
        let may_see = self.is_administrator(id) || self.peer(of).uid == self.peer(id).uid;
        let page = self
            .clients
            .get(&of)
            .filter(|_| may_see)
            .and_then(|client| client.attached())
            .map(|attached| attached.page.clone());
        match page {
            Some(page) => self.send(id, &Event::Page { request }, vec![OutFd::Same(page)]),
            None => {
                let refusal = Refusal::NotYours { what: "client".to_owned(), number: of.0 };
                self.refuse(id, request, refusal);
            }
        }
    }
}
