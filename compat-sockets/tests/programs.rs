//! An ordinary program (`programs/stream.c`) run three ways: alone, preloaded without a daemon,
//! and preloaded with one. All three must print the same; the third must have moved bytes
//! through rings, or the run proves nothing.

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Ends a hang. Not a measure of speed.
const WATCHDOG: Duration = Duration::from_secs(120);

fn target_dir() -> PathBuf {
    // target/<profile>/deps/programs-<hash>
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().to_path_buf()
}

/// The program, compiled once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/stream.c");
        common::compile_files("stream", &[source])
    })
}

/// The library under test, which cargo builds beside this test.
fn library() -> PathBuf {
    let found =
        [target_dir().join("libvmmc_sockets.so"), target_dir().join("deps/libvmmc_sockets.so")]
            .into_iter()
            .filter(|path| path.exists())
            .max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    found.expect("libvmmc_sockets.so is not built; run cargo build -p compat-sockets")
}

/// A daemon for one test, killed with it.
struct Daemon {
    child: Child,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Daemon {
    fn start() -> Daemon {
        let profile = target_dir();
        let program = ["vmmcd", "../release/vmmcd", "../debug/vmmcd"]
            .iter()
            .map(|name| profile.join(name))
            .find(|path| path.exists())
            .expect("vmmcd is not built; run cargo build -p vmmc-daemon");
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("vmmcd.sock");
        let child = Command::new(program)
            .arg("--socket")
            .arg(&socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() && !socket.exists() {
            assert!(started.elapsed() < WATCHDOG, "vmmcd does not listen");
            std::thread::yield_now();
        }
        Daemon { child, socket, _dir: dir }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Copy)]
enum Way<'a> {
    Alone,
    NoDaemon,
    Upgraded(&'a Path),
    /// With rules.
    Ruled(&'a Path, &'a str),
}

/// What both ends printed, and the counters of both when preloaded.
struct Run {
    printed: [String; 2],
    counters: HashMap<String, u64>,
}

fn wait(mut child: Child, what: &str) -> Output {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > WATCHDOG {
            let _ = child.kill();
            panic!("{what} hangs");
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

fn run(scenario: &str, way: Way<'_>) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let port = dir.path().join("port");
    let report = dir.path().join("report");
    let start = |role: &str| {
        let mut command = Command::new(program());
        command.args([scenario, role]).arg(&port);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        match way {
            Way::Alone => {}
            Way::NoDaemon => {
                command.env("VMMC_SOCKET", dir.path().join("nobody.sock"));
            }
            Way::Upgraded(socket) => {
                command.env("VMMC_SOCKET", socket);
            }
            Way::Ruled(socket, rules) => {
                command.env("VMMC_SOCKET", socket).env("VMMC_SOCKETS_RULES", rules);
            }
        }
        if !matches!(way, Way::Alone) {
            command.env("LD_PRELOAD", library()).env("VMMC_SOCKETS_REPORT", &report);
        }
        command.spawn().unwrap()
    };
    let roles: &[&str] = if scenario == "self" { &["self"] } else { &["server", "client"] };
    let children: Vec<Child> = roles.iter().map(|role| start(role)).collect();
    let mut printed = [String::new(), String::new()];
    for ((child, role), slot) in children.into_iter().zip(roles).zip(&mut printed) {
        let output = wait(child, &format!("{scenario} {role}"));
        // A client that kills itself is part of the scenario.
        let killed = scenario.starts_with("killed") || scenario == "scribble";
        assert!(
            output.status.success() || (killed && *role == "client"),
            "{scenario} {role}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        *slot = String::from_utf8(output.stdout).unwrap();
    }
    let mut counters = HashMap::new();
    for field in std::fs::read_to_string(&report).unwrap_or_default().split_whitespace() {
        if let Some((name, value)) = field.split_once('=') {
            *counters.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap();
        }
    }
    Run { printed, counters }
}

/// How often the third way is run at most.
const TURNS: u32 = 20;

/// Runs a scenario all three ways; returns the counters of the third, in which an end was
/// upgraded.
fn three_ways(scenario: &str) -> HashMap<String, u64> {
    three_ways_until(scenario, |counters| counters.contains_key("upgraded"))
}

/// The same; the third way is run again until the counters say that it came to `what`: on a busy
/// machine the daemon's answer may come after a short scenario's end, to one end or both.
fn three_ways_until(
    scenario: &str,
    what: fn(&HashMap<String, u64>) -> bool,
) -> HashMap<String, u64> {
    let alone = run(scenario, Way::Alone);
    let plain = run(scenario, Way::NoDaemon);
    assert_eq!(alone.printed, plain.printed, "{scenario} without a daemon");
    assert_eq!(plain.counters.get("upgraded"), None, "{scenario} without a daemon");
    let daemon = Daemon::start();
    let mut turns = 0;
    loop {
        let upgraded = run(scenario, Way::Upgraded(&daemon.socket));
        assert_eq!(alone.printed, upgraded.printed, "{scenario} upgraded");
        turns += 1;
        if what(&upgraded.counters) || turns == TURNS {
            return upgraded.counters;
        }
    }
}

fn moved_bytes(scenario: &str) -> HashMap<String, u64> {
    let moved = |counters: &HashMap<String, u64>| {
        ["ring_tx_bytes", "ring_rx_bytes"].iter().all(|name| counters.contains_key(*name))
    };
    let counters = three_ways_until(scenario, moved);
    let get = |name: &str| counters.get(name).copied().unwrap_or(0);
    assert!(get("ring_tx_bytes") > 0 && get("ring_rx_bytes") > 0, "{scenario}: {counters:?}");
    if !scenario.starts_with("scribble") {
        assert_eq!(get("poisoned"), 0, "{scenario}: {counters:?}");
    }
    counters
}

macro_rules! scenarios {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            moved_bytes(stringify!($name));
        }
    )*};
}

scenarios! {
    /// Blocking echo of random sizes.
    echo
    /// A FIN one way, data the other.
    half_close
    /// Data, then end of file; `POLLRDHUP` with data unread.
    eof_after_data
    /// Close with data unread: RST, ECONNRESET, EPIPE, SIGPIPE.
    reset
    /// Sending to a closed peer.
    broken_pipe
    /// `SO_RCVTIMEO` and `SO_SNDTIMEO`.
    timeouts
    /// The peer is killed while we wait for data (G5).
    killed_reader_waits
    /// The peer is killed while we wait for room (G5).
    killed_writer_waits
    /// `MSG_PEEK`, `MSG_WAITALL`, `MSG_DONTWAIT`, `MSG_TRUNC`, `FIONREAD`, vectors, `TCP_NODELAY`.
    flags
    /// sendfile with and without an offset.
    send_file
    /// splice both ways.
    splices
    /// dup, dup2, F_DUPFD, and the last close.
    duplicates
    /// Parent and children use one upgraded connection in turn.
    forked
    /// Waits of an idle connection end at their timeouts, with no false readiness.
    idle
    /// A peer that scribbles over the whole segment (G3).
    scribble
    /// A peer that scribbles ends its own connection, and keeps nobody else from being woken (S4, S10).
    scribble_beside
    /// Full speed both ways, level-triggered epoll.
    pump_lt
    /// Full speed both ways, edge-triggered epoll.
    pump_et
    /// Full speed both ways, one-shot epoll.
    pump_oneshot
    /// Full speed both ways, poll.
    pump_poll
    /// Full speed both ways, select.
    pump_select
    /// `EPOLLOUT` after a full ring, level-triggered.
    full_lt
    /// `EPOLLOUT` after a full ring, edge-triggered.
    full_et
    /// A thousand connections; no descriptor is left.
    churn
    /// 200 connections that switch under full load both ways.
    stress
}

/// A thread that sleeps for many connections in one set is rung once per sleep (S7, S8).
#[test]
fn a_sleeper_is_rung_once_for_many_connections() {
    let counters = moved_bytes("many_asleep");
    let get = |name: &str| counters.get(name).copied().unwrap_or(0);
    // In 60 rounds everything is written into one sleep: one doorbell, and 23 saved.
    assert!(get("doorbells_saved") >= 60 * 23, "{counters:?}");
}

/// Once another thread has to do with the same sockets, each connection is rung for again.
#[test]
fn no_wake_up_is_lost_when_a_second_thread_meddles() {
    moved_bytes("many_meddled");
}

/// Both ends in one process, with four threads. Whether the daemon is quick enough for short
/// connections is luck, so no bytes are demanded.
#[test]
fn both_ends_in_one_process() {
    let counters = three_ways("self");
    assert_eq!(counters.get("poisoned"), None);
}

/// A connection shared by a fork before its upgrade stays plain while two processes have it.
/// (`fork_early` of the semantic tests shows that it is upgraded when one of them closes it.)
#[test]
fn a_connection_that_two_processes_have_before_its_upgrade_stays_plain() {
    let counters = three_ways("forked_early");
    assert_eq!(counters.get("ring_tx_bytes"), None);
}

/// Rules by program, address and user keep a connection plain, and say so.
#[test]
fn a_rule_keeps_a_connection_plain() {
    let daemon = Daemon::start();
    for rules in ["deny program=stream", "allow port=1; deny address=127.0.0.0/8", "deny"] {
        let counters = run("echo", Way::Ruled(&daemon.socket, rules)).counters;
        assert_eq!(counters.get("ring_tx_bytes"), None, "{rules}");
        assert_eq!(counters.get("plain_rule"), Some(&2), "{rules}: {counters:?}");
    }
    let counters = run("echo", Way::Ruled(&daemon.socket, "deny program=other; deny uid=4294967"));
    assert_eq!(counters.counters.get("plain_rule"), None);
}

/// From the ring back to TCP in the middle of a stream, both directions.
#[test]
fn a_stream_goes_back_to_tcp_in_the_middle() {
    let counters = moved_bytes("demoted");
    assert!(counters.contains_key("demoted_tx") && counters.contains_key("demoted_rx"));
}

/// Without a warm-up the switch happens while the pump runs.
#[test]
fn an_edge_triggered_pump_switches_while_it_runs() {
    let counters = three_ways("cold_pump_et");
    assert_eq!(counters.get("poisoned"), None);
}
