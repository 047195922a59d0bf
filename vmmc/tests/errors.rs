//! G10: every refusal that no other test provokes, by its name and with its remedy.

mod common;
mod support;

use common::{Daemon, PATIENCE, export, import, says};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::impostor::{Answers, Impostor, imported, welcome};
use vmmc::config::{Config, DaemonStart};
use vmmc::control::ConnectError;
use vmmc::control::codec::{self, CodecError};
use vmmc::control::message::{Event, PROTOCOL_VERSION, QuotaKind, Refusal, Request};
use vmmc::error::{
    DaemonError, ExportError, FlagError, ImportError, ListError, NotTracked, RegionError,
    UnexportError, WaitError,
};
use vmmc::id::RequestId;
use vmmc::sys::membarrier;
use vmmc::sys::memfd::{self, SegmentError};
use vmmc::{Combining, Node, Region, Rights, Tracking, Who};

fn connect(config: Config) -> ConnectError {
    Node::builder().config(config).connect().expect_err("cannot connect")
}

#[test]
fn connecting_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        socket: Some(dir.path().join("nobody.sock")),
        daemon: DaemonStart::Never,
        ..Config::from_env().unwrap()
    };
    let error = connect(config.clone());
    assert!(matches!(error, ConnectError::NoDaemon { .. }), "{error}");
    assert!(error.to_string().contains("shrimp daemon start"), "{error}");

    let program = Config { daemon: DaemonStart::Program("/bin/false".into()), ..config.clone() };
    let error = connect(program);
    assert!(matches!(error, ConnectError::NotStarted { .. }), "{error}");
    says(&error, &["/bin/false", "nobody.sock", "exit status: 1"]);
    // What the program said of it is passed on.
    let open = dir.path().join("open to all");
    std::fs::create_dir(&open).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let program = DaemonStart::Program(common::vmmcd().clone());
    let at = open.join("d.sock");
    let error = connect(Config { daemon: program, socket: Some(at), ..config.clone() });
    says(&error, &["open to all", "other users can write in it", "set VMMC_SOCKET"]);
    let missing = DaemonStart::Program(dir.path().join("no such vmmcd"));
    let error = connect(Config { daemon: missing, ..config.clone() });
    says(&error, &["no such vmmcd", "No such file"]);

    // A socket file whose listener is gone counts as no daemon.
    let stale = dir.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let error = connect(Config { socket: Some(stale), ..config.clone() });
    assert!(matches!(error, ConnectError::NoDaemon { errno: rustix::io::Errno::CONNREFUSED, .. }));
    says(&error, &["stale.sock", "shrimp daemon start"]);
    let long = dir.path().join("x".repeat(200));
    let error = connect(Config { socket: Some(long), ..config.clone() });
    says(&error, &["xxx", "at most 107", "VMMC_SOCKET"]);

    // A socket of another kind.
    let streams = dir.path().join("streams.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&streams).unwrap();
    let error = connect(Config { socket: Some(streams), ..config });
    says(&error, &["streams.sock", "wrong type", "VMMC_SOCKET"]);
}

/// Whatever is at the socket: told apart, and named.
#[test]
fn a_daemon_that_is_none_or_of_another_version_is_told_apart() {
    let mut old = codec::handshake().to_vec();
    old[4..8].copy_from_slice(&77u32.to_le_bytes());
    let impostor = Impostor::start(old, |_, _| None);
    let error = connect(impostor.config());
    let version = CodecError::Version { ours: PROTOCOL_VERSION, theirs: 77 };
    assert!(matches!(&error, ConnectError::Protocol { source, .. } if *source == version));
    says(&error, &["d.sock", "77", &PROTOCOL_VERSION.to_string(), "restart the older"]);

    let impostor = Impostor::start(b"SSH-2.0-OpenSSH".to_vec(), |_, _| None);
    let error = connect(impostor.config());
    assert!(matches!(&error, ConnectError::Protocol { source: CodecError::NotOurs, .. }));
    says(&error, &["d.sock", "does not speak", "VMMC_SOCKET"]);

    // It hangs up on hello.
    let impostor = Impostor::start(codec::handshake().to_vec(), |_, _| None);
    let error = connect(impostor.config());
    assert!(matches!(error, ConnectError::NoAnswer { .. }), "{error:?}");
    says(&error, &["d.sock", "gone away", "shrimp doctor"]);

    let impostor = Impostor::start(codec::handshake().to_vec(), |_, _| {
        let refusal = Refusal::Quota { uid: 5, quota: QuotaKind::Clients, limit: 3 };
        Some((Event::Refused { request: RequestId(0), refusal }, Vec::new()))
    });
    let error = connect(impostor.config());
    assert!(matches!(error, ConnectError::Refused(_)), "{error:?}");
    says(&error, &["user 5", "quota of 3 clients", "--clients-per-user"]);
}

/// Answers that make no sense end the one operation, with an error that says so.
#[test]
fn senseless_answers_of_a_daemon_are_errors_of_the_operation() {
    let impostor = Impostor::start(codec::handshake().to_vec(), |_, request| {
        let done = |request| Some((Event::Done { request }, Vec::new()));
        match request {
            Request::Hello(_) => Some((welcome(), Vec::new())),
            Request::Export { request, .. } => done(request),
            // Without the memory that should come with it.
            Request::Import { request, .. } => Some((imported(request, 4096), Vec::new())),
            Request::List { request } => Some((Event::Listing { request, len: 10 }, Vec::new())),
            // Ten bytes that are no snapshot.
            Request::Snapshot { request } => {
                let file = memfd::create("listing", 10).unwrap();
                rustix::io::pwrite(&file, &[0xff; 10], 0).unwrap();
                Some((Event::Listing { request, len: 10 }, vec![file]))
            }
            _ => None,
        }
    });
    let node = impostor.node();
    let same = "run the same version of vmmcd";
    let error = node.export(Region::new(64).unwrap()).name("x").open().unwrap_err();
    assert!(matches!(error, ExportError::Daemon(DaemonError::Nonsense { .. })), "{error:?}");
    says(&error, &[same]);
    let error = node.import("x").open().unwrap_err();
    assert!(matches!(error, ImportError::Daemon(DaemonError::Nonsense { .. })), "{error:?}");
    says(&error, &["without its memory", same]);
    let error = node.list().unwrap_err();
    assert!(matches!(error, ListError::Daemon(DaemonError::Nonsense { .. })), "{error:?}");
    let error = node.snapshot().unwrap_err();
    assert!(matches!(error, ListError::Daemon(DaemonError::Nonsense { .. })), "{error:?}");
    says(&error, &["unreadable listing", same]);
}

/// G3: the importer looks at the memory itself, whatever the daemon says of it.
#[test]
fn memory_that_is_not_what_was_announced_is_not_imported() {
    fn with(file: vmmc::sys::Fd) -> Vec<vmmc::sys::Fd> {
        let (_, page) = support::raw::process_page();
        let bell = vmmc::sys::doorbell::Doorbell::new().unwrap();
        vec![file, page, bell.button().unwrap()]
    }
    let refused = |answers: Answers| {
        let error = Impostor::start(codec::handshake().to_vec(), answers).node().import("x").open();
        let error = error.unwrap_err();
        says(&error, &["restart the exporter"]);
        match error {
            ImportError::BadSegment(error) => error,
            other => panic!("{other:?}"),
        }
    };
    let unsealed = refused(|_, request| match request {
        Request::Hello(_) => Some((welcome(), Vec::new())),
        Request::Import { request, .. } => {
            Some((imported(request, 4096), with(memfd::create("unsealed", 4096).unwrap())))
        }
        _ => None,
    });
    assert!(matches!(unsealed, SegmentError::Unsealed { .. }), "{unsealed:?}");
    says(&unsealed, &["lacks seals", "SHRINK"]);
    let short = refused(|_, request| match request {
        Request::Hello(_) => Some((welcome(), Vec::new())),
        Request::Import { request, .. } => {
            Some((imported(request, 8192), with(support::raw::sealed(4096).1)))
        }
        _ => None,
    });
    assert_eq!(short, SegmentError::WrongLength { expected: 8192, actual: 4096 });
    let device = refused(|_, request| match request {
        Request::Hello(_) => Some((welcome(), Vec::new())),
        Request::Import { request, .. } => {
            let zero = std::fs::File::open("/dev/zero").unwrap();
            Some((imported(request, 4096), with(std::os::fd::OwnedFd::from(zero).into())))
        }
        _ => None,
    });
    assert!(matches!(device, SegmentError::NotMemfd(_)), "{device:?}");
}

/// What a daemon may refuse of a listing is passed on.
#[test]
fn a_listing_that_is_refused_says_why() {
    let impostor = Impostor::start(codec::handshake().to_vec(), |_, request| match request {
        Request::Hello(_) => Some((welcome(), Vec::new())),
        Request::List { request } => {
            let refusal = Refusal::Internal { why: "make the list".into() };
            Some((Event::Refused { request, refusal }, Vec::new()))
        }
        _ => None,
    });
    let error = impostor.node().list().unwrap_err();
    assert!(matches!(error, ListError::Refused(Refusal::Internal { .. })), "{error:?}");
    says(&error, &["make the list"]);
}

/// Each refusal's text names the value, the reason and the remedy. (The daemon's tests provoke them
/// one by one: vmmc-daemon/tests/permissions.rs.)
#[test]
fn every_refusal_names_the_value_the_reason_and_the_remedy() {
    let name = || vmmc::Name::from("the-name");
    let (granted, wanted) = (Rights::READ, Rights::WRITE);
    let table: &[(Refusal, &[&str])] = &[
        (
            Refusal::NameTaken { name: name(), pid: 12 },
            &["the-name", "process 12", "choose another"],
        ),
        (Refusal::BadName { name: name() }, &["the-name", "1 to 255 bytes"]),
        (Refusal::ProcessNeeded { number: 33 }, &["33", "exporting process", "`process`"]),
        (
            Refusal::NoSuchExport { name: name(), waited_ms: 44 },
            &["the-name", "44 ms", "start the exporter", "longer timeout"],
        ),
        (
            Refusal::NotPermitted { name: name(), uid: 55, granted, wanted },
            &["the-name", "user 55 read,", "asked for write", "add a grant"],
        ),
        (Refusal::BadToken { name: name() }, &["the-name", "token", "get it from the exporter"]),
        (Refusal::NoRights, &["at least one right", "`rights`"]),
        (
            Refusal::Quota { uid: 66, quota: QuotaKind::Bytes, limit: 77 },
            &["user 66", "77 bytes", "--bytes-per-user"],
        ),
        (Refusal::BadLength { len: 88, max: 80 }, &["88", "80 bytes", "--max-export-bytes"]),
        (Refusal::BadSegment { why: "it is odd".into() }, &["it is odd", "`Region`"]),
        (Refusal::TooManyGrants { count: 99 }, &["99 grants", "at most 32", "use groups"]),
        (
            Refusal::NotYours { what: "link".into(), number: 111 },
            &["link 111", "not this process's", "its own"],
        ),
        (
            Refusal::NotAdministrator { uid: 122, owner: 1, what: "look at pages".into() },
            &["user 122", "look at pages", "only user 1 and root"],
        ),
        (Refusal::Cancelled, &["cancelled"]),
        (Refusal::Internal { why: "open it".into() }, &["open it", "log", "shrimp doctor"]),
    ];
    for (refusal, words) in table {
        says(refusal, words);
    }
    // A new one needs a line above.
    let kinds = table.iter().map(|(refusal, _)| std::mem::discriminant(refusal));
    assert_eq!(kinds.collect::<std::collections::HashSet<_>>().len(), 15);
}

/// Out of descriptors: each operation says which call failed and how.
#[test]
fn a_process_without_descriptors_is_told_what_failed() {
    let daemon = Daemon::start();
    let _export = export(&daemon.node(), "there", 64);
    let mut second = daemon.second("starved", &[]);
    second.expect("all said so");
    second.finish();
}

fn starved(_: &[String]) {
    let node = Node::connect().unwrap();
    let region = Region::new(64).unwrap();
    let limit = |now| {
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = Some(now);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    };
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    // The numbers below 3 are in use for ever: those that are open stay, and no other comes.
    limit(3);
    let emfile = "Too many open files";
    let error = Region::new(64).unwrap_err();
    assert!(matches!(error, RegionError::System(_)), "{error:?}");
    says(&error, &["memory file of a region", emfile, "ulimit -n"]);
    let error = node.import("there").open().unwrap_err();
    assert!(matches!(error, ImportError::System(_)), "{error:?}");
    says(&error, &[emfile]);
    let error = node.as_fd().unwrap_err();
    says(&error, &["event loops", emfile]);
    let error = Node::connect().unwrap_err();
    assert!(matches!(error, ConnectError::System { .. }), "{error:?}");
    says(&error, &[emfile]);
    // Room for the link segment, none for what the daemon answers with: that request fails, and
    // nothing else.
    limit(before);
    let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    limit(free + 1);
    for _ in 0..2 {
        let error = node.import("there").open().unwrap_err();
        assert!(matches!(error, ImportError::System(_)), "{error:?}");
        says(&error, &["receiving an import's descriptors", emfile, "ulimit -n"]);
    }
    limit(before);
    node.import("there").open().unwrap();
    assert_eq!(node.counters().get(vmmc::counters::index::RECONNECTS), 0);
    // What was there before is of use again.
    let again = common::open(node.export(region).name("again"));
    // Somebody had it: its pages must be swapped.
    drop(node.import("again").open().unwrap());
    // No room for the fresh pages: withdrawn, but not given back.
    limit(3);
    let error = again.unexport().unwrap_err();
    assert!(matches!(error, UnexportError::System(_)), "{error:?}");
    says(&error, &["memory file of a region", emfile]);
    limit(before);
    let error = node.import("again").timeout(Duration::ZERO).open().unwrap_err();
    assert!(matches!(error, ImportError::Refused(Refusal::NoSuchExport { .. })), "{error:?}");
    common::say("all said so");
    common::pause();
}

#[test]
fn second_process() {
    common::second_process(&[
        ("starved", starved),
        ("without_features", without_features),
        ("without_membarrier", without_membarrier),
    ]);
}

/// A kernel without a feature that is needed (or a seccomp profile that forbids it): the error names
/// the call and says where to look. What is only good to have is done without.
#[test]
fn a_kernel_without_a_needed_feature_is_told_apart() {
    let daemon = Daemon::start();
    let _export = export(&daemon.node(), "there", 4096);
    let mut second = daemon.second("without_features", &[]);
    second.expect("all said so");
    second.finish();
}

fn without_features(_: &[String]) {
    let forbid = |call: libc::c_long, errno: i32| support::forbid(call, errno);
    let doctor = "`shrimp doctor`";
    // Without membarrier revoking is slower, and that is all.
    forbid(libc::SYS_membarrier, libc::ENOSYS);
    let node = Node::connect().unwrap();
    let there = import(&node, "there");
    there.send(0, b"slowly").unwrap();
    let mine = export(&node, "mine", 64);
    import(&node, "mine").send(0, b"mine").unwrap();
    assert_eq!(&mine.unexport().unwrap().as_slice()[..4], b"mine");
    // Stores can be named instead of found.
    let memory = Region::new(4096).unwrap();
    let place = memory.as_ptr();
    forbid(libc::SYS_userfaultfd, libc::EPERM);
    let NotTracked { memory, reason } = there.track(0, memory, Tracking::PAGES).unwrap_err();
    says(&reason, &["userfaultfd", "not permitted", "seccomp", doctor]);
    assert_eq!(memory.as_ptr(), place);
    there.auto_update(Combining::OFF).unwrap().store(0, b"named").unwrap();
    forbid(libc::SYS_memfd_create, libc::EPERM);
    let error = Region::new(64).unwrap_err();
    says(&error, &["memory file of a region", "not permitted", "seccomp", doctor]);
    let error = node.import("there").open().unwrap_err();
    assert!(matches!(error, ImportError::System(_)), "{error:?}");
    says(&error, &["not permitted", "seccomp", doctor]);
    let error = Node::connect().unwrap_err();
    assert!(matches!(error, ConnectError::System { .. }), "{error:?}");
    says(&error, &["process page", "seccomp", doctor]);
    forbid(libc::SYS_eventfd2, libc::ENOSYS);
    // What was there goes on.
    there.send(0, b"still").unwrap();
    // Sleeping fails: the wait says so, and does not spin for ever.
    forbid(libc::SYS_ppoll, libc::EPERM);
    forbid(libc::SYS_poll, libc::EPERM);
    let end = there.flag32(60).unwrap().wait_until(|_| false, PATIENCE).unwrap_err();
    assert!(matches!(end, WaitError::System(_)), "{end:?}");
    says(&end, &["poll of the doorbell", doctor]);
    common::say("all said so");
    common::pause();
}

/// A filter that is set while the program runs, when others count on being reached: who has to know that their stores
/// have arrived waits for that, and no signal shortens it.
#[test]
fn a_membarrier_that_is_forbidden_later_is_waited_for() {
    let daemon = Daemon::start();
    let mut second = daemon.second("without_membarrier", &[]);
    second.expect("waited");
    second.finish();
}

fn without_membarrier(_: &[String]) {
    extern "C" fn hears(_: libc::c_int) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    assert!(membarrier::register() && membarrier::heavy());
    support::forbid(libc::SYS_membarrier, libc::EPERM);
    assert!(!membarrier::heavy());
    let handler = hears as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler only adds to an atomic.
    assert_ne!(unsafe { libc::signal(libc::SIGALRM, handler) }, libc::SIG_ERR);
    let tick = libc::timeval { tv_sec: 0, tv_usec: 5000 };
    let timer = libc::itimerval { it_interval: tick, it_value: tick };
    // SAFETY: the kernel reads `timer`, and writes nothing.
    let rc = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    assert_eq!(rc, 0);
    let start = Instant::now();
    membarrier::heavy_for_sure();
    assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
    assert_ne!(SIGNALS.load(Ordering::Relaxed), 0);
    common::say("waited");
    common::pause();
}

#[test]
fn regions_and_exports_say_what_is_wrong_with_their_length() {
    assert_eq!(Region::new(0).unwrap_err(), RegionError::BadLength { len: 0 });
    assert!(matches!(Region::new(usize::MAX), Err(RegionError::BadLength { .. })));
    // Refused, and not tried: the kernel would end other processes.
    assert!(matches!(Region::new(1 << 46), Err(RegionError::System { .. })));
    let daemon = Daemon::start_with(&["--max-export-bytes", "8192"], &[]);
    let node = daemon.node();
    let error = node.export(Region::new(8193).unwrap()).name("long").open().unwrap_err();
    let ExportError::Refused(Refusal::BadLength { len: 8193, max: 8192 }) = error else {
        panic!("{error}")
    };
}

#[test]
fn quotas_name_the_option_that_raises_them() {
    let daemon = Daemon::start_with(&["--exports-per-user", "2", "--imports-per-user", "1"], &[]);
    let node = daemon.node();
    let _exports = [export(&node, "1", 64), export(&node, "2", 64)];
    let error = node.export(Region::new(64).unwrap()).name("3").open().unwrap_err();
    assert!(error.to_string().contains("--exports-per-user"), "{error}");
    let first = import(&node, "1");
    let error = node.import("2").open().unwrap_err();
    assert!(error.to_string().contains("--imports-per-user"), "{error}");
    drop(first);
    let _second = import(&node, "2");
}

#[test]
fn too_many_grants_are_refused() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let mut builder = node.export(Region::new(64).unwrap()).name("many");
    for user in 0..33 {
        builder = builder.grant(Who::User(user), Rights::READ);
    }
    let error = builder.open().unwrap_err();
    assert!(matches!(error, ExportError::Refused(Refusal::TooManyGrants { count: 33 })), "{error}");
}

#[test]
fn flags_need_a_right_that_they_are_of_use_with() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let _export = export(&node, "bind only", 4096);
    let import = node.import("bind only").rights(Rights::BIND).open().unwrap();
    let error = import.flag32(0).unwrap_err();
    assert!(matches!(error, FlagError::NotGranted(_)), "{error}");
    assert!(error.to_string().contains("rights"), "{error}");
    assert_eq!(import.proxy_ptr(), None);
}

#[test]
fn a_wait_that_is_over_says_how_long_it_was() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "silent", 64);
    let timeout = Some(Duration::from_millis(3));
    let error = export.flag32(0).unwrap().wait_until(|_| false, timeout).unwrap_err();
    assert!(error.to_string().contains("3ms"), "{error}");
    let error = export.wait_importers(1, timeout).unwrap_err();
    assert!(error.to_string().contains("3ms"), "{error}");
    let _import = import(&node, "silent");
    export.wait_importers(1, PATIENCE).unwrap();
}
