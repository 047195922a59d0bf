//! The one place where bulk bytes cross between private and shared memory.
//!
//! Small lengths go as volatile words; larger ones through C `memcpy`, or what takes its place on
//! some processors ([`super::vectors`]), called by a pointer the optimiser cannot see through, so that it
//! may assume nothing about either side. All leave ordinary (or fenced non-temporal) stores behind, which
//! a later release store orders.

use super::vectors;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

pub(super) type Memcpy =
    unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;

/// Holds [`first`] until that was called, and then what it chose. Loading it at run time is what
/// hides the callee.
static MEMCPY: AtomicPtr<()> = AtomicPtr::new(first as *mut ());

/// The first copy of a process: chooses, and copies.
///
/// # Safety
/// As the chosen function.
unsafe extern "C" fn first(
    target: *mut libc::c_void,
    source: *const libc::c_void,
    len: usize,
) -> *mut libc::c_void {
    let chosen = vectors::choose();
    // Several threads choose the same.
    MEMCPY.store(chosen as *mut (), Ordering::Relaxed);
    // SAFETY: passed on.
    unsafe { chosen(target, source, len) }
}

type Memset = unsafe extern "C" fn(*mut libc::c_void, libc::c_int, usize) -> *mut libc::c_void;

/// Holds `memset`, hidden in the same way.
static MEMSET: AtomicPtr<()> = AtomicPtr::new(libc::memset as *mut ());

/// Whether long copies are made by a loop of ours on this processor, because the C library's may be slow.
#[must_use]
pub fn avoids_libc() -> bool {
    vectors::are_chosen()
}

/// Lengths up to here are copied by words, in bytes.
const BY_WORDS: usize = 64;
const _: () = assert!(BY_WORDS >= vectors::SHORTEST, "shorter ones are not for vectors");

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges must be mapped for the access and must not overlap. Either may be written by
/// another process meanwhile; the copy then holds some mixture of old and new bytes.
#[inline]
pub unsafe fn bytes(source: *const u8, target: *mut u8, len: usize) {
    if len <= BY_WORDS {
        // SAFETY: passed on.
        unsafe { by_words(source, target, len) }
    } else {
        let memcpy = MEMCPY.load(Ordering::Relaxed);
        // SAFETY: the pointer was made from a function of exactly this type.
        let memcpy = unsafe { std::mem::transmute::<*mut (), Memcpy>(memcpy) };
        // SAFETY: passed on; C `memcpy` has the same obligations.
        unsafe { memcpy(target.cast(), source.cast(), len) };
    }
}

/// Makes `len` bytes this one.
///
/// # Safety
/// The range must be mapped for writing. It may be written by another process meanwhile.
#[inline]
pub unsafe fn fill(target: *mut u8, byte: u8, len: usize) {
    let memset = MEMSET.load(Ordering::Relaxed);
    // SAFETY: the pointer was made from a function of exactly this type.
    let memset = unsafe { std::mem::transmute::<*mut (), Memset>(memset) };
    // SAFETY: passed on; C `memset` has the same obligations.
    unsafe { memset(target.cast(), byte.into(), len) };
}

/// Copies one `T`, unaligned, `at` bytes from the starts.
///
/// # Safety
/// `at + size_of::<T>()` bytes must be valid on both sides.
#[inline]
unsafe fn one<T: Copy>(source: *const u8, target: *mut u8, at: usize) {
    // SAFETY: inside both ranges by the caller's word.
    let from = unsafe { source.add(at) }.cast::<Unaligned<T>>();
    // SAFETY: as above.
    let to = unsafe { target.add(at) }.cast::<Unaligned<T>>();
    // SAFETY: valid and, being packed, of alignment one.
    let value = unsafe { from.read_volatile() };
    // SAFETY: as above.
    unsafe { to.write_volatile(value) }
}

#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Unaligned<T>(T);

/// # Safety
/// As [`bytes`].
#[inline]
unsafe fn by_words(source: *const u8, target: *mut u8, len: usize) {
    let mut at = 0;
    while len - at >= 8 {
        // SAFETY: at + 8 <= len.
        unsafe { one::<u64>(source, target, at) };
        at += 8;
    }
    if len - at >= 4 {
        // SAFETY: at + 4 <= len.
        unsafe { one::<u32>(source, target, at) };
        at += 4;
    }
    while at < len {
        // SAFETY: at + 1 <= len.
        unsafe { one::<u8>(source, target, at) };
        at += 1;
    }
}

/// Copies `len` bytes from the first to the last, in the largest aligned words of the target that they fill, each stored
/// at once and with release: whoever loads one of them with acquire sees those before it.
///
/// # Safety
/// As [`bytes`].
pub unsafe fn ascending(source: *const u8, target: *mut u8, len: usize) {
    macro_rules! put {
        ($word:ty, $atomic:ty, $at:expr) => {{
            // SAFETY: the word is inside `source`, and read as packed.
            let word = unsafe { source.add($at).cast::<Unaligned<$word>>().read_volatile() }.0;
            // SAFETY: inside `target`, which is mapped and whose place is aligned.
            let to = unsafe { <$atomic>::from_ptr(target.add($at).cast()) };
            to.store(word, Ordering::Release);
            size_of::<$word>()
        }};
    }
    let mut at = 0;
    while at < len {
        let place = target.addr() + at;
        let fits = |width: usize| len - at >= width && place.is_multiple_of(width);
        at += if fits(8) {
            // Those behind it are aligned, too. To look at each took four times as long.
            let end = at + (len - at) / 8 * 8;
            while at < end {
                at += put!(u64, AtomicU64, at);
            }
            0
        } else if fits(4) {
            put!(u32, AtomicU32, at)
        } else if fits(2) {
            put!(u16, AtomicU16, at)
        } else {
            put!(u8, AtomicU8, at)
        };
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    #[test]
    fn every_short_length_and_offset_copies_exactly_its_bytes() {
        for len in 0..200 {
            for from in 0..9 {
                for to in 0..9 {
                    let source: Vec<u8> = (0..len + from).map(|i| i as u8 | 0x80).collect();
                    let mut target = vec![0u8; len + to + 9];
                    for copy in [super::bytes, super::ascending] {
                        target.fill(0);
                        // SAFETY: both vectors are long enough.
                        unsafe { copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
                        assert_eq!(&target[to..to + len], &source[from..from + len]);
                        assert!(target[..to].iter().chain(&target[to + len..]).all(|&b| b == 0));
                    }
                }
            }
        }
    }
}
