//! Words that live in a mapping.

use super::{Word, impl_word};
// Mapped words are the machine's atomics even where the model checker replaces the others.
use crate::sync::Ordering;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic;

macro_rules! mapped {
    ($name:ident, $value:ty, $atomic:ty, $doc:literal) => {
        #[doc = $doc]
        ///
        /// Holds a pointer, not a reference: the memory may be written by a peer. Each operation
        /// is one atomic instruction on it; nothing is assumed about the value between two.
        #[derive(Clone, Copy, Debug)]
        pub struct $name<'m> {
            /// Aligned and mapped for `'m`.
            pointer: NonNull<$value>,
            mapping: PhantomData<&'m ()>,
        }

        // SAFETY: only atomic operations are done through the pointer.
        unsafe impl Send for $name<'_> {}
        // SAFETY: as above.
        unsafe impl Sync for $name<'_> {}

        impl $name<'_> {
            /// A word at an address.
            ///
            /// # Safety
            /// `pointer` must be aligned and stay mapped (writable, if the word is stored to)
            /// as long as the word is used, and be accessed only atomically in this process.
            #[inline]
            #[must_use]
            pub unsafe fn from_raw(pointer: NonNull<$value>) -> Self {
                $name { pointer, mapping: PhantomData }
            }

            /// Has the processor fetch the word's cache line for writing while something else is done, so
            /// that the store that follows finds it there. A hint: nothing changes but the time. To be
            /// asked for no sooner before the store than a line takes to move: a peer that polls the
            /// word takes the line back meanwhile, and it has to be fetched twice.
            #[inline]
            pub fn prefetch_for_write(self) {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                // SAFETY: PREFETCHW changes neither memory nor registers nor flags and never faults;
                // processors without it take it for a NOP.
                unsafe {
                    std::arch::asm!(
                        "prefetchw [{}]",
                        in(reg) self.pointer.as_ptr(),
                        options(nostack, preserves_flags, readonly),
                    );
                }
            }

            /// Where the word is.
            #[must_use]
            pub fn as_ptr(self) -> NonNull<$value> {
                self.pointer
            }

            #[inline]
            fn atomic(&self) -> &$atomic {
                // SAFETY: aligned and mapped by `from_raw`'s contract. The reference is to an
                // atomic (shared, interior-mutable), lives for one operation, and lets the
                // compiler assume nothing about the value.
                unsafe { <$atomic>::from_ptr(self.pointer.as_ptr()) }
            }
        }

        impl_word!(['m] $name<'m>, $value, |this| this.atomic());
    };
}

mapped!(MappedU32, u32, atomic::AtomicU32, "A 32-bit word in a mapping.");
mapped!(MappedU64, u64, atomic::AtomicU64, "A 64-bit word in a mapping.");
