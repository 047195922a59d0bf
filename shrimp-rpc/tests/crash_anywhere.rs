//! `kill -9` of a client and of a server, both of this library, in the middle of anything: the thread that binds, calls, serves
//! or closes is killed before any of its instructions, from the first to the last. And of a client whose server stands there.
//!
//! `crash.rs` kills at the steps of the protocol that have a name; here is all that lies between them.
//! `SHRIMP_RPC_TEST_PLACES` says at how many places of each act (all, if it has fewer).

#![cfg(target_arch = "x86_64")] // breakpoints are the processor's

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod program;
mod stepped;
#[path = "../../vmmc/tests/support/mod.rs"]
mod support;

use common::{Daemon, PATIENCE, Second, pause, say, second_process as play, until};
use program::PROGRAM;
use shrimp_rpc::process::count;
use shrimp_rpc::{
    Binding, CallError, ConnectError, DispatchError, Fault, Finished, Server, ServerCall,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use stepped::{Place, Step, Stepped, mark, this_thread, thread_named};
use support::Watchdog;
use vmmc::Node;
use xdr::{Decode, Encode};

/// Of each buffer, so that pieces are few.
const LEN: usize = 4096;

const CALLS: &[&str] = &[
    "null",
    "small INOUT",
    "bulk INOUT",
    "INOUT in pieces",
    "bulk OUT",
    "OUT in pieces",
    "one way",
];
const BINDING: &str = "binding";
const CLOSING: &str = "closing";
/// Of a server, what another thread of it does then.
const WITHDRAWING: &str = "withdrawing";

const NULL: u32 = 0;
/// Writes the first byte of an INOUT block into its last, and one more into the first.
const INOUT: u32 = 1;
/// Fills an OUT block.
const OUT: u32 = 2;

const RESULT: [u8; 9_000] = [0xa5; 9_000];

/// Handlers of a few instructions: all others are the library's.
fn dispatch(procedure: u32, call: ServerCall<'_>) -> Result<Finished, DispatchError> {
    let mut args = call.args();
    match procedure {
        NULL => call.reply(0)?.send(),
        INOUT => {
            let len = u32::decode(&mut args)?;
            args.finish()?;
            let mut block = call.block_mut::<u8>(len)?;
            let mut first = [0];
            let outside = || Fault::new(1, "outside");
            block.read(0, &mut first).map_err(|_| outside())?;
            block.write(len as usize - 1, &first).map_err(|_| outside())?;
            block.write(0, &[first[0].wrapping_add(1)]).map_err(|_| outside())?;
            call.reply(0)?.send()
        }
        OUT => {
            let len = u32::decode(&mut args)?;
            args.finish()?;
            let mut out = call.out::<u8>(RESULT.len() as u32);
            out.put(&RESULT[..len as usize])?;
            let (distance, len) = out.descriptor();
            let mut reply = call.reply(8)?;
            distance.encode(&mut reply)?;
            len.encode(&mut reply)?;
            reply.send()
        }
        other => Err(DispatchError::UnknownProcedure(other)),
    }
}

/// A call's data, made before it and looked at after it.
struct Act {
    what: &'static str,
    data: Vec<u8>,
}

impl Act {
    fn new(what: &str) -> Act {
        let known = CALLS.iter().chain(&[BINDING, CLOSING, WITHDRAWING]);
        let what = known.copied().find(|known| *known == what).expect("a known act");
        let len = match what {
            "small INOUT" => 24,
            "bulk INOUT" | "bulk OUT" => 3_000,
            "INOUT in pieces" | "OUT in pieces" => 9_000,
            _ => 0,
        };
        Act { what, data: vec![7; len] }
    }

    fn call(&mut self, binding: &Binding) -> Result<(), CallError> {
        let len = self.data.len();
        match self.what {
            "one way" => binding.request(NULL, 0, 0)?.send(),
            what if what.contains("INOUT") => {
                let mut request = binding.request(INOUT, 4, len)?;
                (len as u32).encode(&mut request)?;
                request.block(&self.data)?;
                let mut reply = request.call()?;
                reply.inout(0, &mut self.data)?;
                reply.finish()
            }
            what if what.contains("OUT") => {
                let mut request = binding.request(OUT, 4, 0)?;
                (len as u32).encode(&mut request)?;
                let mut reply = request.call()?;
                reply.out_vec(RESULT.len() as u32, &mut self.data)?;
                reply.finish()
            }
            _ => binding.request(NULL, 0, 0)?.call()?.finish(),
        }
    }

    /// That what came back is right.
    fn check(&self) {
        match &*self.data {
            [] => {}
            [first, middle @ .., last] if self.what.contains("INOUT") => {
                assert!(*first == 8 && *last == 7 && middle.iter().all(|it| *it == 7));
            }
            all => assert_eq!(all, &RESULT[..all.len()]),
        }
    }
}

/// A call with data of its own.
fn call(what: &str, binding: &Binding) -> Result<(), CallError> {
    let mut act = Act::new(what);
    act.call(binding)?;
    act.check();
    Ok(())
}

fn connect(node: &Node, service: &str) -> Result<Binding, ConnectError> {
    program::builder(node, service).buffer_len(LEN).lanes(1).connect()
}

/// Says which thread it is, and stands still once it is traced.
fn stand() {
    say(&format!("thread {}", this_thread()));
    pause();
    mark();
}

/// Makes a file at the path of the third argument, if there is one, when all is done, and the server too.
fn client(args: &[String]) {
    support::die_with_parent();
    let (service, what) = (&*args[0], &*args[1]);
    let done = || {
        if let Some(path) = args.get(2) {
            std::fs::write(path, "").expect("a file");
            pause();
        }
    };
    let node = Node::connect().expect("connects");
    if what == BINDING {
        stand();
        let _binding = connect(&node, service).expect("binds");
        done();
        mark();
    } else {
        let binding = connect(&node, service).expect("binds");
        call(what, &binding).expect("the first call");
        let mut act = Act::new(what);
        stand();
        // What comes to the server after that shows that it is done with it.
        match what {
            CLOSING => {
                drop(binding);
                let _next = args.get(2).map(|_| connect(&node, service).expect("binds again"));
                done();
            }
            _ => {
                act.call(&binding).expect("a call");
                if what == "one way" && args.len() > 2 {
                    call("null", &binding).expect("the next one");
                }
                done();
            }
        }
        mark();
    }
    pause();
}

fn server(args: &[String]) {
    support::die_with_parent();
    let builder = Server::builder(&args[0]).workers(1);
    let server = builder.raw_program(PROGRAM, 1, dispatch).start().expect("serves");
    say("ready");
    pause();
    stand();
    server.stop();
    mark();
    pause();
}

#[test]
fn second_process() {
    play(&[("client", client), ("server", server)]);
}

/// What the processes of one test hold is counted in the other's, too.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Some of all places, evenly, the first and the last among them.
fn some(places: &[Place]) -> impl Iterator<Item = (usize, &Place)> {
    let asked = std::env::var("SHRIMP_RPC_TEST_PLACES");
    let count = asked.map_or(25, |asked| asked.parse().expect("a number")).clamp(2, places.len());
    let last = places.len() - 1;
    (0..count).map(move |i| i * last / (count - 1)).map(|at| (at, &places[at]))
}

/// Mappings and descriptors of buffers and links. What vmmc knows of other processes is its own affair.
fn held(pid: u32) -> [(usize, usize); 2] {
    let now = support::footprint(pid);
    ["region", "link"].map(|what| {
        let name = format!("vmmc-{what} (deleted)");
        let fds = now.fds.get(&format!("memfd:{name}")).copied();
        (now.mappings.get(&name).copied().unwrap_or(0), fds.unwrap_or(0))
    })
}

#[test]
fn a_client_killed_at_any_instruction_leaves_nothing_and_disturbs_nobody() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::start();
    let (node, friend) = (daemon.node(), daemon.node());
    let builder = Server::builder("survivor").node(&node).workers(1);
    let server = builder.raw_program(PROGRAM, 1, dispatch).start().unwrap();
    let witness = connect(&friend, "survivor").unwrap();
    let undisturbed = || {
        for what in ["null", "small INOUT", "INOUT in pieces"] {
            call(what, &witness).expect("the witness is served");
        }
    };
    let all = || {
        (server.bindings(), node.exports().len(), node.imports().len(), held(std::process::id()))
    };
    // The door, the witness's two buffers, mapped by both sides, and their links, both ends of which are here, too.
    let before = (1, 2, 1, [(5, 5), (5, 3)]);

    for what in CALLS.iter().copied().chain([BINDING, CLOSING]) {
        let watchdog = Watchdog::new(what);
        let start = Instant::now();
        let victim = || {
            let mut second = daemon.second("client", &["survivor", what]);
            let tid = second.expect("thread").parse().expect("a number");
            let stepped = Stepped::at_mark(second.pid(), tid, || second.go_on());
            (second, stepped)
        };
        let end = |mut second: Second, stepped: Stepped| {
            stepped.kill();
            second.kill();
            undisturbed();
            support::daemon_forgets(&friend, second.pid());
            until("the server has nothing of the dead", || all() == before);
        };
        let (second, mut stepped) = victim();
        let places = stepped.places(&|| false);
        end(second, stepped);
        let (mut killed, mut reached) = (0, 0);
        for (index, place) in some(&places) {
            watchdog.step(format!("{what}: instruction {index} of {}: {place}", places.len()));
            let (second, mut stepped) = victim();
            reached += usize::from(stepped.run_to(place, &|| false) == Step::Done);
            undisturbed(); // while it stands there, too
            end(second, stepped);
            killed += 1;
        }
        println!(
            "{what}: {} instructions, {reached} of {killed} reached, {:?}",
            places.len(),
            start.elapsed()
        );
        assert!(2 * reached > killed, "another way each time");
    }
    server.stop();
    assert!(node.exports().is_empty() && node.imports().is_empty());
    support::nothing_in_dev_shm();
}

/// A client that is killed while its server is in the middle of binding it, serving it, or forgetting it; the server then goes on.
#[test]
fn a_client_killed_while_its_server_is_anywhere_leaves_nothing_and_disturbs_nobody() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::start();
    let friend = daemon.node();
    let mut server = daemon.second("server", &["patient"]);
    server.expect("ready");
    let pid = server.pid();
    let witness = connect(&friend, "patient").unwrap();
    let undisturbed = || {
        for what in ["null", "small INOUT", "INOUT in pieces"] {
            call(what, &witness).expect("the witness is served");
        }
    };
    undisturbed();
    // The door, the witness's two buffers and the link to one; of the other's nothing is mapped twice once it is bound.
    let before = [(3, 3), (2, 1)];
    until("the server is done with what binding took", || held(pid) == before);
    let dir = tempfile::tempdir().unwrap();

    for what in CALLS.iter().copied().chain([BINDING, CLOSING]) {
        let watchdog = Watchdog::new(what);
        let start = Instant::now();
        let of_acceptor = [BINDING, CLOSING].contains(&what);
        let thread = if of_acceptor { "rpc-accept" } else { "rpc-worker-0" };
        let mut rounds = 0;
        let mut one = |come: &mut dyn FnMut(&mut Stepped, &dyn Fn() -> bool)| {
            rounds += 1;
            let done = dir.path().join(format!("{what} {rounds}"));
            let mut client = daemon.second("client", &["patient", what, done.to_str().unwrap()]);
            client.expect("thread");
            support::until_asleep(pid);
            let mut stepped = Stepped::anywhere(pid, thread_named(pid, thread));
            client.go_on();
            come(&mut stepped, &|| done.exists());
            let dead = client.pid();
            client.kill();
            until("the daemon knows", || {
                friend.snapshot().unwrap().clients.iter().all(|it| it.peer.pid != dead)
            });
            stepped.let_go();
            undisturbed();
            let let_go = Instant::now();
            loop {
                // Before it sleeps, its acceptor may be about to begin with a knock of the dead one.
                support::until_asleep(pid);
                let now = held(pid);
                if now == before {
                    break;
                }
                let patient = let_go.elapsed() < PATIENCE.unwrap_or_default();
                assert!(patient, "{what}, round {rounds}: it holds {now:?}, before {before:?}");
            }
        };
        watchdog.step(format!("{what}: the whole of it"));
        let mut places = Vec::new();
        one(&mut |stepped, is_over| places = stepped.places(is_over));
        let (mut killed, mut reached) = (0, 0);
        for (index, place) in some(&places) {
            watchdog.step(format!("{what}: instruction {index} of {}: {place}", places.len()));
            one(&mut |stepped, is_over| {
                reached += usize::from(stepped.run_to(place, is_over) == Step::Done);
            });
            killed += 1;
        }
        println!(
            "{what}: {} instructions, {reached} of {killed} reached, {:?}",
            places.len(),
            start.elapsed()
        );
        assert!(2 * reached > killed, "another way each time");
    }
    server.finish();
    support::nothing_in_dev_shm();
}

/// What a client may be told when its server is killed.
fn is_clear(outcome: &Result<(), CallError>) -> bool {
    match outcome {
        // The reply was there.
        Ok(()) | Err(CallError::ServerGone { .. } | CallError::ServerEnding) => true,
        Err(CallError::Connect(error)) => !matches!(**error, ConnectError::TimedOut { .. }),
        Err(_) => false,
    }
}

#[test]
fn a_server_killed_at_any_instruction_is_a_clear_error_and_its_successor_answers() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::start();
    let (node, other) = (daemon.node(), daemon.node());
    let builder = program::builder(&node, "mortal").buffer_len(LEN).lanes(1);
    let binding = builder.connect_later().unwrap();
    let next = || {
        let mut second = daemon.second("server", &["mortal"]);
        second.expect("ready");
        second
    };
    let mut first = next();

    for what in CALLS.iter().copied().chain([BINDING, CLOSING, WITHDRAWING]) {
        let watchdog = Watchdog::new(what);
        let start = Instant::now();
        // Lets a client do that, a thread of the server come somewhere, and kills it there.
        let mut one = |come: &mut dyn FnMut(&mut Stepped, &dyn Fn() -> bool)| {
            // The successor of the one before answers the same client.
            call(what, &binding).unwrap_or_else(|error| panic!("{what}: {error}"));
            until("nothing of the dead is left", || {
                node.exports().len() == 1 && node.imports().len() == 1 && other.exports().is_empty()
            });
            let mut stepped = server_stands(&mut first, what);
            let is_late = [BINDING, CLOSING, WITHDRAWING].contains(&what);
            let over = AtomicBool::new(false);
            let sent = node.counters().get(count::CALLS);
            std::thread::scope(|scope| {
                let caller = scope.spawn(|| {
                    let outcome = match what {
                        BINDING => connect(&other, "mortal").map(drop).map_err(CallError::from),
                        // The second call is answered when the first one is done.
                        "one way" => call(what, &binding).and_then(|()| call("null", &binding)),
                        _ => call(what, &binding),
                    };
                    over.store(true, Ordering::Release);
                    outcome
                });
                if !is_late {
                    until("the call was sent", || node.counters().get(count::CALLS) > sent);
                }
                // Who closes does not do that for the caller, and comes to an end.
                let waits = ![CLOSING, WITHDRAWING].contains(&what);
                come(&mut stepped, &|| waits && over.load(Ordering::Acquire));
                stepped.kill();
                first.kill();
                support::daemon_forgets(&node, first.pid());
                // Who was in a call is told at once; who comes late, binds, or calls again may have to wait for the successor.
                if is_late || what == "one way" {
                    first = next();
                    caller.join().unwrap()
                } else {
                    let outcome = caller.join().unwrap();
                    first = next();
                    outcome
                }
            })
        };
        watchdog.step(format!("{what}: the whole of it"));
        let mut places = Vec::new();
        let outcome = one(&mut |stepped, is_over| places = stepped.places(is_over));
        assert!(is_clear(&outcome), "{what}: {outcome:?}");
        let (mut killed, mut reached, mut answered) = (0, 0, 0);
        for (index, place) in some(&places) {
            watchdog.step(format!("{what}: instruction {index} of {}: {place}", places.len()));
            let outcome = one(&mut |stepped, is_over| {
                reached += usize::from(stepped.run_to(place, is_over) == Step::Done);
            });
            assert!(
                is_clear(&outcome),
                "{what}, {index} of {}, {place}: {outcome:?}",
                places.len()
            );
            killed += 1;
            answered += usize::from(outcome.is_ok());
        }
        println!(
            "{what}: {} instructions, {reached} of {killed} reached, {answered} answered, {:?}",
            places.len(),
            start.elapsed()
        );
        assert!(2 * reached > killed, "another way each time");
    }
    drop(first);
    support::nothing_in_dev_shm();
}

/// The thread of a server that has to do with that, where it sleeps, or begins to close.
fn server_stands(server: &mut Second, what: &str) -> Stepped {
    let pid = server.pid();
    let asleep = |name| {
        support::until_asleep(pid);
        Stepped::anywhere(pid, thread_named(pid, name))
    };
    match what {
        CLOSING | WITHDRAWING => {
            server.go_on();
            let tid = server.expect("thread").parse().expect("a number");
            if what == CLOSING {
                return Stepped::at_mark(pid, tid, || server.go_on());
            }
            let stepped = asleep("rpc-accept");
            server.go_on();
            stepped
        }
        BINDING => asleep("rpc-accept"),
        _ => asleep("rpc-worker-0"),
    }
}
