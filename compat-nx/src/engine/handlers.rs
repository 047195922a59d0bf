//! The handler thread: runs the functions of `hrecv`, `hsend` and their like while the program computes.
//!
//! One handler at a time, in a thread of its own, so that a handler may block in a receive, send,
//! allocate and print as a handler of NX could. `masktrap` is a lock around them: while the
//! program has masked handlers none starts, and masking waits for one that runs. Inside a
//! handler others are masked anyway; there `masktrap` only keeps the value, so that a handler
//! may save and restore it. A handler that panics ends the job for this process: what it was to do is not
//! done, and the receive that it would have posted is missing.

use super::types::{Handler, Info};
use crate::error::NxError;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vmmc::sys::thread::{spawn_quiet_by, take_faults};

thread_local! {
    /// Whether this is a handler thread, and the value that its `masktrap` keeps.
    static INSIDE: Cell<Option<bool>> = const { Cell::new(None) };
}

/// See the module.
#[derive(Default)]
pub(super) struct Handlers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    masked: bool,
    /// Threads that keep handlers from starting; see [`Handlers::hold`].
    held: u32,
    running: bool,
    stop: bool,
    /// Whether the thread was started.
    started: bool,
}

/// A handler that is to run.
struct Queued {
    handler: Handler,
    /// What a receive has selected.
    typesel: Option<i32>,
    result: Result<Info, NxError>,
}

/// How long an orderly end waits for a handler that runs. Longer one is not waited for: it may wait itself, for what never comes.
const LAST: Duration = Duration::from_secs(5);

/// Least and most bytes of the stack of the handler thread; in between it is what the program's own may grow to.
const STACK: std::ops::RangeInclusive<u64> = 8 << 20..=256 << 20;

/// Handlers have the locals that the program's functions have: as much stack as the main thread (`RLIMIT_STACK`).
fn stack_of_the_program() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    limit.unwrap_or(u64::MAX).clamp(*STACK.start(), *STACK.end()) as usize
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handlers")
    }
}

impl Handlers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread if there is none yet. `panicked` is told when a handler panics, and with what.
    pub(super) fn start(
        this: &Arc<Handlers>,
        panicked: impl Fn(String) + Send + 'static,
    ) -> std::io::Result<()> {
        let mut state = this.lock();
        if state.started {
            return Ok(());
        }
        let handlers = this.clone();
        let run = move || {
            // What handlers do wrong is the program's own: it may have handlers of its own for that.
            take_faults();
            handlers.run(&panicked);
        };
        let builder = std::thread::Builder::new().name("nx-handlers".into());
        spawn_quiet_by(builder.stack_size(stack_of_the_program()), run)?;
        state.started = true;
        Ok(())
    }

    /// Runs a handler soon.
    pub(super) fn queue(
        &self,
        handler: Handler,
        typesel: Option<i32>,
        result: Result<Info, NxError>,
    ) {
        self.lock().queue.push_back(Queued { handler, typesel, result });
        self.changed.notify_all();
    }

    /// Takes back what is queued for receives of a selector.
    #[must_use]
    pub(super) fn take_queued(&self, typesel: i32) -> Vec<Handler> {
        let mut state = self.lock();
        let (taken, kept) =
            state.queue.drain(..).partition(|queued| queued.typesel == Some(typesel));
        state.queue = kept;
        drop(state);
        let taken: VecDeque<Queued> = taken;
        taken.into_iter().map(|queued| queued.handler).collect()
    }

    /// Waits for the handler that runs, unless this is called from it, and keeps others from starting until the guard is dropped.
    pub(super) fn hold(&self) -> Held<'_> {
        let mut state = self.lock();
        state.held += 1;
        while state.running && INSIDE.get().is_none() {
            state = self.wait(state);
        }
        Held(self)
    }

    fn run(&self, panicked: &dyn Fn(String)) {
        INSIDE.set(Some(true));
        let mut state = self.lock();
        loop {
            if state.stop {
                return;
            }
            match state.queue.pop_front() {
                Some(next) if !state.masked && state.held == 0 => {
                    state.running = true;
                    drop(state);
                    let Queued { handler, result, .. } = next;
                    let run = std::panic::AssertUnwindSafe(|| handler(result));
                    if let Err(what) = std::panic::catch_unwind(run) {
                        panicked(text_of(&*what));
                        // What was thrown may throw when it is dropped.
                        std::mem::forget(what);
                    }
                    INSIDE.set(Some(true)); // whatever the handler left
                    state = self.lock();
                    state.running = false;
                    self.changed.notify_all();
                }
                Some(next) => {
                    state.queue.push_front(next);
                    state = self.wait(state);
                }
                None => state = self.wait(state),
            }
        }
    }

    /// See [`super::Engine::masktrap`].
    pub(super) fn mask(&self, mask: bool) -> bool {
        if let Some(value) = INSIDE.get() {
            INSIDE.set(Some(mask));
            return value;
        }
        let mut state = self.lock();
        let before = state.masked;
        state.masked = mask;
        if mask {
            while state.running {
                state = self.wait(state);
            }
        } else {
            self.changed.notify_all();
        }
        before
    }

    /// Whether no handler runs or is about to.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.queue.is_empty() && !state.running
    }

    /// No handler starts after this; one that runs may go on.
    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// Waits for the handler that runs, unless this is called from it, and not for ever.
    pub(super) fn see_off(&self) {
        if INSIDE.get().is_none() {
            let state = self.lock();
            drop(self.changed.wait_timeout_while(state, LAST, |state| state.running));
        }
    }
}

/// See [`Handlers::hold`].
pub(super) struct Held<'h>(&'h Handlers);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.lock().held -= 1;
        self.0.changed.notify_all();
    }
}

/// What a panic says.
fn text_of(what: &(dyn std::any::Any + Send)) -> String {
    let text = what.downcast_ref::<&str>().copied();
    let text = text.or_else(|| what.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("something that is no text").to_owned()
}
