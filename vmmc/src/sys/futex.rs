//! Sleeping on a word, and waking who sleeps: of one process, or in memory that several processes map.

use crate::sync::AtomicU32;
use crate::word::MappedU32;

/// Wakes every thread, of any process, that sleeps on the word (futex(2), not private).
pub fn wake_all(word: MappedU32<'_>) {
    let word = word.as_ptr().as_ptr();
    // SAFETY: the kernel reads nothing there for a wake-up: it looks for sleepers by the address.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
}

/// Sleeps while the word holds `value`; may return for no reason. For threads of one process.
#[cfg(not(vmmc_loom))]
pub fn wait(word: &AtomicU32, value: u32) {
    let flags = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let no_timeout = std::ptr::null::<libc::timespec>();
    // SAFETY: the kernel reads the word, which is borrowed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), flags, value, no_timeout, 0, 0) };
}

/// Wakes every thread of this process that sleeps in [`wait`].
#[cfg(not(vmmc_loom))]
#[cold]
pub fn wake(word: &AtomicU32) {
    let flags = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads nothing there for a wake-up: it looks for sleepers by the address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), flags, i32::MAX, 0, 0, 0) };
}

/// The model checker knows no futex: another thread may run.
#[cfg(vmmc_loom)]
pub fn wait(_: &AtomicU32, _: u32) {
    crate::sync::spin_hint();
}

/// Nobody sleeps in [`wait`] there.
#[cfg(vmmc_loom)]
pub fn wake(_: &AtomicU32) {}

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
