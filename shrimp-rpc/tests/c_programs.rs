//! C clients and servers against Rust ones, linked with the shared library.

mod c_compiler;
#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod program;
mod raw;

#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use common::{Daemon, second_process as play, until};
use program::{FAIL, FILL, NULL, PROGRAM, REVERSE, dispatch, serve};
use shrimp_rpc::layout::Answer;
use shrimp_rpc::{Binding, ConnectError, Server};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::Watchdog;
use vmmc::Token;
use xdr::{Decode, Encode, Source};

/// The secret of `several`.
const SECRET: Token = Token(*b"of several secre");

/// Answered by `several` when its client has gone.
const GONE: u32 = 5;

/// Makes that call, until it is killed.
fn mortal(args: &[String]) {
    support::die_with_parent();
    let binding = Binding::builder(&args[0], PROGRAM, 1).token(SECRET).connect().expect("binds");
    let _ = binding.request(GONE, 0, 0).expect("a lane").call();
}

/// Answered by `stays` when its client has given it up, or another one lets it.
const STAY: u32 = 90;

/// Answered by `stays` while such a call is under way.
const STAYING: u32 = 92;
/// Lets `stays` answer such a call.
const FREE: u32 = 93;

/// Serves, but for that.
fn stays(args: &[String]) {
    static STAYS: AtomicBool = AtomicBool::new(false);
    static FREED: AtomicBool = AtomicBool::new(false);
    let server = Server::builder(&args[0]).workers(2).raw_program(PROGRAM, 1, |procedure, call| {
        let is_over = || call.context().is_cancelled() || FREED.swap(false, Ordering::AcqRel);
        while procedure == STAY && !is_over() {
            STAYS.store(true, Ordering::Release);
            std::thread::yield_now();
        }
        STAYS.fetch_and(procedure != STAY, Ordering::Release);
        while procedure == STAYING && !STAYS.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        FREED.fetch_or(procedure == FREE, Ordering::AcqRel);
        let is_ours = [STAY, STAYING, FREE].contains(&procedure);
        dispatch(if is_ours { NULL } else { procedure }, call)
    });
    let server = server.start().expect("serves");
    common::say("ready");
    server.run();
}

#[test]
fn second_process() {
    play(&[("serve", serve), ("mortal", mortal), ("stays", stays)]);
}

/// Compiles a program of `tests/c`.
fn compile(name: &str, dir: &Path) -> PathBuf {
    let source = c_compiler::package().join("tests/c").join(name).with_extension("c");
    c_compiler::compile(name, &[source], dir)
}

/// A process of a node that runs such a program.
fn command(program: &Path, daemon: &Daemon) -> Command {
    let mut command = Command::new(program);
    command.env("VMMC_SOCKET", daemon.socket()).env("VMMC_DAEMON", "none");
    command
}

/// Runs a client to its end; all was as it should be.
fn says_ok(client: &mut Command) {
    let output = client.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said == "ok\n", "{said}{errors}");
}

fn a_c_client_calls(server_at: &Daemon, client_at: &Daemon, service: &str) {
    let mut server = server_at.second("serve", &["c-client"]);
    server.expect("ready");
    let dir = tempfile::tempdir().unwrap();
    says_ok(command(&compile("client", dir.path()), client_at).arg(service));
    server.finish();
}

#[test]
fn a_c_client_calls_a_rust_server() {
    let daemon = Daemon::start();
    a_c_client_calls(&daemon, &daemon, "c-client");
}

#[test]
fn a_c_client_calls_a_rust_server_of_another_node() {
    let (a, b) = cluster::pair();
    a_c_client_calls(&a.daemon, &b.daemon, "c-client@a");
}

fn a_rust_client_calls(server_at: &Daemon, client_at: &Daemon, service: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut server = command(&compile("server", dir.path()), server_at);
    server.arg("c-server").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "SAYS ready\n");
    let node = client_at.node();
    let binding = Binding::builder(service, PROGRAM, 1).node(&node).connect().unwrap();
    for _ in 0..1000 {
        binding.request(NULL, 0, 0).unwrap().call().unwrap().finish().unwrap();
    }
    calls_of_each_kind(&binding, "fault 77: as asked");
    server.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_rust_client_calls_a_c_server() {
    let daemon = Daemon::start();
    a_rust_client_calls(&daemon, &daemon, "c-server");
}

#[test]
fn a_rust_client_calls_a_c_server_of_another_node() {
    let (a, b) = cluster::pair();
    a_rust_client_calls(&a.daemon, &b.daemon, "c-server@a");
}

/// Calls what C serves, in place and in pieces; the fault is in those words.
fn calls_of_each_kind(binding: &Binding, fault: &str) {
    for len in [0usize, 1, 40, 1000, 70_000, 500_000] {
        let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let expected: Vec<u8> = bytes.iter().rev().copied().collect();
        let mut request = binding.request(REVERSE, 4, len.next_multiple_of(8)).unwrap();
        (len as u32).encode(&mut request).unwrap();
        request.block(&bytes).unwrap();
        let mut reply = request.call().unwrap();
        reply.inout(0, &mut bytes).unwrap();
        reply.finish().unwrap();
        assert_eq!(bytes, expected, "{len} bytes");
    }
    let mut numbers: Vec<u64> = Vec::new();
    for len in [0u32, 3, 1000, 50_000] {
        let mut request = binding.request(FILL, 4, 0).unwrap();
        len.encode(&mut request).unwrap();
        let mut reply = request.call().unwrap();
        reply.out_vec(1 << 20, &mut numbers).unwrap();
        assert_eq!(numbers, vec![u64::from(len); len as usize]);
    }
    let failed = binding.request(FAIL, 0, 0).unwrap().call().unwrap_err();
    assert!(failed.to_string().contains(fault), "{failed}");
}

/// One server of C: two programs, two versions, a secret; and replies that are put off.
#[test]
fn a_c_server_of_several_programs_asks_for_a_secret_and_answers_late() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let program = compile("several", dir.path());
    let mut server = command(&program, &daemon);
    server.args(["serve", "several"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut says = || lines.next().expect("it lives").unwrap();
    assert_eq!(says(), "SAYS ready");
    let node = daemon.node();
    let builder = || Binding::builder("several", PROGRAM, 1).node(&node);
    let refused = builder().connect().unwrap_err();
    assert!(matches!(refused, ConnectError::Service { .. }), "{refused:?}");
    let binding = builder().token(SECRET).connect().unwrap();
    binding.request(NULL, 0, 0).unwrap().call().unwrap().finish().unwrap();
    calls_of_each_kind(&binding, "fault 78: late, as asked");
    // A call whose client has gone is over when it is answered, once.
    for _ in 0..3 {
        let mut client = daemon.second("mortal", &["several"]);
        assert_eq!(says(), "SAYS late");
        client.kill();
        assert_eq!(says(), "SAYS 0");
    }
    calls_of_each_kind(&binding, "fault 78: late, as asked");
    says_ok(command(&program, &daemon).args(["call", "several"]));
    server.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_c_client_hears_of_lateness_and_death_and_goes_on() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let mut server = daemon.second("stays", &["x"]);
    server.expect("ready");
    let mut client = command(&compile("trouble", dir.path()), &daemon);
    let mut client = client.args(["late", "x"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let mut says = || lines.next().expect("it lives").unwrap();
    assert_eq!(says(), "SAYS waits");
    server.kill();
    assert_eq!(says(), "SAYS gone");
    let mut server = daemon.second("stays", &["x"]);
    server.expect("ready");
    assert_eq!(says(), "ok");
    assert!(client.wait().unwrap().success());
}

/// Another thread of a program in C gives its call up.
#[test]
fn a_c_call_is_cancelled_by_another_thread() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let mut server = daemon.second("stays", &["x"]);
    server.expect("ready");
    says_ok(command(&compile("trouble", dir.path()), &daemon).args(["cancelled", "x"]));
}

/// A client in C sets in the program what the environment sets, and is told why there is no binding.
#[test]
fn a_c_client_has_options_and_hears_why_it_is_not_bound() {
    let watchdog = Watchdog::new("a_c_client_has_options");
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let program = compile("options", dir.path());
    let mut server = daemon.second("stays", &["x"]);
    server.expect("ready");
    for part in ["failures", "limits", "later", "share", "lanes"] {
        watchdog.step(part);
        let mut client = command(&program, &daemon);
        client.args([part, "x"]).env("SHRIMP_RPC_CONNECT_MS", "600000");
        // Without a second lane one of its two calls would wait for the other, which waits for it.
        says_ok(client.env("SHRIMP_RPC_LANES", if part == "lanes" { "2" } else { "1" }));
    }
    watchdog.step("mismatch");
    let node = daemon.node();
    let (open, opened) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let heard = raw::Heard::hear(&node, "old", || open.send(()).unwrap());
            assert_eq!(heard.asked_len(), 3 * 4096);
            heard.refuse(Answer::OtherLayout, 99);
        });
        opened.recv().unwrap();
        says_ok(command(&program, &daemon).args(["mismatch", "old"]));
    });
}

/// A server in C that lets in whom it is told to, until a line is written to it.
fn lets_in(program: &Path, daemon: &Daemon, who: u32, id: u32) -> Child {
    let mut server = command(program, daemon);
    server.args(["serve", "x", &who.to_string(), &id.to_string()]);
    let mut server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "SAYS ready\n");
    server
}

fn end(mut server: Child) {
    server.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(server.wait().unwrap().success());
}

/// What such a server knows of this client.
#[derive(Debug, PartialEq)]
struct Known {
    pid: u32,
    uid: u32,
    /// In nanoseconds.
    left: u64,
    node: Vec<u8>,
}

fn known(binding: &Binding) -> Known {
    const WHO: u32 = 91;
    let mut reply = binding.request(WHO, 0, 0).unwrap().call().unwrap();
    let [pid, uid] = [(); 2].map(|()| u32::decode(&mut reply).unwrap());
    let left = u64::decode(&mut reply).unwrap();
    let mut node = vec![0; u32::decode(&mut reply).unwrap() as usize];
    reply.get_padded(&mut node).unwrap();
    reply.finish().unwrap();
    Known { pid, uid, left, node }
}

/// Which node a call comes from, and how long it may take.
#[test]
fn a_c_server_knows_the_node_of_its_caller_and_the_time_that_is_left() {
    const HOUR: Duration = Duration::from_secs(3600);
    let dir = tempfile::tempdir().unwrap();
    let program = compile("trouble", dir.path());
    let (a, b) = cluster::pair();
    let server = lets_in(&program, &a.daemon, 0, 0);
    for (daemon, service, name) in [(&a.daemon, "x", ""), (&b.daemon, "x@a", "b")] {
        // It has one place, and the one before may not have left it yet.
        let (node, mut binding) = (daemon.node(), None);
        until("there is a place", || {
            binding = program::builder(&node, service).connect().ok();
            binding.is_some()
        });
        let binding = binding.unwrap();
        let always = known(&binding);
        assert_eq!((&always.node[..], always.left), (name.as_bytes(), u64::MAX));
        let hurried = known(&binding.with_timeout(HOUR));
        assert_eq!(hurried.node, name.as_bytes());
        assert!(hurried.left > 0 && u128::from(hurried.left) <= HOUR.as_nanos(), "{hurried:?}");
    }
    end(server);
}

/// Whom a server in C lets in, what it lets them take, and that it knows them.
#[test]
fn a_c_server_has_rights_and_limits_and_knows_its_callers() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let program = compile("trouble", dir.path());
    let (me, us) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let cases = [
        (0, 0, true),
        (1, 0, true),
        (2, me, true),
        (2, me + 1, false),
        (3, us, true),
        (3, us + 60_000, false),
        (4, std::process::id(), true),
        (4, 1, false),
    ];
    for (who, id, may) in cases {
        let server = lets_in(&program, &daemon, who, id);
        let node = daemon.node();
        match Binding::builder("x", PROGRAM, 1).node(&node).connect() {
            Ok(binding) => {
                assert!(may, "{who} {id} lets in everybody");
                let expected =
                    Known { pid: std::process::id(), uid: me, left: u64::MAX, node: Vec::new() };
                assert_eq!(known(&binding), expected);
            }
            Err(error) => {
                assert!(!may, "{who} {id}: {error}");
                assert!(matches!(error, ConnectError::Service { .. }), "{error}");
            }
        }
        if who == 0 {
            says_ok(command(&program, &daemon).args(["much", "x"]));
        }
        end(server);
    }
}
