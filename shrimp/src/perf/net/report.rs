//! What is printed and saved.

use super::contest::{PAPER_BULK, PAPER_SPARSE, Row};
use super::others::Other;
use super::updates::{OneWay, Stream, Way};
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
    /// From the store, or the send, until the reader has it.
    pub(super) one_way: Vec<OneWay>,
    /// By short stores with combining, and by short sends.
    pub(super) streams: Vec<Stream>,
    /// Combining on against off, over TCP.
    pub(super) combining: Vec<Combined>,
    /// Automatic against deliberate update.
    pub(super) contest: Vec<Row>,
    /// What others make of the same sides.
    pub(super) others: Vec<Other>,
    /// Who of them is not shown, and why.
    pub(super) missing: Vec<String>,
}

/// What combining is worth where it should help, and where it cannot (M32).
#[derive(Debug, Serialize)]
pub(super) struct Combined {
    /// `bulk`: consecutive words; `sparse`: a word per line.
    pub(super) stores: &'static str,
    /// How many times as many packets there are without it.
    pub(super) packets_ratio: f64,
    /// How many times as fast it is, within a round.
    pub(super) is_faster: f64,
}

/// Prints it.
pub(super) fn print(report: &Report) {
    text::emit(&render(report));
}

fn render(report: &Report) -> String {
    format!(
        "{}\n{}\n{}\n{}{}\n{}",
        operations(report),
        one_way(&report.one_way),
        streams(&report.streams),
        contest(&report.contest),
        combining(&report.combining),
        bandwidth(report),
    )
}

/// Everything over one network and by one way is a column.
fn columns<T>(all: &[T], key: impl Fn(&T) -> (&'static str, Way)) -> Vec<(&'static str, Way)> {
    let mut columns = Vec::new();
    for it in all {
        if !columns.contains(&key(it)) {
            columns.push(key(it));
        }
    }
    columns
}

/// A table with a row per length and a column for each network and way.
fn by_length<T>(
    title: &str,
    all: &[T],
    key: impl Fn(&T) -> (&'static str, Way, usize),
    cell: impl Fn(&T) -> String,
) -> String {
    let columns = columns(all, |it| (key(it).0, key(it).1));
    let heads = columns.iter().map(|(over, way)| format!("{} over {over}", way.name()));
    let heads: Vec<String> = std::iter::once(title.to_owned()).chain(heads).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let right: Vec<usize> = (1..heads.len()).collect();
    let mut table = Table::new(&heads, &right);
    let mut lens: Vec<usize> = all.iter().map(|it| key(it).2).collect();
    lens.sort_unstable();
    lens.dedup();
    for len in lens {
        let found = columns.iter().map(|&(over, way)| {
            all.iter().find(|it| key(it) == (over, way, len)).map(&cell).unwrap_or_default()
        });
        table.row(std::iter::once(text::size(len as u64)).chain(found));
    }
    table.to_string()
}

fn one_way(all: &[OneWay]) -> String {
    let key = |it: &OneWay| (it.over, it.way, it.bytes);
    by_length("until the reader has it", all, key, |it| text::nanos(it.latency.median_ns))
}

fn streams(all: &[Stream]) -> String {
    let key = |it: &Stream| (it.over, it.way, it.bytes);
    // Megabytes even where there are thousands: a column is compared down as well as across.
    let cell = |it: &Stream| text::three(it.bytes_per_s / 1e6);
    by_length("a stream of such pieces, MB/s", all, key, cell)
}

/// A factor, also where it is a hundredth and less.
fn times(value: f64) -> String {
    if value < 0.1 { format!("{value:.3}x") } else { text::factor(value) }
}

fn contest(rows: &[Row]) -> String {
    let heading = [
        "2,048 keys of 8 B on 128 pages; 512 KiB",
        "over",
        "median",
        "packets",
        "AU is faster",
        "tracked is",
    ];
    let mut table = Table::new(&heading, &[2, 3, 4, 5]);
    for row in rows {
        table.row([
            row.name.to_owned(),
            row.over.to_owned(),
            text::nanos(row.latency.median_ns),
            text::three(row.packets),
            times(row.au_is_faster),
            row.tracked_is_faster.map(times).unwrap_or_default(),
        ]);
    }
    let of = |id: &str| {
        let row = rows.iter().find(|row| row.over == "tcp" && row.id == id);
        let factor = |value: Option<f64>| times(value.unwrap_or(f64::NAN));
        let writer = factor(row.map(|row| row.au_is_faster));
        format!("{writer}, tracked {}", factor(row.and_then(|row| row.tracked_is_faster)))
    };
    format!(
        "{table}\nAU against DU over TCP (M34), times as fast: sparse {} as a send each; {} as gathered (the paper's Radix, as a \
         whole {}); bulk {} as the same stores and a send, {} as the send alone (the paper's N-body, as a whole {})\n",
        of("sparse_du"),
        of("sparse_du_gathered"),
        text::factor(PAPER_SPARSE),
        of("bulk_du_stored"),
        of("bulk_du"),
        text::factor(PAPER_BULK),
    )
}

fn combining(all: &[Combined]) -> String {
    let each = all.iter().map(|it| {
        format!(
            "{} {} as fast with {} fewer packets",
            it.stores,
            text::factor(it.is_faster),
            text::factor(it.packets_ratio)
        )
    });
    let each: Vec<String> = each.collect();
    format!(
        "combining against none (M32): {} (the paper's: bulk about 2x, sparse about 1x)\n",
        each.join("; ")
    )
}

/// What is timed by one operation after another, and what others make of it.
fn operations(report: &Report) -> String {
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
    format!("{table}{missing}")
}

/// Of long transfers, and what the budgets say.
fn bandwidth(report: &Report) -> String {
    let send = report.latency.iter().find(|line| line.id == "send");
    let ratio = send.map_or(f64::NAN, |line| line.ratio_to_tcp_spin);
    let rate = |it: &str, how, rate| format!(", over libfabric's {it}{how} {}", text::rate(rate));
    let over = report.ofi_bytes_per_s.iter().map(|(it, &per_s)| rate(it, "", per_s));
    let direct = report.ofi_direct_bytes_per_s.iter();
    let direct = direct.map(|(it, &per_s)| rate(it, " straight into pages", per_s));
    let over: String = over.chain(direct).collect();
    format!(
        "1 MiB: DU {}{over}, bare TCP {}\n\nbudgets: 8 B {} of bare TCP that polls (at most 1.3); \
         1 MiB {} of its bandwidth (at least 0.95)\n",
        text::rate(report.send_bytes_per_s),
        text::rate(report.tcp_bytes_per_s),
        text::three(ratio),
        text::three(report.bandwidth_ratio),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(median_ns: f64) -> Latency {
        Latency {
            median_ns,
            p99_ns: median_ns,
            best_ns: median_ns,
            rounds: 1,
            samples: 1,
            batch: 1,
        }
    }

    #[test]
    fn a_table_by_length_has_a_column_for_each_network_and_way() {
        let pass = |over, way, bytes, ns| OneWay { over, way, bytes, latency: latency(ns) };
        let all = [
            pass("tcp", Way::Au, 8, 9_000.0),
            pass("tcp", Way::Du, 8, 10_000.0),
            pass("tcp", Way::Au, 4096, 11_000.0),
            pass("tcp", Way::Du, 4096, 12_000.0),
            pass("net", Way::Au, 8, 13_000.0),
        ];
        let text = one_way(&all);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("AU over tcp") && lines[0].contains("AU over net"), "{text}");
        assert!(!lines[0].contains("DU over net"), "{text}");
        let short = lines.iter().find(|line| line.trim_start().starts_with("8 B")).unwrap();
        assert!(short.contains("9.00 us") && short.contains("13.0 us"), "{text}");
        let page = lines.iter().find(|line| line.trim_start().starts_with("4 KiB")).unwrap();
        assert!(page.contains("11.0 us") && page.contains("12.0 us"), "{text}");
    }

    #[test]
    fn streams_are_in_megabytes_per_second() {
        let stream = Stream { over: "tcp", way: Way::Au, bytes: 1024, bytes_per_s: 2.5e9 };
        let text = streams(&[stream]);
        assert!(text.contains("MB/s") && text.contains("2500"), "{text}");
    }

    #[test]
    fn the_papers_factors_stand_beside_ours() {
        let row = |id, au_is_faster| Row {
            over: "tcp",
            id,
            name: id,
            latency: latency(1.0),
            packets: 1.0,
            au_is_faster,
            tracked_is_faster: Some(10.0 * au_is_faster),
        };
        let rows = [row("sparse_du", 1.01), row("sparse_du_gathered", 0.005), row("bulk_du", 0.5)];
        let text = contest(&rows);
        for word in [
            "1.01x, tracked 10.1x as a send each",
            "0.005x, tracked 0.050x as gathered",
            "3.40x",
            "0.50x",
            "0.89x",
        ] {
            assert!(text.contains(word), "no {word:?} in {text}");
        }
        let bulk = Combined { stores: "bulk", packets_ratio: 512.0, is_faster: 40.0 };
        assert!(combining(&[bulk]).contains("bulk 40.0x as fast with 512x fewer packets"));
    }
}
