//! Calls as futures, on the smallest executor there is.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod executor;
#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use common::{Daemon, PATIENCE, say, second_process as play, until};
use executor::block_on;
use rustix::process::{Pid, Signal, kill_process};
use shrimp_rpc::process::count;
use shrimp_rpc::{Binding, CallError, ConnectError, DispatchError, Server};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use support::Watchdog;
use vmmc::Node;
use vmmc::config::{WaitChoice, WaitPolicy};
use vmmc::counters::index;
use xdr::{Decode, Encode};

const PROGRAM: u32 = 0x2000_0002;
const ECHO: u32 = 1;
const NEVER: u32 = 2;
const LATER: u32 = 3;
/// Its reply is put off, and kept, whatever the client does.
const KEEP: u32 = 4;
/// One way.
const LOG: u32 = 5;

/// All at once, in one thread.
fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(|it| (Box::pin(it), None)).collect();
    block_on(std::future::poll_fn(move |cx| {
        let mut all = true;
        for (future, result) in &mut futures {
            if result.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => all = false,
                }
            }
        }
        if !all {
            return Poll::Pending;
        }
        Poll::Ready(futures.iter_mut().filter_map(|(_, result)| result.take()).collect())
    }))
}

/// Polls once: it is under way, and not done.
fn begin<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) {
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
}

fn serve(args: &[String]) {
    support::die_with_parent();
    let waiting = Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = waiting.clone();
    let all = std::sync::Mutex::new(Vec::new());
    let server = Server::builder(&args[0])
        .raw_program(PROGRAM, 1, move |procedure, call| match procedure {
            ECHO => {
                let mut args = call.args();
                let len = u32::decode(&mut args)?;
                args.finish()?;
                let _ = call.block_mut::<u8>(len)?;
                let mut reply = call.reply(4)?;
                len.encode(&mut reply)?;
                reply.send()
            }
            NEVER => {
                let (call, finished) = call.defer();
                std::thread::spawn(move || {
                    until("the client gives up", || call.context().is_cancelled());
                    println!("SAYS cancelled");
                });
                Ok(finished)
            }
            LATER => {
                let mut args = call.args();
                let number = u32::decode(&mut args)?;
                args.finish()?;
                let (call, finished) = call.defer();
                let mut waiting = waiting.lock().unwrap();
                waiting.push((number, call));
                // Answered only when four are there: they must have been under way together.
                if waiting.len() == 4 {
                    for (number, call) in waiting.drain(..).rev() {
                        let mut reply = call.reply(4)?;
                        (number * 2).encode(&mut reply)?;
                        reply.send()?;
                    }
                }
                Ok(finished)
            }
            KEEP => {
                let (call, finished) = call.defer();
                all.lock().unwrap().push(call);
                Ok(finished)
            }
            LOG => Ok(call.finish_oneway()),
            other => Err(DispatchError::UnknownProcedure(other)),
        })
        .start()
        .expect("serves");
    say("ready");
    common::pause();
    drop(kept);
    server.stop();
}

#[test]
fn second_process() {
    play(&[("serve", serve)]);
}

async fn echo(binding: &Binding, len: usize) -> Result<u32, CallError> {
    let mut data: Vec<u8> = (0..len).map(|i| (i * 3) as u8).collect();
    let expected = data.clone();
    let mut request = binding.request_async(ECHO, 4, len.next_multiple_of(8)).await?;
    (len as u32).encode(&mut request)?;
    request.block(&data)?;
    data.fill(0);
    let mut reply = request.call_async().await?;
    let echoed = u32::decode(&mut reply)?;
    reply.inout(0, &mut data)?;
    assert!(data == expected, "{len} bytes came back changed");
    Ok(echoed)
}

#[test]
fn futures_call_and_are_woken_also_with_calls_in_pieces() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["futures"]);
    server.expect("ready");
    let node = daemon.node();
    let binding = Binding::builder("futures", PROGRAM, 1).node(&node).connect().unwrap();
    for len in [0, 1, 100, 60_000, 70_000, 1_000_000] {
        assert_eq!(block_on(echo(&binding, len)).unwrap() as usize, len);
    }
    for _ in 0..200 {
        let results = join_all((0..20).map(|i| echo(&binding, i * 10)).collect());
        assert!(results.iter().all(Result::is_ok));
    }
    server.finish();
}

#[test]
fn calls_of_one_thread_are_under_way_together() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["together"]);
    server.expect("ready");
    let node = daemon.node();
    let binding = Binding::builder("together", PROGRAM, 1).node(&node).lanes(4).connect().unwrap();
    let later = |number: u32| {
        let binding = &binding;
        async move {
            let mut request = binding.request_async(LATER, 4, 0).await?;
            number.encode(&mut request)?;
            let mut reply = request.call_async().await?;
            Ok::<_, CallError>(u32::decode(&mut reply)?)
        }
    };
    for _ in 0..100 {
        let results = join_all((0..4).map(later).collect());
        let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
        assert_eq!(results, [0, 2, 4, 6]);
    }
    server.finish();
}

#[test]
fn a_future_that_is_dropped_or_late_tells_the_server() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["dropped"]);
    server.expect("ready");
    let node = daemon.node();
    let binding = Binding::builder("dropped", PROGRAM, 1)
        .node(&node)
        .connect_timeout(PATIENCE.unwrap())
        .connect()
        .unwrap();
    let both = [(); 2].map(|()| block_on(binding.request_async(ECHO, 0, 0)).unwrap());
    drop(both);
    let polls = AtomicUsize::new(0);
    block_on(async {
        let mut call = Box::pin(async {
            binding.request_async(NEVER, 0, 0).await?.call_async().await.map(drop)
        });
        // Polled once, then dropped.
        std::future::poll_fn(|cx| {
            polls.fetch_add(1, Ordering::Relaxed);
            assert!(call.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    });
    server.expect("cancelled");
    let late = block_on(async {
        // The other lane is bound already, so that it is sent in any case: the server is to see it.
        binding.set_timeout(Some(Duration::from_millis(5)));
        binding.request_async(NEVER, 0, 0).await?.call_async().await
    });
    assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
    server.expect("cancelled");
    binding.set_timeout(None);
    assert_eq!(block_on(echo(&binding, 10)).unwrap(), 10);
    server.finish();
}

async fn later(binding: &Binding, number: u32) -> Result<(), CallError> {
    let mut request = binding.request_async(LATER, 4, 0).await?;
    number.encode(&mut request)?;
    request.call_async().await.map(drop)
}

async fn call(binding: &Binding, procedure: u32) -> Result<(), CallError> {
    binding.request_async(procedure, 0, 0).await?.call_async().await.map(drop)
}

/// A node whose waits sleep, whatever the environment asks for.
fn node_that_sleeps(daemon: &Daemon) -> Node {
    let mut config = daemon.config();
    config.wait = WaitChoice::Fixed(WaitPolicy::Block);
    Node::builder().config(config).connect().expect("connects")
}

/// Until the helper thread of futures sleeps at the doorbell, after so many sleeps before.
fn until_the_helper_sleeps(node: &Node, before: u64) {
    until("the helper sleeps", || node.counters().get(index::SLEEPS) > before);
}

#[test]
fn a_future_that_waits_for_a_lane_has_a_time_limit() {
    let _watchdog = Watchdog::new("a_future_that_waits_for_a_lane");
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["stuck"]);
    server.expect("ready");
    let node = daemon.node();
    let builder = Binding::builder("stuck", PROGRAM, 1).node(&node).lanes(1);
    let binding = builder.connect_timeout(PATIENCE.unwrap()).connect().unwrap();
    let mut stuck = Box::pin(call(&binding, KEEP));
    begin(&mut stuck);
    binding.set_timeout(Some(Duration::from_millis(5)));
    let late = block_on(call(&binding, ECHO));
    assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
    // Now the lane owes a reply, and is kept for it.
    drop(stuck);
    for _ in 0..2 {
        let late = block_on(call(&binding, ECHO));
        assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
    }
    assert_eq!(node.counters().get(count::BOUND), 1, "a lane that owes a reply was bound anew");
    server.finish();
}

/// The limit of a call is that of binding its lane, too, however long a binding may take by itself.
#[test]
fn a_call_whose_lane_cannot_be_bound_has_a_time_limit() {
    let _watchdog = Watchdog::new("a_call_whose_lane_cannot_be_bound");
    let daemon = Daemon::start();
    let node = daemon.node();
    let builder = Binding::builder("nowhere", PROGRAM, 1).node(&node);
    let binding = builder.timeout(Duration::from_millis(20)).connect_timeout(Duration::MAX);
    let binding = binding.connect_later().unwrap();
    let late = block_on(call(&binding, ECHO));
    assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
    let late = binding.request(ECHO, 0, 0).map(drop);
    assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
}

/// A one-way call that does not fit the buffer waits for its server between two pieces, and no thread does.
#[test]
fn a_one_way_call_in_pieces_keeps_no_thread() {
    let _watchdog = Watchdog::new("a_one_way_call_in_pieces");
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["log"]);
    server.expect("ready");
    let node = daemon.node();
    let builder = Binding::builder("log", PROGRAM, 1).node(&node).lanes(1);
    let binding = builder.connect_timeout(PATIENCE.unwrap()).connect().unwrap();
    let data = vec![7u8; 200_000];
    let log = async {
        let mut request = binding.request_async(LOG, 0, data.len()).await?;
        request.block(&data)?;
        request.send_async().await
    };
    let pid = Pid::from_raw(server.pid() as i32).expect("a process id");
    kill_process(pid, Signal::STOP).unwrap();
    let mut log = Box::pin(log);
    begin(&mut log);
    kill_process(pid, Signal::CONT).unwrap();
    block_on(log).unwrap();
    assert_eq!(block_on(echo(&binding, 10)).unwrap(), 10);
    server.finish();
}

#[test]
fn a_call_without_a_time_limit_takes_away_none_of_a_later_one() {
    let _watchdog = Watchdog::new("a_call_without_a_time_limit");
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["patient"]);
    server.expect("ready");
    let node = node_that_sleeps(&daemon);
    let builder = Binding::builder("patient", PROGRAM, 1).node(&node);
    let binding = builder.connect_timeout(PATIENCE.unwrap()).connect().unwrap();
    let request = block_on(binding.request_async(KEEP, 0, 0)).unwrap();
    drop(block_on(binding.request_async(KEEP, 0, 0)).unwrap()); // its lane is bound
    let before = node.counters().get(index::SLEEPS);
    let mut patient = Box::pin(request.call_async());
    begin(&mut patient);
    until_the_helper_sleeps(&node, before);
    binding.set_timeout(Some(Duration::from_millis(5)));
    let late = block_on(call(&binding, KEEP));
    assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
    server.finish();
}

#[test]
fn a_call_that_was_dropped_takes_away_no_time_limit_of_the_next() {
    let _watchdog = Watchdog::new("a_call_that_was_dropped");
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["forgotten"]);
    server.expect("ready");
    let node = node_that_sleeps(&daemon);
    let builder = Binding::builder("forgotten", PROGRAM, 1).node(&node);
    let binding = builder.connect_timeout(PATIENCE.unwrap()).connect().unwrap();
    let request = block_on(binding.request_async(KEEP, 0, 0)).unwrap();
    drop(block_on(binding.request_async(KEEP, 0, 0)).unwrap()); // its lane is bound
    let before = node.counters().get(index::SLEEPS);
    let mut dropped = Box::pin(request.call_async());
    begin(&mut dropped);
    until_the_helper_sleeps(&node, before);
    // The helper's list is empty, and it still sleeps at the doorbell.
    drop(dropped);
    binding.set_timeout(Some(Duration::from_millis(5)));
    let late = block_on(call(&binding, KEEP));
    assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
    server.finish();
}

/// A binding that failed, or was given up, left those asleep who waited for its lane.
#[test]
fn futures_that_wait_for_a_lane_go_on_when_those_before_them_cannot_bind_anew() {
    let _watchdog = Watchdog::new("futures_that_wait_for_a_lane");
    let daemon = Daemon::start();
    let mut first = daemon.second("serve", &["lost"]);
    first.expect("ready");
    let node = daemon.node();
    let soon = Duration::from_millis(50);
    let builder = Binding::builder("lost", PROGRAM, 1).node(&node).lanes(2).connect_timeout(soon);
    let binding = builder.connect_later().unwrap();
    until("bound", || block_on(echo(&binding, 1)).is_ok());
    first.kill();
    support::daemon_forgets(&node, first.pid());
    // Each is a task of its own, which nobody else's waker wakes.
    std::thread::scope(|scope| {
        let echo = || block_on(echo(&binding, 1));
        let tasks: Vec<_> = (0..12).map(|_| scope.spawn(echo)).collect();
        for task in tasks {
            let failed = task.join().unwrap();
            assert!(matches!(failed, Err(CallError::Connect(_))), "{failed:?}");
        }
    });
    let mut second = daemon.second("serve", &["lost"]);
    second.expect("ready");
    until("bound again", || block_on(echo(&binding, 1)).is_ok());
    second.finish();
}

/// Futures under way when their server is killed: each is told, and the next ones go to its successor.
#[test]
fn futures_that_wait_for_replies_are_told_of_their_servers_death() {
    let _watchdog = Watchdog::new("futures_that_wait_for_replies");
    let daemon = Daemon::start();
    let mut first = daemon.second("serve", &["mortal"]);
    first.expect("ready");
    let node = daemon.node();
    let builder = Binding::builder("mortal", PROGRAM, 1).node(&node).lanes(4);
    let binding = builder.connect_timeout(PATIENCE.unwrap()).connect().unwrap();
    // Four that are answered together have bound all lanes. Now four wait for replies, and four for their lanes.
    for result in join_all((0..4).map(|number| later(&binding, number)).collect()) {
        result.unwrap();
    }
    let mut waiting: Vec<_> = (0..8).map(|_| Box::pin(call(&binding, KEEP))).collect();
    waiting.iter_mut().for_each(begin);
    first.kill();
    for (i, future) in waiting.drain(..4).enumerate() {
        let result = block_on(future);
        assert!(matches!(result, Err(CallError::ServerGone { .. })), "future {i}: {result:?}");
    }
    drop(waiting);
    let mut second = daemon.second("serve", &["mortal"]);
    second.expect("ready");
    until("bound again", || block_on(echo(&binding, 1)).is_ok());
    second.finish();
}

#[test]
fn a_future_dropped_while_it_binds_wakes_who_waits_for_its_lane() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let daemon = Daemon::start();
    let node = daemon.node();
    let builder = Binding::builder("absent", PROGRAM, 1).node(&node).lanes(1);
    let binding = builder.connect_timeout(PATIENCE.unwrap()).connect_later().unwrap();
    let mut binds = Box::pin(call(&binding, ECHO));
    begin(&mut binds);
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    let mut waits = Box::pin(call(&binding, ECHO));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    drop(binds);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
}

/// Connecting kept the thread of the executor until the service was there.
#[test]
fn a_future_that_connects_keeps_no_thread() {
    fn moves<T: Send>(future: T) -> T {
        future
    }
    let _watchdog = Watchdog::new("a_future_that_connects");
    let daemon = Daemon::start();
    let node = daemon.node();
    let builder = Binding::builder("awaited", PROGRAM, 1).node(&node);
    let connect = builder.clone().connect_timeout(PATIENCE.unwrap()).connect_async();
    let mut connect = Box::pin(moves(connect));
    begin(&mut connect); // it is back, and nobody serves yet
    let mut server = daemon.second("serve", &["awaited"]);
    server.expect("ready");
    let binding = block_on(connect).unwrap();
    assert_eq!(block_on(echo(&binding, 10)).unwrap(), 10);
    assert_eq!(node.counters().get(count::BOUND), 1);
    server.finish();
    let failed = block_on(builder.connect_timeout(Duration::from_millis(5)).connect_async());
    assert!(matches!(failed, Err(ConnectError::Service { .. })), "{failed:?}");
}

/// As trouble::who_asks_for_the_server_keeps_no_caller_asleep.
#[test]
fn who_asks_for_the_server_keeps_no_future_asleep() {
    let _watchdog = Watchdog::new("who_asks_for_the_server_keeps_no_future");
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["asked"]);
    server.expect("ready");
    let node = daemon.node();
    let builder = Binding::builder("asked", PROGRAM, 1).node(&node).lanes(1);
    let binding = builder.timeout(PATIENCE.unwrap()).connect().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = binding.server();
            }
        });
        let calls: Result<Vec<_>, _> = (0..2000)
            .map(|_| {
                block_on(async {
                    let mut request = binding.request_async(ECHO, 4, 0).await?;
                    0u32.encode(&mut request)?;
                    request.call_async().await.map(drop)
                })
            })
            .collect();
        done.store(true, Ordering::Relaxed);
        calls.unwrap();
    });
    server.finish();
}
