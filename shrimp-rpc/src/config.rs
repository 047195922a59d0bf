//! Every tunable of this library: name, default, unit, why. The environment is read here only.
//!
//! What concerns mappings and waiting is in [`vmmc::config`].

use std::time::Duration;
use vmmc::config::Tunable;

/// All tunables.
pub const TABLE: &[Tunable] = &[
    Tunable {
        name: "SHRIMP_RPC_BUFFER",
        default: "65536",
        unit: "bytes",
        help: "length of each buffer of a binding that does not say otherwise; longer messages go in pieces",
    },
    Tunable {
        name: "SHRIMP_RPC_CALL_MAX",
        default: "268435456",
        unit: "bytes",
        help: "longest call and longest reply: what one of a peer can make this process allocate",
    },
    Tunable {
        name: "SHRIMP_RPC_LANES",
        default: "8",
        unit: "bindings",
        help: "calls at a time through one client; each takes a pair of buffers, made when first needed",
    },
    Tunable {
        name: "SHRIMP_RPC_CONNECT_MS",
        default: "10000",
        unit: "milliseconds",
        help: "how long a client waits for a service to appear and to answer",
    },
    Tunable {
        name: "SHRIMP_RPC_BINDINGS",
        default: "4096",
        unit: "bindings",
        help: "bindings that a server allows; each takes a buffer of memory",
    },
    Tunable {
        name: "SHRIMP_RPC_BINDINGS_EACH",
        default: "1024",
        unit: "bindings",
        help: "bindings that a server allows to one client process; as many may wait to be made",
    },
    Tunable {
        name: "SHRIMP_RPC_PIECES",
        default: "2147483648",
        unit: "bytes",
        help: "memory of a server for calls and replies in pieces, and for buffers of replies to other nodes, at least three of the longest and a buffer; one client process gets half",
    },
    Tunable {
        name: "SHRIMP_RPC_WORKERS",
        default: "1",
        unit: "threads",
        help: "threads of a server that run handlers",
    },
];

/// Place of `SHRIMP_RPC_LANES` in the table.
const LANES: usize = 2;

/// What a tunable is set to, if that is a number.
fn set(get: &dyn Fn(&str) -> Option<String>, at: usize) -> Option<usize> {
    get(TABLE.get(at)?.name)?.trim().parse().ok()
}

/// Settings of one client or server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `SHRIMP_RPC_BUFFER`.
    pub buffer_len: usize,
    /// `SHRIMP_RPC_CALL_MAX`.
    pub call_max: usize,
    /// `SHRIMP_RPC_LANES`.
    pub lanes: usize,
    /// `SHRIMP_RPC_CONNECT_MS`.
    pub connect_timeout: Duration,
    /// `SHRIMP_RPC_BINDINGS`.
    pub bindings_max: usize,
    /// `SHRIMP_RPC_BINDINGS_EACH`.
    pub bindings_each: usize,
    /// `SHRIMP_RPC_PIECES`.
    pub pieces_max: usize,
    /// `SHRIMP_RPC_WORKERS`.
    pub workers: usize,
}

/// Idle clients are looked at now and then; this many recent ones are looked at every time.
pub(crate) const HOT: usize = 8;

impl Settings {
    /// From the environment; a value that is no number counts as not set.
    #[must_use]
    pub fn from_env() -> Settings {
        Settings::from_lookup(&|name| std::env::var(name).ok())
    }

    /// `SHRIMP_RPC_LANES`, if it is set to a number.
    #[must_use]
    pub fn lanes_from_env() -> Option<usize> {
        set(&|name| std::env::var(name).ok(), LANES).map(|lanes: usize| lanes.max(1))
    }

    /// From any source of variables.
    #[must_use]
    pub fn from_lookup(get: &dyn Fn(&str) -> Option<String>) -> Settings {
        let number = |at: usize| -> usize {
            TABLE.get(at).map_or(0, |tunable| {
                set(get, at).or_else(|| tunable.default.parse().ok()).unwrap_or(0)
            })
        };
        Settings {
            buffer_len: crate::layout::buffer_len(number(0)),
            call_max: number(1),
            lanes: number(LANES).max(1),
            connect_timeout: Duration::from_millis(number(3) as u64),
            bindings_max: number(4),
            bindings_each: number(5),
            pieces_max: number(6),
            workers: number(7).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tunable_has_a_default_and_can_be_set() {
        let plain = Settings::from_lookup(&|_| None);
        assert_eq!((plain.buffer_len, plain.workers, plain.lanes), (65536, 1, 8));
        for tunable in TABLE {
            let set = Settings::from_lookup(&|name| (name == tunable.name).then(|| "12345".into()));
            assert_ne!(set, plain, "{} has no effect", tunable.name);
        }
    }
}
