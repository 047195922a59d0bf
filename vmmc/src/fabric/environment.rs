//! What the library reads of the environment when it is first used, where the user says nothing else.
//!
//! Its layer `ofi_rxm`, which makes endpoints of what InfiniBand and TCP have, keeps buffers of 16 KiB for messages, by
//! default more than a thousand per endpoint: 270 MB were resident for each. Only remote writes go over our
//! endpoints, one peer each, so a process of sixteen nodes would have 4 GB of them for nothing. No attribute of an endpoint says
//! otherwise, the variables do. Nor is there an attribute by which it leaves the program's own calls for memory alone.
//!
//! The environment is the program's. So it is another one for the time of a call only, and what other threads see or change
//! meanwhile is whole: theirs stays as it is, and the other one is a copy that is never freed.
#![allow(unsafe_code)] // the C environment; each block has its proof

use super::domain::QUEUE;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `NAME=value`: for [`QUEUE`] operations on their way at once; and no watch on the program's own calls for memory, since we
/// register what we use.
const WANTED: [&CStr; 4] = [
    c"FI_OFI_RXM_BUFFER_SIZE=256",
    c"FI_OFI_RXM_MSG_TX_SIZE=64",
    c"FI_OFI_RXM_MSG_RX_SIZE=64",
    c"FI_MR_CACHE_MONITOR=disabled",
];
const _: () = assert!(QUEUE == 64, "so many operations have to fit");

unsafe extern "C" {
    /// environ(7).
    static environ: AtomicPtr<*mut c_char>;
}

/// Calls, with the variables of [`WANTED`] that are not set.
pub(super) fn with_wanted<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's, which always is there; others may change it, as a whole.
    let place = unsafe { &environ };
    let theirs = place.load(Ordering::Acquire);
    let mut ours: Vec<*mut c_char> = Vec::new();
    if !theirs.is_null() {
        for at in 0.. {
            // SAFETY: entries up to the null one. A program that changes its environment while others read it is on its own:
            // getenv(3) does no less.
            let entry = unsafe { theirs.add(at) };
            // SAFETY: as above.
            match unsafe { *entry } {
                entry if entry.is_null() => break,
                entry => ours.push(entry),
            }
        }
    }
    // SAFETY: entries of an environment are texts with their zeros.
    let text = |entry: *mut c_char| unsafe { CStr::from_ptr(entry) }.to_bytes();
    for wanted in WANTED {
        let name = wanted.to_bytes().split_inclusive(|byte| *byte == b'=').next().unwrap_or(b"=");
        if !ours.iter().any(|entry| text(*entry).starts_with(name)) {
            ours.push(wanted.as_ptr().cast_mut()); // nobody writes to entries
        }
    }
    let made = ours.clone();
    ours.push(null_mut());
    let ours = ours.leak().as_mut_ptr();
    let relaxed = Ordering::Relaxed;
    if place.compare_exchange(theirs, ours, Ordering::AcqRel, relaxed).is_err() {
        return call(); // changed just now: as the library has it by default
    }
    let result = call();
    // What was set meanwhile in our copy would be lost with it: then it stays.
    let same = |(at, entry): (usize, &*mut c_char)| {
        // SAFETY: as many entries are ours and stay for ever.
        let now = unsafe { ours.add(at) };
        // SAFETY: as above; no reference to them is left.
        *entry == unsafe { *now }
    };
    if made.iter().enumerate().all(same) {
        let _ = place.compare_exchange(ours, theirs, Ordering::AcqRel, relaxed);
    }
    result
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn get(name: &CStr) -> Option<String> {
        // SAFETY: a text with its zero; what it finds is one, too.
        let found = unsafe { libc::getenv(name.as_ptr()) };
        // SAFETY: as above.
        (!found.is_null()).then(|| unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned())
    }

    fn set(name: &CStr, value: &CStr) {
        // SAFETY: two texts; this process has no other thread that looks.
        assert_eq!(unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) }, 0);
    }

    #[test]
    fn the_variables_are_there_during_the_call_and_the_programs_own_stay() {
        let test = "the_variables_are_there_during_the_call_and_the_programs_own_stay";
        if !crate::testing::alone(&format!("fabric::environment::tests::{test}")) {
            return;
        }
        let (size, tx) = (c"FI_OFI_RXM_BUFFER_SIZE", c"FI_OFI_RXM_MSG_TX_SIZE");
        set(tx, c"1000");
        with_wanted(|| {
            assert_eq!(get(size).as_deref(), Some("256"));
            assert_eq!(get(tx).as_deref(), Some("1000"), "the user's");
            assert_eq!(get(c"FI_MR_CACHE_MONITOR").as_deref(), Some("disabled"));
            assert!(get(c"PATH").is_some());
        });
        assert_eq!(get(size), None);
        // What is changed meanwhile stays: a new variable, and another value.
        let other = CString::new("VMMC_OTHER").unwrap();
        with_wanted(|| set(&other, c"new"));
        assert_eq!(get(&other).as_deref(), Some("new"));
        with_wanted(|| set(&other, c"changed"));
        assert_eq!(get(&other).as_deref(), Some("changed"));
        with_wanted(|| set(tx, c"2000"));
        assert_eq!(get(tx).as_deref(), Some("2000"));
    }
}
