//! A real daemon per test, and second processes: the test program itself, started again.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use vmmc::config::{Config, DaemonStart};
use vmmc::{Node, Region, Rights, Who};

/// Longest time anything may take. Only ends hangs; no test is about time.
pub const PATIENCE: Option<Duration> = Some(Duration::from_secs(120));

/// Environment variable that tells a second process its part.
const PART: &str = "VMMC_TEST_PART";

/// The daemon program, built if it is not there.
pub fn vmmcd() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let test = std::env::current_exe().expect("own path");
        let dir = test.parent().and_then(|deps| deps.parent()).expect("target directory");
        let path = dir.join("vmmcd");
        if !path.exists() {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "-p", "vmmc-daemon"]).current_dir(env!("CARGO_MANIFEST_DIR"));
            if !cfg!(debug_assertions) {
                build.arg("--release");
            }
            let status = build.status().expect("cargo runs");
            assert!(status.success() && path.exists(), "no {path:?}: cargo build -p vmmc-daemon");
        }
        path
    })
}

/// A daemon with a socket of its own, killed when dropped.
pub struct Daemon {
    dir: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    pub fn start() -> Daemon {
        Daemon::start_with(&[], &[])
    }

    pub fn start_with(args: &[&str], env: &[(&str, &str)]) -> Daemon {
        let dir = tempfile::tempdir().expect("temporary directory");
        let child = launch(&dir.path().join("d.sock"), args, env);
        let daemon = Daemon { dir, child };
        daemon.wait_listening();
        daemon
    }

    /// As [`Daemon::start_with`], started by another program: its words come first.
    pub fn start_by(starter: &[&str], args: &[&str], env: &[(&str, &str)]) -> Daemon {
        let dir = tempfile::tempdir().expect("temporary directory");
        let child = launch_by(starter, &dir.path().join("d.sock"), args, env);
        let daemon = Daemon { dir, child };
        daemon.wait_listening();
        daemon
    }

    /// A daemon that dies at a named point (`vmmc-daemon/src/failpoint.rs`). Not asked whether it
    /// listens: that might be the point.
    pub fn start_armed(point: &str) -> Daemon {
        let dir = tempfile::tempdir().expect("temporary directory");
        let socket = dir.path().join("d.sock");
        let child = launch(&socket, &[], &[("VMMCD_FAILPOINT", point)]);
        until("the socket is there", || socket.exists());
        Daemon { dir, child }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("d.sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn config(&self) -> Config {
        let mut config = Config::from_env().expect("environment");
        config.socket = Some(self.socket());
        config.daemon = DaemonStart::Never;
        config
    }

    pub fn node(&self) -> Node {
        Node::builder().config(self.config()).connect().expect("connects")
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts another at the same place, after [`Daemon::kill`].
    pub fn restart(&mut self) {
        self.restart_with(&[]);
    }

    /// [`Daemon::restart`], with arguments.
    pub fn restart_with(&mut self, args: &[&str]) {
        self.restart_by(&[], args);
    }

    /// [`Daemon::restart_with`], by another program.
    pub fn restart_by(&mut self, starter: &[&str], args: &[&str]) {
        self.child = launch_by(starter, &self.socket(), args, &[]);
        self.wait_listening();
    }

    /// Starts a successor that takes over, and waits until the old one has ended.
    pub fn replace(&mut self) {
        self.replace_with(&[]);
    }

    /// [`Daemon::replace`], with arguments.
    pub fn replace_with(&mut self, args: &[&str]) {
        let mut old = self.begin_replace(args, &[]);
        let _ = old.0.wait();
        self.wait_listening();
    }

    /// Starts a successor, which is this daemon from now on; returns the old one.
    pub fn begin_replace(&mut self, args: &[&str], env: &[(&str, &str)]) -> Ended {
        let new = launch(&self.socket(), &[&["--replace"], args].concat(), env);
        Ended(std::mem::replace(&mut self.child, new))
    }

    /// Waits until the daemon has ended by itself (a failpoint).
    pub fn wait_dead(&mut self) {
        let _ = self.child.wait();
    }

    fn wait_listening(&self) {
        let start = std::time::Instant::now();
        while let Err(error) = vmmc::control::Connection::open_existing(&self.socket()) {
            assert!(start.elapsed() < PATIENCE.unwrap_or_default(), "{error}");
            std::thread::yield_now();
        }
    }

    /// A second process that plays `part`; see [`second_process`].
    pub fn second(&self, part: &str, args: &[&str]) -> Second {
        self.second_with(part, args, |_| {})
    }

    /// The same, with another environment or program file.
    pub fn second_with(
        &self,
        part: &str,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Second {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command
            .args(["--exact", "second_process", "--nocapture", "--quiet"])
            .env(PART, part)
            .env("VMMC_TEST_ARGS", args.join("\n"))
            .env("VMMC_SOCKET", self.socket())
            .env("VMMC_DAEMON", "none")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("starts again");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Second { child, input, output: output.map(BufReader::new) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process that is ended when this is dropped.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn launch(socket: &std::path::Path, args: &[&str], env: &[(&str, &str)]) -> Child {
    launch_by(&[], socket, args, env)
}

fn launch_by(
    starter: &[&str],
    socket: &std::path::Path,
    args: &[&str],
    env: &[(&str, &str)],
) -> Child {
    let mut command = match starter {
        [] => Command::new(vmmcd()),
        [program, words @ ..] => {
            let mut command = Command::new(program);
            command.args(words).arg(vmmcd());
            command
        }
    };
    command
        .arg("--socket")
        .arg(socket)
        .args(args)
        .envs(env.iter().copied())
        .env("VMMC_LOG", std::env::var("VMMC_LOG").unwrap_or_else(|_| "error".into()))
        .stdin(Stdio::null())
        .spawn()
        .expect("vmmcd starts")
}

/// A second process, killed when dropped.
pub struct Second {
    pub child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
}

impl Second {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to go on: ends its [`pause`].
    pub fn go_on(&mut self) {
        let input = self.input.as_mut().expect("open");
        input.write_all(b"\n").expect("it listens");
        input.flush().expect("it listens");
    }

    /// Waits until it has said `word` by [`say`].
    pub fn expect(&mut self, word: &str) -> String {
        let said = self.hear(word);
        match said.strip_prefix(word) {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("the second process said {said:?}, expected {word:?}"),
        }
    }

    /// As [`Second::expect`], passing over what it says before.
    pub fn skip_to(&mut self, word: &str) -> String {
        loop {
            if let Some(rest) = self.hear(word).strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn hear(&mut self, expected: &str) -> String {
        loop {
            let mut line = String::new();
            let output = self.output.as_mut().expect("it was not killed");
            let len = output.read_line(&mut line).expect("reads");
            assert!(len > 0, "the second process ended before it said {expected:?}");
            if let Some((_, said)) = line.split_once("SAYS ") {
                return said.trim().to_owned();
            }
        }
    }

    pub fn signal(&self, with: rustix::process::Signal) {
        signal(self.pid(), with);
    }

    /// `kill -9`, and waits for the end. Nothing of it is held afterwards.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        (self.input, self.output) = (None, None);
    }

    /// Waits for an orderly end.
    pub fn finish(&mut self) {
        self.input = None;
        let status = self.child.wait().expect("ends");
        assert!(status.success(), "the second process failed: {status}");
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process that lives.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("it lives");
}

/// What a second process does, with its arguments.
pub type Part = fn(&[String]);

/// To be called by `#[test] fn second_process()` of each file: plays the part asked for by
/// [`Daemon::second`], or does nothing in an ordinary run.
pub fn second_process(parts: &[(&str, Part)]) {
    let Ok(part) = std::env::var(PART) else { return };
    let args: Vec<String> =
        std::env::var("VMMC_TEST_ARGS").unwrap_or_default().lines().map(str::to_owned).collect();
    let (_, play) = parts.iter().find(|(name, _)| *name == part).expect("a known part");
    play(&args);
}

/// From a second process to the first.
pub fn say(word: &str) {
    println!("SAYS {word}");
    std::io::stdout().flush().expect("the first process listens");
}

/// In a second process: waits for [`Second::go_on`].
pub fn pause() {
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

/// Asks until it is so.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE.unwrap_or_default(), "waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// How many descriptors a process has.
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Resident memory in KiB.
pub fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// An export that its own user may do everything with.
pub fn export(node: &Node, name: &str, len: usize) -> vmmc::Export {
    open(node.export(Region::new(len).expect("memory")).name(name))
}

/// Opens it for the same user, with all rights.
pub fn open(builder: vmmc::ExportBuilder) -> vmmc::Export {
    builder.grant(Who::SameUser, Rights::all()).open().expect("exports")
}

/// An import of it, with all rights.
pub fn import(node: &Node, name: &str) -> vmmc::Import {
    node.import(name)
        .rights(Rights::all())
        .timeout(PATIENCE.unwrap_or_default())
        .open()
        .expect("imports")
}

/// The message holds the value, the reason and the remedy.
pub fn says(error: &dyn std::error::Error, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
}
