//! For tests of the crates above (feature `test-util`): a link without daemon or second process,
//! and a peer that does not follow the rules.

mod hostile;
mod pair;

pub use hostile::{Hostile, Nonsense};
pub use pair::Pair;
