//! Calls between two processes, through the untyped interface that generated code uses.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod program;

use common::{Daemon, PATIENCE, second_process as play};
use program::{FAIL, FILL, NULL, PROGRAM, Pair, REVERSE, SUM, serve};
use shrimp_rpc::{Binding, CallError};
use vmmc::Node;
use xdr::{Decode, Encode};

#[test]
fn second_process() {
    play(&[("serve", serve)]);
}

fn connect(node: &Node, name: &str) -> Binding {
    Binding::builder(name, PROGRAM, 1)
        .node(node)
        .connect_timeout(PATIENCE.unwrap())
        .connect()
        .expect("binds")
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
        let pair = Pair { a: -i, b: 1 << 40, name: "x".repeat(i as usize % 100) };
        let mut size = xdr::Counter::new();
        pair.encode(&mut size).unwrap();
        let mut request = binding.request(SUM, size.len(), 0).unwrap();
        pair.encode(&mut request).unwrap();
        let mut reply = request.call().unwrap();
        assert_eq!(u64::decode(&mut reply).unwrap(), (1u64 << 40) - i as u64);
        assert_eq!(u32::decode(&mut reply).unwrap() as usize, pair.name.len());
        reply.finish().unwrap();
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
        let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let expected: Vec<u8> = bytes.iter().rev().copied().collect();
        let mut request = binding.request(REVERSE, 4, len).unwrap();
        (len as u32).encode(&mut request).unwrap();
        request.block(&bytes).unwrap();
        let mut reply = request.call().unwrap();
        reply.inout(0, &mut bytes).unwrap();
        reply.finish().unwrap();
        assert_eq!(bytes, expected, "{len} bytes");
    }
    let mut numbers: Vec<u64> = Vec::new();
    for len in [0u32, 1, 5, 1000, 8000, 9000, 100_000] {
        let mut request = binding.request(FILL, 4, 0).unwrap();
        len.encode(&mut request).unwrap();
        let mut reply = request.call().unwrap();
        reply.out_vec(1 << 20, &mut numbers).unwrap();
        assert_eq!(numbers, vec![u64::from(len); len as usize]);
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
