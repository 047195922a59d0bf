//! Which numbers of processes have been given, for good: to one that was met, or of which somebody says so that met it.

/// See the module: a bit for each number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given(Box<[u32]>);

/// Of the word of a number its place, and the number's bit in it.
pub(super) fn bit(number: usize) -> (usize, u32) {
    (number / 32, 1 << (number % 32))
}

/// How many words a job has with that many numbers.
pub(super) fn words(limit: usize) -> usize {
    limit.div_ceil(32)
}

impl Given {
    /// None of so many numbers.
    pub(super) fn none(limit: usize) -> Given {
        Given(vec![0; words(limit)].into())
    }

    pub(super) fn has(&self, number: usize) -> bool {
        let (at, bit) = bit(number);
        self.0.get(at).is_some_and(|word| word & bit != 0)
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.0
    }

    /// Adds those that somebody else knows of; whether some are new.
    pub(super) fn hear(&mut self, words: impl IntoIterator<Item = u32>) -> bool {
        let mut news = false;
        for (word, heard) in self.0.iter_mut().zip(words) {
            news |= heard & !*word != 0;
            *word |= heard;
        }
        news
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_stays_and_only_what_is_new_is_news() {
        let mut given = Given::none(70);
        assert_eq!(given.words().len(), 3);
        assert!(given.hear([0, 1 << 3, 1 << 5]) && given.has(35) && given.has(69) && !given.has(3));
        assert!(!given.hear([0, 1 << 3, 0]) && given.has(69));
        // Of more numbers than there are nothing is heard.
        assert!(!given.hear([0, 0, 0, 1]) && !given.has(96));
    }
}
