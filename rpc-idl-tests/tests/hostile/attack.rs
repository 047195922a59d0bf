//! A client that keeps to no rule, beside one that keeps to all.

use super::client::{large, CALLS};
use super::values::{mutate, nasty, Call};
use crate::common::{until, Daemon, PATIENCE};
use crate::raw;
use rpc_idl_tests::hostile::{hostile_v1, HostileV1Client};
use rpc_idl_tests::random::Random;
use shrimp_rpc::layout::{self, FlagWord, Kind, Status};
use shrimp_rpc::{Binding, Fault};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vmmc::Node;
use xdr::{Little, Reader, Source};

/// A client that speaks the bare protocol.
struct Hostile<'a> {
    node: &'a Node,
    service: &'a str,
    client: raw::Client,
    r: Random,
    /// What was asked for last.
    procedure: u32,
    /// Requests that were taken, and that were not.
    taken: Cell<u32>,
    refused: Cell<u32>,
}

/// Fewer answers of a kind do not show that something was tried.
const FEW: u32 = 20;

/// Numbers of the buffers.
static NUMBER: AtomicU32 = AtomicU32::new(1000);

fn bind(node: &Node, service: &str) -> raw::Client {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    raw::Client::bind(node, service, number, hostile_v1::PROGRAM)
}

impl<'a> Hostile<'a> {
    fn new(node: &'a Node, service: &'a str, seed: u64) -> Hostile<'a> {
        let (client, r) = (bind(node, service), Random::new(seed));
        let (taken, refused) = (Cell::default(), Cell::default());
        Hostile { node, service, client, r, procedure: 0, taken, refused }
    }

    /// Sends a request, in one or in several pieces; what was answered, if the binding was not ended.
    fn send(&mut self, procedure: u32, message: &[u8], one_way: bool) -> Option<FlagWord> {
        self.procedure = procedure;
        let room = layout::room(self.client.calls.len());
        let pieces = message.len() > room || !message.is_empty() && self.r.below(2) == 0;
        if !pieces {
            self.write(message);
            let kind = if one_way { Kind::OneWay } else { Kind::Whole };
            self.client.send(kind, procedure as u16, message.len());
            return self.client.outcome(std::thread::yield_now);
        }
        // Pieces are put together in memory that is as long as they are, so that sanitizers see where it ends.
        let total = (message.len() as u64).to_ne_bytes();
        self.client.calls.write(layout::CALL_TOTAL, &total).expect("bound");
        let mut kind = if one_way { Kind::FirstOneWay } else { Kind::First };
        let len = if self.r.below(8) == 0 { room / 2 / 8 * 8 } else { room };
        for piece in message.chunks(len) {
            self.write(piece);
            self.client.send(kind, procedure as u16, piece.len());
            let answer = self.client.outcome(std::thread::yield_now)?;
            if answer.kind != Kind::More {
                return Some(answer);
            }
            kind = Kind::Next;
        }
        panic!("more is asked for than there is");
    }

    fn write(&self, message: &[u8]) {
        self.client.calls.write(self.client.start(message.len()), message).expect("bound");
    }

    /// Whether what was answered is what an honest server answers to anything.
    fn expect_documented(&self, what: &str, answer: Option<FlagWord>) {
        let Some(answer) = answer else { panic!("{what}: the binding ended") };
        let taken = answer.code == Status::Ok as u16;
        let count = if taken { &self.taken } else { &self.refused };
        count.set(count.get() + 1);
        match Status::from_code(answer.code) {
            Some(
                Status::Ok | Status::BadArguments | Status::UnknownProcedure | Status::TooLong,
            ) => {}
            Some(Status::Fault) => {
                let (number, text) = self.fault(answer);
                let known = [7, Fault::BULK, Fault::FAILED].contains(&number);
                // A one-way procedure of C that is not called as one has no results, and says so.
                let known = known || number == Fault::DROPPED && self.procedure == hostile_v1::NOTE;
                assert!(known, "{what}: fault {number}: {text}");
            }
            status => panic!("{what}: {status:?}: {:?}", self.fault(answer)),
        }
    }

    fn fault(&self, answer: FlagWord) -> (u32, String) {
        let mut bytes = vec![0; answer.len_bytes()];
        let at = layout::flag_at(self.client.replies.len()) - bytes.len();
        self.client.replies.read(at, &mut bytes).expect("ours");
        let mut reader = Reader::<Little>::new(&bytes);
        let text = xdr::get_opaque(&mut reader, 4096).unwrap_or_default();
        (reader.get_u32().unwrap_or(0), String::from_utf8_lossy(&text).into_owned())
    }

    /// Some were taken, and some were not: what was tried reached the decoder, and the handler.
    fn expect_both(&self, what: &str) {
        let (taken, refused) = (self.taken.take(), self.refused.take());
        println!("{what}: {taken} taken, {refused} refused");
        assert!(taken > FEW && refused > FEW, "{what}: {taken} taken, {refused} refused");
    }

    /// A valid call is answered as ever.
    fn expect_served(&mut self, what: &str) {
        let call = Call::valid(&mut self.r);
        let answer = self.send(call.procedure, &call.message(), false);
        // Somebody's one-way procedure has no results.
        let one_way = call.procedure == hostile_v1::NOTE;
        let status = answer.and_then(|it| Status::from_code(it.code));
        let served = status == Some(Status::Ok) || one_way && status == Some(Status::Fault);
        assert!(served, "after {what}: {} answered {answer:?}", call.procedure);
    }

    /// One request that is wrong somehow.
    fn lie(&mut self, round: u64) {
        let r = &mut self.r;
        let one_way = r.below(8) == 0;
        match r.below(8) {
            0 => {
                let len = r.below(layout::room(raw::LEN) as u64 / 8) as usize * 8;
                let bytes: Vec<u8> = (0..len).map(|_| r.number() as u8).collect();
                let procedure = [r.below(14), r.below(1 << 16)][r.below(2) as usize] as u32;
                let what = format!("round {round}: {len} random bytes as {procedure}");
                let answer = self.send(procedure, &bytes, one_way);
                self.expect_documented(&what, answer);
            }
            1 => {
                let call = Call::valid(r);
                let mut message = call.message();
                let len = r.below(message.len() as u64 / 8 + 2) as usize * 8;
                message.resize(len, 0xff);
                let what = format!("round {round}: {len} bytes of {}", call.procedure);
                let answer = self.send(call.procedure, &message, one_way);
                self.expect_documented(&what, answer);
            }
            2 => {
                let mut call = Call::endless(r);
                let what = format!("round {round}: deep or endless {}", call.procedure);
                if r.below(4) == 0 {
                    call.plain.truncate(call.plain.len() / 2);
                }
                let answer = self.send(call.procedure, &call.message(), one_way);
                self.expect_documented(&what, answer);
            }
            3 if r.below(4) == 0 => {
                let (rest, head) = (r.number(), [0; 3].map(|_| nasty(r, 4096)));
                // Some of these are requests, most end the binding.
                let head: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.client.calls.write(layout::CALL_PROCEDURE, &head).expect("bound");
                let rest = if r.below(2) == 0 { rest } else { rest & 0xfff_ffff_ff00_03ff };
                self.client.send_word(rest);
                if self.client.outcome(std::thread::yield_now).is_none() || r.below(2) == 0 {
                    self.client = bind(self.node, self.service);
                }
            }
            _ => {
                let call = Call::valid(r);
                let mut message = call.message();
                mutate(r, &mut message, call.plain.len());
                let what = format!("round {round}: a mutated {}", call.procedure);
                let answer = self.send(call.procedure, &message, one_way);
                self.expect_documented(&what, answer);
            }
        }
    }

    /// Valid calls whose bytes another thread changes all the while.
    fn flip(&mut self, rounds: u64) {
        let seed = self.r.number();
        let other = self.client.link.bind(0..self.client.calls.len()).expect("once more");
        let (done, span) = (AtomicBool::new(false), AtomicU32::new(8));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut r = Random::new(seed);
                let end = layout::flag_at(other.len());
                while !done.load(Ordering::Relaxed) {
                    let len = u64::from(span.load(Ordering::Relaxed));
                    // Lengths and marks come first.
                    let words = if r.below(2) == 0 { len / 4 } else { (len / 4).min(16) };
                    let back = len - 4 * r.below(words);
                    let word = nasty(&mut r, back);
                    other.write(end - back as usize, &word.to_le_bytes()).expect("bound");
                }
            });
            let _done = Done(&done);
            let start = std::time::Instant::now();
            let few =
                |it: &Cell<u32>| it.get() <= FEW && start.elapsed() < PATIENCE.unwrap_or_default();
            for round in 0.. {
                // The other thread may not have run yet.
                if round >= rounds && !few(&self.taken) && !few(&self.refused) {
                    break;
                }
                let call = Call::valid(&mut self.r);
                let message = call.message();
                if message.is_empty() || message.len() > layout::room(raw::LEN) {
                    continue;
                }
                span.store(message.len() as u32, Ordering::Relaxed);
                self.procedure = call.procedure;
                self.write(&message);
                self.client.send(Kind::Whole, call.procedure as u16, message.len());
                let answer = self.client.outcome(std::thread::yield_now);
                let what = format!("flipping {round}: {}", call.procedure);
                self.expect_documented(&what, answer);
            }
        });
    }
}

/// Ends another thread's loop, also when this one panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Attacks `service` from here, with an honest client beside.
pub fn attack(daemon: &Daemon, service: &str, seed: u64, rounds: u64) {
    println!("seed {seed}: RPC_IDL_HOSTILE_SEED tries another");
    let (ours, theirs) = (daemon.node(), daemon.node());
    let binding = Binding::builder(service, hostile_v1::PROGRAM, hostile_v1::VERSION)
        .node(&ours)
        .timeout(PATIENCE.expect("there is one"))
        .connect_timeout(PATIENCE.expect("there is one"));
    let honest = HostileV1Client::new(binding.connect().expect("binds"));
    let (done, calls) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut r = Random::new(seed + 1);
            while !done.load(Ordering::Relaxed) {
                for (index, call) in CALLS.iter().enumerate() {
                    let answered = call(&honest, &mut r);
                    assert!(matches!(answered, Ok(true)), "the honest call {index}: {answered:?}");
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let attacked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("the honest client calls", || calls.load(Ordering::Relaxed) > 10);
            let mut hostile = Hostile::new(&theirs, service, seed);
            for round in 0..rounds {
                hostile.lie(round);
                if round % 16 == 0 {
                    hostile.expect_served(&format!("round {round}"));
                }
            }
            hostile.expect_both("lies");
            hostile.flip(rounds / 2);
            hostile.expect_both("changes");
            hostile.expect_served("the flipping");
            for _ in 0..2 {
                let call = Call::large();
                let answer = hostile.send(call.procedure, &call.message(), false);
                hostile.expect_documented("a large one", answer);
                let answer = hostile.send(call.procedure, &call.message()[..4096], false);
                hostile.expect_documented("a short large one", answer);
            }
            hostile.expect_served("large ones");
        }));
        let before = calls.load(Ordering::Relaxed);
        if attacked.is_ok() {
            until("the honest client goes on", || {
                calls.load(Ordering::Relaxed) > before + 20 || beside.is_finished()
            });
        }
        done.store(true, Ordering::Relaxed);
        beside.join().expect("the honest client was served all the while");
        if let Err(panic) = attacked {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(matches!(large(&honest), Ok(true)), "a large honest call");
}

/// `RPC_IDL_HOSTILE_SEED`, or the usual one.
pub fn seed(usual: u64) -> u64 {
    std::env::var("RPC_IDL_HOSTILE_SEED").map_or(usual, |seed| seed.parse().expect("a number"))
}
