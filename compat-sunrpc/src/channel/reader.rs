//! Taking records out of the ring.
//!
//! ```text
//!   one fragment             decoded where it lies; its room goes back at `release`
//!   pieces, as they come     a part at a time: a quarter of the ring at most; its room goes back when
//!                            the next is asked for
//!   pieces, put together     moved to memory as they come, which is given back as it is decoded
//! ```

use super::pieces::Pieces;
use super::segment::{FORGET, LAST};
use super::writer::WORD;
use super::{Broken, Channel, Patience, Source};
use crate::counters::{self, Counter};
use std::ptr::NonNull;
use vmmc::mem::copy;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// Set in [`super::own::Own::inside`] within a record.
const INSIDE: u64 = 1 << 63;
/// Set there when the present fragment is the record's last.
const INSIDE_LAST: u64 = 1 << 62;
/// The rest of it: bytes of the present fragment that have not been passed, without the padding.
const LEFT: u64 = u32::MAX as u64;

/// A part of a record, in the ring. Valid until [`Channel::pass`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    /// Nothing of the record comes after it.
    pub(super) last: bool,
}

/// What is next in a record that is taken as it comes.
enum Next {
    Nothing,
    Part(Part),
    /// Its sender has given it up.
    Forgotten,
}

/// What lies at the head.
enum Fragment {
    Bytes(Part),
    Forget,
}

impl Channel {
    /// For a server with one thread for all: the next record, when all of it is there. It stays until
    /// [`Channel::release`].
    pub(crate) fn next_whole(&self) -> Result<Option<Source<'static>>, Broken> {
        debug_assert!(self.handed_out.get().is_none());
        let mut assembly = self.assembly.borrow_mut();
        let mut taken = 0;
        // A peer that never stops sending is left for others now and then.
        while taken < self.piece_len() {
            let available = self.rx().available()?;
            if available == 0 {
                return Ok(None);
            }
            let Fragment::Bytes(Part { start, len, last }) = self.fragment(available)? else {
                if assembly.is_empty() {
                    return Err(Broken::Nonsense);
                }
                *assembly = Pieces::of(self.pool);
                self.take(WORD);
                taken += WORD;
                continue;
            };
            let takes_up = WORD + len.next_multiple_of(4);
            if last && assembly.is_empty() {
                return Ok(Some(self.hand_out(start, len)));
            }
            self.fits(assembly.len() + len)?;
            // SAFETY: `fragment` has checked that these bytes are in the ring.
            unsafe { assembly.push(start, len) }?;
            counters::add(Counter::assembled_bytes, len as u64);
            self.take(takes_up);
            taken += takes_up;
            if last {
                self.counts.one(Counter::received_records);
                self.counts.add(Counter::received_bytes, assembly.len() as u64);
                let whole = std::mem::replace(&mut *assembly, Pieces::of(self.pool));
                return Ok(Some(Source::pieces(whole)));
            }
        }
        Ok(None)
    }

    /// For who can wait: the next record, when its first part is there. It stays until
    /// [`Channel::release`]; what has not been read of it then is passed over when it comes.
    pub(crate) fn next_as_it_comes<'c>(
        &'c self,
        patience: Patience<'c>,
    ) -> Result<Option<Source<'c>>, Broken> {
        debug_assert!(self.handed_out.get().is_none());
        if self.is_inside() && !self.pass_over()? {
            return Ok(None);
        }
        let available = self.rx().available()?;
        if available == 0 {
            return Ok(None);
        }
        match self.fragment(available)? {
            Fragment::Forget => Err(Broken::Nonsense),
            Fragment::Bytes(Part { start, len, last: true }) => {
                self.fits(len)?;
                Ok(Some(self.hand_out(start, len)))
            }
            Fragment::Bytes(_) => match self.next_part()? {
                Next::Part(part) => {
                    self.counts.one(Counter::received_records);
                    Ok(Some(Source::stream(self, patience, part)))
                }
                Next::Nothing | Next::Forgotten => Err(Broken::Nonsense),
            },
        }
    }

    /// For a client: waits for the reply to its call.
    pub(crate) fn reply<'c>(&'c self, patience: Patience<'c>) -> Result<Source<'c>, Broken> {
        loop {
            match self.next_as_it_comes(patience)? {
                Some(record) if patience.call.is_none() || self.number() == patience.call => {
                    return Ok(record);
                }
                Some(late) => {
                    // Of an earlier call that was not waited for.
                    drop(late);
                    self.release()?;
                }
                None => {
                    self.wait_readable(&patience)?;
                    if !self.is_inside() {
                        continue;
                    }
                }
            }
            if patience.is_over() {
                return Err(Broken::TimedOut); // a server may talk for ever
            }
        }
    }

    /// Takes out what answers other calls than `call`. False: its own answer is there, before all
    /// of it has been sent.
    pub(super) fn forget_late(&self, call: Option<u32>) -> Result<bool, Broken> {
        if !self.is_inside() {
            let available = self.rx().available()?;
            if available == 0 {
                return Ok(true);
            }
            match self.fragment(available)? {
                Fragment::Forget => return Err(Broken::Nonsense),
                Fragment::Bytes(_) if self.number() == call => return Ok(false),
                Fragment::Bytes(_) => {}
            }
            self.next_part()?; // now we are inside
        }
        self.pass_over().map(|_| true)
    }

    /// The number of the call that the record at the head, of which a part is there, answers.
    fn number(&self) -> Option<u32> {
        let at = match self.handed_out.get() {
            Some((at, _)) => at.wrapping_add(WORD as u64),
            None if self.is_inside() => self.own.head().load(Ordering::Relaxed),
            None => self.own.head().load(Ordering::Relaxed).wrapping_add(WORD as u64),
        };
        let mut word = [0; 4];
        // SAFETY: the mirror makes four bytes accessible from any place in the ring. What they are
        // when the record is shorter is the peer's affair.
        unsafe { copy::bytes(self.incoming_at(at).as_ptr(), word.as_mut_ptr(), word.len()) };
        Some(u32::from_be_bytes(word))
    }

    /// A record of one fragment, where it lies.
    fn hand_out(&self, start: NonNull<u8>, len: usize) -> Source<'static> {
        self.counts.one(Counter::received_records);
        self.counts.add(Counter::received_bytes, len as u64);
        let takes_up = WORD + len.next_multiple_of(4);
        self.handed_out.set(Some((self.own.head().load(Ordering::Relaxed), takes_up)));
        // SAFETY: in the ring, which is mapped as long as the channel; the room is the peer's
        // again only after `release`, whose callers use the source no more.
        unsafe { Source::whole(start, len) }
    }

    /// Where a position of the ring in which we receive is mapped; a whole ring follows it.
    fn incoming_at(&self, position: u64) -> NonNull<u8> {
        let mask = self.segment.ring_len() as u64 - 1;
        // SAFETY: less than the ring's length, and twice that is mapped.
        unsafe { self.segment.incoming_start().add((position & mask) as usize) }
    }

    /// The fragment at the head.
    fn fragment(&self, available: u64) -> Result<Fragment, Broken> {
        let place = self.incoming_at(self.own.head().load(Ordering::Relaxed));
        let mut word = [0u8; WORD];
        // SAFETY: the mirror makes four bytes accessible from any place in the ring.
        unsafe { copy::bytes(place.as_ptr(), word.as_mut_ptr(), WORD) };
        let word = u32::from_ne_bytes(word);
        if word == FORGET {
            return Ok(Fragment::Forget);
        }
        let len = (word & !LAST) as usize;
        // Published whole: a length that runs past what is there is a lie.
        // An empty piece is never sent: a stream of them would keep us busy for ever.
        if (WORD + len.next_multiple_of(4)) as u64 > available || len == 0 {
            return Err(Broken::Nonsense);
        }
        // SAFETY: within the doubly mapped ring.
        let start = unsafe { place.add(WORD) };
        Ok(Fragment::Bytes(Part { start, len, last: word & LAST != 0 }))
    }

    /// Whether a record may be as long as this.
    pub(super) fn fits(&self, len: usize) -> Result<(), Broken> {
        if len > self.max_record.get() { Err(Broken::TooLong) } else { Ok(()) }
    }

    /// Bytes that a record may have after its first `position`.
    pub(super) fn most_after(&self, position: usize) -> usize {
        self.max_record.get().saturating_sub(position)
    }

    fn is_inside(&self) -> bool {
        self.own.inside().load(Ordering::Relaxed) != 0
    }

    /// The next part of the record that is taken as it comes, or the first of one.
    fn next_part(&self) -> Result<Next, Broken> {
        let mut available = self.rx().available()?;
        let mut inside = self.own.inside().load(Ordering::Relaxed);
        if inside & LEFT == 0 {
            if available == 0 {
                return Ok(Next::Nothing);
            }
            let Fragment::Bytes(Part { len, last, .. }) = self.fragment(available)? else {
                self.own.inside().store(0, Ordering::Relaxed);
                self.take(WORD);
                return Ok(Next::Forgotten);
            };
            inside = INSIDE | if last { INSIDE_LAST } else { 0 } | len as u64;
            self.own.inside().store(inside, Ordering::Relaxed);
            self.rx().taken(WORD);
            available -= WORD as u64;
        }
        let left = (inside & LEFT) as usize;
        // Of a fragment all was there when its word was taken.
        if left as u64 > available {
            return Err(Broken::Nonsense);
        }
        let len = left.min(self.piece_len());
        let start = self.incoming_at(self.own.head().load(Ordering::Relaxed));
        Ok(Next::Part(Part { start, len, last: inside & INSIDE_LAST != 0 && len == left }))
    }

    /// Is done with the part of this length that [`Channel::next_part`] has given.
    pub(super) fn pass(&self, len: usize) {
        self.counts.add(Counter::received_bytes, len as u64);
        let inside = self.own.inside().load(Ordering::Relaxed) - len as u64;
        let ended = inside & LEFT == 0 && inside & INSIDE_LAST != 0;
        self.own.inside().store(if ended { 0 } else { inside }, Ordering::Relaxed);
        self.take(len.next_multiple_of(4));
    }

    /// Waits for the part after the `position` bytes that were passed; `None`: the record's sender has given it
    /// up. It may go on for ever: time and length end it.
    pub(super) fn part_after(
        &self,
        position: usize,
        patience: &Patience<'_>,
    ) -> Result<Option<Part>, Broken> {
        loop {
            match self.next_part()? {
                Next::Part(part) => {
                    self.fits(position + part.len)?;
                    return if patience.is_over() { Err(Broken::TimedOut) } else { Ok(Some(part)) };
                }
                Next::Forgotten => return Ok(None),
                Next::Nothing => self.wait_readable(patience)?,
            }
        }
    }

    /// Passes over what is there of a record that nobody reads any more. True when that was all.
    fn pass_over(&self) -> Result<bool, Broken> {
        let mut passed = 0;
        while self.is_inside() && passed <= self.segment.ring_len() {
            match self.next_part()? {
                Next::Nothing => return Ok(false),
                Next::Forgotten => {}
                Next::Part(part) => {
                    passed += part.len;
                    self.pass(part.len);
                }
            }
        }
        Ok(!self.is_inside())
    }

    fn take(&self, len: usize) {
        let rx = self.rx();
        rx.taken(len);
        rx.publish();
        self.wake_for_space();
    }

    /// Is done with the record that was given last: its room is the peer's again. Does nothing when
    /// there is none.
    pub(crate) fn release(&self) -> Result<(), Broken> {
        if self.give_back()? {
            self.wake_for_space();
        }
        self.counts.settle();
        Ok(())
    }

    /// As [`Channel::release`], but that nobody is rung: true when somebody may wait for the room.
    pub(super) fn give_back(&self) -> Result<bool, Broken> {
        if let Some((at, len)) = self.handed_out.take() {
            // A server that forks to answer has two processes with this record: one of them
            // gives the room back.
            let end = at.wrapping_add(len as u64);
            let head = self.own.head();
            if head.compare_exchange(at, end, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.rx().publish();
                return Ok(true);
            }
        } else if self.is_inside() {
            self.pass_over()?;
        }
        Ok(false)
    }
}
