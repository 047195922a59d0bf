//! A store-load fence paid by one side only: `membarrier(2)`.
//!
//! A sender marks a transfer as in progress with plain stores; the exporter that wants to revoke
//! sets its state word and then makes every registered process execute a full barrier. Either
//! the sender sees the new state or the exporter sees the mark (the store-buffering case of
//! Dekker's handshake), and sends cost no fence.

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, compiler_fence, fence};

#[cfg(vmmc_loom)]
mod model;
#[cfg(vmmc_loom)]
pub use model::Barrier;

const CMD_GLOBAL: libc::c_int = 1;
const CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

/// Whether [`light`] must be a fence of its own: until this process is registered, and for ever
/// where the call is missing or forbidden (seccomp).
static FENCE_NEEDED: AtomicBool = AtomicBool::new(true);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier(2) with these commands reads no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Makes this process take part in other processes' [`heavy`] barriers. Idempotent; a process
/// must call it before its first transfer.
///
/// Returns false where the kernel lacks it: then [`heavy`] uses the slow form, which needs no
/// registration.
pub fn register() -> bool {
    // 0: not asked yet. Threads that ask at once hear the same, and no forked child waits for one of them.
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    const MISSING: u8 = 1;
    const REGISTERED: u8 = 2;
    if ANSWER.load(Ordering::Relaxed) == 0 {
        let registered = membarrier(CMD_REGISTER_GLOBAL_EXPEDITED);
        FENCE_NEEDED.store(!registered, Ordering::Relaxed);
        ANSWER.store(if registered { REGISTERED } else { MISSING }, Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == REGISTERED
}

/// How long the store of another thread may be on its way to memory at the very most, many ticks of any kernel.
const SETTLED: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A full memory barrier on every running thread of every registered process, this one included.
/// Some microseconds; a system call.
///
/// False when threads of this process were not reached though their [`light`] is no fence: the call was forbidden since
/// [`register`].
pub fn heavy() -> bool {
    let registered = register();
    // The second takes milliseconds, but is correct for all processes. Where even that is missing there is
    // nothing left but our own fence; the swap of pages then decides (see `transport::shm`).
    let reached = membarrier(CMD_GLOBAL_EXPEDITED) || membarrier(CMD_GLOBAL);
    fence(Ordering::SeqCst);
    reached || !registered
}

/// [`heavy`] for who has to go on although it has reached nobody: what the others stored has arrived after this in any
/// case.
pub fn heavy_for_sure() {
    if heavy() {
        return;
    }
    // Forbidden since this process was registered (seccomp). Signals do not shorten this, and no thread is cancelled in
    // it, as it could be in the C library's.
    let now = || clock_gettime(ClockId::Monotonic);
    let until = now() + SETTLED;
    while now() < until {
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
    }
}

/// The sender's half: orders its mark before its load of the state word as far as the compiler
/// is concerned; the processor is ordered by [`heavy`]. Costs a load and a branch, and a real
/// fence where [`register`] did not succeed: within one process the bargain holds in any case,
/// because memory is freed by it (see `snapshot`).
#[inline]
pub fn light() {
    if FENCE_NEEDED.load(Ordering::Relaxed) {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}
