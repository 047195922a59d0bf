//! Senders that were told something and may owe an acknowledgement of it: they are looked after a while later
//! ([`vmmc::transport::net::silence`]).

use std::collections::BTreeSet;
use std::time::Instant;
use vmmc::transport::net::silence::LOOK;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Debtors {
    /// Their connections.
    ids: BTreeSet<u64>,
    /// When they are looked after: as long as there are any.
    next: Option<Instant>,
}

impl Debtors {
    /// The sender of that connection was told something.
    pub(super) fn add(&mut self, id: u64) {
        self.ids.insert(id);
        self.next.get_or_insert_with(|| Instant::now() + LOOK);
    }

    /// When there is something to look at.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whom to look after now. Who still owes is to be added again.
    pub(super) fn due(&mut self) -> BTreeSet<u64> {
        if self.next.is_none_or(|next| Instant::now() < next) {
            return BTreeSet::new();
        }
        self.next = None;
        std::mem::take(&mut self.ids)
    }
}
