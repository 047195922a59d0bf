//! The daemon is killed, and replaced, under load: nothing is lost (G2).

mod common;

use common::{Daemon, PATIENCE, export, import, until};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use vmmc::counters::index as count;
use vmmc::error::{ImportError, WaitError};
use vmmc::{Export, Import, Node};

/// Sends and answers as fast as it goes, until told to stop; returns how often.
fn ping_pong(export: &Export, import: &Import, stop: &AtomicBool, rounds: &AtomicU64) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (ping, pong) = (export.flag32(0).unwrap(), export.flag32(128).unwrap());
            let mut round = 0;
            while round != u32::MAX {
                let next = |value| value == round + 1 || value == u32::MAX;
                round = ping.wait_until(next, PATIENCE).unwrap();
                pong.signal(round).unwrap();
            }
        });
        let (ping, pong) = (import.flag32(0).unwrap(), import.flag32(128).unwrap());
        let mut round = 0u32;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            import.send(256, &round.to_ne_bytes()).unwrap();
            ping.signal(round).unwrap();
            pong.wait_until(|value| value == round, PATIENCE).unwrap();
            rounds.store(u64::from(round), Ordering::Relaxed);
        }
        ping.signal(u32::MAX).unwrap();
        pong.wait_until(|value| value == u32::MAX, PATIENCE).unwrap();
    });
}

struct Load {
    a: Node,
    b: Node,
    export: Export,
    import: Import,
}

fn load(daemon: &Daemon) -> Load {
    let (a, b) = (daemon.node(), daemon.node());
    let export = export(&a, "load", 4096);
    let import = import(&b, "load");
    export.wait_importers(1, PATIENCE).unwrap();
    Load { a, b, export, import }
}

fn under_load(load: &Load, body: impl FnOnce(&dyn Fn())) {
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| ping_pong(&load.export, &load.import, &stop, &rounds));
        let goes_on = || {
            let before = rounds.load(Ordering::Relaxed);
            until("the data path goes on", || rounds.load(Ordering::Relaxed) > before + 100);
        };
        goes_on();
        body(&goes_on);
        goes_on();
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn links_survive_a_killed_daemon_and_are_known_to_the_next() {
    let mut daemon = Daemon::start();
    let load = load(&daemon);
    under_load(&load, |goes_on| {
        for round in 1..=2 {
            daemon.kill();
            until("both notice", || !load.a.daemon_is_connected() && !load.b.daemon_is_connected());
            goes_on();
            daemon.restart();
            until("both are back", || {
                load.a.counters().get(count::RECONNECTS) == round
                    && load.b.counters().get(count::RECONNECTS) == round
            });
            goes_on();
            until("the link is known again", || load.b.snapshot().unwrap().links.len() == 1);
            let all = load.b.snapshot().unwrap();
            assert_eq!((all.exports.len(), all.exports[0].importers), (1, 1));
            assert_eq!(all.links[0].link, load.import.id());
            assert_eq!(all.exports[0].export, load.export.id());
        }
    });
    // And the name works for newcomers, and its withdrawal for the old.
    let other = import(&load.a, "load");
    load.export.wait_importers(2, PATIENCE).unwrap();
    load.export.unexport().unwrap();
    for import in [load.import, other] {
        until("the end is known", || import.check_open().is_err());
    }
}

#[test]
fn a_replaced_daemon_is_not_noticed() {
    let mut daemon = Daemon::start();
    let load = load(&daemon);
    let pending = load.a.import("later").start().unwrap();
    under_load(&load, |goes_on| {
        for _ in 0..3 {
            daemon.replace();
            goes_on();
            let all = load.b.snapshot().unwrap();
            assert_eq!((all.exports.len(), all.links.len()), (1, 1));
            assert_eq!(all.pid, daemon.pid());
        }
    });
    assert_eq!(load.a.counters().get(count::RECONNECTS), 0);
    let _later = export(&load.b, "later", 64);
    assert_eq!(pending.wait().unwrap().len(), 64);
    let Load { export, import, .. } = load;
    export.unexport().unwrap();
    let end = import.flag32(0).unwrap().wait_until(|_| false, PATIENCE);
    assert!(matches!(end, Err(WaitError::Closed(_))));
}

/// A request that the old daemon did not answer is answered by the next one.
#[test]
fn set_up_calls_wait_for_the_daemon_to_return() {
    let mut daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let pending = a.import("across").start().unwrap();
    daemon.kill();
    std::thread::scope(|scope| {
        let exporting = scope.spawn(|| export(&b, "across", 77));
        until("the export waits", || !b.daemon_is_connected());
        daemon.restart();
        let export = exporting.join().unwrap();
        let import = pending.wait().unwrap();
        assert_eq!(import.len(), 77);
        import.send(0, b"x").unwrap();
        drop(export);
    });
}

/// The peer died while there was no daemon to tell: the next one does.
#[test]
fn a_death_without_a_daemon_is_told_by_the_next() {
    let mut daemon = Daemon::start();
    let Load { a, b, export, import } = load(&daemon);
    daemon.kill();
    until("both notice", || !a.daemon_is_connected() && !b.daemon_is_connected());
    // The importer goes while nobody listens.
    drop((import, b));
    daemon.restart();
    until("the exporter is back", || a.daemon_is_connected());
    let end = export.flag32(0).unwrap().wait_until(|_| false, PATIENCE);
    assert!(matches!(end, Err(WaitError::Closed(_))), "{end:?}");
    assert!(export.importers().is_empty());
}

/// Without a daemon that returns: an error that says so.
#[test]
fn without_a_daemon_set_up_fails_in_the_end() {
    let mut daemon = Daemon::start();
    let node = daemon.node();
    daemon.kill();
    let error = node.import("x").timeout(Duration::from_millis(1)).open().unwrap_err();
    assert!(matches!(error, ImportError::Daemon(_)), "{error}");
    assert!(error.to_string().contains("shrimp daemon start"), "{error}");
}
