//! Many clients of one server.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod program;
#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use common::{Daemon, pause, say, second_process as play, until};
use program::{NULL, PROGRAM, fill, reverse, serve, sum};
use shrimp_rpc::Binding;
use vmmc::Node;

/// Binds so many times, says so, then calls some procedures on each when told to, from the last to the first.
fn clients(args: &[String]) {
    let node = Node::connect().expect("connects");
    let bindings: Vec<Binding> = (0..args[1].parse().unwrap())
        .map(|_| {
            let builder = Binding::builder(&args[0], PROGRAM, 1).node(&node).buffer_len(8192);
            builder.connect().expect("binds")
        })
        .collect();
    say("bound");
    pause();
    for binding in bindings.iter().rev() {
        binding.request(NULL, 0, 0).unwrap().call().unwrap();
        let number = std::process::id();
        sum(binding, number as i32);
        // In a buffer's length, and in pieces.
        for len in [number % 8000, number % 50_000] {
            reverse(binding, len as usize).unwrap();
            fill(binding, len / 8).unwrap();
        }
    }
    say("called");
    pause();
}

#[test]
fn second_process() {
    play(&[("serve", serve), ("clients", clients)]);
}

/// Descriptors, mappings of memory files, and resident bytes of a process.
fn held(pid: u32) -> [usize; 3] {
    let footprint = support::footprint(pid);
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("it lives");
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    [footprint.fds.values().sum(), footprint.mappings.values().sum(), pages * 4096]
}

fn many(name: &str, processes: usize, each: usize) {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &[name]);
    server.expect("ready");
    let before = held(server.pid());
    let mut all: Vec<_> =
        (0..processes).map(|_| daemon.second("clients", &[name, &each.to_string()])).collect();
    for client in &mut all {
        client.expect("bound");
    }
    let bindings = processes * each;
    let grown = || {
        let after = held(server.pid());
        [0, 1, 2].map(|i| after[i].saturating_sub(before[i]))
    };
    // Both buffers and the links of both; each process has a doorbell and a page besides. The door is closed behind
    // a client some time after it is bound.
    let most = [3 * bindings + 2 * processes, 4 * bindings + 2 * processes];
    until(&format!("descriptors and mappings are no more than {most:?}"), || {
        grown().iter().zip(most).all(|(grown, most)| *grown <= most)
    });
    let grown = grown();
    let [fds, mappings, resident] = grown.map(|grown| grown as f64 / bindings as f64);
    println!(
        "a binding: {fds:.2} descriptors, {mappings:.2} mappings, {resident:.0} resident bytes"
    );
    // All at once, while nobody else is idle; then one after another, while all others are.
    for client in &mut all {
        client.go_on();
    }
    for client in &mut all {
        client.expect("called");
    }
    let node = daemon.node();
    let binding = Binding::builder(name, PROGRAM, 1).node(&node).connect().unwrap();
    for _ in 0..1000 {
        binding.request(NULL, 0, 0).unwrap().call().unwrap();
    }
    for client in &mut all {
        client.finish();
    }
    binding.request(NULL, 0, 0).unwrap().call().unwrap();
    server.finish();
}

#[test]
fn sixty_clients_are_all_served_and_the_idle_ones_do_not_hide_the_busy() {
    many("sixty", 6, 10);
}

#[test]
#[ignore = "a thousand bindings: memory and descriptors for all of them"]
fn a_thousand_clients_are_all_served() {
    many("thousand", 20, 50);
}

#[test]
#[ignore = "a thousand processes"]
fn a_thousand_client_processes_are_all_served() {
    many("processes", 1000, 1);
}
