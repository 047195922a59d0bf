//! A word that names its holder, and that can be taken away from one that has changed nothing yet: a lock among processes of
//! which any may be stopped, and a stopped one must not hold up the others for ever.
//!
//! ```text
//!   0 free · number of the holder, | WAITERS when somebody sleeps on it, | LOOSE while it has changed nothing yet
//!
//!   holder                                         another
//!   (1) word: 0 -> me | LOOSE        [take]
//!   ... looks, and prepares where nobody looks
//!   (2) word: me | LOOSE -> me       [change]      (2) word: them | LOOSE -> me      [take_over]
//!       fails: all of it anew
//!   ... publishes                                      ... goes on from what was published last
//!   (3) word: me -> 0                [give]
//! ```
//!
//! Both (2) are exchanges of the same value of the same word, so one of them fails. This is so whether the holder was
//! stopped or not: that another takes over only from one that seems to be is for speed.
//!
//! A holder that has lost the word may not have noticed, and still prepare. So whoever takes over says so where all look that
//! hold the word after it, and from then on nobody uses the place where holders prepare (the free bytes of a ring).

use super::Word;
use crate::sync::Ordering;

/// Somebody sleeps on the word.
pub const WAITERS: u32 = 1 << 31;
/// The holder has changed nothing yet. Numbers of threads are smaller (`PID_MAX_LIMIT`, 4 Mi).
pub const LOOSE: u32 = 1 << 30;

/// Makes a free word that of `mine`: the caller's number, with bits as wanted.
#[inline]
pub fn take<W: Word<Value = u32>>(word: &W, mine: u32) -> bool {
    // PAIRS(loose): acquire with the release in `give`.
    word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Exchanges the word of `me` with the bit `from` (or 0) for the same with `to`; false when it is another's by now.
#[inline]
pub fn change<W: Word<Value = u32>>(word: &W, me: u32, from: u32, to: u32) -> bool {
    let mut found = word.load(Ordering::Relaxed);
    while found & !WAITERS == me | from {
        let new = (found & WAITERS) | me | to;
        // PAIRS(loose): release with the acquire of who takes over; what was published under a firm word is in order before.
        match word.compare_exchange(found, new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => found = now,
        }
    }
    false
}

/// Makes a word that was `found` that of `mine`, from a holder that is dead or holds it loosely.
#[inline]
pub fn take_over<W: Word<Value = u32>>(word: &W, found: u32, mine: u32) -> bool {
    // PAIRS(loose): acquire with the last release before: of `give`, or of `change` by who has published and is loose again.
    word.compare_exchange(found, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Frees the word of the caller. True: somebody sleeps on it, and is to be woken.
#[inline]
pub fn give<W: Word<Value = u32>>(word: &W) -> bool {
    // PAIRS(loose): release with the acquire in `take`.
    word.swap(0, Ordering::Release) & WAITERS != 0
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU32;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const A: u32 = 1;
    const B: u32 = 2;

    struct Shared {
        word: AtomicU32,
        taken_over: AtomicU32,
        /// Where a holder prepares, unless the word was ever taken over.
        room: UnsafeCell<u32>,
        /// What a holder publishes. The model checker finds two at once, and who does not see what was published last.
        published: UnsafeCell<u32>,
    }

    /// What is weakened.
    struct Rules {
        firm: fn(&AtomicU32, u32) -> bool,
        take_over: fn(&AtomicU32, u32, u32) -> bool,
        loosen: fn(&AtomicU32, u32) -> bool,
        keeps_off: bool,
    }

    const RULES: Rules = Rules {
        firm: |word, me| change(word, me, LOOSE, 0),
        take_over: |word, found, mine| take_over(word, found, mine),
        loosen: |word, me| change(word, me, 0, LOOSE),
        keeps_off: true,
    };

    impl Shared {
        fn prepare(&self, rules: &Rules) {
            if !rules.keeps_off || self.taken_over.load(Ordering::Relaxed) == 0 {
                // SAFETY: what is checked here: nobody else has access, or the model fails.
                self.room.with_mut(|it| unsafe { *it += 1 });
            }
        }

        fn publish(&self) {
            // SAFETY: likewise.
            self.published.with_mut(|it| unsafe { *it += 1 });
        }

        /// Twice under one word: how often it was published.
        fn holds(&self, rules: &Rules) -> u32 {
            if !take(&self.word, A | LOOSE) {
                return 0;
            }
            self.prepare(rules);
            if !(rules.firm)(&self.word, A) {
                return 0;
            }
            self.publish();
            if !(rules.loosen)(&self.word, A) {
                panic!("a firm word was taken away");
            }
            if !(rules.firm)(&self.word, A) {
                return 1;
            }
            self.publish();
            give(&self.word);
            2
        }

        /// As soon as it can, by whichever way.
        fn comes(&self, rules: &Rules) -> u32 {
            let found = self.word.load(Ordering::Relaxed);
            if found & LOOSE != 0 && (rules.take_over)(&self.word, found, B) {
                self.taken_over.store(1, Ordering::Relaxed);
            } else if !take(&self.word, B) {
                return 0;
            }
            self.prepare(rules);
            self.publish();
            give(&self.word);
            1
        }
    }

    fn model(rules: &'static Rules) {
        loom::model(move || {
            let shared = Arc::new(Shared {
                word: AtomicU32::new(0),
                taken_over: AtomicU32::new(0),
                room: UnsafeCell::new(0),
                published: UnsafeCell::new(0),
            });
            let other = shared.clone();
            let holder = thread::spawn(move || other.holds(rules));
            // The second time is a process that comes after who took over.
            let mine = shared.comes(rules) + shared.comes(rules);
            let published = mine + holder.join().unwrap();
            // SAFETY: the other thread has ended.
            assert_eq!(shared.published.with(|it| unsafe { *it }), published);
        });
    }

    #[test]
    fn loom_one_publishes_at_a_time_and_nothing_is_lost() {
        model(&RULES);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_who_only_looks_before_it_publishes_meets_another() {
        model(&Rules {
            firm: |word, me| {
                let is_mine = word.load(Ordering::Acquire) == me | LOOSE;
                if is_mine {
                    word.store(me, Ordering::Release);
                }
                is_mine
            },
            ..RULES
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_who_uses_the_room_of_one_that_lost_the_word_meets_it_there() {
        model(&Rules { keeps_off: false, ..RULES });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_word_taken_over_without_order_does_not_show_what_was_published() {
        model(&Rules {
            take_over: |word, found, mine| {
                word.compare_exchange(found, mine, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            },
            ..RULES
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_word_made_loose_without_order_does_not_show_what_was_published() {
        model(&Rules {
            loosen: |word, me| {
                word.compare_exchange(me, me | LOOSE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            },
            ..RULES
        });
    }
}
