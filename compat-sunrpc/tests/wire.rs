//! Bad input from peers that are no libtirpc, over TCP and UDP: a server with the library answers as one
//! without it, byte by byte, and goes on serving others (specification 5.2, R12); so does a server in
//! Rust, but where RFC 5531 asks for more.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Daemon, Mode, Process, Server, Side};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;

const PROGRAM: u32 = 0x2000_1234;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A record of one fragment.
fn record(body: &[u8]) -> Vec<u8> {
    [&words(&[0x8000_0000 | body.len() as u32]), body].concat()
}

/// A call with this credential and empty arguments.
fn call(xid: u32, procedure: u32, flavor: u32, credential: &[u8]) -> Vec<u8> {
    let head = words(&[xid, 0, 2, PROGRAM, 1, procedure, flavor, credential.len() as u32]);
    [&head, credential, &words(&[0, 0])].concat()
}

/// AUTH_SYS parameters.
fn sys(name: usize, groups: u32) -> Vec<u8> {
    let mut body = words(&[1, name as u32]);
    body.extend(vec![b'm'; name.next_multiple_of(4)]);
    body.extend(words(&[5, 6, groups]));
    body.extend((0..groups).flat_map(|group| group.to_be_bytes()));
    body
}

fn inputs() -> Vec<(String, Vec<u8>)> {
    let null = call(1, 0, 0, &[]);
    let mut inputs: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| inputs.push((name.to_owned(), bytes));
    for len in [401, u32::MAX] {
        let bad = words(&[1, 0, 2, PROGRAM, 1, 0, 0, len, 0, 0]);
        add(&format!("credential of length {len}"), record(&bad));
    }
    for kind in [1, 7] {
        add(
            &format!("message type {kind}"),
            record(&words(&[1, kind, 2, PROGRAM, 1, 0, 0, 0, 0, 0])),
        );
    }
    add("RPC version 3", record(&words(&[1, 0, 3, PROGRAM, 1, 0, 0, 0, 0, 0])));
    add("empty last fragment", record(&[]));
    add("empty fragment", words(&[0]));
    add("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec());
    for (name, groups) in [(255, 0), (256, 0), (8, 16), (8, 17)] {
        let credential = sys(name, groups);
        add(&format!("machine name {name}, {groups} groups"), record(&call(1, 17, 1, &credential)));
    }
    let mut lying = sys(8, 3);
    lying[24..28].copy_from_slice(&16u32.to_be_bytes());
    add("more groups than there are", record(&call(1, 17, 1, &lying)));
    for len in [u32::MAX, 0x7fff_ffff, 256 << 20] {
        let mut bad = call(1, 11, 0, &[]);
        bad.extend(words(&[len, 0]));
        add(&format!("opaque of length {len:#x}"), record(&bad));
    }
    add("arguments missing", record(&call(1, 6, 0, &[])));
    add("bytes after the arguments", record(&[&null[..], &[7; 40]].concat()));
    for piece in [4, 1] {
        let mut bytes = Vec::new();
        for (at, part) in null.chunks(piece).enumerate() {
            let last = if (at + 1) * piece >= null.len() { 0x8000_0000 } else { 0 };
            bytes.extend(words(&[last | part.len() as u32]));
            bytes.extend(part);
        }
        add(&format!("fragments of {piece}"), bytes);
    }
    add("two calls at once", [record(&null), record(&call(2, 0, 0, &[]))].concat());
    add("fragment of length 0x7fffffff", [&words(&[0x7fff_ffff])[..], &null].concat());
    add("unknown program", record(&words(&[1, 0, 2, 99, 1, 0, 0, 0, 0, 0])));
    add("unknown version", record(&words(&[1, 0, 2, PROGRAM, 9, 0, 0, 0, 0, 0])));
    add("unknown procedure", record(&call(1, 99, 0, &[])));
    add("unknown flavor", record(&call(1, 0, 77, &[1, 2, 3, 4])));
    // Ours, but with a body that we do not understand.
    add("a broken offer", record(&call(1, 0, 390_999, &[0; 16])));
    add("an offer without body", record(&call(1, 0, 390_999, &[])));
    add("an offer of another procedure", record(&call(1, 19, 390_999, &[0; 16])));
    inputs
}

/// All that the server says to these bytes until it closes: at once, or because we have sent
/// all.
fn answer(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(common::WATCHDOG)).unwrap();
    // A server that closes early resets: what it said before is what counts.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut said = Vec::new();
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(got) => said.extend(&part[..got]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("no answer and no end: {error}"),
        }
    }
    said
}

#[test]
fn bad_input_over_tcp_is_answered_as_by_libtirpc_alone() {
    let daemon = Daemon::start();
    let stock = Server::start(Mode::Default, "run", Side::Stock, &daemon);
    let ours = Server::start(Mode::Default, "run", Side::Ours, &daemon);
    for (name, bytes) in inputs() {
        let expected = answer(stock.port, &bytes);
        assert_eq!(answer(ours.port, &bytes), expected, "{name}");
        // The server is alive, and rings still work.
        let (said, counted) = ours.client("server_alive", "", Side::Ours, &daemon);
        assert_eq!(said, "alive\n", "after {name}");
        assert_eq!(counted.get("calls_ring"), 1, "after {name}");
    }
    stock.quit(&daemon);
    ours.quit(&daemon);
}

/// What the server says to a datagram. A good call behind it, which is answered in any case, tells
/// that there is no more.
fn datagram_answer(socket: &UdpSocket, bytes: &[u8]) -> Vec<Vec<u8>> {
    const LAST: u32 = 0x4c41_5354;
    socket.send(bytes).unwrap();
    socket.send(&call(LAST, 0, 0, &[])).unwrap();
    let mut said = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        let len = socket.recv(&mut buffer).unwrap();
        let answer = buffer[..len].to_vec();
        if answer.starts_with(&LAST.to_be_bytes()) {
            return said;
        }
        said.push(answer);
    }
}

fn datagram_socket(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(common::WATCHDOG)).unwrap();
    socket
}

/// The inputs that are one record of one fragment, without its mark.
fn datagrams() -> Vec<(String, Vec<u8>)> {
    let single = |(name, mut bytes): (String, Vec<u8>)| {
        let mark = 0x8000_0000 | (bytes.len() as u32).wrapping_sub(4);
        (bytes.len() > 4 && bytes.starts_with(&mark.to_be_bytes()))
            .then(|| (name, bytes.split_off(4)))
    };
    inputs().into_iter().filter_map(single).collect()
}

#[test]
fn bad_input_over_udp_is_answered_as_by_libtirpc_alone() {
    let daemon = Daemon::start();
    let on = [("VMMC_RPC_UDP", "on")];
    let stock = Server::start(Mode::Default, "run", Side::Stock, &daemon);
    let ours = Server::start_set(Mode::Default, "run", Side::Ours, &daemon, &[], &on);
    let (stock_socket, socket) = (datagram_socket(stock.udp), datagram_socket(ours.udp));
    assert!(datagrams().len() > 15);
    for (name, bytes) in datagrams() {
        // libtirpc reads on behind the end of a datagram: what it finds there is chance.
        if name.contains("missing") || name.contains("opaque of length") {
            datagram_answer(&socket, &bytes);
            continue;
        }
        let expected = datagram_answer(&stock_socket, &bytes);
        assert_eq!(datagram_answer(&socket, &bytes), expected, "{name}");
    }
    let (said, counted) = ours.client("server_alive", "", Side::Ours, &daemon);
    assert_eq!((said.as_str(), counted.get("calls_ring")), ("alive\n", 1));
    stock.quit(&daemon);
    ours.quit(&daemon);
}

/// A server must not be of use to who floods others in the name of a victim (specification 5.1).
#[test]
fn no_answer_over_udp_to_an_offer_is_longer_than_the_question() {
    let daemon = Daemon::start();
    let on = [("VMMC_RPC_UDP", "on")];
    let c = Server::start_set(Mode::Default, "run", Side::Ours, &daemon, &[], &on);
    let rust = rust_server(&daemon);
    let offer = call(7, 0, 390_999, &words(&[u32::from_be_bytes(*b"VRPC"), 1, 1, 0]));
    for server in [&c, &rust] {
        let answers = datagram_answer(&datagram_socket(server.udp), &offer);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].len() <= offer.len(), "{} to {}", answers[0].len(), offer.len());
    }
    c.quit(&daemon);
    rust.quit(&daemon);
}

fn rust_server(daemon: &Daemon) -> Server {
    let mut command = Command::new(common::artefacts().examples.join("types_server"));
    Server::of_process(Process::start_plain(&mut command, daemon, &[]), Mode::Default)
}

#[test]
fn a_rust_server_answers_bad_input_as_libtirpc_or_as_rfc_5531_says() {
    let daemon = Daemon::start();
    let stock = Server::start(Mode::Default, "run", Side::Stock, &daemon);
    let rust = rust_server(&daemon);
    for (name, bytes) in inputs() {
        let said = answer(rust.port, &bytes);
        if name == "RPC version 3" {
            // Section 9: MSG_DENIED, RPC_MISMATCH, lowest 2, highest 2; libtirpc closes.
            assert_eq!(said, record(&words(&[1, 1, 1, 0, 2, 2])));
        } else if !name.starts_with("fragment of length") {
            assert_eq!(said, answer(stock.port, &bytes), "{name}");
        }
        let (said, counted) = rust.client("server_alive", "", Side::Ours, &daemon);
        assert_eq!((said.as_str(), counted.get("calls_ring")), ("alive\n", 1), "after {name}");
    }
    let socket = datagram_socket(rust.udp);
    for (_, bytes) in datagrams() {
        datagram_answer(&socket, &bytes);
    }
    rust.quit(&daemon);
    stock.quit(&daemon);
}

/// A client that begins a record and stalls holds up the single thread of libtirpc for 35 seconds
/// (specification 5.1). Over rings nothing is seen before its end, and a server in Rust has a thread
/// for each.
#[test]
fn a_stalled_record_holds_up_nobody_else_at_a_rust_server() {
    let daemon = Daemon::start();
    let rust = rust_server(&daemon);
    let mut stalled = TcpStream::connect(("127.0.0.1", rust.port)).unwrap();
    stalled.write_all(&words(&[0x8000_0100, 1])).unwrap();
    for side in [Side::Stock, Side::Ours] {
        let (said, _) = rust.client("server_alive", "", side, &daemon);
        assert_eq!(said, "alive\n");
    }
    drop(stalled);
    rust.quit(&daemon);
}
