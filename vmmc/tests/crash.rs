//! Nothing is left behind by `kill -9` of anyone, and nobody waits for the dead (G1, G2).

mod common;

use common::{Daemon, PATIENCE, export, import, pause, say, until};
use std::time::Duration;
use vmmc::error::{SendError, WaitError};
use vmmc::{CloseReason, Node};

#[test]
fn second_process() {
    common::second_process(&[
        ("importer", importer),
        ("exporter", exporter),
        ("waiting exporter", waiting_exporter),
        ("waiting importer", waiting_importer),
        ("hello", |_| drop(Node::connect())),
        ("exporting", |_| exporting()),
        ("importing", |_| importing()),
        ("unexporting", |_| unexporting()),
    ]);
}

/// One test at a time: they count what this process holds.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What a process holds of ours: descriptors of memory files and pipes, mappings of memory files.
fn holdings(pid: u32) -> (usize, usize) {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|target| {
            let target = target.to_string_lossy();
            target.contains("memfd:vmmc") || target.starts_with("pipe:")
        })
        .count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    (fds, maps.lines().filter(|line| line.contains("memfd:vmmc")).count())
}

fn nothing_is_known(node: &Node) -> bool {
    let all = node.snapshot().unwrap();
    all.links.is_empty() && all.exports.is_empty() && all.clients.len() == 1
}

/// Kill the importer at its named points; the exporter is told, and holds nothing of it.
#[test]
fn a_killed_importer_leaves_nothing() {
    let _alone = alone();
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "held", 4096);
    let us = std::process::id();
    let mut second = daemon.second("importer", &["connected"]);
    second.expect("connected");
    second.kill();
    until("the daemon knows", || node.snapshot().unwrap().clients.len() == 1);
    let before = (holdings(us), holdings(daemon.pid()));
    for point in ["pending", "imported", "sent", "bound", "busy"] {
        let mut second = daemon.second("importer", &[point]);
        second.expect(point);
        second.kill();
        until("the link is gone", || {
            export.importers().is_empty() && node.snapshot().unwrap().clients.len() == 1
        });
        assert!(node.snapshot().unwrap().links.is_empty(), "{point}");
        // An end that no wait has reported yet is reported once; another wait just waits.
        let flag = export.flag32(4092).unwrap();
        if point != "pending" {
            let Err(WaitError::Closed(closed)) = flag.wait_until(|_| false, PATIENCE) else {
                panic!("{point}: not told")
            };
            assert_eq!((closed.reason, closed.peer.pid), (CloseReason::PeerDied, second.pid()));
        }
        let again = flag.wait_until(|_| false, Some(Duration::from_millis(1)));
        assert!(matches!(again, Err(WaitError::TimedOut { .. })));
        until("nothing is held here", || holdings(us) <= before.0);
        until("the daemon holds nothing", || holdings(daemon.pid()) <= before.1);
    }
    // Its unfinished transfer does not delay the unexport.
    let start = std::time::Instant::now();
    export.unexport().unwrap();
    assert!(start.elapsed() < PATIENCE.unwrap());
}

fn importer(args: &[String]) {
    let node = Node::connect().unwrap();
    let point = args[0].as_str();
    if point == "connected" {
        say(point);
        pause();
    }
    if point == "pending" {
        let _pending = node.import("not there").start().unwrap();
        say(point);
        pause();
    }
    let import = import(&node, "held");
    let binding = (point == "bound").then(|| import.bind(0..4096).unwrap());
    if point == "sent" {
        import.send_with_notify(0, b"last words").unwrap();
    }
    if point == "busy" {
        // Most probably dies in the middle of a transfer, with its mark set.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let bytes = vec![1; 4096];
                while import.send(0, &bytes).is_ok() {}
            });
            say(point);
            pause();
        });
    }
    say(point);
    pause();
    drop(binding);
}

/// Kill the exporter: whoever waits for it wakes with the reason, and nothing of it stays.
#[test]
fn a_killed_exporter_wakes_its_importers() {
    let _alone = alone();
    let daemon = Daemon::start();
    let node = daemon.node();
    let us = std::process::id();
    let before = holdings(us);
    let mut second = daemon.second("exporter", &[]);
    let import = import(&node, "dies");
    let binding = import.bind(0..4096).unwrap();
    second.expect("linked");
    std::thread::scope(|scope| {
        let by_read = scope.spawn(|| import.flag32(0).unwrap().wait_until(|_| false, PATIENCE));
        let by_bind = scope.spawn(|| binding.flag32(8).unwrap().wait_until(|_| false, PATIENCE));
        let full = scope.spawn(|| {
            loop {
                if let Err(error) = import.send_with_notify(64, b"x") {
                    return error;
                }
            }
        });
        let stalls = vmmc::counters::index::NOTIFY_STALLS;
        until("a sender stalls", || node.counters().get(stalls) > 0);
        second.kill();
        for waiter in [by_read, by_bind] {
            let Err(WaitError::Closed(closed)) = waiter.join().unwrap() else { panic!("no end") };
            assert_eq!((closed.reason, closed.peer.pid), (CloseReason::PeerDied, second.pid()));
        }
        let SendError::Closed(closed) = full.join().unwrap() else { panic!("no end") };
        assert_eq!(closed.reason, CloseReason::PeerDied);
    });
    assert!(matches!(import.send(0, b"x"), Err(SendError::Closed(_))));
    drop(binding);
    drop(import);
    until("nothing is known", || nothing_is_known(&node));
    until("nothing is held", || holdings(us) <= before);
    assert_eq!(node.counters().get(vmmc::counters::index::PEER_DEATHS), 1);
}

fn exporter(_: &[String]) {
    let node = Node::connect().unwrap();
    // Fetched by nobody, so that senders fill the queue; blocked, so that the backlog fills too.
    let builder = node.export(vmmc::Region::new(4096).unwrap()).name("dies").queue();
    let export = common::open(builder);
    export.wait_importers(1, PATIENCE).unwrap();
    say("linked");
    pause();
}

/// Kill whoever the other waits for while both sleep: also through the exporter's eyes.
#[test]
fn waits_in_other_processes_end_too() {
    let _alone = alone();
    let daemon = Daemon::start();
    let mut exporter = daemon.second("waiting exporter", &[]);
    let mut importer = daemon.second("waiting importer", &[]);
    importer.expect("waiting");
    exporter.expect("waiting");
    importer.kill();
    exporter.expect("told");
    exporter.finish();
}

fn waiting_exporter(_: &[String]) {
    let node = Node::connect().unwrap();
    let export = export(&node, "waiting", 64);
    export.wait_importers(1, PATIENCE).unwrap();
    say("waiting");
    let result = export.flag32(0).unwrap().wait_until(|_| false, PATIENCE);
    assert!(matches!(result, Err(WaitError::Closed(_))));
    say("told");
}

fn waiting_importer(_: &[String]) {
    let node = Node::connect().unwrap();
    let import = import(&node, "waiting");
    say("waiting");
    let _ = import.flag32(0).unwrap().wait_until(|_| false, PATIENCE);
}

/// A region that was exported is the program's again when the daemon is gone, and unexport and
/// drop do not hang for it.
#[test]
fn without_a_daemon_links_work_and_handles_can_be_dropped() {
    let _alone = alone();
    let mut daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let export = export(&a, "orphan", 4096);
    let import = import(&b, "orphan");
    export.wait_importers(1, PATIENCE).unwrap();
    daemon.kill();
    until("both know", || !a.daemon_is_connected() && !b.daemon_is_connected());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            import.send(0, b"without").unwrap();
            import.flag32(64).unwrap().signal(1).unwrap();
        });
        export.flag32(64).unwrap().wait_until(|value| value == 1, PATIENCE).unwrap();
    });
    let region = export.unexport().unwrap();
    assert_eq!(&region.as_slice()[..7], b"without");
    assert!(import.send(0, b"x").is_err());
}

/// Kill the daemon at each of its named points: clients get an answer from the next one, or an
/// error; nothing hangs and nothing is left.
#[test]
fn a_daemon_killed_at_any_point_of_a_set_up_is_survived() {
    let _alone = alone();
    for (point, part) in [
        ("hello-accepted", "hello"),
        ("export-registered", "exporting"),
        ("import-granted", "importing"),
        ("imported-sent", "importing"),
        ("link-opened-sent", "importing"),
        ("unexported", "unexporting"),
        ("revoked", "unexporting"),
    ] {
        let mut daemon = Daemon::start_armed(point);
        let mut second = daemon.second(part, &[]);
        daemon.wait_dead();
        daemon.restart();
        second.finish();
        let node = daemon.node();
        until(point, || nothing_is_known(&node));
    }
}

fn exporting() {
    let node = Node::connect().unwrap();
    let export = export(&node, "exporting", 64);
    assert_eq!(node.list().unwrap().len(), 1);
    drop(export);
}

fn importing() {
    let (a, b) = (Node::connect().unwrap(), Node::connect().unwrap());
    let export = export(&a, "importing", 64);
    let import = import(&b, "importing");
    import.send(0, b"arrives").unwrap();
    let mut seen = [0; 7];
    export.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"arrives");
    export.wait_importers(1, PATIENCE).unwrap();
}

fn unexporting() {
    let (a, b) = (Node::connect().unwrap(), Node::connect().unwrap());
    let export = export(&a, "unexporting", 64);
    let import = import(&b, "unexporting");
    export.wait_importers(1, PATIENCE).unwrap();
    export.unexport().unwrap();
    let end = import.flag32(0).unwrap().wait_until(|_| false, PATIENCE);
    assert!(matches!(end, Err(WaitError::Closed(_))));
    // The daemon's death takes nothing else along.
    until("there is a daemon again", || a.daemon_is_connected() && b.daemon_is_connected());
    drop(import);
}
