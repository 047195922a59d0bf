//! `shrimp perf rpc`: figure 8 of the paper (section 5), on this machine, with today's RPC beside it.
//!
//! Round trips of a call with one INOUT argument, from none to 1 MiB. The handler either leaves the
//! argument as it is, as the paper's null procedure does, or writes all of it, so that every byte
//! crosses between the processors twice. The caller copies its argument into the request and the result
//! back out, as generated stubs do; a row of its own has arguments that are made, and results that are
//! used, where they lie in the buffer (`loan`), beside the same through memory of the caller's. Each round starts every subject anew: where its buffers happen to lie
//! in the caches differs from start to start by more than subjects do.
//!
//! Ours waits as programs do: it polls for as long as a wake-up takes, and sleeps then. A peer that polls for ever
//! ([`POLLS`]) has no wake-ups, however long a handler takes, so ours is measured polling for ever too.

mod bare;
mod ours;
mod peers;
mod report;

use super::line::Turns;
use super::{Head, Options, cache_line_round};
use crate::artefacts::{self, Artefact};
use crate::children::Scratch;
use crate::cpu;
use crate::exit::{Coded, Exit, Failure};
use crate::private::PrivateDaemon;
use crate::stats::{Plan, Rounds};
use crate::text::{self, Progress};
use ours::Opponent;
use peers::Setting;
use serde::Serialize;
use shrimp_rpc::CallError;
use std::time::Duration;

pub(crate) use ours::{PeerArgs, serve};

/// Longest argument.
const LARGEST: usize = 1 << 20;

/// What may go wrong in a measurement.
#[derive(Debug, thiserror::Error)]
enum RpcError {
    #[error("a call failed: {0}; this is a bug, or something ended the server")]
    Call(#[from] CallError),
    #[error("no binding: {0}")]
    Connect(#[from] shrimp_rpc::ConnectError),
    #[error("no server: {0}")]
    Serve(#[from] shrimp_rpc::ServeError),
    #[error("the server said {0:?}; this is a bug")]
    Server(String),
    #[error("{name} cannot be measured: {what}")]
    Peer { name: &'static str, what: String },
}

impl Coded for RpcError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Handler {
    /// There is no argument.
    Null,
    Leaves,
    Writes,
}

impl Handler {
    fn procedure(self) -> u32 {
        match self {
            Handler::Null => 0,
            Handler::Leaves => 1,
            Handler::Writes => 2,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Handler::Null => "null call",
            Handler::Leaves => "handler leaves it",
            Handler::Writes => "handler writes it",
        }
    }
}

/// One point of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Cell {
    handler: Handler,
    /// Of the argument.
    bytes: usize,
}

/// Bytes of the argument: the paper's 0 to 1,000, and on.
fn sizes(quick: bool) -> Vec<usize> {
    if quick {
        return vec![4, 100, 1000, 1 << 14, 1 << 17, LARGEST];
    }
    let mut sizes = vec![4, 16, 40, 100, 200, 400, 600, 800, 1000];
    sizes.extend((12..=20).map(|power| 1usize << power));
    sizes
}

fn cells(quick: bool) -> Vec<Cell> {
    let mut cells = vec![Cell { handler: Handler::Null, bytes: 0 }];
    for handler in [Handler::Leaves, Handler::Writes] {
        cells.extend(sizes(quick).into_iter().map(|bytes| Cell { handler, bytes }));
    }
    cells
}

/// Bytes of OUT data that is written while the server computes.
const OUT_SIZES: [usize; 4] = [64, 4096, 1 << 16, 1 << 20];

/// Bytes of arguments that are made and used, copied or in place.
const MADE_SIZES: [usize; 4] = [1 << 12, 1 << 14, 1 << 17, 1 << 20];

/// The peer that polls for ever.
const POLLS: &str = "iceoryx2";

/// Turns of R and of null calls in a round.
const NULL_TURNS: u32 = 10;

/// A subject and its rounds, one for each cell.
struct Subject {
    name: &'static str,
    rounds: Vec<Rounds>,
}

impl Subject {
    fn new(name: &'static str, cells: &[Cell]) -> Subject {
        Subject { name, rounds: cells.iter().map(|_| Rounds::default()).collect() }
    }

    /// A round of each cell.
    fn add(&mut self, taken: Vec<(Vec<f64>, u32)>) {
        for (rounds, (samples, batch)) in self.rounds.iter_mut().zip(taken) {
            rounds.add(samples, batch);
        }
    }
}

/// Everything that was measured.
struct Measured {
    cells: Vec<Cell>,
    r: Rounds,
    /// R and the null call, in turns.
    null: Turns,
    /// Ours first.
    subjects: Vec<Subject>,
    /// Ours, polling for ever.
    polling: Option<Subject>,
    /// What calls move, and nothing else; none on one processor.
    bare: Option<Subject>,
    /// Those that took no part, and why.
    absent: Vec<(&'static str, String)>,
    /// From the end of computing to the reply, by [`OUT_SIZES`].
    after_computing: Vec<Rounds>,
    /// Made and used through the caller's own memory, and in place, by [`MADE_SIZES`].
    made: Vec<[Rounds; 2]>,
    packets: (f64, f64),
}

/// Measures, prints, saves.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let daemon_program = artefacts::find_or_build(&[Artefact::Daemon], true)?.swap_remove(0);
    let pair = options.pair();
    let mut head = Head::new("perf rpc", options, pair);
    head.method = "round trips; median over interleaved rounds of each round's median, each round with \
                   fresh processes; ratios are medians of per-round ratios, to R, which is one way; the null call's \
                   is of turns of 2 ms of both between the same two processes";
    head.print();
    let mut progress = Progress::new(false);
    let scratch = Scratch::new()?;
    progress.step("starting a private daemon, making the peers' programs");
    // Before we are pinned: the daemon would be too, and it measures what a wake-up of another
    // processor costs, which is how long waits poll.
    let daemon = PrivateDaemon::start(&daemon_program, scratch.path(), "vmmcd", None)?;
    let found = peers::all(scratch.path());
    cpu::pin(pair.a)?;
    let setting = Setting { daemon: &daemon, scratch: scratch.path(), pair };

    let cells = cells(options.quick);
    let mut measured = Measured {
        r: Rounds::default(),
        null: Turns::default(),
        subjects: vec![Subject::new(report::OURS, &cells)],
        polling: None,
        bare: None,
        absent: Vec::new(),
        after_computing: OUT_SIZES.iter().map(|_| Rounds::default()).collect(),
        made: MADE_SIZES.iter().map(|_| Default::default()).collect(),
        packets: (f64::NAN, f64::NAN),
        cells,
    };
    let mut peers = Vec::new();
    let mut polling = None;
    let mut bare = (!pair.is_single()).then(|| Subject::new("bare", &measured.cells));
    for (name, peer) in found {
        match peer {
            Ok(peer) => {
                if name == POLLS && !pair.is_single() {
                    polling = Some(Subject::new(report::POLLING, &measured.cells));
                }
                measured.subjects.push(Subject::new(name, &measured.cells));
                peers.push(peer);
            }
            Err(why) => measured.absent.push((name, why)),
        }
    }
    // Short games: there are many.
    let plan = Plan {
        round: Duration::from_millis(if options.quick { 4 } else { 16 }),
        max_samples: 5000,
        ..options.plan()
    };
    for round in 1..=options.rounds() {
        let mut tell =
            |what: &str| progress.step(&format!("round {round} of {}: {what}", options.rounds()));
        if !pair.is_single() {
            tell("R");
            let (samples, batch) = cache_line_round(pair, &options.plan())?;
            measured.r.add(samples, batch);
        }
        if let Some(subject) = &mut bare {
            let taken = bare::rounds(&measured.cells, pair.b, &plan)?;
            subject.add(taken);
        }
        tell(report::OURS);
        ours_round(&mut measured, &setting, &plan)?;
        if let Some(subject) = &mut polling {
            let opponent = Opponent::start(setting.daemon, setting.scratch, pair, true)?;
            cells_round(&opponent, &measured.cells, subject, &plan)?;
        }
        for (peer, subject) in peers.iter().zip(measured.subjects.iter_mut().skip(1)) {
            tell(peer.name);
            let taken = peer.round(&setting, &measured.cells, &plan)?;
            subject.add(taken);
        }
    }
    progress.clear();
    measured.polling = polling;
    measured.bare = bare;
    let report = report::Report::new(head, pair, &measured);
    text::emit(&report.render());
    options.save(&report)?;
    if let Some(dir) = options.graphs()? {
        report.figure8().write(&dir.join("figure8.svg"))?;
        report.figure8_large().write(&dir.join("figure8-large.svg"))?;
        report.peers_graph().write(&dir.join("figure8-peers.svg"))?;
    }
    Ok(())
}

/// A round of each cell.
fn cells_round(
    opponent: &Opponent,
    cells: &[Cell],
    subject: &mut Subject,
    plan: &Plan,
) -> Result<(), Failure> {
    for (cell, rounds) in cells.iter().zip(&mut subject.rounds) {
        let (samples, batch) = opponent.round(*cell, plan).map_err(RpcError::from)?;
        rounds.add(samples, batch);
    }
    Ok(())
}

/// A round of ours, with a server and buffers of its own.
fn ours_round(measured: &mut Measured, setting: &Setting<'_>, plan: &Plan) -> Result<(), Failure> {
    let opponent = Opponent::start(setting.daemon, setting.scratch, setting.pair, false)?;
    if !setting.pair.is_single() {
        for _ in 0..NULL_TURNS {
            let (r, null) = opponent.turn(plan)?;
            measured.null.add(r, null);
        }
    }
    if let Some(ours) = measured.subjects.first_mut() {
        cells_round(&opponent, &measured.cells, ours, plan)?;
    }
    for (bytes, rounds) in OUT_SIZES.iter().zip(&mut measured.after_computing) {
        rounds.add(opponent.after_computing(*bytes, 50)?, 1);
    }
    for (bytes, ways) in MADE_SIZES.iter().zip(&mut measured.made) {
        for (rounds, in_place) in ways.iter_mut().zip([false, true]) {
            let taken = opponent.made_and_used(*bytes, in_place, plan);
            let (samples, batch) = taken.map_err(RpcError::from)?;
            rounds.add(samples, batch);
        }
    }
    measured.packets = opponent.packets().map_err(RpcError::from)?;
    Ok(())
}
