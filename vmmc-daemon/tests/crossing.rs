//! Connections between network namespaces: paired where their packets prove what they are, and nowhere else.
//!
//! Namespaces need root; without it nothing is run. Whole programs in two namespaces: `ci/net`.
#![allow(missing_docs)]

mod common;
use common::*;
use rustix::net::sockopt::{ip_ttl, set_ip_ttl, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketType};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vmmc::control::message::*;
use vmmc::sys::{Fd, namespace};

/// Addresses of the two namespaces on the link between them.
const A: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);

/// Two network namespaces, and a link between them.
struct Two {
    names: [String; 2],
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split_whitespace()).status();
    assert!(status.expect("iproute2 is needed, see ci/deps").success(), "ip {words}");
}

impl Two {
    /// `None`, and said, where this is not root.
    fn new() -> Option<Two> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: network namespaces need root");
            return None;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|it| format!("vx{}x{number}{it}", std::process::id()));
        let two = Two { names };
        let [a, b] = &two.names;
        for name in &two.names {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        ip(&format!("link add l{number} netns {a} type veth peer name l{number} netns {b}"));
        for (name, address) in two.names.iter().zip([A, B]) {
            ip(&format!("-n {name} addr add {address}/24 dev l{number}"));
            ip(&format!("-n {name} link set l{number} up"));
        }
        Some(two)
    }

    /// Does something in one of them, in a thread of its own.
    fn within<T: Send>(&self, which: usize, work: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(format!("/run/netns/{}", self.names[which])).unwrap();
        let place = Fd::from(std::os::fd::OwnedFd::from(file));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                namespace::enter(&place).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// A connection from one address and port to another.
fn connect(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &from).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    socket.into()
}

/// The two ends talk until told to stop.
fn converse(ends: [&TcpStream; 2], stop: &AtomicBool, mut between: impl FnMut() + Send) {
    let [mut one, mut other] = ends;
    let mut byte = [0u8];
    while !stop.load(Ordering::Relaxed) {
        one.write_all(b"x").unwrap();
        other.read_exact(&mut byte).unwrap();
        other.write_all(b"y").unwrap();
        one.read_exact(&mut byte).unwrap();
        between();
    }
}

/// Offers both ends of a connection.
fn register_both(client: &Client, ends: [&TcpStream; 2]) {
    for end in ends {
        register(client, end, SHAPE);
    }
}

/// What became of two ends that were offered.
fn outcomes(client: &Client) -> [Event; 2] {
    [client.receive().event, client.receive().event]
}

fn daemon() -> Daemon {
    // Who is not proved may be waited for however long a busy machine takes.
    Daemon::start_with(&["--across-namespaces"], &[("VMMC_PAIR_MS", "20000")])
}

/// A connection from one namespace to the other, and a client that may offer both of its ends.
struct Crossing {
    a: TcpStream,
    b: TcpStream,
    client: Client,
    daemon: Daemon,
    two: Two,
}

impl Crossing {
    /// `None`, and said, where this is not root.
    fn new() -> Option<Crossing> {
        let two = Two::new()?;
        let daemon = daemon();
        let client = Client::connect_as(&daemon.path, Role::Sockets);
        let listener = two.within(1, || TcpListener::bind((B, 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let a = two.within(0, || TcpStream::connect(to).unwrap());
        let b = listener.accept().unwrap().0;
        Some(Crossing { a, b, client, daemon, two })
    }

    fn register(&self) {
        register_both(&self.client, [&self.a, &self.b]);
    }

    /// The hop limits of both ends.
    fn hop_limits(&self) -> [u32; 2] {
        [&self.a, &self.b].map(|end| ip_ttl(end).unwrap())
    }
}

#[test]
fn the_ends_in_two_namespaces_are_paired_by_their_packets() {
    let Some(it) = Crossing::new() else { return };
    assert!(it.client.welcome.crosses);
    // What the program has set is as before.
    set_ip_ttl(&it.b, 99).unwrap();
    let before = it.hop_limits();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| converse([&it.a, &it.b], &stop, || {}));
        // A trial is given up when a machine is so busy that no packet comes: then it is made again.
        eventually("a trial that ends well", || {
            it.register();
            match outcomes(&it.client) {
                [Event::Paired { .. }, Event::Paired { .. }] => Some(()),
                others => {
                    let proved = |it: &Event| matches!(it, Event::Paired { .. });
                    assert!(!others.iter().any(proved), "{others:?}");
                    None
                }
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(it.daemon.counter("crossed"), 1);
    assert_eq!(it.hop_limits(), before);
}

#[test]
fn two_connections_with_the_same_addresses_are_not_taken_for_one() {
    let Some(two) = Two::new() else { return };
    let daemon = daemon();
    let client = Client::connect_as(&daemon.path, Role::Sockets);
    // A whole connection in each namespace, with the same four numbers, and both talk.
    let [at, from] = [4003, 4004].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let whole = |which| {
        two.within(which, || {
            let listener = TcpListener::bind(at).unwrap();
            let one = connect(from, at);
            (one, listener.accept().unwrap().0)
        })
    };
    let ((a, a_peer), (b_peer, b)) = (whole(0), whole(1));
    assert_eq!(a.local_addr().unwrap(), b.peer_addr().unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| converse([&a, &a_peer], &stop, || {}));
        // Its owner tries every number in turn.
        let mut limit = 70;
        let guesser = &b_peer;
        let guess = move || {
            limit = if limit < 254 { limit + 1 } else { 70 };
            set_ip_ttl(guesser, limit).unwrap();
        };
        let (ends, until) = ([&b_peer, &b], &stop);
        scope.spawn(move || converse(ends, until, guess));
        for _ in 0..3 {
            register_both(&client, [&a, &b]);
            for event in outcomes(&client) {
                let NotPairedReason::OtherNamespace = (match event {
                    Event::NotPaired { reason, .. } => reason,
                    other => panic!("{other:?}"),
                }) else {
                    panic!("another reason");
                };
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(daemon.counter("crossed"), 0);
    assert_eq!(daemon.counter("pairs"), 0);
}

#[test]
fn an_end_that_is_closed_on_trial_is_let_go() {
    let Some(mut it) = Crossing::new() else { return };
    // Nobody says anything: the trial goes on until it is given up.
    it.register();
    it.client.send(&Request::ForgetSocket { cookie: cookie(&it.a) }, &[]);
    drop(it.a);
    // Its other end sees the end: no copy is left in the daemon.
    assert_eq!(it.b.read(&mut [0]).unwrap(), 0);
    assert_eq!(it.daemon.counter("crossed"), 0);
}

/// What the trial of a connection that says nothing has set, once it has.
fn changed(socket: &TcpStream, before: u32) -> u32 {
    eventually("the trial begins", || ip_ttl(socket).ok().filter(|&now| now != before))
}

#[test]
fn a_daemon_that_ends_gives_the_hop_limits_back() {
    let Some(mut it) = Crossing::new() else { return };
    set_ip_ttl(&it.b, 99).unwrap();
    let before = it.hop_limits();
    it.register();
    changed(&it.a, before[0]);
    assert!(it.daemon.terminate().success());
    assert_eq!(it.hop_limits(), before);
}

#[test]
fn a_hop_limit_that_the_program_sets_on_trial_stays() {
    let Some(it) = Crossing::new() else { return };
    let before = ip_ttl(&it.a).unwrap();
    it.register();
    changed(&it.a, before);
    set_ip_ttl(&it.a, 33).unwrap();
    outcomes(&it.client);
    assert_eq!(ip_ttl(&it.a).unwrap(), 33);
}

#[test]
fn a_receiver_that_minds_hop_limits_loses_no_packet() {
    let Some(it) = Crossing::new() else { return };
    // As routers do that take nothing from farther away.
    set_ip_ttl(&it.a, 255).unwrap();
    let least = 255i32;
    // SAFETY: a number on this stack, and its length.
    let rc = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&it.b),
            libc::IPPROTO_IP,
            libc::IP_MINTTL,
            (&raw const least).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    assert_eq!(rc, 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| converse([&it.a, &it.b], &stop, || {}));
        it.register();
        outcomes(&it.client);
        stop.store(true, Ordering::Relaxed);
    });
    let counts =
        it.two.within(1, || std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
    let mut lines = counts.lines().filter(|it| it.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split(' ').zip(values.split(' '));
    assert_eq!(both.find(|it| it.0 == "TCPMinTTLDrop").unwrap().1, "0");
}
