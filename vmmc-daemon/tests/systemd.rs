//! Under a service manager: what it hears, and what it keeps over a restart. A stand-in plays its part, by
//! the documented protocol; the units themselves are checked by systemd's own tool.

mod common;
use common::*;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use vmmc::control::message::*;

/// Keeps what it is told to keep, as systemd does with FileDescriptorStoreMax=.
struct Manager {
    dir: tempfile::TempDir,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    store: BTreeMap<String, OwnedFd>,
    words: Vec<String>,
    watchdogs: u64,
    barriers: u64,
}

impl Manager {
    fn start() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        let heard = Arc::new(Mutex::new(Heard::default()));
        let manager = Manager { dir, heard: heard.clone() };
        // Ends with the process: it owns nothing that outlives it.
        std::thread::spawn(move || {
            loop {
                let mut bytes = [0; 512];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let len = rustix::net::recvmsg(
                    &socket,
                    &mut [IoSliceMut::new(&mut bytes)],
                    &mut control,
                    RecvFlags::CMSG_CLOEXEC,
                )
                .unwrap()
                .bytes;
                let mut fds = Vec::new();
                for item in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = item {
                        fds.extend(received);
                    }
                }
                let text = std::str::from_utf8(&bytes[..len]).unwrap();
                heard.lock().unwrap().take(text, fds);
            }
        });
        manager
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("notify")
    }

    fn names(&self) -> Vec<String> {
        self.heard.lock().unwrap().store.keys().cloned().collect()
    }

    fn hears(&self, word: &str) {
        eventually(word, || {
            self.heard.lock().unwrap().words.iter().any(|it| it == word).then_some(())
        });
    }
}

impl Heard {
    fn take(&mut self, text: &str, mut fds: Vec<OwnedFd>) {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        if field("FDSTORE=") == Some("1") {
            assert_eq!(field("FDPOLL="), Some("0"), "a client that hangs up would drop out");
            assert_eq!(fds.len(), 1);
            let old = self.store.insert(field("FDNAME=").unwrap().to_owned(), fds.remove(0));
            assert!(old.is_none(), "{text} twice");
        } else if field("FDSTOREREMOVE=") == Some("1") {
            assert!(self.store.remove(field("FDNAME=").unwrap()).is_some(), "{text}");
        } else if field("BARRIER=") == Some("1") {
            assert_eq!(fds.len(), 1); // closed here
            self.barriers += 1;
        } else if field("WATCHDOG=") == Some("1") {
            self.watchdogs += 1;
        } else {
            self.words.push(text.to_owned());
        }
    }
}

/// A listening socket as a socket unit makes it.
fn socket_unit(path: &Path) -> OwnedFd {
    let socket = vmmc::sys::packet::socket().unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 128).unwrap();
    socket.into()
}

/// Starts the service as systemd does: the socket and what was stored, from descriptor 3 on.
fn start_service(
    manager: &Manager,
    dir: &Arc<tempfile::TempDir>,
    socket: &OwnedFd,
    arguments: &[&str],
    env: &[(&str, &str)],
) -> Daemon {
    // The store has no order; the socket is anywhere among them.
    let kept: Vec<(String, OwnedFd)> = {
        let heard = manager.heard.lock().unwrap();
        heard.store.iter().rev().map(|(name, fd)| (name.clone(), fd.try_clone().unwrap())).collect()
    };
    let mut names: Vec<String> = kept.iter().map(|(name, _)| name.clone()).collect();
    let mut fds: Vec<i32> = kept.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
    names.insert(names.len() / 2, "vmmcd.socket".to_owned());
    fds.insert(fds.len() / 2, socket.as_raw_fd());
    let count = fds.len();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "LISTEN_PID=$$ WATCHDOG_PID=$$ exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_vmmcd"))
        .args(arguments)
        .env("NOTIFY_SOCKET", manager.path())
        .env("LISTEN_FDS", count.to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if std::env::var_os("VMMC_LOG").is_none() {
        command.env("VMMC_LOG", "off");
    }
    let place = move || {
        const ASIDE: i32 = 500;
        // SAFETY: numbers only; none of them is owned by anything that would close it.
        let put = |from, to| match unsafe { libc::dup2(from, to) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        };
        for (at, &fd) in (ASIDE..).zip(&fds) {
            put(fd, at)?;
        }
        for i in 0..fds.len() as i32 {
            put(ASIDE + i, 3 + i)?;
            // SAFETY: made above.
            unsafe { libc::close(ASIDE + i) };
        }
        Ok(())
    };
    // SAFETY: system calls only between fork and exec; no memory is allocated.
    unsafe { command.pre_exec(place) };
    let child = command.spawn().unwrap();
    Daemon { child, path: dir.path().join("vmmcd.sock"), dir: dir.clone() }
}

const STORE: &[&str] = &["--fd-store", "1000"];

#[test]
fn a_restart_of_the_service_drops_nothing() {
    let manager = Manager::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = socket_unit(&dir.path().join("vmmcd.sock"));
    let mut daemon = start_service(&manager, &dir, &socket, STORE, &[]);
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    let (export, memory) = exporter.export("kept");
    // More than one batch.
    let names: Vec<String> = (0..100).map(|i| format!("export {i}")).collect();
    let _more: Vec<_> = names.iter().map(|name| exporter.export(name.as_str())).collect();
    let link = importer.import("kept").link;
    exporter.receive_opened();
    let waiting = importer.send_import(Import::waiting("later"), Some(&link_segment()));
    importer.assert_silent();
    let before = daemon.snapshot();

    for restart in 1..=2 {
        assert!(daemon.terminate().success());
        let kept = manager.names();
        assert!(kept.len() > 100 && kept.iter().any(|it| it.starts_with("vmmcd-state-")));
        assert!(manager.heard.lock().unwrap().barriers >= 2);
        // Said while no daemon runs; it waits in the socket.
        let request = exporter.request_id();
        exporter.send(&Request::List { request }, &[]);

        daemon = start_service(&manager, &dir, &socket, STORE, &[]);
        match exporter.receive().event {
            Event::Listing { request: answered, .. } => assert_eq!(answered, request),
            other => panic!("{other:?}"),
        }
        let after = daemon.snapshot();
        assert_eq!(after.pid, daemon.pid(), "restart {restart}");
        assert_eq!(after.exports, before.exports);
        let links = |all: &Snapshot| all.links.iter().map(|it| it.link).collect::<Vec<_>>();
        assert_eq!(links(&after), links(&before));
        assert_eq!(counter(&after, "takeovers"), restart);
        eventually("the store is emptied", || manager.names().is_empty().then_some(()));
    }
    assert!(same_file(importer.import("kept").memory, &memory));
    assert_eq!(exporter.receive_opened().export, export);
    let (later, _memory) = exporter.export("later");
    assert_eq!(importer.receive_imported(waiting).unwrap().export, later);
    exporter.receive_opened();
    importer.send(&Request::CloseLink { link }, &[]);
    assert_eq!(exporter.receive_closed(), (link, CloseReason::Unimported));
    // Deaths are still seen: the process descriptors came along.
    drop(exporter);
    assert_eq!(importer.receive_closed().1, CloseReason::PeerDied);
}

/// What is lost of a store is not guessed at: the daemon starts with nothing, and says why.
#[test]
fn a_store_that_is_of_no_use_is_emptied_and_clients_see_the_end() {
    for spoil in ["no state", "another version", "a descriptor missing"] {
        let manager = Manager::start();
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let socket = socket_unit(&dir.path().join("vmmcd.sock"));
        let mut daemon = start_service(&manager, &dir, &socket, STORE, &[]);
        let mut exporter = Client::connect(&daemon.path);
        exporter.export("x");
        assert!(daemon.terminate().success());
        {
            let mut heard = manager.heard.lock().unwrap();
            let state =
                heard.store.keys().find(|it| it.starts_with("vmmcd-state-")).unwrap().clone();
            match spoil {
                "a descriptor missing" => drop(heard.store.remove("v2").unwrap()),
                _ => {
                    let blob = heard.store.remove(&state).unwrap();
                    if spoil == "another version" {
                        heard.store.insert("vmmcd-state-9999-1".to_owned(), blob);
                    }
                }
            }
        }
        let daemon = start_service(&manager, &dir, &socket, STORE, &[]);
        assert!(daemon.snapshot().exports.is_empty(), "{spoil}");
        eventually("the store is emptied", || manager.names().is_empty().then_some(()));
        assert!(exporter.is_cut_off(), "{spoil}");
        Client::connect(&daemon.path).export("x");
    }
}

/// Killed while the service manager has only half: the rest is of no use to the next one.
#[test]
fn a_daemon_killed_while_it_stores_is_followed_by_one_with_nothing() {
    let manager = Manager::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = socket_unit(&dir.path().join("vmmcd.sock"));
    let point = [("VMMCD_FAILPOINT", "store-half-sent")];
    let mut daemon = start_service(&manager, &dir, &socket, STORE, &point);
    let mut exporter = Client::connect(&daemon.path);
    exporter.export("x");
    assert!(!daemon.terminate().success());
    assert!(!manager.names().is_empty());
    let daemon = start_service(&manager, &dir, &socket, STORE, &[]);
    assert!(daemon.snapshot().exports.is_empty());
    eventually("the store is emptied", || manager.names().is_empty().then_some(()));
    assert!(exporter.is_cut_off());
}

/// More than the service manager keeps: clients come back as after a crash.
#[test]
fn what_does_not_fit_into_the_store_is_not_stored() {
    let manager = Manager::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = socket_unit(&dir.path().join("vmmcd.sock"));
    let mut daemon = start_service(&manager, &dir, &socket, &["--fd-store", "5"], &[]);
    let mut exporter = Client::connect(&daemon.path);
    exporter.export("x");
    assert!(daemon.terminate().success());
    assert!(manager.names().is_empty());
    manager.hears("STOPPING=1");
    assert!(exporter.is_cut_off());
}

/// The loop's own sign of life, twice as often as it is expected; also by a successor that was told
/// nothing of it.
#[test]
fn the_watchdog_is_fed_by_the_daemon_and_by_its_successor() {
    let manager = Manager::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = socket_unit(&dir.path().join("vmmcd.sock"));
    let mut old = start_service(&manager, &dir, &socket, &[], &[("WATCHDOG_USEC", "20000")]);
    let fed = |more: u64| {
        let before = manager.heard.lock().unwrap().watchdogs;
        eventually("the watchdog is fed", || {
            (manager.heard.lock().unwrap().watchdogs >= before + more).then_some(())
        });
    };
    fed(5);
    let new = Daemon::start_in(dir, &["--replace"], &[]);
    assert!(old.wait().success());
    manager.hears(&format!("MAINPID={}", new.pid()));
    fed(5);
}

/// The environment of a service that a client of ours is must not reach the daemon it starts.
#[test]
fn a_daemon_started_by_a_client_does_not_speak_to_the_clients_service_manager() {
    let manager = Manager::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmmcd.sock");
    let mut command = command(&path, &["--auto", "--idle-exit", "1"], &[]);
    command.env("NOTIFY_SOCKET", manager.path()).env("WATCHDOG_USEC", "20000");
    assert!(command.status().unwrap().success());
    Client::connect(&path).export("x");
    eventually("the idle daemon ends", || (!path.exists()).then_some(()));
    let heard = manager.heard.lock().unwrap();
    assert!(heard.words.is_empty() && heard.watchdogs == 0, "{:?}", heard.words);
}

/// The units as systemd reads them, and the program as the service unit starts it.
#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
    let dir = tempfile::tempdir().unwrap();
    let service = std::fs::read_to_string(units.join("vmmcd.service")).unwrap();
    // Not installed here: the program just built stands where the unit says it will be.
    let built = env!("CARGO_BIN_EXE_vmmcd");
    let local = service.replace("/usr/bin/vmmcd", built);
    assert_ne!(local, service);
    std::fs::write(dir.path().join("vmmcd.service"), &local).unwrap();
    std::fs::copy(units.join("vmmcd.socket"), dir.path().join("vmmcd.socket")).unwrap();
    let run = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args([dir.path().join("vmmcd.service"), dir.path().join("vmmcd.socket")])
        .output()
        .expect("systemd-analyze, of Debian's systemd (ci/deps)");
    let said = String::from_utf8_lossy(&run.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("vmmcd")).collect();
    assert!(run.status.success() && ours.is_empty(), "{said}");
    // The arguments are understood.
    let start = local.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let mut words = start.split_whitespace();
    let mut program = Command::new(words.next().unwrap());
    let run = program.args(words).arg("--version").output().unwrap();
    assert!(run.status.success(), "{start}");
    // What the daemon gives and what the service manager takes are the same number.
    let setting = |name: &str| service.lines().find_map(|line| line.strip_prefix(name));
    let keeps = setting("FileDescriptorStoreMax=").unwrap();
    assert!(start.contains(&format!("--fd-store {keeps}")), "{start}");
    assert!(setting("WatchdogSec=").is_some());
}
