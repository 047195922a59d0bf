//! Bindings that were closed while a reply was put off: the deferred call keeps their buffers, and a client that closes and
//! binds again would have as many as it likes. They count among its bindings until the reply is given.

use super::accept::Knock;
use super::slot::Slot;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Slots that were forgotten; those that nothing keeps are dropped at the next one.
    slots: Mutex<Vec<Weak<Slot>>>,
}

impl Left {
    /// The slot's client has gone.
    pub(super) fn add(&self, slot: &Arc<Slot>) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(slot));
    }

    /// How many are kept by calls that were put off, and how many of them are of the process that knocks. What is kept
    /// for a moment besides, until some thread looks, is not counted.
    pub(super) fn kept(&self, knock: &Knock) -> (usize, usize) {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let kept: Vec<_> = slots.iter().filter_map(Weak::upgrade).collect();
        drop(slots); // some of the others may be let go meanwhile, by us
        let kept = kept.iter().filter(|slot| slot.is_put_off());
        kept.fold((0, 0), |(all, own), slot| (all + 1, own + usize::from(knock.is_of(slot))))
    }
}
