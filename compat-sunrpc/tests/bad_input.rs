//! Bad input (specification 5.2): each row is a test, and is sent over TCP, over UDP and by a peer of a channel
//! that keeps no rule, to a server under libtirpc alone, to one with the library, and to one in Rust. What they
//! say is what the row says; the server goes on, for stock clients and for those on rings.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use Says::{AuthError, Closes, Garbage, NoProcedure, NoProgram, OtherRpc, OtherVersion, Succeeds};
use common::ring::{RingPeer, fragment};
use common::wire::{
    FLAVOR, PROGRAM, answers, call, datagram_answers, datagram_socket, last_call, read_record,
    record, words,
};
use common::{Daemon, Mode, Server, Side, is_alive, rust_server};
use std::io::Write;
use std::net::{Shutdown, TcpStream};

/// What a server says to a row, the number of the call being 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// Nothing, and the connection ends; to a datagram nothing.
    Closes,
    /// So many times that it is done, and results.
    Succeeds(usize),
    Garbage,
    NoProgram,
    /// Versions 1 to 1 are served.
    OtherVersion,
    NoProcedure,
    /// MSG_DENIED, AUTH_ERROR, why.
    AuthError(u32),
    /// MSG_DENIED, RPC_MISMATCH, 2 to 2.
    OtherRpc,
}
const BAD_CREDENTIAL: Says = AuthError(1);
const REJECTED_CREDENTIAL: Says = AuthError(2);

impl Says {
    /// Whether these answers, and whether the connection stayed, are that.
    fn is(self, (said, stays): &(Vec<Vec<u8>>, bool)) -> bool {
        let one = |tail: &[u32]| *stays && *said == [words(&[&[1], tail].concat())];
        match self {
            Closes => said.is_empty() && !stays,
            Succeeds(times) => {
                let well = words(&[1, 0, 0, 0, 0]);
                *stays && said.len() == times && said.iter().all(|it| it[4..].starts_with(&well))
            }
            Garbage => one(&[1, 0, 0, 0, 4]),
            NoProgram => one(&[1, 0, 0, 0, 1]),
            OtherVersion => one(&[1, 0, 0, 0, 2, 1, 1]),
            NoProcedure => one(&[1, 0, 0, 0, 3]),
            AuthError(why) => one(&[1, 1, 1, why]),
            OtherRpc => one(&[1, 1, 0, 2, 2]),
        }
    }
}

/// A row of the table.
struct Row {
    /// As it is sent over TCP.
    bytes: Vec<u8>,
    libtirpc: Says,
    /// Where it is better.
    rust: Says,
    ring: Says,
}

fn row(bytes: Vec<u8>, libtirpc: Says) -> Row {
    Row { bytes, libtirpc, rust: libtirpc, ring: libtirpc }
}

/// The head of a call to the program, with these words put into it.
fn head(changes: &[(usize, u32)]) -> Vec<u8> {
    let mut head = [1, 0, 2, PROGRAM, 1, 0, 0, 0, 0, 0];
    for &(at, word) in changes {
        head[at] = word;
    }
    record(&words(&head))
}

/// A call of a procedure with these arguments.
fn with(procedure: u32, arguments: &[u32]) -> Vec<u8> {
    record(&[call(1, procedure, 0, &[]), words(arguments)].concat())
}

/// A call of WHO with AUTH_SYS: a machine's name of this length, and groups; so many are claimed.
fn sys(name: usize, groups: u32, claimed: u32) -> Vec<u8> {
    let mut body = words(&[1, name as u32]);
    body.extend(vec![b'm'; name.next_multiple_of(4)]);
    body.extend(words(&[5, 6, claimed]));
    body.extend((0..groups).flat_map(|group| group.to_be_bytes()));
    record(&call(1, 17, 1, &body))
}

/// A null call in fragments of this length.
fn pieces(len: usize) -> Vec<u8> {
    let null = call(1, 0, 0, &[]);
    let count = null.chunks(len).count();
    let piece = |(at, part): (usize, &[u8])| {
        let last = if at + 1 == count { 0x8000_0000 } else { 0 };
        [&words(&[last | part.len() as u32]), part].concat()
    };
    null.chunks(len).enumerate().flat_map(piece).collect()
}

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident: $row:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            try_row(&$row);
        }
    )*};
}

rows! {
    a_credential_of_401_bytes_ends_the_connection: row(head(&[(7, 401)]), Closes);
    a_credential_of_4_gib_ends_the_connection: row(head(&[(7, u32::MAX)]), Closes);
    a_reply_ends_the_connection: row(head(&[(1, 1)]), Closes);
    a_message_of_no_kind_ends_the_connection: row(head(&[(1, 7)]), Closes);
    // RFC 5531, section 9, wants it said.
    rpc_version_3_is_denied_by_rust: Row { rust: OtherRpc, ..row(head(&[(2, 3)]), Closes) };
    an_empty_last_fragment_ends_the_connection: row(record(&[]), Closes);
    an_empty_fragment_ends_the_connection: row(words(&[0]), Closes);
    http_ends_the_connection: row(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), Closes);

    auth_sys_with_a_name_of_255_bytes_is_taken: row(sys(255, 0, 0), Succeeds(1));
    auth_sys_with_a_name_of_256_bytes_is_a_bad_credential: row(sys(256, 0, 0), BAD_CREDENTIAL);
    auth_sys_with_16_groups_is_taken: row(sys(8, 16, 16), Succeeds(1));
    auth_sys_with_17_groups_is_a_bad_credential: row(sys(8, 17, 17), BAD_CREDENTIAL);
    /// FreeBSD D52960, D52964: the body is short.
    auth_sys_with_groups_beyond_its_body_is_a_bad_credential: row(sys(8, 3, 16), BAD_CREDENTIAL);
    auth_sys_with_4_gi_groups_is_a_bad_credential: row(sys(8, 0, u32::MAX), BAD_CREDENTIAL);

    opaque_of_4_gib_is_garbage: row(with(11, &[u32::MAX, 0]), Garbage);
    opaque_of_2_gib_is_garbage: row(with(11, &[0x7fff_ffff, 0]), Garbage);
    opaque_of_256_mib_is_garbage: row(with(11, &[256 << 20, 0]), Garbage);
    /// CVE-2003-0028: a length that is negative as an int.
    opaque_of_a_negative_length_is_garbage: row(with(11, &[0x8000_0004, 0]), Garbage);
    /// CVE-2002-0391: four times this count is 4, in 32 bits.
    an_array_whose_size_overflows_is_garbage: row(with(12, &[0x4000_0001, 0]), Garbage);
    a_string_beyond_its_limit_is_garbage: row(with(13, &[65, 0]), Garbage);
    arguments_that_are_missing_are_garbage: row(with(6, &[]), Garbage);

    bytes_behind_the_arguments_are_nobodys: row(with(0, &[7; 10]), Succeeds(1));
    fragments_of_4_bytes_are_put_together: row(pieces(4), Succeeds(1));
    fragments_of_1_byte_are_put_together: row(pieces(1), Succeeds(1));
    two_calls_at_once_are_both_answered: row([with(0, &[]), with(0, &[])].concat(), Succeeds(2));

    an_unknown_program_is_unavailable: row(head(&[(3, 99)]), NoProgram);
    an_unknown_version_is_a_mismatch: row(head(&[(4, 9)]), OtherVersion);
    an_unknown_procedure_is_unavailable: row(head(&[(5, 99)]), NoProcedure);
    an_unknown_flavor_is_rejected:
        row(record(&call(1, 0, 77, &[1, 2, 3, 4])), REJECTED_CREDENTIAL);
    /// AUTH_DES: Debian's libtirpc has none, and calls that a failure (7) and no unknown flavor.
    des_is_refused: Row {
        rust: REJECTED_CREDENTIAL,
        ..row(record(&call(1, 0, 3, &[0; 8])), AuthError(7))
    };
    /// Ours, but with a body that we do not understand.
    a_broken_offer_is_rejected: row(record(&call(1, 0, FLAVOR, &[0; 16])), REJECTED_CREDENTIAL);
    an_offer_without_body_is_rejected: row(record(&call(1, 0, FLAVOR, &[])), REJECTED_CREDENTIAL);
    an_offer_of_another_procedure_is_rejected:
        row(record(&call(1, 19, FLAVOR, &words(&common::wire::OFFER))), REJECTED_CREDENTIAL);
    /// CVE-2015-7236 is rpcbind's; an offer to it is no offer.
    an_offer_to_rpcbind_is_no_offer: {
        let mut offer = call(1, 0, FLAVOR, &words(&common::wire::OFFER));
        offer[12..16].copy_from_slice(&100_000u32.to_be_bytes());
        row(record(&offer), REJECTED_CREDENTIAL)
    };
}

/// What is said over TCP.
fn over_tcp(port: u16, bytes: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(common::WATCHDOG)).unwrap();
    // A server that closes early resets: what it said before is what counts.
    let _ = stream.write_all(&[bytes, &record(&last_call())].concat());
    let _ = stream.shutdown(Shutdown::Write);
    answers(|| read_record(&mut stream))
}

/// The same fragments, with their lies, in a ring.
fn in_ring(mut bytes: &[u8]) -> Vec<u8> {
    let mut ring = Vec::new();
    while let Some((mark, rest)) = bytes.split_first_chunk() {
        let mark = u32::from_be_bytes(*mark);
        let len = (mark & 0x7fff_ffff) as usize;
        let (body, rest) = rest.split_at(len.min(rest.len()));
        ring.extend(fragment(mark, body));
        bytes = rest;
    }
    ring
}

fn over_ring(port: u16, bytes: &[u8], daemon: &Daemon) -> (Vec<Vec<u8>>, bool) {
    let mut peer = RingPeer::connect(port, daemon);
    peer.lay(&in_ring(bytes));
    peer.show();
    peer.send(&last_call());
    answers(|| peer.next())
}

/// What is said over UDP; `None`: it is no datagram.
fn over_udp(port: u16, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mark = 0x8000_0000 | (bytes.len() as u32).wrapping_sub(4);
    let single = bytes.len() > 4 && bytes.starts_with(&mark.to_be_bytes());
    single.then(|| datagram_answers(&datagram_socket(port), &bytes[4..]))
}

fn try_row(row: &Row) {
    let daemon = Daemon::start();
    let stock = Server::start(Mode::Default, "run", Side::Stock, &daemon);
    let on = [("VMMC_RPC_UDP", "on")];
    let ours = Server::start_set(Mode::Default, "run", Side::Ours, &daemon, &[], &on);
    let own_loop = Server::start(Mode::Default, "select", Side::Ours, &daemon);
    let rust = rust_server(&daemon);

    let expected = over_tcp(stock.port, &row.bytes);
    assert!(row.libtirpc.is(&expected), "libtirpc: {expected:?}");
    assert_eq!(over_tcp(ours.port, &row.bytes), expected, "over TCP");
    let said = over_tcp(rust.port, &row.bytes);
    assert!(row.rust.is(&said), "Rust, over TCP: {said:?}");
    for server in [&ours, &own_loop] {
        let said = over_ring(server.port, &row.bytes, &daemon);
        assert!(row.ring.is(&said), "over a ring: {said:?}");
        assert!(row.ring != row.libtirpc || said == expected, "over a ring: {said:?}");
        is_alive(server, &daemon);
    }
    let said = over_ring(rust.port, &row.bytes, &daemon);
    let in_ring = if row.rust == row.libtirpc { row.ring } else { row.rust };
    assert!(in_ring.is(&said), "Rust, over a ring: {said:?}");
    is_alive(&rust, &daemon);
    if let Some(said) = over_udp(ours.udp, &row.bytes) {
        // libtirpc reads on behind the end of a datagram: what it finds there, and says, is chance.
        let chance = matches!(row.libtirpc, Garbage);
        assert!(chance || Some(said) == over_udp(stock.udp, &row.bytes), "over UDP");
        let said = over_udp(rust.udp, &row.bytes).unwrap();
        assert!(row.rust.is(&(said.clone(), row.rust != Closes)), "Rust, over UDP: {said:?}");
        is_alive(&ours, &daemon);
        is_alive(&rust, &daemon);
    }
    for server in [stock, ours, own_loop, rust] {
        server.quit(&daemon);
    }
}

/// libtirpc decodes as it reads and answers at once; who waits for all of it, or knows that it cannot be, ends
/// the connection. Nobody else waits.
#[test]
fn a_fragment_that_claims_2_gib_is_answered_or_ends_the_connection() {
    let daemon = Daemon::start();
    let bytes = [words(&[0x7fff_ffff]), call(1, 0, 0, &[])].concat();
    let stock = Server::start(Mode::Default, "run", Side::Stock, &daemon);
    let ours = Server::start(Mode::Default, "run", Side::Ours, &daemon);
    let rust = rust_server(&daemon);
    let expected = (vec![words(&[1, 1, 0, 0, 0, 0])], false);
    for server in [&stock, &ours] {
        assert_eq!(over_tcp(server.port, &bytes), expected);
    }
    assert!(Closes.is(&over_tcp(rust.port, &bytes)));
    for server in [&ours, &rust] {
        assert!(Closes.is(&over_ring(server.port, &bytes, &daemon)));
        is_alive(server, &daemon);
    }
}
