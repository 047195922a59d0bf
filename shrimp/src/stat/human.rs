//! `shrimp stat` as tables.

use super::Report;
use crate::text::{Table, nanos, size};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The tables; counters that are zero only with `all`.
pub(super) fn render(report: &Report, all: bool) -> String {
    let daemon = &report.daemon;
    let mut out = format!(
        "vmmcd {}, process {}, user {}, up {}, {}\n",
        daemon.version,
        daemon.pid,
        daemon.uid,
        duration(daemon.uptime_s),
        daemon.socket
    );
    let _ = writeln!(
        out,
        "wake-up costs {}, rings of {}",
        nanos(daemon.wake_cost_ns as f64),
        size(u64::from(daemon.ring_len_bytes))
    );
    let mut section = |title: &str, table: &Table| {
        if table.is_empty() {
            let _ = writeln!(out, "\n{title}: none");
        } else {
            let _ = write!(out, "\n{title}\n{table}");
        }
    };
    section("Processes", &processes(report));
    section("Exports", &exports(report));
    section("Links", &links(report));
    section("TCP connections", &connections(report));
    section("Counters", &counters(report, all));
    out
}

fn processes(report: &Report) -> Table {
    let mut table = Table::new(
        &["client", "pid", "user", "kind", "program", "exports", "imports", "connections"],
        &[0, 1, 2, 5, 6, 7],
    );
    for client in &report.clients {
        table.row([
            client.client.to_string(),
            client.pid.to_string(),
            client.uid.to_string(),
            client.role.to_owned(),
            client.program.clone(),
            client.exports.to_string(),
            client.imports.to_string(),
            client.connections.to_string(),
        ]);
    }
    table
}

fn exports(report: &Report) -> Table {
    let mut table =
        Table::new(&["export", "name", "size", "pid", "importers", "token"], &[0, 2, 3, 4]);
    for export in &report.exports {
        table.row([
            export.export.to_string(),
            export.name.clone(),
            size(export.bytes),
            export.pid.to_string(),
            export.importers.to_string(),
            if export.needs_token { "needed" } else { "no" }.to_owned(),
        ]);
    }
    table
}

fn links(report: &Report) -> Table {
    let mut table = Table::new(
        &["link", "export", "importer", "rights", "transfers", "bytes"],
        &[0, 1, 2, 4, 5],
    );
    for link in &report.links {
        table.row([
            link.link.to_string(),
            link.export.to_string(),
            link.importer.to_string(),
            link.rights.join("+"),
            link.sends.to_string(),
            link.bytes.to_string(),
        ]);
    }
    table
}

fn connections(report: &Report) -> Table {
    let mut table =
        Table::new(&["pid", "program", "local", "remote", "bytes sent by ring", "state"], &[0, 4]);
    for connection in &report.connections {
        table.row([
            connection.pid.to_string(),
            match connection.alive {
                true => connection.program.clone(),
                false => format!("{} (gone)", connection.program),
            },
            connection.local.clone(),
            connection.remote.clone(),
            connection.ring_bytes.to_string(),
            match &connection.why {
                Some(why) if connection.state == "demoted" => format!("back to TCP: {why}"),
                Some(why) => format!("plain TCP: {why}"),
                None if connection.upgraded => "upgraded".to_owned(),
                None => "waiting for the other end".to_owned(),
            },
        ]);
    }
    table
}

fn counters(report: &Report, all: bool) -> Table {
    let mut table = Table::new(&["of", "counter", "value"], &[2]);
    let mut add = |of: &str, counters: &BTreeMap<String, u64>| {
        for (name, value) in counters.iter().filter(|(_, value)| all || **value != 0) {
            table.row([of.to_owned(), name.clone(), value.to_string()]);
        }
    };
    add("vmmcd", &report.daemon.counters);
    for client in &report.clients {
        add(&format!("{} ({})", client.program, client.pid), &client.counters);
    }
    table
}

fn duration(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, _, _) => format!("{d} d {h} h"),
    }
}
