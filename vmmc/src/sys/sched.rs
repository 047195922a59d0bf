//! What the scheduler can be asked and asked for.

use std::time::Duration;

/// The processor that the calling thread runs on just now. No system call.
#[must_use]
pub fn current_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// `struct sched_attr` of sched_setattr(2), first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Asks the scheduler to give the calling thread `slice` at a time, at least 100 us, and in return to
/// let it run sooner when it wakes (Linux 6.12). Whether it does.
#[must_use]
pub fn ask_for_slice(slice: Duration) -> bool {
    const LEN: u32 = size_of::<SchedAttr>() as u32;
    let mut attr = SchedAttr {
        size: LEN,
        policy: 0,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime_ns: 0,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: `attr` is writable for the length given; 0 is the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, LEN, 0) };
    if got != 0 || attr.policy != libc::SCHED_OTHER as u32 {
        return false;
    }
    attr.flags = 0;
    attr.runtime_ns = slice.as_nanos() as u64;
    // SAFETY: `attr` is a whole structure of the size it names.
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } != 0 {
        return false;
    }
    // A kernel without such slices ignores the wish.
    attr.runtime_ns = 0;
    // SAFETY: as above.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, LEN, 0) };
    got == 0 && attr.runtime_ns == slice.as_nanos() as u64
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_short_slice_is_granted_or_refused_and_changes_nothing_else() {
        // In a thread of its own: the wish stays with it.
        let asked = std::thread::spawn(|| {
            let before = rustix::thread::sched_getaffinity(None).unwrap();
            let granted = ask_for_slice(Duration::from_micros(100));
            assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
            assert_eq!(ask_for_slice(Duration::from_micros(100)), granted);
            // Below the least there is: another one is given, and we are told.
            assert!(!ask_for_slice(Duration::from_nanos(10)));
        });
        asked.join().unwrap();
    }
}
