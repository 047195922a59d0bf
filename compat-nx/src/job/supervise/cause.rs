//! Why an application ended, in words and as an exit code.

use rustix::process::Signal;
use std::fmt;

/// A process, as people are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its node; `None` for the host.
    pub node: Option<u32>,
    /// Its process type.
    pub ptype: i32,
    /// Its process id.
    pub pid: i32,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => write!(f, "node {node} (ptype {}, pid {})", self.ptype, self.pid),
            None => write!(f, "the host process (pid {})", self.pid),
        }
    }
}

/// What ended an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A process exited with a code other than 0.
    Exited {
        /// Which.
        who: Who,
        /// The code.
        code: u8,
    },
    /// A signal killed a process.
    Killed {
        /// Which.
        who: Who,
        /// The signal's number.
        signal: i32,
    },
    /// A process ended without saying so, and is not our child: nobody told us how.
    Died {
        /// Which.
        who: Who,
    },
    /// A process gave up for all.
    Aborted {
        /// Which.
        by: Who,
        /// The exit code it asked for.
        code: u8,
        /// Its reason; empty when it has printed that itself.
        text: String,
    },
    /// A process called `killproc(-1, -1)` or `killcube(-1, -1)`.
    KilledAll {
        /// Which.
        by: Who,
    },
    /// A signal to the supervisor asked all to end.
    Signal(Signal),
    /// The supervisor's own parent has gone.
    Orphaned,
}

impl Cause {
    /// The process that caused it.
    #[must_use]
    pub fn who(&self) -> Option<&Who> {
        match self {
            Cause::Exited { who, .. } | Cause::Killed { who, .. } | Cause::Died { who } => {
                Some(who)
            }
            Cause::Aborted { by, .. } | Cause::KilledAll { by } => Some(by),
            Cause::Signal(_) | Cause::Orphaned => None,
        }
    }

    /// The exit code of the whole application: 128 + N for signal N, as a shell has it.
    #[must_use]
    pub fn code(&self) -> u8 {
        let of_signal = |signal: i32| 128_u8.wrapping_add(u8::try_from(signal).unwrap_or(0));
        match self {
            Cause::Exited { code, .. } => *code,
            Cause::Aborted { code, .. } => (*code).max(1),
            Cause::Killed { signal, .. } => of_signal(*signal),
            Cause::Signal(signal) => of_signal(signal.as_raw()),
            Cause::Died { .. } | Cause::KilledAll { .. } | Cause::Orphaned => {
                of_signal(Signal::KILL.as_raw())
            }
        }
    }
}

/// The usual name of a signal.
fn signal_name(signal: i32) -> &'static str {
    const NAMES: [(Signal, &str); 20] = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::VTALARM, "SIGVTALRM"),
        (Signal::PROF, "SIGPROF"),
        (Signal::SYS, "SIGSYS"),
    ];
    NAMES.iter().find(|(known, _)| known.as_raw() == signal).map_or("a signal", |(_, name)| name)
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Exited { who, code } => write!(f, "{who} exited with code {code}"),
            Cause::Killed { who, signal } => {
                write!(f, "{who} was killed by signal {signal} ({})", signal_name(*signal))
            }
            Cause::Died { who } => write!(f, "{who} died"),
            Cause::Aborted { by, text, .. } if text.is_empty() => {
                write!(f, "{by} ended the application")
            }
            Cause::Aborted { by, text, .. } => write!(f, "{by} ended the application: {text}"),
            Cause::KilledAll { by } => {
                write!(f, "{by} killed the application (killproc, killcube)")
            }
            Cause::Signal(signal) => {
                write!(f, "ended by signal {} ({})", signal.as_raw(), signal_name(signal.as_raw()))
            }
            Cause::Orphaned => write!(f, "the process that started the application has gone"),
        }
    }
}

/// How an application ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// `None`: every process ended by itself with exit code 0.
    pub cause: Option<Cause>,
    /// How many processes the supervisor had to end.
    pub ended: usize,
}

impl Outcome {
    /// The exit code of the whole application.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.cause.as_ref().map_or(0, Cause::code)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cause, self.ended) {
            (None, _) => write!(f, "all processes ended with exit code 0"),
            (Some(cause), 0) => write!(f, "{cause}"),
            (Some(cause), 1) => write!(f, "{cause}; the other process was ended"),
            (Some(cause), ended) => write!(f, "{cause}; the other {ended} processes were ended"),
        }
    }
}
