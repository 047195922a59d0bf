//! Whose turn it is on a pair of buffers: the message that is due, and whether it is being served.
//!
//! ```text
//!   who polls                              who replies, any thread
//!   (1) due is the flag's turn, acquire    (1) turn := the next
//!   (2) due := BUSY                        (2) due := the next, release
//!                                          (3) store the reply's flag
//! ```
//!
//! The old call's flag lies in the buffer until the client calls again. Its turn is never due again, or who polls would
//! take it for a call once more. Who finds the next call sees the turn that belongs to it, too, and whatever else was
//! done before the last reply; release and acquire see to that. Only one thread at a time polls.

use crate::layout::Turn;
use vmmc::sync::{AtomicU32, Ordering};

/// No turn is due: one is being served. Wider than a flag's turn.
const BUSY: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Duty {
    /// Turn of the call that is due, or is being served.
    turn: AtomicU32,
    /// The turn that is due, or [`BUSY`].
    due: AtomicU32,
}

impl Duty {
    /// The first call is due.
    pub(super) fn new() -> Duty {
        let first = Turn::NONE.next().number();
        Duty { turn: AtomicU32::new(first), due: AtomicU32::new(first) }
    }

    /// Whether a flag of that turn is a call to take.
    #[inline]
    pub(super) fn is_due(&self, turn: Turn) -> bool {
        // PAIRS(slot): with the release in `hand_back`.
        self.due.load(Ordering::Acquire) == turn.number()
    }

    /// Whether the call of that turn is the present one, or is to come.
    #[inline]
    pub(super) fn is_unanswered(&self, turn: Turn) -> bool {
        self.turn.load(Ordering::Relaxed) == turn.number()
    }

    /// The call that is due was taken.
    #[inline]
    pub(super) fn take(&self) {
        self.due.store(BUSY, Ordering::Relaxed);
    }

    /// The call of that turn is about to be answered, and the next one is due; false when it was
    /// answered already.
    #[inline]
    pub(super) fn hand_back(&self, turn: Turn) -> bool {
        if !self.is_unanswered(turn) {
            return false;
        }
        let next = turn.next().number();
        self.turn.store(next, Ordering::Relaxed);
        // PAIRS(slot): with the acquire in `is_due`.
        self.due.store(next, Ordering::Release);
        true
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    struct World {
        duty: Duty,
        /// Turn in the flag of the server's buffer, and of the client's.
        call: AtomicU32,
        reply: AtomicU32,
        /// The turn that the poller gave to the thread that replies.
        given: AtomicU32,
    }

    /// A client calls twice; who polls gives each call to another thread, which replies.
    #[test]
    fn loom_each_call_is_taken_once() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let first = Turn::NONE.next();
            let world = Arc::new(World {
                duty: Duty::new(),
                call: AtomicU32::new(first.number()),
                reply: AtomicU32::new(0),
                given: AtomicU32::new(0),
            });
            let other = world.clone();
            // Replies; and is the client, which calls again once it has the reply.
            let replier = thread::spawn(move || {
                let mut turn = first;
                for _ in 0..2 {
                    while other.given.load(Ordering::Acquire) != turn.number() {
                        thread::yield_now();
                    }
                    assert!(other.duty.hand_back(turn), "answered once");
                    other.reply.store(turn.number(), Ordering::Release);
                    turn = turn.next();
                    if turn == first.next() {
                        other.call.store(turn.number(), Ordering::Release);
                    }
                }
            });
            let mut taken = Vec::new();
            let last = first.next();
            while world.reply.load(Ordering::Acquire) != last.number() {
                let flag = Turn::from_number(world.call.load(Ordering::Acquire));
                if world.duty.is_due(flag) {
                    world.duty.take();
                    taken.push(flag.number());
                    world.given.store(flag.number(), Ordering::Release);
                } else {
                    // Not after taking one: what was seen before a yield, loom takes for outdated.
                    thread::yield_now();
                }
            }
            // The last call's flag is still there.
            assert!(!world.duty.is_due(last), "an old flag is due again");
            replier.join().unwrap();
            assert_eq!(taken, [first.number(), last.number()], "each call is taken once");
        });
    }

    /// A client that does not wait for replies: its next flag is there before the last call is answered. Who finds that
    /// one due answers it.
    fn a_hasty_client(hand_back: fn(&Duty, Turn) -> bool) {
        loom::model(move || {
            let first = Turn::NONE.next();
            let duty = Arc::new(Duty::new());
            duty.take();
            let other = duty.clone();
            let replier = thread::spawn(move || assert!(hand_back(&other, first), "answered once"));
            while !duty.is_due(first.next()) {
                thread::yield_now();
            }
            duty.take();
            assert!(
                duty.hand_back(first.next()),
                "the next turn is due, and is not the present one"
            );
            replier.join().unwrap();
        });
    }

    #[test]
    fn loom_who_finds_a_call_may_answer_it() {
        a_hasty_client(Duty::hand_back);
    }

    /// The next turn is due before the turn that belongs to it is seen: its reply is refused.
    #[test]
    #[should_panic]
    fn loom_a_relaxed_hand_back_is_caught() {
        a_hasty_client(|duty, turn| {
            let mine = duty.is_unanswered(turn);
            duty.turn.store(turn.next().number(), Ordering::Relaxed);
            duty.due.store(turn.next().number(), Ordering::Relaxed);
            mine
        });
    }
}
