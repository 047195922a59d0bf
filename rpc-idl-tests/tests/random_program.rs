//! Random procedures called with random values: the generated client and server in two processes, each of which knows
//! from an oracle that shares nothing with the compiler what the other one sends.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod random_calls;

use common::{second_process as play, Daemon, PATIENCE};
use random_calls::{Program, Seen};
use rpc_idl_tests::batch::{call, calls, CallsClient, CallsService};
use rpc_idl_tests::random_program::Exchange;
use rpc_idl_tests::SEED;
use shrimp_rpc::{Binding, Server};

/// Calls of each procedure.
const CALLS: u64 = 40;

fn serve(args: &[String]) {
    let seen = Seen::default();
    let server = Server::builder(&args[0]).program(CallsService(seen.answers()));
    let server = server.start().expect("serves");
    common::say("ready");
    common::pause();
    server.stop();
    seen.check(CALLS);
}

#[test]
fn second_process() {
    play(&[("serve", serve)]);
}

/// F1: whatever an interface says, both sides hear what the other one said.
#[test]
fn random_calls_of_random_procedures_arrive_and_return() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["random"]);
    server.expect("ready");
    let binding = Binding::builder("random", calls::PROGRAM, calls::VERSION).node(&daemon.node());
    let binding = binding.connect_timeout(PATIENCE.expect("there is one")).connect();
    let client = CallsClient::new(binding.expect("binds"));
    let program = Program::new();
    for (index, Exchange { arguments, results, before }) in program.calls(CALLS) {
        let answer = call(&client, index, &arguments, &before);
        assert_eq!(
            answer.as_ref().ok(),
            Some(&results),
            "P{index}, {answer:?}, RPC_IDL_TESTS_SEED={SEED}:\n{}",
            program.text()
        );
    }
    // Behind all others, and so behind the one-way ones.
    let null = client.binding().request(0, 0, 0).and_then(|request| request.call()?.finish());
    null.expect("answered");
    server.finish();
}
