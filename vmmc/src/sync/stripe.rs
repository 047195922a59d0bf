//! Numbers for threads, so that each can write words of its own without a locked instruction.

use std::sync::atomic::Ordering;

/// Number of stripes; the last one is shared by all threads beyond the first fifteen.
pub const STRIPES: usize = 16;

std::thread_local! {
    // `const` and without a destructor, so that an interposer may use it anywhere.
    static STRIPE: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

/// Number of this thread among the threads that ever counted, capped at the last stripe, which
/// is shared. Also picks a link's busy slot.
#[inline]
#[must_use]
pub fn thread_stripe() -> usize {
    let mine = STRIPE.get();
    if mine == u32::MAX { assign_stripe() } else { mine as usize }
}

#[cold]
fn assign_stripe() -> usize {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let last = STRIPES as u32 - 1;
    let taken = NEXT
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| Some((next + 1).min(last)))
        .unwrap_or(last);
    let mine = taken.min(last);
    STRIPE.set(mine);
    mine as usize
}

/// Whether stripe `stripe` may be written by several threads at once.
#[inline]
#[must_use]
pub fn stripe_is_shared(stripe: usize) -> bool {
    stripe == STRIPES - 1
}
