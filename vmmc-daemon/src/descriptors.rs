//! Living within `RLIMIT_NOFILE`.
//!
//! A process costs four descriptors, or three if it neither exports nor imports, an export one, a link one that is only for statistics, an upgraded connection
//! one, one to another node six. A new descriptor gets the lowest free number, so its number tells how many are in use. With
//! half of them in use links keep none any more; the last of them are kept back, for what lets
//! those who are there already go on: sending, tools, a successor.

use rustix::process::{Resource, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vmmc::control::message::Refusal;
use vmmc::sys::Fd;

/// Raises the limit: to the hard one, or beyond it where the process may.
pub fn raise_limit() {
    const ENOUGH: u64 = 1 << 18;
    let mut limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(ENOUGH);
    let more = hard.max(ENOUGH);
    (limit.current, limit.maximum) = (Some(more), Some(more));
    if setrlimit(Resource::Nofile, limit).is_err() {
        (limit.current, limit.maximum) = (Some(hard), Some(hard));
        // What there is will have to do.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// The limit when it was looked at last (it can be changed from outside), or 0.
static SEEN: AtomicU64 = AtomicU64::new(0);

fn limit() -> u64 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    SEEN.store(limit, Ordering::Relaxed);
    limit
}

/// Whether a descriptor may be kept for mere statistics. It came not long ago, and passed [`enough`].
pub(crate) fn plenty(new: &Fd) -> bool {
    let limit = match SEEN.load(Ordering::Relaxed) {
        0 => limit(),
        seen => seen,
    };
    (new.as_raw_fd() as u64) < limit / 2
}

/// Whether a descriptor that has just come may be kept at all. With plenty left the limit is looked at now and then:
/// that is a system call.
pub(crate) fn enough(new: &Fd) -> Result<(), Refusal> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    if plenty(new) && !ASKED.fetch_add(1, Ordering::Relaxed).is_multiple_of(32) {
        return Ok(());
    }
    let limit = limit();
    let reserve = (limit / 16).clamp(16, 512);
    if (new.as_raw_fd() as u64).saturating_add(reserve) < limit {
        return Ok(());
    }
    Err(none_left())
}

/// What a client is told whose descriptors cannot be kept.
pub(crate) fn none_left() -> Refusal {
    let limit = limit();
    let why = format!(
        "keep more descriptors: its limit is {limit}; raise LimitNOFILE (ulimit -n) of vmmcd"
    );
    Refusal::Internal { why }
}
