//! exec and its kin. (fork is seen by `pthread_atfork`, see [`crate::fork`]; vfork children are
//! told apart where it matters.)
//!
//! `posix_spawn`, `system` and `popen` start their programs inside the C library: what the child
//! inherits goes back to TCP before, as it does in a child that calls exec.

use super::export;
use crate::counters::Counter;
use crate::{close, epoll, fork, real, user_memory};
use libc::{c_char, c_int, c_void, pid_t};
use std::ffi::CStr;

pub(super) fn prepare() {
    if fork::in_vfork_child() {
        // It shares our memory and not our descriptors.
        close::before_vfork_exec();
    } else {
        epoll::before_sharing(false);
        close::before_exec();
    }
}

/// Whether a program is Java's helper, which runs another: it closes all that it has inherited first, but for what it is
/// told to keep, none of which is a connection. (Java's sockets are not close-on-exec: each `ProcessBuilder` would send
/// all connections of the process back to TCP.)
fn closes_all_it_inherits(path: *const c_char) -> bool {
    if !user_memory::can_read(path, 1) {
        return false;
    }
    // SAFETY: the program's own string, which the C library reads next.
    let path = unsafe { CStr::from_ptr(path) };
    path.to_bytes().ends_with(b"/jspawnhelper")
}

/// Before a child is started by the C library.
fn prepare_child() {
    if !fork::in_vfork_child() {
        epoll::before_sharing(false);
        close::before_spawn();
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

    /// execveat(2).
    fn execveat(dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int {
        prepare();
        // SAFETY: as above.
        unsafe { real::execveat(dir, path, argv, envp, flags) }
    }

    /// posix_spawn(3).
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int {
        if !closes_all_it_inherits(path) {
            prepare_child();
        }
        // SAFETY: as above.
        unsafe { real::posix_spawn(pid, path, actions, attributes, argv, envp) }
    }

    /// posix_spawnp(3).
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int {
        prepare_child();
        // SAFETY: as above.
        unsafe { real::posix_spawnp(pid, file, actions, attributes, argv, envp) }
    }

    /// posix_spawn_file_actions_adddup2(3): the child will have the socket, close-on-exec or not.
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, old: c_int, new: c_int) -> c_int {
        close::leave_to_kernel_for(old, Counter::plain_forked);
        // SAFETY: as above.
        unsafe { real::posix_spawn_file_actions_adddup2(actions, old, new) }
    }

    /// system(3).
    fn system(command: *const c_char) -> c_int {
        prepare_child();
        // SAFETY: as above.
        unsafe { real::system(command) }
    }

    /// popen(3).
    fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
        prepare_child();
        // SAFETY: as above.
        unsafe { real::stream(&real::POPEN, command.expose_provenance(), mode) }
    }

    /// fork(2).
    fn fork() -> pid_t {
        // SAFETY: as above.
        fork::with_handlers(|| unsafe { real::fork() })
    }

    /// _Fork(3).
    #[allow(non_snake_case)] // its name
    fn _Fork() -> pid_t {
        // SAFETY: as above.
        fork::without_handlers(|| unsafe { real::_Fork() })
    }
}
