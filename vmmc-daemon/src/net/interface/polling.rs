//! Whether the interface polls: after there was work, for as long as the next may take to come over the network, and
//! while that pays.

use std::time::{Duration, Instant};
use vmmc::wait::Poller;

/// See the module.
#[derive(Debug)]
pub(super) struct Polling {
    poller: Poller,
    budget: Duration,
    state: State,
    last_work: Instant,
    last_look: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    On,
    /// It did not pay after the last work.
    LeftOut,
    Over,
}

impl Polling {
    /// For so long after work; never if that is no time.
    pub(super) fn new(budget: Duration) -> Polling {
        let now = Instant::now();
        let (poller, state) = (Poller::default(), State::Over);
        Polling { poller, budget, state, last_work: now, last_look: now }
    }

    /// Whether it polls now. To be asked before each look.
    pub(super) fn goes_on(&mut self) -> bool {
        if self.state != State::On {
            return false;
        }
        let now = Instant::now();
        let before = std::mem::replace(&mut self.last_look, now);
        if self.poller.is_interrupted(before, now) {
            self.state = State::Over;
            return false;
        }
        now - self.last_work < self.budget
    }

    /// There was work.
    pub(super) fn worked(&mut self) {
        let now = Instant::now();
        match self.state {
            State::On => self.poller.met(),
            State::LeftOut => self.poller.slept(now - self.last_work, self.budget),
            State::Over => {}
        }
        if self.state != State::On && !self.budget.is_zero() {
            self.state = if self.poller.pays(now) { State::On } else { State::LeftOut };
        }
        (self.last_work, self.last_look) = (now, now);
    }

    /// Now it sleeps. `in_vain`: what it polled for did not come.
    pub(super) fn sleeps(&mut self, in_vain: bool) {
        if self.state == State::On {
            if in_vain {
                self.poller.missed();
            }
            self.state = State::Over;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it polls after each of `count` pieces of work, between which it sleeps.
    fn polls(polling: &mut Polling, count: usize, before: impl Fn()) -> Vec<bool> {
        let turn = |_| {
            before();
            polling.worked();
            let polls = polling.goes_on();
            polling.sleeps(true);
            polls
        };
        (0..count).map(turn).collect()
    }

    #[test]
    fn it_polls_less_when_that_is_in_vain_and_more_when_work_comes_soon() {
        let short = Duration::from_micros(1);
        let pause = || std::thread::sleep(Duration::from_millis(1));
        let mut polling = Polling::new(short);
        let polled = polls(&mut polling, 40, pause).into_iter().filter(|it| *it).count();
        assert!(polled <= 6, "{polled} of 40");
        // Work that comes within the time is met.
        let mut polling = Polling::new(Duration::from_secs(60));
        polls(&mut polling, 40, || {});
        let soon = polls(&mut polling, 40, || {}).into_iter().filter(|it| *it).count();
        assert!(soon >= 5, "{soon} of 40");
        (0..80).for_each(|_| polling.worked());
        assert!(polling.goes_on());
    }

    #[test]
    fn it_does_not_poll_without_time_for_it_or_where_others_want_the_processor() {
        let mut polling = Polling::new(Duration::ZERO);
        assert!(!polls(&mut polling, 3, || {}).contains(&true));
        let mut polling = Polling::new(Duration::from_secs(60));
        polling.worked();
        assert!(polling.goes_on());
        std::thread::sleep(Duration::from_millis(1));
        assert!(!polling.goes_on(), "somebody else had it between two looks");
        polling.worked();
        assert!(!polling.goes_on());
    }
}
