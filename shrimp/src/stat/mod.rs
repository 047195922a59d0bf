//! `shrimp stat`: what the daemon and its clients are doing, without disturbing them.
//!
//! The daemon is asked once for its snapshot; the counters of each client are then read from
//! the page it shares, so no client does anything for it.

mod connections;
mod human;
mod prometheus;

use crate::client::Daemon;
use crate::exit::{Coded, Exit, Failure};
use crate::rsh::Rsh;
use crate::text::{self, printable};
use connections::{ConnectionPart, Live};
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;
use vmmc::config::Config;
use vmmc::control::connect;
use vmmc::control::message::{ClientInfo, Role};

/// Show processes, exports, links, TCP connections and counters
///
/// Every TCP connection of a program that takes part is listed, upgraded or not, with the reason if not. (A
/// program takes part from its first connection on that is not short.) Users see what is theirs; the
/// daemon's own user and root see everything.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print JSON; the field "schema" changes when the shape does
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print in the Prometheus text format
    #[arg(long)]
    prometheus: bool,
    /// Print again every SECONDS until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    watch: Option<u64>,
    /// Show every counter, also those that are zero
    #[arg(short, long)]
    all: bool,
    /// Of another node, as `run --hosts` reaches it
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    #[command(flatten)]
    rsh: Rsh,
}

/// Why another node was not asked.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error("--rsh: no command; give what reaches a host, as in --rsh 'ssh -T'")]
    NoShell,
    #[error("reaching node {node:?} by {command:?}: {source}; see --rsh")]
    Shell { node: String, command: String, source: std::io::Error },
}

impl Coded for NodeError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

impl Args {
    /// Becomes `shrimp stat` on another node. Returns only when that fails.
    fn on_node(&self, node: &str) -> NodeError {
        let Some(mut command) = self.rsh.command(node, "stat") else { return NodeError::NoShell };
        for (flag, is_set) in
            [("--json", self.json), ("--prometheus", self.prometheus), ("--all", self.all)]
        {
            command.args(is_set.then_some(flag));
        }
        command.args(self.watch.map(|seconds| format!("--watch={seconds}")));
        let source = command.exec();
        let command = format!("{command:?}");
        NodeError::Shell { node: node.to_owned(), command, source }
    }
}

const EXAMPLES: &str = "\
Examples:
  shrimp stat
  shrimp stat --watch 1
  shrimp stat --node b
  shrimp stat --json | jq '.connections[] | select(.upgraded | not) | .reason'
  shrimp stat --prometheus > /var/lib/node_exporter/vmmc.prom

Never starts a daemon. Exit code: that of the other node's with --node; 0, 3 no daemon is running, 4 it refused or did not answer.";

/// Version of the JSON.
const SCHEMA: u32 = 3;

/// Everything, in the shape of the JSON.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    daemon: DaemonPart,
    clients: Vec<ClientPart>,
    exports: Vec<ExportPart>,
    links: Vec<LinkPart>,
    connections: Vec<ConnectionPart>,
}

#[derive(Debug, Serialize)]
struct DaemonPart {
    pid: u32,
    uid: u32,
    version: String,
    uptime_s: u64,
    socket: String,
    wake_cost_ns: u64,
    ring_len_bytes: u32,
    counters: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct ClientPart {
    client: u64,
    pid: u32,
    uid: u32,
    /// `process`, `sockets` or `tool`.
    role: &'static str,
    program: String,
    exports: u32,
    imports: u32,
    connections: u32,
    /// Empty for tools.
    counters: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct ExportPart {
    export: u64,
    /// The text, or `#number`.
    name: String,
    bytes: u64,
    client: u64,
    pid: u32,
    importers: u32,
    needs_token: bool,
}

#[derive(Debug, Serialize)]
struct LinkPart {
    link: u64,
    export: u64,
    importer: u64,
    rights: Vec<&'static str>,
    sends: u64,
    bytes: u64,
}

/// Prints once, or again and again.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(node) = &args.node {
        return Err(args.on_node(node).into());
    }
    let config = Config::from_env()?;
    let path = connect::socket_path(&config);
    loop {
        let report = collect(&path)?;
        let output = if args.json {
            serde_json::to_string_pretty(&report)
                .map_or_else(|error| error.to_string(), |text| text + "\n")
        } else if args.prometheus {
            prometheus::render(&report)
        } else {
            human::render(&report, args.all)
        };
        let Some(seconds) = args.watch else {
            text::emit(&output);
            return Ok(());
        };
        use std::io::IsTerminal;
        let wipe = !args.json && !args.prometheus && std::io::stdout().is_terminal();
        text::emit(&format!("{}{output}", if wipe { "\x1b[H\x1b[2J" } else { "" }));
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

/// Asks the daemon at `path` and reads its clients' pages.
fn collect(path: &Path) -> Result<Report, Failure> {
    let mut daemon = Daemon::connect(path)?;
    // Connections are listed last: what is live now and was offered meanwhile is in that list.
    let known = daemon.snapshot()?.clients;
    let live = Live::of(&known);
    let mut pages = Vec::new();
    for client in &known {
        pages.push((client.clone(), daemon.page(client)?));
    }
    let snapshot = daemon.snapshot()?;
    let connections = connections::all(&snapshot.connections, &live, &pages);
    let counters =
        pages.into_iter().map(|(_, page)| page.map(|page| page.counters).unwrap_or_default());
    let clients =
        known.iter().zip(counters).map(|(client, counters)| client_part(client, counters));
    let welcome = daemon.welcome;
    Ok(Report {
        schema: SCHEMA,
        clients: clients.collect(),
        connections,
        exports: snapshot
            .exports
            .iter()
            .map(|export| ExportPart {
                export: export.export.0,
                name: match &export.name {
                    vmmc::id::Name::Number(number) => format!("#{number}"),
                    vmmc::id::Name::Text(text) => text.clone(),
                },
                bytes: export.len,
                client: export.exporter.client.0,
                pid: export.exporter.pid,
                importers: export.importers,
                needs_token: export.needs_token,
            })
            .collect(),
        links: snapshot
            .links
            .iter()
            .map(|link| LinkPart {
                link: link.link.0,
                export: link.export.0,
                importer: link.importer.0,
                rights: link.rights.words().collect(),
                sends: link.sends,
                bytes: link.bytes,
            })
            .collect(),
        daemon: DaemonPart {
            pid: snapshot.pid,
            uid: snapshot.uid,
            version: snapshot.version,
            uptime_s: snapshot.uptime_s,
            socket: path.display().to_string(),
            wake_cost_ns: welcome.wake_cost_ns,
            ring_len_bytes: welcome.ring_len,
            counters: snapshot.counters.into_iter().collect(),
        },
    })
}

fn client_part(client: &ClientInfo, counters: Vec<(String, u64)>) -> ClientPart {
    ClientPart {
        client: client.peer.client.0,
        pid: client.peer.pid,
        uid: client.peer.uid,
        role: match client.role {
            Role::Process => "process",
            Role::Sockets => "sockets",
            Role::Rpc => "rpc",
            Role::Tool => "tool",
        },
        program: printable(&client.program),
        exports: client.exports,
        imports: client.imports,
        connections: client.connections,
        counters: counters.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmmc::control::message::{ConnectionInfo, ConnectionState, NotPairedReason};
    use vmmc::id::{ClientId, PeerInfo};

    pub(super) fn report() -> Report {
        let peer = PeerInfo { client: ClientId(3), pid: 42, uid: 0, gid: 0 };
        let client = ClientInfo {
            peer,
            role: Role::Sockets,
            program: "evil\x1b[2J".into(),
            exports: 0,
            imports: 0,
            connections: 2,
        };
        let connection = |state| ConnectionInfo {
            cookie: 9,
            client: ClientId(3),
            pid: 42,
            program: "evil\x1b[2J".into(),
            alive: true,
            local: "127.0.0.1:1".into(),
            remote: "127.0.0.1:2".into(),
            ring_bytes: 4096,
            has_left: false,
            state,
        };
        Report {
            schema: SCHEMA,
            daemon: DaemonPart {
                pid: 1,
                uid: 0,
                version: "0.1.0".into(),
                uptime_s: 3661,
                socket: "/tmp/x".into(),
                wake_cost_ns: 20_000,
                ring_len_bytes: 65536,
                counters: BTreeMap::from([("paired".to_owned(), 1)]),
            },
            clients: vec![client_part(&client, vec![("sends".into(), 5), ("reads".into(), 0)])],
            exports: vec![],
            links: vec![],
            connections: connections::all(
                &[
                    connection(ConnectionState::Paired),
                    connection(ConnectionState::Plain(NotPairedReason::NoPartner)),
                    ConnectionInfo { has_left: true, ..connection(ConnectionState::Paired) },
                ],
                &Live::default(),
                &[],
            ),
        }
    }

    #[test]
    fn a_connection_that_is_not_upgraded_says_why() {
        let text = human::render(&report(), false);
        assert!(text.contains("upgraded"), "{text}");
        assert!(text.contains("the other end takes no part"), "{text}");
        assert!(text.contains("has noted many others since"), "{text}");
    }

    #[test]
    fn a_connection_of_a_program_that_is_gone_has_its_name_and_number() {
        let mut report = report();
        for connection in &mut report.connections {
            connection.alive = false;
        }
        let text = human::render(&report, false);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("127.0.0.1:1")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines.iter().all(|line| line.contains("42") && line.contains("(gone)")), "{text}");
    }

    #[test]
    fn a_clients_own_words_cannot_reach_the_terminal_raw() {
        assert!(!human::render(&report(), false).contains('\x1b'));
        assert!(!prometheus::render(&report()).contains('\x1b'));
    }

    #[test]
    fn counters_that_are_zero_are_shown_only_when_asked_for() {
        assert!(!human::render(&report(), false).contains("reads"));
        assert!(human::render(&report(), true).contains("reads"));
    }

    #[test]
    fn prometheus_lines_have_one_type_line_per_metric() {
        let text = prometheus::render(&report());
        let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let mut unique = types.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(types.len(), unique.len(), "{text}");
        assert!(text.contains("vmmc_client_sends_total{client=\"3\""), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').expect("name and value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
