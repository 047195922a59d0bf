//! exec. (fork is seen by `pthread_atfork`, see [`crate::fork`]; vfork children are told apart
//! where it matters.)

use super::export;
use crate::{close, fork, real};
use libc::{c_char, c_int};

pub(super) fn prepare() {
    // A vfork child shares our memory: its exec is not ours, and what it must not inherit is
    // close-on-exec or demoted by nobody. See SUPPORT.md.
    if !fork::in_vfork_child() {
        close::before_exec();
    }
}

// SAFETY (of every `real::` call below): the arguments are the program's own, passed on as they
// came to the C function of the same name.
export! {
    /// execve(2).
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        prepare();
        // SAFETY: as above.
        unsafe { real::execve(path, argv, envp) }
    }

    /// execv(3).
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
        prepare();
        // SAFETY: as above.
        unsafe { real::execv(path, argv) }
    }

    /// execvp(3).
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
        prepare();
        // SAFETY: as above.
        unsafe { real::execvp(file, argv) }
    }

    /// execvpe(3).
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        prepare();
        // SAFETY: as above.
        unsafe { real::execvpe(file, argv, envp) }
    }

    /// fexecve(3).
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        prepare();
        // SAFETY: as above.
        unsafe { real::fexecve(fd, argv, envp) }
    }
}
