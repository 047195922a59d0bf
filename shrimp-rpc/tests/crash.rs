//! `kill -9` at every named point of a binding and a call, on either side.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod program;
mod raw;
#[path = "../../vmmc/tests/support/mod.rs"]
mod support;

use common::{Daemon, say, second_process as play, until};
use program::{FILL, NULL, PROGRAM, REVERSE, dispatch, fill, reverse};
use raw::{Heard, Knocked};
use rustix::process::{Signal, getpid, kill_process};
use shrimp_rpc::layout::{self, Kind, Turn};
use shrimp_rpc::{Binding, CallError, ConnectError, Server};
use std::sync::{Arc, Mutex};
use support::Watchdog;
use vmmc::Node;

/// Blocks the worker for good.
const HOLD: u32 = 90;
/// Its reply is put off, and kept.
const KEEP: u32 = 91;

/// Where a client dies.
const CLIENT_POINTS: &[&str] = &[
    "knocked",
    "answered",
    "bound",
    "arguments half stored",
    "called",
    "being served",
    "replied to",
    "one way called",
    "given up",
    "first piece sent",
    "next piece sent",
    "pieces half sent",
    "first piece of the reply there",
    "next piece of the reply asked for",
    "next piece of the reply there",
    KEPT,
    PUT_OFF,
];
const KEPT: &str = "reply kept back by the server";
/// On either side.
const PUT_OFF: &str = "reply was put off";

/// Where a server dies.
const SERVER_POINTS: &[&str] = &[
    "door open",
    "knock heard",
    "answered",
    "call there",
    "one way call taken",
    "out half written",
    "reply stored, no flag",
    "asked for the next piece",
    "next piece there",
    "first piece of the reply sent",
    "next piece of the reply asked for",
    "next piece of the reply sent",
    PUT_OFF,
    "replied",
];

fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    unreachable!("nobody survives that")
}

/// Service and point of a process that is to die there, its node, and what it calls on its way.
fn doomed(args: &[String]) -> (&str, &str, Node, impl Fn(&str)) {
    support::die_with_parent();
    let (service, point) = (&*args[0], &*args[1]);
    let at = move |here: &str| {
        if point == here {
            die();
        }
    };
    (service, point, Node::connect().expect("connects"), at)
}

/// Lives until it is at its point.
fn client(args: &[String]) {
    let (service, point, node, at) = doomed(args);
    let knocked = Knocked::knock(&node, service, 5, PROGRAM);
    at("knocked");
    let export = knocked.answer();
    at("answered");
    let mut client = knocked.bind(&node, export);
    at("bound");
    let room = layout::room(raw::LEN);
    match point {
        "arguments half stored" => {
            client.calls.write(client.start(64), &[1; 32]).unwrap();
            die();
        }
        "called" => {
            client.send(Kind::Whole, NULL as u16, 0);
            die();
        }
        "being served" => {
            client.send(Kind::Whole, HOLD as u16, 0);
            say("held"); // and killed from outside, once it is
            common::pause();
        }
        "replied to" => {
            client.send(Kind::Whole, NULL as u16, 0);
            client.reply();
            die();
        }
        "one way called" => {
            client.send(Kind::OneWay, NULL as u16, 0);
            die();
        }
        "given up" => {
            client.send(Kind::Whole, NULL as u16, 0);
            client.cancel();
            die();
        }
        "first piece sent" | "next piece sent" | "pieces half sent" => {
            let total = 3 * room as u64;
            client.calls.write(layout::CALL_TOTAL, &total.to_ne_bytes()).unwrap();
            client.send(Kind::First, REVERSE as u16, room);
            at("first piece sent");
            assert_eq!(client.reply().kind, Kind::More);
            client.send(Kind::Next, 0, room);
            at("next piece sent");
            assert_eq!(client.reply().kind, Kind::More);
            die();
        }
        "first piece of the reply there"
        | "next piece of the reply asked for"
        | "next piece of the reply there" => {
            client.calls.write(client.start(8), &50_000u32.to_le_bytes()).unwrap();
            client.send(Kind::Whole, FILL as u16, 8);
            assert_eq!(client.reply().kind, Kind::First);
            at("first piece of the reply there");
            client.send(Kind::More, 0, 0);
            at("next piece of the reply asked for");
            assert_eq!(client.reply().kind, Kind::Next);
            die();
        }
        PUT_OFF => {
            client.send(Kind::Whole, KEEP as u16, 0);
            say("held"); // as above
            common::pause();
        }
        KEPT => {
            client.send(Kind::Whole, KEEP as u16, 0);
            die();
        }
        other => panic!("no point {other:?}"),
    }
}

/// Lives until it is at its point. Its client makes one call, in pieces of `raw::LEN` if it is long.
fn server(args: &[String]) {
    let (service, point, node, at) = doomed(args);
    if point == PUT_OFF {
        put_off_and_die(&node, service);
    }
    let heard = Heard::hear(&node, service, || {
        say("ready");
        if point == "door open" {
            // The client may be knocking, or not yet.
            common::pause();
            die();
        }
    });
    at("knock heard");
    let server = heard.answer(&node);
    at("answered");
    let call = server.call(Turn::NONE);
    at("call there");
    let room = layout::room(raw::LEN);
    match point {
        "one way call taken" => {
            assert_eq!(call.kind, Kind::OneWay);
            die();
        }
        "out half written" => {
            server.replies.write(server.start(4096), &[0xab; 2048]).unwrap();
            die();
        }
        "reply stored, no flag" => {
            server.replies.write(server.start(16), &[0; 16]).unwrap();
            die();
        }
        "asked for the next piece" | "next piece there" => {
            assert_eq!(call.kind, Kind::First);
            server.reply(call.turn, Kind::More, 0);
            at("asked for the next piece");
            assert_eq!(server.call(call.turn).kind, Kind::Next);
            die();
        }
        "first piece of the reply sent"
        | "next piece of the reply asked for"
        | "next piece of the reply sent" => {
            let total = (3 * room as u64).to_ne_bytes();
            server.replies.write(layout::REPLY_TOTAL, &total).unwrap();
            server.reply(call.turn, Kind::First, room);
            at("first piece of the reply sent");
            let asked = server.call(call.turn);
            assert_eq!(asked.kind, Kind::More);
            at("next piece of the reply asked for");
            server.reply(asked.turn, Kind::Next, room);
            die();
        }
        "replied" => {
            server.reply(call.turn, Kind::Whole, 0);
            die();
        }
        other => panic!("no point {other:?}"),
    }
}

/// A server that is none of `raw`: its library puts the reply off.
fn put_off_and_die(node: &Node, service: &str) -> ! {
    let (keep, kept) = std::sync::mpsc::channel();
    let keep = Mutex::new(keep);
    let server = Server::builder(service).node(node).raw_program(PROGRAM, 1, move |it, call| {
        assert_eq!(it, KEEP);
        let (call, finished) = call.defer();
        keep.lock().unwrap().send(call).unwrap();
        Ok(finished)
    });
    let _server = server.start().unwrap();
    say("ready");
    let _kept = kept.recv().unwrap();
    die();
}

fn successor(args: &[String]) {
    support::die_with_parent();
    program::serve(args);
}

#[test]
fn second_process() {
    play(&[("client", client), ("server", server), ("successor", successor)]);
}

fn bind(node: &Node, service: &str) -> Binding {
    program::builder(node, service).buffer_len(raw::LEN).connect().expect("binds")
}

#[test]
fn a_client_killed_at_any_named_point_leaves_nothing_and_disturbs_nobody() {
    let watchdog = Watchdog::new("a_client_killed_at_any_named_point");
    for point in CLIENT_POINTS {
        watchdog.step(*point);
        let daemon = Daemon::start();
        let node = daemon.node();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = kept.clone();
        let (holding, held) = std::sync::mpsc::channel();
        let (let_go, go) = std::sync::mpsc::channel::<()>();
        let (holding, go) = (Mutex::new(holding), Mutex::new(go));
        let server = Server::builder("survivor")
            .node(&node)
            .workers(2)
            .raw_program(PROGRAM, 1, move |procedure, call| match procedure {
                HOLD => {
                    let _ = holding.lock().unwrap().send(());
                    let _ = go.lock().unwrap().recv();
                    call.reply(0)?.send()
                }
                KEEP => {
                    let (call, finished) = call.defer();
                    keep.lock().unwrap().push(call);
                    let _ = holding.lock().unwrap().send(());
                    Ok(finished)
                }
                other => dispatch(other, call),
            })
            .start()
            .unwrap();
        let friend = daemon.node();
        let binding = bind(&friend, "survivor");
        reverse(&binding, 6).unwrap();
        let holds = |node: &Node| (node.exports().len(), node.imports().len());
        until("the friend's door is closed", || friend.imports().len() == 1);
        let before = (holds(&node), holds(&friend));

        let mut second = daemon.second("client", &["survivor", point]);
        if ["being served", PUT_OFF].contains(point) {
            second.expect("held");
            held.recv().unwrap();
            second.kill();
            let _ = let_go.send(()); // to who is being served
        } else {
            let status = second.child.wait().unwrap();
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{point}: {status}");
        }
        support::daemon_forgets(&friend, second.pid());
        until(point, || server.bindings() == 1);
        for len in [0usize, 6, 100, 50_000] {
            reverse(&binding, len).unwrap_or_else(|error| panic!("{point}: {error}"));
        }
        // A call that is kept keeps its buffers, even of a client that has gone.
        assert_eq!(kept.lock().unwrap().len(), usize::from([KEPT, PUT_OFF].contains(point)));
        kept.lock().unwrap().clear();
        until(&format!("the server holds what it held: {point}"), || {
            (holds(&node), holds(&friend)) == before
        });
        server.stop();
        assert!(node.exports().is_empty() && node.imports().is_empty(), "{point}");
    }
}

#[test]
fn a_server_killed_at_any_named_point_is_an_error_of_that_call_and_its_successor_answers_the_next()
{
    let watchdog = Watchdog::new("a_server_killed_at_any_named_point");
    for point in SERVER_POINTS {
        watchdog.step(*point);
        let daemon = Daemon::start();
        let node = daemon.node();
        let mut first = daemon.second("server", &["mortal", point]);
        first.expect("ready");
        let builder = program::builder(&node, "mortal").buffer_len(raw::LEN);
        let binding = builder.connect_later().unwrap();
        let in_pieces = ["asked for the next piece", "next piece there"].contains(point);
        let len = if in_pieces { 20_000 } else { 5 };
        let outcome = match *point {
            "door open" => {
                first.go_on();
                first.child.wait().unwrap();
                Ok(()) // nobody was called
            }
            "one way call taken" => binding.request(NULL, 0, 0).and_then(|it| it.send()),
            // The reply's flag was stored: it counts, whatever happens then.
            "replied" => binding.request(NULL, 0, 0).and_then(|it| it.call()?.finish()),
            PUT_OFF => binding.request(KEEP, 0, 0).and_then(|it| it.call()?.finish()),
            "out half written"
            | "first piece of the reply sent"
            | "next piece of the reply asked for"
            | "next piece of the reply sent" => fill(&binding, 1000),
            _ => reverse(&binding, len),
        };
        match (*point, &outcome) {
            // Who sends one way is told nothing; the next call below must not wait for the dead.
            ("door open" | "replied" | "one way call taken", Ok(())) => {}
            ("knock heard" | "answered", Err(CallError::Connect(error))) => {
                assert!(!matches!(**error, ConnectError::TimedOut { .. }), "{point}: {error}");
            }
            // It had answered, and may have been mapped before it died.
            ("answered", Err(CallError::ServerGone { .. })) => {}
            (
                "call there"
                | "out half written"
                | "reply stored, no flag"
                | "asked for the next piece"
                | "next piece there"
                | "first piece of the reply sent"
                | "next piece of the reply asked for"
                | "next piece of the reply sent"
                | PUT_OFF,
                Err(CallError::ServerGone { .. }),
            ) => {}
            _ => panic!("{point}: {outcome:?}"),
        }
        let _ = first.child.wait();
        support::daemon_forgets(&node, first.pid());
        let mut second = daemon.second("successor", &["mortal"]);
        second.expect("ready");
        for len in [5usize, 20_000] {
            reverse(&binding, len).unwrap_or_else(|error| panic!("{point}: {error}"));
        }
        // One buffer each way to the living, and nothing to the dead.
        until("nothing of the dead is left", || {
            node.exports().len() == 1 && node.imports().len() == 1
        });
        second.finish();
    }
}
