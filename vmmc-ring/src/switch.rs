//! Moving one direction of a stream from a kernel connection to the ring, and back.
//!
//! ```text
//!   bytes of the stream   0 ......... prefix ........... prefix + end .........
//!   travel by             TCP       |  ring            |  TCP
//!   TCP carries           data      |  bells only      |  (rest of `bells`) then data
//! ```
//!
//! The sender decides. It stores `prefix` (how many data bytes it has given to the kernel) and
//! then the mode, with release. After that every byte on the kernel connection is a doorbell,
//! without meaning, until it ends the ring part (*demotion*): then it stores `end` (its ring
//! position) and `bells` (how many doorbells it ever sent), and data follows them on TCP.
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

use vmmc::sync::Ordering;
use vmmc::word::Word;

/// Values of the mode word.
pub mod mode {
    /// All data travels by the kernel connection.
    pub const TCP: u32 = 0;
    /// Data from byte `prefix` on travels by the ring.
    pub const RING: u32 = 1;
    /// The ring part has ended; data travels by the kernel connection again.
    pub const ENDED: u32 = 2;
}

/// The words of one direction. Written by its sender.
#[derive(Clone, Copy, Debug)]
pub struct Switch<M, W> {
    /// One of [`mode`].
    pub mode: M,
    /// Data bytes given to the kernel before the ring.
    pub prefix: W,
    /// Ring position at which the ring part ended.
    pub end: W,
    /// Doorbells ever sent in this direction.
    pub bells: W,
}

/// How a direction stands, as its receiver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Data travels by TCP.
    Tcp,
    /// The ring follows after `prefix` bytes of TCP.
    Ring {
        /// Data bytes on TCP before the ring.
        prefix: u64,
    },
    /// As `Ring`, but it ends.
    Ended {
        /// Data bytes on TCP before the ring.
        prefix: u64,
        /// Ring position of the end.
        end: u64,
        /// Doorbells ever sent, which precede the data that follows on TCP.
        bells: u64,
    },
    /// A value that no sender stores.
    Nonsense,
}

impl<M: Word<Value = u32>, W: Word<Value = u64>> Switch<M, W> {
    /// Sender: from data byte `prefix` on, the ring.
    #[inline]
    pub fn to_ring(&self, prefix: u64) {
        self.prefix.store(prefix, Ordering::Relaxed);
        // PAIRS(mode): with the acquire in `standing`.
        self.mode.store(mode::RING, Ordering::Release);
    }

    /// Sender: the ring ends at position `end`; `bells` doorbells were sent in all.
    #[inline]
    pub fn to_tcp(&self, end: u64, bells: u64) {
        self.end.store(end, Ordering::Relaxed);
        self.bells.store(bells, Ordering::Relaxed);
        // PAIRS(mode): with the acquire in `standing`.
        self.mode.store(mode::ENDED, Ordering::Release);
    }

    /// Receiver: how it stands. To act on [`Standing::Tcp`] the caller must have taken its
    /// `armed` words before (see the module's comment).
    #[inline]
    pub fn standing(&self) -> Standing {
        // PAIRS(mode): with the releases in `to_ring` and `to_tcp`.
        match self.mode.load(Ordering::Acquire) {
            mode::TCP => Standing::Tcp,
            mode::RING => Standing::Ring { prefix: self.prefix.load(Ordering::Relaxed) },
            mode::ENDED => Standing::Ended {
                prefix: self.prefix.load(Ordering::Relaxed),
                end: self.end.load(Ordering::Relaxed),
                bells: self.bells.load(Ordering::Relaxed),
            },
            _ => Standing::Nonsense,
        }
    }
}
