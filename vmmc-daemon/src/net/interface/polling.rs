//! Whether the interface polls: after there was work, for as long as the next may take to come over the network, and
//! while that pays.

use std::time::{Duration, Instant};
use vmmc::wait::{self, Poller};

/// See the module.
#[derive(Debug)]
pub(super) struct Polling {
    poller: Poller,
    budget: Duration,
    state: State,
    last_work: Instant,
    /// There was a look in vain since.
    waited: bool,
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
        let (poller, state) = (Poller::default(), State::Over);
        Polling { poller, budget, state, last_work: Instant::now(), waited: false }
    }

    /// Whether it polls now.
    pub(super) fn goes_on(&self) -> bool {
        self.state == State::On && self.last_work.elapsed() < self.budget
    }

    /// A look was in vain: lets others have the processor, the sender perhaps.
    pub(super) fn looked_in_vain(&mut self) {
        self.gave_way(wait::give_way());
    }

    fn gave_way(&mut self, briefly: bool) {
        self.waited = true;
        if !briefly {
            self.poller.interrupted();
            self.state = State::Over;
        }
    }

    /// There was work.
    pub(super) fn worked(&mut self) {
        let now = Instant::now();
        match self.state {
            // What was there at once was not waited for.
            State::On if self.waited => self.poller.met(),
            State::LeftOut => self.poller.slept(now - self.last_work, self.budget),
            State::On | State::Over => {}
        }
        if self.state != State::On && !self.budget.is_zero() {
            self.state = if self.poller.pays(now) { State::On } else { State::LeftOut };
        }
        (self.last_work, self.waited) = (now, false);
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
        // What it waits for in a poll brings all of them back.
        while !polling.goes_on() {
            polling.worked();
        }
        polling.gave_way(true);
        polling.worked();
        polling.sleeps(true);
        assert_eq!(polls(&mut polling, 2, || {}), [true, false]);
    }

    #[test]
    fn it_does_not_poll_without_time_for_it_or_where_others_want_the_processor() {
        let mut polling = Polling::new(Duration::ZERO);
        assert!(!polls(&mut polling, 3, || {}).contains(&true));
        let mut polling = Polling::new(Duration::from_secs(60));
        polling.worked();
        polling.gave_way(true);
        assert!(polling.goes_on());
        polling.gave_way(false);
        assert!(!polling.goes_on(), "somebody else had it for long");
        polling.worked();
        assert!(!polling.goes_on(), "nor after the next work");
    }
}
