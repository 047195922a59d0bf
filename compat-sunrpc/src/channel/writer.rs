//! Putting a record into the ring: encoded in place, published once at its end (R3, R7).
//!
//! ```text
//!   ring   ... | word | bytes encoded in place ...... |     one fragment, published whole
//!   spill                                              ..... what found no room, in pieces later
//! ```
//!
//! Nothing is visible before the end of the record, so an encoding that fails, or an unwinding
//! program, leaves nothing behind; and any earlier place can still be overwritten
//! (`XDR_SETPOS`).

use super::segment::LAST;
use super::{Broken, Channel, MAX_RECORD};
use crate::counters::{self, Counter};
use crate::settings;
use std::ptr::NonNull;
use std::time::Instant;
use vmmc::mem::copy;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// Bytes of a fragment's word.
pub(super) const WORD: usize = 4;
/// Room that a piece needs: its word and some bytes.
pub(super) const LEAST_ROOM: u64 = 64;
/// Most memory that a channel keeps for the next record that does not lie in the ring whole.
pub(super) const MOST_SPARE: usize = 2 << 20;

/// A record being encoded. It ends in [`Channel::submit`], or is dropped and was never there.
#[derive(Debug)]
pub(crate) struct Writer {
    /// Where the record's first byte goes in the ring (the word is before it); `room` bytes are
    /// free from there, contiguous thanks to the mirror.
    body: NonNull<u8>,
    /// A multiple of four; 0: everything is spilled.
    room: usize,
    spill: Vec<u8>,
    at: usize,
    /// Highest position reached.
    len: usize,
}

impl Writer {
    /// Bytes before the next value.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Goes back (or forth again) to a place that has been written. False when it has not.
    pub(crate) fn set_position(&mut self, at: usize) -> bool {
        if at > self.len {
            return false;
        }
        self.at = at;
        true
    }

    /// Where the next `len` bytes are encoded by the caller itself, at once; they count as
    /// written. `None` when they are not in one piece, or too many.
    pub(crate) fn inline(&mut self, len: usize) -> Option<NonNull<u8>> {
        let end = self.at.checked_add(len).filter(|&end| end <= MAX_RECORD)?;
        let place = if end <= self.room {
            // SAFETY: `end` is within the free room of the ring.
            unsafe { self.body.add(self.at) }
        } else if self.at >= self.room {
            let from = self.at - self.room;
            if self.spill.len() < from + len {
                self.spill.resize(from + len, 0);
            }
            NonNull::from(self.spill.get_mut(from..)?.first_mut()?)
        } else {
            return None;
        };
        self.advance(end);
        Some(place)
    }

    /// Appends bytes. False when the record gets too long.
    pub(crate) fn put(&mut self, source: &[u8]) -> bool {
        let Some(end) = self.at.checked_add(source.len()).filter(|&end| end <= MAX_RECORD) else {
            return false;
        };
        let in_ring = source.len().min(self.room.saturating_sub(self.at));
        let (first, rest) = source.split_at(in_ring);
        if !first.is_empty() {
            // SAFETY: `at + in_ring <= room`, all free room of the ring.
            let place = unsafe { self.body.add(self.at) };
            // SAFETY: as above; the source is the caller's own memory.
            unsafe { copy::bytes(first.as_ptr(), place.as_ptr(), first.len()) };
        }
        if !rest.is_empty() {
            let from = (self.at + in_ring) - self.room;
            let over = self.spill.len().saturating_sub(from).min(rest.len());
            let (again, new) = rest.split_at(over);
            if let Some(old) = self.spill.get_mut(from..from + over) {
                old.copy_from_slice(again);
            }
            self.spill.extend_from_slice(new);
        }
        self.advance(end);
        true
    }

    fn advance(&mut self, end: usize) {
        self.at = end;
        self.len = self.len.max(end);
    }
}

impl Channel {
    /// Begins a record in the room there is. `in_memory`: nothing of it is put into the ring
    /// before it is complete (a wrapping that goes back far).
    pub(crate) fn writer(&mut self, in_memory: bool) -> Result<Writer, Broken> {
        let mut room = self.tx().room_seen();
        if room < self.segment.ring_len() as u64 / 2 {
            room = self.tx().room()?;
        }
        let behind = self.backlog_at < self.backlog.len();
        let in_memory = in_memory || settings::is_deliberate();
        let room = if in_memory || behind || room < LEAST_ROOM { 0 } else { room as usize };
        let mask = self.segment.ring_len() as u64 - 1;
        let at = (self.own.tail().load(Ordering::Relaxed) & mask) as usize;
        // SAFETY: `at` is less than the ring's length, and twice that is mapped.
        let start = unsafe { self.segment.outgoing_start().add(at) };
        // SAFETY: as above: WORD is less than the ring's length.
        let body = unsafe { start.add(WORD) };
        let room = room.saturating_sub(WORD) & !3;
        let mut spill = std::mem::take(&mut self.spare);
        spill.clear();
        Ok(Writer { body, room, spill, at: 0, len: 0 })
    }

    /// Ends a record and shows it to the peer. What found no room goes to the backlog.
    pub(crate) fn submit(&mut self, writer: Writer) {
        counters::one(Counter::sent_records);
        counters::add(Counter::sent_bytes, writer.len as u64);
        let in_ring = writer.len.min(writer.room);
        if writer.spill.is_empty() && writer.room > 0 {
            self.spare = writer.spill;
            self.put_fragment(in_ring, true);
            return;
        }
        counters::add(Counter::spilled_bytes, writer.spill.len() as u64);
        if in_ring > 0 {
            self.put_fragment(in_ring, false);
        }
        if self.put_whole(&writer.spill) {
            self.keep(writer.spill);
            return;
        }
        self.backlog.push_back(writer.spill);
    }

    /// Puts the rest of a record into the ring as one fragment, if there is room for it now.
    fn put_whole(&self, bytes: &[u8]) -> bool {
        let need = (WORD + bytes.len().next_multiple_of(4)) as u64;
        // A lie about the room is found at the next record.
        let fits = !bytes.is_empty() && self.tx().room().is_ok_and(|room| need <= room);
        if !fits || self.is_behind() {
            return false;
        }
        // SAFETY: there is room for the word and these bytes, which are our own.
        unsafe { self.put_copy(bytes.as_ptr(), bytes.len(), true) };
        true
    }

    /// Copies `len` bytes behind the tail's word and publishes them.
    ///
    /// # Safety
    /// There must be room for the word and the bytes, which must be readable.
    unsafe fn put_copy(&self, bytes: *const u8, len: usize, last: bool) {
        let mask = self.segment.ring_len() as u64 - 1;
        let at = (self.own.tail().load(Ordering::Relaxed) & mask) as usize + WORD;
        // SAFETY: `at` is at most the ring's length, and twice that is mapped.
        let place = unsafe { self.segment.outgoing_start().add(at) };
        // SAFETY: the caller's word, for both sides.
        unsafe { copy::bytes(bytes, place.as_ptr(), len) };
        self.put_fragment(len, last);
    }

    /// Publishes `len` bytes that lie behind the word at the tail.
    fn put_fragment(&self, len: usize, last: bool) {
        let tx = self.tx();
        let mask = self.segment.ring_len() as u64 - 1;
        let at = (self.own.tail().load(Ordering::Relaxed) & mask) as usize;
        let word = len as u32 | if last { LAST } else { 0 };
        // SAFETY: `at` is less than the ring's length, and twice that is mapped.
        let place = unsafe { self.segment.outgoing_start().add(at) };
        // SAFETY: the caller found room for the word and its bytes.
        unsafe { copy::bytes(word.to_ne_bytes().as_ptr(), place.as_ptr(), WORD) };
        tx.filled(WORD + len.next_multiple_of(4));
        tx.publish();
        self.wake_for_data();
    }

    /// Whether pieces wait for room.
    pub(crate) fn is_behind(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Puts as much of the backlog into the ring as has room. True when nothing is left.
    pub(crate) fn flush(&mut self) -> Result<bool, Broken> {
        while let Some(rest) = self.backlog.front().and_then(|it| it.get(self.backlog_at..)) {
            let room = self.tx().room()?;
            if room < LEAST_ROOM {
                return Ok(false);
            }
            let piece = rest.len().min((room as usize - WORD) & !3);
            let (bytes, last) = (rest.as_ptr(), piece == rest.len());
            // SAFETY: there is room for the word and `piece` bytes, which are our own.
            unsafe { self.put_copy(bytes, piece, last) };
            self.backlog_at += piece;
            if last {
                self.backlog_at = 0;
                if let Some(done) = self.backlog.pop_front() {
                    self.keep(done);
                }
            }
        }
        Ok(true)
    }

    /// Memory for the next record that needs some; a very large one may be never seen again.
    pub(super) fn keep(&mut self, memory: Vec<u8>) {
        if memory.capacity() <= MOST_SPARE {
            self.spare = memory;
        }
    }

    /// Puts all of the backlog into the ring, waiting for room.
    pub(crate) fn flush_all(
        &mut self,
        bell: &vmmc::sys::doorbell::Doorbell,
        socket: std::os::fd::BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Broken> {
        while !self.flush()? {
            self.wait_room(bell, socket, deadline)?;
        }
        Ok(())
    }
}
