//! Asking the daemon: what it knows, and the counters of its clients.

use crate::exit::{Coded, Context, Exit, Failure, Io};
use crate::shm::Shared;
use rustix::net::RecvFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use vmmc::control::codec;
use vmmc::control::connect::{Connection, LinkError, SETUP_TIMEOUT};
use vmmc::control::message::{
    ClientInfo, Event, Hello, MAX_PACKET_LEN, Refusal, Request, Role, Snapshot, Welcome,
};
use vmmc::control::network::Sight;
use vmmc::counters::Counters;
use vmmc::id::{ClientId, RequestId};
use vmmc::layout::page;
use vmmc::notes::Notes;
use vmmc::sys::mmap::Access;
use vmmc::sys::{Fd, packet};

/// How long the daemon may look at a node that does not answer. It gives up before.
const SILENCE: Duration = Duration::from_secs(120);

/// Of another node.
fn name(sight: &Sight) -> Option<&str> {
    match sight {
        Sight::Own { .. } => None,
        Sight::Other { node, .. } => Some(node),
    }
}

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error(
        "asking the daemon for {what}: {source}; `shrimp daemon status` tells whether it lives"
    )]
    Link { what: &'static str, source: LinkError },
    #[error("the daemon refused {what}: {refusal}")]
    Refused { what: &'static str, refusal: Refusal },
    #[error(
        "the daemon's answer about {what} is not understood ({why}); are shrimp and vmmcd of one build? `shrimp daemon restart` starts the one beside shrimp"
    )]
    Nonsense { what: &'static str, why: String },
    #[error(transparent)]
    Io(#[from] Io),
}

impl Coded for AskError {
    fn exit(&self) -> Exit {
        Exit::DaemonRefused
    }
}

impl Coded for LinkError {
    fn exit(&self) -> Exit {
        Exit::DaemonRefused
    }
}

/// What a client tells in its page.
#[derive(Debug)]
pub(crate) struct Page {
    /// By name.
    pub(crate) counters: Vec<(String, u64)>,
    /// The number of a thing, and the counter that says how it is with it.
    pub(crate) notes: Vec<(u64, String)>,
}

/// A tool's connection to a running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    connection: Connection,
    /// What the daemon said of itself.
    pub(crate) welcome: Welcome,
    next: u64,
}

impl Daemon {
    /// Connects to the daemon that listens at `path`; never starts one.
    pub(crate) fn connect(path: &Path) -> Result<Daemon, Failure> {
        let connection = Connection::open_existing(path)?;
        let hello = Hello { role: Role::Tool, program: "shrimp".into(), resume: None };
        let welcome = connection.hello(hello, &[])?;
        Ok(Daemon { connection, welcome, next: 0 })
    }

    /// Who listens at the other end, by the kernel's word.
    pub(crate) fn owner(&self) -> Result<vmmc::sys::process::PeerCredentials, Io> {
        vmmc::sys::process::peer_credentials(&self.connection).context(|| "SO_PEERCRED".into())
    }

    /// Everything the daemon knows (of our user, unless we are its own or root).
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot, AskError> {
        const WHAT: &str = "its state";
        let (event, fd) = self.ask(WHAT, |request| Request::Snapshot { request })?;
        let nonsense = |why: String| AskError::Nonsense { what: WHAT, why };
        let (Event::Listing { len, .. }, Some(fd)) = (event, fd) else {
            return Err(nonsense("no listing".into()));
        };
        let file = std::fs::File::from(OwnedFd::from(fd));
        let actual = file.metadata().context(|| "reading the listing".into())?.len();
        if len > actual {
            return Err(nonsense(format!("{len} bytes announced, {actual} there")));
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        file.read_exact_at(&mut bytes, 0).context(|| "reading the listing".into())?;
        codec::decode(&bytes).map_err(|error| nonsense(error.to_string()))
    }

    /// What the daemon sees of its cluster: itself first, then the other nodes by their names. `None`: it has none. Waits for
    /// nodes that do not answer.
    pub(crate) fn sights(&mut self) -> Result<Option<Vec<Sight>>, AskError> {
        const WHAT: &str = "the other nodes";
        let nonsense = |why: String| AskError::Nonsense { what: WHAT, why };
        let from = match self.ask(WHAT, |request| Request::Links { request }) {
            Ok((Event::Links { .. }, Some(from))) => from,
            Ok(_) => return Err(nonsense("no conversation".into())),
            Err(AskError::Refused { refusal: Refusal::NoCluster, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        set_socket_timeout(&from, Timeout::Recv, Some(SILENCE))
            .context(|| "a socket of the daemon".into())?;
        let (mut all, mut buffer) = (Vec::new(), [0; MAX_PACKET_LEN]);
        while let Some((len, _)) = packet::receive(&from, &mut buffer, RecvFlags::empty())
            .context(|| format!("hearing the daemon about {WHAT}"))?
        {
            let sight = codec::decode(buffer.get(..len).unwrap_or_default());
            all.push(sight.map_err(|error| nonsense(error.to_string()))?);
        }
        all.sort_by(|a, b| name(a).cmp(&name(b)));
        Ok(Some(all))
    }

    /// What a client tells in its page. `None` for one that has none (a tool) or has gone.
    pub(crate) fn page(&mut self, client: &ClientInfo) -> Result<Option<Page>, AskError> {
        if client.role == Role::Tool {
            return Ok(None);
        }
        self.page_of(client.peer.client)
    }

    fn page_of(&mut self, client: ClientId) -> Result<Option<Page>, AskError> {
        let answer = self.ask("a process page", |request| Request::Page { request, client });
        let fd = match answer {
            Ok((Event::Page { .. }, Some(fd))) => fd,
            // Gone since the snapshot was taken, or has none.
            Ok(_) | Err(AskError::Refused { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let page = Shared::map_for(&fd, page::LEN, Access::Read)?;
        let counters = Counters::new(page.view());
        let named = |(subject, counter)| Some((subject, counters.name(counter)?));
        let notes = Notes::new(page.view()).all().into_iter().filter_map(named).collect();
        Ok(Some(Page { counters: counters.snapshot(), notes }))
    }

    /// Asks the daemon to end, and waits until it has hung up.
    pub(crate) fn shut_down(&mut self) -> Result<(), AskError> {
        self.ask("its end", |request| Request::Shutdown { request })?;
        let deadline = Instant::now() + SETUP_TIMEOUT;
        loop {
            match self.connection.receive_until(deadline) {
                Ok(_) => {}
                Err(LinkError::Gone) => return Ok(()),
                Err(source) => return Err(AskError::Link { what: "its end", source }),
            }
        }
    }

    fn ask(
        &mut self,
        what: &'static str,
        request: impl FnOnce(RequestId) -> Request,
    ) -> Result<(Event, Option<Fd>), AskError> {
        let id = RequestId(self.next);
        self.next += 1;
        let link = |source| AskError::Link { what, source };
        self.connection.send(&request(id), &[]).map_err(link)?;
        let deadline = Instant::now() + SETUP_TIMEOUT;
        loop {
            let mut incoming = self.connection.receive_until(deadline).map_err(link)?;
            match incoming.event {
                Event::Refused { request, refusal } if request == id => {
                    return Err(AskError::Refused { what, refusal });
                }
                event @ (Event::Listing { request, .. }
                | Event::Page { request }
                | Event::Links { request }
                | Event::Done { request })
                    if request == id =>
                {
                    return Ok((event, incoming.fds.take()));
                }
                // Answers to questions that we gave up, and news that a tool does not need.
                _ => {}
            }
        }
    }
}

/// Waits until a daemon answers at `path`, polling every few milliseconds as its start takes.
pub(crate) fn wait_for(path: &Path, mut alive: impl FnMut() -> bool) -> Result<Daemon, Failure> {
    let deadline = Instant::now() + SETUP_TIMEOUT;
    loop {
        match Daemon::connect(path) {
            Err(failure)
                if failure.exit() == Exit::NoDaemon && Instant::now() < deadline && alive() =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}
