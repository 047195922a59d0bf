//! One connection: who is at the other end, what it owns, what waits to be sent to it.

use crate::acquaintances::Acquaintances;
use crate::doorbell::{Button, Doorbell, Shared};
use crate::policy::Caller;
use crate::registry::WaitFor;
use crate::timers::TimerKey;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use vmmc::control::codec;
use vmmc::control::message::{Event, MAX_PACKET_LEN, NO_CPU, RemoteCaller, Role};
use vmmc::id::{ExportId, LinkId, Name, PeerInfo, RequestId, Rights, Token};
use vmmc::sys::{Fd, memfd, packet};

/// Messages that may wait for a client that does not read; one more and it is cut off. Enough for an
/// exporter that is stopped for a while with thousands of importers coming.
pub(crate) const MAX_QUEUED: usize = 16_384;

/// With this many messages waiting for it, no more links are made to a client's exports: importers
/// cannot get it cut off.
const MAX_QUEUED_FOR_LINKS: usize = MAX_QUEUED / 2;

/// The same with this many messages that tell it of links that have ended since: each has a descriptor, of the importer's, which
/// no quota counts any more.
const MAX_UNHEARD: usize = 512;

/// With this many messages waiting for it, a client's own requests wait too.
const PAUSE_READING_AT: usize = 1024;

/// The same for messages that hold memory of the daemon's.
const PAUSE_READING_AT_OWNED: usize = 4;

/// A descriptor to be sent. Those that need a new open file description get it at the moment
/// of sending, so that a queue holds none (but for the first that it takes).
#[derive(Clone, Debug)]
pub(crate) enum OutFd {
    /// The same open file description.
    Same(Arc<Fd>),
    /// Made for this message.
    Owned(Arc<Shared>),
    /// A new, read-only one.
    ReadOnly(Arc<Fd>),
    /// The same, of another client's doorbell.
    Button(Button),
    /// The same, of this daemon's own.
    Line(Arc<Shared>),
    /// Not sent: put into the receiver's own doorbell once the message is there, and rings then.
    Install(Button),
}

/// A message on its way to a client.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) packet: Vec<u8>,
    pub(crate) fds: Vec<OutFd>,
    /// The link of which it tells, with the descriptors of that.
    opens: Option<LinkId>,
}

impl Outgoing {
    fn owns(&self) -> bool {
        self.fds.iter().any(|fd| matches!(fd, OutFd::Owned(_)))
    }
}

/// How sending ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Everything is gone.
    All,
    /// The client must read first.
    ClientFull,
    /// The daemon lacks descriptors for the moment.
    Shortage,
}

/// What a client that has said hello has attached.
#[derive(Debug)]
pub(crate) struct Attached {
    /// Process page, read-only.
    pub(crate) page: Arc<Fd>,
    /// Of who exports and imports.
    pub(crate) doorbell: Option<Doorbell>,
}

/// How far a connection has come.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Nothing received.
    Handshake,
    /// Versions agree.
    Hello,
    /// Introduced.
    Welcome(Introduced),
    /// To be closed once the queue is empty.
    Leaving,
}

/// What a client said of itself.
#[derive(Debug)]
pub(crate) struct Introduced {
    pub(crate) role: Role,
    pub(crate) program: String,
    pub(crate) session: Token,
    /// None for a tool.
    pub(crate) attached: Option<Attached>,
}

/// An import that waits.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) name: Name,
    pub(crate) process: Option<u32>,
    pub(crate) rights: Rights,
    pub(crate) token: Option<Token>,
    pub(crate) restore: Option<LinkId>,
    /// The only process whose export may be granted with this segment, if there is one.
    pub(crate) known_to: Option<PeerInfo>,
    pub(crate) segment: Arc<Fd>,
    pub(crate) since: std::time::Instant,
    /// Its place in the name's queue.
    pub(crate) place: u64,
    pub(crate) timer: Option<TimerKey>,
    /// Whose rights count, when the network interface asks. Not kept over a hot restart: the
    /// interface that asked ends with its daemon.
    pub(crate) caller: Option<RemoteCaller>,
}

impl Pending {
    /// The queue it waits in.
    pub(crate) fn queue(&self) -> WaitFor {
        WaitFor { name: self.name.clone(), process: self.process, restore: self.restore.is_some() }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: Fd,
    pub(crate) pidfd: Fd,
    /// By the kernel's word.
    pub(crate) peer: PeerInfo,
    pub(crate) groups: Vec<u32>,
    /// See [`Caller::started`].
    started: Option<u64>,
    pub(crate) stage: Stage,
    /// Where it ran when it last waited for an answer, by its own word.
    pub(crate) cpu: u32,
    pub(crate) exports: HashSet<ExportId>,
    /// Links in which it is the importer.
    pub(crate) imports: HashSet<LinkId>,
    pub(crate) pending: HashMap<RequestId, Pending>,
    /// Whom it has been introduced.
    pub(crate) acquaintances: Acquaintances,
    /// Cookies of TCP sockets registered or attached.
    pub(crate) sockets: HashSet<u64>,
    pub(crate) queue: VecDeque<Outgoing>,
    owned_in_queue: usize,
    /// Links that are there, and of which the queue has the news.
    unheard: HashSet<LinkId>,
    /// How many messages in the queue tell of links that have ended since.
    ended_unheard: usize,
    /// What epoll watches now.
    pub(crate) watched: (bool, bool),
    /// Its requests wait: its user's descriptors come faster than they can be closed.
    pub(crate) is_held: bool,
    /// Its requests wait: it has asked for a listing, and its turn has not come.
    pub(crate) is_asking: bool,
    /// The hello that has not come.
    pub(crate) nascent_timer: Option<TimerKey>,
    /// Whether a retry is due after a shortage of descriptors.
    pub(crate) retry_due: bool,
    /// To be removed at the end of this round: nothing more is read or sent.
    pub(crate) doomed: bool,
}

impl Client {
    /// `started`: when its process did ([`Caller::started`]).
    pub(crate) fn new(
        (socket, pidfd): (Fd, Fd),
        peer: PeerInfo,
        groups: Vec<u32>,
        started: Option<u64>,
    ) -> Client {
        Client {
            socket,
            pidfd,
            peer,
            groups,
            started,
            stage: Stage::Handshake,
            cpu: NO_CPU,
            exports: HashSet::new(),
            imports: HashSet::new(),
            pending: HashMap::new(),
            acquaintances: Acquaintances::default(),
            sockets: HashSet::new(),
            queue: VecDeque::new(),
            owned_in_queue: 0,
            unheard: HashSet::new(),
            ended_unheard: 0,
            watched: (false, false),
            is_held: false,
            is_asking: false,
            nascent_timer: None,
            retry_due: false,
            doomed: false,
        }
    }

    /// Who it is, for access lists.
    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller { peer: self.peer, groups: &self.groups, started: self.started }
    }

    /// A process of another node that it, the network interface, speaks for. It is no process of
    /// this machine, and its groups are not known.
    pub(crate) fn caller_for(&self, remote: &RemoteCaller) -> Caller<'_> {
        let peer = PeerInfo { pid: 0, uid: remote.uid, gid: remote.gid, ..self.peer };
        Caller { peer, groups: &[], started: self.started }
    }

    /// The user whose share an import of its is counted in: its own, or the one that another node's process is here.
    pub(crate) fn payer(&self, caller: Option<&RemoteCaller>) -> u32 {
        caller.map_or(self.peer.uid, |remote| self.caller_for(remote).peer.uid)
    }

    /// What it said of itself, once it has.
    pub(crate) fn introduced(&self) -> Option<&Introduced> {
        match &self.stage {
            Stage::Welcome(introduced) => Some(introduced),
            _ => None,
        }
    }

    pub(crate) fn attached(&self) -> Option<&Attached> {
        self.introduced().and_then(|introduced| introduced.attached.as_ref())
    }

    /// Whether its requests are to be read now: not while it leaves its answers unread.
    pub(crate) fn wants_reading(&self) -> bool {
        self.queue.len() < PAUSE_READING_AT
            && self.owned_in_queue < PAUSE_READING_AT_OWNED
            && !self.is_held
            && !self.is_asking
            && !matches!(self.stage, Stage::Leaving)
    }

    /// Whether sending waits for the client to read, or for descriptors: it goes on by itself.
    pub(crate) fn is_blocked(&self) -> bool {
        self.watched.1 || self.retry_due
    }

    /// Whether so much waits for it that no link should be made to its exports.
    pub(crate) fn is_deaf(&self) -> bool {
        self.queue.len() >= MAX_QUEUED_FOR_LINKS || self.ended_unheard >= MAX_UNHEARD
    }

    /// A link to one of its exports has ended.
    pub(crate) fn link_ended(&mut self, link: LinkId) {
        self.ended_unheard += usize::from(self.unheard.remove(&link));
    }

    /// Queues a packet. `false` when the bound is exceeded.
    pub(crate) fn push(&mut self, packet: Vec<u8>, fds: Vec<OutFd>) -> bool {
        self.push_outgoing(Outgoing { packet, fds, opens: None })
    }

    fn push_outgoing(&mut self, outgoing: Outgoing) -> bool {
        self.unheard.extend(outgoing.opens);
        self.owned_in_queue += usize::from(outgoing.owns());
        self.queue.push_back(outgoing);
        self.queue.len() <= MAX_QUEUED
    }

    /// Queues a message. `false` when the bound is exceeded.
    pub(crate) fn push_event(&mut self, event: &Event, fds: Vec<OutFd>) -> bool {
        let mut buffer = [0; MAX_PACKET_LEN];
        match codec::encode(event, &mut buffer) {
            Ok(packet) => {
                let packet = packet.to_vec();
                let opens = match event {
                    Event::LinkOpened { link, .. } => Some(*link),
                    _ => None,
                };
                self.push_outgoing(Outgoing { packet, fds, opens })
            }
            Err(error) => {
                // Every message is far shorter than a packet by its type.
                tracing::error!(%error, ?event, "cannot encode");
                true
            }
        }
    }

    /// Sends what the client has room for.
    ///
    /// # Errors
    /// When the connection, or a descriptor to be sent, is no longer usable.
    pub(crate) fn flush(&mut self) -> Result<Flushed, Errno> {
        while let Some(next) = self.queue.front() {
            match send(&self.socket, next) {
                Ok(()) => {
                    self.owned_in_queue -= usize::from(next.owns());
                    if next.opens.is_some_and(|link| !self.unheard.remove(&link)) {
                        self.ended_unheard = self.ended_unheard.saturating_sub(1);
                    }
                    self.queue.pop_front();
                }
                Err(Errno::AGAIN) => return Ok(Flushed::ClientFull),
                Err(
                    Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::TOOMANYREFS,
                ) => return Ok(Flushed::Shortage),
                Err(errno) => return Err(errno),
            }
        }
        Ok(Flushed::All)
    }
}

fn send(socket: &Fd, message: &Outgoing) -> rustix::io::Result<()> {
    enum Ready<'a> {
        Kept(&'a Fd),
        New(Fd),
    }
    let mut ready = Vec::with_capacity(message.fds.len());
    let mut to_install = None;
    for fd in &message.fds {
        ready.push(match fd {
            OutFd::Same(fd) => Ready::Kept(fd),
            OutFd::ReadOnly(fd) => Ready::New(memfd::reopen_read_only(fd.as_ref())?),
            OutFd::Button(button) => Ready::Kept(button.shared().fd()),
            OutFd::Owned(fd) | OutFd::Line(fd) => Ready::Kept(fd.fd()),
            OutFd::Install(button) => {
                to_install = Some(button);
                continue;
            }
        });
    }
    let borrowed: Vec<BorrowedFd<'_>> = ready
        .iter()
        .map(|fd| match fd {
            Ready::Kept(fd) => fd.as_fd(),
            Ready::New(fd) => fd.as_fd(),
        })
        .collect();
    packet::send(socket, &message.packet, &borrowed, SendFlags::DONTWAIT)?;
    if let Some(button) = to_install {
        drop(button.install());
    }
    Ok(())
}
