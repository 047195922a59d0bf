//! Where encoded values come from.

use crate::{DecodeError, Order};
use std::marker::PhantomData;

/// Gives the items of an encoding, in order. Everything it gives may be hostile.
///
/// A transport implements it over its own buffer; if a peer can write that buffer meanwhile, each
/// byte is loaded once.
pub trait Source {
    /// The next 32-bit number.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    fn get_u32(&mut self) -> Result<u32, DecodeError>;

    /// The next 64-bit number.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    fn get_u64(&mut self) -> Result<u64, DecodeError>;

    /// Fills `target`, and skips the bytes up to a multiple of four, whatever they are.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    fn get_padded(&mut self, target: &mut [u8]) -> Result<(), DecodeError>;

    /// Bytes left.
    fn remaining(&self) -> usize;

    /// Counts memory that a decoded value is about to take.
    ///
    /// # Errors
    /// [`DecodeError::TooLarge`].
    fn charge(&mut self, bytes: usize) -> Result<(), DecodeError>;

    /// One level of nesting deeper; called for types that contain themselves, by [`enter`](crate::enter).
    ///
    /// # Errors
    /// [`DecodeError::TooDeep`].
    fn enter(&mut self) -> Result<(), DecodeError>;

    /// The way back from [`Source::enter`]. After an error it need not be called: the source is
    /// of no more use then.
    fn leave(&mut self);
}

/// What one decoding may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory for all variable-length parts together.
    pub memory: usize,
    /// Nesting of types that contain themselves. Lists do not count; a value of more than a KiB counts as several
    /// levels, one more for each KiB.
    pub depth: u32,
}

impl Limits {
    /// 64 MiB and 128 levels, which take about a megabyte of stack.
    pub const DEFAULT: Limits = Limits { memory: 64 << 20, depth: 128 };

    /// Counts `bytes` against [`Limits::memory`] of these limits, of which `spent` are spent.
    ///
    /// # Errors
    /// [`DecodeError::TooLarge`].
    #[inline]
    pub fn charge(&self, spent: &mut usize, bytes: usize) -> Result<(), DecodeError> {
        let sum = spent.saturating_add(bytes);
        if sum > self.memory {
            return Err(DecodeError::TooLarge { limit: self.memory });
        }
        *spent = sum;
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// What one decoding has cost so far: for implementations of [`Source`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    limits: Limits,
    spent: usize,
    depth: u32,
}

impl Budget {
    /// Nothing spent yet.
    #[must_use]
    pub const fn new(limits: Limits) -> Budget {
        Budget { limits, spent: 0, depth: 0 }
    }

    /// For [`Source::charge`].
    ///
    /// # Errors
    /// [`DecodeError::TooLarge`].
    #[inline]
    pub fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.limits.charge(&mut self.spent, bytes)
    }

    /// For [`Source::enter`].
    ///
    /// # Errors
    /// [`DecodeError::TooDeep`].
    #[inline]
    pub fn enter(&mut self) -> Result<(), DecodeError> {
        if self.depth >= self.limits.depth {
            return Err(DecodeError::TooDeep { limit: self.limits.depth });
        }
        self.depth += 1;
        Ok(())
    }

    /// For [`Source::leave`].
    #[inline]
    pub fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}

/// Decodes from a slice of private memory.
#[derive(Clone, Debug)]
pub struct Reader<'a, O> {
    bytes: &'a [u8],
    budget: Budget,
    order: PhantomData<O>,
}

impl<'a, O: Order> Reader<'a, O> {
    /// A reader at the start of `bytes`, with [`Limits::DEFAULT`].
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Reader<'a, O> {
        Reader::with_limits(bytes, Limits::DEFAULT)
    }

    /// A reader at the start of `bytes`.
    #[must_use]
    pub const fn with_limits(bytes: &'a [u8], limits: Limits) -> Reader<'a, O> {
        Reader { bytes, budget: Budget::new(limits), order: PhantomData }
    }

    /// Nothing more is expected.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`].
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { left }),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        match self.bytes.split_at_checked(len) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None => Err(DecodeError::Short { need: len, left: self.bytes.len() }),
        }
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.bytes.split_first_chunk::<N>() {
            Some((word, rest)) => {
                self.bytes = rest;
                Ok(*word)
            }
            None => Err(DecodeError::Short { need: N, left: self.bytes.len() }),
        }
    }
}

impl<O: Order> Source for Reader<'_, O> {
    fn get_u32(&mut self) -> Result<u32, DecodeError> {
        Ok(O::to_u32(self.word()?))
    }

    fn get_u64(&mut self) -> Result<u64, DecodeError> {
        Ok(O::to_u64(self.word()?))
    }

    fn get_padded(&mut self, target: &mut [u8]) -> Result<(), DecodeError> {
        let need = target.len().saturating_add(crate::padding(target.len()));
        let taken = self.take(need)?;
        target.copy_from_slice(&taken[..target.len()]);
        Ok(())
    }

    fn remaining(&self) -> usize {
        self.bytes.len()
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
