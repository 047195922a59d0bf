//! Slot-named credits: who may use which slot next.
//!
//! Messages may be consumed in any order, so a credit names the slot that is free again. The sender
//! keeps its free slots in a **queue**: at first 0, 1, 2 ..., then in the order in which credits
//! name them, and always takes the oldest. The receiver, who gives the credits, keeps the same
//! queue, and so knows **which slot the next message will come in**: it polls one word per sender
//! however many slots there are, and messages of a sender are found in the order in which they were sent.
//!
//! ```text
//!   receiver                                    sender
//!   (1) takes the message out of slot s
//!   (2) credit n := (n + 1, s)    (release)     (1) loads credit n (acquire); its number is n + 1:
//!   (3) own queue: s behind                         own queue: s behind
//!                                               (2) writes slot s, its arrival word last (release)
//!   (4) loads the arrival word of the first slot of its queue (acquire)
//! ```
//!
//! A credit's number tells it from the one that stood there a round earlier; with at most
//! [`layout::SLOTS`] slots and [`layout::BLOCKS`] blocks in use, none is overwritten before it is taken.
//! Numbers start at 1 and run through 0 when they wrap: an entry that was never written looks like number 0, and
//! by the time that one is waited for, every entry has been written.

use super::layout::{self, CREDIT_BLOCK, CREDIT_ENTRIES, SLOTS};
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// Slot numbers in the order in which they will be used.
#[derive(Clone, Debug)]
pub(super) struct SlotQueue {
    ring: [u8; SLOTS],
    head: u32,
    tail: u32,
}

impl SlotQueue {
    /// All slots, in order.
    pub(super) fn full() -> SlotQueue {
        SlotQueue { ring: std::array::from_fn(|i| i as u8), head: 0, tail: SLOTS as u32 }
    }

    /// The next slot.
    #[inline]
    pub(super) fn first(&self) -> Option<usize> {
        (self.head != self.tail).then(|| usize::from(self.ring[self.head as usize % SLOTS]))
    }

    /// Takes the next slot.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.head = self.head.wrapping_add(1);
        Some(first)
    }

    /// Puts a slot behind the others. The caller has seen to it that the slot was in use, so there is
    /// room.
    #[inline]
    pub(super) fn push(&mut self, slot: usize) {
        self.ring[self.tail as usize % SLOTS] = slot as u8;
        self.tail = self.tail.wrapping_add(1);
    }

    pub(super) fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }
}

/// Number of the credit after `given`, as it is written: 24 bits.
#[inline]
fn number(given: u32) -> u32 {
    given.wrapping_add(1) & 0x00ff_ffff
}

/// Index of credit `given` in the ring.
#[inline]
pub(super) fn index(given: u32) -> usize {
    (given % CREDIT_ENTRIES) as usize
}

/// Credit number `given` (counted from 0) for `what`.
#[inline]
pub(super) fn credit(given: u32, what: u32) -> u32 {
    number(given) << 8 | what
}

/// Gives credit number `given` for `what`: step 2 of the receiver.
#[inline]
pub(super) fn give<W: Word<Value = u32>>(entry: W, given: u32, what: u32) {
    // PAIRS(credit): with the acquire in `take`: our reading of the slot is before its next writing.
    entry.store(credit(given, what), Ordering::Release);
}

/// Takes credit number `taken` if it has been given: step 1 of the sender.
#[inline]
pub(super) fn take<W: Word<Value = u32>>(entry: W, taken: u32) -> Option<u32> {
    // PAIRS(credit): with the release in `give`.
    let value = entry.load(Ordering::Acquire);
    (value >> 8 == number(taken)).then_some(value & 0xff)
}

/// What a credit names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Credit {
    Slot(usize),
    Block(usize),
}

/// Decodes a peer's credit; `None` when there is no such slot or block.
pub(super) fn decode(what: u32) -> Option<Credit> {
    let which = (what & !CREDIT_BLOCK) as usize;
    match what & CREDIT_BLOCK {
        0 => (which < SLOTS).then_some(Credit::Slot(which)),
        _ => (which < layout::BLOCKS).then_some(Credit::Block(which)),
    }
}

/// Longest length that an arrival word holds.
pub(super) const LEN_MAX: usize = 0x00ff_ffff;

/// The arrival word of message `sequence`.
#[inline]
pub(super) fn arrival(sequence: u32, kind: u8, len: usize) -> u64 {
    u64::from(sequence) << 32 | u64::from(kind) << 24 | (len & LEN_MAX) as u64
}

/// Kind and length of the message that an arrival word tells of, if it is message `sequence`.
#[inline]
pub(super) fn arrived(word: u64, sequence: u32) -> Option<(u8, usize)> {
    ((word >> 32) as u32 == sequence).then_some(((word >> 24) as u8, (word & 0x00ff_ffff) as usize))
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vmmc::sync::AtomicU32;

    proptest! {
        /// N5: whatever the order of consumption, both queues name the same slots in the same order.
        #[test]
        fn sender_and_receiver_agree_on_the_next_slot(
            begin in prop_oneof![
                Just(0),
                (0x00ff_ff80..=0x0100_0000u32),
                (u32::MAX - 0x80..=u32::MAX),
            ],
            choices in proptest::collection::vec((any::<bool>(), any::<usize>()), 1..400),
        ) {
            let ring = ring_at(begin);
            let (mut sender, mut receiver) = (SlotQueue::full(), SlotQueue::full());
            let (mut given, mut taken) = (begin, begin);
            let mut held = Vec::new();
            for (send, pick) in choices {
                if send {
                    while let Some(what) = take(&ring[index(taken)], taken) {
                        taken = taken.wrapping_add(1);
                        let Some(Credit::Slot(slot)) = decode(what) else { panic!("a slot") };
                        sender.push(slot);
                    }
                    if let Some(slot) = sender.pop() {
                        prop_assert_eq!(receiver.pop(), Some(slot));
                        held.push(slot);
                    }
                } else if !held.is_empty() {
                    let slot = held.swap_remove(pick % held.len());
                    give(&ring[index(given)], given, slot as u32);
                    given = given.wrapping_add(1);
                    receiver.push(slot);
                }
                prop_assert_eq!(receiver.len() + held.len(), SLOTS);
                let under_way = given.wrapping_sub(taken) as usize;
                prop_assert_eq!(sender.len() + held.len() + under_way, SLOTS);
            }
            while let Some(what) = take(&ring[index(taken)], taken) {
                taken = taken.wrapping_add(1);
                prop_assert!(matches!(decode(what), Some(Credit::Slot(_))));
            }
            prop_assert_eq!(taken, given);
        }
    }

    /// The ring as it is when `begin` credits were given and taken.
    fn ring_at(begin: u32) -> Vec<AtomicU32> {
        let ring: Vec<AtomicU32> = (0..CREDIT_ENTRIES).map(|_| AtomicU32::new(0)).collect();
        for given in begin.saturating_sub(CREDIT_ENTRIES)..begin {
            give(&ring[index(given)], given, given % 32);
        }
        ring
    }

    #[test]
    fn each_credit_is_taken_once_whatever_it_names_where_its_number_wraps() {
        for what in [0, 1, 31, CREDIT_BLOCK, CREDIT_BLOCK | 31] {
            for wrap in [0u32, 0x00ff_ffff, u32::MAX] {
                let begin = wrap.saturating_sub(3);
                let ring = ring_at(begin);
                for step in 0..6 {
                    let given = begin.wrapping_add(step);
                    let entry = &ring[index(given)];
                    assert_eq!(take(entry, given), None, "{what} before credit {given}");
                    give(entry, given, what);
                    assert_eq!(take(entry, given), Some(what), "credit {given}");
                    assert_eq!(take(entry, given.wrapping_add(CREDIT_ENTRIES)), None);
                }
            }
        }
    }

    #[test]
    fn each_message_is_found_once_where_its_number_wraps() {
        let mut word = arrival(u32::MAX - 2, layout::kind::DATA, 0);
        for sequence in [u32::MAX - 1, u32::MAX, 0, 1] {
            assert_eq!(arrived(word, sequence), None);
            word = arrival(sequence, layout::kind::DATA, 0);
            assert_eq!(arrived(word, sequence), Some((layout::kind::DATA, 0)));
        }
    }

    #[test]
    fn an_empty_slot_is_not_an_empty_message() {
        assert_eq!(arrived(0, 1), None);
        assert_eq!(arrived(arrival(1, layout::kind::DATA, 0), 1), Some((layout::kind::DATA, 0)));
        assert_eq!(arrived(arrival(1, layout::kind::DATA, 0), 2), None);
    }

    #[test]
    fn a_credit_for_no_slot_is_nonsense() {
        assert_eq!(decode(31), Some(Credit::Slot(31)));
        assert_eq!(decode(32), None);
        assert_eq!(decode(CREDIT_BLOCK | 31), Some(Credit::Block(31)));
        assert_eq!(decode(CREDIT_BLOCK | 32), None);
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    /// One slot; its data is an ordinary cell, in which loom finds every access that is not ordered.
    struct Slot {
        arrival: AtomicU32,
        data: UnsafeCell<u32>,
        credit: AtomicU32,
    }

    // SAFETY: what the models check: no two threads are in the cell at once.
    #[allow(unsafe_code)]
    unsafe impl Sync for Slot {}

    /// Two messages through one slot: each is read whole, and the second is written only after the
    /// first was read.
    fn two_messages(arrival: Ordering, credit: impl Fn(&AtomicU32) + Send + Sync + 'static) {
        let credit = std::sync::Arc::new(credit);
        loom::model(move || {
            let slot = Arc::new(Slot {
                arrival: AtomicU32::new(0),
                data: UnsafeCell::new(0),
                credit: AtomicU32::new(0),
            });
            #[allow(unsafe_code)]
            // SAFETY: as the model checks.
            let write = |slot: &Slot, value| slot.data.with_mut(|data| unsafe { *data = value });
            #[allow(unsafe_code)]
            // SAFETY: as the model checks.
            let read = |slot: &Slot| slot.data.with(|data| unsafe { *data });
            let sender = {
                let slot = slot.clone();
                thread::spawn(move || {
                    write(&slot, 1);
                    slot.arrival.store(1, arrival);
                    if take(&slot.credit, 0).is_some() {
                        write(&slot, 2);
                        slot.arrival.store(2, arrival);
                    }
                })
            };
            if slot.arrival.load(Ordering::Acquire) == 1 {
                assert_eq!(read(&slot), 1);
                credit(&slot.credit);
                if slot.arrival.load(Ordering::Acquire) == 2 {
                    assert_eq!(read(&slot), 2);
                }
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn loom_a_slot_is_read_whole_and_not_written_while_it_is_read() {
        two_messages(Ordering::Release, |credit| give(credit, 0, 0));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_with_a_relaxed_arrival_a_message_is_read_too_early() {
        two_messages(Ordering::Relaxed, |credit| give(credit, 0, 0));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_with_a_relaxed_credit_a_slot_is_written_while_it_is_read() {
        let relaxed = |credit: &AtomicU32| credit.store(number(0) << 8, Ordering::Relaxed);
        two_messages(Ordering::Release, relaxed);
    }
}
