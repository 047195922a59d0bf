//! `shrimp run`: start the nodes of an application, and end them together.
//!
//! ```text
//! shrimp run ── shrimp __run-nodes ─┬─ node 0   (standard input)
//!  (outer)          (inner)         ├─ node 1
//!                                   └─ node 2 ...
//! ```
//!
//! The inner process does the work ([`nodes`]) in a process group of its own, so that a node that
//! kills its group (`kill(0, 9)`, the old way to end an application) does not kill the shell
//! script that called us. The outer one forwards signals, gives up and takes back the terminal, merges
//! what the nodes say, also when the inner one was killed with them, and passes on the exit code ([`outer`]).
//!
//! Nothing stays, whoever is killed: both are subreapers, so whatever a node leaves behind becomes
//! a child of the inner, or, once that is gone, of the outer process, and is killed there
//! ([`strays`]); the inner one ends when the outer has gone; and the kernel kills nodes whose
//! parent has gone.
//!
//! With `--hosts` the inner process starts one remote shell per host, and in it a `shrimp __run-share`
//! that does there what the inner one does here ([`hosts`], [`share`]).

mod hosts;
mod lifeline;
mod nodes;
mod order;
mod outer;
mod output;
mod router;
mod share;
mod signals;
mod strays;
mod window;
mod wire;

use crate::elf;
use crate::exit::{Coded, Exit, Failure};
use crate::rsh::Rsh;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use nodes::run as run_nodes;
pub(crate) use outer::run;
pub(crate) use share::run as run_share;

/// Run a program as the nodes of an NX application
///
/// Starts N copies of PROG, which find each other before main. Node 0 has the standard input; the
/// output of all nodes is merged line by line. When one node dies, all are ended.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of nodes [default: PROG's -sz switch, NX_DFLT_SIZE, or 1]
    #[arg(short = 'n', long = "nodes", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(nx::job::MAX_NODES)))]
    nodes: Option<u32>,
    /// Nodes of the cluster to run on, by the names of the cluster file (vmmcd --cluster): as many
    /// nodes of the application on each as goes, in this order
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    hosts: Vec<String>,
    #[command(flatten)]
    rsh: Rsh,
    /// Begin each line of output with its node's number
    #[arg(short = 'l', long)]
    label: bool,
    /// Seconds that the others may go on after one has exited with a code other than 0
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    grace: f64,
    /// Tell on standard error what is started
    #[arg(short = 'v', long)]
    verbose: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROG ARGS"
    )]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  shrimp run -n 4 -- ./solver input.dat
  shrimp run -n 4 -l -- ./solver input.dat     every line with its node's number
  shrimp run -- ./solver -sz 4 input.dat       the size as on a Paragon
  shrimp run --hosts a,b -n 4 -- ./solver      two nodes of it on a, two on b
  shrimp run --hosts a,b --rsh 'ip netns exec {}' -n 2 -- ./solver

With --hosts, shrimp and PROG are on all hosts under the same paths, and vmmcd runs there as part of one
cluster. NX_ variables go along, others are each host's own.

A program that starts its nodes itself (nx_initve, nx_nfork, nx_load) is started once, and gets N
nodes if it asks for the default. With --hosts nx_load starts them on all hosts, nx_nfork on the first.

Exit code: 0 when every node's was 0; else that of the first node that failed, 128+N if signal N
killed it, 137 after killproc(-1, -1); 126 the program cannot be run, 127 not found.";

/// The inner process's arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct NodesArgs {
    /// The outer process.
    #[arg(long)]
    parent: u32,
    /// Whether the terminal is ours to take.
    #[arg(long)]
    terminal: bool,
    /// The descriptor by which the outer process gets the nodes' output.
    #[arg(long)]
    output: i32,
    #[command(flatten)]
    args: Args,
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("{0:?} not found; give a path, or a name that is in PATH")]
    NotFound(PathBuf),
    #[error(
        "{0:?} is not an executable file; check its mode (chmod +x) and that it is no directory"
    )]
    NotExecutable(PathBuf),
    #[error("running {program:?}: {source}")]
    Start { program: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Switch(#[from] nx::job::switches::SwitchError),
    #[error(
        "NX_DFLT_SIZE={0:?} is not understood: expected 1 to 4096, or HxW; unset it, or use -n"
    )]
    DefaultSize(String),
    #[error(
        "--hosts: {0:?} cannot name a node of the cluster; see `vmmcd --help` for the cluster file"
    )]
    Host(String),
    #[error(
        "--hosts: {0:?} is named twice; name each host once, -n says how many nodes run in all"
    )]
    HostTwice(String),
    #[error("--rsh: no command; give what reaches a host, as in --rsh 'ssh -T'")]
    NoShell,
    #[error(
        "nothing to run came over the standard input; `shrimp run --hosts` starts this process"
    )]
    NoShare,
    #[error("{0}")]
    Job(String),
    #[error("--grace {0}: give a number of seconds, 0 or more")]
    Grace(f64),
    #[error("{0}")]
    Daemon(String),
}

impl Coded for RunError {
    fn exit(&self) -> Exit {
        match self {
            RunError::NotFound(_) => Exit::NotFound,
            RunError::NotExecutable(_) => Exit::CannotRun,
            RunError::Start { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::CannotRun,
            },
            _ => Exit::Failed,
        }
    }
}

impl Args {
    /// The program's file.
    fn find(&self) -> Result<PathBuf, RunError> {
        find(self.program.first().map(OsString::as_os_str).unwrap_or_default())
    }

    /// How many nodes: what is said here, what the program's own switch says, what the
    /// environment says, 1.
    fn size(&self) -> Result<u32, RunError> {
        use std::os::unix::ffi::OsStrExt;
        if let Some(nodes) = self.nodes {
            return Ok(nodes);
        }
        let words: Vec<&[u8]> = self.program.iter().map(|word| word.as_bytes()).collect();
        let (switches, _) = nx::job::switches::take(&words)?;
        if let Some(shape) = switches.size {
            return Ok(shape.nodes());
        }
        match std::env::var("NX_DFLT_SIZE").ok().filter(|text| !text.is_empty()) {
            None => Ok(1),
            Some(text) => match nx::job::switches::Shape::parse(&text) {
                Some(shape) => Ok(shape.nodes()),
                None => Err(RunError::DefaultSize(text)),
            },
        }
    }

    fn grace(&self) -> Result<Duration, RunError> {
        Duration::try_from_secs_f64(self.grace).map_err(|_| RunError::Grace(self.grace))
    }
}

/// The file of a program of that name.
fn find(name: &OsStr) -> Result<PathBuf, RunError> {
    elf::search(name).map_err(|error| match error {
        elf::SearchError::NotFound => RunError::NotFound(name.into()),
        elf::SearchError::NotExecutable => RunError::NotExecutable(name.into()),
    })
}

/// An exit code that is the application's own.
pub(crate) fn end_with(code: u8) -> Result<Exit, Failure> {
    use std::io::Write;
    let _ = std::io::stdout().flush();
    std::process::exit(code.into())
}
