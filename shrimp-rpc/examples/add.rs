//! The smallest service: `add serve`, and `add A B` to call it.

#[path = "generated/add.rs"] // by `shrimpc rust add.x -o generated/add.rs`
#[allow(missing_docs, dead_code, unreachable_pub)]
#[rustfmt::skip]
mod add;

use add::{AddV1, AddV1Client, AddV1Service};
use shrimp_rpc::{Context, Fault, Server};
use std::process::ExitCode;

struct Adder;

impl AddV1 for Adder {
    fn add(&self, _: &Context, a: i32, b: i32) -> Result<i32, Fault> {
        a.checked_add(b).ok_or(Fault::new(1, "the sum does not fit"))
    }
}

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("add: {error}"); // a `main` that returned it would print `{error:?}`
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    match args {
        [serve] if serve == "serve" => {
            Server::builder("add").program(AddV1Service(Adder)).start()?.run();
        }
        [a, b] => println!("{}", AddV1Client::connect("add")?.add(a.parse()?, b.parse()?)?),
        _ => return Err("usage: add serve | add A B".into()),
    }
    Ok(())
}
