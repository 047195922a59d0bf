//! Many of everything.

mod common;
mod support;

use common::{Daemon, Second, export, import, pause, say, until};
use vmmc::Node;

#[test]
fn second_process() {
    common::second_process(&[
        ("many exports", many_exports),
        ("one client", one_client),
        ("in a ring", in_a_ring),
    ]);
}

/// 10,000 exports of four processes alive at once, each of them importable.
#[test]
#[ignore = "minutes of load; ci/scale runs it"]
fn scale_ten_thousand_exports_are_alive_at_once() {
    let daemon = Daemon::start_with(&["--exports-per-user", "20000"], &[]);
    let mut seconds: Vec<Second> =
        (0..4).map(|i| daemon.second("many exports", &[&i.to_string(), "2500"])).collect();
    for second in &mut seconds {
        second.expect("exported");
    }
    let node = daemon.node();
    assert_eq!(node.list().unwrap().len(), 10_000);
    figures("10,000 exports", daemon.pid());
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
#[ignore = "minutes of load; ci/scale runs it"]
fn scale_a_thousand_processes_share_one_export() {
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
    export.wait_importers(1000, common::PATIENCE).unwrap(); // the last are still being told of
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

/// What a daemon costs, for people: descriptors and resident memory.
fn figures(what: &str, pid: u32) {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let rss = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("VmRSS: unknown");
    println!("{what}: daemon has {fds} descriptors, {rss}");
}

const RING: usize = 1000;

/// 1,000 processes, each exporting to the one before and importing from the one after, pass tokens
/// on; the daemon is replaced three times meanwhile. No token is lost, nobody notices.
#[test]
#[ignore = "minutes of load; ci/scale runs it"]
fn scale_a_ring_of_a_thousand_processes_survives_replacements() {
    let dog = support::Watchdog::after(
        "scale_a_ring_of_a_thousand_processes_survives_replacements",
        std::time::Duration::from_secs(300),
    );
    let mut daemon = Daemon::start();
    let watcher = daemon.node();
    let mut seconds = Vec::new();
    for i in 0..RING {
        dog.step(format!("process {i} exports"));
        let mut second = daemon.second("in a ring", &[&i.to_string()]);
        second.expect("exported"); // one at a time, so that starting is not what is measured
        seconds.push(second);
    }
    for (i, second) in seconds.iter_mut().enumerate() {
        dog.step(format!("process {i} imports"));
        second.go_on();
        second.expect("imported");
    }
    let all = watcher.snapshot().unwrap();
    assert_eq!((all.exports.len(), all.links.len(), all.clients.len()), (RING, RING, RING + 1));
    figures("1,000 processes in a ring", daemon.pid());
    seconds[0].go_on(); // lets the token loose
    let rounds = 4;
    for round in 1..=rounds {
        dog.step(format!("round {round} of the token"));
        if round < rounds {
            daemon.replace();
        }
        assert_eq!(seconds[0].expect("token"), round.to_string());
    }
    let all = watcher.snapshot().unwrap();
    assert_eq!((all.exports.len(), all.links.len(), all.clients.len()), (RING, RING, RING + 1));
    assert_eq!(all.pid, daemon.pid());
    assert_eq!(watcher.counters().get(vmmc::counters::index::RECONNECTS), 0);
    figures("the same after three replacements", daemon.pid());
    for (i, second) in seconds.iter_mut().enumerate() {
        dog.step(format!("process {i} ends"));
        assert_eq!(second.expect("reconnects"), "0");
    }
    drop(seconds);
    dog.step("nothing is left");
    until("nothing is left", || {
        let now = watcher.snapshot().unwrap();
        now.exports.is_empty() && now.links.is_empty() && now.clients.len() == 1
    });
    figures("and after their end", daemon.pid());
}

/// Sleeps between tokens: 1,000 processes that polled would measure the scheduler.
fn in_a_ring(args: &[String]) {
    support::die_with_parent();
    let config = vmmc::Config {
        wait: vmmc::config::WaitChoice::Fixed(vmmc::config::WaitPolicy::Block),
        ..vmmc::Config::from_env().unwrap()
    };
    let node = Node::builder().config(config).connect().unwrap();
    let me: usize = args[0].parse().unwrap();
    let export = export(&node, &format!("ring {me}"), 4096);
    say("exported");
    pause();
    let import = import(&node, &format!("ring {}", (me + 1) % RING));
    say("imported");
    let (from, to) = (export.flag32(0).unwrap(), import.flag32(0).unwrap());
    if me == 0 {
        pause();
        for round in 1..=4u32 {
            to.signal(round).unwrap();
            from.wait_until(|value| value == round, None).unwrap();
            say(&format!("token {round}"));
        }
    } else {
        for round in 1..=4u32 {
            from.wait_until(|value| value == round, None).unwrap();
            to.signal(round).unwrap();
        }
    }
    let reconnects = node.counters().get(vmmc::counters::index::RECONNECTS);
    say(&format!("reconnects {reconnects}"));
    pause();
}
