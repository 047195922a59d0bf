//! The shipped units under systemd itself: activation, READY=1, the descriptor store, reload, the
//! watchdog, kill -9. Run by `ci/systemd`, inside the namespaces that it makes, where systemd is
//! process 1 and `/usr/bin/vmmcd` is this build. (What needs no systemd is in `systemd.rs`.)

mod common;
use common::given_back::{given_back_by, read_all};
use common::*;
use std::path::Path;
use std::process::Command;
use vmmc::config::{Config, DaemonStart};
use vmmc::control::message::*;
use vmmc::{Node, Region, Rights, Who};

const SOCKET: &str = "/run/vmmc/vmmcd.sock";

fn systemctl(arguments: &[&str]) -> String {
    let output = Command::new("systemctl").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "systemctl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A property of the service, by systemd's word.
fn property(name: &str) -> String {
    systemctl(&["show", "vmmcd.service", "--value", "--property", name])
}

fn main_pid() -> u32 {
    property("MainPID").parse().unwrap()
}

fn snapshot() -> Snapshot {
    Client::connect_as(Path::new(SOCKET), Role::Tool).snapshot()
}

/// The units as they are after a boot: the socket listens, nobody has connected.
fn fresh_service() {
    let comm = std::fs::read_to_string("/proc/1/comm").unwrap();
    assert_eq!(comm.trim(), "systemd", "run these by ci/systemd");
    systemctl(&["stop", "vmmcd.socket", "vmmcd.service"]);
    systemctl(&["start", "vmmcd.socket"]);
    systemctl(&["reset-failed", "vmmcd.service"]); // known to systemd by its socket
    assert_eq!((property("ActiveState").as_str(), main_pid()), ("inactive", 0));
}

/// Clients with exports, links and a waiting import, and what the daemon knows of them.
struct Busy {
    exporter: Client,
    importer: Client,
    waiting: vmmc::id::RequestId,
    _memory: Vec<vmmc::sys::Fd>,
    before: Snapshot,
}

impl Busy {
    fn start() -> Busy {
        let mut exporter = Client::connect(Path::new(SOCKET));
        let mut importer = Client::connect(Path::new(SOCKET));
        let memory = (0..300).map(|i| exporter.export(format!("export {i}").as_str()).1).collect();
        importer.import("export 7");
        exporter.receive_opened();
        let waiting = importer.send_import(Import::waiting("later"), Some(&link_segment()));
        importer.assert_silent();
        let before = snapshot();
        Busy { exporter, importer, waiting, _memory: memory, before }
    }

    /// Nothing is lost, and all goes on, with the daemon that systemd holds for the service now.
    fn expect_kept(mut self) {
        let after = snapshot();
        assert_ne!(after.pid, self.before.pid);
        assert_eq!(after.pid, main_pid());
        assert_eq!(after.exports, self.before.exports);
        let links = |all: &Snapshot| all.links.iter().map(|it| it.link).collect::<Vec<_>>();
        assert_eq!(links(&after), links(&self.before));
        assert_eq!(counter(&after, "takeovers"), 1);
        self.exporter.export("later");
        self.importer.receive_imported(self.waiting).unwrap();
        self.exporter.receive_opened();
        // Deaths are still seen: the process descriptors came along.
        drop(self.exporter);
        assert_eq!(self.importer.receive_closed().1, CloseReason::PeerDied);
    }
}

/// A program with the library, which comes back by itself after a crash of the daemon.
fn program() -> Node {
    let mut config = Config::from_env().unwrap();
    (config.socket, config.daemon) = (Some(SOCKET.into()), DaemonStart::Never);
    Node::builder().config(config).connect().unwrap()
}

/// Its export, link and data outlive `end`, which ends the daemon without warning.
fn survives(end: impl FnOnce(u32)) {
    fresh_service();
    let (a, b) = (program(), program());
    let open = |name: &str| {
        let region = Region::new(4096).unwrap();
        a.export(region).name(name).grant(Who::SameUser, Rights::WRITE).open().unwrap()
    };
    let export = open("kept");
    let import = b.import("kept").open().unwrap();
    let before = main_pid();
    end(before);
    eventually("another daemon", || (![0, before].contains(&main_pid())).then_some(()));
    // Both have come back, and their link with them: the daemon counts what it restores.
    eventually("the link is restored", || {
        (counter(&snapshot(), "links_restored") == 1).then_some(())
    });
    import.send(0, b"after").unwrap();
    let mut read = [0; 5];
    export.read(0, &mut read).unwrap();
    assert_eq!(&read, b"after");
    let _more = open("more");
    b.import("more").open().unwrap();
    assert_eq!(property("NRestarts"), "1");
}

#[test]
#[ignore = "needs systemd as process 1: ci/systemd"]
fn under_systemd_the_first_client_starts_the_service_and_it_says_ready() {
    fresh_service();
    let daemon = snapshot();
    assert_eq!(daemon.pid, main_pid());
    // Type=notify: active only by READY=1.
    eventually("the service is active", || (property("ActiveState") == "active").then_some(()));
    assert_eq!(property("WatchdogUSec"), "30s");
    // What it may do, with all that the unit forbids.
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid)).unwrap();
    for line in ["CapEff:\t0000000000080002", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} in {status}");
    }
}

/// The service may take a socket out of a process that has more capabilities than it, as those of other users have none of its
/// user: bytes of a ring are sent by that.
#[test]
#[ignore = "needs systemd as process 1: ci/systemd"]
fn under_systemd_bytes_are_given_back_by_a_process_that_makes_no_call() {
    fresh_service();
    let (receiver, all) = given_back_by(Path::new(SOCKET));
    let daemon = main_pid();
    assert_eq!(read_all(receiver), (all, None));
    assert_eq!(main_pid(), daemon, "it was ended for a system call");
}

/// Files beside the unit, for one test.
struct DropIns<'p>(&'p Path);

impl Drop for DropIns<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0);
        systemctl(&["stop", "vmmcd.socket", "vmmcd.service"]);
        systemctl(&["daemon-reload"]);
    }
}

/// The service with `cluster.conf`, as one node; the other one is a daemon that nothing forbids anything.
#[test]
#[ignore = "needs systemd as process 1: ci/systemd"]
fn under_systemd_the_service_may_be_a_node_of_a_cluster() {
    let dir = tempfile::tempdir_in("/run").unwrap();
    let (here, there) = ("127.0.0.1:4790", "127.0.0.1:4791");
    let file = |node: &str, listen: &str, other: &str, at: &str| {
        let path = dir.path().join(format!("{node}.toml"));
        let text = format!("node = {node:?}\nlisten = {listen:?}\n[nodes]\n{other} = {at:?}\n");
        std::fs::write(&path, text).unwrap();
        path
    };
    let (a, b) = (file("a", here, "b", there), file("b", there, "a", here));
    let unit = Path::new("/run/units/vmmcd.service.d");
    std::fs::create_dir(unit).unwrap();
    let _no_more = DropIns(unit);
    // As installed, but for the place of the file.
    std::fs::copy("/run/units/cluster.conf", unit.join("cluster.conf")).unwrap();
    let place = format!("[Service]\nEnvironment=VMMC_CLUSTER={}\n", a.display());
    std::fs::write(unit.join("place.conf"), place).unwrap();
    systemctl(&["daemon-reload"]);
    fresh_service();
    let node = program();
    let region = Region::new(4096).unwrap();
    let export = node.export(region).name("far").grant(Who::Anyone, Rights::WRITE).open().unwrap();
    let socket = dir.path().join("b.sock");
    let mut other = Command::new("/usr/bin/vmmcd")
        .args(["--socket".as_ref(), socket.as_os_str(), "--cluster".as_ref(), b.as_os_str()])
        .spawn()
        .unwrap();
    let mut config = Config::from_env().unwrap();
    (config.socket, config.daemon) = (Some(socket.clone()), DaemonStart::Never);
    eventually("the other daemon listens", || socket.exists().then_some(()));
    let elsewhere = Node::builder().config(config).connect().unwrap();
    let import = elsewhere.import("far").node("a").timeout(WATCHDOG).open().unwrap();
    import.send_fenced(0, b"from another node").unwrap();
    let mut read = [0; 17];
    export.read(0, &mut read).unwrap();
    assert_eq!(&read, b"from another node");
    drop(import);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
#[ignore = "needs systemd as process 1: ci/systemd"]
fn under_systemd_a_restart_loses_nothing() {
    fresh_service();
    let busy = Busy::start();
    systemctl(&["restart", "vmmcd.service"]);
    eventually("the store is emptied", || (property("NFileDescriptorStore") == "0").then_some(()));
    busy.expect_kept();
}

#[test]
#[ignore = "needs systemd as process 1: ci/systemd"]
fn under_systemd_a_reload_hands_over_to_a_successor() {
    fresh_service();
    let busy = Busy::start();
    let before = main_pid();
    systemctl(&["reload", "vmmcd.service"]);
    eventually("the successor is the service", || (main_pid() != before).then_some(()));
    assert_eq!(property("ActiveState"), "active");
    busy.expect_kept();
}

#[test]
#[ignore = "needs systemd as process 1: ci/systemd"]
fn under_systemd_a_killed_daemon_is_started_anew_and_clients_come_back() {
    survives(|pid| {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
}

/// The unit's 30 s are two in a drop-in.
#[test]
#[ignore = "needs systemd as process 1: ci/systemd"]
fn under_systemd_the_watchdog_ends_a_daemon_that_stands_still() {
    let drop_in = Path::new("/run/systemd/system.control/vmmcd.service.d");
    systemctl(&["stop", "vmmcd.socket", "vmmcd.service"]);
    std::fs::create_dir_all(drop_in).unwrap();
    std::fs::write(drop_in.join("watchdog.conf"), "[Service]\nWatchdogSec=2\n").unwrap();
    systemctl(&["daemon-reload"]);
    survives(|pid| {
        assert_eq!(property("WatchdogUSec"), "2s");
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    });
    std::fs::remove_dir_all(drop_in).unwrap();
    systemctl(&["daemon-reload"]);
}
