//! Typed values straight into a ring and straight out of it, for the Rust interface.

use super::{Broken, Source, Writer};
use xdr::{Budget, DecodeError, EncodeError, Limits, Sink};

impl Writer<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let need = bytes.len();
        let left = super::MAX_RECORD.saturating_sub(self.position());
        if self.put(bytes) { Ok(()) } else { Err(EncodeError::Full { need, left }) }
    }
}

impl Sink for Writer<'_> {
    fn put_u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.append(&value.to_be_bytes())
    }

    fn put_u64(&mut self, value: u64) -> Result<(), EncodeError> {
        self.append(&value.to_be_bytes())
    }

    fn put_padded(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.append(bytes)?;
        self.append([0; 3].get(..xdr::padding(bytes.len())).unwrap_or_default())
    }
}

/// Decodes from a record that the peer may be changing: each byte is loaded once.
#[derive(Debug)]
pub(crate) struct RecordSource<'c> {
    record: Source<'c>,
    budget: Budget,
}

impl<'c> RecordSource<'c> {
    pub(crate) fn new(record: Source<'c>, limits: Limits) -> RecordSource<'c> {
        RecordSource { record, budget: Budget::new(limits) }
    }

    /// Why the rest of the record has not come, if so.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.record.broken()
    }

    fn fill(&mut self, target: &mut [u8], skip: usize) -> Result<(), DecodeError> {
        let need = target.len().saturating_add(skip);
        let left = self.record.remaining();
        // SAFETY: the slice's own bytes.
        let filled = need <= left
            && unsafe { self.record.fill(target.as_mut_ptr(), target.len()) }
            && self.record.skip(skip);
        if filled { Ok(()) } else { Err(DecodeError::Short { need, left }) }
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut word = [0; N];
        self.fill(&mut word, 0)?;
        Ok(word)
    }
}

impl xdr::Source for RecordSource<'_> {
    fn get_u32(&mut self) -> Result<u32, DecodeError> {
        self.word().map(u32::from_be_bytes)
    }

    fn get_u64(&mut self) -> Result<u64, DecodeError> {
        self.word().map(u64::from_be_bytes)
    }

    fn get_padded(&mut self, target: &mut [u8]) -> Result<(), DecodeError> {
        self.fill(target, xdr::padding(target.len()))
    }

    fn remaining(&self) -> usize {
        self.record.remaining()
    }

    fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.budget.charge(bytes)
    }

    fn enter(&mut self) -> Result<(), DecodeError> {
        self.budget.enter()
    }

    fn leave(&mut self) {
        self.budget.leave();
    }
}
