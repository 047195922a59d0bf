//! How the daemon starts, ends, and is started twice.

mod common;
use common::*;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use vmmc::control::message::*;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn sigterm_ends_it_in_good_order() {
    let mut daemon = Daemon::start();
    let client = Client::connect(&daemon.path);
    assert_eq!(names(daemon.dir.path()), ["vmmcd.sock", "vmmcd.sock.lock"]);
    assert!(daemon.terminate().success());
    assert!(client.is_cut_off());
    assert!(names(daemon.dir.path()).is_empty());
}

#[test]
fn an_administrator_can_end_it() {
    let mut daemon = Daemon::start();
    let mut tool = Client::connect_as(&daemon.path, Role::Tool);
    let request = tool.request_id();
    tool.send(&Request::Shutdown { request }, &[]);
    assert_eq!(tool.receive().event, Event::Done { request });
    assert!(daemon.wait().success());
    assert!(names(daemon.dir.path()).is_empty());
}

#[test]
fn what_a_killed_daemon_left_is_no_obstacle() {
    let mut daemon = Daemon::start();
    daemon.kill();
    assert!(daemon.path.exists(), "a stale socket file");
    let daemon = Daemon::start_in(daemon.dir.clone(), &[], &[]);
    Client::connect(&daemon.path).export("x");
}

#[test]
fn a_second_daemon_is_told_of_the_first_and_of_replace() {
    let daemon = Daemon::start();
    let second = command(&daemon.path, &[], &[]).stderr(Stdio::piped()).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("--replace") && said.contains("vmmcd.sock"), "{said}");
    Client::connect(&daemon.path);
}

#[test]
fn a_log_that_cannot_be_written_ends_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let path = dir.path().join("vmmcd.sock");
    let mut daemon =
        command(&path, &[], &[]).env("VMMC_LOG", "debug").stderr(full()).spawn().unwrap();
    eventually("the daemon serves", || {
        let ended = daemon.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}");
        Client::try_connect(&path, Role::Tool, None, None).ok()
    });
    // Told to nobody either, and no panic.
    let second = command(&path, &[], &[]).stderr(full()).status().unwrap();
    assert_eq!(second.code(), Some(1));
    let mut tool = Client::connect_as(&path, Role::Tool);
    let request = tool.request_id();
    tool.send(&Request::Shutdown { request }, &[]);
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn bad_arguments_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let long = dir.path().join("x".repeat(101));
    for (path, arguments, env, expected) in [
        (&path, &["--ring-kib", "100"][..], &[][..], "power of two"),
        (&path, &[], &[("VMMCD_FAILPOINT", "nonsense")], "nonsense"),
        (&file, &[], &[], "not a socket"),
        (&long, &[], &[], "too long"),
    ] {
        let run = command(path, arguments, env).stderr(Stdio::piped()).output().unwrap();
        assert!(!run.status.success());
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(said.contains(expected), "{said}");
    }
}

/// The daemon of an `--auto` start is nobody's child; it ends when idle, and here at the latest.
struct Detached(u32);

impl Drop for Detached {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.0 as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

#[test]
fn of_many_started_at_once_one_serves_and_all_succeed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.sock");
    let started: Vec<_> = (0..8)
        .map(|_| command(&path, &["--auto", "--idle-exit", "60"], &[]).spawn().unwrap())
        .collect();
    for mut child in started {
        assert!(child.wait().unwrap().success());
        // Success means that a daemon listens.
        Client::connect_as(&path, Role::Tool);
    }
    let snapshot = Client::connect_as(&path, Role::Tool).snapshot();
    let _end = Detached(snapshot.pid);
    assert!(names(dir.path()).contains(&"own.sock.log".to_owned()));
    assert_eq!(counter(&snapshot, "malformed"), 0);
}

/// A launcher that waits for the end of the pipes that it gave its program would wait for the daemon that the program has started.
#[test]
fn a_daemon_that_starts_itself_keeps_nothing_open_of_its_starters() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.sock");
    let mut start = std::process::Command::new("sh");
    start.args(["-c", "\"$0\" --auto --idle-exit 60 --socket \"$1\" 7>&1 >/dev/null 2>&1"]);
    start.arg(env!("CARGO_BIN_EXE_vmmcd")).arg(&path);
    let started = start.output().unwrap(); // to the end of the pipe
    assert!(started.status.success(), "{started:?}");
    let snapshot = Client::connect_as(&path, Role::Tool).snapshot();
    let _end = Detached(snapshot.pid);
}

#[test]
fn a_client_library_starts_the_daemon_that_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let config = vmmc::config::Config {
        socket: Some(dir.path().join("sub/vmmcd.sock")),
        daemon: vmmc::config::DaemonStart::Program(env!("CARGO_BIN_EXE_vmmcd").into()),
        ..vmmc::config::Config::from_lookup(&|_| None).unwrap()
    };
    let connection = vmmc::control::Connection::open(&config).unwrap();
    let credentials = vmmc::sys::process::peer_credentials(&connection).unwrap();
    let _end = Detached(credentials.pid);
    // The socket shows the daemon itself, not the process that made the socket and went.
    let program = std::fs::read_link(format!("/proc/{}/exe", credentials.pid)).unwrap();
    assert!(program.ends_with("vmmcd"));
    let hello = Hello { role: Role::Tool, program: "test".to_owned(), resume: None };
    connection.hello(hello, &[]).unwrap();
}

#[test]
fn an_idle_daemon_ends_only_without_clients() {
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let (mut daemon, mut client) = eventually("a client is in time", || {
        let daemon = Daemon::start_in(dir.clone(), &["--idle-exit", "3"], &[]);
        let belongings = Some(Belongings::new());
        let client = Client::try_connect(&daemon.path, Role::Process, belongings, None).ok()?;
        Some((daemon, client))
    });
    // Longer than the limit: with a client it stays. (Not a race: it must not end at all.)
    std::thread::sleep(std::time::Duration::from_millis(3500));
    client.export("x");
    assert!(daemon.child.try_wait().unwrap().is_none());
    drop(client);
    assert!(daemon.wait().success());
    assert!(names(dir.path()).is_empty());
}

/// Its own connection, by which it speaks for other nodes, is nobody who needs it.
#[test]
fn an_idle_daemon_of_a_cluster_ends_too() {
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let file = dir.path().join("cluster.toml");
    std::fs::write(&file, "node = 'a'\nlisten = '127.0.0.1:0'\n[nodes]\n").unwrap();
    let arguments = ["--idle-exit", "5", "--cluster", file.to_str().unwrap()];
    let mut daemon = Daemon::start_in(dir.clone(), &arguments, &[]);
    assert!(daemon.wait().success());
}

#[test]
fn the_service_manager_hears_of_start_and_end_and_its_socket_is_used() {
    let notify_dir = tempfile::tempdir().unwrap();
    let notify_path = notify_dir.path().join("notify");
    let notify = UnixDatagram::bind(&notify_path).unwrap();
    notify.set_read_timeout(Some(WATCHDOG)).unwrap();
    let hear = || {
        let mut buffer = [0u8; 256];
        let len = notify.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    let env = [("NOTIFY_SOCKET", notify_path.to_str().unwrap())];
    let mut daemon = Daemon::start_activated(&[], &env);
    assert_eq!(hear(), "READY=1");
    let mut client = Client::connect(&daemon.path);
    client.export("x");
    // The successor was started by hand and knows nothing of the service manager.
    let mut new = Daemon::start_in(daemon.dir.clone(), &["--replace"], &[]);
    let mut heard = [hear(), hear()];
    heard.sort();
    assert_eq!(heard, [format!("MAINPID={}", new.pid()), "READY=1".to_owned()]);
    assert!(daemon.wait().success());
    client.export("y");
    assert!(new.terminate().success());
    assert_eq!(hear(), "STOPPING=1");
    assert!(new.path.exists(), "the service manager's socket is not ours to remove");
}

#[test]
fn a_passed_descriptor_that_is_no_listening_socket_is_named() {
    let mut command = Command::new("/bin/sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" 3</dev/null";
    command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_vmmcd"));
    let run = command.output().unwrap();
    assert!(!run.status.success());
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(said.contains("ListenSequentialPacket"), "{said}");
}

/// Nothing of a client stays, however it goes.
#[test]
fn no_descriptor_stays_of_clients_that_came_and_went() {
    let daemon = Daemon::start();
    daemon.snapshot();
    let mut base = 0;
    for round in 0..30 {
        let mut exporter = Client::connect(&daemon.path);
        let mut importer = Client::connect(&daemon.path);
        exporter.export("x");
        importer.import("x");
        importer.send_import(Import::waiting("never"), Some(&link_segment()));
        if round % 2 == 0 {
            drop(exporter);
            drop(importer);
        } else {
            drop(importer);
            drop(exporter);
        }
        if round == 1 {
            eventually("clients are gone", || (daemon.snapshot().clients.len() == 1).then_some(()));
            base = daemon.descriptors();
        }
    }
    eventually("all is as before", || {
        let snapshot = daemon.snapshot();
        let clean =
            snapshot.clients.len() == 1 && snapshot.exports.is_empty() && snapshot.links.is_empty();
        (clean && daemon.descriptors() <= base + 1).then_some(())
    });
}

/// G1: a process killed at any moment; here with a child that keeps copies of its descriptors, so
/// that only the kernel's word tells of the death.
#[test]
fn a_killed_process_is_cleaned_up_even_if_a_child_keeps_its_socket() {
    let daemon = Daemon::start();
    let mut importer = Client::connect(&daemon.path);
    // Started anew: a child of this process would keep the descriptors of all tests.
    let mut exporter = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "second_process", "--nocapture", "--quiet"])
        .env(EXPORTS_AT, &daemon.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(exporter.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("READY") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
    }
    let link = importer.import("orphan").link;
    // Both of them end with this at the latest.
    let until_then = exporter.stdin.take();
    exporter.kill().unwrap();
    assert_eq!(importer.receive_closed(), (link, CloseReason::PeerDied));
    assert!(daemon.snapshot().exports.is_empty());
    exporter.wait().unwrap();
    drop(until_then);
    // The child was there, with all that it inherited, and has gone now.
    line.clear();
    assert!(said.read_line(&mut line).unwrap() > 0 && line.contains("CHILD ENDS"), "{line:?}");
    assert_eq!(said.read_line(&mut line).unwrap(), 0);
}

const EXPORTS_AT: &str = "VMMCD_TEST_EXPORTS_AT";

/// Exports, and forks a child; both stay until the end of the standard input.
#[test]
fn second_process() {
    let Some(path) = std::env::var_os(EXPORTS_AT) else { return };
    let mut exporter = Client::connect(Path::new(&path));
    let _kept = exporter.export("orphan");
    // SAFETY: the child makes system calls only, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child > 0 {
        println!("READY");
    }
    let mut byte = 0u8;
    // SAFETY: one byte of our own is read into.
    while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } > 0 {}
    if child == 0 {
        let said = b"CHILD ENDS\n";
        // SAFETY: a write of a constant.
        unsafe { libc::write(1, said.as_ptr().cast(), said.len()) };
        // SAFETY: ends the child without running the test harness.
        unsafe { libc::_exit(0) };
    }
}

/// Killed at each named point of an export and import: clients see the end, the next daemon starts.
#[test]
fn a_daemon_killed_at_any_named_point_leaves_clients_that_know_and_a_socket_that_is_replaced() {
    for point in [
        "hello-accepted",
        "export-registered",
        "import-granted",
        "imported-sent",
        "link-opened-sent",
        "unexported",
        "revoked",
    ] {
        let mut daemon = Daemon::start_with(&[], &[("VMMCD_FAILPOINT", point)]);
        let path = daemon.path.clone();
        // Each step fails from the point on.
        let run = || -> Option<()> {
            let belongings = Some(Belongings::new());
            let client = Client::try_connect(&path, Role::Process, belongings, None).ok()?;
            let memory = memory(4096);
            let ask = |request: Request, fd: Option<&vmmc::sys::Fd>| {
                let fds: Vec<_> = fd.iter().map(std::os::fd::AsFd::as_fd).collect();
                client.connection.send(&request, &fds).ok()?;
                let deadline = std::time::Instant::now() + WATCHDOG;
                match client.connection.receive_until(deadline) {
                    Ok(incoming) => Some(incoming),
                    Err(vmmc::control::connect::LinkError::Gone) => None,
                    Err(error) => panic!("{point}: {error}"),
                }
            };
            let grants = Export::of("x", &memory).grants;
            let request = vmmc::id::RequestId(1);
            let name: vmmc::id::Name = "x".into();
            let (token, restore) = (None, None);
            let export = Request::Export {
                request,
                name: name.clone(),
                len: 4096,
                grants,
                token,
                restore,
                cpu: NO_CPU,
            };
            let export = match ask(export, Some(&memory))?.event {
                Event::Exported { export, .. } => export,
                other => panic!("{other:?}"),
            };
            let segment = link_segment();
            let import = Request::Import {
                request,
                process: None,
                name,
                rights: vmmc::id::Rights::WRITE,
                token: None,
                timeout_ms: 0,
                restore: None,
                known_to: None,
                cpu: NO_CPU,
            };
            ask(import, Some(&segment))?;
            ask(Request::Unexport { request, export, cpu: NO_CPU }, None)?;
            ask(Request::Revoked { export }, None)?;
            // What is told to others may wait for the caller's turn to be over.
            eventually(&format!("{point} is reached"), || {
                ask(Request::List { request }, None).is_none().then_some(())
            });
            None
        };
        run();
        assert!(!daemon.wait().success(), "{point}");
        let daemon = Daemon::start_in(daemon.dir.clone(), &[], &[]);
        assert!(daemon.snapshot().exports.is_empty(), "{point}");
    }
}
