//! What nodes leave behind when they end: processes of their own.

use rustix::process::{Pid, Signal, WaitOptions};

/// Orphaned descendants become children of this process.
pub(super) fn adopt() {
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Kills all descendants of this process; answers how many there were.
pub(super) fn kill_all() -> usize {
    let mut killed = 0;
    loop {
        let children = children();
        if children.is_empty() {
            return killed;
        }
        for child in children {
            let _ = rustix::process::kill_process(child, Signal::KILL);
            // Its children become ours, to be found in the next round.
            if rustix::process::waitpid(Some(child), WaitOptions::empty()).is_ok() {
                killed += 1;
            }
        }
    }
}

/// The direct children of all threads of this process.
fn children() -> Vec<Pid> {
    let mut all = Vec::new();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return all };
    for thread in threads.flatten() {
        let list = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        all.extend(list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    all
}
