//! Messages of RPC by hand (RFC 5531, sections 9 and 11), right ones and others.

use std::io::Read;
use std::net::{TcpStream, UdpSocket};

pub const PROGRAM: u32 = 0x2000_1234;
/// The auth flavor of an offer, and what is in its credential.
pub const FLAVOR: u32 = 390_999;
pub const OFFER: [u32; 4] = [u32::from_be_bytes(*b"VRPC"), 1, 2, 0];

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A record of one fragment.
pub fn record(body: &[u8]) -> Vec<u8> {
    [&words(&[0x8000_0000 | body.len() as u32]), body].concat()
}

/// A call with this credential and empty arguments.
pub fn call(xid: u32, procedure: u32, flavor: u32, credential: &[u8]) -> Vec<u8> {
    let head = words(&[xid, 0, 2, PROGRAM, 1, procedure, flavor, credential.len() as u32]);
    [&head, credential, &words(&[0, 0])].concat()
}

/// The next record; `None` when the other end has closed.
pub fn read_record(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut record = Vec::new();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).ok()?;
        let mark = u32::from_be_bytes(mark);
        let mut fragment = vec![0; (mark & 0x7fff_ffff) as usize];
        stream.read_exact(&mut fragment).ok()?;
        record.extend(fragment);
        if mark & 0x8000_0000 != 0 {
            return Some(record);
        }
    }
}

/// What is said to this before the answer to a good call behind it, which tells that there is no more; and
/// whether that answer comes.
pub fn answers(mut next: impl FnMut() -> Option<Vec<u8>>) -> (Vec<Vec<u8>>, bool) {
    let mut said = Vec::new();
    while let Some(answer) = next() {
        if answer.starts_with(&LAST_XID.to_be_bytes()) {
            return (said, true);
        }
        said.push(answer);
    }
    (said, false)
}

/// The number of that call.
pub const LAST_XID: u32 = 0x4c41_5354;

/// That call.
pub fn last_call() -> Vec<u8> {
    call(LAST_XID, 0, 0, &[])
}

/// What is said to a datagram.
pub fn datagram_answers(socket: &UdpSocket, bytes: &[u8]) -> Vec<Vec<u8>> {
    socket.send(bytes).unwrap();
    socket.send(&last_call()).unwrap();
    let mut buffer = [0; 65536];
    answers(|| {
        loop {
            match socket.recv(&mut buffer) {
                Ok(len) => return Some(buffer[..len].to_vec()),
                // The kernel begins no call anew by itself that has a time: a machine that was frozen, say.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("no answer to a datagram: {error}"),
            }
        }
    })
    .0
}

pub fn datagram_socket(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(super::WATCHDOG)).unwrap();
    socket
}
