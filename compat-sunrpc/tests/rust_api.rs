//! The Rust client and server against stock programs and each other: over TCP, over UDP, and over rings
//! where both ends have us. The programs are `examples/types_*.rs`, of the same `.x` file as the C ones.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::ring::{RingPeer, offered};
use common::wire::{call, read_record, record, words};
use common::{
    Daemon, Mode, Net, Process, Server, Side, finish, is_alive, line, rust_server,
    rust_server_with, watched,
};
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

const ON: [(&str, &str); 1] = [("VMMC_RPC_UDP", "on")];

fn rust_client(
    server: &Server,
    net: Net,
    daemon: &Daemon,
    env: &[(&str, &str)],
) -> (String, common::Counted) {
    let (name, port) = if net == Net::Udp { ("udp", server.udp) } else { ("tcp", server.port) };
    let mut command = Command::new(common::artefacts().examples.join("types_client"));
    command.args([name, &port.to_string()]);
    finish(Process::start_plain(&mut command, daemon, env), "types_client")
}

#[test]
fn a_rust_client_calls_a_stock_server_over_tcp_and_udp() {
    let daemon = Daemon::start();
    let server = Server::start(Mode::Default, "run", Side::Stock, &daemon);
    for (net, way) in [(Net::Tcp, "Tcp"), (Net::Udp, "Udp")] {
        let (said, counted) = rust_client(&server, net, &daemon, &[]);
        assert_eq!(said, format!("all as expected, by {way}\n"));
        assert_eq!(counted.get("calls_ring"), 0, "{counted:?}");
    }
    server.quit(&daemon);
}

#[test]
fn a_rust_client_calls_a_c_server_with_the_library_over_a_ring() {
    let daemon = Daemon::start();
    for waits in ["run", "select"] {
        let server = Server::start(Mode::Default, waits, Side::Ours, &daemon);
        let (said, counted) = rust_client(&server, Net::Tcp, &daemon, &[]);
        assert_eq!(said, "all as expected, by Ring\n");
        assert!(counted.get("calls_ring") > 0 && counted.get("calls_kernel") == 0, "{counted:?}");
        assert!(server.quit(&daemon).get("served_ring") > 0);
    }
}

#[test]
fn rust_calls_rust_over_a_ring_and_over_tcp_where_rings_are_off() {
    let daemon = Daemon::start();
    for (env, way) in [(&[][..], "Ring"), (&[("VMMC_RPC", "off")][..], "Tcp")] {
        let server = rust_server(&daemon);
        let (said, _) = rust_client(&server, Net::Tcp, &daemon, env);
        assert_eq!(said, format!("all as expected, by {way}\n"));
        let (said, _) = rust_client(&server, Net::Udp, &daemon, env);
        assert_eq!(said, "all as expected, by Udp\n");
        assert_eq!(server.quit(&daemon).get("served_ring") > 0, way == "Ring");
    }
}

/// The cases of the unmodified C client that such a server can serve: the answers are those of a
/// stock server.
#[test]
fn c_clients_stock_and_ours_get_from_a_rust_server_what_a_c_server_says() {
    for (case, net) in [
        ("types", Net::Tcp),
        ("types", Net::Udp),
        ("auth", Net::Tcp),
        ("timeouts", Net::Tcp),
        ("control", Net::Tcp),
        ("threads", Net::Tcp),
        ("fork", Net::Tcp),
        ("large", Net::Tcp),
    ] {
        let daemon = Daemon::start();
        let stock = Server::start(Mode::Default, "run", Side::Stock, &daemon);
        let client = |server: &Server, side| {
            let mut command = match net {
                Net::Udp => server.udp_client_command(case, "shallow"),
                _ => server.client_command(case, "shallow"),
            };
            finish(Process::start_with(&mut command, side, &daemon, &ON), case)
        };
        let (expected, _) = client(&stock, Side::Stock);
        let server = rust_server(&daemon);
        for side in [Side::Stock, Side::Ours] {
            let (said, counted) = client(&server, side);
            assert_eq!(said, expected, "{case} {net:?} {side:?}");
            assert_eq!(
                counted.get("calls_ring") > 0,
                side == Side::Ours,
                "{case} {net:?} {counted:?}"
            );
        }
        assert!(server.quit(&daemon).get("served_ring") > 0);
        stock.quit(&daemon);
    }
}

/// Clients that never pause, over TCP and over rings, do not keep a server from stopping.
#[test]
fn a_rust_server_stops_under_load() {
    let daemon = Daemon::start();
    let server = rust_server(&daemon);
    let clients: Vec<Process> = [Side::Stock, Side::Ours, Side::Ours]
        .into_iter()
        .map(|side| Process::start(&mut server.client_command("until_it_ends", ""), side, &daemon))
        .collect();
    let clients = clients.into_iter().map(|mut client| {
        assert!(line(&mut client).contains("same"));
        client
    });
    let clients: Vec<Process> = clients.collect();
    assert!(server.quit(&daemon).get("served_ring") > 2);
    for client in clients {
        assert_eq!(finish(client, "until_it_ends").0, "ended\n");
    }
}

/// A null call over TCP is answered.
fn is_read(stream: &TcpStream, xid: u32) {
    let mut stream = stream.try_clone().unwrap();
    stream.write_all(&record(&call(xid, 0, 0, &[]))).unwrap();
    let answer = watched("a call over TCP", move || read_record(&mut stream));
    assert_eq!(answer, Some(words(&[xid, 1, 0, 0, 0, 0])));
}

/// How long a daemon that does not answer is waited for is the client's affair: it may speak over TCP at any time,
/// and is served so when the daemon answers after all.
#[test]
fn a_client_that_gives_a_stopped_daemon_up_is_read_by_a_rust_server() {
    let daemon = Daemon::start();
    let server = rust_server_with(&daemon, &[("VMMC_PAIR_MS", "3600000")]);
    drop(RingPeer::connect(server.port, &daemon)); // now the server knows the daemon
    daemon.stop();
    let client = offered(server.port);
    is_read(&client, 7);
    daemon.go_on();
    is_read(&client, 8);
    is_alive(&server, &daemon);
    assert_eq!(server.quit(&daemon).get("served_kernel"), 4);
}

/// The server's end has its ring, and the client has given it up before.
#[test]
fn a_client_that_has_given_its_ring_up_is_read_by_a_rust_server() {
    let daemon = Daemon::start();
    let server = rust_server(&daemon);
    let client = RingPeer::connect(server.port, &daemon);
    is_read(&client.stream, 7);
    is_read(&client.stream, 8);
    assert_eq!(server.quit(&daemon).get("channels"), 1);
}
