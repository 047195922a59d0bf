//! Joining an application that an MPI launcher started (`mpiexec.hydra`, `srun --mpi=pmi2`).
//!
//! The launcher tells each process its rank and the number of ranks, and keeps words under keys
//! for all of them. Node 0 makes the [`Job`] and puts it; everyone meets at the
//! barrier; the others get it. Each puts the name of its host too, so that ranks on several hosts know which node
//! of the cluster each of them is on. The connection stays open until the process leaves: by it the
//! launcher is asked to end everyone (`abort`).
//!
//! Two versions of the protocol are in use: PMI-1 (hydra and most others) and PMI-2
//! (slurm's `--mpi=pmi2`). Both begin with the same line, in which we say which of them
//! we speak; [`choose`] takes PMI-1 unless the launcher is slurm's or `NX_PMI=2` is set.
//!
//! Source: the PMI-1 wire protocol as in *PMI: A Scalable Parallel Process-Management Interface
//! for Extreme-Scale Systems* (EuroMPI 2010), section 4; PMI-2 as documented by its implementers.

mod v1;
mod v2;
mod wire;

use super::{Job, JobError};
use rustix::fs::FileType;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::time::{Duration, Instant};
use vmmc::control::network::is_node_name;
use vmmc::sys::Fd;

/// Key under which node 0 puts the job.
const KEY: &str = "nx-job";

/// Key under which a rank puts its host, with its number behind it.
const HOST_KEY: &str = "nx-host-";

/// How often an end looks whether what was written has been read.
const LOOK: Duration = Duration::from_millis(1);

/// Which protocol to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// PMI-1.
    One,
    /// PMI-2.
    Two,
}

/// How to reach the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// An inherited descriptor (`PMI_FD`); rank and size are in the environment too.
    Fd {
        /// Its number.
        fd: i32,
        /// `PMI_RANK`.
        rank: u32,
        /// `PMI_SIZE`.
        size: u32,
    },
    /// An address to connect to (`PMI_PORT`, host:port), and who we are there (`PMI_ID`).
    Port {
        /// Host and port.
        address: String,
        /// Our number.
        id: u32,
    },
}

/// Why joining did not work.
#[derive(Debug, thiserror::Error)]
pub enum PmiError {
    /// A variable of the launcher is nonsense.
    #[error("{name}={value:?} is not understood; start the program by mpiexec, srun or shrimp run")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The connection failed.
    #[error("talking to the launcher by PMI ({what}): {source}")]
    Io {
        /// What we were doing.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The launcher said no, or something else than the protocol has.
    #[error("the launcher answered {answer:?} to PMI {command}; try `shrimp run` instead")]
    Refused {
        /// What we asked.
        command: &'static str,
        /// What it said.
        answer: String,
    },
    /// No cluster can have a node of that name, or no launcher can be told it.
    #[error(
        "this host is called {0:?}, which cannot name a node of the cluster to a launcher; set NX_HOST to the name that \
         the cluster file has for it"
    )]
    Host(String),
    /// The word under our key is no job.
    #[error("{0}; are all processes linked with the same libnx?")]
    Job(#[from] JobError),
    /// No random bytes for the token.
    #[error("making a token: {0}")]
    Token(#[from] rustix::io::Errno),
}

/// How to reach an MPI launcher; `None` when there is none.
///
/// # Errors
/// [`PmiError::Variable`] for a variable that is not understood.
pub fn find(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Way>, PmiError> {
    let number = |name: &'static str| {
        let value = get(name).unwrap_or_default();
        value.parse::<u32>().map_err(|_| PmiError::Variable { name, value })
    };
    if get("PMI_FD").is_some() {
        let fd = number("PMI_FD")? as i32;
        return Ok(Some(Way::Fd { fd, rank: number("PMI_RANK")?, size: number("PMI_SIZE")? }));
    }
    match get("PMI_PORT") {
        Some(address) => Ok(Some(Way::Port { address, id: number("PMI_ID")? })),
        None => Ok(None),
    }
}

/// Which version to speak: what `NX_PMI` says, else PMI-2 where slurm offers it.
#[must_use]
pub fn choose(get: &dyn Fn(&str) -> Option<String>) -> Version {
    match get("NX_PMI").as_deref() {
        Some("2") => Version::Two,
        Some("1") => Version::One,
        _ if get("SLURM_JOBID").is_some() && get("PMI_JOBID").is_some() => Version::Two,
        _ => Version::One,
    }
}

/// The open connection to the launcher.
#[derive(Debug)]
pub enum Launcher {
    /// Speaks PMI-1.
    One(v1::Client),
    /// Speaks PMI-2.
    Two(v2::Client),
}

/// Joins: answers the job, from this process's view, and the connection.
///
/// `host` is what this host is called ([`host`]). Blocks until every process of the application has come.
///
/// # Errors
/// [`PmiError`].
pub fn join(
    way: &Way,
    version: Version,
    inherited: Option<Fd>,
    host: &str,
) -> Result<(Job, Launcher), PmiError> {
    let (stream, id) = match way {
        Way::Fd { fd, rank, .. } => {
            let io = || PmiError::Io {
                what: "the inherited descriptor",
                source: rustix::io::Errno::BADF.into(),
            };
            let stream = inherited.filter(|own| own.as_raw_fd() == *fd).ok_or_else(io)?;
            (wire::Stream::new(stream), *rank)
        }
        Way::Port { address, id } => (wire::Stream::connect(address)?, *id),
    };
    let known = match way {
        Way::Fd { rank, size, .. } => Some((*rank, *size)),
        Way::Port { .. } => None,
    };
    match version {
        Version::One => {
            let (mut client, rank, size) = v1::Client::start(stream, id, known)?;
            let job = exchange(rank, size, host, &mut client)?;
            Ok((job, Launcher::One(client)))
        }
        Version::Two => {
            let (mut client, rank, size) = v2::Client::start(stream, id, known)?;
            let job = exchange(rank, size, host, &mut client)?;
            Ok((job, Launcher::Two(client)))
        }
    }
}

/// The store of words that all processes see.
trait Store {
    fn put(&mut self, key: &str, word: &str) -> Result<(), PmiError>;
    /// Everyone waits here for everyone; then all see what was put before.
    fn fence(&mut self) -> Result<(), PmiError>;
    fn get(&mut self, key: &str) -> Result<String, PmiError>;
}

/// Whether a text can be a value in both versions: neither a blank or a line's end (PMI-1), nor a semicolon or an
/// equals sign (PMI-2), which would end it and begin another key or command.
fn is_word(text: &str) -> bool {
    !text.is_empty()
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || ";=".contains(c))
}

fn exchange(rank: u32, size: u32, host: &str, store: &mut dyn Store) -> Result<Job, PmiError> {
    if !is_word(host) {
        return Err(PmiError::Host(host.to_owned()));
    }
    let own = (rank == 0).then(|| Job::new(size)).transpose()?;
    if let Some(job) = &own {
        store.put(KEY, &job.to_word())?;
    }
    store.put(&format!("{HOST_KEY}{rank}"), host)?;
    store.fence()?;
    let job = match own {
        Some(job) => job,
        None => Job::from_word(&store.get(KEY)?, rank)?,
    };
    let hosts: Vec<String> =
        (0..size).map(|rank| store.get(&format!("{HOST_KEY}{rank}"))).collect::<Result<_, _>>()?;
    // All on one: no cluster is needed, and what the host is called does not matter.
    if hosts.iter().all(|it| it == host) {
        return Ok(job);
    }
    match hosts.iter().find(|it| !is_node_name(it)) {
        Some(bad) => Err(PmiError::Host(bad.clone())),
        None => Ok(Job { hosts: hosts.into(), ..job }),
    }
}

/// What this host is called among the nodes of the cluster: `NX_HOST`, else its host name.
#[must_use]
pub fn host(get: &dyn Fn(&str) -> Option<String>) -> String {
    let name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    get("NX_HOST").filter(|host| !host.is_empty()).unwrap_or_else(name)
}

impl Launcher {
    /// Asks the launcher to end every process; nothing can be done if it does not. Before that it waits, for `limit` at the
    /// most, until the launcher has read what this process wrote: hydra reads no more of it once it was asked.
    pub fn abort(&mut self, code: u8, why: &str, limit: Duration) {
        await_reader(&[std::io::stdout().as_fd(), std::io::stderr().as_fd()], limit);
        let _ = match self {
            Launcher::One(client) => client.abort(code),
            Launcher::Two(client) => client.abort(why),
        };
    }

    /// Tells the launcher that this process leaves in the ordinary way.
    pub fn finish(&mut self) {
        let _ = match self {
            Launcher::One(client) => client.finish(),
            Launcher::Two(client) => client.finish(),
        };
    }
}

/// Waits until nothing is left in those of the descriptors that are pipes, but not longer than `limit`.
fn await_reader(outputs: &[BorrowedFd<'_>], limit: Duration) {
    let is_pipe = |fd: &BorrowedFd<'_>| {
        rustix::fs::fstat(fd).is_ok_and(|it| FileType::from_raw_mode(it.st_mode).is_fifo())
    };
    let has_some =
        |fd: &BorrowedFd<'_>| rustix::io::ioctl_fionread(fd).is_ok_and(|bytes| bytes > 0);
    let pipes: Vec<_> = outputs.iter().filter(|fd| is_pipe(fd)).collect();
    let started = Instant::now();
    while pipes.iter().any(|fd| has_some(fd)) && started.elapsed() < limit {
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests;
