//! A rank is killed: everybody else ends with a message that names it, and nothing is left.
#![allow(unsafe_code)] // the engine's raw interface

mod common;

use common::Daemon;
use nx::{Dest, Engine, Job, NxError, Select, Source, StartError, Target};
use vmmc::{Node, Region, Rights, Who};

/// Node 1 is killed by the test when it has said that it is there; the others wait in all ways.
fn bereft(engine: &Engine, _: &str) {
    let told = std::sync::Arc::new(std::sync::Mutex::new(None));
    let tell = told.clone();
    engine.on_failure(move |error| *tell.lock().expect("lock") = Some(error.clone()));
    engine.gsync().expect("gsync");
    // Node 1 goes when all others need nothing of it any more, the barrier included.
    let nothing = Target { start: std::ptr::null_mut(), len: 0 };
    if engine.node() == 1 {
        for _ in 1..engine.nodes() {
            // SAFETY: no memory.
            unsafe { engine.crecv(Select::types(9), nothing) }.expect("crecv");
        }
    } else {
        let data = Source { start: std::ptr::null(), len: 0 };
        // SAFETY: no memory.
        unsafe { engine.csend(9, data, Dest { node: 1, ptype: 0 }) }.expect("csend");
    }
    let mut room = vec![0u8; 100];
    let target = Target { start: room.as_mut_ptr(), len: room.len() };
    let error = match engine.node() {
        1 => {
            std::process::abort(); // as good as a kill: no destructor runs
        }
        0 => loop {
            // A sender.
            let data = Source { start: room.as_ptr(), len: room.len() };
            // SAFETY: borrowed for the call.
            match unsafe { engine.csend(1, data, Dest { node: 1, ptype: 0 }) } {
                Ok(()) => {}
                Err(error) => break error,
            }
        },
        2 => engine.gsync().expect_err("a barrier that one never enters"),
        3 => {
            // Computes, and calls nothing.
            while told.lock().expect("lock").is_none() {
                std::hint::spin_loop();
            }
            told.lock().expect("lock").clone().expect("told")
        }
        // SAFETY: borrowed for the call.
        _ => unsafe { engine.crecv(Select::types(7), target) }.expect_err("nobody sends"),
    };
    assert_eq!(error, NxError::PeerDied { node: 1 });
    assert!(error.to_string().contains("node 1 died"));
}

/// Large messages in a ring, and a sum, until somebody dies: the node that `how` begins with. With `leaves` behind it that one goes in order
/// after one turn.
fn busy(engine: &Engine, how: &str) {
    const LEN: usize = 5 << 20;
    let (me, nodes) = (engine.node(), engine.nodes());
    let (victim, leaves) = how.split_once(' ').unwrap_or((how, ""));
    let victim: i32 = victim.parse().expect("a node");
    let to = Dest { node: (me + 1) % nodes, ptype: 0 };
    let from = Select { typesel: 3, node: (me + nodes - 1) % nodes, ptype: 0 };
    let (out, mut room) = (vec![me as u8; LEN], vec![0u8; LEN]);
    // Who dies waits until nobody is still starting: for that one it would be a death at the start.
    let nothing = Source { start: out.as_ptr(), len: 0 };
    for _ in 1..nodes {
        if me != victim {
            // SAFETY: no bytes.
            unsafe { engine.csend(4, nothing, Dest { node: victim, ptype: 0 }) }.expect("it lives");
            break;
        }
        let none = Target { start: room.as_mut_ptr(), len: 0 };
        // SAFETY: no bytes.
        unsafe { engine.crecv(Select::types(4), none) }.expect("all others live");
    }
    let mut turn = || -> Result<(), NxError> {
        let target = Target { start: room.as_mut_ptr(), len: LEN };
        // SAFETY: borrowed until the id is done, or the job has ended.
        let coming = unsafe { engine.irecv(from, target, None) }?;
        engine.gsync()?; // all receives are posted: messages may go to user memory
        // SAFETY: borrowed for the call.
        unsafe { engine.csend(3, Source { start: out.as_ptr(), len: LEN }, to) }?;
        engine.msgwait(coming)?;
        assert!(room.iter().all(|&byte| i32::from(byte) == from.node), "bytes of another message");
        let (mut x, mut work) = ([1i32], [0]);
        // SAFETY: borrowed exclusively for the call.
        unsafe { engine.reduce(nx::Reduction::Sum, x.as_mut_ptr(), 1, work.as_mut_ptr()) }?;
        assert_eq!(x, [nodes]);
        Ok(())
    };
    // From here on nobody is still starting, for whom a death would be one at the start.
    let started = engine.gsync();
    let error = started.err().or_else(|| {
        loop {
            match turn() {
                Ok(()) if me == victim && !leaves.is_empty() => break None,
                Ok(()) => {}
                Err(error) => break Some(error),
            }
        }
    });
    let died = NxError::PeerDied { node: victim as u32 };
    assert!(error.as_ref().is_none_or(|error| *error == died), "{error:?}, and not {died:?}");
}

/// Node 0 is stopped where it is about to write node 1's memory; node 2 dies, and node 1 hears of it and uses the memory for
/// something else. Then node 0 goes on.
fn cut_off(engine: &Engine, how: &str) {
    const LEN: usize = 64 << 20;
    let to = |node| Dest { node, ptype: 0 };
    let mut room = vec![1u8; LEN];
    let mut id = std::process::id().to_ne_bytes();
    let small = Source { start: id.as_ptr(), len: id.len() };
    if engine.node() == 0 {
        // SAFETY: borrowed for the call.
        unsafe { engine.csend(1, small, to(-1)) }.expect("all live");
        let data = Source { start: room.as_ptr(), len: LEN };
        // SAFETY: borrowed for the call. Now and then node 1 may be late, and it is not stopped.
        while unsafe { engine.csend(3, data, to(1)) }.is_ok() {}
        return;
    }
    let target = Target { start: id.as_mut_ptr(), len: id.len() };
    // SAFETY: borrowed for the call.
    unsafe { engine.crecv(Select::types(1), target) }.expect("node 0 lives");
    let sender = u32::from_ne_bytes(id);
    if engine.node() == 2 {
        common::until_every_thread(sender, "T");
        std::process::abort();
    }
    let target = Target { start: room.as_mut_ptr(), len: LEN };
    let error = loop {
        let got = match how {
            // SAFETY: borrowed for the call.
            "crecv" => unsafe { engine.crecv(Select::types(3), target) }.map(drop),
            _ => {
                // SAFETY: used only when it is over, or the job.
                let mid = unsafe { engine.irecv(Select::types(3), target, None) };
                mid.and_then(|mid| engine.msgwait(mid)).map(drop)
            }
        };
        if let Err(error) = got {
            break error;
        }
    };
    assert_eq!(error, NxError::PeerDied { node: 2 });
    room.fill(7);
    let process = rustix::process::Pid::from_raw(sender as i32).expect("a process id");
    rustix::process::kill_process(process, rustix::process::Signal::CONT).expect("it is stopped");
    while std::fs::read(format!("/proc/{sender}/cmdline")).is_ok_and(|line| !line.is_empty()) {
        std::thread::yield_now(); // until it has written what it writes, and ended
        // It may be at another message before it hears that node 2 died.
        let _ = rustix::process::kill_process(process, rustix::process::Signal::CONT);
    }
    assert!(room.iter().all(|&byte| byte == 7), "bytes of a message that was given up");
}

/// Node 1 has a door and no more, and dies when both others have found it.
fn start() {
    let job = Job::from_env().expect("environment").expect("a rank's environment");
    if job.node != 1 {
        let error = Engine::start(&job).map(drop).expect_err("node 1 is not there");
        assert!(matches!(error, StartError::Died { node: 1 }), "{error}");
        assert!(error.to_string().contains("node 1 died"), "{error}");
        return;
    }
    let node = Node::connect().expect("connects");
    let door = node.export(Region::new(64).expect("memory"));
    let name = format!("nx/{}/door/1", job.id);
    let door = door
        .name(name.as_str())
        .grant(Who::SameUser, Rights::WRITE | Rights::READ)
        .token(job.token);
    let door = door.open().expect("a door");
    door.wait_importers(2, None).expect("both others come");
    std::process::abort();
}

#[test]
fn who_dies_while_all_start_is_named() {
    // Who waits in vain would say so after a minute, and of the first that is missing.
    let daemon = Daemon::start();
    let mut ranks = daemon.start_job(3, "start", "", &[]);
    assert_eq!(ranks.wait(), [true, false, true]);
}

#[test]
fn rank() {
    if std::env::var(common::PART).is_ok_and(|part| part == "start") {
        return start();
    }
    common::play(&[
        ("bereft", bereft),
        ("busy", busy),
        ("cut_off", cut_off),
        ("nothing", |_, _| {}),
    ]);
}

#[test]
fn whichever_node_is_killed_at_any_named_point_all_end_and_nothing_is_left() {
    let daemon = Daemon::start();
    let before = daemon.rests(None);
    daemon.run(3, "nothing", "", &[]);
    for (name, point) in nx::engine::points::RUNNING {
        let leaves = if *point == nx::engine::points::Point::ByeHalf { " leaves" } else { "" };
        // Three jobs at the same time, another node of each.
        let mut jobs: Vec<_> = (0..3)
            .map(|victim| {
                let armed = format!("{name}@{victim}");
                let how = format!("{victim}{leaves}");
                daemon.start_job(3, "busy", &how, &[("NX_FAILPOINT", &armed)])
            })
            .collect();
        for (victim, ranks) in jobs.iter_mut().enumerate() {
            let lives: Vec<bool> = (0..3).map(|node| node != victim).collect();
            assert_eq!(ranks.wait(), lives, "{name}@{victim}");
        }
        drop(jobs);
        daemon.rests(Some(before));
    }
}

/// A large message goes from user memory to user memory, unless the job has ended meanwhile: the memory may be another's by then.
#[test]
fn once_a_receive_is_given_up_nothing_is_written_to_its_memory() {
    let daemon = Daemon::start();
    for how in ["crecv", "msgwait"] {
        let settings = [
            ("NX_DIRECT", "65536"),
            ("NX_DIRECT_AFTER", "0"),
            ("NX_FAILPOINT", "direct-begun@0=stop"),
        ];
        let mut ranks = daemon.start_job(3, "cut_off", how, &settings);
        assert_eq!(ranks.wait(), [true, true, false], "{how}");
    }
}

#[test]
fn a_point_that_there_is_not_is_an_error_that_names_it() {
    for value in ["staged", "stagd@1", "staged@one"] {
        let get = |name: &str| (name == "NX_FAILPOINT").then(|| value.to_owned());
        let error = nx::engine::settings::Settings::from_lookup(&get).expect_err("no point");
        assert!(error.to_string().contains(value), "{error}");
    }
}

#[test]
fn the_death_of_one_ends_all_with_its_number() {
    let daemon = Daemon::start();
    let mut ranks = daemon.start_job(5, "bereft", "", &[]);
    assert_eq!(ranks.wait(), [true, false, true, true, true]);
}
