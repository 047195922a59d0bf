//! For tests of the crates above (feature `test-util`): a link without daemon or second process,
//! and a peer that does not follow the rules.

#[cfg(all(test, not(vmmc_loom)))]
mod alone;
#[cfg(all(test, not(vmmc_loom)))]
#[allow(unsafe_code)] // forks
mod child;
mod hostile;
mod pair;

#[cfg(all(test, not(vmmc_loom)))]
pub(crate) use alone::alone;
#[cfg(all(test, not(vmmc_loom)))]
pub(crate) use child::ends_well_in_a_child;
pub use hostile::{Hostile, Nonsense};
pub use pair::Pair;
