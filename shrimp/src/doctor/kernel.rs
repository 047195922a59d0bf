//! What the kernel and the limits allow.

use super::Finding;
use rustix::process::{Resource, getrlimit};
use vmmc::sys::{fork, membarrier, memfd, packet, process, track};

const KERNEL: &str = "Kernel";
const LIMITS: &str = "Limits";
const PROCESSORS: &str = "Processors";

/// Oldest kernel that has everything we cannot do without (`F_SEAL_FUTURE_WRITE` 5.1,
/// `pidfd_open` 5.3, `SO_NETNS_COOKIE`, by which the daemon pairs TCP ends, 5.14).
const OLDEST: (u32, u32) = (5, 14);

/// All findings about this machine below us.
pub(super) fn findings() -> Vec<Finding> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = parse_version(&release);
    let mut found = vec![kernel(&release, version)];
    found.extend([seals(), proc_mounted(), barrier(), pidfd(), peer_pidfd(), wipe_on_fork()]);
    found.push(tracking());
    found.extend([files(), mappings(), locked()]);
    found.push(processors());
    found
}

fn parse_version(release: &str) -> (u32, u32) {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    (parts.next().flatten().unwrap_or(0), parts.next().flatten().unwrap_or(0))
}

fn kernel(release: &str, version: (u32, u32)) -> Finding {
    let what = "version";
    if version >= OLDEST {
        Finding::ok(KERNEL, what, format!("Linux {release}"))
    } else {
        Finding::attention(
            KERNEL,
            what,
            format!("Linux {release} is older than {}.{}", OLDEST.0, OLDEST.1),
            format!("run a kernel from {}.{} on", OLDEST.0, OLDEST.1),
        )
    }
}

/// A finding from something that was tried.
fn tried(
    what: &str,
    result: Result<(), rustix::io::Errno>,
    works: &str,
    broken: &str,
    remedy: &str,
) -> Finding {
    match result {
        Ok(()) => Finding::ok(KERNEL, what, works),
        Err(errno) => Finding::attention(KERNEL, what, format!("{broken} ({errno})"), remedy),
    }
}

fn seals() -> Finding {
    let attempt = || {
        let fd = memfd::create("doctor", 4096)?;
        memfd::seal_single_writer(&fd)
    };
    tried(
        "sealed memory files",
        attempt(),
        "work, F_SEAL_FUTURE_WRITE included: no peer can resize or overwrite what it must not",
        "cannot be made",
        "run Linux 5.1 or later, and allow memfd_create in the container's seccomp profile",
    )
}

fn proc_mounted() -> Finding {
    let attempt = || {
        let fd = memfd::create("doctor", 4096)?;
        memfd::reopen_read_only(&fd).map(drop)
    };
    tried(
        "/proc",
        attempt(),
        "is mounted: read-only views of memory can be handed out",
        "descriptors cannot be re-opened through it",
        "mount /proc (in a container: do not hide /proc/self/fd)",
    )
}

fn barrier() -> Finding {
    if membarrier::register() {
        Finding::ok(KERNEL, "membarrier", "works: transfers need no fence, revoking is quick")
    } else {
        Finding::attention(
            KERNEL,
            "membarrier",
            "the expedited form is missing: withdrawing an export takes milliseconds",
            "run a kernel with CONFIG_MEMBARRIER (4.16 or later), allow membarrier in seccomp",
        )
    }
}

fn pidfd() -> Finding {
    let us = rustix::process::getpid();
    let attempt = rustix::process::pidfd_open(us, rustix::process::PidfdFlags::empty()).map(drop);
    tried(
        "pidfd",
        attempt,
        "works: the daemon sees a process die at once",
        "missing",
        "run Linux 5.3 or later, and allow pidfd_open in the container's seccomp profile",
    )
}

fn peer_pidfd() -> Finding {
    // With process id 0 there is no older way to fall back to: only SO_PEERPIDFD can answer.
    let attempt = packet::pair().and_then(|(one, _other)| process::peer_pidfd(&one, 0).map(drop));
    match attempt {
        Ok(()) => Finding::ok(
            KERNEL,
            "SO_PEERPIDFD",
            "works: a client cannot be confused with one that got its process id",
        ),
        Err(_) => Finding::info(
            KERNEL,
            "SO_PEERPIDFD",
            "missing (Linux 6.5 has it): the daemon uses process ids, which can be used again",
        ),
    }
}

fn wipe_on_fork() -> Finding {
    if fork::ForkGuard::get().is_some() {
        Finding::ok(KERNEL, "MADV_WIPEONFORK", "works: a forked child notices that it is one")
    } else {
        Finding::attention(
            KERNEL,
            "MADV_WIPEONFORK",
            "missing: a forked child cannot tell that its handles are its parent's",
            "run Linux 4.14 or later",
        )
    }
}

/// An information and no fault: without it programs name their stores (`Import::auto_update`).
fn tracking() -> Finding {
    let what = "userfaultfd, PAGEMAP_SCAN";
    match track::probe() {
        Ok(()) => Finding::ok(
            KERNEL,
            what,
            "work: plain stores can update an export of another node, the kernel's included (`Import::track`)",
        ),
        Err(errno) => Finding::info(
            KERNEL,
            what,
            format!(
                "not to be had ({errno}): stores for other nodes have to be named; Linux 6.7 has them, if seccomp allows userfaultfd"
            ),
        ),
    }
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

fn files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir(format!("/proc/{}/fd", std::process::id()))
        .map_or(0, |entries| entries.count());
    let text = format!("{} (hard limit {})", limit_text(limit.current), limit_text(limit.maximum));
    if limit.current.is_some_and(|current| current < 256) {
        Finding::attention(
            LIMITS,
            "open files (RLIMIT_NOFILE)",
            format!("{text}, {open} in use here: each export and upgraded connection needs some"),
            "ulimit -n 1024, or LimitNOFILE= of the service",
        )
    } else {
        Finding::ok(LIMITS, "open files (RLIMIT_NOFILE)", text)
    }
}

fn mappings() -> Finding {
    const LEAST: u64 = 65_530;
    /// The pages, a guard at either end, and the link segment.
    const PER_IMPORT: u64 = 4;
    let what = "mappings per process (vm.max_map_count)";
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    match text.trim().parse::<u64>() {
        Ok(count) if count >= LEAST => Finding::ok(
            LIMITS,
            what,
            format!("{count}, enough for some {} imports", count / PER_IMPORT),
        ),
        Ok(count) => Finding::attention(
            LIMITS,
            what,
            format!("{count}, below the usual {LEAST}: some {} imports fit", count / PER_IMPORT),
            format!("sysctl vm.max_map_count={LEAST}"),
        ),
        Err(_) => Finding::info(LIMITS, what, "cannot be read here"),
    }
}

fn locked() -> Finding {
    let limit = getrlimit(Resource::Memlock);
    Finding::info(
        LIMITS,
        "locked memory (RLIMIT_MEMLOCK)",
        format!("{} bytes; nothing is locked on one machine", limit_text(limit.current)),
    )
}

fn processors() -> Finding {
    let allowed = crate::cpu::allowed();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let pair = crate::cpu::Pair::choose();
    if pair.is_single() {
        Finding::info(
            PROCESSORS,
            "available to this process",
            format!(
                "only {allowed:?} (online: {}): waits sleep at once instead of polling, so a message costs a wake-up",
                online.trim()
            ),
        )
    } else {
        Finding::ok(
            PROCESSORS,
            "available to this process",
            format!(
                "{allowed:?} (online: {}); pairs are measured on {}",
                online.trim(),
                pair.describe()
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(parse_version("6.18.44-fc-v669"), (6, 18));
        assert_eq!(parse_version("5.3"), (5, 3));
        assert!(parse_version("5.140.0") >= OLDEST);
        assert_eq!(parse_version("nonsense"), (0, 0));
    }

    #[test]
    fn the_machine_that_runs_the_tests_has_all_it_takes() {
        for finding in findings().iter().filter(|finding| finding.area == KERNEL) {
            assert_ne!(finding.state, super::super::State::Attention, "{finding:?}");
        }
    }
}
