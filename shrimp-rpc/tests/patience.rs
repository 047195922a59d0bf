//! What a time limit covers: all of a call, from the wait for its lane to the last piece of its reply; also where the server sends
//! replies in pieces as slowly as it can.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod executor;
mod raw;
#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use common::{Daemon, PATIENCE, until};
use executor::block_on;
use raw::{Heard, state};
use rustix::time::{ClockId, clock_gettime};
use shrimp_rpc::layout::{self, FlagWord, Kind, Turn};
use shrimp_rpc::process::count;
use shrimp_rpc::{Binding, CallError, ConnectError, ServeError, Server};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};
use support::Watchdog;

const PROGRAM: u32 = 0x2000_0004;

/// What a call fails by, to whose client a server sends a reply of 64 MiB in pieces of that length, the first one and each further one
/// after those times; and how many messages the client sent.
fn fails_by(
    name: &str,
    piece: usize,
    (first, after): (Duration, Duration),
    timeout: Duration,
) -> (CallError, u32) {
    let daemon = Daemon::start();
    let (node, liar) = (daemon.node(), daemon.node());
    let (ready, opened) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let heard = Heard::hear(&liar, name, || ready.send(()).unwrap());
            let server = heard.answer(&liar);
            server.replies.write(layout::REPLY_TOTAL, &(64u64 << 20).to_ne_bytes()).unwrap();
            let (mut turn, mut kind, mut messages) = (Turn::NONE, Kind::First, 0);
            while let Some(call) = server.next_call(turn) {
                turn = call.turn;
                messages += 1;
                std::thread::sleep(if kind == Kind::First { first } else { after });
                // The client may have had enough.
                let units = (piece / layout::UNIT) as u32;
                server.flag(FlagWord { turn, kind, code: 0, units }.pack());
                kind = Kind::Next;
            }
            messages
        });
        opened.recv().unwrap();
        let builder = Binding::builder(name, PROGRAM, 1).node(&node).buffer_len(raw::LEN);
        let builder = builder.timeout(timeout).connect_timeout(PATIENCE.unwrap());
        let binding = builder.connect().unwrap();
        let failed = binding.request(1, 0, 0).unwrap().call().map(drop);
        drop(binding);
        (failed.expect_err("it is never complete"), server.join().unwrap())
    })
}

/// Nanoseconds of the clock that deadlines are of.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn null(binding: &Binding, asynchronous: bool) -> Result<(), CallError> {
    if asynchronous {
        let call = async { binding.request_async(1, 0, 0).await?.call_async().await?.finish() };
        return block_on(call);
    }
    binding.request(1, 0, 0)?.call()?.finish()
}

/// It said that nothing came within the limit, and not that there was nobody to answer.
#[test]
fn a_call_in_a_hurry_says_that_nobody_serves() {
    let _watchdog = Watchdog::new("a_call_in_a_hurry");
    let daemon = Daemon::start();
    let timeout = Duration::from_millis(30);
    let builder = Binding::builder("nobody's", PROGRAM, 1).node(&daemon.node()).timeout(timeout);
    let binding = builder.connect_later().unwrap();
    for asynchronous in [false, true] {
        let failed = null(&binding, asynchronous).unwrap_err();
        assert!(
            matches!(&failed, CallError::TimedOut { after, sent: false, unbound: Some(_) } if *after == timeout),
            "{failed:?}"
        );
        let text = failed.to_string();
        for part in ["30ms", "nothing was sent", "\"nobody's\"", "nobody serves", "more time"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

/// Names that no service can have are told apart from services that are not there.
#[test]
fn a_name_that_no_service_can_have_is_refused_at_once() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let long = "x".repeat(5_000);
    for name in ["", "  ", "a\nb", long.as_str()] {
        let failed = Binding::builder(name, PROGRAM, 1).node(&node).connect().unwrap_err();
        assert!(matches!(failed, ConnectError::Name(_)), "{failed:?}");
        let program = Server::builder(name)
            .node(&node)
            .raw_program(PROGRAM, 1, |_, call| call.reply(0)?.send());
        let refused = program.start().unwrap_err();
        assert!(matches!(refused, ServeError::Name(_)), "{refused:?}");
        assert_eq!(failed.to_string(), refused.to_string());
    }
    let failed = Binding::builder("x@", PROGRAM, 1).node(&node).connect().unwrap_err();
    assert!(matches!(failed, ConnectError::Name(_)), "{failed:?}");
}

/// Each piece had the whole time, so that a call took as many times as much as it has pieces.
#[test]
fn all_pieces_of_a_reply_share_a_time_limit() {
    let _watchdog = Watchdog::new("all_pieces_of_a_reply");
    let timeout = Duration::from_millis(400);
    let each = Duration::from_millis(100);
    match fails_by("slow", layout::room(raw::LEN), (each, each), timeout).0 {
        CallError::TimedOut { after, .. } => assert_eq!(after, timeout),
        other => panic!("{other:?}"),
    }
}

/// The pieces of a reply had the whole time anew, however late the first one was.
#[test]
fn the_pieces_of_a_reply_have_what_the_call_has_left() {
    let _watchdog = Watchdog::new("the_pieces_of_a_reply");
    let times = (Duration::from_millis(300), Duration::from_millis(20));
    let timeout = Duration::from_millis(400);
    let (failed, messages) = fails_by("tardy", layout::room(raw::LEN), times, timeout);
    assert!(matches!(failed, CallError::TimedOut { after, .. } if after == timeout), "{failed:?}");
    // One call, and a request for each piece of the last 100 ms.
    assert!(messages <= 1 + 6, "{messages} messages");
}

/// The call had the whole time anew, however long it had waited for its lane, or for the lane's binding.
#[test]
fn waiting_for_a_lane_and_binding_it_are_part_of_a_calls_time() {
    let _watchdog = Watchdog::new("waiting_for_a_lane_and_binding");
    waits_in_stages("blocking", false);
}

#[test]
fn waiting_for_a_lane_and_binding_it_are_part_of_a_futures_time() {
    let _watchdog = Watchdog::new("waiting_for_a_lane_and_binding_futures");
    waits_in_stages("async", true);
}

fn waits_in_stages(name: &str, asynchronous: bool) {
    let daemon = Daemon::start();
    let (node, puppet_node) = (daemon.node(), daemon.node());
    let timeout = PATIENCE.unwrap();
    let builder = Binding::builder(name, PROGRAM, 1).node(&node).buffer_len(raw::LEN).lanes(1);
    let binding = builder.timeout(timeout).connect_timeout(timeout).connect_later().unwrap();
    let last = |began: u64| began + timeout.as_nanos() as u64;
    let tid = AtomicI32::new(0);
    let call = || {
        tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
        null(&binding, asynchronous)
    };
    let asleep = || until("it sleeps", || state(tid.load(Ordering::Acquire)) == Some('S'));
    let deadline_at = |server: &raw::Server| {
        let mut deadline = [0; 8];
        server.calls.read(layout::CALL_DEADLINE, &mut deadline).unwrap();
        u64::from_ne_bytes(deadline)
    };
    std::thread::scope(|scope| {
        // A lane that is bound.
        let first = scope.spawn(call);
        asleep();
        let mut began = 0;
        let heard = Heard::hear(&puppet_node, name, || began = now());
        let server = heard.answer(&puppet_node);
        let called = server.call(Turn::NONE);
        let deadline = deadline_at(&server);
        assert!(deadline != 0 && deadline <= last(began), "binding took none of its time");
        // A lane that is used.
        tid.store(0, Ordering::Release);
        let second = scope.spawn(call);
        asleep();
        let began = now();
        server.reply(called.turn, Kind::Whole, 0);
        first.join().unwrap().unwrap();
        let called = server.call(called.turn);
        let deadline = deadline_at(&server);
        assert!(deadline <= last(began), "waiting for a lane took none of its time");
        server.reply(called.turn, Kind::Whole, 0);
        second.join().unwrap().unwrap();
        // No limit.
        binding.set_timeout(None);
        let third = scope.spawn(call);
        let called = server.call(called.turn);
        assert_eq!(deadline_at(&server), 0);
        server.reply(called.turn, Kind::Whole, 0);
        third.join().unwrap().unwrap();
    });
    assert_eq!(node.counters().get(count::TIMEOUTS), 0);
}

/// The wait for the answer began the time anew.
#[test]
fn binding_takes_its_time_once_for_all_of_its_steps() {
    const LIMIT: Duration = Duration::from_secs(12);
    let _watchdog = Watchdog::new("binding_takes");
    let daemon = Daemon::start();
    let (node, mute) = (daemon.node(), daemon.node());
    let (begin, begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            begin.send(()).unwrap();
            let builder = Binding::builder("mute", PROGRAM, 1).node(&node).buffer_len(raw::LEN);
            (builder.connect_timeout(LIMIT).connect().map(drop), Instant::now())
        });
        begun.recv().unwrap();
        std::thread::sleep(LIMIT / 2);
        let before = Instant::now();
        let heard = Heard::hear(&mute, "mute", || ()); // and never answered
        let (failed, after) = client.join().unwrap();
        let failed = failed.unwrap_err();
        assert!(matches!(failed, ConnectError::TimedOut { after: LIMIT, .. }), "{failed:?}");
        assert!(after - before < LIMIT, "all of it once more, for the answer");
        drop(heard);
    });
}

/// The limit was one for all who use the binding.
#[test]
fn a_handles_limit_is_its_own() {
    let _watchdog = Watchdog::new("a_handles_limit");
    let daemon = Daemon::start();
    let (node, puppet_node) = (daemon.node(), daemon.node());
    let (open, opened) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let heard = Heard::hear(&puppet_node, "own", || open.send(()).unwrap());
            heard.answer(&puppet_node)
        });
        opened.recv().unwrap();
        let builder = Binding::builder("own", PROGRAM, 1).node(&node).buffer_len(raw::LEN);
        let binding = builder.connect_timeout(PATIENCE.unwrap()).lanes(1).connect().unwrap();
        let server = server.join().unwrap();
        let mut turn = Turn::NONE;
        // Whether the server is told a limit, and how much is left.
        let told = |binding: &Binding, turn: &mut Turn| {
            let call = scope.spawn({
                let binding = binding.clone();
                move || null(&binding, false)
            });
            *turn = server.call(*turn).turn;
            let mut deadline = [0; 8];
            server.calls.read(layout::CALL_DEADLINE, &mut deadline).unwrap();
            server.reply(*turn, Kind::Whole, 0);
            call.join().unwrap().unwrap();
            u64::from_ne_bytes(deadline).saturating_sub(now()).div_ceil(3_600_000_000_000)
        };
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let (one, three) = (binding.with_timeout(hours(1)), binding.with_timeout(hours(3)));
        let group = three.group();
        assert_eq!([&binding, &one, &three, &group].map(|it| told(it, &mut turn)), [0, 1, 3, 3]);
        three.set_timeout(None);
        binding.set_timeout(Some(hours(2)));
        assert_eq!([&binding, &one, &three, &group].map(|it| told(it, &mut turn)), [2, 1, 0, 3]);
        // Who waits in vain disturbs nobody.
        let hurried = binding.with_timeout(Duration::from_millis(1));
        let failed = null(&hurried, false).unwrap_err();
        assert!(matches!(failed, CallError::TimedOut { sent: true, .. }), "{failed:?}");
        assert!(!failed.was_not_sent() && failed.to_string().contains("told to give up"));
        // The lane waits for the late reply.
        let failed = null(&hurried, false).unwrap_err();
        assert!(matches!(failed, CallError::TimedOut { sent: false, .. }), "{failed:?}");
        assert!(failed.was_not_sent() && failed.to_string().contains("nothing was sent"));
        turn = turn.next();
        server.reply(turn, Kind::Whole, 0);
        assert_eq!(told(&one, &mut turn), 1);
    });
    assert_eq!(node.counters().get(count::BOUND), 1);
}

/// The pieces could be as short as eight bytes.
#[test]
fn a_short_piece_of_a_reply_ends_the_binding() {
    let _watchdog = Watchdog::new("a_short_piece_of_a_reply");
    let failed = fails_by("short", 8, Default::default(), PATIENCE.unwrap()).0;
    assert!(matches!(failed, CallError::Protocol { .. }), "{failed:?}");
}
