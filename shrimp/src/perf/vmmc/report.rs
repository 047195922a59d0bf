//! What `perf vmmc` tells: tables, budgets, graphs, JSON.

use super::game::{LARGEST, Strategy};
use super::setup::Cost;
use super::{Head, Measured, Played};
use crate::cpu::Pair;
use crate::plot::{Corner, Graph, Series};
use crate::stats::{self, Latency, Rounds};
use crate::text::{self, Table};
use serde::Serialize;
use std::fmt::Write;

/// One strategy at one size, while it is measured.
pub(super) struct Cell {
    pub(super) strategy: Strategy,
    pub(super) bytes: usize,
    rounds: Rounds,
    messages: u64,
    copied: u64,
    sent: u64,
}

impl Cell {
    pub(super) fn new(strategy: Strategy, bytes: usize) -> Cell {
        Cell { strategy, bytes, rounds: Rounds::default(), messages: 0, copied: 0, sent: 0 }
    }

    pub(super) fn add(&mut self, played: Played) {
        self.rounds.add(played.samples, played.batch);
        self.messages += played.messages;
        self.copied += played.copied;
        self.sent += played.sent;
    }

    fn per_message_byte(&self, counted: u64) -> f64 {
        counted as f64 / (self.messages as f64 * self.bytes as f64)
    }
}

/// One point of figure 3.
#[derive(Debug, Serialize)]
struct Point {
    strategy: Strategy,
    bytes: usize,
    #[serde(flatten)]
    one_way: Latency,
    bytes_per_s: f64,
    ratio_to_r: Option<f64>,
    /// Of the bandwidth of one memcpy of this size.
    ratio_to_memcpy: f64,
    /// Counted by the process, per byte of message (M1); what the paper gives it is beside it.
    copies: f64,
    copies_expected: u32,
    /// Bytes sent by deliberate update per byte of message.
    deliberate_updates: f64,
}

#[derive(Debug, Serialize)]
struct Memcpy {
    bytes: usize,
    median_ns: f64,
    bytes_per_s: f64,
}

/// A figure that the charter sets a budget for. Never a failure.
#[derive(Debug, Serialize)]
struct Budget {
    path: &'static str,
    /// Measured, in `unit`.
    value: f64,
    /// Allowed, in `unit`.
    budget: f64,
    unit: &'static str,
    /// Whether more is better.
    at_least: bool,
    met: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    head: Head,
    /// None on one processor.
    r: Option<Latency>,
    au_word: Latency,
    du_8_with_flag: Latency,
    points: Vec<Point>,
    memcpy: Vec<Memcpy>,
    /// Smallest size from which on DU-0copy is not slower than AU-1copy (M4).
    crossover_bytes: Option<usize>,
    import_export: Vec<Cost>,
    budgets: Vec<Budget>,
}

impl Report {
    pub(super) fn new(head: Head, pair: Pair, measured: &Measured, costs: Vec<Cost>) -> Report {
        let r = (!pair.is_single()).then_some(&measured.r);
        let points: Vec<Point> =
            measured.cells.iter().map(|cell| point(cell, r, &measured.memcpy)).collect();
        Report {
            head,
            r: r.map(Rounds::latency),
            au_word: measured.au_word.rounds.latency(),
            du_8_with_flag: measured.du_8.rounds.latency(),
            memcpy: measured
                .memcpy
                .iter()
                .map(|(bytes, rounds)| {
                    let median_ns = rounds.latency().median_ns;
                    Memcpy {
                        bytes: *bytes,
                        median_ns,
                        bytes_per_s: *bytes as f64 / median_ns * 1e9,
                    }
                })
                .collect(),
            crossover_bytes: crossover(&points),
            budgets: budgets(measured, &points, &costs),
            points,
            import_export: costs,
        }
    }

    /// For people.
    pub(super) fn render(&self) -> String {
        let mut out = String::new();
        if let Some(r) = &self.r {
            let _ = writeln!(out, "R, bare cache line, one way: {}", text::nanos(r.median_ns));
        } else {
            out.push_str("Only one CPU: no R, and every message costs a switch of processes.\n");
        }
        let _ = writeln!(
            out,
            "\nOne-way latency (p99 of the batches in brackets)\n{}",
            self.table(
                &|point| {
                    format!(
                        "{} ({})",
                        text::nanos(point.one_way.median_ns),
                        text::nanos(point.one_way.p99_ns)
                    )
                },
                None
            )
        );
        out.push_str(
            "In place (AU-1copy, DU-0copy) the receiver's own code does not touch the bytes, as in \
             the paper;\nwhere it copies, the bytes also cross from one processor's cache to the \
             other's.\n\n",
        );
        let _ = writeln!(
            out,
            "Bandwidth\n{}",
            self.table(&|point| text::rate(point.bytes_per_s), Some("memcpy"))
        );
        let _ = writeln!(out, "Copies per message, counted\n{}", self.copies());
        match self.crossover_bytes {
            Some(bytes) => {
                let _ = writeln!(
                    out,
                    "DU-0copy is not slower than AU-1copy from {} on.\n",
                    text::size(bytes as u64)
                );
            }
            None => out.push_str("AU-1copy stays ahead of DU-0copy up to the largest size.\n\n"),
        }
        let mut table = Table::new(
            &["through the daemon", "export", "import", "pair", "pair p99"],
            &[1, 2, 3, 4],
        );
        for cost in &self.import_export {
            let the = if cost.daemon == "any CPU" { "" } else { "the " };
            table.row([
                format!("daemon on {the}{}", cost.daemon),
                text::nanos(cost.export_median_us * 1e3),
                text::nanos(cost.import_median_us * 1e3),
                text::nanos(cost.pair_median_us * 1e3),
                text::nanos(cost.pair_p99_us * 1e3),
            ]);
        }
        let _ = writeln!(out, "{table}");
        let mut table = Table::new(&["budget", "measured", "allowed", ""], &[1, 2]);
        for budget in &self.budgets {
            table.row([
                budget.path.to_owned(),
                format!("{} {}", text::three(budget.value), budget.unit),
                format!(
                    "{} {} {}",
                    if budget.at_least { ">=" } else { "<=" },
                    budget.budget,
                    budget.unit
                ),
                if budget.met { "met" } else { "NOT MET" }.to_owned(),
            ]);
        }
        let _ = write!(out, "{table}");
        out
    }

    fn table(&self, cell: &dyn Fn(&Point) -> String, memcpy: Option<&str>) -> Table {
        let mut heading = vec!["size"];
        heading.extend(Strategy::FIGURE.iter().map(|strategy| strategy.name()));
        heading.extend(memcpy);
        let mut table = Table::new(&heading, &[0, 1, 2, 3, 4, 5]);
        for limit in &self.memcpy {
            let mut row = vec![text::size(limit.bytes as u64)];
            row.extend(self.points.iter().filter(|point| point.bytes == limit.bytes).map(cell));
            row.extend(memcpy.map(|_| text::rate(limit.bytes_per_s)));
            table.row(row);
        }
        table
    }

    fn copies(&self) -> Table {
        let mut table =
            Table::new(&["strategy", "counted", "paper", "deliberate updates"], &[1, 2, 3]);
        for strategy in Strategy::FIGURE {
            // The same at every size; shown at the largest.
            let last = self.points.iter().rfind(|point| point.strategy == strategy);
            if let Some(point) = last {
                table.row([
                    strategy.name().to_owned(),
                    text::three(point.copies),
                    point.copies_expected.to_string(),
                    text::three(point.deliberate_updates),
                ]);
            }
        }
        table
    }

    /// Left half of figure 3: small sizes, where latency counts.
    pub(super) fn latency_graph(&self) -> Graph {
        const SMALL: usize = 1024;
        let mut series = self.series(&|point| point.one_way.median_ns / 1e3, SMALL);
        if let Some(r) = &self.r {
            let sizes = self.memcpy.iter().map(|limit| limit.bytes).filter(|&size| size <= SMALL);
            series.push(Series {
                name: "R: bare cache line".into(),
                points: sizes.map(|size| (size as f64, r.median_ns / 1e3)).collect(),
                limit: true,
            });
        }
        Graph {
            title: "One-way latency, user to user (figure 3, left)".into(),
            caption: self.caption(),
            y_label: "microseconds".into(),
            y_log: false,
            legend: Corner::UpperLeft,
            series,
        }
    }

    /// Right half: bandwidth.
    pub(super) fn bandwidth_graph(&self) -> Graph {
        let mut series = self.series(&|point| point.bytes_per_s / 1e9, LARGEST);
        series.push(Series {
            name: "memcpy into the same memory".into(),
            points: self
                .memcpy
                .iter()
                .map(|one| (one.bytes as f64, one.bytes_per_s / 1e9))
                .collect(),
            limit: true,
        });
        Graph {
            title: "Bandwidth, user to user (figure 3, right)".into(),
            caption: self.caption(),
            y_label: "GB/s".into(),
            y_log: true,
            legend: Corner::LowerRight,
            series,
        }
    }

    fn caption(&self) -> String {
        format!("{}; {}", self.head.machine.describe(), self.head.pinning)
    }

    fn series(&self, value: &dyn Fn(&Point) -> f64, largest: usize) -> Vec<Series> {
        Strategy::FIGURE
            .into_iter()
            .map(|strategy| Series {
                name: strategy.name().to_owned(),
                points: self
                    .points
                    .iter()
                    .filter(|point| point.strategy == strategy && point.bytes <= largest)
                    .map(|point| (point.bytes as f64, value(point)))
                    .collect(),
                limit: false,
            })
            .collect()
    }
}

fn point(cell: &Cell, r: Option<&Rounds>, memcpy: &[(usize, Rounds)]) -> Point {
    let one_way = cell.rounds.latency();
    let limit = memcpy.iter().find(|(bytes, _)| *bytes == cell.bytes);
    Point {
        strategy: cell.strategy,
        bytes: cell.bytes,
        bytes_per_s: cell.bytes as f64 / one_way.median_ns * 1e9,
        ratio_to_r: r.map(|r| stats::ratio(&cell.rounds, r)),
        ratio_to_memcpy: limit.map_or(f64::NAN, |(_, copy)| stats::ratio(copy, &cell.rounds)),
        copies: cell.per_message_byte(cell.copied),
        copies_expected: cell.strategy.copies(),
        deliberate_updates: cell.per_message_byte(cell.sent),
        one_way,
    }
}

/// Smallest size from which on DU-0copy is at least as fast as AU-1copy, two per cent of noise
/// allowed.
fn crossover(points: &[Point]) -> Option<usize> {
    let median = |strategy: Strategy, bytes: usize| {
        points
            .iter()
            .find(|point| point.strategy == strategy && point.bytes == bytes)
            .map(|point| point.one_way.median_ns)
    };
    let mut sizes: Vec<usize> = points.iter().map(|point| point.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut from = None;
    for &bytes in sizes.iter().rev() {
        match (median(Strategy::Du0, bytes), median(Strategy::Au1, bytes)) {
            (Some(du), Some(au)) if du <= au * 1.02 => from = Some(bytes),
            _ => break,
        }
    }
    from
}

fn budgets(measured: &Measured, points: &[Point], costs: &[Cost]) -> Vec<Budget> {
    let budget = |path, value: f64, budget: f64, unit, at_least| Budget {
        path,
        value,
        budget,
        unit,
        at_least,
        met: if at_least { value >= budget } else { value <= budget },
    };
    let mut budgets = Vec::new();
    for (path, compared, allowed) in
        [("AU word", &measured.au_word, 1.05), ("DU 8 B with flag", &measured.du_8, 1.15)]
    {
        if let Some((_, ratio)) = compared.turns.ratio() {
            budgets.push(budget(path, ratio, allowed, "R", false));
        }
    }
    if let Some(point) =
        points.iter().rfind(|point| point.strategy == Strategy::Du0 && point.bytes == LARGEST)
    {
        let value = point.ratio_to_memcpy;
        budgets.push(budget("DU-0copy of 1 MiB", value, 0.95, "memcpy", true));
    }
    for cost in costs {
        let path = match cost.daemon {
            "same CPU" => "import/export pair, daemon on the same CPU",
            "other CPU" => "import/export pair, daemon on the other CPU",
            _ => "import/export pair, daemon on any CPU",
        };
        budgets.push(budget(path, cost.pair_median_us, 50.0, "us", false));
    }
    budgets
}
