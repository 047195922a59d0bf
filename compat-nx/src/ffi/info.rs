//! What is known of the last message: `msginfo` and the calls that read it.

use super::{Failure, Ints, calls, process};
use crate::engine::types::{Info, InfoTarget};
use std::ffi::{c_long, c_void};

/// Words of an info array.
const WORDS: usize = 8;

/// Type, length, node, process type of the last message, and four words of no use. Programs read
/// it, pass it to the x-calls, and may have a copy of it in their own data (copy relocation), so
/// it is always reached by its public address.
#[unsafe(no_mangle)]
pub static mut msginfo: [c_long; WORDS] = [0; WORDS];

/// The same for programs compiled with `NX_INT_ARRAYS`.
#[unsafe(no_mangle)]
pub static mut nx32_msginfo: [i32; WORDS] = [0; WORDS];

/// Writes the four words.
///
/// # Safety
/// `array` must have 8 elements.
unsafe fn write(array: Ints, info: &Info) {
    let count = i32::try_from(info.count).unwrap_or(i32::MAX);
    for (index, value) in [info.type_, count, info.node, info.ptype].into_iter().enumerate() {
        // SAFETY: index below 4.
        unsafe { array.set(index, value) };
    }
}

/// `msginfo` in both widths.
fn own() -> [Ints; 2] {
    [Ints::Long((&raw mut msginfo).cast()), Ints::Int((&raw mut nx32_msginfo).cast())]
}

/// Makes `info` that of the last message.
pub(super) fn set(info: &Info) {
    for array in own() {
        // SAFETY: it has 8 elements. Threads that receive at once overwrite each other, as NX
        // has it.
        unsafe { write(array, info) };
    }
}

/// Writes to an array of the program; to `msginfo` in both widths.
///
/// # Safety
/// `array` must have 8 elements.
pub(super) unsafe fn fill(array: Ints, info: &Info) {
    match array {
        Ints::Long(at) if at == (&raw mut msginfo).cast() => set(info),
        Ints::Int(at) if at == (&raw mut nx32_msginfo).cast() => set(info),
        // SAFETY: the caller vouches for it.
        array => unsafe { write(array, info) },
    }
}

/// For an operation that completes later.
pub(super) fn target(array: Ints) -> InfoTarget {
    unsafe fn long(array: *mut c_void, info: &Info) {
        // SAFETY: the array is the program's until the operation completes.
        unsafe { fill(Ints::Long(array.cast()), info) }
    }
    unsafe fn int(array: *mut c_void, info: &Info) {
        // SAFETY: as above.
        unsafe { fill(Ints::Int(array.cast()), info) }
    }
    match array {
        Ints::Long(at) => InfoTarget { write: long, array: at.cast() },
        Ints::Int(at) => InfoTarget { write: int, array: at.cast() },
    }
}

fn word(index: usize) -> Result<i32, Failure> {
    process::check_started()?;
    let [long, _] = own();
    // SAFETY: it has 8 elements.
    Ok(unsafe { long.get(index) })
}

calls! {
    fn infotype, _infotype, infotype_: () -> long { word(0) }
    fn infocount, _infocount, infocount_: () -> long { word(1) }
    fn infonode, _infonode, infonode_: () -> long { word(2) }
    fn infoptype, _infoptype, infoptype_: () -> long { word(3) }
    fn infopid, _infopid, infopid_: () -> long { word(3) }
}
