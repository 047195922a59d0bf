//! An ordinary program (`programs/stream.c`) whose ends are on two nodes, each with a daemon of its own: on loopback
//! addresses, or in two network namespaces (`ci/net`). It prints what it prints over TCP alone, and its bytes go by
//! rings that the daemons carry. The exact behaviour of every call is asked in `carried.rs`.
#![allow(missing_docs)]

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
#[path = "common/mod.rs"]
mod sockets;

use cluster::{Place, pair_in, starter_of};
use rustix::process::Signal;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const CARRIED: &str = "[streams]\nbetween-nodes = \"on\"\n";
/// Ends a hang. Not a measure of speed.
const WATCHDOG: Duration = Duration::from_secs(240);

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/stream.c");
        sockets::compile_files("stream_between", &[source])
    })
}

/// The server's node and the client's.
struct World {
    a: Place,
    b: Place,
}

/// What both ends printed, and their counters.
struct Run {
    printed: [String; 2],
    counters: HashMap<String, u64>,
}

impl World {
    fn new(more: &str) -> World {
        // Where both ends come they are waited for however long a busy machine stands still.
        let wait = if more.contains("streams") { "60000" } else { "1000" };
        let (a, b) = pair_in(more, &[("VMMC_PAIR_MS", wait)]);
        World { a, b }
    }

    fn start(&self, scenario: &str, role: &str, ours: bool, dir: &Path) -> Child {
        let place = if role == "server" { &self.a } else { &self.b };
        let host = |place: &Place| place.address.rsplit_once(':').unwrap().0.to_owned();
        let mut words = starter_of(&place.name);
        // What starts it is no part of the test.
        words.extend(["env".to_owned()]);
        if ours {
            let library = sockets::artefacts().library.display();
            words.push(format!("LD_PRELOAD={library}"));
        }
        words.push(program().display().to_string());
        let (first, rest) = words.split_first().unwrap();
        let mut command = sockets::without_settings(Command::new(first));
        command.args(rest).args([scenario, role]).arg(dir.join("port"));
        command.env("VMMC_SOCKET", place.daemon.socket()).env("VMMC_DAEMON", "none");
        command.env("VMMC_SOCKETS_REPORT", dir.join("report"));
        command.env("MEETING_HOST", host(&self.a)).env("MEETING_FROM", host(&self.b));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn run(&self, scenario: &str, ours: bool) -> Run {
        let dir = tempfile::tempdir().unwrap();
        let children =
            ["server", "client"].map(|role| self.start(scenario, role, ours, dir.path()));
        let outputs = children.map(|child| ended(child, scenario));
        for (output, role) in outputs.iter().zip(["server", "client"]) {
            // A client that kills itself is part of the scenario.
            let killed = scenario.starts_with("killed") && role == "client";
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || killed, "{scenario} {role}: {output:?}\n{said}");
        }
        let printed = outputs.map(|output| String::from_utf8(output.stdout).unwrap());
        let report = std::fs::read_to_string(dir.path().join("report")).unwrap_or_default();
        let mut counters = HashMap::new();
        for (name, value) in report.split_whitespace().filter_map(|field| field.split_once('=')) {
            *counters.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap();
        }
        Run { printed, counters }
    }
}

fn ended(mut child: Child, what: &str) -> Output {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > WATCHDOG {
            let _ = child.kill();
            panic!("{what} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// Whether a process has the descriptor by which its daemon knows that it has not closed a connection: a socket of the library's, above
/// 512, beside the one by which it talks to the daemon.
fn is_carried(child: &Child) -> bool {
    let files = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let is_ours = |file: &std::fs::DirEntry| {
        let number = file.file_name().to_str().unwrap().parse::<u32>().unwrap();
        let link = std::fs::read_link(file.path()).unwrap_or_default();
        number >= 512 && link.to_string_lossy().starts_with("socket:")
    };
    files.flatten().filter(is_ours).count() >= 2
}

/// The same lines as over TCP alone, and bytes by rings that were carried. On a busy machine both ends of a short scenario
/// may have come to their end before they are: then it is run again.
fn says_the_same(scenario: &str) {
    let world = World::new(CARRIED);
    let alone = world.run(scenario, false);
    let started = Instant::now();
    let ours = loop {
        let ours = world.run(scenario, true);
        assert_eq!(ours.printed, alone.printed, "{scenario}: {:?}", ours.counters);
        let carried = |name: &str| ours.counters.contains_key(name);
        if carried("ring_tx_bytes") && carried("ring_rx_bytes") || started.elapsed() > WATCHDOG {
            break ours;
        }
    };
    let get = |name: &str| ours.counters.get(name).copied().unwrap_or(0);
    assert!(
        get("ring_tx_bytes") > 0 && get("ring_rx_bytes") > 0,
        "{scenario}: {:?}",
        ours.counters
    );
    assert!(get("carrier_rings") > 0, "{scenario}: {:?}", ours.counters);
    assert_eq!((get("doorbells"), get("poisoned")), (0, 0), "{scenario}: {:?}", ours.counters);
}

macro_rules! scenarios {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            says_the_same(stringify!($name));
        }
    )*};
}

// What each is: `programs.rs`.
scenarios! {
    echo half_close eof_after_data reset broken_pipe killed_reader_waits killed_writer_waits forked pump_et pump_poll full_lt churn
    passed_after_the_end
    passed_while_offered
    left_at_the_end
}

/// What is not carried goes by TCP as ever.
#[test]
fn connections_stay_with_tcp_where_no_daemon_carries() {
    let world = World::new("");
    let ours = world.run("echo", true);
    assert_eq!(ours.printed, world.run("echo", false).printed);
    assert_eq!(ours.counters.get("upgraded"), None, "{:?}", ours.counters);
}

/// The same over libfabric: what is carried goes the way of everything between nodes.
#[test]
fn echo_over_a_fabric() {
    let fabric = format!("{CARRIED}[fabric]\nprovider = \"tcp;ofi_rxm\"\n");
    let world = World::new(&fabric);
    let alone = world.run("echo", false).printed;
    // The first connection's other end has come to its end before the fabric is open between the nodes.
    common::until("it is carried", || {
        let ours = world.run("echo", true);
        assert_eq!(ours.printed, alone);
        ours.counters.contains_key("carrier_rings")
    });
}

/// Two ends that exchange by rings for ever.
struct Endless {
    ends: [Child; 2],
    dir: tempfile::TempDir,
}

impl Endless {
    fn start(world: &World) -> Endless {
        let dir = tempfile::tempdir().unwrap();
        let ends = ["server", "client"].map(|role| world.start("endless", role, true, dir.path()));
        common::until("it is carried", || ends.iter().all(is_carried));
        let endless = Endless { ends, dir };
        endless.goes_on();
        endless
    }

    /// Waits until they have exchanged something from here on.
    fn goes_on(&self) {
        let going = self.dir.path().join("port.going");
        common::until("they exchange", || std::fs::remove_file(&going).is_ok());
        common::until("they go on by their rings", || going.exists());
    }

    /// Both are told of an error.
    fn ends(self) {
        let said = self.ends.map(|end| ended(end, "endless"));
        for output in &said {
            assert!(output.status.success(), "{output:?}");
            // An end of file would say that all has come.
            assert_eq!(String::from_utf8_lossy(&output.stdout), "ended: error\n");
        }
        let report = std::fs::read_to_string(self.dir.path().join("report")).unwrap();
        assert_eq!(report.matches("carrier_rings=").count(), 2, "{report}");
    }
}

/// Two ends that exchange by rings for ever are told of an error after `end` has ended the first of these nodes' daemons.
fn both_ends_hear_when(end: impl Fn(Place, &Place)) {
    for first in ["a", "b"] {
        let world = World::new(CARRIED);
        let endless = Endless::start(&world);
        let World { a, b } = world;
        let (ends_now, other) = if first == "a" { (a, b) } else { (b, a) };
        end(ends_now, &other);
        endless.ends();
    }
}

/// A carried connection outlasts a cut between the daemons, as one of TCP does: they are reset again and again.
#[test]
fn a_carried_connection_outlasts_a_cut_between_the_daemons() {
    let world = World::new(CARRIED);
    let endless = Endless::start(&world);
    for _ in 0..10 {
        // Of these daemons and no others.
        let all = [&world.a, &world.b].map(|it| format!("src {0} or dst {0}", it.address));
        let all = all.join(" or ");
        let mut words = starter_of("a");
        words.extend(["ss", "-tKH", "state", "established", &all].map(str::to_owned));
        let (first, rest) = words.split_first().unwrap();
        let killed = Command::new(first).args(rest).output().unwrap();
        if killed.stdout.is_empty() {
            eprintln!("not run: this kernel or user resets no connections: {killed:?}");
            break;
        }
        endless.goes_on();
    }
    drop(world);
    endless.ends();
}

/// Either daemon's death ends what it carries, as a reset does: both ends see it, and nobody waits for ever.
#[test]
fn a_daemon_that_dies_ends_the_connections_that_it_carried() {
    both_ends_hear_when(|dies, _| drop(dies));
}

/// Both daemons are killed at the same moment: neither is left to tell anybody, and one end or the other sleeps.
#[test]
fn two_daemons_that_are_killed_together_end_the_connections_that_they_carried() {
    both_ends_hear_when(|dies, other| {
        for daemon in [&dies.daemon, &other.daemon] {
            common::signal(daemon.pid(), Signal::STOP);
        }
        for daemon in [&dies.daemon, &other.daemon] {
            common::signal(daemon.pid(), Signal::KILL);
        }
    });
}

/// One that is told to end does so itself: the other may be ending as well, and here does nothing at all.
#[test]
fn a_daemon_that_is_stopped_ends_the_connections_that_it_carried() {
    both_ends_hear_when(|mut stops, other| {
        common::signal(other.daemon.pid(), Signal::STOP);
        common::signal(stops.daemon.pid(), Signal::TERM);
        stops.daemon.wait_dead();
    });
}

/// Whoever leaves for a program without the library after his daemon's death waits for no answer of it.
#[test]
fn a_socket_is_passed_on_after_its_daemons_death() {
    let world = World::new(CARRIED);
    let dir = tempfile::tempdir().unwrap();
    let ends = ["server", "client"]
        .map(|role| world.start("passed_after_a_death", role, true, dir.path()));
    common::until("it is carried", || ends.iter().all(is_carried));
    std::fs::write(dir.path().join("port.carried"), "").unwrap();
    let unread = dir.path().join("port.unread");
    common::until("bytes are unread", || unread.exists());
    let World { a, b: _b } = world;
    drop(a);
    std::fs::write(dir.path().join("port.dead"), "").unwrap();
    let [server, client] = ends.map(|end| ended(end, "passed_after_a_death"));
    assert!(server.status.success() && client.status.success(), "{server:?} {client:?}");
    assert_eq!(String::from_utf8_lossy(&server.stdout), "passed\n");
}
