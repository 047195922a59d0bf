//! The arm-and-sleep handshake: no wake-up is lost, none is sent to a receiver that is awake.
//!
//! ```text
//!   receiver                              sender
//!   (1) armed := generation               (1) publish (flag, queue tail ...), release
//!   (2) fence                             (2) fence
//!   (3) look again; if there is           (3) read armed; if it is a generation not
//!       something: disarm, do not sleep       rung before: ring the doorbell
//!   (4) sleep until rung; disarm
//! ```
//!
//! The two fences are sequentially consistent, so at least one side sees the other's store: the
//! receiver finds the news at (3), or the sender finds the generation at (3). Without either
//! fence both may miss (store buffering), and the receiver sleeps for ever; the loom model in
//! `loom_tests` shows exactly that when a fence is taken out.
//!
//! The armed word has **one writer, the receiver**: a sender remembers in its own memory which
//! generation it has rung. So a sender needs no right to write the word, a hostile sender cannot
//! disarm the receiver for others, and each sender makes at most one system call per sleep (D6,
//! D7). This replaces the interrupt-enable bit in the incoming page table of the SHRIMP
//! network interface (ISCA'96, section 6, "Polling vs. Blocking").

use super::Word;
use crate::sync::{AtomicU32, Ordering, fence};

/// The receiver's side. One thread at a time arms it (callers hold a lock, or are one thread).
#[derive(Debug)]
pub struct Sleeper<W> {
    /// 0 while awake, else the generation of the sleep in progress. Written here only.
    armed: W,
    /// Last generation used. Private to the receiver.
    generation: AtomicU32,
}

impl<W: Word<Value = u32>> Sleeper<W> {
    /// A receiver that is awake.
    pub fn new(armed: W) -> Sleeper<W> {
        armed.store(0, Ordering::Relaxed);
        Sleeper { armed, generation: AtomicU32::new(0) }
    }

    /// Steps 1 and 2. After this the caller **must** look for news again before it sleeps.
    #[inline]
    pub fn arm(&self) {
        let last = self.generation.load(Ordering::Relaxed);
        let next = match last.wrapping_add(1) {
            0 => 1,
            next => next,
        };
        self.generation.store(next, Ordering::Relaxed);
        self.armed.store(next, Ordering::Relaxed);
        // PAIRS(arm): with the fence in Ringer::must_ring.
        fence(Ordering::SeqCst);
    }

    /// Awake again: senders stop ringing.
    #[inline]
    pub fn disarm(&self) {
        self.armed.store(0, Ordering::Relaxed);
    }

    /// Whether the receiver has armed and not disarmed since.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }
}

/// A sender's side, for one receiver. Any number of threads may share it.
#[derive(Debug)]
pub struct Ringer<W> {
    /// The receiver's word; only read here.
    armed: W,
    /// Generation this sender rang last. Private to the sender.
    rung: AtomicU32,
}

impl<W: Word<Value = u32>> Ringer<W> {
    /// A sender that has rung nothing yet.
    pub fn new(armed: W) -> Ringer<W> {
        Ringer { armed, rung: AtomicU32::new(0) }
    }

    /// Steps 2 and 3, to be called after the news was published. True when the caller must ring
    /// the receiver's doorbell now; true at most once per sleep of the receiver.
    #[inline]
    #[must_use]
    pub fn must_ring(&self) -> bool {
        // PAIRS(arm): with the fence in Sleeper::arm.
        fence(Ordering::SeqCst);
        let generation = self.armed.load(Ordering::Relaxed);
        generation != 0
            && self.rung.load(Ordering::Relaxed) != generation
            && self.rung.swap(generation, Ordering::Relaxed) != generation
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sender_rings_once_per_sleep_and_never_while_awake() {
        let armed = AtomicU32::new(9);
        let sleeper = Sleeper::new(&armed);
        let ringer = Ringer::new(&armed);
        assert!(!ringer.must_ring());
        for _ in 0..3 {
            sleeper.arm();
            assert!(ringer.must_ring());
            assert!(!ringer.must_ring());
            sleeper.disarm();
            assert!(!ringer.must_ring());
        }
    }

    #[test]
    fn each_sender_rings_for_itself() {
        let armed = AtomicU32::new(0);
        let sleeper = Sleeper::new(&armed);
        let (one, other) = (Ringer::new(&armed), Ringer::new(&armed));
        sleeper.arm();
        assert!(one.must_ring());
        assert!(other.must_ring());
    }

    #[test]
    fn the_generation_skips_zero_when_it_wraps() {
        let armed = AtomicU32::new(0);
        let sleeper = Sleeper::new(&armed);
        sleeper.generation.store(u32::MAX, Ordering::Relaxed);
        sleeper.arm();
        assert_eq!(armed.load(Ordering::Relaxed), 1);
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32};
    use loom::thread;

    /// The receiver sleeps only if told so by the handshake; the doorbell is a flag that, once
    /// set, wakes it. Nobody may end up asleep with news published and no bell rung.
    fn no_lost_wake_up(must_ring: impl Fn(&Ringer<&AtomicU32>) -> bool + Send + Sync + 'static) {
        let must_ring = std::sync::Arc::new(must_ring);
        loom::model(move || {
            let armed = Arc::new(AtomicU32::new(0));
            let news = Arc::new(AtomicU32::new(0));
            let bell = Arc::new(AtomicBool::new(false));
            let sender = {
                let (armed, news, bell) = (armed.clone(), news.clone(), bell.clone());
                let must_ring = must_ring.clone();
                thread::spawn(move || {
                    let ringer = Ringer::new(&*armed);
                    news.store(1, Ordering::Release);
                    if must_ring(&ringer) {
                        bell.store(true, Ordering::Relaxed);
                    }
                })
            };
            let sleeper = Sleeper { armed: &*armed, generation: AtomicU32::new(0) };
            sleeper.arm();
            let slept = news.load(Ordering::Acquire) == 0;
            sender.join().unwrap();
            assert!(!slept || bell.load(Ordering::Relaxed), "asleep, and nobody rang");
        });
    }

    #[test]
    fn loom_no_wake_up_is_lost() {
        no_lost_wake_up(|ringer| ringer.must_ring());
    }

    #[test]
    #[should_panic(expected = "asleep, and nobody rang")]
    fn loom_without_the_senders_fence_a_wake_up_is_lost() {
        no_lost_wake_up(|ringer| ringer.armed.load(Ordering::Relaxed) != 0);
    }
}
