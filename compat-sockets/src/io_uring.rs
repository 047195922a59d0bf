//! Programs that use io_uring: the kernel then reads and writes sockets for them, and nothing of
//! that passes through us. Their sockets stay with, or go back to, TCP.
//!
//! A ring is noticed when it is made through `syscall` or liburing. One made by system calls of the
//! program's own is found among its descriptors before a socket is offered, at most ten times a
//! second, and less often where there are so many that looking took a fiftieth of the time ([`in_use`]).
//!
//! What a ring is used for cannot be seen: its requests are in memory that program and kernel share. Who knows that it is
//! for files only says so, and who would rather have none has it refused (`VMMC_SOCKETS_IO_URING`).

use crate::counters::Counter;
use crate::{close, epoll, fd_table, raw, settings};
use rustix::fs::{Mode, OFlags};
use std::os::fd::AsRawFd;
use vmmc::config::IoUring;
use vmmc::sync::{AtomicU32, AtomicU64, Ordering};

static SEEN: AtomicU32 = AtomicU32::new(0);
/// When the descriptors may be looked through again.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds between two looks, at least.
const LOOK_EVERY_NS: u64 = 100_000_000;
/// The same, in multiples of what a look takes.
const LOOK_EVERY_LOOKS: u64 = 50;

/// Whether the user has said that it is for this.
fn is(what: IoUring) -> bool {
    settings::get().is_some_and(|settings| !settings.off && settings.io_uring == what)
}

/// Sets a ring up by `call`, unless the user wants none: the kernel's own answer where it has no rings is `ENOSYS`. Answers
/// with the negative error number, as liburing does.
pub(crate) fn set_up(call: impl FnOnce() -> libc::c_int) -> libc::c_int {
    if is(IoUring::Refused) {
        return -libc::ENOSYS;
    }
    let result = call();
    if result >= 0 {
        seen();
    }
    result
}

/// The process has made a ring: every socket goes back to the kernel.
fn seen() {
    if is(IoUring::Files) || SEEN.swap(1, Ordering::SeqCst) != 0 {
        return;
    }
    epoll::before_sharing(true);
    for (fd, _) in fd_table::socks() {
        close::leave_to_kernel_for(fd, Counter::plain_io_uring);
    }
}

/// Whether the process has a ring, as far as can be told without looking at every call.
pub(crate) fn in_use() -> bool {
    if SEEN.load(Ordering::Relaxed) != 0 {
        return true;
    }
    let now = raw::now_ns();
    if is(IoUring::Files) || now < NEXT_LOOK.load(Ordering::Relaxed) {
        return false;
    }
    NEXT_LOOK.store(now + LOOK_EVERY_NS, Ordering::Relaxed);
    if has_ring() {
        seen();
    }
    let ended = raw::now_ns();
    let pause = ended.saturating_sub(now).saturating_mul(LOOK_EVERY_LOOKS);
    NEXT_LOOK.store(ended + pause.max(LOOK_EVERY_NS), Ordering::Relaxed);
    SEEN.load(Ordering::Relaxed) != 0
}

/// In a forked child: it does not use its parent's ring.
pub(crate) fn after_fork() {
    NEXT_LOOK.store(0, Ordering::Relaxed);
}

/// Looks for a ring among the descriptors of the process.
fn has_ring() -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(listing) = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()) else {
        return false;
    };
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut entries = rustix::fs::RawDir::new(&listing, &mut room);
    let mut found = false;
    while let Some(Ok(entry)) = entries.next() {
        let mut name = [std::mem::MaybeUninit::uninit(); 64];
        if let Ok((text, _)) =
            rustix::fs::readlinkat_raw(&listing, entry.file_name(), &mut name[..])
        {
            found |= *text == *b"anon_inode:[io_uring]";
        }
    }
    // Closed by number: the type's own close is a hook here.
    let number = listing.as_raw_fd();
    std::mem::forget(listing);
    raw::close(number);
    found
}
