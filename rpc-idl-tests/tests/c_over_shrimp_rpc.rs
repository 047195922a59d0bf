//! Generated C over the real runtime: client and server in two processes, and a Rust client of that server.

#[path = "../../shrimp-rpc/tests/c_compiler/mod.rs"]
mod c_compiler;
mod c_glue;
mod c_stubs_of;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod random_calls;

use common::{until, Daemon, Ended, PATIENCE};
use random_calls::{Program, Seen};
use rpc_idl_tests::batch::{add, call as random_call, Clients};
use rpc_idl_tests::shrimp::*;
use rpc_idl_tests::SEED;
use shrimp_rpc::process::count;
use shrimp_rpc::{Binding, Bulk, BulkMut, BulkOut, CallError, Context, Fault, Server, ServerCall};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use xdr::Decode;

/// The program of `c/calls.c`, which is both.
fn program(dir: &Path) -> PathBuf {
    compile("calls", dir)
}

/// A program of `c`, with all stubs of the interface.
fn compile(name: &str, dir: &Path) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let interface = std::fs::read_to_string(package.join("idl/everything.x")).expect("readable");
    c_stubs_of::generate(dir, "everything", &interface);
    let parts = ["codec", "client", "server"];
    let mut sources = vec![package.join("c").join(name).with_extension("c")];
    sources.extend(parts.map(|part| dir.join(format!("everything_{part}.c"))));
    c_compiler::compile(name, &sources, dir)
}

fn start(daemon: &Daemon, program: &Path, part: &str) -> Ended {
    let mut command = Command::new(program);
    command.args([part, "kv"]).env("VMMC_SOCKET", daemon.socket()).env("VMMC_DAEMON", "none");
    command.env("SHRIMP_RPC_CONNECT_MS", "120000");
    Ended(command.spawn().expect("it was built"))
}

/// F1 for C, as it is installed.
#[test]
fn a_generated_c_client_calls_a_generated_c_server() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let program = program(dir.path());
    let _server = start(&daemon, &program, "serve");
    for _ in 0..2 {
        let mut client = start(&daemon, &program, "call");
        assert!(client.0.wait().expect("it ends").success(), "see what it wrote above");
    }
}

/// What C makes in the buffer the server works on there, and C reads it there: the program sees that it is the same
/// place, and the server's side counts what it copies.
#[test]
fn bulk_data_of_c_is_made_and_used_in_place() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let program = program(dir.path());
    let node = daemon.node();
    let scale = |procedure, call: ServerCall<'_>| {
        assert_eq!(procedure, kv_v1::SCALE);
        let mut args = call.args();
        let (by, len) = (f64::decode(&mut args)?, u32::decode(&mut args)?);
        args.finish()?;
        let mut m = call.block_mut::<f64>(len)?;
        for i in 0..m.len() {
            let x = m.get(i).and_then(Result::ok).unwrap_or_default();
            m.set(i, x * by).map_err(|_| Fault::new(1, "outside"))?;
        }
        call.reply(0)?.send()
    };
    let server = Server::builder("kv").node(&node).raw_program(kv_v1::PROGRAM, 1, scale);
    let server = server.start().expect("serves");
    let mut client = start(&daemon, &program, "scale");
    assert!(client.0.wait().expect("it ends").success(), "see what it wrote above");
    until("all are served", || node.counters().get(count::SERVED) == 5);
    assert_eq!(node.counters().get(count::COPIED_BYTES), 0);
    server.stop();
}

#[test]
fn a_generated_c_server_puts_answers_off_and_has_faults() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(compile("later", dir.path()));
    command.arg("kv").env("VMMC_SOCKET", daemon.socket()).env("VMMC_DAEMON", "none");
    let mut server = Ended(command.stdin(Stdio::piped()).spawn().expect("it was built"));
    let builder = Binding::builder("kv", kv_v1::PROGRAM, kv_v1::VERSION).node(&daemon.node());
    let builder = builder.connect_timeout(PATIENCE.expect("there is one"));
    let kv = KvV1Client::new(builder.connect().expect("binds"));
    let mut value = Vec::new();
    for _ in 0..100 {
        assert_eq!(kv.get("key", &mut value).expect("answered"), Status::Ok);
        assert_eq!(value, b"later");
    }
    let fault = |failed: Option<CallError>| match failed {
        Some(CallError::Fault(fault)) => (fault.number(), fault.text().to_owned()),
        other => panic!("{other:?}"),
    };
    assert_eq!(fault(kv.get("never", &mut value).err()), (9, "never".into()));
    assert_eq!(fault(kv.list(&Vec::new()).err()), (10, "too long".into()));
    assert_eq!(fault(kv.divide(17, 42).err()), (42, "no quotient".into()));
    let wrong = kv.get("wrong", &mut value).expect_err("77 is no status");
    assert!(matches!(wrong, CallError::BadResults { .. }), "{wrong}");
    drop(server.0.stdin.take());
    assert!(server.0.wait().expect("it ends").success());
}

/// What `c/calls.c` answers, in Rust.
#[derive(Default)]
struct AsInC {
    logged: AtomicU8,
}

impl KvV1 for AsInC {
    fn put(&self, _: &Context, key: String, value: Bulk<'_, u8>) -> Result<bool, Fault> {
        Ok(key == "the key" && value.to_vec().is_ok_and(|bytes| bytes == b"bytes"))
    }

    fn get(&self, _: &Context, key: String, value: &mut BulkOut<'_, u8>) -> Result<Status, Fault> {
        let (status, bytes) = match &*key {
            "logged" => (Status::Full, vec![self.logged.load(Ordering::Relaxed)]),
            "there" => (Status::Ok, b"abc".to_vec()),
            _ => return Ok(Status::Missing),
        };
        value.put(&bytes).map(|()| status)
    }

    fn scale(&self, _: &Context, by: f64, m: &mut BulkMut<'_, f64>) -> Result<(), Fault> {
        for i in 0..m.len() {
            let x = m.get(i).and_then(Result::ok).unwrap_or_default();
            m.set(i, x * by).map_err(|_| Fault::new(2, "outside"))?;
        }
        Ok(())
    }

    fn divide(&self, _: &Context, a: i32, b: i32) -> Result<DivideReply, Fault> {
        match b {
            0 => Err(Fault::new(Fault::FAILED, "division by zero")),
            b => Ok(DivideReply { result: a / b, rest: a % b }),
        }
    }

    fn log(&self, _: &Context, line: String) -> Result<(), Fault> {
        self.logged.fetch_add(line.len() as u8, Ordering::Relaxed);
        Ok(())
    }

    fn list(&self, _: &Context, entries: Vec<Entry>) -> Result<Answer, Fault> {
        if entries.is_empty() {
            return Ok(Answer::Default(Status::Full, "nothing".into()));
        }
        let copies =
            (1..=entries.len() as u64).map(|n| Entry { name: "copy".into(), size: n << 40 });
        Ok(Answer::Ok(copies.collect()))
    }

    fn points(
        &self,
        _: &Context,
        p: Bulk<'_, Point>,
        q: &mut BulkOut<'_, Point>,
        fixed: &mut BulkMut<'_, i32>,
        _: &mut BulkMut<'_, i32>,
    ) -> Result<(), Fault> {
        let mut points = p.to_vec().map_err(|_| Fault::new(4, "no points"))?;
        points.iter_mut().for_each(|point| point.x += point.y);
        for i in 0..points.len() {
            fixed.set(i, i as i32).map_err(|_| Fault::new(4, "outside"))?;
        }
        q.put(&points)
    }

    fn turn(
        &self,
        _: &Context,
        numbers: &mut [i64],
        p: &mut [Point],
        fixed: &mut [i32],
    ) -> Result<i64, Fault> {
        numbers.reverse();
        p.reverse();
        fixed.reverse();
        match numbers.first() {
            Some(0) => Err(Fault::new(6, "and what was changed does not come back")),
            _ => Ok(numbers.iter().sum()),
        }
    }

    fn copy(&self, _: &Context, a: Vec<u8>) -> Result<(), Fault> {
        if a == b"copy" {
            Ok(())
        } else {
            Err(Fault::new(5, "another one"))
        }
    }

    fn later(&self, _: Num, _: Maybe, _: Vec<i64>, _: Tree, _: Node, replier: KvV1LaterReplier) {
        let _ = replier.fault(Fault::new(Fault::FAILED, "not in C either"));
    }

    fn r#type(&self, _: &Context, _: i32, _: String) -> Result<(), Fault> {
        Err(Fault::new(Fault::FAILED, "not in C either"))
    }
}

#[test]
fn a_generated_c_client_calls_a_generated_rust_server() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let program = program(dir.path());
    let server = Server::builder("kv").node(&daemon.node()).program(KvV1Service(AsInC::default()));
    let server = server.start().expect("serves");
    let mut client = start(&daemon, &program, "call");
    assert!(client.0.wait().expect("it ends").success(), "see what it wrote above");
    server.stop();
}

#[test]
fn a_generated_rust_client_calls_a_generated_c_server() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let _server = start(&daemon, &program(dir.path()), "serve");
    let builder = Binding::builder("kv", kv_v1::PROGRAM, kv_v1::VERSION).node(&daemon.node());
    let builder = builder.connect_timeout(PATIENCE.expect("there is one"));
    let kv = KvV1Client::new(builder.connect().expect("binds"));

    assert!(kv.put("the key", b"bytes").expect("answered"));
    let mut value = vec![1];
    assert_eq!(kv.get("there", &mut value).expect("answered"), Status::Ok);
    assert_eq!(value, b"abc");
    assert_eq!(kv.get("gone", &mut value).expect("answered"), Status::Missing);
    assert_eq!(value, []);
    for len in [0, 1, 1000, 65_536] {
        let mut m: Vec<f64> = (0..len).map(f64::from).collect();
        kv.scale(0.5, &mut m).expect("answered");
        assert!(m.iter().enumerate().all(|(i, x)| *x == i as f64 / 2.0), "{len}");
    }
    let DivideReply { result, rest } = kv.divide(17, -5).expect("answered");
    assert_eq!((result, rest), (-3, 2));
    match kv.divide(1, 0) {
        Err(CallError::Fault(fault)) => assert_eq!(fault.number(), Fault::FAILED),
        other => panic!("{other:?}"),
    }
    kv.log("a line").expect("sent");
    assert_eq!(kv.get("logged", &mut value).expect("answered"), Status::Full);
    assert_eq!(value, [6]);

    let entries = vec![Entry { name: "e".into(), size: 0 }; 10_000];
    let Answer::Ok(copies) = kv.list(&entries).expect("answered") else { panic!("no list") };
    assert_eq!((copies.len(), copies[9_999].size), (10_000, 10_000 << 40));
    let nothing = Answer::Default(Status::Full, "nothing".to_owned());
    assert_eq!(kv.list(&[]).expect("answered"), nothing);
    let points = [Point { x: 1.0, y: 2.0, tag: [3, 4, 5] }; 3];
    let (mut q, mut fixed, mut other) = (Vec::new(), [7; 100], [1; 100]);
    kv.points(&points, &mut q, &mut fixed, &mut other).expect("answered");
    assert_eq!(q, [Point { x: 3.0, y: 2.0, tag: [3, 4, 5] }; 3]);
    assert_eq!((fixed[2], fixed[3], other), (2, 7, [0; 100]));
    kv.copy(b"copy").expect("answered");

    let mut numbers: Vec<i64> = (1..=5000).collect();
    let mut p =
        [Point { x: 1.0, y: 2.0, tag: [3, 4, 5] }, Point { x: 6.0, y: 7.0, tag: [8, 9, 10] }];
    let mut fixed: [i32; 100] = std::array::from_fn(|i| i as i32);
    assert_eq!(kv.turn(&mut numbers, &mut p, &mut fixed).expect("answered"), 12_502_500);
    assert!((1..=5000).rev().eq(numbers.iter().copied()));
    assert!(p[0].x == 6.0 && p[1].tag == [3, 4, 5] && fixed[0] == 99);
    let mut numbers = [7, 0];
    let refused = kv.turn(&mut numbers, &mut p[..1], &mut fixed);
    assert!(matches!(refused, Err(CallError::Fault(fault)) if fault.number() > 0));
    assert!(numbers == [7, 0] && p[0].x == 6.0 && fixed[0] == 99);
    match kv.r#type(12, "not served") {
        Err(CallError::UnknownProcedure { .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// Calls of each random procedure.
const CALLS: u64 = 20;

/// What `c/program.c` makes, and the file of the calls.
fn random_program(dir: &Path) -> (PathBuf, PathBuf) {
    let calls = dir.join("calls");
    c_glue::write(dir, &calls, CALLS);
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/program.c");
    // Its `shrimp_rpc.h` is not the one of the library.
    std::fs::copy(own.with_extension("h"), dir.join("program.h")).expect("the directory is ours");
    std::fs::copy(&own, dir.join("program.c")).expect("the directory is ours");
    let sources: Vec<PathBuf> =
        ["program.c"].iter().chain(&c_glue::SOURCES).map(|name| dir.join(name)).collect();
    (c_compiler::compile("program", &sources, dir), calls)
}

fn start_random(daemon: &Daemon, dir: &Path, part: &str) -> Ended {
    let (program, calls) = random_program(dir);
    let mut command = Command::new(program);
    command.args([part, "random"]).arg(calls);
    command.env("VMMC_SOCKET", daemon.socket()).env("VMMC_DAEMON", "none");
    command.env("SHRIMP_RPC_CONNECT_MS", "120000");
    Ended(command.spawn().expect("it was built"))
}

/// C and Rust mean the same by whatever an interface says.
#[test]
fn a_random_c_client_calls_a_random_rust_server() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let seen = Seen::default();
    let server = Server::builder("random").node(&daemon.node());
    let server = add(server, || seen.answers()).start().expect("serves");
    let mut client = start_random(&daemon, dir.path(), "call");
    let ended = client.0.wait().expect("it ends");
    assert!(ended.success(), "RPC_IDL_TESTS_SEED={SEED}, see what it wrote above");
    server.stop();
    seen.check(CALLS);
}

#[test]
fn a_random_rust_client_calls_a_random_c_server() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let _server = start_random(&daemon, dir.path(), "serve");
    let node = daemon.node();
    let clients = Clients::new(|program, version| {
        let binding = Binding::builder("random", program, version).node(&node);
        binding.connect_timeout(PATIENCE.expect("there is one")).connect().expect("binds")
    });
    for (index, exchange) in Program::new().calls(CALLS) {
        let answer = random_call(&clients, index, &exchange.arguments, &exchange.before);
        let expected = Some(&exchange.results);
        assert_eq!(
            answer.as_ref().ok(),
            expected,
            "P{index}, {answer:?}, RPC_IDL_TESTS_SEED={SEED}"
        );
    }
}
