//! `shrimp perf sockets`: figure 7 of seed 003 (section 4.3) on this machine: stream sockets under
//! unmodified programs, by each of the paper's three protocols, beside the kernel's own.
//!
//! Each round runs every way once, in fresh processes; R is measured in the same round, and for what is
//! to be a multiple of it in turns by these very processes.

mod alone;
mod flow;
pub(crate) mod program;
mod sockmap;

use super::line::{self, Turns};
use super::samples::{self, Line};
use super::{Head, Options, raw};
use crate::artefacts::{self, Artefact};
use crate::children::{self, Child, Scratch};
use crate::cpu::{self, Pair};
use crate::exit::{Context, Failure};
use crate::plot::{Corner, Graph, Series};
use crate::private::PrivateDaemon;
use crate::stats::{self, Latency, Rounds};
use crate::text::{self, Progress, Table};
use program::{Counted, Kind};
use serde::Serialize;
use sockmap::Sockmap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
enum SocketsError {
    #[error("{way}: {what}; run `shrimp doctor`")]
    Program { way: &'static str, what: String },
    #[error(
        "{way}: only {sent} bytes went through rings, expected {expected} or more; run `shrimp doctor`, or again on a quieter machine"
    )]
    NotUpgraded { way: &'static str, sent: u64, expected: u64 },
}

impl crate::exit::Coded for SocketsError {
    fn exit(&self) -> crate::exit::Exit {
        crate::exit::Exit::Failed
    }
}

/// A way for bytes between two programs.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    kind: Kind,
    /// Preloaded, with this protocol.
    protocol: Option<&'static str>,
}

const fn ours(name: &'static str, protocol: &'static str) -> Way {
    Way { name, kind: Kind::Tcp, protocol: Some(protocol) }
}

const WAYS: [Way; 7] = [
    ours("AU-2copy", "au-2copy"),
    ours("DU-1copy", "du-1copy"),
    ours("DU-2copy", "du-2copy"),
    Way { name: "TCP, spinning", kind: Kind::TcpSpin, protocol: None },
    Way { name: "TCP, blocking", kind: Kind::Tcp, protocol: None },
    Way { name: "TCP, sockmap", kind: Kind::Sockmap, protocol: None },
    Way { name: "AF_UNIX", kind: Kind::Unix, protocol: None },
];

fn sizes(quick: bool) -> Vec<usize> {
    let all = [8, 64, 256, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
    all.into_iter().step_by(if quick { 2 } else { 1 }).collect()
}

/// One size of one way.
#[derive(Debug, Serialize)]
struct Point {
    way: &'static str,
    bytes: usize,
    #[serde(flatten)]
    one_way: Latency,
    bytes_per_s: f64,
    ratio_to_r: Option<f64>,
}

/// Copies of one protocol, counted.
#[derive(Debug, Serialize)]
struct Copies {
    way: &'static str,
    /// By a processor, per byte of message.
    copies: f64,
    /// Deliberate updates per byte of message.
    deliberate_updates: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    /// None on one processor.
    r: Option<Latency>,
    points: Vec<Point>,
    streams: Vec<flow::Rate>,
    copies: Vec<Copies>,
    /// R as played in turns with 8 B through the preload, and these one way in that R, by the first way; and
    /// what the charter allows.
    r_in_turns_ns: Option<f64>,
    small_ratio_to_r: Option<f64>,
    small_budget: f64,
    /// Of a program that never meets a participating peer.
    alone: Vec<alone::Cost>,
    alone_budget: f64,
    /// Why the kernel's socket map is not among the ways.
    no_sockmap: Option<String>,
    #[serde(skip)]
    ways: Vec<Way>,
}

/// What the two programs of one way said once.
struct Ran {
    lines: Vec<Line>,
    flows: Vec<Line>,
    /// Of one of ours.
    counted: Option<Counted>,
}

/// How often the ends with the kernel's socket map are run again: in one run of ten or so it refuses for ever (`EACCES`)
/// what is sent to an end that is in the map.
const SOCKMAP_ATTEMPTS: u32 = 4;

/// What the runs need.
struct Setting {
    library: PathBuf,
    daemon: PrivateDaemon,
    scratch: Scratch,
    pair: Pair,
    round_ms: u64,
    sizes: Vec<usize>,
    /// Why the kernel gives no socket map, if it gives none.
    no_sockmap: Option<String>,
}

impl Setting {
    /// The ways that there are here.
    fn ways(&self) -> Vec<Way> {
        let there = |way: &Way| way.kind != Kind::Sockmap || self.no_sockmap.is_none();
        WAYS.into_iter().filter(there).collect()
    }

    fn command(&self, way: Way, cpu: usize, report: &Path) -> std::process::Command {
        let cpu = (!self.pair.is_single()).then_some(cpu);
        let mut command = children::command(&children::own_program(), cpu);
        command.env("VMMC_SOCKET", &self.daemon.socket).env_remove("LD_PRELOAD");
        if let Some(protocol) = way.protocol {
            command.env("LD_PRELOAD", &self.library);
            command.env("VMMC_SOCKETS_PROTOCOL", protocol).env("VMMC_SOCKETS_REPORT", report);
        }
        command
    }

    /// Runs one way once; what the client measured, and what both counted.
    fn run(&self, way: Way, number: usize, turns: Option<&mut Turns>) -> Result<Ran, Failure> {
        let report = self.scratch.path().join(format!("report-{number}"));
        let path = self.scratch.path().join(format!("unix-{number}"));
        let kind = match way.kind {
            Kind::Tcp => "tcp",
            Kind::TcpSpin => "tcp-spin",
            Kind::Unix => "unix",
            Kind::Sockmap => "sockmap",
            Kind::Alone => "alone",
        };
        let wrong = |what: String| SocketsError::Program { way: way.name, what };
        let line = turns.as_ref().map(|_| self.scratch.path().join(format!("line-{number}")));
        if let Some(line) = &line {
            line::create(line)?;
        }
        let with_line = |command: &mut Command| {
            if let Some(line) = &line {
                command.arg("--line").arg(line);
            }
        };
        let map = if way.kind == Kind::Sockmap {
            Some(Sockmap::load().context(|| "making a socket map".into())?)
        } else {
            None
        };
        let spawn = |mut command: Command, what| -> Result<Child, Failure> {
            let Some(map) = &map else { return Ok(Child::spawn(command, what)?) };
            // What it says of a failure is said again by who reads its status, if that was the last attempt.
            command.stderr(Stdio::null());
            Ok(map.lend(|number| {
                command.arg("--map").arg(number.to_string());
                Child::spawn(command, what)
            })??)
        };
        let mut command = self.command(way, self.pair.b, &report);
        command.args(["__perf-sockets-server", kind]).arg(&path);
        with_line(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = spawn(command, "the server")?;
        let mut port = String::new();
        let output = server.pipes().stdout.take();
        let output = output.ok_or_else(|| wrong("the server has no output".into()))?;
        BufReader::new(output).read_line(&mut port).context(|| "hearing the server".into())?;
        let mut turns = turns;
        // What a client measures, with `more` arguments: lines of as many sizes.
        let mut measured = |sizes: usize, more: &dyn Fn(&mut Command)| -> Result<_, Failure> {
            let mut command = self.command(way, self.pair.a, &report);
            command.args(["__perf-sockets-client", kind]).arg(&path).arg(port.trim());
            command.arg(self.round_ms.to_string());
            more(&mut command);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let mut client = spawn(command, "the client")?;
            let output = client.pipes().stdout.take();
            let output = output.ok_or_else(|| wrong("the client has no output".into()))?;
            let mut lines = Vec::new();
            for line in BufReader::new(output).lines() {
                let line = line.context(|| "hearing the client".into())?;
                if turns.as_mut().is_some_and(|turns| turns.parse(&line)) {
                    continue;
                }
                let parsed = samples::parse(&line);
                lines.push(parsed.ok_or_else(|| wrong(format!("it says {line:?}")))?);
            }
            let status = client.wait()?;
            if !status.success() || lines.len() != sizes {
                return Err(wrong(format!("the client ended with {status}")).into());
            }
            Ok(lines)
        };
        let lines = measured(self.sizes.len(), &|command| {
            command.args(self.sizes.iter().map(usize::to_string));
            with_line(command);
        })?;
        // Another one, whose bytes are not counted: they go one way only.
        let flows = measured(flow::SIZES.len(), &|command| {
            command.arg("--flow").env_remove("VMMC_SOCKETS_REPORT");
        })?;
        drop(server);
        if way.protocol.is_none() {
            return Ok(Ran { lines, flows, counted: None });
        }
        // The client's half is enough: the server is ended from outside and reports nothing.
        let counted = Counted::read(&report)?;
        let trips = |line: &Line| line.0 as u64 * u64::from(line.1) * line.2.len() as u64;
        let expected: u64 = lines.iter().map(trips).sum();
        if counted.sent < expected {
            let sent = counted.sent;
            return Err(SocketsError::NotUpgraded { way: way.name, sent, expected }.into());
        }
        Ok(Ran { lines, flows, counted: Some(counted) })
    }
}

/// Measures, prints, saves.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let mut found = artefacts::find_or_build(&[Artefact::Sockets, Artefact::Daemon], true)?;
    let daemon_program = found.swap_remove(1);
    let library = found.swap_remove(0);
    let pair = options.pair();
    let head = Head::new("perf sockets", options, pair);
    head.print();
    let mut progress = Progress::new(false);
    let scratch = Scratch::new()?;
    let daemon = PrivateDaemon::start(&daemon_program, scratch.path(), "vmmcd", None)?;
    let round_ms = if options.quick { 30 } else { 100 };
    let sizes = sizes(options.quick);
    let no_sockmap = Sockmap::load().err().map(|why| why.to_string());
    let mut setting = Setting { library, daemon, scratch, pair, round_ms, sizes, no_sockmap };
    let ways = setting.ways();
    cpu::pin(pair.a)?;

    let mut r = Rounds::default();
    // Of the ping-pongs, then of the streams.
    let all = || setting.sizes.iter().chain(&flow::SIZES);
    let cells = || all().map(|_| Rounds::default()).collect::<Vec<_>>();
    let mut rounds: Vec<Vec<Rounds>> = ways.iter().map(|_| cells()).collect();
    let mut counted = vec![Counted::default(); ways.len()];
    let mut turns = Turns::default();
    let mut failed = None;
    for round in 0..options.rounds() {
        if !pair.is_single() {
            let (samples, batch) = raw::cache_line_round(pair, &options.plan())?;
            r.add(samples, batch);
        }
        for (at, (way, cells)) in ways.iter().zip(&mut rounds).enumerate() {
            if way.kind == Kind::Sockmap && failed.is_some() {
                continue;
            }
            progress.step(&format!("round {} of {}: {}", round + 1, options.rounds(), way.name));
            let number = round as usize * ways.len() + at;
            // The programs of the first way, which the budget is for, play R themselves if both have a processor.
            let turns = (at == 0 && !pair.is_single()).then_some(&mut turns);
            let mut ran = setting.run(*way, number, turns);
            for _ in 0..SOCKMAP_ATTEMPTS {
                if ran.is_err() && way.kind == Kind::Sockmap {
                    ran = setting.run(*way, number, None);
                }
            }
            if let (Err(why), Kind::Sockmap) = (&ran, way.kind) {
                // It is the kernel's, and what is ours can be measured without it.
                failed =
                    Some(format!("{} attempts failed, the last one: {why}", 1 + SOCKMAP_ATTEMPTS));
                continue;
            }
            let Ran { lines, flows, counted: told } = ran?;
            for ((_, batch, samples), cell) in lines.into_iter().chain(flows).zip(cells) {
                cell.add(samples, batch);
            }
            if let (Some(told), Some(slot)) = (told, counted.get_mut(at)) {
                *slot = told;
            }
        }
    }
    if failed.is_some()
        && let Some(at) = ways.iter().position(|way| way.kind == Kind::Sockmap)
    {
        rounds.remove(at);
        counted.remove(at);
        setting.no_sockmap = failed;
    }
    let alone = alone::run(&setting, options.rounds(), &mut progress)?;
    progress.clear();
    let r = (!pair.is_single()).then_some(r);
    let mut report = Report::new(head, &setting, (r.as_ref(), turns.ratio()), &rounds, &counted);
    report.alone = alone;
    text::emit(&report.render());
    options.save(&report)?;
    if let Some(dir) = options.graphs()? {
        report.latency_graph().write(&dir.join("figure7-latency.svg"))?;
        report.bandwidth_graph().write(&dir.join("figure7-bandwidth.svg"))?;
    }
    Ok(())
}

impl Report {
    fn new(
        head: Head,
        setting: &Setting,
        (r, turns): (Option<&Rounds>, Option<(f64, f64)>),
        rounds: &[Vec<Rounds>],
        counted: &[Counted],
    ) -> Report {
        let ways = setting.ways();
        let (mut points, mut streams) = (Vec::new(), Vec::new());
        for (way, cells) in ways.iter().zip(rounds) {
            for (&bytes, cell) in flow::SIZES.iter().zip(cells.iter().skip(setting.sizes.len())) {
                streams.push(flow::Rate::new(way.name, bytes, cell));
            }
            for (&bytes, cell) in setting.sizes.iter().zip(cells) {
                let one_way = cell.latency();
                points.push(Point {
                    way: way.name,
                    bytes,
                    bytes_per_s: bytes as f64 / one_way.median_ns * 1e9,
                    ratio_to_r: r.map(|r| stats::ratio(cell, r)),
                    one_way,
                });
            }
        }
        let copies = ways.iter().zip(counted).filter(|(way, _)| way.protocol.is_some());
        Report {
            head,
            r: r.map(Rounds::latency),
            r_in_turns_ns: turns.map(|(r, _)| r),
            small_ratio_to_r: turns.map(|(_, ratio)| ratio),
            small_budget: 2.2,
            alone: Vec::new(),
            alone_budget: alone::BUDGET,
            points,
            streams,
            copies: copies
                .map(|(way, counted)| Copies {
                    way: way.name,
                    copies: counted.copies(),
                    deliberate_updates: counted.deliberate as f64 / counted.sent as f64,
                })
                .collect(),
            no_sockmap: setting.no_sockmap.clone(),
            ways,
        }
    }

    fn table(&self, cell: &dyn Fn(&Point) -> String) -> Table {
        let mut heading = vec!["size"];
        heading.extend(self.ways.iter().map(|way| way.name));
        let numbers: Vec<usize> = (0..heading.len()).collect();
        let mut table = Table::new(&heading, &numbers);
        let first = self.ways.first().map(|way| way.name);
        for bytes in self.points.iter().filter(|it| Some(it.way) == first).map(|it| it.bytes) {
            let mut row = vec![text::size(bytes as u64)];
            row.extend(self.points.iter().filter(|point| point.bytes == bytes).map(cell));
            table.row(row);
        }
        table
    }

    fn render(&self) -> String {
        let mut out = String::new();
        if let Some(r) = &self.r {
            let _ = writeln!(out, "R, bare cache line, one way: {}", text::nanos(r.median_ns));
        }
        let latency = self.table(&|point| text::nanos(point.one_way.median_ns));
        let _ = writeln!(out, "\nOne-way latency, half a ping-pong\n{latency}");
        let bandwidth = self.table(&|point| text::rate(point.bytes_per_s));
        let _ = writeln!(out, "Bandwidth of the ping-pong\n{bandwidth}");
        let streams = flow::table(&self.streams);
        let _ = writeln!(out, "A stream of messages in one direction (ttcp)\n{streams}");
        let mut table = Table::new(&["protocol", "copies", "deliberate updates"], &[1, 2]);
        for copies in &self.copies {
            table.row([
                copies.way.to_owned(),
                text::three(copies.copies),
                text::three(copies.deliberate_updates),
            ]);
        }
        let _ = writeln!(out, "Per byte of message, counted\n{table}");
        if let Some(why) = &self.no_sockmap {
            let _ = writeln!(
                out,
                "No kernel socket map beside it: {why}; that takes CAP_BPF and CAP_NET_ADMIN, and a kernel with CONFIG_BPF_STREAM_PARSER\n"
            );
        }
        let _ = writeln!(
            out,
            "A program that never meets a participating peer, as a part of plain\n{}",
            alone::table(&self.alone)
        );
        if let (Some(ratio), Some(r)) = (self.small_ratio_to_r, self.r_in_turns_ns) {
            let met = if ratio <= self.small_budget { "met" } else { "NOT MET" };
            let _ = writeln!(
                out,
                "8 B one way, in turns with R ({}): {} R, budget <= {} R: {met}",
                text::nanos(r),
                text::three(ratio),
                self.small_budget
            );
        }
        out
    }

    fn series(&self, value: &dyn Fn(&Point) -> f64, largest: usize) -> Vec<Series> {
        self.ways
            .iter()
            .map(|way| Series {
                name: way.name.to_owned(),
                points: self
                    .points
                    .iter()
                    .filter(|point| point.way == way.name && point.bytes <= largest)
                    .map(|point| (point.bytes as f64, value(point)))
                    .collect(),
                limit: false,
            })
            .collect()
    }

    fn caption(&self) -> String {
        format!("{}; {}", self.head.machine.describe(), self.head.pinning)
    }

    fn latency_graph(&self) -> Graph {
        Graph {
            title: "Stream sockets: one-way latency (figure 7, left)".into(),
            caption: self.caption(),
            y_label: "microseconds".into(),
            y_log: true,
            legend: Corner::UpperLeft,
            series: self.series(&|point| point.one_way.median_ns / 1e3, 4096),
        }
    }

    fn bandwidth_graph(&self) -> Graph {
        Graph {
            title: "Stream sockets: bandwidth (figure 7, right)".into(),
            caption: self.caption(),
            y_label: "GB/s".into(),
            y_log: true,
            legend: Corner::LowerRight,
            series: self.series(&|point| point.bytes_per_s / 1e9, 1 << 20),
        }
    }
}
