//! The progress thread: asleep at this process's door, and woken by interrupts only.
//!
//! It does what the program cannot while it computes: gives buffers to senders that ran out (N18), sends
//! what is queued when credits come (N16), matches messages with the receives of handlers, and notices that
//! a process died.

use super::counters as count;
use super::handshake::Call;
use super::inner::Inner;
use std::sync::Arc;
use vmmc::sync::Ordering;

/// Runs until the engine stops.
pub(super) fn run(inner: &Arc<Inner>) {
    let mut told = false;
    loop {
        let woken = inner.bell.wait_until(
            None,
            |_| true,
            |_| {
                (inner.peers.door().is_called()
                    || inner.stop.load(Ordering::Acquire)
                    || inner.on_end.0.load(Ordering::Relaxed)
                    || (!told && inner.check().is_err()))
                .then_some(())
            },
        );
        if inner.stop.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = woken {
            inner.fail(error.into()); // nobody would hear of an end
            if !told {
                inner.tell_failure();
            }
            return;
        }
        inner.look_at_ends();
        if !told && inner.check().is_err() {
            told = true;
            inner.tell_failure();
        }
        let Some(call) = inner.peers.door().called() else { continue };
        inner.count(count::INTERRUPTED, 1);
        if call == Call::New {
            super::joining::welcome(inner);
        }
        inner.serve_interrupt();
    }
}
