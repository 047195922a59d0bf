//! An ordinary program (`programs/stream.c`) run three ways: alone, preloaded without a daemon,
//! and preloaded with one. All three must print the same; the third must have moved bytes
//! through rings, or the run proves nothing.

mod common;

use common::Daemon;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Ends a hang. Not a measure of speed.
const WATCHDOG: Duration = Duration::from_secs(240);
/// The same for what is ignored by default.
const LONG_WATCHDOG: Duration = Duration::from_secs(600);

/// The program, compiled once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/stream.c");
        common::compile_files("stream", &[source])
    })
}

#[derive(Clone, Copy)]
enum Way<'a> {
    Alone,
    NoDaemon,
    Upgraded(&'a Path),
    /// With rules.
    Ruled(&'a Path, &'a str),
    /// With the switch that turns all off.
    Off(&'a Path),
    /// With this said of rings of io_uring.
    IoUring(&'a Path, &'a str),
    /// By one of the paper's protocols.
    Protocol(&'a Path, &'a str),
    /// With a setting of how waits poll, and its value.
    Polling(&'a Path, (&'a str, &'a str)),
}

/// What the kernel tells of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    /// Times it went to sleep by itself, or was interrupted.
    switches: u64,
    /// Time on a processor, in ticks of the kernel's clock.
    ticks: u64,
}

/// A field of `/proc/PID/status`.
fn status(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

fn usage(pid: u32) -> Usage {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |at: usize| after_name[at].parse::<u64>().unwrap();
    let switches =
        status(pid, "voluntary_ctxt_switches") + status(pid, "nonvoluntary_ctxt_switches");
    Usage { switches, ticks: ticks(11) + ticks(12) }
}

/// Waits for something that another process does.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < LONG_WATCHDOG, "{what}: hangs");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// What both ends printed, and the counters of both when preloaded.
struct Run {
    printed: [String; 2],
    counters: HashMap<String, u64>,
}

fn wait(mut child: Child, what: &str) -> Output {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed()
            > if what.starts_with("ten_thousand") { LONG_WATCHDOG } else { WATCHDOG }
        {
            let _ = child.kill();
            panic!("{what} hangs");
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// Starts one end, which has its files in `dir`.
fn start(scenario: &str, role: &str, way: Way<'_>, dir: &Path) -> Child {
    let mut command = common::without_settings(Command::new(program()));
    command.args([scenario, role]).arg(dir.join("port"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    match way {
        Way::Alone => {}
        Way::NoDaemon => {
            command.env("VMMC_SOCKET", dir.join("nobody.sock"));
        }
        Way::Upgraded(socket) => {
            command.env("VMMC_SOCKET", socket);
        }
        Way::Ruled(socket, rules) => {
            command.env("VMMC_SOCKET", socket).env("VMMC_SOCKETS_RULES", rules);
        }
        Way::Protocol(socket, name) => {
            command.env("VMMC_SOCKET", socket).env("VMMC_SOCKETS_PROTOCOL", name);
        }
        Way::Polling(socket, (name, value)) => {
            command.env("VMMC_SOCKET", socket).env(name, value);
        }
        Way::Off(socket) => {
            command.env("VMMC_SOCKET", socket).env("VMMC_SOCKETS", "off");
        }
        Way::IoUring(socket, what) => {
            command.env("VMMC_SOCKET", socket).env("VMMC_SOCKETS_IO_URING", what);
        }
    }
    if !matches!(way, Way::Alone) {
        command.env("LD_PRELOAD", &common::artefacts().library);
        command.env("VMMC_DAEMON", "none").env("VMMC_SOCKETS_REPORT", dir.join("report"));
    }
    command.spawn().unwrap()
}

/// The counters that the ends wrote, added up.
fn reported(dir: &Path) -> HashMap<String, u64> {
    let mut counters = HashMap::new();
    let report = std::fs::read_to_string(dir.join("report")).unwrap_or_default();
    for field in report.split_whitespace() {
        if let Some((name, value)) = field.split_once('=') {
            *counters.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap();
        }
    }
    counters
}

fn run(scenario: &str, way: Way<'_>) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let roles: &[&str] = if scenario == "self" { &["self"] } else { &["server", "client"] };
    let children: Vec<Child> =
        roles.iter().map(|role| start(scenario, role, way, dir.path())).collect();
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
    Run { printed, counters: reported(dir.path()) }
}

/// Runs a scenario all three ways; returns the counters of the third, which is run a few times until an end was
/// upgraded.
fn three_ways(scenario: &str) -> HashMap<String, u64> {
    let mut turns = 0;
    three_ways_until(scenario, |counters| {
        turns += 1;
        turns == 20 || counters.contains_key("upgraded")
    })
}

/// The same; the third way is run again until the counters say that it came to `what`, or for as long as
/// the watchdog lets it: on a busy machine the daemon's answer may come late, or after a short scenario's
/// end, to one connection of many, to one end or both.
fn three_ways_until(
    scenario: &str,
    mut what: impl FnMut(&HashMap<String, u64>) -> bool,
) -> HashMap<String, u64> {
    let alone = run(scenario, Way::Alone);
    let plain = run(scenario, Way::NoDaemon);
    assert_eq!(alone.printed, plain.printed, "{scenario} without a daemon");
    assert_eq!(plain.counters.get("upgraded"), None, "{scenario} without a daemon");
    let daemon = Daemon::start();
    let started = Instant::now();
    loop {
        let upgraded = run(scenario, Way::Upgraded(&daemon.path));
        assert_eq!(alone.printed, upgraded.printed, "{scenario} upgraded");
        if what(&upgraded.counters) || started.elapsed() > WATCHDOG {
            return upgraded.counters;
        }
    }
}

/// Whether bytes have gone through rings, and come out of them.
fn moved(counters: &HashMap<String, u64>) -> bool {
    ["ring_tx_bytes", "ring_rx_bytes"].iter().all(|name| counters.contains_key(*name))
}

fn count(counters: &HashMap<String, u64>, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

fn moved_bytes(scenario: &str) -> HashMap<String, u64> {
    let counters = three_ways_until(scenario, moved);
    let get = |name: &str| count(&counters, name);
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
    // In 60 rounds everything is written into one sleep: one doorbell, and 23 saved, once all are upgraded.
    let saved = |counters: &HashMap<String, u64>| count(counters, "doorbells_saved") >= 60 * 23;
    let counters = three_ways_until("many_asleep", saved);
    assert!(saved(&counters), "{counters:?}");
    assert_eq!(count(&counters, "poisoned"), 0, "{counters:?}");
}

/// A thread that is cancelled in a call gives back what it held there.
#[test]
fn cancelled_calls_hold_nothing() {
    // The client's direction switches only if no thread of the server's is inside a plain receive.
    let both = |counters: &HashMap<String, u64>| count(counters, "switched_tx") >= 2;
    let counters = three_ways_until("cancelled", both);
    assert!(both(&counters), "{counters:?}");
    // In 1500 turns the client sleeps, and the server has woken; before them both may sleep some 600 times.
    assert!(count(&counters, "doorbells") < 2 * 1500, "{counters:?}");
    assert!(count(&counters, "epoll_deferred") >= 100, "{counters:?}");
}

/// What a ring did not pay for is offered later; of 40 downloads of 2 MiB each end had 40 upgraded.
#[test]
fn short_downloads_are_left_alone_once_they_are_known() {
    let long = |counters: &HashMap<String, u64>| count(counters, "ring_tx_bytes") > 16 << 20;
    let counters = three_ways_until("downloads", long);
    assert!(long(&counters), "{counters:?}");
    assert!(count(&counters, "upgraded") <= 2 * 10, "{counters:?}");
}

/// S8: a stream that has gone on by TCP because nobody read comes back to its ring, also when that happens again.
#[test]
fn a_ring_that_was_full_is_used_again() {
    let again = |counters: &HashMap<String, u64>| {
        count(counters, "plain_full") == 2 && count(counters, "switched_tx") == 2 + 2
    };
    let counters = three_ways_until("rests", again);
    assert!(again(&counters), "{counters:?}");
    assert_eq!(count(&counters, "switched_rx"), 2 + 2, "{counters:?}");
    assert_eq!(count(&counters, "poisoned"), 0, "{counters:?}");
}

/// S6: the program's bytes are the same by each of the paper's protocols, and the copies are those that each is named for.
#[test]
fn protocols_differ_in_their_copies_and_in_nothing_else() {
    let alone = run("echo", Way::Alone);
    let daemon = Daemon::start();
    for (name, deliberate, staged) in
        [("au-2copy", false, false), ("du-1copy", true, false), ("du-2copy", true, true)]
    {
        let started = Instant::now();
        let counters = loop {
            let run = run("echo", Way::Protocol(&daemon.path, name));
            assert_eq!(alone.printed, run.printed, "{name}");
            if count(&run.counters, "ring_tx_bytes") > 0 || started.elapsed() > WATCHDOG {
                break run.counters;
            }
        };
        let sent = count(&counters, "ring_tx_bytes");
        assert!(sent > 0, "{name}: {counters:?}");
        let expected = if deliberate { sent } else { 0 };
        assert_eq!(count(&counters, "deliberate_bytes"), expected, "{name}: {counters:?}");
        // What finds no room has been copied, and is copied again later.
        let copied = count(&counters, "staged_bytes");
        assert!(if staged { copied >= sent } else { copied == 0 }, "{name}: {counters:?}");
    }
}

/// A peer that sends what is neither data nor a doorbell ends its own connection; who waits for that is told (G3).
#[test]
fn who_waits_is_told_of_a_byte_that_nobody_counted() {
    // One connection for each way of waiting.
    let refused = |counters: &HashMap<String, u64>| count(counters, "poisoned") >= 5;
    let counters = three_ways_until("scribble_uncounted", refused);
    assert!(refused(&counters), "{counters:?}");
}

/// A peer that lies in one word of the segment, or cuts it away, floods with doorbells or closes unseen: by each of some forty
/// lies only its own connection can be spoilt. Another one in the same thread carries every byte, and nobody is busy (G3, S4,
/// S10).
#[test]
fn each_lie_spoils_the_liars_connection_alone() {
    let refused = |counters: &HashMap<String, u64>| count(counters, "poisoned") >= 10;
    let counters = three_ways_until("lies", refused);
    assert!(refused(&counters), "{counters:?}");
}

/// A thread waits in `poll` or `select` since before the connection got its ring, and another one polls it for room: the first is
/// rung all the same, and is not told of doorbells. (Python programs with a time limit, one thread for each way, stood still.)
#[test]
fn a_wait_that_began_before_the_upgrade_ends_when_there_is_something() {
    for _ in 0..5 {
        moved_bytes("early_wait");
    }
}

/// `shutdown` does not wait for ever for what a daemon sends in front of the end, and the end comes, whoever looks at the connection how.
#[test]
fn an_end_behind_what_goes_back_comes_and_holds_up_nobody_for_ever() {
    moved_bytes("ends_behind_a_pump");
}

/// A peer that has what is in the ring sent by TCP, and does not read it there, ends its own connection at most (G3).
#[test]
fn what_goes_back_to_tcp_and_is_not_read_there_holds_up_nobody_for_ever() {
    let counters = three_ways_until("held_up", moved);
    assert!(moved(&counters), "{counters:?}");
}

/// Once another thread has to do with the same sockets, each connection is rung for again.
#[test]
fn no_wake_up_is_lost_when_a_second_thread_meddles() {
    moved_bytes("many_meddled");
}

/// The thread that is alone with sockets takes its locks without a locked instruction; it must not when there are two.
#[test]
fn a_second_thread_and_the_first_exclude_each_other() {
    let came =
        |counters: &HashMap<String, u64>| moved(counters) && count(counters, "owner_lost") >= 10;
    let counters = three_ways_until("a_thread_comes", came);
    assert!(came(&counters), "{counters:?}");
    assert_eq!(count(&counters, "poisoned"), 0, "{counters:?}");
}

/// A doorbell that comes after a proper close is answered by an RST, which means nothing. (A client of iperf3 said "reset
/// by peer".)
#[test]
fn an_end_is_no_reset_for_a_doorbell_that_comes_late() {
    moved_bytes("ends_while_rung");
}

#[test]
fn a_socket_whose_peer_has_closed_goes_back_to_the_kernel_as_it_is() {
    moved_bytes("inherited_after_the_end");
}

/// Doorbells that nobody has to throw away do not pile up: the kernel acknowledges what is not read 40 ms later, and lets ten
/// packets through until then. (haproxy with one connection had half of its rate.)
#[test]
fn doorbells_of_edges_do_not_wait_for_acknowledgements() {
    let rung = |counters: &HashMap<String, u64>| count(counters, "doorbells") >= 300;
    let counters = three_ways_until("edges_one_way", rung);
    assert!(rung(&counters), "{counters:?}");
    assert!(count(&counters, "drains") >= count(&counters, "doorbells") / 8, "{counters:?}");
}

/// A loop that changes its wish twice per request: the kernel hears of next to none of the changes.
#[test]
fn changed_wishes_are_kept_from_the_kernel() {
    const CHANGES: u64 = 24 * (2 * 4000 - 1);
    // Of all connections, if all are upgraded before the first request.
    let deferred = |counters: &HashMap<String, u64>| {
        count(counters, "epoll_deferred") >= CHANGES * 9 / 10
            && count(counters, "epoll_settled") <= CHANGES / 10
    };
    let counters = three_ways_until("changing_wishes", deferred);
    let get = |name: &str| count(&counters, name);
    assert!(deferred(&counters), "{counters:?}");
    // Requests, answers, and warm-ups: nothing but what the program sent is in the rings (S5).
    let payload = 2 * 24 * (4000 * 100 + 600 + 1);
    assert_eq!(get("ring_tx_bytes"), get("ring_rx_bytes"), "{counters:?}");
    assert!(get("ring_tx_bytes") <= payload, "{counters:?}");
}

/// The same after forks of both ends, whose children have ended: that they have is found with few of the changes.
#[test]
fn changed_wishes_are_kept_from_the_kernel_when_children_have_ended() {
    const CHANGES: u64 = 24 * (2 * 4000 - 1);
    let deferred = |counters: &HashMap<String, u64>| {
        count(counters, "epoll_deferred") >= CHANGES * 9 / 10
            && count(counters, "epoll_settled") <= CHANGES / 10
    };
    let counters = three_ways_until("changing_wishes_alone", deferred);
    assert!(deferred(&counters), "{counters:?}");
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

/// A process that has forked is rung for whatever comes while its child may sleep on the same connection. When all
/// children have ended, killed or not, waited for or not, it is rung when it sleeps, as before.
#[test]
fn a_connection_is_its_processs_own_again_when_its_children_have_ended() {
    // Of 20,000 answers, so many are rung for where nobody looks for children; the rest sleep and are rung for as ever.
    const BEFORE_THE_LOOK: u64 = 1000;
    let alone = |counters: &HashMap<String, u64>| {
        moved(counters)
            && count(counters, "doorbells") <= count(counters, "sleeps") + BEFORE_THE_LOOK
    };
    let counters = three_ways_until("forked_and_alone", alone);
    assert!(alone(&counters), "{counters:?}");
}

/// Connections of a Java program stay in their rings when that starts another program.
#[test]
fn java_s_helper_sends_no_connection_back_to_tcp() {
    let counters = three_ways_until("java_helper", moved);
    assert!(moved(&counters), "{counters:?}");
    assert_eq!(count(&counters, "demoted_tx") + count(&counters, "demoted_rx"), 0, "{counters:?}");
}

/// One way carries data by its ring; the other, which was silent until a fork, switches with its first byte after it.
/// (Else the peer could not be rung for room either: rsync had a quarter of TCP's rate.)
#[test]
fn a_direction_that_was_silent_until_a_fork_switches_after_it() {
    let both = |counters: &HashMap<String, u64>| count(counters, "switched_tx") == 2;
    let counters = three_ways_until("forked_silent", both);
    assert!(both(&counters), "{counters:?}");
    assert_eq!(count(&counters, "poisoned"), 0, "{counters:?}");
}

/// Rules by program, address and user keep a connection plain, and say so.
#[test]
fn a_rule_keeps_a_connection_plain() {
    let daemon = Daemon::start();
    let own = format!("deny uid={}", rustix::process::geteuid().as_raw());
    let all = [
        "deny program=stream",
        "allow port=1; deny address=127.0.0.0/8",
        "deny port=1-65535",
        &own,
        "deny",
    ];
    for rules in all {
        let counters = run("echo", Way::Ruled(&daemon.path, rules)).counters;
        assert_eq!(counters.get("ring_tx_bytes"), None, "{rules}");
        assert_eq!(counters.get("plain_rule"), Some(&2), "{rules}: {counters:?}");
    }
    let counters = run("echo", Way::Ruled(&daemon.path, "deny program=other; deny uid=4294967"));
    assert_eq!(counters.counters.get("plain_rule"), None);
}

/// Turned off, the library asks no daemon.
#[test]
fn a_process_that_is_turned_off_takes_no_part() {
    let daemon = Daemon::start();
    let done = run("echo", Way::Off(&daemon.path));
    assert_eq!(done.printed, run("echo", Way::Alone).printed);
    assert_eq!(done.counters.get("ring_tx_bytes"), None);
    assert_eq!(done.counters.get("plain_no_daemon"), Some(&2), "{:?}", done.counters);
}

/// A process that uses io_uring stays with TCP, because nobody sees what for; unless its user says that it is for files, or that it is to have none.
#[test]
fn a_process_with_io_uring_takes_part_if_its_user_says_so() {
    let daemon = Daemon::start();
    let counters = run("echo_with_io_uring", Way::Upgraded(&daemon.path)).counters;
    assert_eq!(counters.get("ring_tx_bytes"), None, "{counters:?}");
    let started = Instant::now();
    let said = [("echo_with_io_uring", "files"), ("echo_refused_io_uring", "refused")];
    for (scenario, what) in said {
        while !moved(&run(scenario, Way::IoUring(&daemon.path, what)).counters) {
            assert!(started.elapsed() < WATCHDOG, "no bytes by rings");
        }
    }
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

/// Waits until for a while nothing happens in these processes: not one goes to sleep or wakes, nor uses a processor. The
/// length is a choice. Before it, whatever is left to be done.
fn until_quiet(pids: [u32; 3]) {
    let sleeps = |pid| status_letter(pid) == 'S';
    until("quiet", || {
        let before = pids.map(usage);
        std::thread::sleep(Duration::from_secs(3));
        pids.into_iter().all(sleeps) && pids.map(usage) == before
    });
}

/// The switch that turns polling off: no wait polls or gives way, each sleeps; the program's results are the same, and
/// who has nothing to do does nothing.
#[test]
fn without_polling_every_wait_sleeps() {
    let daemon = Daemon::start();
    let polls = ["spin_hits", "spin_misses", "yield_hits", "yield_misses"];
    let polled = |counters: &HashMap<String, u64>| {
        polls.into_iter().map(|name| count(counters, name)).sum::<u64>()
    };
    for scenario in ["echo", "pump_lt", "pump_poll"] {
        let alone = run(scenario, Way::Alone);
        for setting in [("VMMC_SPIN_US", "0"), ("VMMC_WAIT", "block")] {
            let started = Instant::now();
            let counters = loop {
                let run = run(scenario, Way::Polling(&daemon.path, setting));
                assert_eq!(alone.printed, run.printed, "{scenario} with {setting:?}");
                if moved(&run.counters) || started.elapsed() > WATCHDOG {
                    break run.counters;
                }
            };
            assert!(moved(&counters), "{scenario} with {setting:?}: {counters:?}");
            assert_eq!(polled(&counters), 0, "{scenario} with {setting:?}: {counters:?}");
        }
    }
    // The same counters tell of polling where it is asked for.
    let polling = run("echo", Way::Polling(&daemon.path, ("VMMC_SPIN_US", "50")));
    assert!(polled(&polling.counters) > 0 || !moved(&polling.counters), "{:?}", polling.counters);
}

/// The same for processes that wait in sets for upgraded connections that say nothing.
#[test]
fn without_polling_idle_connections_cost_no_time() {
    let daemon = Daemon::start();
    let way = Way::Polling(&daemon.path, ("VMMC_SPIN_US", "0"));
    let started = Instant::now();
    let counters = loop {
        let dir = tempfile::tempdir().unwrap();
        let server = start("forty_idle", "server", way, dir.path());
        let mut client = start("forty_idle", "client", way, dir.path());
        until("forty connections", || {
            assert!(client.try_wait().unwrap().is_none(), "the client has ended");
            dir.path().join("port.idle").exists()
        });
        until_quiet([daemon.pid(), server.id(), client.id()]);
        client.kill().unwrap();
        client.wait().unwrap();
        let output = wait(server, "forty_idle server");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let counters = reported(dir.path());
        if count(&counters, "ring_rx_bytes") > 0 || started.elapsed() > WATCHDOG {
            break counters;
        }
    };
    assert!(count(&counters, "ring_rx_bytes") > 0, "{counters:?}");
}

/// Ten thousand upgraded connections at once cost nothing while nobody says anything, and 8 KiB each beyond their
/// rings.
#[test]
#[ignore = "takes 400 MB and 20,000 descriptors; ci/scale runs it"]
fn ten_thousand_idle_connections_cost_no_time_and_little_memory() {
    const LIVE: u64 = 10_000;
    const RINGS_KIB: u64 = 2 * 16;
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::with(&["--ring-kib", "16"]);
    let way = Way::Upgraded(&daemon.path);
    let server = start("ten_thousand_idle", "server", way, dir.path());
    let mut client = start("ten_thousand_idle", "client", way, dir.path());
    let pids = [daemon.pid(), server.id(), client.id()];
    until("ten thousand connections", || {
        assert!(client.try_wait().unwrap().is_none(), "the client has ended");
        dir.path().join("port.idle").exists()
    });
    until_quiet(pids);
    for (name, pid) in ["vmmcd", "server", "client"].iter().zip(pids) {
        let [anonymous, shared] = ["RssAnon", "RssShmem"].map(|field| status(pid, field));
        let rings = resident_rings(pid);
        let each = |kib: u64| kib as f64 / LIVE as f64;
        eprintln!(
            "{name}: {:.2} KiB each beyond rings ({:.2} anonymous, {:.2} shared), {:.2} of rings, {:.2} of page tables",
            each(anonymous + shared - rings),
            each(anonymous),
            each(shared - rings),
            each(rings),
            each(status(pid, "VmPTE")),
        );
        assert!(rings <= LIVE * RINGS_KIB && (rings > 0) == (*name != "vmmcd"), "{name}: {rings}");
        assert!(anonymous + shared - rings <= LIVE * 8, "{name}");
    }
    client.kill().unwrap();
    client.wait().unwrap();
    let output = wait(server, "ten_thousand_idle server");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "fds left 0\n");
    let counters = reported(dir.path());
    assert_eq!(counters.get("upgraded"), Some(&LIVE), "{counters:?}");
}

/// KiB of rings that a process has in memory: pages of segments but for the first of each, which is the
/// control block.
fn resident_rings(pid: u32) -> u64 {
    use std::os::unix::fs::FileExt;
    const PAGE: u64 = 4096;
    const PRESENT: u64 = 1 << 63;
    let pages = std::fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let segments = maps.lines().filter(|line| line.contains("memfd:vmmc-stream"));
    let present = segments.map(|line| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap() / PAGE);
        let mut entries = vec![0; ((end - start - 1) * 8) as usize];
        pages.read_exact_at(&mut entries, (start + 1) * 8).unwrap();
        let is_present =
            |entry: &&[u8]| u64::from_ne_bytes((*entry).try_into().unwrap()) & PRESENT != 0;
        entries.chunks_exact(8).filter(is_present).count() as u64
    });
    present.sum::<u64>() * PAGE / 1024
}

/// The state of a process, as `/proc` has it.
fn status_letter(pid: u32) -> char {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("State:")).unwrap();
    line.trim().chars().next().unwrap()
}

/// The kernel lengthens the table in some microseconds for a process with one thread, and in 10 ms for one with more.
#[test]
fn the_place_for_our_descriptors_is_made_before_a_program_has_threads() {
    let places = |preload: &Path| -> u64 {
        let mut grep = common::without_settings(Command::new("grep"));
        grep.args(["FDSize", "/proc/self/status"]).env("LD_PRELOAD", preload);
        let said = String::from_utf8(grep.output().unwrap().stdout).unwrap();
        said.trim_start_matches("FDSize:").trim().parse().unwrap()
    };
    let alone = places(Path::new(""));
    assert!(alone <= 512, "grep has {alone} places by itself");
    assert!(places(&common::artefacts().library) > 512);
}
