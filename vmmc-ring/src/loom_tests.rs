//! The algorithms under the model checker: `RUSTFLAGS="--cfg vmmc_loom" cargo test -p vmmc-ring`.
//!
//! Each claim has a twin in which one ordering is taken away and which must fail: a model that
//! cannot fail proves nothing.

use crate::bell;
use crate::switch::{Standing, Switch};
use crate::{Bytes, Consumer, Producer};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;
use std::collections::VecDeque;
use vmmc::sync::Ordering;

const CAPACITY: usize = 2;

/// Bytes that loom watches for unordered access.
struct Cells([UnsafeCell<u8>; CAPACITY]);

impl Bytes for &Cells {
    fn len(&self) -> usize {
        CAPACITY
    }
    unsafe fn copy_in(&self, at: usize, source: *const u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller's range; loom reports a race with the other side.
            self.0[at + i].with_mut(|to| unsafe { *to = *source.add(i) });
        }
    }
    unsafe fn copy_out(&self, at: usize, target: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: as above.
            self.0[at + i].with(|from| unsafe { *target.add(i) = *from });
        }
    }
}

struct Shared {
    tail: AtomicU64,
    head: AtomicU64,
    private: [AtomicU64; 4],
    cells: Cells,
    armed: AtomicU32,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let word = || AtomicU64::new(0);
        Arc::new(Shared {
            tail: word(),
            head: word(),
            private: [word(), word(), word(), word()],
            cells: Cells([UnsafeCell::new(0), UnsafeCell::new(0)]),
            armed: AtomicU32::new(0),
        })
    }

    fn producer(&self) -> Producer<&AtomicU64, &AtomicU64, &Cells> {
        let [own, seen, _, _] = &self.private;
        Producer { tail: &self.tail, head: &self.head, own, seen, bytes: &self.cells }
    }

    fn consumer(&self) -> Consumer<&AtomicU64, &AtomicU64, &Cells> {
        let [_, _, own, seen] = &self.private;
        Consumer { tail: &self.tail, head: &self.head, own, seen, bytes: &self.cells }
    }
}

fn in_order(publish: fn(&Shared)) {
    loom::model(move || {
        let shared = Shared::new();
        let other = shared.clone();
        let writer = thread::spawn(move || {
            let producer = other.producer();
            let mut next = 1u8;
            while next <= 3 {
                // SAFETY: one byte.
                if unsafe { producer.push(&raw const next, 1) }.unwrap() == 1 {
                    publish(&other);
                    next += 1;
                } else {
                    thread::yield_now();
                }
            }
        });
        let consumer = shared.consumer();
        for expected in 1..=3u8 {
            let mut byte = 0;
            // SAFETY: one byte.
            while unsafe { consumer.pop(&raw mut byte, 1) }.unwrap() == 0 {
                thread::yield_now();
            }
            consumer.publish();
            assert_eq!(byte, expected);
        }
        writer.join().unwrap();
    });
}

#[test]
fn loom_bytes_arrive_in_order_through_a_wrap() {
    in_order(|shared| shared.producer().publish());
}

#[test]
#[should_panic]
fn loom_a_relaxed_publication_is_caught() {
    in_order(|shared| {
        let tail = shared.private[0].load(Ordering::Relaxed);
        shared.tail.store(tail, Ordering::Relaxed);
    });
}

/// The consumer sleeps only by the handshake; nobody may end up asleep with a byte published and
/// no bell rung.
fn no_lost_wake_up(published: fn()) {
    loom::model(move || {
        let shared = Shared::new();
        let other = shared.clone();
        let writer = thread::spawn(move || {
            let producer = other.producer();
            // SAFETY: one byte.
            unsafe { producer.push(&raw const *&9u8, 1) }.unwrap();
            producer.publish();
            published();
            bell::take(&other.armed)
        });
        bell::arm(&shared.armed);
        let slept = !shared.consumer().looks_readable();
        let rung = writer.join().unwrap();
        assert!(!slept || rung, "asleep, and nobody rang");
    });
}

#[test]
fn loom_no_wake_up_is_lost() {
    no_lost_wake_up(bell::published);
}

#[test]
#[should_panic(expected = "asleep, and nobody rang")]
fn loom_without_the_wakers_fence_a_wake_up_is_lost() {
    no_lost_wake_up(|| ());
}

const DATA: u8 = 1;
const BELL: u8 = 0;

/// The kernel connection is a queue under a lock. The receiver is armed from the start; the
/// sender switches, publishes in the ring, and rings. The receiver reads once, as it would for
/// the program.
fn a_bell_is_never_data(look: fn(&AtomicU32, &Switch<&AtomicU32, &AtomicU64>) -> bool) {
    loom::model(move || {
        let armed = Arc::new(AtomicU32::new(1));
        let words = Arc::new((AtomicU32::new(0), [(); 3].map(|()| AtomicU64::new(0))));
        let tcp = Arc::new(loom::sync::Mutex::new(VecDeque::from([DATA])));
        let switch = |words: &Arc<(AtomicU32, [AtomicU64; 3])>| words.clone();
        let sender = {
            let (armed, words, tcp) = (armed.clone(), switch(&words), tcp.clone());
            thread::spawn(move || {
                let (mode, [prefix, end, bells]) = &*words;
                Switch { mode, prefix, end, bells }.to_ring(1);
                bell::published();
                if bell::take(&*armed) {
                    tcp.lock().unwrap().push_back(BELL);
                }
            })
        };
        let (mode, [prefix, end, bells]) = &*words;
        if look(&armed, &Switch { mode, prefix, end, bells }) {
            // Still TCP: everything in the queue goes into the program's buffer.
            assert!(tcp.lock().unwrap().iter().all(|&byte| byte == DATA), "a bell taken for data");
        }
        sender.join().unwrap();
    });
}

#[test]
fn loom_a_bell_is_never_data() {
    a_bell_is_never_data(|armed, switch| {
        bell::disarm(&armed);
        switch.standing() == Standing::Tcp
    });
}

#[test]
#[should_panic(expected = "a bell taken for data")]
fn loom_looking_before_disarming_takes_a_bell_for_data() {
    a_bell_is_never_data(|armed, switch| {
        let tcp = switch.standing() == Standing::Tcp;
        bell::disarm(&armed);
        tcp
    });
}
