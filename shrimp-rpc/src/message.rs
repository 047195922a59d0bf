//! Cursors over a message: ascending, bounded, each byte copied once.
//!
//! What they read may be changed by the peer between two reads, never during the use of a value: a number
//! is loaded into a register, a string is copied, and then it is checked.

use vmmc::mem::View;
use xdr::{DecodeError, EncodeError, Limits, Sink, Source};

/// Writes upwards from the start of a range, without a gap (F5).
#[derive(Debug)]
pub(crate) struct Put<'m> {
    view: View<'m>,
    at: usize,
    end: usize,
}

impl<'m> Put<'m> {
    /// From `at` to `end` of a buffer.
    #[inline]
    pub(crate) fn new(view: View<'m>, at: usize, end: usize) -> Put<'m> {
        Put { view, at, end }
    }

    /// Next byte to write.
    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    #[inline(always)]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        if bytes.len() > self.end - self.at || self.view.write(self.at, bytes).is_err() {
            return Err(EncodeError::Full { need: bytes.len(), left: self.end - self.at });
        }
        self.at += bytes.len();
        Ok(())
    }

    /// Zeros up to `at`.
    #[inline(always)]
    pub(crate) fn pad_to(&mut self, at: usize) -> Result<(), EncodeError> {
        match at.checked_sub(self.at) {
            Some(0) => Ok(()),
            Some(gap) if gap < 8 => self.bytes(&[0; 8][..gap]),
            _ => Err(EncodeError::Full { need: self.at, left: at }),
        }
    }
}

/// Has `put` write from `at` to `end` of a place. Returns where it stopped, too.
#[inline(always)]
pub(crate) fn append<T>(
    (place, at, end): (View<'_>, usize, usize),
    put: impl FnOnce(&mut Put<'_>) -> Result<T, EncodeError>,
) -> (usize, Result<T, EncodeError>) {
    let mut cursor = Put::new(place, at, end);
    let result = put(&mut cursor);
    (cursor.at(), result)
}

impl Sink for Put<'_> {
    #[inline]
    fn put_u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.bytes(&value.to_le_bytes())
    }

    #[inline]
    fn put_u64(&mut self, value: u64) -> Result<(), EncodeError> {
        self.bytes(&value.to_le_bytes())
    }

    #[inline]
    fn put_padded(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let padding = xdr::padding(bytes.len());
        let (need, left) = (bytes.len() + padding, self.end - self.at);
        if need > left {
            return Err(EncodeError::Full { need, left });
        }
        self.bytes(bytes)?;
        self.bytes(&[0; 4][..padding])
    }
}

/// Reads upwards.
#[derive(Debug)]
pub(crate) struct Get<'m> {
    view: View<'m>,
    at: usize,
    limits: Limits,
    spent: usize,
    depth: u32,
}

impl<'m> Get<'m> {
    /// From the start of a view to its end.
    #[inline]
    pub(crate) fn new(view: View<'m>, limits: Limits) -> Get<'m> {
        Get { view, at: 0, limits, spent: 0, depth: 0 }
    }

    /// From `at` on, in the middle of something.
    #[inline]
    pub(crate) fn resume(view: View<'m>, limits: Limits, at: usize) -> Get<'m> {
        Get { at, ..Get::new(view, limits) }
    }

    /// Next byte to read.
    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    #[inline]
    fn take(&mut self, target: &mut [u8], padding: usize) -> Result<(), DecodeError> {
        let (need, left) = (target.len() + padding, self.remaining());
        if need > left || self.view.read(self.at, target).is_err() {
            return Err(DecodeError::Short { need, left });
        }
        self.at += need;
        Ok(())
    }
}

impl Source for Get<'_> {
    #[inline]
    fn get_u32(&mut self) -> Result<u32, DecodeError> {
        let mut bytes = [0; 4];
        self.take(&mut bytes, 0)?;
        Ok(u32::from_le_bytes(bytes))
    }

    #[inline]
    fn get_u64(&mut self) -> Result<u64, DecodeError> {
        let mut bytes = [0; 8];
        self.take(&mut bytes, 0)?;
        Ok(u64::from_le_bytes(bytes))
    }

    #[inline]
    fn get_padded(&mut self, target: &mut [u8]) -> Result<(), DecodeError> {
        let padding = xdr::padding(target.len());
        self.take(target, padding)
    }

    #[inline]
    fn remaining(&self) -> usize {
        self.view.len() - self.at
    }

    #[inline]
    fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.limits.charge(&mut self.spent, bytes)
    }

    fn enter(&mut self) -> Result<(), DecodeError> {
        if self.depth >= self.limits.depth {
            return Err(DecodeError::TooDeep { limit: self.limits.depth });
        }
        self.depth += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use proptest::prelude::*;

    proptest! {
        /// F5: what is appended begins where the last ended, and what was written is not touched again.
        #[test]
        fn stores_go_upwards_without_a_gap(
            pieces in prop::collection::vec(prop::collection::vec(1u8.., 0..40), 0..20),
        ) {
            let total: usize = pieces.iter().map(|piece| piece.len().next_multiple_of(4)).sum();
            let memory = Memory::new(total + 8);
            let mut put = Put::new(memory.view(), 0, total);
            let mut expected = Vec::new();
            for piece in &pieces {
                prop_assert_eq!(put.at(), expected.len());
                put.put_padded(piece).unwrap();
                expected.extend_from_slice(piece);
                expected.resize(expected.len().next_multiple_of(4), 0);
                let mut written = vec![0; total + 8];
                memory.view().read(0, &mut written).unwrap();
                prop_assert_eq!(&written[..expected.len()], &expected[..]);
                prop_assert!(written[expected.len()..].iter().all(|byte| *byte == 0));
            }
            prop_assert!(put.put_u32(1).is_err(), "there is no room");
        }
    }
}
