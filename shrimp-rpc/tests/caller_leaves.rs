//! A handler in `async` code awaits that its caller gives up: it is woken, and polled for no other reason.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod executor;
mod program;
mod raw;
#[path = "../../vmmc/tests/support/mod.rs"]
mod support;

use common::{Daemon, second_process as play, until};
use executor::block_on;
use program::{NULL, PROGRAM, dispatch};
use shrimp_rpc::layout::{self, Kind};
use shrimp_rpc::{Binding, CallError, Server};
use std::future::Future;
use std::sync::{Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use support::Watchdog;
use vmmc::Node;

/// Its handler awaits the end of its caller's patience, and answers then.
const AWAIT: u32 = 90;

/// What such a handler says.
#[derive(Debug, PartialEq)]
enum Said {
    /// It has waited in vain so far.
    Waits,
    /// It was woken; whether the call was cancelled, or its time over.
    Woken { cancelled: bool },
}

/// A server whose handlers say what becomes of them.
fn serve(node: &Node) -> (Server, mpsc::Receiver<Said>) {
    let (tell, said) = mpsc::channel();
    let tell = Mutex::new(tell);
    let server = Server::builder("patient").node(node).raw_program(PROGRAM, 1, move |it, call| {
        if it != AWAIT {
            return dispatch(it, call);
        }
        let tell = tell.lock().unwrap().clone();
        let (call, finished) = call.defer();
        std::thread::spawn(move || {
            let mut end = std::pin::pin!(call.context().cancelled());
            block_on(std::future::poll_fn(|cx| {
                let polled = end.as_mut().poll(cx);
                if polled.is_pending() {
                    tell.send(Said::Waits).unwrap();
                }
                polled
            }));
            let cancelled = call.context().is_cancelled();
            if let Ok(reply) = call.reply(0) {
                let _ = reply.send(); // the client may have gone
            }
            let mut after = std::pin::pin!(call.context().cancelled());
            let polled = after.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, Poll::Ready(()), "once it was answered, too");
            tell.send(Said::Woken { cancelled }).unwrap();
        });
        Ok(finished)
    });
    (server.start().unwrap(), said)
}

/// Calls, and lives until it is killed.
fn client(args: &[String]) {
    support::die_with_parent();
    let binding = Binding::builder(&args[0], PROGRAM, 1).connect().expect("binds");
    let _ = call(&binding);
}

/// Whether the threads that wake such handlers are there, and sleep.
fn is_helper_asleep() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let is_helper = |path: &std::path::Path| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "rpc-cancels\n")
    };
    let tid = |path: std::path::PathBuf| path.file_name()?.to_str()?.parse().ok();
    let helpers = tasks.map(|task| task.path()).filter(|path| is_helper(path)).filter_map(tid);
    let states: Vec<_> = helpers.map(raw::state).collect();
    !states.is_empty() && states.iter().all(|state| *state == Some('S'))
}

fn call(binding: &Binding) -> Result<(), CallError> {
    binding.request(AWAIT, 0, 0)?.call()?.finish()
}

#[test]
fn second_process() {
    play(&[("client", client)]);
}

#[test]
fn a_handler_is_woken_when_its_caller_gives_up_or_has_gone() {
    let watchdog = Watchdog::new("a_handler_is_woken_when_its_caller_gives_up");
    let daemon = Daemon::start();
    let (node, client_node) = (daemon.node(), daemon.node());
    let (server, said) = serve(&node);
    let binding = program::connect(&client_node, "patient");
    let waits = || {
        assert_eq!(said.recv().unwrap(), Said::Waits);
        until("who wakes it sleeps", is_helper_asleep);
    };
    let woken = || loop {
        // Who is woken for nothing waits on.
        match said.recv().unwrap() {
            Said::Waits => {}
            Said::Woken { cancelled } => break assert!(cancelled),
        }
    };
    watchdog.step("another thread cancels");
    let canceller = binding.canceller();
    std::thread::scope(|scope| {
        let called = scope.spawn(|| call(&binding));
        waits();
        while !called.is_finished() {
            canceller.cancel();
            std::thread::yield_now();
        }
        assert!(matches!(called.join().unwrap(), Err(CallError::Cancelled { sent: true })));
    });
    woken();
    watchdog.step("its future is dropped");
    let mut future =
        Box::pin(async { binding.request_async(AWAIT, 0, 0).await?.call_async().await });
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    waits();
    drop(future);
    woken();
    watchdog.step("it is killed");
    let mut second = daemon.second("client", &["patient"]);
    waits();
    second.kill();
    woken();
    watchdog.step("the server ends");
    binding.set_timeout(None);
    std::thread::scope(|scope| {
        let called = scope.spawn(|| call(&binding));
        waits();
        server.stop();
        woken();
        // The handler was asked for no answer in time: the server ended under it, or it came through.
        let _ = called.join().unwrap();
    });
}

/// A client that says how long it waits, and is not there to give up when that is over.
#[test]
fn a_handler_is_woken_when_the_time_of_its_call_is_over() {
    let watchdog = Watchdog::new("a_handler_is_woken_when_the_time_of_its_call_is_over");
    let daemon = Daemon::start();
    let (node, client_node) = (daemon.node(), daemon.node());
    let (server, said) = serve(&node);
    let mut client = raw::Client::bind(&client_node, "patient", 7, PROGRAM);
    watchdog.step("a time limit");
    // On a busy machine the time may be over before the handler begins.
    until("it has waited", || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
        let deadline = (now + Duration::from_millis(80)).as_nanos() as u64;
        client.calls.write(layout::CALL_DEADLINE, &deadline.to_ne_bytes()).unwrap();
        client.send(Kind::Whole, AWAIT as u16, 0);
        client.reply();
        let waits = std::iter::from_fn(|| match said.recv().unwrap() {
            Said::Waits => Some(()),
            Said::Woken { cancelled } => {
                assert!(!cancelled, "nobody gave it up");
                None
            }
        });
        waits.count() > 0
    });
    watchdog.step("others are served");
    client.calls.write(layout::CALL_DEADLINE, &[0; 8]).unwrap();
    client.send(Kind::Whole, NULL as u16, 0);
    client.reply();
    server.stop();
}
