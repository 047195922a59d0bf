//! poll, select, epoll.

use super::export;
use crate::select::Sets;
use crate::{epoll, poll, raw, real, select, user_memory};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

fn milliseconds(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * 1_000_000)
}

/// Nanoseconds of a timespec; `None` for a null pointer (for ever), `Err` with the error number
/// for what the kernel refuses.
///
/// # Safety
/// `time` must be null or valid.
pub(super) unsafe fn nanoseconds(time: *const timespec) -> Result<Option<u64>, c_int> {
    if time.is_null() {
        return Ok(None);
    }
    if !user_memory::can_read(time, 1) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's word.
    let time = unsafe { time.read() };
    match (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(rest)) if rest < 1_000_000_000 => {
            Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest)))
        }
        _ => Err(libc::EINVAL),
    }
}

/// The program's array, if some member of it is upgraded, or may be while the call waits.
///
/// # Safety
/// `fds` must be null or point to `count` entries.
unsafe fn concerned<'a>(fds: *mut pollfd, count: nfds_t, waits: bool) -> Option<&'a mut [pollfd]> {
    if fds.is_null() || count == 0 || !user_memory::can_write(fds, count as usize) {
        return None;
    }
    // SAFETY: the caller's word.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    poll::concerns(fds.iter().map(|entry| entry.fd), waits).then_some(fds)
}

/// The program's sets and how many bits of them count, if some member is upgraded, or may be while the call waits.
///
/// # Safety
/// As select(2); a set must be valid for `count` bits, as far as there can be descriptors.
unsafe fn concerned_sets<'a>(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    waits: bool,
) -> Option<(Sets<'a>, usize)> {
    let count = usize::try_from(count).ok().filter(|&count| count > 0).and_then(select::bits)?;
    let words = count.div_ceil(64);
    let words_of = |set: *mut fd_set| {
        if set.is_null() {
            return Some(None);
        }
        // What cannot be touched the kernel refuses.
        user_memory::can_write(set.cast::<u64>(), words).then(|| {
            // SAFETY: the kernel too reads and writes whole words of so many bits.
            Some(unsafe { std::slice::from_raw_parts_mut(set.cast::<u64>(), words) })
        })
    };
    let sets = Sets { read: words_of(read)?, write: words_of(write)?, except: words_of(except)? };
    sets.concerns(count, waits).then_some((sets, count))
}

// SAFETY (of every `real::` call below): the arguments are the program's own, passed on as they
// came to the C function of the same name.
export! {
    /// poll(2).
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        // SAFETY: as above.
        match unsafe { concerned(fds, count, timeout != 0) } {
            // SAFETY: no mask.
            Some(fds) => unsafe { crate::poll::poll(fds, milliseconds(timeout), std::ptr::null()) },
            // SAFETY: as above.
            None => unsafe { real::poll(fds, count, timeout) },
        }
    }

    /// Fortified poll(2).
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int {
        if room / size_of::<pollfd>() < count as usize {
            std::process::abort();
        }
        // SAFETY: as above.
        unsafe { poll(fds, count, timeout) }
    }

    /// ppoll(2).
    fn ppoll(fds: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: as above.
        if let Ok(timeout) = unsafe { nanoseconds(time) } {
            // SAFETY: as above.
            if let Some(fds) = unsafe { concerned(fds, count, timeout != Some(0)) } {
                // SAFETY: as above.
                return unsafe { crate::poll::poll(fds, timeout, mask) };
            }
        }
        // SAFETY: as above.
        unsafe { real::ppoll(fds, count, time, mask) }
    }

    /// Fortified ppoll(2).
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t, room: usize) -> c_int {
        if room / size_of::<pollfd>() < count as usize {
            std::process::abort();
        }
        // SAFETY: as above.
        unsafe { ppoll(fds, count, time, mask) }
    }

    /// select(2).
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *mut timeval) -> c_int {
        if !time.is_null() && !user_memory::can_write(time, 1) {
            // SAFETY: as above.
            return unsafe { real::select(count, read, write, except, time) };
        }
        // SAFETY: null or the program's own.
        let given = (!time.is_null()).then(|| unsafe { time.read() });
        let sane = given.is_none_or(|time| time.tv_sec >= 0 && time.tv_usec >= 0);
        // SAFETY: as above.
        let waits = given.is_none_or(|time| (time.tv_sec, time.tv_usec) != (0, 0));
        // SAFETY: as above.
        let concerned = if sane { unsafe { concerned_sets(count, read, write, except, waits) } } else { None };
        let Some((mut three, bits)) = concerned else {
            // SAFETY: as above.
            return unsafe { real::select(count, read, write, except, time) };
        };
        let timeout = given.map(|time| {
            (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_usec as u64 * 1000)
        });
        let started = raw::now_ns();
        // SAFETY: no mask.
        let result = unsafe { three.wait(bits, timeout, std::ptr::null()) };
        if let Some(timeout) = timeout {
            // Linux leaves the time that was not used.
            let left = timeout.saturating_sub(raw::now_ns().wrapping_sub(started));
            let left = timeval {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_usec: (left % 1_000_000_000 / 1000) as i64,
            };
            // SAFETY: the program's own, not null.
            unsafe { time.write(left) };
        }
        result
    }

    /// pselect(2).
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: as above.
        if let Ok(timeout) = unsafe { nanoseconds(time) } {
            // SAFETY: as above.
            if let Some((mut three, bits)) = unsafe { concerned_sets(count, read, write, except, timeout != Some(0)) } {
                // SAFETY: as above.
                return unsafe { three.wait(bits, timeout, mask) };
            }
        }
        // SAFETY: as above.
        unsafe { real::pselect(count, read, write, except, time, mask) }
    }

    /// epoll_ctl(2).
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        // SAFETY: as above.
        unsafe { epoll::ctl(epfd, op, fd, event) }
    }

    /// epoll_wait(2).
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        // SAFETY: as above.
        match unsafe { epoll::wait(epfd, events, max, milliseconds(timeout), std::ptr::null()) } {
            Ok(count) => count,
            // SAFETY: as above.
            Err(outside) => outside_told(outside, events, unsafe { real::epoll_wait(epfd, events, max, timeout) }),
        }
    }

    /// epoll_pwait(2).
    fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        // SAFETY: as above.
        match unsafe { epoll::wait(epfd, events, max, milliseconds(timeout), mask) } {
            Ok(count) => count,
            // SAFETY: as above.
            Err(outside) => outside_told(outside, events, unsafe { real::epoll_pwait(epfd, events, max, timeout, mask) }),
        }
    }

    /// epoll_pwait2(2).
    fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, time: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: as above.
        let outside = match unsafe { nanoseconds(time) } {
            // SAFETY: as above.
            Ok(timeout) => match unsafe { epoll::wait(epfd, events, max, timeout, mask) } {
                Ok(count) => return count,
                Err(outside) => outside,
            },
            Err(_) => None,
        };
        // SAFETY: as above.
        outside_told(outside, events, unsafe { real::epoll_pwait2(epfd, events, max, time, mask) })
    }
}

/// What the C library's wait gave, after a look at it.
fn outside_told(outside: Option<epoll::Waiter>, events: *const epoll_event, count: c_int) -> c_int {
    if let Some(outside) = outside {
        // SAFETY: the kernel has written so many there.
        unsafe { outside.was_told(events, count) };
    }
    count
}
