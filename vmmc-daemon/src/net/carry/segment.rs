//! The segment of a carried connection, as the daemon of one of its ends sees it.

use std::ops::ControlFlow;
use vmmc::control::message::{CarriedWords, StreamShape};
use vmmc::mem::View;
use vmmc::sync::Ordering;
use vmmc::sys::mmap::GuardedMapping;
use vmmc::word::{MappedU32, MappedU64, Word};
use vmmc_ring::bell;

/// The words of one side: of a segment as its library lays it out.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// Bytes put into the ring in which the side sends.
    produced: usize,
    /// Bytes taken out of that ring.
    consumed: usize,
    attached: usize,
    armed_data: usize,
    armed_space: usize,
    /// The ring in which the side sends.
    ring: usize,
}

/// A mapped segment. The process that has it may store anything in it at any time.
#[derive(Debug)]
pub(super) struct Segment {
    mapping: GuardedMapping,
    ring_len: usize,
    /// Of the process of this node.
    near: Places,
    /// Of the one that the daemon stands in for.
    far: Places,
}

/// The process has stored what cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a process says that it has put {claimed} bytes into a ring of {ring_len}")]
pub(super) struct Lie {
    claimed: u64,
    ring_len: u64,
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
        let places = |side: usize| Places {
            produced: at(&shape.produced_at, side),
            consumed: at(&words.consumed_at, side),
            attached: at(&words.attached_at, side),
            armed_data: at(&words.armed_data_at, side),
            armed_space: at(&words.armed_space_at, side),
            ring: shape.control_len as usize + side * ring_len,
        };
        let side = usize::from(side & 1);
        Segment { mapping, ring_len, near: places(side), far: places(1 - side) }
    }

    fn view(&self) -> View<'_> {
        View::of(&self.mapping)
    }

    fn word32(&self, at: usize) -> MappedU32<'_> {
        match self.view().word32(at) {
            Ok(word) => word,
            Err(_) => unreachable!("the shape was checked before the segment was made"),
        }
    }

    fn word64(&self, at: usize) -> MappedU64<'_> {
        match self.view().word64(at) {
            Ok(word) => word,
            Err(_) => unreachable!("the shape was checked before the segment was made"),
        }
    }

    /// The far end is there, and asleep: it wants to be rung for everything.
    pub(super) fn attach(&self) {
        self.arm();
        self.word32(self.far.attached).store(1, Ordering::Release);
    }

    /// Says that the far end wants to be rung. The caller looks once more after this.
    pub(super) fn arm(&self) {
        self.word32(self.far.armed_space).store(1, Ordering::Release);
        bell::arm(&self.word32(self.far.armed_data));
    }

    /// After something of the far end has come into the segment: whether the process is to be rung.
    pub(super) fn wakes_process(&self) -> bool {
        bell::published();
        let near = &self.near;
        let unattached = self.word32(near.attached).load(Ordering::Acquire) == 0;
        let for_data = bell::take(&self.word32(near.armed_data));
        let for_space = bell::take(&self.word32(near.armed_space));
        unattached || for_data || for_space
    }
}

/// Where what a process says is sent to: the other node's segment.
pub(super) trait Far {
    /// Why it cannot be.
    type Error;

    /// Bytes of the segment at `at` to the same place there.
    fn bytes(&self, at: usize, bytes: View<'_>) -> Result<(), Self::Error>;

    /// A word, whole, behind everything before.
    fn word(&self, at: usize, value: u64) -> Result<(), Self::Error>;

    /// A word, behind everything before, and that it is there is told.
    fn last_word(&self, at: usize, value: u64) -> Result<(), Self::Error>;
}

/// What of a segment has been sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Bytes of the process's ring.
    produced: u64,
    /// Bytes that the process has taken, as the far end knows.
    consumed: u64,
}

/// Why a turn ended the connection.
#[derive(Debug)]
pub(super) enum Failed<E> {
    /// The process lies.
    Lie(Lie),
    /// The far end cannot be reached.
    Far(E),
}

impl Sent {
    /// Sends what is new, once. Break: nothing was; otherwise how many bytes of the ring went.
    pub(super) fn forward<F: Far>(
        &mut self,
        segment: &Segment,
        far: &F,
    ) -> Result<ControlFlow<(), u64>, Failed<F::Error>> {
        let (near, ring_len) = (&segment.near, segment.ring_len as u64);
        // PAIRS(tail): acquire with the release by which the process shows its bytes.
        let produced = segment.word64(near.produced).load(Ordering::Acquire);
        let consumed = segment.word64(segment.far.consumed).load(Ordering::Acquire);
        let new = produced.wrapping_sub(self.produced);
        if new > ring_len {
            return Err(Failed::Lie(Lie { claimed: new, ring_len }));
        }
        // What the process says of what it has taken is the far end's to judge.
        let took = consumed != self.consumed;
        if new == 0 && !took {
            return Ok(ControlFlow::Break(()));
        }
        self.consumed = consumed;
        if new == 0 {
            far.last_word(segment.far.consumed, consumed).map_err(Failed::Far)?;
            return Ok(ControlFlow::Continue(0));
        }
        if took {
            far.word(segment.far.consumed, consumed).map_err(Failed::Far)?;
        }
        let mut at = self.produced;
        while at != produced {
            let from = (at & (ring_len - 1)) as usize;
            let len = (segment.ring_len - from).min(produced.wrapping_sub(at) as usize);
            match segment.view().slice(near.ring + from, len) {
                Ok(bytes) => far.bytes(near.ring + from, bytes).map_err(Failed::Far)?,
                Err(_) => unreachable!("a ring lies in its segment"),
            }
            at = at.wrapping_add(len as u64);
        }
        self.produced = produced;
        far.last_word(near.produced, produced).map_err(Failed::Far)?;
        Ok(ControlFlow::Continue(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use vmmc::sys::memfd;
    use vmmc::sys::mmap::Access;

    const SHAPE: StreamShape = StreamShape {
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
    };
    const RING: usize = 4096;
    const LEN: usize = 4096 + 2 * RING;

    fn segment(side: u8) -> Segment {
        let memory = memfd::create("test", LEN as u64).unwrap();
        let mapping = GuardedMapping::new(&memory, LEN, Access::ReadWrite).unwrap();
        Segment::new(mapping, &SHAPE, &WORDS, RING, side)
    }

    /// The other node, here.
    struct Beside<'s> {
        segment: &'s Segment,
        told: Cell<u32>,
        order: RefCell<Vec<usize>>,
    }

    impl<'s> Beside<'s> {
        fn new(segment: &'s Segment) -> Beside<'s> {
            Beside { segment, told: Cell::new(0), order: RefCell::default() }
        }
    }

    impl Far for Beside<'_> {
        type Error = ();
        fn bytes(&self, at: usize, bytes: View<'_>) -> Result<(), ()> {
            self.order.borrow_mut().push(at);
            self.segment.view().write_from(at, bytes).map_err(drop)
        }
        fn word(&self, at: usize, value: u64) -> Result<(), ()> {
            self.order.borrow_mut().push(at);
            self.segment.word64(at).store(value, Ordering::Release);
            Ok(())
        }
        fn last_word(&self, at: usize, value: u64) -> Result<(), ()> {
            self.told.set(self.told.get() + 1);
            self.word(at, value)
        }
    }

    /// The process of side 0 puts bytes into its ring.
    fn put(segment: &Segment, bytes: &[u8]) {
        let produced = segment.word64(0);
        let from = produced.load(Ordering::Relaxed);
        for (at, &byte) in (from..).zip(bytes) {
            segment.view().write(4096 + at as usize % RING, &[byte]).unwrap();
        }
        produced.store(from + bytes.len() as u64, Ordering::Release);
    }

    #[test]
    fn what_a_process_puts_in_comes_out_of_the_other_segment_at_the_same_place() {
        let (near, far) = (segment(0), segment(1));
        let (mut sent, beside) = (Sent::default(), Beside::new(&far));
        assert!(matches!(sent.forward(&near, &beside), Ok(ControlFlow::Break(()))));
        let mut expected = Vec::new();
        for (turn, len) in [1usize, 4000, 200, 4096, 17].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + turn) as u8).collect();
            put(&near, &bytes);
            let went = sent.forward(&near, &beside).unwrap();
            assert_eq!(went, ControlFlow::Continue(len as u64));
            let end = far.word64(0).load(Ordering::Acquire);
            let mut found = vec![0; len];
            for (at, byte) in (end - len as u64..).zip(&mut found) {
                far.view().read(4096 + at as usize % RING, std::slice::from_mut(byte)).unwrap();
            }
            assert_eq!(found, bytes);
            expected.extend(bytes);
            assert_eq!(end, expected.len() as u64);
        }
        assert_eq!(beside.told.get(), 5, "told once for each");
        assert_eq!(beside.order.borrow().last(), Some(&0), "the position comes last");
    }

    #[test]
    fn room_that_a_process_gives_back_goes_before_its_bytes_and_alone() {
        let (near, far) = (segment(0), segment(1));
        let (mut sent, beside) = (Sent::default(), Beside::new(&far));
        near.word64(384).store(100, Ordering::Release);
        assert_eq!(sent.forward(&near, &beside).unwrap(), ControlFlow::Continue(0));
        assert_eq!(far.word64(384).load(Ordering::Acquire), 100);
        near.word64(384).store(150, Ordering::Release);
        put(&near, b"more");
        assert_eq!(sent.forward(&near, &beside).unwrap(), ControlFlow::Continue(4));
        assert_eq!(*beside.order.borrow(), [384, 384, 4096, 0]);
        assert_eq!(beside.told.get(), 2);
    }

    #[test]
    fn a_process_that_claims_more_than_a_ring_ends_its_connection() {
        for claimed in [RING as u64 + 1, u64::MAX] {
            let (near, far) = (segment(0), segment(1));
            near.word64(0).store(claimed, Ordering::Release);
            let failed = Sent::default().forward(&near, &Beside::new(&far));
            assert!(matches!(failed, Err(Failed::Lie(_))), "{claimed}");
        }
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
}
