//! Processes that this command starts and must not leave behind, and their scratch directory.
//!
//! Three nets, from the usual case to the worst:
//! 1. dropping a [`Child`] ends it and waits for it; dropping [`Scratch`] removes the directory;
//! 2. Ctrl-C, SIGTERM and SIGHUP reach a handler that writes one byte to a pipe; a thread reads
//!    it, ends every child, removes the directory and leaves with 128 + the signal's number;
//! 3. after `kill -9` of this command the kernel ends the children (`PR_SET_PDEATHSIG`, set by
//!    [`become_child`], which every child starts through).
#![allow(unsafe_code)]

use crate::exit::{Context, Io};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::time::{Duration, Instant};

use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use vmmc::sync::{AtomicBool, AtomicU32, Ordering};

/// What must go when the command ends, however it ends.
#[derive(Default)]
struct Registry {
    /// By process id. A pidfd cannot hit a process that took over the number.
    children: HashMap<u32, OwnedFd>,
    directories: Vec<PathBuf>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

fn registry() -> MutexGuard<'static, Option<Registry>> {
    // A panic elsewhere leaves nothing half done here.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all children and removes all scratch directories. For ways out that drop nothing.
pub(crate) fn end_all() {
    let Some(registry) = registry().take() else { return };
    for pidfd in registry.children.values() {
        // One that has died already needs no signal.
        let _ = rustix::process::pidfd_send_signal(pidfd, Signal::TERM);
    }
    for pidfd in registry.children.values() {
        wait_then_kill(pidfd);
    }
    for directory in &registry.directories {
        let _ = std::fs::remove_dir_all(directory);
    }
}

/// Waits a moment for an orderly end, then does not wait any more.
fn wait_then_kill(pidfd: &OwnedFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: 2, tv_nsec: 0 };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    if !matches!(poll(&mut fds, Some(&patience)), Ok(1..)) {
        let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
    }
}

/// Write end of the pipe between the handler and the thread.
static SIGNAL_PIPE: AtomicU32 = AtomicU32::new(u32::MAX);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Once a signal has asked us to end, waits for the thread that ends us.
pub(crate) fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::Relaxed) {
        std::thread::park();
    }
}

extern "C" fn on_signal(signal: libc::c_int) {
    let byte = signal as u8;
    let pipe = SIGNAL_PIPE.load(Ordering::Relaxed) as libc::c_int;
    INTERRUPTED.store(true, Ordering::Relaxed);
    // SAFETY: write(2) is async-signal-safe, and `byte` is one readable byte.
    let _ = unsafe { libc::write(pipe, (&raw const byte).cast(), 1) };
}

/// Sets up net 2, once.
fn catch_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok((mut reader, writer)) = std::io::pipe() else { return };
        SIGNAL_PIPE.store(writer.as_raw_fd() as u32, Ordering::Relaxed);
        std::mem::forget(writer); // the handler uses it until the program ends
        let watcher = move || {
            let mut byte = [0];
            if reader.read_exact(&mut byte).is_ok() {
                end_all();
                std::process::exit(128 + i32::from(byte[0]));
            }
        };
        if std::thread::Builder::new().name("signals".into()).spawn(watcher).is_err() {
            return;
        }
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: an all-zero sigaction is a valid value to fill in.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: `action` is initialised and its handler is async-signal-safe.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    });
}

/// A process of ours. Ended (SIGTERM, then SIGKILL) and reaped when dropped.
#[derive(Debug)]
pub(crate) struct Child {
    inner: std::process::Child,
    /// How it is called in errors.
    name: String,
}

impl Child {
    /// Starts `command`, which [`command`] made.
    pub(crate) fn spawn(mut command: Command, name: &str) -> Result<Child, Io> {
        catch_signals();
        let inner = command.spawn().context(|| format!("starting {name}"))?;
        let child = Child { inner, name: name.to_owned() };
        let pid = Pid::from_child(&child.inner);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .context(|| format!("pidfd_open for {name}"))?;
        registry().get_or_insert_default().children.insert(child.inner.id(), pidfd);
        Ok(child)
    }

    /// How it is called in errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The pipes, as `std` has them.
    pub(crate) fn pipes(&mut self) -> &mut std::process::Child {
        &mut self.inner
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.inner.try_wait().ok().flatten()
    }

    /// Waits for it to end by itself.
    pub(crate) fn wait(mut self) -> Result<std::process::ExitStatus, Io> {
        self.inner.wait().context(|| format!("waiting for {}", self.name))
    }

    /// All that it says, once it has ended. Its standard output must be a pipe.
    ///
    /// # Errors
    /// `TimedOut` when it has not ended within `patience`: it is ended then.
    pub(crate) fn output_within(mut self, patience: Duration) -> Result<String, Io> {
        let end = Instant::now() + patience;
        let mut said = Vec::new();
        let heard = match self.inner.stdout.take() {
            Some(out) => hear(out, &mut said, end),
            None => Ok(()),
        };
        let pid = Pid::from_child(&self.inner);
        let ended = heard.and_then(|()| {
            Ok(wait_until(&rustix::process::pidfd_open(pid, PidfdFlags::empty())?, end)?)
        });
        ended.context(|| format!("hearing {}", self.name))?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }
}

/// Waits until a descriptor has something to read, or its end.
fn wait_until(fd: &impl AsFd, end: Instant) -> rustix::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Err(Errno::INTR) => {}
            ready => return ready.map(drop),
        }
    }
}

/// Reads to the end.
fn hear(mut out: ChildStdout, said: &mut Vec<u8>, end: Instant) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        wait_until(&out, end)?;
        match out.read(&mut buffer)? {
            0 => return Ok(()),
            len => said.extend_from_slice(buffer.get(..len).unwrap_or_default()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let pidfd =
            registry().as_mut().and_then(|registry| registry.children.remove(&self.inner.id()));
        // Standard input first: who reads commands there leaves by itself.
        drop(self.inner.stdin.take());
        if let Some(pidfd) = pidfd
            && self.ended().is_none()
        {
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::TERM);
            wait_then_kill(&pidfd);
        }
        let _ = self.inner.wait();
    }
}

/// A command that runs `program` as a child that cannot outlive us (net 3), pinned to `cpu`.
pub(crate) fn command(program: &Path, cpu: Option<usize>) -> Command {
    let mut command = Command::new(own_program());
    command.arg("__child").arg("--parent").arg(std::process::id().to_string());
    if let Some(cpu) = cpu {
        command.arg("--cpu").arg(cpu.to_string());
    }
    command.arg("--").arg(program);
    command
}

/// Our own program file, even if it has been replaced on disk meanwhile.
pub(crate) fn own_program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        _ => "/proc/self/exe".into(),
    }
}

/// `shrimp __child`: sets up net 3 and the pinning, then becomes the program. Returns only when
/// that fails.
pub(crate) fn become_child(
    parent: u32,
    cpu: Option<usize>,
    program: &OsStr,
    arguments: &[std::ffi::OsString],
) -> Io {
    let prepare = || -> Result<(), Io> {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
            .context(|| "PR_SET_PDEATHSIG".into())?;
        // The parent may have died before the call: then nobody would ever tell us.
        if rustix::process::getppid().is_none_or(|pid| pid.as_raw_nonzero().get() as u32 != parent)
        {
            return Err(std::io::Error::other("the parent has gone")).context(|| "start".into());
        }
        cpu.map_or(Ok(()), crate::cpu::pin)
    };
    if let Err(error) = prepare() {
        return error;
    }
    let error = Command::new(program).args(arguments).exec();
    match Err::<(), _>(error).context(|| format!("running {}", program.display())) {
        Err(error) => error,
        Ok(()) => unreachable!("an Err went in"),
    }
}

/// A private directory under the system's temporary one, removed with all it holds when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    inner: tempfile::TempDir,
}

impl Scratch {
    /// Makes one, mode 0700.
    pub(crate) fn new() -> Result<Scratch, Io> {
        catch_signals();
        let inner = tempfile::Builder::new()
            .prefix("shrimp-")
            .tempdir()
            .context(|| format!("making a directory in {:?}", std::env::temp_dir()))?;
        registry().get_or_insert_default().directories.push(inner.path().to_owned());
        Ok(Scratch { inner })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.inner.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let path = self.inner.path();
        if let Some(registry) = registry().as_mut() {
            registry.directories.retain(|other| other != path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        Child::spawn(command, "a shell").unwrap()
    }

    #[test]
    fn what_a_child_says_is_heard_to_the_end() {
        let said = shell("echo one; echo two").output_within(Duration::from_secs(60)).unwrap();
        assert_eq!(said, "one\ntwo\n");
    }

    #[test]
    fn a_child_that_does_not_end_is_ended() {
        // It goes on: with its output open, and after it has closed it.
        for script in ["echo one; exec sleep 600", "exec >&-; exec sleep 600"] {
            let child = shell(script);
            let pid = Pid::from_child(&child.inner);
            let error = child.output_within(Duration::from_millis(50)).unwrap_err().to_string();
            assert!(error.contains("hearing a shell"), "{error}");
            assert_eq!(rustix::process::test_kill_process(pid), Err(Errno::SRCH), "{script}");
        }
    }
}
