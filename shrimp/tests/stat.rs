//! `shrimp stat` and `shrimp daemon` against a real daemon with real clients.

mod common;

use common::{RunningDaemon, run, shrimp};
use serde_json::Value;
use std::path::Path;
use vmmc::{Config, Node, Region, Rights, Who};

fn node(dir: &Path) -> Node {
    let socket = dir.join("vmmcd.sock");
    let config = Config::from_lookup(&|name| match name {
        "VMMC_SOCKET" => Some(socket.display().to_string()),
        "VMMC_DAEMON" => Some("none".into()),
        _ => None,
    });
    Node::builder().config(config.unwrap()).program("stat test").connect().unwrap()
}

fn stat(dir: &Path) -> Value {
    let ended = run(shrimp(dir).args(["stat", "--json"])).expect(0);
    serde_json::from_str(&ended.out).unwrap()
}

/// G10, charter section 3 (counters): what a client exports, imports and sends is seen from
/// outside while it does nothing for it.
#[test]
fn exports_links_and_counters_of_a_client_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    let exporter = node(dir.path());
    let export = exporter
        .export(Region::new(8192).unwrap())
        .name("stat export")
        .grant(Who::SameUser, Rights::WRITE | Rights::READ)
        .open()
        .unwrap();
    let sender = node(dir.path());
    let import = sender.import("stat export").rights(Rights::WRITE).open().unwrap();
    for _ in 0..10 {
        import.send(0, &[1; 100]).unwrap();
    }

    let report = stat(dir.path());
    assert_eq!(report["schema"], 3);
    for key in ["pid", "uid", "version", "uptime_s", "socket", "wake_cost_ns", "counters"] {
        assert!(!report["daemon"][key].is_null(), "no daemon.{key} in {report:#}");
    }
    let clients = report["clients"].as_array().unwrap();
    let of = |id: u64| clients.iter().find(|client| client["client"] == id).unwrap();
    let (from, to) = (of(sender.client().0), of(exporter.client().0));
    assert_eq!(from["program"], "stat test");
    assert_eq!(from["role"], "process");
    assert_eq!(from["pid"], std::process::id());
    assert_eq!(from["imports"], 1);
    assert_eq!(to["exports"], 1);
    assert_eq!(from["counters"]["sends"], 10);
    assert_eq!(from["counters"]["send_bytes"], 1000);
    assert_eq!(to["counters"]["sends"], 0);

    let exports = report["exports"].as_array().unwrap();
    assert_eq!(exports.len(), 1);
    assert_eq!(exports[0]["name"], "stat export");
    assert_eq!(exports[0]["bytes"], 8192);
    assert_eq!(exports[0]["importers"], 1);
    assert_eq!(exports[0]["needs_token"], false);
    let links = report["links"].as_array().unwrap();
    assert_eq!(links.len(), 1);
    assert_eq!(links[0]["importer"], sender.client().0);
    assert_eq!(links[0]["rights"], serde_json::json!(["write"]));
    assert_eq!((&links[0]["sends"], &links[0]["bytes"]), (&10.into(), &1000.into()));

    let human = run(shrimp(dir.path()).arg("stat")).expect(0).out;
    for word in ["stat test", "stat export", "8 KiB", "send_bytes", "TCP connections: none"] {
        assert!(human.contains(word), "no {word:?} in\n{human}");
    }
    let prometheus = run(shrimp(dir.path()).args(["stat", "--prometheus"])).expect(0).out;
    let line = format!("vmmc_client_sends_total{{client=\"{}\"", sender.client().0);
    assert!(prometheus.lines().any(|text| text.starts_with(&line) && text.ends_with(" 10")));

    drop((import, export));
    let report = stat(dir.path());
    assert_eq!(report["exports"], serde_json::json!([]));
    assert_eq!(report["links"], serde_json::json!([]));
}

#[test]
fn start_twice_status_log_and_stop_do_what_they_say() {
    common::prepare();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vmmcd.sock");
    let started = run(shrimp(dir.path()).args(["daemon", "start"])).expect(0).out;
    assert!(started.starts_with("started: vmmcd "), "{started}");
    let again = run(shrimp(dir.path()).args(["daemon", "start"])).expect(0).out;
    assert!(again.starts_with("already running: "), "{again}");
    let status = run(shrimp(dir.path()).args(["daemon", "status"])).expect(0).out;
    assert!(status.contains(socket.to_str().unwrap()), "{status}");
    let log = run(shrimp(dir.path()).args(["daemon", "log"])).expect(0).out;
    assert!(!log.is_empty());
    let doctor = run(shrimp(dir.path()).arg("doctor")).out;
    assert!(doctor.contains("running: yes"), "{doctor}");
    run(shrimp(dir.path()).args(["daemon", "stop"])).expect(0);
    run(shrimp(dir.path()).args(["daemon", "status"])).expect(3);
    assert!(!socket.exists(), "the socket file was left");
}

#[test]
fn options_for_vmmcd_are_passed_on_and_its_own_complaint_is_shown() {
    common::prepare();
    let dir = tempfile::tempdir().unwrap();
    let mut command = shrimp(dir.path());
    let ended = run(command.args(["daemon", "start", "--", "--no-such-option"])).expect(1);
    assert!(ended.err.contains("--no-such-option"), "{}", ended.err);
}

#[test]
fn starting_is_refused_where_it_is_forbidden() {
    common::prepare();
    let dir = tempfile::tempdir().unwrap();
    let mut command = shrimp(dir.path());
    let ended = run(command.args(["daemon", "start"]).env("VMMC_DAEMON", "none")).expect(1);
    assert!(ended.err.contains("VMMC_DAEMON=none"), "{}", ended.err);
}
