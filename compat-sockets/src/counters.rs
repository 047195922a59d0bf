//! What happened, counted: in the process page, where `shrimp stat` reads it, and once more at
//! the end of the process into the file that `VMMC_SOCKETS_REPORT` names.

use crate::owner;
use std::path::Path;
use vmmc::control::message::Role;
use vmmc::counters::thread_stripe;
use vmmc::library_page::LibraryPage;
use vmmc::sync::{AtomicUsize, Ordering};
use vmmc::sys::Fd;
use vmmc::sys::socket;

vmmc::library_counters! {
    upgraded: "Connections attached to a segment.",
    registered: "Connections offered to the daemon.",
    switched_tx: "Directions we moved to the ring.",
    switched_rx: "Directions the peer moved to the ring.",
    demoted_tx: "Directions we moved back to TCP.",
    demoted_rx: "Directions the peer moved back to TCP.",
    ring_tx_bytes: "Bytes put into rings.",
    ring_rx_bytes: "Bytes taken out of rings.",
    deliberate_bytes: "Of these, bytes put there by deliberate update.",
    staged_bytes: "Bytes copied into a buffer of ours before a deliberate update.",
    ring_tx_calls: "Sending calls that used a ring.",
    ring_rx_calls: "Receiving calls that used a ring.",
    tcp_calls: "Data calls on tracked sockets that went to the kernel.",
    doorbells: "Doorbells rung: one system call each.",
    doorbells_owed: "Doorbells the kernel had no room for.",
    doorbells_saved: "Doorbells not rung, because the sleeper was rung already.",
    drains: "System calls that threw doorbells away.",
    sleeps: "Times a thread went to sleep in a receive.",
    spin_hits: "Waits that ended while still polling.",
    spin_misses: "Spins that ended in sleep.",
    yield_hits: "Waits that ended after giving way to others.",
    yield_misses: "Times a thread gave way for nothing before it slept.",
    ring_full: "Times a sender found the ring full.",
    space_sleeps: "Times a sender slept for room.",
    contended: "Polls interrupted by others that wanted the processor.",
    epoll_ring_events: "Events that epoll_wait found in rings.",
    epoll_filtered: "Kernel events that were only doorbells.",
    epoll_deferred: "Calls of epoll_ctl answered without the kernel.",
    epoll_settled: "Of these, made true in the kernel later: one system call each.",
    plain_no_daemon: "Kept plain: no daemon.",
    plain_no_partner: "Kept plain: the other end takes no part.",
    plain_refused: "Kept plain: refused by the daemon.",
    carrier_rings: "Times the daemon was rung that carries connections to other nodes.",
    plain_remote: "Kept plain: the other end has another address.",
    plain_not_tcp: "Kept plain: not TCP.",
    plain_forked: "Kept plain: shared with a forked process before the upgrade.",
    plain_option: "Kept plain: an option or call that needs the kernel.",
    plain_io_uring: "Kept plain: the program uses io_uring.",
    plain_rule: "Kept plain: by a rule of the user's.",
    plain_resources: "Kept plain: no memory or table space.",
    plain_stdio: "Kept plain: standard input, output or error.",
    plain_waiter: "Directions moved back: only the kernel can wake who waits for room.",
    plain_full: "Directions moved back: the ring was full, and nobody read.",
    plain_stopped: "Directions moved back: another process that has the socket was stopped while it sent.",
    plain_peer: "Directions moved back: the other end wants it so.",
    poisoned: "Connections ended because the peer wrote nonsense.",
    exec_unsafe: "Upgraded descriptors that could not be demoted in time before exec.",
    lock_recovered: "Locks taken over from a process that was dead, or stopped.",
    owner_lost: "Times that a second thread came to use sockets: from then on each call pays for it.",
}

/// This process's page.
static PAGE: LibraryPage = LibraryPage::new(Role::Sockets, NAMES);

/// Makes the page, private for now.
pub(crate) fn init() {
    PAGE.init();
}

/// Turns the page into a shared one; see [`LibraryPage::share`].
pub(crate) fn share() -> Option<Fd> {
    PAGE.share()
}

/// In a forked child; see [`LibraryPage::after_fork`].
pub(crate) fn after_fork() {
    PAGE.after_fork();
}

/// Where the owner counts ([`owner`]), which saves it the look at a variable of its thread.
static OWNERS: AtomicUsize = AtomicUsize::new(0);

/// The caller is the owner from now on.
pub(crate) fn by_owner() {
    OWNERS.store(thread_stripe(), Ordering::Relaxed);
}

/// Counts.
#[inline]
pub(crate) fn add(counter: Counter, amount: u64) {
    let stripe = if owner::is_me() { OWNERS.load(Ordering::Relaxed) } else { thread_stripe() };
    PAGE.add_in(stripe, counter as usize, amount);
}

/// Counts one.
#[inline]
pub(crate) fn one(counter: Counter) {
    add(counter, 1);
}

/// Tells `shrimp stat` why the socket is plain, or is so again; see [`vmmc::notes`].
#[cold]
pub(crate) fn note(fd: i32, why: Counter) {
    PAGE.note(|| socket::inode(fd), why as usize);
}

/// What was noted of the socket is over: it is upgraded.
pub(crate) fn strike(fd: i32) {
    PAGE.strike(|| socket::inode(fd));
}

/// The value of a counter in this process.
#[must_use]
pub fn get(counter: Counter) -> u64 {
    PAGE.get(counter as usize)
}

/// Appends one line to `path`; see [`LibraryPage::report`]. At exit only.
pub(crate) fn report(path: &Path) {
    PAGE.report(path);
}
