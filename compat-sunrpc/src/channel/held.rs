//! Memory for records that do not lie in the rings: bounded over all channels of a process, so that no number
//! of peers that begin long requests and do not end them, or ask for long answers and do not take them, takes
//! all of it.

use super::{Broken, MAX_RECORD};
use vmmc::mem::copy;
use vmmc::mem::spares::Spares;
use vmmc::sync::{AtomicUsize, Ordering};

/// Least memory of a record that has some.
const LEAST: usize = 4096;

/// Bytes of pieces that are kept for the next record, in one process. A service that is asked for long records again and again would have
/// the C library take their memory from the system and give it back each time, and that of its own arguments with it: each page
/// of both would be a fault.
const SPARE: usize = 16 << 20;

/// What several channels share.
#[derive(Debug)]
pub(super) struct Pool {
    /// Bytes in use.
    held: AtomicUsize,
    most: usize,
    /// Pieces that are in no use.
    spare: Spares<Vec<u8>>,
}

/// That of all channels of this process.
pub(super) static POOL: Pool = Pool::new(2 * MAX_RECORD);

impl Pool {
    pub(super) const fn new(most: usize) -> Pool {
        Pool { held: AtomicUsize::new(0), most, spare: Spares::new(SPARE) }
    }

    /// Whether three quarters are left.
    pub(super) fn is_ample(&self) -> bool {
        self.held.load(Ordering::Relaxed) <= self.most / 4
    }

    /// Bytes of pieces that are kept, and how many these are.
    #[cfg(test)]
    pub(super) fn spare(&self) -> (usize, usize) {
        let lengths = self.spare.lengths();
        (lengths.iter().sum(), lengths.len())
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// The part of one record; given back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    pool: &'static Pool,
    bytes: usize,
}

impl Held {
    pub(super) fn nothing(pool: &'static Pool) -> Held {
        Held { pool, bytes: 0 }
    }

    /// Takes more, before it is allocated. A record gets half of what the others leave.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Broken> {
        let before = self.pool.held.fetch_add(bytes, Ordering::Relaxed);
        let others = before.saturating_sub(self.bytes);
        self.bytes += bytes;
        if self.bytes > self.pool.most.saturating_sub(others) / 2 {
            self.give_back(bytes);
            return Err(Broken::TooLong);
        }
        Ok(())
    }

    pub(super) fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        if bytes == 0 {
            return; // as for most records
        }
        self.bytes -= bytes;
        self.pool.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// An empty piece with room for so many bytes.
    pub(super) fn piece(&mut self, len: usize) -> Result<Vec<u8>, Broken> {
        if let Some(piece) = self.pool.spare.take(len) {
            if self.take(piece.capacity()).is_ok() {
                return Ok(piece);
            }
            self.pool.spare.keep(piece); // a shorter one may do
        }
        self.take(len)?;
        let mut piece = Vec::new();
        if piece.try_reserve_exact(len).is_err() {
            self.give_back(len);
            return Err(Broken::TooLong);
        }
        Ok(piece)
    }

    /// A piece that is done with.
    pub(super) fn give_back_piece(&mut self, mut piece: Vec<u8>) {
        self.give_back(piece.capacity());
        piece.clear();
        self.pool.spare.keep(piece);
    }

    #[cfg(test)]
    pub(super) fn is_nothing(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// A record, or the rest of one, in one piece that grows.
#[derive(Debug)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    held: Held,
}

impl Kept {
    pub(super) fn nothing(pool: &'static Pool) -> Kept {
        Kept { bytes: Vec::new(), held: Held::nothing(pool) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Writes at a place that is at most the end.
    ///
    /// # Safety
    /// `at` is at most the end. `source` must be readable for `len` bytes, outside of this memory; others may write there.
    pub(super) unsafe fn put(
        &mut self,
        at: usize,
        source: *const u8,
        len: usize,
    ) -> Result<(), Broken> {
        let end = at + len;
        self.reserve(end)?;
        // SAFETY: `at` is at most the length, and within the capacity.
        let place = unsafe { self.bytes.as_mut_ptr().add(at) };
        // SAFETY: reserved; the source is the caller's.
        unsafe { copy::bytes(source, place, len) };
        // SAFETY: all before `at` was there, and what follows was just written.
        unsafe { self.bytes.set_len(self.bytes.len().max(end)) };
        Ok(())
    }

    /// `len` bytes at a place that is at most the end, zeroed if they are new.
    pub(super) fn place(&mut self, at: usize, len: usize) -> Result<&mut [u8], Broken> {
        let end = at + len;
        self.reserve(end)?;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes.get_mut(at..end).ok_or(Broken::TooLong)
    }

    /// Memory for so many bytes in all. It grows by doubling.
    fn reserve(&mut self, len: usize) -> Result<(), Broken> {
        let before = self.bytes.capacity();
        if len <= before {
            return Ok(());
        }
        // Doubling may be more than there is; what is needed may not.
        let sizes = [(2 * before).max(LEAST), len];
        let grown = sizes.into_iter().filter(|&size| size >= len).find(|&size| {
            let more = size - before;
            self.held.take(more).is_ok()
                && (self.bytes.try_reserve_exact(size - self.bytes.len()).is_ok() || {
                    self.held.give_back(more);
                    false
                })
        });
        grown.map(drop).ok_or(Broken::TooLong)
    }
}
