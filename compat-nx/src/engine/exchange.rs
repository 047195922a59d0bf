//! Rounds of an exchange: every node gives each other one a few bytes, and waits for theirs.
//!
//! One round is a barrier, and with bytes in it a reduction or a concatenation: no node need run twice,
//! which is what counts where nodes share processors (a tree or a dissemination makes a node wait, and so
//! be switched out, once per level). Each pair has its own cells, so no word has two writers.
//!
//! ```text
//!   node a                                       node b
//!   (1) writes bytes into cell r % 2 of its lane
//!       to b, then the head: round r (release)   (1) the same, towards a
//!   (2) waits for round r in b's cell (acquire)  (2) the same
//!   (3) reads b's bytes                          (3) reads a's bytes
//! ```
//!
//! Two cells suffice: who writes round r + 2 has ended round r + 1, so everybody has begun that one, and
//! had read round r before. This needs every operation that takes a round to end only when all nodes have begun
//! it, which is so for all global operations, whether their bytes go by cells or by messages. And it needs rounds
//! to be even and odd in turn, also where their numbers wrap: the last one is odd, and 2 comes after it.

use super::layout::{self, CELL_LEN, CELLS_AT};
use super::out::word64;
use super::peer::Peer;
use super::slots;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// The round after `last`; 0: there was none. Never 0 itself.
#[inline]
pub(super) fn next(last: u32) -> u32 {
    last.checked_add(1).unwrap_or(2)
}

/// Offset of the cell of a round.
fn at(round: u32) -> usize {
    CELLS_AT + round as usize % layout::CELLS * CELL_LEN
}

/// Step 1, after the bytes. The head is an arrival word whose sequence number is the round; of what is longer than it holds it says
/// the longest.
#[inline]
fn give<W: Word<Value = u64>>(head: W, round: u32, tag: u8, len: usize) {
    // PAIRS(round): with the acquire in `given`.
    head.store(slots::arrival(round, tag, len.min(slots::LEN_MAX)), Ordering::Release);
}

/// Step 2: tag and length, if the other has come to this round.
#[inline]
fn given<W: Word<Value = u64>>(head: W, round: u32) -> Option<(u8, usize)> {
    // PAIRS(round): with the release in `give`.
    slots::arrived(head.load(Ordering::Acquire), round)
}

impl Peer {
    /// Gives the peer this node's part of a round: `len` bytes, of which those of `bytes` are in the cell. `means`: see
    /// [`Peer::round_means`]. It is not rung.
    #[inline]
    pub(super) fn give_round(
        &self,
        round: u32,
        tag: u8,
        len: usize,
        bytes: &[u8],
        means: Option<u64>,
    ) {
        let bytes = bytes.get(..layout::CELL_ROOM).unwrap_or(bytes);
        let Some(lane) = self.out.view() else {
            unreachable!("only nodes of one machine give each other cells");
        };
        if lane.write(at(round) + 8, bytes).is_err() {
            unreachable!("cells lie before the slots");
        }
        if let Some(means) = means {
            word64(lane, at(round) + layout::CELL_MEANS).store(means, Ordering::Relaxed);
        }
        give(word64(lane, at(round)), round, tag, len);
    }

    /// Tag and length of the peer's part of a round, if it is there.
    #[inline]
    pub(super) fn given_round(&self, round: u32) -> Option<(u8, usize)> {
        given(self.in64(at(round)), round)
    }

    /// What a part that is there says that all nodes must mean, if its kind of round has such a thing.
    pub(super) fn round_means(&self, round: u32) -> u64 {
        self.in64(at(round) + layout::CELL_MEANS).load(Ordering::Relaxed)
    }

    /// The bytes of a part that is there, as many as fit `target` and a cell.
    pub(super) fn read_round(&self, round: u32, target: &mut [u8]) {
        let len = target.len().min(layout::CELL_ROOM);
        if self.lane().read(at(round) + 8, &mut target[..len]).is_err() {
            unreachable!("cells lie before the slots");
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_round_never_uses_the_cell_of_the_one_before() {
        for begin in [0, u32::MAX - 3] {
            let mut round = begin;
            for _ in 0..6 {
                let after = next(round);
                assert_ne!(after, 0, "0 is no round");
                assert_ne!(at(after), at(round), "{after} after {round}");
                round = after;
            }
        }
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    /// The cells that one node writes for the other. The bytes are ordinary cells, in which loom finds every
    /// access that is not ordered.
    struct Lane {
        heads: [AtomicU64; layout::CELLS],
        bytes: [UnsafeCell<u32>; layout::CELLS],
    }

    // SAFETY: what the models check: no two threads are in a cell at once.
    #[allow(unsafe_code)]
    unsafe impl Sync for Lane {}

    impl Lane {
        fn new() -> Lane {
            Lane {
                heads: std::array::from_fn(|_| AtomicU64::new(0)),
                bytes: std::array::from_fn(|_| UnsafeCell::new(0)),
            }
        }
    }

    /// How a model differs from the real thing.
    #[derive(Clone, Copy)]
    struct Weak {
        cells: usize,
        head: Option<Ordering>,
    }

    fn play(mine: &Lane, theirs: &Lane, last: u32, rounds: u32, weak: Weak) {
        let mut round = last;
        for _ in 0..rounds {
            round = next(round);
            let cell = round as usize % weak.cells;
            #[allow(unsafe_code)]
            // SAFETY: as the model checks.
            mine.bytes[cell].with_mut(|bytes| unsafe { *bytes = round });
            match weak.head {
                None => give(&mine.heads[cell], round, 1, 4),
                Some(order) => mine.heads[cell].store(slots::arrival(round, 1, 4), order),
            }
            while given(&theirs.heads[cell], round).is_none() {
                thread::yield_now();
            }
            #[allow(unsafe_code)]
            // SAFETY: as the model checks.
            let read = theirs.bytes[cell].with(|bytes| unsafe { *bytes });
            assert_eq!(read, round);
        }
    }

    /// `count` rounds after `last`.
    fn rounds(last: u32, count: u32, weak: Weak) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let (a, b) = (Arc::new(Lane::new()), Arc::new(Lane::new()));
            let other = {
                let (a, b) = (a.clone(), b.clone());
                thread::spawn(move || play(&b, &a, last, count, weak))
            };
            play(&a, &b, last, count, weak);
            other.join().unwrap();
        });
    }

    #[test]
    fn loom_no_round_is_written_over_before_it_was_read() {
        rounds(0, 3, Weak { cells: layout::CELLS, head: None });
    }

    #[test]
    fn loom_no_round_is_written_over_where_their_numbers_wrap() {
        rounds(u32::MAX - 2, 3, Weak { cells: layout::CELLS, head: None });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_with_a_relaxed_head_bytes_are_read_too_early() {
        rounds(0, 1, Weak { cells: layout::CELLS, head: Some(Ordering::Relaxed) });
    }

    #[test]
    #[should_panic]
    fn loom_with_one_cell_a_round_is_written_over() {
        rounds(0, 2, Weak { cells: 1, head: None });
    }
}
