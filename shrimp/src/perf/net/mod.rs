//! `shrimp perf net`: the engine between nodes, beside bare TCP.
//!
//! Two private daemons are two nodes, on loopback addresses or in two namespaces ([`sides`]): one is pinned beside the measuring process
//! and only makes connections, the other, whose interface receives, is on the other processor. The
//! exporter is in the measuring process, and takes no part. A *deliberate update, acknowledged* is a
//! fenced send: a packet to the interface, its bytes into memory, and its answer, so that half of it
//! compares with half a round trip of bare TCP between two processes that poll.

mod contest;
mod graphs;
mod others;
mod rates;
mod report;
mod sides;
mod subjects;
mod updates;
mod world;

use self::contest::Contest;
use self::others::Other;
use self::rates::tcp_rate;
use self::report::{Combined, Line, Report};
use self::sides::Sides;
use self::subjects::{SUBJECTS, Subject};
use self::updates::Updates;
use self::world::{World, fabrics};
use super::peer::PingPong;
use super::{Head, Options};
use crate::artefacts::{self, Artefact};
use crate::children::Scratch;
use crate::cpu;
use crate::exit::{Coded, Exit, Failure};
use crate::stats::{self, Plan, Rounds};
use crate::text::{self, Progress};
use std::collections::BTreeMap;
use std::time::Duration;

/// Length of the buffer, and of the transfers whose rate is measured.
const LEN: usize = 1 << 20;

/// What the engine said.
#[derive(Debug, thiserror::Error)]
#[error("{0}; the daemon's log ends: {1}")]
struct NetError(String, String);

impl Coded for NetError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Measures, prints, saves.
pub(super) fn run(options: &Options, netns: &[String]) -> Result<(), Failure> {
    let pair = options.pair();
    let head = Head::new("perf net", options, pair);
    head.print();
    let program = artefacts::find_or_build(&[Artefact::Daemon], true)?.swap_remove(0);
    let sides = Sides::new(netns)?;
    text::emit(&format!("two nodes: {}\n\n", sides.describe()));
    let scratch = Scratch::new()?;
    let (others, mut missing) = others::find(scratch.path());
    cpu::pin(pair.a)?;
    let world = World::new(&program, scratch.path(), (pair, &sides), None)?;
    let providers: Vec<_> = SUBJECTS.iter().filter_map(|(_, _, it)| it.provider()).collect();
    let [fabrics, directs] =
        ["off", "on"].map(|it| fabrics(&program, scratch.path(), (pair, &sides), it, &providers));
    let (fabrics, directs) = (fabrics?, directs?);
    let subjects: Vec<_> = SUBJECTS
        .iter()
        .filter(|(_, _, subject)| match subject {
            Subject::Over(provider) => fabrics.contains_key(provider),
            _ => true,
        })
        .collect();
    let failed = |error: String| NetError(error, world.receiver.last_words());
    let mut progress = Progress::new(false);
    let plan = Plan { sample: Duration::from_micros(1), ..options.plan() };
    let window = Duration::from_millis(if options.quick { 40 } else { 300 });
    let mut all: Vec<(Rounds, Option<f64>)> = vec![(Rounds::default(), None); subjects.len()];
    let (mut tcp, mut ours) = (Vec::new(), Vec::new());
    let mut theirs: Vec<Vec<[f64; 2]>> = vec![Vec::new(); others.len()];
    let networks = std::iter::once("tcp").chain(fabrics.keys().copied());
    let (mut updates, mut contest) = (Updates::over(networks.clone()), Contest::over(networks));
    let worlds: BTreeMap<&str, &World> =
        fabrics.iter().map(|(&over, world)| (over, world)).chain([("tcp", &world)]).collect();
    // There are many.
    let short = Plan { round: plan.round / 3, ..plan };
    let no_rates = || fabrics.keys().map(|&it| (it, Vec::new())).collect::<BTreeMap<_, _>>();
    let (mut over, mut direct) = (no_rates(), no_rates());
    for round in 1..=options.rounds() {
        for ((_, name, subject), (rounds, packets)) in subjects.iter().zip(&mut all) {
            progress.step(&format!("round {round} of {}: {name}", options.rounds()));
            let (mut samples, batch) = if let Subject::Tcp(kind) = subject {
                let mut game = PingPong::start_at(*kind, pair.b, || sides.listen())?;
                plan.round(|| game.round_trip())?
            } else {
                let world = match subject {
                    Subject::Over(provider) => fabrics.get(provider).unwrap_or(&world),
                    _ => &world,
                };
                let before = world.packets();
                let mut count = 0u64;
                let taken = plan.round(|| {
                    count += 1;
                    world.play(*subject)
                });
                let taken = taken.map_err(failed)?;
                *packets = Some((world.packets() - before) as f64 / count as f64);
                taken
            };
            samples.iter_mut().for_each(|sample| *sample /= subject.parts());
            rounds.add(samples, batch);
        }
        progress.step(&format!("round {round} of {}: one way", options.rounds()));
        updates.pass(&worlds, &short).map_err(failed)?;
        progress.step(&format!("round {round} of {}: sparse and bulk", options.rounds()));
        contest.round(&worlds, &plan).map_err(failed)?;
        progress.step(&format!("round {round} of {}: bandwidth", options.rounds()));
        updates.stream(&worlds, window / 2).map_err(failed)?;
        tcp.push(tcp_rate(pair, &sides, window)?);
        ours.push(world.rate(window).map_err(failed)?);
        for (worlds, all) in [(&fabrics, &mut over), (&directs, &mut direct)] {
            for (provider, rates) in all {
                if let Some(world) = worlds.get(provider) {
                    rates.push(world.rate(window).map_err(failed)?);
                }
            }
        }
        // They take seconds each: three rounds show them well enough.
        for ((name, how), took) in others.iter().zip(&mut theirs).filter(|_| round <= 3) {
            progress.step(&format!("round {round} of {}: {name}", options.rounds()));
            took.extend(how.measure(&sides, pair));
        }
    }
    progress.clear();
    let spin = all.first().map(|(rounds, _)| rounds.clone()).unwrap_or_default();
    let latency = subjects.iter().zip(&all).map(|(&&(id, name, _), (rounds, packets))| Line {
        id,
        name,
        latency: rounds.latency(),
        ratio_to_tcp_spin: stats::ratio(rounds, &spin),
        packets: *packets,
    });
    for ((name, _), _) in others.iter().zip(&theirs).filter(|(_, took)| took.is_empty()) {
        missing.push(format!("{name}: it is here, and came to no end between these two sides"));
    }
    let combining = [("bulk", "bulk_combined", "bulk"), ("sparse", "sparse_combined", "sparse")];
    let combining = combining.iter().filter_map(|&(stores, on, off)| {
        let of = |wanted| subjects.iter().zip(&all).find(|((id, _, _), _)| *id == wanted);
        let ((_, (on, some)), (_, (off, many))) = (of(on)?, of(off)?);
        let (packets_ratio, is_faster) = ((*many)? / (*some)?, stats::ratio(off, on));
        Some(Combined { stores, packets_ratio, is_faster })
    });
    let (one_way, streams) = updates.finish();
    let report = Report {
        head,
        one_way,
        streams,
        combining: combining.collect(),
        contest: contest.finish(),
        latency: latency.collect(),
        bandwidth_ratio: stats::median(ours.iter().zip(&tcp).map(|(a, b)| a / b).collect()),
        ofi_bytes_per_s: medians(over),
        ofi_direct_bytes_per_s: medians(direct),
        tcp_bytes_per_s: stats::median(tcp),
        send_bytes_per_s: stats::median(ours),
        others: others
            .iter()
            .zip(theirs)
            .filter(|(_, took)| !took.is_empty())
            .map(|(&(name, _), took)| {
                let [small, large] = [0, 1].map(|i| took.iter().map(|it| it[i]).collect());
                let bytes_per_s = LEN as f64 / stats::median(large) * 1e9;
                Other { name, one_way_ns: stats::median(small), bytes_per_s }
            })
            .collect(),
        missing,
    };
    report::print(&report);
    if let Some(dir) = options.graphs()? {
        graphs::latency(&report).write(&dir.join("net-latency.svg"))?;
        graphs::bandwidth(&report).write(&dir.join("net-bandwidth.svg"))?;
    }
    Ok(options.save(&report)?)
}

fn medians(rates: BTreeMap<&'static str, Vec<f64>>) -> BTreeMap<&'static str, f64> {
    rates.into_iter().map(|(it, rates)| (it, stats::median(rates))).collect()
}
