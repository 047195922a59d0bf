//! What SHRIMP RPC is measured beside: VRPC, which is an ordinary rpcgen program with `libvrpc.so`
//! preloaded, and today's RPC systems, which are in `rpc-peers`.
//!
//! All of these are programs of two roles that measure themselves:
//!
//! ```text
//! PROGRAM serve [ADDRESS]                               its first line is `ready`, or its address
//! PROGRAM call ADDRESS ROUND_US SAMPLES PROC:BYTES...   a line `BYTES BATCH SAMPLE...` for each
//! ```

use super::{Cell, RpcError};
use crate::artefacts::{self, Artefact};
use crate::children::{self, Child};
use crate::cpu::Pair;
use crate::exit::{Context, Failure};
use crate::perf::samples;
use crate::private::PrivateDaemon;
use crate::stats::Plan;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A system that is measured by a program of its own.
pub(super) struct Peer {
    pub(super) name: &'static str,
    program: PathBuf,
    /// What `rpc-peers` calls it.
    choice: Option<&'static str>,
    /// To preload.
    library: Option<PathBuf>,
}

/// A peer, or why it takes no part.
pub(super) type Found = (&'static str, Result<Peer, String>);

/// All peers; VRPC's programs are compiled in `scratch`.
pub(super) fn all(scratch: &Path) -> Vec<Found> {
    let mut found = vec![("VRPC", vrpc(scratch))];
    let program = artefacts::find_or_build(&[Artefact::RpcPeers], true);
    for (name, choice) in [
        ("iceoryx2", "iceoryx2"),
        ("Cap'n Proto", "capnp"),
        ("tarpc", "tarpc"),
        ("tonic (gRPC)", "tonic"),
    ] {
        let peer = match &program {
            Ok(programs) => Ok(Peer {
                name,
                program: programs.first().cloned().unwrap_or_default(),
                choice: Some(choice),
                library: None,
            }),
            Err(error) => Err(error.to_string()),
        };
        found.push((name, peer));
    }
    found
}

fn vrpc(scratch: &Path) -> Result<Peer, String> {
    let library = artefacts::find_or_build(&[Artefact::Rpc], true).map_err(|it| it.to_string())?;
    let dir = scratch.join("vrpc");
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text);
    std::fs::create_dir_all(&dir)
        .and_then(|()| write("measured.x", include_str!("vrpc/measured.x")))
        .and_then(|()| write("measured.c", include_str!("vrpc/measured.c")))
        .map_err(|error| format!("writing to {dir:?}: {error}"))?;
    let run = |program: &str, args: &[&str], package: &str| {
        let mut command = Command::new(program);
        command.args(args).current_dir(&dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(_) | Err(_) => {
                Err(format!("{program} does not compile it; is {package} installed?"))
            }
        }
    };
    for (kind, output) in [
        ("-h", "measured.h"),
        ("-l", "measured_clnt.c"),
        ("-m", "measured_svc.c"),
        ("-c", "measured_xdr.c"),
    ] {
        run("rpcgen", &[kind, "-o", output, "measured.x"], "rpcsvc-proto")?;
    }
    let sources = ["measured.c", "measured_clnt.c", "measured_svc.c", "measured_xdr.c"];
    let mut args = vec!["-O2", "-w", "-I/usr/include/tirpc", "-I.", "-o", "measured"];
    args.extend(sources);
    args.push("-ltirpc");
    run("cc", &args, "libtirpc-dev")?;
    Ok(Peer {
        name: "VRPC",
        program: dir.join("measured"),
        choice: None,
        library: library.into_iter().next(),
    })
}

/// What libvrpc.so reports at the end of a process.
fn calls_by_ring(report: &str) -> u64 {
    let fields = report.split_whitespace().filter_map(|field| field.split_once('='));
    fields
        .filter(|(name, _)| *name == "calls_ring")
        .filter_map(|(_, it)| it.parse::<u64>().ok())
        .sum()
}

/// Where and how peers are measured.
pub(super) struct Setting<'a> {
    pub(super) daemon: &'a PrivateDaemon,
    pub(super) scratch: &'a Path,
    pub(super) pair: Pair,
}

impl Peer {
    fn command(&self, setting: &Setting<'_>, cpu: usize, role: &str) -> Command {
        let cpu = (!setting.pair.is_single()).then_some(cpu);
        let mut command = children::command(&self.program, cpu);
        command.arg(role).args(self.choice);
        command.env("VMMC_SOCKET", &setting.daemon.socket).env_remove("LD_PRELOAD");
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// A round of every cell, with fresh processes: samples and batch of each.
    pub(super) fn round(
        &self,
        setting: &Setting<'_>,
        cells: &[Cell],
        plan: &Plan,
    ) -> Result<Vec<(Vec<f64>, u32)>, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let wrong = |what: String| RpcError::Peer { name: self.name, what };
        let address = setting.scratch.join(format!("peer-{number}"));
        let mut command = self.command(setting, setting.pair.b, "serve");
        if self.choice.is_some() {
            command.arg(&address);
        }
        let mut server = Child::spawn(command, "a peer's server")?;
        let mut line = String::new();
        if let Some(output) = server.pipes().stdout.take() {
            BufReader::new(output).read_line(&mut line).context(|| "hearing the server".into())?;
        }
        let report = setting.scratch.join(format!("report-{number}"));
        let mut command = self.command(setting, setting.pair.a, "call");
        match line.trim() {
            "ready" => command.arg(&address),
            port if port.parse::<u16>().is_ok() => command.arg(port),
            other => return Err(wrong(format!("its server says {other:?}")).into()),
        };
        command.env("VMMC_RPC_REPORT", &report);
        command.arg(plan.round.as_micros().to_string()).arg(plan.max_samples.to_string());
        for cell in cells {
            command.arg(format!("{}:{}", cell.handler.procedure(), cell.bytes));
        }
        let mut client = Child::spawn(command, "a peer's client")?;
        let output = client.pipes().stdout.take();
        let output = output.ok_or_else(|| wrong("the client has no output".into()))?;
        let mut rounds = Vec::new();
        for line in BufReader::new(output).lines() {
            let line = line.context(|| "hearing the client".into())?;
            match samples::parse(&line) {
                Some((bytes, batch, samples))
                    if cells.get(rounds.len()).is_some_and(|cell| cell.bytes == bytes) =>
                {
                    rounds.push((samples, batch));
                }
                _ => return Err(wrong(format!("its client says {line:?}")).into()),
            }
        }
        let status = client.wait()?;
        if !status.success() || rounds.len() != cells.len() {
            return Err(wrong(format!("its client ended with {status}")).into());
        }
        if self.library.is_some() {
            let text = std::fs::read_to_string(&report).unwrap_or_default();
            if calls_by_ring(&text) == 0 {
                return Err(wrong(format!("its calls went over TCP: {text:?}")).into());
            }
        }
        Ok(rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_over_rings_are_found_in_a_report() {
        assert_eq!(calls_by_ring("pid=3 calls_ring=12 calls_kernel=1\npid=4 calls_ring=5\n"), 17);
        assert_eq!(calls_by_ring(""), 0);
    }
}
