//! How deep a value counts, by the stack that decoding it takes.
//!
//! A decoder that calls itself has the value of each level in its frames: some ten times without optimisation. So a level of a
//! large value counts as several, and [`Limits::depth`](crate::Limits::depth) levels take about a megabyte of
//! stack whatever they are made of. The usual stack of a thread is two.

use crate::{DecodeError, Source};

/// Bytes of a value that count as a level.
const LEVEL: usize = 1024;

const fn levels<T>() -> usize {
    1 + size_of::<T>() / LEVEL
}

/// A `T` begins, which may contain others of its kind.
///
/// # Errors
/// [`DecodeError::TooDeep`].
pub fn enter<T, S: Source + ?Sized>(source: &mut S) -> Result<(), DecodeError> {
    (0..levels::<T>()).try_for_each(|_| source.enter())
}

/// The way back from [`enter`].
pub fn leave<T, S: Source + ?Sized>(source: &mut S) {
    (0..levels::<T>()).for_each(|_| source.leave());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Network, Reader};

    fn deepest<T>() -> usize {
        let mut reader = Reader::<Network>::new(&[]);
        (0..1000).take_while(|_| enter::<T, _>(&mut reader).is_ok()).count()
    }

    #[test]
    fn a_large_value_counts_as_several_levels() {
        assert_eq!(deepest::<u32>(), Limits::DEFAULT.depth as usize);
        assert_eq!(deepest::<[u8; 4096]>(), Limits::DEFAULT.depth as usize / 5);
        let mut reader = Reader::<Network>::new(&[]);
        for _ in 0..1000 {
            enter::<[u8; 4096], _>(&mut reader).expect("it was left again");
            leave::<[u8; 4096], _>(&mut reader);
        }
    }
}
