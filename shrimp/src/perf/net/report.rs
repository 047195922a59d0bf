//! What is printed and saved.

use super::others::Other;
use crate::perf::Head;
use crate::stats::Latency;
use crate::text::{self, Table};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) id: &'static str,
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) latency: Latency,
    /// Multiples of bare TCP, both sides polling, within a round.
    pub(super) ratio_to_tcp_spin: f64,
    /// Packets per operation, where there are any.
    pub(super) packets: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) latency: Vec<Line>,
    /// Bytes per second of transfers of 1 MiB.
    pub(super) tcp_bytes_per_s: f64,
    pub(super) send_bytes_per_s: f64,
    /// The second as a part of the first, within a round.
    pub(super) bandwidth_ratio: f64,
    /// The same by provider of libfabric.
    pub(super) ofi_bytes_per_s: BTreeMap<&'static str, f64>,
    /// The same where it writes straight into exported pages.
    pub(super) ofi_direct_bytes_per_s: BTreeMap<&'static str, f64>,
    /// What others make of the same sides.
    pub(super) others: Vec<Other>,
    /// Who of them is not shown, and why.
    pub(super) missing: Vec<String>,
}

pub(super) fn print(report: &Report) {
    let heading = ["one way, or one operation", "median", "p99", "bare TCP = 1", "packets"];
    let mut table = Table::new(&heading, &[1, 2, 3, 4]);
    for line in &report.latency {
        table.row([
            line.name.to_owned(),
            text::nanos(line.latency.median_ns),
            text::nanos(line.latency.p99_ns),
            text::three(line.ratio_to_tcp_spin),
            line.packets.map(text::three).unwrap_or_default(),
        ]);
    }
    let spin = report.latency.first().map_or(f64::NAN, |line| line.latency.median_ns);
    for other in &report.others {
        table.row([
            format!("{}, 8 B (1 MiB: {})", other.name, text::rate(other.bytes_per_s)),
            text::nanos(other.one_way_ns),
            String::new(),
            text::three(other.one_way_ns / spin),
            String::new(),
        ]);
    }
    let missing: String = report.missing.iter().map(|why| format!("not shown: {why}\n")).collect();
    let send = report.latency.iter().find(|line| line.id == "send");
    let ratio = send.map_or(f64::NAN, |line| line.ratio_to_tcp_spin);
    let rate = |it: &str, how, rate| format!(", over libfabric's {it}{how} {}", text::rate(rate));
    let over = report.ofi_bytes_per_s.iter().map(|(it, &per_s)| rate(it, "", per_s));
    let direct = report.ofi_direct_bytes_per_s.iter();
    let direct = direct.map(|(it, &per_s)| rate(it, " straight into pages", per_s));
    let over: String = over.chain(direct).collect();
    text::emit(&format!(
        "{table}{missing}\n1 MiB: DU {}{over}, bare TCP {}\n\nbudgets: 8 B {} of bare TCP that polls (at most 1.3); \
         1 MiB {} of its bandwidth (at least 0.95)\n",
        text::rate(report.send_bytes_per_s),
        text::rate(report.tcp_bytes_per_s),
        text::three(ratio),
        text::three(report.bandwidth_ratio),
    ));
}
