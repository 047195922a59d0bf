//! Giving blocking calls up from another thread.
//!
//! A call is known by the turns of its messages. Who cancels stores, for each lane, the turn of the last message sent, and wakes
//! the waiters; a waiter that does not find its reply at the first looks, and who is between two pieces, looks whether that
//! turn is one of its call. So a cancellation that comes late concerns no later call, and one that is never made costs nothing.

use super::lane::Watch;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use vmmc::Node;

/// What a binding and its [`Canceller`]s share.
#[derive(Debug, Default)]
pub(super) struct Cancels {
    /// How often all was cancelled: for those who wait for a lane, and have no turn yet.
    times: AtomicU64,
    /// Of all lanes that are bound.
    watches: Mutex<Vec<Weak<Watch>>>,
}

impl Cancels {
    /// A lane was bound.
    pub(super) fn heed(&self, watch: &Arc<Watch>) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(watch));
    }

    pub(super) fn times(&self) -> u64 {
        self.times.load(Ordering::Acquire)
    }
}

/// Cancels blocking calls of a [`crate::Binding`], from any thread. Futures are cancelled by dropping them.
#[derive(Clone, Debug)]
pub struct Canceller {
    cancels: Arc<Cancels>,
    node: Node,
}

impl Canceller {
    pub(super) fn new(cancels: &Arc<Cancels>, node: &Node) -> Canceller {
        Canceller { cancels: cancels.clone(), node: node.clone() }
    }

    /// Gives up all blocking calls that wait for their reply now, or are between two pieces: they fail with
    /// [`crate::CallError::Cancelled`]. The server is told, and may have carried them out. Who waits until a call of another
    /// thread is over fails once it is. A call that has not been sent yet, or that has first to bind, is not concerned.
    /// Does not wait.
    pub fn cancel(&self) {
        self.cancels.times.fetch_add(1, Ordering::Release);
        let watches = self.cancels.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().filter_map(Weak::upgrade).for_each(|watch| watch.cancel());
        drop(watches);
        self.node.wake_waiters();
    }
}
