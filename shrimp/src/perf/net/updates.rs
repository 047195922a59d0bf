//! Automatic and deliberate update of the same bytes: how long they take until the reader has them, and how many go through.
//!
//! The exporter's memory is in the measuring process too. It stores on the near node and polls its memory on the far
//! one, until the last word of what it stored is there: the way of one message by one clock, with what the call does after
//! the bytes have left. A ping-pong would need a second process that polls, and with two processors
//! that one and the interface that brings it the bytes would share one.
//!
//! Automatic update is by the explicit writer ([`Import::auto_update`]): one store per message without combining, and in a
//! stream consecutive stores with it.

use super::LEN;
use super::rates::time_under_way;
use super::world::World;
use crate::stats::{Latency, Plan, Rounds, median};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vmmc::error::SendNotifyError;
use vmmc::sync::{Ordering, spin_hint};
use vmmc::word::Word;
use vmmc::{AutoUpdate, Combining, Import};

/// Lengths of a message in bytes, a packet each.
const MESSAGES: [usize; 5] = [4, 8, 64, 1024, 4096];
/// Lengths of a store, or a send, of a stream.
const PIECES: [usize; 3] = [64, 1024, 4096];
/// For a message that does not come: the engine is broken.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks at the reader's memory between two offers of the processor to whoever needs it.
const LOOKS: u32 = 256;

/// How bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    /// Automatic update: stores.
    Au,
    /// Deliberate update: sends.
    Du,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Au => "AU",
            Way::Du => "DU",
        }
    }
}

/// From the store to the reader.
#[derive(Debug, Serialize)]
pub(super) struct OneWay {
    /// `tcp`, or a provider of libfabric.
    pub(super) over: &'static str,
    pub(super) way: Way,
    /// Of the message.
    pub(super) bytes: usize,
    #[serde(flatten)]
    pub(super) latency: Latency,
}

/// Pieces one behind the other, and a fence after 1 MiB.
#[derive(Debug, Serialize)]
pub(super) struct Stream {
    pub(super) over: &'static str,
    pub(super) way: Way,
    /// Of a piece.
    pub(super) bytes: usize,
    pub(super) bytes_per_s: f64,
}

/// What was measured so far.
#[derive(Debug, Default)]
pub(super) struct Updates {
    passes: Vec<(&'static str, Way, usize, Rounds)>,
    streams: Vec<(&'static str, Way, usize, Vec<f64>)>,
}

/// The same by both ways, in turns.
fn both(lens: &[usize]) -> impl Iterator<Item = (Way, usize)> {
    lens.iter().flat_map(|&len| [(Way::Au, len), (Way::Du, len)])
}

impl Updates {
    /// For nodes that reach each other over these.
    pub(super) fn over(names: impl Iterator<Item = &'static str> + Clone) -> Updates {
        let each = |lens: &'static [usize]| {
            names.clone().flat_map(|over| both(lens).map(move |(way, len)| (over, way, len)))
        };
        Updates {
            passes: each(&MESSAGES).map(|(a, b, c)| (a, b, c, Rounds::default())).collect(),
            streams: each(&PIECES).map(|(a, b, c)| (a, b, c, Vec::new())).collect(),
        }
    }

    /// One round of messages.
    pub(super) fn pass(
        &mut self,
        worlds: &BTreeMap<&str, &World>,
        plan: &Plan,
    ) -> Result<(), String> {
        for (over, way, len, rounds) in &mut self.passes {
            let Some(world) = worlds.get(over) else { continue };
            let mut game = Game::new(world, *way, *len)?;
            let (samples, batch) = plan.round(|| game.pass())?;
            rounds.add(samples, batch);
        }
        Ok(())
    }

    /// One round of streams.
    pub(super) fn stream(
        &mut self,
        worlds: &BTreeMap<&str, &World>,
        window: Duration,
    ) -> Result<(), String> {
        for (over, way, len, rates) in &mut self.streams {
            if let Some(world) = worlds.get(over) {
                rates.push(world.stream(*way, *len, window)?);
            }
        }
        Ok(())
    }

    /// The results.
    pub(super) fn finish(self) -> (Vec<OneWay>, Vec<Stream>) {
        let passes = self.passes.into_iter().map(|(over, way, bytes, rounds)| OneWay {
            over,
            way,
            bytes,
            latency: rounds.latency(),
        });
        let streams = self.streams.into_iter().map(|(over, way, bytes, rates)| Stream {
            over,
            way,
            bytes,
            bytes_per_s: median(rates),
        });
        (passes.collect(), streams.collect())
    }
}

/// Messages of one length, each with a number of its own in its last word.
struct Game<'w> {
    world: &'w World,
    way: Way,
    writer: AutoUpdate,
    message: Vec<u8>,
    turn: u32,
}

impl<'w> Game<'w> {
    fn new(world: &'w World, way: Way, len: usize) -> Result<Game<'w>, String> {
        let writer = world.import.auto_update(Combining::OFF).map_err(|error| error.to_string())?;
        Ok(Game { world, way, writer, message: vec![0; len], turn: 0 })
    }

    /// One message, until the reader has it.
    fn pass(&mut self) -> Result<(), String> {
        self.turn += 1;
        let last = self.message.len() - size_of::<u32>();
        if let Some(word) = self.message.get_mut(last..) {
            word.copy_from_slice(&self.turn.to_ne_bytes());
        }
        let sent = match self.way {
            Way::Au => self.writer.store(0, &self.message),
            Way::Du => self.world.import.send(0, &self.message).map_err(SendNotifyError::from),
        };
        sent.map_err(|error| error.to_string())?;
        self.world.wait_for(last, self.turn)
    }
}

impl World {
    /// Polls a word of the exporter's memory until it has this value.
    fn wait_for(&self, at: usize, value: u32) -> Result<(), String> {
        let word = self.export.view().word32(at).map_err(|error| error.to_string())?;
        let mut begun = None;
        loop {
            for _ in 0..LOOKS {
                if word.load(Ordering::Acquire) == value {
                    return Ok(());
                }
                spin_hint();
            }
            if begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(format!("what was stored is not there after {PATIENCE:?}"));
            }
            std::thread::yield_now();
        }
    }

    /// The buffer in pieces, and a fence; bytes per second.
    fn stream(&self, way: Way, piece: usize, window: Duration) -> Result<f64, String> {
        let writer = self.import.auto_update(Combining::ON).map_err(|error| error.to_string())?;
        let mut done = Ok(());
        let time = time_under_way(window, || {
            let all = pieces(&self.import, &writer, way, piece);
            let all = all.and_then(|()| writer.fence().map_err(|error| error.to_string()));
            if all.is_err() {
                done = all;
            }
        });
        done.map(|()| LEN as f64 / time.as_secs_f64())
    }
}

/// The whole buffer, from its first piece to its last.
fn pieces(import: &Import, writer: &AutoUpdate, way: Way, piece: usize) -> Result<(), String> {
    let source = vec![5; piece];
    for at in (0..LEN).step_by(piece) {
        let sent = match way {
            Way::Au => writer.store(at, &source),
            Way::Du => import.send(at, &source).map_err(SendNotifyError::from),
        };
        sent.map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_measured_both_ways_over_all_that_there_is() {
        let updates = Updates::over(["tcp", "net"].into_iter());
        assert_eq!(updates.passes.len(), 2 * 2 * MESSAGES.len());
        assert_eq!(updates.streams.len(), 2 * 2 * PIECES.len());
        for len in MESSAGES {
            let ways = updates.passes.iter().filter(|it| it.0 == "net" && it.2 == len);
            assert_eq!(ways.map(|it| it.1).collect::<Vec<_>>(), [Way::Au, Way::Du]);
        }
    }

    #[test]
    fn pieces_fill_the_buffer_and_a_message_is_one_packet() {
        assert!(PIECES.iter().all(|len| LEN.is_multiple_of(*len)));
        assert!(
            MESSAGES.iter().all(|len| (4..=4096).contains(len)),
            "a word at least, a page at most"
        );
    }
}
