//! MPIs of Debian's, if their compilers and launchers are here: what they make of our games.

use crate::children::{self, Child};
use crate::cpu::Pair;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// For two ranks to come up, to play for half a second, and to finish.
const PATIENCE: Duration = Duration::from_secs(30);

/// A launcher and a program for it.
#[derive(Clone, Debug)]
pub(super) struct Mpi {
    pub(super) launcher: PathBuf,
    pub(super) program: PathBuf,
}

/// Compiles the games (`mpi.c`) by `mpicc.SUFFIX`; `None` when that does not work.
pub(super) fn compile(suffix: &str, scratch: &Path) -> Option<Mpi> {
    let source = scratch.join("mpi.c");
    std::fs::write(&source, include_str!("mpi.c")).ok()?;
    let program = scratch.join(format!("peer-{suffix}"));
    let compiled = Command::new(format!("mpicc.{suffix}"))
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(&source)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let launcher = PathBuf::from(format!("mpiexec.{suffix}"));
    compiled.is_ok_and(|status| status.success()).then_some(Mpi { launcher, program })
}

impl Mpi {
    /// Whether it is Open MPI, which wants to be told what it may do.
    pub(super) fn is_open(&self) -> bool {
        self.launcher.ends_with("mpiexec.openmpi")
    }

    /// Lets Open MPI run as root and on as many processors as there are.
    pub(super) fn permit(&self, command: &mut Command) {
        if self.is_open() {
            command.arg("--oversubscribe");
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
            command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
    }

    /// Two ranks, each behind its starter; what the first one says. `None` when they do not come to an end.
    pub(super) fn run_apart(
        &self,
        starters: &[Vec<String>; 2],
        pair: Pair,
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> Option<String> {
        let rank = |command: &mut Command, starter: &[String], cpu: usize| {
            command.args(["-n", "1"]).args(starter);
            if !pair.is_single() {
                command.args(["taskset", "-c", &cpu.to_string()]);
            }
            command.arg(&self.program).args(arguments);
        };
        let mut command = children::command(&self.launcher, None);
        self.permit(&mut command);
        command.args(if self.is_open() { ["--bind-to", "none"] } else { ["-bind-to", "none"] });
        rank(&mut command, &starters[0], pair.a);
        command.arg(":");
        rank(&mut command, &starters[1], pair.b);
        command.envs(settings.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Child::spawn(command, "an MPI job").ok()?.output_within(PATIENCE).ok()
    }
}
