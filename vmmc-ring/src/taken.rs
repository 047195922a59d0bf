//! An error of a connection that the kernel has told to somebody else.
//!
//! A socket's error (`ECONNRESET` mostly) is told once, to the next call on the socket, whosesoever it is; who calls later
//! finds an end of file. Where a daemon sends by a process's socket, that call can be its own. So it says beforehand that it
//! is about to, and afterwards which error it was told; and a process that finds an end asks, and waits for a moment where
//! the daemon is between the two.

use vmmc::sync::Ordering;
use vmmc::word::Word;

/// The word: nothing, [`CALLING`], or the number of an error that the process has not heard of.
#[derive(Clone, Copy, Debug)]
pub struct Taken<W>(pub W);

/// The daemon is inside a call.
const CALLING: u32 = u32::MAX;

/// What a process finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its end is an end.
    Nothing,
    /// This error, told here once.
    Error(i32),
    /// It is not known yet.
    NotYet,
}

impl<W: Word<Value = u32>> Taken<W> {
    /// The daemon makes a call on the socket, which returns `Err` with the number of an error that was taken.
    pub fn during<T>(&self, call: impl FnOnce() -> T, error: impl FnOnce(&T) -> Option<i32>) -> T {
        let exchange = |from, to| {
            let _ = self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        };
        // One that the process has not heard of stays.
        exchange(0, CALLING);
        let result = call();
        let error = error(&result).map_or(0, i32::cast_unsigned);
        exchange(CALLING, error);
        // Another call may have ended meanwhile.
        exchange(0, error);
        result
    }

    /// The process has found an end.
    pub fn take(&self) -> Found {
        match self.0.load(Ordering::SeqCst) {
            0 => Found::Nothing,
            CALLING => Found::NotYet,
            error => match self.0.compare_exchange(error, 0, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(error) => Found::Error(error.cast_signed()),
                // Another thread has it.
                Err(_) => Found::Nothing,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmmc::sync::AtomicU32;

    #[test]
    fn an_error_is_told_once_and_a_call_is_waited_for() {
        let word = AtomicU32::new(0);
        let taken = Taken(&word);
        assert_eq!(taken.take(), Found::Nothing);
        taken.during(|| assert_eq!(taken.take(), Found::NotYet), |()| None);
        assert_eq!(taken.take(), Found::Nothing);
        taken.during(|| (), |()| Some(104));
        // Later calls, which find nothing, do not hide it.
        taken.during(|| (), |()| None);
        assert_eq!([taken.take(), taken.take()], [Found::Error(104), Found::Nothing]);
    }
}
