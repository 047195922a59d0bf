//! Compiles a C test program and runs its cases the three ways; see `semantics.rs`.
// Each test program uses a part of this.
#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub
)]

#[path = "../../../vmmc/tests/cargo/mod.rs"]
mod cargo;
pub mod daemon;
mod differences;

pub use daemon::{ALL_USERS, Daemon};
use differences::Differences;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

/// Ends a case that hangs, after its own watchdog (180 s) should have. Never an assertion on speed.
const WATCHDOG: Duration = Duration::from_secs(240);

/// How often a warmed-up connection is asked to exchange more before the case goes on without
/// having been upgraded, which is a failure.
const MOST_WARM_UPS: u32 = 2000;

/// The three ways of section 3.1 of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// The kernel alone: the oracle.
    Plain,
    /// With the library, but no daemon to be found.
    NoDaemon,
    /// With the library and a daemon.
    Ring,
    /// With the library and a daemon that carries its connections, as to another node, to itself.
    Carried,
}

impl Leg {
    pub fn name(self) -> &'static str {
        match self {
            Leg::Plain => "plain",
            Leg::NoDaemon => "no-daemon",
            Leg::Ring => "ring",
            Leg::Carried => "carried",
        }
    }
}

/// What we build, of the profile the tests have.
pub struct Artefacts {
    pub library: PathBuf,
    pub daemon: PathBuf,
}

/// Builds the library and the daemon if they are not up to date: `cargo test` of this package
/// alone builds neither as a file to run.
pub fn artefacts() -> &'static Artefacts {
    static ARTEFACTS: OnceLock<Artefacts> = OnceLock::new();
    ARTEFACTS.get_or_init(|| {
        let dir = cargo::build(&["-p", "compat-sockets"]);
        Artefacts { library: dir.join("libvmmc_sockets.so"), daemon: dir.join("vmmcd") }
    })
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

/// Compiles `tests/c/NAME.c`; the program stays in the target directory to be run by hand.
fn compile(name: &str) -> PathBuf {
    compile_of(name, &[name, "semantics"])
}

/// Compiles the program NAME of these sources.
pub fn compile_of(name: &str, files: &[&str]) -> PathBuf {
    let files: Vec<PathBuf> =
        files.iter().map(|file| sources().join(format!("{file}.c"))).collect();
    compile_files(name, &files)
}

/// The same of files anywhere. Tests in other processes may be running the program, or compiling it:
/// it appears at once and whole.
pub fn compile_files(name: &str, files: &[PathBuf]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("semantics");
    std::fs::create_dir_all(&dir).unwrap();
    let own = tempfile::tempdir_in(&dir).unwrap();
    let fresh = own.path().join(name);
    let mut cc = Command::new("cc");
    cc.args(["-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&fresh)
        .args(files);
    let status = cc.status().expect("cc is needed to build the test programs");
    assert!(status.success(), "cannot compile: {cc:?}");
    let program = dir.join(name);
    std::fs::rename(&fresh, &program).unwrap();
    program
}

/// The command without settings of ours that whoever runs the tests may have.
pub fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VMMC") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD");
    command
}

/// A seed that no run before had, for random programs. (Who uses it prints it.)
pub fn seed_of_this_run() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::hash::RandomState::new().build_hasher().finish();
    1_000_000 + random % 1_000_000_000
}

fn cases(program: &Path) -> Vec<String> {
    let output = Command::new(program).arg("list").output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// What a case printed, without the lines that are not compared, and how it ended.
#[derive(Debug)]
struct Outcome {
    lines: Vec<String>,
    upgraded: u32,
    command: String,
}

/// Kills the whole process group of a case, its stray children included.
struct Group(Child);

impl Group {
    fn kill(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &Path, case: &str, leg: Leg, daemon: Option<&mut Daemon>) -> Outcome {
    let mut command = without_settings(Command::new(program));
    command.arg(case).env("VMMC_DAEMON", "none");
    match leg {
        Leg::Plain => {}
        Leg::NoDaemon => {
            command
                .env("LD_PRELOAD", &artefacts().library)
                .env("VMMC_SOCKET", "/nonexistent/vmmcd");
        }
        Leg::Ring | Leg::Carried => {
            let path = &daemon.as_ref().unwrap().path;
            command.env("LD_PRELOAD", &artefacts().library).env("VMMC_SOCKET", path);
        }
    }
    let by_hand = format!("{command:?}");
    if matches!(leg, Leg::Ring | Leg::Carried) {
        command.env("SEMANTICS_GATE", "1");
    }
    // The harness itself must not be affected by what the case does to its descriptors.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut group = Group(command.spawn().unwrap());
    let mut stdin = group.0.stdin.take().unwrap();
    let stdout = BufReader::new(group.0.stdout.take().unwrap());
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in stdout.split(b'\n').map_while(Result::ok) {
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
        }
    });
    let mut outcome = Outcome { lines: Vec::new(), upgraded: 0, command: by_hand };
    let mut gate = Gate { daemon, warm_ups: 0 };
    let deadline = Instant::now() + WATCHDOG;
    let mut ended = false;
    loop {
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => match line.strip_prefix("# warm ") {
                Some(question) => {
                    let answer = gate.answer(question, &mut outcome);
                    let _ = writeln!(stdin, "{answer}");
                }
                None if line.starts_with('#') => {}
                None => outcome.lines.push(line),
            },
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if ended => group.kill(),
            Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                outcome.lines.push("not ok: hung, and so did its watchdog".to_owned());
                group.kill();
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                ended = group.0.try_wait().unwrap().is_some();
            }
        }
    }
    reader.join().unwrap();
    let status = group.0.wait().unwrap();
    if !status.success() {
        outcome.lines.push(format!("not ok: ended with {status}"));
    }
    outcome
}

/// Lets a case go on when its connection has carried bytes through shared memory, by the daemon's
/// word.
struct Gate<'d> {
    daemon: Option<&'d mut Daemon>,
    warm_ups: u32,
}

impl Gate<'_> {
    /// To "ENDS COOKIE".
    fn answer(&mut self, question: &str, outcome: &mut Outcome) -> &'static str {
        let Some(daemon) = self.daemon.as_mut() else { return "go" };
        let (ends, cookie) = question.split_once(' ').unwrap();
        let cookie = cookie.parse().unwrap();
        let carries = match ends {
            "both" => daemon.ring_carries(cookie),
            "this" => daemon.ring_carries_of(cookie),
            _ => panic!("a program announces {question:?}"),
        };
        match carries {
            Ok(()) => {
                self.warm_ups = 0;
                outcome.upgraded += 1;
                "go"
            }
            Err(_) if self.warm_ups < MOST_WARM_UPS => {
                self.warm_ups += 1;
                std::thread::sleep(Duration::from_millis(1));
                "more"
            }
            Err(why) => {
                self.warm_ups = 0;
                outcome.lines.push(format!("not ok: connection {cookie} not upgraded: {why}"));
                "go"
            }
        }
    }
}

/// Runs one case over a daemon that dies at `point`: the lines must be those of TCP. The daemon must have
/// died, and the connection been upgraded, or the run proves nothing.
pub fn outlives_the_daemon(program: &str, case: &str, point: &str) {
    let program = compile(program);
    let plain = run(&program, case, Leg::Plain, None);
    let mut daemon = Daemon::dying_at(point);
    let ring = run(&program, case, Leg::Ring, Some(&mut daemon));
    assert_eq!(ring.lines, plain.lines, "{case}, {point}; by hand: {}", ring.command);
    assert!(ring.lines.iter().all(|line| line.starts_with("ok ")), "{case}: {:?}", ring.lines);
    assert!(ring.upgraded > 0, "{case}, {point}: not upgraded");
    assert!(daemon.dies(), "{case}: {point} was not reached");
}

/// A test for each program of `tests/c`, which goes one of the ways below.
macro_rules! every_program {
    ($way:path) => {
        common::programs! { $way;
            /// Every byte once and in order: sizes, directions, threads, a thousand connections.
            buffers,
            bulk,
            /// O_NONBLOCK, EAGAIN, nonblocking connect.
            nonblocking,
            epoll_level,
            epoll_edge,
            /// Loops that change all the time what they want.
            epoll_wishes,
            /// Sets in sets, and looked at by poll.
            epoll_nested,
            poll_select,
            /// Who waits for room alone, with bytes or an end unread, and whose peer ends.
            room,
            /// Half-close, end of file, resets, broken pipes, dying peers.
            shutdown,
            /// Flags of recv and send, bad addresses, urgent data.
            flags,
            /// One stream that comes by two ways: looks and receives across the change.
            seams,
            /// Calls with many parts, sendfile, splice.
            vectors,
            /// Time limits, EINTR, SA_RESTART, cancellation, threads that meddle.
            signals,
            /// FIONREAD, TCP_INFO, options.
            queries,
            /// Time stamps, sending without a copy, a close under a send.
            options,
            /// dup, close_range, limits, stdio.
            descriptors,
            /// fork, exec, inetd, descriptor passing.
            processes,
            /// One of two processes that share a connection is stopped in its calls.
            stopped,
            /// syscall(2), other names, children by other means, aio, io_uring.
            hooks,
            /// IPv6, mapped addresses, connected to itself, other kinds of socket.
            addresses,
        }
    };
}
macro_rules! programs {
    ($way:path; $($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            $way(stringify!($name));
        }
    )*};
}
pub(crate) use {every_program, programs};

/// Runs every case of a program the three ways. All lines must be `ok`, and the same.
pub fn three_ways(name: &str) {
    these_ways(name, &[Leg::Plain, Leg::NoDaemon, Leg::Ring], Daemon::start());
}

/// Runs every case of a program plainly, and as between nodes. All lines must be `ok`, and the same.
pub fn carried(name: &str) {
    these_ways(name, &[Leg::Plain, Leg::Carried], Daemon::carrying(&[]));
}

/// The same by a daemon that is for all users.
pub fn carried_for_all(name: &str) {
    these_ways(name, &[Leg::Plain, Leg::Carried], Daemon::carrying(&[ALL_USERS]));
}

fn these_ways(name: &str, legs: &[Leg], mut daemon: Daemon) {
    let program = compile(name);
    let differences = Differences::read(&sources().with_file_name("known_differences.txt"));
    let only = std::env::var("SEMANTICS_CASE").ok();
    let (mut failures, mut upgraded) = (Vec::new(), 0);
    for case in cases(&program) {
        if only.as_ref().is_some_and(|only| !case.contains(only.as_str())) {
            continue;
        }
        let plain = run(&program, &case, Leg::Plain, None);
        for &leg in legs {
            let mut known = differences.of(name, &case, leg);
            let outcome = match leg {
                Leg::Plain => None,
                Leg::NoDaemon => Some(run(&program, &case, leg, None)),
                Leg::Ring | Leg::Carried => Some(run(&program, &case, leg, Some(&mut daemon))),
            };
            let outcome = outcome.as_ref().unwrap_or(&plain);
            upgraded += outcome.upgraded;
            let wrong: Vec<&String> = outcome
                .lines
                .iter()
                .filter(|line| !line.starts_with("ok ") && !known.covers(line))
                .collect();
            for line in &wrong {
                failures.push(format!("{name} {case}, {}: {line}", leg.name()));
            }
            if wrong.is_empty() && known.is_empty() && outcome.lines != plain.lines {
                failures.push(format!(
                    "{name} {case}, {}: other lines than plain: {:?}, plain {:?}",
                    leg.name(),
                    outcome.lines,
                    plain.lines
                ));
            }
            if wrong.is_empty() {
                for stale in known.unused() {
                    eprintln!("{name} {case}, {}: known difference not seen: {stale}", leg.name());
                }
            } else {
                failures.push(format!("    by hand: {}", outcome.command));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} lines (VMMC_SOCKET of a running vmmcd to repeat the ring leg):\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(upgraded > 0 || only.is_some(), "{name}: no connection was upgraded: proves nothing");
}
