//! Calls in handlers of signals.
//!
//! A handler of a signal may have interrupted a call anywhere: with locks that its own call would take, or asleep for all threads of the
//! process. It would wait for its own thread. So a thread notes where its stack is in a call. A call that finds another one further up
//! the same stack, or is on a stack for handlers, was made by a handler; it looks in vain, or fails. One that finds another one further *down* may go
//! on: that one has been left by `longjmp`.
#![allow(unsafe_code)] // a question to the system

use super::Failure;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, compiler_fence};

std::thread_local! {
    /// Where this thread's stack was when its call began; 0: it is in none. `const` and without a destructor: handlers of signals look at it.
    static CALL: Cell<usize> = const { Cell::new(0) };
}

/// A thread is in a call while this lives.
pub(super) struct Inside(PhantomData<*const ()>);

impl Inside {
    /// Begins a call; `None`: another one of this thread was interrupted. Allocates nothing: it may have been allocating.
    #[inline]
    pub(super) fn enter() -> Option<Inside> {
        let here = here();
        let call = CALL.get();
        if call != 0 && is_above(call, here) {
            return None;
        }
        CALL.set(here);
        // A handler of this thread's sees it before anything that the call does.
        compiler_fence(Ordering::SeqCst);
        Some(Inside(PhantomData))
    }

    /// The same for calls that fail then.
    #[inline]
    pub(super) fn begin() -> Result<Inside, Failure> {
        Inside::enter().ok_or_else(failure)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        CALL.set(0);
    }
}

/// Whether a handler of a signal that interrupted a call of this thread may have called this.
pub(super) fn interrupts() -> bool {
    CALL.get() != 0 && is_above(CALL.get(), here())
}

/// Runs a function of the program's that a call was given to run: it may make calls itself.
pub(super) fn outside<T>(function: impl FnOnce() -> T) -> T {
    let call = CALL.replace(0);
    let result = function();
    CALL.set(call);
    result
}

/// An address on the stack.
#[inline(always)]
fn here() -> usize {
    let mark = 0_u8;
    std::hint::black_box(&raw const mark).addr()
}

/// Whether what is at `call` on a stack has led to what is at `here`.
#[cold]
fn is_above(call: usize, here: usize) -> bool {
    // SAFETY: an all-zero value is one.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: asks, and changes nothing.
    let known = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) } == 0;
    here < call || (known && stack.ss_flags & libc::SS_ONSTACK != 0)
}

#[cold]
fn failure() -> Failure {
    let why = "called by a handler of a signal that interrupted an NX call of this thread; \
               let the handler set a flag, and make the call where the program looks at it";
    Failure::System(libc::EDEADLK, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn deeper<T>(run: impl FnOnce() -> T) -> T {
        std::hint::black_box([0_u8; 256]);
        run()
    }

    #[test]
    fn a_call_within_another_one_is_told_from_one_after_it() {
        let outer = Inside::enter().unwrap();
        assert!(deeper(|| Inside::enter().is_none() && Inside::begin().is_err() && interrupts()));
        assert!(deeper(|| outside(|| Inside::enter().is_some() && !interrupts())));
        assert!(deeper(|| Inside::enter().is_none()), "the function has come back");
        drop(outer);
        assert!(deeper(|| Inside::enter().is_some() && !interrupts()));
        // Left by longjmp.
        deeper(|| std::mem::forget(Inside::enter().unwrap()));
        assert!(Inside::enter().is_some());
    }
}
