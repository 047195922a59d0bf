//! `shrimp perf`: measurements between two pinned processes.
//!
//! Method (paper, section 3.4): ping-pong; one-way latency is half a round trip, bandwidth is
//! user bytes over time. Everything is measured in rounds that are interleaved, each with fresh
//! peer processes, so that what disturbs the machine disturbs all subjects alike; figures are
//! medians over the rounds. Budgets are printed as figures and never end in a failing exit code.

mod line;
mod memcpy;
mod mpi;
mod net;
mod nx;
mod peer;
mod raw;
mod rpc;
mod samples;
mod sockets;
mod sunrpc;
mod vmmc;

use crate::cpu::Pair;
use crate::exit::{Context, Failure, Io};
use crate::machine::Machine;
use crate::stats::Plan;
use clap::Subcommand;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use self::nx::{RankArgs, play as play_nx};
pub(crate) use self::vmmc::game::{PeerArgs as VmmcPeerArgs, serve as serve_vmmc};
pub(crate) use peer::{PeerArgs, serve, time_of};
pub(crate) use raw::cache_line_round;
pub(crate) use rpc::{PeerArgs as RpcPeerArgs, serve as serve_rpc};
pub(crate) use sockets::program::{
    ClientArgs as SocketsClientArgs, ServerArgs as SocketsServerArgs, measure as measure_sockets,
    serve as serve_sockets,
};

/// Bytes per second of one memcpy of `bytes` from private memory into a shared memory file.
pub(crate) fn memcpy_shared(bytes: u64, window: Duration) -> Result<f64, Io> {
    let copies = memcpy::sweep(std::iter::once(bytes), window, |_| {})?;
    Ok(copies.first().map_or(f64::NAN, |copy| copy.shared_bytes_per_s))
}

/// Measure this machine and what we make of it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Debug, Subcommand)]
enum Subject {
    /// The machine alone: cache line, memcpy, system calls, wake-ups, kernel sockets
    ///
    /// R is the one-way latency of a bare cache line between two processors: no message between
    /// processes can be faster. The kernel's own ways stand beside it.
    #[command(after_help = RAW_EXAMPLES)]
    Raw(Options),
    /// Our own layer: figure 3 of the SHRIMP paper on this machine, and the budgets
    ///
    /// Ping-pong of 4 B to 1 MiB by automatic update (AU: stores into a bound range) and deliberate
    /// update (DU: an explicit send), with the copies that each strategy needs, beside memcpy and
    /// R measured in the same rounds; and what an import and an export cost through the daemon.
    #[command(after_help = VMMC_EXAMPLES)]
    Vmmc(Options),
    /// Stream sockets of unmodified programs: figure 7 of the stream sockets paper on this machine
    ///
    /// Ping-pong of 8 B to 1 MiB between two programs that use ordinary sockets: preloaded, by each of
    /// the three protocols (AU-2copy, DU-1copy, DU-2copy), with their copies counted; and plain,
    /// over the kernel's TCP, blocking and spinning, with both ends in a BPF socket map where the kernel
    /// allows it, and over AF_UNIX. A stream of messages in one direction by each. Then what a preloaded program pays whose
    /// peer is not, for messages, a stream and connections, in turns with a plain one.
    #[command(after_help = SOCKETS_EXAMPLES)]
    Sockets(Options),
    /// Between nodes: deliberate and automatic update over TCP and libfabric, with bare TCP beside them
    ///
    /// Two private daemons stand for two nodes, on loopback addresses or in two network namespaces. 8 B and
    /// 1 MiB beside bare TCP measured in the same rounds, automatic update with and without combining, and
    /// what an import costs. By automatic and by deliberate update, over TCP and over libfabric's providers where that is
    /// installed: one way of 4 B to a page, streams of short pieces, scattered keys, and a long message. And
    /// fi_pingpong, MPICH and Open MPI, held to TCP, if they are installed.
    #[command(after_help = NET_EXAMPLES)]
    Net {
        #[command(flatten)]
        options: Options,
        /// Measure between two network namespaces of `ip netns`: the one that receives, and ours
        #[arg(long, value_name = "FAR,NEAR", value_delimiter = ',')]
        netns: Vec<String>,
    },
    /// NX messages: figure 4 of the SHRIMP paper on this machine, with Open MPI and MPICH beside it
    ///
    /// Ping-pong of 0 B to 4 MiB between two pinned nodes, in all ways of sending; 8 B also in turns with R, by
    /// isend and irecv, and to a handler; and the barrier and sums of 2 to 16 nodes; beside R and memcpy
    /// measured in the same rounds. It says where an MPI is faster. The MPIs take part if mpicc.openmpi,
    /// mpicc.mpich and their launchers are installed.
    #[command(after_help = NX_EXAMPLES)]
    Nx {
        #[command(flatten)]
        options: Options,
        /// Only messages of these lengths; no global operations unless --nodes is given too
        #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = parse_len)]
        lens: Vec<usize>,
        /// Only global operations of jobs of so many nodes; no messages unless --lens is given too
        #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=64))]
        nodes: Vec<u32>,
    },
    /// SHRIMP RPC: figure 8 of the SHRIMP paper on this machine, with today's RPC beside it
    ///
    /// Round trips of a call with one INOUT argument, from none to 1 MiB, and of OUT data that is written
    /// while the server computes; beside R, a bare exchange of the same bytes, VRPC, iceoryx2, Cap'n Proto RPC, tarpc and tonic in the
    /// same rounds. VRPC takes part if rpcgen, cc and libtirpc's headers are installed, the others if
    /// rpc-peers is there.
    #[command(after_help = RPC_EXAMPLES)]
    Rpc(Options),
    /// Sun RPC of unmodified programs: figure 5 of the SHRIMP paper on this machine
    ///
    /// Round trips of 0 B to 1 MiB, there and back, between two programs made by rpcgen and linked
    /// with libtirpc: preloaded, with records sent by automatic and by deliberate update, both sides
    /// spinning or asleep; and plain, over TCP and UDP. And where the time of a null call goes.
    #[command(after_help = SUNRPC_EXAMPLES)]
    Sunrpc(Options),
}

const SUNRPC_EXAMPLES: &str = "\
Examples:
  shrimp perf sunrpc
  shrimp perf sunrpc --json sunrpc.json --svg figures/   (figure5-latency.svg, figure5-bandwidth.svg)

Uses a private daemon, and rpcgen, cc and libtirpc to make its programs (Debian packages
rpcsvc-proto, gcc, libtirpc-dev). Takes about 45 seconds; with --quick about 4. A budget that is not
met is printed as such and is no failure: the exit code stays 0.";

const SOCKETS_EXAMPLES: &str = "\
Examples:
  shrimp perf sockets
  shrimp perf sockets --json sockets.json --svg figures/   (figure7-latency.svg, figure7-bandwidth.svg)

Uses a private daemon. Takes about 40 seconds; with --quick about 6. A budget that is not met is
printed as such and is no failure: the exit code stays 0.";

const NET_EXAMPLES: &str = "\
Examples:
  shrimp perf net
  shrimp perf net --json net.json --svg figures/     (net-latency.svg, net-bandwidth.svg)
  sudo shrimp perf net --netns a,b     (namespaces that a veth pair joins, each with an address)

Uses two private daemons. Takes about a minute and a half; with --quick about 30 seconds. A budget that is not met is
printed as such and is no failure: the exit code stays 0.";

const NX_EXAMPLES: &str = "\
Examples:
  shrimp perf nx
  shrimp perf nx --json nx.json --svg figures/   (figure4-latency.svg, figure4-bandwidth.svg)
  shrimp perf nx --lens 256,4096,1048576 --rounds 15
  shrimp perf nx --nodes 8 --rounds 15

Uses a private daemon. Takes about three minutes; with --quick about one; less with --lens or --nodes.";

const RPC_EXAMPLES: &str = "\
Examples:
  shrimp perf rpc
  shrimp perf rpc --json rpc.json --svg figures/   (figure8.svg, figure8-large.svg, figure8-peers.svg)

Uses a private daemon. Takes about 25 seconds; with --quick about 5. A budget that is not met is
printed as such and is no failure: the exit code stays 0.";

const VMMC_EXAMPLES: &str = "\
Examples:
  shrimp perf vmmc
  shrimp perf vmmc --json vmmc.json --svg figures/   (figure3-latency.svg, figure3-bandwidth.svg)

Uses a private daemon. Takes about 30 seconds; with --quick about 5. A budget that is not met is
printed as such and is no failure: the exit code stays 0.";

const RAW_EXAMPLES: &str = "\
Examples:
  shrimp perf raw
  shrimp perf raw --cpus 2,3 --rounds 9 --json raw.json --svg figures/

Takes about 15 seconds; with --quick about 3, for a rough idea.";

/// How to measure, and where results go.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Write the results to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write graphs into DIR as SVG (made if missing)
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
    /// Processors to pin the two processes to [default: two cores, chosen]
    #[arg(long, value_name = "A,B", value_parser = parse_pair)]
    pub(crate) cpus: Option<Pair>,
    /// Rounds; the figures are medians over them
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Shorter rounds and fewer of them: a rough idea
    #[arg(long)]
    pub(crate) quick: bool,
}

impl Options {
    /// The processors to use.
    fn pair(&self) -> Pair {
        self.cpus.unwrap_or_else(Pair::choose)
    }

    fn rounds(&self) -> u32 {
        if self.quick { self.rounds.min(3) } else { self.rounds }
    }

    /// A plan for latencies.
    fn plan(&self) -> Plan {
        let scale = if self.quick { 4 } else { 1 };
        Plan {
            round: Duration::from_millis(120) / scale,
            sample: Duration::from_micros(3),
            max_samples: 50_000,
        }
    }

    /// Writes a report where the options say.
    fn save<R: Serialize>(&self, report: &R) -> Result<(), Io> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(report).context(|| "encoding JSON".into())?;
        std::fs::write(path, text + "\n").context(|| format!("writing {path:?}"))
    }

    /// The directory for graphs, made if it is missing.
    fn graphs(&self) -> Result<Option<&PathBuf>, Io> {
        if let Some(dir) = &self.svg {
            std::fs::create_dir_all(dir).context(|| format!("making the directory {dir:?}"))?;
        }
        Ok(self.svg.as_ref())
    }
}

/// A message at most as long as the longest that is measured without being asked for.
fn parse_len(text: &str) -> Result<usize, String> {
    let len = text.trim().parse().ok().filter(|len| *len <= self::nx::LONGEST);
    len.ok_or_else(|| format!("expected a number of bytes up to {}", self::nx::LONGEST))
}

fn parse_pair(text: &str) -> Result<Pair, String> {
    let expected = || {
        format!(
            "expected two processor numbers such as 0,1; available here: {:?}",
            crate::cpu::allowed()
        )
    };
    let (a, b) = text.split_once(',').ok_or_else(expected)?;
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| expected());
    let pair = Pair { a: number(a)?, b: number(b)? };
    let allowed = crate::cpu::allowed();
    if allowed.contains(&pair.a) && allowed.contains(&pair.b) { Ok(pair) } else { Err(expected()) }
}

/// What every report begins with.
#[derive(Debug, Serialize)]
struct Head {
    /// `perf raw`, `perf vmmc`.
    subject: &'static str,
    machine: Machine,
    /// The two processors.
    cpus: [usize; 2],
    /// The same for people.
    pinning: String,
    rounds: u32,
    /// What the numbers are.
    method: &'static str,
}

impl Head {
    fn new(subject: &'static str, options: &Options, pair: Pair) -> Head {
        Head {
            subject,
            machine: Machine::here(),
            cpus: [pair.a, pair.b],
            pinning: pair.describe(),
            rounds: options.rounds(),
            method: "one-way latency = half a ping-pong round trip; median over interleaved rounds \
                     of each round's median; ratios are medians of per-round ratios",
        }
    }

    fn print(&self) {
        crate::text::emit(&format!(
            "{}\npinned: {}; {} rounds\n\n",
            self.machine.describe(),
            self.pinning,
            self.rounds
        ));
    }
}

/// Runs the measurement that was asked for.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.subject {
        Subject::Raw(options) => raw::run(options),
        Subject::Vmmc(options) => self::vmmc::run(options),
        Subject::Sockets(options) => sockets::run(options),
        Subject::Net { options, netns } => net::run(options, netns),
        Subject::Nx { options, lens, nodes } => self::nx::run(options, lens, nodes),
        Subject::Rpc(options) => rpc::run(options),
        Subject::Sunrpc(options) => sunrpc::run(options),
    }
}
