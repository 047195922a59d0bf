//! Memory that a process keeps for its next use. Who takes long memory from the system for each message, and gives it back, has it
//! zeroed a page fault at a time.

use std::collections::VecDeque;
use std::sync::Mutex;

/// Memory that knows how long it is.
pub trait Spare {
    /// Its length in bytes, used or not.
    fn bytes(&self) -> usize;
}

impl Spare for Vec<u8> {
    fn bytes(&self) -> usize {
        self.capacity()
    }
}

impl<T> Spare for Box<[T]> {
    fn bytes(&self) -> usize {
        size_of_val::<[T]>(self)
    }
}

/// Pieces of memory in no use, up to so many bytes. What is in them is left as it is.
///
/// Nobody waits for the lock: a child may have it from its parent while another thread there had it. Who does not get it does without.
#[derive(Debug)]
pub struct Spares<T> {
    kept: Mutex<Kept<T>>,
    most: usize,
}

#[derive(Debug)]
struct Kept<T> {
    /// What was used longest ago is the first.
    list: VecDeque<T>,
    bytes: usize,
}

impl<T: Spare> Spares<T> {
    /// None yet; `most` bytes at the most.
    #[must_use]
    pub const fn new(most: usize) -> Spares<T> {
        Spares { kept: Mutex::new(Kept { list: VecDeque::new(), bytes: 0 }), most }
    }

    /// The shortest of at least so many bytes, and at most a quarter more: who is charged for them holds no more than that. Of several
    /// the one that was used last, which is in a cache rather than the others.
    pub fn take(&self, bytes: usize) -> Option<T> {
        let mut kept = self.kept.try_lock().ok()?;
        let fits = bytes..=bytes.saturating_add(bytes / 4);
        let latest_first = kept.list.iter().enumerate().rev();
        let fitting = latest_first.filter(|(_, one)| fits.contains(&one.bytes()));
        let (found, _) = fitting.min_by_key(|(_, one)| one.bytes())?;
        let one = kept.list.remove(found)?;
        kept.bytes -= one.bytes();
        Some(one)
    }

    /// Keeps it, in the place of what was used longest ago if there is no room for all.
    pub fn keep(&self, one: T) {
        let mut gone = Vec::new(); // given back to the system while nobody misses the lock
        let Ok(mut kept) = self.kept.try_lock() else { return };
        if one.bytes() > self.most {
            return;
        }
        kept.bytes += one.bytes();
        while kept.bytes > self.most
            && let Some(oldest) = kept.list.pop_front()
        {
            kept.bytes -= oldest.bytes();
            gone.push(oldest);
        }
        kept.list.push_back(one);
        drop(kept);
        drop(gone);
    }

    /// The lengths of what is kept, in bytes; what was used longest ago is the first. Waits for the lock: for tests.
    #[must_use]
    pub fn lengths(&self) -> Vec<usize> {
        let kept = self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let lengths: Vec<_> = kept.list.iter().map(Spare::bytes).collect();
        debug_assert_eq!(kept.bytes, lengths.iter().sum::<usize>());
        lengths
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_that_will_do_is_taken_and_what_was_used_longest_ago_goes() {
        let memory = |bytes: usize| vec![0u8; bytes].into_boxed_slice();
        let spares = Spares::new(100);
        for bytes in [30, 10, 25, 35] {
            spares.keep(memory(bytes));
        }
        assert_eq!(spares.lengths(), [30, 10, 25, 35]);
        assert_eq!(spares.take(24).map(|one| one.len()), Some(25));
        // Too long is no use, and too short none either.
        assert!(spares.take(20).is_none() && spares.take(36).is_none());
        spares.keep(memory(101));
        assert_eq!(spares.lengths(), [30, 10, 35]);
        spares.keep(memory(60));
        assert_eq!(spares.lengths(), [35, 60]);
        spares.keep(memory(100));
        assert_eq!(spares.lengths(), [100]);
        spares.keep(memory(1));
        assert_eq!(spares.lengths(), [1]);
    }
}
