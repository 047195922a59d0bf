//! Every tunable: name, default, unit, why. The environment is read here and nowhere else.
//!
//! `shrimp doctor` prints [`TABLE`] with the values in force.

pub mod rules;

use rules::{RuleError, Rules};
use std::borrow::Cow;
use std::time::Duration;

/// One row of the table of tunables.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// Environment variable.
    pub name: &'static str,
    /// Value when it is not set, as it would be written.
    pub default: &'static str,
    /// Unit of the value.
    pub unit: &'static str,
    /// What it does and why the default is what it is.
    pub help: &'static str,
}

/// All tunables, in the order they are documented.
pub const TABLE: &[Tunable] = &[
    Tunable {
        name: "VMMC_SOCKET",
        default: "",
        unit: "path",
        help: "daemon's socket; empty: the system-wide one if it runs, else the user's own",
    },
    Tunable {
        name: "VMMC_DAEMON",
        default: "",
        unit: "path",
        help: "vmmcd program to start when none runs; empty: beside the program or library, then PATH; \"none\": never start one",
    },
    Tunable {
        name: "VMMC_WAIT",
        default: "hybrid",
        unit: "spin | block | hybrid",
        help: "how waits wait; hybrid spins for VMMC_SPIN_US and then sleeps",
    },
    Tunable {
        name: "VMMC_SPIN_US",
        default: "auto",
        unit: "microseconds",
        help: "how long hybrid spins; auto: the wake-up cost the daemon measured, at most 50; 0 on one processor. For what comes over a network up to four times as long, at most 50 unless set to more",
    },
    Tunable {
        name: "VMMC_DRAIN_MS",
        default: "1000",
        unit: "milliseconds",
        help: "how long unexport waits for an importer's transfer in progress before it revokes anyway; for other nodes' messages, ten times that while some come",
    },
    Tunable {
        name: "VMMC_NOTIFY_BACKLOG",
        default: "1048576",
        unit: "notifications",
        help: "queued notifications a process keeps per import while they are blocked; then the sender waits",
    },
    Tunable {
        name: "VMMC_PAIR_MS",
        default: "1000",
        unit: "milliseconds",
        help: "for vmmcd and for programs of Sun RPC alike: how long one end of a connection waits at vmmcd for the other before it stays with TCP (meanwhile it counts as one of its user's connections); they wait twice as long for vmmcd's answer, 2 s at least",
    },
    Tunable {
        name: "VMMC_SOCKETS",
        default: "on",
        unit: "on | off",
        help: "off: libvmmc_sockets.so does nothing, every connection stays plain TCP",
    },
    Tunable {
        name: "VMMC_SOCKETS_RULES",
        default: "",
        unit: "rules",
        help: "which connections may be upgraded, as in \"allow port=6379; deny\"; the first rule that holds decides; see `shrimp exec --help`",
    },
    Tunable {
        name: "VMMC_SOCKETS_PROTOCOL",
        default: "au-2copy",
        unit: "au-2copy | du-1copy | du-2copy",
        help: "how a sender fills a ring: by stores into it, by a deliberate update from the program's buffer, or by one from a copy of it",
    },
    Tunable {
        name: "VMMC_SOCKETS_IO_URING",
        default: "sockets",
        unit: "sockets | files | refused",
        help: "what a program uses io_uring for: files says that it never reads or writes a TCP socket that way, so that its connections may be upgraded all the same (MariaDB); that cannot be checked. refused has it set up no ring (ENOSYS, as on a kernel without), for programs that do without (Node.js)",
    },
    Tunable {
        name: "VMMC_SOCKETS_AFTER",
        default: "32",
        unit: "calls, 1 to 1000000",
        help: "data calls that moved something after which an end of a connection is offered to vmmcd; fewer where connections are short and seldom made: an offer costs what some tens of calls over TCP cost more than over a ring",
    },
    Tunable {
        name: "VMMC_SOCKETS_FULL_MS",
        default: "500",
        unit: "milliseconds",
        help: "how long a connection's ring is full and nothing of it read before its stream goes on by TCP for a while, into the kernel's larger buffers; a tenth of that where the ring of the other direction is full as well",
    },
    Tunable {
        name: "VMMC_SOCKETS_REPORT",
        default: "",
        unit: "path",
        help: "file to which libvmmc_sockets.so appends its counters when the program exits",
    },
    Tunable {
        name: "VMMC_RPC",
        default: "on",
        unit: "on | off",
        help: "off: libvrpc.so does nothing, every RPC goes the way libtirpc takes it",
    },
    Tunable {
        name: "VMMC_RPC_UDP",
        default: "off",
        unit: "on | off",
        help: "on: libvrpc.so also moves clients made over UDP to a ring, by way of the server's TCP port; their calls then have the limits of TCP, and one server once",
    },
    Tunable {
        name: "VMMC_RPC_PROTOCOL",
        default: "au",
        unit: "au | du",
        help: "how libvrpc.so sends: encoded where the receiver decodes, or encoded in memory of its own and sent by a deliberate update",
    },
    Tunable {
        name: "VMMC_RPC_TIMES",
        default: "off",
        unit: "on | off",
        help: "on: libvrpc.so counts the nanoseconds that clients spend in each part of a call, which takes reading the clock five times",
    },
    Tunable {
        name: "VMMC_RPC_REPORT",
        default: "",
        unit: "path",
        help: "file to which libvrpc.so appends its counters when the program exits",
    },
];

/// How to wait for something that another process will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Poll only. Lowest latency; a whole processor per waiter.
    Spin,
    /// Sleep at once. No idle processor time; a wake-up per message.
    Block,
    /// Poll for the budget, then sleep (the default; D5). With a budget equal to the cost of a
    /// wake-up, it costs at most twice what the best choice would have.
    Hybrid {
        /// How long to poll.
        budget: Duration,
    },
}

impl WaitPolicy {
    /// How long to poll before a sleep. `spinning` where the policy never sleeps and the waiter cannot
    /// do without: it has other things to wait for as well.
    #[must_use]
    pub fn budget(self, spinning: Duration) -> Duration {
        match self {
            WaitPolicy::Spin => spinning,
            WaitPolicy::Block => Duration::ZERO,
            WaitPolicy::Hybrid { budget } => budget,
        }
    }

    /// How long to poll for the other side of a conversation over a socket: the time that the own wake-up
    /// would take, and as much for the other side's, which may have to wake up first.
    #[must_use]
    pub fn round_trip_budget(self) -> Duration {
        2 * self.budget(SPIN_CAP)
    }

    /// How long to poll for what comes back over a network, by a [`Poller`](crate::wait::Poller): on the way there and on the way
    /// back a kernel does what it does for a wake-up, and beside it the other side may have to wake up, and then this one.
    /// Not more than a whole automatic budget, unless that was asked for.
    #[must_use]
    pub fn network_budget(self) -> Duration {
        let one = self.budget(Duration::from_millis(1));
        one.max((4 * one).min(SPIN_CAP))
    }
}

/// Cap of the automatic budget: a guest whose idle processors are slow to wake measures far
/// more, and spinning that long steals the processor from others.
pub const SPIN_CAP: Duration = Duration::from_micros(50);

/// Settings of one process.
#[derive(Clone, Debug)]
pub struct Config {
    /// `VMMC_SOCKET`.
    pub socket: Option<std::path::PathBuf>,
    /// `VMMC_DAEMON`.
    pub daemon: DaemonStart,
    /// `VMMC_WAIT` and `VMMC_SPIN_US`; `None` for the automatic budget.
    pub wait: WaitChoice,
    /// `VMMC_DRAIN_MS`.
    pub drain: Duration,
    /// `VMMC_NOTIFY_BACKLOG`.
    pub notify_backlog: usize,
    /// `VMMC_PAIR_MS`.
    pub pair: Duration,
    /// `VMMC_SOCKETS`: whether the sockets library takes part.
    pub sockets: bool,
    /// `VMMC_SOCKETS_RULES`: which connections may be upgraded.
    pub sockets_rules: Rules,
    /// `VMMC_SOCKETS_PROTOCOL`.
    pub sockets_protocol: StreamProtocol,
    /// `VMMC_SOCKETS_AFTER`: data calls after which a connection is offered.
    pub sockets_after: u32,
    /// `VMMC_SOCKETS_FULL_MS`: how long a ring is full that nobody reads before its stream goes by TCP.
    pub sockets_full: Duration,
    /// `VMMC_SOCKETS_IO_URING`: what rings of io_uring are for.
    pub io_uring: IoUring,
    /// `VMMC_SOCKETS_REPORT`.
    pub sockets_report: Option<std::path::PathBuf>,
    /// `VMMC_RPC`: whether the Sun RPC library takes part.
    pub rpc: bool,
    /// `VMMC_RPC_UDP`: whether clients made over UDP take part.
    pub rpc_udp: bool,
    /// `VMMC_RPC_PROTOCOL`.
    pub rpc_protocol: RpcProtocol,
    /// `VMMC_RPC_TIMES`: whether the parts of a call are timed.
    pub rpc_times: bool,
    /// `VMMC_RPC_REPORT`.
    pub rpc_report: Option<std::path::PathBuf>,
}

/// How a sender moves bytes into a ring (seed 003, section 4.3, figure 7). On one machine a bound
/// page is the peer's page, so that all of them end in stores to the same memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamProtocol {
    /// Automatic update: the sender copies into the ring, the receiver out of it.
    #[default]
    Au2Copy,
    /// Deliberate update from the program's buffer; only the receiver copies.
    Du1Copy,
    /// The sender copies into a buffer of the library's, which a deliberate update sends; the receiver
    /// copies. In the paper, for buffers that are not aligned as the network wants them.
    Du2Copy,
}

/// What a program's rings of io_uring are for, whose requests nobody but the kernel sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoUring {
    /// Sockets, perhaps: a process that has a ring leaves them all to the kernel.
    #[default]
    Sockets,
    /// Files only.
    Files,
    /// Nothing: none is set up.
    Refused,
}

/// How a record of Sun RPC gets into a ring (seed 003, section 4.2, figure 5). On one machine both end
/// in stores to the same memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RpcProtocol {
    /// Automatic update: encoded into the ring, no copy at the sender.
    #[default]
    Au,
    /// Deliberate update: encoded into memory of the sender's, which one update sends.
    Du,
}

/// Whether and what to start when no daemon runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonStart {
    /// Look beside the running program or library, then in `PATH`.
    Search,
    /// Start this program.
    Program(std::path::PathBuf),
    /// Fail instead.
    Never,
}

/// The wait policy as configured; the automatic budget is only known once the daemon told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitChoice {
    /// Fixed by the user.
    Fixed(WaitPolicy),
    /// Hybrid with the measured wake-up cost.
    Auto,
}

/// A tunable that cannot be understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{name}={value:?} is not understood: expected {expected}; unset it for the default")]
pub struct ConfigError {
    /// Environment variable.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// What it may be.
    pub expected: Cow<'static, str>,
}

/// Data calls that moved something at which a connection is offered to vmmcd, where nothing else is set.
///
/// An offer costs both ends what some tens of calls over TCP cost more than over a ring, most where
/// the server forks for each connection. A connection that asks one thing after it has logged in
/// (PostgreSQL: ten calls) ends before.
pub const CALLS_BEFORE_OFFER: u32 = 32;

/// The most that can be set.
const MOST_CALLS_BEFORE: u32 = 1_000_000;

fn number(
    name: &'static str,
    get: &dyn Fn(&str) -> Option<String>,
    default: u64,
) -> Result<u64, ConfigError> {
    match get(name).filter(|value| !value.is_empty()) {
        None => Ok(default),
        Some(value) => value.parse().map_err(|_| ConfigError {
            name,
            value,
            expected: "a whole number, 0 or more".into(),
        }),
    }
}

/// A path from the directory that the process is in now, which it may leave, and a daemon that it starts does.
fn absolute(path: String) -> std::path::PathBuf {
    std::path::absolute(&path).unwrap_or_else(|_| path.into())
}

impl Config {
    /// The settings from the process's environment.
    ///
    /// # Errors
    /// [`ConfigError`] for the first variable that is not understood.
    pub fn from_env() -> Result<Config, ConfigError> {
        // What is no text is told of, rather than taken for unset.
        let unreadable = std::env::vars_os().find_map(|(name, value)| {
            let name = TABLE.iter().find(|tunable| name == tunable.name)?.name;
            Some((name, value.to_str().is_none().then(|| value.to_string_lossy().into_owned())?))
        });
        match unreadable {
            Some((name, value)) => {
                Err(ConfigError { name, value, expected: "text in UTF-8".into() })
            }
            None => Config::from_lookup(&|name| std::env::var(name).ok()),
        }
    }

    /// The settings from any source of variables.
    ///
    /// # Errors
    /// [`ConfigError`] for the first variable that is not understood.
    pub fn from_lookup(get: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        let set = |name: &str| get(name).filter(|value| !value.is_empty());
        let daemon = match set("VMMC_DAEMON") {
            None => DaemonStart::Search,
            Some(value) if value == "none" => DaemonStart::Never,
            // A bare name is looked up in PATH.
            Some(value) if !value.contains('/') => DaemonStart::Program(value.into()),
            Some(value) => DaemonStart::Program(absolute(value)),
        };
        let spin_us = match set("VMMC_SPIN_US").as_deref() {
            None | Some("auto") => None,
            Some(_) => Some(number("VMMC_SPIN_US", get, 0).map_err(|error| ConfigError {
                expected: "\"auto\" or a whole number of microseconds".into(),
                ..error
            })?),
        };
        let wait = match set("VMMC_WAIT").as_deref() {
            Some("spin") => WaitChoice::Fixed(WaitPolicy::Spin),
            Some("block") => WaitChoice::Fixed(WaitPolicy::Block),
            None | Some("hybrid") => match spin_us {
                None => WaitChoice::Auto,
                Some(us) => {
                    WaitChoice::Fixed(WaitPolicy::Hybrid { budget: Duration::from_micros(us) })
                }
            },
            Some(value) => {
                return Err(ConfigError {
                    name: "VMMC_WAIT",
                    value: value.to_owned(),
                    expected: "\"spin\", \"block\" or \"hybrid\"".into(),
                });
            }
        };
        let switch = |name: &'static str, default: bool| match set(name).as_deref() {
            None => Ok(default),
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(value) => Err(ConfigError {
                name,
                value: value.to_owned(),
                expected: "\"on\" or \"off\"".into(),
            }),
        };
        Ok(Config {
            sockets: switch("VMMC_SOCKETS", true)?,
            sockets_rules: match set("VMMC_SOCKETS_RULES") {
                None => Rules::default(),
                Some(value) => value.parse().map_err(|wrong: RuleError| ConfigError {
                    name: "VMMC_SOCKETS_RULES",
                    value,
                    expected: format!(
                        "rules like \"deny port=22; allow program=redis*\" ({wrong})"
                    )
                    .into(),
                })?,
            },
            sockets_protocol: match set("VMMC_SOCKETS_PROTOCOL").as_deref() {
                None | Some("au-2copy") => StreamProtocol::Au2Copy,
                Some("du-1copy") => StreamProtocol::Du1Copy,
                Some("du-2copy") => StreamProtocol::Du2Copy,
                Some(value) => {
                    return Err(ConfigError {
                        name: "VMMC_SOCKETS_PROTOCOL",
                        value: value.to_owned(),
                        expected: "\"au-2copy\", \"du-1copy\" or \"du-2copy\"".into(),
                    });
                }
            },
            sockets_after: match set("VMMC_SOCKETS_AFTER") {
                None => CALLS_BEFORE_OFFER,
                Some(value) => match value.parse() {
                    Ok(calls @ 1..=MOST_CALLS_BEFORE) => calls,
                    _ => {
                        return Err(ConfigError {
                            name: "VMMC_SOCKETS_AFTER",
                            value,
                            expected: "a number of calls, 1 to 1000000".into(),
                        });
                    }
                },
            },
            sockets_full: Duration::from_millis(number("VMMC_SOCKETS_FULL_MS", get, 500)?),
            io_uring: match set("VMMC_SOCKETS_IO_URING").as_deref() {
                None | Some("sockets") => IoUring::Sockets,
                Some("files") => IoUring::Files,
                Some("refused") => IoUring::Refused,
                Some(value) => {
                    return Err(ConfigError {
                        name: "VMMC_SOCKETS_IO_URING",
                        value: value.to_owned(),
                        expected: "\"sockets\", \"files\" or \"refused\"".into(),
                    });
                }
            },
            rpc: switch("VMMC_RPC", true)?,
            rpc_udp: switch("VMMC_RPC_UDP", false)?,
            rpc_protocol: match set("VMMC_RPC_PROTOCOL").as_deref() {
                None | Some("au") => RpcProtocol::Au,
                Some("du") => RpcProtocol::Du,
                Some(value) => {
                    return Err(ConfigError {
                        name: "VMMC_RPC_PROTOCOL",
                        value: value.to_owned(),
                        expected: "\"au\" or \"du\"".into(),
                    });
                }
            },
            rpc_times: switch("VMMC_RPC_TIMES", false)?,
            rpc_report: set("VMMC_RPC_REPORT").map(Into::into),
            sockets_report: set("VMMC_SOCKETS_REPORT").map(Into::into),
            socket: set("VMMC_SOCKET").map(absolute),
            daemon,
            wait,
            drain: Duration::from_millis(number("VMMC_DRAIN_MS", get, 1000)?),
            pair: Duration::from_millis(number("VMMC_PAIR_MS", get, 1000)?),
            notify_backlog: match number("VMMC_NOTIFY_BACKLOG", get, 1 << 20)? {
                0 => {
                    return Err(ConfigError {
                        name: "VMMC_NOTIFY_BACKLOG",
                        value: "0".to_owned(),
                        expected: "a whole number, 1 or more".into(),
                    });
                }
                backlog => backlog as usize,
            },
        })
    }

    /// The policy in force, given the wake-up cost that the daemon measured.
    #[must_use]
    pub fn wait_policy(&self, wake_cost: Duration) -> WaitPolicy {
        match self.wait {
            WaitChoice::Fixed(policy) => policy,
            WaitChoice::Auto => {
                let one_cpu = crate::sys::process::online_processors() == 1;
                let budget = if one_cpu { Duration::ZERO } else { wake_cost.min(SPIN_CAP) };
                WaitPolicy::Hybrid { budget }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &'static str, value: &'static str) -> Result<Config, ConfigError> {
        Config::from_lookup(&move |asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn every_tunable_in_the_table_can_be_set_and_a_bad_value_names_it() {
        for tunable in TABLE {
            assert!(config(tunable.name, "").is_ok());
            if tunable.unit != "path" {
                let error = config(tunable.name, "nonsense").unwrap_err();
                assert_eq!((error.name, error.value.as_str()), (tunable.name, "nonsense"));
            }
        }
    }

    #[test]
    fn connections_are_offered_after_so_many_calls() {
        let after = |value| config("VMMC_SOCKETS_AFTER", value).map(|config| config.sockets_after);
        assert_eq!(after("").unwrap(), CALLS_BEFORE_OFFER);
        assert_eq!((after("1").unwrap(), after("1000000").unwrap()), (1, 1_000_000));
        for value in ["0", "1000001", "-1", "1.5"] {
            assert_eq!(after(value).unwrap_err().value, value);
        }
    }

    #[test]
    fn a_backlog_of_nothing_is_refused_and_a_bad_rule_says_which_word() {
        let error = config("VMMC_NOTIFY_BACKLOG", "0").unwrap_err().to_string();
        assert!(error.contains("1 or more"), "{error}");
        let error = config("VMMC_SOCKETS_RULES", "deny port=22; allow prot=1").unwrap_err();
        assert!(error.to_string().contains("\"prot=1\""), "{error}");
    }

    #[test]
    fn the_automatic_budget_is_capped() {
        let policy = config("none", "").unwrap().wait_policy(Duration::from_secs(1));
        assert!(matches!(policy, WaitPolicy::Hybrid { budget } if budget <= SPIN_CAP));
    }

    #[test]
    fn over_a_network_it_is_longer_but_for_who_polls_not_or_for_long() {
        let micros = Duration::from_micros;
        let of = |us| WaitPolicy::Hybrid { budget: micros(us) }.network_budget();
        assert_eq!([0, 6, 20, 70].map(of), [0, 24, 50, 70].map(micros));
        assert_eq!(WaitPolicy::Block.network_budget(), Duration::ZERO);
        assert_eq!(WaitPolicy::Spin.network_budget(), micros(1000));
    }
}
