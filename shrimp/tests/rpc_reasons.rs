//! `shrimp stat` says why a client over Sun RPC stayed with TCP.

mod common;

use common::{RunningDaemon, compiled, run, shrimp, without_settings};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Ends a hang. Not a measure of speed.
const WATCHDOG: Duration = Duration::from_secs(120);

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let options = ["-I/usr/include/tirpc", "-Wno-cast-function-type"];
    PROGRAM.get_or_init(|| compiled("rpc_reasons", &options, &["-ltirpc"]))
}

struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(dir: &Path, arguments: &[&str], preloaded: bool) -> Process {
        let mut command = without_settings(Command::new(program()));
        if preloaded {
            let shrimp = Path::new(env!("CARGO_BIN_EXE_shrimp"));
            command.env("LD_PRELOAD", shrimp.with_file_name("libvrpc.so"));
            command.env("VMMC_SOCKET", dir.join("vmmcd.sock"));
        }
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

/// What `shrimp stat` says of a connection once it knows it.
fn stat(dir: &Path, addresses: &str) -> Value {
    let (local, remote) = addresses.split_once(' ').expect("two addresses");
    let started = Instant::now();
    loop {
        let ended = run(shrimp(dir).args(["stat", "--json"])).expect(0);
        let report: Value = serde_json::from_str(&ended.out).unwrap();
        let connections = report["connections"].as_array().unwrap();
        let mut it = connections.iter().filter(|it| it["local"] == local && it["remote"] == remote);
        if let Some(it) = it.next() {
            return it.clone();
        }
        assert!(started.elapsed() < WATCHDOG, "{addresses} is not listed: {report:#}");
    }
}

fn is_plain(dir: &Path, client: &mut Process, reason: &str) {
    let addresses = client.line();
    let found = stat(dir, &addresses);
    assert_eq!((&found["state"], &found["reason"]), (&"plain".into(), &reason.into()), "{found:#}");
    let human = run(shrimp(dir).arg("stat")).expect(0).out;
    let why = found["why"].as_str().unwrap();
    assert!(human.contains(&format!("plain TCP: {why}")), "{human}");
}

#[test]
fn the_server_takes_no_part_or_does() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    for takes_part in [false, true] {
        let mut server = Process::start(dir.path(), &["serve"], takes_part);
        let port = server.line();
        let mut client = Process::start(dir.path(), &["call", &port], true);
        if takes_part {
            let found = stat(dir.path(), &client.line());
            assert_eq!(found["state"], "upgraded", "{found:#}");
        } else {
            is_plain(dir.path(), &mut client, "no_partner");
        }
        assert_eq!(client.line(), "0", "the call");
    }
}

/// A server that reads, and says nothing: the client calls all the same, and waits.
#[test]
fn the_server_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = RunningDaemon::start(dir.path());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut client = Process::start(dir.path(), &["call", &port], true);
    is_plain(dir.path(), &mut client, "unanswered");
    drop(client);
    server.join().unwrap();
}
