//! How much memory is left: to the machine, and to the control groups that this process is in.

use std::path::{Path, PathBuf};

/// What is left of how much, in bytes; swap does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    /// What can still be taken.
    free: u64,
    /// What there is in all.
    whole: u64,
}

impl Left {
    /// Whether an eighth of all is left when so much has been taken.
    fn has_plenty_after(self, len: u64) -> bool {
        self.whole > 0 && self.free.saturating_sub(len) >= self.whole / 8
    }
}

/// Of the machine. `None` where the kernel does not say.
fn of_machine() -> Option<Left> {
    machine(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Bytes that the machine can still hold, with its swap. `None` where the kernel does not say.
#[must_use]
pub fn with_swap() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(machine(&text)?.free.saturating_add(bytes(&text, "SwapFree").unwrap_or(0)))
}

/// Of this process's control group and those around it, as far as they have a limit. (The second version of control
/// groups.)
fn of_groups() -> Vec<Left> {
    let Ok(groups) = std::fs::read_to_string("/proc/self/cgroup") else { return Vec::new() };
    let root = Path::new("/sys/fs/cgroup");
    own_group(root, &groups).map_or(Vec::new(), |own| limits(root, &own))
}

/// Whether so many bytes leave plenty to others: for memory that one can do without.
#[must_use]
pub fn has_plenty_after(len: u64) -> bool {
    of_machine().into_iter().chain(of_groups()).all(|left| left.has_plenty_after(len))
}

fn machine(text: &str) -> Option<Left> {
    Some(Left { free: bytes(text, "MemAvailable")?, whole: bytes(text, "MemTotal")? })
}

/// A line of `/proc/meminfo`.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The directory of the group that `/proc/self/cgroup` names.
fn own_group(root: &Path, groups: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(root.join(path))
}

fn limits(root: &Path, own: &Path) -> Vec<Left> {
    own.ancestors().take_while(|group| group.starts_with(root)).filter_map(limit).collect()
}

fn limit(group: &Path) -> Option<Left> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    // "max" where there is none. Beyond the second the group is slowed down.
    let most = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let whole = most("memory.max").into_iter().chain(most("memory.high")).min()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Files' pages that can be had back; memory files are not among them.
    let stat = read("memory.stat").unwrap_or_default();
    let of = |name: &str| -> u64 {
        let value = stat.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    let files = of("inactive_file ").saturating_add(of("active_file "));
    Some(Left { free: whole.saturating_sub(used.saturating_sub(files)), whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_has_left_is_read() {
        let text = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    400 kB\nSwapTotal:  24 kB\nSwapFree: 8 kB\n";
        assert_eq!(machine(text), Some(Left { free: 400 << 10, whole: 1000 << 10 }));
        assert_eq!(bytes(text, "SwapFree"), Some(8 << 10));
        assert_eq!(machine("MemTotal: 1000 kB\n"), None, "an old kernel does not say");
        assert!(of_machine().is_some_and(|left| left.whole >= left.free && left.free > 0));
    }

    #[test]
    fn an_eighth_is_left_to_others() {
        let left = Left { free: 300, whole: 800 };
        assert!(left.has_plenty_after(200) && !left.has_plenty_after(201));
        assert!(!left.has_plenty_after(u64::MAX));
        assert!(!Left { free: 0, whole: 0 }.has_plenty_after(0), "a group that may have nothing");
    }

    #[test]
    fn every_group_around_counts_and_what_files_keep_is_free() {
        let root = tempfile::tempdir().unwrap();
        let own = own_group(root.path(), "4:memory:/else\n0::/outer/inner\n").unwrap();
        std::fs::create_dir_all(&own).unwrap();
        let write = |group: &Path, name: &str, text: &str| {
            std::fs::write(group.join(name), text).unwrap();
        };
        write(&own, "memory.max", "max\n");
        write(&own, "memory.current", "5000\n");
        let outer = own.parent().unwrap();
        write(outer, "memory.max", "8000\n");
        write(outer, "memory.current", "7000\n");
        write(outer, "memory.stat", "anon 4000\nfile 3000\ninactive_file 900\nactive_file 100\n");
        assert_eq!(limits(root.path(), &own), [Left { free: 2000, whole: 8000 }]);
        write(&own, "memory.high", "6000\n");
        let inner = Left { free: 1000, whole: 6000 };
        assert_eq!(limits(root.path(), &own), [inner, Left { free: 2000, whole: 8000 }]);
        assert_eq!(own_group(root.path(), "4:memory:/else\n"), None, "the first version");
    }
}
