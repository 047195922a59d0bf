//! Clients killed while the daemon stands at one of the points that only its own messages reach: in the
//! middle of pairing the ends of a TCP connection, and of giving its state to the service manager. The
//! other points are in `vmmc/tests/crash_at_points.rs`.

mod common;
use common::manager::{Manager, STORE, socket_unit, start_service};
use common::*;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use vmmc::control::message::*;

/// This test program once more, as a client with a process of its own.
struct Victim {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Victim {
    fn start(part: &str, daemon: &Path, argument: &str) -> Victim {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "second_process", "--nocapture", "--quiet"])
            .env("VMMCD_TEST_PART", part)
            .env("VMMCD_TEST_DAEMON", daemon)
            .env("VMMCD_TEST_ARGUMENT", argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Victim { child, input, output: BufReader::new(output) }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn expect(&mut self, word: &str) {
        let mut line = String::new();
        while !line.ends_with(&format!("SAYS {word}\n")) {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended before {word:?}");
        }
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

fn say(word: &str) {
    println!("SAYS {word}");
}

fn pause() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn second_process() {
    let Ok(part) = std::env::var("VMMCD_TEST_PART") else { return };
    let daemon = std::env::var("VMMCD_TEST_DAEMON").unwrap();
    let argument = std::env::var("VMMCD_TEST_ARGUMENT").unwrap();
    match part.as_str() {
        "end" => {
            let socket = TcpStream::connect(argument).unwrap();
            let client = Client::connect_as(Path::new(&daemon), Role::Sockets);
            say("connected");
            pause();
            register(&client, &socket, SHAPE);
            pause();
        }
        "exporter" => {
            let mut client = Client::connect(Path::new(&daemon));
            let _export = client.export("x");
            say("ready");
            pause();
        }
        "importer" => {
            let mut client = Client::connect(Path::new(&daemon));
            let _import = client.import("x");
            say("ready");
            pause();
        }
        other => panic!("no part {other:?}"),
    }
}

#[test]
fn an_end_killed_while_the_daemon_pairs_is_seen_as_over_tcp_and_forgotten() {
    std::thread::scope(|scope| {
        for point in ["pair-made", "pair-half-sent"] {
            for dies in ["first", "second"] {
                scope.spawn(move || killed_while_pairing(point, dies));
            }
        }
    });
}

/// The survivor gets its segment all the same, and its TCP connection says that the peer is gone.
fn killed_while_pairing(point: &str, dies: &str) {
    let what = format!("{point}, the {dies} dies");
    let armed = format!("{point}:stop");
    // However long the second end takes to come.
    let env = [("VMMCD_FAILPOINT", &*armed), ("VMMC_PAIR_MS", "60000")];
    let daemon = Daemon::start_with(&[], &env);
    let before = at_rest(&daemon, 0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut victim = Victim::start("end", &daemon.path, &address);
    let mut ours = listener.accept().unwrap().0;
    victim.expect("connected");
    let survivor = Client::connect_as(&daemon.path, Role::Sockets);
    let mut registers = |first: bool| match (dies == "first") == first {
        true => victim.go_on(),
        false => register(&survivor, &ours, SHAPE),
    };
    registers(true);
    eventually("one end waits", || (daemon.snapshot().connections.len() == 1).then_some(()));
    registers(false);
    daemon.wait_stopped();
    victim.kill();
    daemon.signal(Signal::CONT);

    let mut incoming = survivor.receive();
    assert!(matches!(incoming.event, Event::Paired { .. }), "{what}: {:?}", incoming.event);
    assert!(incoming.fds.take().is_some(), "{what}");
    ours.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert_eq!(ours.read(&mut [0]).unwrap(), 0, "{what}: end of file");
    eventually("the daemon forgets the dead", || {
        let now = daemon.snapshot();
        now.clients.iter().all(|it| it.peer.pid != victim.pid()).then_some(())
    });
    // The pair is there as long as one of its ends is, and a while longer.
    drop((survivor, ours, incoming));
    eventually("the pair is forgotten", || daemon.snapshot().connections.is_empty().then_some(()));
    eventually("nothing is left", || (holds(&daemon) == before).then_some(()));
}

/// The daemon's descriptors by kind, without what it inherited.
fn holds(daemon: &Daemon) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().flatten() {
        // One that is closed between the two calls is not counted.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy();
        if target != "/dev/null" {
            let kind = target.trim_end_matches(|last: char| last.is_ascii_digit() || last == ']');
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
    }
    kinds
}

/// The one at which it listens, and the one by which it asks the kernel about others.
const OWN_SOCKETS: usize = 2;

/// What it holds for so many clients, once it has forgotten those that only looked.
fn at_rest(daemon: &Daemon, clients: usize) -> BTreeMap<String, usize> {
    daemon.snapshot(); // it has started
    eventually("the daemon is at rest", || {
        let now = holds(daemon);
        let count = |kind| now.get(kind).copied().unwrap_or_default();
        (count("socket:[") == clients + OWN_SOCKETS && count("anon_inode:[pidfd") == clients)
            .then_some(())
    });
    daemon.snapshot(); // by then it has done what it was at
    eventually("the daemon is at rest", || {
        let now = holds(daemon);
        let count = |kind| now.get(kind).copied().unwrap_or_default();
        (count("socket:[") == clients + OWN_SOCKETS && count("anon_inode:[pidfd") == clients)
            .then_some(now)
    })
}

/// A death while no daemon serves is noticed by the next one, which is then as if it had been noticed
/// by the one before.
#[test]
fn a_client_killed_while_the_state_is_stored_is_found_dead_by_the_next_daemon() {
    for dies in ["exporter", "importer"] {
        let (before, _survivor) = killed_around_a_restart(dies, false);
        let held = at_rest(&before, 1);
        let (after, _other) = killed_around_a_restart(dies, true);
        eventually("nothing more is left", || (holds(&after) == held).then_some(()));
    }
}

/// Kills one of two clients, in the middle of a restart of the service or before it. The
/// survivor is connected to the next daemon.
fn killed_around_a_restart(dies: &str, while_stored: bool) -> (Daemon, Client) {
    let manager = Manager::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = socket_unit(&dir.path().join("vmmcd.sock"));
    let armed = [("VMMCD_FAILPOINT", "store-half-sent:stop")];
    let mut daemon = start_service(&manager, &dir, &socket, STORE, &armed);
    let mut survivor = Client::connect(&daemon.path);
    let mut exported = None;
    if dies == "importer" {
        exported = Some(survivor.export("x").0);
    }
    let mut victim = Victim::start(dies, &daemon.path, "");
    victim.expect("ready");
    let link = match exported {
        Some(_) => survivor.receive_opened().link,
        None => survivor.import("x").link,
    };
    let closed = (link, CloseReason::PeerDied);
    if !while_stored {
        victim.kill();
        assert_eq!(survivor.receive_closed(), closed, "{dies}");
    }
    daemon.signal(Signal::TERM);
    daemon.wait_stopped();
    victim.kill();
    daemon.signal(Signal::CONT);
    assert!(daemon.wait().success(), "{dies}");

    let daemon = start_service(&manager, &dir, &socket, STORE, &[]);
    if while_stored {
        assert_eq!(survivor.receive_closed(), closed, "{dies}");
    }
    eventually("the store is emptied", || manager.names().is_empty().then_some(()));
    let now = daemon.snapshot();
    assert!(now.clients.iter().all(|it| it.peer.pid != victim.pid()) && now.links.is_empty());
    let exports: Vec<_> = now.exports.iter().map(|it| it.export).collect();
    assert_eq!(exports, Vec::from_iter(exported), "{dies}: the survivor keeps its own");
    (daemon, survivor)
}
