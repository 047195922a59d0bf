//! Where and when a measurement was made: goes with every result.

use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine, the kernel, the build.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// Processor model.
    pub(crate) cpu: String,
    /// Processors this process may use.
    pub(crate) cpus: usize,
    /// Whether a hypervisor is below.
    pub(crate) virtual_machine: bool,
    /// Memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Kernel, as uname(2) says.
    pub(crate) kernel: String,
    /// Of this program.
    pub(crate) version: &'static str,
    /// Commit of the source tree we run from, if we do; with `-dirty` when it has changes.
    pub(crate) commit: Option<String>,
    /// UTC, `2026-01-31T12:00:00Z`.
    pub(crate) date: String,
    /// Programs that compete for the processors make the figures worse: load average over one
    /// minute when the measurement began.
    pub(crate) load: f64,
}

impl Machine {
    /// This one, now.
    pub(crate) fn here() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Machine {
            cpu: field("model name").unwrap_or_else(|| text(uname.machine())),
            cpus: crate::cpu::allowed().len(),
            virtual_machine: field("flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            memory_bytes: rustix::system::sysinfo().totalram as u64
                * u64::from(rustix::system::sysinfo().mem_unit),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            date: utc(SystemTime::now()),
            load: load.split(' ').next().and_then(|one| one.parse().ok()).unwrap_or(f64::NAN),
        }
    }

    /// One line for people.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{}{}, {} CPU(s), {}, shrimp {}{}, {}, load {:.1}",
            self.cpu,
            if self.virtual_machine { " (virtual)" } else { "" },
            self.cpus,
            self.kernel,
            self.version,
            self.commit.as_ref().map(|commit| format!(" ({commit})")).unwrap_or_default(),
            self.date,
            self.load,
        )
    }
}

fn commit() -> Option<String> {
    let tree = crate::artefacts::CargoTree::of_running_program()?;
    let output = std::process::Command::new("git")
        .arg("-C")
        .arg(&tree.root)
        .args(["describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// A time as UTC text.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days as i64);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01 (Howard Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153; // March is 0
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_right_around_leap_days() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
