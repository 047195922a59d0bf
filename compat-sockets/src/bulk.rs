//! When a connection that carries one long message is offered: after how many bytes.
//!
//! An offer, and a segment, cost both ends what a megabyte or two by TCP cost, and one long answer earns that back only if much of
//! it is still to come, which nobody can know. So a process goes by what its connections were like lately: each that was
//! offered and ended before a ring paid doubles the bytes after which the next ones are offered; one that was long enough, by ring or
//! not, sets them back. The two ends learn each for itself. Where they differ, the offer of one waits for the other's.

use vmmc::sync::{AtomicU32, Ordering};

/// Data bytes at which a connection is offered even before enough calls.
const FIRST_TRY_BYTES: u32 = 1 << 20;
/// Bytes of a call at which many are no conversation but one long message, which its bytes count for.
const LONG: u32 = 4 * 1024;
/// Bytes of a connection for which a ring has paid.
const PAYS: u64 = 8 << 20;
/// How often the bytes are doubled.
const MOST_DOUBLINGS: u32 = 4;

/// How often they are now.
static DOUBLINGS: AtomicU32 = AtomicU32::new(0);

/// Whether so many bytes in so many calls are one long message.
pub(crate) fn is_one(bytes: u32, calls: u32) -> bool {
    bytes / calls.max(1) >= LONG
}

/// Bytes at which a connection is offered that was offered so often in vain. They are what both ends count alike: one that
/// reads little at a time has offered long before one that sends much, in vain, and they meet at the second line.
pub(crate) fn offered_at(tries: u32) -> u32 {
    FIRST_TRY_BYTES << (DOUBLINGS.load(Ordering::Relaxed) + tries)
}

/// A connection has ended, after so many bytes and calls by TCP, and so many bytes by rings if it was offered.
pub(crate) fn ended(bytes: u32, calls: u32, by_ring: Option<u64>) {
    if bytes == 0 || !is_one(bytes, calls) {
        return;
    }
    let doublings = DOUBLINGS.load(Ordering::Relaxed);
    let learnt = lesson(doublings, u64::from(bytes), by_ring);
    if learnt != doublings {
        DOUBLINGS.store(learnt, Ordering::Relaxed);
    }
}

fn lesson(doublings: u32, by_tcp: u64, by_ring: Option<u64>) -> u32 {
    if by_tcp.saturating_add(by_ring.unwrap_or(0)) >= PAYS {
        0
    } else if by_ring.is_some() {
        (doublings + 1).min(MOST_DOUBLINGS)
    } else {
        doublings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_pay_is_offered_later_and_what_would_have_paid_at_once_again() {
        let short = 2 << 20;
        let mut doublings = 0;
        for expected in [1, 2, 3, 4, 4] {
            doublings = lesson(doublings, 1 << 20, Some(short));
            assert_eq!(doublings, expected);
        }
        assert_eq!(lesson(4, short, None), 4, "it was not offered");
        assert_eq!(lesson(4, PAYS, None), 0, "a ring would have paid");
        assert_eq!(lesson(4, 1 << 20, Some(PAYS)), 0, "it has paid");
    }
}
