//! Watching for messages of other nodes while handlers wait for some.
//!
//! On one machine a sender sees our wants word and interrupts us; a fence on either side makes sure that a
//! message is found by one of the two. No fence reaches over a network: a message can be on its way
//! when we begin to want. So from the first handler on a thread of our own waits at the doorbell
//! that messages ring, as a thread in a receive would, and does what an interrupt would make the
//! progress thread do. It sleeps on a condition while nothing is wanted.

use super::inner::Inner;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use vmmc::sync::{AtomicBool, Ordering};
use vmmc::sys::thread::spawn_quiet;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Watch {
    wanted: AtomicBool,
    started: Mutex<bool>,
    change: Condvar,
}

impl Watch {
    /// Starts the thread if there is none yet and a peer is on another node.
    pub(super) fn start(inner: &Arc<Inner>) -> std::io::Result<()> {
        let mut started = inner.watch.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started && inner.peers().any(|peer| peer.out.is_elsewhere()) {
            let inner = inner.clone();
            spawn_quiet("nx-watch", move || run(&inner))?;
            *started = true;
        }
        Ok(())
    }

    /// Whether messages are wanted from here on. Returns whether the thread is there, which may wait
    /// at the doorbell.
    pub(super) fn set(&self, wanted: bool) -> bool {
        self.wanted.store(wanted, Ordering::Release);
        let started = *self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if started {
            self.change.notify_all();
        }
        started
    }

    /// Waits until messages are wanted, or the engine stops.
    fn wait(&self, inner: &Inner) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_wanted() && !inner.stop.load(Ordering::Acquire) {
            started = self.change.wait(started).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// The thread is to look again: the engine stops.
    pub(super) fn wake(&self) {
        drop(self.started.lock().unwrap_or_else(PoisonError::into_inner));
        self.change.notify_all();
    }
}

fn run(inner: &Arc<Inner>) {
    let watch = &inner.watch;
    let stops = || inner.stop.load(Ordering::Acquire);
    loop {
        watch.wait(inner);
        if stops() {
            return;
        }
        // As if it shared our processor: a thread that spins would take it from the program.
        let found = inner.data.wait_until(
            None,
            |_| true,
            |_| (stops() || !watch.is_wanted() || inner.has_news()).then_some(()),
        );
        if found.is_err() || stops() {
            return;
        }
        inner.serve_interrupt();
    }
}
