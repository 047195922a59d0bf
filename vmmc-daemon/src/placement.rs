//! On which processor the daemon serves.
//!
//! A caller sleeps until it has its answer. If the daemon runs on the caller's processor meanwhile, a
//! round trip is two switches between processes (some microseconds); from another processor it is two
//! wake-ups of a sleeping processor, tens of microseconds (DESIGN.md, "Waking up"). The scheduler wakes
//! a sleeper where it ran last if that processor is idle, so left alone the daemon stays away.
//!
//! So the daemon *follows* its callers: after [`STREAK`] requests in a row from one processor it
//! moves there, and it leaves again
//!
//! * with the first request from another processor (callers on several processors in turn are served
//!   as without this module), and
//! * when nothing has been asked for [`LINGER`].
//!
//! It never leaves the set of processors that it was started with. Being bound to a processor that
//! another program keeps busy must not make it late, so it asks the scheduler for the shortest slice
//! there is ([`SLICE`]): a thread that wakes with a shorter slice than the running one's takes the
//! processor at once (Linux 6.12). Where that cannot be had, the daemon does not follow.
//!
//! Where a caller runs is read from its process page, by its own word: a liar spoils its own time.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};
use vmmc::sys::sched;

/// Requests in a row from one processor before the daemon moves there.
const STREAK: u32 = 2;
/// How long after the last request it stays.
pub(crate) const LINGER: Duration = Duration::from_millis(20);
/// How long the news of others may wait while the caller that shares our processor goes on. To wake a
/// sleeping processor costs the waker some ten microseconds, which the caller would wait for.
pub(crate) const DEFER: Duration = Duration::from_micros(50);
/// Slice asked for, the shortest that the kernel grants.
const SLICE: Duration = Duration::from_micros(100);

/// Where the daemon is, and why.
#[derive(Debug)]
pub(crate) struct Placement {
    /// The processors it may use. `None`: it does not follow.
    home: Option<CpuSet>,
    /// The processor it is bound to.
    bound: Option<u32>,
    /// Where the latest requests came from, and how many in a row.
    streak: (u32, u32),
    /// When to leave.
    until: Option<Instant>,
}

impl Placement {
    /// Stays where it is.
    pub(crate) fn fixed() -> Placement {
        Placement { home: None, bound: None, streak: (u32::MAX, 0), until: None }
    }

    /// Follows, if it can. For the thread that serves.
    pub(crate) fn following() -> Placement {
        let home = sched_getaffinity(None)
            .ok()
            .filter(|home| home.count() > 1 && sched::ask_for_slice(SLICE));
        Placement { home, ..Placement::fixed() }
    }

    /// A request has come from that processor.
    pub(crate) fn request_from(&mut self, cpu: u32) {
        let Some(home) = &self.home else { return };
        if self.streak.0 == cpu {
            self.streak.1 = self.streak.1.saturating_add(1);
        } else {
            self.streak = (cpu, 1);
        }
        if self.bound == Some(cpu) {
            self.until = Some(Instant::now() + LINGER);
        } else if self.streak.1 >= STREAK
            && (cpu as usize) < CpuSet::MAX_CPU
            && home.is_set(cpu as usize)
        {
            let mut one = CpuSet::new();
            one.set(cpu as usize);
            if sched_setaffinity(None, &one).is_ok() {
                self.bound = Some(cpu);
                self.until = Some(Instant::now() + LINGER);
            }
        } else {
            self.leave();
        }
    }

    /// When [`Placement::leave_if_due`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.until
    }

    /// Nothing was asked for a while.
    pub(crate) fn leave_if_due(&mut self, now: Instant) {
        if self.until.is_some_and(|until| until <= now) {
            self.leave();
            self.streak = (u32::MAX, 0);
        }
    }

    fn leave(&mut self) {
        if let (Some(home), Some(_)) = (&self.home, self.bound.take()) {
            // The set that we were given cannot be refused, unless it was changed since: then we
            // have that one.
            let _ = sched_setaffinity(None, home);
            self.until = None;
        }
    }
}
