//! The words that two daemons send each other about one connection.

/// What two daemons say to each other while they open a connection: the last word of a message without bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// "I have your segment": mine is there.
    Met,
    /// "My process is this user's."
    Greeting {
        /// User id on the node that says it.
        uid: u32,
    },
    /// "It is carried from now on", by the end that is side 0.
    Agreed,
    // Afterwards, and only where the ends speak by the kernel's connection too:
    /// "Send so many doorbells, by your process's socket": mine sleeps, and I have counted them.
    Ring(u32),
    /// "Mine wants yours to send by the kernel."
    WantKernel,
    /// "It does, and will": the answer where it had not switched to its ring.
    Taken,
    /// "Mine sends no more by its ring": end it where yours stands, so that what is behind comes by the kernel, but as much
    /// as mine takes without waiting at most; then say [`Said::Stop`].
    End {
        /// That much, in bytes.
        room: u32,
    },
    /// "Mine takes nothing more out of the ring, and knows it": what is behind the position that I have given you is to
    /// come by the kernel.
    Stop,
}

const GREETING: u64 = 1 << 32;
const AGREED: u64 = 2 << 32;
const RING: u64 = 3 << 32;
const WANT_KERNEL: u64 = 4 << 32;
const TAKEN: u64 = 5 << 32;
const END: u64 = 6 << 32;
const STOP: u64 = 7 << 32;
const MET: u64 = 8 << 32;

impl Said {
    pub(super) fn word(self) -> u64 {
        match self {
            Said::Met => MET,
            Said::Greeting { uid } => GREETING | u64::from(uid),
            Said::Agreed => AGREED,
            Said::Ring(count) => RING | u64::from(count),
            Said::WantKernel => WANT_KERNEL,
            Said::Taken => TAKEN,
            Said::End { room } => END | u64::from(room),
            Said::Stop => STOP,
        }
    }

    pub(super) fn of(word: u64) -> Option<Said> {
        match word & !u64::from(u32::MAX) {
            MET => Some(Said::Met),
            GREETING => Some(Said::Greeting { uid: word as u32 }),
            AGREED => Some(Said::Agreed),
            RING => Some(Said::Ring(word as u32)),
            WANT_KERNEL => Some(Said::WantKernel),
            TAKEN => Some(Said::Taken),
            END => Some(Said::End { room: word as u32 }),
            STOP => Some(Said::Stop),
            _ => None,
        }
    }
}
