//! `shrimp stat --node`: what another node's network interface has done, seen from here.

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
#[path = "common/mod.rs"]
mod tool;

use cluster::{Place, pair};
use common::PATIENCE;
use serde_json::Value;
use vmmc::{Event, Region, Rights, Who};

/// What a person sees who asks for another node's, and reaches it by a command.
fn stat(place: &Place) -> Value {
    let socket = place.daemon.socket();
    let name = socket.file_stem().unwrap().to_str().unwrap();
    let reach = format!("env VMMC_SOCKET={}/{{}}.sock", socket.parent().unwrap().display());
    let here = tempfile::tempdir().unwrap();
    let mut command = tool::shrimp(here.path());
    command.args(["stat", "--json", "--all", "--node", name, "--rsh", &reach]);
    let ended = tool::run(&mut command).expect(0);
    serde_json::from_str(&ended.out).unwrap()
}

/// Length of a message that is longer than what the interface takes with a header.
const LONG: usize = 100_000;

/// A counter of the process with that number.
fn counter(report: &Value, pid: u64, name: &str) -> u64 {
    let clients = report["clients"].as_array().unwrap().iter();
    let of_process = clients.filter(|client| client["pid"] == pid);
    let mut values = of_process.filter_map(|client| client["counters"][name].as_u64());
    values.next().unwrap_or_else(|| panic!("no {name} of {pid} in {report:#}"))
}

#[test]
fn what_was_sent_to_a_node_is_counted_by_its_interface_and_seen_from_elsewhere() {
    tool::prepare();
    let (a, b) = pair();
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let export = exporter.export(Region::new(1 << 20).unwrap()).name("x").queue();
    let export = export.grant(Who::SameUser, Rights::all()).open().unwrap();
    let import = importer.import("x").node("a").rights(Rights::WRITE);
    let import = import.timeout(PATIENCE.unwrap()).open().unwrap();
    import.fence().unwrap();

    let before = stat(&a);
    let interface = before["daemon"]["pid"].as_u64().unwrap();
    import.send(0, &vec![1; LONG]).unwrap();
    for i in 0..10 {
        import.send(200_000 + 100 * i, &[2; 100]).unwrap();
    }
    import.send_with_notify(300_000, &[3; 8]).unwrap();
    import.fence().unwrap();
    let event = export.next_notification(PATIENCE).unwrap().event;
    assert!(matches!(event, Event::Message { offset: 300_000, len: 8, .. }), "{event:?}");

    let after = stat(&a);
    let more = |name| counter(&after, interface, name) - counter(&before, interface, name);
    // Twelve messages and a fence; long ones go past the interface's own memory, in part at least.
    assert_eq!(more("ni_packets"), 13);
    assert_eq!(more("ni_direct_bytes") + more("ni_staged_bytes"), LONG as u64 + 1008);
    assert!(more("ni_direct_bytes") >= LONG as u64 / 2, "{after:#}");
    assert_eq!(more("ni_interrupts"), 1);
    for none in ["ni_faults", "ni_refused", "ni_dropped_bytes", "ni_frozen"] {
        assert_eq!(more(none), 0, "{none}");
    }
    // To the exporter's node the interface is who imports, and what it puts are sends.
    let links = after["links"].as_array().unwrap();
    assert_eq!(links.len(), 1, "{links:#?}");
    let me = u64::from(std::process::id());
    assert_eq!(counter(&stat(&b), me, "net_packets"), 12);
}
