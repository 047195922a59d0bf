//! A greedy client beside an honest one: what one process can take of a server.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod executor;
mod program;
mod raw;
#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use common::{Daemon, PATIENCE, pause, say, says, second_process as play, until};
use program::{FILL, NULL, PROGRAM, REVERSE, connect, dispatch, fill, reverse};
use shrimp_rpc::layout::{self, Answer, Kind};
use shrimp_rpc::process::count;
use shrimp_rpc::{
    Binding, CallError, ConnectError, DeferredCall, DispatchError, Finished, Server, ServerCall,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::Watchdog;
use vmmc::layout::link;
use vmmc::{Node, Rights};
use xdr::Encode;

/// Binds, over two connections to its daemon, until it is refused.
fn greedy_for_bindings(args: &[String]) {
    support::die_with_parent();
    let nodes = [0; 2].map(|_| Node::connect().expect("connects"));
    let mut bindings = Vec::new();
    let refused = loop {
        let node = &nodes[bindings.len() % 2];
        let builder = Binding::builder(&args[0], PROGRAM, 1).node(node).buffer_len(raw::LEN);
        match builder.connect_timeout(PATIENCE.unwrap()).connect() {
            Ok(binding) => bindings.push(binding),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, ConnectError::TooManyOfProcess { max: 3, .. }), "{refused:?}");
    says(&refused, &["3 bindings of this process", "as many as it allows", "bindings_each"]);
    say(&format!("has {}", bindings.len()));
    pause();
    bindings.pop();
    say("one less");
    pause();
    let builder = Binding::builder(&args[0], PROGRAM, 1).node(&nodes[0]).buffer_len(raw::LEN);
    until("there is a place again", || builder.clone().connect().is_ok());
}

/// Begins calls in pieces and never goes on, until it is refused; fetches no more than the first piece of replies.
fn greedy_for_memory(args: &[String]) {
    support::die_with_parent();
    let node = Node::connect().expect("connects");
    let client = |number| raw::Client::bind(&node, &args[0], number, PROGRAM);
    let mut clients: Vec<_> = (0..3).map(client).collect();
    let room = layout::room(raw::LEN);
    // Three MiB are what this process may have: one long call, a reply, and not another long call.
    let [one, two, three] = &mut clients[..] else { unreachable!("three") };
    one.calls.write(layout::CALL_TOTAL, &CALL_MAX.to_ne_bytes()).unwrap();
    one.send(Kind::First, REVERSE as u16, room);
    assert_eq!(one.reply().kind, Kind::More);
    let fill = |client: &mut raw::Client, numbers: u32| {
        client.calls.write(client.start(8), &numbers.to_le_bytes()).unwrap();
        client.send(Kind::Whole, FILL as u16, 8);
        client.reply()
    };
    let numbers = (CALL_MAX / 8) as u32 - 1;
    assert_eq!(fill(two, numbers).kind, Kind::First);
    assert_eq!(fill(three, numbers).kind, Kind::First);
    // What is not fetched is given up for another call, and the new one finds as much.
    assert_eq!(fill(two, numbers).kind, Kind::First);
    three.calls.write(layout::CALL_TOTAL, &CALL_MAX.to_ne_bytes()).unwrap();
    three.send(Kind::First, REVERSE as u16, room);
    assert_eq!(three.reply().kind, Kind::More);
    let binding = connect(&node, &args[0]);
    let refused = reverse(&binding, CALL_MAX as usize - 8).expect_err("there is no room");
    assert!(matches!(refused, CallError::NoRoom { .. }), "{refused:?}");
    says(&refused, &["1048576 bytes", "more than 3211264", "pieces_max", "this client process"]);
    let mut request = binding.request(FILL, 4, 0).unwrap();
    numbers.encode(&mut request).unwrap();
    let refused = request.call().expect_err("there is no room for its reply");
    assert!(matches!(refused, CallError::NoRoom { .. }), "{refused:?}");
    reverse(&binding, 100).expect("short calls take nothing");
    say("full");
    pause();
}

/// Makes three long calls that are put off, closes its bindings, and binds again.
fn greedy_who_returns(args: &[String]) {
    support::die_with_parent();
    let node = Node::connect().expect("connects");
    let client = |number| raw::Client::bind(&node, &args[0], number, PROGRAM);
    let mut clients: Vec<_> = (0..3).map(client).collect();
    for client in &mut clients {
        client.calls.write(layout::CALL_TOTAL, &CALL_MAX.to_ne_bytes()).unwrap();
        let (mut kind, mut left) = (Kind::First, CALL_MAX as usize);
        while left > layout::room(raw::LEN) {
            client.send(kind, KEEP as u16, layout::room(raw::LEN));
            assert_eq!(client.reply().kind, Kind::More);
            (kind, left) = (Kind::Next, left - layout::room(raw::LEN));
        }
        client.send(kind, KEEP as u16, left);
    }
    say("called");
    pause();
    drop(clients);
    say("closed");
    pause();
    let binding = connect(&node, &args[0]);
    let refused = reverse(&binding, CALL_MAX as usize - 8).expect_err("there is no room");
    assert!(matches!(refused, CallError::NoRoom { .. }), "{refused:?}");
    says(&refused, &["beside the 3145728 of this client process"]);
    say("refused");
    pause();
    reverse(&binding, CALL_MAX as usize - 8).expect("there is room again");
}

/// Calls what is put off, and closes its binding: twice, and then it is refused a third one.
fn greedy_for_buffers(args: &[String]) {
    support::die_with_parent();
    let node = Node::connect().expect("connects");
    for number in 0..2 {
        let mut client = raw::Client::bind(&node, &args[0], number, PROGRAM);
        client.send(Kind::Whole, KEEP as u16, 0);
        say("called");
        pause();
        drop(client);
        say("closed");
        pause();
    }
    let builder = Binding::builder(&args[0], PROGRAM, 1).node(&node);
    let refused = builder.clone().connect().expect_err("two are kept");
    assert!(matches!(refused, ConnectError::TooManyOfProcess { max: 2, .. }), "{refused:?}");
    say("refused");
    pause();
    builder.connect().expect("they are not kept any more");
}

/// A procedure whose reply is put off until the test has it.
const KEEP: u32 = 100;

/// The longest call and reply.
const CALL_MAX: u64 = 1 << 20;

#[test]
fn second_process() {
    play(&[
        ("bindings", greedy_for_bindings),
        ("memory", greedy_for_memory),
        ("returns", greedy_who_returns),
        ("buffers", greedy_for_buffers),
        ("friend", friend),
    ]);
}

#[test]
fn one_process_cannot_take_the_bindings_of_all() {
    let _watchdog = Watchdog::new("one_process_cannot_take_the_bindings");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = Server::builder("places").node(&node).bindings_max(6).bindings_each(3);
    let server = server.raw_program(PROGRAM, 1, dispatch).start().unwrap();
    let mut greedy = daemon.second("bindings", &["places"]);
    assert_eq!(greedy.expect("has"), "3");
    let friend = daemon.node();
    let honest: Vec<_> = (0..3).map(|_| connect(&friend, "places")).collect();
    for binding in &honest {
        reverse(binding, 100).unwrap();
    }
    // And all together have no more than all may have.
    let refused = Binding::builder("places", PROGRAM, 1).node(&friend).connect().unwrap_err();
    assert!(matches!(refused, ConnectError::TooManyBindings { max: 6, .. }), "{refused:?}");
    says(&refused, &["6 bindings", "as many as it allows", "bindings_max"]);
    greedy.go_on();
    greedy.expect("one less");
    greedy.go_on();
    greedy.finish();
    server.stop();
}

#[test]
fn one_process_cannot_take_the_memory_of_all() {
    let _watchdog = Watchdog::new("one_process_cannot_take_the_memory");
    let daemon = Daemon::start();
    let node = daemon.node();
    let max = CALL_MAX as usize;
    let server = Server::builder("memory").node(&node).call_max(max).pieces_max(6 * max);
    let server = server.raw_program(PROGRAM, 1, dispatch).start().unwrap();
    let mut greedy = daemon.second("memory", &["memory"]);
    greedy.expect("full");
    let friend = daemon.node();
    let binding = connect(&friend, "memory");
    for _ in 0..3 {
        reverse(&binding, max - 8).unwrap();
        fill(&binding, max as u32 / 8 - 1).unwrap();
    }
    greedy.finish();
    until("the greedy one is forgotten", || server.bindings() == 1);
    assert_eq!(node.counters().get(count::FAULTY_PEERS), 0, "greed is no breach of the protocol");
    server.stop();
}

type Kept = Arc<Mutex<Vec<DeferredCall>>>;

/// The program, and [`KEEP`], whose calls are kept there.
fn keeping(kept: &Kept) -> impl Fn(u32, ServerCall<'_>) -> Result<Finished, DispatchError> + use<> {
    let calls = kept.clone();
    move |procedure, call: ServerCall<'_>| {
        if procedure != KEEP {
            return dispatch(procedure, call);
        }
        let (call, finished) = call.defer();
        calls.lock().unwrap().push(call);
        Ok(finished)
    }
}

#[test]
fn who_closes_its_bindings_while_calls_are_put_off_has_no_more_bindings() {
    let _watchdog = Watchdog::new("who_closes_its_bindings_while_calls_are_put_off");
    let daemon = Daemon::start();
    let node = daemon.node();
    let kept = Kept::default();
    let server = Server::builder("buffers").node(&node).bindings_each(2);
    let server = server.raw_program(PROGRAM, 1, keeping(&kept)).start().unwrap();
    let mut greedy = daemon.second("buffers", &["buffers"]);
    for number in 1..=2 {
        greedy.expect("called");
        until("its call is served", || kept.lock().unwrap().len() == number);
        greedy.go_on();
        greedy.expect("closed");
        until("its binding is forgotten", || server.bindings() == 0);
        greedy.go_on();
    }
    greedy.expect("refused");
    kept.lock().unwrap().pop();
    greedy.go_on();
    greedy.finish();
    kept.lock().unwrap().clear();
    server.stop();
}

/// A server that has no place for another lane of a binding refuses the lane, not the call.
#[test]
fn a_call_waits_for_a_lane_that_is_bound_where_the_server_binds_no_other() {
    let _watchdog = Watchdog::new("a_call_waits_for_a_lane_that_is_bound");
    let daemon = Daemon::start();
    let (node, friend) = (daemon.node(), daemon.node());
    let kept = Kept::default();
    let server = Server::builder("few").node(&node).bindings_each(1);
    let server = server.raw_program(PROGRAM, 1, keeping(&kept)).start().unwrap();
    let builder = program::builder(&friend, "few").lanes(3);
    let binding = builder.connect_timeout(Duration::from_secs(3)).connect().unwrap();
    let call = |procedure| binding.request(procedure, 0, 0)?.call()?.finish();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| call(KEEP));
        until("it is served", || kept.lock().unwrap().len() == 1);
        let hurried = binding.with_timeout(Duration::from_millis(150));
        let refused = [
            hurried.request(NULL, 0, 0).map(drop),
            executor::block_on(hurried.request_async(NULL, 0, 0)).map(drop),
        ];
        let others = [
            scope.spawn(|| call(NULL)),
            scope.spawn(|| executor::block_on(binding.request_async(NULL, 0, 0))?.call()?.finish()),
        ];
        let put_off = kept.lock().unwrap().pop().unwrap();
        put_off.reply(0).unwrap().send().unwrap();
        first.join().unwrap().unwrap();
        for other in others {
            other.join().unwrap().expect("it had the lane of the first");
        }
        for refused in refused {
            let late = matches!(refused, Err(CallError::TimedOut { sent: false, .. }));
            assert!(late, "{refused:?}");
        }
    });
    // Who has the only lane itself does not wait for it for ever.
    let held = binding.request(NULL, 0, 0).unwrap();
    for refused in [
        binding.request(NULL, 0, 0).map(drop),
        executor::block_on(binding.request_async(NULL, 0, 0)).map(drop),
    ] {
        let Err(CallError::Connect(refused)) = refused else { panic!("{refused:?}") };
        assert!(matches!(*refused, ConnectError::TooManyOfProcess { max: 1, .. }), "{refused:?}");
    }
    held.call().unwrap().finish().unwrap();
    server.stop();
}

/// A handler that answers at length when its client has given the call up.
#[test]
fn of_a_reply_to_a_call_that_was_given_up_nothing_is_kept() {
    let _watchdog = Watchdog::new("of_a_reply_to_a_call_that_was_given_up");
    let daemon = Daemon::start();
    let (node, friend) = (daemon.node(), daemon.node());
    let late = |procedure, call: ServerCall<'_>| {
        let context = call.context();
        until("it is given up", || context.is_cancelled());
        dispatch(procedure, call)
    };
    let server = Server::builder("late").node(&node).raw_program(PROGRAM, 1, late).start().unwrap();
    let mut client = raw::Client::bind(&friend, "late", 0, PROGRAM);
    let numbers = (CALL_MAX / 8) as u32 - 1;
    client.calls.write(client.start(8), &numbers.to_le_bytes()).unwrap();
    client.send(Kind::Whole, FILL as u16, 8);
    client.cancel();
    assert_eq!(client.reply().kind, Kind::Whole, "nobody would ask for the rest");
    server.stop();
}

#[test]
fn who_knocks_while_too_many_wait_is_told_so() {
    let _watchdog = Watchdog::new("who_knocks_while_too_many_wait");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = Server::builder("crowd").node(&node).bindings_each(1);
    let server = server.raw_program(PROGRAM, 1, dispatch).start().unwrap();
    let friend = daemon.node();
    let mut numbers = 0..;
    let mut knock = || raw::Knocked::knock(&friend, "crowd", numbers.next().unwrap(), PROGRAM);
    let first = knock();
    first.answer();
    // One may wait, and the acceptor has taken it or not when the second comes. Both are answered.
    until("the second found the first waiting", || {
        let both = [knock(), knock()].map(|knocked| knocked.any_answer().unwrap());
        assert!(
            both.iter()
                .all(|it| { matches!(it, Answer::TooManyOfProcess | Answer::TooManyWaiting) })
        );
        both.contains(&Answer::TooManyWaiting)
    });
    server.stop();
    // What the client makes of it.
    let other = daemon.node();
    let refuse = std::thread::spawn(move || {
        raw::Heard::hear(&other, "full", || {}).refuse(Answer::TooManyWaiting, 7);
    });
    let refused = Binding::builder("full", PROGRAM, 1).node(&friend).connect().unwrap_err();
    assert!(matches!(refused, ConnectError::TooManyWaiting { max: 7, .. }), "{refused:?}");
    says(&refused, &["7 others of this process", "waiting", "bindings_each"]);
    refuse.join().unwrap();
}

#[test]
fn who_closes_its_bindings_and_binds_again_has_no_more_memory() {
    let _watchdog = Watchdog::new("who_closes_its_bindings_and_binds_again");
    let daemon = Daemon::start();
    let node = daemon.node();
    let max = CALL_MAX as usize;
    let kept = Kept::default();
    let server = Server::builder("returns").node(&node).call_max(max).pieces_max(6 * max);
    let server = server.raw_program(PROGRAM, 1, keeping(&kept)).start().unwrap();
    let mut greedy = daemon.second("returns", &["returns"]);
    greedy.expect("called");
    until("its calls are served", || kept.lock().unwrap().len() == 3);
    greedy.go_on();
    greedy.expect("closed");
    until("its bindings are forgotten", || server.bindings() == 0);
    greedy.go_on();
    greedy.expect("refused");
    kept.lock().unwrap().clear();
    greedy.go_on();
    greedy.finish();
    server.stop();
}

#[test]
fn a_buffer_that_is_bound_is_not_bound_again_and_the_refusal_speaks_of_no_limit() {
    let _watchdog = Watchdog::new("a_buffer_that_is_bound");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = Server::builder("again").node(&node).raw_program(PROGRAM, 1, dispatch);
    let server = server.start().unwrap();
    let friend = daemon.node();
    let knocked = raw::Knocked::knock(&friend, "again", 5, PROGRAM);
    knocked.answer();
    assert_eq!(knocked.knock_again(5), Some(Answer::Failed));
    assert_eq!(server.bindings(), 1);
    server.stop();
}

/// Calls that were begun, and replies that were not fetched, of clients that have made short calls since.
#[test]
fn what_was_not_finished_is_given_up_for_a_short_call_too() {
    let _watchdog = Watchdog::new("what_was_not_finished");
    let daemon = Daemon::start();
    let node = daemon.node();
    let max = CALL_MAX as usize;
    let server = Server::builder("short").node(&node).call_max(max).pieces_max(6 * max);
    let server = server.raw_program(PROGRAM, 1, dispatch).start().unwrap();
    let friend = daemon.node();
    let client = |number| raw::Client::bind(&friend, "short", number, PROGRAM);
    let mut clients: Vec<_> = (0..3).map(client).collect();
    let binding = connect(&friend, "short");
    for kind in [Kind::Whole, Kind::OneWay] {
        for (at, client) in clients.iter_mut().enumerate() {
            if at == 0 {
                let numbers = (CALL_MAX / 8) as u32 - 1;
                client.calls.write(client.start(8), &numbers.to_le_bytes()).unwrap();
                client.send(Kind::Whole, FILL as u16, 8);
                assert_eq!(client.reply().kind, Kind::First);
            } else {
                client.calls.write(layout::CALL_TOTAL, &CALL_MAX.to_ne_bytes()).unwrap();
                client.send(Kind::First, REVERSE as u16, layout::room(raw::LEN));
                assert_eq!(client.reply().kind, Kind::More);
            }
        }
        let refused = reverse(&binding, max - 8).expect_err("there is no room");
        assert!(matches!(refused, CallError::NoRoom { .. }), "{refused:?}");
        for client in &mut clients {
            client.send(kind, NULL as u16, 0);
            client.reply();
        }
        reverse(&binding, max - 8).expect("there is room again");
    }
    assert_eq!(node.counters().get(count::FAULTY_PEERS), 0);
    server.stop();
}

/// Two clients that leave a server no moment without a call: before the one's is answered, the other's is there.
struct Relay {
    clients: Vec<raw::Client>,
    calls: usize,
}

/// One procedure per client of the relay.
const RELAY: [u32; 2] = [200, 201];

impl Relay {
    fn new(node: &Node, service: &str) -> Arc<Mutex<Relay>> {
        let clients = (0..2).map(|number| raw::Client::bind(node, service, number, PROGRAM));
        Arc::new(Mutex::new(Relay { clients: clients.collect(), calls: 0 }))
    }

    /// That client calls.
    fn call(&mut self, at: usize) {
        self.calls += 1;
        self.clients[at].send(Kind::Whole, RELAY[at] as u16, 0);
    }
}

/// The relay of a server, once it has one.
type Running = Arc<Mutex<Option<Arc<Mutex<Relay>>>>>;

/// The program, and the relay: in the handler of the one's call the other one calls.
fn relaying(
    running: &Running,
) -> impl Fn(u32, ServerCall<'_>) -> Result<Finished, DispatchError> + use<> {
    let running = running.clone();
    move |procedure, call: ServerCall<'_>| {
        let Some(at) = RELAY.iter().position(|it| *it == procedure) else {
            return dispatch(procedure, call);
        };
        if let Some(relay) = &*running.lock().unwrap() {
            relay.lock().unwrap().call(1 - at);
        }
        call.reply(0)?.send()
    }
}

#[test]
fn clients_that_leave_no_pause_keep_nobody_from_being_bound_served_and_forgotten() {
    let watchdog = Watchdog::new("clients_that_leave_no_pause");
    let daemon = Daemon::start();
    let node = daemon.node();
    let running = Running::default();
    let server = Server::builder("relay").node(&node).raw_program(PROGRAM, 1, relaying(&running));
    let server = server.start().unwrap();
    let busy = daemon.node();
    let relay = Relay::new(&busy, "relay");
    // With these two all hot places are taken.
    let friend = daemon.node();
    let bind = || Binding::builder("relay", PROGRAM, 1).node(&friend).buffer_len(raw::LEN);
    let hot: Vec<_> = (0..6).map(|_| bind().connect().unwrap()).collect();
    let cold = bind().timeout(PATIENCE.unwrap()).connect().unwrap();
    for binding in &hot {
        reverse(binding, 100).unwrap();
    }
    *running.lock().unwrap() = Some(relay.clone());
    relay.lock().unwrap().call(0);
    let calls = || relay.lock().unwrap().calls;
    until("every look finds a call", || calls() > 100);
    watchdog.step("one that is cold is served");
    for _ in 0..20 {
        reverse(&cold, 100).unwrap();
    }
    watchdog.step("one that comes is served");
    for _ in 0..3 {
        let late = bind().timeout(PATIENCE.unwrap()).connect().unwrap();
        reverse(&late, 100).unwrap();
    }
    watchdog.step("those that went are forgotten");
    let left = 2 + hot.len() + 1;
    until("their bindings are forgotten", || server.bindings() == left);
    until("their buffers are let go", || node.exports().len() == 1 + left);
    let before = calls();
    until("all that was beside the two", || calls() > before + 100);
    *running.lock().unwrap() = None;
    server.stop();
}

/// Bindings that end before the poller knows them are not kept until it looks.
#[test]
fn bindings_that_come_and_go_while_a_handler_takes_long_are_let_go() {
    let _watchdog = Watchdog::new("bindings_that_come_and_go");
    let daemon = Daemon::start();
    let node = daemon.node();
    let (begin, begun) = std::sync::mpsc::channel::<()>();
    let (let_go, go) = std::sync::mpsc::channel::<()>();
    let go = Mutex::new(go);
    let server =
        Server::builder("long").node(&node).raw_program(PROGRAM, 1, move |number, call| {
            if number == KEEP {
                begin.send(()).unwrap();
                let _ = go.lock().unwrap().recv();
            }
            dispatch(NULL, call)
        });
    let server = server.start().unwrap();
    // Knocks are heard though no worker waits.
    let _handlers = node.start_handler_thread().unwrap();
    let friend = daemon.node();
    let mut holder = raw::Client::bind(&friend, "long", 0, PROGRAM);
    holder.send(Kind::Whole, KEEP as u16, 0);
    begun.recv().unwrap();
    for number in 1..20 {
        drop(raw::Client::bind(&friend, "long", number, PROGRAM));
    }
    until("they are forgotten", || server.bindings() == 1);
    until("their buffers are let go", || node.exports().len() == 2);
    let_go.send(()).unwrap();
    holder.reply();
    server.stop();
}

/// The link segments of a client that leaves a transfer begun in each of them.
struct Stuck {
    raw: support::raw::Raw,
    links: Vec<support::raw::RawImport>,
}

impl Stuck {
    fn connect(daemon: &Daemon) -> Stuck {
        Stuck { raw: support::raw::Raw::connect(&daemon.socket()), links: Vec::new() }
    }

    /// Imports the buffer that a server has made for this process, and begins.
    fn import(&mut self, number: u32) {
        let own = Some(std::process::id());
        let link = self.raw.import_of(own, number.into(), Rights::BIND);
        support::raw::set32(link.segment, link::BUSY, 1);
        self.links.push(link);
    }

    fn end(&self) {
        for link in &self.links {
            support::raw::set32(link.segment, link::BUSY, 0);
        }
    }
}

/// A node that waits for ever for who has a transfer begun in a link to its buffers.
fn patient(daemon: &Daemon) -> Node {
    let config = vmmc::Config { drain: support::stage::FOR_LONG, ..daemon.config() };
    Node::builder().config(config).connect().unwrap()
}

#[test]
fn a_client_that_ends_no_transfer_holds_up_nobody_and_has_no_more_than_its_limit() {
    let watchdog = Watchdog::new("a_client_that_ends_no_transfer");
    let daemon = Daemon::start();
    let node = patient(&daemon);
    let kept = Kept::default();
    // More than sixteen, of which as many may always be on their way out.
    let server = Server::builder("stuck").node(&node).bindings_each(20);
    let server = server.raw_program(PROGRAM, 1, keeping(&kept)).start().unwrap();
    let client = daemon.node();
    let mut stuck = Stuck::connect(&daemon);
    for number in 0..20 {
        let knocked = raw::Knocked::knock(&client, "stuck", number, PROGRAM);
        let export = knocked.answer();
        stuck.import(export);
        let mut one = knocked.bind(&client, export);
        // Some are served, and are on a worker's desk; one is put off, and let go by another thread.
        let procedure = if number == 7 { KEEP } else { NULL };
        one.send(Kind::Whole, procedure as u16, 0);
        if number == 7 {
            until("it is put off", || kept.lock().unwrap().len() == 1);
        } else {
            one.reply();
        }
        drop(one);
        until("it is forgotten", || server.bindings() == 0);
    }
    watchdog.step("the one that was put off is let go");
    kept.lock().unwrap().clear();
    watchdog.step("another process binds");
    let mut friend = daemon.second("friend", &["stuck"]);
    friend.expect("served");
    friend.finish();
    watchdog.step("the stuck one does not");
    let builder = Binding::builder("stuck", PROGRAM, 1).node(&client);
    until("its buffers are on their way out", || {
        let refused = builder.clone().connect();
        matches!(refused, Err(ConnectError::TooManyOfProcess { max: 20, .. }))
    });
    watchdog.step("it does when it ends them");
    stuck.end();
    until("it binds", || builder.clone().connect().is_ok());
    server.stop();
    assert!(node.exports().is_empty());
}

/// Binds and calls.
fn friend(args: &[String]) {
    support::die_with_parent();
    reverse(&connect(&Node::connect().expect("connects"), &args[0]), 100).expect("served");
    say("served");
    pause();
}

#[test]
fn the_end_of_a_server_withdraws_all_buffers_at_once() {
    let _watchdog = Watchdog::new("the_end_of_a_server_withdraws_all");
    let daemon = Daemon::start();
    let node = patient(&daemon);
    let server = Server::builder("ends").node(&node).raw_program(PROGRAM, 1, dispatch);
    let server = server.start().unwrap();
    let client = daemon.node();
    let mut stuck = Stuck::connect(&daemon);
    let mut bind = |number| {
        let knocked = raw::Knocked::knock(&client, "ends", number, PROGRAM);
        let export = knocked.answer();
        stuck.import(export);
        (export, knocked)
    };
    let bound: Vec<_> = (0..5).map(&mut bind).collect();
    let is_there = |export: u32| {
        let import = client.import(export).process(std::process::id()).rights(Rights::BIND);
        import.timeout(Duration::ZERO).open().is_ok()
    };
    assert!(bound.iter().all(|(export, _)| is_there(*export)));
    std::thread::scope(|scope| {
        let end = scope.spawn(|| server.stop());
        // None is given back yet, and none can be had any more.
        for (export, _) in &bound {
            until("it is withdrawn", || !is_there(*export));
        }
        assert!(!end.is_finished());
        stuck.end();
    });
    assert!(node.exports().is_empty());
}
