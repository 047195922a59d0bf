//! The lane that we write, in the peer's memory.
//!
//! On one machine it is bound, and words are stored. To another node each word and each message is a
//! deliberate update; they arrive in the order in which they were made. What was said by two links (the
//! lane's and the door's) has no order there, so whoever interrupts a process to look at the lane
//! settles the lane first.

use super::{handshake, layout, slots};
use crate::error::StartError;
use vmmc::mem::View;
use vmmc::sync::Ordering;
use vmmc::word::{MappedU32, MappedU64, Word};
use vmmc::{Binding, Import, Rights};

/// See the module.
#[derive(Debug)]
pub(super) enum OutLane {
    /// On this machine.
    Here(Binding, Import),
    /// On another node.
    Elsewhere(Import),
}

/// Views of lanes are longer than any constant of the layout; slots are checked when a lane is opened.
pub(super) fn word64(view: View<'_>, at: usize) -> MappedU64<'_> {
    match view.word64(at) {
        Ok(word) => word,
        Err(error) => unreachable!("layout: {error}"),
    }
}

pub(super) fn word32(view: View<'_>, at: usize) -> MappedU32<'_> {
    match view.word32(at) {
        Ok(word) => word,
        Err(error) => unreachable!("layout: {error}"),
    }
}

/// What a writer may do with a lane: store to it on one machine; send to it, and read its head, on two.
pub(super) fn rights(elsewhere: bool) -> Rights {
    if elsewhere { Rights::WRITE | Rights::READ } else { Rights::WRITE | Rights::BIND }
}

/// What the head of a lane says.
pub(super) struct LaneHead {
    pub(super) stride: usize,
    pub(super) node: u32,
    pub(super) group: u32,
}

impl OutLane {
    /// Opens the lane that process `number` owns. [`StartError::Died`]: it has gone.
    pub(super) fn open(import: Import, number: u32) -> Result<(OutLane, LaneHead), StartError> {
        let failed = |import: &Import, what, reason| match import.check_open() {
            Ok(()) => StartError::SetUp { what, reason },
            Err(_) => StartError::Died { node: number },
        };
        let lane = match import.remote_node() {
            Some(_) => OutLane::Elsewhere(import),
            None => {
                let bound = import.bind(0..import.len());
                let bound =
                    bound.map_err(|error| failed(&import, "binding a lane", error.to_string()))?;
                OutLane::Here(bound, import)
            }
        };
        let mut head = [0; layout::HEAD_LEN];
        let read = match &lane {
            OutLane::Here(bound, _) => {
                bound.view().read(0, &mut head).map_err(|error| error.to_string())
            }
            OutLane::Elsewhere(import) => {
                import.read(0, &mut head).map_err(|error| error.to_string())
            }
        };
        read.map_err(|error| failed(lane.import(), "reading the head of a lane", error))?;
        let head = check(&head, lane.import().len(), number)?;
        Ok((lane, head))
    }

    /// The link to it.
    #[inline]
    pub(super) fn import(&self) -> &Import {
        match self {
            OutLane::Here(_, import) | OutLane::Elsewhere(import) => import,
        }
    }

    /// Its pages, if they are on this machine.
    #[inline]
    pub(super) fn view(&self) -> Option<View<'_>> {
        match self {
            OutLane::Here(bound, _) => Some(bound.view()),
            OutLane::Elsewhere(_) => None,
        }
    }

    /// Whether the peer is on another node.
    #[inline]
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self, OutLane::Elsewhere(_))
    }

    /// Stores a word with release. A peer that is gone is noticed elsewhere.
    #[inline]
    pub(super) fn say32(&self, at: usize, value: u32) {
        match self {
            OutLane::Here(bound, _) => handshake::say(word32(bound.view(), at), value),
            OutLane::Elsewhere(import) => {
                let _ = import.flag32(at).map(|word| word.store(value));
            }
        }
    }

    /// As [`OutLane::say32`], eight bytes.
    #[inline]
    pub(super) fn say64(&self, at: usize, value: u64) {
        match self {
            OutLane::Here(bound, _) => word64(bound.view(), at).store(value, Ordering::Release),
            OutLane::Elsewhere(import) => {
                let _ = import.flag64(at).map(|word| word.store(value));
            }
        }
    }

    /// Gives credit number `given` for `what`: see [`slots`].
    #[inline]
    pub(super) fn give(&self, given: u32, what: u32) {
        let at = layout::CREDITS + 4 * slots::index(given);
        match self {
            OutLane::Here(bound, _) => slots::give(word32(bound.view(), at), given, what),
            OutLane::Elsewhere(_) => self.say32(at, slots::credit(given, what)),
        }
    }

    /// Wakes the peer if one of its threads waits, after what was said so far.
    #[inline]
    pub(super) fn ring(&self) {
        match self {
            OutLane::Here(bound, _) => bound.ring(),
            OutLane::Elsewhere(import) => {
                let _ = import.flag32(layout::RUNG).map(|word| word.signal(1));
            }
        }
    }

    /// Returns when all that was said is in the peer's memory.
    pub(super) fn settle(&self) {
        if let OutLane::Elsewhere(import) = self {
            let _ = import.fence(); // a peer that is gone needs to see nothing
        }
    }

    #[inline]
    pub(super) fn peer_was_on(&self, cpu: u32) -> bool {
        match self {
            OutLane::Here(bound, _) => bound.peer_was_on(cpu),
            OutLane::Elsewhere(_) => false,
        }
    }
}

/// Checks the head of a lane of `len` bytes, which the peer wrote.
fn check(head: &[u8; layout::HEAD_LEN], len: usize, number: u32) -> Result<LaneHead, StartError> {
    let refuse = |reason: String| StartError::SetUp { what: "a lane of another process", reason };
    let word = |at: usize| {
        let bytes = head.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    if len < layout::SLOTS_AT {
        return Err(refuse(format!("node {number}'s is {len} bytes")));
    }
    let magic = head.get(layout::HEAD_MAGIC..).and_then(<[u8]>::first_chunk);
    if magic.map(|bytes| u64::from_ne_bytes(*bytes)) != Some(layout::MAGIC) {
        return Err(refuse(format!("node {number}'s is none")));
    }
    let version = word(layout::HEAD_VERSION);
    if version != layout::VERSION {
        let ours = layout::VERSION;
        return Err(refuse(format!("node {number} speaks version {version}, we speak {ours}")));
    }
    let stride = word(layout::HEAD_STRIDE) as usize;
    let fits = layout::STRIDES.contains(&stride)
        && stride.is_multiple_of(64)
        && layout::lane_len(stride) <= len;
    let node = word(layout::HEAD_NODE);
    match fits && i32::try_from(node).is_ok() {
        true => Ok(LaneHead { stride, node, group: word(layout::HEAD_GROUP) }),
        false => Err(refuse(format!("node {number}'s stride is {stride}, its node {node}"))),
    }
}
