//! Global operations among 1 to 16 real processes.
#![allow(unsafe_code)] // the engine's raw interface

mod common;

use common::Daemon;
use nx::engine::{Reduction, counters as count};
use nx::{Engine, NxError, Source, Target};
use rustix::process::Signal;

fn reduce<T: nx::engine::Element>(engine: &Engine, op: Reduction, x: &mut [T]) {
    let mut work = x.to_vec();
    // SAFETY: both are borrowed exclusively for the call.
    unsafe { engine.reduce(op, x.as_mut_ptr(), x.len(), work.as_mut_ptr()) }.expect("reduces");
}

fn everything(engine: &Engine, _: &str) {
    let (me, n) = (engine.node(), engine.nodes());
    for round in 0..10 {
        engine.gsync().expect("gsync");
        let mut x = [f64::from(me + round), 1.0, f64::from(-me)];
        reduce(engine, Reduction::Sum, &mut x);
        let all: i32 = (0..n).sum();
        assert_eq!(x, [f64::from(all + n * round), f64::from(n), f64::from(-all)]);

        let mut x = [me + round, -me];
        reduce(engine, Reduction::High, &mut x);
        assert_eq!(x, [n - 1 + round, 0]);
        let mut x = [1i64 << me, me.into()];
        reduce(engine, Reduction::Or, &mut x);
        let or = (0..i64::from(n)).fold(0, |all, it| all | it);
        assert_eq!(x, [(1 << n) - 1, or]);
        let mut x = [2.0f32, 0.5];
        reduce(engine, Reduction::Product, &mut x);
        assert_eq!(x, [2f32.powi(n), 0.5f32.powi(n)]);
    }
    // A line of a cell, more, as long as a cell, longer, longer than a slot, and long enough for a scout.
    for len in [7, 8, 127, 128, 600, 20_000] {
        let mut x: Vec<f64> = (0..len).map(|i| f64::from(i % 7 + me)).collect();
        reduce(engine, Reduction::Sum, &mut x);
        let sum: i32 = (0..n).sum();
        let expected = (0..len).map(|i| f64::from(n * (i % 7) + sum));
        assert!(x.iter().copied().eq(expected), "{len} elements");
    }

    // Each node brings as many bytes as its number says, node 0 nothing.
    for unit in [1usize, 3000] {
        let len = |node: i32| node as usize * unit;
        let mine = vec![me as u8; len(me)];
        let expected: Vec<u8> =
            (0..n).flat_map(|node| std::iter::repeat_n(node as u8, len(node))).collect();
        let mut y = vec![0xee; expected.len() + 5];
        let x = Source { start: mine.as_ptr(), len: mine.len() };
        let room = Target { start: y.as_mut_ptr(), len: y.len() };
        // SAFETY: both are borrowed for the call.
        assert_eq!(unsafe { engine.gcol(x, room) }, Ok(expected.len()));
        assert_eq!(y[..expected.len()], expected);
        y.fill(0xee);
        let lens: Vec<usize> = (0..n).map(len).collect();
        // SAFETY: both are borrowed for the call, and long enough.
        unsafe { engine.gcolx(mine.as_ptr(), &lens, y.as_mut_ptr()) }.expect("gcolx");
        assert_eq!(y[..expected.len()], expected);
        assert_eq!(y[expected.len()..], [0xee; 5]);
    }
}

/// As long as a length in a cell can be, and more.
fn longest(engine: &Engine, _: &str) {
    let (me, n) = (engine.node(), engine.nodes());
    for len in [(1 << 24) - 1, 1 << 24, (1 << 24) + 4] {
        let mut x = vec![1i32; len / 4];
        reduce(engine, Reduction::Sum, &mut x);
        assert!(x.iter().all(|&it| it == n), "a sum of {len} bytes");
        let mine = vec![me as u8; len];
        let mut all = vec![0xee; len * n as usize];
        // SAFETY: both are borrowed for the call, and long enough.
        unsafe { engine.gcolx(mine.as_ptr(), &vec![len; n as usize], all.as_mut_ptr()) }
            .expect("gcolx");
        for (node, theirs) in (0u8..).zip(all.chunks_exact(len)) {
            assert!(theirs.iter().all(|&it| it == node), "{len} bytes of node {node}");
        }
    }
}

/// What the order of combining decides comes out the same on all nodes, however the elements travel.
fn order(engine: &Engine, _: &str) {
    const SPECIAL: [u64; 5] =
        [0x7ff8_0000_0000_0001, 0xfff8_0000_0000_0002, 0, 1 << 63, 0x3ff0_0000_0000_0000];
    let (me, nodes) = (engine.node() as usize, engine.nodes() as usize);
    for op in [Reduction::High, Reduction::Low, Reduction::Sum, Reduction::Product] {
        for len in [7, 40, 5000] {
            // Element i gives each node another one of the five, in another way.
            let special = |i: usize| SPECIAL[(me * (i % 5) + me / 2 * (i / 5) + i) % 5];
            let mut x: Vec<f64> = (0..len).map(|i| f64::from_bits(special(i))).collect();
            reduce(engine, op, &mut x);
            let mut single: Vec<f32> =
                (0..2 * len).map(|i| f64::from_bits(special(i)) as f32).collect();
            reduce(engine, op, &mut single);
            let mine: Vec<u64> = x
                .iter()
                .map(|it| it.to_bits())
                .chain(single.iter().map(|it| it.to_bits().into()))
                .collect();
            let mut all = vec![0u64; mine.len() * nodes];
            let source = Source { start: mine.as_ptr().cast(), len: 8 * mine.len() };
            let room = Target { start: all.as_mut_ptr().cast(), len: 8 * all.len() };
            // SAFETY: both are borrowed for the call.
            unsafe { engine.gcol(source, room) }.expect("gcol");
            for (node, theirs) in all.chunks_exact(mine.len()).enumerate() {
                assert_eq!(
                    theirs, mine,
                    "{op:?} of {len} elements, nodes {node} and {me} of {nodes}"
                );
            }
        }
    }
}

/// Node 1 calls another operation than the others, or one of another length: all are told, and the next
/// operation is right again.
fn disagree(engine: &Engine, case: &str) {
    let odd = engine.node() == 1;
    let run = |len: usize| {
        let (mut x, mut work) = (vec![1i32; len], vec![0i32; len]);
        // SAFETY: both are borrowed exclusively for the call.
        unsafe { engine.reduce(Reduction::Sum, x.as_mut_ptr(), len, work.as_mut_ptr()) }
    };
    // More than 14 elements go by messages.
    let (odds, others) = match case {
        "kind" => (None, 1),
        "kind of a long one" => (None, 100),
        "length" => (Some(2), 1),
        "short among long" => (Some(1), 100),
        "long among short" => (Some(100), 1),
        "two long" => (Some(200), 100),
        other => panic!("{other}"),
    };
    let result = match (odd, odds) {
        (true, None) => engine.gsync(),
        (true, Some(len)) => run(len),
        (false, _) => run(others),
    };
    let node = if odd { 0 } else { 1 };
    match (odds, result) {
        (None, Err(NxError::OtherGlobal { node: told })) => assert_eq!(told, node),
        // Whoever's message is the first to be too long or too short.
        (Some(200), Err(NxError::OtherLength { given, expected, .. })) => {
            assert_ne!(given, expected);
        }
        (Some(odds), Err(NxError::OtherLength { node: told, given, expected })) => {
            let (mine, theirs) = if odd { (odds, others) } else { (others, odds) };
            assert_eq!((told, given, expected), (node, 4 * theirs, 4 * mine));
        }
        (_, result) => panic!("{case}: {result:?}"),
    }
    // Nothing of it is left for those that come later.
    for len in [1, 100, 1, 200] {
        let mut x = vec![1; len];
        reduce(engine, Reduction::Sum, &mut x);
        assert_eq!(x, vec![engine.nodes(); len], "after {case}");
    }
}

/// Node 1 calls another operation than the others, which send it messages, more often than there are slots.
fn vain(engine: &Engine, _: &str) {
    for _ in 0..100 {
        let (mut x, mut work) = ([1i32; 100], [0i32; 100]);
        let result = match engine.node() {
            1 => engine.gsync(),
            // SAFETY: both are borrowed exclusively for the call.
            _ => unsafe {
                engine.reduce(Reduction::Sum, x.as_mut_ptr(), x.len(), work.as_mut_ptr())
            },
        };
        assert!(matches!(result, Err(NxError::OtherGlobal { .. })), "{result:?}");
        engine.gsync().expect("gsync");
    }
    assert_eq!(engine.counter(count::MOVED), 0, "all slots were in use");
    assert_eq!(engine.counter(count::STARVED), 0, "all slots were in use");
}

/// Node 1 alone is wrong about what node 2 has: all are told, and the next operation is right again.
fn mean(engine: &Engine, case: &str) {
    let (me, n) = (engine.node() as usize, engine.nodes() as usize);
    let (right, wrong) = match case {
        "short" => (8, 4),
        "long" => (500, 400),
        "long for one" => (8, 400),
        "two scouts" => (50_000, 60_000),
        other => panic!("{other}"),
    };
    let run = |lens: &[usize]| {
        let (mine, mut all) = (vec![me as u8; lens[me]], vec![0xee; lens.iter().sum()]);
        // SAFETY: both are borrowed for the call, and long enough.
        unsafe { engine.gcolx(mine.as_ptr(), lens, all.as_mut_ptr()) }.map(|()| all)
    };
    let mut lens = vec![right; n];
    if me == 1 {
        lens[2] = wrong;
    }
    match run(&lens) {
        Err(NxError::OtherLengths { node }) => assert_eq!(node, u32::from(me != 1)),
        // What differs is a length that its node announced, or the message of one.
        Err(NxError::OtherLength { given, expected, .. }) => assert_ne!(given, expected),
        result => panic!("{case}: {result:?}"),
    }
    for len in [8, 500] {
        let all = run(&vec![len; n]).expect("gcolx");
        assert!(all.chunks_exact(len).zip(0u8..).all(|(part, node)| part == vec![node; len]));
    }
}

/// Nodes 0 and 2 come when they are let; node 1 is stopped in the middle of its message to node 0.
fn sleeps(engine: &Engine, _: &str) {
    let (me, n) = (engine.node(), engine.nodes());
    engine.gsync().expect("gsync");
    if me != 1 {
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
    }
    let (mine, mut all) = (vec![me as u8; LONG], vec![0xee; LONG * n as usize]);
    // SAFETY: both are borrowed for the call, and long enough.
    unsafe { engine.gcolx(mine.as_ptr(), &vec![LONG; n as usize], all.as_mut_ptr()) }
        .expect("gcolx");
    for (node, theirs) in (0u8..).zip(all.chunks_exact(LONG)) {
        assert!(theirs.iter().all(|&it| it == node), "what node {node} has");
    }
}

/// Goes by a scout.
const LONG: usize = 100_000;

/// What fits the cells makes no message and interrupts nobody: one cell for each other node per round.
fn counted(engine: &Engine, _: &str) {
    const TURNS: u64 = 50;
    let others = engine.nodes() as u64 - 1;
    let now = || {
        [count::CELLS, count::SENT_SMALL, count::SENT_LARGE, count::INTERRUPTS]
            .map(|it| engine.counter(it))
    };
    engine.gsync().expect("gsync");
    let before = now();
    for _ in 0..TURNS {
        engine.gsync().expect("gsync");
        let mut x = [1.0f64; 127];
        reduce(engine, Reduction::Sum, &mut x);
        assert_eq!(x, [f64::from(engine.nodes()); 127]);
    }
    let cells = now();
    assert_eq!(cells[0] - before[0], 2 * TURNS * others);
    assert_eq!(cells[1..], before[1..], "no message, no interrupt");
    // What does not fit is announced in cells, and doubles recursively.
    let mut x = [1.0f64; 128];
    reduce(engine, Reduction::Sum, &mut x);
    let (after, nodes) = (now(), engine.nodes() as u64);
    assert_eq!(after[0] - cells[0], others);
    assert!(after[1] - cells[1] <= u64::from(nodes.ilog2()) + 1, "{after:?} {cells:?}");
}

#[test]
fn rank() {
    common::play(&[
        ("everything", everything),
        ("longest", longest),
        ("order", order),
        ("disagree", disagree),
        ("mean", mean),
        ("vain", vain),
        ("sleeps", sleeps),
        ("counted", counted),
    ]);
}

#[test]
fn nodes_that_call_different_operations_are_told() {
    let daemon = Daemon::start();
    for case in
        ["kind", "kind of a long one", "length", "short among long", "long among short", "two long"]
    {
        for nodes in [2, 3, 6] {
            daemon.run(nodes, "disagree", case, &[]);
        }
    }
}

#[test]
fn nodes_that_mean_other_lengths_of_a_third_one_are_told() {
    let daemon = Daemon::start();
    for case in ["short", "long", "long for one", "two scouts"] {
        for nodes in [3, 4, 6] {
            daemon.run(nodes, "mean", case, &[]);
        }
    }
}

#[test]
fn what_was_sent_in_vain_is_thrown_away() {
    let daemon = Daemon::start();
    for nodes in [2, 3, 4] {
        daemon.run(nodes, "vain", "", &[]);
    }
}

#[test]
fn who_waits_for_the_rest_of_a_message_sleeps_when_another_node_comes() {
    let daemon = Daemon::start();
    let stop = [("NX_FAILPOINT", "scout-written@1=stop"), ("VMMC_WAIT", "hybrid")];
    let mut ranks = daemon.start_job(3, "sleeps", "", &stop);
    let pids: Vec<u32> = ranks.children.iter().map(std::process::Child::id).collect();
    let go_on = |pid: u32| {
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
        rustix::process::kill_process(pid, Signal::CONT).expect("goes on");
    };
    for &pid in &pids {
        common::until_every_thread(pid, "T");
    }
    // Node 0 finds that a message of node 1 is coming, and that node 2 has not come.
    go_on(pids[0]);
    common::until_every_thread(pids[0], "S");
    // Node 2 comes, and waits for the message of node 0 or 1.
    go_on(pids[2]);
    common::until_every_thread(pids[2], "S");
    common::until_every_thread(pids[0], "S");
    // Node 1 is stopped at each of its messages.
    let pid = rustix::process::Pid::from_raw(pids[1] as i32).expect("a process");
    while ranks.children[1].try_wait().expect("waits").is_none() {
        rustix::process::kill_process(pid, Signal::CONT).expect("goes on");
        std::thread::yield_now();
    }
    assert_eq!(ranks.wait(), [true; 3]);
}

#[test]
fn results_are_right_for_every_number_of_nodes() {
    let daemon = Daemon::start();
    for nodes in 1..=16 {
        daemon.run(nodes, "everything", "", &[]);
    }
}

#[test]
fn operations_of_16_mib_and_more_of_each_node_work() {
    let daemon = Daemon::start();
    for nodes in [2, 3] {
        daemon.run(nodes, "longest", "", &[]);
    }
}

#[test]
fn all_nodes_get_the_same_bits_of_nans_and_zeros() {
    let daemon = Daemon::start();
    for nodes in [2, 3, 4, 5, 8] {
        daemon.run(nodes, "order", "", &[]);
    }
}

#[test]
fn what_fits_the_cells_makes_no_message_and_interrupts_nobody() {
    let daemon = Daemon::start();
    for nodes in [2, 5, 16] {
        daemon.run(nodes, "counted", "", &[]);
    }
}
