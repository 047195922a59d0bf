//! The real daemon on a private socket, and clients that speak the protocol to it directly.
#![allow(dead_code)] // each test file uses its own part
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};
use vmmc::control::Connection;
use vmmc::control::connect::Incoming;
use vmmc::control::message::*;
use vmmc::id::*;
use vmmc::layout;
use vmmc::sys::doorbell::Doorbell;
use vmmc::sys::mmap::{Access, GuardedMapping};
use vmmc::sys::{Fd, memfd};

pub mod given_back;
pub mod manager;
pub mod standing;

/// Ends a hang. Never an assertion on speed.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// Taken while a program is started, which has all our descriptors for a moment. Who cannot have that takes it
/// for writing.
pub static STARTING: RwLock<()> = RwLock::new(());

/// Waits until `done` says so; panics with `what` when the watchdog bites.
pub fn eventually<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Lets this process have as many descriptors as it may.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }).unwrap();
}

/// A daemon of this test's own, killed at the end.
pub struct Daemon {
    pub child: Child,
    pub path: PathBuf,
    pub dir: std::sync::Arc<tempfile::TempDir>,
    /// What it logs, if it does so here.
    pub log: Option<std::fs::File>,
}

impl Daemon {
    pub fn start() -> Daemon {
        Daemon::start_with(&[], &[])
    }

    pub fn start_with(arguments: &[&str], env: &[(&str, &str)]) -> Daemon {
        let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
        Daemon::start_in(dir, arguments, env)
    }

    /// Not for these tests: see `ci/net`.
    pub fn start_by(starter: &[&str], _: &[&str], _: &[(&str, &str)]) -> Daemon {
        panic!("{starter:?}: the other side of these tests is not in that namespace");
    }

    /// Starts a daemon in a directory that may hold what an earlier one left.
    pub fn start_in(
        dir: std::sync::Arc<tempfile::TempDir>,
        arguments: &[&str],
        env: &[(&str, &str)],
    ) -> Daemon {
        let path = dir.path().join("vmmcd.sock");
        let starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
        let log = tempfile::tempfile().unwrap();
        let mut command = command(&path, arguments, env);
        if std::env::var_os("VMMC_LOG").is_none() {
            command.env("VMMC_LOG", "info"); // the level that users have
        }
        let child = command.stderr(log.try_clone().unwrap()).spawn().unwrap();
        drop(starting);
        let mut daemon = Daemon { child, path, dir, log: Some(log) };
        eventually("the daemon serves", || {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("the daemon ended at once: {status}");
            }
            // The one that answers must be this one, not one that it is about to replace.
            let socket = vmmc::sys::packet::socket().unwrap();
            let address = rustix::net::SocketAddrUnix::new(&daemon.path).unwrap();
            rustix::net::connect(&socket, &address).ok()?;
            let pid = vmmc::sys::process::peer_credentials(&socket).unwrap().pid;
            (pid == daemon.child.id()).then_some(())
        });
        daemon
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn terminate(&mut self) -> std::process::ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.wait()
    }

    /// Waits until it stands at the failpoint that stops it.
    pub fn wait_stopped(&self) {
        eventually("the daemon stands at the point", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T').then_some(())
        });
    }

    pub fn wait(&mut self) -> std::process::ExitStatus {
        eventually("the daemon ends", || self.child.try_wait().unwrap())
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Their number once clients that have gone are forgotten, or a few more on a busy machine.
    pub fn settled_descriptors(&self) -> usize {
        eventually("descriptors settle", || {
            let before = self.descriptors();
            std::thread::sleep(Duration::from_millis(50));
            (self.descriptors() == before).then_some(before)
        })
    }

    pub fn snapshot(&self) -> Snapshot {
        Client::connect_as(&self.path, Role::Tool).snapshot()
    }

    pub fn counter(&self, name: &str) -> u64 {
        counter(&self.snapshot(), name)
    }

    /// How many lines of its log have all of these words.
    pub fn logged(&self, words: &[&str]) -> usize {
        self.said().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    fn said(&self) -> String {
        let Some(log) = &self.log else { return String::new() };
        let mut bytes = vec![0; log.metadata().unwrap().len() as usize];
        log.read_exact_at(&mut bytes, 0).unwrap(); // the daemon's writes go on where they were
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() || std::env::var_os("VMMC_LOG").is_some() {
            eprintln!("log of vmmcd {}:\n{}", self.pid(), self.said());
        }
    }
}

pub fn counter(snapshot: &Snapshot, name: &str) -> u64 {
    match snapshot.counters.iter().find(|(known, _)| known == name) {
        Some((_, value)) => *value,
        None => panic!("no counter {name}"),
    }
}

pub fn command(path: &Path, arguments: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmmcd"));
    command
        .arg("--socket")
        .arg(path)
        .args(arguments)
        .envs(env.iter().copied())
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if std::env::var_os("VMMC_LOG").is_none() {
        command.env("VMMC_LOG", "off");
    }
    command
}

/// A memory file as an exporter makes it.
pub fn memory(len: u64) -> Fd {
    let fd = memfd::create("test", len).unwrap();
    memfd::seal(&fd).unwrap();
    fd
}

/// A link segment as an importer makes it.
pub fn link_segment() -> Fd {
    memory(layout::link::LEN as u64)
}

/// A process page with the one mapping that may write it.
pub fn process_page() -> (Fd, GuardedMapping) {
    let fd = memfd::create("page", layout::page::LEN as u64).unwrap();
    let mapping = GuardedMapping::new(&fd, layout::page::LEN, Access::ReadWrite).unwrap();
    memfd::seal_single_writer(&fd).unwrap();
    (fd, mapping)
}

/// Two descriptors are the same file.
pub fn same_file(one: impl AsFd, other: impl AsFd) -> bool {
    let one = rustix::fs::fstat(one).unwrap();
    let other = rustix::fs::fstat(other).unwrap();
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

pub fn is_writable(fd: impl AsFd) -> bool {
    let flags = rustix::fs::fcntl_getfl(fd).unwrap();
    flags & rustix::fs::OFlags::RWMODE != rustix::fs::OFlags::RDONLY
}

/// What a client brings to hello; kept for coming back after a crash.
pub struct Belongings {
    pub page: Fd,
    pub page_mapping: GuardedMapping,
    pub doorbell: Doorbell,
}

impl Belongings {
    pub fn new() -> Belongings {
        let (page, page_mapping) = process_page();
        Belongings { page, page_mapping, doorbell: Doorbell::new().unwrap() }
    }
}

/// A client that has said hello.
pub struct Client {
    pub connection: Connection,
    pub welcome: Welcome,
    pub belongings: Option<Belongings>,
    next: u64,
}

impl Client {
    pub fn connect(path: &Path) -> Client {
        Client::connect_as(path, Role::Process)
    }

    pub fn connect_as(path: &Path, role: Role) -> Client {
        let belongings = (role != Role::Tool).then(Belongings::new);
        Client::try_connect(path, role, belongings, None).unwrap()
    }

    pub fn try_connect(
        path: &Path,
        role: Role,
        belongings: Option<Belongings>,
        resume: Option<Resume>,
    ) -> Result<Client, vmmc::control::ConnectError> {
        let connection = Connection::open_existing(path)?;
        let mut fds: Vec<BorrowedFd<'_>> = belongings.iter().map(|it| it.page.as_fd()).collect();
        if role == Role::Process {
            fds.extend(belongings.iter().map(|it| it.doorbell.fd().as_fd()));
        }
        let hello = Hello { role, program: "test".to_owned(), resume };
        let welcome = connection.hello(hello, &fds)?;
        Ok(Client { connection, welcome, belongings, next: 0 })
    }

    pub fn request_id(&mut self) -> RequestId {
        self.next += 1;
        RequestId(self.next)
    }

    pub fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) {
        self.connection.send(request, fds).unwrap();
    }

    pub fn receive(&self) -> Incoming {
        self.connection.receive_until(Instant::now() + WATCHDOG).unwrap()
    }

    /// The next that is not the end of an acquaintance, which comes a second after the last link: in the middle of a test on a
    /// busy machine.
    fn receive_but_gone(&self) -> Incoming {
        loop {
            let incoming = self.receive();
            if !matches!(incoming.event, Event::PeerGone { .. }) {
                return incoming;
            }
        }
    }

    /// The daemon has hung up.
    pub fn is_cut_off(&self) -> bool {
        matches!(
            self.connection.receive_until(Instant::now() + WATCHDOG),
            Err(vmmc::control::connect::LinkError::Gone)
        )
    }

    /// Nothing has been sent to this client: it asks for something, and that answer comes first.
    pub fn assert_silent(&mut self) {
        let request = self.request_id();
        self.send(&Request::List { request }, &[]);
        match self.receive_but_gone().event {
            Event::Listing { request: answered, .. } if answered == request => {}
            other => panic!("not silent: {other:?}"),
        }
    }

    pub fn send_export(&mut self, export: Export<'_>) -> RequestId {
        let request = self.request_id();
        let message = Request::Export {
            request,
            name: export.name,
            len: export.len,
            grants: export.grants,
            token: export.token,
            restore: export.restore,
            cpu: NO_CPU,
        };
        let fds: Vec<BorrowedFd<'_>> = export.memory.iter().map(|fd| fd.as_fd()).collect();
        self.send(&message, &fds);
        request
    }

    pub fn try_export(&mut self, export: Export<'_>) -> Result<ExportId, Refusal> {
        let sent = self.send_export(export);
        match self.receive().event {
            Event::Exported { request, export, .. } if request == sent => Ok(export),
            Event::Refused { request, refusal } if request == sent => Err(refusal),
            other => panic!("{other:?} in answer to export"),
        }
    }

    /// One page that anyone may do anything with.
    pub fn export(&mut self, name: impl Into<Name>) -> (ExportId, Fd) {
        let memory = memory(4096);
        let export = self.try_export(Export::of(name, &memory)).unwrap();
        (export, memory)
    }

    pub fn send_import(&mut self, import: Import, segment: Option<&Fd>) -> RequestId {
        let request = self.request_id();
        let message = Request::Import {
            request,
            process: import.process,
            name: import.name,
            rights: import.rights,
            token: import.token,
            timeout_ms: import.timeout_ms,
            restore: import.restore,
            known_to: import.known_to,
            cpu: NO_CPU,
        };
        let fds: Vec<BorrowedFd<'_>> = segment.iter().map(|fd| fd.as_fd()).collect();
        self.send(&message, &fds);
        request
    }

    pub fn receive_imported(&mut self, sent: RequestId) -> Result<Imported, Refusal> {
        let mut incoming = self.receive_but_gone();
        match incoming.event {
            Event::Imported {
                request, link, export, len, rights, exporter, introduces, ..
            } if request == sent => {
                let memory = incoming.fds.take().unwrap();
                let introduced = introduces
                    .then(|| (incoming.fds.take().unwrap(), incoming.fds.take().unwrap()));
                assert_eq!(incoming.fds.remaining(), 0);
                Ok(Imported { link, export, len, rights, exporter, memory, introduced })
            }
            Event::Refused { request, refusal } if request == sent => Err(refusal),
            other => panic!("{other:?} in answer to import"),
        }
    }

    /// Whether nobody ever imported it.
    pub fn receive_unexported(&mut self, sent: RequestId) -> bool {
        match self.receive_but_gone().event {
            Event::Unexported { request, untouched, .. } if request == sent => untouched,
            other => panic!("{other:?} in answer to unexport"),
        }
    }

    pub fn try_import(&mut self, import: Import) -> Result<Imported, Refusal> {
        let sent = self.send_import(import, Some(&link_segment()));
        self.receive_imported(sent)
    }

    pub fn import(&mut self, name: impl Into<Name>) -> Imported {
        self.try_import(Import::of(name)).unwrap()
    }

    pub fn receive_opened(&mut self) -> Opened {
        let mut incoming = self.receive_but_gone();
        match incoming.event {
            Event::LinkOpened { link, export, rights, importer, introduces, .. } => {
                let segment = incoming.fds.take().unwrap();
                let introduced = introduces
                    .then(|| (incoming.fds.take().unwrap(), incoming.fds.take().unwrap()));
                Opened { link, export, rights, importer, segment, introduced }
            }
            other => panic!("{other:?}, expected LinkOpened"),
        }
    }

    pub fn receive_closed(&mut self) -> (LinkId, CloseReason) {
        match self.receive_but_gone().event {
            Event::LinkClosed { link, reason } => (link, reason),
            other => panic!("{other:?}, expected LinkClosed"),
        }
    }

    fn listing(&mut self, request: &Request) -> Vec<u8> {
        self.send(request, &[]);
        let mut incoming = self.receive();
        match incoming.event {
            Event::Listing { len, .. } => {
                let file = incoming.fds.take().unwrap();
                let mut bytes = vec![0u8; len as usize];
                assert_eq!(rustix::io::pread(&file, &mut bytes, 0).unwrap(), bytes.len());
                bytes
            }
            other => panic!("{other:?}, expected Listing"),
        }
    }

    pub fn snapshot(&mut self) -> Snapshot {
        let request = self.request_id();
        postcard::from_bytes(&self.listing(&Request::Snapshot { request })).unwrap()
    }

    pub fn list(&mut self) -> Vec<ExportInfo> {
        let request = self.request_id();
        postcard::from_bytes(&self.listing(&Request::List { request })).unwrap()
    }
}

pub struct Export<'m> {
    pub name: Name,
    pub len: u64,
    pub grants: Vec<Grant>,
    pub token: Option<Token>,
    pub restore: Option<ExportId>,
    pub memory: Option<&'m Fd>,
}

impl<'m> Export<'m> {
    pub fn of(name: impl Into<Name>, memory: &'m Fd) -> Export<'m> {
        Export {
            name: name.into(),
            len: rustix::fs::fstat(memory).unwrap().st_size as u64,
            grants: vec![Grant { who: Who::Anyone, rights: Rights::all() }],
            token: None,
            restore: None,
            memory: Some(memory),
        }
    }
}

pub struct Import {
    pub process: Option<u32>,
    pub name: Name,
    pub rights: Rights,
    pub token: Option<Token>,
    pub timeout_ms: u32,
    pub restore: Option<LinkId>,
    pub known_to: Option<PeerInfo>,
}

impl Import {
    pub fn of(name: impl Into<Name>) -> Import {
        Import {
            process: None,
            name: name.into(),
            rights: Rights::WRITE,
            token: None,
            timeout_ms: 0,
            restore: None,
            known_to: None,
        }
    }

    pub fn waiting(name: impl Into<Name>) -> Import {
        Import { timeout_ms: u32::MAX, ..Import::of(name) }
    }
}

#[derive(Debug)]
pub struct Imported {
    pub link: LinkId,
    pub export: ExportId,
    pub len: u64,
    pub rights: Rights,
    pub exporter: PeerInfo,
    pub memory: Fd,
    pub introduced: Option<(Fd, Fd)>,
}

#[derive(Debug)]
pub struct Opened {
    pub link: LinkId,
    pub export: ExportId,
    pub rights: Rights,
    pub importer: PeerInfo,
    pub segment: Fd,
    pub introduced: Option<(Fd, Fd)>,
}

/// Two rings, and nothing else that the daemon knows of.
pub const SHAPE: StreamShape = StreamShape {
    version: 1,
    control_len: 4096,
    produced_at: [256, 512],
    words: None,
    bells: false,
    carried: None,
};

pub fn cookie(socket: impl AsFd) -> u64 {
    rustix::net::sockopt::socket_cookie(socket).unwrap()
}

/// Offers one end of a connection.
pub fn register(client: &Client, socket: &TcpStream, shape: StreamShape) {
    let request = Request::RegisterSocket { cookie: cookie(socket), shape };
    client.send(&request, &[socket.as_fd()]);
}

/// The two ends of a connection to a listener at this address.
pub fn connection(at: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(at).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    (client, server)
}

/// Why the client is told next that this socket stays plain.
pub fn not_paired(client: &Client, socket: impl AsFd) -> NotPairedReason {
    match client.receive().event {
        Event::NotPaired { cookie: of, reason } => {
            assert_eq!(of, cookie(socket));
            reason
        }
        other => panic!("{other:?}, expected NotPaired"),
    }
}

/// Whether a descriptor is readable now.
pub fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

impl Daemon {
    /// A daemon whose socket everybody may use, passed by activation as systemd does.
    pub fn start_activated(arguments: &[&str], env: &[(&str, &str)]) -> Daemon {
        use rustix::fs::Mode;
        let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
        rustix::fs::chmod(dir.path(), Mode::from_raw_mode(0o755)).unwrap();
        let path = dir.path().join("vmmcd.sock");
        let socket = vmmc::sys::packet::socket().unwrap();
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o666)).unwrap();
        rustix::net::listen(&socket, 128).unwrap();
        let at = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let script = format!("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&{at}");
        // Not any shell: some know descriptors of one digit only.
        let mut command = Command::new("/bin/bash");
        command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_vmmcd")).args(arguments);
        let pass = move || {
            // SAFETY: the socket is open in the child, where this runs. Not here, where the programs that
            // other tests start just then would have it too.
            let socket = unsafe { BorrowedFd::borrow_raw(at) };
            Ok(rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?)
        };
        // SAFETY: a system call only between fork and exec; no memory is allocated.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, pass) };
        command.envs(env.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null());
        if std::env::var_os("VMMC_LOG").is_none() {
            command.env("VMMC_LOG", "off");
        }
        let child = command.spawn().unwrap();
        Daemon { child, path, dir, log: None }
    }
}

/// Whether tests can act as several users.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs `work` in a thread that is another user, by the kernel's word. Needs root.
pub fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // The raw calls change this thread alone; those of the C library change all threads.
            // SAFETY: `groups` has the length given.
            let rc = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
            assert_eq!(rc, 0);
            // SAFETY: plain numbers.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) }, 0);
            // SAFETY: plain numbers.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
            work()
        });
        match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
