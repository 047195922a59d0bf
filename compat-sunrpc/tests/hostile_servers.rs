//! Servers that mean harm to clients of ours, over a ring: what they claim, lie about or never finish is an error of
//! the call in a bounded time and memory, and of the calls after it at once.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::ring::{LAST, RingPeer, client_of_ours, fragment};
use common::wire::words;
use common::{Daemon, Process, Side, finish, watched};
use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};

/// What becomes of a call and of the one after it.
const RECEIVING: &str = "RPC: Unable to receive\nRPC: Unable to send\n";
const SENDING: &str = "RPC: Unable to send\nRPC: Unable to send\n";
const LATE: &str = "RPC: Timed out\nRPC: Timed out\n";
const DECODING: &str = "RPC: Can't decode result\nRPC: Unable to receive\n";

/// The head of an answer to this call that says success, and the length of what is echoed.
fn answer(call: &[u8], len: u32) -> Vec<u8> {
    [&call[..4], &words(&[1, 0, 0, 0, 0, len])].concat()
}

/// What a server does once it has got a call.
type Lie = fn(&mut RingPeer, &[u8]);

const LIES: [(&str, Lie, &str); 10] = [
    (
        "a fragment longer than what is there",
        |peer, call| peer.lay(&fragment(LAST | 400, &answer(call, 4))),
        RECEIVING,
    ),
    (
        "a fragment of 1 GiB",
        |peer, call| peer.lay(&fragment(LAST | 0x3fff_ffff, &answer(call, 4))),
        RECEIVING,
    ),
    ("an empty fragment", |peer, _| peer.lay(&fragment(0, &[])), RECEIVING),
    (
        "a record forgotten that was never begun",
        |peer, _| peer.lay(&fragment(1 << 30, &[])),
        RECEIVING,
    ),
    (
        "a tail beyond the ring",
        |peer, _| peer.scribble(peer.tail_at(), &(peer.ring_len + 4).to_ne_bytes()),
        RECEIVING,
    ),
    (
        "a tail that goes back",
        |peer, call| {
            // The answer to no call, which is taken out, or has the wrong length now.
            let other = [&[!call[0]], &answer(call, 0)[1..]].concat();
            peer.send(&other);
            peer.scribble(peer.tail_at(), &4u64.to_ne_bytes());
        },
        RECEIVING,
    ),
    (
        "noise",
        |peer, _| {
            let noise = (0u32..64).flat_map(|at| at.wrapping_mul(0x9e37_79b9).to_ne_bytes());
            let noise: Vec<u8> = [0xff; 4].into_iter().chain(noise).collect();
            peer.lay(&noise);
        },
        RECEIVING,
    ),
    // libtirpc's own check: what is claimed is not there. The call after it finds an end of the connection.
    (
        "bytes of 2 GiB in a record of 36",
        |peer, call| {
            let claims = [answer(call, 0x7fff_fff0), vec![7; 8]].concat();
            peer.lay(&fragment(LAST | 36, &claims));
        },
        DECODING,
    ),
    (
        "half a record, and silence",
        |peer, call| {
            let begun = answer(call, 1000);
            peer.lay(&fragment(begun.len() as u32, &begun));
        },
        LATE,
    ),
    (
        "half a record, and the end",
        |peer, call| {
            let begun = answer(call, 1000);
            peer.lay(&fragment(begun.len() as u32, &begun));
            peer.show();
            peer.stream.shutdown(std::net::Shutdown::Both).unwrap();
        },
        RECEIVING,
    ),
];

/// Shows what was laid, unless the lie is the tail.
fn tell(peer: &mut RingPeer, (what, lie, _): &(&str, Lie, &str), call: &[u8]) {
    lie(peer, call);
    if !what.contains("tail") {
        peer.show();
    }
    vmmc::sys::doorbell::ring(&peer.peer_bell);
}

#[test]
fn a_lying_or_stalling_server_is_an_error_of_the_call_and_of_those_after_it() {
    let daemon = Daemon::start();
    for lie in &LIES {
        // Where the lie is silence it is the call's time that ends it, and nowhere else.
        let settings: &[_] = if lie.2 == LATE { &[("CLIENT_SECONDS", "2")] } else { &[] };
        let (client, stream) = client_of_ours("lied_to", Side::Ours, settings, &daemon);
        let mut peer = RingPeer::accept(stream, &daemon);
        let call = peer.next().unwrap();
        tell(&mut peer, lie, &call);
        if lie.2 == DECODING {
            // The channel is as it was.
            assert!(peer.next().is_some());
            peer.stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
        let (said, counted) = finish(client, lie.0);
        assert_eq!(said, lie.2, "{}", lie.0);
        let nonsense = lie.2 == RECEIVING && !lie.0.contains("the end");
        assert_eq!(counted.get("poisoned"), u64::from(nonsense), "{}: {counted:?}", lie.0);
    }
}

/// The words by which a server says how much room there is.
#[test]
fn a_server_that_lies_about_its_head_is_an_error_of_the_call_that_needs_room() {
    let daemon = Daemon::start();
    let settings = [("CLIENT_BYTES", "1000000")];
    let (client, stream) = client_of_ours("lied_to", Side::Ours, &settings, &daemon);
    let peer = RingPeer::accept(stream, &daemon);
    let head = 256 - peer.tail_at() + 128;
    peer.scribble(head, &(1u64 << 40).to_ne_bytes());
    vmmc::sys::doorbell::ring(&peer.peer_bell);
    assert_eq!(finish(client, "head").0, SENDING);
}

/// The same lies to a client in Rust.
#[test]
fn a_client_in_rust_says_what_is_wrong() {
    let daemon = Daemon::start();
    for lie in LIES.iter().filter(|lie| lie.2 == RECEIVING) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut command = Command::new(common::artefacts().examples.join("types_client"));
        command.args(["tcp", &listener.local_addr().unwrap().port().to_string()]);
        command.stderr(Stdio::piped());
        let mut client = Process::start_plain(&mut command, &daemon, &[]);
        let mut peer = RingPeer::accept(listener.accept().unwrap().0, &daemon);
        let call = peer.next().unwrap();
        tell(&mut peer, lie, &call);
        let mut stderr = client.child.stderr.take().unwrap();
        let said = watched(lie.0, move || {
            let mut said = String::new();
            stderr.read_to_string(&mut said).unwrap();
            said
        });
        let expected = if lie.0.contains("the end") { "Connection(" } else { "nonsense" };
        assert!(said.contains(expected), "{}: {said}", lie.0);
    }
}
