//! Medians and percentiles, and how samples are taken.
//!
//! One *sample* is the time of a batch of operations divided by their number, because reading
//! the clock (some 25 ns) is not small against the operations timed here. One *round* is many
//! samples; rounds of different subjects are interleaved by the callers, so that a disturbance
//! of the machine hits all of them alike. The result is the median over rounds of each round's
//! median.

use serde::Serialize;
use std::time::{Duration, Instant};

/// Distribution of a time, in nanoseconds per operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Latency {
    /// Median over the rounds of the rounds' medians.
    pub(crate) median_ns: f64,
    /// Median over the rounds of the rounds' 99th percentiles.
    pub(crate) p99_ns: f64,
    /// The lowest of the rounds' medians.
    pub(crate) best_ns: f64,
    /// Rounds.
    pub(crate) rounds: usize,
    /// Samples in all rounds.
    pub(crate) samples: usize,
    /// Operations per sample.
    pub(crate) batch: u32,
}

/// The value below which `per_cent` per cent of the sorted values lie (nearest rank).
pub(crate) fn percentile(sorted: &[f64], per_cent: f64) -> f64 {
    let rank = (per_cent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// The values in rising order.
pub(crate) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The median of values in any order; NaN of none.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    percentile(&sorted(values), 50.0)
}

/// Collects rounds of one subject.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds {
    medians: Vec<f64>,
    p99s: Vec<f64>,
    samples: usize,
    batch: u32,
}

impl Rounds {
    /// Adds a round of samples (nanoseconds per operation), each over `batch` operations.
    pub(crate) fn add(&mut self, samples: Vec<f64>, batch: u32) {
        let samples = sorted(samples);
        self.medians.push(percentile(&samples, 50.0));
        self.p99s.push(percentile(&samples, 99.0));
        self.samples += samples.len();
        self.batch = batch;
    }

    /// Whether none was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.medians.is_empty()
    }

    /// The result.
    pub(crate) fn latency(&self) -> Latency {
        Latency {
            median_ns: median(self.medians.clone()),
            p99_ns: median(self.p99s.clone()),
            best_ns: self.medians.iter().copied().fold(f64::NAN, f64::min),
            rounds: self.medians.len(),
            samples: self.samples,
            batch: self.batch,
        }
    }
}

/// Median over rounds of the ratio of two subjects measured in the same rounds.
pub(crate) fn ratio(subject: &Rounds, reference: &Rounds) -> f64 {
    median(subject.medians.iter().zip(&reference.medians).map(|(a, b)| a / b).collect())
}

/// How one round is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// About how long a round takes.
    pub(crate) round: Duration,
    /// Operations are batched until a sample takes at least this long.
    pub(crate) sample: Duration,
    /// Samples per round, at most.
    pub(crate) max_samples: usize,
}

impl Plan {
    /// Operations per sample when one takes about `op`.
    fn batch(&self, op: Duration) -> u32 {
        let per = self.sample.as_nanos() / op.as_nanos().max(1);
        per.clamp(1, 10_000) as u32
    }

    /// Warms up and takes a round of samples in nanoseconds per operation. Returns them with
    /// the batch.
    pub(crate) fn round<E>(
        &self,
        mut operation: impl FnMut() -> Result<(), E>,
    ) -> Result<(Vec<f64>, u32), E> {
        // Warm-up for a tenth of the round: the first operations wait for the peer to start.
        let warm = Instant::now();
        while warm.elapsed() < self.round / 10 {
            operation()?;
        }
        let (estimate, mut count) = (Instant::now(), 0u32);
        while count < 3 || estimate.elapsed() < self.sample {
            operation()?;
            count += 1;
        }
        let batch = self.batch(estimate.elapsed() / count);
        let mut samples = Vec::with_capacity(self.max_samples.min(1 << 20));
        let begin = Instant::now();
        while samples.len() < self.max_samples
            && (begin.elapsed() < self.round || samples.len() < 3)
        {
            let start = Instant::now();
            for _ in 0..batch {
                operation()?;
            }
            samples.push(start.elapsed().as_nanos() as f64 / f64::from(batch));
        }
        Ok((samples, batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), 50.0);
        assert_eq!(percentile(&values, 99.0), 99.0);
        assert_eq!(percentile(&values, 100.0), 100.0);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
        assert!(percentile(&[], 50.0).is_nan());
    }

    #[test]
    fn one_bad_round_does_not_move_the_result() {
        let mut rounds = Rounds::default();
        for value in [10.0, 11.0, 9_000.0, 10.5, 10.2] {
            rounds.add(vec![value; 100], 4);
        }
        let latency = rounds.latency();
        assert_eq!(latency.median_ns, 10.5);
        assert_eq!(latency.best_ns, 10.0);
        assert_eq!((latency.rounds, latency.samples, latency.batch), (5, 500, 4));
    }

    #[test]
    fn a_ratio_pairs_rounds() {
        let (mut a, mut b) = (Rounds::default(), Rounds::default());
        for slow in [1.0, 10.0, 1.0] {
            a.add(vec![2.0 * slow], 1);
            b.add(vec![slow], 1);
        }
        assert_eq!(ratio(&a, &b), 2.0);
    }
}
