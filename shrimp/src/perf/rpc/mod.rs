//! `shrimp perf rpc`: figure 8 of the paper (section 5), on this machine.
//!
//! Round trips of a call with one INOUT argument, from none to 1 MiB. The handler either leaves the
//! argument as it is, as the paper's null procedure does, or writes all of it, so that every byte
//! crosses between the processors twice. The caller copies its argument into the buffer and the result back
//! out, as generated stubs do.

use super::{Head, Options, cache_line_round};
use crate::artefacts::{self, Artefact};
use crate::children::{self, Child, Scratch};
use crate::cpu::{self, Pair};
use crate::exit::{Coded, Context, Exit, Failure};
use crate::plot::{Corner, Graph, Series};
use crate::private::PrivateDaemon;
use crate::stats::{self, Latency, Plan, Rounds};
use crate::text::{self, Progress, Table};
use serde::Serialize;
use shrimp_rpc::process::count;
use shrimp_rpc::xdr::{Decode, Encode};
use shrimp_rpc::{Binding, CallError, DispatchError, Finished, Server, ServerCall};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::time::Duration;
use vmmc::config::DaemonStart;
use vmmc::{Config, Node};

const PROGRAM: u32 = 0x2000_0f08;
const NULL: u32 = 0;
const LEAVE: u32 = 1;
const WRITE: u32 = 2;
/// Longest argument.
const LARGEST: usize = 1 << 20;
/// Room for it.
const BUFFER: usize = 2 << 20;
const SERVICE: &str = "perf";

/// What may go wrong in a measurement.
#[derive(Debug, thiserror::Error)]
enum RpcError {
    #[error("a call failed: {0}; this is a bug, or something ended the server")]
    Call(#[from] CallError),
    #[error("no binding: {0}")]
    Connect(#[from] shrimp_rpc::ConnectError),
    #[error("no server: {0}")]
    Serve(#[from] shrimp_rpc::ServeError),
    #[error("the server said {0:?}; this is a bug")]
    Server(String),
}

impl Coded for RpcError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// What the handler does with the argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Handler {
    Leaves,
    Writes,
}

impl Handler {
    fn procedure(self) -> u32 {
        match self {
            Handler::Leaves => LEAVE,
            Handler::Writes => WRITE,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Handler::Leaves => "handler leaves it",
            Handler::Writes => "handler writes it",
        }
    }
}

/// Bytes of the argument: the paper's 0 to 1,000, and on.
fn sizes(quick: bool) -> Vec<usize> {
    let mut sizes = vec![4, 16, 40, 100, 200, 400, 600, 800, 1000];
    sizes.extend((12..=20).map(|power| 1usize << power));
    if quick {
        sizes = sizes.into_iter().step_by(3).collect();
    }
    sizes
}

/// A node that waits as programs do: a server that polled for ever would take R's processor.
fn node(socket: &Path) -> Result<Node, Failure> {
    let mut config = Config::from_env()?;
    config.socket = Some(socket.to_owned());
    config.daemon = DaemonStart::Never;
    Ok(Node::builder().config(config).program("shrimp perf").connect()?)
}

fn dispatch(procedure: u32, call: ServerCall<'_>) -> Result<Finished, DispatchError> {
    match procedure {
        NULL => call.reply(0)?.send(),
        LEAVE | WRITE => {
            let mut args = call.args();
            let len = u32::decode(&mut args)?;
            args.finish()?;
            let mut block = call.block_mut::<u8>(len)?;
            if procedure == WRITE {
                block.fill(0x5a);
            }
            call.reply(0)?.send()
        }
        other => Err(DispatchError::UnknownProcedure(other)),
    }
}

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// The daemon's socket.
    socket: PathBuf,
}

/// `shrimp __perf-rpc-server`: says `ready`, serves until its input ends.
pub(crate) fn serve(args: &PeerArgs) -> Result<(), Failure> {
    let node = node(&args.socket)?;
    let server = Server::builder(SERVICE)
        .node(&node)
        .buffer_max(BUFFER)
        .raw_program(PROGRAM, 1, dispatch)
        .start()
        .map_err(RpcError::from)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").and_then(|()| out.flush()).context(|| "telling the parent".into())?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context(|| "waiting for the parent".into())?;
    server.stop();
    Ok(())
}

/// The server process.
struct Opponent {
    // The end of its input is what it leaves by.
    _commands: Option<ChildStdin>,
    _process: Child,
}

impl Opponent {
    fn start(daemon: &PrivateDaemon, pair: Pair) -> Result<Opponent, Failure> {
        let cpu = (!pair.is_single()).then_some(pair.b);
        let mut command = children::command(&children::own_program(), cpu);
        command.arg("__perf-rpc-server").arg(&daemon.socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Child::spawn(command, "the measured server")?;
        let commands = process.pipes().stdin.take();
        let mut line = String::new();
        if let Some(answers) = process.pipes().stdout.take() {
            BufReader::new(answers).read_line(&mut line).context(|| "hearing the server".into())?;
        }
        if line.trim() != "ready" {
            return Err(RpcError::Server(line.trim().into()).into());
        }
        Ok(Opponent { _commands: commands, _process: process })
    }
}

#[inline]
fn null(binding: &Binding) -> Result<(), CallError> {
    binding.request(NULL, 0, 0)?.call()?.finish()
}

#[inline]
fn inout(binding: &Binding, procedure: u32, data: &mut [u8]) -> Result<(), CallError> {
    let mut request = binding.request(procedure, 4, data.len().next_multiple_of(8))?;
    (data.len() as u32).encode(&mut request)?;
    request.block(data)?;
    let mut reply = request.call()?;
    reply.inout(0, data)?;
    reply.finish()
}

/// One point while it is measured.
struct Cell {
    handler: Handler,
    bytes: usize,
    rounds: Rounds,
}

/// One point of figure 8.
#[derive(Debug, Serialize)]
struct Point {
    handler: Handler,
    bytes: usize,
    #[serde(flatten)]
    round_trip: Latency,
    /// Multiples of R, which is one way; none on one processor.
    ratio_to_r: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    /// None on one processor.
    r: Option<Latency>,
    null_call: Latency,
    null_ratio_to_r: Option<f64>,
    /// Messages per null call that this side sent (F4), and bytes in each (F14).
    null_packets: f64,
    null_packet_bytes: f64,
    points: Vec<Point>,
}

/// Measures, prints, saves.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let daemon_program = artefacts::find_or_build(&[Artefact::Daemon], true)?.swap_remove(0);
    let pair = options.pair();
    let mut head = Head::new("perf rpc", options, pair);
    head.method = "round trips; median over interleaved rounds of each round's median; ratios are \
                   medians of per-round ratios, to R, which is one way";
    head.print();
    cpu::pin(pair.a)?;
    let mut progress = Progress::new(false);
    let scratch = Scratch::new()?;
    progress.step("starting a private daemon and the server");
    let daemon = PrivateDaemon::start(&daemon_program, scratch.path(), "vmmcd", None)?;
    let _server = Opponent::start(&daemon, pair)?;
    let node = node(&daemon.socket)?;
    let binding = Binding::builder(SERVICE, PROGRAM, 1)
        .node(&node)
        .buffer_len(BUFFER)
        .connect()
        .map_err(RpcError::from)?;
    let mut measured = Measured::new(options);
    for round in 1..=options.rounds() {
        measured.round(&binding, options, pair, |what| {
            progress.step(&format!("round {round} of {}: {what}", options.rounds()));
        })?;
    }
    progress.clear();
    let report = measured.report(head, pair);
    text::emit(&report.render());
    options.save(&report)?;
    if let Some(dir) = options.graphs()? {
        report.graph(1000, false).write(&dir.join("figure8.svg"))?;
        report.graph(LARGEST, true).write(&dir.join("figure8-large.svg"))?;
    }
    Ok(())
}

struct Measured {
    r: Rounds,
    null: Rounds,
    calls: u64,
    packets: u64,
    packet_bytes: u64,
    cells: Vec<Cell>,
}

impl Measured {
    fn new(options: &Options) -> Measured {
        let cells = [Handler::Leaves, Handler::Writes]
            .into_iter()
            .flat_map(|handler| {
                sizes(options.quick).into_iter().map(move |bytes| Cell {
                    handler,
                    bytes,
                    rounds: Rounds::default(),
                })
            })
            .collect();
        Measured {
            r: Rounds::default(),
            null: Rounds::default(),
            calls: 0,
            packets: 0,
            packet_bytes: 0,
            cells,
        }
    }

    fn round(
        &mut self,
        binding: &Binding,
        options: &Options,
        pair: Pair,
        mut tell: impl FnMut(&str),
    ) -> Result<(), Failure> {
        let plan = options.plan();
        if !pair.is_single() {
            tell("R");
            let (samples, batch) = cache_line_round(pair, &plan)?;
            self.r.add(samples, batch);
        }
        tell("null call");
        let counters = binding.node().counters();
        let counted = || (counters.get(count::PACKETS), counters.get(count::PACKET_BYTES));
        let before = counted();
        let (samples, batch) = plan
            .round(|| {
                self.calls += 1;
                null(binding)
            })
            .map_err(RpcError::from)?;
        self.packets += counted().0 - before.0;
        self.packet_bytes += counted().1 - before.1;
        self.null.add(samples, batch);
        // Short games: there are many.
        let short =
            Plan { round: Duration::from_millis(if options.quick { 4 } else { 16 }), ..plan };
        let mut data = vec![0u8; LARGEST];
        for cell in &mut self.cells {
            tell(&format!("{}, {}", text::size(cell.bytes as u64), cell.handler.name()));
            let data = data.get_mut(..cell.bytes).unwrap_or_default();
            let procedure = cell.handler.procedure();
            let (samples, batch) =
                short.round(|| inout(binding, procedure, data)).map_err(RpcError::from)?;
            cell.rounds.add(samples, batch);
        }
        Ok(())
    }

    fn report(self, head: Head, pair: Pair) -> Report {
        let r = (!pair.is_single()).then_some(&self.r);
        Report {
            head,
            r: r.map(Rounds::latency),
            null_call: self.null.latency(),
            null_ratio_to_r: r.map(|r| stats::ratio(&self.null, r)),
            null_packets: self.packets as f64 / self.calls as f64,
            null_packet_bytes: self.packet_bytes as f64 / self.packets as f64,
            points: self
                .cells
                .iter()
                .map(|cell| Point {
                    handler: cell.handler,
                    bytes: cell.bytes,
                    round_trip: cell.rounds.latency(),
                    ratio_to_r: r.map(|r| stats::ratio(&cell.rounds, r)),
                })
                .collect(),
        }
    }
}

impl Report {
    fn render(&self) -> String {
        let ratio = |ratio: Option<f64>| ratio.map(|it| format!("{} R", text::three(it)));
        let mut table = Table::new(
            &["INOUT argument", "handler leaves it", "", "handler writes it", ""],
            &[0, 1, 2, 3, 4],
        );
        table.row([
            "none (null call)".to_owned(),
            text::nanos(self.null_call.median_ns),
            ratio(self.null_ratio_to_r).unwrap_or_default(),
            String::new(),
            String::new(),
        ]);
        let of = |handler, bytes| {
            self.points.iter().find(move |it| it.handler == handler && it.bytes == bytes)
        };
        for leaves in self.points.iter().filter(|point| point.handler == Handler::Leaves) {
            let writes = of(Handler::Writes, leaves.bytes);
            table.row([
                text::size(leaves.bytes as u64),
                text::nanos(leaves.round_trip.median_ns),
                ratio(leaves.ratio_to_r).unwrap_or_default(),
                writes.map(|it| text::nanos(it.round_trip.median_ns)).unwrap_or_default(),
                writes.and_then(|it| ratio(it.ratio_to_r)).unwrap_or_default(),
            ]);
        }
        let r = match &self.r {
            Some(r) => format!("R, bare cache line, one way: {}\n", text::nanos(r.median_ns)),
            None => "Only one CPU: no R, and every call costs two switches of processes.\n".into(),
        };
        let budget = match self.null_ratio_to_r {
            Some(ratio) => format!(
                "Null call: {} R, budget 2.4 R: {}. ",
                text::three(ratio),
                if ratio <= 2.4 { "met" } else { "NOT MET" }
            ),
            None => String::new(),
        };
        format!(
            "{r}\nRound trip (figure 8)\n{table}\n{budget}Messages per null call and direction: {}, of \
             {} bytes.\n",
            text::three(self.null_packets),
            text::three(self.null_packet_bytes)
        )
    }

    fn graph(&self, largest: usize, y_log: bool) -> Graph {
        let mut series: Vec<Series> = [Handler::Leaves, Handler::Writes]
            .into_iter()
            .map(|handler| Series {
                name: format!("SHRIMP RPC, {}", handler.name()),
                points: self
                    .points
                    .iter()
                    .filter(|point| point.handler == handler && point.bytes <= largest)
                    .map(|point| (point.bytes as f64, point.round_trip.median_ns / 1e3))
                    .collect(),
                limit: false,
            })
            .collect();
        if let (Some(r), Some(first)) = (&self.r, series.first()) {
            let points = first.points.iter().map(|(x, _)| (*x, 2.0 * r.median_ns / 1e3)).collect();
            series.push(Series {
                name: "bare cache line, there and back".into(),
                points,
                limit: true,
            });
        }
        Graph {
            title: "Round trip of a null procedure with one INOUT argument (figure 8)".into(),
            caption: format!("{}; {}", self.head.machine.describe(), self.head.pinning),
            y_label: "microseconds".into(),
            y_log,
            legend: Corner::UpperLeft,
            series,
        }
    }
}
