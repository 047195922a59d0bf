//! A daemon of this command alone, in a scratch directory: nobody's own daemon is disturbed, and
//! nothing that it knows can disturb us.

use crate::children::{self, Child};
use crate::client::Daemon;
use crate::exit::{Coded, Context, Exit, Failure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[error(
    "the private daemon did not start ({why}); its log: {log:?}. Run vmmcd by hand to see more"
)]
pub(crate) struct StartError {
    why: String,
    log: String,
}

impl Coded for StartError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// The daemon; ended when dropped.
#[derive(Debug)]
pub(crate) struct PrivateDaemon {
    _process: Child,
    /// Where it listens.
    pub(crate) socket: PathBuf,
    log: PathBuf,
}

impl PrivateDaemon {
    /// Starts `program`, pinned to `cpu`, with its socket and log in `dir`, and waits until it
    /// listens.
    pub(crate) fn start(
        program: &Path,
        dir: &Path,
        name: &str,
        cpu: Option<usize>,
    ) -> Result<PrivateDaemon, Failure> {
        PrivateDaemon::start_with(program, dir, name, cpu, &[])
    }

    /// As [`PrivateDaemon::start`], with arguments.
    pub(crate) fn start_with(
        program: &Path,
        dir: &Path,
        name: &str,
        cpu: Option<usize>,
        arguments: &[&OsStr],
    ) -> Result<PrivateDaemon, Failure> {
        let socket = dir.join(format!("{name}.sock"));
        let log = dir.join(format!("{name}.log"));
        let file = std::fs::File::create(&log).context(|| format!("making {log:?}"))?;
        let mut command = children::command(program, cpu);
        command
            .arg("--socket")
            .arg(&socket)
            .args(arguments)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(file.try_clone().context(|| "the log".into())?)
            .stderr(file);
        let mut process = Child::spawn(command, "vmmcd")?;
        match crate::client::wait_for(&socket, || process.ended().is_none()) {
            Ok(_) => Ok(PrivateDaemon { _process: process, socket, log }),
            Err(failure) => {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                Err(StartError { why: failure.to_string(), log: log.trim().into() }.into())
            }
        }
    }

    /// A connection for looking.
    pub(crate) fn look(&self) -> Result<Daemon, Failure> {
        Daemon::connect(&self.socket)
    }

    /// The end of its log, for a report of something that went wrong.
    pub(crate) fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join("\n")
    }
}
