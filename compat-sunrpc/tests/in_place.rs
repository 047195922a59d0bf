//! R11: stubs compiled with `include/vrpc_in_place.h`, whose services use opaque arguments where they lie in the
//! ring. The program says the same four ways, and without the header.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Daemon, Mode, Process, Server, Side, finish, four_ways, is_alive};

/// Bytes that the case `hold` sends: several rings full.
const HELD: u64 = 30 * 100_000;

#[test]
fn every_type_is_the_same_and_opaque_arguments_are_not_copied() {
    for waits in ["run", "select"] {
        let (client, served) = four_ways(Mode::InPlace, waits, "types", "");
        assert!(served.get("lent_bytes") > 0, "{served:?}");
        assert_eq!(client.get("lent_bytes"), 0, "results are the client's own: {client:?}");
    }
    let (_, served) = four_ways(Mode::MtSafe, "run", "types", "");
    assert_eq!(served.get("lent_bytes"), 0, "off unless the stubs ask: {served:?}");
}

/// What is longer than the ring is copied, as it is without the header.
#[test]
fn records_longer_than_the_ring_are_right() {
    four_ways(Mode::InPlace, "run", "large", "");
    four_ways(Mode::InPlace, "poll", "large", "");
}

/// The paper's consequence: the client sends no more than the ring holds before the service has consumed
/// what it was lent. Services that serve others meanwhile are not given the next call of the same client.
#[test]
fn a_client_that_does_not_wait_overwrites_nothing() {
    for waits in ["run", "select", "common", "poll", "epoll"] {
        let (client, served) = four_ways(Mode::InPlace, waits, "hold", "");
        assert_eq!(client.get("calls_ring"), 31, "{waits}: {client:?}");
        assert_eq!(served.get("lent_bytes"), HELD, "{waits}: {served:?}");
    }
}

/// Whose bell rings inside a service that was lent something, is served there; the same client's next call waits.
#[test]
fn clients_served_inside_each_others_services_overwrite_nothing() {
    let daemon = Daemon::start();
    for waits in ["run", "select", "common", "poll", "epoll"] {
        let server = Server::start(Mode::InPlace, waits, Side::Ours, &daemon);
        let clients = [(); 3]
            .map(|()| Process::start(&mut server.client_command("hold", ""), Side::Ours, &daemon));
        for client in clients {
            finish(client, waits);
        }
        let (said, _) = server.client("hold", "ask", Side::Ours, &daemon);
        assert!(said.ends_with("\n90\n"), "{waits}: {said}");
        let served = server.quit(&daemon);
        assert_eq!(served.get("lent_bytes"), 3 * HELD, "{waits}: {served:?}");
    }
}

/// Children that answer for their parent are given copies: the parent gives the room back at once.
#[test]
fn forked_children_that_answer_are_lent_nothing() {
    let daemon = Daemon::start();
    let forks = [("SERVER_FORKS", "1")];
    let server = Server::start_with(Mode::InPlace, "run", Side::Ours, &daemon, &forks);
    let (said, client) = server.client("fork", "", Side::Ours, &daemon);
    assert!(said.contains("echo_bulk") && !said.contains("DIFFERENT"), "{said}");
    assert!(client.get("calls_ring") > 0, "{client:?}");
    assert_eq!(server.quit(&daemon).get("lent_bytes"), 0);
}

/// The mapping outlives the channel while a service looks at it.
#[test]
fn a_client_that_dies_takes_nothing_from_the_service_that_was_lent_it() {
    let daemon = Daemon::start();
    for waits in ["run", "select", "common", "poll", "epoll"] {
        let server = Server::start(Mode::InPlace, waits, Side::Ours, &daemon);
        for _ in 0..3 {
            server.client("hold", "leave", Side::Ours, &daemon);
            is_alive(&server, &daemon);
        }
        let served = server.quit(&daemon);
        assert!(served.get("lent_bytes") >= 100_000, "{waits}: {served:?}");
    }
}
