//! `shrimp perf nx`: figure 4 of the paper (section 4.1), on this machine, with MPIs beside it.
//!
//! Each round starts every subject anew, one after the other, and measures R and memcpy before them.
//! A subject is a job of two pinned processes that play ping-pong at all sizes, or of 2 to 16 processes, not
//! pinned, that play the barrier, sums of vectors, and ping-pong of all pairs of neighbours at once. NX is libnx.so, entered as a C program enters it. 8 B are
//! also measured in turns with R, by the very two processes. Beside the long messages stand the bare copies of
//! two processes. Open MPI and MPICH take part if their compilers and launchers are installed.

mod bare;
mod handled;
mod library;
mod paper;
mod rank;

use super::line::{self, Turns};
use super::{Head, Options, mpi};
use crate::artefacts::{self, Artefact};
use crate::children::{self, Child, Scratch};
use crate::cpu::Pair;
use crate::exit::{Coded, Context, Exit, Failure};
use crate::plot::{Corner, Graph, Series};
use crate::private::PrivateDaemon;
use crate::stats::median;
use crate::text::{self, Progress, Table};
use nx::Job;
use paper::Switches;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use vmmc::Token;

pub(crate) use rank::{RankArgs, play};

/// Message lengths.
const LENS: [usize; 14] =
    [0, 8, 40, 64, 256, 1024, 4000, 8192, 16384, 65536, 262_144, 524_288, 1 << 20, 4 << 20];
/// The longest that can be asked for.
pub(super) const LONGEST: usize = 64 << 20;
/// From here on the bare copy is measured beside.
const BARE_FROM: usize = 1024;
/// Sizes of jobs for the global operations.
const NODES: [u32; 5] = [2, 3, 4, 8, 16];

/// A job that measures itself.
struct Subject {
    name: String,
    how: How,
}

enum How {
    /// Ours, with these settings.
    Nx(&'static [(&'static str, &'static str)]),
    /// An MPI.
    Mpi(mpi::Mpi),
}

/// Why a job's figures are not taken.
#[derive(Debug, thiserror::Error)]
#[error("{name} failed or gave no figures; it printed: {output:?}")]
struct JobError {
    name: String,
    output: String,
}

impl Coded for JobError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Nanoseconds by game, subject and length (or number of nodes), per round.
type Measured = BTreeMap<(String, usize, usize), Vec<f64>>;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    r_ns: f64,
    memcpy_1mib_ns: f64,
    /// R as played in turns with 8 B of NX (AU), and these one way in that R.
    r_in_turns_ns: Option<f64>,
    small_ratio_to_r: Option<f64>,
    /// Medians over the rounds.
    figures: Vec<Figure>,
}

#[derive(Serialize)]
struct Figure {
    subject: String,
    game: String,
    /// Bytes of the message, or nodes of the job.
    number: usize,
    ns: f64,
    in_r: f64,
}

/// Message lengths and sizes of jobs to measure.
struct Wanted {
    lens: Vec<usize>,
    nodes: Vec<u32>,
}

impl Wanted {
    /// What was asked for; everything if nothing was.
    fn new(lens: &[usize], nodes: &[u32]) -> Wanted {
        match (lens, nodes) {
            ([], []) => Wanted { lens: LENS.to_vec(), nodes: NODES.to_vec() },
            (lens, nodes) => Wanted { lens: lens.to_vec(), nodes: nodes.to_vec() },
        }
    }
}

/// Measures, prints, saves. `lens`, `nodes`: see [`Wanted::new`].
pub(super) fn run(options: &Options, lens: &[usize], nodes: &[u32]) -> Result<(), Failure> {
    let wanted = Wanted::new(lens, nodes);
    let programs = artefacts::find_or_build(&[Artefact::Daemon, Artefact::Nx], true)?;
    let [daemon_program, library] = programs.as_slice() else {
        unreachable!("as many as were asked for")
    };
    let pair = options.pair();
    let head = Head::new("perf nx", options, pair);
    head.print();
    let mut progress = Progress::new(false);
    let scratch = Scratch::new()?;
    progress.step("starting a private daemon, compiling for the MPIs that are here");
    let daemon = PrivateDaemon::start(daemon_program, scratch.path(), "vmmcd", None)?;
    // In the order of `paper`'s constants.
    let mut subjects = vec![
        Subject { name: "NX (AU)".into(), how: How::Nx(&[]) },
        Subject { name: "NX DU-1copy".into(), how: How::Nx(&[("NX_SEND", "du1")]) },
        Subject { name: "NX DU-2copy".into(), how: How::Nx(&[("NX_SEND", "du2")]) },
        Subject { name: "NX, no 0copy".into(), how: How::Nx(&[("NX_DIRECT", "off")]) },
    ];
    let mut absent = String::new();
    for (name, suffix, packages) in [
        ("Open MPI", "openmpi", "openmpi-bin libopenmpi-dev"),
        ("MPICH", "mpich", "mpich libmpich-dev"),
    ] {
        match mpi::compile(suffix, scratch.path()) {
            Some(mpi) => subjects.push(Subject { name: name.into(), how: How::Mpi(mpi) }),
            None => absent.push_str(&format!(
                "not shown: {name}, because mpicc.{suffix} is not here or does not work \
                 (Debian packages {packages})\n"
            )),
        }
    }

    let budget = if options.quick { 0.01 } else { 0.04 };
    let lens: Vec<String> = wanted.lens.iter().map(ToString::to_string).collect();
    let bare = wanted.lens.iter().filter(|&&len| len >= BARE_FROM);
    let bare_lens: Vec<String> = bare.map(|len| len.to_string()).collect();
    let switches = Switches::of_nodes()?;
    let mut measured = Measured::new();
    let mut turns = Turns::default();
    let (mut r, mut memcpy) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds() {
        let (samples, _) = super::cache_line_round(pair, &options.plan())?;
        r.push(median(samples));
        memcpy.push((1 << 20) as f64 / super::memcpy_shared(1 << 20, options.plan().round)? * 1e9);
        if wanted.lens.contains(&rank::SHORT) && !pair.is_single() {
            progress.step(&format!("round {round}: a word by automatic update"));
            let word = super::vmmc::au_word(&daemon, pair, &options.plan())?;
            measured.entry((paper::AU_WORD.into(), 0, 4)).or_default().push(word);
        }
        for (index, subject) in subjects.iter().enumerate() {
            let mut play = |nodes: u32, game: &str, lens: &[String]| -> Result<(), Failure> {
                progress.step(&format!(
                    "round {round} of {}: {}, {game}, {nodes} nodes",
                    options.rounds(),
                    subject.name
                ));
                let mut args = vec![budget.to_string(), game.to_owned()];
                args.extend_from_slice(lens);
                if let How::Nx(_) = subject.how {
                    args.extend(["--library".into(), library.display().to_string()]);
                    if index == 0 && game == "pingpong" && !pair.is_single() {
                        let path = scratch.path().join(format!("line-{round}"));
                        line::create(&path)?;
                        args.extend(["--line".into(), path.display().to_string()]);
                    }
                }
                let text = subject.run(&daemon, pair, nodes, &args)?;
                for line in text.lines() {
                    turns.parse(line);
                }
                for (game, number, ns) in figures(&text) {
                    measured.entry((game, index, number)).or_default().push(ns);
                }
                Ok(())
            };
            if !lens.is_empty() {
                play(2, "pingpong", &lens)?;
            }
            if index == 0 && !pair.is_single() && !bare_lens.is_empty() {
                play(2, "bare", &bare_lens)?;
            }
            if index == 0 && wanted.lens.contains(&rank::SHORT) {
                play(2, "pingpong", &switches.lens())?;
            }
            let compared = index == 0 || matches!(subject.how, How::Mpi(..));
            if compared && wanted.lens.contains(&rank::SHORT) {
                play(2, "calls", &[])?;
            }
            for nodes in wanted.nodes.iter().filter(|_| compared) {
                play(*nodes, "global", &[])?;
            }
        }
    }
    progress.clear();
    let (r, memcpy) = (median(r), median(memcpy));
    let turns = turns.ratio();
    text::emit(&render(&subjects, &wanted, &measured, (r, turns), memcpy));
    text::emit(&paper::render(&wanted.lens, &measured, &switches));
    text::emit(&absent);
    if let Some(dir) = options.graphs()? {
        latency_graph(&subjects, &wanted, &measured, &head)
            .write(&dir.join("figure4-latency.svg"))?;
        bandwidth_graph(&subjects, &wanted, &measured, &head, memcpy)
            .write(&dir.join("figure4-bandwidth.svg"))?;
    }
    let figures = measured
        .into_iter()
        .map(|((game, subject, number), ns)| {
            let ns = median(ns);
            let name = subjects.get(subject).map_or(String::new(), |it| it.name.clone());
            let subject = match game.as_str() {
                "bare" => "bare copy".into(),
                paper::AU_WORD => "no NX".into(),
                _ => name,
            };
            Figure { subject, game, number, ns, in_r: ns / r }
        })
        .collect();
    let report = Report {
        head,
        r_ns: r,
        memcpy_1mib_ns: memcpy,
        r_in_turns_ns: turns.map(|(r, _)| r),
        small_ratio_to_r: turns.map(|(_, ratio)| ratio),
        figures,
    };
    Ok(options.save(&report)?)
}

impl Subject {
    /// Runs a job and returns what node 0 printed.
    fn run(
        &self,
        daemon: &PrivateDaemon,
        pair: Pair,
        nodes: u32,
        args: &[String],
    ) -> Result<String, Failure> {
        let pinned = nodes == 2 && !pair.is_single();
        let mut processes = Vec::new();
        match &self.how {
            How::Nx(settings) => {
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let job = Job {
                    id: format!("perf-{}-{number}", std::process::id()),
                    // The daemon is this command's own.
                    token: Token([0; 16]),
                    size: nodes,
                    node: 0,
                    host: false,
                    ptype: Some(0),
                    late: None,
                    hosts: std::sync::Arc::default(),
                };
                for node in 0..nodes {
                    let cpu = pinned.then_some(if node == 0 { pair.a } else { pair.b });
                    let mut command = children::command(&children::own_program(), cpu);
                    command.arg("__perf-nx-rank").args(args).env("VMMC_SOCKET", &daemon.socket);
                    command.envs(Job { node, ..job.clone() }.to_env());
                    command.envs(settings.iter().copied());
                    let out = if node == 0 { Stdio::piped() } else { Stdio::null() };
                    command.stdin(Stdio::null()).stdout(out);
                    processes.push(Child::spawn(command, "a node")?);
                }
            }
            How::Mpi(mpi) => {
                let mut command = children::command(&mpi.launcher, None);
                let bind: &[&str] = match (mpi.is_open(), pinned) {
                    (true, true) => &["--bind-to", "core"],
                    (true, false) => &["--bind-to", "none"],
                    (false, true) => &["-bind-to", "core"],
                    (false, false) => &["-bind-to", "none"],
                };
                mpi.permit(&mut command);
                command.args(["-n", &nodes.to_string()]).args(bind).arg(&mpi.program).args(args);
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
                processes.push(Child::spawn(command, "an MPI job")?);
            }
        }
        let mut output = String::new();
        if let Some(out) = processes.first_mut().and_then(|first| first.pipes().stdout.take()) {
            let mut out = out;
            out.read_to_string(&mut output).context(|| format!("hearing {}", self.name))?;
        }
        let mut well = true;
        for process in processes {
            well &= process.wait().is_ok_and(|status| status.success());
        }
        if !well || figures(&output).is_empty() {
            return Err(JobError { name: self.name.clone(), output }.into());
        }
        Ok(output)
    }
}

/// Lines `game number nanoseconds`.
fn figures(text: &str) -> Vec<(String, usize, f64)> {
    let parse = |line: &str| {
        let mut fields = line.split_whitespace();
        let game = fields.next()?.to_owned();
        Some((game, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    text.lines().filter_map(parse).collect()
}

fn value(measured: &Measured, game: &str, subject: usize, number: usize) -> f64 {
    measured.get(&(game.to_owned(), subject, number)).map_or(f64::NAN, |ns| median(ns.clone()))
}

/// Games of short messages with other calls, and how the report names them.
const CALLS: [(&str, &str); 2] =
    [("isend", "8 B, isend and irecv"), ("hrecv", "8 B, csend and hrecv")];

/// The same of the global operations.
fn global_games() -> Vec<(String, String)> {
    let sums = rank::SUMS.map(|len| match len {
        1 => ("sum-1".to_owned(), "sum of a double".to_owned()),
        len => (format!("sum-{len}"), format!("sum of {len} doubles")),
    });
    let pairs = rank::PAIRED.map(|len| {
        (
            format!("pair-{len}"),
            format!("{}, all pairs of neighbours at once", text::size(len as u64)),
        )
    });
    std::iter::once(("sync".into(), "barrier".into())).chain(sums).chain(pairs).collect()
}

fn render(
    subjects: &[Subject],
    wanted: &Wanted,
    measured: &Measured,
    r: (f64, Option<(f64, f64)>),
    memcpy: f64,
) -> String {
    let mut heading = vec!["one way"];
    heading.extend(subjects.iter().map(|subject| subject.name.as_str()));
    heading.push("bare copy");
    let right: Vec<usize> = (1..heading.len()).collect();
    let shown = |ns: f64| if ns.is_nan() { "-".into() } else { text::nanos(ns) };
    let mut latency = Table::new(&heading, &right);
    for &len in &wanted.lens {
        let times = (0..subjects.len()).map(|i| shown(value(measured, "pingpong", i, len)));
        let bare = shown(value(measured, "bare", 0, len));
        latency.row(std::iter::once(text::size(len as u64)).chain(times).chain([bare]));
    }
    heading.pop();
    let right: Vec<usize> = (1..heading.len()).collect();
    for (game, name) in CALLS {
        let times: Vec<f64> =
            (0..subjects.len()).map(|i| value(measured, game, i, rank::SHORT)).collect();
        if times.iter().any(|ns| !ns.is_nan()) {
            latency.row(std::iter::once(name.to_owned()).chain(times.into_iter().map(shown)));
        }
    }
    let mut global = Table::new(&heading, &right);
    for (game, name) in global_games() {
        for &nodes in &wanted.nodes {
            let times: Vec<f64> =
                (0..subjects.len()).map(|i| value(measured, &game, i, nodes as usize)).collect();
            if times.iter().all(|ns| ns.is_nan()) {
                continue; // two nodes are the table above, and three have no pairs
            }
            let times = times.into_iter().map(shown);
            global.row(std::iter::once(format!("{name}, {nodes} nodes")).chain(times));
        }
    }
    let mut shown_text = String::new();
    for (table, empty) in [(latency, wanted.lens.is_empty()), (global, wanted.nodes.is_empty())] {
        if !empty {
            shown_text += &format!("{table}\n");
        }
    }
    shown_text + &verdicts(measured, r, memcpy) + &behind(subjects, wanted, measured)
}

/// R, and the budgets of the lengths that were measured.
fn verdicts(measured: &Measured, (r, turns): (f64, Option<(f64, f64)>), memcpy: f64) -> String {
    let large = value(measured, "pingpong", 0, 1 << 20);
    let bare = value(measured, "bare", 0, 1 << 20);
    let mut text = format!("R {}\n", text::nanos(r));
    if let Some((r, ratio)) = turns {
        text += &format!(
            "8 B one way, in turns with R ({}): {} R (budget 1.5)\n",
            text::nanos(r),
            text::three(ratio)
        );
    }
    if !large.is_nan() {
        text += &format!(
            "1 MiB, of the speed of one memcpy repeated in one process ({}): {} (budget 0.9)\n",
            text::nanos(memcpy),
            text::three(memcpy / large)
        );
    }
    if !bare.is_nan() {
        text += &format!(
            "1 MiB, of the speed of the same ping-pong by bare copies of two processes ({}): {}\n",
            text::nanos(bare),
            text::three(bare / large)
        );
    }
    text
}

/// Where an MPI is faster than NX (AU): nowhere, by the issue. In the order of the tables.
fn behind(subjects: &[Subject], wanted: &Wanted, measured: &Measured) -> String {
    let ratio = |game: &str, number: usize| {
        let all = subjects.iter().enumerate();
        let mpis = all.filter(|(_, subject)| matches!(subject.how, How::Mpi(..)));
        let times = mpis.map(|(at, _)| value(measured, game, at, number));
        let faster = times.filter(|ns| !ns.is_nan()).min_by(f64::total_cmp)?;
        let ours = value(measured, game, 0, number);
        (!ours.is_nan()).then_some(ours / faster)
    };
    let lens = wanted.lens.iter().map(|&len| (text::size(len as u64), "pingpong".into(), len));
    let calls = CALLS.map(|(game, name)| (name.to_owned(), game.to_owned(), rank::SHORT));
    let games = global_games().into_iter().flat_map(|(game, name)| {
        let nodes = wanted.nodes.iter();
        nodes.map(move |&n| (format!("{name}, {n} nodes"), game.clone(), n as usize))
    });
    let played = lens.chain(calls).chain(games);
    let ratios: Vec<(String, f64)> =
        played.filter_map(|(name, game, number)| Some((name, ratio(&game, number)?))).collect();
    let slower = ratios.iter().filter(|(_, ratio)| *ratio > 1.0);
    let slower: Vec<String> =
        slower.map(|(name, ratio)| format!("{name} ({})", text::three(*ratio))).collect();
    match (ratios.is_empty(), slower.is_empty()) {
        (true, _) => String::new(),
        (false, true) => "ahead of the faster MPI everywhere\n".into(),
        (false, false) => format!("behind the faster MPI, times its time: {}\n", slower.join("; ")),
    }
}

fn graph(head: &Head, title: &str, y_label: &str, y_log: bool, series: Vec<Series>) -> Graph {
    Graph {
        title: title.into(),
        caption: format!("{}; {}", head.machine.describe(), head.pinning),
        y_label: y_label.into(),
        y_log,
        legend: Corner::UpperLeft,
        series,
    }
}

fn series(
    subjects: &[Subject],
    wanted: &Wanted,
    measured: &Measured,
    lens: impl Fn(usize) -> bool,
    y: impl Fn(usize, f64) -> f64,
) -> Vec<Series> {
    let points = |index: usize| {
        (wanted.lens.iter().copied())
            .filter(|&len| len > 0 && lens(len))
            .map(|len| (len as f64, y(len, value(measured, "pingpong", index, len))))
            .filter(|(_, y)| !y.is_nan())
            .collect()
    };
    let named = subjects.iter().enumerate();
    named.map(|(i, it)| Series { name: it.name.clone(), points: points(i), limit: false }).collect()
}

fn latency_graph(subjects: &[Subject], wanted: &Wanted, measured: &Measured, head: &Head) -> Graph {
    let series = series(subjects, wanted, measured, |len| len <= 8192, |_, ns| ns / 1e3);
    graph(head, "NX: latency of small messages", "one way, µs", true, series)
}

fn bandwidth_graph(
    subjects: &[Subject],
    wanted: &Wanted,
    measured: &Measured,
    head: &Head,
    memcpy: f64,
) -> Graph {
    let mut all = series(subjects, wanted, measured, |_| true, |len, ns| len as f64 / ns);
    let limit = (1 << 20) as f64 / memcpy;
    let points = vec![(8.0, limit), ((4 << 20) as f64, limit)];
    all.push(Series { name: "memcpy of 1 MiB".into(), points, limit: true });
    graph(head, "NX: bandwidth", "GB/s", false, all)
}
