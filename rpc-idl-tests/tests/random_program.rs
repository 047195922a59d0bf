//! Random procedures called with random values, in each way that generated Rust can call and serve them. Both sides know
//! from an oracle that shares nothing with the compiler what the other one sends.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod loopback;
mod random_calls;

use common::{second_process as play, Daemon, PATIENCE};
use loopback::{Loopback, Programs};
use random_calls::{Program, Seen};
use rpc_idl_tests::batch::{
    add, add_async, call, call_async, call_in_place, AsyncClients, Clients,
};
use rpc_idl_tests::random_program::Exchange;
use rpc_idl_tests::{sun_batch, Answers, SEED};
use shrimp_rpc::{Binding, Fault, Server, ServerBuilder};
use std::cell::RefCell;
use std::fmt::Debug;
use xdr::rpc::{Answer, DispatchError};
use xdr::{Network, Reader, Writer};

/// Calls of each procedure: a third in each way that there is, in turns.
const CALLS: u64 = 60;

fn serve(args: &[String]) {
    let seen = Seen::default();
    run(add(Server::builder(&args[0]), || seen.answers()), &seen);
}

fn serve_async(args: &[String]) {
    let seen = Seen::default();
    // In the thread that took the call: so calls are heard in their order.
    let server = Server::builder(&args[0]);
    run(add_async(server, || seen.answers(), |task| executor().block_on(task)), &seen);
}

/// Serves until all calls were made.
fn run(server: ServerBuilder, seen: &Seen) {
    let server = server.start().expect("serves");
    common::say("ready");
    common::pause();
    server.stop();
    seen.check(CALLS);
}

#[test]
fn second_process() {
    play(&[("serve", serve), ("serve_async", serve_async)]);
}

/// What came back is what the other side sent.
fn check<E: Debug>(program: &Program, index: usize, answer: Result<Vec<u8>, E>, results: &[u8]) {
    assert_eq!(
        answer.as_ref().ok().map(|bytes| &bytes[..]),
        Some(results),
        "P{index}, {answer:?}, RPC_IDL_TESTS_SEED={SEED}:\n{}",
        program.text()
    );
}

fn executor() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("an executor")
}

/// F1: whatever an interface says, both sides hear what the other one said: by blocking calls, by futures, and where bulk
/// data stays where it lies.
#[test]
fn random_calls_of_random_procedures_arrive_and_return() {
    calls_of("serve");
}

/// The same of a server in `async` code.
#[test]
fn random_calls_of_a_random_async_server_arrive_and_return() {
    calls_of("serve_async");
}

fn calls_of(part: &str) {
    let daemon = Daemon::start();
    let mut server = daemon.second(part, &["random"]);
    server.expect("ready");
    let node = daemon.node();
    let bindings = RefCell::new(Vec::new());
    let clients = Clients::new(|program, version| {
        let binding = Binding::builder("random", program, version).node(&node);
        // One-way calls are to come in their order.
        let binding = binding.connect_timeout(PATIENCE.expect("there is one")).lanes(1).connect();
        bindings.borrow_mut().push(binding.expect("binds"));
        bindings.borrow().last().expect("it was bound").clone()
    });
    let (futures, executor) = (AsyncClients::new(&clients), executor());
    let program = Program::new();
    let mut in_place = 0;
    for (number, (index, exchange)) in program.calls(CALLS).enumerate() {
        let Exchange { arguments, results, before } = exchange;
        let blocking = || call(&clients, index, &arguments, &before);
        let answer = match number / program.procedures.len() % 3 {
            0 => blocking(),
            1 => executor.block_on(call_async(&futures, index, &arguments, &before)),
            _ => match call_in_place(&clients, index, &arguments) {
                Some(answer) => {
                    in_place += 1;
                    answer
                }
                None => blocking(),
            },
        };
        check(&program, index, answer, &results);
    }
    assert!(in_place > CALLS, "some procedures have bulk data, RPC_IDL_TESTS_SEED={SEED}");
    // Behind all others, and so behind the one-way ones.
    for binding in bindings.take() {
        let null = binding.request(0, 0, 0).and_then(|request| request.call()?.finish());
        null.expect("answered");
    }
    server.finish();
}

/// All versions of all programs.
struct All<F>(Answers<F>);

impl<F: Fn(usize, Vec<u8>) -> Result<Vec<u8>, Fault>> Programs for All<F> {
    fn dispatch(
        &self,
        version: (u32, u32),
        procedure: u32,
        arguments: &mut Reader<'_, Network>,
        results: &mut Writer<Network>,
    ) -> Result<Answer, DispatchError> {
        let call = (loopback::CALLER, arguments, results);
        sun_batch::dispatch(&self.0, version, procedure, call)
    }
}

/// The same interface for Sun RPC, where everything is XDR: blocking calls and futures.
#[test]
fn random_calls_over_sun_rpc_arrive_and_return() {
    let seen = Seen::default();
    let (caller, executor) = (Loopback::new(All(seen.answers())), executor());
    let program = Program::new();
    for (number, (index, Exchange { arguments, results, .. })) in program.calls(CALLS).enumerate() {
        let answer = match number / program.procedures.len() % 2 {
            0 => sun_batch::call(&&caller, index, &arguments),
            _ => executor.block_on(sun_batch::call_async(&&caller, index, &arguments)),
        };
        check(&program, index, answer, &results);
        // Between them are the values one after the other, and nothing else.
        assert_eq!(caller.take_seen(), [arguments, results], "P{index}");
    }
    seen.check(CALLS);
}
