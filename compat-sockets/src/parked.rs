//! Threads asleep in a call on a socket that another thread closes.
//!
//! The kernel lets such a call go on: it holds the open file, not the number. Our calls are several
//! system calls by number, so a close with sleepers keeps the socket under another number until the
//! last of them has returned. That number is the *kept* one of the [`Sock`]; only then does the
//! peer see the close, as it would without us.
//!
//! ```text
//!   sleeper                                closer
//!   (1) count itself in                    (1) take the number out of the table
//!   (2) is the number still ours?          (2) does somebody sleep? keep the socket
//!   (3) sleep; then ask for the number     (3) close the number
//! ```

use crate::sock::{Link, Sock};
use crate::{fd_table, raw};
use std::cell::Cell;
use vmmc::sync::{AtomicU32, Ordering};

/// Numbers kept at once; a close beyond that does without.
const MOST: usize = 64;
/// Kept numbers plus one, for the child of a fork, which must not keep them.
static KEPT: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// Kept numbers are from here on, where the limit allows it.
const FLOOR: usize = 512;

/// What a thread has counted in itself: the latest socket, and how often on that.
#[derive(Clone, Copy)]
struct Mine {
    sock: *const Sock,
    times: u32,
}

impl Mine {
    const NOTHING: Mine = Mine { sock: std::ptr::null(), times: 0 };

    fn on(self, sock: &Sock) -> u32 {
        if std::ptr::eq(self.sock, sock) { self.times } else { 0 }
    }
}

std::thread_local! {
    // `const` and without a destructor: usable anywhere, no registration.
    static MINE: Cell<Mine> = const { Cell::new(Mine::NOTHING) };
}

/// A thread that may sleep on the socket, as long as the value lives; and what its thread had counted in before.
pub(crate) struct Parked(&'static Sock, Mine);

impl Parked {
    /// Counts the caller in; `None` when the number does not mean the socket any more.
    pub(crate) fn new(link: &Link, fd: i32) -> Option<Parked> {
        let before = MINE.get();
        // Who leaves by a jump between the two is one of the others, as below.
        link.sock.parked.fetch_add(1, Ordering::SeqCst);
        MINE.set(Mine { sock: link.sock, times: before.on(link.sock) + 1 });
        let parked = Parked(link.sock, before);
        // PAIRS(parked): with the closer, which looks at the count after it cleared the table.
        is_of(link, fd).then_some(parked)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        MINE.set(self.1);
        self.0.parked.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether a number means the socket still. Under one of its locks it does until that is let go.
pub(crate) fn is_of(link: &Link, fd: i32) -> bool {
    link.sock.is_at(fd) || link.sock.kept.load(Ordering::SeqCst) == fd as u32 + 1
}

/// The number to use for the socket after a sleep: `fd`, a duplicate, or the kept one.
#[inline]
pub(crate) fn number_now(link: &Link, fd: i32) -> Option<i32> {
    if link.sock.is_at(fd) { Some(fd) } else { other_number(link) }
}

#[cold]
fn other_number(link: &Link) -> Option<i32> {
    // A closer that is about to keep the socket holds both locks.
    let locked = link.side.rx_lock.lock().is_ok();
    let kept = link.sock.kept.load(Ordering::SeqCst);
    if locked {
        link.side.rx_lock.unlock();
    }
    if kept != 0 {
        return Some(kept as i32 - 1);
    }
    fd_table::number_of(link.sock)
}

/// Before the socket's last number is closed: keeps the socket if somebody sleeps on it.
pub(crate) fn keep_for_sleepers(link: &Link, fd: i32) -> bool {
    // Where only the caller has slept, a handler of a signal interrupts it, where the kernel's call would find the number
    // closed, or has left it for good by `siglongjmp`.
    let sleepers = link.sock.parked.load(Ordering::SeqCst);
    if sleepers == 0 || sleepers == MINE.get().on(link.sock) {
        return false;
    }
    let Some(slot) = KEPT.iter().find(|slot| slot.load(Ordering::Relaxed) == 0) else {
        return false;
    };
    let kept = raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, FLOOR)
        .or_else(|_| raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0));
    let Ok(kept) = kept else { return false };
    slot.store(kept as u32 + 1, Ordering::SeqCst);
    link.sock.kept.store(kept as u32 + 1, Ordering::SeqCst);
    true
}

/// The kept number of a socket that nobody uses any more, to be closed by the caller.
pub(crate) fn take_kept(sock: &Sock) -> Option<i32> {
    let kept = sock.kept.swap(0, Ordering::SeqCst);
    if kept == 0 {
        return None;
    }
    for slot in &KEPT {
        let _ = slot.compare_exchange(kept, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
    Some(kept as i32 - 1)
}

/// In a forked child: the sleepers are the parent's.
pub(crate) fn after_fork() {
    MINE.set(Mine::NOTHING);
    for slot in &KEPT {
        let kept = slot.swap(0, Ordering::Relaxed);
        if kept != 0 {
            raw::close(kept as i32 - 1);
        }
    }
}
