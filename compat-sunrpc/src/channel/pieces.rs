//! A record that is put together in our own memory, out of pieces as they came, and given back piece by piece as it
//! is read.

use super::Broken;
use super::held::{Held, Pool};
use std::collections::VecDeque;
use std::ptr::NonNull;
use vmmc::mem::copy;

/// Memory of pieces is a multiple of this, so that one record's serve the next.
const PIECE: usize = 64 << 10;

/// A record in memory, which is given back as it is read.
#[derive(Debug)]
pub(super) struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes after the first piece.
    later: usize,
    held: Held,
}

impl Pieces {
    /// None, that take their memory from `pool`.
    pub(super) fn of(pool: &'static Pool) -> Pieces {
        Pieces { pieces: VecDeque::new(), later: 0, held: Held::nothing(pool) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.later + self.pieces.front().map_or(0, Vec::len)
    }

    /// Appends bytes of a ring.
    ///
    /// # Safety
    /// `len` bytes must be readable at `start`.
    pub(super) unsafe fn push(&mut self, start: NonNull<u8>, len: usize) -> Result<(), Broken> {
        let fits = |piece: &Vec<u8>| piece.capacity() - piece.len() >= len;
        if !self.pieces.back().is_some_and(fits) {
            self.pieces.push_back(self.held.piece(len.next_multiple_of(PIECE))?);
        }
        let first = self.pieces.len() == 1;
        let Some(piece) = self.pieces.back_mut() else { return Err(Broken::TooLong) };
        let target = piece.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: the caller's word; there is capacity for them.
        unsafe { copy::bytes(start.as_ptr(), target, len) };
        let end = piece.len() + len;
        // SAFETY: these bytes have just been written, within the capacity.
        unsafe { piece.set_len(end) };
        self.later += if first { 0 } else { len };
        Ok(())
    }

    /// The first piece.
    pub(super) fn first(&mut self) -> (NonNull<u8>, usize) {
        match self.pieces.front_mut() {
            Some(piece) => (NonNull::from(piece.as_mut_slice()).cast(), piece.len()),
            None => (NonNull::dangling(), 0),
        }
    }

    /// Gives the first piece back; the one after it.
    pub(super) fn next(&mut self) -> Option<(NonNull<u8>, usize)> {
        let done = self.pieces.pop_front()?;
        self.held.give_back_piece(done);
        let first = self.first();
        self.later -= first.1;
        (!self.is_empty()).then_some(first)
    }

    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.held.is_nothing()
    }

    /// Bytes after the first piece.
    pub(super) fn later(&self) -> usize {
        self.later
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        for piece in self.pieces.drain(..) {
            self.held.give_back_piece(piece);
        }
    }
}
