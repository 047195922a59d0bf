//! Peers that die, lie, or take their time (F10, F15); permissions; what a server does meanwhile.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod executor;
#[path = "../../vmmc/tests/support/forked.rs"]
mod forked;
mod raw;
#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use common::{Daemon, PATIENCE, pause, say, second_process as play, until};
use executor::block_on;
use shrimp_rpc::layout::{self, FlagWord, Kind, Turn};
use shrimp_rpc::process::count;
use shrimp_rpc::{Binding, CallError, ConnectError, DispatchError, Fault, Server};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::Watchdog;
use vmmc::word::Word as _;
use vmmc::{Node, Token, Who};
use xdr::{Decode, Encode};

const PROGRAM: u32 = 0x2000_0003;
const ECHO: u32 = 1;
const HOLD: u32 = 2;
const RELEASE: u32 = 3;
const COUNT: u32 = 4;
const READ_TWICE: u32 = 5;
const HELD: u32 = 6;
const SLOW: u32 = 7;

/// A server in this process. HOLD blocks a worker until RELEASE, HELD until there is a HOLD; COUNT
/// counts, and SLOW takes its time before it does.
fn server(node: &Node, name: &str, workers: usize) -> Server {
    let held = Arc::new(AtomicBool::new(false));
    let counted = Arc::new(AtomicU64::new(0));
    Server::builder(name)
        .node(node)
        .workers(workers)
        .raw_program(PROGRAM, 1, move |procedure, call| match procedure {
            0 => call.reply(0)?.send(),
            ECHO => {
                let mut args = call.args();
                let len = u32::decode(&mut args)?;
                args.finish()?;
                let data = call.block::<u8>(len)?.to_vec()?;
                let mut out = call.out::<u8>(u32::MAX);
                out.put(&data)?;
                let (distance, len) = out.descriptor();
                let mut reply = call.reply(8)?;
                distance.encode(&mut reply)?;
                len.encode(&mut reply)?;
                reply.send()
            }
            HOLD => {
                held.store(true, Ordering::Release);
                until("released", || !held.load(Ordering::Acquire));
                call.reply(0)?.send()
            }
            RELEASE => {
                until("held", || held.swap(false, Ordering::AcqRel));
                call.reply(0)?.send()
            }
            HELD => {
                until("held", || held.load(Ordering::Acquire));
                call.reply(0)?.send()
            }
            COUNT | SLOW => {
                if procedure == SLOW {
                    std::thread::sleep(Duration::from_millis(50));
                }
                let counted = counted.fetch_add(1, Ordering::Relaxed) + 1;
                if call.is_one_way() {
                    return Ok(call.finish_oneway());
                }
                let mut reply = call.reply(8)?;
                counted.encode(&mut reply)?;
                reply.send()
            }
            READ_TWICE => {
                let mut args = call.args();
                let len = u32::decode(&mut args)?;
                args.finish()?;
                let block = call.block::<u32>(len)?;
                // A client that changes what we read: both reads are some value, and that is all.
                let mut changes = 0u32;
                for i in 0..len as usize {
                    let once = block.get(i).and_then(Result::ok);
                    let twice = block.get(i).and_then(Result::ok);
                    changes += u32::from(once != twice);
                }
                let mut reply = call.reply(4)?;
                changes.encode(&mut reply)?;
                reply.send()
            }
            other => Err(DispatchError::UnknownProcedure(other)),
        })
        .start()
        .expect("serves")
}

fn bind(node: &Node, name: &str) -> Binding {
    Binding::builder(name, PROGRAM, 1)
        .node(node)
        .connect_timeout(PATIENCE.unwrap())
        .connect()
        .expect("binds")
}

fn echo(binding: &Binding, data: &[u8]) -> Result<Vec<u8>, CallError> {
    let mut request = binding.request(ECHO, 4, data.len().next_multiple_of(8))?;
    (data.len() as u32).encode(&mut request)?;
    request.block(data)?;
    let mut back = Vec::new();
    request.call()?.out_vec(u32::MAX, &mut back)?;
    Ok(back)
}

fn serve(args: &[String]) {
    support::die_with_parent();
    let node = Node::connect().expect("connects");
    let server = server(&node, &args[0], 1);
    say("ready");
    pause();
    server.stop();
}

/// Calls over and over, until it is killed.
fn call_for_ever(args: &[String]) {
    support::die_with_parent();
    let node = Node::connect().expect("connects");
    let binding = bind(&node, &args[0]);
    let data = vec![7; args[1].parse().expect("a length")];
    echo(&binding, &data).expect("the first call");
    say("calling");
    loop {
        assert_eq!(echo(&binding, &data).expect("a call"), data);
    }
}

/// Holds a worker of the server.
fn hold(args: &[String]) {
    support::die_with_parent();
    let node = Node::connect().expect("connects");
    let binding = bind(&node, &args[0]);
    say("holding");
    let _ = binding.request(HOLD, 0, 0).expect("a lane").call();
}

/// Forks while its only lane is used.
fn fork(args: &[String]) {
    let node = Node::connect().expect("connects");
    let binding = Binding::builder(&args[0], PROGRAM, 1).node(&node).lanes(1).connect();
    let binding = binding.expect("binds");
    let used = binding.request(0, 0, 0).expect("a lane");
    let good = forked::in_child(|| {
        let refused =
            |outcome: Result<(), CallError>| matches!(outcome, Err(CallError::Connect(_)));
        let blocking = refused(binding.request(0, 0, 0).map(drop));
        let futures = refused(block_on(binding.request_async(0, 0, 0)).map(drop));
        forked::check(line!(), blocking) & forked::check(line!(), futures)
    });
    assert!(good, "the child is told that the lanes are its parent's");
    used.call().expect("a reply").finish().expect("nothing in it");
    say("called");
    pause();
}

#[test]
fn a_forked_child_is_not_left_waiting_for_its_parents_lanes() {
    let _watchdog = Watchdog::new("a_forked_child_is_not_left_waiting");
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["forker"]);
    server.expect("ready");
    let mut second = daemon.second("fork", &["forker"]);
    second.expect("called");
    second.finish();
}

/// Forks while another thread is making the process's node.
fn fork_at_first(args: &[String]) {
    let daemon: i32 = args[1].parse().expect("a process");
    let signal = |signal| {
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::kill(daemon, signal) }, 0, "the daemon is there");
    };
    let connects = || Binding::connect(&args[0], PROGRAM, 1).is_ok();
    signal(libc::SIGSTOP);
    support::until_stopped(daemon as u32);
    let descriptors = || support::footprint(std::process::id()).fd_count();
    let before = descriptors();
    std::thread::scope(|scope| {
        let other = scope.spawn(connects);
        until("asking the daemon", || descriptors() > before);
        let good = forked::in_child(|| {
            // SAFETY: no memory is involved.
            unsafe { libc::alarm(60) };
            signal(libc::SIGCONT);
            forked::check(line!(), connects())
        });
        signal(libc::SIGCONT);
        assert!(good, "the child makes its own");
        assert!(other.join().expect("no panic"), "and the parent its");
    });
    say("connected");
    pause();
}

#[test]
fn a_call_that_is_never_answered_keeps_no_lane_from_others() {
    let _watchdog = Watchdog::new("a_call_that_is_never_answered");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "mute", 4);
    let binding = Binding::builder("mute", PROGRAM, 1).node(&node).lanes(1).connect().unwrap();
    let hurried = binding.with_timeout(Duration::from_millis(20));
    let give_up = || {
        let late = hurried.request(HOLD, 0, 0).and_then(|request| request.call().map(drop));
        assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
    };
    give_up();
    // Those who are in a hurry wait less long each, and begin nothing anew.
    until("a lane", || {
        hurried.request(0, 0, 0).and_then(|request| request.call().map(drop)).is_ok()
    });
    give_up();
    assert_eq!(echo(&binding, b"blocking").unwrap(), b"blocking");
    give_up();
    let request = block_on(binding.request_async(0, 0, 0)).expect("a lane");
    block_on(request.call_async()).expect("a reply").finish().expect("nothing in it");
    binding.request(RELEASE, 0, 0).unwrap().call().unwrap().finish().unwrap();
    server.stop();
}

/// Nobody waits for a one-way call: that its lane is still used is no sign that it is to be given up.
#[test]
fn a_call_that_was_given_up_long_ago_costs_later_ones_no_lane() {
    let _watchdog = Watchdog::new("a_call_that_was_given_up_long_ago");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "slow", 1);
    let binding = Binding::builder("slow", PROGRAM, 1).node(&node).lanes(1).connect().unwrap();
    let hurried = binding.with_timeout(Duration::from_millis(10));
    let late = hurried.request(SLOW, 0, 0).and_then(|request| request.call().map(drop));
    assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
    binding.request(0, 0, 0).unwrap().call().unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let bound = node.counters().get(count::BOUND);
    for _ in 0..3 {
        binding.request(SLOW, 0, 0).unwrap().send().unwrap();
    }
    let mut reply = binding.request(COUNT, 0, 0).unwrap().call().unwrap();
    assert_eq!(u64::decode(&mut reply).unwrap(), 5);
    drop(reply);
    assert_eq!(node.counters().get(count::BOUND), bound, "its lane was bound anew");
    server.stop();
}

#[test]
fn a_process_forked_while_its_parent_connects_for_the_first_time_connects() {
    let _watchdog = Watchdog::new("a_process_forked_while_its_parent_connects");
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["early"]);
    server.expect("ready");
    let mut second = daemon.second("fork at first", &["early", &daemon.pid().to_string()]);
    second.expect("connected");
    second.finish();
}

#[test]
fn second_process() {
    play(&[
        ("serve", serve),
        ("call for ever", call_for_ever),
        ("hold", hold),
        ("fork", fork),
        ("fork at first", fork_at_first),
    ]);
}

#[test]
fn a_server_that_is_killed_is_an_error_and_its_successor_is_found() {
    let _watchdog = Watchdog::new("a_server_that_is_killed");
    let daemon = Daemon::start();
    let mut first = daemon.second("serve", &["mortal"]);
    first.expect("ready");
    let node = daemon.node();
    let binding = bind(&node, "mortal");
    assert_eq!(echo(&binding, b"alive").unwrap(), b"alive");
    std::thread::scope(|scope| {
        let call = scope.spawn(|| binding.request(HOLD, 0, 0).unwrap().call().map(drop));
        until("the call was sent", || node.counters().get(count::CALLS) >= 2);
        first.kill();
        let gone = call.join().unwrap();
        assert!(matches!(gone, Err(CallError::ServerGone { .. })), "{gone:?}");
    });
    let mut second = daemon.second("serve", &["mortal"]);
    second.expect("ready");
    assert_eq!(echo(&binding, b"again").unwrap(), b"again");
    second.finish();
}

/// A caller whose rebinding failed kept its lane's next one asleep for ever.
#[test]
fn threads_that_wait_for_a_lane_go_on_when_those_before_them_cannot_bind_anew() {
    let _watchdog = Watchdog::new("threads_that_wait_for_a_lane");
    let daemon = Daemon::start();
    let mut first = daemon.second("serve", &["lost"]);
    first.expect("ready");
    let node = daemon.node();
    let soon = Duration::from_millis(50);
    let builder = Binding::builder("lost", PROGRAM, 1).node(&node).lanes(2).connect_timeout(soon);
    let binding = builder.connect_later().unwrap();
    let null = || binding.request(0, 0, 0)?.call().map(drop);
    until("bound", || null().is_ok());
    first.kill();
    support::daemon_forgets(&node, first.pid());
    // More than there are lanes: all but two wait while those two try to bind.
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..12).map(|_| scope.spawn(null)).collect();
        for caller in callers {
            let failed = caller.join().unwrap();
            assert!(matches!(failed, Err(CallError::Connect(_))), "{failed:?}");
        }
    });
    let mut second = daemon.second("serve", &["lost"]);
    second.expect("ready");
    until("bound again", || null().is_ok());
    second.finish();
}

/// Who asks for the server has a lane for a moment; a caller that found it taken just then slept for ever.
#[test]
fn who_asks_for_the_server_keeps_no_caller_asleep() {
    let _watchdog = Watchdog::new("who_asks_for_the_server");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "asked", 1);
    let friend = daemon.node();
    let builder = Binding::builder("asked", PROGRAM, 1).node(&friend).lanes(1);
    let binding = builder.timeout(PATIENCE.unwrap()).connect().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ask = || {
            while !done.load(Ordering::Relaxed) {
                let found = binding.server();
                assert!(found.is_none_or(|it| it.pid == std::process::id()));
            }
        };
        // One that is put aside has the lane for long.
        for _ in 0..2 {
            scope.spawn(ask);
        }
        // Takes it, and gives it back without a call: as often as can be.
        let calls: Result<Vec<_>, _> =
            (0..100_000).map(|_| binding.request(0, 0, 0).map(drop)).collect();
        done.store(true, Ordering::Relaxed);
        calls.unwrap();
    });
    server.stop();
}

#[test]
fn clients_that_are_killed_at_any_moment_leave_nothing_and_disturb_nobody() {
    let watchdog = Watchdog::new("clients_that_are_killed");
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["survivor"]);
    server.expect("ready");
    let friend = daemon.node();
    let binding = bind(&friend, "survivor");
    let one_round = |len: &str, round: u32| {
        let mut client = daemon.second("call for ever", &["survivor", len]);
        client.expect("calling");
        for _ in 0..round {
            assert_eq!(echo(&binding, b"friend").unwrap(), b"friend");
        }
        client.kill();
        support::daemon_forgets(&friend, client.pid());
    };
    assert_eq!(echo(&binding, b"friend").unwrap(), b"friend");
    // Buffers and links, mapped and open; what vmmc knows of other processes is its own affair.
    let held = || {
        let now = support::footprint(server.pid());
        let of = |what: &str| {
            let name = format!("vmmc-{what} (deleted)");
            (now.mappings.get(&name).copied(), now.fds.get(&format!("memfd:{name}")).copied())
        };
        (of("region"), of("link"))
    };
    // The door, and the friend's buffers and its two links: the door's is closed behind a client once it is bound. Not what
    // is held at this moment, when that may be to come and the last link to be heard of.
    let baseline = ((Some(3), Some(3)), (Some(2), Some(1)));
    until("only the friend's are left", || held() == baseline);
    for round in 0..6 {
        for len in ["1", "5000", "300000"] {
            watchdog.step(format!("round {round}, {len} bytes"));
            one_round(len, round * 37);
        }
    }
    watchdog.step("nothing is left");
    assert_eq!(echo(&binding, b"friend").unwrap(), b"friend");
    until("the server holds what it held", || held() == baseline);
    server.finish();
}

#[test]
fn a_client_that_dies_while_its_call_is_served_disturbs_nobody() {
    let _watchdog = Watchdog::new("a_client_that_dies_while_served");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "held", 2);
    let mut client = daemon.second("hold", &["held"]);
    client.expect("holding");
    let friend = daemon.node();
    let binding = bind(&friend, "held");
    binding.request(HELD, 0, 0).unwrap().call().unwrap();
    client.kill();
    // A second worker serves meanwhile.
    assert_eq!(echo(&binding, b"meanwhile").unwrap(), b"meanwhile");
    binding.request(RELEASE, 0, 0).unwrap().call().unwrap();
    until("the dead are forgotten", || server.bindings() == 1);
    server.stop();
}

#[test]
fn a_handler_that_waits_for_another_call_gets_it_with_two_workers() {
    let _watchdog = Watchdog::new("a_handler_that_waits");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "workers", 2);
    let friend = daemon.node();
    let (one, other) = (bind(&friend, "workers"), bind(&friend, "workers"));
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let held = scope.spawn(|| one.request(HOLD, 0, 0).unwrap().call().map(drop));
            other.request(RELEASE, 0, 0).unwrap().call().unwrap();
            held.join().unwrap().unwrap();
        });
        assert_eq!(echo(&one, b"both go on").unwrap(), b"both go on");
    }
    server.stop();
}

#[test]
fn a_call_that_is_late_is_given_up_and_its_reply_is_never_taken_for_the_next() {
    let _watchdog = Watchdog::new("a_call_that_is_late");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "late", 3);
    let friend = daemon.node();
    let slow = Binding::builder("late", PROGRAM, 1).node(&friend).lanes(1).connect().unwrap();
    let other = bind(&friend, "late");
    for round in 0..20u8 {
        slow.set_timeout(Some(Duration::from_millis(2)));
        let late = slow.request(HOLD, 0, 0).unwrap().call();
        assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
        slow.set_timeout(None);
        other.request(RELEASE, 0, 0).unwrap().call().unwrap();
        assert_eq!(echo(&slow, &[round; 33]).unwrap(), [round; 33]);
    }
    server.stop();
}

/// The lane whose call never ends is the first of two, and the other one is used when the third call comes.
#[test]
fn a_call_that_never_ends_keeps_no_other_lane_from_being_used() {
    let _watchdog = Watchdog::new("a_call_that_never_ends");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = gated(&node, "endless");
    let friend = daemon.node();
    let builder = Binding::builder("endless", PROGRAM, 1).node(&friend).lanes(2);
    let binding = builder.connect_timeout(PATIENCE.unwrap()).connect().unwrap();
    let [for_ever, briefly] = [&GATES[0], &GATES[1]];
    let limited = binding.clone();
    limited.set_timeout(Some(Duration::from_millis(2)));
    let none = ENTERED.load(Ordering::Acquire);
    let late = limited.request(0, 0, 0).unwrap().call();
    assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
    until("it has begun", || ENTERED.load(Ordering::Acquire) > none);
    for asynchronous in [false, true] {
        briefly.store(false, Ordering::Release);
        let (entered, begun) =
            (ENTERED.load(Ordering::Acquire), || ENTERED.load(Ordering::Acquire));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| binding.request(1, 0, 0).unwrap().call().map(drop));
            until("the second lane is used", || begun() > entered);
            let third = scope.spawn(|| {
                if asynchronous {
                    let request = block_on(binding.request_async(2, 0, 0));
                    request.and_then(|request| request.call().map(drop))
                } else {
                    binding.request(2, 0, 0).and_then(|request| request.call().map(drop))
                }
            });
            // It comes to wait for the first lane's late reply.
            std::thread::sleep(Duration::from_millis(20));
            assert!(!third.is_finished());
            briefly.store(true, Ordering::Release);
            other.join().unwrap().unwrap();
            third.join().unwrap().unwrap();
        });
    }
    for_ever.store(true, Ordering::Release);
    server.stop();
}

/// What the first two procedures of [`gated`] wait for.
static GATES: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
/// How often they began.
static ENTERED: AtomicU64 = AtomicU64::new(0);

/// A server for one test.
fn gated(node: &Node, name: &str) -> Server {
    let serve = |procedure: u32, call: shrimp_rpc::ServerCall<'_>| {
        if let Some(gate) = GATES.get(procedure as usize) {
            ENTERED.fetch_add(1, Ordering::AcqRel);
            until("it may go on", || gate.load(Ordering::Acquire));
        }
        call.reply(0)?.send()
    };
    Server::builder(name).node(node).workers(4).raw_program(PROGRAM, 1, serve).start().unwrap()
}

/// With one worker, which is the one that ends, and with several.
#[test]
fn a_handler_may_end_its_own_server() {
    let _watchdog = Watchdog::new("a_handler_may_end");
    let daemon = Daemon::start();
    let friend = daemon.node();
    for workers in [1, 3] {
        let node = daemon.node();
        let running = Arc::new(Mutex::new(None::<Server>));
        let own = running.clone();
        let serve = move |procedure: u32, call: shrimp_rpc::ServerCall<'_>| {
            if procedure == 1 {
                own.lock().unwrap().take().unwrap().stop();
            }
            call.reply(0)?.send()
        };
        let builder = Server::builder("ends itself").node(&node).workers(workers);
        let server = builder.raw_program(PROGRAM, 1, serve).start().unwrap();
        *running.lock().unwrap() = Some(server);
        let (one, other) = (bind(&friend, "ends itself"), bind(&friend, "ends itself"));
        other.request(0, 0, 0).unwrap().call().unwrap();
        one.request(1, 0, 0).unwrap().call().unwrap();
        other.set_timeout(Some(Duration::from_millis(100))); // it binds anew
        until("the others find it gone", || match other.request(0, 0, 0) {
            Ok(request) => request.call().is_err(),
            Err(_) => true,
        });
        until("its buffers have gone", || node.exports().is_empty());
    }
}

#[test]
fn one_way_calls_arrive_in_order_and_return_nothing() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "one way", 1);
    let friend = daemon.node();
    let binding = Binding::builder("one way", PROGRAM, 1).node(&friend).lanes(1).connect().unwrap();
    for _ in 0..1000 {
        binding.request(COUNT, 0, 0).unwrap().send().unwrap();
    }
    let mut reply = binding.request(COUNT, 0, 0).unwrap().call().unwrap();
    assert_eq!(u64::decode(&mut reply).unwrap(), 1001);
    server.stop();
}

#[test]
fn who_may_bind_is_decided_by_the_daemon() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let null = |_: u32, call: shrimp_rpc::ServerCall<'_>| call.reply(0)?.send();
    let token = Token([7; 16]);
    let secret = Server::builder("secret").node(&node).token(token).raw_program(PROGRAM, 1, null);
    let secret = secret.start().unwrap();
    let nobody = Server::builder("nobody").node(&node).allow(Who::User(4_000_000_000));
    let nobody = nobody.raw_program(PROGRAM, 1, null).start().unwrap();
    let friend = daemon.node();
    let try_for = |time: Duration, name: &str, token: Option<Token>| {
        let mut builder = Binding::builder(name, PROGRAM, 1).node(&friend).connect_timeout(time);
        if let Some(token) = token {
            builder = builder.token(token);
        }
        builder.connect().map(drop)
    };
    let try_it = |name, token| try_for(Duration::from_millis(200), name, token);
    assert!(matches!(try_it("secret", None), Err(ConnectError::Service { .. })));
    assert!(matches!(try_it("secret", Some(Token([8; 16]))), Err(ConnectError::Service { .. })));
    assert!(try_for(PATIENCE.unwrap(), "secret", Some(token)).is_ok());
    assert!(matches!(try_it("nobody", None), Err(ConnectError::Service { .. })));
    assert!(matches!(try_it("absent", None), Err(ConnectError::Service { .. })));
    secret.stop();
    nobody.stop();
}

#[test]
fn limits_of_bindings_and_lengths_are_kept_with_an_error_of_their_own() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let echo_all = |procedure: u32, call: shrimp_rpc::ServerCall<'_>| {
        if procedure == 2 {
            return call.reply(3 << 20)?.send();
        }
        let mut args = call.args();
        let len = u32::decode(&mut args)?;
        args.finish()?;
        let mut out = call.out::<u8>(u32::MAX);
        out.open(len as usize)?;
        let (distance, len) = out.descriptor();
        let mut reply = call.reply(8)?;
        distance.encode(&mut reply)?;
        len.encode(&mut reply)?;
        reply.send()
    };
    let server = Server::builder("limits").node(&node).bindings_max(1).call_max(1 << 20);
    let server = server.raw_program(PROGRAM, 1, echo_all).start().unwrap();
    let friend = daemon.node();
    let binding = bind(&friend, "limits");
    let second = Binding::builder("limits", PROGRAM, 1).node(&friend).connect();
    assert!(matches!(second, Err(ConnectError::TooManyBindings { .. })), "{second:?}");
    let ask = |len: u32| {
        let mut request = binding.request(1, 4, 0).unwrap();
        len.encode(&mut request).unwrap();
        request.call().map(drop)
    };
    ask(1000).unwrap();
    ask(1 << 19).unwrap();
    assert!(matches!(ask(2 << 20), Err(CallError::Fault(_))));
    let long = binding.request(1, 4, 2 << 20).unwrap();
    drop(long);
    let mut long = binding.request(1, 4, 2 << 20).unwrap();
    1u32.encode(&mut long).unwrap();
    long.block(&vec![0u8; 2 << 20]).unwrap();
    let refused = long.call();
    let Err(CallError::TooLong { len, max: 0x10_0000, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!((2 << 20..3 << 20).contains(&len), "{len} bytes");
    let refused = binding.request(2, 0, 0).unwrap().call();
    let Err(CallError::TooLong { len: 0x30_0000, max: 0x10_0000, .. }) = refused else {
        panic!("{refused:?}")
    };
    ask(10).unwrap();
    server.stop();
}

#[test]
fn lies_of_a_client_cost_it_its_binding_and_nobody_else_anything() {
    let watchdog = Watchdog::new("lies_of_a_client");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "patient", 1);
    let friend = daemon.node();
    let binding = bind(&friend, "patient");
    let first = Turn::NONE.next();
    let flag = |kind, code, units| FlagWord { turn: first, kind, code, units }.pack();
    let lies = [
        flag(Kind::Whole, 1, 0xff_ffff),     // longer than the buffer
        flag(Kind::Whole, 1, 1000),          // into the head
        flag(Kind::Next, 1, 1),              // a piece of nothing
        flag(Kind::More, 0, 0),              // more of nothing
        flag(Kind::First, 1, 1),             // a piece of a call of no bytes
        flag(Kind::Whole, 1, 0) | 0xf << 40, // no such kind
    ];
    for (i, lie) in lies.into_iter().enumerate() {
        watchdog.step(format!("lie {i}"));
        let liar_node = daemon.node();
        let liar = raw::Client::bind(&liar_node, "patient", 10 + i as u32, PROGRAM);
        let before = node.counters().get(count::FAULTY_PEERS);
        liar.flag(lie);
        until("it is found out", || node.counters().get(count::FAULTY_PEERS) > before);
        until("it is dropped", || server.bindings() == 1);
        assert_eq!(echo(&binding, b"friend").unwrap(), b"friend");
    }
    // A huge total is refused, and nothing is allocated for it.
    let liar_node = daemon.node();
    let liar = raw::Client::bind(&liar_node, "patient", 99, PROGRAM);
    liar.calls.write(layout::CALL_TOTAL, &u64::MAX.to_ne_bytes()).unwrap();
    liar.flag(flag(Kind::First, 1, 1));
    assert_eq!(echo(&binding, b"friend").unwrap(), b"friend");
    drop(liar);
    server.stop();
}

/// By the length of another node's buffer memory is allocated, and a flag's length field has an end.
#[test]
fn buffers_of_impossible_lengths_are_not_bound_by_either_side() {
    let _watchdog = Watchdog::new("buffers_of_impossible_lengths");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "lengths", 1);
    let friend = daemon.node();
    let lengths = [layout::BUFFER_MAX + 4096, 8193, layout::BUFFER_MIN - 8];
    let mut number = 10..;
    for len in lengths {
        let knock =
            |len, number| raw::Knocked::knock_with(&friend, "lengths", number, PROGRAM, len);
        let wrong = knock(len, number.next().unwrap());
        // The acceptor takes them one by one.
        let right = knock(raw::LEN, number.next().unwrap());
        right.answer();
        assert_eq!(server.bindings(), 1, "{len} bytes are bound");
        assert!(!wrong.is_answered(), "{len} bytes");
        drop(right);
        until("it is forgotten", || server.bindings() == 0);
    }
    for len in [layout::BUFFER_MAX, layout::BUFFER_MIN] {
        raw::Knocked::knock_with(&friend, "lengths", number.next().unwrap(), PROGRAM, len).answer();
    }
    server.stop();
    for len in lengths {
        let (liar, (ready, opened)) = (daemon.node(), std::sync::mpsc::channel());
        let name = format!("liar {len}");
        let lie = {
            let name = name.clone();
            std::thread::spawn(move || {
                let heard = raw::Heard::hear(&liar, &name, || ready.send(()).unwrap());
                let server = heard.answer_with(&liar, len);
                until("it is let go", || server.replies.signal64(0, 0).is_err());
            })
        };
        opened.recv().unwrap();
        match Binding::builder(&name, PROGRAM, 1).node(&friend).connect().map(drop) {
            Err(ConnectError::Protocol { what, .. }) => assert!(what.contains("length"), "{what}"),
            other => panic!("{len} bytes: {other:?}"),
        }
        lie.join().unwrap();
    }
}

#[test]
fn arguments_that_change_while_they_are_used_hurt_nobody() {
    let _watchdog = Watchdog::new("arguments_that_change");
    let daemon = Daemon::start();
    let node = daemon.node();
    let server = server(&node, "scribbled", 1);
    let liar_node = daemon.node();
    let mut liar = raw::Client::bind(&liar_node, "scribbled", 5, PROGRAM);
    let scribbled = liar.link.bind(0..liar.link.len()).unwrap();
    let friend = daemon.node();
    let binding = bind(&friend, "scribbled");
    let stop = AtomicBool::new(false);
    let end = layout::flag_at(liar.calls.len());
    let mut served = 0;
    std::thread::scope(|scope| {
        // Scribbles over the length, the data and the head all the time.
        scope.spawn(|| {
            let mut value = 1u64;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (value >> 33) as usize % (end / 8) * 8;
                scribbled.view().word64(at).unwrap().store(value, Ordering::Relaxed);
            }
        });
        for i in 0..20_000u32 {
            let code = if i % 2 == 0 { READ_TWICE as u16 } else { ECHO as u16 };
            let units = 2 + i % 900;
            let len = units as usize * layout::UNIT;
            let length = liar.calls.view().word32(end - len).unwrap();
            length.store(units - 1, Ordering::Relaxed);
            liar.send(Kind::Whole, code, len);
            if liar.outcome(|| ()).is_none() {
                break;
            }
            served += 1;
            if i % 100 == 0 {
                assert_eq!(echo(&binding, b"friend").unwrap(), b"friend");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(served, 20_000, "the arguments' owner may change them");
    assert_eq!(echo(&binding, b"friend").unwrap(), b"friend");
    server.stop();
}

#[test]
fn a_handler_that_panics_answers_a_fault_and_one_that_drops_the_call_too() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let kept = Arc::new(Mutex::new(()));
    let server = Server::builder("clumsy")
        .node(&node)
        .raw_program(PROGRAM, 1, move |procedure, call| {
            let _kept = kept.clone();
            match procedure {
                1 => panic!("on purpose"),
                2 => {
                    let (call, finished) = call.defer();
                    drop(call);
                    Ok(finished)
                }
                3 => {
                    let (call, finished) = call.defer();
                    std::thread::spawn(move || {
                        let _call = call;
                        panic!("on purpose")
                    });
                    Ok(finished)
                }
                _ => call.reply(0)?.send(),
            }
        })
        .start()
        .unwrap();
    let friend = daemon.node();
    let binding = bind(&friend, "clumsy");
    let faults = [Fault::PANICKED, Fault::DROPPED, Fault::PANICKED];
    for (procedure, number) in (1..).zip(faults).chain([(1, Fault::PANICKED)]) {
        match binding.request(procedure, 0, 0).unwrap().call() {
            Err(CallError::Fault(fault)) => assert_eq!(fault.number(), number),
            other => panic!("{other:?}"),
        }
        binding.request(0, 0, 0).unwrap().call().unwrap();
    }
    server.stop();
}

/// The worker answered too, and the late reply was written over that to a later call.
#[test]
fn a_handler_that_fails_or_panics_after_it_put_the_reply_off_does_not_answer_besides() {
    let _watchdog = Watchdog::new("a_handler_that_fails_or_panics_after");
    let daemon = Daemon::start();
    let node = daemon.node();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let calls = kept.clone();
    let server = Server::builder("hasty")
        .node(&node)
        .raw_program(PROGRAM, 1, move |procedure, call| {
            if procedure == 0 {
                return call.reply(0)?.send();
            }
            let (call, finished) = call.defer();
            calls.lock().unwrap().push(call);
            match procedure {
                1 => Err(Fault::new(7, "too late").into()),
                2 => panic!("on purpose"),
                3 => {
                    // It ends here: that is the answer, and the only one.
                    calls.lock().unwrap().pop();
                    Err(Fault::new(7, "too late").into())
                }
                _ => Ok(finished),
            }
        })
        .start()
        .unwrap();
    let friend = daemon.node();
    let binding = bind(&friend, "hasty");
    let other = bind(&friend, "hasty");
    for procedure in [1, 2, 4] {
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let mut reply = binding.request(procedure, 0, 0).unwrap().call()?;
                Ok::<_, CallError>(u64::decode(&mut reply).unwrap())
            });
            until("it is put off", || !kept.lock().unwrap().is_empty());
            // The worker is out of that handler once it has served another call.
            other.request(0, 0, 0).unwrap().call().unwrap();
            let late = kept.lock().unwrap().pop().unwrap();
            let mut reply = late.reply(8).unwrap();
            u64::from(procedure).encode(&mut reply).unwrap();
            reply.send().unwrap();
            assert_eq!(call.join().unwrap().unwrap(), u64::from(procedure));
        });
    }
    match binding.request(3, 0, 0).unwrap().call() {
        Err(CallError::Fault(fault)) => assert_eq!(fault.number(), Fault::DROPPED),
        other => panic!("{other:?}"),
    }
    binding.request(0, 0, 0).unwrap().call().unwrap();
    server.stop();
}

/// The service and the call it kept held each other for ever once.
#[test]
fn calls_that_their_service_kept_end_with_the_server() {
    let _watchdog = Watchdog::new("calls_that_their_service_kept");
    let daemon = Daemon::start();
    let node = daemon.node();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let service = Arc::downgrade(&kept);
    let server = Server::builder("keeper")
        .node(&node)
        .raw_program(PROGRAM, 1, move |_, call| {
            let (call, finished) = call.defer();
            kept.lock().unwrap().push(call);
            Ok(finished)
        })
        .start()
        .unwrap();
    let friend = daemon.node();
    let binding = bind(&friend, "keeper");
    std::thread::scope(|scope| {
        let call = scope.spawn(|| binding.request(1, 0, 0).unwrap().call().map(drop));
        let is_kept =
            || service.upgrade().is_some_and(|kept| kept.lock().is_ok_and(|kept| kept.len() == 1));
        until("the service has the call", is_kept);
        server.stop();
        match call.join().unwrap() {
            Err(CallError::Fault(fault)) => assert_eq!(fault.number(), Fault::DROPPED),
            other => panic!("{other:?}"),
        }
    });
    assert!(service.upgrade().is_none(), "the service outlives its server");
    assert_eq!(node.exports().len(), 0, "a buffer is left");
}
