//! With an rpcbind at port 111: clients that find their server by name, four ways over every nettype; and
//! the Rust interface to all its versions.
//!
//! `ci/rpc` runs these where there is a private one: they register programs.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mode, Net};
use vrpc::Client;
use vrpc::rpcbind::{Binding, Portmapper, Protocol, Rpcbind, from_universal, universal};

const HOST: &str = "127.0.0.1:111";

#[test]
#[ignore = "needs an rpcbind of its own: run by ci/rpc"]
fn rpcbind_finds_a_server_by_name_over_every_nettype() {
    for waits in ["run", "common"] {
        let (client, _) = common::four_ways_over(Net::Rpcbind, Mode::Default, waits, "by_name", "");
        // tcp, udp, netpath, visible, circuit_v; and callrpc.
        assert!(client.get("channels") >= 6, "{client:?}");
        assert_eq!(client.get("calls_kernel"), 0, "{client:?}");
    }
}

#[test]
#[ignore = "needs an rpcbind of its own: run by ci/rpc"]
fn rpcbind_registers_and_finds_programs_in_every_version() {
    const PROGRAM: u32 = 0x2000_4711;
    for client in [Client::tcp(HOST).unwrap(), Client::udp(HOST).unwrap()] {
        let old = Portmapper(&client);
        assert_eq!(old.port(PROGRAM, 1, Protocol::Tcp).unwrap(), None);
        // Both: versions 3 and 4 answer for the network by which they are asked, whatever is asked.
        assert!(old.set(PROGRAM, 1, Protocol::Tcp, 4711).unwrap());
        assert!(old.set(PROGRAM, 1, Protocol::Udp, 4711).unwrap());
        assert!(!old.set(PROGRAM, 1, Protocol::Tcp, 4712).unwrap(), "registered twice");
        assert_eq!(old.port(PROGRAM, 1, Protocol::Tcp).unwrap(), Some(4711));
        assert!(old.dump().unwrap().iter().any(|it| (it.program, it.port) == (PROGRAM, 4711)));
        for version in [3, 4] {
            let new = Rpcbind { client: &client, version };
            let address = new.address(PROGRAM, 1, "tcp").unwrap().unwrap();
            assert_eq!(from_universal(&address).unwrap().port(), 4711);
            let binding = Binding {
                program: PROGRAM,
                version: 2,
                netid: "udp".into(),
                address: universal("127.0.0.1:4713".parse().unwrap()),
                owner: String::new(),
            };
            assert!(new.set(&binding).unwrap());
            let listed = new.dump().unwrap();
            let found = listed.iter().find(|it| (it.program, it.version) == (PROGRAM, 2)).unwrap();
            assert_eq!((&found.netid, &found.address), (&binding.netid, &binding.address));
            assert!(new.unset(PROGRAM, 2, "udp").unwrap());
            let gone = |it: &Binding| (it.program, it.version) != (PROGRAM, 2);
            assert!(new.dump().unwrap().iter().all(gone));
            assert!(new.time().unwrap() > 1_700_000_000);
        }
        assert!(old.unset(PROGRAM, 1).unwrap());
        assert_eq!(old.port(PROGRAM, 1, Protocol::Tcp).unwrap(), None);
    }
}
