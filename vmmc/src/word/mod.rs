//! Control words: the pieces that every library's protocol is made of.
//!
//! * [`Word`]: an atomic integer, wherever it lives: in a mapping, on the heap, in loom.
//! * [`arm`]: the arm-and-sleep handshake, by which a receiver sleeps without losing a wake-up
//!   and a sender makes no system call while the receiver is awake.
//! * [`biased`]: a mutex that costs the thread that mostly takes it no locked instruction.
//! * [`credit`]: counts of things produced and consumed, checked against a hostile peer.
//! * [`loose`]: a word that names its holder, and is taken away from one that is stopped before it has changed anything.
//! * [`owned`]: marks that one thread sets without a fence until another comes.
//!
//! A flag word (V17) is a [`Word`] stored with release after the data and loaded with acquire.

pub mod arm;
pub mod biased;
pub mod credit;
pub mod loose;
mod mapped;
pub mod owned;
pub(crate) mod snapshot;

pub use mapped::{MappedU32, MappedU64};

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// An atomic integer that several processes or threads share.
///
/// Algorithms are written against this trait, so the same code runs over mappings and is
/// explored by the model checker.
pub trait Word {
    /// The integer.
    type Value: Copy + PartialEq + std::fmt::Debug + Into<u64> + TryFrom<u64>;
    /// Atomic load.
    fn load(&self, order: Ordering) -> Self::Value;
    /// Atomic store.
    fn store(&self, value: Self::Value, order: Ordering);
    /// Atomic exchange; returns the old value.
    fn swap(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// Atomic wrapping addition; returns the old value.
    fn fetch_add(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// Atomic compare and exchange.
    ///
    /// # Errors
    /// The value found, when it was not `current`.
    fn compare_exchange(
        &self,
        current: Self::Value,
        new: Self::Value,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Self::Value, Self::Value>;
}

macro_rules! impl_word {
    ([$($life:lifetime)?] $word:ty, $value:ty, |$this:ident| $atomic:expr) => {
        impl$(<$life>)? Word for $word {
            type Value = $value;
            #[inline]
            fn load(&self, order: Ordering) -> $value {
                let $this = self;
                $atomic.load(order)
            }
            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                let $this = self;
                $atomic.store(value, order)
            }
            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                let $this = self;
                $atomic.swap(value, order)
            }
            #[inline]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                let $this = self;
                $atomic.fetch_add(value, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let $this = self;
                $atomic.compare_exchange(current, new, success, failure)
            }
        }
    };
}
pub(crate) use impl_word;

impl_word!([] AtomicU32, u32, |this| this);
impl_word!([] AtomicU64, u64, |this| this);

impl<W: Word + ?Sized> Word for &W {
    type Value = W::Value;
    #[inline]
    fn load(&self, order: Ordering) -> W::Value {
        (**self).load(order)
    }
    #[inline]
    fn store(&self, value: W::Value, order: Ordering) {
        (**self).store(value, order);
    }
    #[inline]
    fn swap(&self, value: W::Value, order: Ordering) -> W::Value {
        (**self).swap(value, order)
    }
    #[inline]
    fn fetch_add(&self, value: W::Value, order: Ordering) -> W::Value {
        (**self).fetch_add(value, order)
    }
    #[inline]
    fn compare_exchange(
        &self,
        current: W::Value,
        new: W::Value,
        success: Ordering,
        failure: Ordering,
    ) -> Result<W::Value, W::Value> {
        (**self).compare_exchange(current, new, success, failure)
    }
}
