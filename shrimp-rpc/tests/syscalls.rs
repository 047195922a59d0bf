//! No system call on either side of a call while both are awake: under filters that kill at the first.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
#[path = "../../vmmc/tests/support/mod.rs"]
mod support;

use common::{Daemon, say, second_process as play, until};
use shrimp_rpc::name;
use shrimp_rpc::{Binding, CallError, DispatchError, Server};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use vmmc::config::{WaitChoice, WaitPolicy};
use vmmc::{Config, ExportSummary, Node};
use xdr::{Decode, Encode};

const PROGRAM: u32 = 0x2000_0006;
const NULL: u32 = 0;
const INOUT: u32 = 1;
const OUT: u32 = 2;
/// From here on the thread that serves may make no system call.
const FILTER: u32 = 3;
const CALLS: u32 = 1_000;

/// A node whose waits never sleep.
fn spinning() -> Node {
    let config = Config {
        wait: WaitChoice::Fixed(WaitPolicy::Spin),
        ..Config::from_env().expect("settings")
    };
    Node::builder().config(config).connect().expect("connects")
}

/// Waits until `node` knows of its end of both buffers' links and of no other: that of the door is closed behind the client.
/// What its control thread has still to hear it would hear in the middle of a call.
fn settled(node: &Node) {
    until("the node has one import, and its buffer alone is imported", || {
        let good = |export: &ExportSummary| {
            let is_door = export.name == name::door("strict");
            export.importers.len() == usize::from(!is_door)
        };
        node.imports().len() == 1 && node.exports().iter().all(good)
    });
}

/// The links that a process has mapped, by their inodes.
fn links(pid: u32) -> BTreeSet<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let links = maps.lines().filter(|line| line.contains("/memfd:vmmc-link"));
    links.filter_map(|line| line.split_whitespace().nth(4)).map(str::to_owned).collect()
}

fn serve(_: &[String]) {
    support::die_with_parent();
    let node = spinning();
    let server = Server::builder("strict")
        .node(&node)
        .raw_program(PROGRAM, 1, |procedure, call| {
            let mut args = call.args();
            match procedure {
                NULL => call.reply(0)?.send(),
                FILTER => {
                    support::only_exit_from_here();
                    call.reply(0)?.send()
                }
                INOUT => {
                    let len = u32::decode(&mut args)?;
                    args.finish()?;
                    let mut block = call.block_mut::<u8>(len)?;
                    let mut piece = [0; 512];
                    for first in (0..block.len()).step_by(piece.len()) {
                        let count = piece.len().min(block.len() - first);
                        block.read(first, &mut piece[..count]).expect("inside");
                        piece[..count].iter_mut().for_each(|byte| *byte = !*byte);
                        block.write(first, &piece[..count]).expect("inside");
                    }
                    call.reply(0)?.send()
                }
                OUT => {
                    let len = u32::decode(&mut args)?;
                    args.finish()?;
                    let mut out = call.out::<u8>(len);
                    let mut block = out.open(len as usize)?;
                    let piece = [0xab; 512];
                    for first in (0..block.len()).step_by(piece.len()) {
                        let count = piece.len().min(block.len() - first);
                        block.write(first, &piece[..count]).expect("inside");
                    }
                    let (distance, len) = out.descriptor();
                    let mut reply = call.reply(8)?;
                    distance.encode(&mut reply)?;
                    len.encode(&mut reply)?;
                    reply.send()
                }
                other => Err(DispatchError::UnknownProcedure(other)),
            }
        })
        .start()
        .expect("serves");
    say("ready");
    // Somebody calls from then on.
    let _watch = std::thread::spawn(move || {
        settled(&node);
        say("settled");
    });
    server.run();
}

fn inout(binding: &Binding, data: &mut [u8]) -> Result<(), CallError> {
    let mut request = binding.request(INOUT, 4, data.len().next_multiple_of(8))?;
    (data.len() as u32).encode(&mut request)?;
    request.block(data)?;
    let mut reply = request.call()?;
    reply.inout(0, data)?;
    reply.finish()
}

fn out(binding: &Binding, len: usize, data: &mut Vec<u8>) -> Result<(), CallError> {
    let mut request = binding.request(OUT, 4, 0)?;
    (len as u32).encode(&mut request)?;
    let mut reply = request.call()?;
    reply.out_vec(len as u32, data)
}

fn call(_: &[String]) {
    support::die_with_parent();
    let node = spinning();
    let binding = Binding::builder("strict", PROGRAM, 1)
        .node(&node)
        .buffer_len(65536)
        .connect()
        .expect("binds");
    let null = |binding: &Binding| binding.request(NULL, 0, 0)?.call()?.finish();
    let lens = [1usize, 8, 40, 120, 121, 1000, 40_000];
    let mut data = vec![0u8; 40_000];
    let mut results = Vec::with_capacity(data.len());
    // Once before, for what is made at first use.
    null(&binding).expect("a call");
    inout(&binding, &mut data).expect("a call");
    out(&binding, data.len(), &mut results).expect("a call");
    data.fill(0);
    settled(&node);
    say("settled");
    common::pause();
    binding.request(FILTER, 0, 0).and_then(|it| it.call()?.finish()).expect("a call");
    support::only_exit_from_here();
    for round in 0..CALLS {
        let len = lens[round as usize % lens.len()];
        let before = data[0];
        let good = null(&binding).is_ok()
            && inout(&binding, &mut data[..len]).is_ok()
            && data[0] == !before
            && out(&binding, len, &mut results).is_ok()
            && results.len() == len
            && results.iter().all(|byte| *byte == 0xab);
        if !good {
            support::exit(1);
        }
    }
    support::exit(0);
}

#[test]
fn second_process() {
    play(&[("serve", serve), ("call", call)]);
}

#[test]
fn calls_between_two_that_are_awake_make_no_system_call() {
    let _watchdog = support::Watchdog::after("calls_make_no_system_call", Duration::from_secs(300));
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &[]);
    server.expect("ready");
    let mut client = daemon.second("call", &[]);
    client.expect("settled");
    server.expect("settled");
    // The client keeps the segment of the door's link for its next import.
    until("both have the links of both buffers, and the server no other", || {
        let (server, client) = (links(server.pid()), links(client.pid()));
        server.len() == 2 && server.is_subset(&client)
    });
    client.go_on();
    let status = client.child.wait().unwrap();
    assert_eq!(
        (status.code(), status.signal()),
        (Some(0), None),
        "1: a wrong result; SIGSYS: a system call"
    );
    // A server that had made one would have been killed, and the client would have had no answer.
    // Now that the client has gone it may make some.
}
