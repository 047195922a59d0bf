//! The limit beside NX's large messages: the same ping-pong with nothing but the copy.
//!
//! Two processes share two buffers, one of each; whose turn it is copies its own into the other's by one
//! memcpy and says so in a word. Like the messages' buffers, both were just touched by the other
//! processor, which a memcpy repeated in one process never meets.

use super::rank::{RankArgs, RankError, SHARES, TRIAL, tell};
use nx::Job;
use std::time::Instant;
use vmmc::mem::View;
use vmmc::sync::{Ordering, spin_hint};
use vmmc::word::{MappedU64, Word};
use vmmc::{Node, Region, Rights, Who};

/// Offsets of the words, each on a pair of lines of its own: turns done by node 0, by node 1, and rounds.
const TURNS: [usize; 2] = [0, 256];
const ROUNDS: usize = 512;
/// Where the first buffer begins. The second begins a page further than needed, so that the two do not
/// compete for the same lines of a cache.
const BUFFERS: usize = 4096;

/// One side.
struct Side<'m> {
    me: usize,
    memory: View<'m>,
    longest: usize,
    turn: u64,
    /// Whether the other side is still there.
    alive: &'m dyn Fn() -> bool,
}

fn gone() -> RankError {
    RankError::Bare("the other process has ended".into())
}

impl Side<'_> {
    fn word(&self, at: usize) -> MappedU64<'_> {
        match self.memory.word64(at) {
            Ok(word) => word,
            Err(error) => unreachable!("words lie before the buffers: {error}"),
        }
    }

    fn copy(&mut self, len: usize) {
        let place = |side: usize| BUFFERS + side * (self.longest + 4096);
        let own = self.memory.slice(place(self.me), len);
        if own.and_then(|own| self.memory.write_from(place(1 - self.me), own)).is_err() {
            unreachable!("the buffers are as long as the longest copy");
        }
        self.word(TURNS[self.me]).store(self.turn, Ordering::Release);
    }

    fn wait(&self) -> Result<(), RankError> {
        let theirs = self.word(TURNS[1 - self.me]);
        loop {
            for _ in 0..1 << 20 {
                if theirs.load(Ordering::Acquire) >= self.turn {
                    return Ok(());
                }
                spin_hint();
            }
            if !(self.alive)() {
                return Err(gone());
            }
        }
    }

    fn round(&mut self, len: usize) -> Result<(), RankError> {
        self.turn += 1;
        if self.me == 0 {
            self.copy(len);
            self.wait()
        } else {
            self.wait()?;
            self.copy(len);
            Ok(())
        }
    }

    /// Seconds of a round; a number of rounds of node 0's is told with an empty turn.
    fn seconds(&mut self, len: usize, rounds: u64) -> Result<f64, RankError> {
        if self.me == 0 {
            self.word(ROUNDS).store(rounds, Ordering::Relaxed);
        }
        self.round(0)?;
        let rounds = if self.me == 0 { rounds } else { self.word(ROUNDS).load(Ordering::Relaxed) };
        let start = Instant::now();
        for _ in 0..rounds {
            self.round(len)?;
        }
        Ok(start.elapsed().as_secs_f64() / rounds as f64)
    }

    fn play(&mut self, len: usize, budget: f64) -> Result<f64, RankError> {
        let mut last = self.seconds(len, TRIAL.into())?;
        for share in SHARES {
            last = self.seconds(len, (budget * share / last) as u64 + 10)?;
        }
        Ok(last / 2.0 * 1e9)
    }
}

fn set_up<E: std::fmt::Display>(error: E) -> RankError {
    RankError::Bare(error.to_string())
}

/// One of the two processes; prints `bare length nanoseconds` as node 0.
pub(super) fn play(args: &RankArgs) -> Result<(), RankError> {
    let job = Job::from_env().map_err(set_up)?.ok_or(nx::JoinError::NoJob)?;
    let node = Node::connect().map_err(set_up)?;
    let name = format!("perf/{}/bare", job.id);
    let longest = args.lens.iter().copied().max().unwrap_or_default();
    let all = |memory, alive: &dyn Fn() -> bool| {
        let me = job.node as usize;
        let mut side = Side { me, memory, longest, turn: 0, alive };
        for &len in &args.lens {
            let ns = side.play(len, args.budget)?;
            tell(job.node, "bare", len, ns)?;
        }
        Ok(())
    };
    if job.node == 0 {
        let region = Region::new(BUFFERS + 2 * (longest + 4096)).map_err(set_up)?;
        let rights = Rights::WRITE | Rights::BIND;
        let export = node.export(region).name(name.as_str()).grant(Who::SameUser, rights);
        let export = export.token(job.token).open().map_err(set_up)?;
        export.wait_importers(1, None).map_err(set_up)?;
        all(export.view(), &|| !export.importers().is_empty())
    } else {
        let rights = Rights::WRITE | Rights::BIND;
        let import = node.import(name.as_str()).rights(rights).token(job.token);
        let import = import.open().map_err(set_up)?;
        let binding = import.bind(0..import.len()).map_err(set_up)?;
        all(binding.view(), &|| import.check_open().is_ok())
    }
}
