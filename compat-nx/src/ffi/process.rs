//! This process's part of the application: its engine, its way to the supervisor, its end.

use super::Failure;
use super::errno::EQNOACT;
use super::inside::{self, Inside};
use crate::NxError;
use crate::engine::Engine;
use crate::engine::settings::{FLUSH_MS, Settings};
use crate::error::StartError;
use crate::job::control::{self, Heard, Message};
use crate::job::supervise::Who;
use crate::job::{Job, pmi};
use crate::unconfirmed::{fatal_line, host_number};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vmmc::sys::Fd;
use vmmc::sys::thread::{spawn_quiet, spawn_quiet_by};

/// The engine, once it has started. Never freed: calls of any thread may be in it. Null again in
/// a child that `nx_nfork` made.
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());

/// Process id of the process whose part this is; a child of a plain `fork` has none.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Process id of the process that the library was loaded in, or that we forked: what its streams hold is its own.
static LOADED: AtomicU32 = AtomicU32::new(0);

/// The library has been loaded into this process.
pub(super) fn loaded() {
    LOADED.store(std::process::id(), Ordering::Relaxed);
}

/// Everything but the engine.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Our place, once it is known.
    pub(super) job: Option<Job>,
    /// The engine starts at the first call that needs it, not before.
    pub(super) lazy: bool,
    pub(super) control: Option<Fd>,
    pub(super) launcher: Option<pmi::Launcher>,
}

static PART: Mutex<Part> =
    Mutex::new(Part { job: None, lazy: false, control: None, launcher: None });

/// The part. Not held across anything that blocks, but for starting the engine.
pub(super) fn part() -> MutexGuard<'static, Part> {
    PART.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine of this process, for a call that may wait or take locks.
#[inline]
pub(super) fn engine() -> Result<Entered, Failure> {
    let inside = Inside::begin()?;
    Ok(Entered { engine: engine_unlocked()?, _inside: inside })
}

/// The engine for calls that look, if this one may: not in a handler of a signal that interrupted another call.
#[inline]
pub(super) fn engine_to_look() -> Result<Option<Entered>, Failure> {
    let Some(inside) = Inside::enter() else { return Ok(None) };
    Ok(Some(Entered { engine: engine_unlocked()?, _inside: inside }))
}

/// The engine, for one call.
pub(super) struct Entered {
    engine: &'static Engine,
    _inside: Inside,
}

impl std::ops::Deref for Entered {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        self.engine
    }
}

/// The engine for what takes no lock of it: a handler of a signal may do that, whatever it interrupted.
#[inline]
pub(super) fn engine_unlocked() -> Result<&'static Engine, Failure> {
    let engine = ENGINE.load(Ordering::Acquire);
    // SAFETY: null, or leaked by `start`.
    match unsafe { engine.as_ref() } {
        Some(engine) => Ok(engine),
        None => start_lazily(),
    }
}

/// The engine, if it has started.
pub(super) fn running() -> Option<&'static Engine> {
    // SAFETY: null, or leaked by `start`.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

/// The engine, if it has started and is this process's own: a child of a plain fork has none.
pub(super) fn own() -> Option<&'static Engine> {
    running().filter(|_| OWNER.load(Ordering::Relaxed) == std::process::id())
}

/// Whether the application exists for this process, or will at the first call.
pub(super) fn check_started() -> Result<(), Failure> {
    engine_unlocked().map(|_| ())
}

/// The place of this process, whether or not its engine has started.
pub(super) fn place() -> Option<Job> {
    part().job.clone()
}

/// Where a process is in its application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) node: u32,
    pub(super) size: u32,
    /// Whether there is a host process.
    pub(super) host: bool,
}

/// The [`Seat`] of this process; 0: it has none. Not behind a lock, which a handler of a signal may have interrupted the holder of: who prints
/// "node 3: time limit" there asks for it.
static SEAT: AtomicU64 = AtomicU64::new(0);

const HAS_HOST: u64 = 1 << 63;

/// From here on [`seat`] is that of this job.
pub(super) fn sit(job: &Job) {
    let host = if job.host { HAS_HOST } else { 0 };
    SEAT.store(host | u64::from(job.node) << 32 | u64::from(job.size), Ordering::Relaxed);
}

/// The seat of this process: a host has one from `nx_initve` on, before there are nodes.
#[inline]
pub(super) fn seat() -> Result<Seat, Failure> {
    match SEAT.load(Ordering::Relaxed) {
        0 => Err(NxError::NotStarted.into()),
        seat => {
            let node = ((seat & !HAS_HOST) >> 32) as u32;
            Ok(Seat { node, size: seat as u32, host: seat & HAS_HOST != 0 })
        }
    }
}

#[cold]
fn start_lazily() -> Result<&'static Engine, Failure> {
    let mut part = part();
    // Another thread may have been faster.
    // SAFETY: null, or leaked by `start`.
    if let Some(engine) = unsafe { ENGINE.load(Ordering::Acquire).as_ref() } {
        return Ok(engine);
    }
    match part.job.clone() {
        Some(job) if part.lazy => {
            part.lazy = false;
            start(&job, part.control.as_ref())
        }
        None if seat().is_ok() => {
            let why =
                "the application has no nodes yet, or not all; call nx_nfork or nx_load first";
            Err(Failure::System(EQNOACT, why.into()))
        }
        _ => Err(crate::error::NxError::NotStarted.into()),
    }
}

/// Processes that the supervisor in this process ends on request.
static ENDING: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());

/// Such a process, by node and process id.
pub(super) fn ending(node: u32, pid: i32) {
    ENDING.lock().unwrap_or_else(PoisonError::into_inner).push((node, pid as u32));
}

/// Tells of a node and a process id whether the supervisor has said that this process is ended on request.
fn ended_on_request(control: Option<&Fd>) -> impl Fn(u32, u32) -> bool + Send + Sync + 'static {
    let channel = control.and_then(|control| control.try_clone().ok());
    let known = Mutex::new(Vec::new());
    move |node, pid| {
        let Some(channel) = &channel else {
            let ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
            return ending.contains(&(node, pid));
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        while let Heard::Message(message, _) = control::hear(channel) {
            if let Message::Ending { node, pid } = message {
                known.push((node, pid as u32));
            }
        }
        known.contains(&(node, pid))
    }
}

/// Joins the application.
fn start(job: &Job, control: Option<&Fd>) -> Result<&'static Engine, Failure> {
    let engine = Engine::start_asking(job, ended_on_request(control)).map_err(not_joined)?;
    let engine = Box::into_raw(Box::new(engine));
    OWNER.store(std::process::id(), Ordering::Relaxed);
    ENGINE.store(engine, Ordering::Release);
    // SAFETY: just leaked.
    Ok(unsafe { &*engine })
}

/// Who misses another one is not the cause, at the start as later: [`fatal`] tells the two apart.
fn not_joined(error: StartError) -> Failure {
    match error {
        StartError::Died { node } => NxError::PeerDied { node }.into(),
        error => Failure::System(EQNOACT, format!("joining the application: {error}")),
    }
}

/// Takes a place in an application.
pub(super) fn join(job: Job, lazy: bool) -> Result<(), Failure> {
    let mut part = part();
    part.job = Some(job.clone());
    sit(&job);
    part.lazy = lazy;
    OWNER.store(std::process::id(), Ordering::Relaxed);
    if !lazy {
        start(&job, part.control.as_ref())?;
    }
    Ok(())
}

/// In a child that we forked: it has no part yet. What the parent had is leaked, not dropped: its
/// threads and mappings are not here.
pub(super) fn forget() {
    ENGINE.store(std::ptr::null_mut(), Ordering::Release);
    SEAT.store(0, Ordering::Relaxed);
    loaded();
    std::mem::forget(std::mem::take(&mut *part()));
}

/// "node 3, ptype 0", for people.
pub(super) fn who() -> String {
    // A failure while joining has the lock: then it is too early to know more.
    let place = match PART.try_lock() {
        Ok(part) => part.job.as_ref().map(|job| (job.node, job.size, job.ptype)),
        Err(_) => None,
    };
    let Some((node, size, ptype)) = place else { return format!("process {}", std::process::id()) };
    // SAFETY: null, or leaked by `start`.
    let engine = unsafe { ENGINE.load(Ordering::Acquire).as_ref() };
    let ptype = engine.map(Engine::ptype).or(ptype).unwrap_or(-1);
    if node == host_number(size) {
        format!("host, ptype {ptype}")
    } else {
        format!("node {node}, ptype {ptype}")
    }
}

/// The thread that leaves in order, as the process exits; 0: none does.
static LEAVER: AtomicI32 = AtomicI32::new(0);

/// Whether the process exits in order, by another thread: a handler's call, or a thread's, that comes too late is no failure.
fn is_leaving() -> bool {
    let leaver = LEAVER.load(Ordering::Relaxed);
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    OWNER.load(Ordering::Relaxed) == std::process::id() && leaver != 0 && leaver != own
}

/// Of a thread that has nothing to do any more: others end this process.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}

/// Prints who, what and why, writes out what the program has printed, and ends the application.
pub(super) fn fatal(call: &str, failure: &Failure) -> ! {
    const CODE: u8 = 1;
    if matches!(failure, Failure::Nx(NxError::NotStarted)) && is_leaving() {
        wait_for_the_end()
    }
    super::say(&fatal_line(&who(), call, failure));
    flush();
    if let Failure::Nx(NxError::PeerDied { node } | NxError::PeerLost { node }) = failure {
        let ptype = running().map_or(-1, Engine::ptype);
        let by = Who { node: None, ptype, pid: std::process::id() as i32 };
        if super::app::lost(by, *node, CODE) {
            wait_for_the_end()
        }
        end_with(CODE, &Message::Lost { node: *node, code: CODE })
    }
    end_with(CODE, &Message::Abort { code: CODE, text: String::new() })
}

/// How long an end of all waits for what the program has printed to be written, and to be read by a launcher.
pub(super) fn flushing() -> Duration {
    // A setting that is not understood has ended a start, or will.
    let ms = Settings::from_env().map_or(FLUSH_MS, |settings| settings.flush_ms);
    Duration::from_millis(ms.into())
}

/// Writes out what the program has printed, which `_exit` does not. In a thread of its own, and not for long: the locks of a
/// stream may be held by another thread, or by this one, which was called from within a WRITE; and its reader may be slow.
fn flush() {
    let own = [&OWNER, &LOADED].map(|of| of.load(Ordering::Relaxed));
    if !own.contains(&std::process::id()) {
        return; // a child of a plain fork: what is buffered may be its parent's
    }
    // It takes no SIGPIPE: a pipe that nobody reads any more must not change how this process ends.
    within(flushing(), "nx-flush", super::spawn::flush_streams);
}

/// Whether `work` ends in time, in a thread of its own: it may want what this one has, and then it does not.
fn within(time: Duration, name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    let (done, ended) = std::sync::mpsc::channel();
    let work = move || {
        work();
        let _ = done.send(());
    };
    spawn_quiet(name, work).is_ok() && ended.recv_timeout(time).is_ok()
}

/// The process that ends its application, if this is it.
static ENDS_ALL: AtomicU32 = AtomicU32::new(0);

/// Whether the first thread of this process ends the application: another one that finds a reason, too, leaves it to that one.
pub(super) fn begins_to_end() -> bool {
    // Of a child that was forked meanwhile the number is another one.
    ENDS_ALL.swap(std::process::id(), Ordering::Relaxed) != std::process::id()
}

/// Tells whoever started us, and ends this process. Runs no destructor: others may wait for us.
fn end_with(code: u8, last_words: &Message) -> ! {
    if !begins_to_end() {
        // Ended from here the other one could not finish telling.
        wait_for_the_end()
    }
    if let Ok(mut part) = PART.try_lock() {
        let told = part
            .control
            .as_ref()
            .is_some_and(|control| control::tell(control, last_words, &[]).is_ok());
        if !told && let Some(launcher) = &mut part.launcher {
            launcher.abort(code, "an NX call failed", flushing());
        }
    }
    // SAFETY: _exit(2) never returns and touches nothing of ours.
    unsafe { libc::_exit(code.into()) }
}

/// Leaves in order, when the process exits in the ordinary way.
pub(super) fn leave() {
    super::app::settle();
    if OWNER.load(Ordering::Relaxed) != std::process::id() {
        return; // a child of a plain fork: the part is the parent's
    }
    // SAFETY: null, or leaked by `start`.
    if let Some(engine) = unsafe { ENGINE.load(Ordering::Acquire).as_ref() } {
        let leave = move || {
            LEAVER.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
            engine.leave();
        };
        if !inside::interrupts() {
            leave();
        } else if !within(flushing(), "nx-leave", leave) {
            super::say(&format!(
                "nx: {}: exit in a handler of a signal that interrupted an NX call: to the other nodes it is a death",
                who()
            ));
        }
    }
    // In a handler this thread may have it.
    let part = if inside::interrupts() { PART.try_lock().ok() } else { Some(part()) };
    let Some(mut part) = part else { return };
    if let Some(control) = &part.control {
        let _ = control::tell(control, &Message::Finished, &[]);
    }
    if let Some(launcher) = &mut part.launcher {
        launcher.finish();
    }
}

/// Returns when the supervisor, if that is another process, has looked at all processes that have ended.
pub(super) fn about_to_reap() {
    let Ok((looked, answer)) = vmmc::sys::packet::pair() else {
        return; // it is for what people are told only
    };
    let asked = part().control.as_ref().is_some_and(|control| {
        control::tell(control, &Message::Reaping, &[answer.as_fd()]).is_ok()
    });
    drop(answer);
    while asked && rustix::io::read(&looked, &mut [0]) == Err(rustix::io::Errno::INTR) {}
}

/// A thread that ends this process when its supervisor has gone: whoever killed that one meant
/// the whole application.
pub(super) fn follow(control: &Fd) {
    let Ok(own) = control.try_clone() else { return };
    let watch = move || {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            let mut fds = [PollFd::new(&own, PollFlags::empty())];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) if fds[0].revents().contains(PollFlags::HUP) => break,
                _ => return,
            }
        }
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    };
    let small = std::thread::Builder::new().name("nx-follow".into()).stack_size(64 << 10);
    let _ = spawn_quiet_by(small, watch);
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_misses_another_one_at_the_start_does_not_take_the_blame() {
        let died = not_joined(StartError::Died { node: 3 });
        assert!(matches!(died, Failure::Nx(NxError::PeerDied { node: 3 })), "{died}");
        let missing = not_joined(StartError::Missing { node: 3, seconds: 1 });
        assert!(matches!(missing, Failure::System(EQNOACT, _)), "{missing}");
    }
}
