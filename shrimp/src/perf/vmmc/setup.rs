//! What an export and an import cost through the daemon.

use super::Opponent;
use super::game::{GameError, connect};
use crate::cpu::Pair;
use crate::exit::Failure;
use crate::private::PrivateDaemon;
use crate::stats::{percentile, sorted};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;
use vmmc::{Region, Rights, Who};

/// Times in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Cost {
    /// Where the daemon runs, seen from the process that asks.
    pub(super) daemon: &'static str,
    pub(super) export_median_us: f64,
    pub(super) import_median_us: f64,
    /// Of an export and an import together.
    pub(super) pair_median_us: f64,
    pub(super) pair_p99_us: f64,
    pub(super) pairs: usize,
}

/// Measures `pairs` of them with a daemon pinned to the same processor, to the other one, and not at
/// all.
pub(super) fn measure(
    program: &Path,
    scratch: &Path,
    pair: Pair,
    pairs: usize,
) -> Result<Vec<Cost>, Failure> {
    let mut places = vec![("same CPU", Some(pair.a))];
    if !pair.is_single() {
        places.push(("other CPU", Some(pair.b)));
        places.push(("any CPU", None));
    }
    let mut costs = Vec::new();
    for (name, cpu) in places {
        let daemon = PrivateDaemon::start(
            program,
            scratch,
            &format!("setup-{}", name.replace(' ', "-")),
            cpu,
        )?;
        costs.push(one(&daemon, pair, name, pairs)?);
    }
    Ok(costs)
}

/// This process exports a page, and imports a buffer of another process, which runs on the other
/// processor and is told of each import.
fn one(
    daemon: &PrivateDaemon,
    pair: Pair,
    place: &'static str,
    pairs: usize,
) -> Result<Cost, Failure> {
    let _exporter = Opponent::start(daemon, pair)?;
    // By the settings that programs have: a caller that spins for ever is not what they are.
    let node = connect(&daemon.socket, false)?;
    let (mut exports, mut imports, mut both) = (Vec::new(), Vec::new(), Vec::new());
    let warm_up = pairs / 10;
    for i in 0..warm_up + pairs {
        let region = Region::new(4096).map_err(GameError::from)?;
        let name = format!("setup {i}");
        let start = Instant::now();
        let export = node
            .export(region)
            .name(name.as_str())
            .grant(Who::SameUser, Rights::WRITE)
            .open()
            .map_err(GameError::from)?;
        let middle = Instant::now();
        let import =
            node.import("answers").rights(Rights::WRITE).open().map_err(GameError::from)?;
        let end = Instant::now();
        if i >= warm_up {
            exports.push((middle - start).as_nanos() as f64 / 1e3);
            imports.push((end - middle).as_nanos() as f64 / 1e3);
            both.push((end - start).as_nanos() as f64 / 1e3);
        }
        drop(import);
        drop(export);
    }
    let both = sorted(both);
    Ok(Cost {
        daemon: place,
        export_median_us: percentile(&sorted(exports), 50.0),
        import_median_us: percentile(&sorted(imports), 50.0),
        pair_median_us: percentile(&both, 50.0),
        pair_p99_us: percentile(&both, 99.0),
        pairs,
    })
}
