//! New processes of an application: copies of this one, or other programs.

use super::Failure;
use super::process;
use crate::job::{Job, control, env};
use rustix::process::{Pid, Signal};
use std::ffi::{CStr, c_char, c_int, c_void};
use vmmc::sys::Fd;

/// One process of the application, as its parent knows it.
pub(super) enum Forked {
    Parent { pid: Pid, control: Fd },
    Child { control: Fd },
}

/// Forks. The child ends with its parent if it is `tied` to it; else its supervisor alone ends it ([`process::follow`]).
pub(super) fn fork(tied: bool) -> Result<Forked, Failure> {
    let (own, theirs) = control::pair()
        .map_err(|errno| Failure::System(errno.raw_os_error(), "control channel".into()))?;
    flush_streams(); // what is buffered would be written twice
    let parent = rustix::process::getpid();
    let by_main_thread = rustix::thread::gettid() == parent;
    // SAFETY: the child goes on in this thread alone, and uses no lock that another thread of the
    // parent may have held: see `process::forget`.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::last("fork")),
        0 => {
            drop(theirs);
            if tied && by_main_thread {
                // The kernel signals the end of the *thread* that forked.
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                if rustix::process::getppid() != Some(parent) {
                    // SAFETY: the application has gone; nothing is left to do.
                    unsafe { libc::_exit(1) };
                }
            }
            process::forget();
            Ok(Forked::Child { control: own })
        }
        pid => match Pid::from_raw(pid) {
            Some(pid) => Ok(Forked::Parent { pid, control: theirs }),
            None => Err(Failure::System(libc::EIO, "fork".into())),
        },
    }
}

/// Writes out what the program has printed, to C's streams and to gfortran's units, which have buffers of their own.
pub(super) fn flush_streams() {
    // SAFETY: null means every stream.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    // SAFETY: any name may be asked for.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_gfortran_flush_i4".as_ptr()) };
    if !function.is_null() {
        type Flush = unsafe extern "C" fn(*const i32);
        // SAFETY: libgfortran's function of this name has this type.
        let flush = unsafe { std::mem::transmute::<*mut c_void, Flush>(function) };
        // SAFETY: null means every unit.
        unsafe { flush(std::ptr::null()) };
    }
}

/// Node 0 owns the standard input.
pub(super) fn standard_input(node: u32) {
    if node == 0 {
        return;
    }
    // SAFETY: opening a file that is always there.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
    if null >= 0 {
        // SAFETY: both are open.
        unsafe { libc::dup2(null, 0) };
        // SAFETY: opened above, and no longer used.
        unsafe { libc::close(null) };
    }
}

/// A program to become.
pub(super) struct Program {
    pub(super) path: std::ffi::CString,
    pub(super) argv: *mut *mut c_char,
    pub(super) envp: *mut *mut c_char,
}

/// Forks and becomes a program, `tied` or not ([`fork`]); an exec that fails is told through a pipe.
pub(super) fn load(place: &Job, program: &Program, tied: bool) -> Result<(Pid, Fd), Failure> {
    let system = |errno: rustix::io::Errno| Failure::System(errno.raw_os_error(), "pipe".into());
    let own = super::app::environment(place);
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(system)?;
    match fork(tied)? {
        Forked::Child { control } => {
            standard_input(place.node);
            let errno = exec(own, program, &control);
            let _ = rustix::io::write(&writer, &errno.to_ne_bytes());
            // SAFETY: the child has nothing else to do.
            unsafe { libc::_exit(127) }
        }
        Forked::Parent { pid, control } => {
            drop(writer);
            let mut errno = [0; 4];
            match rustix::io::read(&reader, &mut errno) {
                Ok(4) => {
                    let _ =
                        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                    let path = program.path.to_string_lossy().into_owned();
                    Err(Failure::System(i32::from_ne_bytes(errno), path))
                }
                _ => Ok((pid, control)),
            }
        }
    }
}

/// Our own environment, `NAME=value` each.
pub(super) fn environ() -> impl Iterator<Item = Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    std::env::vars_os().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
}

fn exec(mut own: Vec<(&str, String)>, program: &Program, control: &Fd) -> c_int {
    use std::os::fd::AsRawFd;
    let _ = rustix::io::fcntl_setfd(control, rustix::io::FdFlags::empty());
    let mut variables: Vec<std::ffi::CString> = Vec::new();
    own.push((env::CONTROL, control.as_raw_fd().to_string()));
    if program.envp.is_null() {
        variables.extend(environ().flat_map(std::ffi::CString::new));
    } else {
        let mut at = program.envp;
        // SAFETY: an array of strings that ends with null.
        loop {
            // SAFETY: as above.
            let text = unsafe { at.read() };
            if text.is_null() {
                break;
            }
            // SAFETY: as above.
            variables.push(unsafe { CStr::from_ptr(text) }.to_owned());
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
    }
    for (name, value) in own {
        variables.extend(std::ffi::CString::new(format!("{name}={value}")));
    }
    let mut envp: Vec<*const c_char> = variables.iter().map(|text| text.as_ptr()).collect();
    envp.push(std::ptr::null());
    let alone = [program.path.as_ptr(), std::ptr::null()];
    let argv: *const *const c_char =
        if program.argv.is_null() { alone.as_ptr() } else { program.argv.cast() };
    let error = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    // A path, as `load` had it; a shell's search for what is not there, but no shell for what is no program.
    // SAFETY: both arrays end with null.
    unsafe { libc::execve(program.path.as_ptr(), argv, envp.as_ptr()) };
    let missing = error();
    if missing != libc::ENOENT || program.path.as_bytes().contains(&b'/') {
        return missing;
    }
    // SAFETY: as above.
    unsafe { libc::execvpe(program.path.as_ptr(), argv, envp.as_ptr()) };
    error()
}
