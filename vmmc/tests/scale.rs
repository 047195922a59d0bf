//! Many of everything.

mod common;

use common::{Daemon, Second, export, import, pause, say, until};
use vmmc::Node;

#[test]
fn second_process() {
    common::second_process(&[("many exports", many_exports), ("one client", one_client)]);
}

/// 10,000 exports of four processes alive at once, each of them importable.
#[test]
#[ignore = "minutes; ci/scale runs it"]
fn ten_thousand_exports_are_alive_at_once() {
    let daemon = Daemon::start_with(&["--exports-per-user", "20000"], &[]);
    let mut seconds: Vec<Second> =
        (0..4).map(|i| daemon.second("many exports", &[&i.to_string(), "2500"])).collect();
    for second in &mut seconds {
        second.expect("exported");
    }
    let node = daemon.node();
    assert_eq!(node.list().unwrap().len(), 10_000);
    for i in 0..4 {
        for k in (0..2500).step_by(50) {
            let import = import(&node, &format!("many {i} {k}"));
            import.flag32(0).unwrap().signal(1).unwrap();
        }
    }
    for second in &mut seconds {
        second.go_on();
    }
    for second in &mut seconds {
        second.expect("all signalled");
        second.kill();
    }
    until("nothing is left", || node.list().unwrap().is_empty());
}

fn many_exports(args: &[String]) {
    let node = Node::connect().unwrap();
    let count: usize = args[1].parse().unwrap();
    let exports: Vec<_> =
        (0..count).map(|k| export(&node, &format!("many {} {k}", args[0]), 64)).collect();
    say("exported");
    pause();
    for export in exports.iter().step_by(50) {
        let flag = export.flag32(0).unwrap();
        flag.wait_until(|value| value == 1, common::PATIENCE).unwrap();
    }
    say("all signalled");
    pause();
}

/// 1,000 processes import one export and each signals its own flag; then all are killed.
#[test]
#[ignore = "minutes; ci/scale runs it"]
fn a_thousand_processes_share_one_export() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "popular", 1000 * 128);
    let mut seconds = Vec::new();
    for i in 0..1000 {
        seconds.push(daemon.second("one client", &[&i.to_string()]));
    }
    for (i, second) in seconds.iter_mut().enumerate() {
        second.expect("signalled");
        assert_eq!(export.flag32(i * 128).unwrap().load().unwrap(), i as u32 + 1);
    }
    assert_eq!(export.importers().len(), 1000);
    drop(seconds);
    until("all links are gone", || export.importers().is_empty());
    until("all clients are gone", || node.snapshot().unwrap().clients.len() == 1);
}

fn one_client(args: &[String]) {
    let node = Node::connect().unwrap();
    let i: usize = args[0].parse().unwrap();
    let import = import(&node, "popular");
    import.flag32(i * 128).unwrap().signal(i as u32 + 1).unwrap();
    say("signalled");
    pause();
}
