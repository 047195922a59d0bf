//! The notification queue: one producer process, one consumer process, neither trusting the other.
//!
//! Tail (next to write) and head (next to read) run free and are masked at the access. Each side
//! keeps its own position in private memory and only ever *writes* it to the segment, so that the
//! peer cannot move it; the peer's position is loaded, checked by [`credit::in_flight`], and used.
//!
//! The generic parts run over any words, so the model checker explores them.

use crate::sync::Ordering;
use crate::word::Word;
use crate::word::credit::{self, BadCredit};

/// The producer's position.
#[derive(Debug)]
pub struct Producer {
    /// Next to write; the truth, of which the segment's word is a copy.
    tail: u32,
    /// The consumer's position when last looked at.
    known_head: u32,
    capacity: u32,
}

impl Producer {
    /// A producer of an empty queue.
    #[must_use]
    pub fn new(capacity: u32) -> Producer {
        Producer { tail: 0, known_head: 0, capacity }
    }

    /// Writes an entry with `fill(slot)` and publishes it. `Ok(false)`: the queue is full.
    ///
    /// # Errors
    /// [`BadCredit`] when the consumer's position is impossible.
    pub fn push<H: Word<Value = u32>, T: Word<Value = u32>>(
        &mut self,
        head: H,
        tail: T,
        fill: impl FnOnce(u32),
    ) -> Result<bool, BadCredit> {
        if self.tail.wrapping_sub(self.known_head) >= self.capacity {
            // PAIRS(room): with the release in Consumer::take. The slot may be filled again.
            let seen = head.load(Ordering::Acquire);
            if credit::in_flight(seen, self.tail, self.capacity)? == self.capacity {
                return Ok(false);
            }
            self.known_head = seen;
        }
        fill(self.tail & (self.capacity - 1));
        self.tail = self.tail.wrapping_add(1);
        // PAIRS(entry): with the acquire in Consumer::take. The entry and all data before it
        // are there when the consumer sees the new tail.
        tail.store(self.tail, Ordering::Release);
        Ok(true)
    }

    /// Entries not taken yet.
    ///
    /// # Errors
    /// [`BadCredit`] when the consumer's position is impossible.
    pub fn in_flight<W: Word<Value = u32>>(&self, head: W) -> Result<u32, BadCredit> {
        credit::in_flight(head.load(Ordering::Acquire), self.tail, self.capacity)
    }
}

/// The consumer's position.
#[derive(Debug)]
pub struct Consumer {
    /// Next to read; the truth, of which the segment's word is a copy.
    head: u32,
    capacity: u32,
}

impl Consumer {
    /// A consumer of a queue of which `head` entries have ever been taken, wrapping.
    #[must_use]
    pub fn new(head: u32, capacity: u32) -> Consumer {
        Consumer { head, capacity }
    }

    /// Entries ever taken, wrapping.
    #[must_use]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Reads up to `limit` entries with `read(slot)`, in order, and makes room. Returns how many.
    ///
    /// # Errors
    /// [`BadCredit`] when the producer's position is impossible; nothing was read then.
    pub fn take<H: Word<Value = u32>, T: Word<Value = u32>>(
        &mut self,
        head: H,
        tail: T,
        limit: u32,
        mut read: impl FnMut(u32),
    ) -> Result<u32, BadCredit> {
        // PAIRS(entry): with the release in Producer::push.
        let seen = tail.load(Ordering::Acquire);
        let count = credit::in_flight(self.head, seen, self.capacity)?.min(limit);
        for _ in 0..count {
            read(self.head & (self.capacity - 1));
            self.head = self.head.wrapping_add(1);
        }
        if count > 0 {
            // PAIRS(room): with the acquire in Producer::push.
            head.store(self.head, Ordering::Release);
        }
        Ok(count)
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::sync::AtomicU32;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::VecDeque;

    proptest! {
        /// Against a plain queue: everything comes out once, in order, and never more than fits.
        #[test]
        fn it_behaves_like_a_queue(steps in proptest::collection::vec((any::<bool>(), 1u32..6), 0..200)) {
            let (head, tail) = (AtomicU32::new(0), AtomicU32::new(0));
            let (mut producer, mut consumer) = (Producer::new(4), Consumer::new(0, 4));
            let slots = RefCell::new([0u32; 4]);
            let mut oracle = VecDeque::new();
            let mut next = 0;
            for (push, count) in steps {
                if push {
                    for _ in 0..count {
                        next += 1;
                        let fits = producer
                            .push(&head, &tail, |slot| slots.borrow_mut()[slot as usize] = next)
                            .unwrap();
                        prop_assert_eq!(fits, oracle.len() < 4);
                        if fits { oracle.push_back(next); }
                    }
                } else {
                    let mut got = Vec::new();
                    consumer.take(&head, &tail, count, |slot| got.push(slots.borrow()[slot as usize])).unwrap();
                    let expected: Vec<u32> = (0..count).map_while(|_| oracle.pop_front()).collect();
                    prop_assert_eq!(got, expected);
                }
            }
        }
    }

    #[test]
    fn impossible_positions_of_the_other_side_are_refused_and_move_nothing() {
        let (head, tail) = (AtomicU32::new(0), AtomicU32::new(0));
        let mut consumer = Consumer::new(0, 4);
        tail.store(5, Ordering::Relaxed);
        assert!(consumer.take(&head, &tail, 9, |_| panic!("read nonsense")).is_err());
        tail.store(u32::MAX, Ordering::Relaxed);
        assert!(consumer.take(&head, &tail, 9, |_| panic!("read nonsense")).is_err());
        assert_eq!(head.load(Ordering::Relaxed), 0);

        let mut producer = Producer::new(2);
        tail.store(0, Ordering::Relaxed);
        for _ in 0..2 {
            assert_eq!(producer.push(&head, &tail, |_| {}), Ok(true));
        }
        assert_eq!(producer.push(&head, &tail, |_| {}), Ok(false));
        head.store(3, Ordering::Relaxed); // more than was ever written
        assert!(producer.push(&head, &tail, |_| panic!("overwrote")).is_err());
    }
}

#[cfg(all(test, vmmc_loom))]
#[allow(unsafe_code)] // the cells that the model checks
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    struct Shared {
        head: AtomicU32,
        tail: AtomicU32,
        slots: [UnsafeCell<u32>; 2],
    }
    // SAFETY: the queue gives each slot to one side at a time; loom checks exactly that.
    unsafe impl Sync for Shared {}

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    /// A word whose every access is relaxed, whatever was asked for.
    struct Relaxed<'a>(&'a AtomicU32);

    impl Word for Relaxed<'_> {
        type Value = u32;
        fn load(&self, _: Ordering) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
        fn store(&self, value: u32, _: Ordering) {
            self.0.store(value, Ordering::Relaxed);
        }
        fn swap(&self, value: u32, _: Ordering) -> u32 {
            self.0.swap(value, Ordering::Relaxed)
        }
        fn fetch_add(&self, value: u32, _: Ordering) -> u32 {
            self.0.fetch_add(value, Ordering::Relaxed)
        }
        fn compare_exchange(
            &self,
            current: u32,
            new: u32,
            _: Ordering,
            _: Ordering,
        ) -> Result<u32, u32> {
            self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
        }
    }

    /// Three entries through a queue of two, over words as `head` and `tail` make them.
    fn queue_of_two<H, T>(
        head: impl Fn(&'static AtomicU32) -> H + Copy + Send + Sync + 'static,
        tail: impl Fn(&'static AtomicU32) -> T + Copy + Send + Sync + 'static,
    ) where
        H: Word<Value = u32>,
        T: Word<Value = u32>,
    {
        loom::model(move || {
            let queue: &'static Shared = Box::leak(Box::new(Shared {
                head: AtomicU32::new(0),
                tail: AtomicU32::new(0),
                slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
            }));
            let sender = thread::spawn(move || {
                let mut producer = Producer::new(2);
                for value in 1..=3u32 {
                    let mut push = || {
                        producer.push(head(&queue.head), tail(&queue.tail), |slot| {
                            // SAFETY: the slot is the producer's until the tail moves.
                            queue.slots[slot as usize].with_mut(|cell| unsafe { *cell = value });
                        })
                    };
                    while !push().unwrap() {
                        thread::yield_now();
                    }
                }
            });
            let mut consumer = Consumer::new(0, 2);
            let mut got = Vec::new();
            while got.len() < 3 {
                let count = consumer
                    .take(head(&queue.head), tail(&queue.tail), 2, |slot| {
                        // SAFETY: the slot is the consumer's until the head moves.
                        got.push(queue.slots[slot as usize].with(|cell| unsafe { *cell }));
                    })
                    .unwrap();
                if count == 0 {
                    thread::yield_now();
                }
            }
            assert_eq!(got, [1, 2, 3]);
            sender.join().unwrap();
        });
    }

    #[test]
    fn loom_every_entry_arrives_whole_and_in_order_and_no_slot_is_filled_while_read() {
        queue_of_two(|word| word, |word| word);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_relaxed_tail_lets_an_entry_be_read_before_it_is_there() {
        queue_of_two(|word| word, Relaxed);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_relaxed_head_lets_a_slot_be_filled_while_it_is_read() {
        queue_of_two(Relaxed, |word| word);
    }

    /// A flag word (V17): data, then the flag with `order`.
    fn flag_after_data(order: Ordering) {
        loom::model(move || {
            let queue = shared();
            let theirs = queue.clone();
            let sender = thread::spawn(move || {
                // SAFETY: nobody reads before the flag; loom checks it.
                theirs.slots[0].with_mut(|cell| unsafe { *cell = 7 });
                theirs.tail.store(1, order);
            });
            if queue.tail.load(Ordering::Acquire) == 1 {
                // SAFETY: the flag says that the writer is done; loom checks it.
                assert_eq!(queue.slots[0].with(|cell| unsafe { *cell }), 7);
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn loom_data_is_there_when_the_flag_is() {
        flag_after_data(Ordering::Release);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_relaxed_flag_may_come_before_its_data() {
        flag_after_data(Ordering::Relaxed);
    }
}
