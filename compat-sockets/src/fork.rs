//! Telling a forked child from its parent, and putting its state in order.
//!
//! * An **upgraded** connection keeps working in both: the segment is mapped in both, and the
//!   side's own state and locks are in memory they share ([`crate::side`]).
//! * A connection **not yet upgraded** stays plain while both have it ([`crate::family`]); one
//!   that is just being offered stays plain for good.
//! * The child drops its copy of the daemon connection and opens its own when it needs one.
//!
//! `fork` is handled by `pthread_atfork`, which the C library runs for every `fork` however it
//! was called; it is hooked only to hear of one that fails. `_Fork` is hooked. A child made by a
//! raw `clone` finds out at its next call, by a page that the kernel wipes in children
//! ([`vmmc::sys::fork`]); its parent does not hear of it.
//!
//! A `vfork` child runs in the parent's memory with descriptors of its own: it must not touch
//! the table. [`in_vfork_child`] asks the kernel who we are; only the calls that change the table
//! pay for that.

use crate::counters::{self, Counter};
use crate::side::{self, tx};
use crate::sock::{self, Link, state};
use crate::{control, epoll, family, fd_table, heap, io_uring, owner, parked, raw, sleeps};
use std::cell::Cell;
use std::sync::OnceLock;
use vmmc::sync::{AtomicU32, Ordering};
use vmmc::sys::fork::ForkGuard;
use vmmc::sys::membarrier;

static GUARD: OnceLock<Option<ForkGuard>> = OnceLock::new();
/// The process this memory belongs to.
static PID: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    // `const` and without a destructor: usable anywhere, no registration.
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// At load.
pub(crate) fn init() {
    PID.store(raw::getpid(), Ordering::Relaxed);
    let _ = GUARD.set(ForkGuard::get());
    // SAFETY: the three functions live as long as the library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), None, Some(child)) };
}

/// Puts the state in order if this is a child that nobody has told of.
#[inline]
pub(crate) fn look() {
    if let Some(Some(guard)) = GUARD.get()
        && !guard.is_original_process()
    {
        after(false);
    }
}

/// The calling thread's id, for lock words.
#[inline]
pub(crate) fn tid() -> u32 {
    look();
    let tid = TID.get();
    if tid != 0 { tid } else { learn_tid() }
}

#[cold]
fn learn_tid() -> u32 {
    let tid = raw::gettid();
    TID.set(tid);
    tid
}

/// Whether this is a `vfork` child, which borrows our memory but not our descriptors.
pub(crate) fn in_vfork_child() -> bool {
    let pid = PID.load(Ordering::Relaxed);
    pid != 0 && raw::getpid() != pid
}

/// Around `fork`, which runs the handlers.
pub(crate) fn with_handlers(fork: impl FnOnce() -> i32) -> i32 {
    let pid = fork();
    if pid < 0 {
        has_failed();
    }
    pid
}

/// Around `_Fork`, which runs no handlers.
pub(crate) fn without_handlers(fork: impl FnOnce() -> i32) -> i32 {
    // SAFETY: runs here as it does before a fork.
    unsafe { before() };
    let pid = with_handlers(fork);
    if pid == 0 {
        after(true);
    }
    pid
}

/// There is no child that has what [`before`] made ready for it.
#[cold]
fn has_failed() {
    for (_, sock) in fd_table::socks_once() {
        family::not_forked(sock);
    }
    family::sets_are_not_shared();
    for_each_active(|_, link| family::shares_not(link.side));
}

/// In the parent, before the fork.
unsafe extern "C" fn before() {
    // An answer that has come already counts.
    control::poll_mail();
    for (fd, sock) in fd_table::socks_once() {
        let listed = match sock.state.load(Ordering::SeqCst) {
            state::CANDIDATE => family::before_fork(sock),
            state => state != state::PENDING,
        };
        if !listed {
            sock.make_plain(fd, Counter::plain_forked);
        }
        sock.not_alone_any_longer();
    }
    epoll::before_fork();
    // One share per socket and child, not per descriptor: `after` counts the same way.
    for_each_active(|fd, link| {
        let side = link.side;
        family::shares(side);
        // The child cannot know when it ends.
        if side.tx_state.load(Ordering::SeqCst) == tx::TCP
            && link.sock.plain_tx.load(Ordering::SeqCst) != 0
        {
            side.tx_frozen.store(1, Ordering::SeqCst);
            counters::note(fd, Counter::plain_forked);
        }
    });
}

/// Calls `body` once per upgraded socket.
fn for_each_active(mut body: impl FnMut(i32, &Link)) {
    for (fd, sock) in fd_table::socks_once() {
        if let Some(link) = sock.enter(fd) {
            body(fd, &link);
            link.leave();
        }
    }
}

unsafe extern "C" fn child() {
    after(true);
}

/// Puts a child's state in order. `announced`: its parent ran [`before`].
#[cold]
fn after(announced: bool) {
    if let Some(Some(guard)) = GUARD.get() {
        if guard.is_original_process() {
            return;
        }
        guard.adopt();
    }
    let parent = PID.swap(raw::getpid(), Ordering::Relaxed);
    TID.set(0);
    heap::after_fork();
    counters::after_fork();
    control::after_fork();
    io_uring::after_fork();
    parked::after_fork();
    side::after_fork();
    epoll::after_fork();
    owner::after_fork();
    sleeps::after_fork();
    sock::after_fork();
    family::after_fork();
    fd_table::after_fork(announced);
    if announced {
        family::sets_are_here();
        for_each_active(|_, link| family::has_share(link.side));
    } else {
        // The parent does not know, and may take its locks as one that is alone.
        for_each_active(|_, link| family::was_born_unseen(link.side, parent));
        // PAIRS(births): with `Lock::lock_by`, whose caller looks at the births when it has set its mark.
        membarrier::heavy_for_sure();
    }
}
