//! `shrimp perf vmmc`: figure 3 of the paper (section 3.4), on this machine.
//!
//! Each round measures R, memcpy into the very memory the messages go to, and every strategy at
//! every size; what is compared was measured within seconds of each other, and ratios are taken
//! within a round.

pub(crate) mod game;
mod report;
mod setup;

use super::line::{TURN, Turns, turns_in};
use super::{Head, Options, peer};
use crate::artefacts::{self, Artefact};
use crate::children::{self, Child, Scratch};
use crate::cpu::{self, Pair};
use crate::exit::{Context, Failure};
use crate::private::PrivateDaemon;
use crate::stats::{self, Plan, Rounds};
use crate::text::{self, Progress};
use game::{GameError, LARGEST, Side, Strategy};
use report::{Cell, Report};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

/// Sizes of figure 3, continued to 1 MiB.
fn sizes(quick: bool) -> Vec<usize> {
    let step = if quick { 2 } else { 1 };
    std::iter::successors(Some(4usize), |size| Some(size << step))
        .take_while(|&size| size <= LARGEST)
        .collect()
}

/// The peer process.
struct Opponent {
    // The end of its input is what it leaves by.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    _process: Child,
}

impl Opponent {
    fn start(daemon: &PrivateDaemon, pair: Pair) -> Result<Opponent, Failure> {
        let cpu = (!pair.is_single()).then_some(pair.b);
        let mut command = children::command(&children::own_program(), cpu);
        command.arg("__perf-vmmc-peer").arg(&daemon.socket).args(["answers", "questions"]);
        if !pair.is_single() {
            command.arg("--spin");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Child::spawn(command, "the measuring peer")?;
        let commands = process.pipes().stdin.take();
        let answers = process.pipes().stdout.take().map(BufReader::new);
        let answers = answers.ok_or_else(|| GameError::Peer("nothing: no pipe".into()))?;
        Ok(Opponent { commands, answers, _process: process })
    }

    fn tell(&mut self, text: &str) -> Result<(), Failure> {
        if let Some(commands) = &mut self.commands {
            writeln!(commands, "{text}").context(|| "telling the peer".into())?;
        }
        Ok(())
    }

    fn hear(&mut self, word: &str) -> Result<Vec<u64>, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context(|| "hearing the peer".into())?;
        match line.trim().strip_prefix(word) {
            Some(rest) => Ok(rest.split_whitespace().filter_map(|n| n.parse().ok()).collect()),
            None => Err(GameError::Peer(line.trim().into()).into()),
        }
    }
}

/// Both sides, and what they have counted.
struct Table {
    side: Side,
    opponent: Opponent,
}

/// One game: samples of one-way times, and what was counted.
struct Played {
    samples: Vec<f64>,
    batch: u32,
    messages: u64,
    copied: u64,
    sent: u64,
}

impl Table {
    fn set(daemon: &PrivateDaemon, pair: Pair) -> Result<Table, Failure> {
        let opponent = Opponent::start(daemon, pair)?;
        let spin = !pair.is_single();
        let node = game::connect(&daemon.socket, spin)?;
        let side = Side::new(node, "questions", "answers", !spin)?;
        Ok(Table { side, opponent })
    }

    fn play(&mut self, strategy: Strategy, size: usize, plan: &Plan) -> Result<Played, Failure> {
        let before = self.side.copied_and_sent();
        let mut game = self.side.game(strategy, size)?;
        self.opponent.tell(&format!("{} {size}", strategy.name()))?;
        self.opponent.hear("ready")?;
        let mut trips = 0u64;
        let (mut samples, batch) = plan.round(|| {
            trips += 1;
            game.round_trip()
        })?;
        game.stop()?;
        self.opponent.hear("done")?;
        for sample in &mut samples {
            *sample /= 2.0;
        }
        // Both sides do the same in a round trip, so one side's count per round trip is the
        // count per message.
        let after = self.side.copied_and_sent();
        Ok(Played {
            samples,
            batch,
            messages: trips,
            copied: after.0 - before.0,
            sent: after.1 - before.1,
        })
    }
}

/// One round of a word by automatic update: nanoseconds one way. Other layers stand beside it.
pub(super) fn au_word(daemon: &PrivateDaemon, pair: Pair, plan: &Plan) -> Result<f64, Failure> {
    cpu::while_pinned(pair.a, || {
        let mut table = Table::set(daemon, pair)?;
        Ok(stats::median(table.play(Strategy::AuWord, 4, plan)?.samples))
    })
}

/// Measures, prints, saves.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let daemon_program = artefacts::find_or_build(&[Artefact::Daemon], true)?.swap_remove(0);
    let pair = options.pair();
    let head = Head::new("perf vmmc", options, pair);
    head.print();
    cpu::pin(pair.a)?;
    let mut progress = Progress::new(false);
    let scratch = Scratch::new()?;
    progress.step("starting a private daemon and the peer");
    let daemon = PrivateDaemon::start(&daemon_program, scratch.path(), "vmmcd", None)?;
    let mut table = Table::set(&daemon, pair)?;
    let mut measured = Measured::new(options);
    for round in 1..=options.rounds() {
        measured.round(&mut table, options, pair, |what| {
            progress.step(&format!("round {round} of {}: {what}", options.rounds()));
        })?;
    }
    progress.step("imports and exports");
    let pairs = if options.quick { 100 } else { 1000 };
    let costs = setup::measure(&daemon_program, scratch.path(), pair, pairs)?;
    progress.clear();
    let report = Report::new(head, pair, &measured, costs);
    text::emit(&report.render());
    options.save(&report)?;
    if let Some(dir) = options.graphs()? {
        report.latency_graph().write(&dir.join("figure3-latency.svg"))?;
        report.bandwidth_graph().write(&dir.join("figure3-bandwidth.svg"))?;
    }
    Ok(())
}

/// What is to be a multiple of R.
#[derive(Default)]
struct Compared {
    /// A round has the samples of all its turns.
    rounds: Rounds,
    /// None on one processor.
    turns: Turns,
}

/// Everything measured, rounds kept apart.
struct Measured {
    /// None on one processor.
    r: Rounds,
    au_word: Compared,
    du_8: Compared,
    /// By size: nanoseconds of one memcpy into the bound memory.
    memcpy: Vec<(usize, Rounds)>,
    cells: Vec<Cell>,
}

impl Measured {
    fn new(options: &Options) -> Measured {
        let sizes = sizes(options.quick);
        let cells = Strategy::FIGURE
            .into_iter()
            .flat_map(|strategy| sizes.iter().map(move |&size| Cell::new(strategy, size)))
            .collect();
        Measured {
            r: Rounds::default(),
            au_word: Compared::default(),
            du_8: Compared::default(),
            memcpy: sizes.iter().map(|&size| (size, Rounds::default())).collect(),
            cells,
        }
    }

    fn round(
        &mut self,
        table: &mut Table,
        options: &Options,
        pair: Pair,
        mut tell: impl FnMut(&str),
    ) -> Result<(), Failure> {
        let plan = options.plan();
        tell("R, AU word, DU 8 B with flag");
        self.turns(table, &plan, pair)?;
        // Short games: there are many.
        let short =
            Plan { round: Duration::from_millis(if options.quick { 4 } else { 16 }), ..plan };
        for (size, rounds) in &mut self.memcpy {
            tell(&format!("memcpy of {}", text::size(*size as u64)));
            let source = vec![0x5au8; *size];
            let target = table.side.bound();
            let (samples, batch) = peer::alone(&short, || {
                // In bounds: the buffer holds the largest size.
                let _ = target.write(0, std::hint::black_box(&source));
            });
            rounds.add(samples, batch);
        }
        for cell in &mut self.cells {
            tell(&format!("{} {}", cell.strategy.name(), text::size(cell.bytes as u64)));
            cell.add(table.play(cell.strategy, cell.bytes, &short)?);
        }
        Ok(())
    }

    /// What is compared with R, in turns with it.
    fn turns(&mut self, table: &mut Table, plan: &Plan, pair: Pair) -> Result<(), Failure> {
        let turn = Plan { round: TURN, ..*plan };
        let (mut bare, mut au_word, mut du_8) = <(Joined, Joined, Joined)>::default();
        for _ in 0..turns_in(plan.round) {
            let mut r = None;
            if !pair.is_single() {
                r = Some(bare.add(table.play(Strategy::Bare, 4, &turn)?));
            }
            let word = au_word.add(table.play(Strategy::AuWord, 4, &turn)?);
            let du = du_8.add(table.play(Strategy::Du0, 8, &turn)?);
            if let Some(r) = r {
                self.au_word.turns.add(r, word);
                self.du_8.turns.add(r, du);
            }
        }
        if !pair.is_single() {
            self.r.add(bare.samples, bare.batch);
        }
        self.au_word.rounds.add(au_word.samples, au_word.batch);
        self.du_8.rounds.add(du_8.samples, du_8.batch);
        Ok(())
    }
}

/// A round of one game, played in turns.
#[derive(Default)]
struct Joined {
    samples: Vec<f64>,
    batch: u32,
}

impl Joined {
    /// Adds a turn; its median.
    fn add(&mut self, played: Played) -> f64 {
        self.samples.extend(&played.samples);
        self.batch = played.batch;
        stats::median(played.samples)
    }
}
