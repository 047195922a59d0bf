//! The segment of a carried connection, as the daemon of one of its ends sees it.

use crate::pump;
use vmmc::control::message::{CarriedWords, StreamShape, StreamWords};
use vmmc::mem::View;
use vmmc::sync::Ordering;
use vmmc::sys::futex;
use vmmc::sys::mmap::GuardedMapping;
use vmmc::word::{MappedU32, MappedU64, Word};
use vmmc_ring::bell;
use vmmc_ring::pump::Words;
use vmmc_ring::switch::mode;

/// What a side that has closed says ([`vmmc::control::message::KernelWords::closed_at`]): in order.
pub(super) const CLOSED: u32 = 1;
/// With a reset.
pub(super) const RESET: u32 = 2;

/// One end of a connection, as its daemon sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The process of this node.
    Near,
    /// The one of the other node.
    Far,
}

/// The words of one side: of a segment as its library lays it out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Bytes put into the ring in which the side sends.
    pub(super) produced: usize,
    /// Bytes taken out of that ring.
    pub(super) consumed: usize,
    pub(super) attached: usize,
    pub(super) armed_data: usize,
    pub(super) armed_space: usize,
    /// The ring in which the side sends.
    pub(super) ring: usize,
    pub(super) kernel: Option<KernelPlaces>,
}

/// The words of one side whose ends speak by the kernel's connection too.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelPlaces {
    /// Of the direction in which the side sends.
    pub(super) direction: StreamWords,
    pub(super) seen: usize,
    pub(super) closed: usize,
    /// Futex of the side's sender.
    pub(super) space_wait: usize,
    pub(super) leave: usize,
    pub(super) fin: usize,
    /// An error of the side's socket that its daemon was told ([`vmmc_ring::taken`]).
    pub(super) error: usize,
}

/// Both sides' of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelSides {
    /// Of the process of this node.
    pub(super) near: KernelPlaces,
    /// Of the one that the daemon stands in for.
    pub(super) far: KernelPlaces,
}

/// A mapped segment. The process that has it may store anything in it at any time.
#[derive(Debug)]
pub(super) struct Segment {
    mapping: GuardedMapping,
    pub(super) ring_len: usize,
    /// Of the process of this node.
    pub(super) near: Places,
    /// Of the one that the daemon stands in for.
    pub(super) far: Places,
}

impl Segment {
    /// `side` is the process's. The mapping is as long as control part and rings, and the shape has been checked.
    pub(super) fn new(
        mapping: GuardedMapping,
        shape: &StreamShape,
        words: &CarriedWords,
        ring_len: usize,
        side: u8,
    ) -> Segment {
        let at = |places: &[u32; 2], side: usize| places.get(side).map_or(0, |&at| at as usize);
        let kernel = |side: usize| {
            let (kernel, directions) = (words.kernel.as_ref()?, shape.words.as_ref()?);
            Some(KernelPlaces {
                direction: *directions.get(side)?,
                seen: at(&kernel.seen_at, side),
                closed: at(&kernel.closed_at, side),
                space_wait: at(&kernel.space_wait_at, side),
                leave: at(&kernel.leave_at, side),
                fin: at(&kernel.fin_at, side),
                error: at(&kernel.error_at, side),
            })
        };
        let places = |side: usize| Places {
            produced: at(&shape.produced_at, side),
            consumed: at(&words.consumed_at, side),
            attached: at(&words.attached_at, side),
            armed_data: at(&words.armed_data_at, side),
            armed_space: at(&words.armed_space_at, side),
            ring: shape.control_len as usize + side * ring_len,
            kernel: kernel(side),
        };
        let side = usize::from(side & 1);
        Segment { mapping, ring_len, near: places(side), far: places(1 - side) }
    }

    /// The words of ends that speak by the kernel's connection too.
    pub(super) fn kernel(&self) -> Option<KernelSides> {
        Some(KernelSides { near: self.near.kernel?, far: self.far.kernel? })
    }

    /// The words by which the direction of one of them is given back to the kernel.
    pub(super) fn direction(&self, of: End) -> Option<Words<MappedU32<'_>, MappedU64<'_>>> {
        let places = self.places(of);
        pump::direction(self.view(), places.produced as u32, &places.kernel?.direction)
    }

    /// Whether one of them sends by its ring.
    pub(super) fn in_ring(&self, of: End) -> bool {
        // PAIRS(mode): with the releases of `vmmc_ring::switch`.
        self.direction(of)
            .is_some_and(|words| words.switch.mode.load(Ordering::Acquire) == mode::RING)
    }

    /// The ring in which one of them sends.
    pub(super) fn ring(&self, of: End) -> View<'_> {
        match self.view().slice(self.places(of).ring, self.ring_len) {
            Ok(ring) => ring,
            Err(_) => unreachable!("a ring lies in its segment"),
        }
    }

    /// Where the segment says how much has been taken out of the ring in which one of them sends.
    pub(super) fn consumed_at(&self, of: End) -> usize {
        self.places(of).consumed
    }

    fn places(&self, of: End) -> &Places {
        match of {
            End::Near => &self.near,
            End::Far => &self.far,
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        View::of(&self.mapping)
    }

    pub(super) fn word32(&self, at: usize) -> MappedU32<'_> {
        match self.view().word32(at) {
            Ok(word) => word,
            Err(_) => unreachable!("the shape was checked before the segment was made"),
        }
    }

    pub(super) fn word64(&self, at: usize) -> MappedU64<'_> {
        match self.view().word64(at) {
            Ok(word) => word,
            Err(_) => unreachable!("the shape was checked before the segment was made"),
        }
    }

    /// The far end is there, and asleep: it wants to be rung for everything.
    pub(super) fn attach(&self) {
        self.arm();
        // Whether a program reads by its library is for its own node to say.
        if self.kernel().is_none() {
            self.word32(self.far.attached).store(1, Ordering::Release);
        }
    }

    /// If the process has said nothing yet: the far end is not met any more. Only where the ends are sockets.
    /// Whether that is so.
    pub(super) fn withdraw_if_unused(&self) -> bool {
        let (Some(kernel), Some(words)) = (self.near.kernel, self.direction(End::Near)) else {
            return false;
        };
        let silent = [self.near.attached, kernel.closed]
            .iter()
            .all(|&at| self.word32(at).load(Ordering::Acquire) == 0);
        let unused = silent && words.switch.mode.load(Ordering::Acquire) == mode::TCP;
        if unused {
            self.word32(self.far.attached).store(0, Ordering::Release);
        }
        unused
    }

    /// Says how the process has closed, if it is gone and could not: with a reset if it has left something unread. Whether that is so.
    pub(super) fn close_for_process(&self) -> bool {
        let (Some(kernel), Some(far)) = (self.near.kernel, self.direction(End::Far)) else {
            return false;
        };
        let far_in_ring = self.in_ring(End::Far);
        if far_in_ring || self.in_ring(End::Near) {
            let (tail, head) = (far.tail.load(Ordering::Acquire), far.head.load(Ordering::Acquire));
            let how = if far_in_ring && tail != head { RESET } else { CLOSED };
            let closed = self.word32(kernel.closed);
            let said = closed.compare_exchange(0, how, Ordering::SeqCst, Ordering::SeqCst);
            return said.is_ok() && how == RESET;
        }
        false
    }

    /// Whether the far end's process has attached, as far as is known here.
    pub(super) fn far_is_attached(&self) -> bool {
        self.word32(self.far.attached).load(Ordering::Acquire) != 0
    }

    /// Says that the far end wants to be rung. The caller looks once more after this.
    pub(super) fn arm(&self) {
        self.word32(self.far.armed_space).store(1, Ordering::Release);
        bell::arm(&self.word32(self.far.armed_data));
    }

    /// After something of the far end has come into the segment: wakes a thread of the process that sleeps on a futex in
    /// it, until there is room.
    pub(super) fn wake_sender(&self) {
        let Some(kernel) = self.near.kernel else { return };
        let word = self.word32(kernel.space_wait);
        bell::published();
        if bell::take(&word) {
            futex::wake_all(word);
        }
    }

    /// After something of the far end has come into the segment: whether the process is to be rung.
    pub(super) fn wakes_process(&self) -> bool {
        bell::published();
        let near = &self.near;
        // A doorbell that is a byte of the connection is one only once that way has switched.
        if near.kernel.is_some() && !self.in_ring(End::Far) {
            return false;
        }
        let unattached =
            near.kernel.is_none() && self.word32(near.attached).load(Ordering::Acquire) == 0;
        let for_data = bell::take(&self.word32(near.armed_data));
        let for_space = bell::take(&self.word32(near.armed_space));
        unattached || for_data || for_space
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use vmmc::control::message::KernelWords;
    use vmmc::sys::memfd;
    use vmmc::sys::mmap::Access;

    pub(in crate::net::carry) const SHAPE: StreamShape = StreamShape {
        version: 1,
        control_len: 4096,
        produced_at: [0, 256],
        words: None,
        bells: true,
        carried: None,
    };
    const WORDS: CarriedWords = CarriedWords {
        consumed_at: [128, 384],
        attached_at: [512, 640],
        armed_data_at: [516, 644],
        armed_space_at: [520, 648],
        kernel: None,
    };
    pub(in crate::net::carry) const RING: usize = 4096;
    const LEN: usize = 4096 + 2 * RING;

    fn mapped(shape: &StreamShape, words: &CarriedWords, side: u8) -> Segment {
        let memory = memfd::create("test", LEN as u64).unwrap();
        let mapping = GuardedMapping::new(&memory, LEN, Access::ReadWrite).unwrap();
        Segment::new(mapping, shape, words, RING, side)
    }

    /// One whose ends say everything in it.
    pub(in crate::net::carry) fn segment(side: u8) -> Segment {
        mapped(&SHAPE, &WORDS, side)
    }

    /// One whose ends speak by the kernel's connection too.
    pub(in crate::net::carry) fn of_sockets(side: u8) -> Segment {
        let direction = |at: u32, peer: u32| StreamWords {
            request: peer + 16,
            mode: at + 32,
            prefix: at + 8,
            end: at + 16,
            final_bells: at + 24,
            consumed: at + 128,
            bells: at + 40,
            owed: at + 48,
            pumped: at + 56,
            pumper: at + 64,
        };
        let kernel = KernelWords {
            seen_at: [532, 660],
            closed_at: [536, 664],
            space_wait_at: [540, 668],
            leave_at: [544, 672],
            fin_at: [548, 676],
            error_at: [552, 680],
        };
        let words = Some([direction(0, 640), direction(256, 512)]);
        let shape = StreamShape { words, bells: false, ..SHAPE };
        mapped(&shape, &CarriedWords { kernel: Some(kernel), ..WORDS }, side)
    }

    #[test]
    fn a_process_is_rung_until_it_has_attached_and_then_when_it_sleeps() {
        let near = segment(0);
        assert!(near.wakes_process(), "it may not have looked yet");
        near.word32(512).store(1, Ordering::Release);
        assert!(!near.wakes_process());
        near.word32(516).store(1, Ordering::Release);
        assert!(near.wakes_process() && !near.wakes_process(), "once for each sleep");
        near.word32(520).store(1, Ordering::Release);
        assert!(near.wakes_process() && !near.wakes_process());
        // And it rings the far end, which is always asleep.
        near.attach();
        let far_words = [640, 644, 648].map(|at| near.word32(at).load(Ordering::Acquire));
        assert_eq!(far_words, [1, 1, 1]);
    }

    /// A doorbell is a byte of the connection, and would be data before its direction has switched.
    #[test]
    fn a_process_with_a_socket_is_rung_once_the_other_way_goes_by_its_ring() {
        let near = of_sockets(0);
        near.attach();
        assert!(!near.far_is_attached(), "that its own node says");
        near.word32(516).store(1, Ordering::Release);
        assert!(!near.wakes_process());
        near.direction(End::Far).unwrap().switch.to_ring(0);
        assert!(near.wakes_process() && !near.wakes_process(), "once, and not lost before");
    }
}
