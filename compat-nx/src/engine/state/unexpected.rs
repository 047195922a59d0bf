//! Messages that came before a receive was posted for them.

use crate::engine::layout::Scout;
use crate::engine::ops::Head;

/// Where an unexpected message is.
pub(super) enum Body {
    /// Still in its slot.
    Slot { slot: usize },
    /// In the sender's safe copy, now or soon.
    Staged(Scout),
    /// Here.
    Here(Box<[u8]>),
}

/// A message that no receive was posted for.
pub(super) struct Unexpected {
    pub(super) head: Head,
    /// The process it came from.
    pub(super) from: usize,
    pub(super) body: Body,
}
