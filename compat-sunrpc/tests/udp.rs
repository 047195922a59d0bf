//! Clients over UDP, with `VMMC_RPC_UDP=on`: the same four ways; calls go over rings in the fourth.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Daemon, Mode, Net, Process, Server, Side, finish, go_on, line};

macro_rules! cases {
    ($($name:ident: $mode:ident, $waits:literal, $case:literal;)*) => {$(
        #[test]
        fn $name() {
            common::four_ways_over(Net::Udp, Mode::$mode, $waits, $case, "");
        }
    )*};
}

cases! {
    types: Default, "run", "types";
    types_mt_safe: MtSafe, "select", "types";
    auth: Default, "poll", "auth";
    timeouts: Default, "run", "timeouts";
    client_control: Default, "run", "control";
    fork: Default, "common", "fork";
    threads_on_one_client: Default, "epoll", "threads";
}

/// Nobody moves unasked.
#[test]
fn without_the_setting_datagrams_stay_datagrams() {
    let daemon = Daemon::start();
    let on: &[(&str, &str)] = &[("VMMC_RPC_UDP", "on")];
    for (server_set, client_set) in [(on, &[][..]), (&[][..], on)] {
        let server = Server::start_set(Mode::Default, "run", Side::Ours, &daemon, &[], server_set);
        let mut command = server.udp_client_command("server_alive", "");
        let client = Process::start_with(&mut command, Side::Ours, &daemon, client_set);
        let (said, client) = finish(client, "server_alive");
        assert_eq!(said, "alive\n");
        assert!(client.get("calls_kernel") > 0 && client.get("calls_ring") == 0, "{client:?}");
        assert_eq!(client.get("declined"), u64::from(!client_set.is_empty()), "{client:?}");
        server.quit(&daemon);
    }
}

/// A datagram client notices nothing when its server is restarted: neither does one on a ring,
/// which goes back to datagrams.
#[test]
fn a_restarted_server_costs_a_datagram_client_nothing() {
    for (server_side, client_side) in [(Side::Stock, Side::Stock), (Side::Ours, Side::Ours)] {
        let daemon = Daemon::start();
        let on = [("VMMC_RPC_UDP", "on")];
        let start = |port: &str| {
            let env = [("SERVER_UDP_PORT", port)];
            Server::start_set(Mode::Default, "run", server_side, &daemon, &env, &on)
        };
        let mut server = start("0");
        let mut command = server.udp_client_command("datagrams", "");
        let mut client = Process::start_with(&mut command, client_side, &daemon, &on);
        for _ in 0..3 {
            assert!(line(&mut client).contains("same"));
        }
        server.process.child.kill().unwrap();
        server.process.child.wait().unwrap();
        let again = start(&server.udp.to_string());
        go_on(&mut client);
        for _ in 0..3 {
            assert!(line(&mut client).contains("same"));
        }
        drop(client.child.stdin.take());
        let (said, counted) = finish(client, "datagrams");
        assert_eq!(said, "");
        if client_side == Side::Ours {
            // Three before, and one that found the connection gone.
            assert_eq!((counted.get("calls_ring"), counted.get("calls_kernel")), (4, 3));
            assert_eq!(counted.get("broken"), 1, "{counted:?}");
        }
        let served = again.quit(&daemon);
        assert_eq!(served.get("served_ring"), 0);
    }
}
