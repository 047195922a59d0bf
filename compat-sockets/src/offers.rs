//! Sockets that were offered to the daemon and not answered.
//!
//! Slots are filled and looked at under the lock of the conversation ([`crate::control`]). A thread that closes a socket
//! empties its slot without the lock, so an offer is claimed by its cookie, which the kernel gives to one socket
//! only: a slot that was emptied and filled again meanwhile is not taken for the one that was looked for. The slot is
//! free once its `fd` is 0 too.

use crate::fd_table;
use crate::sock::Sock;
use vmmc::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bit of [`Offer::fd`]: the daemon's queue was full, and it was not sent yet.
const UNSENT: u32 = 1 << 31;
/// Offers that can be unanswered at once; more stay candidates for now.
const OFFERS: usize = 1024;

/// One offer, or a free slot.
#[derive(Debug)]
pub(crate) struct Offer {
    /// Descriptor plus one, perhaps with [`UNSENT`]; 0: free.
    fd: AtomicU32,
    /// The kernel's number for the socket; 0: claimed.
    cookie: AtomicU64,
    /// Address of the Sock it was made for.
    sock: AtomicUsize,
}

static TABLE: [Offer; OFFERS] = [const {
    Offer { fd: AtomicU32::new(0), cookie: AtomicU64::new(0), sock: AtomicUsize::new(0) }
}; OFFERS];
/// Offers unanswered.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Offers with [`UNSENT`].
static UNSENT_ONES: AtomicU32 = AtomicU32::new(0);

/// Whether answers are awaited.
pub(crate) fn any() -> bool {
    WAITING.load(Ordering::Relaxed) != 0
}

/// A free slot.
pub(crate) fn free() -> Option<&'static Offer> {
    TABLE.iter().find(|slot| slot.fd.load(Ordering::Acquire) == 0)
}

/// Every slot.
pub(crate) fn all() -> impl Iterator<Item = &'static Offer> {
    TABLE.iter()
}

/// Every offer that is to be sent.
pub(crate) fn unsent() -> impl Iterator<Item = &'static Offer> {
    let some = UNSENT_ONES.load(Ordering::Relaxed) != 0;
    TABLE.iter().filter(move |slot| some && slot.fd.load(Ordering::Relaxed) & UNSENT != 0)
}

/// The offer of the socket with this cookie.
pub(crate) fn find(cookie: u64) -> Option<&'static Offer> {
    TABLE.iter().find(|slot| cookie != 0 && slot.cookie.load(Ordering::Acquire) == cookie)
}

/// In a forked child: they are the parent's.
pub(crate) fn clear() {
    for slot in &TABLE {
        slot.cookie.store(0, Ordering::Relaxed);
        slot.fd.store(0, Ordering::Relaxed);
    }
    WAITING.store(0, Ordering::Relaxed);
    UNSENT_ONES.store(0, Ordering::Relaxed);
}

impl Offer {
    /// Fills a free slot with an offer that is to be sent. Under the lock.
    pub(crate) fn fill(&self, sock: &'static Sock, fd: i32, cookie: u64) {
        self.fd.store((fd as u32 + 1) | UNSENT, Ordering::Relaxed);
        UNSENT_ONES.fetch_add(1, Ordering::Relaxed);
        self.sock.store(std::ptr::from_ref(sock).addr(), Ordering::Relaxed);
        WAITING.fetch_add(1, Ordering::Relaxed);
        self.cookie.store(cookie, Ordering::Release);
    }

    /// The daemon has been sent it. Under the lock.
    pub(crate) fn sent(&self) {
        if self.fd.fetch_and(!UNSENT, Ordering::Relaxed) & UNSENT != 0 {
            UNSENT_ONES.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Empties the slot if this offer is in it; of several that want to, one does. Whether the daemon knows of it.
    pub(crate) fn claim(&self, cookie: u64) -> Option<bool> {
        if cookie == 0 {
            return None;
        }
        self.cookie.compare_exchange(cookie, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        WAITING.fetch_sub(1, Ordering::Relaxed);
        let unsent = self.fd.swap(0, Ordering::AcqRel) & UNSENT != 0;
        if unsent {
            UNSENT_ONES.fetch_sub(1, Ordering::Relaxed);
        }
        Some(!unsent)
    }

    /// The socket and its descriptor, if that still waits for the answer. Under the lock; counted in, so that what is
    /// then done to it is not done to another connection: [`Sock::leave`] must follow.
    pub(crate) fn standing(&self) -> Option<(&'static Sock, i32)> {
        let cookie = self.cookie.load(Ordering::Acquire);
        let fd = (self.fd.load(Ordering::Relaxed) & !UNSENT) as i32 - 1;
        let sock = fd_table::sock(fd).filter(|_| cookie != 0)?;
        if !sock.hold_pending() {
            return None;
        }
        let same = std::ptr::from_ref(sock).addr() == self.sock.load(Ordering::Relaxed)
            && sock.cookie.load(Ordering::Relaxed) == cookie;
        if !same {
            sock.leave();
            return None;
        }
        Some((sock, fd))
    }

    /// Empties the slot and returns what [`Offer::standing`] does.
    pub(crate) fn take(&self) -> Option<(&'static Sock, i32)> {
        let cookie = self.cookie.load(Ordering::Acquire);
        let standing = self.standing();
        self.claim(cookie);
        standing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_filled_again_is_not_emptied_for_the_offer_before() {
        let _alone = crate::ALONE.lock().unwrap();
        let (_ends, fd, sock) = fd_table::tracked_for_test();
        let slot = free().unwrap();
        slot.fill(sock, fd, 1);
        let found = find(1).unwrap();
        assert!(std::ptr::eq(slot, found));
        assert_eq!((slot.claim(1), slot.claim(1), unsent().count()), (Some(false), None, 0));
        slot.fill(sock, fd, 2);
        assert!(found.claim(1).is_none() && find(1).is_none() && any());
        slot.sent();
        slot.sent();
        assert_eq!((unsent().count(), UNSENT_ONES.load(Ordering::Relaxed)), (0, 0));
        assert_eq!((find(2).unwrap().claim(2), any()), (Some(true), false));
        assert!(std::ptr::eq(free().unwrap(), slot));
    }
}
