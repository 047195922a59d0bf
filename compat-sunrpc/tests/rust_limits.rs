//! The Rust client and server where something goes wrong, or to a limit: a procedure that panics, a server that drips, records
//! and times beyond the defaults. Without rings, in one process.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use vrpc::client::CallError;
use vrpc::server::Context;
use vrpc::xdr::rpc::{Answer, Caller, DispatchError, Program};
use vrpc::xdr::{Decode, DecodeError, Encode, EncodeError, Sink, Source};
use vrpc::{Client, Server};

const PANICS: u32 = 1;
const ECHOES: u32 = 2;

struct Bytes(Vec<u8>);

impl Encode for Bytes {
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        vrpc::xdr::put_opaque(sink, &self.0, u32::MAX)
    }
}

impl Decode for Bytes {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Bytes, DecodeError> {
        vrpc::xdr::get_opaque(source, u32::MAX).map(Bytes)
    }
}

struct Served;

impl Program<Context> for Served {
    const PROGRAM: u32 = 0x2000_0077;
    const VERSION: u32 = 1;
    const NAME: &'static str = "SERVED";

    fn dispatch<S: Source, K: Sink>(
        &self,
        _: &Context,
        procedure: u32,
        arguments: &mut S,
        results: &mut K,
    ) -> Result<Answer, DispatchError> {
        let bytes = Bytes::decode(arguments)?;
        assert!(procedure != PANICS, "as it was asked to");
        bytes.encode(results)?;
        Ok(Answer::Reply)
    }
}

fn server(max_record: usize) -> Server {
    let builder = Server::builder().program(Served).tcp("127.0.0.1:0").udp("127.0.0.1:0");
    builder.ring(false).max_record(max_record).start().unwrap()
}

fn call(client: &Client, procedure: u32, bytes: &[u8]) -> Result<Vec<u8>, CallError> {
    let (program, version) = (Served::PROGRAM, Served::VERSION);
    client.call(program, version, procedure, &Bytes(bytes.to_vec())).map(|Bytes(bytes)| bytes)
}

#[test]
fn a_procedure_that_panics_is_a_system_error_and_others_go_on() {
    let server = server(1 << 20);
    let builder = || Client::builder().ring(false);
    for client in [
        builder().tcp(server.tcp_address().unwrap()).unwrap(),
        builder().udp(server.udp_address().unwrap()).unwrap(),
    ] {
        let error = call(&client, PANICS, b"x").unwrap_err();
        assert!(!matches!(error, CallError::TimedOut(_) | CallError::Connection(_)), "{error}");
        assert_eq!(call(&client, ECHOES, b"on").unwrap(), b"on");
    }
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < Duration::from_secs(4), "it waits for a connection that is gone");
}

#[test]
fn a_timeout_that_no_clock_reaches_is_none() {
    let server = server(1 << 20);
    let client = Client::builder().ring(false).timeout(Duration::MAX);
    let client = client.tcp(server.tcp_address().unwrap()).unwrap();
    assert_eq!(call(&client, ECHOES, b"in time").unwrap(), b"in time");
}

/// Each byte comes in time; the record does not.
#[test]
fn a_server_that_drips_is_waited_for_no_longer_than_one_that_is_silent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let dripping = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let _ = stream.read(&mut [0; 1024]);
        let mut bytes =
            (1u32 << 31 | 1 << 20).to_be_bytes().into_iter().chain(std::iter::repeat(0));
        while stream.write_all(&[bytes.next().unwrap()]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let client = Client::builder().ring(false).timeout(Duration::from_millis(300));
    let client = client.tcp(address).unwrap();
    let error = call(&client, ECHOES, b"?").unwrap_err();
    assert!(matches!(error, CallError::TimedOut(_)), "{error}");
    drop(client);
    dripping.join().unwrap();
}

#[test]
fn records_beyond_the_default_are_taken_where_both_ends_say_so() {
    const LIMIT: usize = 128 << 20;
    let server = server(LIMIT);
    let bytes = vec![7; 70 << 20];
    let client = |limit| {
        let builder = Client::builder().ring(false).max_record(limit);
        builder.tcp(server.tcp_address().unwrap()).unwrap()
    };
    assert!(call(&client(LIMIT), ECHOES, &bytes).unwrap() == bytes);
    let error = call(&client(1 << 20), ECHOES, &bytes).unwrap_err().to_string();
    assert!(error.contains("longer than 1048576 bytes"), "{error}");
}
