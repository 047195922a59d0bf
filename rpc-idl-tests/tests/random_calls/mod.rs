//! The random programs and what is sent there and back, as both sides know it.
#![allow(unreachable_pub, dead_code)] // each test file has it for itself

use rpc_idl_tests::random::{definitions, Def};
use rpc_idl_tests::random_program::{
    exchange, procedures, text, versions, Exchange, Kind, Procedure, Version,
};
use rpc_idl_tests::{Answers, COUNT, PROCEDURES, SEED};
use shrimp_rpc::Fault;
use std::sync::{Arc, Mutex};

/// See the module.
pub struct Program {
    pub defs: Vec<Def>,
    pub versions: Vec<Version>,
    pub procedures: Vec<Procedure>,
}

impl Program {
    pub fn new() -> Program {
        let defs = definitions(SEED, COUNT);
        let procedures = procedures(SEED, &defs, PROCEDURES);
        Program { defs, versions: versions(SEED, PROCEDURES), procedures }
    }

    /// The interface file.
    pub fn text(&self) -> String {
        text(&self.defs, &self.versions, &self.procedures)
    }

    /// So many calls of each procedure in order: which one, and what is sent. Nothing comes back from a one-way one.
    pub fn calls(&self, each: u64) -> impl Iterator<Item = (usize, Exchange)> + '_ {
        (0..each).flat_map(move |call| {
            (0..PROCEDURES).map(move |index| (index, self.exchange(index, call)))
        })
    }

    fn exchange(&self, index: usize, call: u64) -> Exchange {
        let mut exchange = exchange(SEED, &self.defs, &self.procedures, index, call);
        if self.procedures[index].kind == Kind::Never {
            exchange.results.clear();
        }
        exchange
    }
}

/// How often each procedure was called, and what was wrong: of a one-way one nobody else hears it.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<(Vec<u64>, Vec<String>)>>);

impl Seen {
    /// Serves the programs, and looks at the arguments.
    pub fn answers(&self) -> Answers<impl Fn(usize, Vec<u8>) -> Result<Vec<u8>, Fault>> {
        let (program, seen) = (Program::new(), self.0.clone());
        Answers(move |index: usize, arguments: Vec<u8>| {
            let (counts, wrong) = &mut *seen.lock().expect("nobody panics");
            counts.resize(PROCEDURES, 0);
            let call = counts[index];
            counts[index] += 1;
            let exchange = program.exchange(index, call);
            if arguments == exchange.arguments {
                return Ok(exchange.results);
            }
            let text =
                format!("P{index}, call {call}: {:?}, got {arguments:?}", exchange.arguments);
            wrong.push(text.clone());
            Err(Fault::with_text(1, text))
        })
    }

    /// So many calls of each procedure were made, and all had the right arguments.
    pub fn check(&self, each: u64) {
        let (counts, wrong) = &*self.0.lock().expect("nobody panics");
        assert_eq!(wrong[..], [""; 0], "RPC_IDL_TESTS_SEED={SEED}");
        assert_eq!(counts[..], [each; PROCEDURES]);
    }
}
