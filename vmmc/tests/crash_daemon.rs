//! `kill -9` of the daemon at each of its named points (G2): links go on, everything else does when
//! there is a daemon again, and nothing is left.

mod common;
mod support;

use common::{Daemon, Ended, PATIENCE, export, import, open, pause, say, until, vmmcd};
use rustix::process::Signal;
use std::process::{Command, Stdio};
use support::stage::{of_wait, victim_exports};
use support::{
    Footprint, Watchdog, at_rest, bytes_of, daemon_forgets, die_with_parent, nothing_in_dev_shm,
    settles, until_stopped,
};
use vmmc::config::Config;
use vmmc::control::connect::ConnectError;
use vmmc::counters::index::RECONNECTS;
use vmmc::error::WaitError;
use vmmc::{CloseReason, Event, Node, Region};

#[test]
fn second_process() {
    common::second_process(&[
        ("victim_exports", victim_exports),
        ("full_exporter", full_exporter),
        ("full_importer", full_importer),
    ]);
}

/// What a fresh daemon with one client holds.
fn fresh_daemon() -> Footprint {
    let daemon = Daemon::start();
    let _watcher = daemon.node();
    at_rest(daemon.pid(), 1)
}

/// Everything that two processes do with each other, through the death and the return of the
/// daemon at a point of it: nothing fails, nothing is lost, nothing is left.
fn killed_at(point: &str) {
    let dog = Watchdog::new(point);
    let before = fresh_daemon();
    let mut daemon = Daemon::start_with(&[], &[("VMMCD_FAILPOINT", point)]);
    let mut exporter = daemon.second("full_exporter", &[]);
    let mut importer = daemon.second("full_importer", &[]);
    dog.step("the daemon dies at the point");
    daemon.wait_dead();
    daemon.restart();
    dog.step("the importer ends");
    importer.expect("done");
    dog.step("the exporter ends");
    exporter.expect("done");
    let watcher = daemon.node();
    dog.step("no export and no link is left");
    until("no export and no link is left", || {
        let now = watcher.snapshot().unwrap();
        now.exports.is_empty() && now.links.is_empty()
    });
    dog.step("the processes end");
    importer.finish();
    exporter.finish();
    settles("the daemon", daemon.pid(), &before);
    nothing_in_dev_shm();
}

/// A daemon that dies while it greets us has not greeted us; the program tries again.
fn connect_patiently() -> Node {
    die_with_parent();
    let config = Config::from_env().unwrap();
    let mut node = None;
    until("there is a daemon", || {
        match Node::builder().config(config.clone()).connect() {
            Ok(connected) => node = Some(connected),
            Err(ConnectError::NoAnswer { .. } | ConnectError::NoDaemon { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        node.is_some()
    });
    node.unwrap()
}

const ROUNDS: u32 = 2;
const MESSAGES: u32 = 20;

fn full_exporter(_: &[String]) {
    let node = connect_patiently();
    for round in 0..ROUNDS {
        let region = Region::new(8192).unwrap();
        let export = open(node.export(region).name(format!("full {round}").as_str()).queue());
        for i in 1..=MESSAGES {
            let flag = export.flag32(4096).unwrap();
            flag.wait_until(|value| value == i, PATIENCE).unwrap();
            assert!(bytes_of(export.view())[..1000].iter().all(|&byte| byte == i as u8));
            match export.next_notification(PATIENCE).unwrap().event {
                Event::Message { last_word, .. } => assert_eq!(last_word, u64::from(i)),
                other => panic!("{other:?}"),
            }
            export.flag32(4100).unwrap().signal(i).unwrap();
        }
        let region = export.unexport().unwrap();
        assert!(region.as_slice()[..1000].iter().all(|&byte| byte == MESSAGES as u8));
    }
    say("done");
    pause();
}

fn full_importer(_: &[String]) {
    let node = connect_patiently();
    for round in 0..ROUNDS {
        let import = import(&node, &format!("full {round}"));
        for i in 1..=MESSAGES {
            import.send(0, &[i as u8; 1000]).unwrap();
            import.send_notification(0, 1000, u64::from(i)).unwrap();
            import.flag32(4096).unwrap().signal(i).unwrap();
            import.flag32(4100).unwrap().wait_until(|value| value == i, PATIENCE).unwrap();
        }
        let end = import.flag32(4100).unwrap().wait_until(|_| false, PATIENCE);
        match end {
            Err(WaitError::Closed(closed)) => assert_eq!(closed.reason, CloseReason::Unexported),
            other => panic!("{other:?}"),
        }
    }
    assert!(node.imports().is_empty());
    say("done");
    pause();
}

macro_rules! daemon_killed {
    ($($name:ident: $point:literal,)*) => { $(
        #[test]
        fn $name() {
            killed_at($point);
        }
    )* };
}

daemon_killed! {
    daemon_killed_when_a_hello_is_accepted: "hello-accepted",
    daemon_killed_when_an_export_is_registered: "export-registered",
    daemon_killed_when_an_import_is_granted: "import-granted",
    daemon_killed_when_the_importer_is_told: "imported-sent",
    daemon_killed_when_both_are_told: "link-opened-sent",
    daemon_killed_when_an_export_is_withdrawn: "unexported",
    daemon_killed_when_an_export_is_revoked: "revoked",
}

/// A region that was exported is the program's again when the daemon is gone, and unexport and
/// drop do not hang for it.
#[test]
fn without_a_daemon_links_work_and_handles_can_be_dropped() {
    let _dog = Watchdog::new("without_a_daemon_links_work_and_handles_can_be_dropped");
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

/// While it hands over: the old one dies at a point of it, or the new one does. Whatever is
/// left of the two, links go on, and after another start everything else does.
fn killed_in_takeover_at(point: &str, who: &str) {
    let dog = Watchdog::new(point);
    let before = fresh_daemon();
    let armed = [("VMMCD_FAILPOINT", point)];
    let (old, new): (&[_], &[_]) = if who == "old" { (&armed, &[]) } else { (&[], &armed) };
    let mut daemon = Daemon::start_with(&[], old);
    let mut exporter = daemon.second("victim_exports", &[]);
    exporter.expect("there");
    let node = daemon.node();
    let import = import(&node, "x");
    dog.step("the successor takes over");
    let mut successor = Ended(
        Command::new(vmmcd())
            .args(["--replace", "--socket"])
            .arg(daemon.socket())
            .envs(new.iter().copied())
            .env("VMMC_LOG", "off")
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    );
    match who {
        "old" => {
            dog.step("the old daemon dies");
            daemon.wait_dead();
        }
        _ => {
            dog.step("the successor dies");
            let status = successor.0.wait().unwrap();
            assert!(!status.success(), "{point} killed nobody");
        }
    }
    import.send(0, b"meanwhile").unwrap();
    // Whether half a takeover leaves a daemon is not promised; that a link survives it is.
    dog.step("there is a daemon");
    until("there is a daemon", || {
        if vmmc::control::Connection::open_existing(&daemon.socket()).is_ok() {
            return true;
        }
        if who == "old" && matches!(successor.0.try_wait(), Ok(Some(_))) {
            daemon.restart();
        }
        false
    });
    dog.step("a new export");
    let late = export(&node, "late", 4096);
    assert!(import.check_open().is_ok());
    import.send(0, b"afterwards").unwrap();
    dog.step("the link is known");
    until("the link is known", || node.snapshot().unwrap().links.len() == 1);
    let dead = exporter.pid();
    exporter.kill();
    dog.step("its death is noticed");
    let end = of_wait(import.flag32(0).unwrap().wait_until(|_| false, None));
    assert_eq!(end, "WaitError::Closed PeerDied");
    daemon_forgets(&node, dead);
    drop((import, late));
    let pid = node.snapshot().unwrap().pid;
    settles("the daemon", pid, &before);
}

#[test]
fn daemon_killed_when_half_is_handed_over() {
    killed_in_takeover_at("takeover-half-sent", "old");
}

#[test]
fn daemon_killed_when_all_is_handed_over() {
    killed_in_takeover_at("takeover-sent", "old");
}

#[test]
fn successor_killed_before_it_confirms() {
    killed_in_takeover_at("takeover-received", "new");
}

/// A claim that waits for its exporter when the daemon dies again is made once to the next one, and
/// not as the old question and as a new one: that would be two links over one segment.
#[test]
fn a_claim_that_two_daemons_did_not_answer_is_one_link_at_the_third() {
    let dog = Watchdog::new("a_claim_that_two_daemons_did_not_answer_is_one_link_at_the_third");
    let mut daemon = Daemon::start();
    let mut exporter = daemon.second("victim_exports", &[]);
    exporter.expect("there");
    let node = daemon.node();
    let import = import(&node, "x");
    // It comes back to no daemon meanwhile.
    exporter.signal(Signal::STOP);
    until_stopped(exporter.pid());
    for round in 1..=2 {
        daemon.kill();
        daemon.restart();
        dog.step("the importer is back");
        until("the importer is back", || node.counters().get(RECONNECTS) == round);
        // Answered after what was asked before it.
        assert_eq!(node.snapshot().unwrap().links, []);
    }
    exporter.signal(Signal::CONT);
    dog.step("the link is known");
    until("the link is known", || !node.snapshot().unwrap().links.is_empty());
    assert_eq!(node.snapshot().unwrap().links.len(), 1);
    import.send(0, b"afterwards").unwrap();
    exporter.finish();
}
