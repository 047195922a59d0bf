//! Every peer serves and is called: what `shrimp perf rpc` compares with really works.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

const CELLS: [(u32, usize); 6] = [(0, 0), (1, 4), (2, 4), (2, 1000), (1, 1 << 20), (2, 1 << 20)];

/// The client compares each result with what the handler must have made of it, so lines of samples
/// are proof enough.
fn serves_and_is_called(peer: &str) {
    let dir = tempfile::tempdir().unwrap();
    let address = dir.path().join("address");
    let program = env!("CARGO_BIN_EXE_rpc-peers");
    let mut server = Command::new(program)
        .args(["serve", peer])
        .arg(&address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "ready\n", "{peer}");
    let mut client = Command::new(program);
    client.args(["call", peer]).arg(&address).args(["1000", "5"]).stdout(Stdio::piped());
    client.args(CELLS.map(|(procedure, bytes)| format!("{procedure}:{bytes}")));
    let output = client.output().unwrap();
    assert!(output.status.success(), "{peer}: {output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let first: Vec<usize> =
        lines.lines().map(|line| line.split_once(' ').unwrap().0.parse().unwrap()).collect();
    assert_eq!(first, CELLS.map(|(_, bytes)| bytes), "{peer}: {lines}");
    assert!(lines.lines().all(|line| line.split(' ').count() >= 3), "{peer}: no samples: {lines}");

    // The end of its input ends it, in order.
    drop(server.stdin.take());
    let mut rest = String::new();
    if let Some(mut errors) = server.stderr.take() {
        errors.read_to_string(&mut rest).unwrap();
    }
    assert!(server.wait().unwrap().success(), "{peer}: {rest}");
}

#[test]
fn tarpc_serves_and_is_called() {
    serves_and_is_called("tarpc");
}

#[test]
fn tonic_serves_and_is_called() {
    serves_and_is_called("tonic");
}

#[test]
fn capnp_serves_and_is_called() {
    serves_and_is_called("capnp");
}

#[test]
fn iceoryx2_serves_and_is_called() {
    serves_and_is_called("iceoryx2");
}
