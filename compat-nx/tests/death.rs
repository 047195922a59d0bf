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

#[test]
fn rank() {
    common::play(&[("bereft", bereft)]);
}

#[test]
fn the_death_of_one_ends_all_with_its_number() {
    let daemon = Daemon::start();
    let mut ranks = daemon.start_job(5, "bereft", "", &[]);
    assert_eq!(ranks.wait(), [true, false, true, true, true]);
}
