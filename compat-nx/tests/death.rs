//! A rank is killed: everybody else ends with a message that names it, and nothing is left.
#![allow(unsafe_code)] // the engine's raw interface

mod common;

use common::Daemon;
use nx::{Dest, Engine, NxError, Select, Source, Target};

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

/// Large messages in a ring, and a sum, until somebody dies; with `leaves`, node 1 goes in order after one turn.
fn busy(engine: &Engine, leaves: &str) {
    const LEN: usize = 5 << 20;
    let (me, nodes) = (engine.node(), engine.nodes());
    let to = Dest { node: (me + 1) % nodes, ptype: 0 };
    let from = Select { typesel: 3, node: (me + nodes - 1) % nodes, ptype: 0 };
    let (out, mut room) = (vec![me as u8; LEN], vec![0u8; LEN]);
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
    let error = loop {
        match turn() {
            Ok(()) if me == 1 && !leaves.is_empty() => break None,
            Ok(()) => {}
            Err(error) => break Some(error),
        }
    };
    assert!(error.is_none_or(|error| error == NxError::PeerDied { node: 1 }));
}

#[test]
fn rank() {
    common::play(&[("bereft", bereft), ("busy", busy), ("nothing", |_, _| {})]);
}

#[test]
fn a_node_killed_at_any_named_point_ends_all_and_leaves_nothing() {
    let daemon = Daemon::start();
    let before = daemon.rests(None);
    daemon.run(3, "nothing", "", &[]);
    for (name, point) in nx::engine::points::ALL {
        let leaves = if *point == nx::engine::points::Point::ByeHalf { "leaves" } else { "" };
        let armed = format!("{name}@1");
        let mut ranks = daemon.start_job(3, "busy", leaves, &[("NX_FAILPOINT", &armed)]);
        assert_eq!(ranks.wait(), [true, false, true], "{name}");
        daemon.rests(Some(before));
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
