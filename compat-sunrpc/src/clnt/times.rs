//! Where the time of a call goes, as the paper tells it (seed 003, section 4.2): preparing the header,
//! transfer and wait, processing the header, returning. Only with `VMMC_RPC_TIMES`.

use crate::counters::{self, Counter};
use crate::settings;
use std::time::Instant;

/// Ends of the parts of one call, in order.
const PARTS: [Counter; 4] =
    [Counter::prepare_ns, Counter::transfer_ns, Counter::header_ns, Counter::return_ns];

/// The clock of one call.
#[derive(Debug)]
pub(super) struct Times {
    start: Option<Instant>,
    parts: [u64; PARTS.len()],
    done: usize,
}

impl Times {
    /// A call begins.
    pub(super) fn start() -> Times {
        let start = settings::times_calls().then(Instant::now);
        Times { start, parts: [0; PARTS.len()], done: 0 }
    }

    /// The next part has ended.
    #[inline]
    pub(super) fn mark(&mut self) {
        let Some(start) = self.start else { return };
        let now = Instant::now();
        if let Some(part) = self.parts.get_mut(self.done) {
            *part = u64::try_from(now.duration_since(start).as_nanos()).unwrap_or(u64::MAX);
        }
        self.start = Some(now);
        self.done += 1;
    }

    /// The call is over. One that did not go through all parts once is not counted.
    pub(super) fn finish(mut self) {
        self.mark();
        if self.done == PARTS.len() {
            counters::one(Counter::timed_calls);
            for (counter, nanoseconds) in PARTS.into_iter().zip(self.parts) {
                counters::add(counter, nanoseconds);
            }
        }
    }
}
