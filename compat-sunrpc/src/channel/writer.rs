//! Encoding a record: in place, in the ring (R3, R7), or in memory; [`super::sending`] shows it to the peer.
//!
//! ```text
//!   ring   ... | word | bytes encoded in place ...... |     one fragment, published whole
//!
//!   a record that is longer than the room:
//!   ring   ... | word | piece | word | piece |              each published when it is full
//!   memory                                     .....        the rest, where the sender cannot wait
//! ```
//!
//! Of a record that fits nothing is visible before its end, so an encoding that fails, or an unwinding
//! program, leaves nothing behind; and any earlier place can still be overwritten (`XDR_SETPOS`). Of a
//! longer one what is in the present piece can, as with libtirpc what is in its buffer; and one that
//! fails is ended by a word that says to forget it, for which there is always room.

use super::held::Kept;
use super::{Broken, Channel, MAX_RECORD, Patience};
use crate::settings;
use std::ptr::NonNull;
use vmmc::mem::copy;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// Bytes of a fragment's word.
pub(super) const WORD: usize = 4;
/// Room that a piece needs: its word and some bytes.
pub(super) const LEAST_ROOM: u64 = 64;

/// What becomes of a record that is longer than the room for it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Long<'c> {
    /// The encoder waits for room.
    Waits(Patience<'c>),
    /// It goes in pieces while the peer keeps up, and then to memory: nobody waits.
    IsKept,
    /// It is encoded in memory, and so is every other: a wrapping that goes back far.
    InMemory,
}

/// Most bytes of a head: of a call.
const MOST_HEAD: usize = 40;

/// The first bytes of a record, which are stored together with the fragment's word: the peer looks at their line
/// at each look for the record, so every store there may have to fetch it again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// Room for the word, and then the bytes.
    bytes: [u8; WORD + MOST_HEAD],
    len: usize,
}

impl Default for Head {
    #[inline]
    fn default() -> Head {
        Head { bytes: [0; WORD + MOST_HEAD], len: 0 }
    }
}

impl Head {
    /// Stores the word of a fragment, and the head behind it.
    ///
    /// # Safety
    /// There must be room for both at `place`.
    #[inline]
    pub(super) unsafe fn store_behind(mut self, word: u32, place: NonNull<u8>) {
        if let Some(first) = self.bytes.first_chunk_mut() {
            *first = word.to_ne_bytes();
        }
        let len = WORD + self.len;
        let (from, to) = (self.bytes.as_ptr(), place.as_ptr());
        match len {
            // SAFETY: passed on.
            WORD => unsafe { copy::bytes(from, to, WORD) },
            // SAFETY: passed on: the usual answer has 24 bytes.
            28 => unsafe { copy::bytes(from, to, 28) },
            // SAFETY: passed on: the usual call has 40.
            44 => unsafe { copy::bytes(from, to, 44) },
            // SAFETY: passed on; `len` is at most the array's.
            _ => unsafe { copy::bytes(from, to, len) },
        }
    }
}

/// A record being encoded. It ends in [`Channel::submit`], or is dropped and was never there.
#[derive(Debug)]
pub(crate) struct Writer<'c> {
    channel: &'c Channel,
    long: Long<'c>,
    /// Where the present piece's first byte goes in the ring (the word is before it); `room` bytes are
    /// free from there, contiguous thanks to the mirror.
    body: NonNull<u8>,
    /// A multiple of four.
    room: usize,
    /// The present piece is memory, which grows.
    pub(super) in_memory: bool,
    pub(super) memory: Kept,
    /// The first bytes, which are not in the ring yet.
    pub(super) head: Head,
    /// Bytes of the record before the present piece: they are published.
    pub(super) base: usize,
    at: usize,
    /// Highest position reached.
    pub(super) len: usize,
    /// Why there is no further piece.
    broken: Option<Broken>,
}

impl Writer<'_> {
    /// Bytes before the next value.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Goes to a place in the present piece: back (or forth again), or ahead of what has been written, in memory by
    /// a ring's length at most. False when it is no such; then it goes nowhere.
    pub(crate) fn set_position(&mut self, at: usize) -> bool {
        if at > self.len {
            return self.leave_out(at);
        }
        let there = self.base <= at;
        if at < self.head.len {
            self.store_head();
        }
        if there {
            self.at = at;
        }
        there
    }

    /// Leaves bytes out that are written later, as libtirpc does for the length of what it signs or seals. They are
    /// zero until then.
    #[cold]
    fn leave_out(&mut self, to: usize) -> bool {
        let is_here = self.in_memory || to - self.base <= self.room;
        if !is_here || to > MAX_RECORD || to - self.len > self.channel.segment.ring_len() {
            return false;
        }
        let before = std::mem::replace(&mut self.at, self.len);
        let zeros = [0; 64];
        while self.at < to {
            let left = zeros.len().min(to - self.at);
            if !zeros.get(..left).is_some_and(|zeros| self.put(zeros)) {
                self.at = before;
                return false;
            }
        }
        true
    }

    /// Why the record cannot be encoded further, if not for what it is.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// Where the next `len` bytes are encoded by the caller itself, at once; they count as
    /// written. `None` when they are not in one piece, or too many.
    pub(crate) fn inline(&mut self, len: usize) -> Option<NonNull<u8>> {
        let end = self.at.checked_add(len).filter(|&end| end <= MAX_RECORD)?;
        let from = self.at - self.base;
        let place = if self.in_memory {
            match self.memory.place(from, len) {
                Ok(place) => NonNull::from(place).cast(),
                Err(broken) => {
                    self.broken = Some(broken);
                    return None;
                }
            }
        } else if from + len <= self.room {
            // SAFETY: within the free room of the ring.
            unsafe { self.body.add(from) }
        } else {
            return None;
        };
        self.advance(end);
        Some(place)
    }

    /// Begins the record with these words, which are stored together with its fragment's, at its end.
    #[inline]
    pub(crate) fn begin<const N: usize>(&mut self, words: [u32; N]) -> bool {
        const { assert!(4 * N <= MOST_HEAD) };
        if self.in_memory || self.at != 0 || self.room < 4 * N {
            return words.iter().all(|word| self.put(&word.to_be_bytes()));
        }
        let (_, places) = self.head.bytes.split_at_mut(WORD);
        for (place, word) in places.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        self.head.len = 4 * N;
        self.advance(4 * N);
        true
    }

    /// Stores the first bytes now: they may be written over.
    #[cold]
    fn store_head(&mut self) {
        let head = std::mem::take(&mut self.head);
        // SAFETY: `begin` found room for so many behind the word.
        unsafe {
            copy::bytes(head.bytes.as_ptr().wrapping_add(WORD), self.body.as_ptr(), head.len)
        };
    }

    /// Appends bytes. False when the record gets too long, or there is no further piece.
    #[inline]
    pub(crate) fn put(&mut self, source: &[u8]) -> bool {
        // SAFETY: the caller's own memory.
        unsafe { self.put_from(source.as_ptr(), source.len()) }
    }

    /// The same of memory that others may write: what a service was lent ([`super::lent`]).
    ///
    /// # Safety
    /// `source` must be readable for `len` bytes.
    #[inline]
    pub(crate) unsafe fn put_from(&mut self, source: *const u8, len: usize) -> bool {
        let from = self.at - self.base;
        if self.in_memory || len > self.room - from {
            // SAFETY: passed on.
            return unsafe { self.put_long(source, len) };
        }
        // SAFETY: `from` is within the room.
        let place = unsafe { self.body.add(from) };
        // SAFETY: there is room for them; the source is the caller's.
        unsafe { copy::bytes(source, place.as_ptr(), len) };
        self.advance(self.at + len);
        true
    }

    /// # Safety
    /// As [`Writer::put_from`].
    #[cold]
    unsafe fn put_long(&mut self, mut source: *const u8, mut len: usize) -> bool {
        if self.at.saturating_add(len) > MAX_RECORD {
            return false;
        }
        while !self.in_memory {
            let now = len.min(self.room - (self.at - self.base));
            // What fits into the present piece; never nothing and all at once.
            // SAFETY: `now <= len`.
            if now > 0 && (!unsafe { self.put_from(source, now) } || now == len) {
                return now == len;
            }
            // SAFETY: as above.
            source = unsafe { source.add(now) };
            len -= now;
            if let Err(broken) = self.next_piece() {
                self.broken = Some(broken);
                if broken != Broken::TimedOut {
                    self.channel.broken.set(Some(broken));
                }
                return false;
            }
        }
        // Of memory there may be more at the next call: the channel stays.
        // SAFETY: passed on.
        if let Err(broken) = unsafe { self.memory.put(self.at - self.base, source, len) } {
            self.broken = Some(broken);
            return false;
        }
        self.advance(self.at + len);
        true
    }

    fn advance(&mut self, end: usize) {
        self.at = end;
        self.len = self.len.max(end);
    }

    /// The present piece is full, and more is to come.
    fn next_piece(&mut self) -> Result<(), Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let channel = self.channel;
        let most = channel.piece_len();
        if self.room > 0 {
            channel.put_fragment(std::mem::take(&mut self.head), self.room, false);
            channel.wake_for_data();
            self.base += self.room;
            self.room = 0;
        }
        let need = (most / 2) as u64;
        let has_room = match &self.long {
            Long::Waits(patience) => channel.wait_room(patience, need).map(|()| true)?,
            Long::IsKept => channel.room_in_a_moment(need)?,
            Long::InMemory => false,
        };
        if has_room {
            (self.body, self.room) = channel.place(channel.tx().room()?);
            self.room = self.room.min(most);
        } else {
            self.in_memory = true;
            self.memory = channel.spare();
        }
        Ok(())
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // Submitted it has length 0.
        if self.len > 0 && self.base > 0 {
            self.channel.forget();
        }
    }
}

impl Channel {
    /// Begins a record. Who can wait waits for room: of a record that takes less than half of the ring
    /// nothing is seen before its end.
    pub(crate) fn writer<'c>(&'c self, mut long: Long<'c>) -> Result<Writer<'c>, Broken> {
        self.sends()?;
        if settings::is_deliberate() {
            long = Long::InMemory;
        }
        let half = self.segment.ring_len() as u64 / 2;
        let mut room = self.tx().room_seen();
        if room < half {
            room = self.tx().room()?;
            if let Long::Waits(patience) = &long
                && room < half
                && !self.is_behind()
            {
                self.wait_room(patience, half)?;
                room = self.tx().room()?;
            }
        }
        let mut waits = self.is_behind();
        if !waits && self.own.open().load(Ordering::Relaxed) != 0 {
            waits = self.waits_for_another();
            if !waits {
                self.forget(); // who was within a record is not any more
                room = self.tx().room_seen();
            }
        }
        let in_memory = waits || matches!(long, Long::InMemory) || room < LEAST_ROOM;
        let (body, room) = if in_memory { (NonNull::dangling(), 0) } else { self.place(room) };
        let memory = if in_memory { self.spare() } else { Kept::nothing(self.pool) };
        let channel = self;
        let (head, base, at, len, broken) = (Head::default(), 0, 0, 0, None);
        Ok(Writer { channel, long, body, room, in_memory, memory, head, base, at, len, broken })
    }

    /// Where bytes go behind the tail's word, and how many: two words stay, this one and that which
    /// says to forget the record.
    fn place(&self, room: u64) -> (NonNull<u8>, usize) {
        let room = (room as usize).saturating_sub(2 * WORD) & !3;
        // SAFETY: less than the ring's length behind the tail, and twice that is mapped.
        (unsafe { self.outgoing_tail().add(WORD) }, room)
    }

    /// The tail; a whole ring is mapped from there.
    pub(super) fn outgoing_tail(&self) -> NonNull<u8> {
        let mask = self.segment.ring_len() as u64 - 1;
        let at = (self.own.tail().load(Ordering::Relaxed) & mask) as usize;
        // SAFETY: `at` is less than the ring's length, and twice that is mapped.
        unsafe { self.segment.outgoing_start().add(at) }
    }
}
