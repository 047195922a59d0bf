//! A process of the application that scribbles over what it can write for another one: its job ends with an
//! error that names it, at the first call of the other; another job notices nothing.
#![allow(unsafe_code)] // the engine's raw interface

mod common;

use common::Daemon;
use nx::{Dest, Engine, NxError, Select, Source, Target};
use vmmc::{Export, Import, Node, Region, Rights, Token, Who};

/// Offsets of the lane (`engine/layout.rs`, version 7).
const CREDITS: usize = 256;
const STAGED: usize = 512;
const GO: usize = 768;
const SLOTS: usize = 4352;
const LANE: usize = SLOTS + 32 * 8320;

/// Arrival word of the first message.
fn arrival(kind: u64, len: u64) -> u64 {
    1 << 32 | kind << 24 | len
}

/// Writes words into the lane that node 1 writes for node 0, by a link of its own.
struct Scribbler(Import);

impl Scribbler {
    fn new(node: &Node) -> Scribbler {
        let id = std::env::var("SHRIMP_NX_JOB").expect("a rank's environment");
        let name = format!("nx/{id}/1>0");
        let import = node.import(name.as_str()).rights(Rights::WRITE).token(Token([7; 16])).open();
        Scribbler(import.expect("node 0 has exported its lane"))
    }

    fn put(&self, at: usize, word: u64) {
        self.0.send(at, &word.to_ne_bytes()).expect("open");
    }

    /// A scout in the first slot: length of the message, offset, region, block.
    fn scout(&self, len: u64, offset: u64, region: u64, block: u64) {
        self.scout_of([len, offset, region << 32 | block, 0, 0]);
    }

    /// The same, word for word: the last two say where the message lies in the memory of its sender.
    fn scout_of(&self, words: [u64; 5]) {
        for (i, word) in words.into_iter().enumerate() {
            self.put(SLOTS + 24 + 8 * i, word);
        }
        self.put(SLOTS, arrival(2, 40));
    }
}

/// Memory of node 1's for a safe copy, as node 0 looks for it.
fn safe_copy(node: &Node, len: usize) -> Export {
    let id = std::env::var("SHRIMP_NX_JOB").expect("a rank's environment");
    let export =
        node.export(Region::new(len).expect("memory")).name(format!("nx/{id}/1>0/stage/0"));
    export.grant(Who::SameUser, Rights::READ).token(Token([7; 16])).open().expect("a region")
}

/// What node 1 writes, and what node 0 says of it; empty: anything.
const CASES: &[(&str, &str)] = &[
    ("long", "longer than its slot"),
    ("kind", "unknown kind"),
    ("short scout", "scout of the wrong length"),
    ("block", "impossible block"),
    ("length", "impossible length"),
    ("region", "region that cannot be"),
    ("no region", ""),
    ("window", "does not fit the message"),
    ("first byte", "does not fit the message"),
    ("block credit", "credit for what was not in use"),
    ("no such slot", "credit for what was not in use"),
    ("noise", ""),
];

fn scribble(lane: &Scribbler, case: &str) {
    // All credits, before node 0 looks for the first: its slots are not used up yet.
    let credit = |what: u64| {
        (0..32).for_each(|i| {
            let word = |number: u64| (number + 1) << 8 | what;
            lane.put(CREDITS + 8 * i, word(2 * i as u64 + 1) << 32 | word(2 * i as u64));
        })
    };
    match case {
        "long" => lane.put(SLOTS, arrival(1, 0x00ff_ffff)),
        "kind" => lane.put(SLOTS, arrival(9, 4)),
        "short scout" => lane.put(SLOTS, arrival(2, 23)),
        "block" => lane.scout(100_000, 0, 0, 32),
        "length" => lane.scout(u64::MAX, 0, 0, 0),
        "region" => lane.scout(100_000, 0, 0xffff_ffff, 0),
        "no region" => lane.scout(100_000, 0, 77, 0),
        "window" => lane.scout_of([100_000, 0, 0, 0xffff_ffff << 32, 0]),
        // There is no whole page behind that one.
        "first byte" => lane.scout_of([100_000, 0, 0, 1 << 32 | 0xffff_ffff, 0]),
        "block credit" => credit(0x80),
        "no such slot" => credit(0x7f),
        "noise" => {
            // Not into the word by which a process says that it leaves in order: who says so and then
            // dies is the supervisor's business.
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            for _ in 0..20_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = CREDITS + (state >> 33) as usize % (LANE - CREDITS - 8);
                lane.put(at & !7, state);
            }
            lane.put(STAGED, u64::MAX);
            lane.put(GO, u64::MAX);
        }
        other => panic!("{other}: not a case"),
    }
}

fn attacked(engine: &Engine, case: &str) {
    let to = |node| Dest { node, ptype: 0 };
    let nothing = Source { start: std::ptr::null(), len: 0 };
    let mut room = vec![0; 100_000];
    if engine.node() == 1 {
        // Node 0 may still be starting: it would not come to where it is attacked.
        let there = Target { start: room.as_mut_ptr(), len: 0 };
        // SAFETY: no memory.
        unsafe { engine.crecv(Select::types(5), there) }.expect("node 0 is there");
        let node = Node::connect().expect("connects");
        let _copy = matches!(case, "window" | "first byte").then(|| safe_copy(&node, 100_000));
        scribble(&Scribbler::new(&node), case);
        if case.contains("credit") || case == "no such slot" {
            // SAFETY: no memory.
            unsafe { engine.csend(6, nothing, to(0)) }.expect("csend");
        }
        if case == "noise" {
            std::process::abort(); // noise may be nothing that node 0 looks at
        }
        while engine.check().is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(engine.check(), Err(NxError::PeerDied { node: 0 }));
        return;
    }
    // SAFETY: no memory.
    unsafe { engine.csend(5, nothing, to(1)) }.expect("csend");
    let error = if case.contains("credit") || case == "no such slot" {
        // A sender looks for credits when its slots are used up.
        let ready = Target { start: room.as_mut_ptr(), len: 0 };
        // SAFETY: no memory.
        unsafe { engine.crecv(Select::types(6), ready) }.expect("node 1 has scribbled");
        let data = Source { start: room.as_ptr(), len: 8 };
        loop {
            // SAFETY: borrowed for the call.
            if let Err(error) = unsafe { engine.csend(1, data, to(1)) } {
                break error;
            }
        }
    } else {
        let target = Target { start: room.as_mut_ptr(), len: room.len() };
        // What noise makes of it may be received.
        loop {
            // SAFETY: borrowed for the call.
            if let Err(error) = unsafe { engine.crecv(Select::types(-1), target) }
                && !matches!(error, NxError::MessageTooLong { .. })
            {
                break error;
            }
        }
    };
    let (_, says) = CASES.iter().find(|(name, _)| *name == case).expect("a case");
    let text = error.to_string();
    assert!(text.contains(says), "{case}: {text}");
    if !says.is_empty() {
        assert!(text.contains("node 1 broke the protocol"), "{case}: {text}");
    }
    assert_eq!(engine.gsync(), Err(error), "the job has ended");
}

/// The other job: goes on until the test has done its worst.
fn neighbour(engine: &Engine, arg: &str) {
    let rounds: u32 = arg.parse().expect("a number");
    for _ in 0..rounds {
        engine.gsync().expect("gsync");
    }
}

#[test]
fn rank() {
    common::play(&[("attacked", attacked), ("neighbour", neighbour)]);
}

#[test]
fn a_process_that_scribbles_ends_its_own_job_with_an_error_that_names_it() {
    let daemon = Daemon::start();
    let mut neighbour = daemon.start_job(2, "neighbour", "20000", &[]);
    for (case, _) in CASES {
        let mut ranks = daemon.start_job(2, "attacked", case, &[("NX_DIRECT_AFTER", "0")]);
        assert_eq!(ranks.wait(), [true, *case != "noise"], "{case}");
    }
    assert_eq!(neighbour.wait(), [true, true]);
}
