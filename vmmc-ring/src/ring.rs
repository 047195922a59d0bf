//! A single-producer, single-consumer byte ring.
//!
//! ```text
//!   tail   u64, written by the producer: bytes ever put in     (next to write)
//!   head   u64, written by the consumer: bytes ever taken out  (next to read)
//! ```
//!
//! Positions run free and are masked only at the access (the capacity is a power of two). Each
//! side keeps its own position and the last one it saw of the other side in words of its own,
//! and loads the peer's word only when the copy says full or empty, so that in a steady stream
//! the two lines travel once per batch and not once per call.
//!
//! "Single" means one at a time: callers hold a lock per end. Two processes that share an end
//! after a fork share those private words too.

use crate::Bytes;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// The peer published a position that cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer claims {claimed} bytes in a ring of {capacity}, or went backwards")]
pub struct Poisoned {
    /// Bytes in the ring if the peer were right.
    pub claimed: u64,
    /// Bytes that fit.
    pub capacity: u64,
}

/// The writing end.
#[derive(Clone, Copy, Debug)]
pub struct Producer<W, P, B> {
    /// Shared: bytes put in. Written here only (but the peer can scribble on it).
    pub tail: W,
    /// Shared: bytes taken out, by the peer.
    pub head: W,
    /// Private: the true tail, not yet published bytes included.
    pub own: P,
    /// Private: the last valid head seen.
    pub seen: P,
    /// The ring's bytes; their number is the capacity, a power of two.
    pub bytes: B,
}

/// The reading end.
#[derive(Clone, Copy, Debug)]
pub struct Consumer<W, P, B> {
    /// Shared: bytes put in, by the peer.
    pub tail: W,
    /// Shared: bytes taken out. Written here only (but the peer can scribble on it).
    pub head: W,
    /// Private: the true head, not yet published bytes included.
    pub own: P,
    /// Private: the last valid tail seen.
    pub seen: P,
    /// The ring's bytes; their number is the capacity, a power of two.
    pub bytes: B,
}

/// A part of the ring without a wrap in it: offset and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset in the ring's bytes.
    pub at: usize,
    /// Length in bytes.
    pub len: usize,
}

#[inline]
fn span(position: u64, len: u64, capacity: u64) -> Span {
    let at = position & (capacity - 1);
    Span { at: at as usize, len: len.min(capacity - at) as usize }
}

impl<W, P, B> Producer<W, P, B>
where
    W: Word<Value = u64>,
    P: Word<Value = u64>,
    B: Bytes,
{
    #[inline]
    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes that fit by the last head seen; the peer's word is not loaded.
    #[inline]
    #[must_use]
    pub fn room_seen(&self) -> u64 {
        let used = self.own.load(Ordering::Relaxed).wrapping_sub(self.seen.load(Ordering::Relaxed));
        self.capacity().saturating_sub(used)
    }

    /// Bytes that fit now.
    ///
    /// # Errors
    /// [`Poisoned`] when the peer's head is ahead of the tail, more than the capacity behind it,
    /// or went backwards.
    #[inline]
    pub fn room(&self) -> Result<u64, Poisoned> {
        // PAIRS(head): acquire with the release in Consumer::publish: the consumer's reads of
        // the bytes are over before they are overwritten.
        let head = self.head.load(Ordering::Acquire);
        let tail = self.own.load(Ordering::Relaxed);
        let seen = self.seen.load(Ordering::Relaxed);
        let used = tail.wrapping_sub(head);
        if used > tail.wrapping_sub(seen) {
            return Err(Poisoned { claimed: used, capacity: self.capacity() });
        }
        self.seen.store(head, Ordering::Relaxed);
        Ok(self.capacity().saturating_sub(used))
    }

    /// The next part to fill, at most `len` bytes, without a wrap. Empty when full.
    ///
    /// # Errors
    /// As [`Producer::room`].
    #[inline]
    pub fn next_span(&self, len: usize) -> Result<Span, Poisoned> {
        let mut room = self.room_seen();
        if room < len as u64 {
            room = self.room()?;
        }
        Ok(span(self.own.load(Ordering::Relaxed), room.min(len as u64), self.capacity()))
    }

    /// Counts `len` bytes, filled by the caller in [`Producer::next_span`], as put in. They are
    /// seen by the consumer only after [`Producer::publish`].
    #[inline]
    pub fn filled(&self, len: usize) {
        let tail = self.own.load(Ordering::Relaxed);
        self.own.store(tail.wrapping_add(len as u64), Ordering::Relaxed);
    }

    /// Copies as much of `len` bytes as fits, `skip` bytes behind the tail; returns how much. Not yet counted: the caller
    /// says so by [`Producer::filled`], if it is to be.
    ///
    /// # Errors
    /// As [`Producer::room`].
    ///
    /// # Safety
    /// `source` must be readable for `len` bytes and must not overlap the ring.
    #[inline]
    pub unsafe fn put(&self, skip: u64, source: *const u8, len: usize) -> Result<usize, Poisoned> {
        let mut room = self.room_seen();
        if room < skip.saturating_add(len as u64) {
            room = self.room()?;
        }
        let len = room.saturating_sub(skip).min(len as u64) as usize;
        let position = self.own.load(Ordering::Relaxed).wrapping_add(skip);
        let mut done = 0;
        // A second time where it wraps.
        while done < len {
            let at = position.wrapping_add(done as u64);
            let part = span(at, (len - done) as u64, self.capacity());
            // SAFETY: done < len.
            let from = unsafe { source.add(done) };
            // SAFETY: the span lies in the ring; `from` has len - done >= part.len bytes.
            unsafe { self.bytes.copy_in(part.at, from, part.len) };
            done += part.len;
        }
        Ok(done)
    }

    /// Copies as much of `len` bytes as fits; returns how much. Not yet published.
    ///
    /// # Errors
    /// As [`Producer::room`].
    ///
    /// # Safety
    /// As [`Producer::put`].
    #[inline]
    pub unsafe fn push(&self, source: *const u8, len: usize) -> Result<usize, Poisoned> {
        // SAFETY: passed on.
        let done = unsafe { self.put(0, source, len) }?;
        self.filled(done);
        Ok(done)
    }

    /// Shows everything put in to the consumer. The caller then looks whether the consumer
    /// sleeps ([`crate::bell`]).
    #[inline]
    pub fn publish(&self) {
        // PAIRS(tail): release with the acquire in Consumer::available: bytes before position.
        self.tail.store(self.own.load(Ordering::Relaxed), Ordering::Release);
    }
}

impl<W, P, B> Consumer<W, P, B>
where
    W: Word<Value = u64>,
    P: Word<Value = u64>,
    B: Bytes,
{
    #[inline]
    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes to read by the last tail seen; the peer's word is not loaded.
    #[inline]
    #[must_use]
    pub fn available_seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed).wrapping_sub(self.own.load(Ordering::Relaxed))
    }

    /// Bytes to read now.
    ///
    /// # Errors
    /// [`Poisoned`] when the peer's tail is behind the head, more than the capacity ahead of it,
    /// or went backwards.
    #[inline]
    pub fn available(&self) -> Result<u64, Poisoned> {
        // PAIRS(tail): acquire with the release in Producer::publish.
        let tail = self.tail.load(Ordering::Acquire);
        let head = self.own.load(Ordering::Relaxed);
        let there = tail.wrapping_sub(head);
        if there > self.capacity() || there < self.available_seen() {
            return Err(Poisoned { claimed: there, capacity: self.capacity() });
        }
        self.seen.store(tail, Ordering::Relaxed);
        Ok(there)
    }

    /// Whether the peer's word differs from what was read so far. For spinning and polling by
    /// threads that do not hold the reading end: changes nothing, proves nothing.
    #[inline]
    #[must_use]
    pub fn looks_readable(&self) -> bool {
        self.tail.load(Ordering::Acquire) != self.own.load(Ordering::Relaxed)
    }

    /// Brings the line of the next byte near, for a reader that spins.
    #[inline]
    pub fn prefetch(&self) {
        self.bytes.prefetch((self.own.load(Ordering::Relaxed) & (self.capacity() - 1)) as usize);
    }

    /// The part that starts `skip` bytes after the head, at most `len` bytes, without a wrap.
    ///
    /// # Errors
    /// As [`Consumer::available`].
    #[inline]
    pub fn next_span(&self, skip: u64, len: usize) -> Result<Span, Poisoned> {
        let mut there = self.available_seen();
        if there < skip.saturating_add(len as u64) {
            there = self.available()?;
        }
        let len = there.saturating_sub(skip).min(len as u64);
        Ok(span(self.own.load(Ordering::Relaxed).wrapping_add(skip), len, self.capacity()))
    }

    /// Counts `len` bytes as taken out. The producer sees the room after [`Consumer::publish`].
    #[inline]
    pub fn taken(&self, len: usize) {
        let head = self.own.load(Ordering::Relaxed);
        self.own.store(head.wrapping_add(len as u64), Ordering::Relaxed);
    }

    /// Copies up to `len` bytes that start `skip` after the head, without taking them.
    ///
    /// # Errors
    /// As [`Consumer::available`].
    ///
    /// # Safety
    /// `target` must be writable for `len` bytes and must not overlap the ring.
    #[inline]
    pub unsafe fn peek(&self, skip: u64, target: *mut u8, len: usize) -> Result<usize, Poisoned> {
        let mut done = 0;
        while done < len {
            let part = self.next_span(skip + done as u64, len - done)?;
            if part.len == 0 {
                break;
            }
            // SAFETY: done < len.
            let to = unsafe { target.add(done) };
            // SAFETY: the span lies in the ring; `to` has len - done >= part.len bytes.
            unsafe { self.bytes.copy_out(part.at, to, part.len) };
            done += part.len;
        }
        Ok(done)
    }

    /// Copies `len` bytes from a position on, whatever is there, and at most a ring full; changes nothing.
    ///
    /// # Safety
    /// As [`Consumer::peek`].
    #[inline]
    pub unsafe fn copy_from(&self, position: u64, target: *mut u8, len: usize) {
        let len = len.min(self.bytes.len());
        let mut done = 0;
        while done < len {
            let at = position.wrapping_add(done as u64);
            let part = span(at, (len - done) as u64, self.capacity());
            // SAFETY: done < len.
            let to = unsafe { target.add(done) };
            // SAFETY: the span lies in the ring; `to` has len - done >= part.len bytes.
            unsafe { self.bytes.copy_out(part.at, to, part.len) };
            done += part.len;
        }
    }

    /// Takes up to `len` bytes out; returns how many. Not yet published.
    ///
    /// # Errors
    /// As [`Consumer::available`].
    ///
    /// # Safety
    /// As [`Consumer::peek`].
    #[inline]
    pub unsafe fn pop(&self, target: *mut u8, len: usize) -> Result<usize, Poisoned> {
        // SAFETY: passed on.
        let done = unsafe { self.peek(0, target, len) }?;
        self.taken(done);
        Ok(done)
    }

    /// Gives the room of everything taken out back to the producer.
    #[inline]
    pub fn publish(&self) {
        // PAIRS(head): release with the acquire in Producer::room: reads before position.
        self.head.store(self.own.load(Ordering::Relaxed), Ordering::Release);
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests;
