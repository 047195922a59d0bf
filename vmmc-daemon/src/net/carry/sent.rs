//! What of a segment has been sent to the other node.

use super::segment::{End, Segment};
use std::ops::ControlFlow;
use vmmc::mem::View;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::switch::mode;

/// The process has stored what cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a process says that it has put {claimed} bytes into a ring of {ring_len}")]
pub(super) struct Lie {
    claimed: u64,
    ring_len: u64,
}

/// Where what a process says is sent to: the other node's segment.
pub(super) trait Far {
    /// Why it cannot be.
    type Error;

    /// Bytes of the segment at `at` to the same place there.
    fn bytes(&self, at: usize, bytes: View<'_>) -> Result<(), Self::Error>;

    /// A word, whole, behind everything before.
    fn word(&self, at: usize, value: u64) -> Result<(), Self::Error>;

    /// The same of four bytes.
    fn word32(&self, at: usize, value: u32) -> Result<(), Self::Error>;

    /// Tells that something has come, behind it.
    fn tell(&self) -> Result<(), Self::Error>;
}

/// What of a segment has been sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Bytes of the process's ring.
    produced: u64,
    /// Bytes that the process has taken, as the far end knows.
    consumed: u64,
    /// What the process says once, as the far end knows it: that it reads by its library, that it has seen the switch,
    /// that it has closed.
    once: [u32; 3],
    /// The far end knows that the process's direction has switched to its ring.
    pub(super) switched: bool,
    /// The process's direction goes by the kernel again, or is about to: no byte of its ring is sent.
    pub(super) stops: bool,
    /// The far end's does: what the process takes is of no interest.
    pub(super) far_stops: bool,
}

/// Why a turn ended the connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed<E> {
    /// The process lies.
    #[error(transparent)]
    Lie(Lie),
    /// The far end cannot be reached.
    #[error("{0}")]
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
        // First: that it has closed is told behind all that it sent before.
        let once = self.said_once(segment);
        let begins = self.begins(segment);
        let sends = !self.stops && (near.kernel.is_none() || self.switched || begins.is_some());
        // PAIRS(tail): acquire with the release by which the process shows its bytes.
        let produced = match sends {
            true => segment.word64(near.produced).load(Ordering::Acquire),
            false => self.produced,
        };
        let consumed = match self.far_stops {
            true => self.consumed,
            false => segment.word64(segment.far.consumed).load(Ordering::Acquire),
        };
        let new = produced.wrapping_sub(self.produced);
        if new > ring_len {
            return Err(Failed::Lie(Lie { claimed: new, ring_len }));
        }
        // What the process says of what it has taken is the far end's to judge.
        let took = consumed != self.consumed;
        if new == 0 && !took && begins.is_none() && once == self.once {
            return Ok(ControlFlow::Break(()));
        }
        let places = near.kernel.map(|kernel| [near.attached, kernel.seen, kernel.closed]);
        let [attached, seen, closed] = [0, 1, 2].map(|which| {
            let changed = once.get(which) != self.once.get(which);
            let at = places.and_then(|places| places.get(which).copied())?;
            once.get(which).filter(|_| changed).map(|&value| (at, value))
        });
        for (at, value) in attached.into_iter().chain(seen) {
            far.word32(at, value).map_err(Failed::Far)?;
        }
        if took {
            far.word(segment.far.consumed, consumed).map_err(Failed::Far)?;
        }
        self.consumed = consumed;
        if let (Some(prefix), Some(kernel)) = (begins, near.kernel) {
            far.word(kernel.direction.prefix as usize, prefix).map_err(Failed::Far)?;
            far.word32(kernel.direction.mode as usize, mode::RING).map_err(Failed::Far)?;
            self.switched = true;
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
        if new > 0 {
            self.produced = produced;
            far.word(near.produced, produced).map_err(Failed::Far)?;
        }
        // Behind the last byte.
        if let Some((at, value)) = closed {
            far.word32(at, value).map_err(Failed::Far)?;
        }
        self.once = once;
        far.tell().map_err(Failed::Far)?;
        Ok(ControlFlow::Continue(new))
    }

    /// Where the process's direction has just switched to its ring: bytes that it gave to the kernel before.
    fn begins(&self, segment: &Segment) -> Option<u64> {
        let switch = segment.direction(End::Near).filter(|_| !self.switched && !self.stops)?.switch;
        // PAIRS(mode): with the release in `Switch::to_ring`.
        let has = switch.mode.load(Ordering::Acquire) == mode::RING;
        has.then(|| switch.prefix.load(Ordering::Relaxed))
    }

    /// What the process says once, now.
    fn said_once(&self, segment: &Segment) -> [u32; 3] {
        let Some(kernel) = segment.near.kernel else { return self.once };
        [segment.near.attached, kernel.seen, kernel.closed]
            .map(|at| segment.word32(at).load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::carry::segment::tests::{RING, of_sockets, segment};
    use std::cell::{Cell, RefCell};

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
        fn word32(&self, at: usize, value: u32) -> Result<(), ()> {
            self.order.borrow_mut().push(at);
            self.segment.word32(at).store(value, Ordering::Release);
            Ok(())
        }
        fn tell(&self) -> Result<(), ()> {
            self.told.set(self.told.get() + 1);
            Ok(())
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

    /// What a process says of its direction goes in the order in which the far end's may see it: that it has switched
    /// before its bytes, and that it has closed behind them.
    #[test]
    fn a_switch_goes_before_the_bytes_and_a_close_behind_them() {
        let (near, far) = (of_sockets(0), of_sockets(1));
        let (mut sent, beside) = (Sent::default(), Beside::new(&far));
        put(&near, b"not yet");
        assert_eq!(sent.forward(&near, &beside).unwrap(), ControlFlow::Break(()));
        near.direction(End::Near).unwrap().switch.to_ring(77);
        near.word32(near.near.attached).store(1, Ordering::Release);
        near.word32(near.near.kernel.unwrap().closed).store(2, Ordering::Release);
        assert_eq!(sent.forward(&near, &beside).unwrap(), ControlFlow::Continue(7));
        assert_eq!(*beside.order.borrow(), [512, 8, 32, 4096, 0, 536]);
        let standing = far.direction(End::Far).unwrap().switch.standing();
        assert_eq!(standing, vmmc_ring::switch::Standing::Ring { prefix: 77 });
        assert!(far.far_is_attached() && beside.told.get() == 1);
        assert_eq!(sent.forward(&near, &beside).unwrap(), ControlFlow::Break(()));
    }

    /// Of a direction that goes by the kernel nothing more is sent, whatever its process puts into its ring.
    #[test]
    fn a_direction_that_stops_and_one_that_is_not_taken_say_nothing() {
        let (near, far) = (of_sockets(0), of_sockets(1));
        let (mut sent, beside) = (Sent::default(), Beside::new(&far));
        near.direction(End::Near).unwrap().switch.to_ring(0);
        put(&near, b"one");
        assert_eq!(sent.forward(&near, &beside).unwrap(), ControlFlow::Continue(3));
        (sent.stops, sent.far_stops) = (true, true);
        put(&near, b"two");
        near.word64(near.far.consumed).store(9, Ordering::Release);
        assert_eq!(sent.forward(&near, &beside).unwrap(), ControlFlow::Break(()));
        assert_eq!(far.word64(far.far.consumed).load(Ordering::Acquire), 0);
    }
}
