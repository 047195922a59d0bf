//! Where the memory of windows is: a table that is read without a lock, by a forked child and by calls of the program's.
#![allow(unsafe_code)] // maps over memory of the program; each block has its proof

use super::direct::PAGE;
use super::mappings::{self, File};
use rustix::mm::{
    MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap_anonymous, mprotect, mremap,
    mremap_fixed, munmap,
};
use std::ffi::c_void;
use std::ops::Range;
// A static table, which the model checker's atomics cannot be in; no algorithm is here to check.
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A window: what a child must know without taking a lock, which another thread may hold at the fork.
struct Row {
    start: AtomicUsize,
    /// 0: there is none, or not yet.
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

    fn range(&self) -> Range<usize> {
        let len = self.len.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        start..start + len
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

/// Whether there are any.
pub(super) fn are_any() -> bool {
    ROW.iter().any(|row| row.len.load(Ordering::Acquire) > 0)
}

/// Empties the table.
pub(super) fn clear() {
    for row in &ROW {
        row.len.store(0, Ordering::Relaxed);
        row.start.store(0, Ordering::Relaxed);
    }
}

/// Puts the program's own, private pages in the place of all that is a window's in a range, which begins with a page and is
/// rounded up to pages; whether there was any. Nothing is allocated.
#[cfg_attr(not(feature = "abi"), allow(dead_code))] // for calls of programs
pub(crate) fn give_back(range: &Range<usize>, bytes: Bytes) -> bool {
    give_back_in_steps(range, bytes, || ())
}

/// [`give_back`], which tells whenever so much is done as takes a small part of a second.
pub(super) fn give_back_in_steps(range: &Range<usize>, bytes: Bytes, step: impl Fn()) -> bool {
    if !range.start.is_multiple_of(PAGE) {
        return false;
    }
    let end = range.end.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
    let mut was_there = false;
    for row in &ROW {
        let noted = row.range();
        let (mut at, end) = (noted.start.max(range.start), noted.end.min(end));
        // The program may have unmapped all or some of it and have something else there.
        while at < end
            && let Some((part, rights)) = mappings::first_of(at..end, row.file())
        {
            let part = part.start..part.end.min(part.start.saturating_add(STEP));
            replace(&part, rights, bytes);
            step();
            was_there = true;
            at = part.end;
        }
    }
    was_there
}

/// Most bytes of a step; whole pages.
const STEP: usize = 64 << 20;

/// What private pages begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// Those that were there.
    Kept,
    #[cfg_attr(not(feature = "abi"), allow(dead_code))] // for calls of programs
    Zero,
}

/// One stretch of shared pages, to which the program has these rights. They stay when memory is short.
fn replace(part: &Range<usize>, rights: ProtFlags, bytes: Bytes) {
    const ALL: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
    let len = part.len();
    let there = std::ptr::with_exposed_provenance_mut::<c_void>(part.start);
    let old = match bytes {
        Bytes::Zero => None,
        Bytes::Kept => {
            // SAFETY: a length of 0 maps the pages a second time, wherever there is room, and leaves the first mapping.
            let old = unsafe { mremap(there, 0, len, MremapFlags::MAYMOVE) };
            let Ok(old) = old else { return };
            // Whoever may not read them has them read all the same.
            // SAFETY: the second mapping, which nobody else knows.
            let readable = unsafe { mprotect(old, len, MprotectFlags::READ) };
            if readable.is_err() {
                // SAFETY: as above.
                let _ = unsafe { munmap(old, len) };
                return;
            }
            Some(old)
        }
    };
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // Not a mapping that is moved here: such a one would not be one with its neighbours again, as the program knows them.
    // SAFETY: over pages that are a window's, which the program owns; it is in a call about them, or a child with one thread.
    let new = unsafe { mmap_anonymous(there, len, ALL, flags) };
    if let Some(old) = old {
        if new.is_ok() {
            // SAFETY: `len` bytes are mapped at both, which do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(old.cast_const().cast::<u8>(), there.cast(), len)
            };
            // SAFETY: the second mapping, which nobody else knows.
            let _ = unsafe { munmap(old, len) };
        } else {
            // There may be nothing now: those pages again.
            let flags = MremapFlags::MAYMOVE;
            // SAFETY: from the second mapping to where the first one was, of the same length.
            let _ = unsafe { mremap_fixed(old, len, len, flags, there) };
        }
    }
    if rights != ALL || new.is_err() {
        // SAFETY: what may be done with it is what could be done before.
        let _ = unsafe { mprotect(there, len, MprotectFlags::from_bits_retain(rights.bits())) };
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
