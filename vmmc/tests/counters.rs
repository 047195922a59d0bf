//! Counters decide where they can: M1 (copies of the four strategies), D4 and D6 (no doorbell for
//! who is awake).

mod common;

use common::{Daemon, PATIENCE, export, import};
use vmmc::config::{WaitChoice, WaitPolicy};
use vmmc::counters::index as count;
use vmmc::{Config, Node};

fn spinning(config: Config) -> Node {
    let config = Config { wait: WaitChoice::Fixed(WaitPolicy::Spin), ..config };
    Node::builder().config(config).connect().unwrap()
}

/// V16, M1: copies from or to the user's buffers, beside the one transfer itself: AU-1copy (sender),
/// AU-2copy (both), DU-0copy (none), DU-1copy (receiver).
#[test]
fn the_four_strategies_copy_as_often_as_their_names_say() {
    const LEN: usize = 10_000;
    let daemon = Daemon::start();
    let (receiver, sender) = (daemon.node(), daemon.node());
    let export = export(&receiver, "m1", 3 * 4096);
    let import = import(&sender, "m1");
    let binding = import.bind(0..3 * 4096).unwrap();
    let message = vec![1; LEN];
    let mut user = vec![0; LEN];
    let copied = |node: &Node| node.counters().get(count::COPIED_BYTES);
    for (automatic, receive_copy) in [(true, false), (true, true), (false, false), (false, true)] {
        let before = (copied(&sender), copied(&receiver));
        match automatic {
            true => binding.write(0, &message).unwrap(),
            false => import.send(0, &message).unwrap(),
        }
        if receive_copy {
            export.read(0, &mut user).unwrap();
        }
        let copies = (copied(&sender) - before.0, copied(&receiver) - before.1);
        let expected = (u64::from(automatic), u64::from(receive_copy));
        assert_eq!(copies, (expected.0 * LEN as u64, expected.1 * LEN as u64));
    }
    assert_eq!(sender.counters().get(count::SENDS), 2);
    assert_eq!(sender.counters().get(count::SEND_BYTES), 2 * LEN as u64);
}

/// D4, D6: while both poll, nobody rings and nobody sleeps.
#[test]
fn a_ping_pong_of_pollers_rings_no_doorbell() {
    let daemon = Daemon::start();
    let (a, b) = (spinning(daemon.config()), spinning(daemon.config()));
    let export = export(&a, "pollers", 4096);
    let import = import(&b, "pollers");
    export.wait_importers(1, PATIENCE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (ping, pong) = (export.flag32(0).unwrap(), export.flag32(128).unwrap());
            for round in 1..=500 {
                ping.wait_until(|value| value == round, PATIENCE).unwrap();
                pong.signal(round).unwrap();
            }
        });
        let (ping, pong) = (import.flag32(0).unwrap(), import.flag32(128).unwrap());
        for round in 1..=500 {
            import.send(256, &[1; 64]).unwrap();
            ping.signal(round).unwrap();
            pong.wait_until(|value| value == round, PATIENCE).unwrap();
        }
    });
    for node in [&a, &b] {
        assert_eq!(node.counters().get(count::DOORBELLS), 0);
        assert_eq!(node.counters().get(count::SLEEPS), 0);
    }
}

/// What `shrimp stat` reads: names and values in the process page.
#[test]
fn counters_have_their_names_in_the_page() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let _export = export(&node, "named", 64);
    let all = node.counters().snapshot();
    assert_eq!(all.len(), count::NAMES.len());
    assert!(all.contains(&("exports".to_owned(), 1)));
    assert!(all.contains(&("sends".to_owned(), 0)));
}
