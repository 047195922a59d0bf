//! G9: any thread may send, wait, export and import; handlers run one at a time.

mod common;

use common::{Daemon, PATIENCE, export, import, open, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vmmc::{Event, Region};

#[test]
fn twenty_threads_send_over_one_import() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let export = export(&a, "threads", 20 * 4096);
    let import = import(&b, "threads");
    std::thread::scope(|scope| {
        for thread in 0..20usize {
            let import = &import;
            scope.spawn(move || {
                for round in 1..=500u32 {
                    let bytes = vec![round as u8; 1000];
                    import.send(thread * 4096, &bytes).unwrap();
                    import.flag32(thread * 4096 + 4000).unwrap().signal(round).unwrap();
                }
            });
        }
    });
    for thread in 0..20 {
        let mut bytes = [0; 1000];
        export.read(thread * 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [500u32 as u8; 1000]);
    }
    // More threads than stripes: the shared one counts exactly too.
    assert_eq!(b.counters().get(vmmc::counters::index::SENDS), 20 * 500);
}

#[test]
fn many_threads_sleep_at_one_doorbell_and_each_wakes_for_its_own_flag() {
    let daemon = Daemon::start();
    let mut config = daemon.config();
    config.wait = vmmc::config::WaitChoice::Fixed(vmmc::config::WaitPolicy::Block);
    let a = vmmc::Node::builder().config(config).connect().unwrap();
    let b = daemon.node();
    let export = export(&a, "sleepers", 8 * 128);
    let import = import(&b, "sleepers");
    let rounds = 300u32;
    std::thread::scope(|scope| {
        for sleeper in 0..8usize {
            let export = &export;
            scope.spawn(move || {
                let flag = export.flag32(sleeper * 128).unwrap();
                let back = export.flag32(sleeper * 128 + 64).unwrap();
                for round in 1..=rounds {
                    flag.wait_until(|value| value == round, PATIENCE).unwrap();
                    back.signal(round).unwrap();
                }
            });
        }
        for round in 1..=rounds {
            for sleeper in 0..8 {
                import.flag32(sleeper * 128).unwrap().signal(round).unwrap();
            }
            for sleeper in 0..8 {
                let back = import.flag32(sleeper * 128 + 64).unwrap();
                back.wait_until(|value| value == round, PATIENCE).unwrap();
            }
        }
    });
    // D6: at most one system call per sleep.
    let sleeps = a.counters().get(vmmc::counters::index::SLEEPS);
    let rings = b.counters().get(vmmc::counters::index::DOORBELLS);
    assert!(sleeps > 0 && rings <= sleeps, "{rings} rings for {sleeps} sleeps");
}

#[test]
fn only_one_handler_runs_at_a_time_whoever_dispatches() {
    let daemon = Daemon::start();
    let (node, sender) = (daemon.node(), daemon.node());
    let (inside, clash) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let count = Arc::new(AtomicU64::new(0));
    let mut exports = Vec::new();
    for i in 0..3 {
        let (inside, clash, count) = (inside.clone(), clash.clone(), count.clone());
        let builder = node.export(Region::new(64).unwrap()).name(format!("one {i}"));
        exports.push(open(builder.handler(move |it| {
            clash.fetch_or(inside.swap(true, Ordering::AcqRel), Ordering::Relaxed);
            std::thread::yield_now();
            inside.store(false, Ordering::Release);
            count
                .fetch_add(u64::from(matches!(it.event, Event::Message { .. })), Ordering::Relaxed);
        })));
    }
    let imports: Vec<_> = (0..3).map(|i| import(&sender, &format!("one {i}"))).collect();
    let _thread = node.start_handler_thread().unwrap();
    std::thread::scope(|scope| {
        for import in &imports {
            scope.spawn(move || {
                for _ in 0..500 {
                    import.send_with_notify(0, b"x").unwrap();
                }
            });
        }
        for _ in 0..2 {
            let done = || count.load(Ordering::Relaxed) == 1500;
            let node = &node;
            scope.spawn(move || node.run_until(done, PATIENCE).unwrap());
        }
    });
    assert!(!clash.load(Ordering::Relaxed));
}

#[test]
fn set_up_from_many_threads_at_once() {
    let daemon = Daemon::start();
    let node = daemon.node();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let node = &node;
            scope.spawn(move || {
                for round in 0..20 {
                    let name = format!("{thread}-{round}");
                    let export = export(node, &name, 64);
                    let import = import(node, &name);
                    import.flag32(0).unwrap().signal(7).unwrap();
                    export.flag32(0).unwrap().wait_until(|value| value == 7, PATIENCE).unwrap();
                    drop(import);
                    export.unexport().unwrap();
                }
            });
        }
    });
    until("nothing is left", || {
        let all = node.snapshot().unwrap();
        all.exports.is_empty() && all.links.is_empty()
    });
    assert!(node.exports().is_empty() && node.imports().is_empty());
}

#[test]
fn second_process() {
    common::second_process(&[("exports_alone", exports_alone)]);
}

/// A caller reads its own answers: the control thread sleeps through them, and wakes for what
/// nobody asked for.
#[test]
fn the_control_thread_is_not_woken_by_the_answers_of_callers() {
    let daemon = Daemon::start();
    let mut other = daemon.second("exports_alone", &[]);
    other.expect("done");
    let node = daemon.node();
    let import = import(&node, "last");
    other.go_on();
    other.expect("imported");
    drop(import);
}

fn exports_alone(_: &[String]) {
    let node = vmmc::Node::connect().unwrap();
    let named = || {
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|it| it.unwrap().path());
        tasks.find(|it| std::fs::read_to_string(it.join("comm")).unwrap() == "vmmc-control\n")
    };
    until("it has its name", || named().is_some());
    let control = named().unwrap();
    let switches = || {
        let status = std::fs::read_to_string(control.join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary")).unwrap();
        line.split_whitespace().next_back().unwrap().parse::<u64>().unwrap()
    };
    until("it sleeps", || switches() > 0);
    let before = switches();
    for _ in 0..200 {
        drop(export(&node, "passing", 4096));
    }
    let after = switches();
    assert!(after - before < 20, "woken {} times by 400 answers", after - before);
    let last = export(&node, "last", 4096);
    common::say("done");
    common::pause();
    // Nobody reads here but the control thread.
    until("the importer is known", || !last.importers().is_empty());
    common::say("imported");
}
