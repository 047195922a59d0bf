//! Giving blocking calls up from another thread.
//!
//! A call is known by the turns of its messages. Who cancels stores, for each lane, the turn of the last message sent, and wakes
//! the waiters; a waiter that does not find its reply at the first looks, and who is between two pieces, looks whether that
//! turn is one of its call. So a cancellation that comes late concerns no later call, and one that is never made costs nothing.
//!
//! Whose the call is lies beside the turn, in the same word: the number of its group, which is that of the handle it was made
//! through. So who gives a group's calls up takes none of another group for one of them.

use super::lane::Watch;
use super::queue::Queue;
use crate::layout::Turn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use vmmc::Node;

/// What all handles of a binding and their [`Canceller`]s share.
#[derive(Debug, Default)]
pub(super) struct Cancels {
    /// How often all was cancelled: for those who wait for a lane, and have no turn yet.
    times: AtomicU64,
    /// Number of the last group.
    groups: AtomicU64,
    /// Of all lanes that are bound. Held by who cancels, so that a turn that was read before never replaces a later one.
    watches: Mutex<Vec<Weak<Watch>>>,
}

impl Cancels {
    /// A lane was bound.
    pub(super) fn heed(&self, watch: &Arc<Watch>) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(watch));
    }
}

/// Calls that are given up together.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    mark: Mark,
    /// How often they were. `None`: the binding's own group, which is given up with all others.
    times: Option<Arc<AtomicU64>>,
}

impl Group {
    /// Another one.
    pub(super) fn another(cancels: &Cancels) -> Group {
        let number = cancels.groups.fetch_add(1, Ordering::Relaxed) + 1;
        Group { mark: Mark(number << Mark::SHIFT), times: Some(Arc::default()) }
    }

    #[inline(always)] // between two flags
    pub(super) fn mark(&self) -> Mark {
        self.mark
    }

    /// How often calls of this group were given up.
    pub(super) fn times(&self, cancels: &Cancels) -> u64 {
        let of_group = self.times.as_ref().map_or(0, |times| times.load(Ordering::Acquire));
        of_group.wrapping_add(cancels.times.load(Ordering::Acquire))
    }
}

/// A group's number, where a [`Sent`] has it: there are 2^44, enough for a million a second for half a year.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    /// Bits of a turn.
    const SHIFT: u32 = 20;

    /// The word that says that the message of that turn was sent for this group.
    #[inline(always)] // between two flags
    pub(super) fn with(self, turn: Turn) -> u64 {
        self.0 | u64::from(turn.number())
    }

    /// Turn and group of such a word.
    #[inline(always)] // between two flags
    pub(super) fn split(word: u64) -> (Mark, Turn) {
        let turn = Turn::from_number(word as u32);
        (Mark(word & !((1 << Mark::SHIFT) - 1)), turn)
    }
}

const _: () = assert!(Turn::from_number(u32::MAX).number() == (1 << Mark::SHIFT) - 1);

/// Cancels blocking calls of a [`crate::Binding`], from any thread. Futures are cancelled by dropping them.
#[derive(Clone, Debug)]
pub struct Canceller {
    cancels: Arc<Cancels>,
    group: Group,
    queue: Arc<Queue>,
    node: Node,
}

impl Canceller {
    pub(super) fn new(
        cancels: &Arc<Cancels>,
        group: &Group,
        queue: &Arc<Queue>,
        node: &Node,
    ) -> Canceller {
        let (cancels, queue) = (cancels.clone(), queue.clone());
        Canceller { cancels, group: group.clone(), queue, node: node.clone() }
    }

    /// Gives up all blocking calls that wait for their reply now, or are between two pieces: they fail with
    /// [`crate::CallError::Cancelled`]. The server is told, and may have carried them out. Calls that wait until one of another
    /// thread is over, or that have first to bind, fail so, too. One that is being written is not concerned. Which calls: of
    /// a canceller of a [`crate::Binding::group`], those of the group; otherwise all of the binding, those of groups too.
    /// Does not wait; takes locks, and makes system calls where somebody sleeps.
    pub fn cancel(&self) {
        let times = self.group.times.as_deref().unwrap_or(&self.cancels.times);
        times.fetch_add(1, Ordering::Release);
        let whose = self.group.times.as_ref().map(|_| self.group.mark);
        let watches = self.cancels.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().filter_map(Weak::upgrade).for_each(|watch| watch.cancel(whose));
        drop(watches);
        self.queue.stir();
        self.node.wake_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_group_and_turn() {
        let cancels = Cancels::default();
        let (one, other) = (Group::another(&cancels), Group::another(&cancels));
        let turn = Turn::from_number(0xf_fffe);
        for group in [&one, &other, &Group::default()] {
            assert_eq!(Mark::split(group.mark().with(turn)), (group.mark(), turn));
        }
        assert!(one.mark() != other.mark() && one.mark() != Mark::default());
        assert_eq!((one.times(&cancels), other.times(&cancels)), (0, 0));
    }
}
