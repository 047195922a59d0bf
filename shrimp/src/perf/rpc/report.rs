//! What `shrimp perf rpc` prints and saves: the table, the budgets, the graphs.

use super::{Cell, Handler, LARGEST, MADE_SIZES, Measured, OUT_SIZES, POLLS, ours};
use crate::cpu::Pair;
use crate::perf::Head;
use crate::plot::{Corner, Graph, Series};
use crate::stats::{self, Latency, Rounds};
use crate::text::{self, Table};
use serde::Serialize;

/// What our own is called.
pub(super) const OURS: &str = "SHRIMP RPC";
const VRPC: &str = "VRPC";
/// Ours where both sides poll for ever.
pub(super) const POLLING: &str = "polling";

/// Round trip of a null call, in R.
const NULL_BUDGET: f64 = 2.4;
/// How many times faster than VRPC: small arguments (F13).
const SMALL_BUDGET: f64 = 2.5;
/// The same, larger ones.
const LARGE_BUDGET: f64 = 1.5;
/// How many times as long after computing the reply may come with the most OUT data as with the least (F9).
const OUT_BUDGET: f64 = 1.5;
/// Longest argument that is small, in bytes.
const SMALL: usize = 100;

/// One point of a subject.
#[derive(Debug, Serialize)]
struct Point {
    #[serde(flatten)]
    cell: Cell,
    #[serde(flatten)]
    round_trip: Latency,
    /// Multiples of R, which is one way; none on one processor.
    ratio_to_r: Option<f64>,
    /// Multiples of what ours takes, as it waits or, of a peer that polls for ever, polling too.
    ratio_to_ours: f64,
}

#[derive(Debug, Serialize)]
struct Line {
    name: &'static str,
    points: Vec<Point>,
}

#[derive(Debug, Serialize)]
struct Absent {
    name: &'static str,
    why: String,
}

/// The reply's latency after the server has computed.
#[derive(Debug, Serialize)]
struct Out {
    bytes: usize,
    #[serde(flatten)]
    after_computing: Latency,
}

/// Arguments that are made and results that are used by the caller.
#[derive(Debug, Serialize)]
struct Made {
    bytes: usize,
    copied: Latency,
    in_place: Latency,
    /// How many times as long the copied one takes.
    copied_to_in_place: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    head: Head,
    /// None on one processor.
    r: Option<Latency>,
    null_ratio_to_r: Option<f64>,
    /// R as it was played in turns with null calls.
    r_in_turns_ns: Option<f64>,
    /// Messages per null call that this side sent (F4), and bytes in each (F14).
    null_packets: f64,
    null_packet_bytes: f64,
    /// What calls move, and nothing else ([`super::bare`]).
    bare: Option<Line>,
    /// Ours first.
    subjects: Vec<Line>,
    absent: Vec<Absent>,
    out_while_computing: Vec<Out>,
    made_and_used: Vec<Made>,
}

impl Report {
    pub(super) fn new(head: Head, pair: Pair, measured: &Measured) -> Report {
        let r = (!pair.is_single()).then_some(&measured.r);
        let in_turns = measured.null.ratio();
        let none = Vec::new();
        let ours = measured.subjects.first().map_or(&none, |ours| &ours.rounds);
        let polling = measured.polling.as_ref().map_or(ours, |polling| &polling.rounds);
        let line = |name, rounds: &[Rounds], ours: &[Rounds]| Line {
            name,
            points: (measured.cells.iter().zip(rounds).zip(ours))
                .map(|((cell, rounds), ours)| Point {
                    cell: *cell,
                    round_trip: rounds.latency(),
                    ratio_to_r: r.map(|r| stats::ratio(rounds, r)),
                    ratio_to_ours: stats::ratio(rounds, ours),
                })
                .collect(),
        };
        let mut subjects: Vec<Line> = (measured.subjects.iter())
            .map(|subject| {
                let ours = if subject.name == POLLS { polling } else { ours };
                line(subject.name, &subject.rounds, ours)
            })
            .collect();
        if let Some(polling) = &measured.polling {
            let peer = subjects.iter().position(|line| line.name == POLLS);
            subjects.insert(peer.unwrap_or(1), line(POLLING, &polling.rounds, ours));
        }
        Report {
            head,
            r: r.map(Rounds::latency),
            null_ratio_to_r: in_turns.map(|(_, ratio)| ratio),
            r_in_turns_ns: in_turns.map(|(r, _)| r),
            null_packets: measured.packets.0,
            null_packet_bytes: measured.packets.1,
            bare: measured.bare.as_ref().map(|bare| line(bare.name, &bare.rounds, ours)),
            subjects,
            absent: (measured.absent.iter())
                .map(|(name, why)| Absent { name, why: why.clone() })
                .collect(),
            out_while_computing: (OUT_SIZES.iter().zip(&measured.after_computing))
                .map(|(bytes, rounds)| Out { bytes: *bytes, after_computing: rounds.latency() })
                .collect(),
            made_and_used: (MADE_SIZES.iter().zip(&measured.made))
                .map(|(bytes, [copied, in_place])| Made {
                    bytes: *bytes,
                    copied: copied.latency(),
                    in_place: in_place.latency(),
                    copied_to_in_place: stats::ratio(copied, in_place),
                })
                .collect(),
        }
    }

    pub(super) fn render(&self) -> String {
        let r = match &self.r {
            Some(r) => format!("R, bare cache line, one way: {}\n", text::nanos(r.median_ns)),
            None => "Only one CPU: no R, and every call costs two switches of processes.\n".into(),
        };
        let mut text = r;
        for handler in [Handler::Leaves, Handler::Writes] {
            text +=
                &format!("\nRound trip (figure 8), {}\n{}", handler.name(), self.table(handler));
        }
        let mut out = Table::new(&["OUT data", "reply after computing"], &[0, 1]);
        for line in &self.out_while_computing {
            let after = text::nanos(line.after_computing.median_ns);
            out.row([text::size(line.bytes as u64), after]);
        }
        let mut made = Table::new(&["INOUT argument", "copied", "in place", "x"], &[0, 1, 2, 3]);
        for line in &self.made_and_used {
            made.row([
                text::size(line.bytes as u64),
                text::nanos(line.copied.median_ns),
                text::nanos(line.in_place.median_ns),
                text::three(line.copied_to_in_place),
            ]);
        }
        text += &format!(
            "\nThe same, and the caller makes the argument and uses the result: in memory of its own, or where \
             they lie (loan)\n{made}"
        );
        text += &format!(
            "\nOUT data written before the server computes for {} us: from the end of that to the reply \
             (F9)\n{out}\n{}",
            ours::COMPUTING.as_micros(),
            self.budgets()
        );
        for absent in &self.absent {
            text += &format!("Not measured: {}: {}\n", absent.name, absent.why);
        }
        text
    }

    /// A column for each subject; ours also in R, the others as multiples of ours.
    fn table(&self, handler: Handler) -> Table {
        let mut heading = vec!["INOUT argument"];
        for (at, subject) in self.subjects.iter().enumerate() {
            heading.push(subject.name);
            heading.push(if at == 0 { "R" } else { "x" });
        }
        heading.extend(self.bare.iter().flat_map(|bare| [bare.name, "x"]));
        let right: Vec<usize> = (0..heading.len()).collect();
        let mut table = Table::new(&heading, &right);
        let Some(ours) = self.subjects.first() else { return table };
        for (at, point) in ours.points.iter().enumerate() {
            if point.cell.handler != handler && point.cell.handler != Handler::Null {
                continue;
            }
            let mut row = vec![match point.cell.handler {
                Handler::Null => "none".to_owned(),
                Handler::Leaves | Handler::Writes => text::size(point.cell.bytes as u64),
            }];
            for (column, subject) in self.subjects.iter().enumerate() {
                let Some(point) = subject.points.get(at) else { continue };
                row.push(text::nanos(point.round_trip.median_ns));
                row.push(match column {
                    0 => point.ratio_to_r.map(text::three).unwrap_or_default(),
                    _ => text::three(point.ratio_to_ours),
                });
            }
            if let Some(point) = self.bare.as_ref().and_then(|bare| bare.points.get(at)) {
                row.push(text::nanos(point.round_trip.median_ns));
                row.push(text::three(point.ratio_to_ours));
            }
            table.row(row);
        }
        table
    }

    /// The point of a subject where it comes nearest to ours, among those that `which` chooses.
    fn nearest(line: &Line, which: impl Fn(&Point) -> bool) -> Option<&Point> {
        let points = line.points.iter().filter(|point| which(point));
        points.min_by(|a, b| a.ratio_to_ours.total_cmp(&b.ratio_to_ours))
    }

    /// The same beside ours as programs have it, by medians: how many times as long this one takes.
    fn nearest_as_programs_wait<'l>(&self, line: &'l Line) -> Option<(f64, &'l Point)> {
        let ours = self.subjects.first()?;
        let ratios =
            line.points.iter().zip(&ours.points).map(|(point, ours)| {
                (point.round_trip.median_ns / ours.round_trip.median_ns, point)
            });
        ratios.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    fn budgets(&self) -> String {
        let mut text = String::new();
        let met = |met| if met { "met" } else { "NOT MET" };
        let at = |point: &Point| match point.cell.handler {
            Handler::Null => point.cell.handler.name().to_owned(),
            handler => format!("{}, {}", text::size(point.cell.bytes as u64), handler.name()),
        };
        if let (Some(ratio), Some(r)) = (self.null_ratio_to_r, self.r_in_turns_ns) {
            text += &format!(
                "Null call: {} R in turns with an R of {}, a bare round trip being 2 R, {}; budget {NULL_BUDGET} R: {}.\n",
                text::three(ratio),
                text::nanos(r),
                text::nanos(2.0 * r),
                met(ratio <= NULL_BUDGET)
            );
        }
        // No call is faster than what it moves, whoever makes it.
        let reachable = |point: &Point| {
            if point.cell.bytes <= SMALL {
                let times = text::three(point.ratio_to_r? / 2.0);
                return Some(format!("; a bare round trip (2 R) would be {times} times"));
            }
            let bare = self.bare.as_ref()?.points.iter().find(|bare| bare.cell == point.cell)?;
            let times = text::three(point.round_trip.median_ns / bare.round_trip.median_ns);
            Some(format!("; to move the same bytes and do nothing else would be {times} times"))
        };
        if let [smallest, .., largest] = self.out_while_computing.as_slice() {
            let times = largest.after_computing.median_ns / smallest.after_computing.median_ns;
            text += &format!(
                "Reply after computing (F9): with {} of OUT data {} times as long as with {}, budget {OUT_BUDGET}: {}.\n",
                text::size(largest.bytes as u64),
                text::three(times),
                text::size(smallest.bytes as u64),
                met(times <= OUT_BUDGET)
            );
        }
        for line in self.subjects.iter().skip(1) {
            if line.name == VRPC {
                let small = Report::nearest(line, |point| point.cell.bytes <= SMALL);
                let large = Report::nearest(line, |point| point.cell.bytes > SMALL);
                for (which, point, budget) in
                    [("small", small, SMALL_BUDGET), ("large", large, LARGE_BUDGET)]
                {
                    let Some(point) = point else { continue };
                    text += &format!(
                        "Faster than VRPC, {which} arguments: at least {} times ({}), budget \
                         {budget}: {}{}.\n",
                        text::three(point.ratio_to_ours),
                        at(point),
                        met(point.ratio_to_ours >= budget),
                        reachable(point).unwrap_or_default()
                    );
                }
            } else if line.name != POLLING
                && let Some(point) = Report::nearest(line, |_| true)
            {
                let both = if line.name == POLLS { ", both polling for ever" } else { "" };
                text += &format!(
                    "Ahead of {}{both}: at least {} times ({}): {}.\n",
                    line.name,
                    text::three(point.ratio_to_ours),
                    at(point),
                    met(point.ratio_to_ours > 1.0)
                );
                if line.name == POLLS
                    && let Some((ratio, point)) = self.nearest_as_programs_wait(line)
                {
                    text += &format!(
                        "Ahead of {}, ours as programs wait: at least {} times ({}): {}.\n",
                        line.name,
                        text::three(ratio),
                        at(point),
                        met(ratio > 1.0)
                    );
                }
            }
        }
        text + &format!(
            "Messages per null call and direction: {}, of {} bytes.\n",
            text::three(self.null_packets),
            text::three(self.null_packet_bytes)
        )
    }

    /// Ours by both handlers, and VRPC, as the paper's figure has them.
    pub(super) fn figure8(&self) -> Graph {
        self.graph(1000, false, &[Handler::Leaves, Handler::Writes], |name| {
            name == OURS || name == VRPC
        })
    }

    pub(super) fn figure8_large(&self) -> Graph {
        self.graph(LARGEST, true, &[Handler::Leaves, Handler::Writes], |name| {
            name == OURS || name == VRPC
        })
    }

    /// All subjects, with the handler that writes.
    pub(super) fn peers_graph(&self) -> Graph {
        self.graph(LARGEST, true, &[Handler::Writes], |_| true)
    }

    fn graph(
        &self,
        largest: usize,
        y_log: bool,
        handlers: &[Handler],
        which: impl Fn(&str) -> bool,
    ) -> Graph {
        let mut series = Vec::new();
        for line in self.subjects.iter().filter(|line| which(line.name)) {
            for handler in handlers {
                let points = line
                    .points
                    .iter()
                    .filter(|point| point.cell.handler == *handler && point.cell.bytes <= largest);
                series.push(Series {
                    name: match handlers {
                        [_] => line.name.to_owned(),
                        _ => format!("{}, {}", line.name, handler.name()),
                    },
                    points: points
                        .map(|it| (it.cell.bytes as f64, it.round_trip.median_ns / 1e3))
                        .collect(),
                    limit: false,
                });
            }
        }
        if let (Some(r), Some(first)) = (&self.r, series.first()) {
            let points = first.points.iter().map(|(x, _)| (*x, 2.0 * r.median_ns / 1e3)).collect();
            let name = "bare cache line, there and back".into();
            series.push(Series { name, points, limit: true });
        }
        Graph {
            title: "Round trip of a null procedure with one INOUT argument (figure 8)".into(),
            caption: format!("{}; {}", self.head.machine.describe(), self.head.pinning),
            y_label: "microseconds".into(),
            y_log,
            legend: Corner::UpperLeft,
            series,
        }
    }
}
