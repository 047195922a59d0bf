//! Finding the daemon, starting one, shaking hands.

use super::codec::{self, CodecError};
use super::message::{Event, Hello, MAX_PACKET_LEN, Request, Welcome};
use crate::config::{Config, DaemonStart};
use crate::sys::packet::{self, Fds};
use crate::sys::thread::spawn_quiet;
use crate::sys::{Fd, process};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Socket of the system-wide daemon.
pub const SYSTEM_SOCKET: &str = "/run/vmmc/vmmcd.sock";

/// Longest path of a socket, in bytes (`unix(7)`).
pub const SOCKET_PATH_MAX: usize = 107;

/// How long to wait for a daemon that is starting or handing over, and for its answers during
/// set-up.
pub const SETUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no connection to a daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A tunable in the environment is not understood.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// Nobody listens, and starting a daemon was not allowed.
    #[error(
        "no vmmcd listens at {path:?} ({errno}); start one with `shrimp daemon start`{}",
        by_whom(path)
    )]
    NoDaemon {
        /// Where we looked.
        path: PathBuf,
        /// Why connecting failed.
        errno: rustix::io::Errno,
    },
    /// The socket is there but we may not use it.
    #[error(
        "permission denied at {path:?}; have its owner start it for all users (`shrimp daemon stop`, `shrimp daemon start -- --all-users`), or set VMMC_SOCKET to a path in a directory of your own"
    )]
    Denied {
        /// The socket.
        path: PathBuf,
    },
    /// No socket can be of that name.
    #[error(
        "no socket can be at {path:?}, which has {} bytes: at most {SOCKET_PATH_MAX}, and none of value 0; set VMMC_SOCKET to the path of a vmmcd's socket",
        path.as_os_str().len()
    )]
    BadPath {
        /// The path.
        path: PathBuf,
    },
    /// What is there is no socket of a daemon.
    #[error(
        "no vmmcd can be reached at {path:?} ({errno}); set VMMC_SOCKET to the path of a vmmcd's socket"
    )]
    NotADaemon {
        /// The path.
        path: PathBuf,
        /// Why connecting failed.
        errno: rustix::io::Errno,
    },
    /// The daemon program was not found.
    #[error(
        "no vmmcd program found (looked at {looked:?}); build it with `cargo build --release -p vmmc-daemon`, or set VMMC_DAEMON"
    )]
    NoProgram {
        /// Where we looked.
        looked: Vec<PathBuf>,
    },
    /// The daemon program is not one that runs.
    #[error(
        "{program:?} cannot be run ({error}); set VMMC_DAEMON to a vmmcd program, or unset it to have one found"
    )]
    NotRunnable {
        /// The program.
        program: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The daemon program did not come up.
    #[error(
        "{program:?} was started but does not listen at {path:?}: {why}; run it by hand to see more"
    )]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// The socket it should have made.
        path: PathBuf,
        /// What it said.
        why: String,
    },
    /// The daemon is of another user than it should be.
    #[error(
        "the daemon at {path:?} runs as user {uid}, expected {expected} or root; remove the socket, or set VMMC_SOCKET to your own daemon's"
    )]
    WrongOwner {
        /// The socket.
        path: PathBuf,
        /// Who runs it.
        uid: u32,
        /// Who should.
        expected: u32,
    },
    /// It speaks something else.
    #[error("daemon at {path:?}: {source}")]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        source: CodecError,
    },
    /// It refused us.
    #[error("daemon refused: {0}")]
    Refused(#[from] super::message::Refusal),
    /// It hung up or did not answer.
    #[error("daemon at {path:?} did not answer ({why}); `shrimp doctor` tells more")]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// What happened.
        why: String,
    },
    /// A system call failed.
    #[error("{call} failed: {errno}{}", crate::error::hint(*errno))]
    System {
        /// Which.
        call: &'static str,
        /// How.
        errno: rustix::io::Errno,
    },
}

/// Who has to start the daemon that should be at `path`, where not everybody may.
fn by_whom(path: &Path) -> &'static str {
    if path == Path::new(SYSTEM_SOCKET) && !is_root() {
        " as root, or set VMMC_SOCKET to a path of your own"
    } else {
        ""
    }
}

/// A connected socket to the daemon, past the handshake.
#[derive(Debug)]
pub struct Connection {
    socket: Fd,
}

/// A message from the daemon with its descriptors.
#[derive(Debug)]
pub struct Incoming {
    /// The message.
    pub event: Event,
    /// Its descriptors.
    pub fds: Fds,
}

/// Why a message did not get through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The daemon is gone.
    #[error("the daemon has gone away")]
    Gone,
    /// Nothing to receive, or no room to send, and we do not wait.
    #[error("would block")]
    WouldBlock,
    /// It does not follow the protocol.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A system call failed.
    #[error("daemon socket: {0}")]
    System(rustix::io::Errno),
}

impl From<rustix::io::Errno> for LinkError {
    fn from(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match errno {
            Errno::AGAIN => LinkError::WouldBlock,
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => LinkError::Gone,
            errno => LinkError::System(errno),
        }
    }
}

/// Where the daemon's socket is by the settings: `VMMC_SOCKET`, else the system-wide one if somebody
/// listens there, else the user's own, which for root is the system-wide one.
#[must_use]
pub fn socket_path(config: &Config) -> PathBuf {
    if let Some(path) = &config.socket {
        return path.clone();
    }
    let own = user_socket_path();
    // Root's is the one for all: nothing is to be found out.
    if own != Path::new(SYSTEM_SOCKET) && has_listener(SYSTEM_SOCKET) {
        return SYSTEM_SOCKET.into();
    }
    own
}

/// Whether somebody listens at a socket. One that root's daemon has left in a crash only root can remove, and all
/// others would be without a daemon until it does.
fn has_listener(path: &str) -> bool {
    use rustix::io::Errno;
    if rustix::fs::access(path, rustix::fs::Access::EXISTS).is_err() {
        return false;
    }
    let connect = || {
        let socket = packet::socket()?;
        // Nobody waits here for one that is busy: it listens.
        rustix::io::ioctl_fionbio(&socket, true)?;
        rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path)?)
    };
    !matches!(connect(), Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// The socket of the user's own daemon: `$XDG_RUNTIME_DIR/vmmc/vmmcd.sock`, or where that is not set or another user's (`su`,
/// `cron`) `/run/user/UID/vmmc/vmmcd.sock`, or `/tmp/vmmc-UID/vmmcd.sock` where there is no runtime directory.
///
/// Root's own is [`SYSTEM_SOCKET`]: what root starts goes on as other users often (nginx and its workers, a
/// database), who cannot reach a directory of root's. Not where `/run` is closed to it, as in a user namespace on
/// the machine's files.
#[must_use]
pub fn user_socket_path() -> PathBuf {
    if is_root() && rustix::fs::access("/run", rustix::fs::Access::WRITE_OK).is_ok() {
        return SYSTEM_SOCKET.into();
    }
    let us = rustix::process::geteuid().as_raw();
    let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let owner = |dir: &Path| rustix::fs::stat(dir).ok().map(|stat| stat.st_uid);
    match runtime_dir(set, us, &owner) {
        Some(dir) => dir.join("vmmc/vmmcd.sock"),
        None => format!("/tmp/vmmc-{us}/vmmcd.sock").into(),
    }
}

/// The runtime directory of user `us`, where the environment says it is `set`. The same one whether or not it says so, or two programs
/// of one user would have a daemon each.
fn runtime_dir(
    set: Option<PathBuf>,
    us: u32,
    owner: &dyn Fn(&Path) -> Option<u32>,
) -> Option<PathBuf> {
    let set = set.filter(|dir| dir.is_absolute());
    let usual = || PathBuf::from(format!("/run/user/{us}"));
    // One that is not there yet is made.
    set.filter(|dir| owner(dir).is_none_or(|owner| owner == us))
        .or_else(|| Some(usual()).filter(|dir| owner(dir) == Some(us)))
}

/// The file beside a socket that the daemon's log goes to when it has nowhere else: `vmmcd.log` of `vmmcd.sock`, and of another socket its
/// name with `.log` behind it, which is no other program's.
#[must_use]
pub fn log_path(socket: &Path) -> PathBuf {
    if socket.file_name().is_some_and(|name| name == "vmmcd.sock") {
        return socket.with_extension("log");
    }
    let mut path = socket.as_os_str().to_owned();
    path.push(".log");
    path.into()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// How we came to a socket, which decides whose daemon root talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The user named it (`VMMC_SOCKET`).
    Named,
    /// It was at a default place, where others may have been first.
    Found,
}

/// How the settings lead to the daemon's socket.
#[must_use]
pub fn owner_by(config: &Config) -> Owner {
    match config.socket {
        Some(_) => Owner::Named,
        None => Owner::Found,
    }
}

/// Whether user `us` may talk to a daemon of user `owner`. It must be ours or root's: anybody can
/// make a socket in /tmp. Root may name another user's daemon, but does not trust one that it
/// came across.
#[must_use]
pub fn is_trusted(owner: u32, us: u32, whose: Owner) -> bool {
    owner == us || owner == 0 || (us == 0 && whose == Owner::Named)
}

impl Connection {
    /// Connects to the daemon that the settings name, starting the user's own if none listens.
    /// Blocks for at most [`SETUP_TIMEOUT`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn open(config: &Config) -> Result<Connection, ConnectError> {
        let path = socket_path(config);
        let owner = owner_by(config);
        match Connection::connect(&path, owner) {
            Err(ConnectError::NoDaemon { .. })
                if config.daemon != DaemonStart::Never
                    && (path != Path::new(SYSTEM_SOCKET) || is_root()) =>
            {
                start_daemon(config, &path, owner)
            }
            result => result,
        }
    }

    /// Connects to the daemon that listens at `path`, which the user named.
    ///
    /// # Errors
    /// [`ConnectError::NoDaemon`] also for a stale socket file that nobody listens at.
    pub fn open_existing(path: &Path) -> Result<Connection, ConnectError> {
        Connection::connect(path, Owner::Named)
    }

    fn connect(path: &Path, whose: Owner) -> Result<Connection, ConnectError> {
        use rustix::io::Errno;
        let system = |call| move |errno| ConnectError::System { call, errno };
        let address = rustix::net::SocketAddrUnix::new(path)
            .map_err(|_| ConnectError::BadPath { path: path.into() })?;
        let socket = packet::socket().map_err(system("socket"))?;
        // One that stands still, and has many waiting, is waited for here; the C library's timeout would be none.
        let until = Instant::now() + SETUP_TIMEOUT;
        let connected = loop {
            let left =
                until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            set_socket_timeout(&socket, Timeout::Send, Some(left))
                .map_err(system("SO_SNDTIMEO"))?;
            match rustix::net::connect(&socket, &address) {
                // With a time limit the kernel tells of signals, whatever their handlers are set up for.
                Err(Errno::INTR) => {}
                connected => break connected,
            }
        };
        connected.map_err(|errno| match errno {
            Errno::AGAIN => ConnectError::NoAnswer {
                path: path.into(),
                why: format!("it has taken no connection for {SETUP_TIMEOUT:?}"),
            },
            Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR => {
                ConnectError::NoDaemon { path: path.into(), errno }
            }
            Errno::ACCESS | Errno::PERM => ConnectError::Denied { path: path.into() },
            Errno::PROTOTYPE | Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL => {
                ConnectError::NotADaemon { path: path.into(), errno }
            }
            errno => ConnectError::System { call: "connect", errno },
        })?;
        set_socket_timeout(&socket, Timeout::Send, None).map_err(system("SO_SNDTIMEO"))?;
        let us = rustix::process::geteuid().as_raw();
        let owner = process::peer_credentials(&socket).map_err(system("SO_PEERCRED"))?.uid;
        if !is_trusted(owner, us, whose) {
            return Err(ConnectError::WrongOwner { path: path.into(), uid: owner, expected: us });
        }
        let connection = Connection { socket };
        connection.shake_hands(path)?;
        Ok(connection)
    }

    fn shake_hands(&self, path: &Path) -> Result<(), ConnectError> {
        let no_answer = |why: &dyn std::fmt::Display| ConnectError::NoAnswer {
            path: path.into(),
            why: why.to_string(),
        };
        packet::send(&self.socket, &codec::handshake(), &[], SendFlags::empty())
            .map_err(|errno| no_answer(&errno))?;
        self.wait_readable(Instant::now() + SETUP_TIMEOUT).map_err(|error| no_answer(&error))?;
        let mut buffer = [0; MAX_PACKET_LEN];
        match packet::receive(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok(Some((len, _))) => codec::check_handshake(buffer.get(..len).unwrap_or_default())
                .map_err(|source| ConnectError::Protocol { path: path.into(), source }),
            Ok(None) => Err(no_answer(&"it hung up")),
            Err(errno) => Err(no_answer(&errno)),
        }
    }

    /// Introduces this process. Blocks until the daemon answers, for at most [`SETUP_TIMEOUT`].
    ///
    /// # Errors
    /// [`ConnectError::Refused`] by quota, [`ConnectError::NoAnswer`].
    pub fn hello(&self, hello: Hello, fds: &[BorrowedFd<'_>]) -> Result<Welcome, ConnectError> {
        let no_answer = |error: &dyn std::fmt::Display| ConnectError::NoAnswer {
            path: self.peer_path(),
            why: error.to_string(),
        };
        self.send(&Request::Hello(hello), fds).map_err(|error| no_answer(&error))?;
        let deadline = Instant::now() + SETUP_TIMEOUT;
        match self.receive_until(deadline).map_err(|error| no_answer(&error))?.event {
            Event::Welcome(welcome) => Ok(welcome),
            Event::Refused { refusal, .. } => Err(refusal.into()),
            other => Err(no_answer(&format!("it answered {other:?} to hello"))),
        }
    }

    /// Where the daemon listens, for messages to people.
    fn peer_path(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        rustix::net::getpeername(&self.socket)
            .ok()
            .flatten()
            .and_then(|address| rustix::net::SocketAddrUnix::try_from(address).ok())
            .and_then(|address| {
                address.path_bytes().map(|path| std::ffi::OsStr::from_bytes(path).into())
            })
            .unwrap_or_default()
    }

    /// Sends one message; waits while the daemon's queue is full.
    ///
    /// # Errors
    /// [`LinkError::Gone`] when the daemon is.
    pub fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        self.send_flags(request, fds, SendFlags::empty())
    }

    /// Sends one message, or says [`LinkError::WouldBlock`].
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn try_send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        self.send_flags(request, fds, SendFlags::DONTWAIT)
    }

    fn send_flags(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), LinkError> {
        let mut buffer = [0; MAX_PACKET_LEN];
        let packet = codec::encode(request, &mut buffer)?;
        Ok(packet::send(&self.socket, packet, fds, flags)?)
    }

    /// The next message, waiting for it.
    ///
    /// # Errors
    /// [`LinkError::Gone`] at end of file.
    pub fn receive(&self) -> Result<Incoming, LinkError> {
        self.receive_flags(RecvFlags::empty())
    }

    /// The next message if one is there, else [`LinkError::WouldBlock`].
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn try_receive(&self) -> Result<Incoming, LinkError> {
        self.receive_flags(RecvFlags::DONTWAIT)
    }

    /// The next message, waiting until `deadline` at most; then [`LinkError::WouldBlock`].
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_until(&self, deadline: Instant) -> Result<Incoming, LinkError> {
        self.wait_readable(deadline)?;
        self.try_receive()
    }

    fn receive_flags(&self, flags: RecvFlags) -> Result<Incoming, LinkError> {
        let mut buffer = [0; MAX_PACKET_LEN];
        match packet::receive(&self.socket, &mut buffer, flags)? {
            None => Err(LinkError::Gone),
            Some((len, fds)) => {
                let event = codec::decode(buffer.get(..len).unwrap_or_default())?;
                Ok(Incoming { event, fds })
            }
        }
    }

    fn wait_readable(&self, deadline: Instant) -> Result<(), LinkError> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Err(LinkError::WouldBlock),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(LinkError::System(errno)),
            }
        }
    }

    /// Takes the socket out, for an owner that does its own input and output.
    #[must_use]
    pub fn into_fd(self) -> Fd {
        self.socket
    }

    /// Wraps a socket that is past the handshake.
    #[must_use]
    pub fn from_fd(socket: Fd) -> Connection {
        Connection { socket }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Candidates for the daemon program: beside the running program (and one directory up, for
/// examples and tests in `target/*/deps`), beside the library this code is in, then `PATH`.
fn daemon_candidates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut beside = |file: &Path| {
        for dir in file.ancestors().skip(1).take(2) {
            found.push(dir.join("vmmcd"));
        }
    };
    if let Ok(program) = std::env::current_exe() {
        beside(&program);
    }
    if let Some(library) = crate::sys::process::library_path() {
        beside(&library);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    found.extend(std::env::split_paths(&path).map(|dir| dir.join("vmmcd")));
    found.dedup();
    found
}

/// What a program that has ended wrote, its last line. Does not wait: children of it may have the
/// pipe open still.
fn last_words(pipe: &std::process::ChildStderr) -> String {
    let mut said = [0; 1024];
    let len = match rustix::io::ioctl_fionbio(pipe, true) {
        Ok(()) => rustix::io::read(pipe, &mut said).unwrap_or(0),
        Err(_) => 0,
    };
    let said = String::from_utf8_lossy(said.get(..len).unwrap_or_default());
    said.trim().lines().last().unwrap_or_default().to_owned()
}

fn start_daemon(config: &Config, path: &Path, owner: Owner) -> Result<Connection, ConnectError> {
    let program = match &config.daemon {
        DaemonStart::Program(program) => program.clone(),
        _ => {
            let looked = daemon_candidates();
            let runs = |program: &&PathBuf| {
                rustix::fs::access(program.as_path(), rustix::fs::Access::EXEC_OK).is_ok()
            };
            match looked.iter().find(runs) {
                Some(program) => program.clone(),
                None => return Err(ConnectError::NoProgram { looked }),
            }
        }
    };
    // `--auto`: detach, leave when idle. It exits at once with success when it has detached and
    // listens (or when another one does already), so waiting for it is waiting for the socket.
    let mut command = std::process::Command::new(&program);
    command
        .arg("--auto")
        .arg("--socket")
        .arg(path)
        .env_remove("LD_PRELOAD")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    let not_started =
        |why| ConnectError::NotStarted { program: program.clone(), path: path.into(), why };
    let mut child = command
        .spawn()
        .map_err(|error| ConnectError::NotRunnable { program: program.clone(), error })?;
    let deadline = Instant::now() + SETUP_TIMEOUT;
    let mut ended: Option<std::process::ExitStatus> = None;
    loop {
        match Connection::connect(path, owner) {
            Err(ConnectError::NoDaemon { .. }) if Instant::now() < deadline => {}
            Err(ConnectError::NoDaemon { .. }) => {
                return Err(not_started(format!("nothing for {SETUP_TIMEOUT:?}")));
            }
            result => {
                reap(child, deadline);
                return result;
            }
        }
        if let Some(status) = ended {
            let said = child.stderr.as_ref().map_or_else(String::new, last_words);
            return Err(not_started(if said.is_empty() { status.to_string() } else { said }));
        }
        ended = child.try_wait().ok().flatten();
        if ended.is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// How long that is waited for.
const REAPING: Duration = Duration::from_secs(1);

/// Takes the end of a process that has done what it was started for; one that stays in the foreground (somebody's script) has a thread
/// wait for it.
fn reap(mut child: std::process::Child, deadline: Instant) {
    let until = deadline.min(Instant::now() + REAPING);
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = spawn_quiet("vmmc-reaper", move || {
        // What it says would fill the pipe, and it would stand still.
        if let Some(mut said) = child.stderr.take() {
            let _ = std::io::copy(&mut said, &mut std::io::sink());
        }
        drop(child.wait());
    });
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::{Owner, is_trusted, runtime_dir};
    use std::path::{Path, PathBuf};

    #[test]
    fn a_users_runtime_directory_is_the_same_without_a_session_and_never_another_users() {
        let owner = |dir: &Path| match dir.to_str() {
            Some("/run/user/7" | "/own") => Some(7),
            Some("/run/user/8") => Some(8),
            _ => None,
        };
        let found = |set: Option<&str>, us| runtime_dir(set.map(PathBuf::from), us, &owner);
        let usual = || Some(PathBuf::from("/run/user/7"));
        assert_eq!(found(None, 7), usual());
        assert_eq!(found(Some("/run/user/7"), 7), usual());
        assert_eq!(found(Some("/run/user/8"), 7), usual());
        assert_eq!(found(Some("relative"), 7), usual());
        assert_eq!(found(Some("/own"), 7), Some("/own".into()));
        assert_eq!(found(Some("/made/later"), 7), Some("/made/later".into()));
        assert_eq!(found(None, 9), None);
        assert_eq!(found(Some("/run/user/8"), 9), None);
    }

    #[test]
    fn a_daemon_of_another_user_is_trusted_by_nobody_but_root_who_named_it() {
        for whose in [Owner::Named, Owner::Found] {
            assert!(is_trusted(1000, 1000, whose));
            assert!(is_trusted(0, 1000, whose));
            assert!(is_trusted(0, 0, whose));
            assert!(!is_trusted(1001, 1000, whose));
        }
        assert!(is_trusted(1000, 0, Owner::Named));
        assert!(!is_trusted(1000, 0, Owner::Found));
    }
}
