//! Under a service manager: what it hears, and what it keeps over a restart. A stand-in plays its part, by
//! the documented protocol; the units themselves are checked by systemd's own tool.

mod common;
use common::manager::{Manager, STORE, socket_unit, start_service};
use common::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use vmmc::control::message::*;

#[test]
fn a_restart_of_the_service_drops_nothing() {
    let manager = Manager::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = socket_unit(&dir.path().join("vmmcd.sock"));
    let mut daemon = start_service(&manager, &dir, &socket, STORE, &[]);
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    let (export, memory) = exporter.export("kept");
    // More than one batch.
    let names: Vec<String> = (0..100).map(|i| format!("export {i}")).collect();
    let _more: Vec<_> = names.iter().map(|name| exporter.export(name.as_str())).collect();
    let link = importer.import("kept").link;
    exporter.receive_opened();
    let waiting = importer.send_import(Import::waiting("later"), Some(&link_segment()));
    importer.assert_silent();
    let before = daemon.snapshot();

    for restart in 1..=2 {
        assert!(daemon.terminate().success());
        let kept = manager.names();
        assert!(kept.len() > 100 && kept.iter().any(|it| it.starts_with("vmmcd-state-")));
        assert!(manager.heard.lock().unwrap().barriers >= 2);
        // Said while no daemon runs; it waits in the socket.
        let request = exporter.request_id();
        exporter.send(&Request::List { request }, &[]);

        daemon = start_service(&manager, &dir, &socket, STORE, &[]);
        match exporter.receive().event {
            Event::Listing { request: answered, .. } => assert_eq!(answered, request),
            other => panic!("{other:?}"),
        }
        let after = daemon.snapshot();
        assert_eq!(after.pid, daemon.pid(), "restart {restart}");
        assert_eq!(after.exports, before.exports);
        let links = |all: &Snapshot| all.links.iter().map(|it| it.link).collect::<Vec<_>>();
        assert_eq!(links(&after), links(&before));
        assert_eq!(counter(&after, "takeovers"), restart);
        eventually("the store is emptied", || manager.names().is_empty().then_some(()));
    }
    assert!(same_file(importer.import("kept").memory, &memory));
    assert_eq!(exporter.receive_opened().export, export);
    let (later, _memory) = exporter.export("later");
    assert_eq!(importer.receive_imported(waiting).unwrap().export, later);
    exporter.receive_opened();
    importer.send(&Request::CloseLink { link }, &[]);
    assert_eq!(exporter.receive_closed(), (link, CloseReason::Unimported));
    // Deaths are still seen: the process descriptors came along.
    drop(exporter);
    assert_eq!(importer.receive_closed().1, CloseReason::PeerDied);
}

/// What is lost of a store is not guessed at: the daemon starts with nothing, and says why.
#[test]
fn a_store_that_is_of_no_use_is_emptied_and_clients_see_the_end() {
    for spoil in ["no state", "another version", "a descriptor missing"] {
        let manager = Manager::start();
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let socket = socket_unit(&dir.path().join("vmmcd.sock"));
        let mut daemon = start_service(&manager, &dir, &socket, STORE, &[]);
        let mut exporter = Client::connect(&daemon.path);
        exporter.export("x");
        assert!(daemon.terminate().success());
        {
            let mut heard = manager.heard.lock().unwrap();
            let state =
                heard.store.keys().find(|it| it.starts_with("vmmcd-state-")).unwrap().clone();
            match spoil {
                "a descriptor missing" => drop(heard.store.remove("v2").unwrap()),
                _ => {
                    let blob = heard.store.remove(&state).unwrap();
                    if spoil == "another version" {
                        heard.store.insert("vmmcd-state-9999-1".to_owned(), blob);
                    }
                }
            }
        }
        let daemon = start_service(&manager, &dir, &socket, STORE, &[]);
        assert!(daemon.snapshot().exports.is_empty(), "{spoil}");
        eventually("the store is emptied", || manager.names().is_empty().then_some(()));
        assert!(exporter.is_cut_off(), "{spoil}");
        Client::connect(&daemon.path).export("x");
    }
}

/// Killed while the service manager has only half: the rest is of no use to the next one.
#[test]
fn a_daemon_killed_while_it_stores_is_followed_by_one_with_nothing() {
    let manager = Manager::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = socket_unit(&dir.path().join("vmmcd.sock"));
    let point = [("VMMCD_FAILPOINT", "store-half-sent")];
    let mut daemon = start_service(&manager, &dir, &socket, STORE, &point);
    let mut exporter = Client::connect(&daemon.path);
    exporter.export("x");
    assert!(!daemon.terminate().success());
    assert!(!manager.names().is_empty());
    let daemon = start_service(&manager, &dir, &socket, STORE, &[]);
    assert!(daemon.snapshot().exports.is_empty());
    eventually("the store is emptied", || manager.names().is_empty().then_some(()));
    assert!(exporter.is_cut_off());
}

/// More than the service manager keeps: clients come back as after a crash.
#[test]
fn what_does_not_fit_into_the_store_is_not_stored() {
    let manager = Manager::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = socket_unit(&dir.path().join("vmmcd.sock"));
    let mut daemon = start_service(&manager, &dir, &socket, &["--fd-store", "5"], &[]);
    let mut exporter = Client::connect(&daemon.path);
    exporter.export("x");
    assert!(daemon.terminate().success());
    assert!(manager.names().is_empty());
    manager.hears("STOPPING=1");
    assert!(exporter.is_cut_off());
}

/// The loop's own sign of life, twice as often as it is expected; also by a successor that was told
/// nothing of it.
#[test]
fn the_watchdog_is_fed_by_the_daemon_and_by_its_successor() {
    let manager = Manager::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = socket_unit(&dir.path().join("vmmcd.sock"));
    let mut old = start_service(&manager, &dir, &socket, &[], &[("WATCHDOG_USEC", "20000")]);
    let fed = |more: u64| {
        let before = manager.heard.lock().unwrap().watchdogs;
        eventually("the watchdog is fed", || {
            (manager.heard.lock().unwrap().watchdogs >= before + more).then_some(())
        });
    };
    fed(5);
    let new = Daemon::start_in(dir, &["--replace"], &[]);
    assert!(old.wait().success());
    manager.hears(&format!("MAINPID={}", new.pid()));
    fed(5);
}

/// The environment of a service that a client of ours is must not reach the daemon it starts.
#[test]
fn a_daemon_started_by_a_client_does_not_speak_to_the_clients_service_manager() {
    let manager = Manager::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmmcd.sock");
    let mut command = command(&path, &["--auto", "--idle-exit", "1"], &[]);
    command.env("NOTIFY_SOCKET", manager.path()).env("WATCHDOG_USEC", "20000");
    eventually("a client is in time", || {
        assert!(command.status().unwrap().success());
        let belongings = Some(Belongings::new());
        Client::try_connect(&path, Role::Process, belongings, None).ok()?.export("x");
        Some(())
    });
    eventually("the idle daemon ends", || (!path.exists()).then_some(()));
    let heard = manager.heard.lock().unwrap();
    assert!(heard.words.is_empty() && heard.watchdogs == 0, "{:?}", heard.words);
}

/// The units as systemd reads them, and the program as the service unit starts it.
#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
    let dir = tempfile::tempdir().unwrap();
    let service = std::fs::read_to_string(units.join("vmmcd.service")).unwrap();
    // Not installed here: the program just built stands where the unit says it will be.
    let built = env!("CARGO_BIN_EXE_vmmcd");
    let local = service.replace("/usr/bin/vmmcd", built);
    assert_ne!(local, service);
    std::fs::write(dir.path().join("vmmcd.service"), &local).unwrap();
    std::fs::copy(units.join("vmmcd.socket"), dir.path().join("vmmcd.socket")).unwrap();
    let run = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args([dir.path().join("vmmcd.service"), dir.path().join("vmmcd.socket")])
        .output()
        .expect("systemd-analyze, of Debian's systemd (ci/deps)");
    let said = String::from_utf8_lossy(&run.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("vmmcd")).collect();
    assert!(run.status.success() && ours.is_empty(), "{said}");
    // The arguments are understood.
    let start = local.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let mut words = start.split_whitespace();
    let mut program = Command::new(words.next().unwrap());
    let run = program.args(words).arg("--version").output().unwrap();
    assert!(run.status.success(), "{start}");
    // What the daemon gives and what the service manager takes are the same number.
    let setting = |name: &str| service.lines().find_map(|line| line.strip_prefix(name));
    let keeps = setting("FileDescriptorStoreMax=").unwrap();
    assert!(start.contains(&format!("--fd-store {keeps}")), "{start}");
    assert!(setting("WatchdogSec=").is_some());
}
