//! A fabric's descriptor that is readable for nothing.
//!
//! `fi_trywait` of some providers does nothing (`net` of libfabric 1.17): once something has happened, the queue's
//! descriptor stays readable for ever, and whoever sleeps on it polls at full speed. So after many wakes in a row that
//! found nothing only its changes wake (`EPOLLET`). What such a provider leaves to its next turn changes nothing, so
//! who was woken polls for a while ([`POLL`]), and somebody looks every [`LOOK`].

use crate::sync::{AtomicU32, Ordering};
use rustix::event::epoll::EventFlags;
use std::time::Duration;

/// Wakes in vain. A long write that comes in pieces makes some before all of it is there.
const MOST: u32 = 1000;
/// How often somebody looks nevertheless.
pub const LOOK: Duration = Duration::from_millis(10);
/// How long is polled after a change.
pub const POLL: Duration = Duration::from_micros(100);

/// See the module.
#[derive(Debug, Default)]
pub struct Vain {
    wakes: AtomicU32,
}

impl Vain {
    /// The descriptor has woken somebody. True: from now on only its changes are to ([`Vain::flags`]).
    pub fn wakes(&self) -> bool {
        !self.is_so() && self.wakes.fetch_add(1, Ordering::Relaxed) + 1 == MOST
    }

    /// He has found something.
    pub fn has_found(&self) {
        if self.wakes.load(Ordering::Relaxed) != 0 && !self.is_so() {
            self.wakes.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it is readable for nothing.
    #[must_use]
    pub fn is_so(&self) -> bool {
        self.wakes.load(Ordering::Relaxed) >= MOST
    }

    /// What epoll is to tell of it.
    #[must_use]
    pub fn flags(&self) -> EventFlags {
        if self.is_so() { EventFlags::IN | EventFlags::ET } else { EventFlags::IN }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn wakes_that_find_nothing_many_times_in_a_row_are_in_vain() {
        let vain = Vain::default();
        for _ in 0..3 {
            assert!((1..MOST).all(|_| !vain.wakes()));
            vain.has_found();
        }
        assert_eq!((1..=MOST).filter(|_| vain.wakes()).count(), 1);
        vain.has_found();
        assert!(vain.is_so() && !vain.wakes());
        assert!(vain.flags().contains(EventFlags::ET));
    }
}
