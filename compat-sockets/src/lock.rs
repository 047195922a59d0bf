//! A lock whose word names its owner, for memory that forked processes share.
//!
//! ```text
//!   0 free · thread id of the owner · thread id | WAITERS when somebody sleeps on it
//! ```
//!
//! A thread that is alone with sockets ([`crate::owner`]), in a process that is alone with the connection, takes the lock by
//! setting its mark in a second word, without a locked instruction ([`Lock::lock_by`]). Whoever takes the first word
//! looks at the second one then, and waits until it is free too.
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
use crate::{fork, owner, raw};
use vmmc::sync::{AtomicU32, Ordering, spin_hint};
use vmmc::sys::membarrier::light;
use vmmc::word::owned;

const WAITERS: u32 = 1 << 31;
/// Turns before sleeping: more than a copy of a few kilobytes takes.
const SPINS: u32 = 200;
/// How often a sleeping waiter looks whether the owner still lives, in nanoseconds.
const LOOK_NS: u64 = 20_000_000;

/// The lock's words. All zero is free.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Lock {
    word: AtomicU32,
    /// The number of the process whose owner holds the lock by its mark ([`owner::mark`]). Written by that thread only, and by
    /// who finds it dead.
    mark: AtomicU32,
}

/// How a lock is held that was taken by [`Lock::lock_by`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// By its word, as by anybody.
    Word,
    /// By the owner's mark.
    Mark,
}

/// The calling thread holds the lock already: we are in a signal handler.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock { word: AtomicU32::new(0), mark: AtomicU32::new(0) }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        if self.word.compare_exchange(0, fork::tid(), Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        let free = self.mark.load(Ordering::Acquire) == 0;
        if !free {
            self.unlock();
        }
        free
    }

    /// Takes the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Result<(), Interrupted> {
        let me = fork::tid();
        // PAIRS(lock): acquire with the release in `unlock`.
        if self.word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow(me)?;
        }
        // PAIRS(mark): after `owner::noticed`: what this does not see, the owner has taken back, or will.
        match self.mark.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => self.wait_for_owner(),
        }
    }

    /// Takes the lock, by the mark if the caller is the owner and entered the connection as such (`by_owner`), and no
    /// other process was ever `born` with it.
    #[inline]
    pub(crate) fn lock_by(&self, by_owner: bool, born: &AtomicU32) -> Result<Held, Interrupted> {
        // What the owner holds already, if we are in a signal handler, it has itself set; others' words it need not see.
        if by_owner
            && self.word.load(Ordering::Relaxed) == 0
            && self.mark.load(Ordering::Relaxed) == 0
            && born.load(Ordering::Relaxed) == 0
        {
            // PAIRS(births): the look comes after the mark.
            let alone = || owner::is_me() && born.load(Ordering::Relaxed) == 0;
            if owned::take(&self.mark, owner::mark(), light, alone) {
                return Ok(Held::Mark);
            }
            self.give_mark();
        }
        self.lock().map(|()| Held::Word)
    }

    /// Gives back what [`Lock::lock_by`] has taken, by an exchange in any case.
    #[inline]
    pub(crate) fn unlock_by(&self, held: Held) {
        match held {
            Held::Word => self.unlock(),
            Held::Mark => {
                // PAIRS(mark): release with the acquire of who waits for it.
                self.mark.swap(0, Ordering::AcqRel);
                if !owner::is_me() {
                    raw::futex_wake(self.mark.as_ptr());
                }
            }
        }
    }

    /// The same, of what was taken by the mark by a light barrier only.
    #[inline]
    pub(crate) fn unlock_lightly(&self, held: Held) {
        match held {
            Held::Word => self.unlock(),
            Held::Mark => self.give_mark(),
        }
    }

    #[inline]
    fn give_mark(&self) {
        if owned::give(&self.mark, 0, light, owner::is_me) {
            raw::futex_wake(self.mark.as_ptr());
        }
    }

    /// Holding the word: until the mark is free.
    #[cold]
    fn wait_for_owner(&self) -> Result<(), Interrupted> {
        let mut spins = 0;
        loop {
            let mark = self.mark.load(Ordering::Acquire);
            if mark == 0 {
                return Ok(());
            }
            if owner::is_mine(mark) {
                self.unlock();
                return Err(Interrupted);
            }
            if spins < SPINS {
                spins += 1;
                spin_hint();
                continue;
            }
            if raw::futex_wait(self.mark.as_ptr(), mark, LOOK_NS) == Err(libc::ETIMEDOUT)
                && !raw::process_lives(mark)
            {
                self.mark.store(0, Ordering::Release);
                counters::one(Counter::lock_recovered);
                return Ok(());
            }
        }
    }

    #[cold]
    fn lock_slow(&self, me: u32) -> Result<(), Interrupted> {
        let mut spins = 0;
        loop {
            let found = self.word.load(Ordering::Relaxed);
            let owner = found & !WAITERS;
            // By the mark, with a waiter for that in between.
            if owner == me || owner::is_mine(self.mark.load(Ordering::Relaxed)) {
                return Err(Interrupted);
            }
            if found == 0 {
                // Once we have slept, others may: keep the mark.
                let mine = if spins < SPINS { me } else { me | WAITERS };
                if self.word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
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
                    .word
                    .compare_exchange(found, marked, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            if raw::futex_wait(self.word.as_ptr(), marked, LOOK_NS) == Err(libc::ETIMEDOUT)
                && !raw::process_lives(owner)
                && self
                    .word
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
        if self.word.swap(0, Ordering::Release) & WAITERS != 0 {
            raw::futex_wake(self.word.as_ptr());
        }
    }

    /// In a forked child: whoever held it is not here.
    pub(crate) fn reset(&self) {
        self.mark.store(0, Ordering::Relaxed);
        self.word.store(0, Ordering::Relaxed);
    }
}
