//! F15: clients that lie, and that change arguments while they are used, against generated servers.
//!
//! The seed is fixed and printed; `RPC_IDL_HOSTILE_SEED=7` tries another one.

#[path = "../../shrimp-rpc/tests/c_compiler/mod.rs"]
mod c_compiler;
mod c_stubs_of;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod hostile;
#[path = "../../shrimp-rpc/tests/raw/mod.rs"]
mod raw;
#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
#[rustfmt::skip] // it is of another edition, and is formatted there
mod support;

use common::{say, second_process as play, Daemon, Ended, Second};
use hostile::attack::{attack, seed};
use hostile::in_c;
use hostile::service::{count_panics, panics, Async, Blocking};
use rpc_idl_tests::hostile::{HostileV1AsyncService, HostileV1Service};
use shrimp_rpc::Server;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use support::Watchdog;

/// Longest call in the servers here: what one client can make them allocate.
const CALL_MAX: usize = 8 << 20;

fn serve(args: &[String]) {
    count_panics();
    let server = Server::builder(&args[0]).program(HostileV1Service(Blocking::new()));
    serve_until_told(server.start().expect("serves"));
}

fn serve_async(args: &[String]) {
    count_panics();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    let runtime = runtime.expect("threads");
    let handle = runtime.handle().clone();
    let service = HostileV1AsyncService::new(Async, move |task| drop(handle.spawn(task)));
    serve_until_told(Server::builder(&args[0]).program(service).start().expect("serves"));
}

fn serve_until_told(server: Server) {
    say("ready");
    common::pause();
    say(&format!("panics {}", panics()));
    server.stop();
}

#[test]
fn second_process() {
    play(&[("serve", serve), ("serve_async", serve_async)]);
}

fn start(daemon: &Daemon, part: &str) -> Second {
    let mut server = daemon.second_with(part, &["hostile"], |command| {
        command.env("SHRIMP_RPC_CALL_MAX", CALL_MAX.to_string());
    });
    server.expect("ready");
    server
}

/// Most memory that a process ever had, in KiB.
fn peak(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
    line.split_ascii_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number")
}

/// One after the other: three busy processes are enough for a machine.
static TURN: Mutex<()> = Mutex::new(());

fn survives(part: &str, rounds: u64) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::new(part);
    let daemon = Daemon::start();
    let mut server = start(&daemon, part);
    let before = peak(server.pid());
    attack(&daemon, "hostile", seed(1), rounds);
    // A call and its arguments, for either client, and what allocators keep.
    let grown = (peak(server.pid()) - before) * 1024;
    assert!(grown < 8 * CALL_MAX, "{grown} bytes more than at the start");
    server.go_on();
    server.expect("panics 0");
    server.finish();
}

#[test]
fn a_generated_server_survives_clients_that_lie() {
    survives("serve", 1800);
}

#[test]
fn a_generated_async_server_survives_clients_that_lie() {
    survives("serve_async", 1200);
}

/// The sanitizers see what is read outside, and the program what it must never get.
#[test]
fn a_generated_c_server_survives_clients_that_lie() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::new("a_generated_c_server");
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let program = in_c::compile(dir.path());
    let mut command = in_c::command(&daemon, &program, &["serve", "hostile"]);
    command.env("SHRIMP_RPC_CALL_MAX", CALL_MAX.to_string()).stdin(Stdio::piped());
    let mut server = Ended(command.spawn().expect("it was built"));
    attack(&daemon, "hostile", seed(1), 1200);
    drop(server.0.stdin.take());
    assert!(server.0.wait().expect("it ends").success(), "see what it wrote above");
}
