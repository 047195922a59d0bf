//! F15 the other way around: servers that lie, and that change results while they are read, against generated clients.
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

use common::{second_process as play, Daemon, Second, PATIENCE};
use hostile::attack::seed;
use hostile::client::{call_async, large, CALLS, IN_PLACE};
use hostile::service::Blocking;
use hostile::{in_c, liar};
use rpc_idl_tests::hostile::{hostile_v1, HostileV1AsyncClient, HostileV1Client, HostileV1Service};
use rpc_idl_tests::random::Random;
use shrimp_rpc::{Binding, CallError, Server};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use support::Watchdog;

#[test]
fn second_process() {
    play(&[("lie", liar::serve)]);
}

/// One after the other: three busy processes are enough for a machine.
static TURN: Mutex<()> = Mutex::new(());

/// Longest reply that clients here take.
const CALL_MAX: usize = 8 << 20;

fn start(daemon: &Daemon, seed: u64) -> Second {
    println!("seed {seed}: RPC_IDL_HOSTILE_SEED tries another");
    let mut liar = daemon.second("lie", &["hostile", &seed.to_string()]);
    liar.expect("ready");
    liar
}

/// Ends the liar, and serves honestly in its place.
fn relieve(daemon: &Daemon, mut liar: Second) -> Server {
    assert!(matches!(liar.child.try_wait(), Ok(None)), "the liar itself failed");
    liar.kill();
    let server = Server::builder("hostile").node(&daemon.node());
    server.program(HostileV1Service(Blocking::new())).start().expect("serves")
}

fn binding(daemon: &Daemon) -> Binding {
    Binding::builder("hostile", hostile_v1::PROGRAM, hostile_v1::VERSION)
        .node(&daemon.node())
        .lanes(1)
        .call_max(CALL_MAX)
        .buffer_len(raw::LEN)
        .timeout(Duration::from_millis(20))
        .connect_timeout(Duration::from_secs(20))
        .connect()
        .expect("binds")
}

/// What was answered: all of it was a lie, but a few of each kind show that it was tried.
#[derive(Default)]
struct Tally {
    taken: u32,
    refused: u32,
    ended: u32,
}

impl Tally {
    fn count(&mut self, what: &str, answered: Result<bool, CallError>) {
        match answered {
            Ok(_) => self.taken += 1,
            Err(CallError::Protocol { .. }) => self.ended += 1,
            Err(CallError::Encode(error)) => panic!("{what}: {error}"),
            // Nothing of the machine's fails, and the liar binds everybody.
            Err(error @ (CallError::Transport(_) | CallError::Connect(_))) => {
                panic!("{what}: {error}")
            }
            Err(_) => self.refused += 1,
        }
    }

    fn show(&self) {
        let Tally { taken, refused, ended } = self;
        println!("{taken} taken, {refused} refused, {ended} bindings ended");
        assert!(*taken > 20 && *refused > 20 && *ended > 5, "too few of a kind");
    }
}

/// Says whether a call is answered as ever, once the binding is to another server.
fn is_served<T>(mut call: impl FnMut() -> Result<T, CallError>) -> T {
    loop {
        match call() {
            Ok(it) => return it,
            Err(CallError::ServerGone { .. } | CallError::TimedOut { .. }) => {}
            Err(error) => panic!("an honest server: {error}"),
        }
    }
}

#[test]
fn a_generated_client_survives_servers_that_lie() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::new("a_generated_client");
    let daemon = Daemon::start();
    let liar = start(&daemon, seed(1));
    let client = HostileV1Client::new(binding(&daemon));
    let (mut r, mut tally) = (Random::new(seed(1) + 1), Tally::default());
    for round in 0..200 {
        for (index, call) in CALLS.iter().chain(&IN_PLACE).enumerate() {
            tally.count(&format!("round {round}, call {index}"), call(&client, &mut r));
        }
    }
    tally.show();
    let server = relieve(&daemon, liar);
    is_served(|| client.note("a line", &[]));
    client.binding().set_timeout(PATIENCE);
    for call in CALLS.iter().chain(&IN_PLACE) {
        assert!(is_served(|| call(&client, &mut r)));
    }
    assert!(is_served(|| large(&client)));
    server.stop();
}

#[test]
fn a_generated_async_client_survives_servers_that_lie() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::new("a_generated_async_client");
    let daemon = Daemon::start();
    let liar = start(&daemon, seed(1));
    let client = HostileV1AsyncClient::new(binding(&daemon));
    let (mut r, mut tally) = (Random::new(seed(1) + 1), Tally::default());
    let executor = tokio::runtime::Builder::new_current_thread().build().expect("an executor");
    for round in 0..800 {
        let answered = executor.block_on(call_async(&client, &mut r));
        tally.count(&format!("round {round}"), answered);
    }
    tally.show();
    let server = relieve(&daemon, liar);
    is_served(|| executor.block_on(client.note("a line", &[])));
    client.binding().set_timeout(PATIENCE);
    for _ in 0..20 {
        assert!(is_served(|| executor.block_on(call_async(&client, &mut r))));
    }
    server.stop();
}

/// The sanitizers see what is written or read outside, and what is left when a call fails.
#[test]
fn a_generated_c_client_survives_servers_that_lie() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::new("a_generated_c_client");
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let program = in_c::compile(dir.path());
    let liar = start(&daemon, seed(1));
    let mut command = in_c::command(&daemon, &program, &["call", "hostile", "200"]);
    command.env("SHRIMP_RPC_CALL_MAX", CALL_MAX.to_string());
    command.env("SHRIMP_RPC_BUFFER", raw::LEN.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = common::Ended(command.spawn().expect("it was built"));
    let mut lines = BufReader::new(client.0.stdout.take().expect("piped")).lines();
    let mut says = || lines.next().expect("it lives").expect("it speaks");
    println!("{}", says());
    let server = relieve(&daemon, liar);
    client.0.stdin.take().expect("piped").write_all(b"\n").expect("it listens");
    assert_eq!(says(), "served");
    assert!(client.0.wait().expect("it ends").success(), "see what it wrote above");
    server.stop();
}
