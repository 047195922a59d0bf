//! Peers that mean harm (specification 5.1, 5.3): what they claim, lie about, hold open or say wrong costs them
//! their own connection, a bounded amount of memory, and nobody else anything.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::ring::{LAST, RingPeer, client_of_ours, fragment};
use common::wire::{
    FLAVOR, OFFER, call, datagram_answers, datagram_socket, read_record, record, words,
};
use common::{Daemon, Mode, Server, Side, finish, is_alive, rust_server, servers};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};

/// Loops of C servers: ours, and one of their own.
const LOOPS: [&str; 2] = ["run", "select"];

/// Resident memory of a process without what it shares, as rings, in KiB.
fn resident(server: &Server) -> u64 {
    // Counted page by page: what `status` says is a few pages of each processor late.
    let path = format!("/proc/{}/smaps_rollup", server.process.child.id());
    let rollup = std::fs::read_to_string(path).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// CVE-2017-8779 ("rpcbomb"): what a length claims was allocated, and kept when the rest did not come.
/// CVE-2013-1950: over UDP what had not been decoded was freed.
#[test]
fn bad_strings_by_the_ten_thousand_leave_no_memory_behind() {
    const TIMES: u32 = 10_000;
    let daemon = Daemon::start();
    // NAME of 60 bytes of which none come, ECHO_BULK of 1 MiB, SCALARS cut within its strings.
    let bad = [(13, [60, 0]), (11, [1 << 20, 0]), (7, [0, 0])]
        .map(|(procedure, arguments)| [call(1, procedure, 0, &[]), words(&arguments)].concat());
    for (waits, server) in servers(&daemon, &LOOPS) {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let mut peer = RingPeer::connect(server.port, &daemon);
        let socket = datagram_socket(server.udp);
        let garbage = words(&[1, 1, 0, 0, 0, 4]);
        let mut after_some = 0;
        for time in 0..TIMES {
            let bad = &bad[time as usize % bad.len()];
            stream.write_all(&record(bad)).unwrap();
            assert_eq!(read_record(&mut stream).as_ref(), Some(&garbage), "{waits}");
            peer.send(bad);
            assert_eq!(peer.next().as_ref(), Some(&garbage), "{waits}");
            datagram_answers(&socket, bad);
            if time == TIMES / 10 {
                after_some = resident(&server);
            }
        }
        let after_all = resident(&server);
        // One NAME left each time would be 600 KiB over the three ways.
        assert!(after_all < after_some + 256, "{waits}: {after_some} to {after_all} KiB");
        is_alive(&server, &daemon);
        server.quit(&daemon);
    }
}

/// Records that are begun and never ended take what has come of them, of each connection; and end with it.
#[test]
fn records_without_end_take_the_memory_that_was_really_sent() {
    let daemon = Daemon::start();
    for (waits, server) in servers(&daemon, &LOOPS) {
        let before = resident(&server);
        let grown = std::array::from_fn::<u64, 6, _>(|_| {
            let mut peers: Vec<RingPeer> =
                (0..20).map(|_| RingPeer::connect(server.port, &daemon)).collect();
            for peer in &mut peers {
                peer.lay(&fragment(4096, &[0; 4096]));
                peer.show();
            }
            is_alive(&server, &daemon);
            resident(&server).saturating_sub(before)
        });
        assert!(grown[0] < 20 * 1024, "{waits}: {grown:?} KiB");
        // Each that were kept would be 64 KiB: 6400 in all.
        assert!(grown[5] < grown[0] + 3000, "{waits}: {grown:?} KiB");
        is_alive(&server, &daemon);
        server.quit(&daemon);
    }
}

/// Positions and words that cannot be true end the channel, and nothing else.
#[test]
fn lies_in_the_shared_words_end_the_channel_of_who_lies() {
    type Lie = fn(&mut RingPeer);
    let lies: [(&str, Lie); 7] = [
        ("a tail beyond the ring", |peer| {
            peer.scribble(peer.tail_at(), &(peer.ring_len + 4).to_ne_bytes());
        }),
        ("a tail that goes back", |peer| {
            peer.send(&call(1, 0, 0, &[]));
            assert!(peer.next().is_some());
            peer.scribble(peer.tail_at(), &4u64.to_ne_bytes());
        }),
        ("a fragment longer than what is there", |peer| peer.lay(&fragment(LAST | 400, &[0; 40]))),
        ("an empty fragment", |peer| peer.lay(&fragment(0, &[]))),
        ("a record forgotten that was never begun", |peer| peer.lay(&fragment(1 << 30, &[]))),
        ("a head ahead of what was sent", |peer| {
            let head = 256 - peer.tail_at() + 128;
            peer.scribble(head, &(1u64 << 40).to_ne_bytes());
            // An answer of many rings: where its first piece ends, the head is looked at.
            peer.lay(&fragment(LAST | 44, &[call(1, 15, 0, &[]), words(&[9_000_000])].concat()));
        }),
        ("noise", |peer| {
            let noise: Vec<u8> =
                (0u32..64).flat_map(|at| at.wrapping_mul(0x9e37_79b9).to_ne_bytes()).collect();
            peer.lay(&noise);
        }),
    ];
    let daemon = Daemon::start();
    for (waits, server) in servers(&daemon, &LOOPS) {
        for (what, lie) in &lies {
            let mut peer = RingPeer::connect(server.port, &daemon);
            lie(&mut peer);
            if !what.contains("tail") {
                peer.show();
            }
            vmmc::sys::doorbell::ring(&peer.peer_bell);
            // It closes; what it has said lies in the ring.
            assert_eq!(read_record(&mut peer.stream), None, "{waits}: {what}");
            is_alive(&server, &daemon);
        }
        assert!(server.quit(&daemon).get("poisoned") >= lies.len() as u64, "{waits}");
    }
}

/// A client whose ring is never empty: it has a second of calls there, and sends one for each answer. Others come
/// behind it, and not only with the call that wakes; neither rings for who is awake, which would be served for that.
#[test]
fn a_client_with_a_call_in_its_ring_at_all_times_holds_up_nobody() {
    let daemon = Daemon::start();
    for (_, server) in servers(&daemon, &LOOPS) {
        let mut peer = RingPeer::connect(server.port, &daemon);
        peer.rings_sleepers_only = true;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (peer, stop) = (&mut peer, &stop);
            scope.spawn(move || {
                let sleep = [call(1, 16, 0, &[]), words(&[1])].concat();
                (0..1000).for_each(|_| peer.send(&sleep));
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(peer.next(), Some(words(&[1, 1, 0, 0, 0, 0, 1])));
                    peer.send(&sleep);
                }
            });
            let alive = std::panic::catch_unwind(AssertUnwindSafe(|| {
                is_alive(&server, &daemon);
                let mut other = RingPeer::connect(server.port, &daemon);
                other.rings_sleepers_only = true;
                for _ in 0..5 {
                    other.send(&call(1, 0, 0, &[]));
                    assert_eq!(other.next(), Some(words(&[1, 1, 0, 0, 0, 0])));
                }
            }));
            stop.store(true, Ordering::Relaxed);
            alive.unwrap();
        });
        drop(peer);
        server.quit(&daemon);
    }
}

/// The segment is sealed: nobody's access to it can be made to fail.
#[test]
fn a_segment_cannot_be_cut_short() {
    let daemon = Daemon::start();
    let server = Server::start(Mode::Default, "run", Side::Ours, &daemon);
    let mut peer = RingPeer::connect(server.port, &daemon);
    for len in [0, 4096, 1 << 30] {
        let cut = rustix::fs::ftruncate(&peer.memory, len);
        assert_eq!(cut, Err(rustix::io::Errno::PERM), "to {len}");
    }
    peer.send(&call(1, 0, 0, &[]));
    assert_eq!(peer.next(), Some(words(&[1, 1, 0, 0, 0, 0])));
}

/// Doorbells for nothing.
#[test]
fn a_flood_of_doorbells_holds_up_nobody() {
    let daemon = Daemon::start();
    for (_, server) in servers(&daemon, &LOOPS) {
        let peer = RingPeer::connect(server.port, &daemon);
        for round in 0..20_000 {
            vmmc::sys::doorbell::ring(&peer.peer_bell);
            if round % 5_000 == 0 {
                is_alive(&server, &daemon);
            }
        }
        is_alive(&server, &daemon);
        server.quit(&daemon);
    }
}

/// CVE-2021-46828, CVE-2018-14621 and 14622: connections up to the limit of descriptors, idle.
#[test]
fn idle_connections_up_to_the_limit_are_outlived() {
    let daemon = Daemon::start();
    for (waits, server) in servers(&daemon, &LOOPS) {
        is_alive(&server, &daemon); // what it opens once is open
        let pid = Pid::from_raw(server.process.child.id().cast_signed());
        let files = format!("/proc/{}/fd", server.process.child.id());
        let highest = std::fs::read_dir(files).unwrap().filter_map(|file| {
            file.unwrap().file_name().to_str().and_then(|number| number.parse::<u64>().ok())
        });
        let limit = Some(highest.max().unwrap() + 8);
        prlimit(pid, Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
        let idle: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
        drop(idle);
        let (said, _) = server.client("server_alive", "", Side::Stock, &daemon);
        assert_eq!(said, "alive\n", "{waits}");
    }
}

/// A server must not be of use to who floods others in the name of a victim.
#[test]
fn no_answer_over_udp_to_an_offer_is_longer_than_the_question() {
    let daemon = Daemon::start();
    let offer = call(7, 0, FLAVOR, &words(&OFFER));
    for (_, server) in servers(&daemon, &LOOPS) {
        let answers = datagram_answers(&datagram_socket(server.udp), &offer);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].len() <= offer.len(), "{} to {}", answers[0].len(), offer.len());
        server.quit(&daemon);
    }
}

/// A client that begins a record over TCP and stalls holds up the single thread of libtirpc for 35 seconds. A
/// server in Rust has a thread for each; over rings see `streaming`.
#[test]
fn a_stalled_record_over_tcp_holds_up_nobody_else_at_a_rust_server() {
    let daemon = Daemon::start();
    let rust = rust_server(&daemon);
    let mut stalled = TcpStream::connect(("127.0.0.1", rust.port)).unwrap();
    stalled.write_all(&words(&[0x8000_0100, 1])).unwrap();
    is_alive(&rust, &daemon);
    drop(stalled);
    rust.quit(&daemon);
}

/// A client keeps one record of those that its server does not take, however it encodes them.
#[test]
fn calls_that_nobody_takes_do_not_pile_up_at_their_client() {
    let daemon = Daemon::start();
    for (protocol, kept) in [("au", 0), ("du", 1)] {
        let settings = [("VMMC_RPC_PROTOCOL", protocol)];
        let (client, stream) = client_of_ours("nobody_takes", Side::Ours, &settings, &daemon);
        let _server = RingPeer::accept(stream, &daemon);
        let (said, counted) = finish(client, protocol);
        assert_eq!(said, "late 10\n", "{protocol}");
        assert_eq!((counted.get("calls_ring"), counted.get("sent_records")), (10, kept));
    }
}

/// libtirpc a940bf9: a rejected reply that makes no sense. And others. libtirpc waits for another record when it
/// cannot decode one, so there is one behind each; but not behind the first, to an offer: that ends by time.
#[test]
fn replies_that_make_no_sense_are_errors_of_the_call() {
    let replies: [&[u32]; 9] = [
        &[1, 1, 7],
        &[1, 1],
        &[1, 7],
        &[1],
        &[0],
        &[1, 0, 0, 401],
        &[1, 0, 0, u32::MAX, 0],
        &[1, 1, 1, u32::MAX],
        &[1, 0, 0, 0, u32::MAX],
    ];
    let daemon = Daemon::start();
    for (number, reply) in replies.into_iter().enumerate() {
        let by_time = number == 0;
        // Over TCP to a stock client, to ours as the answer to its offer, and over a ring.
        for (side, ring) in [(Side::Stock, false), (Side::Ours, false), (Side::Ours, true)] {
            let (client, mut stream) = client_of_ours("server_alive", side, &[], &daemon);
            let answer = |call: &[u8]| [&call[..4], &words(reply)].concat();
            if ring {
                let mut peer = RingPeer::accept(stream, &daemon);
                let call = peer.next().unwrap();
                peer.send(&answer(&call));
                let (said, counted) = finish(client, "server_alive");
                assert_eq!((said.as_str(), counted.get("calls_ring")), ("dead\n", 1), "{reply:?}");
            } else {
                // The offer, if there is one, and the call; then the end, for who waits for more.
                for turn in 0..1 + usize::from(side == Side::Ours) {
                    let Some(call) = read_record(&mut stream) else { break };
                    let _ = stream.write_all(&record(&answer(&call)));
                    if side == Side::Ours && turn == 0 && !by_time {
                        let declined = [&call[..4], &words(&[1, 1, 1, 2])].concat();
                        let _ = stream.write_all(&record(&declined));
                    }
                }
                drop(stream);
                let (said, _) = finish(client, "server_alive");
                assert_eq!(said, "dead\n", "{side:?} {reply:?}");
            }
        }
        rust_client_of(reply);
    }
}

fn rust_client_of(reply: &[u32]) {
    use vrpc::xdr::rpc::Caller;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let client = vrpc::Client::builder().ring(false).tcp(address).unwrap();
        Caller::call::<(), ()>(&client, 0x2000_1234, 1, 0, &()).map_err(|error| error.to_string())
    });
    let (mut stream, _) = listener.accept().unwrap();
    let call = read_record(&mut stream).unwrap();
    stream.write_all(&record(&[&call[..4], &words(reply)].concat())).unwrap();
    assert!(client.join().unwrap().is_err(), "{reply:?}");
}

/// CVE-2022-23218, 23219: a path longer than `sun_path`.
#[test]
fn names_longer_than_any_address_are_errors() {
    let daemon = Daemon::start();
    let server = Server::start(Mode::Default, "run", Side::Ours, &daemon);
    for side in [Side::Stock, Side::Ours] {
        let (said, _) = server.client("long_names", "", side, &daemon);
        assert_eq!(said, "refused\nrefused\n");
    }
}
