//! Whose turn it is on a pair of buffers: the message that is due, and whether it is being served.
//!
//! ```text
//!   who polls                              who replies, any thread
//!   (1) busy is false, acquire             (1) turn := the next
//!   (2) turn is that of the flag           (2) busy := false, release
//!   (3) busy := true                       (3) store the reply's flag
//! ```
//!
//! The old call's flag lies in the buffer until the client calls again. Who polls and finds nobody busy sees
//! therefore the next turn, too, or it would take the old flag for a call once more; release and acquire see to
//! that. Only one thread at a time polls.

use crate::layout::Turn;
use vmmc::sync::{AtomicBool, AtomicU32, Ordering};

/// See the module.
#[derive(Debug)]
pub(super) struct Duty {
    /// Turn of the call that is due, or is being served.
    turn: AtomicU32,
    busy: AtomicBool,
}

impl Duty {
    /// The first call is due.
    pub(super) fn new() -> Duty {
        let first = Turn::NONE.next().number();
        Duty { turn: AtomicU32::new(first), busy: AtomicBool::new(false) }
    }

    /// Whether a flag of that turn is a call to take.
    #[inline]
    pub(super) fn is_due(&self, turn: Turn) -> bool {
        // PAIRS(slot): with the release in `hand_back`: the turn is that of the idle slot.
        !self.busy.load(Ordering::Acquire) && self.is_unanswered(turn)
    }

    /// Whether the call of that turn is the present one, or is to come.
    #[inline]
    pub(super) fn is_unanswered(&self, turn: Turn) -> bool {
        self.turn.load(Ordering::Relaxed) == turn.number()
    }

    /// The call that is due was taken.
    #[inline]
    pub(super) fn take(&self) {
        self.busy.store(true, Ordering::Relaxed);
    }

    /// The call of that turn is about to be answered, and the next one is due; false when it was
    /// answered already.
    #[inline]
    pub(super) fn hand_back(&self, turn: Turn) -> bool {
        if !self.is_unanswered(turn) {
            return false;
        }
        self.turn.store(turn.next().number(), Ordering::Relaxed);
        // PAIRS(slot): with the acquire in `is_due`.
        self.busy.store(false, Ordering::Release);
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
    fn two_calls(hand_back: fn(&Duty, Turn) -> bool) {
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
                    assert!(hand_back(&other.duty, turn), "answered once");
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

    #[test]
    fn loom_each_call_is_taken_once() {
        two_calls(Duty::hand_back);
    }

    /// Idle before the next turn is due: the old flag is a call once more.
    #[test]
    #[should_panic]
    fn loom_a_relaxed_hand_back_is_caught() {
        two_calls(|duty, turn| {
            let mine = duty.is_unanswered(turn);
            duty.turn.store(turn.next().number(), Ordering::Relaxed);
            duty.busy.store(false, Ordering::Relaxed);
            mine
        });
    }
}
