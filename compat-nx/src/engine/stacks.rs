//! The stacks of the threads that send or receive: they become no windows, since a child that the program forks runs on the
//! stack of the thread that called `fork`, and would share it with its parent.
//!
//! The kernel names the first thread's stack in `/proc/self/maps`, and no other. So a thread says where its own is before its first
//! message of a page or more. No lock: a forked child may find the table in any state.
#![allow(unsafe_code)] // asks the C library; each block has its proof

use super::mappings;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Shorter messages are in no window.
pub(super) const LEAST: usize = super::direct::PAGE;
/// Threads at a time whose stacks are known. More of them are as they were without this.
const MOST: usize = 256;

/// Where a stack begins and ends.
struct Slot {
    start: AtomicUsize,
    /// 0: free. [`TAKEN`]: `start` is not there yet.
    end: AtomicUsize,
}

const TAKEN: usize = 1;

static KNOWN: [Slot; MOST] =
    [const { Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; MOST];

/// A thread's place in the table, given back at its end.
struct Place(Option<&'static Slot>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.end.store(0, Ordering::Release);
        }
    }
}

thread_local! {
    static PLACE: Place = Place(own().and_then(enter));
}

/// Notes where the calling thread's stack is, once.
pub(super) fn note() {
    // At the very end of a thread there is nothing to note any more.
    let _ = PLACE.try_with(|_| ());
}

/// Whether one of the known stacks is in the range.
pub(super) fn are_in(range: &Range<usize>) -> bool {
    KNOWN.iter().any(|slot| {
        let end = slot.end.load(Ordering::Acquire);
        end > range.start && slot.start.load(Ordering::Relaxed) < range.end
    })
}

fn enter(stack: Range<usize>) -> Option<&'static Slot> {
    let is_mine = |slot: &&Slot| {
        slot.end.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let slot = KNOWN.iter().find(is_mine)?;
    slot.start.store(stack.start, Ordering::Relaxed);
    slot.end.store(stack.end, Ordering::Release);
    Some(slot)
}

/// The calling thread's stack, unless it is the first thread's.
fn own() -> Option<Range<usize>> {
    let local = 0u8;
    let is_first = rustix::thread::gettid() == rustix::process::getpid();
    // A child that was forked by another thread is on that one's.
    if is_first && mappings::is_first_stack((&raw const local).addr()) {
        return None;
    }
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: no arguments.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: the thread lives; the place is for attributes.
    if unsafe { libc::pthread_getattr_np(thread, attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut start, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: they were filled in just now; both results are on this stack.
    let got =
        unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut len) };
    // SAFETY: filled in, and not used again.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (got == 0).then(|| start.addr()..start.addr().saturating_add(len))
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_known_as_long_as_its_thread() {
        let here = std::thread::spawn(|| {
            let local = [0u8; LEAST];
            let start = local.as_ptr().addr();
            let there = start..start + LEAST;
            assert!(!are_in(&there));
            note();
            note();
            assert!(are_in(&there) && !are_in(&(0..LEAST)));
            let heap = vec![0u8; 1 << 20];
            let start = heap.as_ptr().addr();
            assert!(!are_in(&(start..start + heap.len())));
            KNOWN.iter().filter(|slot| slot.end.load(Ordering::Relaxed) != 0).count()
        });
        assert!(here.join().unwrap() >= 1);
        std::thread::spawn(|| {
            let local = 0u8;
            let at = (&raw const local).addr();
            // Its memory may be that of the thread before.
            assert!(!are_in(&(at..at + 1)));
        })
        .join()
        .unwrap();
    }
}
