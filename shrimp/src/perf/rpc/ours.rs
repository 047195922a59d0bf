//! SHRIMP RPC as it is measured: a server process, and calls by the stubs that `shrimpc` makes of `figure8.x`.

use super::{Cell, Handler, RpcError};
use crate::children::{self, Child};
use crate::cpu::Pair;
use crate::exit::{Context as _, Failure};
use crate::perf::line::{self, Line, TURN};
use crate::private::PrivateDaemon;
use crate::stats::{self, Plan};
use shrimp_rpc::process::count;
use shrimp_rpc::{Binding, Bulk, BulkMut, BulkOut, CallError, Context, Fault, Server};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use stubs::{Figure8V1, Figure8V1Client, Figure8V1Service, figure8_v1};
use vmmc::config::{DaemonStart, WaitChoice, WaitPolicy};
use vmmc::{Config, Node};

#[allow(missing_docs, dead_code, unreachable_pub, missing_debug_implementations)] // a program uses its part of the stubs
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/figure8.rs"));
}

/// Room for the longest argument.
const BUFFER: usize = 2 << 20;
const SERVICE: &str = "perf";

/// How long the handler computes once it has written its OUT data.
pub(super) const COMPUTING: Duration = Duration::from_micros(15);

/// A node that waits as programs do, unless told how: a server that polled for ever would take R's
/// processor.
fn node(socket: &Path, wait: Option<WaitPolicy>) -> Result<Node, Failure> {
    let mut config = Config::from_env()?;
    config.wait = wait.map_or(config.wait, WaitChoice::Fixed);
    config.socket = Some(socket.to_owned());
    config.daemon = DaemonStart::Never;
    Ok(Node::builder().config(config).program("shrimp perf").connect()?)
}

/// The clock that all processes of this machine share.
fn clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What the server does.
struct Figure8 {
    line: Line,
}

impl Figure8V1 for Figure8 {
    #[inline]
    fn nothing(&self, _: &Context) -> Result<(), Fault> {
        Ok(())
    }

    #[inline]
    fn leaves(&self, _: &Context, _: &mut BulkMut<'_, u8>) -> Result<(), Fault> {
        Ok(())
    }

    #[inline]
    fn writes(&self, _: &Context, block: &mut BulkMut<'_, u8>) -> Result<(), Fault> {
        block.fill(0x5a);
        Ok(())
    }

    fn computes(&self, _: &Context, len: u32, data: &mut BulkOut<'_, u8>) -> Result<u64, Fault> {
        let mut opened = data.open(len as usize).map_err(|_| Fault::new(1, "no room"))?;
        opened.fill(0x5a);
        let computed = clock_ns() + COMPUTING.as_nanos() as u64;
        loop {
            let now = clock_ns();
            if now >= computed {
                return Ok(now);
            }
        }
    }

    /// In the thread and on the processor that serves.
    fn line(&self, _: &Context) -> Result<(), Fault> {
        self.line.answer().map_err(|error| Fault::with_text(2, error.to_string()))
    }
}

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// The daemon's socket.
    socket: PathBuf,
    /// Where the bare cache line is.
    line: PathBuf,
    /// Waits by polling, however long it takes.
    #[arg(long)]
    polls: bool,
}

/// `shrimp __perf-rpc-server`: says `ready`, serves until its input ends.
pub(crate) fn serve(args: &PeerArgs) -> Result<(), Failure> {
    let node = node(&args.socket, args.polls.then_some(WaitPolicy::Spin))?;
    let line = Line::open(&args.line)?;
    let server = Server::builder(SERVICE)
        .node(&node)
        .buffer_max(BUFFER)
        .program(Figure8V1Service(Figure8 { line }))
        .start()
        .map_err(RpcError::from)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").and_then(|()| out.flush()).context(|| "telling the parent".into())?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context(|| "waiting for the parent".into())?;
    server.stop();
    Ok(())
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

fn bind(socket: &Path, wait: Option<WaitPolicy>) -> Result<Figure8V1Client, Failure> {
    let node = node(socket, wait)?;
    // One lane: what comes after a one-way call waits for it, and does not bind another.
    let builder = Binding::builder(SERVICE, figure8_v1::PROGRAM, figure8_v1::VERSION)
        .node(&node)
        .buffer_len(BUFFER)
        .lanes(1);
    Ok(Figure8V1Client::new(builder.connect().map_err(RpcError::from)?))
}

/// A server process and a binding to it.
pub(super) struct Opponent {
    client: Figure8V1Client,
    line: Line,
    /// The daemon's.
    socket: PathBuf,
    // Its input ends when it is dropped, and that is what it leaves by.
    _process: Child,
}

impl Opponent {
    /// `polls`: both sides do, however long it takes.
    pub(super) fn start(
        daemon: &PrivateDaemon,
        scratch: &Path,
        pair: Pair,
        polls: bool,
    ) -> Result<Opponent, Failure> {
        let path = scratch.join("line");
        line::create(&path)?;
        let bare = Line::open(&path)?;
        let cpu = (!pair.is_single()).then_some(pair.b);
        let mut command = children::command(&children::own_program(), cpu);
        command.arg("__perf-rpc-server").arg(&daemon.socket).arg(&path);
        command.args(polls.then_some("--polls"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Child::spawn(command, "the measured server")?;
        let mut line = String::new();
        if let Some(answers) = process.pipes().stdout.take() {
            BufReader::new(answers).read_line(&mut line).context(|| "hearing the server".into())?;
        }
        if line.trim() != "ready" {
            return Err(RpcError::Server(line.trim().into()).into());
        }
        let client = bind(&daemon.socket, polls.then_some(WaitPolicy::Spin))?;
        let socket = daemon.socket.clone();
        Ok(Opponent { client, line: bare, socket, _process: process })
    }

    /// A round of one cell.
    pub(super) fn round(&self, cell: Cell, plan: &Plan) -> Result<(Vec<f64>, u32), CallError> {
        let mut data = vec![0u8; cell.bytes];
        match cell.handler {
            Handler::Null => plan.round(|| self.client.nothing()),
            Handler::Leaves => plan.round(|| self.client.leaves(&mut data)),
            Handler::Writes => plan.round(|| self.client.writes(&mut data)),
        }
    }

    /// A turn of R between the two processes, and one of null calls: nanoseconds one way, and there and back.
    pub(super) fn turn(&self, plan: &Plan) -> Result<(f64, f64), Failure> {
        let plan = Plan { round: TURN, ..*plan };
        self.client.line().map_err(RpcError::from)?;
        let r = self.line.ask(&plan)?;
        let (samples, _) = plan.round(|| self.client.nothing()).map_err(RpcError::from)?;
        Ok((r, stats::median(samples)))
    }

    /// A round of calls whose argument is made by the caller, written by the handler, and used by the caller:
    /// in memory of its own, which stubs copy to the buffers and back, or where it lies (`loan`).
    pub(super) fn made_and_used(
        &self,
        bytes: usize,
        in_place: bool,
        plan: &Plan,
    ) -> Result<(Vec<f64>, u32), CallError> {
        if in_place {
            return plan.round(|| self.made_in_place(bytes));
        }
        let mut data = vec![0u8; bytes];
        plan.round(|| {
            data.fill(7);
            self.client.writes(&mut data)?;
            black_box(sum(&data));
            Ok(())
        })
    }

    fn made_in_place(&self, bytes: usize) -> Result<(), CallError> {
        // Each byte is loaded once, a piece at a time, as the interface has it: the server could still write.
        let used = |back: Bulk<'_, u8>| {
            let (mut piece, mut total) = ([0; 4096], 0u64);
            for at in (0..bytes).step_by(piece.len()) {
                let Some(part) = piece.get_mut(..(bytes - at).min(4096)) else { break };
                if back.read(at, part).is_ok() {
                    total = total.wrapping_add(sum(part));
                }
            }
            black_box(total);
        };
        self.client.writes_in_place(bytes, |mut block| block.fill(7), used)
    }

    /// Nanoseconds from the end of the server's computing until the reply is here, of so many calls with
    /// OUT data of `bytes`. The client never sleeps: no wake-up is in it.
    pub(super) fn after_computing(&self, bytes: usize, calls: u32) -> Result<Vec<f64>, Failure> {
        let awake = bind(&self.socket, Some(WaitPolicy::Spin))?;
        let one = || -> Result<f64, CallError> {
            let mut here = 0;
            let computed = awake.computes_in_place(bytes as u32, |data| {
                here = clock_ns();
                debug_assert_eq!(data.len(), bytes);
            })?;
            Ok(here.saturating_sub(computed) as f64)
        };
        let times: Result<_, _> = (0..calls).map(|_| one()).collect();
        Ok(times.map_err(RpcError::from)?)
    }

    /// Messages per null call that this side sends (F4), and bytes in each (F14).
    pub(super) fn packets(&self) -> Result<(f64, f64), CallError> {
        const CALLS: u64 = 1000;
        let counters = self.client.binding().node().counters();
        let counted = || (counters.get(count::PACKETS), counters.get(count::PACKET_BYTES));
        let before = counted();
        for _ in 0..CALLS {
            self.client.nothing()?;
        }
        let after = counted();
        let packets = (after.0 - before.0) as f64;
        Ok((packets / CALLS as f64, (after.1 - before.1) as f64 / packets))
    }
}
