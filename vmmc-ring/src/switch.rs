//! Moving one direction of a stream from a kernel connection to the ring, and back.
//!
//! ```text
//!   bytes of the stream   0 ......... prefix ........... prefix + end .........
//!   travel by             TCP       |  ring            |  TCP
//!   TCP carries           data      |  bells only      |  (rest of `bells`) then data
//! ```
//!
//! The sender decides. It stores `prefix` (how many bytes it has given to the kernel) and
//! then the mode, with release. After that every byte on the kernel connection is a doorbell,
//! without meaning, until it ends the ring part (*demotion*): then it stores `end` (its ring
//! position) and `bells` (how many doorbells it sent in this part), and data follows them on TCP.
//!
//! # Parts
//! A direction may have several ring parts, one after the other. The mode goes round, and each of its steps is one
//! side's to make, so neither can be a part ahead:
//!
//! ```text
//!            sender               receiver               sender               receiver
//!     TCP ─announces, switches─▶ RING ──sees──▶ SEEN ──ends──▶ RESTING ──has read all──▶ TCP ─▶ …
//!                                  └────────── takes back ────────┘  └ or ENDED, for good
//! ```
//!
//! A part that its receiver has not seen the sender may take back: nothing of it was read, so all of it goes by TCP, and a
//! receiver that went on reading there has missed nothing. Who of the two was first, one exchange of the mode decides
//! (`loom_a_part_is_seen_or_taken_back`).
//!
//! A receiver that wants no ring part says so in a word that the sender looks at. Each stores before it looks at the other's
//! word: the sender announces, the receiver asks. So either the sender leaves it, or the receiver
//! finds the announcement and waits for what follows (`loom_no_part_begins_behind_a_request`).
//!
//! # A doorbell is never taken for data
//! A receiver that has not yet seen the switch reads the kernel connection straight into the
//! program's buffer. It may do so because
//! 1. a doorbell is sent only by who took the receiver's `armed` word ([`crate::bell::take`]),
//!    and the sender stores the mode *before* it takes;
//! 2. the receiver takes the word itself ([`crate::bell::disarm`], a swap) *before* it loads the
//!    mode, and arms it again only after the read.
//!
//! If the receiver's swap comes after the sender's, it synchronises with it and sees the ring
//! mode. If it comes before, the sender finds the word unarmed and sends no bell. The loom test
//! `loom_a_bell_is_never_data` checks this, and fails with 2 turned round.

use vmmc::sync::{Ordering, fence};
use vmmc::word::Word;

/// Values of the mode word.
pub mod mode {
    /// All data travels by the kernel connection.
    pub const TCP: u32 = 0;
    /// Data from byte `prefix` on travels by the ring.
    pub const RING: u32 = 1;
    /// The ring part has ended; data travels by the kernel connection again, for good.
    pub const ENDED: u32 = 2;
    /// As [`RING`]; the receiver knows.
    pub const SEEN: u32 = 3;
    /// As [`ENDED`], but another ring part may follow once the receiver has read this one.
    pub const RESTING: u32 = 4;
    /// As [`TCP`], but the sender is about to begin a ring part, or to think better of it.
    pub const ANNOUNCED: u32 = 5;
}

/// The words of one direction. Written by its sender, but for the steps of the mode that are the receiver's.
#[derive(Clone, Copy, Debug)]
pub struct Switch<M, W> {
    /// One of [`mode`].
    pub mode: M,
    /// Bytes given to the kernel before the ring.
    pub prefix: W,
    /// Ring position at which the ring part ended.
    pub end: W,
    /// Doorbells sent in the ring part.
    pub bells: W,
}

/// How a direction stands, as its receiver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Data travels by TCP.
    Tcp,
    /// The ring follows after `prefix` bytes of TCP.
    Ring {
        /// Bytes on TCP before the ring.
        prefix: u64,
    },
    /// As `Ring`, but it ends.
    Ended {
        /// Bytes on TCP before the ring.
        prefix: u64,
        /// Ring position of the end.
        end: u64,
        /// Doorbells sent in the part, which precede the data that follows on TCP.
        bells: u64,
    },
    /// A value that no sender stores.
    Nonsense,
}

impl<M: Word<Value = u32>, W: Word<Value = u64>> Switch<M, W> {
    fn exchange(&self, from: u32, to: u32) -> bool {
        self.mode.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Sender: from byte `prefix` on, the ring.
    #[inline]
    pub fn to_ring(&self, prefix: u64) {
        self.prefix.store(prefix, Ordering::Relaxed);
        // PAIRS(mode): with the acquire in `standing`.
        self.mode.store(mode::RING, Ordering::Release);
    }

    /// Nobody reads these before the mode says so.
    #[inline]
    fn ends(&self, end: u64, bells: u64) {
        self.end.store(end, Ordering::Relaxed);
        self.bells.store(bells, Ordering::Relaxed);
    }

    /// Sender: the ring ends at position `end`, for good; `bells` doorbells were sent in this part.
    #[inline]
    pub fn to_tcp(&self, end: u64, bells: u64) {
        self.ends(end, bells);
        // PAIRS(mode): with the acquire in `standing`.
        self.mode.store(mode::ENDED, Ordering::Release);
    }

    /// Sender: announces a ring part, and looks then whether it `may` begin. True when it may: [`Switch::to_ring`] follows, or
    /// [`Switch::thinks_better`]. False, too, while the receiver has not come to the end of the part before.
    pub fn announce(&self, may: impl FnOnce() -> bool) -> bool {
        // It may be so already, by a sender that died at it.
        if !self.exchange(mode::TCP, mode::ANNOUNCED) && !self.is_announced() {
            return false;
        }
        // PAIRS(announced): with the fence in `is_announced`.
        fence(Ordering::SeqCst);
        let may = may();
        if !may {
            self.thinks_better();
        }
        may
    }

    /// Sender: what was announced does not follow.
    pub fn thinks_better(&self) {
        self.mode.store(mode::TCP, Ordering::Release);
    }

    /// Receiver, after it has stored that it wants no ring part: whether one may begin all the same, because its sender may
    /// have looked before. Asked again until not.
    pub fn is_announced(&self) -> bool {
        // PAIRS(announced): with the fence in `announce`.
        fence(Ordering::SeqCst);
        self.mode.load(Ordering::SeqCst) == mode::ANNOUNCED
    }

    /// Receiver: it knows of the ring part, which is not taken back any more. False when it was, or has ended.
    pub fn see(&self) -> bool {
        // It may know already, by a process of its side that died then.
        self.exchange(mode::RING, mode::SEEN) || self.mode.load(Ordering::Acquire) == mode::SEEN
    }

    /// Sender: whether the receiver knows of the ring part, or knew before the pump ended it.
    #[inline]
    pub fn is_seen(&self) -> bool {
        [mode::SEEN, mode::ENDED].contains(&self.mode.load(Ordering::Acquire))
    }

    /// Sender: as [`Switch::to_tcp`], but not for good, of a part that the receiver has seen.
    pub fn rest(&self, end: u64, bells: u64) {
        self.ends(end, bells);
        // PAIRS(mode): with the acquire in `standing`.
        self.mode.store(mode::RESTING, Ordering::Release);
    }

    /// Sender: as [`Switch::rest`] or, `for_good`, as [`Switch::to_tcp`], of a part that the receiver has not seen: it ends at
    /// the position `start` at which it began. False, and nothing has happened, when it has seen it now.
    pub fn take_back(&self, start: u64, bells: u64, for_good: bool) -> bool {
        self.ends(start, bells);
        // PAIRS(mode): with the acquire in `standing`.
        self.exchange(mode::RING, if for_good { mode::ENDED } else { mode::RESTING })
    }

    /// Sender: ring position up to which the kernel has what was sent again behind the end of the last part, by its count of all
    /// bytes `given` to the connection, and how many doorbells it has not.
    pub fn sent_since(&self, given: u64) -> (u64, u64) {
        let [prefix, end, bells] =
            [&self.prefix, &self.end, &self.bells].map(|word| word.load(Ordering::Relaxed));
        let after_prefix = given.wrapping_sub(prefix);
        match after_prefix.checked_sub(bells) {
            Some(sent) => (end.wrapping_add(sent), 0),
            None => (end, bells.wrapping_sub(after_prefix)),
        }
    }

    /// Whether the part has ended, and not for good.
    pub fn is_resting(&self) -> bool {
        self.mode.load(Ordering::Acquire) == mode::RESTING
    }

    /// Receiver: it has read a part to its end, and the words that the sender sets anew for the next one are as it wants them. False when the
    /// part ended for good.
    pub fn come_back(&self) -> bool {
        // PAIRS(mode): with the exchange in `announce`.
        self.exchange(mode::RESTING, mode::TCP)
    }

    /// Receiver: how it stands. To act on [`Standing::Tcp`] the caller must have taken its
    /// `armed` words before (see the module's comment).
    #[inline]
    pub fn standing(&self) -> Standing {
        // PAIRS(mode): with the releases in `to_ring`, `to_tcp`, `rest` and `take_back`.
        match self.mode.load(Ordering::Acquire) {
            mode::TCP | mode::ANNOUNCED => Standing::Tcp,
            mode::RING | mode::SEEN => {
                Standing::Ring { prefix: self.prefix.load(Ordering::Relaxed) }
            }
            mode::ENDED | mode::RESTING => Standing::Ended {
                prefix: self.prefix.load(Ordering::Relaxed),
                end: self.end.load(Ordering::Relaxed),
                bells: self.bells.load(Ordering::Relaxed),
            },
            _ => Standing::Nonsense,
        }
    }
}
