//! Where a record is read: in the ring, whole or part by part as it comes, or in memory.
//!
//! Each byte is loaded once, into the program's variable: what the peer changes afterwards is
//! not seen again. But for what a service asks to be lent ([`Source::lend`]).

use super::lent::Loan;
use super::pieces::Pieces;
use super::reader::Part;
use super::{Broken, Channel, Patience};
use std::ptr::NonNull;
use vmmc::mem::copy;

/// A record, and how far it has been read.
#[derive(Debug)]
pub(crate) struct Source<'c> {
    /// First byte of the present part.
    part: NonNull<u8>,
    /// Bytes of it.
    len: usize,
    /// Bytes of it that have been read.
    at: usize,
    /// Bytes of the record before it.
    before: usize,
    rest: Rest<'c>,
}

/// Where the parts after the present one are.
#[derive(Debug)]
enum Rest<'c> {
    /// Nowhere.
    Nothing,
    /// Nowhere either, and who decodes may be lent what lies there, in this process.
    Lends { owner: i32 },
    /// And has been.
    Lent(#[expect(dead_code, reason = "ends by being dropped")] Loan),
    /// In our own memory; the first of these is the present part.
    Pieces(Pieces),
    /// Still to come.
    Stream { channel: &'c Channel, patience: Patience<'c>, last: bool },
    /// They will not come.
    Broken(Broken),
}

impl<'c> Source<'c> {
    /// A record in one piece.
    ///
    /// # Safety
    /// The bytes must stay readable as long as the source is used; the peer may change them.
    pub(super) unsafe fn whole(start: NonNull<u8>, len: usize) -> Source<'static> {
        Source { part: start, len, at: 0, before: 0, rest: Rest::Nothing }
    }

    /// An empty record.
    pub(crate) fn nothing() -> Source<'static> {
        // SAFETY: no bytes.
        unsafe { Source::whole(NonNull::dangling(), 0) }
    }

    /// A record in our own memory.
    pub(super) fn pieces(mut pieces: Pieces) -> Source<'static> {
        let first = pieces.first();
        Source { part: first.0, len: first.1, at: 0, before: 0, rest: Rest::Pieces(pieces) }
    }

    /// A record of which the first part has come.
    pub(super) fn stream(
        channel: &'c Channel,
        patience: Patience<'c>,
        Part { start, len, last }: Part,
    ) -> Source<'c> {
        let rest = Rest::Stream { channel, patience, last };
        Source { part: start, len, at: 0, before: 0, rest }
    }

    /// Of a record that stays until its service, in process `owner`, is done: lets that use bytes where they lie.
    pub(crate) fn lending(mut self, owner: i32) -> Source<'c> {
        if matches!(self.rest, Rest::Nothing) {
            self.rest = Rest::Lends { owner };
        }
        self
    }

    /// Whether [`Source::lend`] may be asked.
    pub(crate) fn lends(&self) -> bool {
        matches!(self.rest, Rest::Lends { .. } | Rest::Lent(_))
    }

    /// Whether something is lent, until this source is dropped: the record's room must stay until then.
    pub(crate) fn has_lent(&self) -> bool {
        matches!(self.rest, Rest::Lent(_))
    }

    /// The next `len` bytes and their padding, which count as read, to be used where they lie; the peer may change
    /// them. `None` when they are not all here, or too much is lent; and to a child that answers for its parent,
    /// which gives the room back without asking.
    pub(crate) fn lend(&mut self, len: usize) -> Option<NonNull<u8>> {
        if let Rest::Lends { owner } = self.rest {
            self.rest = Rest::Lent(Loan::of(self.part, self.len, owner)?);
        }
        if self.has_lent() { self.inline(len.checked_next_multiple_of(4)?) } else { None }
    }

    /// Bytes that have been read.
    pub(crate) fn position(&self) -> usize {
        self.before + self.at
    }

    /// Goes to another place in the present part. False when it is not there.
    pub(crate) fn set_position(&mut self, at: usize) -> bool {
        match at.checked_sub(self.before) {
            Some(at) if at <= self.len => {
                self.at = at;
                true
            }
            _ => false,
        }
    }

    /// Bytes left of the part that is here.
    #[inline]
    pub(crate) fn here(&self) -> usize {
        self.len - self.at
    }

    /// Bytes left: at most, when not all have come.
    pub(crate) fn remaining(&self) -> usize {
        let here = self.len - self.at;
        match &self.rest {
            Rest::Stream { channel, last: false, .. } => channel.most_after(self.position()),
            Rest::Pieces(pieces) => here + pieces.later(),
            _ => here,
        }
    }

    /// Why the rest of the record will not come, if so.
    pub(crate) fn broken(&self) -> Option<Broken> {
        if let Rest::Broken(broken) = self.rest { Some(broken) } else { None }
    }

    /// The next `len` bytes, which count as read; `None` when they are not in one piece. They may be
    /// read until the next operation.
    pub(crate) fn inline(&mut self, len: usize) -> Option<NonNull<u8>> {
        if self.at == self.len && len > 0 && !self.more() {
            return None;
        }
        let end = self.at.checked_add(len).filter(|&end| end <= self.len)?;
        // SAFETY: `at <= len` of the part.
        let place = unsafe { self.part.add(self.at) };
        self.at = end;
        Some(place)
    }

    /// Copies the next bytes. False when there are not so many.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    #[inline]
    pub(crate) unsafe fn fill(&mut self, to: *mut u8, len: usize) -> bool {
        if len <= self.len - self.at {
            // SAFETY: `at <= len` of the part.
            let place = unsafe { self.part.add(self.at) };
            // SAFETY: that many bytes of the part, to the caller's.
            unsafe { copy::bytes(place.as_ptr(), to, len) };
            self.at += len;
            return true;
        }
        // SAFETY: passed on.
        unsafe { self.fill_from_parts(to, len) }
    }

    /// # Safety
    /// As [`Source::fill`].
    #[cold]
    unsafe fn fill_from_parts(&mut self, to: *mut u8, len: usize) -> bool {
        let mut done = 0;
        while done < len {
            if self.at == self.len && !self.more() {
                return false;
            }
            let now = (len - done).min(self.len - self.at);
            // SAFETY: `at <= len` of the part.
            let place = unsafe { self.part.add(self.at) };
            // SAFETY: `done < len` of the caller's bytes.
            let to = unsafe { to.add(done) };
            // SAFETY: `now` bytes are left in both.
            unsafe { copy::bytes(place.as_ptr(), to, now) };
            self.at += now;
            done += now;
        }
        true
    }

    /// Passes over bytes. False when there are not so many.
    pub(crate) fn skip(&mut self, mut len: usize) -> bool {
        while len > 0 {
            if self.at == self.len && !self.more() {
                return false;
            }
            let now = len.min(self.len - self.at);
            self.at += now;
            len -= now;
        }
        true
    }

    /// Goes on to the next part, and gives the present one back. False when there is none.
    #[cold]
    fn more(&mut self) -> bool {
        let next = match &mut self.rest {
            Rest::Nothing
            | Rest::Lends { .. }
            | Rest::Lent(_)
            | Rest::Broken(_)
            | Rest::Stream { last: true, .. } => return false,
            Rest::Pieces(pieces) => match pieces.next() {
                Some(next) => next,
                None => return false,
            },
            Rest::Stream { channel, patience, last } => {
                channel.pass(self.len);
                match channel.part_after(self.before + self.len, patience) {
                    Ok(Some(part)) => {
                        *last = part.last;
                        (part.start, part.len)
                    }
                    none => {
                        self.rest = none.err().map_or(Rest::Nothing, Rest::Broken);
                        (NonNull::dangling(), 0)
                    }
                }
            }
        };
        self.before += self.len;
        (self.part, self.len) = next;
        self.at = 0;
        self.len > 0
    }
}
