//! A lock whose word names its owner, for memory that forked processes share.
//!
//! ```text
//!   0 free · thread id of the owner · thread id | WAITERS when somebody sleeps on it
//!                                   · thread id | LOOSE while the owner has changed nothing yet
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
//! An owner that is only stopped (SIGSTOP, a debugger) will go on, and nobody knows when. While several processes share a
//! connection, calls that move data hold its locks *loosely* at first ([`Held::Loose`]): they look, and copy, and change
//! nothing that anybody else relies on, but for free bytes of a ring. Then they make the lock firm ([`Lock::firm`]), one
//! exchange, and publish. A waiter that finds the owner of a loose lock asleep or stopped takes the lock over by an exchange of the
//! same word, so one of the two exchanges fails ([`vmmc::word::loose`]): either the owner has been in time, or it finds that the
//! lock is another's and begins anew. Who takes a lock over so for sending must not put anything where the other may still be copying to
//! ([`Lock::was_taken_over`]).
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
use vmmc::word::loose::{self, LOOSE, WAITERS};
use vmmc::word::owned;

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
    /// Whether it was ever taken over from an owner that may go on.
    taken_over: AtomicU32,
}

/// How a lock is held that was taken by [`Lock::lock_by`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// By its word, as by anybody.
    Word,
    /// By the owner's mark.
    Mark,
    /// By its word, and another may take it over.
    Loose,
    /// It is given back, or another has taken it over.
    Not,
}

/// The calling thread holds the lock already: we are in a signal handler.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock { word: AtomicU32::new(0), mark: AtomicU32::new(0), taken_over: AtomicU32::new(0) }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        if !loose::take(&self.word, fork::tid()) {
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
        self.lock_as(fork::tid())
    }

    #[inline]
    fn lock_as(&self, me: u32) -> Result<(), Interrupted> {
        if !loose::take(&self.word, me) {
            self.lock_slow(me)?;
        }
        // PAIRS(mark): after `owner::noticed`: what this does not see, the owner has taken back, or will.
        match self.mark.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => self.wait_for_owner(me),
        }
    }

    /// Takes the lock, by the mark if the caller is the owner and entered the connection as such (`by_owner`), and no
    /// other process was ever `born` with it; loosely if one was.
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
        if born.load(Ordering::Relaxed) == 0 {
            return self.lock().map(|()| Held::Word);
        }
        self.lock_as(fork::tid() | LOOSE).map(|()| Held::Loose)
    }

    /// Before the first change by who may hold the lock loosely. False: it is another's by now, and nothing may be changed.
    #[inline]
    pub(crate) fn firm(&self, held: &mut Held) -> bool {
        if *held == Held::Loose {
            let is_mine = loose::change(&self.word, fork::tid(), LOOSE, 0);
            *held = if is_mine { Held::Word } else { Held::Not };
        }
        *held != Held::Not
    }

    /// Who has made the lock firm, having held it loosely, and has published all of what it has changed, goes on loosely.
    pub(crate) fn loosen(&self, held: &mut Held) {
        if *held == Held::Word && loose::change(&self.word, fork::tid(), 0, LOOSE) {
            *held = Held::Loose;
        }
    }

    /// Whether an owner that goes on one day may still be copying to where it found room.
    #[inline]
    pub(crate) fn was_taken_over(&self) -> bool {
        self.taken_over.load(Ordering::Relaxed) != 0
    }

    /// Gives back what [`Lock::lock_by`] has taken, by an exchange in any case.
    #[inline]
    pub(crate) fn unlock_by(&self, held: Held) {
        match held {
            Held::Word => self.unlock(),
            Held::Loose => self.unlock_loose(),
            Held::Not => {}
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
            Held::Mark => self.give_mark(),
            _ => self.unlock_by(held),
        }
    }

    /// Gives a lock back that was held loosely throughout, if nobody has taken it over.
    fn unlock_loose(&self) {
        let mut held = Held::Loose;
        if self.firm(&mut held) {
            self.unlock();
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
    fn wait_for_owner(&self, me: u32) -> Result<(), Interrupted> {
        let mut spins = 0;
        loop {
            let mark = self.mark.load(Ordering::Acquire);
            if mark == 0 {
                return Ok(());
            }
            if owner::is_mine(mark) {
                self.unlock_by(if me & LOOSE == 0 { Held::Word } else { Held::Loose });
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

    /// `me` with the bit LOOSE, if that is how it is wanted.
    #[cold]
    fn lock_slow(&self, me: u32) -> Result<(), Interrupted> {
        let mut spins = 0;
        loop {
            let found = self.word.load(Ordering::Relaxed);
            let owner = found & !(WAITERS | LOOSE);
            // By the mark, with a waiter for that in between.
            if owner == me & !LOOSE || owner::is_mine(self.mark.load(Ordering::Relaxed)) {
                return Err(Interrupted);
            }
            if found == 0 {
                // Once we have slept, others may: keep the mark.
                let mine = if spins < SPINS { me } else { me | WAITERS };
                if loose::take(&self.word, mine) {
                    return Ok(());
                }
                continue;
            }
            if spins < SPINS {
                spins += 1;
                spin_hint();
                continue;
            }
            let marked = found | WAITERS;
            if found != marked
                && self
                    .word
                    .compare_exchange(found, marked, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            if raw::futex_wait(self.word.as_ptr(), marked, LOOK_NS) != Err(libc::ETIMEDOUT) {
                continue;
            }
            let is_dead = !raw::process_lives(owner);
            let may_be_taken = is_dead || (found & LOOSE != 0 && raw::is_standing(owner));
            if may_be_taken && loose::take_over(&self.word, marked, me | WAITERS) {
                if !is_dead {
                    self.taken_over.store(1, Ordering::Relaxed);
                }
                counters::one(Counter::lock_recovered);
                return Ok(());
            }
        }
    }

    /// Gives the lock back.
    #[inline]
    pub(crate) fn unlock(&self) {
        if loose::give(&self.word) {
            raw::futex_wake(self.word.as_ptr());
        }
    }

    /// In a forked child: whoever held it is not here.
    pub(crate) fn reset(&self) {
        self.mark.store(0, Ordering::Relaxed);
        self.word.store(0, Ordering::Relaxed);
        self.taken_over.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    static SHARED: AtomicU32 = AtomicU32::new(1);

    /// Has another thread hold a lock loosely, and sleep, until the test has done with it; what it then finds.
    fn while_held_loosely(lock: &Lock, firm: bool, body: impl FnOnce()) -> bool {
        let (told, hears) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let holder = scope.spawn(move || {
                let mut held = lock.lock_by(false, &SHARED).unwrap();
                assert_eq!(held, Held::Loose);
                if firm {
                    assert!(lock.firm(&mut held));
                }
                told.send(()).unwrap();
                let _ = goes_on.recv();
                let is_mine = lock.firm(&mut held);
                lock.unlock_by(held);
                is_mine
            });
            hears.recv().unwrap();
            body();
            drop(go_on);
            holder.join().unwrap()
        })
    }

    #[test]
    fn a_loose_lock_of_one_that_stands_still_is_taken_over_and_he_finds_out() {
        let lock = Lock::new();
        let kept = while_held_loosely(&lock, false, || {
            lock.lock().unwrap();
            assert!(lock.was_taken_over());
            lock.unlock();
        });
        assert!(!kept);
        // It is free.
        assert!(lock.try_lock());
    }

    #[test]
    fn what_was_taken_over_is_not_given_back_by_who_has_lost_it() {
        let lock = Lock::new();
        let kept = while_held_loosely(&lock, false, || lock.lock().unwrap());
        assert!(!kept);
        assert!(!lock.try_lock());
        lock.unlock();
    }

    #[test]
    fn a_firm_lock_is_waited_for() {
        let lock = Lock::new();
        // Outlives the thread that sends.
        let (done, is_done) = mpsc::channel();
        std::thread::scope(|scope| {
            let kept = while_held_loosely(&lock, true, || {
                let lock = &lock;
                scope.spawn(move || {
                    lock.lock().unwrap();
                    lock.unlock();
                    done.send(()).unwrap();
                });
                // Three looks at its owner.
                let time = std::time::Duration::from_nanos(3 * LOOK_NS);
                assert!(is_done.recv_timeout(time).is_err());
            });
            assert!(kept);
        });
        assert!(!lock.was_taken_over());
    }

    #[test]
    fn a_loose_lock_is_given_back_and_made_firm_and_loose_again() {
        let lock = Lock::new();
        let held = lock.lock_by(false, &SHARED).unwrap();
        lock.unlock_by(held);
        let mut held = lock.lock_by(false, &SHARED).unwrap();
        assert!(lock.firm(&mut held) && held == Held::Word);
        lock.loosen(&mut held);
        assert_eq!(held, Held::Loose);
        assert!(lock.lock().is_err(), "by the same thread, as in a signal handler");
        lock.unlock_by(held);
        assert!(lock.try_lock());
    }
}
