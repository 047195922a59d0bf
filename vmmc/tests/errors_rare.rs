//! G10: the errors that take another user, a machine that is short of something, or a daemon that
//! stays away. The others are in `errors.rs` and beside what they are errors of.

mod common;
mod support;

use common::{Daemon, export, import, open, pause, say, says, until};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use support::impostor::{Impostor, welcome};
use support::{as_user, forbid};
use vmmc::config::{Config, DaemonStart};
use vmmc::control::ConnectError;
use vmmc::control::codec::{self, CodecError};
use vmmc::control::connect::{Connection, LinkError};
use vmmc::control::message::{Event, MAX_PACKET_LEN, Refusal, Request};
use vmmc::error::{
    AccessError, BindError, DaemonError, ImportError, ListError, ReadError, SendNotifyError,
    StartSendError,
};
use vmmc::id::RequestId;
use vmmc::transport::shm::segment::{LinkSegment, LinkSegmentError};
use vmmc::{Node, Region, Rights};

#[test]
fn second_process() {
    common::second_process(&[
        ("badly_set", badly_set),
        ("alone", alone),
        ("threadless", threadless),
        ("sleepless", sleepless),
        ("confined", confined),
        ("without_reading", without_reading),
    ]);
}

fn played(part: &str) {
    let daemon = Daemon::start();
    // Nobody takes notifications out of its queue.
    let region = Region::new(8 << 20).unwrap();
    let outside = open(daemon.node().export(region).name("there").queue());
    let mut second = daemon.second(part, &[]);
    second.expect("all said so");
    second.finish();
    drop(outside);
}

fn done() {
    say("all said so");
    pause();
}

// ---- connecting ----

#[test]
fn a_setting_that_is_not_understood_ends_the_connect() {
    let daemon = Daemon::start();
    let mut second = daemon.second_with("badly_set", &[], |command| {
        command.env("VMMC_DRAIN_MS", "soon");
    });
    second.expect("all said so");
    second.finish();
}

fn badly_set(_: &[String]) {
    let error = Node::connect().unwrap_err();
    assert!(matches!(error, ConnectError::Config(_)), "{error:?}");
    says(&error, &["VMMC_DRAIN_MS", "soon"]);
    done();
}

/// A program that was copied to where no daemon program is.
#[test]
fn a_daemon_program_that_is_nowhere_is_named_with_all_places_looked_at() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = dir.path().join("far/away");
    std::fs::create_dir_all(&place).unwrap();
    let copy = place.join("program");
    std::fs::hard_link(std::env::current_exe().unwrap(), &copy).unwrap();
    let mut second = daemon.second_with("alone", &[], |command| {
        let (mut other, path) = (std::process::Command::new(&copy), dir.path().join("bin"));
        let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        for (name, value) in command.get_envs() {
            value.map(|value| other.env(name, value));
        }
        other.args(args).env("PATH", path).env("VMMC_DAEMON", "");
        other.env("VMMC_SOCKET", dir.path().join("nobody.sock"));
        other.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        *command = other;
    });
    second.expect("all said so");
    second.finish();
}

fn alone(_: &[String]) {
    let error = Node::connect().unwrap_err();
    let ConnectError::NoProgram { looked } = &error else { panic!("{error:?}") };
    let beside = std::env::current_exe().unwrap().with_file_name("vmmcd");
    assert!(looked.contains(&beside), "{looked:?}");
    says(&error, &["far/away/vmmcd", "bin/vmmcd", "cargo build", "VMMC_DAEMON"]);
    done();
}

fn config(socket: &Path) -> Config {
    Config {
        socket: Some(socket.into()),
        daemon: DaemonStart::Never,
        ..Config::from_env().unwrap()
    }
}

fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;

/// Root may do everything, so it has to be somebody else for this.
fn unprivileged<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if rustix::process::geteuid().is_root() { as_user(BOB, work) } else { work() }
}

#[test]
fn a_socket_that_one_may_not_use_is_denied() {
    let daemon = Daemon::start();
    chmod(daemon.socket().parent().unwrap(), 0o755);
    chmod(&daemon.socket(), 0);
    let config = daemon.config();
    let error = unprivileged(|| Node::builder().config(config).connect().unwrap_err());
    let ConnectError::Denied { path } = &error else { panic!("{error:?}") };
    assert_eq!(*path, daemon.socket());
    says(&error, &["d.sock", "permission denied", "VMMC_SOCKET"]);
}

/// What another user listens at is no daemon for us. (Without root there is one user only; the rule
/// itself is a unit test of `control::connect`.)
#[test]
fn a_daemon_of_another_user_is_not_talked_to() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    chmod(dir.path(), 0o777);
    let at = dir.path().join("d.sock");
    // Whose it is, is decided by who listens.
    let _listener = as_user(ALICE, || {
        let socket = vmmc::sys::packet::socket().unwrap();
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&at).unwrap()).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        chmod(&at, 0o666);
        socket
    });
    let error = as_user(BOB, || Node::builder().config(config(&at)).connect().unwrap_err());
    assert!(
        matches!(error, ConnectError::WrongOwner { uid: ALICE, expected: BOB, .. }),
        "{error:?}"
    );
    says(&error, &["d.sock", "user 61001", "expected 61002", "VMMC_SOCKET"]);
}

// ---- the daemon stays away, or talks nonsense ----

#[test]
fn a_daemon_that_stays_away_is_given_up() {
    let mut daemon = Daemon::start();
    let node = daemon.node();
    daemon.kill();
    let error = node.list().unwrap_err();
    assert!(matches!(error, ListError::Daemon(DaemonError::Gone { .. })), "{error:?}");
    says(&error, &["did not return within 10s", "shrimp daemon start"]);
}

#[test]
fn an_import_waits_for_a_lost_daemon_no_longer_than_it_was_told_to() {
    let mut daemon = Daemon::start();
    let node = daemon.node();
    daemon.kill();
    let patience = Duration::from_millis(30);
    for import in [node.import("x"), node.import("x").node("elsewhere")] {
        match import.timeout(patience).open().unwrap_err() {
            ImportError::Daemon(DaemonError::Gone { waited }) => assert_eq!(waited, patience),
            other => panic!("{other:?}"),
        }
    }
    // One that is asked for and looked at now and then gives up as well.
    let mut pending = node.import("x").timeout(patience).start().unwrap();
    until("it is given up", || pending.poll().is_err());
}

#[test]
fn a_connection_tells_nothing_nonsense_and_failure_apart() {
    let pair = || {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let kind = rustix::net::SocketType::SEQPACKET;
        let family = rustix::net::AddressFamily::UNIX;
        let (one, other) = rustix::net::socketpair(family, kind, flags, None).unwrap();
        (Connection::from_fd(one.into()), other)
    };
    let (connection, other) = pair();
    assert!(matches!(connection.try_receive(), Err(LinkError::WouldBlock)));
    rustix::net::send(&other, &[0xff; 7], rustix::net::SendFlags::empty()).unwrap();
    let nonsense = connection.receive();
    assert!(
        matches!(nonsense, Err(LinkError::Codec(CodecError::Malformed { len: 7 }))),
        "{nonsense:?}"
    );
    drop(other);
    assert!(matches!(connection.receive(), Err(LinkError::Gone)));
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let failure = Connection::from_fd(file.into()).receive();
    assert!(matches!(failure, Err(LinkError::System(rustix::io::Errno::NOTSOCK))), "{failure:?}");
}

#[test]
fn messages_are_bounded_both_ways() {
    let mut buffer = [0; MAX_PACKET_LEN];
    let request = Request::List { request: RequestId(u64::MAX) };
    assert_eq!(codec::encode(&request, &mut buffer[..3]), Err(CodecError::TooLong));
    let packet = codec::encode(&request, &mut buffer).unwrap();
    let longer = [packet, b"x"].concat();
    let error = codec::decode::<Request>(&longer).unwrap_err();
    assert_eq!(error, CodecError::Malformed { len: longer.len() });
    assert_eq!(codec::decode::<Event>(&[]).unwrap_err(), CodecError::Malformed { len: 0 });
}

// ---- out of something ----

/// No thread for a send in the background: that send says so, others go on.
#[test]
fn a_send_that_no_thread_can_make_is_not_started() {
    played("threadless");
}

fn threadless(_: &[String]) {
    let node = Node::connect().unwrap();
    let there = import(&node, "there");
    forbid(libc::SYS_clone3, libc::EAGAIN);
    forbid(libc::SYS_clone, libc::EAGAIN);
    let error = there.start_send(0, vec![1; 100]).unwrap_err();
    assert!(matches!(error, StartSendError::System(_)), "{error:?}");
    says(&error, &["ulimit -u"]);
    there.send(0, &[1; 100]).unwrap();
    done();
}

/// Waiting for room in a queue, without a way to sleep.
#[test]
fn a_notification_that_cannot_wait_for_room_says_why() {
    played("sleepless");
}

fn sleepless(_: &[String]) {
    let node = Node::connect().unwrap();
    let full = import(&node, "there");
    until("the queue is full", || full.try_send_with_notify(0, b"more").is_err());
    forbid(libc::SYS_ppoll, libc::EPERM);
    forbid(libc::SYS_poll, libc::EPERM);
    let error = full.send_with_notify(0, b"more").unwrap_err();
    assert!(matches!(error, SendNotifyError::System(_)), "{error:?}");
    says(&error, &["poll of the doorbell", "`shrimp doctor`"]);
    done();
}

/// No address space for a binding.
#[test]
fn a_binding_without_address_space_says_so() {
    played("confined");
}

fn confined(_: &[String]) {
    let node = Node::connect().unwrap();
    let there = import(&node, "there");
    let mut limit = getrlimit(Resource::As);
    let pages: u64 = {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').next().unwrap().parse().unwrap()
    };
    limit.current = Some(pages * 4096 + (4 << 20));
    setrlimit(Resource::As, limit).unwrap();
    let error = there.bind(0..8 << 20).unwrap_err();
    assert!(matches!(error, BindError::System(_)), "{error:?}");
    says(&error, &["memory is short", "vm.max_map_count"]);
    there.bind(0..4096).unwrap();
    done();
}

/// A listing that cannot be read.
#[test]
fn a_listing_that_cannot_be_read_says_so() {
    played("without_reading");
}

fn without_reading(_: &[String]) {
    let node = Node::connect().unwrap();
    forbid(libc::SYS_pread64, libc::EPERM);
    let error = node.list().unwrap_err();
    assert!(matches!(error, ListError::System(_)), "{error:?}");
    says(&error, &["reading a listing", "`shrimp doctor`"]);
    done();
}

#[test]
fn a_link_segment_that_cannot_be_mapped_says_so() {
    let (_ours, file) = LinkSegment::create().unwrap();
    let file = vmmc::sys::memfd::reopen_read_only(&file).unwrap();
    let error = LinkSegment::open(&file).unwrap_err();
    assert!(matches!(error, LinkSegmentError::System(_)), "{error:?}");
    says(&error, &["mapping a link segment"]);
}

// ---- the rest ----

#[test]
fn what_lies_outside_or_is_over_is_refused_by_name() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let there = export(&node, "there", 8192);
    let import = node.import("there").rights(Rights::all()).open().unwrap();
    let binding = import.bind(0..4096).unwrap();
    let error = binding.write(4090, b"too long").unwrap_err();
    assert!(matches!(error, AccessError::OutOfBounds(_)), "{error:?}");
    says(&error, &["4090", "8", "4096"]);
    drop(binding);
    drop(there.unexport().unwrap());
    let error = import.read(0, &mut [0]).unwrap_err();
    assert!(matches!(error, ReadError::Closed(_)), "{error:?}");
    says(&error, &["withdrew the export", "open a new import"]);
}

/// By the daemon's word; a program that gives an import up does not ask for it any more.
#[test]
fn an_import_that_the_daemon_calls_cancelled_says_so() {
    let impostor = Impostor::start(codec::handshake().to_vec(), |_, request| match request {
        Request::Hello(_) => Some((welcome(), Vec::new())),
        Request::Import { request, .. } => {
            Some((Event::Refused { request, refusal: Refusal::Cancelled }, Vec::new()))
        }
        _ => None,
    });
    let error = impostor.node().import("x").open().unwrap_err();
    assert!(matches!(error, ImportError::Cancelled), "{error:?}");
    says(&error, &["cancelled before the name was exported"]);
}
