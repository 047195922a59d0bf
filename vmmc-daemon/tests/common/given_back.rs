//! Bytes of a ring that the daemon gives back to the kernel's connection ([`Request::PumpSocket`]).

use super::*;
use std::io::Read;
use vmmc_ring::pump::request;
use vmmc_ring::switch::mode;

/// A client is told that its socket is paired: its side, the length of each ring, the segment.
pub fn paired(client: &Client, socket: &TcpStream) -> (u8, u32, Fd) {
    let mut incoming = client.receive();
    match incoming.event {
        Event::Paired { cookie: of, side, ring_len, .. } if of == cookie(socket) => {
            (side, ring_len, incoming.fds.take().unwrap())
        }
        other => panic!("{other:?}, expected Paired"),
    }
}

/// Offsets of the words of either direction.
pub const WORDS: StreamWords = StreamWords {
    request: 1024,
    mode: 1028,
    prefix: 1032,
    end: 1040,
    final_bells: 1048,
    consumed: 1056,
    bells: 1064,
    owed: 1072,
    pumped: 1080,
    pumper: 1088,
};

/// Has a daemon give the bytes of a ring back to the kernel's connection, which is read as the caller likes, and whose sender
/// has closed: the daemon is the only one who has its socket.
pub fn given_back_by(daemon: &Path) -> (TcpStream, usize) {
    let client = Client::connect_as(daemon, Role::Sockets);
    let (sender, receiver) = connection("127.0.0.1:0");
    // The kernel does not take all.
    rustix::net::sockopt::set_socket_send_buffer_size(&sender, 1 << 16).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 1 << 16).unwrap();
    let shape = StreamShape { words: Some([WORDS; 2]), ..SHAPE };
    register(&client, &sender, shape);
    register(&client, &receiver, shape);
    let (side, ring_len, segment) = paired(&client, &sender);
    paired(&client, &receiver);
    let len = ring_len as usize;
    let put = |at: u32, bytes: &[u8]| {
        assert_eq!(rustix::io::pwrite(&segment, bytes, at.into()), Ok(bytes.len()));
    };
    let ring = SHAPE.control_len + u32::from(side) * ring_len;
    put(ring, &vec![b'r'; len]);
    put(SHAPE.produced_at[usize::from(side)], &(len as u64).to_ne_bytes());
    put(WORDS.mode, &mode::RING.to_ne_bytes());
    put(WORDS.request, &request::BACK.to_ne_bytes());
    let ask = Request::PumpSocket { cookie: cookie(&receiver) };
    client.send(&ask, &[receiver.as_fd()]);
    eventually("bytes come", || readable(&receiver).then_some(()));
    drop(sender);
    (receiver, len)
}

/// What comes until the connection ends, in order or not.
pub fn read_all(mut receiver: TcpStream) -> (usize, Option<std::io::ErrorKind>) {
    receiver.set_read_timeout(Some(WATCHDOG)).unwrap();
    let (mut len, mut part) = (0, vec![0; 1 << 16]);
    loop {
        match receiver.read(&mut part) {
            Ok(0) => break (len, None),
            Ok(more) => len += more,
            Err(error) => break (len, Some(error.kind())),
        }
    }
}
