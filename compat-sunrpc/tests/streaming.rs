//! Records of many rings, both ways: encoded into the ring and decoded out of it piece by piece (R3, R4, R7), by
//! clients that are slow, stall or die within one, without anybody else waiting for them.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{
    Counted, Daemon, Mode, Process, Server, Side, ended_by_kill, finish, go_on, is_alive, line,
    servers,
};

const LOOPS: [&str; 5] = ["run", "select", "common", "poll", "epoll"];

/// Nothing that could be encoded into a ring, or decoded out of one, was copied once more.
fn has_streamed(counted: &Counted) {
    assert!(counted.get("pieces") > 0, "{counted:?}");
    let copied = (counted.get("spilled_bytes"), counted.get("assembled_bytes"));
    assert_eq!(copied, (0, 0), "{counted:?}");
}

/// A client can always wait. A server with one thread for all puts together what it gets, since nobody knows
/// when the rest comes.
#[test]
fn a_client_sends_and_takes_16_mb_without_memory_for_it() {
    let (client, served) = common::four_ways(Mode::Default, "run", "large", "");
    has_streamed(&client);
    assert!(served.get("assembled_bytes") > 16 << 20 && served.get("pieces") > 0, "{served:?}");
}

#[test]
fn a_rust_server_does_so_too() {
    let daemon = Daemon::start();
    let server = common::rust_server(&daemon);
    let (_, client) = server.client("large", "", Side::Ours, &daemon);
    has_streamed(&client);
    has_streamed(&server.quit(&daemon));
}

/// `XDR_INLINE` at the borders of pieces.
#[test]
fn what_is_taken_in_one_piece_is_right_at_every_border() {
    let (client, _) = common::four_ways(Mode::Default, "run", "large_runs", "");
    has_streamed(&client);
}

/// `XDR_GETPOS` and `XDR_SETPOS`: a place can be written again while it has not been shown.
#[test]
fn places_are_written_again_until_their_piece_is_shown() {
    let daemon = Daemon::start();
    for (waits, server) in servers(&daemon, &LOOPS) {
        let (said, client) = server.client("large_runs", "places", Side::Ours, &daemon);
        assert_eq!(said, "runs: 0 0 RPC: Success\n".repeat(6), "{waits}");
        has_streamed(&client);
        server.quit(&daemon);
    }
}

#[test]
fn a_client_stalled_inside_a_long_record_holds_up_nobody() {
    let daemon = Daemon::start();
    for (waits, server) in servers(&daemon, &LOOPS) {
        let mut command = server.client_command("stalled_in_a_record", "");
        let mut stalled = Process::start(&mut command, Side::Ours, &daemon);
        assert!(line(&mut stalled).contains("same"));
        assert_eq!(line(&mut stalled), "inside");
        for _ in 0..3 {
            is_alive(&server, &daemon);
        }
        let (said, _) = server.client("types", "shallow", Side::Ours, &daemon);
        assert!(said.contains("same") && !said.contains("DIFFERENT"), "{said}");
        go_on(&mut stalled);
        let (said, counted) = finish(stalled, waits);
        assert_eq!(said, "counted 12000000 right\n");
        has_streamed(&counted);
        server.quit(&daemon);
    }
}

#[test]
fn a_client_killed_inside_a_long_record_or_answer_disturbs_nobody() {
    let daemon = Daemon::start();
    for (waits, server) in servers(&daemon, &LOOPS) {
        for case in ["killed_in_a_record", "killed_in_an_answer"] {
            let mut command = server.client_command(case, "1000000");
            let mut killed = Process::start(&mut command, Side::Ours, &daemon);
            assert!(line(&mut killed).contains("same"));
            ended_by_kill(killed);
            is_alive(&server, &daemon);
        }
        assert_eq!(server.quit(&daemon).get("poisoned"), 0, "{waits}");
    }
}

#[test]
fn a_server_killed_while_a_client_is_inside_a_long_record_is_an_error_of_that_call() {
    let daemon = Daemon::start();
    for (waits, mut server) in servers(&daemon, &LOOPS) {
        let mut command = server.client_command("stalled_in_a_record", "");
        let mut client = Process::start(&mut command, Side::Ours, &daemon);
        assert!(line(&mut client).contains("same"));
        assert_eq!(line(&mut client), "inside");
        server.process.child.kill().unwrap();
        server.process.child.wait().unwrap();
        go_on(&mut client);
        let (said, counted) = finish(client, waits);
        assert_eq!((said.as_str(), counted.get("broken")), ("counted 0 cannot\n", 1));
    }
}

#[test]
fn a_server_killed_inside_a_long_answer_is_an_error_of_that_call() {
    for (server_side, client_side) in [(Side::Stock, Side::Stock), (Side::Ours, Side::Ours)] {
        let daemon = Daemon::start();
        let server = Server::start(Mode::Default, "run", server_side, &daemon);
        let (said, counted) = server.client("server_dies_in_its_answer", "", client_side, &daemon);
        assert!(said.ends_with("died: cannot\nafterwards: cannot\n"), "{said}");
        assert_eq!(counted.get("broken"), u64::from(client_side == Side::Ours), "{counted:?}");
    }
}
