//! Inward: what daemons of other nodes ask, each in a connection of its own.

use super::cluster::Cluster;
use super::interface::Door;
use super::offers::{Offer, Offers};
use super::secure::{PATIENCE, Secure, SecureError};
use crate::requests::random_bytes;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use vmmc::control::message::Refusal;
use vmmc::control::network::{
    Accepted, Capability, Opening, Origin, Purpose, RemoteGrant, Told, Wanted,
};
use vmmc::error::ImportError;
use vmmc::sys::thread::spawn_quiet;
use vmmc::{Import, Node};

/// Connections that have not come to an end of their set-up: more wait in the kernel's queue.
const MAX: usize = 1024;

/// How often a waiting import looks whether the asker is still there.
const LOOK: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) cluster: Arc<Cluster>,
    pub(super) offers: Arc<Offers>,
    pub(super) door: Door,
    /// The interface's own connection to the broker.
    pub(super) node: Node,
}

impl Server {
    /// Takes connections for ever.
    pub(super) fn run(self, listener: &TcpListener) {
        let open = Arc::new(AtomicUsize::new(0));
        loop {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept of another node's connection");
                    // Out of descriptors, most likely: others give some back meanwhile.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            if open.load(Ordering::Acquire) >= MAX {
                tracing::warn!(%from, "too many connections of other nodes at once; closed");
                continue;
            }
            open.fetch_add(1, Ordering::AcqRel);
            let (server, counted) = (self.clone(), open.clone());
            let thread = spawn_quiet("net-serve", move || {
                if let Err(error) = server.serve(stream) {
                    tracing::warn!(%from, %error, "refused another node's connection");
                }
                counted.fetch_sub(1, Ordering::AcqRel);
            });
            if thread.is_err() {
                open.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn serve(&self, stream: TcpStream) -> Result<(), SecureError> {
        let from = stream.peer_addr()?;
        let mut secure = Secure::accept(stream, self.cluster.key.as_ref())?;
        let opening: Opening = secure.receive(Some(PATIENCE))?;
        let wrong = (opening.to != self.cluster.node).then(|| {
            format!(
                "this is node {:?}, not {:?}; correct the cluster file of node {:?}",
                self.cluster.node, opening.to, opening.origin.node
            )
        });
        match opening.purpose {
            Purpose::Import(wanted) => {
                let told = match wrong {
                    Some(why) => Told::Refused(Refusal::NodeUnreachable { node: opening.to, why }),
                    None => match self.import(&opening.origin, wanted, &secure) {
                        Some(told) => told,
                        None => return Ok(()), // nobody waits for it any more
                    },
                };
                secure.send(&told)
            }
            Purpose::Data => {
                // Who knows the key may come, named in the cluster file or not.
                let Origin { node, pid, uid, .. } = &opening.origin;
                tracing::debug!(node, pid, uid, %from, refused = wrong, "data connection");
                let taken = wrong.is_none();
                let node = self.cluster.node.clone();
                secure.send(&Accepted { node, refused: wrong })?;
                if taken {
                    let stream = secure.into_stream();
                    stream.set_read_timeout(None)?;
                    stream.set_write_timeout(None)?;
                    self.door.enter(stream, opening.origin);
                }
                Ok(())
            }
        }
    }

    /// Imports in the name of a process of another node. `None`: it has hung up.
    fn import(&self, origin: &Origin, wanted: Wanted, asker: &Secure) -> Option<Told> {
        let token = self.offers.token();
        match self.open(origin, wanted, asker, token) {
            Ok(None) => None,
            Err(error) => {
                let refusal = match error {
                    ImportError::Refused(refusal) => refusal,
                    ImportError::Cancelled => Refusal::Cancelled,
                    error => Refusal::Internal { why: format!("import ({error})") },
                };
                tracing::info!(
                    node = origin.node,
                    pid = origin.pid,
                    uid = origin.uid,
                    %refusal,
                    "refused an import of another node"
                );
                Some(Told::Refused(refusal))
            }
            Ok(Some((import, len))) => {
                let capability = match random_bytes() {
                    Ok(bytes) => Capability(bytes),
                    Err(refusal) => return Some(Told::Refused(refusal)),
                };
                let told = Told::Granted(RemoteGrant {
                    capability,
                    export: import.export_id(),
                    len,
                    rights: import.rights(),
                    exporter: import.exporter(),
                });
                self.offers.put(capability, Offer { import, origin: origin.clone(), token });
                self.door.ring(); // its expiry must be watched
                Some(told)
            }
        }
    }

    fn open(
        &self,
        origin: &Origin,
        wanted: Wanted,
        asker: &Secure,
        token: u64,
    ) -> Result<Option<(Import, u64)>, ImportError> {
        let Wanted { process, name, rights, token: secret, timeout_ms } = wanted;
        let mut import = self
            .node
            .import(name)
            .rights(rights)
            .on_behalf_of(self.cluster.caller(origin))
            .handler(self.offers.on_closed(token));
        if let Some(process) = process {
            import = import.process(process);
        }
        if let Some(secret) = secret {
            import = import.token(secret);
        }
        if timeout_ms != u32::MAX {
            import = import.timeout(Duration::from_millis(u64::from(timeout_ms)));
        }
        let mut pending = import.start()?;
        while !pending.wait_for(Some(LOOK))? {
            if has_hung_up(asker.stream()) {
                return Ok(None);
            }
        }
        let import = pending.wait()?;
        let len = import.len() as u64;
        Ok(Some((import, len)))
    }
}

fn has_hung_up(stream: &TcpStream) -> bool {
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    let mut byte = [0u8; 1];
    !matches!(
        rustix::net::recv(stream, &mut byte, flags),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
    )
}
