//! When a node counts as vanished: it owes an acknowledgement, and is silent.
//!
//! The kernel's keep-alive asks only while nothing is owed, and its time limit for what is (`TCP_USER_TIMEOUT`) also ends a
//! connection whose receiver acknowledges that it has no room, which may be for minutes. So both ends of a data connection
//! look at the silence themselves a while after they have sent.

use crate::sys::socket;
use std::os::fd::AsFd;
use std::time::Duration;

/// How long another node that owes an acknowledgement may be silent. Above the longest that a healthy
/// kernel takes, and above what a lost packet costs.
pub const LIMIT: Duration = Duration::from_secs(10);

/// How long after a send the other node is looked after.
pub const LOOK: Duration = Duration::from_secs(5);

/// How long the other end of a TCP connection has owed an acknowledgement; zero if it owes none.
#[must_use]
pub fn of(socket: impl AsFd) -> Duration {
    let Some(info) = socket::tcp_info(socket) else { return Duration::ZERO };
    let field = |at: usize| {
        let bytes = info.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    // linux/tcp.h: tcpi_probes, tcpi_unacked, tcpi_last_ack_recv (milliseconds).
    let owed = info.get(3).is_some_and(|&probes| probes > 0) || field(24) > 0;
    if owed { Duration::from_millis(u64::from(field(56).max(1))) } else { Duration::ZERO }
}

/// What a look at the other end came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    /// It owes nothing.
    Nothing,
    /// It owes something: to be looked after again, [`LOOK`] later.
    Something,
    /// Its node has vanished.
    Lost,
}

/// What the other end of a TCP connection owes: acknowledgements.
#[must_use]
pub fn owed(socket: impl AsFd) -> Owed {
    match of(socket) {
        Duration::ZERO => Owed::Nothing,
        silence if silence > LIMIT => Owed::Lost,
        _ => Owed::Something,
    }
}
