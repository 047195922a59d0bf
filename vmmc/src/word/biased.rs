//! A mutex that costs its favourite thread no locked instruction.
//!
//! Most programs use a library from one thread, and helpers beside it wake up now and then. The thread that
//! takes the mutex again and again without another one in between becomes its favourite: from then on it
//! only stores a mark, until another thread wants the mutex and takes the privilege back.
//!
//! ```text
//!   favourite                                  any other thread
//!   (1) biased to me, and I am not inside?     (1) takes the ordinary mutex
//!   (2) inside := 1     (plain store)          (2) biased := nobody
//!   (3) compiler fence                         (3) membarrier
//!   (4) still biased? no: inside := 0, wakes,  (4) sleeps while inside is 1
//!       and does as any other thread           (5) uses the value
//!   (5) uses the value                         (6) releases the ordinary mutex
//!   (6) inside := 0     (release)
//!   (7) compiler fence; still biased? no:
//!       wakes who sleeps at (4)
//! ```
//!
//! The bargain is that of [`crate::transport::shm::busy`], within one process: the membarrier is the
//! favourite's fence, paid by the others. Either the favourite sees at (4) that it is none any more, or the
//! other one sees it inside; and either the other one sees that it has left, or the favourite sees at (7) that
//! somebody sleeps.
//!
//! Only the favourite itself gives the bias, while it has the ordinary mutex, and **no other thread is ever
//! a favourite of this mutex**: one that was interrupted between (1) and (2) could otherwise wake up
//! beside another one and take its mark for its own. What it costs to take the bias back (a system call,
//! some microseconds) is spread over ever more turns: each time doubles the number that it takes to earn it again.
//!
//! A thread that locks twice waits for itself, as with any mutex: a signal handler that uses the library while
//! the thread that it interrupted is inside, for one.

use crate::sync::{AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering, thread_token};
use crate::sys::{futex, membarrier};
use std::cell::UnsafeCell;
use std::marker::PhantomData;

/// Turns without another thread in between that make a favourite, at first.
const EARNED: u32 = 64;
/// And at most, when it was taken back often.
const EARNED_MOST: u32 = 1 << 16;

/// Nobody.
const NOBODY: usize = 0;

/// The words of the handshake. See the module.
#[derive(Debug)]
struct Bias {
    /// Token of the favourite while it has the privilege, else [`NOBODY`]. Set by the favourite and cleared by others,
    /// with the ordinary mutex.
    biased: AtomicUsize,
    /// 1 while the favourite is inside by its privilege. Written by the favourite only.
    inside: AtomicU32,
}

impl Bias {
    fn new() -> Bias {
        Bias { biased: AtomicUsize::new(NOBODY), inside: AtomicU32::new(0) }
    }

    #[inline]
    fn is_biased_to(&self, me: usize) -> bool {
        self.biased.load(Ordering::Relaxed) == me
    }

    /// Steps 1 to 4 of the favourite. False: take the ordinary mutex.
    #[inline]
    fn enter(&self, me: usize, light: impl FnOnce()) -> bool {
        if !self.is_biased_to(me) || self.inside.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.inside.store(1, Ordering::Relaxed);
        light();
        if self.is_biased_to(me) {
            return true;
        }
        self.back_out();
        false
    }

    #[cold]
    fn back_out(&self) {
        self.inside.store(0, Ordering::Release);
        futex::wake(&self.inside);
    }

    /// Steps 6 and 7. True: somebody may sleep and must be woken.
    #[inline]
    #[must_use]
    fn leave(&self, light: impl FnOnce()) -> bool {
        // PAIRS(bias): with the acquire in `is_inside`: what was done inside is before what others do.
        self.inside.store(0, Ordering::Release);
        light();
        self.biased.load(Ordering::Relaxed) == NOBODY
    }

    /// Steps 2 and 3 of the others, by who has the ordinary mutex.
    fn take_back(&self, heavy: impl FnOnce()) {
        self.biased.store(NOBODY, Ordering::Relaxed);
        heavy();
    }

    /// Step 4.
    fn is_inside(&self) -> bool {
        // PAIRS(bias): with the release in `leave`.
        self.inside.load(Ordering::Acquire) != 0
    }
}

/// What the ordinary mutex protects besides the value.
#[derive(Debug)]
struct Turns {
    /// The only thread that is ever given the bias.
    favourite: usize,
    last: usize,
    /// Turns in a row of the last one.
    run: u32,
    /// Turns in a row that earn the bias.
    needed: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Biased<T> {
    bias: Bias,
    turns: Mutex<Turns>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, through a guard, so it may go from thread to thread.
unsafe impl<T: Send> Sync for Biased<T> {}

/// The mutex is held while this lives.
#[derive(Debug)]
#[must_use]
pub struct BiasedGuard<'l, T> {
    lock: &'l Biased<T>,
    /// `None`: by privilege.
    ordinary: Option<MutexGuard<'l, Turns>>,
    /// The privilege is a thread's.
    of_this_thread: PhantomData<*const ()>,
}

impl<T> Biased<T> {
    /// An unlocked mutex that favours nobody yet.
    pub fn new(value: T) -> Biased<T> {
        let turns = Turns { favourite: NOBODY, last: NOBODY, run: 0, needed: EARNED };
        Biased { bias: Bias::new(), turns: Mutex::new(turns), value: UnsafeCell::new(value) }
    }

    /// Waits until the mutex is free.
    #[inline(always)]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        let me = thread_token();
        let ordinary = match self.bias.enter(me, membarrier::light) {
            true => None,
            false => Some(self.lock_ordinary(me)),
        };
        BiasedGuard { lock: self, ordinary, of_this_thread: PhantomData }
    }

    #[cold]
    fn lock_ordinary(&self, me: usize) -> MutexGuard<'_, Turns> {
        let mut turns = self.turns.lock();
        if !self.bias.is_biased_to(NOBODY) {
            self.bias.take_back(membarrier::heavy_for_sure);
            while self.bias.is_inside() {
                futex::wait(&self.bias.inside, 1);
            }
            turns.needed = (turns.needed * 2).min(EARNED_MOST);
            turns.last = NOBODY;
        }
        if turns.earned(me) {
            self.bias.biased.store(me, Ordering::Relaxed);
        }
        turns
    }

    /// Whether another thread may want the mutex that this one has: it should not be held for waiting. Exact for a
    /// favourite; true for others.
    #[inline]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.bias.is_biased_to(NOBODY)
    }
}

impl Turns {
    /// One more turn of a thread's. True when it is to have the bias.
    fn earned(&mut self, me: usize) -> bool {
        if self.last != me {
            (self.last, self.run) = (me, 0);
        }
        self.run = self.run.saturating_add(1);
        if self.run < self.needed || ![NOBODY, me].contains(&self.favourite) {
            return false;
        }
        self.favourite = me;
        true
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.ordinary.is_none() && self.lock.bias.leave(membarrier::light) {
            futex::wake(&self.lock.bias.inside);
        }
    }
}

impl<T> std::ops::Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, as the handshake has it, and lends the value out for no longer than it lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> std::ops::DerefMut for BiasedGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    fn earn(lock: &Biased<u64>) {
        for _ in 0..EARNED_MOST {
            *lock.lock() += 1;
        }
    }

    #[test]
    fn a_thread_that_is_alone_becomes_the_favourite_and_one_that_comes_takes_that_back() {
        let lock = Biased::new(0);
        assert!(lock.is_wanted());
        earn(&lock);
        assert!(!lock.is_wanted());
        assert!(lock.lock().ordinary.is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                earn(&lock);
                assert!(lock.lock().ordinary.is_some(), "another favourite");
            });
        });
        assert!(lock.lock().ordinary.is_some());
        earn(&lock);
        assert!(lock.lock().ordinary.is_none());
        assert_eq!(*lock.lock(), 3 * u64::from(EARNED_MOST));
    }

    #[test]
    fn who_takes_the_bias_back_waits_until_the_favourite_has_left() {
        let lock = Biased::new(0);
        earn(&lock);
        std::thread::scope(|scope| {
            let mut value = lock.lock();
            assert!(value.ordinary.is_none());
            let other = scope.spawn(|| *lock.lock());
            while !lock.is_wanted() {
                std::thread::yield_now();
            }
            *value = 7;
            drop(value);
            assert_eq!(other.join().unwrap(), 7);
        });
    }

    #[test]
    fn no_turn_of_three_threads_is_lost() {
        let lock = Biased::new(0u64);
        let turns = 200_000;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..turns).for_each(|_| *lock.lock() += 1));
            for _ in 0..2 {
                scope.spawn(|| {
                    for turn in 0..turns / 100 {
                        *lock.lock() += 100;
                        if turn % 8 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 3 * turns);
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{fence, spin_hint};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const ME: usize = 1;

    struct Model {
        bias: Bias,
        value: UnsafeCell<u32>,
        mutex: Mutex<()>,
    }

    // SAFETY: what the models check: no two threads are in the cell at once.
    unsafe impl Sync for Model {}

    impl Model {
        fn add(&self) {
            // SAFETY: as the models check.
            self.value.with_mut(|value| unsafe { *value += 1 });
        }

        /// One turn of the favourite.
        fn favourite(&self, light: impl Fn()) {
            if self.bias.enter(ME, &light) {
                self.add();
                let _ = self.bias.leave(&light);
            } else {
                let _ordinary = self.mutex.lock();
                self.add();
                self.bias.biased.store(ME, Ordering::Relaxed); // earned at once
            }
        }
    }

    fn model(body: impl Fn(Arc<Model>) + Sync + Send + 'static) {
        loom::model(move || {
            body(Arc::new(Model {
                bias: Bias { biased: AtomicUsize::new(ME), inside: AtomicU32::new(0) },
                value: UnsafeCell::new(0),
                mutex: Mutex::new(()),
            }));
        });
    }

    /// Two turns of a favourite, and one of another thread. The membarrier is a fence that both sides make.
    fn turns(light: impl Fn() + Copy + Sync + Send + 'static) {
        model(move |it| {
            let other = {
                let it = it.clone();
                thread::spawn(move || {
                    let _ordinary = it.mutex.lock();
                    if !it.bias.is_biased_to(NOBODY) {
                        it.bias.take_back(|| fence(Ordering::SeqCst));
                        while it.bias.is_inside() {
                            spin_hint();
                        }
                    }
                    it.add();
                })
            };
            it.favourite(light);
            it.favourite(light);
            other.join().unwrap();
            // SAFETY: the other thread has ended.
            assert_eq!(it.value.with(|value| unsafe { *value }), 3);
        });
    }

    /// Who sleeps because the favourite is inside is woken by it.
    fn sleeps(light: impl Fn() + Copy + Sync + Send + 'static) {
        model(move |it| {
            assert!(it.bias.enter(ME, || {}));
            let other = {
                let it = it.clone();
                thread::spawn(move || {
                    it.bias.take_back(|| fence(Ordering::SeqCst));
                    it.bias.is_inside()
                })
            };
            let wakes = it.bias.leave(light);
            assert!(!other.join().unwrap() || wakes, "asleep, and nobody wakes it");
        });
    }

    #[test]
    fn loom_the_favourite_and_another_are_never_both_inside() {
        turns(|| fence(Ordering::SeqCst));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_favourites_fence_both_are_inside() {
        turns(|| {});
    }

    #[test]
    fn loom_who_sleeps_for_the_favourite_is_woken() {
        sleeps(|| fence(Ordering::SeqCst));
    }

    #[test]
    #[should_panic(expected = "asleep, and nobody wakes it")]
    fn loom_without_the_favourites_fence_a_sleeper_is_forgotten() {
        sleeps(|| {});
    }
}
