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
//! Where a caller runs is in its requests, by its own word: a liar spoils its own time.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::OnceLock;
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

/// The processors of a daemon that follows, for threads that it starts.
static HOME: OnceLock<CpuSet> = OnceLock::new();

/// Lets a thread of the daemon run wherever the daemon may: it begins with the affinity of the one
/// that started it, who may be bound to a processor just then.
pub(crate) fn unbind_thread() {
    if let Some(home) = HOME.get() {
        // As in `leave`.
        let _ = sched_setaffinity(None, home);
    }
}

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
        // Wherever it is, a caller should not wait for what else runs there.
        let at_once = sched::ask_for_slice(SLICE);
        let home = sched_getaffinity(None).ok().filter(|home| at_once && home.count() > 1);
        if let Some(home) = home {
            let _ = HOME.set(home);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> CpuSet {
        sched_getaffinity(None).unwrap()
    }

    #[test]
    fn it_follows_a_caller_that_asks_again_and_leaves_with_another_or_with_none() {
        // In a thread of its own: what is asked for stays with it.
        let walk = std::thread::spawn(|| {
            let home = here();
            let cpus: Vec<u32> =
                (0..CpuSet::MAX_CPU).filter(|&at| home.is_set(at)).map(|at| at as u32).collect();
            let mut placement = Placement::following();
            let (one, other) = (cpus[0], cpus[cpus.len() - 1]);
            if placement.home.is_none() {
                // One processor, or a kernel before 6.12: it stays where it is.
                (0..5).for_each(|_| placement.request_from(one));
                assert_eq!(here(), home);
                return;
            }
            placement.request_from(one);
            assert_eq!(here(), home, "one request is no reason to move");
            placement.request_from(one);
            assert_eq!(here().count(), 1);
            assert!(here().is_set(one as usize));
            let helper = std::thread::spawn(|| {
                assert_eq!(here().count(), 1, "as the one who started it");
                unbind_thread();
                here()
            });
            assert_eq!(helper.join().unwrap(), home);
            placement.request_from(other);
            assert_eq!(here(), home, "callers on two processors");
            assert_eq!(placement.due(), None);
            for cpu in [one, other, one, other] {
                placement.request_from(cpu);
                assert_eq!(here(), home, "callers on two processors in turn");
            }
            placement.request_from(other);
            assert_eq!(here().count(), 1);
            let due = placement.due().unwrap();
            placement.leave_if_due(due - Duration::from_nanos(1));
            assert_eq!(here().count(), 1, "not due yet");
            placement.leave_if_due(due);
            assert_eq!(here(), home);
            assert_eq!(placement.due(), None);
            for nowhere in [u32::MAX, CpuSet::MAX_CPU as u32, CpuSet::MAX_CPU as u32 - 1] {
                placement.request_from(nowhere);
                placement.request_from(nowhere);
                assert_eq!(here(), home, "a processor that is not ours");
            }
        });
        walk.join().unwrap();
    }
}
