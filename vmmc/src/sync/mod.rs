//! The only place that names atomics and fences.
//!
//! Lock-free code in this workspace imports from here. Under
//! `RUSTFLAGS="--cfg vmmc_loom"` the names are loom's, so the very code that runs
//! over shared mappings is explored by the model checker over ordinary memory.

#[cfg(not(vmmc_loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(vmmc_loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// One turn of a spin loop: a pause for the processor, a yield for the model checker.
#[inline]
pub fn spin_hint() {
    #[cfg(not(vmmc_loom))]
    std::hint::spin_loop();
    #[cfg(vmmc_loom)]
    loom::thread::yield_now();
}

mod lock;
mod stripe;
pub use lock::{Condvar, Mutex, MutexGuard};
pub use stripe::{STRIPES, stripe_is_shared, take_stripe, thread_stripe, thread_token};
