//! Finding the next call among many clients.
//!
//! Clients that called lately are **hot**: their flags are looked at in every turn. All others are **cold**: one of
//! them is looked at per turn, and all of them in the look that precedes a sleep. A cold client
//! that calls becomes hot, in the place of the hot one that has been quiet longest. So a busy
//! server pays one load per turn for a thousand idle clients, an idle one finds a
//! cold client's call within a few microseconds per hundred clients, and a sleeping one is woken by the
//! doorbell and looks at all.
//!
//! A turn ends at the first message. Where each hot client calls again before its next turn, none would ever come to the
//! cold ones; so one of them is looked at besides after every [`HEED`] messages, in which each hot one has had its turn.

use super::slot::Slot;
use crate::config::HOT;
use crate::process::count;
use std::sync::Arc;
use vmmc::{Look, Node};

/// Messages after which a cold slot is looked at, whatever the hot ones have.
const HEED: u64 = HOT as u64;

/// A slot that is looked at in every turn.
#[derive(Debug)]
struct Hot {
    slot: Arc<Slot>,
    /// Value of `Poll::found` when it called last.
    last: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Poll {
    hot: Vec<Hot>,
    cold: Vec<Arc<Slot>>,
    /// Where the next turn begins among the hot ones.
    next_hot: usize,
    /// Which cold one is next.
    next_cold: usize,
    /// Messages found so far.
    found: u64,
    /// Value of `found` at which a cold one is looked at besides.
    heed_at: u64,
}

impl Poll {
    pub(super) fn add(&mut self, slot: Arc<Slot>) {
        if self.hot.len() < HOT {
            self.hot.push(Hot { slot, last: self.found });
        } else {
            self.cold.push(slot);
        }
    }

    /// Forgets those that have ended.
    pub(super) fn forget_ended(&mut self) {
        forget_ended(&mut self.cold, &mut self.next_cold, |slot| slot);
        forget_ended(&mut self.hot, &mut self.next_hot, |hot| &hot.slot);
        while self.hot.len() < HOT
            && let Some(slot) = self.cold.pop()
        {
            self.hot.push(Hot { slot, last: self.found });
        }
    }

    /// The hot slot of that number.
    #[inline(always)]
    pub(super) fn slot(&self, hot: usize) -> Option<&Arc<Slot>> {
        self.hot.get(hot).map(|hot| &hot.slot)
    }

    /// The next message, and the number of the hot slot that has it. Whoever takes it notes it, too.
    #[inline(always)]
    pub(super) fn look(&mut self, look: Look, node: &Node) -> Option<(usize, u64)> {
        let hot_ones = self.hot.len();
        for turn in 0..hot_ones {
            let at = self.next_hot + turn;
            let at = if at < hot_ones { at } else { at - hot_ones };
            let Some(hot) = self.hot.get(at) else { break };
            if let Some(word) = hot.slot.look() {
                return Some((at, word));
            }
        }
        if self.cold.is_empty() { None } else { self.look_at_cold(look, node) }
    }

    /// Books the message of that hot slot: nothing that its client has to wait for.
    #[inline]
    pub(super) fn note(&mut self, at: usize) {
        self.found += 1;
        self.next_hot = if at + 1 < self.hot.len() { at + 1 } else { 0 };
        if let Some(hot) = self.hot.get_mut(at) {
            hot.last = self.found;
        }
    }

    /// Looks at a cold slot now and then, while messages of hot ones are found all the time.
    #[inline]
    pub(super) fn heed_cold(&mut self, node: &Node) {
        if self.found >= self.heed_at {
            self.look_at_one_cold(node);
        }
    }

    #[cold]
    fn look_at_one_cold(&mut self, node: &Node) {
        self.heed_at = self.found + HEED;
        if let Some((at, _)) = self.look_at_cold(Look::Quick, node) {
            self.next_hot = at;
        }
    }

    #[inline(never)]
    fn look_at_cold(&mut self, look: Look, node: &Node) -> Option<(usize, u64)> {
        let turns = if look == Look::Complete { self.cold.len() } else { 1 };
        for _ in 0..turns {
            self.next_cold =
                if self.next_cold + 1 < self.cold.len() { self.next_cold + 1 } else { 0 };
            let Some(slot) = self.cold.get(self.next_cold) else { break };
            if let Some(word) = slot.look() {
                node.counters().add(count::COLD, 1);
                return Some((self.warm(self.next_cold)?, word));
            }
        }
        None
    }

    /// Makes a cold slot hot, in the place of the quietest. Returns its number.
    fn warm(&mut self, cold: usize) -> Option<usize> {
        let (at, hot) = self.hot.iter_mut().enumerate().min_by_key(|(_, hot)| hot.last)?;
        std::mem::swap(&mut hot.slot, self.cold.get_mut(cold)?);
        Some(at)
    }
}

/// Takes out those whose slot has ended. Who was next is next, or who comes after it: clients that come and go turn nobody's
/// turn away.
fn forget_ended<T>(list: &mut Vec<T>, next: &mut usize, slot: fn(&T) -> &Arc<Slot>) {
    let (mut at, mut before) = (0, 0);
    list.retain(|one| {
        let ended = !slot(one).is_open();
        before += usize::from(ended && at < *next);
        at += 1;
        !ended
    });
    *next -= before;
    if *next >= list.len() {
        *next = 0; // a turn that began beyond the last would look at none
    }
}
