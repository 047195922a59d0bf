//! `shrimp stat` in the Prometheus text exposition format, version 0.0.4.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>: the lines of one metric stand
//! together, after its HELP and TYPE.

use super::Report;
use std::collections::BTreeMap;
use std::fmt::Write;

/// One metric: kind, help, lines.
struct Metric {
    kind: &'static str,
    help: String,
    lines: Vec<String>,
}

#[derive(Default)]
struct Metrics(BTreeMap<String, Metric>);

impl Metrics {
    fn add(
        &mut self,
        name: &str,
        kind: &'static str,
        help: &str,
        labels: &[(&str, String)],
        value: u64,
    ) {
        let mut line = name.to_owned();
        for (i, (label, text)) in labels.iter().enumerate() {
            line.push(if i == 0 { '{' } else { ',' });
            let _ = write!(line, "{label}=\"{}\"", escape(text));
        }
        if !labels.is_empty() {
            line.push('}');
        }
        let _ = write!(line, " {value}");
        self.0
            .entry(name.to_owned())
            .or_insert_with(|| Metric { kind, help: help.to_owned(), lines: vec![] })
            .lines
            .push(line);
    }
}

/// The whole page.
pub(super) fn render(report: &Report) -> String {
    let mut metrics = Metrics::default();
    let daemon = &report.daemon;
    let version = [("version", daemon.version.clone()), ("socket", daemon.socket.clone())];
    metrics.add("vmmc_daemon_info", "gauge", "The daemon.", &version, 1);
    metrics.add("vmmc_daemon_uptime_seconds", "gauge", "Since it started.", &[], daemon.uptime_s);
    metrics.add(
        "vmmc_daemon_wake_cost_nanoseconds",
        "gauge",
        "Cost of waking a sleeping process.",
        &[],
        daemon.wake_cost_ns,
    );
    for (name, count) in [
        ("vmmc_clients", report.clients.len()),
        ("vmmc_exports", report.exports.len()),
        ("vmmc_links", report.links.len()),
    ] {
        metrics.add(name, "gauge", "Live now.", &[], count as u64);
    }
    for (name, value) in &daemon.counters {
        let metric = format!("vmmc_daemon_{}", metric_name(name));
        metrics.add(&metric, "counter", "Counted by the daemon.", &[], *value);
    }
    for client in &report.clients {
        let labels = [
            ("client", client.client.to_string()),
            ("pid", client.pid.to_string()),
            ("program", client.program.clone()),
        ];
        for (name, value) in &client.counters {
            let metric = format!("vmmc_client_{}", metric_name(name));
            metrics.add(&metric, "counter", "Counted by the process.", &labels, *value);
        }
    }
    let mut states: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut ring_bytes = 0u64;
    for connection in &report.connections {
        *states
            .entry((connection.state, connection.reason.as_deref().unwrap_or("")))
            .or_default() += 1;
        ring_bytes = ring_bytes.saturating_add(connection.ring_bytes);
    }
    for ((state, reason), count) in states {
        let labels = [("state", state.to_owned()), ("reason", reason.to_owned())];
        metrics.add(
            "vmmc_connections",
            "gauge",
            "TCP connections of programs that take part.",
            &labels,
            count,
        );
    }
    metrics.add(
        "vmmc_connections_ring_bytes",
        "gauge",
        "Bytes that the connections listed now have put into their rings.",
        &[],
        ring_bytes,
    );
    let mut out = String::new();
    for (name, metric) in &metrics.0 {
        let _ = writeln!(out, "# HELP {name} {}", metric.help);
        let _ = writeln!(out, "# TYPE {name} {}", metric.kind);
        for line in &metric.lines {
            let _ = writeln!(out, "{line}");
        }
    }
    out
}

/// A counter's name, which its process chose, as part of a metric's; ends in `_total` once.
fn metric_name(name: &str) -> String {
    let plain = name.trim_end_matches("_total");
    let mut name: String = plain
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect();
    name.push_str("_total");
    name
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
