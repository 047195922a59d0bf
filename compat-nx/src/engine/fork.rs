//! Windows in a forked child: private copies, as fork gives of all other memory.
//!
//! The memory of a window is shared, so a child would share it with its parent. The child's first act is
//! therefore to put private pages with the same bytes in its place, and the thread that has forked waits for that.
//!
//! The program may have given the memory of a window back to its allocator, which may keep its lists in it. So the
//! child allocates nothing before it has its own, and the parent must not meanwhile: what the thread that forks would do next is
//! the danger. What other threads of the parent store between its fork and the child's copy may be in it or not.
//!
//! A window that another thread is just making is shared memory before it is in the table: forks and such threads keep each other
//! out ([`Out`]).
#![allow(unsafe_code)] // registers C functions and maps a page; each block has its proof

use super::noted::{self, Bytes};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::Once;
use std::time::{Duration, Instant};
// Statics, which the model checker's atomics cannot be in.
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// How long a parent waits for a child, which may be dead, or not there because the fork failed; and whoever forks for a thread
/// that makes a window.
const PATIENCE: Duration = Duration::from_secs(1);

/// The thread that makes a window, or one more: it forks. 0: nobody does.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// A word that the child of a fork and its parent share, in a page of its own: not 0 while the child has windows that are not its own, and
/// another number after each step.
/// Null: it has none, or there was no memory. Of the thread that has the turn.
static PENDING: AtomicPtr<u32> = AtomicPtr::new(std::ptr::null_mut());

const PAGE: usize = super::direct::PAGE;

/// Even, not 0, and the same in a child of this thread's.
fn this_thread() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as usize }
}

/// Takes the turn, waiting for so long; false when it could not be had.
fn take_turn(who: usize, patience: Duration) -> bool {
    let mut begun = None;
    while let Err(other) = TURN.compare_exchange(0, who, Ordering::Acquire, Ordering::Relaxed) {
        if other & !1 == this_thread() {
            return false; // a signal handler has interrupted it
        }
        if begun.get_or_insert_with(Instant::now).elapsed() > patience {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// As long as it lives no other thread forks.
#[derive(Debug)]
pub(super) struct Out(());

impl Out {
    /// `None`: a thread is forking, and does not come to an end.
    pub(super) fn keep() -> Option<Out> {
        watch();
        take_turn(this_thread(), 2 * PATIENCE).then_some(Out(()))
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        TURN.store(0, Ordering::Release);
    }
}

/// Has the process's forks looked after from here on: before its first window, and before other threads may fork.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions for the life of the program (the library is not unloaded) that do not unwind.
        let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}

/// Whether the calling thread has the turn as one that forks.
fn forks() -> bool {
    TURN.load(Ordering::Relaxed) == this_thread() + 1
}

extern "C" fn prepare() {
    if !take_turn(this_thread() + 1, PATIENCE) || !noted::are_any() {
        return;
    }
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, wherever there is room.
    let page =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, rights, MapFlags::SHARED) };
    if let Ok(page) = page {
        let page = page.cast();
        // SAFETY: mapped just now, aligned, and known here alone.
        unsafe { AtomicU32::from_ptr(page) }.store(1, Ordering::Relaxed);
        PENDING.store(page, Ordering::Relaxed);
    }
}

/// What a handler that has the turn does with the word of this fork; then the turn is over.
fn finish(with: impl FnOnce(&AtomicU32)) {
    let page = PENDING.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if !page.is_null() {
        // SAFETY: the page that `prepare` mapped, which is unmapped below.
        with(unsafe { AtomicU32::from_ptr(page) });
        // SAFETY: as above; this process uses it no more.
        let _ = unsafe { rustix::mm::munmap(page.cast(), PAGE) };
    }
    TURN.store(0, Ordering::Release);
}

extern "C" fn parent() {
    if !forks() {
        return;
    }
    finish(|pending| {
        let (mut seen, mut begun) = (1, Instant::now());
        while seen != 0 && begun.elapsed() < PATIENCE {
            std::thread::yield_now();
            let now = pending.load(Ordering::Acquire);
            if now != seen {
                (seen, begun) = (now, Instant::now());
            }
        }
    });
}

extern "C" fn child() {
    let page = if forks() { PENDING.load(Ordering::Relaxed) } else { std::ptr::null_mut() };
    let step = || {
        if !page.is_null() {
            // SAFETY: the page that `prepare` mapped, which `finish` unmaps.
            unsafe { AtomicU32::from_ptr(page) }.fetch_add(1, Ordering::Release);
        }
    };
    noted::give_back_in_steps(&(0..usize::MAX), Bytes::Kept, step);
    noted::clear();
    if forks() {
        finish(|pending| pending.store(0, Ordering::Release));
    } else if TURN.load(Ordering::Relaxed) != this_thread() {
        TURN.store(0, Ordering::Release); // another thread's, which is not here
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn nobody_forks_while_a_window_is_made() {
        let out = Out::keep().unwrap();
        std::thread::scope(|scope| {
            let forks = scope.spawn(|| {
                // SAFETY: the child ends at once.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) };
                }
                Instant::now()
            });
            std::thread::sleep(PATIENCE / 4);
            let until = Instant::now();
            drop(out);
            assert!(forks.join().unwrap() >= until);
        });
        drop(Out::keep().expect("the fork has given the turn back"));
    }
}
