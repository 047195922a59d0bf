//! The last bytes that were sent over a connection, so that another one can go on where the other end has come to.
//!
//! Short pieces only: what a long message consists of is not copied for a cut that hardly ever comes. When one of those is on its way
//! as the connection is cut, it is lost, and the connection with it.

use std::collections::VecDeque;

/// See the module.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The last of what was sent.
    bytes: VecDeque<u8>,
    /// Bytes sent so far.
    end: u64,
    /// Most bytes kept, and longest piece.
    most: usize,
    longest: usize,
}

impl Kept {
    pub(crate) fn new(most: usize, longest: usize) -> Kept {
        Kept { bytes: VecDeque::new(), end: 0, most, longest: longest.min(most) }
    }

    /// Bytes sent so far.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes kept.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Keeps no more than so many.
    pub(crate) fn shorten(&mut self, most: usize) {
        self.bytes.drain(..self.bytes.len().saturating_sub(most));
        self.bytes.shrink_to(most.saturating_mul(2));
    }

    /// The first `len` bytes of two pieces are sent.
    pub(crate) fn note(&mut self, front: &[u8], back: &[u8], len: usize) {
        self.end += len as u64;
        if len > self.longest {
            self.bytes.clear();
            return;
        }
        let front = front.get(..len).unwrap_or(front);
        let back = back.get(..len - front.len()).unwrap_or_default();
        let over = (self.bytes.len() + len).saturating_sub(self.most);
        self.bytes.drain(..over);
        self.bytes.extend(front);
        self.bytes.extend(back);
    }

    /// Whether all from this position on is kept.
    pub(crate) fn reaches(&self, position: u64) -> bool {
        self.end.checked_sub(position).is_some_and(|len| len <= self.bytes.len() as u64)
    }

    /// Bytes from this position on, as many as lie together.
    pub(crate) fn from(&self, position: u64) -> &[u8] {
        let (first, second) = self.bytes.as_slices();
        let begin = self.end - self.bytes.len() as u64;
        let at = position.saturating_sub(begin) as usize;
        match at.checked_sub(first.len()) {
            None => first.get(at..).unwrap_or_default(),
            Some(at) => second.get(at..).unwrap_or_default(),
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is said to be kept is what was sent, to the last byte; and short pieces are kept up to the bound.
        #[test]
        fn what_is_kept_is_what_was_sent(
            pieces in prop::collection::vec((0usize..40, 0usize..900, any::<bool>()), 1..40),
            most in 1usize..1200,
            longest in 1usize..600,
            shortens in prop::collection::vec(any::<Option<u8>>(), 40),
        ) {
            let (mut kept, mut all, mut short) = (Kept::new(most, longest), Vec::new(), 0);
            for ((front, back, partly), shorten) in pieces.into_iter().zip(shortens) {
                let bytes: Vec<u8> = (0..front + back).map(|i| (all.len() + i) as u8).collect();
                let len = if partly { bytes.len() / 2 } else { bytes.len() };
                kept.note(&bytes[..front], &bytes[front..], len);
                all.extend_from_slice(&bytes[..len]);
                short = if len > longest.min(most) { 0 } else { (short + len).min(most) };
                if let Some(to) = shorten.map(usize::from) {
                    kept.shorten(to);
                    short = short.min(to);
                }
                prop_assert_eq!(kept.len(), short);
                prop_assert_eq!(kept.end, all.len() as u64);
                prop_assert!(kept.reaches((all.len() - short) as u64));
                prop_assert!(!kept.reaches(all.len() as u64 + 1));
                let begin = (0..=all.len()).find(|&at| kept.reaches(at as u64)).unwrap();
                prop_assert!(all.len() - begin <= most);
                let mut at = begin;
                while at < all.len() {
                    let part = kept.from(at as u64);
                    prop_assert!(!part.is_empty() && part == &all[at..at + part.len()]);
                    at += part.len();
                }
                prop_assert!(kept.from(all.len() as u64).is_empty());
            }
        }
    }
}
