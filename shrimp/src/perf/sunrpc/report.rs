//! What `perf sunrpc` prints, saves and draws.

use super::programs::Counted;
use super::{SERVER_SLEEPS, TCP, WAYS};
use crate::perf::Head;
use crate::plot::{Corner, Graph, Series};
use crate::stats::{self, Latency, Rounds};
use crate::text::{self, Table};
use serde::Serialize;
use std::fmt::Write as _;

/// Null call in R with both sides spinning, at most.
const NULL_BUDGET: f64 = 7.0;
/// libtirpc's time over ours when the server sleeps, at least.
const SLEEPING_BUDGET: f64 = 2.0;

/// One size of one way.
#[derive(Debug, Serialize)]
struct Point {
    way: &'static str,
    /// Of argument and of result; 0 is the null call.
    bytes: usize,
    #[serde(flatten)]
    round_trip: Latency,
    /// Argument and result together.
    bytes_per_s: f64,
    ratio_to_r: Option<f64>,
    /// libtirpc's time over TCP divided by this.
    times_as_fast_as_tcp: f64,
}

/// What one way did per call, counted at the client.
#[derive(Debug, Serialize)]
struct PerCall {
    way: &'static str,
    /// Copies per byte sent, at the sender (R3, R7).
    copies_sent: f64,
    /// Copies per byte received: decoding, and putting pieces together before.
    copies_received: f64,
    doorbells: f64,
    sleeps: f64,
}

/// A part of the null call.
#[derive(Debug, Serialize)]
struct Part {
    name: &'static str,
    ns: f64,
    share: f64,
    /// Of 29 microseconds in 1996.
    share_in_1996: &'static str,
}

const PARTS: [(&str, &str, &str); 4] = [
    ("preparing the header, making the call", "prepare_ns", "24 %"),
    ("transfer, and waiting for the server", "transfer_ns", "74 %, less 5-6 us of the next"),
    ("processing the header", "header_ns", "19 %"),
    ("returning", "return_ns", "5 %"),
];

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    head: Head,
    /// None on one processor.
    r: Option<Latency>,
    points: Vec<Point>,
    per_call: Vec<PerCall>,
    parts: Vec<Part>,
    /// R as played in turns with null calls, and these in that R.
    r_in_turns_ns: Option<f64>,
    null_ratio_to_r: Option<f64>,
    null_budget: f64,
    sleeping_speed_up: Option<f64>,
    sleeping_budget: f64,
}

impl Report {
    pub(super) fn new(
        head: Head,
        sizes: &[usize],
        (r, turns): (Option<&Rounds>, Option<(f64, f64)>),
        rounds: &[Vec<Rounds>],
        counted: &[Counted],
        parts: Counted,
    ) -> Report {
        let mut points = Vec::new();
        for (way, cells) in WAYS.iter().zip(rounds) {
            for (at, (&bytes, cell)) in sizes.iter().zip(cells).enumerate() {
                let round_trip = cell.latency();
                if round_trip.rounds == 0 {
                    continue; // too long for a datagram
                }
                let tcp = rounds.get(TCP).and_then(|cells| cells.get(at));
                points.push(Point {
                    way: way.name,
                    bytes,
                    bytes_per_s: 2.0 * bytes as f64 / round_trip.median_ns * 1e9,
                    ratio_to_r: r.map(|r| stats::ratio(cell, r)),
                    times_as_fast_as_tcp: tcp.map_or(f64::NAN, |tcp| stats::ratio(tcp, cell)),
                    round_trip,
                });
            }
        }
        let ours = WAYS.iter().zip(counted).filter(|(way, _)| way.how.is_ours());
        let per_call = ours.map(|(way, counted)| {
            let calls = counted.get("calls_ring");
            PerCall {
                way: way.name,
                copies_sent: counted.get("spilled_bytes") / counted.get("sent_bytes"),
                copies_received: 1.0
                    + counted.get("assembled_bytes") / counted.get("received_bytes"),
                doorbells: counted.get("doorbells") / calls,
                sleeps: counted.get("sleeps") / calls,
            }
        });
        let per_call = per_call.collect();
        let ns = |counter| parts.get(counter) / parts.get("timed_calls");
        let sum: f64 = PARTS.iter().map(|part| ns(part.1)).sum();
        let parts = PARTS
            .iter()
            .map(|&(name, counter, share_in_1996)| Part {
                name,
                ns: ns(counter),
                share: ns(counter) / sum,
                share_in_1996,
            })
            .collect();
        let null = |way: usize| {
            let way = WAYS.get(way)?.name;
            points.iter().find(|point| point.way == way && point.bytes == 0)
        };
        Report {
            head,
            r: r.map(Rounds::latency),
            r_in_turns_ns: turns.map(|(r, _)| r),
            null_ratio_to_r: turns.map(|(_, ratio)| ratio),
            null_budget: NULL_BUDGET,
            sleeping_speed_up: null(SERVER_SLEEPS).map(|point| point.times_as_fast_as_tcp),
            sleeping_budget: SLEEPING_BUDGET,
            per_call,
            parts,
            points,
        }
    }

    fn table(&self, from: usize, cell: &dyn Fn(&Point) -> String) -> Table {
        let mut heading = vec!["argument and result"];
        heading.extend(WAYS.iter().map(|way| way.name));
        let mut table = Table::new(&heading, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let first = WAYS.first().map(|way| way.name);
        let rows = self.points.iter().filter(|it| Some(it.way) == first && it.bytes >= from);
        for bytes in rows.map(|it| it.bytes) {
            let mut row =
                vec![if bytes == 0 { "none (null call)".into() } else { text::size(bytes as u64) }];
            row.extend(WAYS.iter().map(|way| {
                let mut points = self.points.iter();
                points
                    .find(|it| it.bytes == bytes && it.way == way.name)
                    .map(cell)
                    .unwrap_or_default()
            }));
            table.row(row);
        }
        table
    }

    pub(super) fn render(&self) -> String {
        let mut out = String::new();
        match &self.r {
            Some(r) => {
                let _ = writeln!(out, "R, bare cache line, one way: {}", text::nanos(r.median_ns));
            }
            None => out.push_str("Only one CPU: no R, and who spins keeps the other from it.\n"),
        }
        let latency = self.table(0, &|point| text::nanos(point.round_trip.median_ns));
        let _ = writeln!(out, "\nRound trip (figure 5)\n{latency}");
        let ratio = self.table(0, &|point| text::factor(point.times_as_fast_as_tcp));
        let _ = writeln!(out, "Times as fast as TCP\n{ratio}");
        let bandwidth = self.table(1024, &|point| text::rate(point.bytes_per_s));
        let _ = writeln!(out, "Bandwidth, both directions together (figure 5)\n{bandwidth}");
        let mut parts = Table::new(&["part of a null call", "time", "share", "1996"], &[1, 2]);
        for part in &self.parts {
            let share = format!("{:.0} %", 100.0 * part.share);
            parts.row([part.name, &text::nanos(part.ns), &share, part.share_in_1996]);
        }
        let _ = writeln!(out, "At the client, both spinning; reading the clock included\n{parts}");
        let heading = ["way", "copies sent", "copies received", "doorbells", "sleeps"];
        let mut counted = Table::new(&heading, &[1, 2, 3, 4]);
        for it in &self.per_call {
            let numbers = [it.copies_sent, it.copies_received, it.doorbells, it.sleeps];
            counted.row(std::iter::once(it.way.to_owned()).chain(numbers.map(text::three)));
        }
        let _ = writeln!(
            out,
            "Copies per byte, and what the client did per call, counted over all sizes\n{counted}"
        );
        let met = |met: bool| if met { "met" } else { "NOT MET" };
        if let (Some(ratio), Some(r)) = (self.null_ratio_to_r, self.r_in_turns_ns) {
            let _ = writeln!(
                out,
                "Null call, both spinning, in turns with R ({}): {} R round trip, budget <= {NULL_BUDGET} R: {}",
                text::nanos(r),
                text::three(ratio),
                met(ratio <= NULL_BUDGET)
            );
        }
        if let Some(speed_up) = self.sleeping_speed_up {
            let _ = writeln!(
                out,
                "Null call, server asleep: {} as fast as TCP, budget >= {}: {}",
                text::factor(speed_up),
                text::factor(SLEEPING_BUDGET),
                met(speed_up >= SLEEPING_BUDGET)
            );
        }
        out
    }

    fn series(
        &self,
        value: &dyn Fn(&Point) -> f64,
        sizes: std::ops::RangeInclusive<usize>,
    ) -> Vec<Series> {
        let series = WAYS.iter().map(|way| Series {
            name: way.name.to_owned(),
            points: self
                .points
                .iter()
                .filter(|point| point.way == way.name && sizes.contains(&point.bytes))
                .map(|point| (point.bytes as f64, value(point)))
                .collect(),
            limit: false,
        });
        series.collect()
    }

    fn caption(&self) -> String {
        format!("{}; {}", self.head.machine.describe(), self.head.pinning)
    }

    pub(super) fn latency_graph(&self) -> Graph {
        Graph {
            title: "Sun RPC: round trip with one argument and one result (figure 5)".into(),
            caption: self.caption(),
            y_label: "microseconds".into(),
            y_log: true,
            legend: Corner::LowerRight,
            series: self.series(&|point| point.round_trip.median_ns / 1e3, 4..=1000),
        }
    }

    pub(super) fn bandwidth_graph(&self) -> Graph {
        Graph {
            title: "Sun RPC: bandwidth, both directions together (figure 5)".into(),
            caption: self.caption(),
            y_label: "GB/s".into(),
            y_log: true,
            legend: Corner::LowerRight,
            series: self.series(&|point| point.bytes_per_s / 1e9, 4..=1 << 20),
        }
    }
}
