//! Processes of an application on another host, which this host process starts through its supervisor.
//!
//! A program waits for its nodes by `wait` as well as by `nx_waitall`, and signals them by their process ids. So each
//! process elsewhere has a *stand-in* here: a child of ours that ends as the process does, and whose end ends it.
//!
//! ```text
//!   host process -- Order --> supervisor ... shrimp run ... supervisor -- starts --> node 2 (pid 77)
//!      |  fork                     |                             |
//!   stand-in (pid 12) <- Answer ---+------- Ended(code 3) -------+------------- ends with code 3
//!   ends with code 3
//! ```

use super::Failure;
use super::spawn::{Program, environ};
use crate::job::Job;
use crate::job::control::{self, Answer, MAX_ORDER, Message, Order};
use crate::job::supervise::Ended;
use rustix::process::{Pid, Signal};
use std::ffi::{CStr, c_char};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use vmmc::sys::{Fd, memfd, packet};

fn failed(what: &str) -> impl Fn(rustix::io::Errno) -> Failure {
    move |errno| Failure::System(errno.raw_os_error(), what.into())
}

/// Starts a program on another host. Answers the process id of its stand-in, and its own there.
pub(super) fn load(
    place: &Job,
    host: &str,
    program: &Program,
    control: &Fd,
) -> Result<(Pid, u32), Failure> {
    let order = order(place, host, program);
    let bytes = postcard::to_allocvec(&order)
        .ok()
        .filter(|bytes| bytes.len() <= MAX_ORDER)
        .ok_or_else(|| {
            let why = format!(
                "arguments and environment of {}: together at most {MAX_ORDER} bytes go to host {host}",
                program.path.to_string_lossy()
            );
            Failure::System(libc::E2BIG, why)
        })?;
    let file = memfd::create("nx-order", bytes.len() as u64).map_err(failed("memfd_create"))?;
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        done += rustix::io::pwrite(&file, rest, done as u64).map_err(failed("an order"))?;
    }
    let (answers, theirs) = packet::pair().map_err(failed("socketpair"))?;
    let message = Message::Load { len: bytes.len() as u32 };
    control::tell(control, &message, &[file.as_fd(), theirs.as_fd()])
        .map_err(failed("telling the launcher"))?;
    drop(theirs);
    match answer(&answers) {
        Some(Answer::Started(pid)) => Ok((stand_in(answers)?, pid.unsigned_abs())),
        Some(Answer::Failed(errno)) => {
            let path = program.path.to_string_lossy();
            Err(Failure::System(errno, format!("{path} on host {host}")))
        }
        Some(Answer::Ended(_)) | None => {
            let why = format!("starting a program on host {host}: the launcher has gone");
            Err(Failure::System(libc::EPIPE, why))
        }
    }
}

fn order(place: &Job, host: &str, program: &Program) -> Order {
    let arguments = match program.argv.is_null() {
        true => vec![program.path.to_bytes().to_vec()],
        // SAFETY: an array of strings that ends with null.
        false => unsafe { strings(program.argv) },
    };
    let whole = !program.envp.is_null();
    let environment = match whole {
        // SAFETY: as above.
        true => unsafe { strings(program.envp) },
        false => environ().filter(|pair| pair.starts_with(b"NX_")).collect(),
    };
    let directory = std::env::current_dir().unwrap_or_else(|_| "/".into());
    Order {
        host: host.to_owned(),
        node: place.node,
        ptype: place.ptype.unwrap_or(0),
        path: program.path.to_bytes().to_vec(),
        arguments,
        place: super::app::environment(place)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        environment,
        whole,
        directory: directory.as_os_str().as_bytes().to_vec(),
    }
}

/// # Safety
/// An array of strings that ends with null.
unsafe fn strings(array: *mut *mut c_char) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut at = array;
    loop {
        // SAFETY: at most the null at the end.
        let text = unsafe { at.read() };
        if text.is_null() {
            return all;
        }
        // SAFETY: a string of the array.
        all.push(unsafe { CStr::from_ptr(text) }.to_bytes().to_vec());
        // SAFETY: the null at the end was not reached.
        at = unsafe { at.add(1) };
    }
}

/// The next answer; `None` when the supervisor has gone. Allocates nothing.
fn answer(answers: &Fd) -> Option<Answer> {
    let mut buffer = [0; 16];
    let (len, _) =
        packet::receive(answers, &mut buffer, rustix::net::RecvFlags::empty()).ok().flatten()?;
    postcard::from_bytes(buffer.get(..len)?).ok()
}

fn stand_in(answers: Fd) -> Result<Pid, Failure> {
    let parent = rustix::process::getpid();
    let by_main_thread = rustix::thread::gettid() == parent;
    // SAFETY: the child makes system calls only, and ends by `_exit` or a signal: see `stand_and_end`.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::last("fork")),
        0 => stand_and_end(&answers, by_main_thread.then_some(parent)),
        pid => Pid::from_raw(pid).ok_or_else(|| Failure::System(libc::EIO, "fork".into())),
    }
}

/// Waits for the end of the process, and ends like it. Takes no lock: another thread of the parent may have held any.
fn stand_and_end(answers: &Fd, parent: Option<Pid>) -> ! {
    if let Some(parent) = parent {
        // As a node on this host: it ends with the thread that started it.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        if rustix::process::getppid() != Some(parent) {
            exit(1);
        }
    }
    // Handlers are the program's.
    for signal in 1..=64 {
        // SAFETY: the default is no code of anybody's; what cannot be set is refused.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero set is a valid value to fill in.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: of this thread, the only one; the old set is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
    // Its output, and what others wait for the end of.
    let own = answers.as_raw_fd() as libc::c_uint;
    for (first, last) in [(0, own.wrapping_sub(1)), (own + 1, libc::c_uint::MAX)] {
        if first <= last && (own > 0 || first > 0) {
            // SAFETY: nobody uses them in this process any more.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
    match answer(answers) {
        Some(Answer::Ended(Ended::Code(code))) => exit(code.into()),
        Some(Answer::Ended(Ended::Signal(signal))) => {
            let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the limit is ours.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const core) };
            // SAFETY: a signal to ourselves, which ends us unless it is none that does.
            unsafe { libc::raise(signal) };
            exit(128_i32.wrapping_add(signal));
        }
        _ => exit(1),
    }
}

fn exit(code: i32) -> ! {
    // SAFETY: _exit(2) never returns and touches nothing of ours.
    unsafe { libc::_exit(code) }
}
