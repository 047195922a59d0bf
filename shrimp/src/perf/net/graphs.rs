//! The graphs: how long a message takes until the reader has it, and how many bytes go through in pieces of a length.

use super::report::Report;
use super::updates::Way;
use crate::perf::Head;
use crate::plot::{Corner, Graph, Series};

/// A line for each network and way, in the order in which they were measured.
fn series<T>(
    all: &[T],
    key: impl Fn(&T) -> (&'static str, Way),
    point: impl Fn(&T) -> (f64, f64),
) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for it in all {
        let (over, way) = key(it);
        let name = format!("{} over {over}", way.name());
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point(it)),
            None => lines.push(Series { name, points: vec![point(it)], limit: false }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

fn graph(head: &Head, title: &str, y_label: &str, series: Vec<Series>) -> Graph {
    Graph {
        title: title.into(),
        caption: format!("{}; {}", head.machine.describe(), head.pinning),
        y_label: y_label.into(),
        y_log: true,
        legend: Corner::UpperLeft,
        series,
    }
}

/// One way, by length.
pub(super) fn latency(report: &Report) -> Graph {
    let key = |it: &super::updates::OneWay| (it.over, it.way);
    let all = series(&report.one_way, key, |it| (it.bytes as f64, it.latency.median_ns / 1e3));
    graph(&report.head, "between nodes: until the reader has it", "one way, µs", all)
}

/// Bytes per second, by length of a piece; of deliberate updates also of 1 MiB, beside bare TCP.
pub(super) fn bandwidth(report: &Report) -> Graph {
    let key = |it: &super::updates::Stream| (it.over, it.way);
    let mut all = series(&report.streams, key, |it| (it.bytes as f64, it.bytes_per_s / 1e9));
    let long = super::LEN as f64;
    let shortest = report.streams.iter().map(|it| it.bytes).min().unwrap_or(1) as f64;
    let over = report.ofi_bytes_per_s.iter().map(|(&over, &rate)| (over, rate));
    for (over, rate) in over.chain([("tcp", report.send_bytes_per_s)]) {
        let name = format!("{} over {over}", Way::Du.name());
        if let Some(line) = all.iter_mut().find(|line| line.name == name) {
            line.points.push((long, rate / 1e9));
        }
    }
    let limit = report.tcp_bytes_per_s / 1e9;
    let points = vec![(shortest, limit), (long, limit)];
    all.push(Series { name: "bare TCP, 1 MiB".into(), points, limit: true });
    graph(&report.head, "between nodes: streams", "GB/s", all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_network_and_way_ascends() {
        let all = [
            ("tcp", Way::Du, 64.0),
            ("tcp", Way::Au, 8.0),
            ("tcp", Way::Du, 8.0),
            ("net", Way::Du, 8.0),
        ];
        let lines = series(&all, |it| (it.0, it.1), |it| (it.2, 1.0));
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["DU over tcp", "AU over tcp", "DU over net"]);
        assert_eq!(lines[0].points, [(8.0, 1.0), (64.0, 1.0)]);
    }
}
