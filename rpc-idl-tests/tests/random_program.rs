//! Random procedures called with random values: the generated client and server in two processes, each of which knows
//! from an oracle that shares nothing with the compiler what the other one sends.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;

use common::{second_process as play, Daemon, PATIENCE};
use rpc_idl_tests::batch::{call, calls, CallsClient, CallsService};
use rpc_idl_tests::random::{definitions, Def};
use rpc_idl_tests::random_program::{exchange, procedures, text, Exchange, Kind, Procedure};
use rpc_idl_tests::{Answers, COUNT, PROCEDURES, SEED};
use shrimp_rpc::{Binding, Fault, Server};
use std::sync::Mutex;

/// Calls of each procedure.
const CALLS: u64 = 40;

/// What both sides know.
struct Program {
    defs: Vec<Def>,
    procedures: Vec<Procedure>,
}

impl Program {
    fn new() -> Program {
        let defs = definitions(SEED, COUNT);
        let procedures = procedures(SEED, &defs, PROCEDURES);
        Program { defs, procedures }
    }

    fn exchange(&self, index: usize, call: u64) -> Exchange {
        exchange(SEED, &self.defs, &self.procedures, index, call)
    }
}

fn serve(args: &[String]) {
    let program = Program::new();
    // How often each procedure was called, and what was wrong: nobody else hears of it from a one-way one.
    let seen = std::sync::Arc::new(Mutex::new((vec![0; PROCEDURES], Vec::new())));
    let noted = seen.clone();
    let answer = move |index: usize, arguments: Vec<u8>| {
        let mut noted = noted.lock().expect("nobody panics");
        let call = noted.0[index];
        noted.0[index] += 1;
        let exchange = program.exchange(index, call);
        if arguments == exchange.arguments {
            return Ok(exchange.results);
        }
        let wrong = format!("P{index}, call {call}: {:?}, got {arguments:?}", exchange.arguments);
        noted.1.push(wrong.clone());
        Err(Fault::with_text(1, wrong))
    };
    let server = Server::builder(&args[0]).program(CallsService(Answers(answer)));
    let server = server.start().expect("serves");
    common::say("ready");
    common::pause();
    server.stop();
    let seen = seen.lock().expect("nobody panics");
    assert_eq!(seen.1, [""; 0], "RPC_IDL_TESTS_SEED={SEED}");
    assert_eq!(seen.0, [CALLS; PROCEDURES]);
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
    for round in 0..CALLS {
        for (index, procedure) in program.procedures.iter().enumerate() {
            let Exchange { arguments, results, before } = program.exchange(index, round);
            let answer = call(&client, index, &arguments, &before);
            let expected = if procedure.kind == Kind::Never { Vec::new() } else { results };
            assert_eq!(
                answer.as_ref().ok(),
                Some(&expected),
                "P{index}, call {round}, {answer:?}, RPC_IDL_TESTS_SEED={SEED}:\n{}",
                text(&program.defs, &program.procedures)
            );
        }
    }
    // Behind all others, and so behind the one-way ones.
    let null = client.binding().request(0, 0, 0).and_then(|request| request.call()?.finish());
    null.expect("answered");
    server.finish();
}
