//! The progress thread: asleep at this process's door, and woken by interrupts only.
//!
//! It does what the program cannot while it computes: gives buffers to senders that ran out (N18), sends
//! what is queued when credits come (N16), matches messages with the receives of handlers, and notices that
//! a process died.

use super::counters as count;
use super::inner::Inner;
use std::sync::Arc;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// Runs until the engine stops.
pub(super) fn run(inner: &Arc<Inner>) {
    let Ok(word) = inner.door.view().word32(0) else { unreachable!("the door has a word") };
    let mut told = false;
    loop {
        let woken = inner.bell.wait_until(
            None,
            |_| true,
            |_| {
                (word.load(Ordering::Relaxed) != 0
                    || inner.stop.load(Ordering::Acquire)
                    || inner.on_end.0.load(Ordering::Relaxed)
                    || (!told && inner.check().is_err()))
                .then_some(())
            },
        );
        if woken.is_err() || inner.stop.load(Ordering::Acquire) {
            return;
        }
        inner.look_at_ends();
        if !told && inner.check().is_err() {
            told = true;
            inner.tell_failure();
        }
        // PAIRS(door): with the release in the interrupting process's signal.
        if word.swap(0, Ordering::AcqRel) == 0 {
            continue;
        }
        inner.count(count::INTERRUPTED, 1);
        super::joining::welcome(inner);
        inner.serve_interrupt();
    }
}
