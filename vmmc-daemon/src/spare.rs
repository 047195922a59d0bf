//! Memory that connections leave to others: a connection without rings goes on by TCP, and a machine without memory ends
//! processes that have nothing to do with it.

use std::time::{Duration, Instant};
use vmmc::sys::memory;

/// Bytes for which the kernel is asked at a time.
const PART: u64 = 16 << 20;

/// How long an answer counts that there is none.
const SHORT: Duration = Duration::from_secs(1);

/// What rings may still take.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// Bytes that may be taken before the kernel is asked again.
    granted: u64,
    /// There was none then.
    short: Option<Instant>,
}

impl Spare {
    /// Takes so many bytes; false where they would not leave plenty.
    pub(crate) fn take(&mut self, len: u64) -> bool {
        self.take_at(Instant::now(), len, memory::has_plenty_after)
    }

    fn take_at(
        &mut self,
        now: Instant,
        len: u64,
        has_plenty_after: impl FnOnce(u64) -> bool,
    ) -> bool {
        if self.granted < len {
            if self.short.is_some_and(|then| now.saturating_duration_since(then) < SHORT) {
                return false;
            }
            let part = len.max(PART);
            self.short = (!has_plenty_after(part)).then_some(now);
            if self.short.is_some() {
                tracing::warn!("little memory is left: new connections stay with TCP");
                return false;
            }
            self.granted = part;
        }
        self.granted -= len;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_for_many_connections_at_once() {
        let mut spare = Spare::default();
        let now = Instant::now();
        let mut asked = Vec::new();
        for _ in 0..32 {
            assert!(spare.take_at(now, 1 << 20, |len| {
                asked.push(len);
                true
            }));
        }
        assert_eq!(asked, [PART, PART]);
        assert!(!spare.take_at(now, 1 << 20, |_| false), "nothing is granted ahead");
        assert!(!spare.take_at(now, 1 << 20, |_| panic!("asked")), "which counts for a while");
        assert!(spare.take_at(now + SHORT, 2 * PART, |len| len == 2 * PART));
    }
}
