//! `shrimp`: the one command a person types.
//!
//! One file (or folder) per subcommand; [`exit`] holds what the exit codes mean.

#![deny(unsafe_code)]

/// A line on standard error, whether or not anybody reads it: `eprintln!` panics where nobody does.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($part)*);
    }};
}

mod artefacts;
mod children;
mod client;
mod cpu;
mod daemon;
mod demo;
mod doctor;
mod elf;
mod exec;
mod exit;
mod machine;
mod perf;
mod plot;
mod private;
mod rsh;
mod run;
mod shm;
mod stat;
mod stats;
mod text;

use clap::{Parser, Subcommand};
use exit::{Context, Exit, Failure};
use std::ffi::OsString;
use std::process::ExitCode;

/// Shared-memory speed for unmodified programs and for your own
///
/// VMMC maps memory between processes under the control of a daemon (vmmcd) and moves bytes with
/// plain stores. `shrimp` shows it, runs programs over it, measures it and explains the machine.
#[derive(Debug, Parser)]
#[command(name = "shrimp", version, after_help = exit::HELP, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Exec(exec::Args),
    Run(run::Args),
    Stat(stat::Args),
    Perf(perf::Args),
    Doctor(doctor::Args),
    Daemon(daemon::Args),
    /// Internal: become a child process of shrimp
    #[command(name = "__child", hide = true)]
    Child(ChildArgs),
    /// Internal: the inner process of `run`
    #[command(name = "__run-nodes", hide = true)]
    RunNodes(run::NodesArgs),
    /// Internal: what `run --hosts` starts on a host
    #[command(name = "__run-share", hide = true)]
    RunShare,
    /// Internal: the demo's ordinary server
    #[command(name = "__echo-server", hide = true)]
    EchoServer,
    /// Internal: the demo's ordinary client
    #[command(name = "__echo-client", hide = true)]
    EchoClient {
        echo: u16,
        collect: u16,
    },
    /// Internal: the other side of `perf`
    #[command(name = "__perf-peer", hide = true)]
    PerfPeer(perf::PeerArgs),
    /// Internal: the other side of `perf vmmc`
    #[command(name = "__perf-vmmc-peer", hide = true)]
    PerfVmmcPeer(perf::VmmcPeerArgs),
    /// Internal: the ordinary server of `perf sockets`
    #[command(name = "__perf-sockets-server", hide = true)]
    PerfSocketsServer(perf::SocketsServerArgs),
    /// Internal: the ordinary client of `perf sockets`
    #[command(name = "__perf-sockets-client", hide = true)]
    PerfSocketsClient(perf::SocketsClientArgs),
    /// Internal: a node of `perf nx`
    #[command(name = "__perf-nx-rank", hide = true)]
    PerfNxRank(perf::RankArgs),
    /// Internal: the other side of `perf rpc`
    #[command(name = "__perf-rpc-server", hide = true)]
    PerfRpcServer(perf::RpcPeerArgs),
}

#[derive(Debug, clap::Args)]
struct ChildArgs {
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    cpu: Option<usize>,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl Command {
    /// For the beginning of an error message.
    fn name(&self) -> &'static str {
        match self {
            Command::Demo(_) => "demo",
            Command::Exec(_) => "exec",
            Command::Run(_) | Command::RunNodes(_) | Command::RunShare => "run",
            Command::Stat(_) => "stat",
            Command::Perf(_) => "perf",
            Command::Doctor(_) => "doctor",
            Command::Daemon(_) => "daemon",
            Command::Child(_) => "child",
            Command::EchoServer => "echo server",
            Command::EchoClient { .. } => "echo client",
            Command::PerfPeer(_)
            | Command::PerfVmmcPeer(_)
            | Command::PerfNxRank(_)
            | Command::PerfRpcServer(_) => "perf peer",
            Command::PerfSocketsServer(_) | Command::PerfSocketsClient(_) => "perf sockets",
        }
    }

    fn run(&self) -> Result<Exit, Failure> {
        match self {
            Command::Demo(args) => demo::run(args).map(|()| Exit::Ok),
            Command::Exec(args) => exec::run(args).map(|()| Exit::Ok),
            Command::Run(args) => run::run(args),
            Command::RunNodes(args) => run::run_nodes(args),
            Command::RunShare => run::run_share(),
            Command::Stat(args) => stat::run(args).map(|()| Exit::Ok),
            Command::Perf(args) => perf::run(args).map(|()| Exit::Ok),
            Command::Doctor(args) => doctor::run(args),
            Command::Daemon(args) => daemon::run(args),
            Command::Child(args) => {
                let Some((program, arguments)) = args.program.split_first() else {
                    return Ok(Exit::Ok);
                };
                Err(children::become_child(args.parent, args.cpu, program, arguments).into())
            }
            Command::EchoServer => {
                Ok(demo::echo::serve().context(|| "serving".into()).map(|()| Exit::Ok)?)
            }
            Command::EchoClient { echo, collect } => {
                let result = demo::echo::connect(*echo, *collect);
                Ok(result.context(|| "talking to the server".into()).map(|()| Exit::Ok)?)
            }
            Command::PerfPeer(args) => perf::serve(args).map(|()| Exit::Ok),
            Command::PerfVmmcPeer(args) => perf::serve_vmmc(args).map(|()| Exit::Ok),
            Command::PerfSocketsServer(args) => perf::serve_sockets(args).map(|()| Exit::Ok),
            Command::PerfSocketsClient(args) => perf::measure_sockets(args).map(|()| Exit::Ok),
            Command::PerfNxRank(args) => Ok(perf::play_nx(args).map(|()| Exit::Ok)?),
            Command::PerfRpcServer(args) => perf::serve_rpc(args).map(|()| Exit::Ok),
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = cli.command.run();
    // After Ctrl-C children end and calls fail; the signal thread cleans up and sets the code.
    children::wait_if_interrupted();
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => {
            say!("shrimp {}: {failure}", cli.command.name());
            failure.exit().into()
        }
    }
}
