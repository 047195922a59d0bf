//! Generated Rust stubs over the real runtime: a client and a server in two processes.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
#[rustfmt::skip] // it is of another edition, and is formatted there
mod support;

use common::{say, second_process as play, Daemon, PATIENCE};
use rpc_idl_tests::shrimp::*;
use rustix::process::{kill_process, Pid, Signal};
use shrimp_rpc::process::count;
use shrimp_rpc::{Binding, Bulk, BulkMut, BulkOut, CallError, Context, Fault, Server};
use std::future::{poll_fn, Future as _};
use std::task::Poll;
use std::time::Duration;

struct Kv;

impl KvV1 for Kv {
    fn put(&self, _: &Context, key: String, value: Bulk<'_, u8>) -> Result<bool, Fault> {
        Ok(key == "the key" && value.to_vec().is_ok_and(|bytes| bytes == b"bytes"))
    }

    fn get(&self, _: &Context, key: String, value: &mut BulkOut<'_, u8>) -> Result<Status, Fault> {
        if key != "there" {
            return Ok(Status::Missing);
        }
        value.put(&[7; 100_000]).map_err(|_| Fault::new(1, "no room"))?;
        Ok(Status::Ok)
    }

    fn scale(&self, _: &Context, by: f64, m: &mut BulkMut<'_, f64>) -> Result<(), Fault> {
        for i in 0..m.len() {
            let Some(Ok(x)) = m.get(i) else { return Err(Fault::new(2, "outside")) };
            m.set(i, x * by).map_err(|_| Fault::new(2, "outside"))?;
        }
        Ok(())
    }

    fn divide(&self, _: &Context, a: i32, b: i32) -> Result<DivideReply, Fault> {
        if b == 0 {
            return Err(Fault::new(3, "division by zero"));
        }
        Ok(DivideReply { result: a / b, rest: a % b })
    }

    fn log(&self, _: &Context, _: String) -> Result<(), Fault> {
        Ok(())
    }

    fn list(&self, _: &Context, entries: Vec<Entry>) -> Result<Answer, Fault> {
        Ok(if entries.is_empty() {
            Answer::Default(Status::Full, "nothing".to_owned())
        } else {
            Answer::Ok(entries.into_iter().rev().collect())
        })
    }

    fn points(
        &self,
        _: &Context,
        p: Bulk<'_, Point>,
        q: &mut BulkOut<'_, Point>,
        fixed: &mut BulkMut<'_, i32>,
        _: &mut BulkMut<'_, i32>,
    ) -> Result<(), Fault> {
        let mut points = p.to_vec().map_err(|_| Fault::new(4, "no points"))?;
        points.iter_mut().for_each(|point| point.x += point.y);
        q.put(&points).map_err(|_| Fault::new(4, "no room"))?;
        fixed.set(99, points.len() as i32).map_err(|_| Fault::new(4, "outside"))
    }

    fn turn(
        &self,
        _: &Context,
        numbers: &mut [i64],
        p: &mut [Point],
        fixed: &mut [i32],
    ) -> Result<i64, Fault> {
        numbers.reverse();
        p.reverse();
        fixed.reverse();
        match numbers.first() {
            Some(0) => Err(Fault::new(6, "and what was changed does not come back")),
            _ => Ok(numbers.iter().sum()),
        }
    }

    fn copy(&self, _: &Context, a: Vec<u8>) -> Result<(), Fault> {
        if a == b"copy" {
            Ok(())
        } else {
            Err(Fault::new(5, "another one"))
        }
    }

    fn later(
        &self,
        n: Num,
        m: Maybe,
        mut x: Vec<i64>,
        t: Tree,
        node: Node,
        replier: KvV1LaterReplier,
    ) {
        std::thread::spawn(move || {
            x.reverse();
            let result = Big {
                data: vec![1; 10_000],
                many: vec![t.children.len() as i32; 5000],
                c: [1, 2, 3, 4],
                s: -5,
                u: vec![200],
                e: BigE::B,
                f: if n == Num::Case1(6) { 0.5 } else { 0.0 },
            };
            let d = vec![f64::from(node.v)];
            let _ = replier.send(LaterResults { result, m, x, d });
        });
    }

    fn r#type(&self, _: &Context, r#type: i32, request_: String) -> Result<(), Fault> {
        let text = if request_ == "as asked" { "as asked" } else { "other" };
        Err(Fault::new(r#type as u32, text))
    }
}

/// The same in `async` code, which owns arguments and results.
struct Slow;

impl KvV1Async for Slow {
    async fn put(&self, _: &Context, key: String, value: Vec<u8>) -> Result<bool, Fault> {
        later().await;
        Ok(key == "the key" && value == b"bytes")
    }

    async fn get(&self, _: &Context, key: String) -> Result<GetResults, Fault> {
        later().await;
        let (result, value) = match &*key {
            "there" => (Status::Ok, vec![7; 100_000]),
            "too long" => (Status::Ok, vec![7; 20 << 20]),
            _ => (Status::Missing, Vec::new()),
        };
        Ok(GetResults { result, value })
    }

    async fn scale(&self, _: &Context, by: f64, m: Vec<f64>) -> Result<Vec<f64>, Fault> {
        later().await;
        Ok(m.into_iter().map(|x| x * by).collect())
    }

    async fn divide(&self, _: &Context, a: i32, b: i32) -> Result<DivideReply, Fault> {
        later().await;
        if b == 0 {
            return Err(Fault::new(3, "division by zero"));
        }
        Ok(DivideReply { result: a / b, rest: a % b })
    }

    async fn log(&self, context: &Context, text: String) -> Result<(), Fault> {
        later().await;
        say(&format!("logged {text} for {}", context.peer().pid));
        Ok(())
    }

    async fn list(&self, context: &Context, entries: Vec<Entry>) -> Result<Answer, Fault> {
        later().await;
        if entries.is_empty() {
            tokio::select! {
                () = context.cancelled() => say("the caller has given up"),
                () = std::future::pending() => {}
            }
        }
        Ok(Answer::Ok(entries.into_iter().rev().collect()))
    }

    async fn points(
        &self,
        _: &Context,
        p: Vec<Point>,
        mut fixed: Vec<i32>,
    ) -> Result<PointsResults, Fault> {
        later().await;
        fixed[99] = p.len() as i32;
        Ok(PointsResults { q: p, fixed, ofixed: vec![2; 100] })
    }

    async fn turn(
        &self,
        _: &Context,
        mut numbers: Vec<i64>,
        mut p: Vec<Point>,
        mut fixed: Vec<i32>,
    ) -> Result<TurnResults, Fault> {
        numbers.reverse();
        p.reverse();
        fixed.reverse();
        match numbers.first() {
            Some(0) => Err(Fault::new(6, "and what was changed does not come back")),
            _ => Ok(TurnResults { result: numbers.iter().sum(), numbers, p, fixed }),
        }
    }

    async fn copy(&self, _: &Context, a: Vec<u8>) -> Result<(), Fault> {
        assert_eq!(a, b"copy", "a panic of a task is its executor's");
        Ok(())
    }

    async fn later(
        &self,
        _: &Context,
        _: Num,
        m: Maybe,
        mut x: Vec<i64>,
        t: Tree,
        node: Node,
    ) -> Result<LaterResults, Fault> {
        later().await;
        x.reverse();
        let result = Big {
            // One element too many: it does not fit the interface.
            data: vec![1; if node.v < 0 { 10_001 } else { 10_000 }],
            many: vec![t.children.len() as i32; 5000],
            c: [1, 2, 3, 4],
            s: -5,
            u: vec![200],
            e: BigE::B,
            f: 0.0,
        };
        Ok(LaterResults { result, m, x, d: vec![f64::from(node.v)] })
    }

    async fn r#type(&self, _: &Context, r#type: i32, request_: String) -> Result<(), Fault> {
        later().await;
        Err(Fault::with_text(r#type as u32, request_))
    }
}

/// Is not ready at once: another task runs first.
async fn later() {
    tokio::task::yield_now().await;
}

fn serve_async(args: &[String]) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    let runtime = runtime.expect("threads");
    let handle = runtime.handle().clone();
    let service = KvV1AsyncService::new(Slow, move |task| drop(handle.spawn(task)));
    let server = Server::builder(&args[0]).program(service).start().expect("serves");
    say("ready");
    common::pause();
    server.stop();
}

fn serve(args: &[String]) {
    let server = Server::builder(&args[0]).program(KvV1Service(Kv)).start().expect("serves");
    say("ready");
    common::pause();
    server.stop();
}

/// All of an async client's life, on an executor.
fn connect_async(args: &[String]) {
    let executor = tokio::runtime::Builder::new_current_thread().build().expect("an executor");
    executor.block_on(async {
        let kv = KvV1AsyncClient::connect(&args[0]).await.expect("binds");
        assert_eq!(kv.divide(7, 2).await.expect("answered").rest, 1);
    });
    say("divided");
}

#[test]
fn second_process() {
    play(&[("serve", serve), ("serve_async", serve_async), ("connect_async", connect_async)]);
}

fn binding(daemon: &Daemon) -> Binding {
    Binding::builder("kv", kv_v1::PROGRAM, kv_v1::VERSION)
        .node(&daemon.node())
        .connect_timeout(PATIENCE.expect("there is one"))
        .connect()
        .expect("binds")
}

fn bound(daemon: &Daemon) -> KvV1Client {
    KvV1Client::new(binding(daemon))
}

/// F1: a real RPC, with nested structs, arrays, strings, IN, OUT and INOUT.
#[test]
fn every_construct_goes_there_and_back() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["kv"]);
    server.expect("ready");
    let kv = bound(&daemon);

    assert!(kv.put("the key", b"bytes").expect("answered"));
    assert!(!kv.put("another", b"").expect("answered"));
    assert!(matches!(kv.put(&"x".repeat(65), b""), Err(CallError::Encode(_))));

    let mut value = vec![1];
    assert_eq!(kv.get("there", &mut value).expect("answered"), Status::Ok);
    assert_eq!(value, [7; 100_000]);
    assert_eq!(kv.get("gone", &mut value).expect("answered"), Status::Missing);
    assert_eq!(value, []);

    let mut m: Vec<f64> = (0..65_536).map(f64::from).collect();
    kv.scale(0.5, &mut m).expect("answered");
    assert!(m.iter().enumerate().all(|(i, x)| *x == i as f64 / 2.0));

    let DivideReply { result, rest } = kv.divide(17, -5).expect("answered");
    assert_eq!((result, rest), (-3, 2));
    match kv.divide(1, 0) {
        Err(CallError::Fault(fault)) => assert_eq!(fault.text(), "division by zero"),
        other => panic!("{other:?}"),
    }
    kv.log("a line").expect("sent");

    let entry = |n: u64| Entry { name: format!("e{n}"), size: n };
    let entries: Vec<Entry> = (0..1000).map(entry).collect();
    let reversed = entries.iter().rev().cloned().collect();
    assert_eq!(kv.list(&entries).expect("answered"), Answer::Ok(reversed));
    let nothing = Answer::Default(Status::Full, "nothing".to_owned());
    assert_eq!(kv.list(&[]).expect("answered"), nothing);

    let points = [Point { x: 1.0, y: 2.0, tag: [3, 4, 5] }; 3];
    let (mut q, mut fixed, mut other) = (Vec::new(), [1; 100], [1; 100]);
    kv.points(&points, &mut q, &mut fixed, &mut other).expect("answered");
    assert_eq!(q, [Point { x: 3.0, y: 2.0, tag: [3, 4, 5] }; 3]);
    assert_eq!((fixed[98], fixed[99], other), (1, 3, [0; 100]));
    kv.copy(b"copy").expect("answered");

    let mut numbers: Vec<i64> = (1..=5000).collect();
    let mut p =
        [Point { x: 1.0, y: 2.0, tag: [3, 4, 5] }, Point { x: 6.0, y: 7.0, tag: [8, 9, 10] }];
    let mut fixed: [i32; 100] = std::array::from_fn(|i| i as i32);
    assert_eq!(kv.turn(&mut numbers, &mut p, &mut fixed).expect("answered"), 12_502_500);
    assert!((1..=5000).rev().eq(numbers.iter().copied()));
    assert!(p[0].x == 6.0 && p[1].tag == [3, 4, 5] && fixed[0] == 99);
    let mut numbers = [7, 0];
    let refused = kv.turn(&mut numbers, &mut p[..1], &mut fixed);
    assert!(matches!(refused, Err(CallError::Fault(fault)) if fault.number() == 6));
    assert!(numbers == [7, 0] && p[0].x == 6.0 && fixed[0] == 99);

    let (mut x, mut d) = ((0..5000).collect::<Vec<i64>>(), Vec::new());
    let tree = Tree { v: 1, children: vec![Tree { v: 2, children: Vec::new() }; 3] };
    let node = Node { left: None, right: None, v: 9 };
    let quad = Maybe::True(xdr::Quad(1 << 100 | 1));
    let later =
        kv.later(&Num::Case1(6), &quad, &mut x, &mut d, &tree, &node).expect("answered later");
    assert_eq!((later.m, later.result.f, later.result.many[4999]), (quad, 0.5, 3));
    assert_eq!((x[0], x[4999], &d[..]), (4999, 0, &[9.0][..]));

    match kv.r#type(12, "as asked") {
        Err(CallError::Fault(fault)) => {
            assert_eq!((fault.number(), fault.text()), (12, "as asked"))
        }
        other => panic!("{other:?}"),
    }
    server.finish();
}

#[test]
fn bulk_data_is_written_and_read_where_it_lies() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["kv"]);
    server.expect("ready");
    let kv = bound(&daemon);

    let put = kv.put_in_place("the key", 5, |mut value| value.write(0, b"bytes").expect("fits"));
    assert!(put.expect("answered"));
    let mut value = Vec::new();
    let get = kv.get_in_place("there", |out| value = out.to_vec().expect("bytes"));
    assert_eq!(get.expect("answered"), Status::Ok);
    assert_eq!(value, [7; 100_000]);

    for len in [3, 65_536] {
        let write = |mut m: BulkMut<'_, f64>| {
            for i in 0..m.len() {
                m.set(i, i as f64).expect("inside");
            }
        };
        let mut right = 0;
        let read = |m: Bulk<'_, f64>| {
            right = (0..m.len()).filter(|i| m.get(*i) == Some(Ok(*i as f64 / 2.0))).count();
        };
        kv.scale_in_place(0.5, len, write, read).expect("answered");
        assert_eq!(right, len);
    }
    let too_long = kv.scale_in_place(0.5, 65_537, |_| (), |_| ());
    assert!(matches!(too_long, Err(CallError::Encode(_))), "{too_long:?}");

    let (mut q_first, mut fixed_ends, mut other) = (None, None, Vec::new());
    kv.points_in_place(
        2,
        |mut p| p.fill(Point { x: 1.0, y: 2.0, tag: [3, 4, 5] }),
        |q| q_first = q.get(0),
        |mut fixed| fixed.fill(8),
        |fixed| fixed_ends = Some((fixed.get(0), fixed.get(99), fixed.len())),
        |ofixed| other = ofixed.to_vec().expect("numbers"),
    )
    .expect("answered");
    assert_eq!(q_first, Some(Ok(Point { x: 3.0, y: 2.0, tag: [3, 4, 5] })));
    assert_eq!(fixed_ends, Some((Some(Ok(8)), Some(Ok(2)), 100)));
    assert_eq!(other, [0; 100]);
    server.finish();
}

#[test]
fn an_async_client_connects_by_name() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["kv"]);
    server.expect("ready");
    let mut client = daemon.second("connect_async", &["kv"]);
    client.expect("divided");
    client.finish();
    server.finish();
}

/// A stopped server answers none of these; a client's limit is no other's.
#[test]
fn a_generated_client_has_a_time_limit_of_its_own() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve", &["kv"]);
    server.expect("ready");
    let kv = bound(&daemon);
    let executor = tokio::runtime::Builder::new_current_thread().build().expect("an executor");
    let soon = Duration::from_millis(20);
    let hurried = kv.with_timeout(soon);
    let hurried_async = KvV1AsyncClient::new(kv.binding().clone()).with_timeout(soon);
    let pid = Pid::from_raw(server.pid() as i32).expect("a process id");
    kill_process(pid, Signal::STOP).expect("it lives");
    support::until_stopped(server.pid()); // not at once: it might still answer
    let late = |result: Result<DivideReply, CallError>| match result {
        Err(CallError::TimedOut { after, .. }) => assert_eq!(after, soon),
        other => panic!("{other:?}"),
    };
    late(hurried.divide(7, 2));
    late(executor.block_on(hurried_async.divide(7, 2)));
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| kv.divide(7, 2));
        late(hurried.clone().divide(7, 2));
        kill_process(pid, Signal::CONT).expect("it lives");
        assert_eq!(patient.join().expect("no panic").expect("answered").rest, 1);
    });
    server.finish();
}

/// `async` on both sides, and an executor that knows nothing of us.
#[test]
fn every_construct_goes_there_and_back_between_async_client_and_server() {
    let daemon = Daemon::start();
    let mut server = daemon.second("serve_async", &["kv"]);
    server.expect("ready");
    let kv = KvV1AsyncClient::new(binding(&daemon));
    let executor = tokio::runtime::Builder::new_current_thread().build().expect("an executor");
    executor.block_on(async {
        assert!(kv.put("the key", b"bytes").await.expect("answered"));
        assert!(matches!(kv.put(&"x".repeat(65), b"").await, Err(CallError::Encode(_))));
        let mut value = vec![1];
        assert_eq!(kv.get("there", &mut value).await.expect("answered"), Status::Ok);
        assert_eq!(value, [7; 100_000]);
        let mut m: Vec<f64> = (0..65_536).map(f64::from).collect();
        kv.scale(0.5, &mut m).await.expect("answered");
        assert!(m.iter().enumerate().all(|(i, x)| *x == i as f64 / 2.0));

        // Calls at a time over one client.
        let (one, other) = tokio::join!(kv.divide(17, -5), kv.divide(7, 2));
        assert_eq!((one.expect("answered").result, other.expect("answered").rest), (-3, 1));
        match kv.divide(1, 0).await {
            Err(CallError::Fault(fault)) => assert_eq!(fault.text(), "division by zero"),
            other => panic!("{other:?}"),
        }
        kv.log("a line").await.expect("sent");

        let entries: Vec<Entry> =
            (0..1000).map(|n| Entry { name: format!("e{n}"), size: n }).collect();
        let reversed = entries.iter().rev().cloned().collect();
        assert_eq!(kv.list(&entries).await.expect("answered"), Answer::Ok(reversed));

        let points = [Point { x: 1.0, y: 2.0, tag: [3, 4, 5] }; 3];
        let (mut q, mut fixed, mut other) = (Vec::new(), [1; 100], [1; 100]);
        kv.points(&points, &mut q, &mut fixed, &mut other).await.expect("answered");
        assert_eq!((&q[..], fixed[98], fixed[99], other), (&points[..], 1, 3, [2; 100]));

        let (mut x, mut d) = ((0..5000).collect::<Vec<i64>>(), Vec::new());
        let tree = Tree { v: 1, children: vec![Tree { v: 2, children: Vec::new() }; 3] };
        let node = |v| Node { left: None, right: None, v };
        let (kind, quad) = (Num::Case1(6), Maybe::True(xdr::Quad(1 << 100 | 1)));
        let later = kv.later(&kind, &quad, &mut x, &mut d, &tree, &node(9)).await;
        let later = later.expect("answered");
        assert_eq!((&later.m, x[0], &d[..]), (&quad, 4999, &[9.0][..]));

        // What a task returns and the interface does not allow, as of a blocking server; a task that panics.
        let bad = kv.later(&kind, &quad, &mut x, &mut d, &tree, &node(-1)).await;
        assert!(matches!(bad, Err(CallError::BadResults { .. })), "{bad:?}");
        let too_long = kv.get("too long", &mut value).await;
        assert!(matches!(too_long, Err(CallError::BadResults { .. })), "{too_long:?}");
        match kv.copy(b"other").await {
            Err(CallError::Fault(fault)) => assert_eq!(fault.number(), Fault::PANICKED),
            other => panic!("{other:?}"),
        }
        match kv.r#type(12, "as asked").await {
            Err(CallError::Fault(fault)) => {
                assert_eq!((fault.number(), fault.text()), (12, "as asked"));
            }
            other => panic!("{other:?}"),
        }
        // Given up when it has been sent, the server may be working on it; the client goes on.
        let sent = || kv.binding().node().counters().get(count::CALLS);
        let before = sent();
        {
            let mut list = std::pin::pin!(kv.list(&entries));
            let _ = poll_fn(|cx| Poll::Ready(list.as_mut().poll(cx).is_ready())).await;
        }
        assert_eq!(sent(), before + 1);
        assert!(kv.put("the key", b"bytes").await.expect("answered"));
    });
    server.expect(&format!("logged a line for {}", std::process::id()));
    // A task that waits for nothing else hears of it.
    executor.block_on(async {
        let mut list = std::pin::pin!(kv.list(&[]));
        let _ = poll_fn(|cx| Poll::Ready(list.as_mut().poll(cx).is_ready())).await;
    });
    server.expect("the caller has given up");
    server.finish();
}

/// Types that contain each other are encoded and decoded like those that contain themselves.
#[test]
fn types_that_contain_each_other_come_back_as_they_were() {
    use xdr::{Decode as _, Encode as _};
    let inner = Work { name: "inner".into(), first: None };
    let empty = Step { sub: None, more: Vec::new() };
    let step = Step { sub: Some(Box::new(inner)), more: vec![empty; 2] };
    let work = Work { name: "outer".into(), first: Some(Box::new(step)) };
    let mut writer = xdr::Writer::<xdr::Network>::new();
    work.encode(&mut writer).unwrap();
    let bytes = writer.into_bytes();
    let mut reader = xdr::Reader::<xdr::Network>::new(&bytes);
    assert_eq!(Work::decode(&mut reader), Ok(work));
    let nested = |depth| {
        let mut step = Step { sub: None, more: Vec::new() };
        for _ in 0..depth {
            let work = Work { name: String::new(), first: Some(Box::new(step)) };
            step = Step { sub: Some(Box::new(work)), more: Vec::new() };
        }
        let mut writer = xdr::Writer::<xdr::Network>::new();
        step.encode(&mut writer).unwrap();
        Step::decode(&mut xdr::Reader::<xdr::Network>::new(&writer.into_bytes())).is_ok()
    };
    assert!(nested(30) && !nested(1000), "as deep as a stack allows, and no deeper");
}
