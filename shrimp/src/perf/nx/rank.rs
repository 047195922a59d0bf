//! One node of a measured job; `mpi.c` plays the same for an MPI.

use super::library::Library;
use crate::exit::{Coded, Exit, Io};
use crate::perf::line::{Line, TURN, turns_in};
use crate::stats::{self, Plan};
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What to play.
#[derive(Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// Seconds per game
    pub(super) budget: f64,
    /// `pingpong`, `calls`, `global` or `bare`
    game: String,
    /// Message lengths
    pub(super) lens: Vec<usize>,
    /// The NX library
    #[arg(long)]
    library: Option<PathBuf>,
    /// A line to take turns with, when short messages are played
    #[arg(long)]
    line: Option<PathBuf>,
}

/// Why a node gave up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RankError {
    #[error(transparent)]
    Join(#[from] nx::JoinError),
    #[error("libnx.so: {0}")]
    Library(String),
    #[error("the bare copy: {0}")]
    Bare(String),
    #[error("{0} came out wrong")]
    Wrong(String),
    #[error("writing a result: {0}")]
    Write(#[from] std::io::Error),
    #[error(transparent)]
    Line(#[from] Io),
}

impl Coded for RankError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Bytes of a short message.
pub(super) const SHORT: usize = 8;
/// Elements of the sums.
pub(super) const SUMS: [usize; 3] = [1, 100, 10_000];
/// Bytes that pairs of neighbours exchange, all pairs at once.
pub(super) const PAIRED: [usize; 2] = [8, 65_536];
/// How long a whole game in turns takes, in budgets.
const TURNS: f64 = 10.0;

/// Prints a line on node 0.
pub(super) fn tell(node: u32, game: &str, number: usize, ns: f64) -> Result<(), RankError> {
    match node {
        0 => Ok(writeln!(std::io::stdout(), "{game} {number} {ns}")?),
        _ => Ok(()),
    }
}

/// Plays, and prints `game length-or-nodes nanoseconds` on node 0.
pub(crate) fn play(args: &RankArgs) -> Result<(), RankError> {
    if args.game == "bare" {
        return super::bare::play(args);
    }
    let library = args.library.as_deref();
    let nx = Library::load(library.ok_or_else(|| RankError::Library("not named".into()))?)?;
    match args.game.as_str() {
        "pingpong" => lengths(&nx, args),
        "calls" => calls(&nx, args),
        _ => global(&nx, args),
    }
}

fn lengths(nx: &Library, args: &RankArgs) -> Result<(), RankError> {
    for &len in &args.lens {
        check_turn(nx, len)?;
        let mut bytes = vec![1u8; len];
        let ns = timed(nx, args.budget, 2.0, || turn(nx, &mut bytes));
        tell(nx.node(), "pingpong", len, ns)?;
        if len == SHORT
            && let Some(path) = &args.line
        {
            turns(nx, &Line::open(path)?, args.budget, &mut bytes)?;
        }
    }
    Ok(())
}

/// The ways to receive a short message.
fn calls(nx: &Library, args: &RankArgs) -> Result<(), RankError> {
    let (mut bytes, mut room) = ([1; SHORT], [0; SHORT]);
    let ns = timed(nx, args.budget, 2.0, || match nx.node() {
        0 => nx.exchange(1, &mut bytes, &mut room, 1),
        _ => nx.answer(1, &mut bytes, &mut room, 0),
    });
    tell(nx.node(), "isend", SHORT, ns)?;
    let handled = super::handled::Handled::begin(nx);
    let ns = timed(nx, args.budget, 2.0, || {
        if nx.node() == 0 {
            nx.csend(super::handled::ASKS, &mut bytes, 1);
            nx.crecv(super::handled::ANSWERS, &mut room);
        }
    });
    handled.end();
    tell(nx.node(), "hrecv", SHORT, ns)
}

fn global(nx: &Library, args: &RankArgs) -> Result<(), RankError> {
    let nodes = nx.nodes();
    tell(nx.node(), "sync", nodes, timed(nx, args.budget, 1.0, || nx.gsync()))?;
    for len in SUMS {
        check_sum(nx, len)?;
        let (mut x, mut work) = (vec![0.0; len], vec![0.0; len]);
        let ns = timed(nx, args.budget, 1.0, || nx.gdsum(&mut x, &mut work));
        tell(nx.node(), &format!("sum-{len}"), nodes, ns)?;
    }
    if nodes > 2 && nodes.is_multiple_of(2) {
        for len in PAIRED {
            let mut bytes = vec![1u8; len];
            let ns = timed_with(nx, args.budget, 2.0, true, || pair(nx, &mut bytes));
            tell(nx.node(), &format!("pair-{len}"), nodes, ns)?;
        }
    }
    Ok(())
}

/// A message there and another one back, with contents that are looked at. Nothing of it is timed.
fn check_turn(nx: &Library, len: usize) -> Result<(), RankError> {
    let pattern = |node: usize| -> Vec<u8> { (0..len).map(|at| (at * 7 + node) as u8).collect() };
    let mut bytes = pattern(0);
    if nx.node() == 0 {
        nx.csend(2, &mut bytes, 1);
    }
    bytes.fill(0);
    nx.crecv(2, &mut bytes);
    let other = 1 - nx.node() as usize;
    if bytes != pattern(other) {
        return Err(RankError::Wrong(format!("a message of {len} bytes")));
    }
    if nx.node() == 1 {
        nx.csend(2, &mut pattern(1), 0);
    }
    Ok(())
}

fn check_sum(nx: &Library, len: usize) -> Result<(), RankError> {
    let (node, nodes) = (f64::from(nx.node()), nx.nodes() as f64);
    let mut x: Vec<f64> = (0..len).map(|at| node + at as f64).collect();
    nx.gdsum(&mut x, &mut vec![0.0; len]);
    let right = |(at, &sum): (usize, &f64)| sum == nodes * (nodes - 1.0) / 2.0 + nodes * at as f64;
    if x.iter().enumerate().all(right) {
        return Ok(());
    }
    Err(RankError::Wrong(format!("a sum of {len} doubles")))
}

/// Shares of the budget that are played one after the other; the last one counts. What the first turns of a
/// process cost (pages and lines touched for the first time) is in the others.
pub(super) const SHARES: [f64; 2] = [0.1, 1.0];
/// Turns before those, to know how long one takes.
pub(super) const TRIAL: u32 = 20;

/// Nanoseconds of what is done `ways` times in a turn.
fn timed(nx: &Library, budget: f64, ways: f64, turn: impl FnMut()) -> f64 {
    timed_with(nx, budget, ways, false, turn)
}

/// The same; with `together` until all nodes have done it.
fn timed_with(nx: &Library, budget: f64, ways: f64, together: bool, mut turn: impl FnMut()) -> f64 {
    let mut seconds = |rounds: u32| -> f64 {
        nx.gsync();
        let start = Instant::now();
        for _ in 0..rounds {
            turn();
        }
        if together {
            nx.gsync();
        }
        start.elapsed().as_secs_f64() / f64::from(rounds)
    };
    let mut last = seconds(TRIAL);
    for share in SHARES {
        last = seconds(agreed(nx, budget * share / last));
    }
    last / ways * 1e9
}

/// Node 0's number of rounds, on every node.
fn agreed(nx: &Library, rounds: f64) -> u32 {
    let mut rounds = [if nx.node() == 0 { rounds.floor() + 10.0 } else { 0.0 }];
    nx.gdsum(&mut rounds, &mut [0.0]);
    rounds[0] as u32
}

fn turn(nx: &Library, bytes: &mut [u8]) {
    match nx.node() {
        0 => {
            nx.csend(1, bytes, 1);
            nx.crecv(1, bytes);
        }
        1 => {
            nx.crecv(1, bytes);
            nx.csend(1, bytes, 0);
        }
        _ => {}
    }
}

/// The same of each even node with the next.
fn pair(nx: &Library, bytes: &mut [u8]) {
    let (node, even) = (nx.node(), nx.node().is_multiple_of(2));
    if even {
        nx.csend(1, bytes, (node + 1).into());
    }
    nx.crecv(1, bytes);
    if !even {
        nx.csend(1, bytes, (node - 1).into());
    }
}

/// R and the message in turns; prints `turns`, and R and the message's time of each, on node 0.
fn turns(nx: &Library, line: &Line, budget: f64, bytes: &mut [u8]) -> Result<(), RankError> {
    let plan = Plan { round: TURN, sample: Duration::from_micros(3), max_samples: 2000 };
    let mut text = "turns".to_owned();
    for _ in 0..turns_in(Duration::from_secs_f64(budget * TURNS)) {
        nx.gsync();
        if nx.node() == 1 {
            line.answer()?;
            while bytes.first() != Some(&LAST) {
                turn(nx, bytes);
            }
            bytes.fill(0);
            continue;
        }
        let r = line.ask(&plan)?;
        let (samples, _) = plan.round(|| {
            turn(nx, bytes);
            Ok::<_, RankError>(())
        })?;
        bytes.fill(LAST);
        turn(nx, bytes);
        bytes.fill(0);
        let _ = write!(text, " {r:.1} {:.1}", stats::median(samples) / 2.0);
    }
    if nx.node() == 0 {
        writeln!(std::io::stdout(), "{text}")?;
    }
    Ok(())
}

/// In the last message of a turn.
const LAST: u8 = 0xff;
