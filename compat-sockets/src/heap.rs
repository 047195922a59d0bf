//! The library's own heap: whatever it allocates comes from here, and nothing from the program's.
//!
//! A hook may run where the program's heap must not be used: in the child of a `_Fork` or a raw `clone`, while
//! another thread of the parent held a lock of `malloc`'s; in a signal handler; inside `malloc` itself.
//!
//! ```text
//!   mine[class] ─▶ block ─▶ block        taken from by who has the lock
//!   back[class] ─▶ block ─▶ block        pushed to by anybody, taken whole by who finds `mine` empty
//!   fresh .. end                         never used yet, cut off when both are empty
//! ```
//!
//! Blocks have powers of two as sizes. Nobody waits for the lock for long: who does not get it (its holder is
//! the thread that this signal handler interrupted) takes a page of its own. A child finds every list whole,
//! because each step of a holder is one store; it may lose the block that the step was about.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use vmmc::sync::{AtomicU32, AtomicUsize, Ordering, spin_hint};
use vmmc::sys::mmap;

const PAGE: usize = 4096;
/// Sizes from 16 bytes to 32 KiB; what is larger is mapped for itself.
const SMALLEST: u32 = 4;
const CLASSES: usize = 12;
/// What is mapped at once. A page that nobody has touched costs nothing.
const CHUNK: usize = 1 << 20;
/// Turns in which a holder that runs is certainly done.
const PATIENCE: u32 = 2000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Heap {
    lock: AtomicU32,
    /// Written under the lock.
    mine: [AtomicUsize; CLASSES],
    back: [AtomicUsize; CLASSES],
    /// Both written under the lock. `fresh` is never behind `end`.
    fresh: AtomicUsize,
    end: AtomicUsize,
}

/// Where the hooks are there (`preload`), the heap of all Rust code that is linked with them.
#[cfg_attr(all(not(test), feature = "preload"), global_allocator)]
static HEAP: Heap = Heap::new();

/// In a forked child: nobody else is in the heap.
pub(crate) fn after_fork() {
    HEAP.lock.store(0, Ordering::Release);
}

/// The class of a block, or `None` for what is mapped for itself.
fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST);
    let class = (size.next_power_of_two().trailing_zeros() - SMALLEST) as usize;
    (class < CLASSES && layout.align() <= PAGE).then_some(class)
}

fn map(len: usize) -> Option<NonNull<u8>> {
    mmap::map_private_anonymous(len).ok()
}

/// The link to the next block, which a free block begins with.
///
/// # Safety
/// `block` must be a free block's address, which nobody else takes or gives back meanwhile.
unsafe fn next_of<'a>(block: usize) -> &'a AtomicUsize {
    let link: *mut AtomicUsize = with_exposed_provenance_mut(block);
    // SAFETY: blocks are at least 16 bytes at multiples of 16, are never unmapped, and this one is the caller's.
    unsafe { &*link }
}

impl Heap {
    const fn new() -> Heap {
        Heap {
            lock: AtomicU32::new(0),
            mine: [const { AtomicUsize::new(0) }; CLASSES],
            back: [const { AtomicUsize::new(0) }; CLASSES],
            fresh: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        }
    }

    fn try_lock(&self) -> bool {
        for _ in 0..PATIENCE {
            // PAIRS(heap): acquire with the release in `take`.
            if self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return true;
            }
            spin_hint();
        }
        false
    }

    /// A block of a class.
    fn take(&self, class: usize) -> Option<*mut u8> {
        if !self.try_lock() {
            rustix::thread::sched_yield();
            if !self.try_lock() {
                // A page serves any class up to its own size, and is given back as a block of that class.
                return map((1 << SMALLEST << class).max(PAGE)).map(NonNull::as_ptr);
            }
        }
        let block = self.take_locked(class);
        self.lock.store(0, Ordering::Release);
        block.map(with_exposed_provenance_mut)
    }

    fn take_locked(&self, class: usize) -> Option<usize> {
        let (mine, back) = (self.mine.get(class)?, self.back.get(class)?);
        let mut first = mine.load(Ordering::Relaxed);
        if first == 0 {
            // PAIRS(given-back): acquire with the release in `give`.
            first = back.swap(0, Ordering::Acquire);
        }
        if first != 0 {
            // SAFETY: it is in our list, and only who has the lock takes from that.
            mine.store(unsafe { next_of(first) }.load(Ordering::Relaxed), Ordering::Relaxed);
            return Some(first);
        }
        self.cut(1 << SMALLEST << class)
    }

    /// A block that was never used.
    fn cut(&self, size: usize) -> Option<usize> {
        let align = size.min(PAGE);
        let at = self.fresh.load(Ordering::Relaxed).next_multiple_of(align);
        if at != 0 && at + size <= self.end.load(Ordering::Relaxed) {
            self.fresh.store(at + size, Ordering::Relaxed);
            return Some(at);
        }
        let chunk = map(CHUNK)?.as_ptr().expose_provenance();
        // What a child finds between the stores has no room.
        self.end.store(0, Ordering::Relaxed);
        self.fresh.store(chunk + size, Ordering::Relaxed);
        self.end.store(chunk + CHUNK, Ordering::Relaxed);
        Some(chunk)
    }

    fn give(&self, block: *mut u8, class: usize) {
        let Some(back) = self.back.get(class) else { return };
        let block = block.expose_provenance();
        let mut first = back.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller has just given it up, and nobody finds it before the exchange.
            unsafe { next_of(block) }.store(first, Ordering::Relaxed);
            match back.compare_exchange_weak(first, block, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }
}

// SAFETY: a block is in one list or with one caller: who has the lock takes it out, its owner alone puts it back. It has
// the size of its class, which is at least the layout's, at a multiple of that or of a page.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some(class) => self.take(class).unwrap_or(null_mut()),
            None if layout.align() <= PAGE => {
                map(layout.size()).map_or(null_mut(), NonNull::as_ptr)
            }
            None => null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => self.give(block, class),
            None => {
                if let Some(block) = NonNull::new(block) {
                    // SAFETY: mapped by `alloc` with this size, and its owner gives it up.
                    let _ = unsafe { rustix::mm::munmap(block.as_ptr().cast(), layout.size()) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// A block, filled.
    fn filled(heap: &Heap, layout: Layout, with: u8) -> *mut u8 {
        // SAFETY: no layout here is of size zero.
        let block = unsafe { heap.alloc(layout) };
        assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()), "{layout:?}");
        // SAFETY: the block has that size.
        unsafe { block.write_bytes(with, layout.size()) };
        block
    }

    fn give_back(heap: &Heap, block: *mut u8, layout: Layout, with: u8) {
        // SAFETY: `filled` has written all of it.
        let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
        assert!(
            bytes.iter().all(|&byte| byte == with),
            "somebody else has written into {layout:?}"
        );
        // SAFETY: it is of this heap and layout, and not used again.
        unsafe { heap.dealloc(block, layout) };
    }

    #[test]
    fn what_is_given_back_is_used_again() {
        let heap = Heap::new();
        for size in [1, 16, 100, 5000, 32 << 10] {
            let first = filled(&heap, layout(size, 8), 1);
            give_back(&heap, first, layout(size, 8), 1);
            assert_eq!(filled(&heap, layout(size, 8), 2), first);
        }
        let large = layout(300_000, 4096);
        let block = filled(&heap, large, 3);
        give_back(&heap, block, large, 3);
    }

    #[test]
    fn threads_have_blocks_of_their_own() {
        let heap = Heap::new();
        std::thread::scope(|scope| {
            for thread in 1..=4u8 {
                let heap = &heap;
                scope.spawn(move || {
                    let mut kept = std::collections::VecDeque::new();
                    for turn in 0..20_000usize {
                        let layout = layout(1 + turn * 37 % 3000, 1 << (turn % 5));
                        kept.push_back((filled(heap, layout, thread).expose_provenance(), layout));
                        if kept.len() > 50 {
                            let (block, layout) = kept.pop_front().unwrap();
                            give_back(heap, with_exposed_provenance_mut(block), layout, thread);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_handler_that_interrupts_a_holder_gets_a_block() {
        let heap = Heap::new();
        assert!(heap.try_lock());
        let block = filled(&heap, layout(24, 8), 7);
        give_back(&heap, block, layout(24, 8), 7);
        heap.lock.store(0, Ordering::Release);
        assert_eq!(filled(&heap, layout(32, 8), 8), block);
    }
}
