//! Inward: what daemons of other nodes ask, each in a connection of its own.

use super::cluster::Cluster;
use super::entrance::Entrance;
use super::idle::OTHERS_KEEP;
use super::interface::Door;
use super::lifelines::Lifelines;
use super::offers::{Offer, Offers, Watch};
use super::owner;
use super::places::Places;
use super::secure::{PATIENCE, Secure, SecureError};
use super::strangers::{Most, Stranger, Strangers, neighbourhood};
use super::survey;
use crate::requests::random_bytes;
use crate::sayings::Sayings;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use vmmc::control::message::Refusal;
use vmmc::control::network::{
    Accepted, Capability, Lasting, Mask, Meeting, Opening, Origin, Pass, Purpose, RemoteGrant,
    Seen, Told, Wanted, is_node_name,
};
use vmmc::error::ImportError;
use vmmc::fabric::FabricError;
use vmmc::sys::socket::has_spoken;
use vmmc::sys::thread::spawn_quiet;
use vmmc::transport::ofi::fifo::Fifo;
use vmmc::transport::tcp::seal::SealKeys;
use vmmc::{Import, Node};

/// Connections that have not come to an end of their set-up, but for imports that wait.
const MAX: usize = 1024;

/// Of them those that have not proved yet that they know the key.
const STRANGERS: Most = Most { all: MAX / 2, each: MAX / 8 };

/// Imports that may wait for their exports, each of which has a connection beside those.
const WAITERS: usize = 2 * MAX;
/// Of them those from one address.
const WAITERS_THERE: usize = MAX / 2;
/// Of them those of one user, by that node's word.
const WAITERS_EACH: usize = MAX / 8;

/// Nobody's group.
const NO_GROUP: u32 = u32::MAX;

/// How often a waiting import looks whether the asker is still there.
const LOOK: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Server {
    cluster: Arc<Cluster>,
    entrance: Arc<Entrance>,
    offers: Arc<Offers>,
    /// What processes of this node have.
    lifelines: Arc<Lifelines>,
    door: Door,
    /// The interface's own connection to the broker.
    node: Node,
    /// Of waiting imports: all, those of an address, those of a user there.
    waiters: (Places<()>, Places<IpAddr>, Places<(IpAddr, u32)>),
}

/// One of [`MAX`] connections, until it is dropped.
#[derive(Debug)]
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(all: &Arc<AtomicUsize>) -> Open {
        all.fetch_add(1, Ordering::AcqRel);
        Open(all.clone())
    }

    /// Is none of them for as long as this takes.
    fn apart<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.fetch_sub(1, Ordering::AcqRel);
        let done = work();
        self.0.fetch_add(1, Ordering::AcqRel);
        done
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The next question, where the other daemon has kept the connection for one. `None`: it has closed it, or asks nothing.
fn after(secure: &mut Secure) -> Result<Option<Opening>, SecureError> {
    match secure.receive(Some(OTHERS_KEEP)) {
        Err(SecureError::Io(_) | SecureError::Silent) => Ok(None),
        next => next.map(Some),
    }
}

/// A connection from there was refused, for this reason.
fn say_refused(sayings: &Sayings, from: SocketAddr, why: &str) {
    sayings.say(|untold| tracing::warn!(%from, why, untold, "refused another node's connection"));
}

impl Server {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        entrance: Arc<Entrance>,
        (offers, lifelines): (Arc<Offers>, Arc<Lifelines>),
        door: Door,
        node: Node,
    ) -> Server {
        Server {
            cluster,
            entrance,
            offers,
            lifelines,
            door,
            node,
            waiters: (Places::new(WAITERS), Places::new(WAITERS_THERE), Places::new(WAITERS_EACH)),
        }
    }

    /// Whether the cluster file names an address, or its neighbourhood.
    fn is_named(&self, address: IpAddr) -> bool {
        self.cluster.nodes().values().any(|at| at.is_at(address, neighbourhood))
    }

    /// Takes connections until a successor does.
    pub(super) fn run(self) {
        let Some(listener) = self.entrance.listener() else { return };
        let open = Arc::new(AtomicUsize::new(0));
        let strangers = Strangers::new(STRANGERS);
        let sayings = Arc::new(Sayings::new());
        loop {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(_) if self.entrance.is_left() => return,
                Err(error) => {
                    tracing::warn!(%error, "accept of another node's connection");
                    // Out of descriptors, most likely: others give some back meanwhile.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            if open.load(Ordering::Acquire) >= MAX {
                say_refused(&sayings, from, "too many connections of other nodes at once");
                continue;
            }
            let stranger = match strangers.come(&stream, from.ip(), self.is_named(from.ip())) {
                Ok((stranger, None)) => stranger,
                Ok((stranger, Some(ended))) => {
                    let why = format!("one from {ended} made room for it: too many prove nothing");
                    say_refused(&sayings, from, &why);
                    stranger
                }
                Err(error) => {
                    say_refused(&sayings, from, &format!("no descriptor ({error})"));
                    continue;
                }
            };
            let (server, counted) = (self.clone(), Open::new(&open));
            let by_thread = sayings.clone();
            let thread = spawn_quiet("net-serve", move || {
                if let Err(why) = server.serve((stream, from), stranger, &counted) {
                    say_refused(&by_thread, from, &why);
                }
            });
            if let Err(errno) = thread {
                say_refused(&sayings, from, &format!("no thread ({errno})"));
            }
        }
    }

    fn serve(
        &self,
        (stream, from): (TcpStream, SocketAddr),
        stranger: Stranger,
        counted: &Open,
    ) -> Result<(), String> {
        let secure = match Secure::accept(stream, self.cluster.key.as_ref()) {
            Ok(secure) => secure,
            // It was ended for another, which is told already.
            Err(_) if !stranger.is_here() => return Ok(()),
            Err(error) => return Err(error.of_visitor()),
        };
        drop(stranger);
        self.answer(secure, from, counted).map_err(|error| error.to_string())
    }

    /// Serves a daemon that has proved that it knows the key.
    fn answer(
        &self,
        mut secure: Secure,
        from: SocketAddr,
        counted: &Open,
    ) -> Result<(), SecureError> {
        let mut opening: Opening = secure.receive(Some(PATIENCE))?;
        loop {
            let Opening { to, mut origin, purpose } = opening;
            let mut wrong = (to != self.cluster.node).then(|| {
                format!(
                    "this is node {:?}, not {to:?}; correct the cluster file of the one that is wrong: its own name here, or the address of {to:?} on node {:?}",
                    self.cluster.node, origin.node
                )
            });
            if !is_node_name(&origin.node) {
                wrong = Some("your node's name is none that a node may have".to_owned());
            }
            if self.cluster.key.is_none() {
                match owner::vouches(secure.stream(), origin.uid) {
                    Ok(0) => {}
                    // Of its groups the kernel tells nothing.
                    Ok(_) => origin.gid = NO_GROUP,
                    Err(why) => wrong = wrong.or(Some(why)),
                }
            }
            // The broker knows this process no more. Who asks on a connection that was kept asks again on a new one.
            if self.entrance.is_left() {
                return Ok(());
            }
            let wanted = match purpose {
                Purpose::Look { tries } => {
                    secure.send(&self.look(&origin.node, tries, wrong))?;
                    let Some(next) = after(&mut secure)? else { return Ok(()) };
                    opening = next;
                    continue;
                }
                Purpose::Data { meeting, seal, lasting } => {
                    return self.data(secure, from, origin, (meeting, seal, lasting), wrong);
                }
                Purpose::Resume { pass, position, seal } => {
                    return self.resume(secure, &origin, (pass, position), seal, wrong);
                }
                Purpose::Import(wanted) => wanted,
            };
            let told = match wrong {
                Some(why) => {
                    let Origin { node, pid, uid, .. } = &origin;
                    tracing::warn!(node, pid, uid, %from, why, "refused an import of another node");
                    Told::Refused(Refusal::NodeUnreachable { node: to, why })
                }
                None => match self.import(&origin, wanted, &secure, counted) {
                    Some(told) => told,
                    None => return Ok(()), // nobody waits for it any more
                },
            };
            secure.send(&told)?;
            let Some(next) = after(&mut secure)? else { return Ok(()) };
            opening = next;
        }
    }

    /// How this node is, for another one; or what is wrong with its question.
    fn look(&self, from: &str, tries: bool, wrong: Option<String>) -> Seen {
        match wrong {
            Some(why) => Err(why),
            None => Ok(survey::presence(&self.cluster, tries, self.lifelines.count(from))),
        }
    }

    /// Takes a data connection.
    fn data(
        &self,
        mut secure: Secure,
        from: SocketAddr,
        origin: Origin,
        (theirs, seal, lasting): (Option<Meeting>, Option<SealKeys>, Option<Lasting>),
        wrong: Option<String>,
    ) -> Result<(), SecureError> {
        // Who knows the key may come, named in the cluster file or not.
        let Origin { node, pid, uid, .. } = &origin;
        tracing::debug!(node, pid, uid, %from, refused = wrong, "data connection");
        let fifo = match wrong {
            Some(why) => Err(why),
            None => self.agrees_to_seal(seal.is_some()).and_then(|()| self.fabric(theirs.as_ref())),
        };
        let (fifo, meeting) = match fifo {
            Ok(fifo) => fifo.unzip(),
            Err(why) => {
                tracing::warn!(node, pid, uid, %from, why, "refused a data connection");
                return secure.send(&self.accepted(Err(why), None));
            }
        };
        secure.send(&self.accepted(Ok(0), meeting))?;
        let stream = secure.into_data()?;
        let joined = |mut fifo: Fifo| fifo.join(&stream, false).map(|()| fifo);
        let fifo = fifo.map(joined).transpose().map_err(std::io::Error::other)?;
        self.door.enter(stream, fifo, seal.as_ref(), (origin, lasting));
        Ok(())
    }

    /// Whether a data connection is taken, and from which byte on.
    fn accepted(&self, position: Result<u64, String>, meeting: Option<Meeting>) -> Accepted {
        let node = self.cluster.node.clone();
        let (position, refused) = match position {
            Ok(position) => (position, None),
            Err(why) => (0, Some(why)),
        };
        Accepted { node, refused, meeting, position }
    }

    /// Takes a data connection in the place of one that was cut.
    fn resume(
        &self,
        mut secure: Secure,
        origin: &Origin,
        (pass, position): (Pass, u64),
        seal: Option<SealKeys>,
        wrong: Option<String>,
    ) -> Result<(), SecureError> {
        let agreed = wrong.map_or(Ok(()), Err).and_then(|()| self.agrees_to_seal(seal.is_some()));
        let found = match agreed {
            Ok(()) => match self.door.break_off(pass, origin.clone(), position) {
                Some(found) => found,
                None => return Ok(()), // not now
            },
            Err(why) => Err(why),
        };
        let asked = found.as_ref().ok().map(|&(_, asked)| asked);
        let Origin { node, pid, uid, .. } = origin;
        tracing::info!(
            node,
            pid,
            uid,
            refused = found.as_ref().err(),
            "data connection after a cut"
        );
        secure.send(&self.accepted(found.map(|(position, _)| position), None))?;
        if let Some(asked) = asked {
            self.door.resume((pass, asked), secure.into_data()?, seal);
        }
        Ok(())
    }

    /// Whether frames are sealed here too, or not here either; or what is to be done about it.
    fn agrees_to_seal(&self, theirs: bool) -> Result<(), String> {
        let ours = self.cluster.seals();
        if ours == theirs {
            return Ok(());
        }
        Err(format!(
            "seal = {ours} here, {theirs} there; write the same under [data] of both cluster files"
        ))
    }

    /// Our end of the fabric by which a data connection is to go, if it is; or why it cannot.
    fn fabric(&self, theirs: Option<&Meeting>) -> Result<Option<(Fifo, Meeting)>, String> {
        let ours = self.cluster.fabric();
        let provider = |name: Option<&str>| name.map_or("none".to_owned(), |it| format!("{it:?}"));
        let (Some(theirs), Some(ours)) = (theirs, &ours) else {
            return if theirs.is_none() && ours.is_none() {
                Ok(None)
            } else {
                Err(format!(
                    "fabric provider {} here, {} there; write the same [fabric] into both cluster files",
                    provider(ours.as_ref().map(|ours| ours.provider.as_str())),
                    provider(theirs.map(|theirs| theirs.provider.as_str())),
                ))
            };
        };
        let open = || {
            let mut fifo = Fifo::open(ours)?;
            fifo.meet(theirs)?;
            let meeting = fifo.meeting()?;
            Ok((fifo, meeting))
        };
        open().map(Some).map_err(|error: FabricError| error.to_string())
    }

    /// Imports in the name of a process of another node. `None`: it has hung up.
    fn import(
        &self,
        origin: &Origin,
        wanted: Wanted,
        asker: &Secure,
        counted: &Open,
    ) -> Option<Told> {
        let watch = self.offers.watch();
        match self.open(origin, wanted, (asker, counted), watch.clone()) {
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
                let random = random_bytes::<16>().and_then(|one| Ok((one, random_bytes()?)));
                let (capability, mask) = match random {
                    Ok((one, other)) => (Capability(one), Mask(u64::from_ne_bytes(other))),
                    Err(refusal) => return Some(Told::Refused(refusal)),
                };
                let told = Told::Granted(RemoteGrant {
                    capability,
                    mask,
                    export: import.export_id(),
                    len,
                    rights: import.rights(),
                    exporter: import.exporter(),
                });
                let import = Some(import);
                self.offers.put(capability, Offer { import, origin: origin.clone(), mask, watch });
                self.door.ring(); // its expiry must be watched
                Some(told)
            }
        }
    }

    fn open(
        &self,
        origin: &Origin,
        wanted: Wanted,
        (asker, counted): (&Secure, &Open),
        watch: Watch,
    ) -> Result<Option<(Import, u64)>, ImportError> {
        let Wanted { process, name, rights, token: secret, timeout_ms } = wanted;
        let mut import = self
            .node
            .import(name)
            .rights(rights)
            .on_behalf_of(self.cluster.caller(origin))
            .handler(self.offers.on_end(watch));
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
        if !pending.wait_for(Some(LOOK))? {
            let _places = self.wait(asker, origin.uid).map_err(|why| {
                let node = self.cluster.node.clone();
                ImportError::Refused(Refusal::NodeUnreachable { node, why })
            })?;
            let granted = counted.apart(|| {
                while !pending.wait_for(Some(LOOK))? {
                    if has_spoken(asker.stream()) {
                        return Ok(false);
                    }
                }
                Ok::<_, ImportError>(true)
            })?;
            if !granted {
                return Ok(None);
            }
        }
        let import = pending.wait()?;
        let len = import.len() as u64;
        Ok(Some((import, len)))
    }

    /// Places for an import that waits; or why there are none, and what is to be done.
    fn wait(&self, asker: &Secure, uid: u32) -> Result<impl Sized + use<>, String> {
        let (all, there, each) = &self.waiters;
        let from = asker.stream().peer_addr();
        let from = from.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |from| from.ip());
        let places = || Some((all.take(&())?, there.take(&from)?, each.take(&(from, uid))?));
        places().ok_or_else(|| {
            format!(
                "so many imports wait for their exports already: {WAITERS} in all, {WAITERS_THERE} from there, or {WAITERS_EACH} of user {uid} there; end some"
            )
        })
    }
}
