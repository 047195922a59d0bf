//! What happened, counted: in the process page, where `shrimp stat` reads it, and once more at
//! the end of the process into the file that `VMMC_SOCKETS_REPORT` names.
//!
//! The page is private memory until the process first talks to the daemon; then the same
//! addresses become a shared memory file, sealed so that nobody else can write it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use vmmc::counters::Counters;
use vmmc::layout::{self, page};
use vmmc::mem::View;
use vmmc::sys::{Fd, memfd, mmap};
use vmmc::word::Word;

macro_rules! counters {
    ($($name:ident: $doc:literal),* $(,)?) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(non_camel_case_types)]
        pub enum Counter { $(#[doc = $doc] $name),* }

        /// Names by number.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

counters! {
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
    ring_full: "Times a sender found the ring full.",
    space_sleeps: "Times a sender slept for room.",
    contended: "Polls interrupted by others that wanted the processor.",
    epoll_ring_events: "Events that epoll_wait found in rings.",
    epoll_filtered: "Kernel events that were only doorbells.",
    plain_no_daemon: "Kept plain: no daemon.",
    plain_no_partner: "Kept plain: the other end takes no part.",
    plain_refused: "Kept plain: refused by the daemon.",
    plain_remote: "Kept plain: the other end has another address.",
    plain_not_tcp: "Kept plain: not TCP.",
    plain_forked: "Kept plain: shared with a forked process before the upgrade.",
    plain_option: "Kept plain: an option or call that needs the kernel.",
    plain_io_uring: "Kept plain: the program uses io_uring.",
    plain_rule: "Kept plain: by a rule of the user's.",
    plain_resources: "Kept plain: no memory or table space.",
    poisoned: "Connections ended because the peer wrote nonsense.",
    exec_unsafe: "Upgraded descriptors that could not be demoted in time before exec.",
    lock_recovered: "Locks taken over from a dead process.",
}

/// Start of the page; null before [`init`].
static PAGE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

fn view() -> Option<View<'static>> {
    let start = NonNull::new(PAGE.load(Ordering::Relaxed))?;
    // SAFETY: mapped by `init` for the life of the process, `page::LEN` bytes; only accessed
    // through views.
    Some(unsafe { View::from_raw(start, page::LEN) })
}

/// Makes the page, private for now.
pub(crate) fn init() {
    if let Ok(start) = mmap::map_private_anonymous(page::LEN) {
        PAGE.store(start.as_ptr(), Ordering::Relaxed);
        dress();
    }
}

/// Writes head and names.
fn dress() {
    let Some(view) = view() else { return };
    let set = |at, value| {
        if let Ok(word) = view.word32(at) {
            word.store(value, Ordering::Relaxed);
        }
    };
    set(layout::HEAD_VERSION, layout::VERSION);
    set(layout::HEAD_BYTES, page::LEN as u32);
    set(page::PID, crate::raw::getpid());
    set(page::PID + 4, vmmc::control::message::Role::Sockets as u32);
    set(page::CPU, u32::MAX);
    Counters::new(view).name_all(NAMES);
    if let Ok(magic) = view.word64(layout::HEAD_MAGIC) {
        magic.store(page::MAGIC, Ordering::Release);
    }
}

/// Turns the page into a shared one that the daemon can hand to `shrimp stat`, keeping what was
/// counted. Returns its descriptor.
pub(crate) fn share() -> Option<Fd> {
    let view = view()?;
    let fd = memfd::create("vmmc-sockets-page", page::LEN as u64).ok()?;
    let mut copy = [0u8; page::LEN];
    view.read(0, &mut copy).ok()?;
    let whole = mmap::GuardedMapping::new(&fd, page::LEN, mmap::Access::ReadWrite).ok()?;
    // SAFETY: a fresh mapping of `page::LEN` bytes, alive until the end of this function.
    unsafe { View::from_raw(whole.as_ptr(), page::LEN) }.write(0, &copy).ok()?;
    // SAFETY: the range is the page that `init` mapped and that belongs to this module; no Rust
    // reference points into it. What other threads count between copy and swap is lost.
    unsafe { mmap::replace_with_shared(view.as_ptr(), page::LEN, &fd, 0, mmap::Access::ReadWrite) }
        .ok()?;
    memfd::seal_single_writer(&fd).ok()?;
    Some(fd)
}

/// In a forked child: a private page of its own, all zero, so that the parent's is not counted in.
pub(crate) fn after_fork() {
    let Some(view) = view() else { return };
    // SAFETY: as in `share`.
    if unsafe { mmap::replace_with_private(view.as_ptr(), page::LEN) }.is_ok() {
        dress();
    }
}

/// Counts.
#[inline]
pub(crate) fn add(counter: Counter, amount: u64) {
    if let Some(view) = view() {
        Counters::new(view).add(counter as usize, amount);
    }
}

/// Counts one.
#[inline]
pub(crate) fn one(counter: Counter) {
    add(counter, 1);
}

/// The value of a counter in this process.
#[must_use]
pub fn get(counter: Counter) -> u64 {
    view().map_or(0, |view| Counters::new(view).get(counter as usize))
}

/// Appends one line to `path`: process id and every counter that is not zero. At exit only.
pub(crate) fn report(path: &std::path::Path) {
    let Some(view) = view() else { return };
    let mut line = format!("pid={}", crate::raw::getpid());
    for (name, value) in Counters::new(view).snapshot() {
        if value != 0 {
            line.push_str(&format!(" {name}={value}"));
        }
    }
    line.push('\n');
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        let file = Fd::from(file);
        let _ = rustix::io::write(&file, line.as_bytes());
    }
}
