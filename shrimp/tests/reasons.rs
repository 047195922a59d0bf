//! `shrimp stat` names every connection of a program that takes part, and says why it is not upgraded.

mod common;

use common::{RunningDaemon, compiled, run, shrimp, without_settings};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Ends a hang. Not a measure of speed.
const WATCHDOG: Duration = Duration::from_secs(120);

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("reasons", &[], &[]))
}

/// A program with both ends of a connection, preloaded.
struct Ends {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    dir: PathBuf,
    /// Addresses of the end that connected.
    local: String,
    remote: String,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn addresses(output: &mut impl BufRead) -> (String, String) {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let (local, remote) = line.trim().split_once(' ').expect("two addresses");
    (local.to_owned(), remote.to_owned())
}

impl Ends {
    fn start(dir: &Path, kind: &str, port: Option<u16>, rules: &str) -> Ends {
        let library = Path::new(env!("CARGO_BIN_EXE_shrimp")).with_file_name("libvmmc_sockets.so");
        let mut command = without_settings(Command::new(program()));
        command.arg(kind).args(port.map(|port| port.to_string()));
        command.env("LD_PRELOAD", library).env("VMMC_SOCKET", dir.join("vmmcd.sock"));
        command.env("VMMC_SOCKETS_RULES", rules).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (local, remote) = addresses(&mut output);
        Ends { child, input, output, dir: dir.to_owned(), local, remote }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n", "{what}");
    }

    /// Lets it make another connection, which what it does is done with from now on; its addresses.
    fn another(&mut self) -> (String, String) {
        writeln!(self.input, "act").unwrap();
        let addresses = addresses(&mut self.output);
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
        addresses
    }

    /// What `shrimp stat` says of the end that connected, and of the other; null when it is not listed.
    fn stat(&self) -> [Value; 2] {
        let ended = run(shrimp(&self.dir).args(["stat", "--json"])).expect(0);
        let report: Value = serde_json::from_str(&ended.out).unwrap();
        let find = |local: &str, remote: &str| {
            let connections = report["connections"].as_array().unwrap();
            let mut it =
                connections.iter().filter(|it| it["local"] == local && it["remote"] == remote);
            // What the daemon remembers of earlier offers of the same socket comes later.
            it.next().cloned().unwrap_or_default()
        };
        [find(&self.local, &self.remote), find(&self.remote, &self.local)]
    }

    /// Lets bytes flow until `shrimp stat` says so of the end that connected. What it says of both then.
    fn until(&mut self, state: &str, reason: Option<&str>, more: &str) -> [Value; 2] {
        let started = Instant::now();
        loop {
            let ends = self.stat();
            if ends[0]["state"] == state && ends[0]["reason"].as_str() == reason {
                assert_eq!(ends[0]["upgraded"], state == "upgraded");
                assert_eq!(ends[0]["why"].is_null(), reason.is_none());
                return ends;
            }
            assert!(started.elapsed() < WATCHDOG, "wanted {state} {reason:?}, is {ends:#?}");
            self.tell(more);
        }
    }

    /// Upgraded, with bytes in the rings of both ends.
    fn until_upgraded(&mut self) {
        let started = Instant::now();
        loop {
            let ends = self.until("upgraded", None, "many");
            if ends.iter().all(|end| end["ring_bytes"].as_u64().is_some_and(|bytes| bytes > 0)) {
                return;
            }
            assert!(started.elapsed() < WATCHDOG, "nothing by the rings: {ends:#?}");
            self.tell("many");
        }
    }
}

/// What is done before the connection is offered keeps it plain.
fn stays_plain(kind: &str, reason: &str, rules: &str) {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    let mut ends = Ends::start(dir.path(), kind, None, rules);
    if ends.local == "none" {
        eprintln!("this machine has nothing to make such a connection of");
        return;
    }
    ends.tell("act");
    let [near, _] = ends.until("plain", Some(reason), "more");
    assert!(near["cookie"].is_null(), "{near:#}");
    let human = run(shrimp(dir.path()).arg("stat")).expect(0).out;
    let why = near["why"].as_str().unwrap();
    assert!(human.contains(&format!("plain TCP: {why}")), "{human}");
}

/// What is done with an upgraded connection takes it back to TCP, and the other end too, which says so.
fn goes_back(kind: &str, reason: &str) {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    let mut ends = Ends::start(dir.path(), kind, None, "");
    ends.until_upgraded();
    ends.tell("act");
    let [near, _] = ends.until("demoted", Some(reason), "none");
    let human = run(shrimp(dir.path()).arg("stat")).expect(0).out;
    let why = near["why"].as_str().unwrap();
    assert!(human.contains(&format!("back to TCP: {why}")), "{human}");
}

#[test]
fn a_rule() {
    stays_plain("rule", "rule", "deny");
}

/// Two addresses of one machine are no reason.
#[test]
fn another_address() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    let mut ends = Ends::start(dir.path(), "remote", None, "");
    if ends.local == "none" {
        eprintln!("this machine has nothing to make such a connection of");
        return;
    }
    ends.tell("act");
    ends.until_upgraded();
}

/// MPTCP, which looks like TCP to a program, and in `/proc`.
#[test]
fn another_protocol() {
    stays_plain("not_tcp", "not_tcp", "");
}

#[test]
fn an_option_before_the_offer() {
    stays_plain("option", "option", "");
}

#[test]
fn an_io_uring() {
    stays_plain("io_uring", "io_uring", "");
}

#[test]
fn a_child_has_it_too() {
    stays_plain("forked", "forked", "");
}

#[test]
fn standard_input() {
    stays_plain("stdio", "stdio", "");
}

#[test]
fn an_option_when_upgraded() {
    goes_back("option", "option");
}

/// It is known as demoted still when its process, which keeps the latest reasons only, has forgotten why.
#[test]
fn an_option_when_upgraded_and_many_more_elsewhere() {
    goes_back("forgotten", "forgotten");
}

#[test]
fn urgent_data() {
    goes_back("urgent", "option");
}

#[test]
fn passed_on() {
    goes_back("passed", "forked");
}

#[test]
fn a_waiter_that_only_the_kernel_can_wake() {
    goes_back("waiter", "waiter");
}

/// The other end hears of it, and has its own word for it.
#[test]
fn the_other_end_wants_it() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    let mut ends = Ends::start(dir.path(), "option", None, "");
    ends.until_upgraded();
    ends.tell("act");
    let started = Instant::now();
    loop {
        let [_, far] = ends.until("demoted", Some("option"), "none");
        if far["state"] == "demoted" && far["reason"] == "peer" {
            break;
        }
        assert!(started.elapsed() < WATCHDOG, "{far:#}");
        ends.tell("more");
    }
}

/// A connection that was not offered yet pays nothing, and is named as soon as its process is known by another.
#[test]
fn short_so_far() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    let mut ends = Ends::start(dir.path(), "second", None, "");
    ends.tell("one");
    assert!(ends.stat()[0].is_null(), "a process that was never heard of is listed");
    ends.until_upgraded();
    (ends.local, ends.remote) = ends.another();
    ends.tell("one");
    for end in ends.stat() {
        assert_eq!((&end["state"], &end["reason"]), (&"plain".into(), &"short".into()), "{end:#}");
    }
}

/// The daemon's own reasons are told as the daemon has them.
#[test]
fn the_quota() {
    let dir = tempfile::tempdir().unwrap();
    common::prepare();
    let start = ["daemon", "start", "--", "--connections-per-user", "0"];
    run(shrimp(dir.path()).args(start)).expect(0);
    let mut ends = Ends::start(dir.path(), "quota", None, "");
    ends.until("plain", Some("quota"), "more");
    run(shrimp(dir.path()).args(["daemon", "stop"])).expect(0);
}

/// The daemon that refused it is gone, and the next one knows nothing of it: its process does.
#[test]
fn refused_by_the_daemon_before() {
    let dir = tempfile::tempdir().unwrap();
    common::prepare();
    let start = ["daemon", "start", "--", "--connections-per-user", "0"];
    run(shrimp(dir.path()).args(start)).expect(0);
    let mut ends = Ends::start(dir.path(), "second", None, "");
    ends.until("plain", Some("quota"), "more");
    run(shrimp(dir.path()).args(["daemon", "stop"])).expect(0);
    let _daemon = RunningDaemon::start(dir.path());
    // The next daemon hears of the process when this one is offered.
    ends.another();
    let [near, _] = ends.until("plain", Some("refused"), "many");
    assert!(near["cookie"].is_null(), "{near:#}");
}

/// Paired, and there is no room for its segment.
#[test]
fn no_memory_for_the_rings() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    let mut ends = Ends::start(dir.path(), "resources", None, "");
    ends.until_upgraded();
    (ends.local, ends.remote) = ends.another();
    let started = Instant::now();
    loop {
        let [near, far] = ends.until("plain", Some("resources"), "more");
        if far["reason"] == "resources" {
            assert!(near["cookie"].is_null() && far["cookie"].is_null(), "{near:#} {far:#}");
            break;
        }
        assert!(started.elapsed() < WATCHDOG, "{far:#}");
        ends.tell("more");
    }
}

/// The other end is a program without us: told after a second.
#[test]
fn the_other_end_takes_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut byte = [0];
        while stream.read(&mut byte).is_ok_and(|len| len == 1) {
            stream.write_all(&byte).unwrap();
        }
    });
    let mut ends = Ends::start(dir.path(), "outside", Some(port), "");
    let [_, far] = ends.until("plain", Some("no_partner"), "more");
    assert!(far.is_null(), "{far:#}");
    drop(ends);
    echo.join().unwrap();
}

/// Offered before there was a daemon; found when the process has come to speak with one.
#[test]
fn no_daemon_at_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let early = Ends::start(dir.path(), "early", None, "");
    let mut early = early;
    // Its offer is due after 32 calls of either end; each of these is 20.
    for _ in 0..4 {
        early.tell("more");
    }
    let _daemon = RunningDaemon::start(dir.path());
    // Asked again after 4096 calls at the latest: then it is upgraded after all.
    early.until_upgraded();
}
