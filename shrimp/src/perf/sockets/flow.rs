//! A stream of messages in one direction, as ttcp has it (S13): the client sends so many that the last ones find every
//! buffer full of those before, and the server, which reads with a buffer of a message, says a byte when it has them all.

use super::WAYS;
use crate::stats::{Latency, Rounds};
use crate::text::{self, Table};
use serde::Serialize;
use std::io::{Read, Write};
use std::time::Instant;

/// Lengths of messages, bytes: those of the paper's ttcp.
pub(super) const SIZES: [usize; 2] = [70, 7 << 10];
/// In front of a connection that is one: the length of its messages with this bit.
pub(super) const MARK: u64 = 1 << 63;
/// Bytes of a run at most, and messages.
const RUN_BYTES: usize = 8 << 20;
const RUN_MESSAGES: usize = 10_000;
/// Runs before anything is measured, in which both ends are asked and paired, and runs that are.
const WARM_UP: usize = 4;
const RUNS: usize = 3;

/// Messages of a run.
const fn messages(size: usize) -> usize {
    let most = RUN_BYTES / size;
    if most < RUN_MESSAGES { most } else { RUN_MESSAGES }
}

/// The server's side, until the client ends.
pub(super) fn serve(stream: &mut (impl Read + Write), size: usize) -> std::io::Result<()> {
    let mut message = vec![0; size];
    let whole = size * messages(size);
    let mut left = whole;
    loop {
        match stream.read(&mut message)? {
            0 => return Ok(()),
            len => left = left.saturating_sub(len),
        }
        if left == 0 {
            stream.write_all(&[1])?;
            left = whole;
        }
    }
}

/// The client's: nanoseconds per message, of each run.
pub(super) fn send(stream: &mut (impl Read + Write), size: usize) -> std::io::Result<Vec<f64>> {
    stream.write_all(&(size as u64 | MARK).to_le_bytes())?;
    let message = vec![7; size];
    let mut samples = Vec::new();
    for run in 0..WARM_UP + RUNS {
        let begin = Instant::now();
        for _ in 0..messages(size) {
            stream.write_all(&message)?;
        }
        stream.read_exact(&mut [0])?;
        if run >= WARM_UP {
            samples.push(begin.elapsed().as_nanos() as f64 / messages(size) as f64);
        }
    }
    Ok(samples)
}

/// What one way makes of one length.
#[derive(Debug, Serialize)]
pub(super) struct Rate {
    way: &'static str,
    bytes: usize,
    #[serde(flatten)]
    message: Latency,
    bytes_per_s: f64,
}

impl Rate {
    /// From the rounds of a way.
    pub(super) fn new(way: &'static str, bytes: usize, rounds: &Rounds) -> Rate {
        let message = rounds.latency();
        Rate { way, bytes, bytes_per_s: bytes as f64 / message.median_ns * 1e9, message }
    }
}

/// As a person reads it.
pub(super) fn table(rates: &[Rate]) -> Table {
    let there = |name: &&str| rates.iter().any(|rate| rate.way == *name);
    let ways: Vec<&str> = WAYS.iter().map(|way| way.name).filter(there).collect();
    let heading: Vec<&str> = std::iter::once("size").chain(ways).collect();
    let mut table = Table::new(&heading, &(0..heading.len()).collect::<Vec<_>>());
    for size in SIZES {
        let mut row = vec![text::size(size as u64)];
        let of_size = rates.iter().filter(|rate| rate.bytes == size);
        row.extend(of_size.map(|rate| text::rate(rate.bytes_per_s)));
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn both_ends_agree_on_how_long_a_run_is() {
        for size in SIZES {
            let (mut client, mut server) = UnixStream::pair().unwrap();
            let served = std::thread::spawn(move || {
                let mut head = [0; 8];
                server.read_exact(&mut head).unwrap();
                assert_eq!(u64::from_le_bytes(head) & !MARK, size as u64);
                serve(&mut server, size)
            });
            assert_eq!(send(&mut client, size).unwrap().len(), RUNS);
            drop(client);
            served.join().unwrap().unwrap();
        }
    }
}
