//! What the engine's lock protects, and the protocol's steps. None of them waits.
//!
//! | file | steps |
//! |---|---|
//! | `outgoing` | slots and scouts of messages to one peer, and those that wait for room |
//! | `incoming` | what arrives in slots, and giving slots back |
//! | `large` | fetching what was announced |
//! | `matching`, `unexpected` | posted receives, and messages that came before them |
//! | `short` | both for what fits a line, in few instructions |
//! | `complete` | ends of operations |
//! | `wants` | interrupts for handlers |

mod complete;
mod incoming;
mod large;
mod matching;
mod outgoing;
mod short;
mod unexpected;
mod wants;

pub(super) use matching::{Found, Want};
pub(super) use outgoing::{Letter, Sent, Staging};

use super::direct;
use super::inner::Inner;
use super::ops::{Ops, Posted};
use incoming::Incoming;
use large::Fetching;
use outgoing::Outgoing;
use unexpected::Unexpected;
use vmmc::counters::Tally;

#[derive(Default)]
struct Pair {
    out: Outgoing,
    inn: Incoming,
}

/// See the module.
pub(super) struct State {
    pub(super) ops: Ops,
    pairs: Vec<Pair>,
    posted: Vec<Posted>,
    unexpected: Unexpected,
    fetching: Vec<Fetching>,
    pub(super) windows: direct::Windows,
    /// Posted receives of handlers.
    handlers: usize,
    /// What the peers were told: they interrupt us for each message.
    wants: bool,
    /// Peers with queued letters, a count.
    pub(super) starving: usize,
    /// Rounds of global operations that failed, and may have left messages that nobody takes.
    pub(super) vain: Vec<u32>,
    /// Scratch for sends in one transfer.
    marshal: Vec<u8>,
    /// Where is counted what is done under the lock.
    stripe: usize,
    /// Receives since the last one that looked at all peers.
    hasty: u32,
}

impl State {
    pub(super) fn new(processes: usize) -> State {
        State {
            ops: Ops::default(),
            pairs: (0..processes).map(|_| Pair::default()).collect(),
            posted: Vec::new(),
            unexpected: Unexpected::default(),
            fetching: Vec::new(),
            windows: direct::Windows::default(),
            handlers: 0,
            wants: false,
            starving: 0,
            vain: Vec::new(),
            marshal: Vec::new(),
            stripe: vmmc::sync::take_stripe(),
            hasty: 0,
        }
    }

    /// One more process: there may be gaps.
    pub(super) fn make_pair(&mut self, number: usize) {
        if self.pairs.len() <= number {
            self.pairs.resize_with(number + 1, Pair::default);
        }
    }

    /// For counting as [`Inner::count`] does: no thread need be looked up under the lock.
    #[inline(always)]
    fn tally<'e>(&self, e: &'e Inner) -> Tally<'e> {
        e.data.counters().tally_of(self.stripe)
    }

    #[inline]
    fn pair(&mut self, number: usize) -> &mut Pair {
        match self.pairs.get_mut(number) {
            Some(pair) => pair,
            None => unreachable!("process numbers are checked at the interface"),
        }
    }
}
