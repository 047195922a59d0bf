//! The one thread of this process that has to do with sockets, as long as there is only one: the *owner*.
//!
//! It counts itself in and takes a connection's locks by plain stores ([`vmmc::word::owned`]); a locked instruction costs some
//! 5 ns, and a message of 8 bytes took six between the peer's word and ours. The first call of another thread
//! ends that for good, by a membarrier (`noticed`).
//!
//! ```text
//!   0 ─▶ CLAIMED ──first thread──▶ its thread pointer ──another one──▶ LOST ──membarrier──▶ MANY
//! ```
//!
//! Threads are told apart by their thread pointer, one instruction, where an id takes a thread-local variable, which in a
//! shared library is a call. One that ended may have left its number to another: then there is one thread as before.

use crate::{counters, fork, raw, sleeps};
use counters::Counter;
use vmmc::sync::{AtomicU32, AtomicUsize, Ordering, thread_token};
use vmmc::sys::membarrier;

/// The owner's thread pointer; 0: nobody yet; [`CLAIMED`], [`LOST`] or [`MANY`], which are odd as no pointer is.
static OWNER: AtomicUsize = AtomicUsize::new(0);
/// Somebody is about to be it.
const CLAIMED: usize = 1;
/// Another thread is here; the membarrier may not have been.
const LOST: usize = 3;
/// Another thread is here, and the owner knows or is seen.
const MANY: usize = 5;
/// Who is or was the owner, by its thread pointer. Written before it is.
static WAS: AtomicUsize = AtomicUsize::new(0);
/// This process, as the owner knows it.
static ID: AtomicU32 = AtomicU32::new(0);

/// At load, while there is one thread: later the kernel would take its time.
pub(crate) fn init() {
    membarrier::register();
}

/// Whether the caller is the owner still.
#[inline]
pub(crate) fn is_me() -> bool {
    OWNER.load(Ordering::Relaxed) == thread_token()
}

/// What an owner's mark on a lock is: the number of its process.
#[inline]
pub(crate) fn mark() -> u32 {
    ID.load(Ordering::Relaxed)
}

/// Whether the mark on a lock is the caller's own.
pub(crate) fn is_mine(mark: u32) -> bool {
    mark != 0 && mark == ID.load(Ordering::Relaxed) && WAS.load(Ordering::Relaxed) == thread_token()
}

/// Whether there never was another thread but the owner, who may be the caller.
#[inline]
pub(crate) fn is_alone() -> bool {
    !matches!(OWNER.load(Ordering::SeqCst), LOST | MANY)
}

/// A thread uses a socket or a set. Before it does anything with it: after this it is the owner, or every mark of the
/// owner's that it does not see is one that the owner backs out of.
#[inline]
pub(crate) fn noticed() {
    // First: a child that nobody has told of begins anew, and counts itself in after that.
    fork::look();
    // PAIRS(many): what the membarrier has brought to light is seen by who finds `MANY`.
    if OWNER.load(Ordering::Acquire) == MANY {
        return;
    }
    // A sleep that is on, and we are here: a signal handler of the sleeper's own.
    if !is_me() || sleeps::is_asleep() {
        other_thread();
    }
}

#[cold]
#[inline(never)]
fn other_thread() {
    let change = |from, to| OWNER.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    if change(0, CLAIMED).is_ok() {
        ID.store(raw::getpid(), Ordering::Relaxed);
        WAS.store(thread_token(), Ordering::Relaxed);
        counters::by_owner();
        // Another thread may have come, which makes us as it is; marks there are none.
        let _ = change(CLAIMED, thread_token());
        return;
    }
    // PAIRS(owner): with the load in `sleeps::begin`: we see the sleep, or it sees us.
    OWNER.store(LOST, Ordering::SeqCst);
    // What it has stored before is seen after this, or it sees what we have stored.
    membarrier::heavy_for_sure();
    // PAIRS(many): with the load in `noticed`.
    OWNER.store(MANY, Ordering::SeqCst);
    counters::one(Counter::owner_lost);
    crate::epoll::rouse();
}

/// In a forked child, whose only thread is the caller.
pub(crate) fn after_fork() {
    OWNER.store(0, Ordering::Relaxed);
}
