//! F15, `copyin`: a client that changes INOUT arguments while the handler runs changes nothing there; the result is what the
//! handler made of what it was called with.

#[path = "../../shrimp-rpc/tests/c_compiler/mod.rs"]
mod c_compiler;
mod c_stubs_of;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
#[path = "../../shrimp-rpc/tests/raw/mod.rs"]
mod raw;

use common::{pause, say, second_process as play, Daemon, Second};
use rpc_idl_tests::steady::{steady_v1, Pair, SteadyV1, SteadyV1Service};
use shrimp_rpc::layout::Kind;
use shrimp_rpc::{Context, Fault, Server};
use std::os::unix::process::CommandExt;
use std::path::Path;

struct Doubler;

fn sum(numbers: &[i64], pairs: &[Pair]) -> i64 {
    numbers.iter().sum::<i64>() + pairs.iter().map(|it| i64::from(it.a + it.b)).sum::<i64>()
}

impl SteadyV1 for Doubler {
    fn double(&self, _: &Context, numbers: &mut [i64], pairs: &mut [Pair]) -> Result<i64, Fault> {
        let before = sum(numbers, pairs);
        say("in the middle");
        pause();
        assert_eq!(sum(numbers, pairs), before);
        numbers.iter_mut().for_each(|number| *number *= 2);
        pairs.iter_mut().for_each(|pair| (pair.a, pair.b) = (pair.a * 2, pair.b * 2));
        Ok(before)
    }
}

fn serve(_: &[String]) {
    let server = Server::builder("steady").program(SteadyV1Service(Doubler)).start().unwrap();
    say("ready");
    server.run();
}

/// Becomes the program in C.
fn serve_in_c(args: &[String]) {
    let error = std::process::Command::new(&args[0]).exec();
    panic!("{}: {error}", args[0]);
}

#[test]
fn second_process() {
    play(&[("serve", serve), ("serve in C", serve_in_c)]);
}

fn stays_as_it_was(daemon: &Daemon, mut server: Second) {
    server.expect("ready");
    let node = daemon.node();
    let program = steady_v1::PROGRAM;
    let mut client = raw::Client::bind(&node, "steady", 5, program);
    let words = |numbers: [u64; 3], pairs: [u32; 4]| -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|it| it.to_le_bytes());
        numbers.chain(pairs.iter().flat_map(|it| it.to_le_bytes())).collect()
    };
    let blocks = words([1, 20, 300], [1, 2, 3, 4]);
    let len = 8 + blocks.len();
    let start = client.start(len);
    let counts: Vec<u8> = [3u32, 2].iter().flat_map(|it| it.to_le_bytes()).collect();
    client.calls.write(start, &counts).unwrap();
    client.calls.write(start + 8, &blocks).unwrap();
    client.send(Kind::Whole, steady_v1::DOUBLE as u16, len);
    server.expect("in the middle");
    client.calls.write(start + 8, &vec![0x55; blocks.len()]).unwrap();
    server.go_on();
    let reply = client.reply();
    assert_eq!((reply.kind, reply.code, reply.len_bytes()), (Kind::Whole, 0, 8));
    let mut result = [0; 8];
    client.replies.read(client.replies.len() - 16, &mut result).unwrap();
    assert_eq!(i64::from_le_bytes(result), 331);
    let mut stored = vec![0; blocks.len()];
    client.calls.read(start + 8, &mut stored).unwrap();
    assert_eq!(stored, words([2, 40, 600], [2, 4, 6, 8]));
}

#[test]
fn arguments_that_are_copied_in_stay_as_they_were_until_the_reply() {
    let daemon = Daemon::start();
    stays_as_it_was(&daemon, daemon.second("serve", &[]));
}

#[test]
fn arguments_that_are_copied_in_stay_as_they_were_in_c() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let interface = std::fs::read_to_string(package.join("idl/steady.x")).expect("readable");
    c_stubs_of::generate(dir.path(), "steady", &interface);
    let parts = ["codec", "client", "server"].map(|it| dir.path().join(format!("steady_{it}.c")));
    std::fs::copy(package.join("c/program.h"), dir.path().join("program.h")).expect("copied");
    let sources = [&[package.join("c/steady.c")][..], &parts].concat();
    let program = c_compiler::compile("steady", &sources, dir.path());
    let program = program.to_str().expect("a name");
    stays_as_it_was(&daemon, daemon.second("serve in C", &[program]));
}
