//! Runs a server and a client, each with or without the library, over a private daemon.
//!
//! | file | what |
//! |---|---|
//! | `build` | the library, the daemon, and the programs of `tests/c` |
//! | `server` | a server that runs |
//! | `daemon` | the daemon |
//! | `ring`, `wire` | peers by hand: of a channel, and of RPC over sockets |
// Each test file uses its part.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, dead_code, unused_imports)]

mod build;
mod daemon;
pub mod ring;
mod server;
pub mod wire;

pub use build::{Mode, artefacts, programs};
pub use daemon::Daemon;
pub use server::{Server, rust_server, rust_server_with, servers};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Ends what hangs; never an assertion on speed.
pub const WATCHDOG: Duration = Duration::from_secs(300);

/// How long the ends of a connection wait for each other, so that a connection has its ring however long a busy
/// machine stands still.
const PAIR_MS: &str = "60000";

/// Whether a program runs with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Stock,
    Ours,
    /// A Rust program: nothing to preload.
    Rust,
}

/// A process with its counters, killed at the end.
pub struct Process {
    pub child: Child,
    pub by_hand: String,
    report: PathBuf,
    _dir: tempfile::TempDir,
}

/// What a process counted, by name; all zero when it left no report.
#[derive(Debug, Default)]
pub struct Counted(pub HashMap<String, u64>);

impl Counted {
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

impl Process {
    pub fn start(command: &mut Command, side: Side, daemon: &Daemon) -> Process {
        Process::start_with(command, side, daemon, &[])
    }

    /// With settings of ours beside those that every test has.
    pub fn start_with(
        command: &mut Command,
        side: Side,
        daemon: &Daemon,
        settings: &[(&str, &str)],
    ) -> Process {
        Process::start_as(command.stdin(Stdio::piped()), side, daemon, settings)
    }

    /// With the standard input that the command has.
    pub fn start_as(
        command: &mut Command,
        side: Side,
        daemon: &Daemon,
        settings: &[(&str, &str)],
    ) -> Process {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("report");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("VMMC_") {
                command.env_remove(name);
            }
        }
        command.env_remove("LD_PRELOAD");
        if side != Side::Stock {
            command
                .env("VMMC_SOCKET", &daemon.path)
                .env("VMMC_RPC_REPORT", &report)
                .env("VMMC_PAIR_MS", PAIR_MS)
                .envs(settings.iter().copied());
        }
        if side == Side::Ours {
            command.env("LD_PRELOAD", &artefacts().library);
        }
        let by_hand = format!("{command:?}");
        command.stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        Process { child, by_hand, report, _dir: dir }
    }

    /// A Rust program, with settings of ours.
    pub fn start_plain(command: &mut Command, daemon: &Daemon, env: &[(&str, &str)]) -> Process {
        Process::start_with(command, Side::Rust, daemon, env)
    }

    /// The counters, summed over forked children, once the process has ended.
    pub fn counted(&self) -> Counted {
        let mut sum = HashMap::new();
        for line in std::fs::read_to_string(&self.report).unwrap_or_default().lines() {
            for (name, value) in line.split(' ').filter_map(|word| word.split_once('=')) {
                *sum.entry(name.to_owned()).or_insert(0) += value.parse::<u64>().unwrap();
            }
        }
        Counted(sum)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `what`, which may wait for others, and panics when it does not end, or does itself.
pub fn watched<R: Send + 'static>(name: &str, what: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = mpsc::channel();
    let running = std::thread::spawn(move || {
        let _ = sender.send(what());
    });
    match receiver.recv_timeout(WATCHDOG) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs: {name}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(running.join().expect_err("it ends by a result or a panic"))
        }
    }
}

/// New clients, stock ones and ours, are served; ours over a ring.
pub fn is_alive(server: &Server, daemon: &Daemon) {
    for side in [Side::Stock, Side::Ours] {
        let (said, counted) = server.client("server_alive", "", side, daemon);
        let rings = u64::from(side == Side::Ours);
        let at = &server.process.by_hand;
        assert_eq!((said.as_str(), counted.get("calls_ring")), ("alive\n", rings), "{at}");
    }
}

/// Waits for a process that kills itself.
pub fn ended_by_kill(mut process: Process) {
    let mut child = std::mem::replace(&mut process.child, Command::new("true").spawn().unwrap());
    let ended = watched("who kills itself", move || child.wait().unwrap());
    assert_eq!(ended.signal(), Some(9), "{ended}: {}", process.by_hand);
}

/// Waits for the end of a process and of all that have its output.
pub fn finish(mut process: Process, name: &str) -> (String, Counted) {
    let mut stdout = process.child.stdout.take().unwrap();
    let said = watched(&format!("{name}: {}", process.by_hand), move || {
        let mut said = String::new();
        stdout.read_to_string(&mut said).unwrap();
        said
    });
    let status = process.child.wait().unwrap();
    assert!(status.success(), "{name}: {status}: {}\n{said}", process.by_hand);
    (said, process.counted())
}

/// Reads one line of a process.
pub fn line(process: &mut Process) -> String {
    let mut stdout = process.child.stdout.take().unwrap();
    let (line, stdout) = watched(&format!("a line of {}", process.by_hand), move || {
        let mut line = String::new();
        let mut byte = [0];
        while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0] as char);
        }
        (line, stdout)
    });
    process.child.stdout = Some(stdout);
    line
}

/// Lets a process that waits for a line go on.
pub fn go_on(process: &mut Process) {
    process.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
}

/// Runs a case four ways and compares. The counters of the fourth are returned, client's and
/// server's; in the others no call may have gone over a ring.
pub fn four_ways(mode: Mode, waits: &str, case: &str, argument: &str) -> (Counted, Counted) {
    four_ways_over(Net::Tcp, mode, waits, case, argument)
}

/// What the client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    Tcp,
    /// UDP, with `VMMC_RPC_UDP=on` where there is the library.
    Udp,
    /// Names and rpcbind; UDP takes part too.
    Rpcbind,
}

/// The same over any transport.
pub fn four_ways_over(
    net: Net,
    mode: Mode,
    waits: &str,
    case: &str,
    argument: &str,
) -> (Counted, Counted) {
    let daemon = Daemon::start();
    let settings: &[(&str, &str)] = if net == Net::Tcp { &[] } else { &[("VMMC_RPC_UDP", "on")] };
    let known: &[(&str, &str)] =
        if net == Net::Rpcbind { &[("SERVER_REGISTER", "1")] } else { &[] };
    let mut expected = None;
    for server_side in [Side::Stock, Side::Ours] {
        for client_side in [Side::Stock, Side::Ours] {
            let way = format!("{case}, {mode:?}, loop {waits}, {server_side:?}/{client_side:?}");
            let server = if mode == Mode::Inetd {
                Server::of_inetd(server_side, &daemon)
            } else {
                Server::start_set(mode, waits, server_side, &daemon, known, settings)
            };
            let mut command = server.client_command(case, argument);
            if net == Net::Udp {
                command = server.udp_client_command(case, argument);
            }
            let client = Process::start_with(&mut command, client_side, &daemon, settings);
            let (said, client) = finish(client, &way);
            let served = if mode == Mode::Inetd {
                let (said, _) = server.client("quit", "", Side::Stock, &daemon);
                assert_eq!(said, "quit 0\n");
                server.ended(false) // rpcgen's main calls it an error that `svc_run` returns
            } else {
                server.quit(&daemon)
            };
            assert!(!said.is_empty() && !said.contains("DIFFERENT"), "{way}:\n{said}");
            let expected = expected.get_or_insert_with(|| said.clone());
            assert_eq!(*expected, said, "{way}");
            if (server_side, client_side) == (Side::Ours, Side::Ours) {
                assert!(client.get("calls_ring") > 0, "{way}: {client:?} {served:?}");
                assert!(served.get("served_ring") > 0, "{way}: {client:?} {served:?}");
                return (client, served);
            }
            assert_eq!(client.get("calls_ring") + served.get("served_ring"), 0, "{way}");
        }
    }
    unreachable!("the fourth way returns")
}
