//! Connections between two nodes that their daemons carry, at the level of messages: who is paired with whom, and what
//! becomes of the rest. What programs see of it: `compat-sunrpc/tests/nodes.rs`.

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
mod common;

use cluster::{KEY, Place, address_of, node_in, node_with, pair_in, pair_with};
use common::{Client, Daemon, as_user, cookie, eventually, is_root, same_file};
use rustix::net::{AddressFamily, SocketType};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use vmmc::control::message::*;
use vmmc::sys::Fd;
use vmmc::sys::bell_line;
use vmmc::sys::doorbell::Doorbell;

const ON: &str = "[streams]\nbetween-nodes = \"on\"\n";
/// Where both ends come: however long a busy machine stands still.
const PATIENT: &[(&str, &str)] = &[("VMMC_PAIR_MS", "60000")];

const SHAPE: StreamShape = StreamShape {
    version: 1,
    control_len: 4096,
    produced_at: [0, 256],
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

fn ip(place: &Place) -> IpAddr {
    place.address.parse::<SocketAddr>().unwrap().ip()
}

/// A connection between two addresses: the connecting end, and the accepting one.
fn connection(from: IpAddr, to: IpAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((to, 0)).unwrap();
    let socket: OwnedFd =
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(from, 0)).unwrap();
    rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
    (TcpStream::from(socket), listener.accept().unwrap().0)
}

/// One end, offered to its node's daemon.
struct End {
    client: Client,
    socket: TcpStream,
    bell: Doorbell,
}

/// What the daemon gave it.
struct Given {
    side: u8,
    memory: Fd,
    ring_len: u32,
    far_bell: Fd,
}

impl End {
    fn offer(place: &Place, socket: TcpStream) -> End {
        End::offer_as(Client::connect_as(&place.daemon.path, Role::Rpc), socket, SHAPE)
    }

    fn offer_as(client: Client, socket: TcpStream, shape: StreamShape) -> End {
        let end = End { client, socket, bell: Doorbell::new().unwrap() };
        let request = Request::RegisterSocket { cookie: cookie(&end.socket), shape };
        end.client.send(&request, &[end.socket.as_fd(), end.bell.fd().as_fd()]);
        end
    }

    fn given(&self) -> Given {
        let mut incoming = self.client.receive();
        match incoming.event {
            Event::Paired { cookie: of, side, ring_len, .. } if of == cookie(&self.socket) => {
                let (memory, far_bell) =
                    (incoming.fds.take().unwrap(), incoming.fds.take().unwrap());
                Given { side, memory, ring_len, far_bell }
            }
            other => panic!("{other:?}, expected Paired"),
        }
    }

    fn refused(&self) -> NotPairedReason {
        match self.client.receive().event {
            Event::NotPaired { cookie: of, reason } if of == cookie(&self.socket) => reason,
            other => panic!("{other:?}, expected NotPaired"),
        }
    }
}

fn word(given: &Given, at: u32) -> u64 {
    let mut word = [0; 8];
    rustix::io::pread(&given.memory, &mut word, u64::from(at)).unwrap();
    u64::from_ne_bytes(word)
}

/// Both ends go on by TCP.
fn talk_by_tcp(one: &TcpStream, other: &TcpStream) {
    for (mut from, mut to) in [(one, other), (other, one)] {
        from.write_all(b"still here").unwrap();
        let mut found = [0; 10];
        to.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"still here");
    }
}

#[test]
fn the_ends_get_a_segment_each_and_what_one_puts_in_comes_out_of_the_other() {
    let (a, b) = pair_in(ON, PATIENT);
    // Either end may be the one that connects.
    for (from, to) in [(&a, &b), (&b, &a)] {
        let (client, server) = connection(ip(from), ip(to));
        let (client, server) = (End::offer(from, client), End::offer(to, server));
        let (one, other) = (client.given(), server.given());
        assert_eq!((one.side + other.side, one.ring_len), (1, other.ring_len));
        assert!(!same_file(&one.memory, &other.memory));
        for (near, far, end, far_end) in
            [(&one, &other, &client, &server), (&other, &one, &server, &client)]
        {
            let ring = 4096 + u64::from(near.side) * u64::from(near.ring_len);
            let tail = SHAPE.produced_at[usize::from(near.side)];
            rustix::io::pwrite(&near.memory, b"carried", ring).unwrap();
            rustix::io::pwrite(&near.memory, &7u64.to_ne_bytes(), u64::from(tail)).unwrap();
            bell_line::ring(&near.far_bell);
            eventually("it has come", || (word(far, tail) == 7).then_some(()));
            let mut found = [0; 7];
            rustix::io::pread(&far.memory, &mut found, ring).unwrap();
            assert_eq!(&found, b"carried");
            // It has not attached, so it is rung.
            assert!(far_end.bell.wait(None).unwrap());
            far_end.bell.drain();
            let place = if std::ptr::eq(end, &client) { from } else { to };
            let snapshot = place.daemon.snapshot();
            let of = cookie(&end.socket);
            let shown = snapshot.connections.iter().find(|it| it.cookie == of).unwrap();
            assert_eq!((shown.state, shown.ring_bytes), (ConnectionState::Carried, 7));
        }
    }
    assert_eq!((a.daemon.counter("carried"), b.daemon.counter("carried")), (2, 2));
}

/// An end that is still being opened when its daemon hands over is answered: the successor knows nothing of it.
#[test]
fn an_end_that_is_being_opened_stays_plain_when_its_daemon_is_replaced() {
    let (a, mut b) = pair_in(ON, PATIENT);
    let (client, server) = connection(ip(&b), ip(&a));
    let end = End::offer(&b, client);
    eventually("it waits for the other end", || {
        let snapshot = b.daemon.snapshot();
        let of = cookie(&end.socket);
        snapshot.connections.iter().find(|it| it.cookie == of).map(|it| it.state)
    });
    let file = b.file();
    let arguments = ["--replace", "--cluster", file.to_str().unwrap()];
    let successor = Daemon::start_in(b.daemon.dir.clone(), &arguments, &[]);
    let mut old = std::mem::replace(&mut b.daemon, successor);
    assert_eq!(end.refused(), NotPairedReason::Resources);
    talk_by_tcp(&end.socket, &server);
    assert!(old.wait().success());
}

#[test]
fn an_end_that_lies_ends_its_connection_and_no_other() {
    let (a, b) = pair_in(ON, PATIENT);
    let made = || {
        let (client, server) = connection(ip(&b), ip(&a));
        let ends = (End::offer(&b, client), End::offer(&a, server));
        let given = (ends.0.given(), ends.1.given());
        (ends, given)
    };
    let (honest, between) = made();
    let (ends, (liar, _other)) = made();
    let tail = SHAPE.produced_at[usize::from(liar.side)];
    rustix::io::pwrite(&liar.memory, &u64::MAX.to_ne_bytes(), u64::from(tail)).unwrap();
    bell_line::ring(&liar.far_bell);
    for end in [&ends.0, &ends.1] {
        assert_eq!((&end.socket).read(&mut [0]).unwrap(), 0, "the connection is shut down");
    }
    let tail = SHAPE.produced_at[usize::from(between.0.side)];
    rustix::io::pwrite(&between.0.memory, &9u64.to_ne_bytes(), u64::from(tail)).unwrap();
    bell_line::ring(&between.0.far_bell);
    eventually("others go on", || (word(&between.1, tail) == 9).then_some(()));
    drop(honest);
}

#[test]
fn an_end_whose_other_end_does_not_come_stays_with_tcp() {
    let (a, b) = pair_with(ON);
    let (client, server) = connection(ip(&b), ip(&a));
    let other = client.try_clone().unwrap();
    let end = End::offer(&a, server);
    assert_eq!(end.refused(), NotPairedReason::NoPartner);
    talk_by_tcp(&other, &end.socket);
    // And who comes when the first has had enough.
    let late = End::offer(&b, client);
    assert_eq!(late.refused(), NotPairedReason::NoPartner);
    talk_by_tcp(&late.socket, &end.socket);
}

/// Of one that the process has no use of any more, while it is opened or later, nothing stays, and TCP goes on only
/// where nobody was told otherwise.
#[test]
fn an_end_that_is_forgotten_while_it_is_opened_leaves_nothing() {
    let (a, b) = pair_with(ON);
    let forget = |end: &End| {
        end.client.send(&Request::ForgetSocket { cookie: cookie(&end.socket) }, &[]);
    };
    // Nobody waits for the next one: what each leaves would show.
    let mut settled = 0;
    for count in [1, 20] {
        let mut ends = Vec::new();
        for _ in 0..count {
            let (client, server) = connection(ip(&b), ip(&a));
            let mut end = End::offer(&a, server);
            forget(&end);
            end.client.assert_silent();
            ends.push((end, client));
        }
        let ends: Vec<_> =
            ends.into_iter().map(|(end, other)| (end, End::offer(&b, other))).collect();
        for (end, late) in ends {
            assert_eq!(late.refused(), NotPairedReason::NoPartner);
            talk_by_tcp(&late.socket, &end.socket);
        }
        eventually("nothing is left", || {
            let now = a.daemon.snapshot();
            let none = now.connections.iter().all(|it| !it.alive) && now.exports.is_empty();
            none.then_some(())
        });
        let descriptors = a.daemon.settled_descriptors();
        if count == 1 {
            settled = descriptors;
        }
        assert!(descriptors < settled + 20, "{descriptors}, and {settled} after the first");
    }
}

#[test]
fn ends_of_other_versions_of_nodes_that_carry_none_and_at_other_addresses_stay_with_tcp() {
    let (a, b) = pair_with(ON);
    let refused = |one: End, other: End| {
        assert_eq!([one.refused(), other.refused()], [NotPairedReason::NoPartner; 2]);
        talk_by_tcp(&one.socket, &other.socket);
    };
    let (client, server) = connection(ip(&b), ip(&a));
    let newer = Client::connect_as(&b.daemon.path, Role::Rpc);
    let newer = End::offer_as(newer, client, StreamShape { version: 2, ..SHAPE });
    refused(newer, End::offer(&a, server));
    // From an address of the same machine that is not the node's: a program there may have any.
    let (client, server) = connection("127.0.0.9".parse().unwrap(), ip(&a));
    refused(End::offer(&b, client), End::offer(&a, server));

    let (at_c, at_d) = (address_of("c"), address_of("d"));
    let c = node_with("c", &at_c, &[("d", &at_d)], Some(KEY), ON);
    let d = node_with("d", &at_d, &[("c", &at_c)], Some(KEY), "");
    let carries = |place: &Place| Client::connect_as(&place.daemon.path, Role::Rpc).welcome.carries;
    assert!(carries(&c) && !carries(&d));
    let (client, server) = connection(ip(&c), ip(&d));
    refused(End::offer(&c, client), End::offer(&d, server));
}

/// Anybody can make a network namespace in which he has this node's address, and the other one's. What is connected there
/// proves nothing here.
#[test]
fn a_connection_of_another_network_namespace_stays_with_tcp() {
    if !is_root() {
        eprintln!("not run: a network namespace needs root");
        return;
    }
    let (a, b) = pair_with(ON);
    let (client, server) = std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            // SAFETY: of this thread alone.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
            assert!(up.expect("ip (Debian package iproute2)").success());
            connection(ip(&b), ip(&a))
        });
        there.join().unwrap()
    });
    let (one, other) = (End::offer(&b, client), End::offer(&a, server));
    assert_eq!([one.refused(), other.refused()], [NotPairedReason::NoPartner; 2]);
    assert_eq!((a.daemon.counter("carried"), b.daemon.counter("carried")), (0, 0));
    talk_by_tcp(&one.socket, &other.socket);
}

/// Both nodes' policies are asked, each about the user whom the other's counts as: here one allows and the other does
/// not, whichever side of the connection it is.
#[test]
fn users_who_may_not_share_memory_stay_with_tcp() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let (at_a, at_b) = (address_of("a"), address_of("b"));
    let mapped = format!("{ON}[users.map]\n\"b:1000\" = 1001\n");
    let a = node_in("a", &at_a, &[("b", &at_b)], Some(KEY), &mapped, PATIENT);
    let b = node_in("b", &at_b, &[("a", &at_a)], Some(KEY), ON, PATIENT);
    a.wait_for_others();
    b.wait_for_others();
    let offer = |place: &Place, uid: u32, socket: TcpStream| {
        for (path, mode) in
            [(place.daemon.path.parent().unwrap(), 0o755), (&place.daemon.path, 0o666)]
        {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = place.daemon.path.clone();
        let client = as_user(uid, uid, &[], move || Client::connect_as(&path, Role::Rpc));
        End::offer_as(client, socket, SHAPE)
    };
    for (from, to) in [(&a, &b), (&b, &a)] {
        let (client, server) = connection(ip(from), ip(to));
        let (one, other) = (offer(from, 1000, client), offer(to, 1000, server));
        let reasons = [one.refused(), other.refused()];
        assert!(reasons.contains(&NotPairedReason::Policy), "{reasons:?}");
        talk_by_tcp(&one.socket, &other.socket);
    }
    let (client, server) = connection(ip(&b), ip(&a));
    let (one, other) = (offer(&b, 1002, client), offer(&a, 1002, server));
    assert_eq!(one.given().side + other.given().side, 1);
}

#[test]
fn an_address_is_a_neighbour_s_if_the_cluster_file_says_so() {
    let (a, b) = pair_with(ON);
    let client = Client::connect_as(&a.daemon.path, Role::Rpc);
    // The nodes of a test have one address, and a port each.
    for (address, expected) in [(ip(&b), true), ("10.1.2.3".parse().unwrap(), false)] {
        client.send(&Request::Neighbour { address }, &[]);
        assert_eq!(client.receive().event, Event::Neighbour { address, is: expected });
    }
}
