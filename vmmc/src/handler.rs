//! A program's handler, and where it is dropped.
//!
//! It may own anything of the program's: an import, an export, whose ends are told to the daemon and answered by it. A thread
//! that reads what the daemon says would wait for itself there. So what such a thread has to drop it keeps until it has
//! stopped reading ([`Reading`]).

use crate::notify::{Handler, Notification};
use crate::sync::Mutex;
use std::cell::{Cell, RefCell};

thread_local! {
    static READS: Cell<bool> = const { Cell::new(false) };
    static LEFT: RefCell<Vec<Mutex<Handler>>> = const { RefCell::new(Vec::new()) };
}

/// See the module.
pub(crate) struct Called(Option<Mutex<Handler>>);

impl Called {
    pub(crate) fn new(handler: Handler) -> Called {
        Called(Some(Mutex::new(handler)))
    }

    pub(crate) fn call(&self, notification: Notification) {
        if let Some(handler) = &self.0 {
            (handler.lock())(notification);
        }
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        if READS.try_with(Cell::get).unwrap_or(false)
            && let Some(handler) = self.0.take()
        {
            // A thread whose locals are gone reads no more.
            let _ = LEFT.try_with(|left| left.borrow_mut().push(handler));
        }
    }
}

/// This thread reads what the daemon says, or is the one that finds the next daemon. To be dropped behind the reader's lock: handlers
/// are, with it.
#[must_use]
pub(crate) struct Reading(());

impl Reading {
    pub(crate) fn begin() -> Reading {
        READS.set(true);
        Reading(())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READS.set(false);
        // Behind the borrow: what they own may have this thread read again.
        drop(LEFT.take());
    }
}
