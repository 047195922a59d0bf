//! One large message, copied from user memory to user memory by both of its processes at once.
//!
//! A processor that copies to or from another's cache waits for lines most of the time, so two of them copy nearly twice
//! as fast. The message is cut into *pieces*. The sender takes pieces from the front and writes them into the
//! receiver's memory, the receiver takes pieces from the back and reads them from the sender's; what is left when one of them
//! is slow, or does something else, the other copies. A word says who has taken what:
//!
//! ```text
//!   bits  0..16   pieces that the sender has taken
//!   bits 16..32   pieces that the receiver has taken
//!   bits 32..48   pieces that the receiver has copied
//!   bit  63       closed: the sender has not found yet that its memory may be read
//!
//!   sender                                receiver
//!   (1) opens the word (release)          (2) takes a piece (acquire), reads it
//!   (3) waits until the receiver has      (4) adds one to those copied (release)
//!       copied what it took (acquire),
//!       and gives the memory back
//! ```
//!
//! The sender waits only for pieces of which the receiver is in the middle. What the sender copied is told by the staged word, as
//! for all that goes directly ([`super::direct`]).

use super::direct::Spot;
use std::ops::Range;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// The word before it is opened.
pub(super) const CLOSED: u64 = 1 << 63;
const FIELD: u64 = 0xffff;
const BACK: u32 = 16;
const COPIED: u32 = 32;

/// Pieces are at least this long: to take one costs the way of a line there and back.
const PIECE: usize = 32 << 10;
/// And there are hardly more than so many.
const MOST_PIECES: usize = 4096;

/// Lets the receiver read: what the sender has done to the bytes is done before.
pub(super) fn open<W: Word<Value = u64>>(word: W) {
    // PAIRS(shared): with the acquire in `take_back`.
    word.store(0, Ordering::Release);
}

/// Takes one of `pieces` from an end, unless all are taken.
fn take<W: Word<Value = u64>>(word: W, pieces: usize, end: u32) -> Option<usize> {
    let mut seen = word.load(Ordering::Acquire);
    loop {
        let [front, back] = [0, BACK].map(|end| (seen >> end & FIELD) as usize);
        if seen & CLOSED != 0 || front + back >= pieces {
            return None;
        }
        match word.compare_exchange(seen, seen + (1 << end), Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(if end == BACK { pieces - 1 - back } else { front }),
            Err(found) => seen = found,
        }
    }
}

/// The next piece for the sender.
pub(super) fn take_front<W: Word<Value = u64>>(word: W, pieces: usize) -> Option<usize> {
    take(word, pieces, 0)
}

/// The next piece for the receiver.
pub(super) fn take_back<W: Word<Value = u64>>(word: W, pieces: usize) -> Option<usize> {
    // PAIRS(shared): with the release in `open`.
    take(word, pieces, BACK)
}

/// The receiver has copied a piece that it took.
pub(super) fn copied<W: Word<Value = u64>>(word: W) {
    // PAIRS(copied): with the acquire in `are_copied`.
    word.fetch_add(1 << COPIED, Ordering::Release);
}

/// Whether the receiver has copied all that it took.
pub(super) fn are_copied<W: Word<Value = u64>>(word: W) -> bool {
    // PAIRS(copied): with the release in `copied`.
    let seen = word.load(Ordering::Acquire);
    seen >> BACK & FIELD == seen >> COPIED & FIELD
}

/// The bytes of a message that both can copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    start: usize,
    end: usize,
    piece: usize,
}

impl Shared {
    /// Those that the receiver has told where to put, and the sender where to read.
    pub(super) fn of(target: &Spot, source: &Spot) -> Shared {
        let start = target.first.max(source.first);
        let end = |spot: &Spot| spot.first.saturating_add(spot.len);
        let end = end(target).min(end(source)).max(start);
        let (start, end) = (start as usize, end as usize);
        let piece = PIECE.max((end - start).div_ceil(MOST_PIECES).next_multiple_of(64));
        Shared { start, end, piece }
    }

    /// All of them, by their place in the message.
    pub(super) fn range(self) -> Range<usize> {
        self.start..self.end
    }

    pub(super) fn pieces(self) -> usize {
        (self.end - self.start).div_ceil(self.piece)
    }

    pub(super) fn piece(self, number: usize) -> Range<usize> {
        let start = self.start + number * self.piece;
        start..(start + self.piece).min(self.end)
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vmmc::sync::AtomicU64;

    fn spot(first: u64, len: u64) -> Spot {
        Spot { window: 0, offset: 0, first, len }
    }

    proptest! {
        #[test]
        fn pieces_are_all_of_what_both_can_reach(
            target in (0u64..9000, 0u64..1 << 34),
            source in (0u64..9000, 0u64..1 << 34),
        ) {
            let (target, source) = (spot(target.0, target.1), spot(source.0, source.1));
            let shared = Shared::of(&target, &source);
            let range = shared.range();
            for spot in [target, source] {
                let end = (spot.first + spot.len) as usize;
                prop_assert!(range.is_empty() || spot.first as usize <= range.start && range.end <= end);
            }
            prop_assert!(shared.pieces() <= MOST_PIECES);
            let mut at = range.start;
            for piece in (0..shared.pieces()).map(|number| shared.piece(number)) {
                prop_assert!(piece.start == at && !piece.is_empty());
                at = piece.end;
            }
            prop_assert_eq!(at, range.end);
        }
    }

    #[test]
    fn each_piece_is_taken_once_and_none_of_a_closed_word() {
        let word = AtomicU64::new(CLOSED);
        assert_eq!(take_back(&word, 3), None);
        open(&word);
        assert_eq!(take_front(&word, 3), Some(0));
        assert_eq!(take_back(&word, 3), Some(2));
        assert!(!are_copied(&word));
        assert_eq!(take_back(&word, 3), Some(1));
        assert_eq!((take_front(&word, 3), take_back(&word, 3)), (None, None));
        copied(&word);
        assert!(!are_copied(&word));
        copied(&word);
        assert!(are_copied(&word));
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    const PIECES: usize = 2;

    /// How a model differs from the real thing.
    #[derive(Clone, Copy, PartialEq)]
    enum Weak {
        No,
        /// The word is opened without release.
        Open,
        /// A piece is said to be copied without release.
        Copied,
        /// The sender does not wait for the receiver's pieces.
        Wait,
        /// A piece is taken by a load and a store.
        Take,
    }

    struct Memory {
        word: AtomicU64,
        source: [UnsafeCell<u32>; PIECES],
        target: [UnsafeCell<u32>; PIECES],
    }

    // SAFETY: what the models check: no two threads are in a cell at once.
    #[allow(unsafe_code)]
    unsafe impl Sync for Memory {}

    impl Memory {
        fn copy(&self, piece: usize) {
            #[allow(unsafe_code)]
            // SAFETY: as the model checks.
            let value = self.source[piece].with(|from| unsafe { *from });
            #[allow(unsafe_code)]
            // SAFETY: as the model checks.
            self.target[piece].with_mut(|to| unsafe { *to += value });
        }

        fn write(&self, value: u32) {
            for cell in &self.source {
                #[allow(unsafe_code)]
                // SAFETY: as the model checks.
                cell.with_mut(|to| unsafe { *to = value });
            }
        }
    }

    fn take_weakly(word: &AtomicU64, end: u32) -> Option<usize> {
        let seen = word.load(Ordering::Acquire);
        let [front, back] = [0, BACK].map(|end| (seen >> end & FIELD) as usize);
        if seen & CLOSED != 0 || front + back >= PIECES {
            return None;
        }
        word.store(seen + (1 << end), Ordering::Release);
        Some(if end == BACK { PIECES - 1 - back } else { front })
    }

    /// The sender sends and uses its memory again; the receiver helps.
    fn both(weak: Weak) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let memory = Arc::new(Memory {
                word: AtomicU64::new(CLOSED),
                source: std::array::from_fn(|_| UnsafeCell::new(0)),
                target: std::array::from_fn(|_| UnsafeCell::new(0)),
            });
            let receiver = {
                let memory = memory.clone();
                thread::spawn(move || {
                    let next = || match weak {
                        Weak::Take => take_weakly(&memory.word, BACK),
                        _ => take_back(&memory.word, PIECES),
                    };
                    while let Some(piece) = next() {
                        memory.copy(piece);
                        match weak {
                            Weak::Copied => {
                                memory.word.fetch_add(1 << COPIED, Ordering::Relaxed);
                            }
                            _ => copied(&memory.word),
                        }
                    }
                })
            };
            memory.write(1);
            match weak {
                Weak::Open => memory.word.store(0, Ordering::Relaxed),
                _ => open(&memory.word),
            }
            let next = || match weak {
                Weak::Take => take_weakly(&memory.word, 0),
                _ => take_front(&memory.word, PIECES),
            };
            while let Some(piece) = next() {
                memory.copy(piece);
            }
            while weak != Weak::Wait && !are_copied(&memory.word) {
                thread::yield_now();
            }
            memory.write(2);
            receiver.join().unwrap();
            for cell in &memory.target {
                #[allow(unsafe_code)]
                // SAFETY: both have ended.
                let value = cell.with(|it| unsafe { *it });
                assert_eq!(value, 1, "a piece is copied twice, or never");
            }
        });
    }

    #[test]
    fn loom_both_copy_each_piece_once_before_the_memory_is_used_again() {
        both(Weak::No);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_word_opened_without_release_shows_old_bytes() {
        both(Weak::Open);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_piece_told_without_release_is_read_after_the_send() {
        both(Weak::Copied);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_sender_that_does_not_wait_writes_while_the_receiver_reads() {
        both(Weak::Wait);
    }

    #[test]
    #[should_panic]
    fn loom_pieces_taken_without_an_exchange_are_taken_twice() {
        both(Weak::Take);
    }
}
