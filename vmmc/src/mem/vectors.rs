//! The copy of AMD's processors from Zen 3 on: by `rep movsb` where that is fast, by vector registers elsewhere.
//!
//! Those processors say that `rep movsb` is fast. When the destination's place within its page is 1 to 62 bytes after the source's,
//! some are up to twenty times slower by it than by a vector loop: 1.6 to 2 GB/s measured where 30 to 60 are usual. That
//! is no rare place here: exports and safe copies begin with a page, messages of whole pages do in a ring, and what `malloc`
//! gives for a long buffer begins 16 bytes into one. The C library does not look at the place, and takes the instruction for some
//! lengths (glibc before 2.40, and 2.39 without its mends of April 2024, for some 2 KiB to the size of the second-level cache) or
//! none.
//!
//! At every other place the instruction is what a message wants. It stores whole lines without reading them first, and another
//! processor has had those lines: that one received what was there before. Half a ping-pong of 64 KiB took 1.7 us instead
//! of 2.9 between neighbours that share a cache, and 3.7 us instead of 10.7 between two that do not.
#![allow(unsafe_code)] // a copy in assembly; the proof is at it

use super::copy::Memcpy;

/// From here on the C library's own copy is taken again: so long that it stores past the caches, on nearly all
/// processors concerned.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const TO_LIBC: usize = 32 << 20;
/// From here on `rep movsb` has made up for its start, in bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const BY_STRINGS: usize = 5 << 10;
/// Distances from the source's place within its page to the target's at which it may be slow: all but these.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const FAST_STRINGS: std::ops::RangeInclusive<usize> = 64..=4096;
/// Shortest length, in bytes.
pub(super) const SHORTEST: usize = 64;

/// The copy that this processor is to have.
pub(super) fn choose() -> Memcpy {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if are_chosen() {
        return match std::arch::is_x86_feature_detected!("ermsb") {
            true => by_vectors::<true>,
            false => by_vectors::<false>,
        };
    }
    libc::memcpy
}

/// Whether it is the one of this module.
pub(super) fn are_chosen() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return has_slow_strings() && std::arch::is_x86_feature_detected!("avx");
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Whether `rep movsb` is slow at some places although the processor calls it fast.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_slow_strings() -> bool {
    use std::arch::x86_64::__cpuid;
    /// Zen 3; later ones have larger numbers.
    const FIRST: u32 = 0x19;
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    let version = __cpuid(1).eax;
    // AMD64 Architecture Programmer's Manual, volume 3, CPUID Fn0000_0001_EAX.
    let (base, extended) = (version >> 8 & 0xf, version >> 20 & 0xff);
    name.as_flattened() == b"AuthenticAMD" && base == 0xf && base + extended >= FIRST
}

/// A copy of [`BY_STRINGS`] bytes or more, if `rep movsb` is fast for it. Its stores may be seen in any order, but before
/// those that come after it.
///
/// # Safety
/// As [`by_vectors`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn by_strings(target: *mut libc::c_void, source: *const libc::c_void, len: usize) -> bool {
    // 1 to 4096: the same place is as good as any.
    let behind = (target.addr().wrapping_sub(source.addr()).wrapping_sub(1) & 4095) + 1;
    if !FAST_STRINGS.contains(&behind) {
        return false;
    }
    // SAFETY: `len` bytes at each by the caller's word. The direction flag is clear, as everywhere.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rsi") source => _,
            inout("rdi") target => _,
            inout("rcx") len => _,
            options(nostack, preserves_flags),
        );
    }
    true
}

/// As C's `memcpy`, for [`SHORTEST`] bytes and more; long ones by strings if so told.
///
/// # Safety
/// As `memcpy`, and `len` is at least [`SHORTEST`], and the processor has AVX. Other processes may write
/// to both meanwhile, which no Rust or C code is told.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe extern "C" fn by_vectors<const STRINGS: bool>(
    target: *mut libc::c_void,
    source: *const libc::c_void,
    len: usize,
) -> *mut libc::c_void {
    if len >= BY_STRINGS {
        if len >= TO_LIBC {
            // SAFETY: passed on.
            return unsafe { libc::memcpy(target, source, len) };
        }
        // SAFETY: passed on.
        if STRINGS && unsafe { by_strings(target, source, len) } {
            return target;
        }
    }
    // SAFETY: all loads are of `source..source + len` and all stores to `target..target + len`:
    // - the first 64 bytes and the last 64 are inside, since `len >= 64`;
    // - with more than 128 bytes, the loop begins at the first multiple of 32 in the target after its
    //   start, at most 32 bytes on, which the head has covered, and moves 128 bytes while more than 128 are
    //   left; then the last 128 are inside, and cover what is left.
    // It changes the registers named, and those that a C function may change. Nothing is pushed.
    unsafe {
        std::arch::asm!(
            "vmovdqu ymm0, [rsi]",
            "vmovdqu ymm1, [rsi + 32]",
            "vmovdqu ymm2, [rsi + rdx - 64]",
            "vmovdqu ymm3, [rsi + rdx - 32]",
            "cmp rdx, 128",
            "jbe 4f",
            "vmovdqu ymm4, [rsi + rdx - 128]",
            "vmovdqu ymm5, [rsi + rdx - 96]",
            "lea rax, [rdi + rdx]",
            "vmovdqu [rdi], ymm0",
            // To the first multiple of 32 after the start.
            "mov rcx, rdi",
            "or rdi, 31",
            "inc rdi",
            "sub rcx, rdi",
            "sub rsi, rcx",
            "add rdx, rcx",
            "jmp 3f",
            ".p2align 5",
            "2:",
            "vmovdqu ymm0, [rsi]",
            "vmovdqu ymm1, [rsi + 32]",
            "vmovdqu ymm6, [rsi + 64]",
            "vmovdqu ymm7, [rsi + 96]",
            "vmovdqa [rdi], ymm0",
            "vmovdqa [rdi + 32], ymm1",
            "vmovdqa [rdi + 64], ymm6",
            "vmovdqa [rdi + 96], ymm7",
            "sub rsi, -128",
            "sub rdi, -128",
            "sub rdx, 128",
            "3:",
            "cmp rdx, 128",
            "ja 2b",
            "vmovdqu [rax - 128], ymm4",
            "vmovdqu [rax - 96], ymm5",
            "vmovdqu [rax - 64], ymm2",
            "vmovdqu [rax - 32], ymm3",
            "jmp 5f",
            "4:",
            "vmovdqu [rdi], ymm0",
            "vmovdqu [rdi + 32], ymm1",
            "vmovdqu [rdi + rdx - 64], ymm2",
            "vmovdqu [rdi + rdx - 32], ymm3",
            "5:",
            "vzeroupper",
            inout("rsi") source => _,
            inout("rdi") target => _,
            inout("rdx") len => _,
            out("rcx") _,
            out("rax") _,
            // All vector registers, since `vzeroupper` changes all.
            clobber_abi("C"),
            options(nostack),
        );
    }
    target
}

#[cfg(all(test, not(vmmc_loom), not(miri), target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_place_copies_exactly_its_bytes() {
        if !std::arch::is_x86_feature_detected!("avx") {
            return; // `choose` does not choose it
        }
        let around = 70;
        let long = [4096, BY_STRINGS - 1, BY_STRINGS, 65_537, (1 << 20) + 5, TO_LIBC];
        for len in (SHORTEST..420).chain(long) {
            let places: &[usize] =
                if len < 420 { &[0, 1, 16, 31, 32, 33, 63] } else { &[0, 16, 80] };
            for &from in places {
                for &to in places {
                    let source: Vec<u8> =
                        (0..len + from).map(|i| (i * 7 + i / 251) as u8 | 1).collect();
                    let mut target = vec![0u8; around + to + len + around];
                    let at = around + to;
                    for copy in [by_vectors::<true>, by_vectors::<false>] {
                        target.fill(0);
                        let target_at = target[at..].as_mut_ptr().cast();
                        let source_at = source[from..].as_ptr().cast();
                        // SAFETY: both are long enough, the length is, and the processor has AVX.
                        unsafe { copy(target_at, source_at, len) };
                        assert!(
                            target[at..at + len] == source[from..from + len],
                            "{len} {from} {to}"
                        );
                        let rest = target[..at].iter().chain(&target[at + len..]);
                        assert!(rest.into_iter().all(|&byte| byte == 0), "{len} {from} {to}");
                    }
                }
            }
        }
    }
}
