//! A private daemon and a job of real processes: the test program itself, started once per rank.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use nx::{Engine, Job};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vmmc::Token;

/// Longest time that a job may take, on a machine as busy as it may be. Only ends hangs; no test is about time.
const PATIENCE: Duration = Duration::from_secs(300);

pub const PART: &str = "NX_TEST_PART";
const ARG: &str = "NX_TEST_ARG";

/// The daemon program, built if it is not there.
fn vmmcd() -> &'static PathBuf {
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

/// A daemon of the test's own, ended with it.
pub struct Daemon {
    dir: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    pub fn start() -> Daemon {
        let dir = tempfile::tempdir().expect("temporary directory");
        let socket = dir.path().join("d.sock");
        let child = Command::new(vmmcd())
            .arg("--socket")
            .arg(&socket)
            .env("VMMC_LOG", "error")
            .stdin(Stdio::null())
            .spawn()
            .expect("vmmcd starts");
        let daemon = Daemon { dir, child };
        let end = Instant::now() + PATIENCE;
        while vmmc::control::Connection::open_existing(&daemon.socket()).is_err() {
            assert!(Instant::now() < end, "the daemon does not listen");
            std::thread::yield_now();
        }
        daemon
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("d.sock")
    }

    /// How many descriptors the daemon holds; waits until they are no more than `most` if that is given.
    pub fn rests(&self, most: Option<usize>) -> usize {
        let fds = format!("/proc/{}/fd", self.child.id());
        let end = Instant::now() + PATIENCE;
        loop {
            let count = std::fs::read_dir(&fds).expect("its descriptors").count();
            if most.is_none_or(|most| count <= most) {
                return count;
            }
            assert!(Instant::now() < end, "the daemon holds {count} descriptors, not {most:?}");
            std::thread::yield_now();
        }
    }

    /// Starts the ranks of a job: this test program again, with `part` to play.
    pub fn start_job(&self, size: u32, part: &str, arg: &str, env: &[(&str, &str)]) -> Ranks {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let children = (0..size)
            .map(|node| {
                let job = Job {
                    id: id.clone(),
                    token: Token([7; 16]),
                    size,
                    node,
                    host: false,
                    ptype: Some(0),
                    late: None,
                    hosts: std::sync::Arc::default(),
                };
                Command::new(std::env::current_exe().expect("own path"))
                    .args(["--exact", "rank", "--nocapture", "--quiet", "--test-threads=1"])
                    .env(PART, part)
                    .env(ARG, arg)
                    .env("VMMC_SOCKET", self.socket())
                    .env("VMMC_DAEMON", "none")
                    .env("NX_START_S", "240")
                    .envs(job.to_env())
                    .envs(env.iter().copied())
                    .stdin(Stdio::null())
                    .spawn()
                    .expect("starts again")
            })
            .collect();
        Ranks { children, what: format!("{part}({arg}) on {size} nodes") }
    }

    /// Runs a job to its end and expects every rank to succeed.
    pub fn run(&self, size: u32, part: &str, arg: &str, env: &[(&str, &str)]) {
        let mut ranks = self.start_job(size, part, arg, env);
        for (node, status) in ranks.wait().into_iter().enumerate() {
            assert!(status, "node {node} failed in {}", ranks.what);
        }
    }
}

/// Waits until every thread of a process is in one of these states.
pub fn until_every_thread(pid: u32, states: &str) {
    let end = Instant::now() + PATIENCE;
    let tasks = format!("/proc/{pid}/task");
    let rests = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may end meanwhile: then the next look finds the others.
        let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
        let state = stat.ok().and_then(|stat| stat.rsplit(") ").next()?.chars().next());
        state.is_some_and(|state| states.contains(state))
    };
    while !std::fs::read_dir(&tasks).expect("its threads").all(rests) {
        assert!(Instant::now() < end, "process {pid} has threads in other states than {states}");
        std::thread::yield_now();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes of a job; killed when dropped.
pub struct Ranks {
    pub children: Vec<Child>,
    what: String,
}

impl Ranks {
    /// Waits for all; whether each ended well.
    pub fn wait(&mut self) -> Vec<bool> {
        let end = Instant::now() + PATIENCE;
        let mut ended: Vec<Option<bool>> = vec![None; self.children.len()];
        while ended.iter().any(Option::is_none) {
            for (child, ended) in self.children.iter_mut().zip(&mut ended) {
                if ended.is_none() {
                    *ended = child.try_wait().expect("waits").map(|status| status.success());
                }
            }
            if Instant::now() > end {
                let which: Vec<usize> =
                    (0..ended.len()).filter(|&i| ended.get(i) == Some(&None)).collect();
                panic!("{}: nodes {which:?} hang", self.what);
            }
            std::thread::sleep(Duration::from_millis(2)); // polling children, not synchronising
        }
        ended.into_iter().map(|it| it == Some(true)).collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a rank does: gets its engine and the test's argument.
pub type Part = fn(&Engine, &str);

/// The part that this process plays, if it was started as a rank: what the test named `rank` does.
pub fn play(parts: &[(&str, Part)]) {
    let Ok(part) = std::env::var(PART) else { return };
    let arg = std::env::var(ARG).unwrap_or_default();
    let job = Job::from_env().expect("environment").expect("a rank's environment");
    let (_, body) = parts.iter().find(|(name, _)| *name == part).expect("a known part");
    let engine = match Engine::start(&job) {
        Ok(engine) => engine,
        Err(error) => panic!("node {}: {error}", job.node),
    };
    body(&engine, &arg);
    engine.leave();
}
