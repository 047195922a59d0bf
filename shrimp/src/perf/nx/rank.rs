//! One node of a measured job; `mpi.c` plays the same for an MPI.

use crate::exit::{Coded, Exit};
use nx::{Nx, NxError, Reduction};
use std::io::Write;
use std::time::Instant;

/// What to play.
#[derive(Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// Seconds per game
    pub(super) budget: f64,
    /// `pingpong`, `global` or `bare`
    game: String,
    /// Message lengths
    pub(super) lens: Vec<usize>,
}

/// Why a node gave up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RankError {
    #[error(transparent)]
    Join(#[from] nx::JoinError),
    #[error(transparent)]
    Nx(#[from] NxError),
    #[error("the bare copy: {0}")]
    Bare(String),
    #[error("writing a result: {0}")]
    Write(#[from] std::io::Error),
}

impl Coded for RankError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

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
    let nx = Nx::join()?;
    let tell = |game: &str, number: usize, ns: f64| tell(nx.node() as u32, game, number, ns);
    if args.game == "pingpong" {
        for &len in &args.lens {
            let mut bytes = vec![1u8; len];
            let ns = timed(&nx, args.budget, 2.0, || turn(&nx, &mut bytes))?;
            tell("pingpong", len, ns)?;
        }
        return Ok(());
    }
    let nodes = nx.nodes() as usize;
    for game in ["sync", "sum"] {
        let ns = timed(&nx, args.budget, 1.0, || match game {
            "sync" => nx.gsync(),
            _ => nx.reduce(Reduction::Sum, &mut [1.0f64]),
        })?;
        tell(game, nodes, ns)?;
    }
    Ok(())
}

/// Shares of the budget that are played one after the other; the last one counts. What the first turns of a
/// process cost (pages and lines touched for the first time) is in the others.
pub(super) const SHARES: [f64; 2] = [0.1, 1.0];
/// Turns before those, to know how long one takes.
pub(super) const TRIAL: u32 = 20;

/// Nanoseconds of what is done `ways` times in a turn.
fn timed(
    nx: &Nx,
    budget: f64,
    ways: f64,
    mut turn: impl FnMut() -> Result<(), NxError>,
) -> Result<f64, NxError> {
    let mut seconds = |rounds: u32| -> Result<f64, NxError> {
        nx.gsync()?;
        let start = Instant::now();
        for _ in 0..rounds {
            turn()?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(rounds))
    };
    let mut last = seconds(TRIAL)?;
    for share in SHARES {
        last = seconds(agreed(nx, budget * share / last)?)?;
    }
    Ok(last / ways * 1e9)
}

/// Node 0's number of rounds, on every node.
fn agreed(nx: &Nx, rounds: f64) -> Result<u32, NxError> {
    let mut rounds = [if nx.node() == 0 { rounds as i64 + 10 } else { 0 }];
    nx.reduce(Reduction::Sum, &mut rounds)?;
    Ok(u32::try_from(rounds[0]).unwrap_or(u32::MAX))
}

fn turn(nx: &Nx, bytes: &mut [u8]) -> Result<(), NxError> {
    match nx.node() {
        0 => {
            nx.csend(1, bytes, 1)?;
            nx.crecv(1, bytes)?;
        }
        1 => {
            nx.crecv(1, bytes)?;
            nx.csend(1, bytes, 0)?;
        }
        _ => {}
    }
    Ok(())
}
