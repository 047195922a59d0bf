//! A store-load barrier that one side pays for both ([`vmmc::sys::membarrier`]).

#[cfg(not(vmmc_loom))]
pub(crate) use vmmc::sys::membarrier::{heavy_for_sure as heavy, light};

/// The model checker has none: each side has a fence of its own.
#[cfg(vmmc_loom)]
mod fences {
    use vmmc::sync::{Ordering, fence};

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }
}
#[cfg(vmmc_loom)]
pub(crate) use fences::{heavy, light};
