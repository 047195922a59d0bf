//! Clients that do not follow the protocol: cut off, counted, and nobody else notices.

mod common;
use common::*;
use proptest::prelude::*;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use vmmc::control::codec;
use vmmc::control::message::*;
use vmmc::id::*;
use vmmc::layout;
use vmmc::sys::{Fd, memfd, packet};

/// A socket to the daemon; nothing has been said.
fn raw(path: &Path) -> Fd {
    let socket = packet::socket().unwrap();
    rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn say(socket: &Fd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    // The daemon may have hung up already.
    let _ = packet::send(socket, bytes, fds, SendFlags::empty());
}

/// Reads until the daemon hangs up.
fn wait_for_end(socket: &Fd) {
    let mut buffer = [0u8; MAX_PACKET_LEN];
    loop {
        let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: WATCHDOG.as_secs() as i64, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut fds, Some(&timeout)).unwrap();
        assert!(ready > 0, "the daemon does not hang up");
        match packet::receive(socket, &mut buffer, rustix::net::RecvFlags::DONTWAIT) {
            Ok(Some(_)) => {}
            Ok(None) | Err(rustix::io::Errno::CONNRESET) => return,
            Err(errno) => panic!("{errno}"),
        }
    }
}

fn encoded(request: &Request) -> Vec<u8> {
    let mut buffer = [0; MAX_PACKET_LEN];
    codec::encode(request, &mut buffer).unwrap().to_vec()
}

fn hello_as_tool() -> Vec<u8> {
    encoded(&Request::Hello(Hello { role: Role::Tool, program: String::new(), resume: None }))
}

#[test]
fn another_protocol_version_is_told_apart_and_hung_up_on() {
    let daemon = Daemon::start();
    let socket = raw(&daemon.path);
    let mut handshake = codec::handshake();
    handshake[4] = 77;
    say(&socket, &handshake, &[]);
    // It has said its own version first, so the other side knows both.
    let mut buffer = [0u8; 64];
    let (len, _) =
        packet::receive(&socket, &mut buffer, rustix::net::RecvFlags::empty()).unwrap().unwrap();
    assert_eq!(codec::check_handshake(&buffer[..len]), Ok(()));
    wait_for_end(&socket);
    let snapshot = daemon.snapshot();
    assert_eq!((counter(&snapshot, "other_version"), counter(&snapshot, "malformed")), (1, 1));
}

#[test]
fn what_is_no_message_ends_the_client_that_said_it() {
    let daemon = Daemon::start();
    let mut witness = Client::connect(&daemon.path);
    let handshake = codec::handshake().to_vec();
    let hello = hello_as_tool();
    let list = encoded(&Request::List { request: RequestId(1) });
    let mut trailing = list.clone();
    trailing.push(0);
    let segment = link_segment();
    let (import, export) = (
        encoded(&Request::Import {
            request: RequestId(1),
            process: None,
            name: "x".into(),
            rights: Rights::READ,
            token: None,
            timeout_ms: u32::MAX,
            restore: None,
            known_to: None,
            cpu: NO_CPU,
        }),
        encoded(&Request::Export {
            request: RequestId(1),
            name: "x".into(),
            len: 4096,
            grants: Vec::new(),
            token: None,
            restore: None,
            cpu: NO_CPU,
        }),
    );
    let scripts: Vec<Vec<(Vec<u8>, usize)>> = vec![
        vec![(b"GET / HTTP/1.1".to_vec(), 0)],
        vec![(handshake.clone(), 0), (list.clone(), 0)], // before hello
        vec![(handshake.clone(), 0), (hello.clone(), 0), (hello.clone(), 0)],
        vec![(handshake.clone(), 0), (hello.clone(), 0), (trailing, 0)],
        vec![(handshake.clone(), 0), (hello.clone(), 0), (vec![0xff; MAX_PACKET_LEN], 0)],
        vec![(handshake.clone(), 0), (hello.clone(), 0), (vec![0; MAX_PACKET_LEN + 1], 0)],
        vec![(handshake.clone(), 0), (hello.clone(), 0), (list, 1)], // descriptor not called for
        vec![(handshake.clone(), 0), (hello.clone(), 0), (import, 1)], // a tool imports
        vec![(handshake, 0), (hello, 0), (export, 1)],
    ];
    let count = scripts.len() as u64;
    for script in scripts {
        let socket = raw(&daemon.path);
        for (bytes, fds) in script {
            say(&socket, &bytes, &vec![segment.as_fd(); fds]);
        }
        wait_for_end(&socket);
    }
    assert_eq!(daemon.counter("malformed"), count);
    witness.assert_silent();
}

#[test]
fn more_descriptors_than_any_message_has_end_the_client_and_are_all_closed() {
    let daemon = Daemon::start();
    let mut witness = Client::connect(&daemon.path);
    daemon.snapshot();
    let before = daemon.settled_descriptors();
    let socket = raw(&daemon.path);
    let segment = link_segment();
    let many = vec![segment.as_fd(); 200];
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&many)));
    let handshake = codec::handshake();
    let bytes = [std::io::IoSlice::new(&handshake)];
    rustix::net::sendmsg(&socket, &bytes, &mut control, SendFlags::empty()).unwrap();
    wait_for_end(&socket);
    // There may be fewer: of who looked when the daemon started.
    eventually("all are closed", || (daemon.descriptors() <= before).then_some(()));
    witness.assert_silent();
}

#[test]
fn a_request_number_in_use_by_a_waiting_import_is_a_fault() {
    let daemon = Daemon::start();
    let client = Client::connect(&daemon.path);
    for _ in 0..2 {
        let segment = link_segment();
        let import = Request::Import {
            request: RequestId(1),
            process: None,
            name: "never".into(),
            rights: Rights::READ,
            token: None,
            timeout_ms: u32::MAX,
            restore: None,
            known_to: None,
            cpu: NO_CPU,
        };
        client.send(&import, &[segment.as_fd()]);
    }
    assert!(client.is_cut_off());
}

/// Has links made to an export of one that does not read until that is refused. Each begins, and perhaps ends, with `with`.
fn until_refused(busy: &mut Client, mut with: impl FnMut(&mut Client, LinkId)) -> Vec<LinkId> {
    let segment = link_segment();
    let mut opened = Vec::new();
    loop {
        let sent = busy.send_import(Import::of("x"), Some(&segment));
        match busy.receive_imported(sent) {
            Ok(imported) => {
                with(busy, imported.link);
                opened.push(imported.link);
            }
            Err(Refusal::Internal { .. }) => return opened,
            Err(refusal) => panic!("{refusal}"),
        }
        assert!(opened.len() < 100_000, "never refused");
    }
}

/// Importers cannot get an exporter cut off that is stopped for a while: they are refused.
#[test]
fn an_exporter_that_does_not_read_gets_no_more_links_and_is_not_cut_off() {
    let daemon = Daemon::start();
    let mut deaf = Client::connect(&daemon.path);
    let (export, _memory) = deaf.export("x");
    let mut busy = Client::connect(&daemon.path);
    let opened = until_refused(&mut busy, |_, _| ());
    assert!(opened.len() > 4000, "refused after {} links only", opened.len());
    assert_eq!(daemon.counter("cut_off_not_reading"), 0);
    // It hears of every one once it listens again.
    for link in opened {
        let told = deaf.receive_opened();
        assert_eq!((told.link, told.export), (link, export));
    }
    busy.import("x");
}

/// Nor do descriptors of links that have ended pile up for it, whose importer has its share back.
#[test]
fn an_exporter_that_does_not_read_is_kept_few_descriptors_of_links_that_have_ended() {
    const MOST: usize = 512;
    let daemon = Daemon::start();
    let mut deaf = Client::connect(&daemon.path);
    let (export, _memory) = deaf.export("x");
    let mut busy = Client::connect(&daemon.path);
    let before = daemon.settled_descriptors();
    let opened = until_refused(&mut busy, |busy, link| {
        busy.send(&Request::CloseLink { link }, &[]);
    });
    let more = daemon.descriptors().saturating_sub(before);
    assert!(more < MOST + 50, "{more} descriptors");
    assert!(opened.len() >= MOST, "refused after {} links only", opened.len());
    for link in opened {
        let told = deaf.receive_opened();
        assert_eq!((told.link, told.export), (link, export));
        assert_eq!(deaf.receive_closed(), (link, CloseReason::Unimported));
    }
    busy.import("x");
}

/// A client that asks as fast as it can delays the others by one turn, and not by its whole queue: what
/// it asked is counted at the moment at which another is answered.
#[test]
fn a_flood_of_requests_by_one_client_delays_the_others_by_one_turn() {
    let daemon = Daemon::start();
    let flood = Client::connect(&daemon.path);
    let mut witness = Client::connect_as(&daemon.path, Role::Tool);
    let pid = rustix::process::Pid::from_raw(daemon.pid() as i32).unwrap();
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    for round in 1..=5u64 {
        let before = counter(&witness.snapshot(), "refused_not_yours");
        signal(rustix::process::Signal::STOP);
        let stopped = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T').then_some(())
        };
        eventually("it is stopped", stopped);
        // Each is refused, and counted. As many as the socket takes.
        let mut asked = 0;
        let nonsense = |request| Request::Unexport {
            request: RequestId(request),
            export: ExportId(1),
            cpu: NO_CPU,
        };
        while flood.connection.try_send(&nonsense(asked), &[]).is_ok() {
            asked += 1;
        }
        assert!(asked > 150, "the socket takes {asked} only");
        let request = witness.request_id();
        witness.send(&Request::Snapshot { request }, &[]);
        signal(rustix::process::Signal::CONT);
        let mut incoming = witness.receive();
        let Event::Listing { len, .. } = incoming.event else { panic!("{:?}", incoming.event) };
        let mut bytes = vec![0; len as usize];
        rustix::io::pread(incoming.fds.take().unwrap(), &mut bytes, 0).unwrap();
        let then = counter(&postcard::from_bytes(&bytes).unwrap(), "refused_not_yours");
        let meanwhile = then - before;
        assert!(meanwhile <= 32, "round {round}: {meanwhile} of {asked} before another's one");
        // All of them are answered in the end.
        for answered in 0..asked {
            match flood.receive().event {
                Event::Refused { request, .. } => assert_eq!(request, RequestId(answered)),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A client that leaves the answers to its own requests unread is cut off at the bound.
#[test]
fn a_client_that_does_not_read_its_answers_is_cut_off() {
    let daemon = Daemon::start();
    let mut deaf = Client::connect(&daemon.path);
    let segment = link_segment();
    for _ in 0..17_000 {
        deaf.send_import(Import::waiting("x"), Some(&segment));
    }
    let mut exporter = Client::connect(&daemon.path);
    let memory = memory(4096);
    let export = Export { grants: Vec::new(), ..Export::of("x", &memory) };
    exporter.try_export(export).unwrap(); // and all of them are refused at once
    eventually("it is cut off", || (daemon.counter("cut_off_not_reading") == 1).then_some(()));
    exporter.assert_silent();
}

/// Nor does one that asks and asks and does not read stall anybody or grow the daemon.
#[test]
fn a_client_that_asks_without_reading_only_stops_itself() {
    let daemon = Daemon::start();
    let deaf = Client::connect_as(&daemon.path, Role::Tool);
    let mut full = 0;
    let mut asked = 0;
    // Until its requests stay where they are, in its own way.
    while full < 10 {
        asked += 1;
        assert!(asked < 100_000, "its requests are read for ever");
        let ask = Request::Snapshot { request: RequestId(asked) };
        if deaf.connection.try_send(&ask, &[]).is_err() {
            full += 1;
            daemon.snapshot(); // the loop has had its turn
        } else {
            full = 0;
        }
    }
    Client::connect(&daemon.path).assert_silent();
    assert!(daemon.settled_descriptors() < 100, "descriptors pile up");
}

/// A user who takes all descriptors that the daemon may have is refused; the others go on.
#[test]
fn a_daemon_short_of_descriptors_refuses_and_serves_those_it_has() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let daemon = Daemon::start();
    let few = Rlimit { current: Some(100), maximum: Some(100) };
    prlimit(Pid::from_raw(daemon.pid() as i32), Resource::Nofile, few).unwrap();
    let mut witness = Client::connect(&daemon.path);
    witness.export("witness");
    let mut importer = Client::connect(&daemon.path);
    let mut greedy = Client::connect(&daemon.path);
    let mut memories = Vec::new();
    let refusal = loop {
        let memory = memory(4096);
        match greedy.try_export(Export::of(memories.len() as u32, &memory)) {
            Ok(_) => memories.push(memory),
            Err(refusal) => break refusal,
        }
    };
    assert!(refusal.to_string().contains("LimitNOFILE"), "{refusal}");
    assert!(memories.len() > 50, "after {}", memories.len());
    let newcomer = Client::try_connect(&daemon.path, Role::Process, Some(Belongings::new()), None);
    assert!(newcomer.is_err());
    assert_eq!(daemon.snapshot().exports.len(), memories.len() + 1);
    // A link needs none for long: it may fit in where a connection has just ended.
    match importer.try_import(Import::of("witness")) {
        Ok(_) | Err(Refusal::Internal { .. }) => {}
        Err(refusal) => panic!("{refusal}"),
    }
    drop(greedy);
    eventually("they are free again", || (daemon.snapshot().exports.len() == 1).then_some(()));
    importer.import("witness");
}

/// The last close of a descriptor may block for as long as its sender likes.
#[test]
fn a_socket_that_lingers_for_ever_stalls_nobody() {
    let daemon = Daemon::start();
    let mut witness = Client::connect(&daemon.path);
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(daemon.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    let mut open = Vec::new();
    for _ in 0..3 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let never_reads = listener.accept().unwrap().0;
        client.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &client, &[0; 65536]).is_ok() {}
        // Whoever closes the last copy waits: not a program that another test starts meanwhile.
        let alone = STARTING.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let hour = Some(std::time::Duration::from_secs(3600));
        rustix::net::sockopt::set_socket_linger(&client, hour).unwrap();
        let socket = raw(&daemon.path);
        // So that the last copy is the one the daemon gets.
        signal(rustix::process::Signal::STOP);
        daemon.wait_stopped();
        say(&socket, &codec::handshake(), &[]);
        let hello = Hello { role: Role::Process, program: String::new(), resume: None };
        say(&socket, &encoded(&Request::Hello(hello)), &[client.as_fd()]);
        drop(client);
        drop(alone);
        signal(rustix::process::Signal::CONT);
        wait_for_end(&socket);
        witness.assert_silent();
        open.push(never_reads);
    }
    witness.assert_silent();
}

/// Opens a memory file anew and takes a write lease on that: who opens it as well waits until the kernel breaks the lease, after
/// 45 seconds.
fn leased(memory: &Fd) -> Fd {
    use rustix::fs::{Mode, OFlags};
    const F_SETSIG: i32 = 10; // as linux/fcntl.h has it
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let again =
        Fd::from(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap());
    // The signal that tells of the break is one that is ignored.
    for (command, argument) in [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_WRLCK)] {
        // SAFETY: numbers only.
        let done = unsafe { libc::fcntl(again.as_raw_fd(), command, argument) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
    again
}

/// The daemon opens a client's memory anew, and does not wait for who has a lease on it: he, or who wants it, is refused.
#[test]
fn memory_with_a_lease_on_it_is_refused_and_stalls_nobody() {
    let daemon = Daemon::start();
    let mut witness = Client::connect(&daemon.path);
    let mut exporter = Client::connect(&daemon.path);
    let memory = leased(&memory(4096));
    exporter.try_export(Export::of("leased", &memory)).unwrap();
    let mut reader = Client::connect(&daemon.path);
    let read = Import { rights: Rights::READ, ..Import::of("leased") };
    let refusal = reader.try_import(read).unwrap_err();
    assert!(refusal.to_string().contains("F_SETLEASE"), "{refusal}");
    witness.assert_silent();
    let file = memfd::create("page", layout::page::LEN as u64).unwrap();
    let again = leased(&file);
    memfd::seal_single_writer(&file).unwrap();
    let belongings = Belongings { page: again, ..Belongings::new() };
    let refused = Client::try_connect(&daemon.path, Role::Process, Some(belongings), None);
    let refusal = refused.err().unwrap();
    assert!(refusal.to_string().contains("F_SETLEASE"), "{refusal}");
    witness.assert_silent();
    // Who only wants to write opens nothing.
    reader.import("leased");
}

/// A connection of which one end lingers for an hour with what the other one never reads, and that.
fn full() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // Far less than the sender keeps: what is left never goes.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 1 << 12).unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&client, 1 << 17).unwrap();
    client.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &client, &[0; 65536]).is_ok() {}
    let hour = Some(std::time::Duration::from_secs(3600));
    rustix::net::sockopt::set_socket_linger(&client, hour).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Descriptors of one user whose closes wait do not pile up in the daemon: what comes with the next ones is left unread.
#[test]
fn sockets_that_linger_are_not_taken_without_end() {
    const GREEDY: u32 = 61_008;
    const MANY: usize = 300;
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&[], &[]);
    let mut witness = Client::connect(&daemon.path);
    let greedy = as_user(GREEDY, GREEDY, &[], || Client::connect_as(&daemon.path, Role::Sockets));
    let before = daemon.settled_descriptors();
    let alone = STARTING.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (lingering, never_read): (Vec<_>, Vec<_>) = (0..MANY).map(|_| full()).unzip();
    let sender = std::thread::scope(|scope| {
        let sends = scope.spawn(|| {
            // The last copies are those that the daemon gets, but where it is quicker than we are: then our close waits.
            for socket in lingering {
                greedy.send(&Request::AttachSocket { cookie: 1 }, &[socket.as_fd()]);
                scope.spawn(move || drop(socket));
            }
        });
        drop(alone);
        eventually("as many wait as may", || (daemon.descriptors() >= before + 60).then_some(()));
        for _ in 0..50 {
            witness.assert_silent();
            let now = daemon.descriptors() - before;
            assert!(now <= 16 + 64 + 4, "{now} descriptors of one user");
        }
        // Nobody is there for what they linger for: they are closed, and the rest is taken.
        drop(never_read);
        sends.join()
    });
    sender.unwrap();
    for _ in 0..MANY {
        assert!(matches!(greedy.receive().event, Event::NotPaired { .. }));
    }
    eventually("all are closed", || (daemon.descriptors() <= before).then_some(()));
}

/// Has the daemon close so many sockets of a user's that linger, until as many of his closes wait as may be under way. They wait while
/// the result is there.
fn hold_up_closes(
    daemon: &Daemon,
    count: usize,
    greedy: impl Fn() -> Fd,
) -> (Vec<Fd>, Vec<std::net::TcpStream>) {
    let alone = STARTING.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (lingering, never_read): (Vec<_>, Vec<_>) = (0..count).map(|_| full()).unzip();
    // So that the last copies are those that the daemon gets.
    daemon.signal(rustix::process::Signal::STOP);
    daemon.wait_stopped();
    let fds: Vec<_> = lingering.iter().map(AsFd::as_fd).collect();
    let sent = fds.chunks(packet::MAX_FDS_PER_MESSAGE).map(|fds| {
        let socket = greedy();
        packet::send(&socket, &codec::handshake(), fds, SendFlags::empty()).unwrap();
        socket
    });
    let sent: Vec<Fd> = sent.collect();
    drop(lingering);
    drop(alone);
    daemon.signal(rustix::process::Signal::CONT);
    let tasks = format!("/proc/{}/task", daemon.pid());
    eventually("as many closes wait as may", || {
        let names = std::fs::read_dir(&tasks).unwrap().flatten();
        let names = names.filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
        (names.filter(|name| name == "closer\n").count() >= 16).then_some(())
    });
    (sent, never_read)
}

/// Descriptors of one user whose closes wait keep no other user's from being closed.
#[test]
fn sockets_of_one_user_that_linger_delay_no_other_users() {
    const GREEDY: u32 = 61_004;
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&[], &[]);
    let mut witness = Client::connect(&daemon.path);
    let greedy = || as_user(GREEDY, GREEDY, &[], || raw(&daemon.path));
    let _held_up = hold_up_closes(&daemon, 100, greedy);
    // Another user's descriptor, whose close might wait as well.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let honest = raw(&daemon.path);
    say(&honest, &codec::handshake(), &[theirs.as_fd()]);
    drop(theirs);
    wait_for_end(&honest);
    ours.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert_eq!(std::io::Read::read(&mut &ours, &mut [0]).unwrap(), 0, "it is closed");
    witness.assert_silent();
}

/// Nor do connections of such a user pile up: those in which no descriptor lies are closed on the spot, and the others count until
/// they are closed.
#[test]
fn connections_of_a_user_whose_closes_wait_do_not_pile_up() {
    const GREEDY: u32 = 61_009;
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&["--clients-per-user", "30"], &[]);
    let mut witness = Client::connect(&daemon.path);
    let greedy = || as_user(GREEDY, GREEDY, &[], || raw(&daemon.path));
    let _held_up = hold_up_closes(&daemon, 20, greedy);
    let before = daemon.settled_descriptors();
    for _ in 0..500 {
        drop(greedy());
    }
    let end = greedy();
    say(&end, b"GET / HTTP/1.1", &[]);
    wait_for_end(&end);
    let more = daemon.descriptors().saturating_sub(before);
    assert!(more < 20, "{more} descriptors");
    // In these lie descriptors of which the close might wait.
    let (_read, write) = rustix::pipe::pipe().unwrap();
    let is_welcome = || {
        let socket = greedy();
        let mut buffer = [0; 64];
        packet::receive(&socket, &mut buffer, rustix::net::RecvFlags::empty()).unwrap().is_some()
    };
    assert!(is_welcome());
    // (Stopping the daemon would end the closes that wait.)
    let count_until_closed = (0..500).any(|_| {
        let socket = greedy();
        say(&socket, b"GET / HTTP/1.1", &[]);
        say(&socket, b"", &[write.as_fd()]);
        !is_welcome()
    });
    assert!(count_until_closed);
    witness.assert_silent();
}

/// Much memory takes the kernel long to give back: a thread apart does that when the daemon has the last of it.
#[test]
fn much_memory_of_a_client_that_is_gone_is_given_back_by_another_thread() {
    let daemon = Daemon::start();
    let mut witness = Client::connect(&daemon.path);
    let has_freer = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten();
        let mut names = tasks.map(|it| std::fs::read_to_string(it.path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name == "freer\n"))
    };
    for mib in [1, 32] {
        let mut exporter = Client::connect(&daemon.path);
        let memory = memory(mib << 20);
        exporter.try_export(Export::of("much", &memory)).unwrap();
        drop(memory);
        assert_eq!(daemon.snapshot().exports.len(), 1);
        drop(exporter);
        eventually("it is gone", || daemon.snapshot().exports.is_empty().then_some(()));
        match mib {
            1 => assert!(!has_freer()),
            _ => eventually("a thread does it", || has_freer().then_some(())),
        }
    }
    witness.assert_silent();
}

/// Nor can a client fill the log.
#[test]
fn of_many_clients_that_say_nonsense_some_are_logged_and_all_counted() {
    const MANY: u64 = 200;
    let daemon = Daemon::start();
    for _ in 0..MANY {
        let socket = raw(&daemon.path);
        say(&socket, b"GET / HTTP/1.1", &[]);
        wait_for_end(&socket);
    }
    assert_eq!(daemon.counter("malformed"), MANY);
    let logged = daemon.logged(&["WARN", "protocol broken"]);
    assert!((20..100).contains(&logged), "{logged} lines");
}

/// A process that has ended says nothing, and its number is another's soon: whoever has its connection has no use of it.
#[test]
fn a_connection_of_a_process_that_has_ended_is_hung_up_on() {
    use std::os::unix::process::CommandExt;
    let daemon = Daemon::start();
    daemon.signal(rustix::process::Signal::STOP);
    daemon.wait_stopped();
    let socket = packet::socket().unwrap();
    let address = rustix::net::SocketAddrUnix::new(&daemon.path).unwrap();
    let copy = socket.try_clone().unwrap();
    let mut command = std::process::Command::new("/bin/true");
    // SAFETY: a system call only between fork and exec; no memory is allocated.
    unsafe { command.pre_exec(move || Ok(rustix::net::connect(&copy, &address)?)) };
    let mut child = command.spawn().unwrap();
    eventually("it has ended, and is not forgotten", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('Z').then_some(())
    });
    daemon.signal(rustix::process::Signal::CONT);
    let mut buffer = [0; 64];
    let said = packet::receive(&socket, &mut buffer, rustix::net::RecvFlags::empty()).unwrap();
    assert!(said.is_none(), "it is welcome");
    child.wait().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// H20: random packets, as they are and as mutations of real ones, at every stage.
    #[test]
    fn random_packets_leave_the_daemon_alive_for_others(
        conversations in proptest::collection::vec(
            (0usize..3, proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 1..200), 0usize..4, 0u8..24), 1..12)),
            1..24)
    ) {
        let daemon = Daemon::start();
        let mut witness = Client::connect(&daemon.path);
        witness.export("witness");
        let segment = link_segment();
        let belongings = Belongings::new();
        for (stage, packets) in conversations {
            let socket = raw(&daemon.path);
            if stage > 0 {
                say(&socket, &codec::handshake(), &[]);
            }
            if stage > 1 {
                let hello = Hello { role: Role::Process, program: "x".to_owned(), resume: None };
                let fds = [belongings.page.as_fd(), belongings.doorbell.fd().as_fd()];
                say(&socket, &encoded(&Request::Hello(hello)), &fds);
            }
            for (mut bytes, fds, kind) in packets {
                // Half of them start like a real request.
                if kind < 14 {
                    bytes[0] = kind;
                }
                let flags = SendFlags::DONTWAIT;
                let _ = packet::send(&socket, &bytes, &vec![segment.as_fd(); fds], flags);
            }
        }
        let mut importer = Client::connect(&daemon.path);
        importer.import("witness");
        importer.assert_silent();
    }
}
