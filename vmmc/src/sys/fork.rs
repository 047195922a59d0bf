//! Telling a forked child from its parent with one load, however the fork was made.
//!
//! A page marked `MADV_WIPEONFORK` holds a generation that the kernel turns into zero in every
//! child: `fork`, `_Fork`, `clone` without `CLONE_VM`. `pthread_atfork` handlers miss the last
//! two. A child that builds its own state takes the next generation, so what it inherited stays
//! recognisable: it belongs to an earlier one.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Generations handed out, in this process and its ancestors: a child continues the count.
static GENERATIONS: AtomicU32 = AtomicU32::new(0);

fn next_generation() -> u32 {
    loop {
        let next = GENERATIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if next != 0 {
            return next;
        }
    }
}

/// Which side of a fork this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The process that called.
    Parent,
    /// The new process.
    Child,
}

/// Forks a process that has one thread, so that the child may go on as if nothing had happened.
///
/// # Errors
/// As fork(2); `EBUSY` when there are other threads, which the child would not have.
pub fn fork_single_threaded() -> std::io::Result<Side> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(rustix::io::Errno::BUSY.into());
    }
    // SAFETY: no other thread exists that could hold a lock or be in the middle of anything.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => Ok(Side::Child),
        _ => Ok(Side::Parent),
    }
}

/// A page that holds this process's generation, and zero in its forked children.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    /// First word of the page, mapped until the process ends.
    word: NonNull<u32>,
}

// SAFETY: the word is only ever accessed atomically and its page is never unmapped.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// The guard of this process, made at the first call.
    ///
    /// Returns `None` when the kernel has no `MADV_WIPEONFORK` (before 4.14) or no memory.
    #[must_use]
    pub fn get() -> Option<ForkGuard> {
        static WORD: AtomicPtr<u32> = AtomicPtr::new(null_mut());
        let found = WORD.load(Ordering::Acquire); // pairs with the exchange below
        if let Some(word) = NonNull::new(found) {
            return Some(ForkGuard { word });
        }
        // Nobody waits for another thread here, whom a child forked meanwhile would not have.
        let ours = ForkGuard::map()?;
        let fresh = ours.word.as_ptr();
        match WORD.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(ours),
            Err(theirs) => {
                // SAFETY: the page that was mapped above, known to nobody else.
                let _ = unsafe { rustix::mm::munmap(fresh.cast(), super::mmap::page_size()) };
                NonNull::new(theirs).map(|word| ForkGuard { word })
            }
        }
    }

    fn map() -> Option<ForkGuard> {
        let len = super::mmap::page_size();
        let page = super::mmap::map_private_anonymous(len).ok()?;
        // SAFETY: `page` is a private anonymous mapping of `len` bytes made above; the advice
        // only changes what a child of this process sees.
        let wiped = unsafe {
            rustix::mm::madvise(page.as_ptr().cast(), len, rustix::mm::Advice::LinuxWipeOnFork)
        };
        if wiped.is_err() {
            // SAFETY: mapped above, known to nobody else.
            let _ = unsafe { rustix::mm::munmap(page.as_ptr().cast(), len) };
            return None;
        }
        let guard = ForkGuard { word: page.cast() };
        guard.word().store(next_generation(), Ordering::Relaxed);
        Some(guard)
    }

    /// Whether this is still the process that made the guard.
    #[inline]
    #[must_use]
    pub fn is_original_process(self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }

    /// This process's generation; 0 in a forked child that has not called
    /// [`ForkGuard::adopt`].
    #[inline]
    #[must_use]
    pub fn generation(self) -> u32 {
        self.word().load(Ordering::Relaxed)
    }

    /// The generation, taking a new one first in a forked child that has none yet.
    #[must_use]
    pub fn ensure_generation(self) -> u32 {
        let found = self.generation();
        if found != 0 {
            return found;
        }
        let fresh = next_generation();
        match self.word().compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => fresh,
            Err(other_thread) => other_thread,
        }
    }

    /// Makes this process the original one: for a child that has rebuilt its state.
    pub fn adopt(self) {
        let _ = self.ensure_generation();
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: page aligned, never unmapped, private to this process, only atomic accesses.
        unsafe { AtomicU32::from_ptr(self.word.as_ptr()) }
    }
}
