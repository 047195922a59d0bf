//! Threads for what a user can make last: the last close of a descriptor that came from him, sending by his socket.
//!
//! The loop waits for nobody, so helpers do such work. Some of it a hostile user can hold up for as long as he likes, and
//! then it is his own that waits: of each user [`EACH`] pieces at most are under way, his others wait in a queue of his, and those who have
//! something that may begin take turns. Work between two users counts for the two together, so neither can hold up what
//! the other has with a third.
//!
//! The more helpers are at work, the fewer one holder may have ([`State::share`]): each can have one as long as fewer than some forty
//! holders are held up, and not [`MAX`] / [`EACH`] only. (Uids of one person, such as those of a range in subuid(5), count as so many users.)

use crate::placement;
use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most helpers of a kind.
const MAX: usize = 256;
/// Pieces of work under way for one holder.
const EACH: usize = 16;
/// Pieces that wait for one holder, but for such as cannot be refused: each has descriptors. See [`Helpers::is_behind`].
const WAITING: usize = 64;
/// A helper without work ends after this, unless it is the only one.
const IDLE: Duration = Duration::from_secs(2);

/// For whom a piece of work is done: a user twice, or two of them.
pub(crate) type Holder = (u32, u32);

/// A piece of work.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// What one holder has.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Work>,
    running: usize,
}

impl Lane {
    /// How many pieces may begin now.
    fn ready(&self) -> usize {
        self.waiting.len().min(EACH - self.running)
    }

    /// Whether one more might.
    fn has_room(&self) -> bool {
        self.waiting.len() + self.running < EACH
    }
}

#[derive(Default)]
struct State {
    lanes: HashMap<Holder, Lane>,
    /// Those of whom something may begin, in turn.
    turns: VecDeque<Holder>,
    /// Pieces that may begin.
    ready: usize,
    helpers: usize,
    idle: usize,
    /// Pieces under way.
    running: usize,
}

impl State {
    /// How many pieces of one holder may be under way now.
    fn share(&self) -> usize {
        (MAX.saturating_sub(self.running) / 8).clamp(1, EACH)
    }

    /// Whether one more helper has something to do, perhaps.
    fn has_more(&self) -> bool {
        self.ready > 0 && self.idle > 0
    }

    /// Changes a lane, and keeps what follows from it right.
    fn change<T>(&mut self, holder: Holder, change: impl FnOnce(&mut Lane) -> T) -> T {
        let lane = self.lanes.entry(holder).or_default();
        let before = lane.ready();
        let changed = change(lane);
        let after = lane.ready();
        if lane.waiting.is_empty() && lane.running == 0 {
            self.lanes.remove(&holder);
        }
        self.ready = self.ready + after - before;
        if before == 0 && after > 0 {
            self.turns.push_back(holder);
        }
        changed
    }

    fn put(&mut self, holder: Holder, work: Work) {
        self.change(holder, |lane| lane.waiting.push_back(work));
    }

    fn begin(&mut self) -> Option<(Holder, Work)> {
        let share = self.share();
        let may_begin =
            |holder: &Holder| self.lanes.get(holder).is_some_and(|lane| lane.running < share);
        // Who has his share already keeps his turn.
        let turn = self.turns.iter().position(may_begin)?;
        let holder = self.turns.remove(turn)?;
        let (work, more) = self.change(holder, |lane| {
            let work = lane.waiting.pop_front();
            lane.running += usize::from(work.is_some());
            (work, lane.ready() > 0)
        });
        self.running += usize::from(work.is_some());
        if more {
            // It has had its turn, and comes last.
            self.turns.push_back(holder);
        }
        Some((holder, work?))
    }

    fn end(&mut self, holder: Holder) {
        self.change(holder, |lane| lane.running -= 1);
        self.running -= 1;
    }
}

/// See the module.
pub(crate) struct Helpers {
    name: &'static str,
    stack: usize,
    state: Mutex<State>,
    more: Condvar,
}

impl Helpers {
    /// None yet.
    pub(crate) fn new(name: &'static str, stack: usize) -> Helpers {
        Helpers { name, stack, state: Mutex::default(), more: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something is under way, or waits.
    pub(crate) fn is_busy(&self) -> bool {
        !self.state().lanes.is_empty()
    }

    /// Whether so many of a holder's pieces wait that no more should be begun for him.
    pub(crate) fn is_behind(&self, holder: Holder) -> bool {
        self.state().lanes.get(&holder).is_some_and(|lane| lane.waiting.len() >= WAITING)
    }

    /// Has a piece of work done, in its turn.
    ///
    /// # Errors
    /// The work, where there is no helper at all, nor a thread for one, or [`WAITING`] pieces of the holder wait.
    pub(crate) fn put(&'static self, holder: Holder, work: Work) -> Result<(), Work> {
        let mut state = self.state();
        if state.lanes.get(&holder).is_some_and(|lane| lane.waiting.len() >= WAITING) {
            return Err(work);
        }
        // Every piece that may begin has an idle helper, or gets a new one.
        let begins = state.lanes.get(&holder).is_none_or(Lane::has_room);
        if begins && state.ready >= state.idle && state.helpers < MAX {
            let helper = std::thread::Builder::new()
                .name(self.name.to_owned())
                .stack_size(self.stack)
                .spawn(move || {
                    // The loop, whose affinity a new thread has, may be bound to one processor.
                    placement::unbind_thread();
                    self.help();
                });
            match helper {
                Ok(_) => state.helpers += 1,
                Err(error) => tracing::warn!(%error, name = self.name, "no thread for a helper"),
            }
        }
        if state.helpers == 0 {
            return Err(work);
        }
        state.put(holder, work);
        drop(state);
        self.more.notify_one();
        Ok(())
    }

    /// The same for work that cannot be refused: it waits until there is a helper.
    pub(crate) fn leave(&'static self, holder: Holder, work: Work) {
        if let Err(work) = self.put(holder, work) {
            self.state().put(holder, work);
        }
    }

    fn help(&self) {
        let mut state = self.state();
        loop {
            if let Some((holder, work)) = state.begin() {
                if state.has_more() {
                    self.more.notify_one();
                }
                drop(state);
                work();
                state = self.state();
                state.end(holder);
                if state.has_more() {
                    self.more.notify_one();
                }
                continue;
            }
            state.idle += 1;
            let (again, waited) =
                self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if waited.timed_out() && state.ready == 0 && state.helpers > 1 {
                state.helpers -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const GREEDY: Holder = (1, 1);
    const HONEST: Holder = (2, 2);

    fn helpers() -> &'static Helpers {
        Box::leak(Box::new(Helpers::new("test", 64 * 1024)))
    }

    /// Work that says its number, and then is held up until it is let go.
    fn held(helpers: &'static Helpers, count: usize) -> (Receiver<usize>, Vec<Sender<()>>) {
        held_by(helpers, GREEDY, count)
    }

    fn held_by(
        helpers: &'static Helpers,
        holder: Holder,
        count: usize,
    ) -> (Receiver<usize>, Vec<Sender<()>>) {
        let (say, said) = channel();
        let holds = (0..count).map(|number| {
            let (go, wait) = channel::<()>();
            let say = say.clone();
            let work = move || {
                say.send(number).unwrap();
                let _ = wait.recv();
            };
            helpers.leave(holder, Box::new(work));
            go
        });
        let holds = holds.collect();
        (said, holds)
    }

    #[test]
    fn the_helpers_are_not_all_taken_by_a_few_users_that_hold_up_their_work() {
        let helpers = helpers();
        let users = 100..100 + (MAX / EACH) as u32;
        let held: Vec<_> = users.map(|uid| held_by(helpers, (uid, uid), EACH)).collect();
        // Of each something has begun.
        assert!(held.iter().all(|(begun, _)| begun.recv().is_ok()));
        let (say, done) = channel();
        helpers.leave(HONEST, Box::new(move || say.send(()).unwrap()));
        let long = Duration::from_secs(60);
        assert_eq!(done.recv_timeout(long), Ok(()), "there is no helper for it");
        // And all the work is done when it is let go.
        let (begun, holds): (Vec<_>, Vec<_>) = held.into_iter().unzip();
        drop(holds);
        for begun in begun {
            assert_eq!(begun.iter().count(), EACH - 1);
        }
    }

    #[test]
    fn who_holds_up_his_own_work_holds_up_nobody_elses() {
        let helpers = helpers();
        let (begun, mut holds) = held(helpers, 2 * MAX);
        let some: Vec<usize> = (0..EACH).map(|_| begun.recv().unwrap()).collect();
        assert!(helpers.put(GREEDY, Box::new(|| ())).is_err(), "as much waits as may");
        for _ in 0..3 {
            let (say, done) = channel();
            assert!(helpers.put(HONEST, Box::new(move || say.send(()).unwrap())).is_ok());
            done.recv().unwrap();
        }
        assert!(begun.try_recv().is_err(), "more than a share is under way");
        assert_eq!(some.iter().copied().max(), Some(EACH - 1), "in order");
        assert!(helpers.is_busy());
        holds.drain(..1);
        assert_eq!(begun.recv(), Ok(EACH), "the next one");
        drop(holds);
        assert_eq!(begun.iter().count(), 2 * MAX - EACH - 1);
        while helpers.is_busy() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn holders_take_turns() {
        let mut state = State::default();
        let others = [(1, 1), (2, 2), (1, 2)];
        for holder in others {
            for _ in 0..EACH + 1 {
                state.put(holder, Box::new(|| {}));
            }
        }
        assert_eq!(state.ready, 3 * EACH);
        for _ in 0..EACH {
            let begun: Vec<Holder> = (0..3).map(|_| state.begin().unwrap().0).collect();
            assert_eq!(begun, others);
        }
        assert!(state.begin().is_none() && state.ready == 0);
        state.end(others[1]);
        assert_eq!(state.begin().unwrap().0, others[1]);
        assert!(state.begin().is_none());
    }
}
