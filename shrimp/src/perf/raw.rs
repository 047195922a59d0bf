//! `shrimp perf raw`: the machine alone.

use super::memcpy::{self, Copy};
use super::peer::{Kind, PingPong, alone};
use super::{Head, Options};
use crate::cpu::{self, Pair};
use crate::exit::{Failure, Io};
use crate::plot::{Corner, Graph, Series};
use crate::stats::{self, Latency, Plan, Rounds};
use crate::text::{self, Progress, Table};
use rustix::process::getppid;
use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Where the peer of a ping-pong runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    Across,
    SameCpu,
    NoPeer,
}

/// One line of the table.
struct Subject {
    id: &'static str,
    name: &'static str,
    place: Place,
    /// `None` for the ones without a peer.
    kind: Option<Kind>,
}

const SUBJECTS: &[Subject] = &[
    subject("cache_line", "R: bare cache line", Place::Across, Some(Kind::Line)),
    subject("unix_spin", "AF_UNIX 8 B, both sides poll", Place::Across, Some(Kind::UnixSpin)),
    subject("tcp_spin", "TCP 8 B, both sides poll", Place::Across, Some(Kind::TcpSpin)),
    subject("unix_block", "AF_UNIX 8 B, blocking", Place::Across, Some(Kind::UnixBlock)),
    subject("tcp_block", "TCP 8 B, blocking", Place::Across, Some(Kind::TcpBlock)),
    subject("futex_wake", "wake-up by futex", Place::Across, Some(Kind::Futex)),
    subject("pipe_wake", "wake-up by pipe", Place::Across, Some(Kind::Pipe)),
    subject("futex_wake_same", "wake-up by futex", Place::SameCpu, Some(Kind::Futex)),
    subject("pipe_wake_same", "wake-up by pipe", Place::SameCpu, Some(Kind::Pipe)),
    subject("syscall", "system call (getppid)", Place::NoPeer, None),
    subject("clock", "reading the clock", Place::NoPeer, None),
];

const fn subject(
    id: &'static str,
    name: &'static str,
    place: Place,
    kind: Option<Kind>,
) -> Subject {
    Subject { id, name, place, kind }
}

/// A latency as reported.
#[derive(Debug, Serialize)]
struct Line {
    id: &'static str,
    name: &'static str,
    place: Place,
    #[serde(flatten)]
    latency: Latency,
    /// Multiples of R; none where there is no R.
    ratio_to_r: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    latency: Vec<Line>,
    memcpy: Vec<Copy>,
}

/// One round of the bare cache line: one-way samples in nanoseconds.
pub(crate) fn cache_line_round(pair: Pair, plan: &Plan) -> Result<(Vec<f64>, u32), Io> {
    one_way_round(Kind::Line, pair.b, plan)
}

fn one_way_round(kind: Kind, peer_cpu: usize, plan: &Plan) -> Result<(Vec<f64>, u32), Io> {
    let mut game = PingPong::start(kind, peer_cpu)?;
    let (mut samples, batch) = plan.round(|| game.round_trip())?;
    for sample in &mut samples {
        *sample /= 2.0;
    }
    Ok((samples, batch))
}

/// Whether there is anything to measure: two pollers on one processor only wait for each other's
/// time slice.
fn applies(subject: &Subject, pair: Pair) -> bool {
    let spins = subject.kind.is_some_and(Kind::spins);
    !(pair.is_single() && (spins || subject.place == Place::Across))
}

/// Measures, prints, saves.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let pair = options.pair();
    let head = Head::new("perf raw", options, pair);
    head.print();
    cpu::pin(pair.a)?;
    let mut progress = Progress::new(false);
    let rounds = measure(options, pair, &mut progress)?;
    let window = Duration::from_millis(if options.quick { 4 } else { 40 });
    let memcpy = memcpy::sweep(memcpy::sizes(64, 64 << 20), window, |bytes| {
        progress.step(&format!("memcpy of {}", text::size(bytes)));
    })?;
    progress.clear();
    let report = Report { latency: lines(&rounds), memcpy, head };
    print(&report, pair);
    options.save(&report)?;
    if let Some(dir) = options.graphs()? {
        bandwidth_graph(&report).write(&dir.join("raw-memcpy.svg"))?;
    }
    Ok(())
}

fn measure(
    options: &Options,
    pair: Pair,
    progress: &mut Progress,
) -> Result<Vec<(&'static Subject, Rounds)>, Io> {
    let plan = options.plan();
    let mut all: Vec<(&Subject, Rounds)> = SUBJECTS
        .iter()
        .filter(|subject| applies(subject, pair))
        .map(|subject| (subject, Rounds::default()))
        .collect();
    for round in 1..=options.rounds() {
        for (subject, rounds) in &mut all {
            progress.step(&format!("round {round} of {}: {}", options.rounds(), subject.name));
            let (samples, batch) = match (subject.kind, subject.place) {
                (Some(kind), Place::SameCpu) => one_way_round(kind, pair.a, &plan)?,
                (Some(kind), _) => one_way_round(kind, pair.b, &plan)?,
                (None, _) if subject.id == "clock" => alone(&plan, || {
                    black_box(Instant::now());
                }),
                (None, _) => alone(&plan, || {
                    black_box(getppid());
                }),
            };
            rounds.add(samples, batch);
        }
    }
    Ok(all)
}

fn lines(all: &[(&'static Subject, Rounds)]) -> Vec<Line> {
    let r = all.iter().find(|(subject, _)| subject.id == "cache_line").map(|(_, rounds)| rounds);
    all.iter()
        .map(|(subject, rounds)| Line {
            id: subject.id,
            name: subject.name,
            place: subject.place,
            latency: rounds.latency(),
            ratio_to_r: r.map(|r| stats::ratio(rounds, r)),
        })
        .collect()
}

fn print(report: &Report, pair: Pair) {
    let mut table =
        Table::new(&["one way", "", "median", "p99", "best round", "in R"], &[2, 3, 4, 5]);
    for line in &report.latency {
        table.row([
            line.name.to_owned(),
            match line.place {
                Place::Across => "between CPUs".to_owned(),
                Place::SameCpu => "on one CPU".to_owned(),
                Place::NoPeer => String::new(),
            },
            text::nanos(line.latency.median_ns),
            text::nanos(line.latency.p99_ns),
            text::nanos(line.latency.best_ns),
            line.ratio_to_r.map(text::three).unwrap_or_default(),
        ]);
    }
    let mut copies = Table::new(&["memcpy", "to private", "to shared"], &[0, 1, 2]);
    for copy in report.memcpy.iter().filter(|copy| copy.bytes.trailing_zeros() % 2 == 0) {
        copies.row([
            text::size(copy.bytes),
            text::rate(copy.private_bytes_per_s),
            text::rate(copy.shared_bytes_per_s),
        ]);
    }
    let note = if pair.is_single() {
        "\nOnly one CPU is available: everything between CPUs, R included, was left out.\n"
    } else {
        ""
    };
    text::emit(&format!("{table}{note}\n{copies}"));
}

fn bandwidth_graph(report: &Report) -> Graph {
    let series = |name: &str, value: fn(&Copy) -> f64| Series {
        name: name.to_owned(),
        points: report.memcpy.iter().map(|copy| (copy.bytes as f64, value(copy) / 1e9)).collect(),
        limit: false,
    };
    Graph {
        title: "One memcpy on this machine".into(),
        caption: report.head.machine.describe(),
        y_label: "GB/s".into(),
        y_log: false,
        legend: Corner::UpperRight,
        series: vec![
            series("to private memory", |copy| copy.private_bytes_per_s),
            series("to a shared memory file", |copy| copy.shared_bytes_per_s),
        ],
    }
}
