//! Compilers, a private daemon, and processes that cannot outlive a test.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

#[path = "../../../vmmc/tests/cargo/mod.rs"]
mod cargo;

use std::fmt;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Numbers of nodes; more than processors included.
pub const SIZES: [u32; 6] = [1, 2, 3, 4, 8, 16];

/// Only ends a hang, on a machine as busy as it may be.
const WATCHDOG: Duration = Duration::from_secs(300);

/// Where libnx.so, shrimp and vmmcd are; built if they are missing or stale, once.
pub fn target() -> &'static Path {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| cargo::build(&["-p", "compat-nx", "-p", "shrimp"]))
}

/// A file of this crate's tests.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn scratch() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIR.get_or_init(|| tempfile::tempdir().expect("temporary directory")).path()
}

/// How to compile.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    pub flags: &'a [&'a str],
    pub libraries: &'a [&'a str],
}

fn build(compiler: &str, package: &str, source: &Path, options: Options<'_>) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let program = scratch().join(format!("{stem}-{number}"));
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let mut command = Command::new(compiler);
    command.args(["-g", "-O1"]).args(options.flags).arg("-I").arg(include);
    command.arg("-I").arg(self::source("c")).arg("-o").arg(&program).arg(source);
    command.arg("-L").arg(target()).arg("-lnx").args(options.libraries);
    let output = command.output().unwrap_or_else(|error| {
        panic!("{compiler}: {error}; install the Debian package {package} (ci/deps does)")
    });
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Compiles a C program of `tests/c`.
pub fn compile(name: &str, options: Options<'_>) -> PathBuf {
    let (compiler, package) = if name.ends_with(".cc") { ("g++", "g++") } else { ("gcc", "gcc") };
    build(compiler, package, &source("c").join(name), options)
}

/// Compiles a text.
pub fn compile_text(name: &str, text: &str, options: Options<'_>) -> PathBuf {
    let file = scratch().join(name);
    std::fs::write(&file, text).expect("writable");
    build("gcc", "gcc", &file, options)
}

/// Compiles a Fortran program.
pub fn fortran(name: &str, flags: &[&str]) -> PathBuf {
    build("gfortran", "gfortran", &source(name), Options { flags, libraries: &[] })
}

/// Compiles a Fortran text.
pub fn fortran_text(name: &str, text: &str, flags: &[&str]) -> PathBuf {
    let file = scratch().join(name);
    std::fs::write(&file, text).expect("writable");
    build("gfortran", "gfortran", &file, Options { flags, libraries: &[] })
}

/// A daemon of the test's own, ended with it.
pub struct Job {
    dir: tempfile::TempDir,
    daemon: std::process::Child,
}

impl Job {
    pub fn new() -> Job {
        let dir = tempfile::tempdir().expect("temporary directory");
        let socket = dir.path().join("d.sock");
        let daemon = Command::new(target().join("vmmcd"))
            .arg("--socket")
            .arg(&socket)
            .env("VMMC_LOG", "error")
            .stdin(Stdio::null())
            .spawn()
            .expect("vmmcd starts");
        let job = Job { dir, daemon };
        let end = Instant::now() + WATCHDOG;
        while vmmc::control::Connection::open_existing(&socket).is_err() {
            assert!(Instant::now() < end, "the daemon does not listen");
            std::thread::yield_now();
        }
        job
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("d.sock")
    }

    /// A command that uses our daemon and libraries, and none of the caller's settings.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            let ours = ["VMMC_", "NX_", "SHRIMP_NX_", "PMI_"];
            if ours.iter().any(|prefix| name_text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command
            .env("VMMC_SOCKET", self.socket())
            .env("VMMC_DAEMON", "none")
            .env("NX_START_S", "240")
            .env("LD_LIBRARY_PATH", target());
        command
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// What a finished program left.
#[derive(Debug)]
pub struct Done {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "code {:?}\n--- out\n{}--- err\n{}", self.code, self.out, self.err)
    }
}

/// Runs to the end, in a process group of its own that is killed if it hangs.
#[track_caller]
pub fn run(command: &mut Command) -> Done {
    run_with(command, "")
}

/// The same with input.
#[track_caller]
pub fn run_with(command: &mut Command, input: &str) -> Done {
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    let mut child = command
        .stdin(reader)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; ci/deps installs what tests need"));
    let input = input.to_owned();
    let feed = std::thread::spawn(move || {
        let _ = std::io::Write::write_all(&mut writer, input.as_bytes());
    });
    let collect = |mut stream: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = collect(Box::new(child.stdout.take().expect("piped")));
    let err = collect(Box::new(child.stderr.take().expect("piped")));
    let deadline = Instant::now() + WATCHDOG;
    let status = loop {
        if let Some(status) = child.try_wait().expect("waits") {
            break status;
        }
        if Instant::now() > deadline {
            end(child.id());
            let (out, err) = (out.join().unwrap(), err.join().unwrap());
            panic!("{command:?} hangs\n--- out\n{out}--- err\n{err}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let _ = feed.join();
    Done { code: status.code(), out: out.join().unwrap(), err: err.join().unwrap() }
}

/// Ends a launcher that hangs, and with it its nodes.
fn end(pid: u32) {
    let group = rustix::process::Pid::from_raw(pid as i32).expect("a process id");
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
}

/// `shrimp run`, with options.
#[track_caller]
pub fn nodes(job: &Job, options: &[&str], program: &Path, arguments: &[&str]) -> Done {
    run(&mut launcher(job, options, program, arguments))
}

/// The command of [`nodes`]. Signals are at their defaults, whatever this process ignores: a shell
/// starts what runs in its background with SIGINT ignored.
pub fn launcher(job: &Job, options: &[&str], program: &Path, arguments: &[&str]) -> Command {
    let mut command = job.command("env");
    command.arg("--default-signal").arg(target().join("shrimp"));
    command.arg("run").args(options).arg("--").arg(program).args(arguments);
    command
}

/// `shrimp run -n SIZE`.
#[track_caller]
pub fn shrimp_run(job: &Job, size: u32, program: &Path, arguments: &[&str]) -> Done {
    nodes(job, &["-n", &size.to_string()], program, arguments)
}

/// Processes that run this very file.
pub fn processes_of(program: &Path) -> Vec<rustix::process::Pid> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        if std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program) {
            all.extend(rustix::process::Pid::from_raw(pid));
        }
    }
    all
}

/// The kernel may take a moment to bury the killed; only ends a hang.
#[track_caller]
pub fn nobody_is_left(program: &Path) {
    let deadline = Instant::now() + WATCHDOG;
    while !processes_of(program).is_empty() {
        assert!(Instant::now() < deadline, "left: {:?}", processes_of(program));
        std::thread::sleep(Duration::from_millis(5));
    }
}
