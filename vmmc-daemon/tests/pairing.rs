//! The two ends of real TCP connections.

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
mod common;
use common::given_back::{WORDS, given_back_by, paired, read_all};
use common::*;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use vmmc::control::message::*;
use vmmc_ring::pump::request;

/// For tests in which both ends come, however long the second one takes on a busy machine.
const WAITS: &[(&str, &str)] = &[("VMMC_PAIR_MS", "60000")];

fn attach(client: &Client, socket: &TcpStream) {
    client.send(&Request::AttachSocket { cookie: cookie(socket) }, &[socket.as_fd()]);
}

fn sockets_client(daemon: &Daemon) -> Client {
    Client::connect_as(&daemon.path, Role::Sockets)
}

#[test]
fn the_ends_of_a_connection_get_the_same_sealed_segment() {
    let daemon = Daemon::start_with(&["--ring-kib", "64"], &[]);
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (one, other) = (sockets_client(&daemon), sockets_client(&daemon));
        assert_eq!(one.welcome.ring_len, 64 * 1024);
        let (a, b) = connection(at);
        register(&one, &a, SHAPE);
        register(&other, &b, SHAPE);
        let (side_a, ring_a, segment_a) = paired(&one, &a);
        let (side_b, ring_b, segment_b) = paired(&other, &b);
        // Whoever came first is side 0; two clients are not served in a fixed order.
        assert_eq!(side_a + side_b, 1);
        assert_eq!((ring_a, ring_b), (64 * 1024, 64 * 1024));
        assert!(same_file(&segment_a, &segment_b));
        vmmc::sys::memfd::verify(&segment_a, 4096 + 2 * 64 * 1024).unwrap();

        let counts = SHAPE.produced_at.map(u64::from);
        let at = |side: u8| counts[usize::from(side)];
        rustix::io::pwrite(&segment_a, &7u64.to_ne_bytes(), at(side_a)).unwrap();
        rustix::io::pwrite(&segment_b, &9u64.to_ne_bytes(), at(side_b)).unwrap();
        let snapshot = daemon.snapshot();
        let shown = |socket: &TcpStream| {
            let found = snapshot.connections.iter().find(|it| it.cookie == cookie(socket)).unwrap();
            assert_eq!(found.state, ConnectionState::Paired);
            assert_eq!(found.local, socket.local_addr().unwrap().to_string());
            found.ring_bytes
        };
        assert_eq!((shown(&a), shown(&b)), (7, 9));
    }
    assert_eq!(daemon.counter("pairs"), 2);
}

#[test]
fn both_ends_may_be_in_one_process() {
    let daemon = Daemon::start_with(&[], WAITS);
    let client = sockets_client(&daemon);
    let (a, b) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    register(&client, &b, SHAPE);
    assert_eq!(paired(&client, &a).0, 0);
    assert_eq!(paired(&client, &b).0, 1);
}

#[test]
fn a_v4_client_of_a_v6_listener_is_paired() {
    let daemon = Daemon::start_with(&[], WAITS);
    let client = sockets_client(&daemon);
    let listener = TcpListener::bind("[::]:0").unwrap();
    let a = TcpStream::connect(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
    let b = listener.accept().unwrap().0;
    register(&client, &a, SHAPE);
    register(&client, &b, SHAPE);
    paired(&client, &a);
    paired(&client, &b);
}

/// A copy held by the daemon would keep the peer from seeing the close.
#[test]
fn the_daemon_keeps_no_copy_of_the_socket() {
    let daemon = Daemon::start_with(&[], WAITS);
    let client = sockets_client(&daemon);
    let (a, mut b) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    register(&client, &b, SHAPE);
    paired(&client, &a);
    paired(&client, &b);
    drop(a);
    b.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert_eq!(b.read(&mut [0]).unwrap(), 0, "end of file");
}

#[test]
fn an_end_without_partner_stays_plain_and_the_snapshot_says_why() {
    let daemon = Daemon::start();
    let client = sockets_client(&daemon);
    let (a, b) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    assert_eq!(not_paired(&client, &a), NotPairedReason::NoPartner);
    let snapshot = daemon.snapshot();
    let shown = snapshot.connections.iter().find(|it| it.cookie == cookie(&a)).unwrap();
    assert_eq!(shown.state, ConnectionState::Plain(NotPairedReason::NoPartner));
    assert_eq!(shown.remote, a.peer_addr().unwrap().to_string());
    // The partner is late: it waits for one that will not come again by itself.
    register(&client, &b, SHAPE);
    assert_eq!(not_paired(&client, &b), NotPairedReason::NoPartner);
    assert_eq!(daemon.counter("not_paired_no_partner"), 2);
}

/// A library offers one again that stayed plain, now and then.
#[test]
fn a_connection_that_is_offered_again_is_shown_once_as_it_is_now() {
    let daemon = Daemon::start_with(&[], &[("VMMC_PAIR_MS", "200")]);
    let client = sockets_client(&daemon);
    let (a, b) = connection("127.0.0.1:0");
    let shown = || {
        let all = daemon.snapshot().connections;
        let of_a = all.into_iter().filter(|it| it.cookie == cookie(&a));
        of_a.map(|it| it.state).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        register(&client, &a, SHAPE);
        assert_eq!(not_paired(&client, &a), NotPairedReason::NoPartner);
        assert_eq!(shown(), [ConnectionState::Plain(NotPairedReason::NoPartner)]);
    }
    // However late the second end is by this machine's doing: then both are offered once more.
    eventually("both ends wait at the same time", || {
        register(&client, &a, SHAPE);
        register(&client, &b, SHAPE);
        let states = [client.receive(), client.receive()].map(|incoming| incoming.event);
        states.iter().all(|it| matches!(it, Event::Paired { .. })).then_some(())
    });
    assert_eq!(shown(), [ConnectionState::Paired]);
}

/// Its time is up when the daemon goes on, but the partner had come in time.
#[test]
fn an_end_whose_partner_came_while_the_daemon_stood_still_is_paired() {
    let daemon = Daemon::start();
    let [one, other] = [sockets_client(&daemon), sockets_client(&daemon)];
    let (a, b) = eventually("the daemon is stopped while the first end waits", || {
        let (a, b) = connection("127.0.0.1:0");
        register(&one, &a, SHAPE);
        eventually("the daemon knows it", || {
            daemon.snapshot().connections.iter().any(|it| it.cookie == cookie(&a)).then_some(())
        });
        daemon.signal(rustix::process::Signal::STOP);
        daemon.wait_stopped();
        if !readable(&one.connection) {
            return Some((a, b));
        }
        // Its time is up already.
        daemon.signal(rustix::process::Signal::CONT);
        assert_eq!(not_paired(&one, &a), NotPairedReason::NoPartner);
        None
    });
    register(&other, &b, SHAPE);
    std::thread::sleep(std::time::Duration::from_millis(1300));
    daemon.signal(rustix::process::Signal::CONT);
    paired(&one, &a);
    paired(&other, &b);
}

/// The reason outlives the program, and so does who it was.
#[test]
fn a_connection_that_stayed_plain_is_shown_as_its_programs_also_when_that_is_gone() {
    let daemon = Daemon::start();
    let client = sockets_client(&daemon);
    let (a, _b) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    not_paired(&client, &a);
    let shown = || {
        let connections = daemon.snapshot().connections;
        connections.into_iter().find(|it| it.cookie == cookie(&a)).unwrap()
    };
    assert_eq!((shown().pid, shown().alive), (std::process::id(), true));
    drop(client);
    let gone = eventually("the client is gone", || Some(shown()).filter(|it| !it.alive));
    assert_eq!((gone.pid, gone.program.as_str()), (std::process::id(), "test"));
}

/// The pair itself is kept for a while, for a program that replaces itself.
#[test]
fn an_upgraded_connection_is_shown_while_a_process_has_it_and_its_bytes_are_counted_after() {
    let daemon = Daemon::start_with(&[], WAITS);
    let (one, other) = (sockets_client(&daemon), sockets_client(&daemon));
    let (a, b) = connection("127.0.0.1:0");
    register(&one, &a, SHAPE);
    register(&other, &b, SHAPE);
    let (side, _, segment) = paired(&one, &a);
    paired(&other, &b);
    let at = SHAPE.produced_at[usize::from(side)];
    rustix::io::pwrite(&segment, &7u64.to_ne_bytes(), u64::from(at)).unwrap();
    drop(one);
    let shown = || daemon.snapshot().connections;
    eventually("one end has no process", || {
        let ends = shown();
        let (gone, alive): (Vec<_>, Vec<_>) = ends.iter().partition(|end| !end.alive);
        assert!(ends.len() == 2 && ends.iter().all(|end| end.pid == std::process::id()));
        (gone.len() == 1 && alive.len() == 1).then_some(())
    });
    drop(other);
    eventually("no process has it", || shown().is_empty().then_some(()));
    assert_eq!(daemon.counter("ended_ring_bytes"), 7);
}

#[test]
fn what_is_not_an_established_connection_is_not_paired() {
    let daemon = Daemon::start();
    let client = sockets_client(&daemon);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let of_listener = rustix::net::sockopt::socket_cookie(&listener).unwrap();
    let request = Request::RegisterSocket { cookie: of_listener, shape: SHAPE };
    client.send(&request, &[listener.as_fd()]);
    assert_eq!(not_paired(&client, &listener), NotPairedReason::NotEstablished);
    let (mut half, closed) = connection("127.0.0.1:0");
    drop(closed);
    assert_eq!(half.read(&mut [0]).unwrap(), 0);
    register(&client, &half, SHAPE);
    assert_eq!(not_paired(&client, &half), NotPairedReason::NotEstablished);
    // A cookie that is not the socket's.
    let (a, b) = connection("127.0.0.1:0");
    let request = Request::RegisterSocket { cookie: cookie(&b), shape: SHAPE };
    client.send(&request, &[a.as_fd()]);
    assert_eq!(not_paired(&client, &b), NotPairedReason::NotEstablished);
}

/// Descriptors that the daemon has no number for are lost on the way: its fault, not the client's.
#[test]
fn a_daemon_without_room_for_descriptors_refuses_the_request_and_keeps_the_client() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let daemon = Daemon::start();
    let client = sockets_client(&daemon);
    let mut other = Client::connect(&daemon.path);
    let (a, b) = connection("127.0.0.1:0");
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| {
        let pid = Pid::from_raw(daemon.pid() as i32);
        prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    };
    limit(Some(3));
    register(&client, &a, SHAPE);
    assert_eq!(not_paired(&client, &a), NotPairedReason::Resources);
    let memory = memory(4096);
    let refused = [
        other.try_export(Export::of("none", &memory)).unwrap_err(),
        other.try_import(Import::of("none")).unwrap_err(),
    ];
    for refusal in refused {
        assert!(refusal.to_string().contains("LimitNOFILE"), "{refusal}");
    }
    limit(maximum);
    register(&client, &a, SHAPE);
    register(&client, &b, SHAPE);
    paired(&client, &a);
    paired(&client, &b);
    other.export("some");
}

#[test]
fn different_shapes_are_different_versions() {
    let daemon = Daemon::start();
    let client = sockets_client(&daemon);
    let (a, b) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    register(&client, &b, StreamShape { version: 2, ..SHAPE });
    assert_eq!(not_paired(&client, &b), NotPairedReason::OtherVersion);
    assert_eq!(not_paired(&client, &a), NotPairedReason::OtherVersion);
}

#[test]
fn a_shape_that_makes_no_sense_ends_the_client() {
    let daemon = Daemon::start_with(&[], WAITS);
    let (a, _b) = connection("127.0.0.1:0");
    for shape in [
        StreamShape { control_len: 0, ..SHAPE },
        StreamShape { control_len: 4097, ..SHAPE },
        StreamShape { control_len: 128 * 1024, ..SHAPE },
        StreamShape { produced_at: [4096, 0], ..SHAPE },
        StreamShape { produced_at: [4, 0], ..SHAPE },
        StreamShape { produced_at: [0, u32::MAX - 7], ..SHAPE },
    ] {
        let client = sockets_client(&daemon);
        register(&client, &a, shape);
        assert!(client.is_cut_off(), "{shape:?}");
    }
    assert_eq!(daemon.counter("malformed"), 6);
}

#[test]
fn a_socket_is_registered_once() {
    let daemon = Daemon::start();
    let (one, other) = (sockets_client(&daemon), sockets_client(&daemon));
    let (a, b) = connection("127.0.0.1:0");
    register(&one, &a, SHAPE);
    register(&one, &a, SHAPE);
    assert_eq!(not_paired(&one, &a), NotPairedReason::Conflict);
    register(&one, &b, SHAPE);
    paired(&one, &a);
    paired(&one, &b);
    register(&other, &a, SHAPE);
    assert_eq!(not_paired(&other, &a), NotPairedReason::Conflict);
}

#[test]
fn an_upgraded_connection_that_reached_another_process_can_be_attached() {
    let daemon = Daemon::start();
    let (one, other) = (sockets_client(&daemon), sockets_client(&daemon));
    let (a, b) = connection("127.0.0.1:0");
    let third = sockets_client(&daemon);
    attach(&third, &a);
    assert_eq!(not_paired(&third, &a), NotPairedReason::Conflict, "not upgraded yet");
    register(&one, &a, SHAPE);
    register(&other, &b, SHAPE);
    let (side, _, segment) = paired(&one, &a);
    paired(&other, &b);
    // The first holder is gone, as by exec; the connection is not.
    drop(one);
    eventually("it is gone", || (daemon.snapshot().clients.len() == 3).then_some(()));
    attach(&third, &a);
    let attached = paired(&third, &a);
    assert_eq!(attached.0, side);
    assert!(same_file(attached.2, segment));
    // Possession of the socket is what counts.
    let stranger = sockets_client(&daemon);
    let (unrelated, _) = connection("127.0.0.1:0");
    stranger.send(&Request::AttachSocket { cookie: cookie(&a) }, &[unrelated.as_fd()]);
    assert_eq!(not_paired(&stranger, &a), NotPairedReason::Conflict);
    stranger.send(&Request::AttachSocket { cookie: cookie(&a) }, &[]);
    assert_eq!(not_paired(&stranger, &a), NotPairedReason::Conflict);
}

/// A connection, one of whose ends was just closed, is forgotten some time after that: vmmcd may still have that end itself.
fn until_forgotten(client: &Client, end: &TcpStream) {
    loop {
        attach(client, end);
        match client.receive().event {
            Event::NotPaired { reason, .. } => {
                assert_eq!(reason, NotPairedReason::Conflict);
                break;
            }
            Event::Paired { .. } => {
                client.send(&Request::ForgetSocket { cookie: cookie(end) }, &[]);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_connection_is_forgotten_when_both_ends_are() {
    let daemon = Daemon::start();
    let client = sockets_client(&daemon);
    let (a, b) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    register(&client, &b, SHAPE);
    paired(&client, &a);
    paired(&client, &b);
    client.send(&Request::ForgetSocket { cookie: cookie(&a) }, &[]);
    attach(&client, &a);
    paired(&client, &a);
    let cookie_of_b = cookie(&b);
    drop(b);
    client.send(&Request::ForgetSocket { cookie: cookie(&a) }, &[]);
    client.send(&Request::ForgetSocket { cookie: cookie_of_b }, &[]);
    client.send(&Request::ForgetSocket { cookie: 12345 }, &[]);
    until_forgotten(&client, &a);
    // One that waits can be forgotten too, and then no answer comes.
    let (c, d) = connection("127.0.0.1:0");
    register(&client, &c, SHAPE);
    client.send(&Request::ForgetSocket { cookie: cookie(&c) }, &[]);
    register(&client, &d, SHAPE);
    assert_eq!(not_paired(&client, &d), NotPairedReason::NoPartner);
}

/// Both ends were inherited by children, which say nothing, and closed by those who registered them.
#[test]
fn a_connection_is_kept_while_somebody_has_its_sockets() {
    let daemon = Daemon::start_with(&[], WAITS);
    let client = sockets_client(&daemon);
    let (a, b) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    register(&client, &b, SHAPE);
    paired(&client, &a);
    paired(&client, &b);
    a.shutdown(std::net::Shutdown::Write).unwrap();
    client.send(&Request::ForgetSocket { cookie: cookie(&a) }, &[]);
    client.send(&Request::ForgetSocket { cookie: cookie(&b) }, &[]);
    attach(&client, &a);
    paired(&client, &a);
    client.send(&Request::ForgetSocket { cookie: cookie(&a) }, &[]);
    drop(b);
    until_forgotten(&client, &a);
}

/// The same where nobody is connected who could keep the daemon: it does not end when idle.
#[test]
fn an_idle_daemon_stays_for_a_connection_that_silent_processes_have() {
    const IDLE: &[&str] = &["--idle-exit", "3"];
    let mut daemon = Daemon::start_with(IDLE, WAITS);
    let client = sockets_client(&daemon);
    let (a, b) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    register(&client, &b, SHAPE);
    paired(&client, &a);
    paired(&client, &b);
    drop(client);
    // Alone later than that one.
    drop(daemon.snapshot());
    Daemon::start_with(IDLE, WAITS).wait();
    let client = sockets_client(&daemon);
    attach(&client, &a);
    paired(&client, &a);
    drop((client, a, b));
    daemon.wait();
}

/// G6.
#[test]
fn one_connection_past_the_quota_stays_plain() {
    let daemon = Daemon::start_with(&["--connections-per-user", "2"], &[]);
    let client = sockets_client(&daemon);
    let (a, b) = connection("127.0.0.1:0");
    let (c, _d) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    register(&client, &b, SHAPE);
    paired(&client, &a);
    paired(&client, &b);
    register(&client, &c, SHAPE);
    assert_eq!(not_paired(&client, &c), NotPairedReason::Quota);
}

/// Two users share no memory unless the daemon was told that they may.
#[test]
fn ends_of_two_users_are_paired_only_by_a_policy_that_says_so() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    for (policy, allowed) in [("same", false), ("any", true)] {
        let daemon = Daemon::start_activated(&["--pair-users", policy], &[]);
        let client = |uid| as_user(uid, uid, &[], || sockets_client(&daemon));
        let (one, other) = (client(61_001), client(61_002));
        let (a, b) = connection("127.0.0.1:0");
        register(&one, &a, SHAPE);
        register(&other, &b, SHAPE);
        if allowed {
            assert_eq!(paired(&one, &a).0 + paired(&other, &b).0, 1);
        } else {
            assert_eq!(not_paired(&one, &a), NotPairedReason::Policy);
            assert_eq!(not_paired(&other, &b), NotPairedReason::Policy);
        }
    }
}

/// Killed between the two answers: both ends see that the daemon is gone.
#[test]
fn a_daemon_killed_while_it_pairs_leaves_clients_that_know() {
    for point in ["pair-made", "pair-half-sent"] {
        let mut daemon = Daemon::start_with(&[], &[("VMMCD_FAILPOINT", point)]);
        let (one, other) = (sockets_client(&daemon), sockets_client(&daemon));
        let (a, b) = connection("127.0.0.1:0");
        register(&one, &a, SHAPE);
        register(&other, &b, SHAPE);
        assert!(!daemon.wait().success());
        let ends = [&one, &other].map(|client| {
            let deadline = std::time::Instant::now() + WATCHDOG;
            match client.connection.receive_until(deadline) {
                Ok(incoming) => {
                    assert!(matches!(incoming.event, Event::Paired { .. }), "{point}");
                    assert!(client.is_cut_off());
                    true
                }
                Err(error) => {
                    assert!(matches!(error, vmmc::control::connect::LinkError::Gone), "{error}");
                    false
                }
            }
        });
        let told = ends.into_iter().filter(|told| *told).count();
        assert_eq!(told, usize::from(point == "pair-half-sent"), "{point}");
    }
}

#[test]
fn pairs_survive_a_takeover() {
    let mut old = Daemon::start();
    let client = sockets_client(&old);
    let (a, b) = connection("127.0.0.1:0");
    register(&client, &a, SHAPE);
    register(&client, &b, SHAPE);
    let (_, _, segment) = paired(&client, &a);
    paired(&client, &b);
    let (c, d) = connection("127.0.0.1:0");
    register(&client, &c, SHAPE);
    let new = Daemon::start_in(old.dir.clone(), &["--replace"], &[]);
    old.wait();
    attach(&client, &a);
    let mut events = Vec::new();
    register(&client, &d, SHAPE);
    // The waiting end is paired by the successor, or its time ran out meanwhile.
    for _ in 0..3 {
        let mut incoming = client.receive();
        if let Event::Paired { cookie: of, .. } = &incoming.event
            && *of == cookie(&a)
        {
            assert!(same_file(incoming.fds.take().unwrap(), &segment));
        }
        events.push(incoming.event);
    }
    let of = |socket: &TcpStream| {
        events.iter().any(|event| match event {
            Event::Paired { cookie: of, .. } | Event::NotPaired { cookie: of, .. } => {
                *of == cookie(socket)
            }
            _ => false,
        })
    };
    assert!(of(&a) && of(&c) && of(&d), "{events:?}");
    assert!(counter(&new.snapshot(), "pairs") >= 1);
}

/// Runs `work` in a network namespace of its own, with loopback up. Needs root.
fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: only this short-lived thread changes its namespace.
            let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(rc, 0, "unshare: {}", std::io::Error::last_os_error());
            loopback_up();
            work()
        });
        thread.join().unwrap()
    })
}

fn loopback_up() {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: SIOCSIFFLAGS reads the ifreq, which lives until the call returns.
    let rc = unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw mut request) };
    assert_eq!(rc, 0, "loopback: {}", std::io::Error::last_os_error());
}

#[test]
fn equal_addresses_in_different_namespaces_are_not_paired() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: a network namespace needs root");
        return;
    }
    let daemon = Daemon::start();
    let client = sockets_client(&daemon);
    // The same two ports on both sides, by choosing them explicitly.
    let fixed = |server: u16, client: u16| {
        let listener = TcpListener::bind(("127.0.0.1", server)).unwrap();
        let a = bound_connect(client, server);
        let b = listener.accept().unwrap().0;
        (a, b)
    };
    let (a1, b1) = in_new_namespace(|| fixed(4001, 4002));
    let (a2, b2) = in_new_namespace(|| fixed(4001, 4002));
    assert_eq!(a1.local_addr().unwrap(), a2.local_addr().unwrap());
    register(&client, &a1, SHAPE);
    register(&client, &b2, SHAPE);
    let mut reasons = [not_paired_any(&client), not_paired_any(&client)];
    reasons.sort_unstable_by_key(|it| it.0);
    let mut cookies = [cookie(&a1), cookie(&b2)];
    cookies.sort_unstable();
    assert_eq!(reasons.map(|it| it.0), cookies);
    assert!(reasons.iter().all(|it| it.1 == NotPairedReason::OtherNamespace), "{reasons:?}");
    // Within one namespace they are.
    register(&client, &a2, SHAPE);
    register(&client, &a1, SHAPE);
    register(&client, &b1, SHAPE);
    paired(&client, &a1);
    paired(&client, &b1);
}

fn not_paired_any(client: &Client) -> (u64, NotPairedReason) {
    match client.receive().event {
        Event::NotPaired { cookie, reason } => (cookie, reason),
        other => panic!("{other:?}"),
    }
}

fn bound_connect(from: u16, to: u16) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType};
    use std::net::SocketAddr;
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], from))).unwrap();
    rustix::net::connect(&socket, &SocketAddr::from(([127, 0, 0, 1], to))).unwrap();
    socket.into()
}

/// An end is rung by the other one, another user's, once it has been told of the pair, and not before: also by a successor.
#[test]
fn an_end_that_has_not_been_told_of_its_pair_is_not_rung_after_a_takeover() {
    use rustix::fs::{Mode, chmod};
    use std::time::Instant;
    const OTHER: u32 = 61_011;
    /// More messages than a socket takes, and fewer than end a client's turns.
    const UNREAD: u64 = 700;
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let mut daemon = Daemon::start_with(&[], WAITS);
    chmod(daemon.dir.path(), Mode::from_raw_mode(0o755)).unwrap();
    chmod(&daemon.path, Mode::from_raw_mode(0o666)).unwrap();
    let deaf = sockets_client(&daemon);
    let other = as_user(OTHER, OTHER, &[], || sockets_client(&daemon));
    for cookie in 0..UNREAD {
        deaf.send(&Request::AttachSocket { cookie }, &[]);
    }
    let shape = StreamShape { bells: true, ..SHAPE };
    let (a, b) = connection("127.0.0.1:0");
    let bells = [(); 2].map(|()| vmmc::sys::doorbell::Doorbell::new().unwrap());
    for ((client, bell), socket) in [&deaf, &other].into_iter().zip(&bells).zip([&a, &b]) {
        let request = Request::RegisterSocket { cookie: cookie(socket), shape };
        client.send(&request, &[socket.as_fd(), bell.fd().as_fd()]);
    }
    paired(&other, &b);
    // Put in with a ring, as that one has been told.
    let soon = || Some(Instant::now() + WATCHDOG);
    assert!(bells[1].wait(soon()).unwrap());
    bells[1].drain();
    let new = Daemon::start_in(daemon.dir.clone(), &["--replace"], WAITS);
    daemon.wait();
    new.snapshot();
    assert!(!readable(bells[0].fd()), "it is rung, and knows of no pair");
    for _ in 0..UNREAD {
        not_paired_any(&deaf);
    }
    let mut incoming = deaf.receive();
    assert!(matches!(incoming.event, Event::Paired { .. }), "{:?}", incoming.event);
    assert!(bells[0].wait(soon()).unwrap());
    // The successor has put the other's in again, under another number.
    drop(incoming.fds.take().expect("the segment"));
    vmmc::sys::doorbell::ring(incoming.fds.take().expect("the other end's doorbell"));
    assert!(bells[1].wait(soon()).unwrap());
}

#[test]
fn with_bells_each_end_gets_the_others_doorbell() {
    let daemon = Daemon::start_with(&[], WAITS);
    let shape = StreamShape { bells: true, ..SHAPE };
    let (a, b) = connection("127.0.0.1:0");
    let clients = [sockets_client(&daemon), sockets_client(&daemon)];
    let bells = [(); 2].map(|()| vmmc::sys::doorbell::Doorbell::new().unwrap());
    for ((client, bell), socket) in clients.iter().zip(&bells).zip([&a, &b]) {
        let request = Request::RegisterSocket { cookie: cookie(socket), shape };
        client.send(&request, &[socket.as_fd(), bell.fd().as_fd()]);
    }
    let peers = [0, 1].map(|side| {
        let mut incoming = clients[side].receive();
        assert!(matches!(incoming.event, Event::Paired { .. }), "{:?}", incoming.event);
        incoming.fds.take().expect("the segment");
        // Whom the other end rang too early sleeps: it is rung once it can see the pair.
        assert!(bells[side].wait(None).unwrap());
        bells[side].drain();
        incoming.fds.take().expect("the other end's doorbell")
    });
    for (peer, (own, other)) in peers.iter().zip([(&bells[0], &bells[1]), (&bells[1], &bells[0])]) {
        vmmc::sys::doorbell::ring(peer);
        let now = || Some(std::time::Instant::now());
        assert!(other.wait(now()).unwrap());
        assert!(!own.wait(now()).unwrap());
        other.drain();
    }
}

#[test]
fn a_doorbell_that_is_none_cuts_off_the_one_who_sent_it() {
    let daemon = Daemon::start_with(&[], WAITS);
    let shape = StreamShape { bells: true, ..SHAPE };
    let (a, _b) = connection("127.0.0.1:0");
    let client = sockets_client(&daemon);
    let request = Request::RegisterSocket { cookie: cookie(&a), shape };
    client.send(&request, &[a.as_fd(), a.as_fd()]);
    eventually("it is cut off", || client.is_cut_off().then_some(()));
}

fn given_back() -> (Daemon, TcpStream, usize) {
    let daemon = Daemon::start_with(&["--ring-kib", "4096"], &[]);
    let (receiver, len) = given_back_by(&daemon.path);
    (daemon, receiver, len)
}

/// Who asks for bytes that the daemon may not send again sees at once that nothing comes of it.
#[test]
fn an_asker_of_a_user_who_may_not_is_told() {
    const BOB: u32 = 61_005;
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    const ALICE: u32 = 61_006;
    let daemon = Daemon::start_activated(&[], &[]);
    let alice = as_user(ALICE, ALICE, &[], || sockets_client(&daemon));
    let bob = as_user(BOB, BOB, &[], || sockets_client(&daemon));
    let (sender, receiver) = connection("127.0.0.1:0");
    let shape = StreamShape { words: Some([WORDS; 2]), ..SHAPE };
    register(&alice, &sender, shape);
    register(&alice, &receiver, shape);
    // Another user's sockets are looked at by threads apart: which is heard of first is open.
    let mut first = alice.receive();
    assert!(matches!(first.event, Event::Paired { .. }), "{:?}", first.event);
    let segment = first.fds.take().unwrap();
    let at = u64::from(WORDS.request);
    rustix::io::pwrite(&segment, &request::BACK.to_ne_bytes(), at).unwrap();
    bob.send(&Request::PumpSocket { cookie: cookie(&receiver) }, &[receiver.as_fd()]);
    eventually("it is told", || {
        let mut word = [0; 4];
        rustix::io::pread(&segment, &mut word, at).unwrap();
        (u32::from_ne_bytes(word) == request::REFUSED).then_some(())
    });
}

#[test]
fn a_daemon_that_is_told_to_end_gives_bytes_back_first() {
    let (mut daemon, receiver, all) = given_back();
    daemon.signal(rustix::process::Signal::TERM);
    eventually("it ends", || (!daemon.path.exists()).then_some(()));
    assert_eq!(read_all(receiver), (all, None));
    daemon.wait();
}

/// A daemon that has handed over stays for a receiver that does not read. Its successor has its node's address meanwhile, and
/// answers other nodes; links that are there go on, until their process wants another.
#[test]
fn a_daemon_that_stays_to_give_bytes_back_answers_no_other_node() {
    let (mut a, b) = cluster::pair();
    let process_of = |place: &cluster::Place| {
        let mut config = vmmc::Config::from_env().unwrap();
        config.socket = Some(place.daemon.path.clone());
        config.daemon = vmmc::config::DaemonStart::Never;
        vmmc::Node::builder().config(config).connect().unwrap()
    };
    let (exporter, importer) = (process_of(&a), process_of(&b));
    let export = exporter.export(vmmc::Region::new(4096).unwrap()).name("x");
    let export = export.grant(vmmc::Who::Anyone, vmmc::Rights::WRITE).open().unwrap();
    let import = |node: &vmmc::Node| {
        node.import("x").node("a").rights(vmmc::Rights::WRITE).timeout(WATCHDOG).open().unwrap()
    };
    let arrives = |import: &vmmc::Import, value: u32| {
        import.flag32(0).unwrap().signal(value).unwrap();
        eventually("it has arrived", || {
            let mut seen = [0; 4];
            export.read(0, &mut seen).unwrap();
            (u32::from_ne_bytes(seen) == value).then_some(())
        });
    };
    let before = import(&importer);
    let (receiver, all) = given_back_by(&a.daemon.path);
    let file = a.file();
    let arguments = ["--replace", "--cluster", file.to_str().unwrap()];
    let new = Daemon::start_in(a.daemon.dir.clone(), &arguments, &[]);
    let mut old = std::mem::replace(&mut a.daemon, new);
    eventually("the successor listens", || listens(a.daemon.pid()).then_some(()));
    assert!(!listens(old.pid()));
    arrives(&before, 1);
    // By the connection that the daemons kept, then by one of a process that has none to that node.
    arrives(&import(&importer), 2);
    arrives(&import(&process_of(&b)), 3);
    assert!(before.check_open().is_err(), "it came by the old daemon");
    assert!(old.child.try_wait().unwrap().is_none(), "it still has bytes");
    assert_eq!(read_all(receiver), (all, None));
    assert!(old.wait().success());
    arrives(&import(&importer), 4);
    assert_eq!(a.daemon.snapshot().pid, a.daemon.pid());
}

/// Whether a process listens by TCP.
fn listens(pid: u32) -> bool {
    let tables = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let sockets = sockets_of(pid);
    tables.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        words[3] == "0A" && sockets.iter().any(|inode| inode == words[9])
    })
}

/// Inodes of a process's sockets.
fn sockets_of(pid: u32) -> Vec<String> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets =
        fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()?.to_str().map(str::to_owned));
    targets
        .filter_map(|it| Some(it.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect()
}

/// An end of file says that all has come. A daemon that may (as root, or for as much as `net.core.wmem_max` lets it) has the
/// kernel take what a receiver that stands still has not; else it resets the connection.
#[test]
fn a_daemon_that_ends_has_the_kernel_take_the_rest_or_resets_the_connection() {
    let (mut daemon, receiver, all) = given_back();
    daemon.terminate();
    match read_all(receiver) {
        (len, None) => assert_eq!(len, all, "an end before all has come"),
        (len, Some(error)) => {
            assert_eq!(error, std::io::ErrorKind::ConnectionReset);
            assert!(len < all && !is_root(), "{len}");
        }
    }
}

/// A connection from this port of the loopback interface, and the other end.
fn from_port(listener: &TcpListener, port: u16) -> (TcpStream, TcpStream) {
    use rustix::net::{AddressFamily, SocketType};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
    (socket.into(), listener.accept().unwrap().0)
}

/// Whoever offered a connection that is over by now does not get the next one with the same addresses, which may be
/// another user's.
#[test]
fn an_end_whose_connection_is_over_is_not_the_other_end_of_the_next() {
    const GREEDY: u32 = 61_007;
    let daemon = Daemon::start_activated(&[], &[("VMMC_PAIR_MS", "60000")]);
    let uids = if is_root() { vec![GREEDY, 0] } else { vec![rustix::process::geteuid().as_raw()] };
    for uid in uids {
        let greedy = match is_root() {
            true => as_user(uid, uid, &[], || sockets_client(&daemon)),
            false => sockets_client(&daemon),
        };
        let server = sockets_client(&daemon);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (first, reset) = from_port(&listener, port);
        register(&greedy, &first, SHAPE);
        let waits = |socket: &TcpStream| {
            let cookie = cookie(socket);
            eventually("it waits", || {
                let connections = daemon.snapshot().connections;
                let waits = |it: &ConnectionInfo| {
                    it.cookie == cookie && it.state == ConnectionState::Waiting
                };
                connections.iter().any(waits).then_some(())
            });
        };
        waits(&first);
        let cookie = cookie(&first);
        let at_once = Some(std::time::Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&first, at_once).unwrap();
        drop((first, reset));
        // The same addresses, and another connection.
        let (second, accepted) = from_port(&listener, port);
        register(&server, &accepted, SHAPE);
        match greedy.receive().event {
            Event::NotPaired { cookie: of, reason } => {
                assert_eq!((of, reason), (cookie, NotPairedReason::NoPartner));
            }
            other => panic!("{other:?}"),
        }
        waits(&accepted);
        let honest = sockets_client(&daemon);
        register(&honest, &second, SHAPE);
        assert_eq!(paired(&server, &accepted).0, 0);
        assert_eq!(paired(&honest, &second).0, 1);
    }
}

/// Of two users a socket that is bound to an interface proves nothing: it stands beside one that is not, with the same addresses.
#[test]
fn an_end_that_is_bound_to_an_interface_is_paired_with_its_own_users_alone() {
    const GREEDY: u32 = 61_007;
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&[], &[("VMMC_PAIR_MS", "60000")]);
    let greedy = as_user(GREEDY, GREEDY, &[], || sockets_client(&daemon));
    let (server, own) = (sockets_client(&daemon), sockets_client(&daemon));
    for (client, may) in [(&greedy, false), (&own, true)] {
        let (a, b) = connection("127.0.0.1:0");
        bind_to_loopback(&a);
        register(client, &a, SHAPE);
        register(&server, &b, SHAPE);
        if may {
            paired(client, &a);
            paired(&server, &b);
        } else {
            assert_eq!(not_paired(client, &a), NotPairedReason::Policy);
            assert_eq!(not_paired(&server, &b), NotPairedReason::Policy);
        }
    }
}

fn bind_to_loopback(socket: &TcpStream) {
    use std::os::fd::AsRawFd;
    let (name, len) = (c"lo".as_ptr().cast(), 3);
    let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
    // SAFETY: a name with its zero, and its length.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, name, len) };
    assert_eq!(done, 0);
}
