//! Calls between two nodes, each with a daemon of its own: on loopback addresses, or in two network
//! namespaces (`ci/net`).

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod program;

use cluster::{Place, pair};
use common::{PATIENCE, Second, say, second_process as play, until};
use program::{FAIL, FILL, NULL, PROGRAM, connect, dispatch, fill, reverse, serve, sum};
use shrimp_rpc::layout::{self, Answer, FlagWord, Kind, Turn};
use shrimp_rpc::name;
use shrimp_rpc::{Binding, CallError, ConnectError, ServeError, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use vmmc::counters::index::NET_PACKETS;
use vmmc::{Node, Region, Rights, Who};
use xdr::Encode;

/// Waits until its caller gives up, and says how long that one wanted to wait.
const HOLD: u32 = 90;
/// Says so, and never returns.
const STAY: u32 = 91;

/// As HOLD, but its reply is put off, and it is woken when its caller gives up.
const AWAIT: u32 = 92;

fn hold(args: &[String]) {
    let server = Server::builder(&args[0])
        .workers(2)
        .raw_program(PROGRAM, 1, |procedure, call| {
            if procedure == AWAIT {
                let (call, finished) = call.defer();
                std::thread::spawn(move || {
                    let mut end = std::pin::pin!(call.context().cancelled());
                    run(std::future::poll_fn(|cx| {
                        let polled = end.as_mut().poll(cx);
                        if polled.is_pending() {
                            say("awaits");
                        }
                        polled
                    }));
                    say("woken");
                });
                return Ok(finished);
            }
            if procedure != HOLD {
                return dispatch(procedure, call);
            }
            let context = call.context();
            assert_eq!(context.node(), Some("b"));
            let left = context.time_left().expect("a limit");
            assert!(left <= Duration::from_millis(300), "{left:?}");
            say("held");
            until("it is given up", || context.is_cancelled());
            say("cancelled");
            call.reply(0)?.send()
        })
        .start()
        .expect("serves");
    say("ready");
    common::pause();
    until("it is forgotten", || server.bindings() == 0);
    say("forgotten");
    common::pause();
}

/// Lives until it is killed.
fn stay(args: &[String]) {
    let server = Server::builder(&args[0]).raw_program(PROGRAM, 1, |procedure, call| {
        if procedure != STAY {
            return dispatch(procedure, call);
        }
        say("in the call");
        loop {
            std::thread::park();
        }
    });
    let server = server.start().expect("serves");
    say("ready");
    server.run();
}

/// Makes a call, and waits to be killed.
fn client(args: &[String]) {
    let binding = connect(&Node::connect().expect("connects"), &args[0]);
    null(&binding).unwrap();
    say("called");
    common::pause();
}

/// Waits for a reply, until it is killed.
fn waits(args: &[String]) {
    let binding = connect(&Node::connect().expect("connects"), &args[0]);
    let _ = binding.request(AWAIT, 0, 0).expect("a lane").call();
}

#[test]
fn second_process() {
    play(&[("serve", serve), ("hold", hold), ("stay", stay), ("client", client), ("waits", waits)]);
}

fn null(binding: &Binding) -> Result<(), CallError> {
    binding.request(NULL, 0, 0)?.call()?.finish()
}

/// A server in a process on node a, and the two nodes.
fn world(part: &str, name: &str) -> (Place, Place, Second) {
    let (a, b) = pair();
    let mut server = a.daemon.second(part, &[name]);
    server.expect("ready");
    (a, b, server)
}

#[test]
fn arguments_and_results_of_any_length_cross_to_the_other_node_and_back() {
    let (_a, b, mut server) = world("serve", "x");
    let node = b.daemon.node();
    let binding = connect(&node, "x@a");
    assert_eq!(binding.server().unwrap().pid, server.pid());
    let before = node.counters().get(NET_PACKETS);
    for i in 0..200 {
        null(&binding).unwrap();
        sum(&binding, i);
    }
    assert!(node.counters().get(NET_PACKETS) >= before + 400, "they went another way");
    // INOUT, short, whole and in pieces.
    for len in [0usize, 1, 7, 8, 9, 100, 1000, 65_000, 65_536, 200_001, 1_000_000] {
        reverse(&binding, len).unwrap();
    }
    // OUT, the same.
    for len in [0u32, 1, 5, 1000, 8000, 9000, 100_000] {
        fill(&binding, len).unwrap();
    }
    match binding.request(FAIL, 0, 0).unwrap().call() {
        Err(CallError::Fault(fault)) => assert_eq!(fault.number(), 77),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        binding.request(70_000, 0, 0).unwrap().call(),
        Err(CallError::UnknownProcedure { procedure: 70_000 })
    ));
    binding.request(NULL, 0, 0).unwrap().send().unwrap();
    null(&binding).unwrap();
    drop(binding);
    server.finish();
}

struct Woken(AtomicBool, std::thread::Thread);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// An executor of one future.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let woken = Arc::new(Woken(AtomicBool::new(false), std::thread::current()));
    let waker = Waker::from(woken.clone());
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        while !woken.0.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }
}

#[test]
fn futures_are_woken_by_replies_of_the_other_node() {
    let (_a, b, mut server) = world("serve", "x");
    let binding = connect(&b.daemon.node(), "x@a");
    run(async {
        for len in [1u32, 100, 20_000] {
            let mut request = binding.request_async(FILL, 4, 0).await.unwrap();
            len.encode(&mut request).unwrap();
            let mut numbers: Vec<u64> = Vec::new();
            let mut reply = request.call_async().await.unwrap();
            reply.out_vec(1 << 20, &mut numbers).unwrap();
            assert_eq!(numbers, vec![u64::from(len); len as usize]);
        }
    });
    drop(binding);
    server.finish();
}

#[test]
fn a_call_given_up_is_told_to_the_other_node_and_the_binding_goes_on() {
    let (_a, b, mut server) = world("hold", "x");
    let binding = connect(&b.daemon.node(), "x@a");
    binding.set_timeout(Some(Duration::from_millis(300)));
    let end = binding.request(HOLD, 0, 0).unwrap().call().map(drop);
    assert!(matches!(end, Err(CallError::TimedOut { .. })), "{end:?}");
    server.expect("held");
    server.expect("cancelled");
    binding.set_timeout(None);
    null(&binding).unwrap();
    drop(binding);
    server.go_on();
    server.expect("forgotten");
}

#[test]
fn a_handler_is_woken_when_its_caller_on_the_other_node_gives_up_or_has_gone() {
    let (_a, b, mut server) = world("hold", "x");
    let binding = connect(&b.daemon.node(), "x@a");
    let begin = || async { binding.request_async(AWAIT, 0, 0).await?.call_async().await };
    let mut call = Box::pin(begin());
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    server.expect("awaits");
    drop(call);
    server.expect("woken");
    null(&binding).unwrap();
    let mut client = b.daemon.second("waits", &["x@a"]);
    server.expect("awaits");
    client.kill();
    server.expect("woken");
    drop(binding);
    server.go_on();
    server.expect("forgotten");
}

#[test]
fn a_server_that_dies_ends_the_call_and_its_successor_is_found() {
    let (a, b, mut server) = world("stay", "x");
    let binding = connect(&b.daemon.node(), "x@a");
    null(&binding).unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| binding.request(STAY, 0, 0).unwrap().call().map(drop));
        // Killed in the middle of a call: between two the next one would wait for a successor.
        server.expect("in the call");
        server.kill();
        let end = call.join().unwrap();
        assert!(matches!(end, Err(CallError::ServerGone { .. })), "{end:?}");
    });
    let mut server = a.daemon.second("serve", &["x"]);
    server.expect("ready");
    null(&binding).unwrap();
    reverse(&binding, 100_000).unwrap();
    drop(binding);
    server.finish();
}

/// Whether an import of a process is open.
fn has_link(node: &Node) -> bool {
    node.imports().iter().any(|import| import.closed.is_none())
}

#[test]
fn a_server_that_dies_between_two_calls_is_waited_for_by_the_second_one() {
    let (a, b, mut server) = world("serve", "x");
    let node = b.daemon.node();
    let binding = connect(&node, "x@a");
    server.kill();
    until("its end is seen", || !has_link(&node));
    let impatient = Binding::builder("x@a", PROGRAM, 1).node(&node);
    let error = impatient.connect_timeout(Duration::from_millis(300)).connect().unwrap_err();
    assert!(error.to_string().contains("\"x@a\": nobody serves it"), "{error}");

    let mut server = a.daemon.second("serve", &["x"]);
    server.expect("ready");
    null(&binding).unwrap();
    for round in 0..12 {
        server.kill();
        until("its end is seen", || !has_link(&node));
        std::thread::scope(|scope| {
            // The question comes before the export that it is about, or after it.
            let call = scope.spawn(|| null(&binding));
            server = a.daemon.second("serve", &["x"]);
            server.expect("ready");
            call.join().unwrap().unwrap_or_else(|error| panic!("round {round}: {error}"));
        });
        reverse(&binding, 1000).unwrap();
    }
    drop(binding);
    server.finish();
}

#[test]
fn a_client_that_dies_is_forgotten_by_the_other_node() {
    let (_a, b, mut server) = world("hold", "x");
    let mut client = b.daemon.second("client", &["x@a"]);
    client.expect("called");
    client.kill();
    server.go_on();
    server.expect("forgotten");
}

#[test]
fn a_daemon_that_dies_on_either_side_ends_the_call_and_the_next_one_binds_anew() {
    let (mut a, mut b, mut server) = world("serve", "x");
    // A call that finds its binding ended binds anew, and waits for its own node's daemon as long as for the service.
    let node = b.daemon.node();
    let builder = || Binding::builder("x@a", PROGRAM, 1).node(&node);
    // The nodes' first conversation takes its time on a busy machine, and is not what is tried here.
    drop(builder().connect_timeout(Duration::from_secs(60)).connect().unwrap());
    let mut binding = None;
    until("it binds in a short time", || {
        binding = builder().connect_timeout(Duration::from_millis(500)).connect().ok();
        binding.is_some()
    });
    let binding = binding.unwrap();
    null(&binding).unwrap();
    for which in ["the server's", "the client's"] {
        let place = if which == "the server's" { &mut a } else { &mut b };
        let (starter, file) = (place.starter(), place.file());
        let starter: Vec<&str> = starter.iter().map(String::as_str).collect();
        place.daemon.kill();
        // Without the daemon that receives for either side no call comes to an end.
        until("the end is seen", || match null(&binding) {
            Ok(()) => false,
            // In the middle of a call, or before one.
            Err(CallError::ServerGone { .. } | CallError::Connect(_)) => true,
            Err(error) => panic!("{which} daemon: {error}"),
        });
        place.daemon.restart_by(&starter, &["--cluster", file.to_str().unwrap()]);
        until("both are back", || null(&binding).is_ok());
        reverse(&binding, 100_000).unwrap();
    }
    drop(binding);
    server.finish();
}

#[test]
fn who_is_not_allowed_or_asks_for_what_is_not_there_is_told_so() {
    let (_a, b, mut server) = world("serve", "x");
    let node = b.daemon.node();
    let builder = |name, program, version| {
        let builder = Binding::builder(name, program, version).node(&node);
        builder.connect_timeout(Duration::from_secs(60))
    };
    let error = builder("x@nowhere", PROGRAM, 1).connect().unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
    let error = builder("x@a", PROGRAM + 1, 1).connect().unwrap_err();
    assert!(matches!(error, ConnectError::UnknownProgram { .. }), "{error}");
    let error = builder("x@a", PROGRAM, 9).connect().unwrap_err();
    assert!(
        matches!(error, ConnectError::VersionMismatch { lowest: 1, highest: 1, .. }),
        "{error}"
    );
    let secret = vmmc::Token([7; 16]);
    let guarded = Server::builder("guarded").node(&node).token(secret);
    let _guarded = guarded.raw_program(PROGRAM, 1, dispatch).start().unwrap();
    let error = Server::builder("a@b").node(&node).raw_program(PROGRAM, 1, dispatch).start();
    assert!(matches!(error, Err(ServeError::Name(_))), "{error:?}");
    let far = _a.daemon.node();
    let ask = |token| Binding::builder("guarded@b", PROGRAM, 1).node(&far).token(token).connect();
    let error = ask(vmmc::Token([8; 16])).unwrap_err().to_string();
    assert!(error.contains("token"), "{error}");
    null(&ask(secret).unwrap()).unwrap();
    server.finish();
}

/// For each of them the server keeps an image of the client's buffer.
#[test]
fn clients_of_another_node_take_memory_for_replies_until_there_is_none() {
    let (a, b) = pair();
    const BUFFER: usize = 128 << 10;
    let server = Server::builder("narrow").node(&a.daemon.node()).call_max(BUFFER / 8);
    let server = server
        .buffer_max(BUFFER)
        .pieces_max(0)
        .allow(Who::Anyone)
        .raw_program(PROGRAM, 1, dispatch);
    let _server = server.start().unwrap();
    let node = b.daemon.node();
    let far = || Binding::builder("narrow@a", PROGRAM, 1).node(&node).buffer_len(BUFFER).connect();
    let one = far().unwrap();
    null(&one).unwrap();
    let error = far().unwrap_err().to_string();
    assert!(error.contains("SHRIMP_RPC_PIECES"), "{error}");
    // Of this node's clients it keeps none.
    let near = a.daemon.node();
    let near = |_| {
        let near = Binding::builder("narrow", PROGRAM, 1).node(&near).buffer_len(BUFFER);
        near.connect().unwrap()
    };
    Vec::from_iter((0..3).map(near)).iter().for_each(|near| null(near).unwrap());
    drop(one);
    until("there is room again", || far().is_ok());
}

/// Knocks from node b by hand, and then writes what no client writes.
fn lie(node: &Node, number: u32, word: u64) {
    let door = node.import(name::door("x")).node("a").open().unwrap();
    let mut region = Region::new(8192).unwrap();
    region.write(layout::BIND_MAGIC, &layout::MAGIC.to_ne_bytes()).unwrap();
    for (at, value) in [
        (layout::BIND_VERSION, layout::VERSION),
        (layout::BIND_PROGRAM, PROGRAM),
        (layout::BIND_PROGRAM_VERSION, 1),
        (layout::BIND_LEN, 8192),
    ] {
        region.write(at, &value.to_ne_bytes()).unwrap();
    }
    let replies = node.export(region).name(number).grant(Who::SameUser, Rights::all());
    let replies = replies.open().unwrap();
    door.send_notification(0, 0, u64::from(number)).unwrap();
    let answer = replies.flag32(layout::BIND_ANSWER).unwrap();
    assert_eq!(answer.wait_until(|it| it != 0, PATIENCE).unwrap(), Answer::Bound as u32);
    let mut export = [0; 4];
    replies.read(layout::BIND_EXPORT, &mut export).unwrap();
    let calls = node.import(u32::from_ne_bytes(export)).process(door.exporter().pid);
    let calls = calls.node("a").open().unwrap();
    calls.flag64(layout::flag_at(calls.len())).unwrap().signal(word).unwrap();
    until("the server has dropped us", || calls.check_open().is_err());
}

#[test]
fn a_client_of_another_node_that_lies_is_dropped_and_nobody_else_notices() {
    let (_a, b, mut server) = world("serve", "x");
    let node = b.daemon.node();
    let honest = connect(&node, "x@a");
    null(&honest).unwrap();
    let turn = Turn::NONE.next();
    let good = FlagWord { turn, kind: Kind::Whole, code: 0, units: 0 };
    let lies = [
        good.pack() | 0xf << 40,                                // no such kind
        FlagWord { units: 1 << 20, ..good }.pack(),             // longer than the buffer
        FlagWord { kind: Kind::Next, units: 1, ..good }.pack(), // of no call
        FlagWord { kind: Kind::More, ..good }.pack(),           // of no reply
    ];
    for (number, word) in (1..).zip(lies) {
        lie(&node, number, word);
        null(&honest).unwrap();
    }
    drop(honest);
    server.finish();
}

/// Clients of node b knock whose buffers take nothing: what the server's process sends to that node is held up. Its own node's
/// clients are bound all the same, ends are seen, and the server ends.
#[test]
fn a_node_that_stands_still_at_the_door_holds_up_its_own_clients_alone() {
    let (a, b, mut server) = world("serve", "x");
    let (near, far) = (a.daemon.node(), b.daemon.node());
    let door = far.import(name::door("x")).node("a").open().unwrap();
    // For each one thread would wait for seconds.
    let frozen = Vec::from_iter((1..=64u32).map(|number| {
        let mut region = Region::new(8192).unwrap();
        region.write(layout::BIND_MAGIC, &layout::MAGIC.to_ne_bytes()).unwrap();
        let replies = far.export(region).name(number).grant(Who::SameUser, Rights::all());
        let replies = replies.open().unwrap();
        replies.disable(0..replies.len()).unwrap();
        door.send_notification(0, 0, u64::from(number)).unwrap();
        replies
    }));
    until("the server has imported one", || frozen.iter().any(|it| !it.importers().is_empty()));
    for _ in 0..3 {
        null(&connect(&near, "x")).unwrap();
    }
    server.finish();
    drop(frozen);
}
