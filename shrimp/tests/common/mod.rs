//! Running the real `shrimp`, with its own sockets and directories, and a watchdog.
#![allow(dead_code)] // each test file uses its part

#[path = "../../../vmmc/tests/cargo/mod.rs"]
mod cargo;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A command that runs `shrimp` with a socket of its own in `dir` and none of the caller's
/// settings.
pub(crate) fn shrimp(dir: &Path) -> Command {
    let mut command = without_settings(Command::new(env!("CARGO_BIN_EXE_shrimp")));
    command.env("VMMC_SOCKET", dir.join("vmmcd.sock"));
    command
}

/// The command with none of the caller's settings.
pub(crate) fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VMMC_") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD");
    command
}

/// Builds vmmcd and the preload libraries of this tree beside the `shrimp` under test, once, so that
/// no test meets a missing or stale one.
pub(crate) fn prepare() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        cargo::build(&["-p", "compat-sockets", "-p", "compat-sunrpc"]);
    });
}

/// Puts an executable copy of a file there, by a program of its own: a thread that starts something meanwhile
/// would have our descriptor for writing for a moment, and nobody can run a file that is open for that.
pub(crate) fn install(from: &Path, to: &Path) {
    let status = Command::new("install").args(["-m", "755"]).arg(from).arg(to).status();
    assert!(status.expect("install").success(), "{from:?} to {to:?}");
}

/// What a finished program left.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Finished {
    /// Its exit code.
    #[track_caller]
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {self:?}"))
    }

    /// Fails with all that was printed unless the code is `code`.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Finished {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }
}

/// Long enough for a build on a busy machine; only ends a hang.
const WATCHDOG: Duration = Duration::from_secs(600);

/// Runs a command in its own process group to its end; kills the group if it hangs.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Finished {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("cannot start");
    let mut out = child.stdout.take().expect("piped");
    let mut err = child.stderr.take().expect("piped");
    let collect = |stream: &mut dyn Read| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let errors = std::thread::spawn(move || collect(&mut err));
    let output = std::thread::spawn(move || collect(&mut out));
    let deadline = Instant::now() + WATCHDOG;
    let status = loop {
        if let Some(status) = child.try_wait().expect("cannot wait") {
            break status;
        }
        if Instant::now() > deadline {
            kill_group(child.id());
            panic!("{command:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Finished { status, out: output.join().unwrap(), err: errors.join().unwrap() }
}

fn pid(raw: u32) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(raw as i32).expect("a process id")
}

/// Kills a process group.
pub(crate) fn kill_group(group: u32) {
    let _ = rustix::process::kill_process_group(pid(group), rustix::process::Signal::KILL);
}

/// Whether any process of the group is alive.
pub(crate) fn group_lives(group: u32) -> bool {
    rustix::process::test_kill_process_group(pid(group)).is_ok()
}

/// Sends SIGINT to one process.
pub(crate) fn interrupt(process: u32) {
    rustix::process::kill_process(pid(process), rustix::process::Signal::INT).expect("kill");
}

/// A daemon started by `shrimp daemon start`, stopped when dropped.
pub(crate) struct RunningDaemon {
    dir: PathBuf,
}

impl RunningDaemon {
    /// Starts it with its socket in `dir`.
    #[track_caller]
    pub(crate) fn start(dir: &Path) -> RunningDaemon {
        prepare();
        run(shrimp(dir).args(["daemon", "start"])).expect(0);
        RunningDaemon::started(dir)
    }

    /// One that was started by other words.
    pub(crate) fn started(dir: &Path) -> RunningDaemon {
        RunningDaemon { dir: dir.to_owned() }
    }
}

impl Drop for RunningDaemon {
    fn drop(&mut self) {
        let stopped = run(shrimp(&self.dir).args(["daemon", "stop"]));
        if !std::thread::panicking() {
            assert!(matches!(stopped.status.code(), Some(0 | 3)), "{stopped:?}");
        }
    }
}

/// The program `tests/c/NAME.c`, compiled.
pub(crate) fn compiled(name: &str, options: &[&str], libraries: &[&str]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let own = tempfile::tempdir_in(dir).unwrap();
    let (fresh, program) = (own.path().join(name), dir.join(name));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let mut cc = Command::new("cc");
    cc.args(["-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror"]).args(options);
    cc.arg("-o").arg(&fresh).arg(source).args(libraries);
    assert!(cc.status().expect("cc").success(), "{cc:?}");
    // Another run of this test may have it in use: it appears at once and whole.
    std::fs::rename(&fresh, &program).unwrap();
    program
}
