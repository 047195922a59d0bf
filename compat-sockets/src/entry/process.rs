//! exec and its kin. (fork is seen by `pthread_atfork`, see [`crate::fork`]; vfork children are
//! told apart where it matters.)
//!
//! `posix_spawn`, `system` and `popen` start their programs inside the C library: what the child
//! inherits goes back to TCP before, as it does in a child that calls exec.

use super::export;
use crate::counters::Counter;
use crate::{close, epoll, fork, raw, real, user_memory};
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

/// The result of the C library's pidfd_spawn; of what it does, where it has none and a program asks for the name
/// all the same (it finds ours).
fn spawned(result: c_int, pidfd: *mut c_int, spawn: impl FnOnce(*mut pid_t) -> c_int) -> c_int {
    if result != ABSENT {
        return result;
    }
    let mut pid = 0;
    match spawn(&raw mut pid) {
        0 => {}
        errno => return errno,
    }
    match raw::pidfd_open(pid) {
        Ok(fd) => {
            if user_memory::can_read(pidfd, 1) {
                // SAFETY: the program's own variable.
                unsafe { pidfd.write(fd) };
            }
            0
        }
        Err(errno) => errno,
    }
}

/// What [`real`] answers for a function that the C library has not; these answer no negative number.
const ABSENT: c_int = -1;

/// Whether words to expand have a command among them.
fn runs_commands(words: *const c_char) -> bool {
    if !user_memory::can_read(words, 1) {
        return false;
    }
    // SAFETY: the program's own string, which the C library reads next.
    let words = unsafe { CStr::from_ptr(words) }.to_bytes();
    words.contains(&b'`') || words.windows(2).any(|two| two == b"$(")
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

    /// pidfd_spawn(3), which glibc has from 2.39 on.
    fn pidfd_spawn(pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int {
        prepare_child();
        // SAFETY: as above.
        let result = unsafe { real::pidfd_spawn(pidfd, path, actions, attributes, argv, envp) };
        spawned(result, pidfd, |pid| {
            // SAFETY: as above; the C library writes the pid of the child that it has made.
            unsafe { real::posix_spawn(pid, path, actions, attributes, argv, envp) }
        })
    }

    /// pidfd_spawnp(3), likewise.
    fn pidfd_spawnp(pidfd: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int {
        prepare_child();
        // SAFETY: as above.
        let result = unsafe { real::pidfd_spawnp(pidfd, file, actions, attributes, argv, envp) };
        spawned(result, pidfd, |pid| {
            // SAFETY: as above; the C library writes the pid of the child that it has made.
            unsafe { real::posix_spawnp(pid, file, actions, attributes, argv, envp) }
        })
    }

    /// wordexp(3): a shell runs the commands among the words.
    fn wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int {
        if runs_commands(words) {
            prepare_child();
        }
        // SAFETY: as above.
        unsafe { real::wordexp(words, result, flags) }
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
