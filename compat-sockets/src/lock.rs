//! A lock whose word names its owner, for memory that forked processes share.
//!
//! ```text
//!   0 free · thread id of the owner · thread id | WAITERS when somebody sleeps on it
//! ```
//!
//! Held for a copy, and not across a call that blocks, but for this: who stops reading a ring for good (exec, descriptor
//! passing: `receiver_stops`; a close: `leave_nothing`) holds the lock for receiving while it waits for the peer, which ends
//! after a few hundred milliseconds at most. An owner that died (kill -9 of one of the
//! processes that share a connection after a fork) is found by the sleeping waiter, which takes
//! the lock over; what it protects is consistent at every instruction, because positions are
//! published last. A signal handler that finds its own thread as owner gets [`Interrupted`]
//! instead of a deadlock.
//!
//! # Order
//! Who holds one of these takes only such as stand behind it:
//!
//! 1. a set's ([`crate::epoll`]), one at a time
//! 2. a connection's for receiving (`Side::rx_lock`)
//! 3. the same connection's for sending (`Side::tx_lock`)
//! 4. the list of free sockets ([`crate::sock`]), of forks ([`crate::family`]), of free sides ([`crate::side`])
//!
//! The lock of the conversation with the daemon ([`crate::control`]) is only tried, so it may be held before any of
//! them and asked for after any. A set's members are looked at under its lock, and a look can take the lock for
//! receiving; so whoever closes a connection gives its locks back before it takes the connection out of the sets.

use crate::counters::{self, Counter};
use crate::{fork, raw};
use vmmc::sync::{AtomicU32, Ordering, spin_hint};

const WAITERS: u32 = 1 << 31;
/// Turns before sleeping: more than a copy of a few kilobytes takes.
const SPINS: u32 = 200;
/// How often a sleeping waiter looks whether the owner still lives, in nanoseconds.
const LOOK_NS: u64 = 20_000_000;

/// The lock's word. All zero is free.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Lock(AtomicU32);

/// The calling thread holds the lock already: we are in a signal handler.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        self.0.compare_exchange(0, fork::tid(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Result<(), Interrupted> {
        let me = fork::tid();
        // PAIRS(lock): acquire with the release in `unlock`.
        match self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => self.lock_slow(me),
        }
    }

    #[cold]
    fn lock_slow(&self, me: u32) -> Result<(), Interrupted> {
        let mut spins = 0;
        loop {
            let found = self.0.load(Ordering::Relaxed);
            let owner = found & !WAITERS;
            if owner == me {
                return Err(Interrupted);
            }
            if found == 0 {
                // Once we have slept, others may: keep the mark.
                let mine = if spins < SPINS { me } else { me | WAITERS };
                if self.0.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Ok(());
                }
                continue;
            }
            if spins < SPINS {
                spins += 1;
                spin_hint();
                continue;
            }
            let marked = owner | WAITERS;
            if found != marked
                && self
                    .0
                    .compare_exchange(found, marked, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            if raw::futex_wait(self.0.as_ptr(), marked, LOOK_NS) == Err(libc::ETIMEDOUT)
                && !raw::process_lives(owner)
                && self
                    .0
                    .compare_exchange(marked, me | WAITERS, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                counters::one(Counter::lock_recovered);
                return Ok(());
            }
        }
    }

    /// Gives the lock back.
    #[inline]
    pub(crate) fn unlock(&self) {
        // PAIRS(lock): release with the acquire in `lock`.
        if self.0.swap(0, Ordering::Release) & WAITERS != 0 {
            raw::futex_wake(self.0.as_ptr());
        }
    }

    /// In a forked child: whoever held it is not here.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
