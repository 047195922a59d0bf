//! Calls between two processes, through the untyped interface that generated code uses.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod program;

use common::{Daemon, second_process as play};
use program::{FAIL, NULL, PROGRAM, SUM, connect, fill, reverse, serve, sum};
use shrimp_rpc::{Binding, CallError};

#[test]
fn second_process() {
    play(&[("serve", serve)]);
}

#[test]
fn a_null_call_and_a_structure_go_there_and_back() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["calls"]);
    server.expect("ready");
    let node = daemon.node();
    let binding = connect(&node, "calls");
    for _ in 0..1000 {
        binding.request(NULL, 0, 0).unwrap().call().unwrap().finish().unwrap();
    }
    for i in 0..1000 {
        sum(&binding, i);
    }
    server.finish();
}

#[test]
fn blocks_of_any_length_come_back_changed() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["blocks"]);
    server.expect("ready");
    let node = daemon.node();
    let binding = connect(&node, "blocks");
    for len in [0usize, 1, 7, 8, 9, 1000, 60_000, 65_000, 65_536, 200_001, 3_000_000] {
        reverse(&binding, len).unwrap();
    }
    for len in [0u32, 1, 5, 1000, 8000, 9000, 100_000] {
        fill(&binding, len).unwrap();
    }
    server.finish();
}

#[test]
fn errors_reach_the_client_with_their_type() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["errors"]);
    server.expect("ready");
    let node = daemon.node();
    let binding = connect(&node, "errors");
    match binding.request(FAIL, 0, 0).unwrap().call() {
        Err(CallError::Fault(fault)) => {
            assert_eq!((fault.number(), fault.text()), (77, "as asked"));
        }
        other => panic!("{other:?}"),
    }
    let unknown = binding.request(99, 0, 0).unwrap().call();
    assert!(matches!(unknown, Err(CallError::UnknownProcedure { procedure: 99 })), "{unknown:?}");
    let short = binding.request(SUM, 0, 0).unwrap().call();
    assert!(matches!(short, Err(CallError::BadArguments { .. })), "{short:?}");
    let other = Binding::builder("errors", PROGRAM, 2).node(&node).connect();
    assert!(matches!(
        other,
        Err(shrimp_rpc::ConnectError::VersionMismatch { lowest: 1, highest: 1, .. })
    ));
    let other = Binding::builder("errors", 5, 1).node(&node).connect();
    assert!(matches!(other, Err(shrimp_rpc::ConnectError::UnknownProgram { program: 5, .. })));
    server.finish();
}
