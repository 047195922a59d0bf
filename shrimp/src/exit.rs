//! Exit codes, and the errors that carry them.

use std::process::ExitCode;

/// What the exit code of `shrimp` means. `shrimp --help` prints [`HELP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All well.
    Ok = 0,
    /// It was tried and failed; or `doctor` found something that needs attention.
    Failed = 1,
    // 2 is clap's, for arguments that are not understood.
    /// No daemon is running.
    NoDaemon = 3,
    /// The daemon is there but refused, or did not answer.
    DaemonRefused = 4,
    /// A program or library that is needed is missing.
    Missing = 5,
    /// `demo`: bytes were wrong, or did not go through shared memory.
    NotVerified = 6,
    /// `exec`: the program was found but cannot be run (as in sh and env).
    CannotRun = 126,
    /// `exec`: the program was not found (as in sh and env).
    NotFound = 127,
}

/// The table for `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0    all well
  1    it was tried and failed; doctor: something needs attention
  2    arguments not understood
  3    no daemon is running (stat, daemon status)
  4    the daemon refused or did not answer
  5    a program or library that is needed is missing
  6    demo: bytes were wrong, or did not go through shared memory
  126  exec: the program cannot be run      127  exec: program not found
  128+N  ended by signal N after cleaning up (130: Ctrl-C)
  exec otherwise ends with the program's own exit code, run with that of the first node that failed.";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An error that knows its exit code.
pub(crate) trait Coded: std::error::Error + 'static {
    /// The code.
    fn exit(&self) -> Exit;
}

/// What a subcommand failed with. Its text names the value, the reason and the remedy.
#[derive(Debug)]
pub(crate) struct Failure(Box<dyn CodedDebug>);

trait CodedDebug: Coded + std::fmt::Debug {}
impl<E: Coded + std::fmt::Debug> CodedDebug for E {}

impl Failure {
    /// The code to end with.
    pub(crate) fn exit(&self) -> Exit {
        self.0.exit()
    }
}

impl<E: Coded> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(Box::new(error))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Coded for vmmc::control::ConnectError {
    fn exit(&self) -> Exit {
        use vmmc::control::ConnectError as E;
        match self {
            E::NoDaemon { .. } => Exit::NoDaemon,
            E::NoProgram { .. } | E::NotRunnable { .. } => Exit::Missing,
            E::NotStarted { .. } | E::System { .. } | E::BadPath { .. } | E::NotADaemon { .. } => {
                Exit::Failed
            }
            _ => Exit::DaemonRefused,
        }
    }
}

impl Coded for vmmc::config::ConfigError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Something outside (file, process, system call) that did not work.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub(crate) struct Io {
    /// What was tried, naming the object; ends with the remedy where there is one.
    what: String,
    source: std::io::Error,
}

impl Coded for Io {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Adds what was tried to an error of the system.
pub(crate) trait Context<T> {
    /// Names what was tried.
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Io>;
}

impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Io> {
        self.map_err(|error| Io { what: what(), source: error.into() })
    }
}
