//! The ring against a plain queue, and against a peer that lies.

use super::*;
use crate::ViewBytes;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::ptr::NonNull;
use vmmc::mem::View;
use vmmc::sync::AtomicU64;

struct Words {
    tail: AtomicU64,
    head: AtomicU64,
    private: [AtomicU64; 4],
    memory: Vec<u64>,
}

impl Words {
    fn starting_at(position: u64, capacity: usize) -> Words {
        let word = || AtomicU64::new(position);
        Words {
            tail: word(),
            head: word(),
            private: [word(), word(), word(), word()],
            memory: vec![0; capacity.div_ceil(8)],
        }
    }

    fn bytes(&self, capacity: usize) -> ViewBytes<'_> {
        let start = NonNull::new(self.memory.as_ptr().cast_mut().cast()).unwrap();
        // SAFETY: the vector outlives the borrow and has `capacity` bytes; nobody takes a
        // reference to its elements meanwhile.
        ViewBytes(unsafe { View::from_raw(start, capacity) })
    }

    fn producer(&self, capacity: usize) -> Producer<&AtomicU64, &AtomicU64, ViewBytes<'_>> {
        let [own, seen, _, _] = &self.private;
        Producer { tail: &self.tail, head: &self.head, own, seen, bytes: self.bytes(capacity) }
    }

    fn consumer(&self, capacity: usize) -> Consumer<&AtomicU64, &AtomicU64, ViewBytes<'_>> {
        let [_, _, own, seen] = &self.private;
        Consumer { tail: &self.tail, head: &self.head, own, seen, bytes: self.bytes(capacity) }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize, bool),
    Pop(usize, bool),
    Peek(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..40, any::<bool>()).prop_map(|(len, publish)| Step::Push(len, publish)),
        (0usize..40, any::<bool>()).prop_map(|(len, publish)| Step::Pop(len, publish)),
        (0usize..40).prop_map(Step::Peek),
    ]
}

/// Put there in parts, over the end of the memory, and again by another before the first has counted them.
#[test]
fn what_is_put_is_not_there_before_it_is_counted() {
    let capacity = 16;
    let words = Words::starting_at(u64::MAX - 3, capacity);
    let (producer, consumer) = (words.producer(capacity), words.consumer(capacity));
    for text in [b"0123456789", b"abcdefghij"] {
        let (first, second) = text.split_at(6);
        // SAFETY: as many bytes as the part has.
        let put = unsafe { producer.put(0, first.as_ptr(), first.len()) }.unwrap();
        assert_eq!(put, 6);
        // SAFETY: as above.
        let put = unsafe { producer.put(6, second.as_ptr(), second.len()) }.unwrap();
        assert_eq!(put, 4);
        producer.publish();
        assert_eq!(consumer.available(), Ok(0));
    }
    // SAFETY: one byte.
    assert_eq!(unsafe { producer.put(16, b"x".as_ptr(), 1) }, Ok(0));
    producer.filled(10);
    producer.publish();
    let mut got = [0; 10];
    // SAFETY: as many bytes as there are.
    unsafe { consumer.copy_from(u64::MAX - 3, got.as_mut_ptr(), got.len()) };
    assert_eq!(&got, b"abcdefghij");
    assert_eq!(consumer.available(), Ok(10));
}

proptest! {
    /// Every order of pushes, pops, peeks and publications gives the bytes of a plain queue, in
    /// order, also where the free-running positions wrap.
    #[test]
    fn it_is_a_queue(steps in proptest::collection::vec(step(), 0..200), near_wrap in any::<bool>()) {
        let capacity = 16;
        let start = if near_wrap { u64::MAX - 40 } else { 0 };
        let words = Words::starting_at(start, capacity);
        let (producer, consumer) = (words.producer(capacity), words.consumer(capacity));
        let mut next = 0u8;
        // Published, pushed but not published, and popped but room not given back.
        let (mut seen, mut hidden, mut held) = (VecDeque::new(), VecDeque::new(), 0usize);
        for step in steps {
            match step {
                Step::Push(len, publish) => {
                    let source: Vec<u8> = (0..len).map(|i| next.wrapping_add(i as u8)).collect();
                    // SAFETY: `source` has `len` bytes.
                    let pushed = unsafe { producer.push(source.as_ptr(), len) }.unwrap();
                    prop_assert_eq!(pushed, len.min(capacity - seen.len() - hidden.len() - held));
                    hidden.extend(source.iter().take(pushed));
                    next = next.wrapping_add(pushed as u8);
                    if publish {
                        producer.publish();
                        seen.append(&mut hidden);
                    }
                }
                Step::Pop(len, publish) => {
                    let mut target = vec![0; len];
                    // SAFETY: `target` has `len` bytes.
                    let popped = unsafe { consumer.pop(target.as_mut_ptr(), len) }.unwrap();
                    prop_assert_eq!(popped, len.min(seen.len()));
                    let expected: Vec<u8> = seen.drain(..popped).collect();
                    prop_assert_eq!(&target[..popped], &expected[..]);
                    held += popped;
                    if publish {
                        consumer.publish();
                        held = 0;
                    }
                }
                Step::Peek(len) => {
                    let mut target = vec![0; len];
                    // SAFETY: `target` has `len` bytes.
                    let peeked = unsafe { consumer.peek(0, target.as_mut_ptr(), len) }.unwrap();
                    prop_assert_eq!(peeked, len.min(seen.len()));
                    prop_assert!(target[..peeked].iter().eq(seen.iter().take(peeked)));
                }
            }
        }
    }

    /// Whatever a hostile peer writes into its position (and over ours), the answer is an error
    /// or a length within the ring; nothing out of bounds, no panic, no loop (G3).
    #[test]
    fn a_lying_position_is_an_error_or_harmless(lies in proptest::collection::vec(any::<u64>(), 1..20)) {
        let capacity = 16;
        let words = Words::starting_at(0, capacity);
        let (producer, consumer) = (words.producer(capacity), words.consumer(capacity));
        let mut buffer = [7u8; 64];
        for lie in lies {
            words.tail.store(lie, Ordering::Relaxed);
            words.head.store(lie.rotate_left(7), Ordering::Relaxed);
            // SAFETY: the buffer has 64 bytes.
            if let Ok(len) = unsafe { producer.push(buffer.as_ptr(), buffer.len()) } {
                prop_assert!(len <= capacity);
            }
            // SAFETY: the buffer has 64 bytes.
            if let Ok(len) = unsafe { consumer.pop(buffer.as_mut_ptr(), buffer.len()) } {
                prop_assert!(len <= capacity);
            }
        }
    }
}

#[test]
fn a_tail_that_goes_backwards_is_refused() {
    let words = Words::starting_at(0, 16);
    let consumer = words.consumer(16);
    words.tail.store(10, Ordering::Relaxed);
    assert_eq!(consumer.available(), Ok(10));
    words.tail.store(9, Ordering::Relaxed);
    assert!(consumer.available().is_err());
    words.tail.store(17, Ordering::Relaxed);
    assert_eq!(consumer.available(), Err(Poisoned { claimed: 17, capacity: 16 }));
}

#[test]
fn a_head_ahead_of_the_tail_is_refused() {
    let words = Words::starting_at(5, 16);
    let producer = words.producer(16);
    assert_eq!(producer.room(), Ok(16));
    words.head.store(6, Ordering::Relaxed);
    assert!(producer.room().is_err());
    words.head.store(4, Ordering::Relaxed);
    assert!(producer.room().is_err());
}
