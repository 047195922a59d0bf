//! `shrimp perf sunrpc`: figure 5 of seed 003 (section 4.2) on this machine: calls of unmodified
//! rpcgen programs over libvrpc.so, by automatic and by deliberate update, with arguments that the service
//! uses where they lie (R11), and with either side asleep, beside libtirpc alone over TCP and UDP.
//!
//! Each round runs every way once, in fresh processes; R is measured in the same round, and beside null calls of the
//! first way in turns with them, by the very processes that make them. The parts of a
//! null call (the paper's breakdown) are timed in a run of their own, because the clock takes part
//! in them.

mod programs;
mod report;

use super::line::Turns;
use super::{Head, Options, raw};
use crate::artefacts::{self, Artefact};
use crate::children::Scratch;
use crate::cpu;
use crate::exit::Failure;
use crate::private::PrivateDaemon;
use crate::stats::Rounds;
use crate::text::{self, Progress};
use programs::{Counted, Programs};
use report::Report;

/// How calls travel between the two programs.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// libtirpc alone.
    Stock { udp: bool },
    /// Both programs preloaded.
    Ours { protocol: &'static str, client: Wait, server: Wait },
    /// The same, both spinning, and the server's stubs compiled with `vrpc_in_place.h`.
    InPlace,
}

/// `VMMC_WAIT` of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Spin,
    Hybrid,
    Block,
}

impl Wait {
    fn name(self) -> &'static str {
        match self {
            Wait::Spin => "spin",
            Wait::Hybrid => "hybrid",
            Wait::Block => "block",
        }
    }
}

impl How {
    fn is_ours(self) -> bool {
        !matches!(self, How::Stock { .. })
    }
}

const fn ours(name: &'static str, protocol: &'static str, client: Wait, server: Wait) -> Way {
    Way { name, how: How::Ours { protocol, client, server } }
}

/// Both sides spin: the paper's setting.
const SPINNING: usize = 0;
/// The server sleeps before each call, the client waits as it does by default.
const SERVER_SLEEPS: usize = 4;
/// libtirpc alone over TCP.
const TCP: usize = 6;

const WAYS: [Way; 8] = [
    ours("AU, both spin", "au", Wait::Spin, Wait::Spin),
    Way { name: "AU, in place", how: How::InPlace },
    ours("DU, both spin", "du", Wait::Spin, Wait::Spin),
    ours("AU, default", "au", Wait::Hybrid, Wait::Hybrid),
    ours("AU, server sleeps", "au", Wait::Hybrid, Wait::Block),
    ours("AU, both sleep", "au", Wait::Block, Wait::Block),
    Way { name: "TCP", how: How::Stock { udp: false } },
    Way { name: "UDP", how: How::Stock { udp: true } },
];

/// Longest argument over UDP: a datagram has 64 KiB.
const LARGEST_UDP: usize = 60_000;

/// Bytes of argument and of result; 0 is the null call.
fn sizes(quick: bool) -> Vec<usize> {
    if quick {
        return vec![0, 4, 1000, 16 << 10, 1 << 20];
    }
    let mut sizes = vec![0, 4, 16, 64, 100, 250, 500, 1000];
    sizes.extend((11..=20).map(|power| 1usize << power));
    sizes
}

/// Measures, prints, saves.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let mut found = artefacts::find_or_build(&[Artefact::Rpc, Artefact::Daemon], true)?;
    let daemon_program = found.swap_remove(1);
    let library = found.swap_remove(0);
    let pair = options.pair();
    let mut head = Head::new("perf sunrpc", options, pair);
    head.method = "round trips; median over interleaved rounds of each round's median; ratios are \
                   medians of per-round ratios, to R, which is one way, or to TCP";
    head.print();
    let mut progress = Progress::new(false);
    let scratch = Scratch::new()?;
    progress.step("starting a private daemon, compiling the programs with rpcgen");
    let daemon = PrivateDaemon::start(&daemon_program, scratch.path(), "vmmcd", None)?;
    let round_ms = if options.quick { 20 } else { 60 };
    let programs = Programs::compile(library, daemon, scratch, pair, round_ms)?;
    cpu::pin(pair.a)?;

    let sizes = sizes(options.quick);
    let mut r = Rounds::default();
    let cells = || sizes.iter().map(|_| Rounds::default()).collect::<Vec<_>>();
    let mut rounds: Vec<Vec<Rounds>> = WAYS.iter().map(|_| cells()).collect();
    let mut counted = vec![Counted::default(); WAYS.len()];
    let mut parts = Counted::default();
    let mut turns = Turns::default();
    for round in 0..options.rounds() {
        let mut tell = |what: &str| {
            progress.step(&format!("round {} of {}: {what}", round + 1, options.rounds()));
        };
        if !pair.is_single() {
            let (samples, batch) = raw::cache_line_round(pair, &options.plan())?;
            r.add(samples, batch);
        }
        for (at, ((way, cells), counted)) in
            WAYS.iter().zip(&mut rounds).zip(&mut counted).enumerate()
        {
            tell(way.name);
            let turns = (at == SPINNING && !pair.is_single()).then_some(&mut turns);
            let (lines, told) = programs.run(*way, &sizes, false, turns)?;
            for ((_, batch, samples), cell) in lines.into_iter().zip(cells) {
                cell.add(samples, batch);
            }
            *counted = told;
        }
        if let Some(way) = WAYS.get(SPINNING) {
            tell("the parts of a null call");
            parts = programs.run(*way, &[0], true, None)?.1;
        }
    }
    progress.clear();
    let r = (!pair.is_single()).then_some(r);
    let report = Report::new(head, &sizes, (r.as_ref(), turns.ratio()), &rounds, &counted, parts);
    text::emit(&report.render());
    options.save(&report)?;
    if let Some(dir) = options.graphs()? {
        report.latency_graph().write(&dir.join("figure5-latency.svg"))?;
        report.bandwidth_graph().write(&dir.join("figure5-bandwidth.svg"))?;
    }
    Ok(())
}
