//! Taking a record out of the ring: decoded in place where it came whole.

use super::segment::LAST;
use super::writer::{MOST_SPARE, WORD};
use super::{Broken, Channel, MAX_RECORD};
use crate::counters::{self, Counter};
use std::ptr::NonNull;
use vmmc::mem::copy;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// A whole record. Valid until [`Channel::release`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// First byte: in the ring, where the peer may change what it says at any time, or in our
    /// own memory.
    pub(crate) start: NonNull<u8>,
    /// Length in bytes.
    pub(crate) len: usize,
}

impl Channel {
    /// The next record, if it is there whole. Pieces are put together in memory of our own. The
    /// record stays until [`Channel::release`].
    pub(crate) fn next_record(&mut self) -> Result<Option<Incoming>, Broken> {
        debug_assert!(self.handed_out.is_none());
        loop {
            let available = self.rx().available()?;
            if available == 0 {
                return Ok(None);
            }
            let (start, len, last) = self.fragment(available)?;
            let taken = WORD + len.next_multiple_of(4);
            if last && self.assembly.is_empty() {
                counters::one(Counter::received_records);
                counters::add(Counter::received_bytes, len as u64);
                self.handed_out = Some((self.own.head().load(Ordering::Relaxed), taken));
                return Ok(Some(Incoming { start, len }));
            }
            if self.assembly.len() + len > MAX_RECORD {
                return Err(Broken::TooLong);
            }
            let at = self.assembly.len();
            self.assembly.reserve(len);
            let target = self.assembly.spare_capacity_mut().as_mut_ptr().cast::<u8>();
            // SAFETY: `fragment` has checked that `len` bytes are in the ring; `reserve` that there
            // is room for them.
            unsafe { copy::bytes(start.as_ptr(), target, len) };
            // SAFETY: these bytes have just been written, within the capacity.
            unsafe { self.assembly.set_len(at + len) };
            counters::add(Counter::assembled_bytes, len as u64);
            self.take(taken);
            if last {
                counters::one(Counter::received_records);
                counters::add(Counter::received_bytes, self.assembly.len() as u64);
                self.handed_out = Some((0, 0));
                let start = NonNull::from(self.assembly.as_mut_slice()).cast();
                return Ok(Some(Incoming { start, len: self.assembly.len() }));
            }
        }
    }

    /// The fragment at the head: its bytes, their number, whether it is the last.
    fn fragment(&self, available: u64) -> Result<(NonNull<u8>, usize, bool), Broken> {
        let mask = self.segment.ring_len() as u64 - 1;
        let at = (self.own.head().load(Ordering::Relaxed) & mask) as usize;
        // SAFETY: `at` is less than the ring's length, and twice that is mapped.
        let place = unsafe { self.segment.incoming_start().add(at) };
        let mut word = [0u8; WORD];
        // SAFETY: the mirror makes four bytes accessible from any place in the ring.
        unsafe { copy::bytes(place.as_ptr(), word.as_mut_ptr(), WORD) };
        let word = u32::from_ne_bytes(word);
        let len = (word & !LAST) as usize;
        // Published whole: a length that runs past what is there is a lie.
        // An empty piece is never sent: a stream of them would keep us busy for ever.
        if (WORD + len.next_multiple_of(4)) as u64 > available || len == 0 {
            return Err(Broken::Nonsense);
        }
        // SAFETY: within the doubly mapped ring.
        Ok((unsafe { place.add(WORD) }, len, word & LAST != 0))
    }

    fn take(&self, len: usize) {
        let rx = self.rx();
        rx.taken(len);
        rx.publish();
        self.wake_for_space();
    }

    /// Is done with the record of [`Channel::next_record`]: its room is the peer's again. Does
    /// nothing when there is none.
    pub(crate) fn release(&mut self) {
        match self.handed_out.take() {
            None => {}
            Some((_, 0)) if self.assembly.capacity() <= MOST_SPARE => self.assembly.clear(),
            Some((_, 0)) => self.assembly = Vec::new(),
            Some((at, len)) => {
                // A server that forks to answer has two processes with this record: one of them
                // gives the room back.
                let end = at.wrapping_add(len as u64);
                let head = self.own.head();
                if head.compare_exchange(at, end, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    self.rx().publish();
                    self.wake_for_space();
                }
            }
        }
    }
}
