//! Something in a forked child.

/// Runs `child` in a forked child; false if it failed, or hangs. For a process with one test, or whose other threads hold
/// no lock that `child` needs.
pub(crate) fn ends_well_in_a_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs `child` and ends; that this may hang is what is tested.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends a child that waits for what only its parent has.
            unsafe { libc::alarm(120) };
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!matches!(good, Ok(true)))) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}
