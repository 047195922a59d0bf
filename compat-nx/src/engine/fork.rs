//! Windows in a forked child: private copies, as fork gives of all other memory.
//!
//! The memory of a window is shared, so a child would share it with its parent. The child's first act is
//! therefore to put private pages with the same bytes in its place, and the thread that has forked waits for that.
//!
//! The program may have given the memory of a window back to its allocator, which may keep its lists in it. So the
//! child allocates nothing before it has its own, and the parent must not meanwhile: what the thread that forks would do next is
//! the danger. What other threads of the parent store between its fork and the child's copy may be in it or not.
#![allow(unsafe_code)] // registers a C function and remaps memory; each block has its proof

use super::mappings::{self, File};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
// A static table, which the model checker's atomics cannot be in; no algorithm is here to check.
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A window: what a child must know without taking a lock, which another thread may hold at the fork.
struct Row {
    start: AtomicUsize,
    len: AtomicUsize,
    major: AtomicU32,
    minor: AtomicU32,
    inode: AtomicU64,
}

impl Row {
    const fn empty() -> Row {
        Row {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            major: AtomicU32::new(0),
            minor: AtomicU32::new(0),
            inode: AtomicU64::new(0),
        }
    }

    fn file(&self) -> File {
        let [major, minor] = [&self.major, &self.minor].map(|it| it.load(Ordering::Relaxed));
        File { device: (major, minor), inode: self.inode.load(Ordering::Relaxed) }
    }
}

/// Rows in the table.
const ROWS: usize = 256;
static ROW: [Row; ROWS] = [const { Row::empty() }; ROWS];

/// A window's row; forgotten with the value.
#[derive(Debug)]
pub(super) struct Noted(usize);

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(row) = ROW.get(self.0) {
            row.len.store(0, Ordering::Release);
            row.start.store(0, Ordering::Release);
        }
    }
}

/// Notes a window; `None` when the table is full: the window must not be made then.
pub(super) fn add(start: usize, len: usize, file: File) -> Option<Noted> {
    PENDING.get_or_init(|| {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever there is room; it is never unmapped.
        let page = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4096, rights, MapFlags::SHARED)
        };
        // SAFETY: mapped for the life of the program, zero, aligned, and used by nothing else.
        let word = page.ok().map(|page| unsafe { AtomicU32::from_ptr(page.cast()) });
        // SAFETY: functions for the life of the program (the library is not unloaded) that do not unwind.
        let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        word
    });
    let index = ROW.iter().position(|row| {
        row.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })?;
    let row = ROW.get(index)?;
    row.major.store(file.device.0, Ordering::Relaxed);
    row.minor.store(file.device.1, Ordering::Relaxed);
    row.inode.store(file.inode, Ordering::Relaxed);
    row.len.store(len, Ordering::Release);
    Some(Noted(index))
}

/// A word that parent and child share: 1 while a child has windows that are not its own. `None`: there was no memory.
static PENDING: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
/// How long a parent waits for a child, which may be dead, or not there because the fork failed.
const PATIENCE: Duration = Duration::from_secs(1);

fn pending() -> Option<&'static AtomicU32> {
    PENDING.get().copied().flatten()
}

extern "C" fn prepare() {
    let any = ROW.iter().any(|row| row.len.load(Ordering::Acquire) > 0);
    if let Some(pending) = pending() {
        pending.store(u32::from(any), Ordering::Relaxed);
    }
}

extern "C" fn parent() {
    let Some(pending) = pending() else { return };
    let begun = Instant::now();
    while pending.load(Ordering::Acquire) != 0 && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
}

extern "C" fn child() {
    privatise_all();
    if let Some(pending) = pending() {
        pending.store(0, Ordering::Release);
    }
}

fn privatise_all() {
    for row in &ROW {
        let len = row.len.load(Ordering::Acquire);
        let start = row.start.load(Ordering::Relaxed);
        // The program may have unmapped all or some of it and have something else there.
        let (mut at, end) = (start, start + len);
        while at < end
            && let Some(part) = mappings::first_of(at..end, row.file())
        {
            privatise(part.start, part.len());
            at = part.end;
        }
        row.len.store(0, Ordering::Relaxed);
        row.start.store(0, Ordering::Relaxed);
    }
}

/// Puts private pages with the same bytes in the place of mapped ones. Left shared when memory is short.
fn privatise(start: usize, len: usize) {
    let there = std::ptr::with_exposed_provenance_mut::<u8>(start);
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, wherever there is room.
    let copy =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE) };
    let Ok(copy) = copy else { return };
    // SAFETY: `len` bytes are mapped at both, and the new mapping overlaps nothing.
    unsafe { std::ptr::copy_nonoverlapping(there.cast_const(), copy.cast(), len) };
    // SAFETY: moves the new mapping over the old one; this child has one thread, which is here.
    let moved = unsafe {
        rustix::mm::mremap_fixed(copy, len, len, rustix::mm::MremapFlags::MAYMOVE, there.cast())
    };
    if moved.is_err() {
        // SAFETY: the mapping made above.
        let _ = unsafe { rustix::mm::munmap(copy, len) };
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    /// One that could not be exported leaves no row, so that it keeps none of those that come later out.
    #[test]
    fn rows_of_windows_that_are_gone_are_used_again() {
        let file = File { device: (0, 1), inode: 1 };
        for number in 1..=3 * ROWS {
            assert!(add(number << 12, 4096, file).is_some(), "window {number}");
        }
        let all: Vec<_> = (1..=ROWS).filter_map(|number| add(number << 12, 4096, file)).collect();
        assert_eq!(all.len(), ROWS);
        assert!(add(1 << 30, 4096, file).is_none(), "the table is full");
    }
}
