//! Functions with `...` that must be seen before they run: the rest of their arguments is not ours
//! to know.
//!
//! Each is a trampoline: it saves every register that can carry an argument, calls a function of
//! ours that prepares and answers the address of the real function, restores, and jumps there.
//! The stack is as the caller left it, so arguments there arrive too.

use crate::counters::Counter;
use crate::stream::demote;
use crate::{fd_table, real};
use libc::{c_int, c_void};

/// The start of the exec functions that take their arguments one by one.
fn before_exec(name: &'static real::Real) -> *const c_void {
    super::process::prepare();
    name.address()
}

/// stdio's own writes do not pass through us: our direction goes back to TCP.
fn before_print(fd: c_int, name: &'static real::Real) -> *const c_void {
    if let Some(link) = fd_table::sock(fd).and_then(|sock| sock.enter(fd)) {
        demote::our_way_for(&link, fd, Counter::plain_option);
        link.leave();
    }
    name.address()
}

macro_rules! trampoline {
    ($(#[$meta:meta])* $name:ident, $prepare:expr) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// As the C function of this name.
        #[cfg_attr(all(not(test), feature = "preload"), unsafe(no_mangle))]
        #[unsafe(naked)]
        #[allow(unreachable_pub)] // the C linker is who reaches it
        pub unsafe extern "C" fn $name() {
            extern "C" fn prepare(first: usize) -> *const c_void {
                static REAL: real::Real = real::Real::new(concat!(stringify!($name), "\0"));
                let call: fn(usize, &'static real::Real) -> *const c_void = $prepare;
                call(first, &REAL)
            }
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "sub rsp, 128",
                "movaps [rsp], xmm0", "movaps [rsp+16], xmm1", "movaps [rsp+32], xmm2",
                "movaps [rsp+48], xmm3", "movaps [rsp+64], xmm4", "movaps [rsp+80], xmm5",
                "movaps [rsp+96], xmm6", "movaps [rsp+112], xmm7",
                "call {prepare}",
                "mov r11, rax",
                "movaps xmm0, [rsp]", "movaps xmm1, [rsp+16]", "movaps xmm2, [rsp+32]",
                "movaps xmm3, [rsp+48]", "movaps xmm4, [rsp+64]", "movaps xmm5, [rsp+80]",
                "movaps xmm6, [rsp+96]", "movaps xmm7, [rsp+112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                prepare = sym prepare,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-16]!",
                "stp x0, x1, [sp, #-16]!", "stp x2, x3, [sp, #-16]!",
                "stp x4, x5, [sp, #-16]!", "stp x6, x7, [sp, #-16]!",
                "stp q0, q1, [sp, #-32]!", "stp q2, q3, [sp, #-32]!",
                "stp q4, q5, [sp, #-32]!", "stp q6, q7, [sp, #-32]!",
                "bl {prepare}",
                "mov x16, x0",
                "ldp q6, q7, [sp], #32", "ldp q4, q5, [sp], #32",
                "ldp q2, q3, [sp], #32", "ldp q0, q1, [sp], #32",
                "ldp x6, x7, [sp], #16", "ldp x4, x5, [sp], #16",
                "ldp x2, x3, [sp], #16", "ldp x0, x1, [sp], #16",
                "ldp x29, x30, [sp], #16",
                "br x16",
                prepare = sym prepare,
            );
        }
    };
}

trampoline!(
    /// syscall(2): see [`super::syscall`].
    syscall, |number, name| super::syscall::handler(number).unwrap_or_else(|| name.address()));
trampoline!(
    /// execl(3).
    execl, |_, name| before_exec(name));
trampoline!(
    /// execlp(3).
    execlp, |_, name| before_exec(name));
trampoline!(
    /// execle(3).
    execle, |_, name| before_exec(name));
trampoline!(
    /// dprintf(3).
    dprintf, |fd, name| before_print(fd as c_int, name));
trampoline!(
    /// vdprintf(3).
    vdprintf, |fd, name| before_print(fd as c_int, name));
trampoline!(
    /// Fortified dprintf(3).
    __dprintf_chk, |fd, name| before_print(fd as c_int, name));
trampoline!(
    /// Fortified vdprintf(3).
    __vdprintf_chk, |fd, name| before_print(fd as c_int, name));
