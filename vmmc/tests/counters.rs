//! Counters decide where they can: M1, M4 to M6 (the four strategies), D4 to D6 (no doorbell for who is
//! awake).

mod common;

use common::{Daemon, PATIENCE, export, import, until};
use std::time::Duration;
use vmmc::config::{WaitChoice, WaitPolicy};
use vmmc::counters::index as count;
use vmmc::{Config, Node};

fn waiting_by(daemon: &Daemon, policy: WaitPolicy) -> Node {
    let config = Config { wait: WaitChoice::Fixed(policy), ..daemon.config() };
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

/// M4, M5, M6: what orders the curves of Figure 3, at every size. AU starts nothing and always copies
/// once more than DU (small messages are its own, large ones DU's); DU-0copy copies nothing, so that
/// memory alone limits it; a receive copy costs either the same.
#[test]
fn starts_and_copies_order_the_four_strategies_at_every_size() {
    let daemon = Daemon::start();
    let (receiver, sender) = (daemon.node(), daemon.node());
    let export = export(&receiver, "figure 3", 1 << 20);
    let import = import(&sender, "figure 3");
    let binding = import.bind(0..1 << 20).unwrap();
    for len in [4, 64, 4096, 10_000, 1 << 20] {
        let message = vec![1; len];
        let mut user = vec![0; len];
        let mut played = |automatic: bool, receive_copy: bool| {
            let counted = |index| [&sender, &receiver].map(|node| node.counters().get(index));
            let total = |index| counted(index).iter().sum::<u64>();
            let before = (total(count::SENDS), total(count::COPIED_BYTES));
            match automatic {
                true => binding.write(0, &message).unwrap(),
                false => import.send(0, &message).unwrap(),
            }
            if receive_copy {
                export.read(0, &mut user).unwrap();
            }
            (total(count::SENDS) - before.0, total(count::COPIED_BYTES) - before.1)
        };
        let (au_1, au_2) = (played(true, false), played(true, true));
        let (du_0, du_1) = (played(false, false), played(false, true));
        assert_eq!([au_1.0, au_2.0, du_0.0, du_1.0], [0, 0, 1, 1], "starts at {len}");
        assert_eq!(du_0.1, 0, "copies at {len}");
        assert!(du_0.1 < du_1.1 && du_1.1 == au_1.1 && au_1.1 < au_2.1, "order at {len}");
    }
}

/// D5, D6: who blocks is woken by one doorbell per sleep, and by none while it does not wait; who
/// spins never sleeps; the hybrid without a budget (or beside its peer) blocks. How long it spins
/// with one is a unit test of `wait`.
#[test]
fn each_policy_sleeps_and_is_woken_as_it_says() {
    let daemon = Daemon::start();
    let sender = daemon.node();
    let none = WaitPolicy::Hybrid { budget: std::time::Duration::ZERO };
    for (name, policy, sleeps) in [
        ("block", WaitPolicy::Block, true),
        ("spin", WaitPolicy::Spin, false),
        ("hybrid", none, true),
    ] {
        let waiter = waiting_by(&daemon, policy);
        let export = export(&waiter, name, 4096);
        let import = import(&sender, name);
        export.wait_importers(1, PATIENCE).unwrap();
        // What the daemon told of the link wakes nobody any more once this is answered.
        waiter.list().unwrap();
        let slept = || waiter.counters().get(count::SLEEPS);
        let rung = || sender.counters().get(count::DOORBELLS);
        let (before, rung_before) = (slept(), rung());
        std::thread::scope(|scope| {
            let wait = scope.spawn(|| {
                let flag = export.flag32(0).unwrap();
                flag.store(1).unwrap();
                flag.wait_until(|value| value == 2, PATIENCE).unwrap()
            });
            until("it waits", || import.flag32(0).unwrap().load() == Ok(1));
            if sleeps {
                until("it sleeps", || slept() > before);
            }
            import.flag32(0).unwrap().signal(2).unwrap();
            assert_eq!(wait.join().unwrap(), 2, "{name}");
        });
        assert_eq!(slept() - before, u64::from(sleeps), "sleeps by {name}");
        assert_eq!(rung() - rung_before, u64::from(sleeps), "doorbells by {name}");
        // Nobody waits now.
        import.flag32(0).unwrap().signal(3).unwrap();
        assert_eq!(rung() - rung_before, u64::from(sleeps), "doorbells by {name}");
    }
}

/// D4, D6: while both poll, nobody rings and nobody sleeps.
#[test]
fn a_ping_pong_of_pollers_rings_no_doorbell() {
    let daemon = Daemon::start();
    let [a, b] = [(); 2].map(|()| waiting_by(&daemon, WaitPolicy::Spin));
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

/// What a caller waits for from the daemon, it polls for before it sleeps, unless its settings say
/// that nothing is polled for. The daemon follows its callers' processor, where neither polls: so
/// each is asked once.
#[test]
fn an_answer_of_the_daemon_is_polled_for_by_the_settings_for_waiting() {
    let daemon = Daemon::start();
    let answers = |policy| {
        let node = waiting_by(&daemon, policy);
        drop(export(&node, "polled for", 64));
        let counters = node.counters();
        (counters.get(count::ANSWERS_POLLED), counters.get(count::ANSWER_SLEEPS))
    };
    for policy in [WaitPolicy::Block, WaitPolicy::Hybrid { budget: Duration::ZERO }] {
        let (polled, slept) = answers(policy);
        assert_eq!(polled, 0);
        assert!(slept > 0);
    }
    if rustix::thread::sched_getaffinity(None).unwrap().count() == 1 {
        return; // nobody answers while its caller polls
    }
    let patient = WaitPolicy::Hybrid { budget: Duration::from_secs(10) };
    // Not always: another program may want the processor, and then nobody polls.
    until("an answer came while its caller polled", || answers(patient).0 > 0);
}
