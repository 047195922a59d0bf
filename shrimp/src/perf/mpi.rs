//! MPIs of Debian's, if their compilers and launchers are here: what they make of our games.

use crate::children::{self, Child};
use crate::cpu::Pair;
use std::ffi::OsStr;
use std::net::IpAddr;
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
        let mut command = children::command(&self.launcher, None);
        command.args(["-bind-to", "none"]);
        let [near, far] = starters.each_ref().map(Vec::as_slice);
        self.ranks(&mut command, [(near, pair.a), (far, pair.b)], pair, arguments);
        finish(command, settings)
    }

    /// The same of Open MPI, whose ranks reach their launcher's helper in its own network namespace only: so each host has
    /// such a helper, started by `agent` as by a remote shell.
    pub(super) fn run_on_hosts(
        &self,
        near: &[String],
        hosts: [IpAddr; 2],
        agent: &Path,
        pair: Pair,
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> Option<String> {
        let words: Vec<&OsStr> = near.iter().map(OsStr::new).collect();
        let mut words = words.into_iter().chain([self.launcher.as_os_str()]);
        let mut command = children::command(Path::new(words.next()?), None);
        command.args(words).args(["--mca", "plm_rsh_agent"]).arg(agent);
        self.permit(&mut command);
        command.args(["--bind-to", "none"]);
        let [near, far] = hosts.map(|host| ["--host".to_owned(), host.to_string()]);
        self.ranks(&mut command, [(&near, pair.a), (&far, pair.b)], pair, arguments);
        finish(command, settings)
    }

    /// A rank for each of two words that say where it is.
    fn ranks(
        &self,
        command: &mut Command,
        places: [(&[String], usize); 2],
        pair: Pair,
        arguments: &[&str],
    ) {
        for (number, (place, cpu)) in places.into_iter().enumerate() {
            if number > 0 {
                command.arg(":");
            }
            command.args(["-n", "1"]).args(place);
            if !pair.is_single() {
                command.args(["taskset", "-c", &cpu.to_string()]);
            }
            command.arg(&self.program).args(arguments);
        }
    }
}

/// What a job says.
fn finish(mut command: Command, settings: &[(&str, &str)]) -> Option<String> {
    command.envs(settings.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    Child::spawn(command, "an MPI job").ok()?.output_within(PATIENCE).ok()
}
