//! Bad input from peers that are no libtirpc, over TCP: a server with the library answers as one
//! without it, byte by byte, and goes on serving others (specification 5.2, R12).
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Daemon, Mode, Server, Side};
use std::io::{Read, Write};
use std::net::TcpStream;

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
