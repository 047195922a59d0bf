//! The algorithms under the model checker: `RUSTFLAGS="--cfg vmmc_loom" cargo test -p vmmc-ring`.
//!
//! Each claim has a twin in which one ordering is taken away and which must fail: a model that
//! cannot fail proves nothing.

use crate::bell;
use crate::pump::{Claim, Words, request};
use crate::switch::{Standing, Switch, mode};
use crate::{Bytes, Consumer, Producer};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;
use std::collections::VecDeque;
use vmmc::sync::Ordering;
use vmmc::sys::membarrier::Barrier;

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

/// A receiver makes room and looks without a fence whether its sender waits; the sender arms, has a membarrier
/// pass through the receiver where the word was not armed, looks for room and sleeps. Its second sleep may find the word
/// armed by the first, and spares the membarrier. `pays`: whether it has one made at all.
fn room_is_rung_for(pays: bool) {
    let points = || 0..5;
    for (first, second) in points().flat_map(|first| points().map(move |second| (first, second))) {
        loom::model(move || {
            let head = Arc::new(AtomicU32::new(0));
            let armed = Arc::new(AtomicU32::new(0));
            let bells = Arc::new(AtomicU32::new(0));
            let barriers = Arc::new([first, second].map(Barrier::new));
            let receiver = {
                let (head, armed, bells) = (head.clone(), armed.clone(), bells.clone());
                let barriers = barriers.clone();
                thread::spawn(move || {
                    let passes = |at| barriers.iter().for_each(|it| it.passes(at));
                    passes(0);
                    for room in 1..3 {
                        head.store(room, Ordering::Release);
                        passes(2 * room - 1);
                        if bell::take(&*armed) {
                            bells.fetch_add(1, Ordering::SeqCst);
                        }
                        passes(2 * room);
                    }
                })
            };
            let mut unmade = barriers.iter();
            let mut sleeps = false;
            for wanted in 1..3 {
                if bell::arm_anew(&*armed) && pays && !unmade.next().is_some_and(Barrier::heavy) {
                    // Elsewhere: another model's.
                    sleeps = false;
                    break;
                }
                sleeps = head.load(Ordering::Acquire) < wanted;
                if sleeps {
                    break;
                }
            }
            receiver.join().unwrap();
            assert!(!sleeps || bells.load(Ordering::SeqCst) != 0, "asleep, and nobody rang");
        });
    }
}

#[test]
fn loom_room_is_rung_for() {
    room_is_rung_for(true);
}

#[test]
#[should_panic(expected = "asleep, and nobody rang")]
fn loom_room_without_the_barrier_is_missed() {
    room_is_rung_for(false);
}

/// A waker that publishes so many times, and rings where the word was armed.
fn publishes_and_rings(shared: &Shared, times: u64, rings: impl Fn()) {
    for at in 1..=times {
        shared.tail.store(at, Ordering::Release);
        bell::published();
        if bell::take(&&shared.armed) {
            rings();
        }
    }
}

/// Of two who receive from one ring one sleeps, and the other takes two things, and throws bells away where it finds
/// nothing and `may` says so. A waker publishes three. Nobody may be asleep at the end with something published and no
/// bell left to hear.
fn others_sleep(may: fn(&Shared, u64) -> bool, afterwards: fn(&Shared)) {
    loom::model(move || {
        let shared = Shared::new();
        // How many bells there were, and how many lie there to be heard.
        let [rung, heard] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        bell::arm(&&shared.armed);
        let waker = {
            let (shared, rung, heard) = (shared.clone(), rung.clone(), heard.clone());
            thread::spawn(move || {
                publishes_and_rings(&shared, 3, || {
                    rung.fetch_add(1, Ordering::SeqCst);
                    heard.fetch_add(1, Ordering::SeqCst);
                });
            })
        };
        let (mut taken, mut thrown) = (0, 0);
        for _ in 0..3 {
            let more = shared.tail.load(Ordering::Acquire) > taken;
            let there = rung.load(Ordering::SeqCst) - thrown;
            if more {
                taken += 1;
            } else if there > 0 && may(&shared, taken) {
                let there = heard.load(Ordering::SeqCst).min(there);
                heard.fetch_sub(there, Ordering::SeqCst);
                thrown += there;
                afterwards(&shared);
            }
            if taken == 2 {
                break;
            }
        }
        waker.join().unwrap();
        assert!(heard.load(Ordering::SeqCst) > 0, "asleep, and nobody rang");
    });
}

#[test]
fn loom_bells_of_who_sleeps_are_thrown_away_for_new_ones() {
    let may = |it: &Shared, taken| {
        let more = || it.tail.load(Ordering::Acquire) > taken;
        bell::may_be_thrown_away(&&it.armed, &&it.private[0], more)
    };
    others_sleep(may, |_| ());
}

#[test]
#[should_panic(expected = "asleep, and nobody rang")]
fn loom_who_is_armed_for_after_its_bells_were_thrown_away_is_not_woken() {
    others_sleep(|it, taken| it.tail.load(Ordering::Acquire) == taken, |it| bell::arm(&&it.armed));
}

#[test]
#[should_panic(expected = "asleep, and nobody rang")]
fn loom_who_arms_for_others_and_does_not_look_again_takes_their_bell() {
    let may = |it: &Shared, _| bell::may_be_thrown_away(&&it.armed, &&it.private[0], || false);
    others_sleep(may, |_| ());
}

/// A sleeper that is woken, serves and sleeps again, and a waker that publishes twice. `for_nothing` is what it
/// does when it was rung and finds nothing new. Nobody may be asleep at the end with something published
/// and no bell left to hear.
fn sleeps_again(for_nothing: fn(&AtomicU32)) {
    loom::model(move || {
        let shared = Shared::new();
        let bells = Arc::new(AtomicU32::new(0));
        bell::arm(&&shared.armed);
        let waker = {
            let (shared, bells) = (shared.clone(), bells.clone());
            thread::spawn(move || {
                publishes_and_rings(&shared, 2, || _ = bells.fetch_add(1, Ordering::SeqCst));
            })
        };
        let (mut served, mut heard) = (0, 0);
        let asleep = (0..4).any(|_| {
            let there = shared.tail.load(Ordering::Acquire);
            if there > served {
                served = there;
                bell::arm(&&shared.armed);
                return false;
            }
            let rung = bells.load(Ordering::SeqCst);
            if rung > heard {
                heard = rung;
                if shared.tail.load(Ordering::Acquire) == served {
                    for_nothing(&shared.armed);
                }
                return false;
            }
            true
        });
        waker.join().unwrap();
        let rung = bells.load(Ordering::SeqCst);
        assert!(!asleep || served == 2 || rung > heard, "asleep, and nobody rang");
    });
}

/// A bell may be for what was served already, and have taken the word that was armed since.
#[test]
fn loom_who_is_rung_for_nothing_arms_again() {
    sleeps_again(|armed| bell::arm(&armed));
}

#[test]
#[should_panic(expected = "asleep, and nobody rang")]
fn loom_rung_for_nothing_and_not_armed_again_a_wake_up_is_lost() {
    sleeps_again(|_| {});
}

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

/// The words of a switch on the heap, in this mode, and a kernel connection.
struct Part {
    mode: AtomicU32,
    words: [AtomicU64; 3],
    request: AtomicU32,
    kernel: loom::sync::Mutex<VecDeque<u8>>,
}

impl Part {
    fn new(mode: u32, kernel: &[u8]) -> Arc<Part> {
        Arc::new(Part {
            mode: AtomicU32::new(mode),
            words: [(); 3].map(|()| AtomicU64::new(0)),
            request: AtomicU32::new(0),
            kernel: loom::sync::Mutex::new(kernel.iter().copied().collect()),
        })
    }

    fn switch(&self) -> Switch<&AtomicU32, &AtomicU64> {
        let [prefix, end, bells] = &self.words;
        Switch { mode: &self.mode, prefix, end, bells }
    }
}

/// One byte is in the ring, of a part that the receiver has not seen. The sender takes the part back, and sends the byte by
/// the kernel, while the receiver looks. It must get the byte once.
fn seen_or_taken_back(take_back: fn(&Switch<&AtomicU32, &AtomicU64>) -> bool) {
    loom::model(move || {
        let part = Part::new(mode::RING, &[]);
        let sender = {
            let part = part.clone();
            thread::spawn(move || {
                if take_back(&part.switch()) {
                    part.kernel.lock().unwrap().push_back(DATA);
                }
            })
        };
        let from_ring = usize::from(part.switch().see());
        sender.join().unwrap();
        let by_kernel = match part.switch().standing() {
            Standing::Ended { end: 0, .. } => part.kernel.lock().unwrap().len(),
            _ => 0,
        };
        assert_eq!(from_ring + by_kernel, 1, "once");
    });
}

#[test]
fn loom_a_part_is_seen_or_taken_back() {
    seen_or_taken_back(|switch| switch.take_back(0, 0, false));
}

#[test]
#[should_panic(expected = "once")]
fn loom_a_part_that_is_taken_back_without_an_exchange_comes_twice() {
    seen_or_taken_back(|switch| {
        let unseen = !switch.is_seen();
        if unseen {
            switch.rest(0, 0);
        }
        unseen
    });
}

/// A receiver asks for the kernel and leaves once no part has begun, while the sender begins one.
fn begins_behind_a_request(
    announce: fn(&Switch<&AtomicU32, &AtomicU64>, &AtomicU32) -> bool,
    is_announced: fn(&Switch<&AtomicU32, &AtomicU64>) -> bool,
) {
    loom::model(move || {
        let part = Part::new(mode::TCP, &[]);
        let sender = {
            let part = part.clone();
            thread::spawn(move || {
                if announce(&part.switch(), &part.request) {
                    part.switch().to_ring(0);
                }
            })
        };
        part.request.store(request::TCP, Ordering::Relaxed);
        while is_announced(&part.switch()) {
            thread::yield_now();
        }
        let leaves = part.switch().standing() == Standing::Tcp;
        sender.join().unwrap();
        assert!(
            !leaves || part.switch().standing() == Standing::Tcp,
            "it began behind the request"
        );
    });
}

fn announces(switch: &Switch<&AtomicU32, &AtomicU64>, request: &AtomicU32) -> bool {
    switch.announce(|| request.load(Ordering::Relaxed) == 0)
}

#[test]
fn loom_no_part_begins_behind_a_request() {
    begins_behind_a_request(announces, |switch| switch.is_announced());
}

#[test]
#[should_panic(expected = "it began behind the request")]
fn loom_without_the_receivers_fence_a_part_begins_behind_a_request() {
    begins_behind_a_request(announces, |switch| {
        switch.mode.load(Ordering::Relaxed) == mode::ANNOUNCED
    });
}

#[test]
#[should_panic(expected = "it began behind the request")]
fn loom_a_sender_that_looks_before_it_announces_begins_behind_a_request() {
    let looks = |switch: &Switch<&AtomicU32, &AtomicU64>, request: &AtomicU32| {
        request.load(Ordering::Relaxed) == 0 && switch.announce(|| true)
    };
    begins_behind_a_request(looks, |switch| switch.is_announced());
}

/// A part has ended and its receiver comes back to TCP, armed as it always may be then. The sender begins the next one, and
/// rings. What the receiver takes from the kernel for the program must be data.
fn next_part(take: fn(&mut VecDeque<u8>, usize) -> Vec<u8>) {
    loom::model(move || {
        let part = Part::new(mode::RESTING, &[DATA]);
        let sender = {
            let part = part.clone();
            thread::spawn(move || {
                if part.switch().announce(|| true) {
                    part.switch().to_ring(1);
                    part.kernel.lock().unwrap().push_back(BELL);
                }
            })
        };
        assert!(part.switch().come_back());
        let there = part.kernel.lock().unwrap().len();
        if part.switch().standing() == Standing::Tcp {
            let taken = take(&mut part.kernel.lock().unwrap(), there);
            assert!(taken.iter().all(|&byte| byte == DATA), "a bell taken for data");
        }
        sender.join().unwrap();
    });
}

#[test]
fn loom_no_bell_of_the_next_part_is_data() {
    next_part(|kernel, there| kernel.drain(..there).collect());
}

#[test]
#[should_panic(expected = "a bell taken for data")]
fn loom_who_takes_what_has_come_since_takes_a_bell_of_the_next_part() {
    next_part(|kernel, _| kernel.drain(..).collect());
}

/// The words of one direction, all on the heap.
struct Pumped {
    request: AtomicU32,
    mode: AtomicU32,
    words: [AtomicU64; 9],
}

impl Pumped {
    /// In the ring after no byte of TCP; the receiver has stopped.
    fn new() -> Arc<Pumped> {
        let pumped = Pumped {
            request: AtomicU32::new(request::BACK),
            mode: AtomicU32::new(0),
            words: [(); 9].map(|()| AtomicU64::new(0)),
        };
        pumped.words().switch.to_ring(0);
        Arc::new(pumped)
    }

    fn words(&self) -> Words<&AtomicU32, &AtomicU64> {
        let [prefix, end, final_bells, tail, head, bells, owed, pumped, pumper] = &self.words;
        let switch = Switch { mode: &self.mode, prefix, end, bells: final_bells };
        Words { request: &self.request, switch, tail, head, bells, owed, pumped, pumper }
    }
}

type Seen<'s> = Words<&'s AtomicU32, &'s AtomicU64>;

/// A sender publishes one byte and looks whether it is wanted back; how many it sends itself.
fn publishes(words: &Seen<'_>, published: fn()) -> u64 {
    words.tail.store(1, Ordering::Release);
    published();
    if words.request.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    match words.sender_claims() {
        Claim::AtHead => 1,
        Claim::Pumped { to } => 1 - to,
        Claim::AtTail | Claim::Busy => 0,
    }
}

/// The pump has claimed; how many bytes it sends.
fn pumps(words: &Seen<'_>, finish: fn(&Seen<'_>, u64) -> Option<u64>) -> u64 {
    let (from, mut to) = words.begin(2).unwrap();
    let mut pumped = to - from;
    while let Some(more) = finish(words, to) {
        pumped += more - to;
        to = more;
    }
    pumped
}

/// A sender publishes one byte and looks whether it is wanted back; the pump works. The byte must
/// be sent by exactly one of them.
fn nothing_lost_or_doubled(published: fn(), finish: fn(&Seen<'_>, u64) -> Option<u64>) {
    loom::model(move || {
        let shared = Pumped::new();
        let other = shared.clone();
        let sender = thread::spawn(move || publishes(&other.words(), published));
        let words = shared.words();
        let pumped = if words.claim(7) { pumps(&words, finish) } else { 0 };
        assert_eq!(sender.join().unwrap() + pumped, 1, "sent once");
    });
}

/// A sender switches to its ring and publishes one byte, while somebody who stands in for its receiver, and for the pump,
/// wants it to stay with the kernel. The byte must be sent by exactly one of them.
fn a_recall_is_heard(recall: fn(&Seen<'_>)) {
    loom::model(move || {
        let shared = Pumped::new();
        shared.request.store(0, Ordering::Relaxed);
        shared.mode.store(mode::TCP, Ordering::Relaxed);
        let other = shared.clone();
        let sender = thread::spawn(move || {
            let words = other.words();
            words.switch.to_ring(0);
            publishes(&words, bell::published)
        });
        let words = shared.words();
        recall(&words);
        let in_ring = words.switch.standing() != Standing::Tcp;
        let pumped =
            if in_ring && words.claim(7) { pumps(&words, |words, to| words.finish(to)) } else { 0 };
        assert_eq!(sender.join().unwrap() + pumped, 1, "sent once");
    });
}

#[test]
fn loom_a_recall_meets_a_switch() {
    a_recall_is_heard(|words| words.recall());
}

#[test]
#[should_panic(expected = "sent once")]
fn loom_a_recall_without_its_fence_misses_a_switch() {
    a_recall_is_heard(|words| {
        let back = request::BACK;
        let _ = words.request.compare_exchange(0, back, Ordering::SeqCst, Ordering::SeqCst);
    });
}

#[test]
fn loom_the_pump_loses_and_doubles_nothing() {
    nothing_lost_or_doubled(bell::published, |words, to| words.finish(to));
}

#[test]
#[should_panic(expected = "sent once")]
fn loom_a_pump_that_does_not_look_again_loses_bytes() {
    nothing_lost_or_doubled(bell::published, |words, to| {
        let _ = words.finish(to);
        None
    });
}

#[test]
#[should_panic(expected = "sent once")]
fn loom_without_the_senders_fence_bytes_are_lost() {
    nothing_lost_or_doubled(|| (), |words, to| words.finish(to));
}

/// A sender with one unread byte ends its ring part for reasons of its own, while the receiver stops and asks the pump. The
/// byte must be sent again by exactly one of them.
fn sent_again_once(claim: fn(&Seen<'_>) -> Claim) {
    loom::model(move || {
        let shared = Pumped::new();
        shared.request.store(0, Ordering::Relaxed);
        shared.words().tail.store(1, Ordering::Relaxed);
        let other = shared.clone();
        let sender = thread::spawn(move || {
            let words = other.words();
            match claim(&words) {
                Claim::AtTail | Claim::AtHead => {
                    words.switch.to_tcp(0, 0);
                    1
                }
                Claim::Pumped { to } => 1 - to,
                Claim::Busy => 0,
            }
        });
        let words = shared.words();
        let (asks, back) = (0, request::BACK);
        let _ = words.request.compare_exchange(asks, back, Ordering::SeqCst, Ordering::SeqCst);
        let pumped = if words.claim(7) && words.settled(0).is_some() {
            pumps(&words, |words, to| words.finish(to))
        } else {
            0
        };
        assert_eq!(sender.join().unwrap() + pumped, 1, "sent once");
    });
}

#[test]
fn loom_a_sender_that_ends_and_the_pump_send_once() {
    sent_again_once(|words| words.sender_ends());
}

#[test]
#[should_panic(expected = "sent once")]
fn loom_a_sender_that_ends_without_the_word_sends_twice() {
    sent_again_once(|words| words.sender_claims());
}

/// One thread rings while the pump works: no bell may come behind data.
fn no_bell_behind_data(ring: fn(&Words<&AtomicU32, &AtomicU64>) -> bool) {
    loom::model(move || {
        let shared = Pumped::new();
        let kernel = Arc::new(loom::sync::Mutex::new(Vec::new()));
        let ringer = {
            let (shared, kernel) = (shared.clone(), kernel.clone());
            thread::spawn(move || {
                if ring(&shared.words()) {
                    kernel.lock().unwrap().push(BELL);
                }
            })
        };
        let words = shared.words();
        assert!(words.claim(7));
        let given = kernel.lock().unwrap().len() as u64;
        // Else the pump looks again later, or gives up.
        if words.settled(given).is_some() {
            words.begin(2).unwrap();
            kernel.lock().unwrap().push(DATA);
        }
        ringer.join().unwrap();
        assert_ne!(*kernel.lock().unwrap(), [DATA, BELL], "a bell behind data");
    });
}

#[test]
fn loom_no_bell_follows_pumped_data() {
    no_bell_behind_data(|words| {
        words.bells.fetch_add(1, Ordering::SeqCst);
        words.may_ring()
    });
}

#[test]
#[should_panic(expected = "a bell behind data")]
fn loom_a_bell_counted_after_the_look_follows_data() {
    no_bell_behind_data(|words| {
        let may = words.may_ring();
        words.bells.fetch_add(1, Ordering::SeqCst);
        may
    });
}

/// A sender of two connections, and a thread that sleeps for both, twice: under these numbers. Once
/// the sleeper is in its second sleep the bells of the first are gone; what it has not seen must
/// have rung.
fn one_bell_per_sleep(numbers: [u64; 2]) {
    loom::model(move || {
        struct Line {
            published: AtomicU32,
            armed: AtomicU32,
            sleep: AtomicU64,
        }
        let line = || Line {
            published: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            sleep: AtomicU64::new(0),
        };
        let shared = Arc::new(([line(), line()], AtomicU32::new(0)));
        let other = shared.clone();
        let sender = thread::spawn(move || {
            let (lines, bells) = &*other;
            let mut rung = 0;
            for line in lines {
                line.published.store(1, Ordering::Release);
                bell::published();
                if let Some(sleep) = bell::take_for(&line.armed, &line.sleep)
                    && sleep != rung
                {
                    bells.fetch_add(1, Ordering::SeqCst);
                    rung = sleep;
                }
            }
        });
        let (lines, bells) = &*shared;
        let seen = |line: &Line| line.published.load(Ordering::Acquire) != 0;
        let mut known = [false; 2];
        for (turn, number) in numbers.into_iter().enumerate() {
            for line in lines {
                bell::arm_for(&line.armed, &line.sleep, number);
            }
            let before = known;
            known = [seen(&lines[0]), seen(&lines[1])];
            if turn == 0 && bells.swap(0, Ordering::SeqCst) == 0 && known == before {
                // It sleeps on.
                break;
            }
        }
        sender.join().unwrap();
        assert!(known == [true; 2] || bells.load(Ordering::SeqCst) != 0, "sleeps for ever");
    });
}

/// However a sender that rings once per sleep and a sleeper fall together, nothing is missed.
#[test]
fn loom_one_bell_wakes_for_all() {
    one_bell_per_sleep([1, 2]);
}

/// With the same number for both sleeps a bell of the first keeps the second from being rung.
#[test]
#[should_panic(expected = "sleeps for ever")]
fn loom_a_number_is_for_one_sleep() {
    one_bell_per_sleep([1, 1]);
}
