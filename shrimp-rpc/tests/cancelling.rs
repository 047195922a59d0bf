//! Blocking calls that another thread gives up: awake, asleep, between pieces, and in the queue for a lane.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod program;
mod raw;
#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use common::{Daemon, PATIENCE, until};
use program::{FILL, NULL, PROGRAM, dispatch, reverse};
use raw::{Heard, state};
use shrimp_rpc::layout::{self, Kind, Turn};
use shrimp_rpc::process::count;
use shrimp_rpc::{Binding, CallError, Canceller, Server};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use support::Watchdog;
use vmmc::config::{WaitChoice, WaitPolicy};
use vmmc::{Config, Node};
use xdr::Encode;

/// Is answered when its client has given it up.
const STAY: u32 = 90;
/// Is answered when the test says so.
const WAIT: u32 = 91;
static ANSWER: AtomicBool = AtomicBool::new(false);

fn server(node: &Node, told: &'static AtomicU32) -> Server {
    let builder = Server::builder("x").node(node).workers(2);
    let program = builder.raw_program(PROGRAM, 1, move |procedure, call| {
        if procedure == STAY {
            until("given up", || call.context().is_cancelled());
            told.fetch_add(1, Ordering::Release);
            return call.reply(0)?.send();
        }
        if procedure == WAIT {
            until("it may be answered", || ANSWER.load(Ordering::Acquire));
            return call.reply(0)?.send();
        }
        dispatch(procedure, call)
    });
    program.start().unwrap()
}

fn null(binding: &Binding, procedure: u32) -> Result<(), CallError> {
    binding.request(procedure, 0, 0)?.call()?.finish()
}

/// A node that waits like that.
fn waiting(daemon: &Daemon, policy: WaitPolicy) -> Node {
    let config = Config { wait: WaitChoice::Fixed(policy), ..daemon.config() };
    Node::builder().config(config).connect().unwrap()
}

/// Runs a call in a thread, cancels it when it is under way (and asleep, if that is asked for), and returns its outcome.
fn cancelled(
    binding: &Binding,
    asleep: bool,
    call: impl FnOnce() -> Result<(), CallError> + Send,
) -> Result<(), CallError> {
    let sent = binding.node().counters().get(count::CALLS);
    let tid = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            tid.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Release);
            call()
        });
        until("the call was sent", || binding.node().counters().get(count::CALLS) > sent);
        let tid = tid.load(Ordering::Acquire) as i32;
        until("it sleeps", || !asleep || state(tid) == Some('S'));
        binding.canceller().cancel();
        caller.join().unwrap()
    })
}

#[test]
fn a_call_that_waits_awake_or_asleep_is_cancelled_and_the_binding_goes_on() {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let watchdog = Watchdog::new("a_call_that_waits");
    let daemon = Daemon::start();
    let server = server(&daemon.node(), &TOLD);
    for (round, policy) in [WaitPolicy::Spin, WaitPolicy::Block].into_iter().enumerate() {
        watchdog.step(format!("{policy:?}"));
        let node = waiting(&daemon, policy);
        let binding = program::builder(&node, "x").lanes(1).connect().unwrap();
        binding.canceller().cancel(); // of no call
        null(&binding, NULL).unwrap();
        let asleep = matches!(policy, WaitPolicy::Block);
        let outcome = cancelled(&binding, asleep, || null(&binding, STAY));
        let error = outcome.unwrap_err();
        assert!(matches!(error, CallError::Cancelled { .. }) && !error.was_not_sent(), "{error}");
        // The same lane, after its late reply; and later cancellations concern no call that is over.
        reverse(&binding, 100).unwrap();
        assert_eq!(TOLD.load(Ordering::Acquire) as usize, round + 1, "the server was told");
        binding.canceller().cancel();
        reverse(&binding, 200_000).unwrap();
    }
    server.stop();
}

#[test]
fn who_waits_for_a_lane_is_cancelled_with_the_call_that_has_it() {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let _watchdog = Watchdog::new("who_waits_for_a_lane");
    let daemon = Daemon::start();
    let server = server(&daemon.node(), &TOLD);
    let node = daemon.node();
    let binding = program::builder(&node, "x").lanes(1).connect().unwrap();
    let waiting = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| null(&binding, STAY));
        until("the call was sent", || node.counters().get(count::CALLS) == 1);
        let wait = || {
            waiting.fetch_add(1, Ordering::Release);
            null(&binding, NULL)
        };
        let others: Vec<_> = (0..4).map(|_| scope.spawn(wait)).collect();
        until("they have come", || waiting.load(Ordering::Acquire) == 4);
        binding.canceller().cancel();
        assert!(matches!(first.join().unwrap(), Err(CallError::Cancelled { sent: true })));
        for other in others {
            // Who came a little later was answered.
            match other.join().unwrap() {
                Ok(()) => {}
                Err(error @ CallError::Cancelled { sent: false }) => {
                    assert!(
                        error.was_not_sent() && error.to_string().contains("before it was sent")
                    );
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    null(&binding, NULL).unwrap();
    server.stop();
}

/// Calls of other groups go on; those of the group are given up with all of the binding, too.
/// It ended by its time limit alone.
#[test]
fn a_call_that_binds_is_cancelled_while_there_is_no_service_and_while_it_does_not_answer() {
    let _watchdog = Watchdog::new("a_call_that_binds");
    let daemon = Daemon::start();
    let (node, mute) = (daemon.node(), daemon.node());
    let binding = |name: &str| {
        let builder = Binding::builder(name, PROGRAM, 1).node(&node).buffer_len(raw::LEN);
        builder.connect_timeout(PATIENCE.unwrap()).connect_later().unwrap()
    };
    let cancelled = |binding: &Binding, ready: &dyn Fn()| {
        std::thread::scope(|scope| {
            let call = scope.spawn(|| null(binding, NULL));
            ready();
            // As often as it takes: the first may come before the call has begun.
            while !call.is_finished() {
                binding.canceller().cancel();
                std::thread::sleep(Duration::from_millis(5));
            }
            let failed = call.join().unwrap().unwrap_err();
            assert!(matches!(failed, CallError::Cancelled { sent: false }), "{failed:?}");
        });
    };
    cancelled(&binding("nowhere"), &|| ());
    let heard = std::cell::RefCell::new(None);
    cancelled(&binding("mute"), &|| drop(heard.replace(Some(Heard::hear(&mute, "mute", || ())))));
}

#[test]
fn a_group_of_calls_is_cancelled_alone() {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let _watchdog = Watchdog::new("a_group_of_calls");
    let daemon = Daemon::start();
    let server = server(&daemon.node(), &TOLD);
    let node = daemon.node();
    let binding = program::builder(&node, "x").lanes(2).connect().unwrap();
    let (group, other) = (binding.group(), binding.group());
    // Through a clone: of the group as well.
    let outcome = cancelled(&binding, false, || null(&group.clone(), STAY));
    assert!(matches!(outcome, Err(CallError::Cancelled { .. })), "{outcome:?}");
    let (calls, tid) = (node.counters().get(count::CALLS), AtomicU32::new(0));
    ANSWER.store(false, Ordering::Release);
    std::thread::scope(|scope| {
        let goes_on = [&binding, &other].map(|it| scope.spawn(|| null(it, WAIT)));
        until("both lanes are used", || node.counters().get(count::CALLS) == calls + 2);
        // Both calls stay, and the group's waits for their lanes.
        let waits = scope.spawn(|| {
            tid.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Release);
            null(&group, STAY)
        });
        until("it sleeps", || state(tid.load(Ordering::Acquire) as i32) == Some('S'));
        group.canceller().cancel();
        let outcome = waits.join().unwrap();
        assert!(matches!(outcome, Err(CallError::Cancelled { .. })), "{outcome:?}");
        ANSWER.store(true, Ordering::Release);
        let _: [(); 2] = goes_on.map(|call| call.join().unwrap().unwrap());
    });
    // One that is under way, beside one of another group.
    let calls = node.counters().get(count::CALLS);
    ANSWER.store(false, Ordering::Release);
    std::thread::scope(|scope| {
        let given_up = scope.spawn(|| null(&group, STAY));
        let goes_on = scope.spawn(|| null(&other, WAIT));
        until("both were sent", || node.counters().get(count::CALLS) == calls + 2);
        group.canceller().cancel();
        let outcome = given_up.join().unwrap();
        assert!(matches!(outcome, Err(CallError::Cancelled { .. })), "{outcome:?}");
        ANSWER.store(true, Ordering::Release);
        goes_on.join().unwrap().unwrap();
    });
    assert_eq!(node.counters().get(count::BOUND), 2, "all handles have the same lanes");
    drop(binding);
    null(&group, NULL).unwrap();
    server.stop();
}

#[test]
fn a_call_in_pieces_is_cancelled_between_them() {
    let watchdog = Watchdog::new("a_call_in_pieces");
    let daemon = Daemon::start();
    let node = daemon.node();
    let room = layout::room(raw::LEN);
    for reply_in_pieces in [false, true] {
        watchdog.step(format!("a reply: {reply_in_pieces}"));
        let name = format!("pieces {reply_in_pieces}");
        let (open, client, mut binding) = (AtomicBool::new(false), daemon.node(), None);
        std::thread::scope(|scope| {
            let puppet = scope.spawn(|| {
                let heard = Heard::hear(&node, &name, || open.store(true, Ordering::Release));
                heard.answer(&node)
            });
            until("the door is open", || open.load(Ordering::Acquire));
            let builder = program::builder(&client, &name).buffer_len(raw::LEN).lanes(1);
            let bound = builder.connect().unwrap();
            let (binding, puppet) = (&*binding.insert(bound), puppet.join().unwrap());
            let call = move || match reply_in_pieces {
                false => reverse(binding, 40_000),
                true => {
                    let mut request = binding.request(FILL, 4, 0)?;
                    5_000u32.encode(&mut request)?;
                    request.call()?.finish()
                }
            };
            let caller = scope.spawn(call);
            let first = puppet.call(Turn::NONE);
            if reply_in_pieces {
                let total = (5 * room as u64).to_ne_bytes();
                puppet.replies.write(layout::REPLY_TOTAL, &total).unwrap();
                puppet.reply(first.turn, Kind::First, room);
            } else {
                puppet.reply(first.turn, Kind::More, 0);
            }
            // The second message is there: both sides have passed the first.
            let second = puppet.call(first.turn);
            assert_eq!(second.kind, if reply_in_pieces { Kind::More } else { Kind::Next });
            binding.canceller().cancel();
            assert!(matches!(caller.join().unwrap(), Err(CallError::Cancelled { .. })));
            // The late answer, whatever it is, frees the lane for the next call.
            puppet.reply(second.turn, Kind::More, 0);
            let next = scope.spawn(move || null(binding, NULL));
            let third = puppet.call(second.turn);
            assert_eq!(third.kind, Kind::Whole);
            puppet.reply(third.turn, Kind::Whole, 0);
            next.join().unwrap().unwrap();
        });
    }
}

/// Cancellations without end while calls of all kinds are made: each ends, by its reply or by that, and what was not cancelled
/// is right.
#[test]
fn calls_are_cancelled_at_any_moment() {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let _watchdog = Watchdog::new("calls_are_cancelled");
    let daemon = Daemon::start();
    let server = server(&daemon.node(), &TOLD);
    let node = daemon.node();
    let binding = program::builder(&node, "x").buffer_len(raw::LEN).lanes(2).connect().unwrap();
    let done = AtomicBool::new(false);
    let (answered, cancelled) = (AtomicU32::new(0), AtomicU32::new(0));
    let canceller: Canceller = binding.canceller();
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for round in 0..300 {
                        let outcome = match round % 3 {
                            0 => null(&binding, NULL),
                            1 => reverse(&binding, 50),
                            _ => reverse(&binding, 30_000),
                        };
                        match outcome {
                            Ok(()) => answered.fetch_add(1, Ordering::Relaxed),
                            Err(CallError::Cancelled { .. }) => {
                                cancelled.fetch_add(1, Ordering::Relaxed)
                            }
                            Err(error) => panic!("{error}"),
                        };
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                canceller.cancel();
                std::thread::yield_now();
            }
        });
        let ends: Vec<_> = callers.into_iter().map(|caller| caller.join()).collect();
        done.store(true, Ordering::Release);
        assert!(ends.iter().all(Result::is_ok));
    });
    assert!(cancelled.load(Ordering::Relaxed) > 0, "none was cancelled");
    assert_eq!(answered.load(Ordering::Relaxed) + cancelled.load(Ordering::Relaxed), 900);
    reverse(&binding, 30_000).unwrap();
    server.stop();
}
