//! Whether senders must interrupt this process for each message, because handlers wait for some.

use super::State;
use crate::engine::inner::Inner;
use crate::engine::layout;
use crate::engine::peer::Peer;
use vmmc::sync::Ordering;

impl State {
    /// Tells the peers that they must interrupt us for messages.
    pub(super) fn want(&mut self, e: &Inner) {
        if !self.wants {
            self.wants = true;
            e.watch.set(true);
            for peer in e.peers() {
                peer.out.say32(layout::WANTS, 1);
            }
        }
        // Messages that were sent before their senders could see the word are found now.
        vmmc::sync::fence(Ordering::SeqCst);
    }

    /// Tells a peer that has joined later.
    pub(in crate::engine) fn tell_wants(&mut self, peer: &Peer) {
        peer.out.say32(layout::WANTS, u32::from(self.wants));
    }

    /// Called by the progress thread: with no handler posted, interrupts for messages end. A handler
    /// that is about to run will most likely post its receive again.
    pub(in crate::engine) fn want_no_more(&mut self, e: &Inner) {
        let handlers_wait = self.handlers > 0 || self.fetches_for_handlers();
        if self.wants && !handlers_wait && e.handlers.is_idle() {
            self.wants = false;
            if e.watch.set(false) {
                e.data.wake_waiters();
            }
            for peer in e.peers() {
                peer.out.say32(layout::WANTS, 0);
            }
        }
    }
}
