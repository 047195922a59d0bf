//! A peer of our own that knows RFC 5531 and nothing of us (`tests/peers/types.py`: sockets, record marking,
//! AUTH_SYS): as a client of servers in Rust and C, and as a server for a client in Rust.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Daemon, Mode, Process, Side, finish, line, programs, rust_server};
use std::process::Command;

fn peer(arguments: &[&str]) -> Command {
    let mut python = Command::new("python3");
    python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/types.py")).args(arguments);
    python
}

/// Records in many fragments, credentials up to their limits, each kind of refusal.
#[test]
fn a_peer_of_plain_sockets_calls_a_rust_server() {
    let daemon = Daemon::start();
    let server = rust_server(&daemon);
    let mut client = peer(&["client", &server.port.to_string()]);
    let (said, _) = finish(Process::start(&mut client, Side::Stock, &daemon), "types.py");
    assert_eq!(said, "all as expected, 27 calls\n");
    let counted = server.quit(&daemon);
    assert_eq!((counted.get("served_kernel") > 20, counted.get("served_ring")), (true, 0));
}

/// Every type, refusals, timeouts, AUTH_SYS; its offer is refused and costs nothing else.
#[test]
fn a_peer_of_plain_sockets_serves_a_rust_client() {
    let daemon = Daemon::start();
    let mut server = Process::start(&mut peer(&["server"]), Side::Stock, &daemon);
    let port = line(&mut server);
    let mut client = Command::new(common::artefacts().examples.join("types_client"));
    let client = Process::start_plain(client.args(["tcp", &port]), &daemon, &[]);
    let (said, counted) = finish(client, "types_client");
    assert_eq!(said, "all as expected, by Tcp\n");
    assert!(counted.get("declined") > 0 && counted.get("calls_ring") == 0, "{counted:?}");
    drop(server.child.stdin.take());
    assert_eq!(finish(server, "types.py").0, "");
}

/// And an unmodified client with the library.
#[test]
fn a_peer_of_plain_sockets_serves_a_c_client_with_the_library() {
    let daemon = Daemon::start();
    let mut expected = None;
    for side in [Side::Stock, Side::Ours] {
        let mut server = Process::start(&mut peer(&["server"]), Side::Stock, &daemon);
        let port = line(&mut server);
        let mut client = Command::new(programs(Mode::Default).join("client"));
        client.args([port.as_str(), "auth"]);
        let (said, counted) = finish(Process::start(&mut client, side, &daemon), "auth");
        assert_eq!(*expected.get_or_insert_with(|| said.clone()), said);
        assert_eq!(counted.get("declined") > 0, side == Side::Ours, "{counted:?}");
    }
}
