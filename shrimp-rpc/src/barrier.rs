//! A store-load barrier that one side pays for both ([`vmmc::sys::membarrier`]).

#[cfg(not(vmmc_loom))]
mod of_the_kernel {
    use vmmc::sys::membarrier;
    pub(crate) use vmmc::sys::membarrier::light;

    pub(crate) fn heavy() {
        if !membarrier::heavy() {
            // Forbidden since this process was registered (seccomp): what the others stored has long arrived after this.
            std::thread::sleep(membarrier::SETTLED);
        }
    }
}
#[cfg(not(vmmc_loom))]
pub(crate) use of_the_kernel::{heavy, light};

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
