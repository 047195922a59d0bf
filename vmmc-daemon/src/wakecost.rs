//! What it costs to wake a sleeping process on this machine, for the waiters' spin budget.
//!
//! A helper thread sleeps on a doorbell, as a waiter does. Each round waits
//! until it surely sleeps, rings, and takes the time until it runs. The median of the rounds
//! is reported: it spans the sender's system call, the inter-processor interrupt and the scheduler.
//! The two are on different processors, as the processes that will spin are: left alone, the
//! scheduler puts the sleeper beside the one that wakes it, where a wake-up costs a twentieth.
//! For the same reason all processors are used that this process could have: it may have been
//! started by one that is bound to a processor, as its clients need not be.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vmmc::sys::Fd;
use vmmc::sys::doorbell::{self, Doorbell};

const ROUNDS: usize = 31;
/// Long enough for the sleeper to be asleep, short enough for deep idle states not to dominate.
const PAUSE: Duration = Duration::from_micros(50);
/// A busy machine gives fewer rounds: clients are waiting for the daemon meanwhile.
const PATIENCE: Duration = Duration::from_millis(30);
/// Reported when nothing can be measured; the cap of the spin budget applies anyway.
const FALLBACK: Duration = Duration::from_micros(30);

/// Measures the wake-up cost. Takes a few milliseconds, and bounded time
/// on a busy machine.
#[must_use]
pub fn measure() -> Duration {
    measure_on().0
}

/// The cost, and the processors it was measured on.
fn measure_on() -> (Duration, Option<CpuSet>) {
    let before = sched_getaffinity(None);
    use_all_processors();
    let used = sched_getaffinity(None).ok();
    let cost = try_measure().unwrap_or(FALLBACK);
    if let Ok(before) = before {
        // As it was for this thread before the measurement; that cannot fail.
        let _ = sched_setaffinity(None, &before);
    }
    (cost, used)
}

/// Lets the calling thread, and those that it starts, run wherever its control group may.
pub fn use_all_processors() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    // The kernel takes what there is of it. Were there none, all would stay as it was.
    let _ = sched_setaffinity(None, &all);
}

/// Moves the calling thread to the first or the last processor it may use.
fn move_to(first: bool) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    let chosen = if first { processors.next() } else { processors.next_back() };
    if let Some(chosen) = chosen {
        let mut one = CpuSet::new();
        one.set(chosen);
        // Without it the figure is only less good.
        let _ = sched_setaffinity(None, &one);
    }
}

fn try_measure() -> Option<Duration> {
    let bell = Doorbell::new().ok()?;
    let button = bell.button().ok()?;
    let (woken, wakes) = mpsc::sync_channel(1);
    let sleeper = std::thread::Builder::new().name("wakecost".into()).spawn(move || {
        move_to(false);
        loop {
            if !bell.wait(None).unwrap_or(false) {
                continue;
            }
            let now = Instant::now();
            bell.drain();
            if woken.send(now).is_err() {
                return;
            }
        }
    });
    let sleeper = sleeper.ok()?;
    let costs = measure_rounds(&button, &wakes);
    // With nobody to tell it ends.
    drop(wakes);
    doorbell::ring(&button);
    let _ = sleeper.join();
    let mut costs = costs?;
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied().filter(|cost| !cost.is_zero())
}

fn measure_rounds(button: &Fd, wakes: &mpsc::Receiver<Instant>) -> Option<Vec<Duration>> {
    move_to(true);
    let mut costs = Vec::with_capacity(ROUNDS);
    let begun = Instant::now();
    while costs.len() < ROUNDS && (costs.is_empty() || begun.elapsed() < PATIENCE) {
        let start = Instant::now();
        while start.elapsed() < PAUSE {
            std::thread::yield_now();
        }
        let rung = Instant::now();
        doorbell::ring(button);
        let ran = wakes.recv_timeout(Duration::from_millis(200)).ok()?;
        costs.push(ran.saturating_duration_since(rung));
    }
    Some(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_costs_something() {
        // A machine that others keep busy gives none, now and then.
        let cost = std::iter::repeat_with(try_measure).flatten().next().unwrap();
        assert!(!cost.is_zero());
    }

    #[test]
    fn a_bound_process_measures_on_all_processors_and_stays_bound() {
        // In a thread of its own: what is asked for stays with it.
        let bound = std::thread::spawn(|| {
            use_all_processors();
            let all = sched_getaffinity(None).unwrap();
            move_to(false);
            let one = sched_getaffinity(None).unwrap();
            assert_eq!(one.count(), 1);
            let (_, used) = measure_on();
            assert_eq!(used, Some(all));
            assert_eq!(sched_getaffinity(None).unwrap(), one);
        });
        bound.join().unwrap();
    }
}
