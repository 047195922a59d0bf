//! Waking who sleeps on a word in memory that several processes map.

use crate::word::MappedU32;

/// Wakes every thread, of any process, that sleeps on the word (futex(2), not private).
pub fn wake_all(word: MappedU32<'_>) {
    let word = word.as_ptr().as_ptr();
    // SAFETY: the kernel reads nothing there for a wake-up: it looks for sleepers by the address.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::View;
    use crate::sync::Ordering;
    use crate::sys::memfd;
    use crate::sys::mmap::{Access, GuardedMapping, page_size};
    use crate::word::Word;

    #[test]
    fn a_sleeper_by_another_mapping_wakes() {
        let len = page_size();
        let memory = memfd::create("futex", len as u64).unwrap();
        let map = || GuardedMapping::new(&memory, len, Access::ReadWrite).unwrap();
        let (ours, theirs) = (map(), map());
        let sleeper = std::thread::spawn(move || {
            let word = View::of(&theirs).word32(64).unwrap();
            while word.load(Ordering::Acquire) == 0 {
                let at = word.as_ptr().as_ptr();
                // SAFETY: the kernel reads the word, which is mapped.
                unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAIT, 0, 0usize, 0, 0) };
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        let word = View::of(&ours).word32(64).unwrap();
        word.store(1, Ordering::Release);
        wake_all(word);
        sleeper.join().unwrap();
    }
}
