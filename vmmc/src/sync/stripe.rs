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
    let mine = take_stripe();
    STRIPE.set(mine as u32);
    mine
}

/// A stripe for what is not a thread, but has one writer at a time, as what a mutex protects has. Never given back.
pub fn take_stripe() -> usize {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let last = STRIPES as u32 - 1;
    let taken = NEXT
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| Some((next + 1).min(last)))
        .unwrap_or(last);
    taken.min(last) as usize
}

/// Whether stripe `stripe` may be written by several threads at once.
#[inline]
#[must_use]
pub fn stripe_is_shared(stripe: usize) -> bool {
    stripe == STRIPES - 1
}

/// A number that no other thread that runs now has; none is 0, and all are even. One instruction where the thread's own block of memory
/// is at hand; elsewhere the address of a variable of the thread's.
#[inline]
#[must_use]
pub fn thread_token() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    {
        let token: usize;
        // SAFETY: the ABI has the address of the thread's control block in its first word, which is where `fs` points.
        unsafe {
            std::arch::asm!(
                "mov {}, fs:0",
                out(reg) token,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        token
    }
    #[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
    {
        let token: usize;
        // SAFETY: reads a register.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) token, options(pure, nomem, nostack, preserves_flags));
        }
        token
    }
    #[cfg(not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_os = "linux",
        not(miri)
    )))]
    STRIPE.with(|stripe| std::ptr::from_ref(stripe).addr())
}
