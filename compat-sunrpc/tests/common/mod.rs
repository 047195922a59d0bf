//! Makes the C programs of `tests/c` with rpcgen and cc, and runs a server and a client, each with
//! or without the library, over a private daemon.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, dead_code)]

mod daemon;

pub use daemon::Daemon;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;

/// Ends what hangs; never an assertion on speed.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// What we build, of the profile the tests have.
pub struct Artefacts {
    pub library: PathBuf,
    pub daemon: PathBuf,
    /// Where the programs of `examples/` are.
    pub examples: PathBuf,
}

/// Builds the library and the daemon if they are not up to date: `cargo test` of this package
/// alone builds neither as a file to run.
pub fn artefacts() -> &'static Artefacts {
    static ARTEFACTS: OnceLock<Artefacts> = OnceLock::new();
    ARTEFACTS.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let dir = exe.ancestors().nth(2).unwrap().to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "compat-sunrpc", "-p", "vmmc-daemon"]);
        cargo.args(["--lib", "--bins", "--examples"]);
        if dir.file_name().is_some_and(|name| name == "release") {
            cargo.arg("--release");
        }
        let target = dir.parent().unwrap();
        cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().unwrap().success(), "cannot build: {cargo:?}");
        Artefacts {
            library: dir.join("libvrpc.so"),
            daemon: dir.join("vmmcd"),
            examples: dir.join("examples"),
        }
    })
}

/// How rpcgen makes the stubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Default,
    /// `-M`: results where the caller says.
    MtSafe,
    /// `-N`: arguments by value.
    NewStyle,
    /// `-N -M`.
    Both,
    /// `-I`: a server that inetd starts.
    Inetd,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Default => "default",
            Mode::MtSafe => "M",
            Mode::NewStyle => "N",
            Mode::Both => "NM",
            Mode::Inetd => "I",
        }
    }

    fn rpcgen(self) -> &'static [&'static str] {
        match self {
            Mode::Default => &[],
            Mode::MtSafe => &["-M"],
            Mode::NewStyle => &["-N", "-DNEWSTYLE"],
            Mode::Both => &["-N", "-M", "-DNEWSTYLE"],
            Mode::Inetd => &["-I"],
        }
    }

    fn cc(self) -> &'static [&'static str] {
        match self {
            Mode::Default => &[],
            Mode::MtSafe => &["-DMODE_M"],
            Mode::NewStyle => &["-DNEWSTYLE"],
            Mode::Both => &["-DMODE_M", "-DNEWSTYLE"],
            Mode::Inetd => &["-DRPCGEN_MAIN"],
        }
    }
}

fn succeed(command: &mut Command, package: &str) {
    let by_hand = format!("{command:?}");
    match command.status() {
        Ok(status) => assert!(status.success(), "failed ({package} installed?): {by_hand}"),
        Err(error) => panic!("{by_hand}: {error}; install the Debian package {package}"),
    }
}

/// Compiles the programs of one mode, once, and returns the directory that they are in; they stay
/// in the target directory to be run by hand.
pub fn programs(mode: Mode) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<Mode, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let built = built.get_or_insert_with(HashMap::new);
    built.entry(mode).or_insert_with(|| compile(mode)).clone()
}

fn compile(mode: Mode) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    // Tests of several files run at the same time.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "rpc-{}-{}",
        std::env::current_exe().unwrap().file_stem().unwrap().to_string_lossy(),
        mode.name()
    ));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(sources.join("types.x"), dir.join("types.x")).unwrap();
    let kinds =
        [("-h", "types.h"), ("-l", "types_clnt.c"), ("-m", "types_svc.c"), ("-c", "types_xdr.c")];
    // The server's main is made only when everything is.
    let kinds = if mode == Mode::Inetd { &[][..] } else { &kinds[..] };
    if kinds.is_empty() {
        let mut rpcgen = Command::new("rpcgen");
        succeed(rpcgen.args(mode.rpcgen()).arg("types.x").current_dir(&dir), "rpcsvc-proto");
    }
    for (kind, output) in kinds {
        let mut rpcgen = Command::new("rpcgen");
        rpcgen.args(mode.rpcgen()).args([kind, "-o", output, "types.x"]).current_dir(&dir);
        succeed(&mut rpcgen, "rpcsvc-proto");
    }
    for (program, stubs) in [("server", "types_svc.c"), ("client", "types_clnt.c")] {
        let mut cc = Command::new("cc");
        // The generated code has unused variables and casts of function types.
        cc.args(["-D_GNU_SOURCE", "-O1", "-g", "-w", "-I/usr/include/tirpc", "-I."])
            .args(mode.cc())
            .arg("-I")
            .arg(&sources)
            .args(["-o", program])
            .arg(sources.join(format!("{program}.c")))
            .args([stubs, "types_xdr.c", "-ltirpc", "-pthread"])
            .current_dir(&dir);
        succeed(&mut cc, "libtirpc-dev");
    }
    dir
}

/// Whether a program runs with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Stock,
    Ours,
    /// A Rust program: nothing to preload.
    Rust,
}

/// A process with its counters, killed at the end.
pub struct Process {
    pub child: Child,
    pub by_hand: String,
    report: PathBuf,
    _dir: tempfile::TempDir,
}

/// What a process counted, by name; all zero when it left no report.
#[derive(Debug, Default)]
pub struct Counted(pub HashMap<String, u64>);

impl Counted {
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

impl Process {
    pub fn start(command: &mut Command, side: Side, daemon: &Daemon) -> Process {
        Process::start_with(command, side, daemon, &[])
    }

    /// With settings of ours beside those that every test has.
    pub fn start_with(
        command: &mut Command,
        side: Side,
        daemon: &Daemon,
        settings: &[(&str, &str)],
    ) -> Process {
        Process::start_as(command.stdin(Stdio::piped()), side, daemon, settings)
    }

    /// With the standard input that the command has.
    pub fn start_as(
        command: &mut Command,
        side: Side,
        daemon: &Daemon,
        settings: &[(&str, &str)],
    ) -> Process {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("report");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("VMMC_") {
                command.env_remove(name);
            }
        }
        command.env_remove("LD_PRELOAD");
        if side != Side::Stock {
            command
                .env("VMMC_SOCKET", &daemon.path)
                .env("VMMC_RPC_REPORT", &report)
                .envs(settings.iter().copied());
        }
        if side == Side::Ours {
            command.env("LD_PRELOAD", &artefacts().library);
        }
        let by_hand = format!("{command:?}");
        command.stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        Process { child, by_hand, report, _dir: dir }
    }

    /// A Rust program, with settings of ours.
    pub fn start_plain(command: &mut Command, daemon: &Daemon, env: &[(&str, &str)]) -> Process {
        Process::start_with(command, Side::Rust, daemon, env)
    }

    /// The counters, summed over forked children, once the process has ended.
    pub fn counted(&self) -> Counted {
        let mut sum = HashMap::new();
        for line in std::fs::read_to_string(&self.report).unwrap_or_default().lines() {
            for (name, value) in line.split(' ').filter_map(|word| word.split_once('=')) {
                *sum.entry(name.to_owned()).or_insert(0) += value.parse::<u64>().unwrap();
            }
        }
        Counted(sum)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `what`, which may wait for others, and panics when it does not end.
pub fn watched<R: Send + 'static>(name: &str, what: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(what());
    });
    receiver.recv_timeout(WATCHDOG).unwrap_or_else(|_| panic!("hangs: {name}"))
}

/// A running server.
pub struct Server {
    pub process: Process,
    pub port: u16,
    pub udp: u16,
    dir: PathBuf,
}

impl Server {
    pub fn start(mode: Mode, waits: &str, side: Side, daemon: &Daemon) -> Server {
        Server::start_with(mode, waits, side, daemon, &[])
    }

    pub fn start_with(
        mode: Mode,
        waits: &str,
        side: Side,
        daemon: &Daemon,
        env: &[(&str, &str)],
    ) -> Server {
        Server::start_set(mode, waits, side, daemon, env, &[])
    }

    /// With an environment for the program, and settings for the library.
    pub fn start_set(
        mode: Mode,
        waits: &str,
        side: Side,
        daemon: &Daemon,
        env: &[(&str, &str)],
        settings: &[(&str, &str)],
    ) -> Server {
        let dir = programs(mode);
        let mut command = Command::new(dir.join("server"));
        command.arg(waits).envs(env.iter().copied());
        Server::of_process(Process::start_with(&mut command, side, daemon, settings), mode)
    }

    /// A server that says its ports; its clients are those of a mode.
    pub fn of_process(mut process: Process, mode: Mode) -> Server {
        let dir = programs(mode);
        let mut line = String::new();
        let mut stdout = BufReader::new(process.child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let mut ports = line.split_whitespace().map(|word| word.parse().unwrap());
        let (port, udp) = (ports.next().expect("no port"), ports.next().unwrap());
        Server { process, port, udp, dir }
    }

    /// A server that is given its listening socket as its standard input, as inetd does (`wait`).
    pub fn of_inetd(side: Side, daemon: &Daemon) -> Server {
        let dir = programs(Mode::Inetd);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let mut command = Command::new(dir.join("server"));
        command.stdin(std::os::fd::OwnedFd::from(socket));
        let process = Process::start_as(&mut command, side, daemon, &[]);
        Server { process, port, udp: 0, dir }
    }

    pub fn client_command(&self, case: &str, argument: &str) -> Command {
        let mut command = Command::new(self.dir.join("client"));
        command.arg(self.port.to_string()).arg(case).arg(argument);
        command
    }

    /// The same over UDP.
    pub fn udp_client_command(&self, case: &str, argument: &str) -> Command {
        let mut command = Command::new(self.dir.join("client"));
        command.arg(self.udp.to_string()).arg(case).arg(argument).env("CLIENT_UDP", "1");
        command
    }

    /// Runs one case to its end: its lines and what it counted.
    pub fn client(
        &self,
        case: &str,
        argument: &str,
        side: Side,
        daemon: &Daemon,
    ) -> (String, Counted) {
        let process = Process::start(&mut self.client_command(case, argument), side, daemon);
        finish(process, case)
    }

    /// Makes the server leave its loop; what it counted.
    pub fn quit(self, daemon: &Daemon) -> Counted {
        let (said, _) = self.client("quit", "", Side::Stock, daemon);
        assert_eq!(said, "quit 0\n");
        self.ended(true)
    }

    /// Waits for a server that was told to leave; what it counted.
    pub fn ended(self, well: bool) -> Counted {
        let mut process = self.process;
        let mut child =
            std::mem::replace(&mut process.child, Command::new("true").spawn().unwrap());
        let ended = watched("a server that was told to leave", move || child.wait().unwrap());
        assert_eq!(ended.success(), well, "server: {ended}: {}", process.by_hand);
        process.counted()
    }
}

/// Waits for the end of a process and of all that have its output.
pub fn finish(mut process: Process, name: &str) -> (String, Counted) {
    let mut stdout = process.child.stdout.take().unwrap();
    let said = watched(&format!("{name}: {}", process.by_hand), move || {
        let mut said = String::new();
        stdout.read_to_string(&mut said).unwrap();
        said
    });
    let status = process.child.wait().unwrap();
    assert!(status.success(), "{name}: {status}: {}\n{said}", process.by_hand);
    (said, process.counted())
}

/// Reads one line of a process.
pub fn line(process: &mut Process) -> String {
    let mut line = String::new();
    let stdout = process.child.stdout.as_mut().unwrap();
    let mut byte = [0];
    while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0] as char);
    }
    line
}

/// Lets a process that waits for a line go on.
pub fn go_on(process: &mut Process) {
    process.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
}

/// Runs a case four ways and compares. The counters of the fourth are returned, client's and
/// server's; in the others no call may have gone over a ring.
pub fn four_ways(mode: Mode, waits: &str, case: &str, argument: &str) -> (Counted, Counted) {
    four_ways_over(Net::Tcp, mode, waits, case, argument)
}

/// What the client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    Tcp,
    /// UDP, with `VMMC_RPC_UDP=on` where there is the library.
    Udp,
    /// Names and rpcbind; UDP takes part too.
    Rpcbind,
}

/// The same over any transport.
pub fn four_ways_over(
    net: Net,
    mode: Mode,
    waits: &str,
    case: &str,
    argument: &str,
) -> (Counted, Counted) {
    let daemon = Daemon::start();
    let settings: &[(&str, &str)] = if net == Net::Tcp { &[] } else { &[("VMMC_RPC_UDP", "on")] };
    let known: &[(&str, &str)] =
        if net == Net::Rpcbind { &[("SERVER_REGISTER", "1")] } else { &[] };
    let mut expected = None;
    for server_side in [Side::Stock, Side::Ours] {
        for client_side in [Side::Stock, Side::Ours] {
            let way = format!("{case}, {mode:?}, loop {waits}, {server_side:?}/{client_side:?}");
            let server = if mode == Mode::Inetd {
                Server::of_inetd(server_side, &daemon)
            } else {
                Server::start_set(mode, waits, server_side, &daemon, known, settings)
            };
            let mut command = server.client_command(case, argument);
            if net == Net::Udp {
                command = server.udp_client_command(case, argument);
            }
            let client = Process::start_with(&mut command, client_side, &daemon, settings);
            let (said, client) = finish(client, &way);
            let served = if mode == Mode::Inetd {
                let (said, _) = server.client("quit", "", Side::Stock, &daemon);
                assert_eq!(said, "quit 0\n");
                server.ended(false) // rpcgen's main calls it an error that `svc_run` returns
            } else {
                server.quit(&daemon)
            };
            assert!(!said.is_empty() && !said.contains("DIFFERENT"), "{way}:\n{said}");
            let expected = expected.get_or_insert_with(|| said.clone());
            assert_eq!(*expected, said, "{way}");
            if (server_side, client_side) == (Side::Ours, Side::Ours) {
                assert!(client.get("calls_ring") > 0, "{way}: {client:?} {served:?}");
                assert!(served.get("served_ring") > 0, "{way}: {client:?} {served:?}");
                return (client, served);
            }
            assert_eq!(client.get("calls_ring") + served.get("served_ring"), 0, "{way}");
        }
    }
    unreachable!("the fourth way returns")
}
