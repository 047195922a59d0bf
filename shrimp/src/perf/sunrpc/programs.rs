//! The two programs that `perf sunrpc` measures: made by rpcgen and the C compiler of this machine, linked
//! with its libtirpc, knowing nothing of us.

use super::{How, LARGEST_UDP, Wait, Way};
use crate::children::{self, Child, Scratch};
use crate::cpu::Pair;
use crate::exit::{Coded, Context, Exit, Failure, Io};
use crate::perf::line::{self, Turns};
use crate::perf::samples::{self, Line};
use crate::private::PrivateDaemon;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
enum SunrpcError {
    #[error(
        "`{command}` failed: {why}; install the Debian packages rpcsvc-proto, gcc and libtirpc-dev"
    )]
    Compile { command: String, why: String },
    #[error("{way}: {what}; run `shrimp doctor`")]
    Program { way: &'static str, what: String },
    #[error(
        "{way}: only {calls} calls went over rings, expected {expected} or more; run `shrimp doctor`, or again on a quieter machine"
    )]
    NotUpgraded { way: &'static str, calls: u64, expected: u64 },
}

impl Coded for SunrpcError {
    fn exit(&self) -> Exit {
        match self {
            SunrpcError::Compile { .. } => Exit::Missing,
            _ => Exit::Failed,
        }
    }
}

/// What a client counted (`VMMC_RPC_REPORT`), by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted(HashMap<String, u64>);

impl Counted {
    pub(super) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0) as f64
    }

    fn read(path: &Path) -> Result<Counted, Io> {
        let text = std::fs::read_to_string(path).context(|| format!("reading {path:?}"))?;
        let fields = text.split_whitespace().filter_map(|field| field.split_once('='));
        Ok(Counted(
            fields.map(|(name, value)| (name.to_owned(), value.parse().unwrap_or(0))).collect(),
        ))
    }
}

/// The compiled programs and what they run with.
pub(super) struct Programs {
    library: PathBuf,
    daemon: PrivateDaemon,
    scratch: Scratch,
    pair: Pair,
    round_ms: u64,
}

const SOURCES: [(&str, &str); 5] = [
    ("vrpc_in_place.h", include_str!("../../../../compat-sunrpc/include/vrpc_in_place.h")),
    ("bench.x", include_str!("c/bench.x")),
    ("line.h", include_str!("c/line.h")),
    ("server.c", include_str!("c/server.c")),
    ("client.c", include_str!("c/client.c")),
];

/// The server whose services use arguments where they lie.
const IN_PLACE: &str = "server_in_place";

impl Programs {
    pub(super) fn compile(
        library: PathBuf,
        daemon: PrivateDaemon,
        scratch: Scratch,
        pair: Pair,
        round_ms: u64,
    ) -> Result<Programs, Failure> {
        let dir = scratch.path();
        for (name, text) in SOURCES {
            std::fs::write(dir.join(name), text).context(|| format!("writing {name}"))?;
        }
        for (kind, output) in
            [("-h", "bench.h"), ("-l", "clnt.c"), ("-m", "svc.c"), ("-c", "xdr.c")]
        {
            succeed(dir, "rpcgen", &["-M", kind, "-o", output, "bench.x"])?;
        }
        // The generated code has unused variables and casts of function types.
        let options = ["-O2", "-w", "-I/usr/include/tirpc", "-I."];
        for (program, sources) in [
            ("server", &["server.c", "svc.c", "xdr.c"][..]),
            (IN_PLACE, &["-include", "vrpc_in_place.h", "server.c", "svc.c", "xdr.c"]),
            ("client", &["client.c", "clnt.c", "xdr.c"]),
        ] {
            let arguments = [&options[..], &["-o", program], sources, &["-ltirpc"]].concat();
            succeed(dir, "cc", &arguments)?;
        }
        Ok(Programs { library, daemon, scratch, pair, round_ms })
    }

    fn command(&self, program: &str, cpu: usize, way: Way) -> Command {
        let cpu = (!self.pair.is_single()).then_some(cpu);
        let mut command = children::command(&self.scratch.path().join(program), cpu);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("VMMC_") {
                command.env_remove(name);
            }
        }
        command.env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::piped());
        let ours = match way.how {
            How::Stock { .. } => None,
            How::Ours { protocol, client, server } => Some((protocol, client, server)),
            How::InPlace => Some(("au", Wait::Spin, Wait::Spin)),
        };
        if let Some((protocol, client, server)) = ours {
            let wait = if program == "client" { client } else { server };
            command.env("LD_PRELOAD", &self.library).env("VMMC_SOCKET", &self.daemon.socket);
            command.env("VMMC_RPC_PROTOCOL", protocol).env("VMMC_WAIT", wait.name());
        }
        command
    }

    /// Runs one way once: what the client measured (round trips), and what it counted. For `turns` the programs play R
    /// themselves.
    pub(super) fn run(
        &self,
        way: Way,
        sizes: &[usize],
        timed: bool,
        turns: Option<&mut Turns>,
    ) -> Result<(Vec<Line>, Counted), Failure> {
        let wrong = |what: String| SunrpcError::Program { way: way.name, what };
        let report = self.scratch.path().join("report");
        let _ = std::fs::remove_file(&report);
        let path = self.scratch.path().join("line");
        let line = if turns.is_some() { path.as_path() } else { Path::new("-") };
        if turns.is_some() {
            line::create(line)?;
        }
        let server = if way.how == How::InPlace { IN_PLACE } else { "server" };
        let mut command = self.command(server, self.pair.b, way);
        command.arg(line);
        let mut server = Child::spawn(command, "the server")?;
        let output = server.pipes().stdout.take();
        let output = output.ok_or_else(|| wrong("the server has no output".into()))?;
        let mut ports = String::new();
        BufReader::new(output).read_line(&mut ports).context(|| "hearing the server".into())?;
        let udp = way.how == How::Stock { udp: true };
        let port = ports.split_whitespace().nth(usize::from(udp)).unwrap_or("0");
        let mut command = self.command("client", self.pair.a, way);
        command.args([if udp { "udp" } else { "tcp" }, port]).arg(self.round_ms.to_string());
        command.arg(line);
        let sizes = sizes.iter().filter(|&&size| !udp || size <= LARGEST_UDP);
        command.args(sizes.clone().map(usize::to_string));
        command.env("VMMC_RPC_REPORT", &report);
        if timed {
            command.env("VMMC_RPC_TIMES", "on");
        }
        let mut client = Child::spawn(command, "the client")?;
        let output = client.pipes().stdout.take();
        let output = output.ok_or_else(|| wrong("the client has no output".into()))?;
        let (mut lines, mut turns) = (Vec::new(), turns);
        for line in BufReader::new(output).lines() {
            let line = line.context(|| "hearing the client".into())?;
            if turns.as_mut().is_some_and(|turns| turns.parse(&line)) {
                continue;
            }
            lines.push(samples::parse(&line).ok_or_else(|| wrong(format!("it says {line:?}")))?);
        }
        let status = client.wait()?;
        if !status.success() || lines.len() != sizes.count() {
            return Err(wrong(format!("the client ended with {status}")).into());
        }
        if !way.how.is_ours() {
            return Ok((lines, Counted::default()));
        }
        let counted = Counted::read(&report)?;
        let calls = |line: &Line| u64::from(line.1) * line.2.len() as u64;
        let (calls, expected) =
            (counted.get("calls_ring") as u64, lines.iter().map(calls).sum::<u64>());
        if calls < expected {
            return Err(SunrpcError::NotUpgraded { way: way.name, calls, expected }.into());
        }
        Ok((lines, counted))
    }
}

/// Runs a tool in `dir` to its end.
fn succeed(dir: &Path, program: &str, arguments: &[&str]) -> Result<(), SunrpcError> {
    let output =
        Command::new(program).args(arguments).current_dir(dir).stdin(Stdio::null()).output();
    let why = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(SunrpcError::Compile { command: format!("{program} {}", arguments.join(" ")), why })
}
