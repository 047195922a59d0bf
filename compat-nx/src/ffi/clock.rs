//! Clocks (table 1.9).

use super::esize::ESize;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::c_ulong;
use std::sync::OnceLock;

/// Ticks of `hwclock` per second: what `HWHZ` promises. (A real Paragon ticked at 50 MHz.)
const HWHZ: u64 = 10_000_000;

fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds since the first look at a clock.
fn elapsed() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    let start = *START.get_or_init(nanoseconds);
    nanoseconds().saturating_sub(start)
}

/// Seconds.
#[unsafe(no_mangle)]
pub extern "C" fn dclock() -> f64 {
    elapsed() as f64 * 1e-9
}

#[unsafe(no_mangle)]
pub extern "C" fn _dclock() -> f64 {
    elapsed() as f64 * 1e-9
}

#[unsafe(no_mangle)]
pub extern "C" fn dclock_() -> f64 {
    elapsed() as f64 * 1e-9
}

/// Milliseconds; fits 31 bits for 24 days.
#[unsafe(no_mangle)]
pub extern "C" fn mclock() -> c_ulong {
    elapsed() / 1_000_000
}

#[unsafe(no_mangle)]
pub extern "C" fn _mclock() -> c_ulong {
    elapsed() / 1_000_000
}

#[unsafe(no_mangle)]
pub extern "C" fn mclock_() -> i32 {
    (elapsed() / 1_000_000) as i32
}

/// Ticks of 100 ns, in two words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hwclock(time: *mut ESize) {
    // SAFETY: passed on.
    super::plain("hwclock", || unsafe { ticks(time) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _hwclock(time: *mut ESize) -> std::ffi::c_long {
    // SAFETY: passed on.
    super::under(|| unsafe { ticks(time) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hwclock_(time: *mut ESize) {
    // SAFETY: passed on.
    super::plain("hwclock", || unsafe { ticks(time) });
}

/// # Safety
/// Null, or the caller's variable.
unsafe fn ticks(time: *mut ESize) -> Result<(), super::Failure> {
    if time.is_null() {
        return Err(super::null("the time"));
    }
    let ticks = elapsed() / (1_000_000_000 / HWHZ);
    // SAFETY: the caller's variable.
    unsafe { time.write_unaligned(ESize::from_i64(ticks as i64)) };
    Ok(())
}
