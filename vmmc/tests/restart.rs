//! The daemon is killed, and replaced, under load: nothing is lost (G2).

mod common;
mod support;

use common::{Daemon, PATIENCE, export, import, pause, say, until};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::raw::{Raw, get32, link_segment};
use vmmc::control::message::{Event, NO_CPU, Request};
use vmmc::counters::index as count;
use vmmc::error::{ImportError, WaitError};
use vmmc::layout::link;
use vmmc::sys::Fd;
use vmmc::{Export, Import, Node, Rights};

#[test]
fn second_process() {
    common::second_process(&[("receiver", receiver), ("sender", sender), ("bystander", bystander)]);
}

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

/// H20: a daemon that was restarted gives a number to whoever asks first; what makes the link is its
/// segment, which only its two ends have.
#[test]
fn a_claim_of_anothers_link_number_takes_nothing_from_its_owner() {
    let mut daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "claimed", 4096);
    let (words, segment) = link_segment();
    let mut owner = Raw::connect(&daemon.socket());
    let fds = [segment.as_fd()];
    let before = owner.try_import_with("claimed", Rights::WRITE, words, &fds).unwrap().link;
    export.wait_importers(1, PATIENCE).unwrap();
    daemon.kill();
    until("the exporter notices", || !node.daemon_is_connected());
    daemon.restart();
    until("the exporter is back", || node.counters().get(count::RECONNECTS) == 1);
    let claim = |client: &mut Raw, segment: &Fd| {
        let request = client.request();
        let claim = Request::Import {
            request,
            process: None,
            name: "claimed".into(),
            rights: Rights::WRITE,
            token: None,
            timeout_ms: 120_000,
            restore: Some(before),
            known_to: None,
            cpu: NO_CPU,
        };
        client.tell(&claim, &[segment.as_fd()]);
        client.hear(|event, _| match event {
            Event::Imported { request: of, link, .. } if *of == request => Some(*link),
            _ => None,
        })
    };
    let mut liar = Raw::connect(&daemon.socket());
    let (_, other) = link_segment();
    assert_eq!(claim(&mut liar, &other), before, "the daemon cannot know better");
    export.wait_importers(2, PATIENCE).unwrap();
    let mut owner = Raw::connect(&daemon.socket());
    let after = claim(&mut owner, &segment);
    assert_ne!(after, before);
    let links = || {
        let mut links: Vec<_> = export.importers().iter().map(|it| it.link).collect();
        links.sort();
        links
    };
    until("the owner's goes on under its new number", || links() == [before, after]);
    assert_eq!(get32(words, link::STATE), link::OPEN);
    owner.tell(&Request::CloseLink { link: after }, &[]);
    until("and ends under it", || links() == [before]);
    assert_eq!(node.counters().get(count::PEER_DEATHS), 0);
}

#[test]
fn a_replaced_daemon_is_not_noticed() {
    let mut daemon = Daemon::start();
    let load = load(&daemon);
    let pending = load.a.import("later").timeout(PATIENCE.unwrap()).start().unwrap();
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
    let pending = a.import("across").timeout(PATIENCE.unwrap()).start().unwrap();
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

// ---- several processes ----

/// Messages carry their number and a sum over their bytes.
const MESSAGE: usize = 1024;
const RESTARTS: usize = 5;

fn message(number: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..MESSAGE as u64).map(|i| (number * 31 + i * 7) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    let sum = bytes[..MESSAGE - 8]
        .iter()
        .fold(7u64, |sum, &byte| sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
    bytes[MESSAGE - 8..].copy_from_slice(&sum.to_ne_bytes());
    bytes
}

/// Two slots of a message, a flag each way; with each message goes a notification.
fn receiver(args: &[String]) {
    support::die_with_parent();
    let node = Node::connect().unwrap();
    let region = vmmc::Region::new(8192).unwrap();
    let export = common::open(node.export(region).name(args[0].as_str()).queue());
    say("exported");
    let (sent, taken) = (export.flag64(4096).unwrap(), export.flag64(4224).unwrap());
    let mut number = 0u64;
    loop {
        number += 1;
        let seen = sent.wait_until(|value| value >= number, PATIENCE).unwrap();
        if seen == u64::MAX {
            break;
        }
        let mut bytes = vec![0; MESSAGE];
        export.read(0, &mut bytes).unwrap();
        assert!(bytes == message(number), "message {number} is spoilt");
        match export.next_notification(PATIENCE).unwrap().event {
            vmmc::Event::Message { last_word, .. } => assert_eq!(last_word, number),
            other => panic!("notification {number} is {other:?}"),
        }
        taken.signal(number).unwrap();
    }
    assert_eq!(export.try_next_notification().unwrap(), None);
    taken.signal(u64::MAX).unwrap();
    say(&format!("received {}", number - 1));
    pause();
    say(&format!("reconnects {}", node.counters().get(count::RECONNECTS)));
    drop(export.unexport().unwrap());
    say("unexported");
    pause();
}

/// Exports and does nothing.
fn bystander(args: &[String]) {
    support::die_with_parent();
    let node = Node::connect().unwrap();
    let _export = export(&node, &args[0], 4096);
    say("exported");
    pause();
}

fn sender(args: &[String]) {
    support::die_with_parent();
    let node = Node::connect().unwrap();
    let import = import(&node, &args[0]);
    let (sent, taken) = (import.flag64(4096).unwrap(), import.flag64(4224).unwrap());
    let stop = AtomicBool::new(false);
    let mut number = 0u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause();
            stop.store(true, Ordering::Release);
        });
        while !stop.load(Ordering::Acquire) {
            number += 1;
            import.send(0, &message(number)).unwrap();
            import.send_notification(0, MESSAGE, number).unwrap();
            sent.signal(number).unwrap();
            taken.wait_until(|value| value == number, PATIENCE).unwrap();
            if number == 100 {
                say("streaming");
            }
        }
    });
    sent.signal(u64::MAX).unwrap();
    taken.wait_until(|value| value == u64::MAX, PATIENCE).unwrap();
    say(&format!("sent {number}"));
    pause();
    say(&format!("reconnects {}", node.counters().get(count::RECONNECTS)));
    let end = taken.wait_until(|_| false, PATIENCE);
    match end {
        Err(WaitError::Closed(it)) => assert_eq!(it.reason, vmmc::CloseReason::Unexported),
        other => panic!("{other:?}"),
    }
    say("closed");
    pause();
}

/// Three pairs of processes stream, notify and answer; meanwhile `body` does its worst, five
/// times. Every message arrives, whole, once and in order; old links end as they should, and a new
/// link works.
fn streams_go_on(test: &str, expected_reconnects: &str, mut body: impl FnMut(&mut Daemon)) {
    let dog = support::Watchdog::new(test);
    let mut daemon = Daemon::start();
    let names = ["one", "two", "three"];
    let mut receivers: Vec<_> =
        names.iter().map(|name| daemon.second("receiver", &[name])).collect();
    let mut senders: Vec<_> = names.iter().map(|name| daemon.second("sender", &[name])).collect();
    for (receiver, sender) in receivers.iter_mut().zip(&mut senders) {
        dog.step("the streams begin");
        receiver.expect("exported");
        sender.expect("streaming");
    }
    let watcher = daemon.node();
    for round in 0..RESTARTS {
        dog.step(format!("restart {round}"));
        let back = watcher.counters().get(count::RECONNECTS);
        body(&mut daemon);
        dog.step(format!("everybody is known after restart {round}"));
        until("everybody is known", || {
            let reconnected = watcher.counters().get(count::RECONNECTS);
            if expected_reconnects != "0" && reconnected == back {
                return false; // it speaks with the dead
            }
            let now = watcher.snapshot().unwrap();
            (now.exports.len(), now.links.len(), now.clients.len()) == (3, 3, 7)
        });
        let new = export(&watcher, "new", 64);
        import(&watcher, "new").send(0, b"works").unwrap();
        drop(new);
    }
    for (receiver, sender) in receivers.iter_mut().zip(&mut senders) {
        dog.step("the streams end");
        sender.go_on();
        let (sent, received) = (sender.expect("sent"), receiver.expect("received"));
        assert_eq!(sent, received);
        sender.go_on();
        assert_eq!(sender.expect("reconnects"), expected_reconnects);
        receiver.go_on();
        assert_eq!(receiver.expect("reconnects"), expected_reconnects);
        receiver.expect("unexported");
        sender.expect("closed");
    }
    until("nothing is left", || {
        let now = watcher.snapshot().unwrap();
        now.exports.is_empty() && now.links.is_empty()
    });
}

#[test]
fn streams_of_six_processes_survive_five_crashes_of_the_daemon() {
    streams_go_on("streams_of_six_processes_survive_five_crashes_of_the_daemon", "5", |daemon| {
        daemon.kill();
        daemon.restart();
    });
}

#[test]
fn streams_of_six_processes_do_not_notice_five_replacements() {
    streams_go_on("streams_of_six_processes_do_not_notice_five_replacements", "0", |daemon| {
        daemon.replace();
    });
}

/// The exporter died while there was no daemon; and one dies after the restart. Both are told.
#[test]
fn exporters_that_die_while_the_daemon_is_down_and_after_are_told() {
    let dog =
        support::Watchdog::new("exporters_that_die_while_the_daemon_is_down_and_after_are_told");
    let mut daemon = Daemon::start();
    let mut early = daemon.second("bystander", &["early"]);
    let mut late = daemon.second("bystander", &["late"]);
    early.expect("exported");
    late.expect("exported");
    let node = daemon.node();
    let (to_early, to_late) = (import(&node, "early"), import(&node, "late"));
    daemon.kill();
    early.kill();
    daemon.restart();
    let end = |import: &Import| match import.flag32(0).unwrap().wait_until(|_| false, None) {
        Err(WaitError::Closed(it)) => it.reason,
        other => panic!("{other:?}"),
    };
    dog.step("the early death is told");
    assert_eq!(end(&to_early), vmmc::CloseReason::PeerDied);
    assert!(to_late.check_open().is_ok());
    late.kill();
    dog.step("the late death is told");
    assert_eq!(end(&to_late), vmmc::CloseReason::PeerDied);
}
