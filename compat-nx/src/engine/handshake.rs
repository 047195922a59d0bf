//! How processes meet and part: the words for that, apart from where they lie.
//!
//! ```text
//!   here   (1) opens its links                      (2) has heard it: may leave at once, links and all
//!          says "here" (release)                        (acquire)
//!
//!   bye    (1) is done with everything              (2) a link has ended: clears the mark, then looks at all
//!          says "bye" (release), ends its links         links, and at the bye of those that have ended
//!
//!   door   (1) exports its own door                 (2) clears the waking word, then the new word; if that
//!          sets a door's new word, then its             was set, looks for doors
//!          waking word
//! ```
//!
//! Whoever clears a mark before it looks finds, at that look or at a later one, everything that had set it.

use super::door;
use vmmc::sync::{AtomicBool, Ordering};
use vmmc::word::Word;

/// Says a word: all that this process did before is done for whoever hears it.
#[inline]
pub(super) fn say<W: Word<Value = u32>>(word: W, value: u32) {
    // PAIRS(said): with the acquire in `heard`.
    word.store(value, Ordering::Release);
}

/// What was said; 0: nothing yet.
#[inline]
pub(super) fn heard<W: Word<Value = u32>>(word: W) -> u32 {
    // PAIRS(said): with the release in `say`.
    word.load(Ordering::Acquire)
}

/// Notes that a link has ended. Its state says so before.
pub(super) fn mark(ended: &AtomicBool) {
    // Exchanges on both sides, so that who clears the mark sees what all marks before it tell of.
    // PAIRS(ended): with the acquire in `unmark`.
    ended.swap(true, Ordering::AcqRel);
}

/// Clears the mark, before the links are looked at.
pub(super) fn unmark(ended: &AtomicBool) {
    // PAIRS(ended): with the release in `mark`.
    ended.swap(false, Ordering::AcqRel);
}

/// Calls at a door, by `set`, which sets the word at an offset (with release) and wakes its owner.
pub(super) fn knock(mut set: impl FnMut(usize)) {
    set(door::NEW);
    set(door::WAKE);
}

/// Why a door's owner was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// To look at everything.
    Interrupt,
    /// And for doors of new processes.
    New,
}

/// Takes the words of the own door; `None`: nobody has called.
pub(super) fn called<W: Word<Value = u32>>(wake: W, new: W) -> Option<Call> {
    // PAIRS(door): with the release in the caller's signal, as below.
    if wake.load(Ordering::Relaxed) == 0 || wake.swap(0, Ordering::AcqRel) == 0 {
        return None;
    }
    Some(if new.swap(0, Ordering::AcqRel) == 0 { Call::Interrupt } else { Call::New })
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32};
    use loom::thread;

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(body);
    }

    /// Memory that one process uses until it has said a word, and the other afterwards.
    struct Shared {
        bytes: UnsafeCell<u32>,
        word: AtomicU32,
        closed: [AtomicBool; 2],
        ended: AtomicBool,
    }

    // SAFETY: what the models check: no two threads are in the cell at once.
    #[allow(unsafe_code)]
    unsafe impl Sync for Shared {}

    impl Shared {
        fn new() -> Arc<Shared> {
            Arc::new(Shared {
                bytes: UnsafeCell::new(0),
                word: AtomicU32::new(0),
                closed: std::array::from_fn(|_| AtomicBool::new(false)),
                ended: AtomicBool::new(false),
            })
        }

        fn write(&self, value: u32) {
            #[allow(unsafe_code)]
            // SAFETY: as the model checks.
            self.bytes.with_mut(|bytes| unsafe { *bytes = value });
        }

        fn read(&self) -> u32 {
            #[allow(unsafe_code)]
            // SAFETY: as the model checks.
            self.bytes.with(|bytes| unsafe { *bytes })
        }
    }

    /// One opens its links, whose memory is the other's; that one leaves as soon as it hears "here".
    fn here(said: Option<Ordering>) {
        model(move || {
            let shared = Shared::new();
            let opener = {
                let shared = shared.clone();
                thread::spawn(move || {
                    assert_eq!(shared.read(), 0);
                    match said {
                        None => say(&shared.word, 1),
                        Some(order) => shared.word.store(1, order),
                    }
                })
            };
            while heard(&shared.word) == 0 {
                thread::yield_now();
            }
            shared.write(1); // takes the memory away
            opener.join().unwrap();
        });
    }

    #[test]
    fn loom_nobody_takes_a_link_away_that_is_still_being_opened() {
        here(None);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_with_a_relaxed_here_a_link_is_taken_away_too_early() {
        here(Some(Ordering::Relaxed));
    }

    /// One writes its last bytes and leaves in order; the other hears of the end of the link.
    fn bye(word_first: bool) {
        model(move || {
            let shared = Shared::new();
            let leaver = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.write(7);
                    if word_first {
                        say(&shared.word, 1);
                    }
                    shared.closed[0].store(true, Ordering::Release);
                    mark(&shared.ended);
                    if !word_first {
                        say(&shared.word, 1);
                    }
                })
            };
            while !shared.ended.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            unmark(&shared.ended);
            assert!(shared.closed[0].load(Ordering::Acquire));
            assert_eq!(heard(&shared.word), 1, "taken for dead");
            assert_eq!(shared.read(), 7);
            leaver.join().unwrap();
        });
    }

    #[test]
    fn loom_who_leaves_in_order_is_not_taken_for_dead() {
        bye(true);
    }

    #[test]
    #[should_panic(expected = "taken for dead")]
    fn loom_who_says_bye_after_its_links_have_ended_is_taken_for_dead() {
        bye(false);
    }

    /// How marking differs from the real thing.
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        Right,
        /// Made by a store, which hides what the mark before it tells of.
        Stored,
        /// Cleared after the look.
        Late,
    }

    /// Two links end, each heard of by a thread of its own; who looks whenever there is a mark finds both.
    fn ends(weak: Mark) {
        model(move || {
            let shared = Shared::new();
            let enders: Vec<_> = (0..2)
                .map(|link| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        shared.closed[link].store(true, Ordering::Release);
                        match weak {
                            Mark::Stored => shared.ended.store(true, Ordering::Release),
                            _ => mark(&shared.ended),
                        }
                    })
                })
                .collect();
            let mut found = [false; 2];
            let mut look = || {
                if !shared.ended.load(Ordering::Relaxed) {
                    return;
                }
                if weak != Mark::Late {
                    unmark(&shared.ended);
                }
                for (found, closed) in found.iter_mut().zip(&shared.closed) {
                    *found |= closed.load(Ordering::Acquire);
                }
                if weak == Mark::Late {
                    unmark(&shared.ended);
                }
            };
            look();
            look();
            let mut enders = enders.into_iter();
            // The last word of each thread is a mark, so a look after both is enough, if none was lost.
            enders.by_ref().for_each(|ender| ender.join().unwrap());
            look();
            assert_eq!(found, [true; 2], "an end is lost");
        });
    }

    #[test]
    fn loom_every_end_of_a_link_is_found() {
        ends(Mark::Right);
    }

    #[test]
    #[should_panic(expected = "an end is lost")]
    fn loom_a_mark_made_by_a_store_loses_an_end() {
        ends(Mark::Stored);
    }

    #[test]
    #[should_panic(expected = "an end is lost")]
    fn loom_a_mark_cleared_after_the_look_loses_an_end() {
        ends(Mark::Late);
    }

    /// How a model of the door differs from the real thing.
    #[derive(Clone, Copy, PartialEq)]
    enum Door {
        Right,
        /// Who calls sets the waking word first.
        WakeFirst,
        /// Who was called clears the words after it has looked.
        ClearLate,
    }

    /// Two processes join at once; who was there finds both doors.
    fn doors(door: Door) {
        model(move || {
            let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            // Doors, as the daemon knows them: whoever asks is told of all that it was told before.
            let there = Arc::new(AtomicU32::new(0));
            let ask = || there.fetch_or(0, Ordering::AcqRel);
            let at = |offset: usize| usize::from(offset == door::NEW);
            let callers: Vec<_> = (0..2)
                .map(|caller| {
                    let (words, there) = (words.clone(), there.clone());
                    thread::spawn(move || {
                        there.fetch_or(1 << caller, Ordering::AcqRel);
                        let set = |offset| say(&words[at(offset)], 1);
                        match door {
                            Door::WakeFirst => [door::WAKE, door::NEW].into_iter().for_each(set),
                            _ => knock(set),
                        }
                    })
                })
                .collect();
            let (wake, new) = (&words[at(door::WAKE)], &words[at(door::NEW)]);
            let mut met = 0;
            let mut look = || match door {
                Door::ClearLate => {
                    if wake.load(Ordering::Acquire) != 0 && new.load(Ordering::Acquire) != 0 {
                        met |= ask();
                        called(wake, new);
                    }
                }
                _ => {
                    if called(wake, new) == Some(Call::New) {
                        met |= ask();
                    }
                }
            };
            look();
            look();
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            look();
            assert_eq!(met, 3, "a process is left out");
        });
    }

    #[test]
    fn loom_every_process_that_joins_is_met() {
        doors(Door::Right);
    }

    #[test]
    #[should_panic(expected = "a process is left out")]
    fn loom_who_wakes_before_it_says_why_is_left_out() {
        doors(Door::WakeFirst);
    }

    #[test]
    #[should_panic(expected = "a process is left out")]
    fn loom_words_cleared_after_the_look_leave_a_process_out() {
        doors(Door::ClearLate);
    }
}
