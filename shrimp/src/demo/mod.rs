//! `shrimp demo`: an unmodified TCP program, first plain, then through shared memory.
//!
//! 1. A private daemon is started in a scratch directory, so that nobody's own is disturbed.
//! 2. Two pairs of an ordinary echo client and server ([`echo`]) are started, one plain, one
//!    through `shrimp exec --sockets`.
//! 3. Rounds of both, and of the machine's own limit, are interleaved. Client and server compare
//!    every byte.
//! 4. Before and after the measured part the daemon is asked how many bytes each end has put
//!    into its ring: the difference must be exactly what the programs sent. Otherwise the demo
//!    fails (exit code 6): a fast number that came by another way would prove nothing.
//! 5. A real program, if one is installed, both ways.
//!
//! Everything that was started is ended, also on Ctrl-C.

pub(crate) mod echo;
mod programs;
mod session;

use crate::artefacts::{self, Artefact};
use crate::children::Scratch;
use crate::cpu::{self, Pair};
use crate::exit::{Coded, Context, Exit, Failure};
use crate::machine::Machine;
use crate::perf;
use crate::private::PrivateDaemon;
use crate::stats::{Latency, Plan, Rounds, median};
use crate::text::{self, Progress, Table};
use programs::{Figure, Known};
use serde::Serialize;
use session::{RingBytes, Session, Way};
use std::path::PathBuf;
use std::time::Duration;

/// Run an ordinary TCP program plain and over shared memory, and compare
///
/// Starts all it needs (a private daemon too), checks that every byte is right and that the bytes
/// really went through shared memory, prints latency and throughput beside the limits of the
/// machine, and runs one real program if redis, iperf3 or python3 is installed. Leaves nothing
/// behind.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Shorter: a rough idea in a few seconds
    #[arg(long)]
    quick: bool,
    /// Which real program to run as well [default: the first that is installed]
    #[arg(long, value_enum, value_name = "PROGRAM")]
    program: Option<Known>,
    /// Write the results to FILE as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cargo run --release --bin shrimp -- demo
  shrimp demo --quick --program none
  shrimp demo --program iperf3 --json demo.json

Exit code: 0 all bytes right and through shared memory, 6 not so, 5 something is missing,
1 it could not be run.";

/// Why the demo did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error(
        "BYTES WERE WRONG: {what}; this is a bug, please report it with the output of `shrimp doctor`"
    )]
    WrongBytes { what: String },
    #[error(
        "NOT THROUGH SHARED MEMORY: {why}; `shrimp doctor` tells what is missing. Last words of the daemon: {log:?}"
    )]
    NotUpgraded { why: String, log: String },
    #[error(
        "NOT ALL THROUGH SHARED MEMORY: {what}: the program sent {sent} bytes, {ring} went through the ring"
    )]
    Leaked { what: &'static str, sent: u64, ring: u64 },
    #[error(
        "{name} did not finish {what} in {seconds} s: bytes or a wake-up were lost; this is a bug, please report it with the output of `shrimp doctor`"
    )]
    Stuck { name: String, what: String, seconds: u64 },
    #[error("{name} did not do its part, it said: {said:?}")]
    Program { name: String, said: String },
    #[error(
        "{program} is not installed; install it (Debian: apt-get install {package}) or choose another --program"
    )]
    NotInstalled { program: &'static str, package: &'static str },
}

impl Coded for DemoError {
    fn exit(&self) -> Exit {
        match self {
            DemoError::WrongBytes { .. }
            | DemoError::NotUpgraded { .. }
            | DemoError::Stuck { .. }
            | DemoError::Leaked { .. } => Exit::NotVerified,
            DemoError::NotInstalled { .. } => Exit::Missing,
            DemoError::Program { .. } => Exit::Failed,
        }
    }
}

/// How long things take.
struct Times {
    rounds: u32,
    echo: Duration,
    stream: Duration,
    program_s: f64,
}

/// One way of running the pair.
#[derive(Debug, Serialize)]
struct Outcome {
    latency: Latency,
    bytes_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    pinning: String,
    plain: Outcome,
    over: Outcome,
    /// None on one processor.
    r: Option<Latency>,
    memcpy_bytes_per_s: f64,
    /// Bytes the programs sent in the measured part, all of which went through rings.
    verified_bytes: u64,
    programs_found: Vec<&'static str>,
    figures: Vec<Figure>,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(path) = &args.json {
        // Found out before all that takes time; what is there stays until there is something better.
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        file.context(|| format!("writing {path:?}"))?;
    }
    let mut found = artefacts::find_or_build(&[Artefact::Daemon, Artefact::Sockets], true)?;
    let daemon_program = found.swap_remove(0);
    let times = if args.quick {
        Times {
            rounds: 2,
            echo: Duration::from_millis(60),
            stream: Duration::from_millis(150),
            program_s: 0.2,
        }
    } else {
        Times {
            rounds: 5,
            echo: Duration::from_millis(300),
            stream: Duration::from_secs(1),
            program_s: 2.0,
        }
    };
    let pair = Pair::choose();
    let machine = Machine::here();
    text::emit(&format!(
        "{}\nAn ordinary TCP echo client and server on {}, plain and over shared memory.\n",
        machine.describe(),
        pair.describe()
    ));
    if pair.is_single() {
        text::emit(
            "Only one CPU: client and server take turns, every message costs a switch between\n\
             them, and the gain is smaller than with two.\n",
        );
    }
    let mut progress = Progress::new(false);
    let scratch = Scratch::new()?;
    progress.step("starting a private daemon");
    let daemon = PrivateDaemon::start(&daemon_program, scratch.path(), "vmmcd", None)?;
    let mut report = compare(&times, pair, &daemon, machine, &mut progress)?;
    progress.clear();
    print(&report);

    let installed = programs::found();
    report.programs_found = installed.iter().map(|known| known.name()).collect();
    text::emit(&format!(
        "\nReal programs found: {}.\n",
        if installed.is_empty() {
            "none (redis, iperf3 or python3 would be run as well)".to_owned()
        } else {
            report.programs_found.join(", ")
        }
    ));
    let chosen = args.program.or(installed.first().copied()).unwrap_or(Known::None);
    if chosen != Known::None {
        text::emit(&format!(
            "Running {}, plain and through `shrimp exec --sockets`.\n",
            chosen.name()
        ));
        progress.step(chosen.name());
        report.figures = programs::run(chosen, pair, &daemon, &scratch, times.program_s)?;
        progress.clear();
        print_figures(&report.figures);
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report).context(|| "encoding JSON".into())?;
        std::fs::write(path, text + "\n").context(|| format!("writing {path:?}"))?;
    }
    Ok(())
}

/// The echo pair, both ways.
fn compare(
    times: &Times,
    pair: Pair,
    daemon: &PrivateDaemon,
    machine: Machine,
    progress: &mut Progress,
) -> Result<Report, Failure> {
    let over_way = Way::Over { socket: daemon.socket.clone() };
    progress.step("starting client and server, both ways");
    let mut plain = Session::start(&Way::Plain, pair)?;
    let mut over = Session::start(&over_way, pair)?;
    plain.warm()?;
    over.warm()?;
    over.wait_upgraded(daemon)?;
    let before = over.ring_bytes(daemon)?;

    // For R this process is one of the two players. (Children are pinned one by one.)
    if !pair.is_single() {
        cpu::pin(pair.a)?;
    }
    let plan =
        Plan { round: times.echo / 3, sample: Duration::from_micros(3), max_samples: 50_000 };
    let (mut plain_rounds, mut over_rounds, mut r) = (Vec::new(), Vec::new(), Rounds::default());
    let mut over_trips = 0;
    for round in 1..=times.rounds {
        progress.step(&format!("latency, round {round} of {}: plain", times.rounds));
        plain_rounds.push(plain.echo(times.echo)?);
        progress.step(&format!("latency, round {round} of {}: over shared memory", times.rounds));
        over_rounds.push(over.echo(times.echo)?);
        over_trips += over_rounds.last().map_or(0, |(count, _, _)| *count);
        if !pair.is_single() {
            let (samples, batch) = perf::cache_line_round(pair, &plan)?;
            r.add(samples, batch);
        }
    }
    let middle = over.ring_bytes(daemon)?;
    let sent = over_trips * echo::MESSAGE as u64;
    check("echo, client to server", sent, before.client_echo, middle.client_echo)?;
    check("echo, server to client", sent, before.server_echo, middle.server_echo)?;

    progress.step("throughput, plain");
    let (plain_bytes, plain_ns) = plain.stream(times.stream)?;
    progress.step("throughput, over shared memory");
    let (over_bytes, over_ns) = over.stream(times.stream)?;
    let RingBytes { client_stream, .. } = over.ring_bytes(daemon)?;
    check("stream", over_bytes, middle.client_stream, client_stream)?;

    progress.step("memcpy");
    let memcpy = perf::memcpy_shared(1 << 20, times.echo)?;
    Ok(Report {
        machine,
        pinning: pair.describe(),
        plain: result(&plain_rounds, plain_bytes as f64 / plain_ns * 1e9),
        over: result(&over_rounds, over_bytes as f64 / over_ns * 1e9),
        r: (!pair.is_single()).then(|| r.latency()),
        memcpy_bytes_per_s: memcpy,
        verified_bytes: 2 * sent + over_bytes,
        programs_found: vec![],
        figures: vec![],
    })
}

/// Every byte that was sent in between must have gone through the ring.
fn check(what: &'static str, sent: u64, before: u64, after: u64) -> Result<(), DemoError> {
    let ring = after.saturating_sub(before);
    if ring == sent { Ok(()) } else { Err(DemoError::Leaked { what, sent, ring }) }
}

fn result(rounds: &[(u64, f64, f64)], bytes_per_s: f64) -> Outcome {
    let medians: Vec<f64> = rounds.iter().map(|round| round.1).collect();
    Outcome {
        latency: Latency {
            best_ns: medians.iter().copied().fold(f64::NAN, f64::min),
            median_ns: median(medians),
            p99_ns: median(rounds.iter().map(|round| round.2).collect()),
            rounds: rounds.len(),
            samples: rounds.iter().map(|round| round.0 as usize).sum(),
            batch: 1,
        },
        bytes_per_s,
    }
}

fn print(report: &Report) {
    let mut table =
        Table::new(&["", "8 bytes, one way: median", "p99", "64 KiB writes"], &[1, 2, 3]);
    let mut row = |name: &str, latency: &Latency, bytes_per_s: f64| {
        table.row([
            name.to_owned(),
            text::nanos(latency.median_ns),
            text::nanos(latency.p99_ns),
            text::rate(bytes_per_s),
        ]);
    };
    row("plain TCP", &report.plain.latency, report.plain.bytes_per_s);
    row("over shared memory", &report.over.latency, report.over.bytes_per_s);
    if let Some(r) = &report.r {
        row("limit: R and memcpy", r, report.memcpy_bytes_per_s);
    } else {
        table.row([
            "limit: memcpy".into(),
            String::new(),
            String::new(),
            text::rate(report.memcpy_bytes_per_s),
        ]);
    }
    let (plain, over) = (&report.plain, &report.over);
    table.row([
        "gain".to_owned(),
        text::factor(plain.latency.median_ns / over.latency.median_ns),
        text::factor(plain.latency.p99_ns / over.latency.p99_ns),
        text::factor(over.bytes_per_s / plain.bytes_per_s),
    ]);
    table.row([
        "of the limit".to_owned(),
        report
            .r
            .map(|r| format!("{} R", text::three(over.latency.median_ns / r.median_ns)))
            .unwrap_or_default(),
        String::new(),
        format!("{} memcpy", text::three(over.bytes_per_s / report.memcpy_bytes_per_s)),
    ]);
    text::emit(&format!(
        "\n{table}\nEvery byte was compared and right. All {} that were sent in the measured part \
         went through\nshared memory, by the daemon's count. (R: a bare cache line between the \
         two CPUs, one way.)\n",
        text::size(report.verified_bytes)
    ));
}

fn print_figures(figures: &[Figure]) {
    let mut table = Table::new(&["", "unit", "plain", "over shared memory", "gain"], &[2, 3, 4]);
    for figure in figures {
        let number = |value: f64| {
            if value >= 1000.0 { format!("{value:.0}") } else { text::three(value) }
        };
        table.row([
            figure.what.clone(),
            figure.unit.to_owned(),
            number(figure.plain),
            number(figure.over),
            text::factor(figure.over / figure.plain),
        ]);
    }
    text::emit(&format!("\n{table}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_beside_the_ring_is_a_failure_with_its_own_exit_code() {
        assert!(check("echo", 80, 1000, 1080).is_ok());
        let error = check("echo", 80, 1000, 1072).unwrap_err();
        assert_eq!(error.exit(), Exit::NotVerified);
        assert!(error.to_string().contains("72 went through the ring"));
        assert!(check("echo", 80, 1000, 0).is_err());
    }
}
