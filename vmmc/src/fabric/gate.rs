//! Order between calls on what was made from one domain.
//!
//! We ask for `FI_THREAD_SAFE`, and libfabric before 1.19 does not keep to it: the provider `net` (`tcp` from
//! 1.18 on) looks up the memory that a write names under one lock, in whichever thread makes progress,
//! and registers and forgets memory of a domain of reliable datagrams under another, which is none. When
//! a write comes while another thread opens or closes an endpoint, its memory may not be found: the
//! write is refused ("unknown key") and the connection closed, and of what was on its way nobody is told. The
//! tree of keys may also break for good, and the process with it. So whoever opens or closes anything
//! is alone here, and whoever writes or makes progress has only others of that kind beside it.

use crate::sys::fork::ForkGuard;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// See the module.
#[derive(Debug)]
pub(super) struct Gate {
    lock: RwLock<()>,
    /// Of the process that opens here, see [`ForkGuard`].
    generation: u32,
}

impl Gate {
    pub(super) fn new() -> Gate {
        let generation = ForkGuard::get().map_or(0, ForkGuard::ensure_generation);
        Gate { lock: RwLock::new(()), generation }
    }

    /// For a write, or progress.
    pub(super) fn beside_others(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// To open or close.
    pub(super) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// False in a forked child: there the objects are its parent's, with whom the child shares their
    /// sockets, and the descriptor by which the parent waits for them.
    pub(super) fn is_ours(&self) -> bool {
        self.generation == 0
            || ForkGuard::get().is_none_or(|guard| guard.generation() == self.generation)
    }
}
