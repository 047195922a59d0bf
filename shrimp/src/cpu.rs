//! Which processors to use, and pinning to them.

use crate::exit::{Context, Io};
use rustix::thread::CpuSet;

/// The processors this process may run on, in order.
pub(crate) fn allowed() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => vec![0],
    }
}

/// Two processors for a pair of processes: two cores where there are two, else two hardware
/// threads, else the same one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// For the side that starts and measures.
    pub(crate) a: usize,
    /// For the side that answers.
    pub(crate) b: usize,
}

impl Pair {
    /// The pair for this machine.
    pub(crate) fn choose() -> Pair {
        let cpus = allowed();
        let a = cpus.first().copied().unwrap_or(0);
        let siblings = siblings_of(a);
        let other_core = cpus.iter().copied().find(|&cpu| cpu != a && !siblings.contains(&cpu));
        let b = other_core.or(cpus.get(1).copied()).unwrap_or(a);
        Pair { a, b }
    }

    /// Whether both are one processor: spinning makes no sense then.
    pub(crate) fn is_single(self) -> bool {
        self.a == self.b
    }

    /// For people.
    pub(crate) fn describe(self) -> String {
        if self.is_single() {
            format!("both processes on CPU {}: only one is available", self.a)
        } else if siblings_of(self.a).contains(&self.b) {
            format!("CPU {} and CPU {} (two threads of one core)", self.a, self.b)
        } else {
            format!("CPU {} and CPU {}", self.a, self.b)
        }
    }
}

/// Processors that share a core with `cpu`, itself included.
fn siblings_of(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    std::fs::read_to_string(path).map_or_else(|_| vec![cpu], |list| parse_list(&list))
}

/// The kernel's list format: `0-3,8`.
fn parse_list(list: &str) -> Vec<usize> {
    list.trim()
        .split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some(from.parse().ok()?..=to.parse().ok()?)
        })
        .flatten()
        .collect()
}

/// Pins the calling thread to one processor.
pub(crate) fn pin(cpu: usize) -> Result<(), Io> {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set)
        .context(|| format!("pinning to CPU {cpu} (available here: {:?})", allowed()))
}

/// Does something with the calling thread pinned to one processor, and lets it go again.
pub(crate) fn while_pinned<T, E: From<Io>>(
    cpu: usize,
    action: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let before = rustix::thread::sched_getaffinity(None)
        .context(|| "asking which processors may be used".into())?;
    pin(cpu)?;
    let done = action();
    rustix::thread::sched_setaffinity(None, &before)
        .context(|| "letting go of a processor".into())?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_understood() {
        assert_eq!(parse_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_list("3"), [3]);
        assert_eq!(parse_list(""), Vec::<usize>::new());
    }

    #[test]
    fn a_thread_is_pinned_for_a_while_only() {
        let before = allowed();
        let cpu = before[0];
        let meanwhile = while_pinned(cpu, || Ok::<_, Io>(allowed())).unwrap();
        assert_eq!((meanwhile, allowed()), (vec![cpu], before));
    }
}
