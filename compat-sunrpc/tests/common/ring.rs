//! A peer of a channel that keeps no rule: made from what `channel/segment.rs` and `offer.rs` write down, not
//! from their code. It reads and writes the segment as a file.

use super::wire::{FLAVOR, OFFER, call, read_record, record, words};
use super::{Daemon, Mode, Process, Side, WATCHDOG};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{pread, pwrite};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use vmmc::control::Connection;
use vmmc::control::message::{CarriedWords, Event, Hello, Request, Role, StreamShape};
use vmmc::sys::Fd;
use vmmc::sys::doorbell::{self, Doorbell};

const CONTROL_LEN: u64 = 4096;
const DIRECTION_LEN: u64 = 256;
const HEAD: u64 = 128;
/// Set in a fragment's word when it is the last of its record.
pub const LAST: u32 = 1 << 31;
/// Number of the call that makes the offer.
const OFFER_XID: u32 = 0x4f46_4645;

const SHAPE: StreamShape = StreamShape {
    version: (1 << 16) | 2,
    control_len: CONTROL_LEN as u32,
    produced_at: [0, DIRECTION_LEN as u32],
    words: None,
    bells: true,
    carried: Some(CarriedWords {
        consumed_at: [128, 384],
        attached_at: [512, 640],
        armed_data_at: [516, 644],
        armed_space_at: [520, 648],
        kernel: None,
    }),
};

/// A connection on which the server has accepted the offer of a channel, and the daemon knows of one end only.
pub fn offered(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(&record(&call(OFFER_XID, 0, FLAVOR, &words(&OFFER)))).unwrap();
    let answer = read_record(&mut stream).expect("an answer to the offer");
    let expected = words(&[OFFER_XID, 1, 0, FLAVOR, 8, OFFER[0], OFFER[1], 0]);
    assert_eq!(answer, expected, "the offer was declined");
    stream
}

/// One end of a channel.
pub struct RingPeer {
    pub stream: TcpStream,
    pub memory: Fd,
    side: u64,
    pub ring_len: u64,
    tail: u64,
    head: u64,
    bell: Doorbell,
    pub peer_bell: Fd,
    /// Rings only for who says that it sleeps, as one that keeps the rules.
    pub rings_sleepers_only: bool,
    _link: Connection,
}

impl RingPeer {
    /// As a client: makes the offer, which the server must accept.
    pub fn connect(port: u16, daemon: &Daemon) -> RingPeer {
        let stream = offered(port);
        let link = register(&stream, daemon);
        RingPeer::paired(stream, link)
    }

    /// As a server: takes the offer that comes by this connection.
    pub fn accept(mut stream: TcpStream, daemon: &Daemon) -> RingPeer {
        let offer = read_record(&mut stream).expect("an offer");
        assert_eq!(offer[24..28], FLAVOR.to_be_bytes());
        let link = register(&stream, daemon);
        let accepts = words(&[1, 0, FLAVOR, 8, OFFER[0], OFFER[1], 0]);
        stream.write_all(&record(&[&offer[..4], &accepts].concat())).unwrap();
        RingPeer::paired(stream, link)
    }

    fn paired(stream: TcpStream, (link, bell): (Connection, Doorbell)) -> RingPeer {
        let (mut fds, side, ring_len) = loop {
            let incoming = link.receive().unwrap();
            match incoming.event {
                Event::Paired { side, ring_len, .. } => break (incoming.fds, side, ring_len),
                Event::NotPaired { reason, .. } => panic!("not paired: {reason:?}"),
                _ => {}
            }
        };
        let (memory, peer_bell) = (fds.take().unwrap(), fds.take().unwrap());
        let (side, ring_len) = (side.into(), ring_len.into());
        RingPeer {
            stream,
            memory,
            side,
            ring_len,
            tail: 0,
            head: 0,
            bell,
            peer_bell,
            rings_sleepers_only: false,
            _link: link,
        }
    }

    /// Where the word is that counts what we have sent.
    pub fn tail_at(&self) -> u64 {
        self.side * DIRECTION_LEN
    }

    /// Writes anywhere into the segment.
    pub fn scribble(&self, at: u64, bytes: &[u8]) {
        assert_eq!(pwrite(&self.memory, bytes, at).unwrap(), bytes.len());
    }

    fn look(&self, at: u64, bytes: &mut [u8]) {
        assert_eq!(pread(&self.memory, &mut *bytes, at).unwrap(), bytes.len());
    }

    /// Bytes behind the tail, that are not shown yet.
    pub fn lay(&mut self, bytes: &[u8]) {
        let ring = CONTROL_LEN + self.side * self.ring_len;
        for (at, byte) in (self.tail..).zip(bytes) {
            self.scribble(ring + at % self.ring_len, &[*byte]);
        }
        self.tail += bytes.len() as u64;
    }

    /// Shows what was laid, and rings.
    pub fn show(&self) {
        self.scribble(self.tail_at(), &self.tail.to_ne_bytes());
        self.ring(512 + 4);
    }

    /// Rings; the other side says here, or 128 bytes on, whether it sleeps.
    fn ring(&self, armed_at: u64) {
        if self.rings_sleepers_only {
            let armed_at = armed_at + (1 - self.side) * 128;
            let mut armed = [0; 4];
            self.look(armed_at, &mut armed);
            if armed == [0; 4] {
                return;
            }
            self.scribble(armed_at, &[0; 4]);
        }
        doorbell::ring(&self.peer_bell);
    }

    /// A record in one fragment.
    pub fn send(&mut self, body: &[u8]) {
        self.lay(&fragment(LAST | body.len() as u32, body));
        self.show();
    }

    /// The next record; `None` when the other end has closed.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        let mut record = Vec::new();
        loop {
            let word = u32::from_ne_bytes(self.take(4)?.try_into().unwrap());
            let len = (word & !LAST) as usize;
            let padded = self.take(len.next_multiple_of(4))?;
            record.extend(&padded[..len]);
            if word & LAST != 0 {
                return Some(record);
            }
        }
    }

    /// Waits for the next bytes.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let direction = (1 - self.side) * DIRECTION_LEN;
        loop {
            self.bell.drain();
            // What was shown before the end counts.
            let closed = self.has_closed(0);
            let mut tail = [0; 8];
            self.look(direction, &mut tail);
            if u64::from_ne_bytes(tail).wrapping_sub(self.head) >= len as u64 {
                break;
            }
            if closed {
                return None;
            }
            self.has_closed(-1);
        }
        let ring = CONTROL_LEN + (1 - self.side) * self.ring_len;
        let mut bytes = vec![0; len];
        for (at, byte) in (self.head..).zip(&mut bytes) {
            self.look(ring + at % self.ring_len, std::slice::from_mut(byte));
        }
        self.head += len as u64;
        self.scribble(direction + HEAD, &self.head.to_ne_bytes());
        self.ring(512 + 8);
        Some(bytes)
    }

    /// Whether the other end has closed. Waits (-1) for that or for a doorbell, which is always rung for who
    /// has not said that it is attached.
    fn has_closed(&self, wait: i64) -> bool {
        let seconds = if wait < 0 { WATCHDOG.as_secs().cast_signed() } else { 0 };
        let mut fds = [
            PollFd::new(self.bell.fd(), PollFlags::IN),
            PollFd::new(&self.stream, PollFlags::RDHUP),
        ];
        let got = poll(&mut fds, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap();
        assert!(wait == 0 || got > 0, "no answer and no end");
        !fds[1].revents().is_empty()
    }
}

/// A fragment with this word, which may lie.
pub fn fragment(word: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = [&word.to_ne_bytes()[..], body].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Registers a connection with the daemon, as both ends do.
fn register(stream: &TcpStream, daemon: &Daemon) -> (Connection, Doorbell) {
    let link = Connection::open_existing(&daemon.path).unwrap();
    let bell = Doorbell::new().unwrap();
    let page = vrpc::counters::PAGE.share().unwrap();
    let hello = Hello { role: Role::Rpc, program: "hostile".into(), resume: None };
    link.hello(hello, &[page.as_fd()]).unwrap();
    let cookie = rustix::net::sockopt::socket_cookie(stream).unwrap();
    let request = Request::RegisterSocket { cookie, shape: SHAPE };
    link.send(&request, &[stream.as_fd(), bell.fd().as_fd()]).unwrap();
    (link, bell)
}

/// A client whose server is this test, and its connection.
pub fn client_of_ours(
    case: &str,
    side: Side,
    settings: &[(&str, &str)],
    daemon: &Daemon,
) -> (Process, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = std::process::Command::new(super::programs(Mode::Default).join("client"));
    command.arg(listener.local_addr().unwrap().port().to_string()).arg(case);
    let client = Process::start_with(&mut command, side, daemon, settings);
    (client, listener.accept().unwrap().0)
}
