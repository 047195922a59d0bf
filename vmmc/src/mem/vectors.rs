//! A copy by vector registers, for processors whose `rep movsb` must not be trusted.
//!
//! The C library copies some lengths with `rep movsb` where the processor says that this is fast: glibc
//! before 2.40 (and 2.39 without its mends of April 2024) some 2 KiB to the size of the second-level cache, before 2.34 much
//! longer ones too. AMD's processors from Zen 3 on say so, and are up to twenty times slower than a vector
//! loop when the destination's place within its page is 1 to 62 bytes after the source's: 1.6 to 2 GB/s
//! measured where 30 to 60 are usual. That is no rare place here: exports and safe copies begin with a page,
//! messages of whole pages do in a ring, and what `malloc` gives for a long buffer begins 16 bytes into one.
#![allow(unsafe_code)] // a copy in assembly; the proof is at it

use super::copy::Memcpy;

/// From here on the C library's own copy is taken again: so long that it stores past the caches, on nearly all
/// processors concerned.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const TO_LIBC: usize = 32 << 20;
/// Shortest length, in bytes.
pub(super) const SHORTEST: usize = 64;

/// The copy that this processor is to have.
pub(super) fn choose() -> Memcpy {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if are_chosen() {
        return by_vectors;
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

/// As C's `memcpy`, for [`SHORTEST`] bytes and more.
///
/// # Safety
/// As `memcpy`, and `len` is at least [`SHORTEST`], and the processor has AVX. Other processes may write
/// to both meanwhile, which no Rust or C code is told.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe extern "C" fn by_vectors(
    target: *mut libc::c_void,
    source: *const libc::c_void,
    len: usize,
) -> *mut libc::c_void {
    if len >= TO_LIBC {
        // SAFETY: passed on.
        return unsafe { libc::memcpy(target, source, len) };
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
        for len in (SHORTEST..420).chain([4096, 65_537, (1 << 20) + 5, TO_LIBC]) {
            let places: &[usize] = if len < 420 { &[0, 1, 16, 31, 32, 33, 63] } else { &[0, 16] };
            for &from in places {
                for &to in places {
                    let source: Vec<u8> =
                        (0..len + from).map(|i| (i * 7 + i / 251) as u8 | 1).collect();
                    let mut target = vec![0u8; around + to + len + around];
                    let at = around + to;
                    // SAFETY: both are long enough, the length is, and the processor has AVX.
                    unsafe {
                        by_vectors(
                            target[at..].as_mut_ptr().cast(),
                            source[from..].as_ptr().cast(),
                            len,
                        );
                    }
                    assert!(target[at..at + len] == source[from..from + len], "{len} {from} {to}");
                    let rest = target[..at].iter().chain(&target[at + len..]);
                    assert!(rest.into_iter().all(|&byte| byte == 0), "{len} {from} {to}");
                }
            }
        }
    }
}
