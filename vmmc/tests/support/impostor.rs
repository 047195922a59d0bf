//! Something at the daemon's socket that is no daemon, or a broken one.

use std::os::fd::AsFd;
use vmmc::config::{Config, DaemonStart};
use vmmc::control::message::{Event, MAX_PACKET_LEN, Request, Welcome};
use vmmc::control::{Connection, codec};
use vmmc::id::{ClientId, ExportId, LinkId, PeerInfo, RequestId, Token};
use vmmc::sys::packet;
use vmmc::{Node, Rights};

/// Something at the daemon's socket that is not what it should be.
pub struct Impostor {
    dir: tempfile::TempDir,
}

/// What it does with a connection after the two handshakes; given the first request.
pub type Answers = fn(&Connection, Request) -> Option<(Event, Vec<vmmc::sys::Fd>)>;

impl Impostor {
    /// Sends `first` in the place of a handshake, and then answers requests until `None`.
    pub fn start(first: Vec<u8>, answers: Answers) -> Impostor {
        let dir = tempfile::tempdir().unwrap();
        let socket = packet::socket().unwrap();
        let address = rustix::net::SocketAddrUnix::new(dir.path().join("d.sock")).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        std::thread::spawn(move || {
            while let Ok(client) = rustix::net::accept(&socket) {
                let client = vmmc::sys::Fd::from(client);
                let none = rustix::net::SendFlags::empty();
                if packet::send(&client, &first, &[], none).is_err() {
                    continue;
                }
                serve(client, answers);
            }
        });
        Impostor { dir }
    }

    pub fn config(&self) -> Config {
        Config {
            socket: Some(self.dir.path().join("d.sock")),
            daemon: DaemonStart::Never,
            ..Config::from_env().unwrap()
        }
    }

    pub fn node(&self) -> Node {
        Node::builder().config(self.config()).connect().unwrap()
    }
}

fn serve(client: vmmc::sys::Fd, answers: Answers) {
    let connection = Connection::from_fd(client);
    let mut buffer = [0; MAX_PACKET_LEN];
    let flags = rustix::net::RecvFlags::empty();
    while let Ok(Some((len, _fds))) = packet::receive(&connection, &mut buffer, flags) {
        let Ok(request) = codec::decode::<Request>(&buffer[..len]) else { continue };
        let Some((event, fds)) = answers(&connection, request) else { return };
        let mut out = [0; MAX_PACKET_LEN];
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let bytes = codec::encode(&event, &mut out).unwrap();
        let _ = packet::send(&connection, bytes, &fds, rustix::net::SendFlags::empty());
    }
}

pub fn welcome() -> Event {
    Event::Welcome(Welcome {
        client: ClientId(7),
        session: Token([0; 16]),
        incarnation: 1,
        resumed: false,
        wake_cost_ns: 0,
        ring_len: 65536,
        carries: false,
        crosses: false,
    })
}

pub fn imported(request: RequestId, len: u64) -> Event {
    Event::Imported {
        request,
        link: LinkId(1),
        export: ExportId(1),
        len,
        rights: Rights::WRITE,
        exporter: PeerInfo { client: ClientId(9), pid: 1, uid: 0, gid: 0 },
        introduces: true,
        cpu: u32::MAX,
    }
}
