//! How many lanes are bound, and whether the server has refused a further one.
//!
//! A server has room for so many bindings, of a process and in all. A call for which another lane would have been bound waits then
//! for one of those that there are, and asks the server again only some time later. Where none is bound the refusal is the call's,
//! and so it is once the call has waited for a lane as long as one may be waited for at the server's door: the caller may
//! itself have what it waits for.

use super::clock_ns;
use crate::error::ConnectError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long a server that refused a lane is not asked for another one.
pub(super) const FULL: Duration = Duration::from_millis(100);

/// See the module. Hints, but for the number: who looks holds no lock.
#[derive(Debug, Default)]
pub(super) struct Places {
    bound: AtomicUsize,
    /// On the monotonic clock, in nanoseconds; 0: the last lane that was asked for was bound.
    full_until: AtomicU64,
}

impl Places {
    /// A lane is bound.
    pub(super) fn taken(&self) {
        self.bound.fetch_add(1, Ordering::Relaxed);
        self.full_until.store(0, Ordering::Relaxed);
    }

    /// A lane is bound no more.
    pub(super) fn given_up(&self) {
        self.bound.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether calls make do with the lanes that are bound.
    pub(super) fn are_full(&self) -> bool {
        let until = self.full_until.load(Ordering::Relaxed);
        until != 0 && self.bound.load(Ordering::Relaxed) > 0 && clock_ns() < until
    }

    /// Whether so many lanes are bound, all that there are: who waits for one is told when it may have it. Otherwise it looks for
    /// itself when the server may be asked again.
    pub(super) fn all_bound(&self, lanes: usize) -> bool {
        self.bound.load(Ordering::Relaxed) >= lanes
    }

    /// The server did not bind another lane. Whether there are others to wait for.
    pub(super) fn refused(&self, why: &ConnectError) -> bool {
        let others = why.is_for_places() && self.bound.load(Ordering::Relaxed) > 0;
        if others {
            let until = clock_ns().saturating_add(FULL.as_nanos() as u64);
            self.full_until.store(until, Ordering::Relaxed);
        }
        others
    }
}
