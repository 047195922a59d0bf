//! Every tunable of the engine: name, default, unit, why. The environment is read here only.

use super::points::{Armed, Point};
use crate::error::StartError;
use crate::unconfirmed::{MESSAGE_IDS, SILENT_TRUNCATION};
use vmmc::config::Tunable;

/// All tunables.
pub const TABLE: &[Tunable] = &[
    Tunable {
        name: "NX_SEND",
        default: "au",
        unit: "au | du1 | du2",
        help: "how small messages are sent: stores as the message is marshalled; two deliberate updates without a copy; one after a copy",
    },
    Tunable {
        name: "NX_SLOT_BYTES",
        default: "auto",
        unit: "bytes",
        help: "size of a packet buffer, 32 per pair and direction; auto: 8320, less in large jobs",
    },
    Tunable {
        name: "NX_LARGE",
        default: "auto",
        unit: "bytes",
        help: "messages longer than this are announced by a scout; auto, and at most: what fits a packet buffer",
    },
    Tunable {
        name: "NX_STAGE_CHUNK",
        default: "32768",
        unit: "bytes",
        help: "the safe copy of a large message is published, and the reply looked for, each so many bytes",
    },
    Tunable {
        name: "NX_DIRECT",
        default: "4194304",
        unit: "bytes | off",
        help: "messages at least this long may go from user memory to user memory by the sender alone (off: none, nor by both); shorter ones are faster by the safe copy, whose two copies are made by two processors at the same time",
    },
    Tunable {
        name: "NX_SHARE",
        default: "65536",
        unit: "bytes | off",
        help: "messages at least this long may go from user memory to user memory by both processes, each of which copies a part, when both of their buffers were used before",
    },
    Tunable {
        name: "NX_DIRECT_AFTER",
        default: "1",
        unit: "receives",
        help: "a buffer is made reachable for its sender when this many large messages have come into it from there: setting up costs more than one copy",
    },
    Tunable {
        name: "NX_DIRECT_CHECK",
        default: "auto",
        unit: "auto | pages",
        help: "how it is found out before each use that such a buffer is still the same memory: by asking the kernel (auto, from Linux 6.11 on), or page by page",
    },
    Tunable {
        name: "NX_MIDS",
        default: "1024",
        unit: "message ids",
        help: "how many operations may be outstanding; then isend and irecv fail",
    },
    Tunable {
        name: "NX_TRUNCATE",
        default: "error",
        unit: "error | silent",
        help: "what becomes of a message longer than its buffer; silent: the receive succeeds, infocount tells",
    },
    Tunable {
        name: "NX_START_S",
        default: "60",
        unit: "seconds",
        help: "how long to wait for the other processes of the job at the start",
    },
    Tunable {
        name: "NX_FLUSH_MS",
        default: "1000",
        unit: "milliseconds",
        help: "how long a call that ends the program waits for what was printed to be written, since its stream may be locked, and then to be read by an MPI launcher",
    },
];

/// Default of `NX_FLUSH_MS`.
pub(crate) const FLUSH_MS: u32 = 1000;

/// How small messages are sent (Figure 4 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// Automatic update: the descriptor and the data are stored where they belong as they are made.
    Automatic,
    /// Deliberate update in two transfers, the data straight from user memory ("1copy").
    Deliberate1,
    /// Deliberate update in one transfer of a marshalled copy ("2copy").
    Deliberate2,
}

/// The settings of one process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `NX_SEND`.
    pub send: SendMode,
    /// `NX_SLOT_BYTES`; `None`: by the size of the job.
    pub slot_bytes: Option<usize>,
    /// `NX_LARGE`.
    pub large: usize,
    /// `NX_STAGE_CHUNK`.
    pub stage_chunk: usize,
    /// `NX_DIRECT`; `usize::MAX` when off.
    pub direct: usize,
    /// `NX_SHARE`; `usize::MAX` when it or `NX_DIRECT` is off.
    pub share: usize,
    /// `NX_DIRECT_AFTER`.
    pub direct_after: u32,
    /// `NX_DIRECT_CHECK`: page by page.
    pub direct_by_pages: bool,
    /// `NX_MIDS`.
    pub mids: usize,
    /// `NX_TRUNCATE`.
    pub truncate: bool,
    /// `NX_START_S`.
    pub start_s: u64,
    /// `NX_FLUSH_MS`.
    pub flush_ms: u32,
    /// `NX_FAILPOINT`, for tests.
    pub failpoints: Vec<Armed>,
}

impl Settings {
    /// From the environment.
    ///
    /// # Errors
    /// [`StartError::Setting`] for the first variable that is not understood.
    pub fn from_env() -> Result<Settings, StartError> {
        Settings::from_lookup(&|name| std::env::var(name).ok())
    }

    /// From any source of variables.
    ///
    /// # Errors
    /// As [`Settings::from_env`].
    pub fn from_lookup(get: &dyn Fn(&str) -> Option<String>) -> Result<Settings, StartError> {
        let set = |name: &str| get(name).filter(|value| !value.is_empty());
        let number = |name: &'static str,
                      word: &str,
                      meant: usize,
                      range: std::ops::RangeInclusive<usize>| {
            let Some(value) = set(name).filter(|value| value != word) else { return Ok(meant) };
            match value.parse() {
                Ok(number) if range.contains(&number) => Ok(number),
                _ => Err(StartError::Setting {
                    name,
                    value,
                    expected: "a whole number in its range",
                }),
            }
        };
        let one_of = |name: &'static str, names: &[&str], expected: &'static str| match set(name) {
            None => Ok(0),
            Some(value) => names
                .iter()
                .position(|known| *known == value)
                .ok_or(StartError::Setting { name, value, expected }),
        };
        let any = 1..=usize::MAX;
        let length = |name: &'static str, meant| match set(name).as_deref() {
            Some("off") => Ok(usize::MAX),
            _ => number(name, "auto", meant, any.clone()),
        };
        let direct = length("NX_DIRECT", 4 << 20)?;
        let share = length("NX_SHARE", 64 << 10)?;
        let send = match one_of("NX_SEND", &["au", "du1", "du2"], "au, du1 or du2")? {
            0 => SendMode::Automatic,
            1 => SendMode::Deliberate1,
            _ => SendMode::Deliberate2,
        };
        Ok(Settings {
            send,
            slot_bytes: match number("NX_SLOT_BYTES", "auto", 0, super::layout::STRIDES)? {
                0 => None,
                bytes => Some(bytes.next_multiple_of(64)),
            },
            large: number("NX_LARGE", "auto", usize::MAX, 0..=usize::MAX)?,
            stage_chunk: number("NX_STAGE_CHUNK", "auto", 32 << 10, any.clone())?,
            direct,
            share: if direct == usize::MAX { direct } else { share },
            direct_after: number("NX_DIRECT_AFTER", "auto", 1, 0..=u32::MAX as usize)? as u32,
            direct_by_pages: one_of("NX_DIRECT_CHECK", &["auto", "pages"], "auto or pages")? == 1,
            mids: number("NX_MIDS", "auto", MESSAGE_IDS, 1..=60_000)?,
            truncate: match set("NX_TRUNCATE") {
                None => SILENT_TRUNCATION,
                Some(_) => one_of("NX_TRUNCATE", &["error", "silent"], "error or silent")? == 1,
            },
            start_s: number("NX_START_S", "auto", 60, any)? as u64,
            flush_ms: number("NX_FLUSH_MS", "auto", FLUSH_MS as usize, 0..=u32::MAX as usize)?
                as u32,
            failpoints: match set("NX_FAILPOINT") {
                None => Vec::new(),
                Some(value) => {
                    let all: Result<_, ()> = value.split(',').map(str::parse).collect();
                    all.map_err(|()| StartError::Setting {
                        name: "NX_FAILPOINT",
                        value,
                        expected: "a point of nx::engine::points, @, and a node number",
                    })?
                }
            },
        })
    }

    /// Reaches a named point: see [`super::points`].
    #[inline]
    pub(super) fn at(&self, point: Point, node: u32) {
        for armed in &self.failpoints {
            armed.reach(point, node);
        }
    }

    /// Stride of the slots in a job of `processes`: about 16 MiB of slots per process at most.
    #[must_use]
    pub fn stride(&self, processes: usize) -> usize {
        let fair = (16 << 20) / processes.max(1) / super::layout::SLOTS;
        let stride = self.slot_bytes.unwrap_or(fair.min(8320) / 64 * 64);
        stride.clamp(*super::layout::STRIDES.start(), *super::layout::STRIDES.end())
    }

    /// The longest message that is not announced by a scout, in a job of `processes`.
    #[must_use]
    pub fn longest_in_a_slot(&self, processes: usize) -> usize {
        super::layout::room(self.stride(processes)).min(self.large)
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_tunable_can_be_set_and_a_bad_value_names_it() {
        for tunable in TABLE {
            let with = |value: &'static str| {
                Settings::from_lookup(&move |asked| (asked == tunable.name).then(|| value.into()))
            };
            assert!(with("").is_ok());
            assert!(with(tunable.default).is_ok(), "{}", tunable.name);
            match with("nonsense") {
                Err(StartError::Setting { name, .. }) => assert_eq!(name, tunable.name),
                other => panic!("{}: {other:?}", tunable.name),
            }
        }
    }

    #[test]
    fn slots_shrink_with_the_size_of_the_job() {
        let settings = Settings::from_lookup(&|_| None).unwrap();
        assert_eq!(settings.stride(2), 8320);
        assert_eq!(settings.stride(64), 8192);
        assert!(settings.stride(1024) < 1024);
    }

    #[test]
    fn what_is_not_announced_fits_a_slot() {
        let with = |large: &'static str| {
            Settings::from_lookup(&move |name| (name == "NX_LARGE").then(|| large.into())).unwrap()
        };
        let room = super::super::layout::room(8320);
        assert_eq!(with("auto").longest_in_a_slot(2), room);
        assert_eq!(with("100000").longest_in_a_slot(2), room);
        assert_eq!(with("100").longest_in_a_slot(2), 100);
    }
}
