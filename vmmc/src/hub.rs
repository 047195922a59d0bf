//! Where the threads of a process sleep: one leader at the doorbell, the others behind it.
//!
//! ```text
//!   let ticket = hub.prepare();        (1) the doorbell is armed from here on
//!   if there is news { return }        (2) look again; dropping the ticket calls it off
//!   ticket.sleep(deadline)             (3) until rung, or told by another thread
//! ```
//!
//! There is one doorbell per process and there may be many sleepers, so the first becomes the
//! **leader**: it arms the process's word ([`crate::word::arm`]) and polls the doorbell. The others are **followers**
//! on a condition variable. Every end of a leader's sleep, rung or not, advances the *epoch* and
//! wakes all followers, who look for their news and start over: one of them becomes the next
//! leader. So a follower need only compare epochs: news published after its look at (2) finds the
//! word armed (it was armed under the same lock before the follower's ticket was given), rings, and
//! thereby advances the epoch; news published before is found at (2).
//!
//! News from within the process (the daemon's events, unblocked notifications) comes by
//! [`Hub::wake_all`], which advances the epoch and rings the leader through its own doorbell.
//!
//! A program with an event loop of its own is a third kind of sleeper: it arms by
//! [`Hub::arm_outside`] and watches a descriptor that is readable when the doorbell is or when a leader
//! has emptied the doorbell in its place.

use crate::sync::{Condvar, Mutex, Ordering, fence};
use crate::word::Word;
use crate::word::arm::Sleeper;
use std::time::Instant;

/// What the leader sleeps on.
pub(crate) trait Bell {
    /// Why sleeping can fail.
    type Error;
    /// Sleeps until rung; false at the deadline or for no reason.
    fn wait(&self, deadline: Option<Instant>) -> Result<bool, Self::Error>;
    /// Forgets rings so far.
    fn drain(&self);
    /// Rings from inside the process.
    fn ring_self(&self);
    /// Makes the outside descriptor readable until [`Bell::clear_outside`].
    fn signal_outside(&self);
    /// Undoes [`Bell::signal_outside`].
    fn clear_outside(&self);
}

/// The sleepers of one process.
#[derive(Debug)]
pub(crate) struct Hub<W, B> {
    sleeper: Sleeper<W>,
    bell: B,
    state: Mutex<State>,
    advanced: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether some thread leads: between its `prepare` and the end of its sleep.
    leader: bool,
    /// Whether the leader was rung from inside the process. If it calls its sleep off, the ring would
    /// otherwise be there still, and wake the next leader for nothing.
    leader_told: bool,
    /// Whether an outside sleeper has armed and not heard of anything since.
    outside: bool,
    /// Whether the outside descriptor was made readable and not cleared since.
    signalled: bool,
    /// Sleeping followers.
    followers: u32,
    /// Counts everything that followers must look at again.
    epoch: u64,
}

/// The right to sleep once.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ticket<'h, W: Word<Value = u32>, B: Bell> {
    hub: &'h Hub<W, B>,
    epoch: u64,
    leads: bool,
}

impl<W: Word<Value = u32>, B: Bell> Hub<W, B> {
    pub(crate) fn new(armed: W, bell: B) -> Hub<W, B> {
        Hub {
            sleeper: Sleeper::new(armed),
            bell,
            state: Mutex::new(State::default()),
            advanced: Condvar::new(),
        }
    }

    pub(crate) fn bell(&self) -> &B {
        &self.bell
    }

    /// Step 1. The caller must look for its news between this and [`Ticket::sleep`].
    pub(crate) fn prepare(&self) -> Ticket<'_, W, B> {
        let mut state = self.state.lock();
        let leads = !state.leader;
        if leads {
            state.leader = true;
            self.sleeper.arm();
        } else {
            // The leader armed under this lock; its fence and this one order our look after it.
            fence(Ordering::SeqCst);
        }
        Ticket { hub: self, epoch: state.epoch, leads }
    }

    /// Makes every sleeper of this process look again.
    pub(crate) fn wake_all(&self) {
        let mut state = self.state.lock();
        state.epoch += 1;
        if state.leader {
            state.leader_told = true;
            self.bell.ring_self();
        }
        self.tell(&mut state);
    }

    /// Arms for a sleeper outside. It must look for news after this and before it sleeps.
    pub(crate) fn arm_outside(&self) {
        let mut state = self.state.lock();
        state.outside = true;
        self.sleeper.arm();
    }

    /// The outside sleeper is awake. No system call where there is none.
    pub(crate) fn disarm_outside(&self) {
        let mut state = self.state.lock();
        if !state.outside && !state.signalled {
            return;
        }
        state.outside = false;
        if std::mem::take(&mut state.signalled) {
            self.bell.clear_outside();
        }
        if !state.leader {
            self.sleeper.disarm();
            self.bell.drain();
        }
    }

    /// Tells everybody but the leader that something has happened.
    fn tell(&self, state: &mut State) {
        if state.outside {
            state.outside = false;
            state.signalled = true;
            self.bell.signal_outside();
        }
        if state.followers > 0 {
            self.advanced.notify_all();
        }
    }

    /// The leader's sleep is over, or called off.
    fn resign(&self, rung: bool) {
        let mut state = self.state.lock();
        state.leader = false;
        state.epoch += 1;
        if std::mem::take(&mut state.leader_told) || rung {
            // An outside sleeper is told before the doorbell is emptied for it.
            self.tell(&mut state);
            self.bell.drain();
        } else if state.followers > 0 {
            self.advanced.notify_all();
        }
        if !state.outside {
            self.sleeper.disarm();
        }
    }
}

impl<W: Word<Value = u32>, B: Bell> Ticket<'_, W, B> {
    /// Step 3. Returns when there may be news, at the deadline, or for no reason.
    pub(crate) fn sleep(mut self, deadline: Option<Instant>) -> Result<(), B::Error> {
        if self.leads {
            let result = self.hub.bell.wait(deadline);
            self.leads = false;
            self.hub.resign(matches!(result, Ok(true)));
            return result.map(drop);
        }
        let mut state = self.hub.state.lock();
        state.followers += 1;
        while state.epoch == self.epoch && deadline.is_none_or(|at| Instant::now() < at) {
            state = self.hub.advanced.wait(state, deadline);
        }
        state.followers -= 1;
        Ok(())
    }
}

impl<W: Word<Value = u32>, B: Bell> Drop for Ticket<'_, W, B> {
    fn drop(&mut self) {
        if self.leads {
            self.hub.resign(false);
        }
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use crate::word::arm::Ringer;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    /// A doorbell whose sleep has no time limit: a lost wake-up is a deadlock, which loom reports.
    #[derive(Default)]
    struct ModelBell {
        rung: Mutex<bool>,
        heard: Condvar,
    }

    impl ModelBell {
        fn ring(&self) {
            *self.rung.lock() = true;
            self.heard.notify_all();
        }
    }

    impl Bell for Arc<ModelBell> {
        type Error = ();
        fn wait(&self, _: Option<Instant>) -> Result<bool, ()> {
            let mut rung = self.rung.lock();
            while !*rung {
                rung = self.heard.wait(rung, None);
            }
            Ok(true)
        }
        fn drain(&self) {
            *self.rung.lock() = false;
        }
        fn ring_self(&self) {
            self.ring();
        }
        fn signal_outside(&self) {}
        fn clear_outside(&self) {}
    }

    struct World {
        hub: Hub<&'static AtomicU32, Arc<ModelBell>>,
        bell: Arc<ModelBell>,
        armed: &'static AtomicU32,
        news: [AtomicU32; 2],
    }

    fn world() -> Arc<World> {
        // Leaked on purpose: loom frees nothing it does not track, and a model run is short.
        let armed: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        let bell = Arc::new(ModelBell::default());
        let hub = Hub::new(armed, bell.clone());
        Arc::new(World { hub, bell, armed, news: [AtomicU32::new(0), AtomicU32::new(0)] })
    }

    fn wait_for(world: &World, news: usize) {
        while world.news[news].load(Ordering::Acquire) == 0 {
            let ticket = world.hub.prepare();
            if world.news[news].load(Ordering::Acquire) != 0 {
                return;
            }
            ticket.sleep(None).unwrap();
        }
    }

    fn model(body: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(body);
    }

    #[test]
    fn loom_two_sleepers_with_news_from_outside_both_wake() {
        model(|| {
            let world = world();
            let other = world.clone();
            let sleeper = thread::spawn(move || wait_for(&other, 1));
            let peer = world.clone();
            let sender = thread::spawn(move || {
                let ringer = Ringer::new(peer.armed);
                for news in [1, 0] {
                    peer.news[news].store(1, Ordering::Release);
                    if ringer.must_ring() {
                        peer.bell.ring();
                    }
                }
            });
            wait_for(&world, 0);
            sleeper.join().unwrap();
            sender.join().unwrap();
        });
    }

    #[test]
    fn loom_news_from_inside_wakes_leader_and_follower() {
        model(|| {
            let world = world();
            let other = world.clone();
            let sleeper = thread::spawn(move || wait_for(&other, 0));
            let inside = world.clone();
            let teller = thread::spawn(move || {
                inside.news[0].store(1, Ordering::Release);
                inside.hub.wake_all();
            });
            wait_for(&world, 0);
            sleeper.join().unwrap();
            teller.join().unwrap();
        });
    }

    #[test]
    fn loom_a_sleep_that_is_called_off_leaves_no_ring_from_inside() {
        model(|| {
            let world = world();
            let inside = world.clone();
            let teller = thread::spawn(move || inside.hub.wake_all());
            drop(world.hub.prepare());
            teller.join().unwrap();
            assert!(!*world.bell.rung.lock(), "nobody sleeps, and the bell is rung");
        });
    }

    /// The mistake that step 2 exists to prevent: no look between ticket and sleep. The sleep itself
    /// is left out, for a deadlock could not be expected by a test.
    #[test]
    #[should_panic(expected = "asleep, and nobody rang")]
    fn loom_without_the_second_look_a_wake_up_is_lost() {
        model(|| {
            let world = world();
            let peer = world.clone();
            let sender = thread::spawn(move || {
                let ringer = Ringer::new(peer.armed);
                peer.news[0].store(1, Ordering::Release);
                if ringer.must_ring() {
                    peer.bell.ring();
                }
            });
            let slept = world.news[0].load(Ordering::Acquire) == 0;
            if slept {
                std::mem::forget(world.hub.prepare());
            }
            sender.join().unwrap();
            assert!(!slept || *world.bell.rung.lock(), "asleep, and nobody rang");
        });
    }
}
