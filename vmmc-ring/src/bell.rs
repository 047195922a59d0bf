//! Arm, look again, sleep: the handshake by which a side sleeps and loses no wake-up.
//!
//! ```text
//!   sleeper                               waker
//!   (1) armed := 1                        (1) publish (tail or head), release
//!   (2) fence                             (2) fence
//!   (3) look again: if there is           (3) if armed: swap it to 0; if that was 1, ring
//!       something, disarm, do not sleep
//!   (4) sleep until rung
//! ```
//!
//! The bell may be for something that the sleeper has served already: a waker held up within step 3
//! takes the word that was armed since. So who is rung and finds nothing goes back to step 1; the word
//! is taken.
//!
//! Several may sleep for the same bells. One of them that is awake and finds nothing throws away the bells that were
//! rung, and with them another's, who will not hear them any more: it arms for those first, and looks again ([`may_be_thrown_away`]).
//!
//! The fences make at least one side see the other's store. Because the waker takes the word
//! with a swap, at most one bell is rung per arming, however many threads publish. (In
//! [`vmmc::word::arm`] the sleeper is the only writer, for a word that several untrusting
//! senders share; here both ends may write the whole segment anyway.)

use vmmc::sync::{Ordering, fence};
use vmmc::word::Word;

/// Steps 1 and 2. The caller **must** look again before it sleeps. What it stored before is seen
/// by whoever takes the word.
#[inline]
pub fn arm(armed: &impl Word<Value = u32>) {
    armed.store(1, Ordering::Release);
    // PAIRS(bell): with the fence in `published`.
    fence(Ordering::SeqCst);
}

/// As [`arm`]; true when the word was not armed before.
#[inline]
pub fn arm_anew(armed: &impl Word<Value = u32>) -> bool {
    let before = armed.swap(1, Ordering::AcqRel);
    // PAIRS(bell): with the fence in `published`.
    fence(Ordering::SeqCst);
    before == 0
}

/// As [`arm`], for a sleep with a number of its own: the sleeper arms several words for it and one
/// bell wakes it. No number may be used for two sleeps.
#[inline]
pub fn arm_for(armed: &impl Word<Value = u32>, sleep: &impl Word<Value = u64>, number: u64) {
    sleep.store(number, Ordering::Relaxed);
    arm(armed);
}

/// As [`take`]: the number of the sleep for which the word was armed, or of a later one, whose
/// sleeper has looked since or will.
#[inline]
#[must_use]
pub fn take_for(armed: &impl Word<Value = u32>, sleep: &impl Word<Value = u64>) -> Option<u64> {
    take(armed).then(|| sleep.load(Ordering::Relaxed))
}

/// Awake again, or nothing to wait for. True when it was still armed: no bell was rung and none
/// will be. False when a bell was rung (or is being rung just now).
#[inline]
pub fn disarm(armed: &impl Word<Value = u32>) -> bool {
    // Acquire also where it is found taken: what the taker stored before must be seen.
    armed.load(Ordering::Acquire) != 0 && armed.swap(0, Ordering::AcqRel) != 0
}

/// Whether bells that were counted before this call, and that another sleeper may not have heard, can be thrown away by one
/// who found nothing: for what is published from here on a bell is rung once more. False: there is something now, perhaps
/// more than the caller takes, and the bells have to stay.
#[inline]
#[must_use]
pub fn may_be_thrown_away(
    armed: &impl Word<Value = u32>,
    sleep: &impl Word<Value = u64>,
    has_more: impl FnOnce() -> bool,
) -> bool {
    arm_for(armed, sleep, 0);
    !has_more()
}

/// The waker's step 2, once after publishing, before any [`take`].
#[inline]
pub fn published() {
    // PAIRS(bell): with the fence in `arm`.
    fence(Ordering::SeqCst);
}

/// As [`published`], for who has done an atomic read-modify-write (the unlocking of a lock, by `swap`) since it
/// published. On x86-64 each of these is a full barrier, and a second one costs what the first does.
#[inline]
pub fn published_before_exchange() {
    // The compiler must not move the look before the exchange either.
    #[cfg(all(target_arch = "x86_64", not(vmmc_loom)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), vmmc_loom))]
    published();
}

/// The waker's step 3: true when the caller must ring now.
#[inline]
#[must_use]
pub fn take(armed: &impl Word<Value = u32>) -> bool {
    // The swap is also a release: what was stored before it (the switch of a direction to the
    // ring) is seen by a sleeper whose own swap finds the word taken.
    armed.load(Ordering::Relaxed) != 0 && armed.swap(0, Ordering::AcqRel) != 0
}
